"""Races: a process exchanges names of a container's root without pause, from the host's mount namespace, while
gpuhook's own functions work in the root, in a namespace of their own, as the hook's child does.

Each scenario has a second form of its work as careless programs do it (resolve, check the prefix, then use the path).
It must escape under the same attack, else the attack shows nothing.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpuhook import apply, enter, ldconf, linux, rootfs, sources
from gpuhook.errors import GpuhookError
from gpuhook.model import Bind, Image, Link, Plan
from gpuhook.rootfs import Root
from tests import sandbox
from tests.container import driver_file

T = TypeVar("T")
SECRET, INSIDE, DRIVER = b"the host's", b"inside", b"the driver's"
LIBRARY = "/usr/lib/libcuda.so.1.1"
CARELESS_SECONDS = 30  # in which the careless form must have escaped
SWAPPER = """
import ctypes, sys
libc = ctypes.CDLL(None)
burst, pause = int(sys.argv[1]), int(sys.argv[2])
pairs = [(a.encode(), b.encode()) for a, b in zip(sys.argv[3::2], sys.argv[4::2])]
print(flush=True)
while True:
    for _ in range(burst):
        for a, b in pairs:
            libc.renameat2(-100, a, -100, b, 2)
    if pause:
        libc.usleep(pause)
"""


@contextmanager
def swapping(*names: Path, burst: int = 1000, pause: int = 0) -> Iterator[None]:
    """Exchange pairs of names, `burst` times between pauses of so many microseconds."""
    command = [sys.executable, "-IS", "-c", SWAPPER, str(burst), str(pause), *map(str, names)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        assert process.stdout
        process.stdout.readline()
        process.stdout.close()
        yield
    finally:
        process.kill()
        process.wait()


class EscapeError(Exception):
    """Something of the host was read."""


@dataclass
class Ground:
    """A root; beside it a victim of the same shape, a driver's file, and what the root is exchanged with."""

    top: Path

    @property
    def root(self) -> Path:
        return self.top / "root"

    @property
    def victim(self) -> Path:
        return self.top / "victim"

    @property
    def host(self) -> Path:
        return self.top / "host"

    def prepare(self) -> None:
        """Make all."""
        for name in ("usr/lib", "etc"):
            (self.root / name).mkdir(parents=True)
        for name in ("usr/lib", "lib", "etc"):
            (self.victim / name).mkdir(parents=True)
        (self.root / "usr/lib/file").write_bytes(INSIDE)
        (self.root / LIBRARY[1:]).touch()
        (self.root / "etc/ld.so.cache").touch()
        for name in ("usr/lib/file", "file", LIBRARY[1:], "etc/ld.so.cache"):
            (self.victim / name).write_bytes(SECRET)
        (self.host / "usr/lib").mkdir(parents=True)
        (self.host / LIBRARY[1:]).write_bytes(DRIVER)

    def harmed(self) -> str:
        """What is not as it was in the victim, or is mounted outside of the root, as this process sees it."""
        found = []
        for folder, _, files in os.walk(self.victim):
            for name in files:
                path = Path(folder, name)
                if path.is_symlink() or path.read_bytes() != SECRET:
                    found.append(f"{path} is new or changed")
        return ", ".join(found)


Try = Callable[[], bool]  # once; whether it succeeded. GpuhookError or OSError: refused


@dataclass(frozen=True)
class Scenario:
    """What is exchanged with what, and the work that goes on meanwhile: careful and careless."""

    path: str
    twin: Callable[[Path, Ground], object]
    careful: Callable[[Ground], Try]
    careless: Callable[[Ground], Try]
    is_root: bool = False
    pause: int = 0  # microseconds after each 100 exchanges, so that work of many steps gets through now and then

    def names(self, ground: Ground) -> tuple[Path, Path]:
        """The two names that the attack exchanges."""
        if self.is_root:
            return ground.root, ground.top / "twin"
        return ground.root / self.path, ground.root / "twin"


@dataclass
class Count:
    """What a race came to. `careless` is the number of tries after which the careless form had escaped, 0 for never."""

    scenario: str
    tries: int = 0
    good: int = 0
    refused: int = 0
    escapes: int = 0
    careless: int = 0
    microseconds: float = 0
    harm: str = ""

    @property
    def figures(self) -> dict[str, object]:
        """As a line of a report."""
        return asdict(self)


# --- the work -----------------------------------------------------------------------------------------------------


