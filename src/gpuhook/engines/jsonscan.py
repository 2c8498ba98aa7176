"""A JSON text with positions: where each member, value and comma stands, and what is wrong with a text that is none.

As strict as Go's encoding/json, which dockerd and podman read with, and in places stricter: a key that stands twice is
refused (Go takes the last), and so is half of a surrogate pair (Go replaces it). Both are mistakes of a person.
"""

import re
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn

from gpuhook.errors import GpuhookError, shown

DEPTH: Final = 64  # levels; a daemon.json has about five

_BLANK = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_PLAIN = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]*')
_WORD = re.compile(r"[-+.\w]+")
_WORDS = ("true", "false", "null")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_TYPOGRAPHIC = "“”„‟‘’‚‛«»"


@dataclass
class Node:
    """A value: what it is, its text from `start` to `end`, and the members or elements in it."""

    kind: Literal["object", "list", "plain"]
    start: int
    end: int = 0
    members: "list[Member]" = field(default_factory=list)


@dataclass
class Member:
    """A member of an object or an element of a list (`key` empty): it begins at `start` and ends with its value."""

    key: str
    start: int
    node: Node

    @property
    def end(self) -> int:
        """Where the value ends."""
        return self.node.end


def scan(path: str, text: str) -> Node:
    """The text's value, which must be an object. Raises engine-config-invalid with line and column."""
    return _Scanner(path, text).document()


def line(text: str, at: int) -> int:
    """The line of a position, from 1."""
    return text.count("\n", 0, at) + 1


