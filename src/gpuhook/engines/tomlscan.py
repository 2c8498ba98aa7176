"""A TOML text with positions: which lines hold which header, key and value.

Only for a text that tomllib has read: so this finds places and leaves what is wrong with a text to tomllib.
"""

import re
import tomllib
from dataclasses import dataclass, field
from typing import Final, Literal

from gpuhook.engines.tree import Path

DEPTH: Final = 64  # levels of brackets in a value

_SPACE = re.compile(r"[ \t]*")
FILL: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")  # between the elements of a list
_PLAIN = re.compile(r"[^,\]}#\r\n]+")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRINGS = (  # the longer quotation marks first
    re.compile(r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}', re.DOTALL),
    re.compile(r"'''(?:[^']|'{1,2}(?!'))*'{3,5}", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)


class TooDeepError(ValueError):
    """A value has more than DEPTH levels of brackets."""


@dataclass
class Value:
    """A value's text from `start` to `end`: the pairs of an inline table, or the elements of a list, in it."""

    kind: Literal["table", "list", "string", "plain"]
    start: int
    end: int = 0
    pairs: "list[Pair]" = field(default_factory=list)
    items: "list[Value]" = field(default_factory=list)

    def spans(self) -> list[tuple[int, int]]:
        """Where each of what is in it begins and ends."""
        if self.kind == "table":
            return [(pair.start, pair.value.end) for pair in self.pairs]
        return [(item.start, item.end) for item in self.items]


@dataclass
class Pair:
    """A key and its value. `base` is the path of the table that it is written in, `path` that of the value.

    `line` and `end` are the place where its lines begin and end; for a pair of an inline table (`inside`), its own.
    """

    base: Path
    path: Path
    start: int
    value: Value
    inside: Value | None = None
    line: int = 0
    end: int = 0


@dataclass
class Section:
    """A header with its pairs; the first section has no header. `raw`: the keys as they are written.

    `line` and `end` are those of the header's line, `start` is where its bracket stands.
    """

    path: Path = ()
    raw: tuple[str, ...] = ()
    array: bool = False
    line: int = 0
    start: int = 0
    end: int = 0
    pairs: list[Pair] = field(default_factory=list)

    @property
    def tail(self) -> int:
        """Where the last line of the header and pairs ends."""
        return self.pairs[-1].end if self.pairs else self.end


def scan(text: str) -> list[Section]:
    """The sections of a text that tomllib has read, the one without a header first. Raises TooDeepError."""
    return _Scanner(text).document()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.depth = 0

    def skip(self, at: int, what: re.Pattern[str] = _SPACE) -> int:
        found = what.match(self.text, at)
        return found.end() if found else at

    def line_end(self, at: int) -> int:
        newline = self.text.find("\n", at)
        return len(self.text) if newline < 0 else newline + 1

    def document(self) -> list[Section]:
        sections = [Section()]
        line = 0
        while line < len(self.text):
            at = self.skip(line)
            char = self.text[at : at + 1]
            if char == "[":
                array = self.text[at + 1] == "["
                path, raw, end = self.key(at + 1 + array)
                line_end = self.line_end(end)
                sections.append(Section(path, raw, array, line, at, line_end))
                line = line_end
            elif char and char not in "#\r\n":
                pair = self.pair(at, sections[-1].path)
                pair.line, pair.end = line, self.line_end(pair.value.end)
                sections[-1].pairs.append(pair)
                line = pair.end
            else:
                line = self.line_end(at)
        return sections

    def pair(self, start: int, base: Path, inside: Value | None = None) -> Pair:
        path, _, end = self.key(start)
        path = (*base, *path)
        return Pair(base, path, start, self.value(self.skip(end + 1), path), inside)  # end: the equals sign

    def key(self, at: int) -> tuple[Path, tuple[str, ...], int]:
        """The parts of a key, as they are meant and as they are written, and where the blanks after it end."""
        parts, raw = [], []
        while True:
            at = self.skip(at)
            found = _STRINGS[2].match(self.text, at) or _STRINGS[3].match(self.text, at) or _BARE.match(self.text, at)
            if not found:
                raise ValueError("no key")
            word = found.group()
            raw.append(word)
            parts.append(tomllib.loads(f"k={word}")["k"] if word[0] in "\"'" else word)
            at = self.skip(found.end())
            if self.text[at : at + 1] != ".":
                return tuple(parts), tuple(raw), at
            at += 1

    def value(self, at: int, path: Path) -> Value:
        char = self.text[at]
        if char in "[{":
            return self.container(at, path)
        for string in _STRINGS if char in "\"'" else ():
            found = string.match(self.text, at)
            if found:
                return Value("string", at, found.end())
        found = _PLAIN.match(self.text, at)
        if not found:
            raise ValueError("no value")
        return Value("plain", at, at + len(found.group().rstrip(" \t")))

    def container(self, at: int, path: Path) -> Value:
        table = self.text[at] == "{"
        value = Value("table" if table else "list", at)
        self.depth += 1
        if self.depth > DEPTH:
            raise TooDeepError
        at = self.skip(at + 1, FILL)
        while self.text[at] not in "]}":
            if table:
                pair = self.pair(at, path, value)
                value.pairs.append(pair)
                pair.line, pair.end = pair.start, pair.value.end
                at = pair.end
            else:
                # no path leads into a list: this keeps the tables in it apart from every other
                item = self.value(at, (*path, "[]"))
                value.items.append(item)
                at = item.end
            at = self.skip(at, FILL)
            if self.text[at] == ",":
                at = self.skip(at + 1, FILL)
        self.depth -= 1
        value.end = at + 1
        return value