def _told(data: bytes | None) -> bool:
    if data == SECRET:
        raise EscapeError
    return data == INSIDE


def _read(path: str, ground: Ground) -> Try:
    root = Root.at(str(ground.root))
    return lambda: _told(root.read(path, 100))


def _read_root(path: str, ground: Ground) -> Try:
    proc = rootfs.open_proc()

    def once() -> bool:
        root = enter.open_root(str(ground.root), proc)
        try:
            return _told(root.read(path, 100))
        finally:
            root.close()

    return once


def _mounter(work: Callable[[apply.Mounter], object], ground: Ground) -> Try:
    """Work with a Mounter that is then taken back whole, and whose handles are closed."""
    root = Root.at(str(ground.root))
    handles = sources.acquire(str(ground.host), (driver_file(ground.host, LIBRARY),), ())
    first = os.dup(0)
    os.close(first)

    def once() -> bool:
        mounter = apply.Mounter(root, (), handles, Image("glibc", "x86-64", "/usr/lib"))
        mounter.used.add(LIBRARY)  # a copy is mounted, so that the source serves the next try
        try:
            work(mounter)
            mounter._undo_to(0)
        finally:
            os.closerange(first, first + 64)
        return True

    return once


def _attach_last(ground: Ground) -> Try:
    """What stays mounted, since its name was elsewhere when it was taken back, goes before the next try."""
    once = _mounter(lambda mounter: mounter.run(BIND), ground)

    def cleaned() -> bool:
        try:
            return once()
        finally:
            for name in (LIBRARY[1:], "twin"):
                try:
                    linux.umount2(f"{ground.root}/{name}", linux.MNT_DETACH | linux.UMOUNT_NOFOLLOW)
                except OSError:
                    pass

    return cleaned


def _write_cache(mounter: apply.Mounter) -> None:
    mounter._write(ldconf.CACHE, b"cache of %d" % time.monotonic_ns())


BIND = Plan((Bind(LIBRARY, LIBRARY, "library"),))
BIND_NEW = Plan((Bind(LIBRARY, "/usr/lib/sub/libcuda.so.1.1", "library"),))
LINK = Plan((Link("/usr/lib/libcuda.so.1", "libcuda.so.1.1"),))


def _doing(steps: Plan) -> Callable[[Ground], Try]:
    return partial(_mounter, lambda mounter: mounter.run(steps))


def _create(mounter: apply.Mounter) -> None:
    """A mount point alone, in a directory that is made for it."""
    step = Bind(LIBRARY, "/usr/lib/sub/new.so", "library")
    folder, name = mounter._parent(step.target)
    assert mounter._mountpoint(folder, name, step) is not None


def _checked(ground: Ground, path: str) -> str:
    """The path on the host; OSError where it leads out of the root now."""
    place = f"{ground.root}{path}"
    if not os.path.realpath(place).startswith(f"{ground.root}/"):
        raise OSError(f"{path} leads out")
    return place


def _careless(use: Callable[[str], object], path: str, ground: Ground) -> Try:
    def once() -> bool:
        use(_checked(ground, path))
        return True

    return once


def _careless_read(place: str) -> None:
    _told(Path(place).read_bytes())


def _careless_create(place: str) -> None:
    os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
    os.unlink(place)


def _careless_link(place: str) -> None:
    os.symlink("libcuda.so.1.1", place)
    os.unlink(place)


def _careless_cache(place: str) -> None:
    with open(f"{place}.new", "w") as file:
        file.write("cache")
    os.rename(f"{place}.new", place)


def _careless_mount(ground: Ground) -> Try:
    def once() -> bool:
        place = _checked(ground, LIBRARY)
        sandbox.bind(ground.host / LIBRARY[1:], place)
        if ground.harmed():
            raise EscapeError
        linux.umount2(place, linux.MNT_DETACH)
        return True

    return once


def _careless_root(ground: Ground) -> Try:
    def once() -> bool:
        if ground.root.is_symlink():
            return False
        return _told((ground.root / "usr/lib/file").read_bytes())

    return once


def _link_out(at: Path, ground: Ground) -> None:
    at.symlink_to(ground.victim / "usr/lib")


def _climbing(at: Path, ground: Ground) -> None:
    at.symlink_to("../" * 20 + str(ground.victim / "usr/lib")[1:])


def _with_link(at: Path, ground: Ground) -> None:
    at.mkdir()
    (at / "file").symlink_to(ground.victim / "file")


