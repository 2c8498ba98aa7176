"""A TOML document as tomlkit's nodes: where what stands in it, and how its author lays it out."""

from collections.abc import Generator
from typing import Any

import tomlkit
from tomlkit.container import Container
from tomlkit.items import AoT, Comment, InlineTable, Item, Key, Table, Whitespace

from gpuhook import tomlscan
from gpuhook.engines.tree import Path

Body = list[tuple[Key | None, Item]]
Place = tuple[Body, int]
Header = tuple[Path, Table, Place]


def body_of(node: Any) -> Body:
    """The entries of a document or table, in the text's order: keys, and without one comments and blank lines."""
    body: Body = (node if isinstance(node, Container) else node.value).body
    return body


def tables_of(item: Any) -> list[Table]:
    """The tables of an entry with a header: one, or those of an array of tables."""
    return list(item.body) if isinstance(item, AoT) else [item]


def is_header(key: Key | None, item: Item) -> bool:
    """Whether an entry is a table, or an array of tables, with a header; not a dotted key."""
    return key is not None and isinstance(item, Table | AoT) and not key.is_dotted()


def is_pair(key: Key | None, item: Item) -> bool:
    """Whether an entry is a key with a value, or a table written by dotted keys."""
    return key is not None and not is_header(key, item)


def tail_of(body: Body) -> Body:
    """The list that ends where the text of `body` does: that of the last table in it."""
    while body and is_header(*body[-1]):
        body = body_of(tables_of(body[-1][1])[-1])
    return body


def indent_of(item: Item) -> str:
    """The blanks before a pair; a dotted key's stand at its value."""
    while isinstance(item, Table):
        item = next(inner for key, inner in body_of(item) if key is not None)
    return str(item.trivia.indent)


def has_header(item: Any) -> bool:
    """Whether a table that is no dotted key has a header of its own."""
    return isinstance(item, AoT) or not item.is_super_table() or any(is_pair(*entry) for entry in body_of(item))


class Nodes:
    """A document. Raises ValueError for a layout that tomlkit can't keep, and whatever tomlkit does."""

    def __init__(self, text: str) -> None:
        self._crlf = 0 < text.count("\r\n") == text.count("\n")  # tomlkit ends the lines it makes by \n alone
        self._ended = not text or text.endswith("\n")
        text = (text.replace("\r\n", "\n") if self._crlf else text) + ("" if self._ended else "\n")
        self._document = tomlkit.parse(text)
        tables = [table for _, table, _ in self._headers() if has_header(table)]
        headers = [statement for statement in tomlscan.statements(text) if statement.is_header]
        for table, header in zip(tables, headers, strict=True):
            table.trivia.indent = header.indent  # tomlkit adds to that of a header below tables that have none
        if self._document.as_string() != text:
            raise ValueError("tomlkit would move what is in the document")

    def text(self) -> str:
        """The document as it is now."""
        text = self._document.as_string()
        if not self._ended:
            text = text.removesuffix("\n")
        return text.replace("\n", "\r\n") if self._crlf else text

    # Places

    def _entries(self, path: Path) -> list[Place]:
        """Where the entries stand that make a key be there, in the text's order: a table may have several."""
        bodies = [body_of(self._document)]
        found: list[Place] = []
        for key in path:
            found = [(body, at) for body in bodies for at, (name, _) in enumerate(body) if name and name.key == key]
            bodies = [body_of(body[at][1]) for body, at in found if isinstance(body[at][1], Table | InlineTable)]
        return found

    def _tables(self, path: Path) -> list[tuple[Key | None, Any]]:
        """The nodes of a table, each with its key, in the text's order."""
        if not path:
            return [(None, self._document)]
        found = [body[at] for body, at in self._entries(path)]
        return [(key, item) for key, item in found if isinstance(item, Table | InlineTable)]

    def _walk(self, body: Body, path: Path, before: Place) -> Generator[Header, None, Place]:
        """Each table that is no dotted key, with the place where the text before it ends; where the last one ends."""
        for at, (key, item) in enumerate(body):
            if key is None or not is_header(key, item):
                before = (body, at + 1)
                continue
            for table in tables_of(item):
                yield (*path, key.key), table, before
                if has_header(table):
                    before = (body_of(table), 0)
                before = yield from self._walk(body_of(table), (*path, key.key), before)
        return before

    def _headers(self, below: Path = ()) -> list[Header]:
        body = body_of(self._document)
        return [found for found in self._walk(body, (), (body, 0)) if found[0][: len(below)] == below]

    def _own_comments(self, body: Body, end: int) -> int:
        """Where the lines of comments begin that stand right above what follows."""
        while end and isinstance(body[end - 1][1], Comment):
            end -= 1
        return end

    def _rest(self, body: Body) -> int:
        """Where the blank lines and comments begin that belong to the table after the last of `body`."""
        end = len(body)
        if body is not tail_of(body_of(self._document)):
            end = self._own_comments(body, end)
        while end and isinstance(body[end - 1][1], Whitespace):
            end -= 1
        return end

    # Layout

    def _unit(self) -> str:
        """By how much a table's header stands to the right of the header of the table that it is in."""
        seen: dict[Path, str] = {}
        units: dict[int, str] = {}
        for path, table, _ in self._headers():
            if not has_header(table):
                continue
            own = seen[path] = str(table.trivia.indent)
            levels = next((levels for levels in range(1, len(path)) if path[:-levels] in seen), 0)
            extra = own.removeprefix(seen[path[:-levels]]) if levels else ""
            if extra:
                units.setdefault(levels, extra[: len(extra) // levels])
        return units[min(units)] if units else ""

    def _indentation(self, path: Path, home: Path) -> str:
        """That of a new header."""
        written = [(other, str(table.trivia.indent)) for other, table, _ in self._headers() if has_header(table)]
        below = [found for found in written if home and found[0][: len(home)] == home]
        near, own = min(below, key=lambda found: abs(len(found[0]) - len(path)), default=(path, ""))
        if len(near) <= len(path):
            return own + self._unit() * (len(path) - len(near))
        around = [found for found in written if found[0] == path[: len(found[0])]]
        _, outer = max(around, key=lambda found: len(found[0]), default=((), ""))
        return min(outer + self._unit() if around else "", own, key=len)

    def _inner(self) -> str:
        """By how much keys stand to the right of their header."""
        for _, table, _ in self._headers():
            first = next((item for key, item in body_of(table) if is_pair(key, item)), None)
            if first is not None:
                own, inner = str(table.trivia.indent), indent_of(first)
                return inner[len(own) :] if inner.startswith(own) else ""
        return ""
