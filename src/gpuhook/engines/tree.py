"""What a step does to a parsed document, and how a text is brought to say the same: for `jsontext` and `tomltext`.

A step is broken into edits (put a value, remove a key, append to a list, drop from a list). Each is made on the parsed
tree and, by the language's `Editor`, on the text; the text is parsed again and must say what the tree says. So no
layout that an editor misjudges can lose anything: the edit is refused instead.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gpuhook.engines.model import ABSENT, Add, Set, Step, Undo, Value
from gpuhook.errors import GpuhookError, shown

Path = tuple[str, ...]
Tree = dict[str, Any]


class UnsafeEditError(Exception):
    """An editor can't make an edit in this text."""


class Editor(Protocol):
    """One language's way to edit a text. Each edit assumes what its sentence says, and keeps what else is there.

    Each may raise UnsafeEditError.
    """

    table: str  # what the language calls a table: `object`, `table`

    def parse(self, path: str, text: str) -> Tree:
        """The text's tree. Raises engine-config-invalid."""

    def line_of(self, text: str, keypath: Path) -> int | None:
        """The line, from 1, that defines a key or table."""

    def name(self, keypath: Path) -> str:
        """A key as a person would write it."""

    def put(self, text: str, keypath: Path, value: Value) -> str:
        """Give `keypath` a value. What is there of the keys before the last are tables."""

    def remove(self, text: str, keypath: Path) -> str:
        """Take out a key that is there, and no table around it."""

    def append(self, text: str, keypath: Path, value: str) -> str:
        """Make `value` the last of the list that is at `keypath`."""

    def drop(self, text: str, keypath: Path, index: int) -> str:
        """Take an element out of the list that is at `keypath`."""

    def opened(self, text: str, keypath: Path) -> str:
        """Write a table out that is there only because of tables in it; nothing to do for any other."""
        del keypath
        return text

    def closed(self, text: str, keypath: Path) -> str:
        """Take `opened` back; nothing to do where the table has keys of its own or nothing in it."""
        del keypath
        return text


def get(tree: Value, keypath: Path) -> Value:
    """What is at `keypath`, ABSENT where nothing is."""
    for key in keypath:
        if not isinstance(tree, dict) or key not in tree:
            return ABSENT
        tree = tree[key]
    return tree


