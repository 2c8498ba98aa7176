"""Edits of a TOML text by tomlkit, which keeps comments and layout: containerd's, CRI-O's and podman's configuration.

`tomledit` holds the edits. Whatever tomlkit makes of a layout, the edited text is read again by tomllib, and must
have every comment still, before it counts: else the edit is refused and nothing is written.
"""

import re
import tomllib
from collections.abc import Callable, Sequence
from typing import Final

from gpuhook import tomlerror, tomlscan
from gpuhook.engines import tomledit, tree
from gpuhook.engines.model import ABSENT, Step, Undo, Value
from gpuhook.engines.tree import Path
from gpuhook.errors import GpuhookError, shown

DEPTH: Final = 64  # levels of brackets in a value

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
    if any(statement.depth > DEPTH for statement in tomlscan.statements(text)):
        raise _too_deep(path)
    return found


def _too_deep(path: str) -> GpuhookError:
    return GpuhookError(
        "engine-config-invalid",
        f"{path}: a value is nested deeper than {DEPTH} levels",
        "take out the brackets that are too many",
    )


def _invalid(path: str, text: str, why: str) -> GpuhookError:
    """What tomllib says, with the place in front and what stands there behind."""
    wrong = tomlerror.of(text, why)
    lines = text.split("\n")
    bad = lines[wrong.line - 1].strip() if wrong.line <= len(lines) else ""
    hint = wrong.hint or "correct this line, or take the file from a backup"
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
    return GpuhookError("engine-config-invalid", f"{path}:{wrong.line}:{wrong.column}: {wrong.text}{what}", hint)


def apply(path: str, text: str, steps: Sequence[Step]) -> tuple[str, tuple[Undo, ...]]:
    """The text with the steps made, and how each is taken back. Steps that are fulfilled change nothing.

    Raises engine-config-invalid for a text that is no TOML, for a value of a wrong type on the way (an array of
    tables too), and where the edited text would say something else than it should or would lack a comment.
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
    header, inside = "", 0 if keypath else 1
    for statement in tomlscan.statements(text):
        if statement.is_header:
            header = statement.text
            found = tree.get(tomllib.loads(header), keypath)
            if found in ({}, [{}]) and keypath:
                return statement.line
        else:
            found = tree.get(tomllib.loads(f"{header}\n{statement.text}"), keypath)
        if found is not ABSENT and not inside:
            inside = statement.line
    return inside or None


class _Toml:
    """The editor for `tree`."""

    table = "table"

    def parse(self, path: str, text: str) -> dict[str, Value]:
        return parse(path, text)

    def line_of(self, text: str, keypath: Path) -> int | None:
        return line_of(text, keypath)

    def name(self, keypath: Path) -> str:
        return tomledit.dotted(keypath)

    def put(self, text: str, keypath: Path, value: Value) -> str:
        return self._edited(text, lambda edits: edits.put(keypath, value))

    def remove(self, text: str, keypath: Path) -> str:
        return self._edited(text, lambda edits: edits.remove(keypath))

    def append(self, text: str, keypath: Path, value: str) -> str:
        return self._edited(text, lambda edits: edits.array(keypath).append(value))

    def drop(self, text: str, keypath: Path, index: int) -> str:
        return self._edited(text, lambda edits: edits.array(keypath).pop(index))

    def opened(self, text: str, keypath: Path) -> str:
        return self._edited(text, lambda edits: edits.open(keypath))

    def closed(self, text: str, keypath: Path) -> str:
        return self._edited(text, lambda edits: edits.close(keypath))

    def _edited(self, text: str, edit: Callable[[tomledit.Edits], object]) -> str:
        """The text after an edit. tree.UnsafeEditError where tomlkit fails, or a comment would be lost or moved."""
        try:
            edits = tomledit.Edits(text)
            edit(edits)
            after = edits.text()
        except Exception as error:  # tomlkit raises many kinds for layouts that it misjudges
            raise tree.UnsafeEditError(f"{type(error).__name__}: {error}") from error
        before, kept = tomlscan.comments(text), tomlscan.comments(after)
        remaining = iter(before)
        gone = [comment for piece in edits.gone for comment in tomlscan.comments(piece)]
        if sorted([*kept, *gone]) != sorted(before) or not all(comment in remaining for comment in kept):
            raise tree.UnsafeEditError("a comment would be lost")
        return after
