"""Edits of a TOML text that leave every other byte as it is: containerd's, CRI-O's and podman's configuration.

The text is edited by the places that `tomlscan` finds: a TOML library's own writer moves tables that stand out of
order, or loses their comments. Whatever the layout, the edited text is read again by tomllib before it counts.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence

from gpuhook.engines import tomlscan, tomlwrite, tree
from gpuhook.engines.model import ABSENT, Step, Undo, Value
from gpuhook.engines.tomlscan import Pair, Section
from gpuhook.engines.tree import Path
from gpuhook.errors import GpuhookError, shown

_PLACE = re.compile(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)$")
_TYPOGRAPHIC = re.compile("[“”„‟‘’‚‛«»]")


def parse(path: str, text: str) -> dict[str, Value]:
    """The text's table. Raises engine-config-invalid with line and column."""
    if text.startswith("\ufeff"):
        raise GpuhookError(
            "engine-config-invalid",
            f"{path}:1:1: the file begins with a byte order mark (U+FEFF), which is no TOML",
            "save the file as UTF-8 without a byte order mark",
        )
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _invalid(path, text, str(error)) from None
    except ValueError:  # by int(): more than 4300
        raise GpuhookError("engine-config-invalid", f"{path}: a number has too many digits", "correct it") from None
    except RecursionError:
        raise _too_deep(path) from None
    try:
        tomlscan.scan(text)
    except tomlscan.TooDeepError:
        raise _too_deep(path) from None
    except (ValueError, IndexError):
        raise GpuhookError(
            "engine-config-invalid",
            f"{path} can't be edited safely: the places of its keys are not found",
            "have the values written to a file of their own: --drop-in FILE",
        ) from None
    return found


def _too_deep(path: str) -> GpuhookError:
    return GpuhookError(
        "engine-config-invalid",
        f"{path}: a value is nested deeper than {tomlscan.DEPTH} levels",
        "take out the brackets that are too many",
    )


def _invalid(path: str, text: str, why: str) -> GpuhookError:
    """tomllib's sentence, with the place in front and what stands there behind."""
    place = _PLACE.search(why)
    why = why[: place.start()] if place else why
    lines = text.split("\n")
    if place and place.group(1):
        line, column = int(place.group(1)), int(place.group(2))
    else:
        line, column = len(lines), len(lines[-1]) + 1
    bad = lines[line - 1].strip() if line <= len(lines) else ""
    hint = "correct this line, or take the file from a backup"
    if _TYPOGRAPHIC.search(bad):
        hint = "write plain quotation marks in place of the typographic ones"
    elif bad.startswith("<"):
        hint = "it looks like a page of an error that was downloaded in place of the file: take it from a backup"
    elif "{{" in bad:
        hint = "this is a template, not a configuration file: name the file that it is made into"
    elif bad.startswith("//"):
        hint = "a comment begins with #"
    elif bad.startswith(("{", '"')):
        hint = "this looks like JSON: TOML has lines of `key = value` below headers like [table]"
    what = f": {shown(bad)}" if bad else ""
    return GpuhookError("engine-config-invalid", f"{path}:{line}:{column}: {why[:1].lower()}{why[1:]}{what}", hint)


def apply(path: str, text: str, steps: Sequence[Step]) -> tuple[str, tuple[Undo, ...]]:
    """The text with the steps made, and how each is taken back. Steps that are fulfilled change nothing.

    Raises engine-config-invalid for a text that is no TOML, for a value of a wrong type on the way (an array of
    tables too), and where the edited text would say something else than it should.
    """
    return tree.apply(_Toml(), path, text, steps)


def undo(path: str, text: str, undos: Sequence[Undo]) -> tuple[str, tuple[str, ...]]:
    """The text with the steps taken back, newest first, and a warning for each value that someone changed since."""
    return tree.undo(_Toml(), path, text, undos)


