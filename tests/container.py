"""What enter.mount needs of a container, without a runtime: a process in a mount namespace with its root bound."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpuhook import enter
from gpuhook.model import DriverFile, FileId, Image, Plan
from gpuhook.rootfs import Root
from gpuhook.sources import acquire
from tests import sandbox

NO_IMAGE = Image("", "", "/usr/lib")
MS_PRIVATE, MS_SHARED = 1 << 18, 1 << 20


class Mount(NamedTuple):
    """One line of mountinfo."""

    target: str
    source: str
    flags: frozenset[str]
    kind: str


def mounts(pid: int | str) -> list[Mount]:
    """What a process has mounted, with the options of each mount."""
    found = []
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        kind = fields[fields.index("-") + 1]
        found.append(Mount(fields[4].replace("\\040", " "), fields[3], frozenset(fields[5].split(",")), kind))
    return found


@dataclass
class Container:
    """A container before its first program: its namespace is made, its root is mounted and not entered."""

    pid: int
    root: Path
    _hold: int

    def close(self) -> None:
        """End it."""
        os.close(self._hold)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def path(self, inside: str) -> Path:
        """A path of the container as a path of the host that sees the container's mounts."""
        return Path(f"/proc/{self.pid}/root{self.root}{inside}")

    def mounts(self) -> dict[str, Mount]:
        """What is mounted below its root, by the path in the container; the last one where there are several."""
        below = f"{self.root}/"
        return {item.target[len(below) - 1 :]: item for item in mounts(self.pid) if item.target.startswith(below)}


def start(
    root: Path, setup: Callable[[], object] = lambda: None, *, bound: bool = True, propagation: int = MS_PRIVATE
) -> Container:
    """Make a container's namespace as runc leaves it for prestart hooks; `setup` mounts more in it.

    Not `bound`: the root is no mount point. `propagation` is that of the root.
    """
    ready, told = os.pipe()
    waits, hold = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(hold)
            sandbox.unshare_mounts()
            if bound:
                sandbox.bind(root, root)
                sandbox.mount("none", root, "", propagation)
            setup()
            os.write(told, b"x")
            os.read(waits, 1)
        finally:
            os._exit(1)
    os.close(told)
    os.close(waits)
    good = os.read(ready, 1)
    os.close(ready)
    made = Container(child, root, hold)
    if not good:
        made.close()
        raise OSError("the container's namespace could not be made")
    return made


def driver_file(top: Path, path: str, kind: str = "library") -> DriverFile:
    """A file below a driver root as the record names it."""
    found = (top / path.lstrip("/")).stat()
    identity = FileId(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return DriverFile(path, kind, "*", path.rpartition("/")[2], identity)


def apply_plan(
    container: Container,
    top: Path,
    plan: Plan,
    *,
    files: tuple[DriverFile, ...],
    others: tuple[str, ...] = (),
    tmpfs: tuple[str, ...] = (),
    image: Image = NO_IMAGE,
    before: Callable[[], object] = lambda: None,
    deadline: int = 20,
) -> tuple[str, ...]:
    """Acquire, enter and do a plan as the hook does; `before` is called in the child, after it entered."""

    def make_plan(root: Root) -> tuple[Plan, Image]:
        before()
        return plan, image

    sources = acquire(str(top), files, others)
    try:
        target = enter.Target(container.pid, str(container.root), tmpfs)
        return enter.mount(target, sources, make_plan, deadline)
    finally:
        sources.close()


def listing(top: Path) -> dict[str, tuple[str, str]]:
    """Each object of a tree: its type and mode, and its link text or content."""
    found = {}
    for folder, names, files in os.walk(top):
        for name in names + files:
            path = Path(folder, name)
            status = path.lstat()
            text = ""
            if path.is_symlink():
                text = os.readlink(path)
            elif path.is_file():
                text = path.read_bytes().decode("latin-1")
            found[str(path.relative_to(top))] = (f"{status.st_mode:o}", text)
    return found