def same(one: Value, other: Value) -> bool:
    """Equal in type too: 1, 1.0 and true are three values; a NaN is the same as a NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other) if isinstance(one, float) else bool(one == other)


class _Document:
    """A text, the tree it says, and the edits made so far."""

    def __init__(self, editor: Editor, path: str, text: str) -> None:
        self.editor, self.path, self.text, self.read = editor, path, text, text
        self.tree = editor.parse(path, text)
        self.undos: list[Undo] = []
        self.warnings: list[str] = []

    def at(self, keypath: Path) -> str:
        """`file:line`, for a message; the file alone where the key is not in the file as it was read."""
        line = self.editor.line_of(self.read, keypath)
        return self.path if line is None else f"{self.path}:{line}"

    def _settle(self, edit: Callable[[], str], tree: Tree, edited: Path) -> None:
        """Make an edit of the text, which shall say then what `tree` says."""
        try:
            text = edit()
            found = self.editor.parse(self.path, text)
        except (UnsafeEditError, GpuhookError) as error:
            raise self._unsafe(edited) from error
        if not same(found, tree):
            raise self._unsafe(edited)
        self.text, self.tree = text, tree

    def _unsafe(self, keypath: Path) -> GpuhookError:
        name = self.editor.name(keypath)
        depth = len(keypath)
        while depth > 1 and self.editor.line_of(self.read, keypath[:depth]) is None:
            depth -= 1  # the table that the key would go into
        return GpuhookError(
            "engine-config-invalid",
            f"{self.at(keypath[:depth])}: {name} can't be edited safely: the text after it would say something else",
            f"set {name} by hand, or have the values written to a file of their own: --drop-in FILE",
        )

    def put(self, keypath: Path, value: Value) -> None:
        """A table over a table is brought to be the same key by key, so that what needn't change keeps its text."""
        old = get(self.tree, keypath)
        if same(old, value):
            return
        if isinstance(old, dict) and isinstance(value, dict):
            for key in value:
                self.put((*keypath, key), value[key])
            for key in old:
                if key not in value:
                    self.remove((*keypath, key))
            return
        tree = table = copy.deepcopy(self.tree)
        for key in keypath[:-1]:
            table = table.setdefault(key, {})
        table[keypath[-1]] = copy.deepcopy(value)
        self._settle(lambda: self.editor.put(self.text, keypath, value), tree, keypath)

    def remove(self, keypath: Path) -> None:
        """Take out one key."""
        tree = copy.deepcopy(self.tree)
        del get(tree, keypath[:-1])[keypath[-1]]
        self._settle(lambda: self.editor.remove(self.text, keypath), tree, keypath)

    def append(self, keypath: Path, value: str) -> None:
        """Add to a list that is there."""
        tree = copy.deepcopy(self.tree)
        get(tree, keypath).append(value)
        self._settle(lambda: self.editor.append(self.text, keypath, value), tree, keypath)

    def drop(self, keypath: Path, value: str) -> None:
        """Take the last such element out of a list; ours was put at the end."""
        tree = copy.deepcopy(self.tree)
        items = get(tree, keypath)
        index = len(items) - 1 - items[::-1].index(value)
        del items[index]
        self._settle(lambda: self.editor.drop(self.text, keypath, index), tree, keypath)

    def prune(self, keypath: Path, kept: int) -> None:
        """Take out a key that is there, with the tables around it, `kept` keys deep, that would be left empty."""
        end = len(keypath)
        while end - 1 > kept and len(get(self.tree, keypath[: end - 1])) == 1:
            end -= 1
        self.remove(keypath[:end])

    def prune_empty(self, keypath: Path, kept: int) -> None:
        """The same where the key itself is gone already."""
        end = len(keypath) - 1
        while end > kept and get(self.tree, keypath[:end]) is ABSENT:
            end -= 1
        if end > kept and get(self.tree, keypath[:end]) == {}:
            self.prune(keypath[:end], kept)

    # Steps

    def apply(self, step: Step) -> None:
        """Make one step, unless it is fulfilled."""
        old = get(self.tree, step.path)
        if isinstance(step, Set) and same(old, step.value):
            return
        if isinstance(step, Add):
            if old is not ABSENT and old is not None and not isinstance(old, list):
                raise self._wrong_type(step.path, old, "list")
            if isinstance(old, list) and step.value in old:
                return
        self._make_way(step)
        kept = sum(get(self.tree, step.path[:end]) is not ABSENT for end in range(1, len(step.path) + 1))
        self.undos.append(Undo(step, old, kept))  # every edit copies the tree, so `old` stays what it is
        if isinstance(step, Set):
            self.put(step.path, step.value)
        elif isinstance(old, list):
            self.append(step.path, step.value)
        else:
            self.put(step.path, [step.value])

    def _make_way(self, step: Step) -> None:
        """See that what is there of the tables around a key are tables; a null counts as none."""
        for end in range(1, len(step.path)):
            found = get(self.tree, step.path[:end])
            if found is None:
                # an undo of its own, as the step's can't say it
                self.undos.append(Undo(Set(step.path[:end], {}), None, end))
                self.put(step.path[:end], {})
            elif found is not ABSENT and not isinstance(found, dict):
                raise self._wrong_type(step.path[:end], found, self.editor.table)
        parent = step.path[:-1]
        if parent and (isinstance(step, Add) or not isinstance(step.value, dict)):
            text = self.text
            self._settle(lambda: self.editor.opened(text, parent), self.tree, step.path)
            if text != self.text:
                self.undos.append(Undo(Set(parent, {}), {}, len(parent)))

    def _wrong_type(self, keypath: Path, found: Value, wanted: str) -> GpuhookError:
        name = self.editor.name(keypath)
        return GpuhookError(
            "engine-config-invalid",
            f"{self.at(keypath)}: {name} must be {_a(wanted)}, and is {self._kind(found)}",
            f"correct {name} or take it out",
        )

    def _kind(self, value: Value) -> str:
        if isinstance(value, dict):
            return _a(self.editor.table)
        if isinstance(value, list):
            return "a list"
        if isinstance(value, str):
            return f"the text {shown(value)}"
        return f"the value {shown(value)}"

    # Undoing

    def undo(self, undo: Undo) -> None:
        """Take one step back, or leave what someone changed since, with a warning."""
        step = undo.step
        now = get(self.tree, step.path)
        if isinstance(step, Add):
            self._undo_add(step, undo, now)
        elif step.value == {} and undo.before == {}:
            if isinstance(now, dict):  # the table was written out for a key that went into it
                self._settle(lambda: self.editor.closed(self.text, step.path), self.tree, step.path)
        elif now is ABSENT:
            if undo.before is ABSENT:
                self.prune_empty(step.path, undo.kept)
        elif same(now, step.value):
            if undo.before is ABSENT:
                self.prune(step.path, undo.kept)
            else:
                self.put(step.path, undo.before)
        elif not same(now, undo.before) and not (undo.before is None and step.value == {}):
            self._warn(step.path, f"{self.editor.name(step.path)} was changed since and is left as it is")

    def _undo_add(self, step: Add, undo: Undo, now: Value) -> None:
        if isinstance(now, list):
            if step.value in now:
                self.drop(step.path, step.value)
                now = get(self.tree, step.path)
            if now == [] and undo.before is ABSENT:
                self.prune(step.path, undo.kept)
            elif now == [] and undo.before is None:
                self.put(step.path, None)
        elif now is ABSENT:
            if undo.before is ABSENT:
                self.prune_empty(step.path, undo.kept)
        elif not same(now, undo.before):
            self._warn(step.path, f"{self.editor.name(step.path)} is no list any more and is left as it is")

    def _warn(self, keypath: Path, sentence: str) -> None:
        self.warnings.append(f"{self.at(keypath)}: {sentence}")


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def apply(editor: Editor, path: str, text: str, steps: Sequence[Step]) -> tuple[str, tuple[Undo, ...]]:
    """The text with the steps made, and how each that changed something is taken back, in the order made."""
    document = _Document(editor, path, text)
    for step in steps:
        document.apply(step)
    return document.text, tuple(document.undos)


def undo(editor: Editor, path: str, text: str, undos: Sequence[Undo]) -> tuple[str, tuple[str, ...]]:
    """The text with the steps taken back, the newest first, and a sentence for each that couldn't be."""
    document = _Document(editor, path, text)
    for item in reversed(undos):
        document.undo(item)
    return document.text, tuple(document.warnings)
