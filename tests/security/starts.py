"""Whole starts (shim, runtime, hook) that are disturbed or many: under an exchange of names, with faults, at once."""

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests import bundles
from tests.images import CHECKOUT
from tests.security.arena import ALL, LIBDIR, SHOW, Arena, Verdict, judge, mounts_changed, own_sources
from tests.security.racing import swapping

GPUS = ["/keep/busybox", "ls", "/dev/nvidia0", "/dev/nvidia1"]
MOUNTS = ["/keep/busybox", "cat", "/proc/self/mountinfo"]
SEEN = "/dev/nvidia0\n/dev/nvidia1\n"

# --- under attack -------------------------------------------------------------------------------------------------

ATTACKED = (LIBDIR, "etc", "usr/bin")


def attacked(arena: Arena, starts: int) -> list[Verdict]:
    """Start containers while all directories that we use are exchanged with links to the victim, in bursts."""
    verdicts = []
    for _ in range(starts):
        bundle = bundles.make(arena.bundle("bundle"), arena.tree, env=[ALL], args=SHOW)
        names = []
        for number, place in enumerate(ATTACKED):
            twin = bundle.rootfs / f"twin{number}"
            twin.symlink_to(arena.victim / place)
            names += [bundle.rootfs / place, twin]
        with swapping(*names, burst=10, pause=3000):
            verdicts.append(judge(arena, lambda: arena.shim.run(bundle)))  # noqa: B023
    return verdicts


# --- with faults --------------------------------------------------------------------------------------------------

# The hook with a counter before each of its calls to the kernel, in both of its processes; the n-th does something.
FAULTY = """#!/usr/bin/python3 -ISB
import posix
__file__ = {hook!r}
with open(__file__) as file:
    text = file.read()
fd = posix.open({count!r}, posix.O_RDWR)
at, act = int(posix.pread(fd, 8, 8)), posix.pread(fd, 8, 16).strip()
pread, pwrite, kill, getpid = posix.pread, posix.pwrite, posix.kill, posix.getpid
def counted(call):
    def inner(*args, **named):
        number = int(pread(fd, 8, 0)) + 1
        pwrite(fd, b"%8d" % number, 0)
        if number == at:
            if act == b"kill":
                kill(getpid(), 9)
            raise OSError(5, "injected")
        return call(*args, **named)
    return inner
def install():
    global fd
    from gpuhook import linux
    linux._call = counted(linux._call)
    for name in {calls!r}:
        setattr(posix, name, counted(getattr(posix, name)))
    real = linux.close_range
    def close_range(first):  # the hook closes what is open when it starts
        global fd
        real(first)
        fd = posix_open({count!r}, posix.O_RDWR)
    linux.close_range = close_range
posix_open = posix.open
before, mark, after = text.rpartition("sys.exit(main(")
assert mark
exec(before + "install()\\n" + mark + after)
"""
OPTIONAL = {"socket", "nvidia-mps"}  # left out without a word where the host does not have them, or can't open them
CALLS: tuple[str, ...] = (
    "open",
    "read",
    "write",
    "stat",
    "fstat",
    "mkdir",
    "unlink",
    "symlink",
    "readlink",
    "rename",
    "dup",
    "fchdir",
)
CALLS += ("scandir", "fork", "rmdir", "pipe2")


