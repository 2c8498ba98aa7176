"""Edits of a JSON text that leave every other byte as it is: daemon.json of docker, hook files."""

import json
import re
from collections.abc import Sequence

from gpuhook.engines import jsonscan, tree
from gpuhook.engines.jsonscan import Member, Node
from gpuhook.engines.model import Step, Undo, Value
from gpuhook.errors import GpuhookError, shown

_EMPTY = "{}\n"
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


def parse(path: str, text: str) -> dict[str, Value]:
    """The text's object; that of an empty file has nothing in it. Raises engine-config-invalid with line and column."""
    if not text.strip(" \t\r\n"):
        return {}
    jsonscan.scan(path, text)
    return dict(json.loads(text))


def apply(path: str, text: str, steps: Sequence[Step]) -> tuple[str, tuple[Undo, ...]]:
    """The text with the steps made, and how each is taken back. Steps that are fulfilled change nothing.

    Raises engine-config-invalid for a text that is no JSON, for a value of a wrong type on the way, and where the
    edited text would say something else than it should.
    """
    return tree.apply(_Json(), path, text, steps)


def undo(path: str, text: str, undos: Sequence[Undo]) -> tuple[str, tuple[str, ...]]:
    """The text with the steps taken back, newest first, and a warning for each value that someone changed since."""
    return tree.undo(_Json(), path, text, undos)


def line_of(text: str, keypath: tuple[str, ...]) -> int | None:
    """The line, from 1, where a key stands. None where it doesn't, and for a text that is no JSON."""
    try:
        node = jsonscan.scan("", text)
    except GpuhookError:
        return None
    start = node.start
    for key in keypath:
        member = _member(node, key)
        if member is None:
            return None
        node, start = member.node, member.start
    return jsonscan.line(text, start)


def _member(node: Node, key: str) -> Member | None:
    return next((member for member in node.members if node.kind == "object" and member.key == key), None)


class _Json(tree.Editor):
    """The editor for `tree`."""

    table = "object"

    def parse(self, path: str, text: str) -> dict[str, Value]:
        return parse(path, text)

    def line_of(self, text: str, keypath: tree.Path) -> int | None:
        return line_of(text, keypath)

    def name(self, keypath: tree.Path) -> str:
        return ".".join(key if _PLAIN_KEY.fullmatch(key) else shown(key) for key in keypath)

    def put(self, text: str, keypath: tree.Path, value: Value) -> str:
        edit = _Edit(text)
        nodes = [edit.root]
        for depth, key in enumerate(keypath):
            member = _member(nodes[-1], key)
            if member is None:
                for outer in reversed(keypath[depth + 1 :]):
                    value = {outer: value}
                return edit.insert(nodes[-1], key, value)
            nodes.append(member.node)
        style = edit.style_in(nodes[-2])
        return edit.replace(nodes[-1].start, nodes[-1].end, edit.render(value, style))

    def remove(self, text: str, keypath: tree.Path) -> str:
        edit = _Edit(text)
        node = edit.at(keypath[:-1])
        return edit.take_out(node, [member.key for member in node.members].index(keypath[-1]))

    def append(self, text: str, keypath: tree.Path, value: str) -> str:
        edit = _Edit(text)
        return edit.insert(edit.at(keypath), None, value)

    def drop(self, text: str, keypath: tree.Path, index: int) -> str:
        edit = _Edit(text)
        return edit.take_out(edit.at(keypath), index)


