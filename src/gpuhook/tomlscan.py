"""What neither tomllib nor tomlkit tells of a TOML text: the lines of headers and keys, the blanks before them, the
comments.

Only for a text that tomllib has read, or the lines that it has: what is wrong with a text is left to tomllib.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

# What a text is made of, as far as lines, brackets and comments go; the longer quotation marks first
_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}'
    r"|'''(?:[^']|'{1,2}(?!'))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
    r"|#[^\r\n]*|[\[{]|[\]}]|\n",
    re.DOTALL,
)


class Statement(NamedTuple):
    """A header, or a key with its value: its first line, from 1; the blanks before it; how deep its brackets go."""

    line: int
    indent: str
    text: str
    depth: int

    @property
    def is_header(self) -> bool:
        """Whether it is a header, of a table or an array of tables."""
        return self.text.startswith("[")


def statements(text: str) -> Iterator[Statement]:
    """The headers and the pairs of a text, in its order."""
    start = depth = deepest = 0
    line = first = 1
    for token in _TOKEN.finditer(text + "\n"):
        word = token.group()
        line += word.count("\n")
        if word in ("[", "{"):
            depth += 1
            deepest = max(deepest, depth)
        elif word in ("]", "}"):
            depth -= 1
        elif word == "\n" and depth == 0:
            whole = text[start : token.start()].rstrip(" \t\r")
            found = whole.lstrip(" \t")
            if found and not found.startswith("#"):
                yield Statement(first, whole[: len(whole) - len(found)], found, deepest)
            start, first, deepest = token.end(), line, 0


def comments(text: str) -> list[str]:
    """The comments of a text, in its order."""
    return [token.group() for token in _TOKEN.finditer(text) if token.group().startswith("#")]