@dataclass
class Faults:
    """A bundle whose hook fails at a chosen call; the low-level runtime is called without the shim."""

    arena: Arena
    bundle: bundles.Bundle
    spec: bytes
    first: bytes
    count: Path
    usual: set[str]  # what an undisturbed start mounts

    @classmethod
    def make(cls, arena: Arena) -> "Faults":
        """Let the shim write the spec once, then put the counting hook in the place of ours."""
        show = ["/keep/busybox", "sh", "-c", f"{' '.join(GPUS)} && {' '.join(MOUNTS)}"]
        bundle = bundles.make(arena.bundle("faults"), arena.tree, env=[ALL], args=show)
        first = (bundle.path / "config.json").read_bytes()
        done = arena.shim.run(bundle)
        assert done.code == 0, done.err
        assert done.out.startswith(SEEN)
        spec = bundle.spec
        hook = arena.place / "faulty-hook"
        count = arena.place / "count"
        count.write_text(f"{0:8}{0:8}{'':8}")
        hook.write_text(FAULTY.format(hook=str(arena.world.hook), count=str(count), calls=CALLS))
        hook.chmod(0o755)
        spec["hooks"]["prestart"][0]["path"] = str(hook)
        return cls(arena, bundle, json.dumps(spec).encode(), first, count, set(own_sources(arena, done.out)))

    def start(self, at: int, act: str) -> bundles.Result:
        """A start in which the hook's call number `at` fails (`error`) or kills its process (`kill`); 0: none."""
        (self.bundle.path / "config.json").write_bytes(self.spec)
        self.count.write_text(f"{0:8}{at:8}{act:8}")
        runtime = bundles.Runtime(
            bundles.tool(self.arena.runtime), self.arena.place / "plain", within=self.arena.within, timeout=60
        )
        done = runtime.run(self.bundle)
        assert runtime.call("list", "-q").out == ""
        return done

    @property
    def counted(self) -> int:
        """The calls of the last start."""
        return int(self.count.read_text()[:8])

    def check(self, at: int, act: str) -> str:
        """The fault, then what must hold after it, then a start without one on the same root. Says what came of it."""
        (self.arena.world.path / "var/log/gpuhook/gpuhook.log").unlink(missing_ok=True)
        done = self.start(at, act)
        assert not mounts_changed(self.arena.table), f"call {at}, {act}: {done.err}"
        assert processes(self.arena.place) == [], f"call {at}, {act}: {done.err}"
        assert "Traceback" not in done.err, done.err
        (self.bundle.path / "config.json").write_bytes(self.first)
        reached, warned = self.counted >= at, self.arena.world.log
        after = self.arena.shim.run(self.bundle)
        assert after.code == 0, f"after call {at}, {act}: {after.err}"
        assert set(own_sources(self.arena, after.out)) == self.usual, f"after call {at}, {act}"
        if done.code == 0:  # all is there, but what the log says was left out
            missing = {name.rpartition("/")[2] for name in self.usual - set(own_sources(self.arena, done.out))}
            assert {name for name in missing - OPTIONAL if name not in warned} == set(), f"call {at}, {act}"
            assert done.out.startswith(SEEN)
        if not reached:
            return "not reached"
        return "survived" if done.code == 0 else "refused"


def processes(place: Path, seconds: float = 2) -> list[str]:
    """Command lines of processes that name a folder and that do not end."""
    end = time.monotonic() + seconds
    while True:
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            try:
                words = (folder / "cmdline").read_bytes()
                if str(place).encode() in words:
                    found.append(words.replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                pass
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.02)


# --- many ---------------------------------------------------------------------------------------------------------


@dataclass
class Crowd:
    """Starts at the same time."""

    results: list[bundles.Result] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def slowest(self) -> float:
        return round(max(self.seconds), 2)


@contextmanager
def crowd(arena: Arena, size: int) -> Iterator[Callable[[], Crowd]]:
    """Bundles for a crowd of starts; calling it starts them all, each from a thread."""
    place = arena.bundle("crowd")
    layout = "v1" if arena.runtime == "crun" else "host"
    made = [bundles.make(place / f"b{number}", arena.tree, env=[ALL], args=GPUS) for number in range(size)]

    def start() -> Crowd:
        done = Crowd()
        gate = threading.Barrier(size)

        def one(number: int) -> None:
            within = [str(CHECKOUT / "tests/in-cgroup.sh"), layout]
            shim = bundles.Runtime(arena.world.runtime, place / f"s{number}", within=within, timeout=120)
            gate.wait()
            begun = time.monotonic()
            result = shim.run(made[number])
            done.seconds.append(time.monotonic() - begun)
            done.results.append(result)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return done

    try:
        yield start
    finally:
        shutil.rmtree(place, ignore_errors=True)


def traces(arena: Arena) -> dict[str, object]:
    """What starts may leave: mounts, files of the state, links of device numbers, cgroups, processes."""
    folders = subprocess.run(
        ["find", "/sys/fs/cgroup", "-xdev", "-type", "d", "-name", "t[0-9]*-[0-9]*"], capture_output=True, check=False
    )
    char = Path("/dev/char")
    state = [path for path in arena.world.state.rglob("*") if path.parent.name != "containers"]
    return {
        "mounts": [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(arena.place) in line],
        "state": sorted(str(path.relative_to(arena.world.state)) for path in state),
        "numbers": sorted(path.name for path in char.iterdir()) if char.is_dir() else [],
        "cgroups": [line for line in folders.stdout.decode().split() if f"/t{os.getpid()}-" in line],
        "processes": processes(arena.place),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
