"""The edits that `tomltext` makes on a TOML document's nodes.

tomlkit's parser and its rendering keep a document byte for byte. Its own assignments do not always: they misplace
what goes into tables that stand out of order or are written by dotted keys, and leave comments behind that belong to
another table. So the edits are made on the lists of nodes, which are in the text's order, where that is needed.
"""

import re

import tomlkit
from tomlkit.container import Container
from tomlkit.items import AoT, Array, InlineTable, Item, Key, Table, Trivia, Whitespace

from gpuhook.engines.model import Value
from gpuhook.engines.tomlnodes import (
    Body,
    Nodes,
    body_of,
    has_header,
    indent_of,
    is_header,
    is_pair,
    tables_of,
    tail_of,
)
from gpuhook.engines.tree import Path

_LITERAL_MARK = re.compile("'(?!'')|''$")
_LITERAL = re.compile(r"[^'\x00-\x1f\x7f]*")


def dotted(path: Path) -> str:
    """A path as a key of several parts."""
    return ".".join(tomlkit.key(key).as_string() for key in path)


def _item(value: Value) -> Item:
    """A value in one line."""
    if isinstance(value, dict):
        table = tomlkit.inline_table()
        for key, inner in value.items():
            table.append(key, _item(inner))
        return table
    if isinstance(value, list):
        array = tomlkit.array()
        for inner in value:
            array.append(_item(inner))
        return array
    return tomlkit.item(value)


def _item_for(value: Value, old: Item) -> Item:
    """A value in place of `old`: with its comment, and a text keeps to single quotation marks where it can."""
    new = _item(value)
    if isinstance(value, str) and _LITERAL_MARK.match(old.as_string()) and _LITERAL.fullmatch(value):
        new = tomlkit.string(value, literal=True)
    for part in ("indent", "comment_ws", "comment", "trail"):
        setattr(new.trivia, part, getattr(old.trivia, part))
    return new


def _blank() -> tuple[None, Item]:
    return None, Whitespace("\n")


def _take_blank(body: Body, at: int) -> int:
    """Take one blank line out that ends at a place; where the place is then."""
    item = body[at - 1][1] if at else None
    if not isinstance(item, Whitespace) or not item.s.endswith("\n"):
        return at
    rest = item.s[:-1]
    body[at - 1 : at] = [(None, Whitespace(rest))] if rest else []
    return at - (not rest)


def _cut_blank(body: Body) -> str:
    """Take what is between the last pair of an inline table and its bracket away: what of it are blanks."""
    text = ""
    while body and body[-1][0] is None:
        last = body.pop()[1]
        text = text or (last.s if isinstance(last, Whitespace) and "," not in last.s else "")
    return text


def _put_blank(body: Body, text: str) -> None:
    if text:
        body.append((None, Whitespace(text)))


def _is_empty(item: Item) -> bool:
    """Whether an entry is a table that leaves nothing in the text."""
    if not isinstance(item, Table) or not item.is_super_table():
        return False
    return all(key is None or _is_empty(inner) for key, inner in body_of(item))