class _Edit:
    """A text with its positions, and how its author lays JSON out."""

    def __init__(self, text: str) -> None:
        self.text = text if text.strip(" \t\r\n") else _EMPTY
        self.root = jsonscan.scan("", self.text)
        newline = self.text.find("\n")
        self.newline = "\r\n" if newline > 0 and self.text[newline - 1] == "\r" else "\n"
        self.unit, self.colon, self.comma = "    ", ": ", ", "
        inside = self.text[self.root.start : self.root.end]
        self.one_line = bool(self.root.members) and "\n" not in inside
        if self.root.members:
            first = self.root.members[0]
            gap = self.text[self.root.start + 1 : first.start]
            if "\n" in gap:
                self.unit = gap.rpartition("\n")[2]
            # the key can't hold an unescaped quotation mark, so this finds the colon that follows it
            found = re.compile(r'"(?:[^"\\]|\\.)*"([ \t]*:[ \t]*)').match(self.text, first.start)
            if found:
                self.colon = found.group(1)
        if len(self.root.members) > 1 and self.one_line:
            self.comma = self.text[self.root.members[0].end : self.root.members[1].start]
        elif self.one_line and self.colon == ":":
            self.comma = ","

    def at(self, keypath: tree.Path) -> Node:
        node = self.root
        for key in keypath:
            node = next(member.node for member in node.members if member.key == key)
        return node

    def replace(self, start: int, end: int, new: str) -> str:
        return self.text[:start] + new + self.text[end:]

    def indentation(self, at: int) -> str:
        """The blanks that begin the line of a position."""
        start = self.text.rfind("\n", 0, at) + 1
        return self.text[start : start + len(self.text[start:at]) - len(self.text[start:at].lstrip(" \t"))]

    def style_in(self, node: Node) -> str | None:
        """The indentation of what is in an object or list; None: it is all in one line."""
        if self.one_line:
            return None
        if not node.members:
            gap = self.text[node.start + 1 : node.end - 1]
            if "\n" not in gap and (gap or node.kind == "list"):
                return None
            return self.indentation(node.start) + self.unit
        before = node.members[-2].end if len(node.members) > 1 else node.start + 1
        gap = self.text[before : node.members[-1].start].rpartition(",")[2]
        return gap.rpartition("\n")[2] if "\n" in gap else None

    def insert(self, node: Node, key: str | None, value: Value) -> str:
        """Make a member (`key` None: an element) the last in `node`."""
        style = self.style_in(node)
        new = self.render(value, style)
        if key is not None:
            new = json.dumps(key, ensure_ascii=False) + self.colon + new
        if node.members:
            gap = self.comma if style is None else "," + self.newline + style
            return self.replace(node.members[-1].end, node.members[-1].end, gap + new)
        blank = self.text[node.start + 1 : node.end - 1]
        if style is None:
            return self.replace(node.start + 1, node.end - 1, blank + new + blank)
        end = blank if "\n" in blank else self.newline + self.indentation(node.start)
        return self.replace(node.start + 1, node.end - 1, self.newline + style + new + end)

    def take_out(self, node: Node, index: int) -> str:
        """Take a member out, with the comma and the blanks that only it needs."""
        members = node.members
        if index:
            return self.replace(members[index - 1].end, members[index].end, "")
        if len(members) > 1:
            return self.replace(members[0].start, members[1].start, "")
        before = self.text[node.start + 1 : members[0].start]
        after = self.text[members[0].end : node.end - 1]
        if "\n" not in before:
            blank = before
        elif node.kind == "object" and after == self.newline + self.indentation(node.start):
            blank = ""  # as `insert` lays out what goes into {}
        else:
            blank = after
        return self.replace(node.start + 1, node.end - 1, blank)

    def render(self, value: Value, indent: str | None) -> str:
        """A value as the file's author would write it; `indent` is that of the line it begins in, None: one line."""
        if isinstance(value, dict) and value:
            inner = None if indent is None else indent + self.unit
            parts = [
                json.dumps(key, ensure_ascii=False) + self.colon + self.render(item, inner)
                for key, item in value.items()
            ]
            if indent is None or inner is None:
                return "{" + self.comma.join(parts) + "}"
            joint = "," + self.newline + inner
            return "{" + self.newline + inner + joint.join(parts) + self.newline + indent + "}"
        if isinstance(value, list):
            return "[" + self.comma.join(self.render(item, None) for item in value) + "]"
        return json.dumps(value, ensure_ascii=False)
