"""Writing what was prepared into engines' files, all or nothing. Nobody else writes any.

Each record is written before its file, and a record whose file was not reached is known by the file's hash, so a kill
at any moment loses nothing.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpuhook.engines import atomic
from gpuhook.engines.host import Host
from gpuhook.engines.model import Restart
from gpuhook.engines.store import Record, Store
from gpuhook.errors import GpuhookError

PLAIN = Host(root="", environ={})  # reads files by the paths that records have

Outcome = Literal["same", "made", "changed", "restored", "removed", "taken-out", "gone", "kept"]


@dataclass(frozen=True)
class Change:
    """What becomes of one file and its record.

    `path` as the engine names it, `named` as this process does, `real` free of links. `before` and `after`: the
    content, None for no file. `stored`: the record as it is in the store; `record` and `backup`: what belongs there
    (None: no record), which is `stored` again where `keep`. `mode` is for a file that is made. `outcome` is one word
    for it: `same`; `made`, `changed` by configuring; `restored`, `removed` to the byte; `taken-out`: our entries out of
    a file that others changed since; `gone`; `kept`, because another engine wants it. `restart` makes the engine read
    it.
    """

    path: str
    named: str
    real: str
    before: bytes | None
    after: bytes | None
    outcome: Outcome
    mode: int = 0o644
    stored: bytes | None = None
    record: Record | None = None
    backup: bytes | None = None
    keep: bool = False
    directories: tuple[str, ...] = ()
    restart: Restart | None = None
    warnings: tuple[str, ...] = ()

    @property
    def changes_file(self) -> bool:
        """Whether the file itself changes."""
        return self.before != self.after

    @property
    def writes(self) -> bool:
        """Whether anything is written, be it the record alone."""
        return self.changes_file or not self.keep


def commit(store: Store, changes: Sequence[Change]) -> None:
    """Write what was prepared: all of it, or nothing where a step fails.

    GpuhookError `engine-config-not-written`: what can't be written and why, or that somebody changed a file since
    `prepare`.
    """
    changes = [change for change in changes if change.writes]
    if not changes:
        return
    with store.lock():
        for change in changes:
            _compare(store, change)
        mask = os.umask(0o022)
        try:
            _Work(store, changes).run()
        finally:
            os.umask(mask)


def _compare(store: Store, change: Change) -> None:
    """Nobody changed the file, the link to it or the record since they were read."""
    same = os.path.realpath(change.named) == change.real and PLAIN.read_bytes(change.real) == change.before
    if not same or store.raw(change.real) != change.stored:
        what = "the record of it" if same else "it"
        raise GpuhookError(
            "engine-config-not-written",
            f"{change.path} is as it was: somebody else changed {what} while gpuhook was at work",
            "run this again",
        )


@dataclass
class _Work:
    """The steps of a commit, and the way back from each."""

    store: Store
    changes: Sequence[Change]
    at: str = ""  # the path that a failure is about
    made: list[str] = field(default_factory=list)
    done: list[Change] = field(default_factory=list)

    def run(self) -> None:
        """All steps. GpuhookError `engine-config-not-written`, and everything as it was."""
        try:
            self._write()
        except OSError as error:
            self._back()
            raise atomic.failed(self.at, error) from None
        except BaseException:
            self._back()
            raise
        self._clean()

    def _write(self) -> None:
        files = [change for change in self.changes if change.changes_file]
        for change in self.changes:
            if change.record is not None:
                self.at = self.store.directory
                self.store.save(change.record, change.backup)
        for change in files:
            self.at = change.path
            if change.after is not None:
                self._make(change.directories)
                atomic.stage(change.real, change.after, change.mode)
        for change in files:
            self.at = change.path
            self.done.append(change)
            if change.after is None:
                atomic.discard(change.real)
                atomic.remove(change.real)
            else:
                atomic.put(change.real)

    def _make(self, directories: Sequence[str]) -> None:
        for folder in directories:
            if not os.path.isdir(folder):
                self.made.append(folder)
                os.mkdir(folder, 0o755)
                atomic.sync(os.path.dirname(folder))

    def _back(self) -> None:
        """As far as the system lets us; what can't be put back is known by its record all the same."""
        for change in reversed(self.done):
            tried(self._put_back, change)
        for change in self.changes:
            tried(atomic.discard, change.real)
        for folder in reversed(self.made):
            tried(os.rmdir, folder)
        for change in self.changes:
            if not change.changes_file or PLAIN.read_bytes(change.real) == change.before:
                tried(self.store.restore, change.real, change.stored)
        tried(self.store.sweep)

    def _put_back(self, change: Change) -> None:
        if PLAIN.read_bytes(change.real) == change.before:
            return
        if change.before is None:
            atomic.remove(change.real)
        else:
            atomic.stage(change.real, change.before, change.mode)
            atomic.put(change.real)

    def _clean(self) -> None:
        """Nothing of this can fail what is done: it is left for the next run."""
        for change in self.changes:
            if change.record is None:
                if change.after is None or not change.changes_file:
                    tried(atomic.discard, change.real)
                if change.after is None:
                    for folder in reversed(change.directories):
                        tried(os.rmdir, folder)
                tried(self.store.drop, change.real)
        tried(self.store.sweep)


def tried(step: Callable[..., object], *words: object) -> None:
    """Call it; what the system refuses is passed over."""
    try:
        step(*words)
    except (OSError, GpuhookError):
        pass