def line_of(text: str, keypath: tuple[str, ...]) -> int | None:
    """The line, from 1, where a key stands or a table begins: its header, else the first of what is in it.

    None where it is not there, and for a text that is no TOML.
    """
    try:
        if tree.get(parse("", text), keypath) is ABSENT:
            return None
    except GpuhookError:
        return None
    edit = _Edit(text)
    depth = len(keypath)
    exact = [section.start for section in edit.sections[1:] if section.path == keypath]
    exact += [pair.start for pair in edit.pairs() if pair.path == keypath]
    inside = [section.start for section in edit.sections[1:] if section.path[:depth] == keypath]
    inside += [pair.start for pair in edit.pairs() if pair.path[:depth] == keypath]
    start = min(exact or inside, default=0) if keypath else 0
    return text.count("\n", 0, start) + 1


class _Toml:
    """The editor for `tree`."""

    table = "table"

    def parse(self, path: str, text: str) -> dict[str, Value]:
        return parse(path, text)

    def line_of(self, text: str, keypath: Path) -> int | None:
        return line_of(text, keypath)

    def name(self, keypath: Path) -> str:
        return tomlwrite.dotted(keypath)

    def put(self, text: str, keypath: Path, value: Value) -> str:
        edit = _Edit(text)
        pair = edit.pair(keypath)
        if pair:
            start, end = pair.value.start, pair.value.end
            return text[:start] + tomlwrite.value_as(value, text[start:end]) + text[end:]
        if edit.holds(keypath):
            text = self.remove(text, keypath)
            edit = _Edit(text)
        depth = len(keypath) - 1
        while depth and not edit.holds(keypath[:depth]):
            depth -= 1
        home = keypath[:depth]
        plain = depth == len(keypath) - 1 and not isinstance(value, dict)
        if plain:
            edit = _Edit(self.opened(text, home))
        return edit.add(home, keypath, value, plain)

    def remove(self, text: str, keypath: Path) -> str:
        edit = _Edit(text)
        while edit.holds(keypath):
            edit = _Edit(edit.take_out(keypath))
        if len(keypath) > 1 and not edit.holds(keypath[:-1]):
            return self.put(edit.text, keypath[:-1], {})
        return edit.text

    def append(self, text: str, keypath: Path, value: str) -> str:
        edit = _Edit(text)
        pair = edit.pair(keypath)
        if pair is None:  # an array of tables
            return text
        return tomlwrite.insert(text, pair.value, tomlwrite.string(value), edit.newline)

    def drop(self, text: str, keypath: Path, index: int) -> str:
        pair = _Edit(text).pair(keypath)
        return text if pair is None else tomlwrite.take_out(text, pair.value, index)

    def opened(self, text: str, keypath: Path) -> str:
        return _Edit(text).opened(keypath)

    def closed(self, text: str, keypath: Path) -> str:
        return _Edit(text).closed(keypath)