FILE = "/usr/lib/file"
_open = partial(_careless, _careless_read, FILE)
SCENARIOS = {
    "directory and absolute link": Scenario("usr/lib", _link_out, partial(_read, FILE), _open),
    "directory and climbing link": Scenario("usr/lib", _climbing, partial(_read, FILE), _open),
    "directory and directory": Scenario("usr/lib", _with_link, partial(_read, FILE), _open),
    "last component": Scenario(
        "usr/lib/file", lambda at, ground: at.symlink_to(ground.victim / "file"), partial(_read, FILE), _open
    ),
    "parent during create": Scenario(
        "usr/lib",
        _link_out,
        partial(_mounter, _create),
        partial(_careless, _careless_create, "/usr/lib/new.so"),
        pause=300,
    ),
    "parent during symlink": Scenario(
        "usr/lib", _climbing, _doing(LINK), partial(_careless, _careless_link, "/usr/lib/libcuda.so.1"), pause=300
    ),
    "parent during attach": Scenario("usr/lib", _link_out, _doing(BIND), _careless_mount, pause=300),
    "parent during create and attach": Scenario(
        "usr", lambda at, ground: at.symlink_to(ground.victim / "usr"), _doing(BIND_NEW), _careless_mount, pause=300
    ),
    "last component during attach": Scenario(
        LIBRARY[1:], lambda at, ground: at.symlink_to(ground.victim / "file"), _attach_last, _careless_mount
    ),
    "parent during the cache's rename": Scenario(
        "etc",
        lambda at, ground: at.symlink_to(ground.victim / "etc"),
        partial(_mounter, _write_cache),
        partial(_careless, _careless_cache, "/etc/ld.so.cache"),
        pause=300,
    ),
    "the root itself": Scenario(
        "", lambda at, ground: at.symlink_to(ground.victim), partial(_read_root, FILE), _careless_root, is_root=True
    ),
}


# --- the race -----------------------------------------------------------------------------------------------------


def race(top: Path, name: str, tries: int) -> Count:
    """First the careless form until it escapes, on a ground of its own; then the careful one, `tries` times."""
    scenario = SCENARIOS[name]
    careless = _on(top / "careless", scenario, lambda ground: _escape(scenario, ground))
    count = _on(top / "careful", scenario, lambda ground: _endure(scenario, ground, tries))
    count.scenario, count.careless = name, careless
    return count


def _on(top: Path, scenario: Scenario, work: Callable[[Ground], T]) -> T:
    """Do the work in a mount namespace where the root is a mount, with the names exchanged from outside of it."""
    ground = Ground(top)
    ground.prepare()
    first, second = scenario.names(ground)
    scenario.twin(second, ground)
    ready, go = os.pipe(), os.pipe()

    def inside() -> T:
        sandbox.unshare_mounts()
        sandbox.bind(ground.root, ground.root)
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        return work(ground)

    child, answer = sandbox.start(inside)
    os.close(ready[1])
    try:
        os.read(ready[0], 1)
        with swapping(first, second, burst=100, pause=scenario.pause):
            os.write(go[1], b"x")
            result: T = sandbox.finish(child, answer)
            return result
    finally:
        for descriptor in (ready[0], *go):
            os.close(descriptor)


def _escape(scenario: Scenario, ground: Ground) -> int:
    once = scenario.careless(ground)
    end = time.monotonic() + CARELESS_SECONDS
    number = 0
    while time.monotonic() < end:
        number += 1
        try:
            once()
        except EscapeError:
            return number
        except OSError:
            pass
        if number % 20 == 0 and ground.harmed():
            return number
    return 0


def _endure(scenario: Scenario, ground: Ground, tries: int) -> Count:
    once = scenario.careful(ground)
    count = Count("", tries)
    begun = time.monotonic()
    for number in range(tries):
        try:
            count.good += once()
        except EscapeError:
            count.escapes += 1
        except (GpuhookError, OSError):
            count.refused += 1
        if number % 1000 == 0 or number == tries - 1:
            count.harm = count.harm or ground.harmed() or _outside(ground)
    count.microseconds = round((time.monotonic() - begun) / tries * 1e6, 1)
    return count


def _outside(ground: Ground) -> str:
    """A mount on the ground that is not below the root."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        target = line.split(" ")[4]
        if target.startswith(f"{ground.top}/") and not f"{target}/".startswith(
            (f"{ground.root}/", f"{ground.top}/twin/")
        ):
            return f"{target} is a mount"
    return ""
