# mypy: disable-error-code="func-returns-value"
"""Hostile root file systems, run through the installed shim and hook and the real runc, all judged by one oracle.

Whatever a root file system holds, one of two things happens within 5 s: the container runs, or its start is refused in
words that name the path. In both cases a tree of the host that the layout leads to stays as it is to the byte and the
time, and the host's mounts stay as they are. The classes are those of the malicious corpus that security pages name.
"""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import bundles
from tests.conftest import World
from tests.images import LOADERS, MULTIARCH, image

pytestmark = pytest.mark.runc

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


@dataclass
class Arena:
    """One installation with a simulated driver, and the tree that nobody may touch."""

    world: World
    place: Path
    victim: Path
    tree: Path

    @property
    def table(self) -> str:
        """Where the host's mounts before a start are; those after it have `.after` behind the name."""
        return str(self.place / "mounts")

    def bundle(self, name: str) -> Path:
        """A folder for one bundle."""
        path = self.place / name
        shutil.rmtree(path, ignore_errors=True)
        return path


@pytest.fixture(scope="module")
def arena(installed: Path, sim_driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Arena:
    """Made once: the driver's record is warm after the first layout."""
    place = tmp_path_factory.mktemp("arena")
    prefix = place / "world"
    (prefix / "etc/gpuhook").mkdir(parents=True)
    (prefix / "usr").symlink_to(installed / "usr")
    (prefix / "etc/gpuhook/runtime.toml").touch()
    world = World(prefix)
    world.use_driver(sim_driver)
    for name in ("mounts", "mounts.after"):
        (place / name).touch()
    victim = place / "victim"
    for name in ("lib", "etc/ld.so.conf.d", "dev", LIBDIR, "usr/bin", "run", "tmp", "compat"):
        (victim / name).mkdir(parents=True, exist_ok=True)
    for name in ("file", "etc/ld.so.cache", "etc/ld.so.conf", f"{LIBDIR}/libcuda.so.1", "usr/bin/nvidia-smi"):
        (victim / name).write_text(f"the host's {name}")
    return Arena(world, place, victim, _small(place / "tree"))


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
    """What a start came to."""

    result: bundles.Result
    seconds: float
    violations: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """`runs`, `refused` by gpuhook, or `runtime` where runc itself could not."""
        if self.result.code == 0:
            return "runs"
        return "refused" if "gpuhook: " in self.result.err else "runtime"


def mounts_changed(table: str) -> bool:
    """Whether a mount came, changed or went.

    One whose mount point does not exist any more was taken away by the kernel, when another test removed it.
    """
    before = Path(table).read_text().splitlines()
    after = Path(f"{table}.after").read_text().splitlines()
    gone = [line for line in before if line not in after]
    return any(line not in before for line in after) or any(os.path.lexists(line.split(" ")[4]) for line in gone)


def judge(arena: Arena, start: Callable[[], bundles.Result], path: str = "") -> Verdict:
    """Start, compare, and list what must not have happened. A refusal must name `path`."""
    before = digest(arena.victim)
    begun = time.monotonic()
    result = start()
    verdict = Verdict(result, time.monotonic() - begun)
    if digest(arena.victim) != before:
        verdict.violations.append("the victim tree changed")
    if mounts_changed(arena.table):
        verdict.violations.append("the host's mounts changed")
    if verdict.seconds > SECONDS:
        verdict.violations.append(f"took {verdict.seconds:.1f} s")
    if "Traceback" in result.err or "[internal]" in result.err:
        verdict.violations.append(f"a defect: {result.err}")
    if verdict.outcome == "refused" and path and path not in result.err:
        verdict.violations.append(f"the refusal does not name {path}: {result.err}")
    if "the host's" in result.out:
        verdict.violations.append("the container read a file of the host")
    return verdict


def run(arena: Arena, change: Callable[[Path, Path], object], *, path: str = "", **options: Any) -> Verdict:
    """Make a bundle, change its root by (root, victim), run a static program that a layout can't take away."""
    place = arena.bundle("bundle")
    bundle = bundles.make(place, arena.tree, env=[ALL], args=["/keep/busybox", "true"], **options)
    change(bundle.rootfs, arena.victim)
    shim = bundles.Runtime(arena.world.runtime, arena.place / "state", within=[*HOST, arena.table])
    return judge(arena, lambda: shim.run(bundle), path)


def replace(place: Path, make: Callable[[Path], object]) -> None:
    """Put something at the place of a directory or file, which goes away."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    make(place)


def climb(root: Path, victim: Path) -> str:
    """A relative link that leads to the victim from any depth of the root, where nobody stops it."""
    return "../" * 20 + str(victim)[1:]


# --- L01-L19: directories that we use, as links ------------------------------------------------------------------

DIRECTORIES = (
    LIBDIR,
    "usr/lib",
    "usr",
    "usr/bin",
    "etc",
    "etc/ld.so.conf.d",
    "lib64",
    "lib",
    "run",
    "tmp",
    "opt",
    "var",
)


def chain(count: int) -> Callable[[Path, Path, Path], None]:
    def make(place: Path, root: Path, victim: Path) -> None:
        folder = root / f"chain{count}"
        folder.mkdir()
        (folder / "end").mkdir()
        for number in range(count - 1):
            (folder / str(number)).symlink_to(
                f"/chain{count}/{number + 1}" if number < count - 2 else f"/chain{count}/end"
            )
        place.symlink_to(f"/chain{count}/0")

    return make


def two_steps(place: Path, root: Path, victim: Path) -> None:
    place.symlink_to("/other-link")
    (root / "other-link").symlink_to("/" + str(place.relative_to(root)))


LINKS: dict[str, Callable[[Path, Path, Path], object]] = {
    "absolute out": lambda place, root, victim: place.symlink_to(victim / place.relative_to(root)),
    "climbing out": lambda place, root, victim: place.symlink_to(climb(root, victim / place.relative_to(root))),
    "to the root": lambda place, root, victim: place.symlink_to("/"),
    "to a sibling": lambda place, root, victim: (place.symlink_to("/sibling"), (root / "sibling").mkdir()),
    "to itself": lambda place, root, victim: place.symlink_to("/" + str(place.relative_to(root))),
    "two-step loop": two_steps,
    "dangling": lambda place, root, victim: place.symlink_to("/no/such/place"),
    "to a file": lambda place, root, victim: place.symlink_to("/etc/passwd"),
    "a file": lambda place, root, victim: place.write_text("x"),
    "a fifo": lambda place, root, victim: os.mkfifo(place),
    "chain of 39": chain(39),
    "chain of 41": chain(41),
    "magic root": lambda place, root, victim: place.symlink_to("/proc/self/root" + str(victim)),
    "magic root of init": lambda place, root, victim: place.symlink_to("/proc/1/root" + str(victim)),
    "magic cwd": lambda place, root, victim: place.symlink_to("/proc/self/cwd"),
    "magic fd": lambda place, root, victim: place.symlink_to("/proc/self/fd/3"),
    "magic thread": lambda place, root, victim: place.symlink_to("/proc/thread-self/root/etc"),
    "dev fd": lambda place, root, victim: place.symlink_to("/dev/fd/0"),
}


@pytest.mark.parametrize("directory", DIRECTORIES)
@pytest.mark.parametrize("link", LINKS)
def test_directories(arena: Arena, directory: str, link: str) -> None:
    """L01-L19 and L50-L55: each directory that we look into or make things in, as each kind of link."""

    def change(root: Path, victim: Path) -> None:
        replace(root / directory, lambda place: LINKS[link](place, root, victim))

    assert run(arena, change, path="/").violations == []


def test_most_of_these_run_and_some_are_refused(arena: Arena) -> None:
    """The oracle would be content with a shim that refuses everything: a good root and a harmless link run."""
    assert run(arena, lambda root, victim: None).outcome == "runs"
    moved = run(arena, lambda root, victim: ((root / "run").rmdir(), (root / "run").symlink_to("/tmp")))
    assert moved.outcome == "runs"
    loop = run(arena, lambda root, victim: replace(root / "usr/bin", lambda place: place.symlink_to("/usr/bin")))
    assert loop.outcome == "refused"
    assert "/usr/bin" in loop.result.err


# --- L20-L39: files that we read or replace ----------------------------------------------------------------------


def unix_socket(place: Path) -> None:
    """A socket; its path may be longer than sun_path takes."""
    here = Path.cwd()
    os.chdir(place.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(place.name)
    finally:
        os.chdir(here)


def sparse(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(1 << 40)


def device(major: int, minor: int) -> Callable[[Path], None]:
    return lambda place: os.mknod(place, 0o020666, os.makedev(major, minor))


def secret(place: Path) -> Callable[[Path], None]:
    return lambda at: at.symlink_to(place)


STRANGE: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": unix_socket,
    "zero": device(1, 5),
    "tty": device(5, 0),
    "sparse": sparse,
    "directory": lambda place: place.mkdir(),
    "full directory": lambda place: (place / "x/y").mkdir(parents=True),
    "empty": lambda place: place.touch(),
    "garbage": lambda place: place.write_bytes(bytes(range(256)) * 100),
    "a million lines": lambda place: place.write_text("/usr/lib/x\n" * 1_000_000),
    "one long line": lambda place: place.write_text("/" + "x" * 900_000),
    "unreadable": lambda place: (place.write_text("x"), place.chmod(0)),
    "link to a secret": lambda place: place.symlink_to("/proc/self/root/etc/shadow"),
    "link to itself": lambda place: place.symlink_to(place.name),
    "dangling": lambda place: place.symlink_to("/no/such/file"),
}
FILES = (
    "etc/ld.so.cache",
    "etc/ld.so.conf",
    "etc/ld.so.conf.d/00-gpuhook.conf",
    "etc/debian_version",
    f"{LIBDIR}/libc.so.6",
)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("what", STRANGE)
def test_files_that_we_read(arena: Arena, file: str, what: str) -> None:
    """L30-L39."""
    verdict = run(arena, lambda root, victim: replace(root / file, STRANGE[what]), path=f"/{file}")
    assert verdict.violations == []


@pytest.mark.parametrize("file", FILES[:3])
def test_the_hosts_files_behind_links_are_not_written(arena: Arena, file: str) -> None:
    """A cache that is a link to the host's: replaced, not written through."""
    verdict = run(arena, lambda root, victim: replace(root / file, secret(victim / file)))
    assert verdict.violations == []


CONFS: dict[str, str] = {
    "includes itself": "include /etc/ld.so.conf\n",
    "includes all": "include /*\ninclude /*/*\ninclude /*/*/*\n",
    "includes upwards": "include ../../../../../etc/*\n",
    "includes the kernel": "include /proc/*/environ\ninclude /sys/*\n",
    "stars": "include /usr/lib/" + "*" * 3000 + "x\n",
    "binary": "\0\1\2\n/usr/lib\0/etc\n",
    "names of nothing": "".join(f"/d{number}\n" for number in range(20_000)),
    "relative": "usr/lib\n../etc\n",
    "origin": "/usr/lib/$ORIGIN\n/usr/lib/%s%n\n",
}


@pytest.mark.parametrize("text", CONFS.values(), ids=CONFS)
def test_loader_configurations(arena: Arena, text: str) -> None:
    """L30: the configuration tree of the image."""
    verdict = run(arena, lambda root, victim: (root / "etc/ld.so.conf").write_text(text))
    assert verdict.violations == []
    assert verdict.outcome == "runs"


# --- L20-L27: compatibility libraries ----------------------------------------------------------------------------


COMPAT = "usr/local/cuda/compat"
COMPATS: dict[str, Callable[[Path, Path], object]] = {
    "a link out": lambda place, victim: place.symlink_to(victim / "compat"),
    "a file": lambda place, victim: place.write_text("x"),
    "a fifo": lambda place, victim: os.mkfifo(place),
    "its library a link out": lambda place, victim: (
        place.mkdir(),
        (place / "libcuda.so.999.1").symlink_to(victim / "file"),
    ),
    "its library a fifo": lambda place, victim: (place.mkdir(), os.mkfifo(place / "libcuda.so.999.1")),
    "its library a device": lambda place, victim: (place.mkdir(), device(1, 5)(place / "libcuda.so.999.1")),
    "its library empty": lambda place, victim: (place.mkdir(), (place / "libcuda.so.999.1").touch()),
    "names that steer": lambda place, victim: (
        place.mkdir(),
        [
            (place / name).touch()
            for name in ("libcuda.so.999.1\nx", "libcuda.so.%s", "libcuda.so.$ORIGIN", "libcuda.so.1")
        ],
    ),
    "ten thousand names": lambda place, victim: (
        place.mkdir(),
        [(place / f"libcuda.so.999.{number}").touch() for number in range(10_000)],
    ),
}


@pytest.mark.parametrize("what", COMPATS)
def test_compatibility_libraries(arena: Arena, what: str) -> None:
    """L20-L27: they are looked at and never mounted or opened for the host."""

    def change(root: Path, victim: Path) -> None:
        (root / COMPAT).parent.mkdir(parents=True)
        COMPATS[what](root / COMPAT, victim)

    verdict = run(arena, change)
    assert verdict.violations == []
    assert verdict.outcome == "runs"


# --- L40-L49: /dev, /proc, /sys ----------------------------------------------------------------------------------

KERNEL: dict[str, Callable[[Path, Path], object]] = {
    "absent": lambda place, victim: None,
    "a file": lambda place, victim: place.touch(),
    "a link out": lambda place, victim: place.symlink_to(victim / place.name),
    "a climbing link": lambda place, victim: place.symlink_to("../" * 20 + str(victim / "dev")[1:]),
    "a link to a link": lambda place, victim: (place.symlink_to("/l2"), (place.parent / "l2").symlink_to("/tmp")),
    "a false self": lambda place, victim: (
        place.mkdir(),
        (place / "self/fd").mkdir(parents=True),
        (place / "self/mountinfo").touch(),
    ),
    "nodes of ours": lambda place, victim: (
        place.mkdir(),
        (place / "nvidia0").symlink_to(victim / "file"),
        (place / "nvidiactl").touch(),
        os.mkfifo(place / "nvidia-uvm"),
        device(1, 5)(place / "nvidia1"),
    ),
}


OWN_LINKS = {"fd", "ptmx", "stdin", "stdout", "stderr"}  # runc 1.1 makes these by path, with and without gpuhook


@pytest.mark.parametrize("directory", ["dev", "proc", "sys"])
@pytest.mark.parametrize("what", KERNEL)
def test_kernel_directories(arena: Arena, directory: str, what: str) -> None:
    """L40-L49."""

    def change(root: Path, victim: Path) -> None:
        replace(root / directory, lambda place: KERNEL[what](place, victim))

    verdict = run(arena, change)
    if directory == "dev" and what in ("a link out", "a climbing link"):
        made = list((arena.victim / "dev").iterdir())
        assert {path.name for path in made} <= OWN_LINKS
        for path in made:
            path.unlink()
        verdict.violations.remove("the victim tree changed")
    assert verdict.violations == []


@pytest.mark.parametrize("what", KERNEL)
def test_a_spec_without_a_mount_at_dev_is_refused(arena: Arena, what: str) -> None:
    """runc 1.1.5 would follow the image's /dev link and make nodes on the host."""

    def change(root: Path, victim: Path) -> None:
        replace(root / "dev", lambda place: KERNEL[what](place, victim))
        spec = root.parent / "config.json"
        data = bundles.Bundle(root.parent).spec
        data["mounts"] = [item for item in data["mounts"] if not item["destination"].startswith("/dev")]
        spec.write_text(json.dumps(data))

    verdict = run(arena, change, path="/dev")
    assert verdict.violations == []
    assert verdict.outcome == "refused"
    assert "[dev-not-mounted]" in verdict.result.err
    assert verdict.result.code == 24
    assert "dev-not-mounted" in verdict.result.log


# --- L56-L64 -----------------------------------------------------------------------------------------------------


def libraries(root: Path) -> list[Path]:
    """Where driver libraries go."""
    return [
        root / LIBDIR / name for name in ("libcuda.so.580.95.05", "libcuda.so.1", "libnvidia-ml.so.1", "libcuda.so")
    ]


LEFTOVERS: dict[str, Callable[[Path, Path], object]] = {
    "links out": lambda place, victim: place.symlink_to(victim / "file"),
    "links to the root": lambda place, victim: place.symlink_to("/"),
    "sockets": lambda place, victim: unix_socket(place),
    "directories": lambda place, victim: place.mkdir(),
    "fifos": lambda place, victim: os.mkfifo(place),
    "devices": lambda place, victim: device(1, 5)(place),
    "hard links": lambda place, victim: os.link(place.parents[3] / "etc/passwd", place),
    "unreadable": lambda place, victim: (place.touch(), place.chmod(0)),
    "set-id": lambda place, victim: (place.touch(), place.chmod(0o6755)),
    "empty": lambda place, victim: place.touch(),
}


@pytest.mark.parametrize("what", LEFTOVERS)
def test_leftovers(arena: Arena, what: str) -> None:
    """L56-L60: what stands where our mounts and links go."""
    passwd: list[bytes] = []

    def change(root: Path, victim: Path) -> None:
        passwd.append((root / "etc/passwd").read_bytes())
        for place in libraries(root):
            LEFTOVERS[what](place, victim)

    verdict = run(arena, change, path=f"/{LIBDIR}/lib")
    assert verdict.violations == []
    assert (arena.place / "bundle/rootfs/etc/passwd").read_bytes() == passwd[0]
    expected = "refused" if what in ("sockets", "directories", "fifos", "devices") else "runs"
    assert verdict.outcome == expected


def test_temporary_names_of_ours_are_taken(arena: Arena) -> None:
    """A directory where our temporary file goes: refused with the path, not written into."""

    def change(root: Path, victim: Path) -> None:
        (root / "etc/.ld.so.cache.gpuhook").symlink_to(victim / "file")
        (root / LIBDIR / ".libcuda.so.1.gpuhook").symlink_to(victim)

    verdict = run(arena, change)
    assert verdict.violations == []
    assert verdict.outcome == "runs"
    assert not list((arena.place / "bundle/rootfs").rglob(".*.gpuhook"))


def long_names(root: Path, victim: Path) -> None:
    for number in range(50):
        (root / LIBDIR / f"libcuda.so.{number}{'9' * 240}"[:255]).touch()


def deep(root: Path, victim: Path) -> None:
    here = os.open(root / "opt", os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


ROOTS: dict[str, Callable[[Path, Path], object]] = {
    "empty": lambda root, victim: [
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for path in root.iterdir()
        if path.name != "keep"
    ],
    "long names": long_names,
    "many names": lambda root, victim: [(root / LIBDIR / f"n{number}").touch() for number in range(20_000)],
    "no write permission": lambda root, victim: [
        (root / name).chmod(0o555) for name in (LIBDIR, "etc", "usr/bin", ".")
    ],
    "no loader": lambda root, victim: (root / LOADERS[MULTIARCH][1:]).unlink(),
    "loader a link out": lambda root, victim: replace(
        root / LOADERS[MULTIARCH][1:], lambda place: place.symlink_to(victim / "file")
    ),
    "loader of another machine": lambda root, victim: replace(
        root / LOADERS[MULTIARCH][1:],
        lambda place: place.write_bytes(b"\x7fELF\2\1\1" + b"\0" * 9 + b"\3\0\xf3\0" + b"\0" * 100),
    ),
    "loader a stub": lambda root, victim: replace(
        root / LOADERS[MULTIARCH][1:], lambda place: place.write_bytes(b"\x7fELF")
    ),
}


@pytest.mark.parametrize("what", ROOTS)
def test_whole_roots(arena: Arena, what: str) -> None:
    """L61 and others."""
    verdict = run(arena, ROOTS[what])
    assert verdict.violations == []


def test_a_deep_root(arena: Arena) -> None:
    try:
        assert run(arena, lambda root, victim: ((root / "opt").mkdir(), deep(root, victim))).violations == []
    finally:
        subprocess.run(["rm", "-rf", arena.place / "bundle"], check=True)


def test_a_root_that_is_a_link(arena: Arena) -> None:
    """L63."""

    def change(root: Path, victim: Path) -> None:
        root.rename(root.parent / "real")
        root.symlink_to("real")

    verdict = run(arena, change)
    assert verdict.violations == []
    assert verdict.outcome != "runs" or (arena.place / "bundle/rootfs").is_symlink()


def test_a_read_only_root(arena: Arena) -> None:
    """L62: the flag of the spec is no obstacle, since hooks run before it is set."""
    assert run(arena, lambda root, victim: None, readonly=True).outcome == "runs"


@pytest.mark.parametrize("propagation", ["rprivate", "rslave", "rshared"])
@pytest.mark.parametrize("directory", [LIBDIR, "usr/bin", "etc", "run", "usr"])
def test_a_volume_over_a_directory_of_ours(arena: Arena, directory: str, propagation: str) -> None:
    """L64: a directory of the host is mounted where we would make files. Nothing is made in it."""
    volume = bundles.mount(f"/{directory}", "bind", str(arena.victim / directory), "rbind", propagation)
    (arena.victim / directory).mkdir(parents=True, exist_ok=True)
    verdict = run(arena, lambda root, victim: None, path=f"/{directory}", mounts=[volume])
    assert verdict.violations == []


@pytest.mark.parametrize("propagation", ["shared", "rshared"])
def test_a_shared_root_is_refused(arena: Arena, propagation: str) -> None:
    """Our mounts would appear on the host and outlive the container."""

    def change(root: Path, victim: Path) -> None:
        data = bundles.Bundle(root.parent).spec
        data["linux"]["rootfsPropagation"] = propagation
        (root.parent / "config.json").write_text(json.dumps(data))

    verdict = run(arena, change)
    assert verdict.violations == []
    assert verdict.outcome in ("refused", "runs")
    if verdict.outcome == "refused":
        assert "[rootfs-shared]" in verdict.result.err


# --- self-checks -------------------------------------------------------------------------------------------------


@pytest.fixture
def victim_back(arena: Arena) -> Iterator[None]:
    yield
    (arena.victim / "new").unlink(missing_ok=True)


@pytest.mark.usefixtures("victim_back")
def test_the_oracle_sees_a_change(arena: Arena) -> None:
    """A start that makes a file in the victim, is slow, crashes or reads it is told."""

    def bad() -> bundles.Result:
        (arena.victim / "new").touch()
        return bundles.Result(1, "the host's file", "gpuhook: no [internal]", "")

    said = " ".join(judge(arena, bad, "/etc").violations)
    for words in ("victim tree changed", "defect", "does not name /etc", "read a file of the host"):
        assert words in said


def test_a_hook_that_follows_links_would_be_caught(arena: Arena) -> None:
    """A hook as it must not be (paths joined, opened by name) writes into the victim: the layouts are live."""

    def wrong(root: Path) -> bundles.Result:
        with open(f"{root}/etc/ld.so.cache", "w") as file:
            file.write("cache")
        return bundles.Result(0, "", "", "")

    place = arena.bundle("bundle")
    bundle = bundles.make(place, "glibc")
    target = arena.place / "victim2"
    target.mkdir(exist_ok=True)
    twin = Arena(arena.world, arena.place, target, arena.tree)
    replace(bundle.rootfs / "etc", lambda at: at.symlink_to(target))
    assert judge(twin, lambda: wrong(bundle.rootfs)).violations == ["the victim tree changed"]