class _Edit:
    """A text with its positions, and how its author lays TOML out."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sections = tomlscan.scan(text)
        newline = text.find("\n")
        self.newline = "\r\n" if newline > 0 and text[newline - 1] == "\r" else "\n"

    def pairs(self) -> Iterator[Pair]:
        """Every pair but those in lists; those of an inline table after its own."""
        todo = [pair for section in reversed(self.sections) for pair in reversed(section.pairs)]
        while todo:
            pair = todo.pop()
            yield pair
            todo += reversed(pair.value.pairs)

    def pair(self, path: Path) -> Pair | None:
        return next((pair for pair in self.pairs() if pair.path == path), None)

    def section(self, path: Path) -> Section | None:
        return next((section for section in self.sections if section.path == path and not section.array), None)

    def holds(self, path: Path) -> bool:
        """Whether anything stands in the text that makes `path` be there."""
        return self._below(path) != [] or any(pair.path[: len(path)] == path for pair in self.pairs())

    def _below(self, path: Path) -> list[Section]:
        """The sections of a table and of the tables in it, in the text's order."""
        return [section for section in self.sections[1:] if section.path[: len(path)] == path]

    # Places

    def _comments(self, section: Section) -> int:
        """Where the lines of comments right above a header begin."""
        floor = self.sections[self.sections.index(section) - 1].tail
        at = section.line
        while at > floor:
            line = self.text.rfind("\n", 0, at - 1) + 1
            if not self.text[line:at].lstrip(" \t").startswith("#"):
                break
            at = line
        return at

    def _end(self, section: Section) -> int:
        """Where a section ends: behind its own comments, before blank lines and the comments of the next header."""
        index = self.sections.index(section) + 1
        limit = self._comments(self.sections[index]) if index < len(self.sections) else len(self.text)
        filled = self.text[section.tail : limit].rstrip(" \t\r\n")
        if not filled:
            return section.tail
        newline = self.text.find("\n", section.tail + len(filled))
        return len(self.text) if newline < 0 else newline + 1

    def _insert(self, at: int, lines: list[str]) -> str:
        """Put whole lines in; a missing end of the last line stays missing."""
        block = self.newline.join(lines)
        if at == len(self.text) and self.text and not self.text.endswith("\n"):
            return self.text + self.newline + block
        return self.text[:at] + block + self.newline + self.text[at:]

    def _cut(self, spans: list[tuple[int, int]]) -> str:
        """Take whole lines out."""
        text = self.text
        for start, end in reversed(spans):
            text = text[:start] + text[end:]
        if spans[-1][1] == len(self.text) and not self.text.endswith("\n"):
            return text.removesuffix("\n").removesuffix("\r")
        return text

    def _blank_line(self, at: int) -> int:
        """Where the line of `at` ends, if it is blank; else `at`."""
        end = self.text.find("\n", at) + 1
        return end if end and not self.text[at:end].strip(" \t\r\n") else at

    # Layout

    def _unit(self) -> str:
        """By how much a table's header stands to the right of the header of the table that it is in."""
        for section in self.sections[1:]:
            own = tomlwrite.indentation(self.text, section.start)
            for depth in range(len(section.path) - 1, 0, -1):
                outer = self.section(section.path[:depth])
                if outer and own:
                    extra = own.removeprefix(tomlwrite.indentation(self.text, outer.start))
                    return extra[: len(extra) // (len(section.path) - depth)]
        return ""

    def _indentation(self, path: Path, home: Path) -> str:
        """That of a new header."""
        near = min(self._below(home) if home else [], key=lambda item: abs(len(item.path) - len(path)), default=None)
        if near is None:
            return ""
        own, unit = tomlwrite.indentation(self.text, near.start), self._unit()
        for _ in range(len(path), len(near.path)):
            own = own.removesuffix(unit)
        return own + unit * (len(path) - len(near.path))

    def _inner(self) -> str:
        """By how much keys stand to the right of their header."""
        for section in self.sections[1:]:
            if section.pairs:
                own = tomlwrite.indentation(self.text, section.start)
                inner = tomlwrite.indentation(self.text, section.pairs[0].start)
                return inner[len(own) :] if inner.startswith(own) else ""
        return ""

    def _header(self, path: Path) -> str:
        """A header, with its keys written as other headers write them."""
        parts = []
        for depth, key in enumerate(path):
            like = self._below(path[: depth + 1])
            parts.append(like[0].raw[depth] if like else tomlwrite.key(key))
        return f"[{'.'.join(parts)}]"

    # Edits

    def add(self, home: Path, keypath: Path, value: Value, plain: bool) -> str:
        """Put a value in that is not there; `home` is the deepest table that is. `plain`: as a key of `home`."""
        pair = self.pair(home) if home else None
        if pair:
            key = tomlwrite.dotted(keypath[len(home) : len(home) + 1])
            for outer in reversed(keypath[len(home) + 1 :]):
                value = {outer: value}
            return tomlwrite.insert(self.text, pair.value, f"{key} = {tomlwrite.value(value)}", self.newline)
        section = self.section(home)
        kin = self._written(home)
        if kin and (section is None or not home):
            last = kin[-1]
            new = f"{tomlwrite.dotted(keypath[len(last.base) :])} = {tomlwrite.value(value)}"
            if last.inside:
                return tomlwrite.insert(self.text, last.inside, new, self.newline)
            return self._insert(last.end, [tomlwrite.indentation(self.text, last.start) + new])
        if plain and section:
            return self._add_pair(section, f"{tomlwrite.key(keypath[-1])} = {tomlwrite.value(value)}")
        if isinstance(value, dict):
            return self._add_table(home, keypath, value)
        return self._add_table(home, keypath[:-1], {keypath[-1]: value})

    def _add_pair(self, section: Section, new: str) -> str:
        if section.pairs:
            return self._insert(section.tail, [tomlwrite.indentation(self.text, section.pairs[-1].start) + new])
        if section.raw:
            return self._insert(section.tail, [tomlwrite.indentation(self.text, section.start) + self._inner() + new])
        at = self._end(section)
        return self._insert(at, [new, ""] if at == 0 and len(self.sections) > 1 else [new])

    def _add_table(self, home: Path, path: Path, value: dict[str, Value]) -> str:
        """Write a table with a header behind the last of the tables that are in the same one."""
        last = ((self._below(home) if home else []) or self.sections)[-1]
        at = self._end(last)
        lines = self._table(path, value, self._indentation(path, home), self._unit(), self._inner())
        return self._insert(at, lines if at else lines[1:])

    def _table(self, path: Path, value: dict[str, Value], indent: str, unit: str, inner: str) -> list[str]:
        lines = ["", indent + self._header(path)]
        tables = [(key, item) for key, item in value.items() if isinstance(item, dict)]
        lines += [
            f"{indent}{inner}{tomlwrite.key(key)} = {tomlwrite.value(item)}"
            for key, item in value.items()
            if not isinstance(item, dict)
        ]
        for key, item in tables:
            lines += self._table((*path, key), item, indent + unit, unit, inner)
        return lines

    def take_out(self, path: Path) -> str:
        """Take out the first thing in the text that makes `path` be there."""
        depth = len(path)
        for pair in self.pairs():
            if pair.path[:depth] == path and len(pair.base) < depth:
                if pair.inside:
                    return tomlwrite.take_out(self.text, pair.inside, pair.inside.pairs.index(pair))
                end = pair.end
                if not pair.line and len(self.sections[0].pairs) == 1 and len(self.sections) > 1:
                    end = self._blank_line(end)  # as `_add_pair` put it there
                return self._cut([(pair.line, end)])
        section = self._below(path)[0]
        start = section.line
        before = self.text.rfind("\n", 0, max(start - 1, 0)) + 1
        if start and self._blank_line(before) == start:
            start = before
        return self._cut([(start, section.end)] + [(pair.line, pair.end) for pair in section.pairs])

    def opened(self, path: Path) -> str:
        """Give a table a header of its own, where only headers of tables in it make it be there."""
        below = self._below(path)
        if not path or not below or self.section(path) or self._written(path):
            return self.text
        lines = [self._indentation(path, path) + self._header(path), ""]
        return self._insert(self._comments(below[0]), lines)

    def _written(self, path: Path) -> list[Pair]:
        """The pairs that make a table be there by a key of several parts, or an inline table."""
        return [pair for pair in self.pairs() if len(pair.base) < len(path) and pair.path[: len(path)] == path]

    def closed(self, path: Path) -> str:
        """Take the header of a table out, where it has no keys and headers of tables in it are there."""
        section = self.section(path)
        if not path or section is None or section.pairs or len(self._below(path)) < 2:
            return self.text
        return self._cut([(section.line, self._blank_line(section.end))])
