"""Paths below the driver root: links resolved inside it, each component judged, the directories passed remembered.

Off the hot path. What is trusted is stated in docs/architecture.md: a regular file owned by root that nobody else can
write, below directories of which the same is true; a directory that others can write is accepted if it is sticky and
the entry below it is root's.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpuhook.model import FileId

_MAX_LINKS = 40  # as the kernel has it (path_resolution(7))
MAX_PARTS = 64  # of a path, with those of the links in it; a driver lies a dozen deep
_MAX_NAMES = 100_000


@dataclass(frozen=True)
class Place:
    """Where a path below the root leads: `path` is absolute below the root and free of links.

    `status` is of the object itself. `untrusted` says in words what is wrong with the object or with a directory on the
    way to it, and is empty where nothing is.
    """

    path: str
    status: os.stat_result
    untrusted: str

    @property
    def id(self) -> FileId:
        """The state of the object."""
        return file_id(self.status)


class Tree:
    """A driver root. `passed` is what a link was followed by: a change of one of these paths may lead elsewhere.

    That is the directory of the link, free of links: one for the hundred links of Debian's alternatives. Of a link in /
    or right below it (/run/opengl-driver) it is the link itself: in /run something changes all the time.
    """

    def __init__(self, root: str) -> None:
        self.root = "" if root == "/" else root.rstrip("/")
        self.passed: set[str] = set()
        self._above = next(filter(None, (_writable_by_others(at) for at in _parents(self.root))), "")
        self._known: dict[str, tuple[os.stat_result, str] | None] = {}

    def host(self, path: str) -> str:
        """The path on the host of a path below the root."""
        return self.root + path

    def find(self, path: str) -> Place | None:
        """Follow `path` from the root, links inside the root; None where it leads nowhere, or through `MAX_PARTS`."""
        done = ""  # a directory below the root, free of links
        todo = [part for part in reversed(path.split("/")) if part]
        links = steps = 0
        while todo:
            part = todo.pop()
            steps += 1
            if steps > MAX_PARTS:
                return None
            if part == ".":
                continue
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            here = f"{done}/{part}"
            known = self._look(here)
            if known is None:
                return None
            if stat.S_ISLNK(known[0].st_mode):
                links += 1
                if links > _MAX_LINKS:
                    return None
                self.passed.add(here if done.count("/") < 2 else done)
                try:
                    text = os.readlink(self.root + here)
                except OSError:
                    return None
                if text.startswith("/"):
                    done = ""
                todo += [step for step in reversed(text.split("/")) if step]
            elif todo and not stat.S_ISDIR(known[0].st_mode):
                return None
            else:
                done = here
        known = self._look(done or "/")
        return None if known is None else Place(done or "/", known[0], self._judge(done))

    def names(self, directory: str) -> list[str]:
        """The names in a directory that is free of links, sorted; none where it cannot be read."""
        try:
            with os.scandir(self.host(directory)) as entries:
                return sorted(entry.name for entry, _ in zip(entries, range(_MAX_NAMES), strict=False))
        except OSError:
            return []

    def _look(self, path: str) -> tuple[os.stat_result, str] | None:
        if path not in self._known:
            at = self.root + path if path != "/" else self.root or "/"
            try:
                self._known[path] = (os.lstat(at), at)
            except (OSError, ValueError):  # ValueError: a NUL byte, which no name has
                self._known[path] = None
        return self._known[path]

    def _judge(self, path: str) -> str:
        """Whom a path free of links is open to, in words; empty where only root can change it."""
        if self._above:
            return self._above
        parts = path.split("/")[1:] if path else []
        steps = ["/", *("/" + "/".join(parts[: n + 1]) for n in range(len(parts)))]
        for parent, child in zip(steps, [*steps[1:], None], strict=True):
            known = self._look(parent)
            below = self._look(child) if child else None
            if known is None:
                return f"{parent} is gone"
            wrong = _wrong(known[1], known[0], None if below is None else below[0])
            if wrong:
                return wrong
        return ""


def file_id(status: os.stat_result) -> FileId:
    """What the record keeps of a file's state."""
    return FileId(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@cache
def owners() -> frozenset[int]:
    """The user ids whose files are trusted: host root, and the caller, who cannot be attacked with files of its own.

    In a user namespace that has no host root, host root's files show the overflow uid (user_namespaces(7)).
    """
    trusted = {0, os.geteuid()}
    try:
        mapping = Path("/proc/self/uid_map").read_text().split()
        if mapping[:2] != ["0", "0"]:
            trusted.add(int(Path("/proc/sys/kernel/overflowuid").read_text()))
    except (OSError, ValueError):
        pass
    return frozenset(trusted)


def _parents(path: str) -> Iterator[str]:
    """Every directory above `path`, from / down, each with a slash at its end."""
    for at, letter in enumerate(path):
        if letter == "/":
            yield path[: at + 1]


def _writable_by_others(directory: str) -> str:
    """What is wrong with a directory above the root; the sticky rule needs no child here: the root is configured."""
    try:
        return _wrong(directory, os.stat(directory), None)
    except OSError as error:
        return f"{directory}: {error.strerror}"


def _wrong(path: str, status: os.stat_result, below: os.stat_result | None) -> str:
    if status.st_uid not in owners():
        return f"{path} is owned by uid {status.st_uid}, not by root"
    if stat.S_ISLNK(status.st_mode) or not status.st_mode & 0o022:
        return ""
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if sticky and (below is None or below.st_uid in owners()):
        return ""
    return f"{path} can be written by others than root (mode {stat.S_IMODE(status.st_mode):04o})"
