"""A place for hostile starts, and the oracle that judges them.

Whatever an image holds, one of two things happens within 5 s: the container runs, or its start is refused in words that
name the path. In both cases a tree of the host that the layout leads to stays as it is to the byte and the time, the
host's mounts stay as they are, and the container sees nothing of the host but the driver's files.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import bundles
from tests.conftest import World
from tests.images import CHECKOUT, MULTIARCH, image

LIBDIR = f"usr/lib/{MULTIARCH}"
ALL = "NVIDIA_VISIBLE_DEVICES=all"
SECONDS = 5
# A host of our own, with shared mounts as systemd makes them; what is mounted before and after goes to a file.
HOST_SCRIPT = """
mount --make-rshared /
cat /proc/self/mountinfo >"$0"
"$@"
status=$?
cat /proc/self/mountinfo >"$0.after"
exit $status
"""
HOST = ("unshare", "--mount", "--propagation", "private", "sh", "-c", HOST_SCRIPT)
# A static program where no layout goes; it shows what is mounted, where the layout leaves a /proc to show it.
SHOW = ["/keep/busybox", "sh", "-c", "/keep/busybox cat /proc/self/mountinfo; exit 0"]


@dataclass
class Arena:
    """One installation with a simulated driver, and the tree that nobody may touch."""

    world: World
    place: Path
    victim: Path
    tree: Path
    driver: Path
    runtime: str

    @property
    def table(self) -> str:
        """Where the host's mounts before a start are; those after it have `.after` behind the name."""
        return str(self.place / "mounts")

    @property
    def within(self) -> list[str]:
        """What a runtime runs in: a host of its own, for crun with cgroup version 1."""
        layout = "v1" if self.runtime == "crun" else "host"
        return [str(CHECKOUT / "tests/in-cgroup.sh"), layout, *HOST, self.table]

    @property
    def shim(self) -> bundles.Runtime:
        """The installed shim."""
        return bundles.Runtime(self.world.runtime, self.place / "state", within=self.within)

    def bundle(self, name: str) -> Path:
        """A folder for one bundle."""
        path = self.place / name
        shutil.rmtree(path, ignore_errors=True)
        return path


def build(place: Path, installed: Path, driver: Path, runtime: str) -> Arena:
    """Make one below `place`, for one low-level runtime."""
    prefix = place / "world"
    (prefix / "etc/gpuhook").mkdir(parents=True)
    (prefix / "usr").symlink_to(installed / "usr")
    (prefix / "etc/gpuhook/runtime.toml").touch()
    world = World(prefix, runtime)
    world.use_driver(driver)
    for name in ("mounts", "mounts.after"):
        (place / name).touch()
    victim = place / "victim"
    for name in ("lib", "etc/ld.so.conf.d", "dev", LIBDIR, "usr/bin", "run", "tmp", "compat"):
        (victim / name).mkdir(parents=True, exist_ok=True)
    for name in ("file", "etc/ld.so.cache", "etc/ld.so.conf", f"{LIBDIR}/libcuda.so.1", "usr/bin/nvidia-smi"):
        (victim / name).write_text(f"the host's {name}")
    return Arena(world, place, victim, _small(place / "tree"), driver, runtime)


def _small(tree: Path) -> Path:
    """The glibc image without the links of busybox, and with a static program where no layout goes."""
    shutil.copytree(image("glibc"), tree, symlinks=True)
    for path in (tree / "usr/bin").iterdir():
        if path.is_symlink():
            path.unlink()
    (tree / "keep").mkdir()
    shutil.copy(tree / "usr/bin/busybox", tree / "keep/busybox")
    return tree


# --- the oracle -------------------------------------------------------------------------------------------------


def digest(top: Path) -> str:
    """Names, types, modes, owners, times and contents of a tree."""
    found = hashlib.sha256()
    for path in sorted([top, *top.rglob("*")]):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        facts = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, status.st_ctime_ns, status.st_nlink)
        found.update(repr((str(path), facts, content)).encode())
    return found.hexdigest()