class Edits(Nodes):
    """A document to be edited once. Each edit may raise whatever tomlkit does, and ValueError where it can't be made.

    `gone`: the text of what an edit took out, for whoever counts comments.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.gone: list[str] = []

    def array(self, path: Path) -> Array:
        """The list that is at `path`. LookupError for an array of tables."""
        for body, at in self._entries(path):
            item = body[at][1]
            if isinstance(item, Array):
                return item
        raise LookupError("no list")

    def put(self, path: Path, value: Value) -> None:
        """Give `path` a value."""
        for body, at in self._entries(path):
            key, old = body[at]
            if not isinstance(old, Table | AoT):
                body[at] = (key, _item_for(value, old))
                return
        if self._entries(path):
            self.remove(path)
        depth = len(path) - 1
        while depth and not self._tables(path[:depth]):
            depth -= 1
        home, rest = path[:depth], path[depth:]
        key, node = self._tables(home)[-1]
        if isinstance(node, InlineTable):
            for outer in reversed(rest[1:]):
                value = {outer: value}
            self._add_inline(node, rest[0], value)
        elif key is not None and key.is_dotted():
            if any(isinstance(table, InlineTable) for end in range(1, depth) for _, table in self._tables(home[:end])):
                raise ValueError("tomlkit misplaces the commas around dotted keys in an inline table")
            self._add_pair(body_of(node), tomlkit.key(list(rest)), _item(value), "")
        elif isinstance(value, dict):
            self._add_table(home, path, value)
        elif len(rest) > 1:
            self._add_table(home, path[:-1], {path[-1]: value})
        else:
            self.open(home)
            nodes = [node for _, node in self._tables(home) if not isinstance(node, Table) or has_header(node)]
            indent = str(nodes[0].trivia.indent) + self._inner() if home else ""
            self._add_pair(body_of(nodes[0]), tomlkit.key(rest[0]), _item(value), indent)

    def _add_inline(self, table: InlineTable, key: str, value: Value) -> None:
        body = body_of(table)
        blank = _cut_blank(body) if any(name for name, _ in body) else ""
        table.append(key, _item(value))
        _put_blank(body, blank)

    def _add_pair(self, body: Body, key: Key, item: Item, indent: str) -> None:
        """Make a pair the last of a table's own."""
        pairs = [at for at, entry in enumerate(body) if is_pair(*entry)]
        at = pairs[-1] + 1 if pairs else 0
        item.trivia.indent = indent_of(body[at - 1][1]) if pairs else indent
        item.trivia.trail = "\n"
        if not pairs and body is body_of(self._document):
            end = next((at for at, entry in enumerate(body) if is_header(*entry)), len(body))
            at = self._own_comments(body, end) if end < len(body) else end
            while at and isinstance(body[at - 1][1], Whitespace):
                at -= 1
            body[at:at] = [(key, item), *([_blank()] if at == 0 and end < len(body) else [])]
        else:
            body.insert(at, (key, item))

    def _add_table(self, home: Path, path: Path, value: dict[str, Value]) -> None:
        """Write a table with a header behind the last of the tables that are in the same one."""
        indent, unit, inner = self._indentation(path, home), self._unit(), self._inner()
        table = self._table(value, indent, unit, inner)
        for _ in range(len(home) + 1, len(path)):
            key = path[-1]
            path = path[:-1]
            outer = Table(Container(True), Trivia(), False, is_super_table=True)
            body_of(outer).append((tomlkit.key(key), table))
            table = outer
        body = body_of(self._tables(home)[-1][1])
        before = tail_of(body)
        start = self._rest(before)
        rest = before[start:]
        del before[start:]
        if before is not body_of(self._document) or before:
            before.append(_blank())
        body.append((tomlkit.key(path[-1]), table))
        tail_of(body_of(table)).extend(rest)

    def _table(self, value: dict[str, Value], indent: str, unit: str, inner: str) -> Table:
        table = Table(Container(True), Trivia(indent=indent), False, is_super_table=False)
        body = body_of(table)
        for key, item in value.items():
            if not isinstance(item, dict):
                self._add_pair(body, tomlkit.key(key), _item(item), indent + inner)
        for key, item in value.items():
            if isinstance(item, dict):
                tail_of(body).append(_blank())
                body.append((tomlkit.key(key), self._table(item, indent + unit, unit, inner)))
        return table

    def remove(self, path: Path) -> None:
        """Take a key out wherever it stands, and no table around it; comments on lines of their own stay."""
        while entries := self._entries(path):
            body, at = entries[0]
            key, item = body[at]
            _, parent = next(found for found in self._tables(path[:-1]) if body_of(found[1]) is body)
            if isinstance(parent, InlineTable):
                self.gone.append(item.as_string())
                blank = _cut_blank(body)
                parent.remove(path[-1])
                before = _cut_blank(body)
                _put_blank(body, blank if body else blank or before)
            elif is_header(key, item):
                self._remove_header(body, at, path)
            else:
                self._forget(item)
                del body[at]
                root = body_of(self._document)
                if body is root and at == 0 and body and not any(is_pair(*entry) for entry in body):
                    end = next((end for end, entry in enumerate(body) if not isinstance(entry[1], Whitespace)), 0)
                    if end:
                        _take_blank(body, end)  # as `_add_pair` put it there
        self._keep(path[:-1])

    def _remove_header(self, body: Body, at: int, path: Path) -> None:
        item = body[at][1]
        first = tables_of(item)[0]
        before, end = next(place for _, table, place in self._headers(path) if table is first)
        kept: Body = []
        self._collect(item, kept)
        del body[at]
        end = _take_blank(before, end)
        before[end:end] = kept

    def _collect(self, item: Item, kept: Body) -> None:
        """What stands between the keys of a table and of those in it, but a blank line before each header."""
        for table in tables_of(item):
            if has_header(table):
                _take_blank(kept, len(kept))
                self.gone.append(table.trivia.comment)
            for key, inner in body_of(table):
                if key is None:
                    kept.append((key, inner))
                elif is_header(key, inner):
                    self._collect(inner, kept)
                else:
                    self._forget(inner)

    def _forget(self, item: Item) -> None:
        """Note the comments that go with a pair."""
        if isinstance(item, Table):
            for _, inner in body_of(item):
                self._forget(inner)
        else:
            self.gone += [item.as_string(), item.trivia.comment]

    def _keep(self, path: Path) -> None:
        """Write a table out that is there only by tables that are gone."""
        nodes = self._entries(path)
        if nodes and all(_is_empty(body[at][1]) for body, at in nodes):
            self._set_header(*nodes[0], path, True)

    def _set_header(self, body: Body, at: int, path: Path, header: bool) -> Table:
        key, old = body[at]
        trivia = Trivia(indent=self._indentation(path, path) if header else "")
        table = Table(old.value, trivia, False, is_super_table=not header)
        body[at] = (key, table)
        return table

    def open(self, path: Path) -> None:
        """Give a table a header of its own, where only headers of tables in it make it be there."""
        nodes = self._entries(path)
        if not nodes or not all(is_header(*body[at]) and not has_header(body[at][1]) for body, at in nodes):
            return
        body, at = nodes[0]
        before, end = next(place for _, table, place in self._headers(path) if table is body[at][1])
        start = self._own_comments(before, end)
        comments = before[start:end]
        del before[start:end]
        if before is body:
            at -= len(comments)
        table = self._set_header(body, at, path, True)
        body_of(table)[:0] = [_blank(), *comments]

    def close(self, path: Path) -> None:
        """Take the header of a table out, where it has no keys and headers of tables in it are there."""
        for body, at in self._entries(path):
            item = body[at][1]
            if not is_header(*body[at]) or not isinstance(item, Table) or item.is_super_table():
                continue
            first = next((index for index, entry in enumerate(body_of(item)) if entry[0] is not None), -1)
            if first >= 0 and is_header(*body_of(item)[first]) and not item.trivia.comment:
                before, end = next(place for _, table, place in self._headers(path) if table is item)
                above = body_of(item)[:first]
                del body_of(item)[:first]
                if above and isinstance(above[0][1], Whitespace):
                    del above[_take_blank(above, 1) : 0]
                before[end:end] = above
                self._set_header(body, at + (len(above) if before is body else 0), path, False)
                return