class _Scanner:
    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.open: list[Node] = []

    def fail(self, at: int, what: str, hint: str) -> NoReturn:
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        raise GpuhookError("engine-config-invalid", f"{self.path}:{line(self.text, at)}:{column}: {what}", hint)

    def blank(self, at: int) -> int:
        found = _BLANK.match(self.text, at)
        return found.end() if found else at

    def document(self) -> Node:
        if self.text.startswith("\ufeff"):
            self.fail(0, "the file begins with a byte order mark (U+FEFF)", "save it without a byte order mark")
        node = self.value(self.blank(0))
        at = self.blank(node.end)
        if at < len(self.text):
            if self.text[at] in "{[":
                what = f"a second JSON document begins here: the first ended in line {line(self.text, node.end - 1)}"
                self.fail(at, what, "put the members of both into one pair of braces, with commas between them")
            if self.text[at] in "}]":
                self.fail(at, f"{self.text[at]!r} closes nothing", "take it out, or put an opening before it")
            self.bad(at, "text after the end of the document")
        if node.kind != "object":
            what = "a list" if node.kind == "list" else f"only {shown(self.text[node.start : node.end])}"
            self.fail(node.start, f"the file is {what}: it must be an object", "put the settings between { and }")
        return node

    def value(self, at: int) -> Node:
        char = self.text[at : at + 1]
        if char in ("{", "["):
            return self.container(at)
        if char == '"':
            return Node("plain", at, self.string(at)[1])
        if char and char in "-0123456789":
            return self.number(at)
        found = _WORD.match(self.text, at)
        if not found or found.group() not in _WORDS:
            self.bad(at, "a value is needed")
        return Node("plain", at, found.end())

    def container(self, at: int) -> Node:
        is_object = self.text[at] == "{"
        close = "}" if is_object else "]"
        node = Node("object" if is_object else "list", at)
        if len(self.open) == DEPTH:
            self.fail(at, f"nested deeper than {DEPTH} levels", "take out the brackets that are too many")
        self.open.append(node)
        lines: dict[str, int] = {}
        at = self.blank(at + 1)
        while self.text[at : at + 1] != close:
            member = self.member(at, lines) if is_object else Member("", at, self.value(at))
            node.members.append(member)
            at = self.blank(member.end)
            if self.text[at : at + 1] == ",":
                comma, at = at, self.blank(at + 1)
                following = self.text[at : at + 1]
                if following in ("}", "]"):
                    self.fail(comma, f"a comma before {following!r}: there is nothing after it", "take the comma out")
                if following == ",":
                    self.fail(at, "two commas with nothing between them", "take one of them out")
            elif self.text[at : at + 1] != close:
                self.unseparated(at)
        self.open.pop()
        node.end = at + 1
        return node

    def unseparated(self, at: int) -> NoReturn:
        """Neither a comma nor the end of the object or list."""
        node = self.open[-1]
        found = self.text[at : at + 1]
        if found in ("}", "]"):
            opened = f"the {node.kind} from line {line(self.text, node.start)}"
            self.fail(at, f"{found!r} where {opened} must be closed first", "correct the bracket")
        if found == '"' or (found and found in "{[-0123456789"):
            end = self.string(at)[1] if found == '"' else at + 1
            self.fail(at, f"a comma is missing before {self.text[at:end][:80]}", "put a comma before it")
        self.bad(at, "a comma or the end is needed")

    def member(self, at: int, lines: dict[str, int]) -> Member:
        if self.text[at : at + 1] != '"':
            found = _WORD.match(self.text, at)
            if found:
                self.fail(at, f"the key {shown(found.group())} stands without quotation marks", 'put it between " "')
            self.bad(at, "a key in quotation marks is needed")
        key, end = self.string(at)
        if key in lines:
            what = f"the key {shown(key)} stands here and in line {lines[key]}"
            self.fail(at, what, "put what belongs together under one key, and take the other out")
        lines[key] = line(self.text, at)
        colon = self.blank(end)
        char = self.text[colon : colon + 1]
        if char != ":":
            after = f"after {self.text[at:end][:80]}"
            if char in tuple(",}="):
                self.fail(colon, f"a colon and a value are missing {after}", 'write "key": value')
            if char in tuple('"{[-0123456789'):
                self.fail(colon, f"a colon is missing {after}", 'write "key": value')
            self.bad(colon, f"a colon is needed {after}")
        return Member(key, at, self.value(self.blank(colon + 1)))

    def number(self, at: int) -> Node:
        found = _NUMBER.match(self.text, at)
        word = _WORD.match(self.text, at)
        wrong = word.group() if word else self.text[at]
        if not found or found.group() != wrong:
            if wrong == "-Infinity":
                self.bad(at + 1, "")
            self.fail(at, f"{shown(wrong)} is no number in JSON", "write it in decimal, no zeros in front, or quoted")
        if abs(float(found.group())) == float("inf"):
            self.fail(at, f"the number {shown(wrong)} is too large", "correct it")
        return Node("plain", at, found.end())

    def string(self, start: int) -> tuple[str, int]:
        """The text of a string and where it ends."""
        parts = []
        at = start + 1
        while True:
            plain = _PLAIN.match(self.text, at)
            if plain:
                parts.append(plain.group())
                at = plain.end()
            char = self.text[at : at + 1]
            if char == '"':
                return "".join(parts), at + 1
            if char == "\\":
                part, at = self.escape(at)
                parts.append(part)
            elif char in ("", "\n", "\r"):
                self.fail(start, "a text begins here that is not closed in its line", "put a quotation mark at its end")
            elif char < " ":
                self.fail(at, f"a control character (U+{ord(char):04X}) in a text", f"write \\u{ord(char):04x} for it")
            else:
                self.fail(at, f"half of a surrogate pair (U+{ord(char):04X}) in a text", "take it out")

    def escape(self, at: int) -> tuple[str, int]:
        char = self.text[at + 1 : at + 2]
        if char in _ESCAPES:
            return _ESCAPES[char], at + 2
        if char != "u" or not _HEX.match(self.text, at + 2):
            what = f"{shown(self.text[at : at + 2])} means nothing in JSON"
            self.fail(at, what, "write \\\\ for a backslash, \\uXXXX for others")
        code, end = int(self.text[at + 2 : at + 6], 16), at + 6
        if 0xD800 <= code < 0xDC00 and self.text.startswith("\\u", end) and _HEX.match(self.text, end + 2):
            low = int(self.text[end + 2 : end + 6], 16)
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), end + 6
        if 0xD800 <= code < 0xE000:
            self.fail(at, f"{self.text[at:end]} is half of a surrogate pair", "write the whole pair")
        return chr(code), end

    def bad(self, at: int, wanted: str) -> NoReturn:
        """Say what stands at a place where nothing of JSON does."""
        rest = self.text[at : at + 40]
        char = rest[:1]
        if not char:
            first = self.open[-1] if self.open else None
            opened = f": the {first.kind} from line {line(self.text, first.start)} is still open" if first else ""
            self.fail(at, f"the file ends in the middle{opened}", "close what is open, or take the file from a backup")
        if char == "<":
            what = f"this is HTML or XML, not JSON: {shown(rest.splitlines()[0])}"
            self.fail(at, what, "it looks like a page of an error that was downloaded: take the file from a backup")
        if rest.startswith(("//", "/*")) or char == "#":
            self.fail(at, f"a comment: {shown(rest.splitlines()[0])}; JSON has none", "take the comment out")
        if char in _TYPOGRAPHIC:
            self.fail(at, f"the typographic quotation mark {char} (U+{ord(char):04X})", 'write the plain one, "')
        if char in "'`":
            self.fail(at, f"the quotation mark {char}: JSON has only the double one", 'write " in its place')
        word = _WORD.match(rest)
        if word and re.fullmatch(r"[-+]?(NaN|Infinity|inf|nan)", word.group()):
            self.fail(at, f"{word.group()} is no value in JSON", "write a number, or null")
        if word:
            lower = word.group().lower()
            hint = f"write {'null' if lower == 'none' else lower}" if lower in ("true", "false", "null", "none") else ""
            self.fail(at, f"{shown(word.group())} is no value in JSON", hint or "put a text between quotation marks")
        name = f"U+{ord(char):04X}" if char < " " or char > "~" else char
        self.fail(at, f"unexpected {name}{': ' + wanted if wanted else ''}", "correct this place")