@dataclass
class Verdict:
    """What a start came to. `said` is all that a person is told: stderr, and gpuhook's log where crun hides a hook."""

    result: bundles.Result
    seconds: float
    said: str
    violations: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """`runs`, `refused` by gpuhook, or `runtime` where the runtime itself could not."""
        if self.result.code == 0:
            return "runs"
        return (
            "refused"
            if "gpuhook: " in self.result.err or "/gpuhook-hook` (exit code: " in self.result.err
            else "runtime"
        )


def mounts_changed(table: str) -> bool:
    """Whether a mount came, changed or went.

    One whose mount point does not exist any more was taken away by the kernel, when another test removed it.
    """
    before = Path(table).read_text().splitlines()
    after = Path(f"{table}.after").read_text().splitlines()
    gone = [line for line in before if line not in after]
    return any(line not in before for line in after) or any(os.path.lexists(line.split(" ")[4]) for line in gone)


def own_sources(arena: Arena, out: str) -> list[str]:
    """The objects of the driver's file system that a container has mounted, as paths of that file system."""
    status = arena.driver.stat()
    number = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    rows = [line.split(" ") for line in out.splitlines() if " - " in line]
    return [row[3] for row in rows if row[2] == number]


def in_file_system(path: Path) -> str:
    """A path as its file system has it, which mountinfo shows."""
    top = path
    while not os.path.ismount(top):
        top = top.parent
    return f"/{path.relative_to(top)}"


def judge(arena: Arena, start: Callable[[], bundles.Result], path: str = "", volumes: tuple[Path, ...] = ()) -> Verdict:
    """Start, compare, and list what must not have happened. A refusal must name `path`."""
    log = arena.world.path / "var/log/gpuhook/gpuhook.log"
    log.unlink(missing_ok=True)
    before = digest(arena.victim)
    begun = time.monotonic()
    result = start()
    seconds = time.monotonic() - begun
    verdict = Verdict(result, seconds, result.err + arena.world.log)
    if digest(arena.victim) != before:
        verdict.violations.append("the victim tree changed")
    if mounts_changed(arena.table):
        verdict.violations.append("the host's mounts changed")
    if verdict.seconds > SECONDS:
        verdict.violations.append(f"took {verdict.seconds:.1f} s")
    if "Traceback" in verdict.said or "[internal]" in verdict.said:
        verdict.violations.append(f"a defect: {verdict.said}")
    if verdict.outcome == "refused" and path and path not in verdict.said:
        verdict.violations.append(f"the refusal does not name {path}: {verdict.said}")
    if "the host's" in result.out:
        verdict.violations.append("the container read a file of the host")
    allowed = [f"{in_file_system(place)}/" for place in (arena.driver, arena.place / "bundle", *volumes)]
    for source in own_sources(arena, result.out):
        if not f"{source}/".startswith(tuple(allowed)):
            verdict.violations.append(f"the container has {source} of the host mounted")
    return verdict


def run(
    arena: Arena,
    change: Callable[[Path, Path], object],
    *,
    path: str = "",
    volumes: tuple[Path, ...] = (),
    env: tuple[str, ...] = (),
    **options: Any,
) -> Verdict:
    """Make a bundle, change its root by (root, victim), run a static program that a layout can't take away."""
    options.setdefault("args", SHOW)
    bundle = bundles.make(arena.bundle("bundle"), arena.tree, env=[ALL, *env], **options)
    change(bundle.rootfs, arena.victim)
    return judge(arena, lambda: arena.shim.run(bundle), path, volumes)


def replace(place: Path, make: Callable[[Path], object]) -> None:
    """Put something at the place of a directory or file, which goes away."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    make(place)


def climb(victim: Path) -> str:
    """A relative link that leads to the victim from any depth of the root, where nobody stops it."""
    return "../" * 20 + str(victim)[1:]
