"""Lookups in a container's root end inside it, whatever the image holds; nothing but regular files is ever opened."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuhook import linux, rootfs
from gpuhook.errors import GpuhookError
from gpuhook.rootfs import Root
from tests import sandbox

SECRET = "secret of the host"


def grow(place: Path) -> Path:
    """A root with every kind of object and link; beside it, what must never be seen."""
    outside = place / "outside"
    (outside / "lib").mkdir(parents=True)
    (outside / "file").write_text(SECRET)
    top = place / "root"
    (top / "usr/lib").mkdir(parents=True)
    (top / "usr/lib/file").write_text("inside")
    (top / "file").write_text("top")
    links = {
        "lib": "usr/lib",
        "abs": "/usr/lib",
        "climbs": "../../../../usr/lib",
        "usr/up": "../../../usr/lib",
        "host": str(outside),
        "hostfile": f"{outside}/file",
        "relative-host": "../outside/file",
        "etc": "/etc",
        "self": "self",
        "ping": "pong",
        "pong": "ping",
        "dangling": "nothing/here",
        "tofile": "file",
        "root-of-all": "/",
        "dots": "..",
        "empty-proc": "/proc/self/root",
        "through-file": "file/x",
        "newline": "usr/li\nb",
        "long": "x" * 300,
        "slow": "./././usr/./lib/../lib/./file",
    }
    for name, text in links.items():
        (top / name).symlink_to(text)
    for count in (39, 40, 41):
        for number in range(count):
            target = f"chain{count}-{number + 1}" if number < count - 1 else "file"
            (top / f"chain{count}-{number}").symlink_to(target)
    os.mkfifo(top / "fifo")
    (top / "tofifo").symlink_to("fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(top / "socket"))
    (top / "usr/li\nb").mkdir()
    (top / "empty").touch()
    (top / "unreadable").write_text("x")
    (top / "unreadable").chmod(0)
    return top


def opened(top: Path) -> Iterator[Root]:
    made = Root.at(str(top))
    yield made
    made.close()
    os.close(made.proc)


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    """A root that tests only look at."""
    yield from opened(grow(tmp_path_factory.mktemp("looked")))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The tree of a root that a test changes."""
    return grow(tmp_path)


@pytest.fixture
def root(tree: Path) -> Iterator[Root]:
    """The root of that tree."""
    yield from opened(tree)


@pytest.fixture
def outside(tree: Path) -> Path:
    """What lies beside it."""
    return tree.parent / "outside"


# path: kind, kind without following, content (None: nothing to read), real path
REFUSE = "refuse"
TABLE: dict[str, tuple[str | None, str | None, bytes | str | None, str | None]] = {
    "/file": ("file", "file", b"top", "/file"),
    "file": ("file", "file", b"top", "/file"),
    "//file": ("file", "file", b"top", "/file"),
    "/./file": ("file", "file", b"top", "/file"),
    "/../../file": ("file", "file", b"top", "/file"),
    "/usr/../../../file": ("file", "file", b"top", "/file"),
    "/": ("directory", "directory", None, "/"),
    "/usr/lib": ("directory", "directory", None, "/usr/lib"),
    "/lib": ("directory", "link", None, "/usr/lib"),
    "/lib/file": ("file", "file", b"inside", "/usr/lib/file"),
    "/abs/file": ("file", "file", b"inside", "/usr/lib/file"),
    "/climbs/file": ("file", "file", b"inside", "/usr/lib/file"),
    "/usr/up/file": ("file", "file", b"inside", "/usr/lib/file"),
    "/slow": ("file", "link", b"inside", "/usr/lib/file"),
    "/tofile": ("file", "link", b"top", "/file"),
    "/root-of-all/file": ("file", "file", b"top", "/file"),
    "/dots/file": ("file", "file", b"top", "/file"),
    "/newline": ("directory", "link", None, "/usr/li\nb"),
    "/empty": ("file", "file", b"", "/empty"),
    # leading out: the same path inside, which is not there
    "/host": ("link", "link", None, None),
    "/host/file": (None, None, None, None),
    "/hostfile": ("link", "link", None, None),
    "/relative-host": ("link", "link", None, None),
    "/etc/passwd": (None, None, REFUSE, None),
    "/empty-proc": ("link", "link", None, None),
    # to nothing
    "/none": (None, None, None, None),
    "/dangling": ("link", "link", None, None),
    "/dangling/x": (None, None, None, None),
    "/file/x": (None, None, None, None),
    "/through-file": ("link", "link", None, None),
    # loops
    "/self": ("link", "link", REFUSE, None),
    "/ping": ("link", "link", REFUSE, None),
    "/self/x": (None, None, REFUSE, None),
    # chains: the kernel follows 40 links
    "/chain39-0": ("file", "link", b"top", "/file"),
    "/chain40-0": ("file", "link", b"top", "/file"),
    "/chain41-0": ("link", "link", REFUSE, None),
    # neither file nor directory: told, never opened
    "/fifo": ("fifo", "fifo", None, "/fifo"),
    "/tofifo": ("fifo", "link", None, "/fifo"),
    "/socket": ("socket", "socket", None, "/socket"),
    # too long
    "/long": ("link", "link", REFUSE, None),
    "/" + "y" * 300: (None, None, REFUSE, None),
    "/" + "y/" * 3000: (None, None, REFUSE, None),
    "/nul\0byte": (None, None, REFUSE, None),
}


def label(path: str) -> str:
    return repr(path) if len(path) < 40 else f"{path[:10]!r}... of {len(path)}"


@pytest.mark.parametrize(("path", "expected"), [(path, row[0]) for path, row in TABLE.items()], ids=map(label, TABLE))
def test_kind(looked: Root, path: str, expected: str | None) -> None:
    assert looked.kind(path) == expected


@pytest.mark.parametrize(("path", "expected"), [(path, row[1]) for path, row in TABLE.items()], ids=map(label, TABLE))
def test_lkind(looked: Root, path: str, expected: str | None) -> None:
    assert looked.lkind(path) == expected


@pytest.mark.parametrize(("path", "expected"), [(path, row[2]) for path, row in TABLE.items()], ids=map(label, TABLE))
def test_read(looked: Root, path: str, expected: bytes | str | None) -> None:
    if expected == REFUSE:
        with pytest.raises(GpuhookError) as caught:
            looked.read(path, 100)
        assert caught.value.reference == "rootfs-unsafe"
        assert path in caught.value.message
    else:
        assert looked.read(path, 100) == expected


@pytest.mark.parametrize(("path", "expected"), [(path, row[3]) for path, row in TABLE.items()], ids=map(label, TABLE))
def test_real(looked: Root, path: str, expected: str | None) -> None:
    """And what `real` says is what the kernel finds."""
    assert looked.real(path) == expected
    if expected is not None:
        one, other = (
            looked.open(path),
            looked.open(expected, linux.O_PATH, linux.RESOLVE_IN_ROOT | linux.RESOLVE_NO_SYMLINKS),
        )
        assert os.path.samestat(os.fstat(one), os.fstat(other))
        os.close(one)
        os.close(other)


@pytest.mark.parametrize("path", TABLE, ids=label)
def test_nothing_of_the_host_is_seen(looked: Root, path: str) -> None:
    """Stated once more without the table: no handle that is given is of an object beside the root."""
    inside = {(found.st_dev, found.st_ino) for found in _all_of(Path(looked.name))}
    try:
        fd = looked.open(path)
    except OSError:
        return
    found = os.fstat(fd)
    os.close(fd)
    assert (found.st_dev, found.st_ino) in inside


def _all_of(top: Path) -> Iterator[os.stat_result]:
    yield top.lstat()
    for folder, names, files in os.walk(top):
        for name in names + files:
            yield os.lstat(os.path.join(folder, name))


READLINKS = {
    "/lib": "usr/lib",
    "/newline": "usr/li\nb",
    "/host": None,  # filled in below: the text is given as it is
    "/self": "self",
    "/file": None,
    "/usr": None,
    "/none": None,
    "/lib/file": None,
    "/self/x": None,
}


@pytest.mark.parametrize("path", READLINKS)
def test_readlink(looked: Root, path: str) -> None:
    outside = Path(looked.name).parent / "outside"
    assert looked.readlink(path) == (str(outside) if path == "/host" else READLINKS[path])


def test_names(looked: Root) -> None:
    assert set(looked.names("/usr", 100) or ()) == {"lib", "up", "li\nb"}
    assert set(looked.names("/climbs", 100) or ()) == {"file"}
    assert looked.names("/file", 100) is None
    assert looked.names("/none", 100) is None
    assert looked.names("/fifo", 100) is None
    assert looked.names("/host", 100) is None


def test_names_have_a_limit(root: Root, tree: Path) -> None:
    (tree / "many").mkdir()
    for number in range(50):
        (tree / f"many/{number}").touch()
    assert len(root.names("/many", 50) or ()) == 50
    with pytest.raises(GpuhookError) as caught:
        root.names("/many", 49)
    assert caught.value.reference == "rootfs-unsafe"
    assert "/many" in caught.value.message


def test_a_file_has_a_limit_whatever_its_size_says(root: Root, tree: Path) -> None:
    with (tree / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(GpuhookError) as caught:
        root.read("/sparse", 1000)
    assert caught.value.reference == "rootfs-unsafe"
    assert "/sparse" in caught.value.message
    assert root.read("/file", 3) == b"top"
    with pytest.raises(GpuhookError):
        root.read("/file", 2)


@pytest.mark.runc
@pytest.mark.parametrize("number", [(1, 5), (5, 0), (1, 8)], ids=["zero", "tty", "random"])
def test_a_device_is_not_opened(root: Root, tree: Path, number: tuple[int, int]) -> None:
    os.mknod(tree / "device", 0o666 | 0o020000, os.makedev(*number))
    assert root.kind("/device") == "device"
    assert root.read("/device", 100) is None
    assert root.open_regular("/device") is None


@pytest.mark.runc
def test_files_of_the_kernel_are_not_opened(tmp_path: Path) -> None:
    """To read /proc/kmsg takes messages away from the host's logger; others are masked for a container later."""
    for name in ("proc", "sys", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("/proc/kmsg")

    def child() -> list[object]:
        for kind, name in (("proc", "proc"), ("sysfs", "sys"), ("tmpfs", "data")):
            sandbox.mount(kind, tmp_path / name, kind)
        (tmp_path / "data/file").write_text("data")
        root = Root.at(str(tmp_path))
        found: list[object] = [root.open_regular(path) for path in ("/link", "/proc/version", "/sys/kernel/notes")]
        found.append((root.read("/data/file", 10) or b"").decode())
        try:
            root.read("/data/file", 10, own=True)
        except rootfs.ForeignError as error:
            found.append(error.reference)
        return found

    assert sandbox.apart(child, mounts=True) == [None, None, None, "data", "rootfs-unsafe"]


@pytest.mark.parametrize(
    "path",
    ["/proc/self/root/etc/passwd", "/proc/self/cwd", "/proc/self/fd/0", "/proc/self/exe", "/proc/thread-self/root"],
)
@pytest.mark.runc
def test_magic_links_are_refused(tmp_path: Path, path: str) -> None:
    """A root that shows a real procfs."""
    (tmp_path / "proc").mkdir()

    def child() -> tuple[str | None, str | None, str]:
        sandbox.mount("proc", tmp_path / "proc", "proc")
        inside = Root.at(str(tmp_path))
        try:
            return inside.kind(path), inside.real(path), str(inside.read(path, 1 << 20))
        except GpuhookError as error:
            return inside.kind(path), inside.real(path), error.message

    kind, real, said = sandbox.apart(child, mounts=True)
    assert kind in (None, "link")
    assert real is None
    assert path in said
    assert "magic" in said


@pytest.mark.parametrize("which", ["link", "file", "none"])
def test_a_root_that_is_no_directory_is_refused(tmp_path: Path, which: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    with pytest.raises(GpuhookError) as caught:
        Root.at(str(tmp_path / which))
    assert caught.value.reference == "rootfs-unsafe"
    assert str(tmp_path / which) in caught.value.message


@pytest.mark.runc
def test_a_false_proc_is_refused(tmp_path: Path) -> None:
    def child() -> str:
        sandbox.mount("tmpfs", "/proc", "tmpfs")
        try:
            rootfs.open_proc()
        except GpuhookError as error:
            return error.reference
        return ""

    assert sandbox.apart(child, mounts=True) == "rootfs-unsafe"


def test_no_descriptor_is_left(looked: Root) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for path in TABLE:
        looked.kind(path)
        looked.real(path)
        looked.readlink(path)
        for look in (lambda: looked.read(path, 2), lambda: looked.names(path, 1)):  # noqa: B023
            try:
                look()
            except GpuhookError:
                pass
    assert set(os.listdir("/proc/self/fd")) == before


# --- making -----------------------------------------------------------------------------------------------------


def made_in(root: Root, path: str) -> list[str]:
    """What `directory` made, newest last; checks that the handle is of the directory."""
    made: list[tuple[int, str]] = []
    fd = root.directory(path, made)
    other = root.open(path)
    assert os.path.samestat(os.fstat(fd), os.fstat(other))
    for handle in (fd, other, *[parent for parent, _ in made]):
        os.close(handle)
    return [name for _, name in made]


MADE = {
    "/usr/lib": ([], "usr/lib"),
    "/": ([], ""),
    "/new": (["new"], "new"),
    "/new/a/b": (["new", "a", "b"], "new/a/b"),
    "/new/a/b/": (["new", "a", "b"], "new/a/b"),
    "/abs/a": (["a"], "usr/lib/a"),
    "/climbs/a/b": (["a", "b"], "usr/lib/a/b"),
    "/root-of-all/a": (["a"], "a"),
    "/usr/up/a": (["a"], "usr/lib/a"),
}


@pytest.mark.parametrize("path", MADE)
def test_directories_are_made_inside(root: Root, tree: Path, path: str) -> None:
    names, place = MADE[path]
    assert made_in(root, path) == names
    assert (tree / place).is_dir()
    assert not (tree / place).is_symlink()
    if names:
        assert (tree / place).stat().st_mode & 0o700 == 0o700
    assert made_in(root, path) == []


@pytest.mark.parametrize(
    "path",
    [
        "/file", "/file/x", "/tofile", "/fifo", "/socket", "/self", "/self/x", "/ping/x", "/dangling", "/dangling/x",
        "/host", "/host/x", "/hostfile", "/chain41-0", "/long", "/new/../../x", "/" + "y" * 300, "/nul\0byte",
        "/new/a\0",
    ],
    ids=label,
)  # fmt: skip
def test_no_directory_is_made_through_what_is_none(root: Root, outside: Path, path: str) -> None:
    before = sorted(os.listdir(outside))
    with pytest.raises(GpuhookError) as caught:
        root.directory(path, [])
    assert caught.value.reference == "rootfs-unsafe"
    assert path in caught.value.message
    assert sorted(os.listdir(outside)) == before


def test_a_path_of_many_parts_is_no_crash(root: Root) -> None:
    """PATH_MAX allows 2000 names: refused or made, not a defect."""
    try:
        names = made_in(root, "/d" * 1500)
    except GpuhookError as error:
        assert error.reference == "rootfs-unsafe"
    else:
        assert len(names) == 1500
    finally:
        subprocess.run(["rm", "-rf", f"{root.name}/d"], check=True)  # too deep for pytest's own cleaning


@pytest.mark.runc
def test_directory_stays_on_the_mount(tmp_path: Path, tree: Path, outside: Path) -> None:
    """A volume of the container is never written into: neither at its top nor below, nor by a link."""

    def child() -> dict[str, str]:
        (tree / "volume/sub").mkdir(parents=True)
        (tree / "tovolume").symlink_to("/volume")
        sandbox.bind(outside, tree / "volume")
        inside = Root.at(str(tree))
        found = {}
        for path in ("/volume", "/volume/new", "/volume/lib", "/tovolume/new", "/volume/../volume/x"):
            try:
                inside.directory(path, [])
                found[path] = "made"
            except GpuhookError as error:
                found[path] = error.message
        return found

    before = sorted(os.listdir(outside))
    for path, said in sandbox.apart(child, mounts=True).items():
        assert path in said
        assert "another mount" in said
    assert sorted(os.listdir(outside)) == before


@pytest.mark.runc
def test_a_read_only_root_is_told(tree: Path) -> None:
    def child() -> tuple[str, str]:
        sandbox.bind(tree, tree)
        sandbox.mount("none", tree, "", 0x1000 | 0x20 | 1)
        try:
            Root.at(str(tree)).directory("/new/x", [])
        except GpuhookError as error:
            return error.reference, error.message
        return "", ""

    reference, message = sandbox.apart(child, mounts=True)
    assert reference == "rootfs-not-writable"
    assert "/new" in message


@pytest.mark.runc
def test_entry_tells_a_mount(tree: Path, outside: Path) -> None:
    def child() -> list[str]:
        sandbox.bind(outside / "file", tree / "file")
        inside = Root.at(str(tree))
        said = []
        for name in ("file", "empty", "tofile", "none", "usr/lib", ".."):
            try:
                said.append(rootfs.kind_of(os.fstat(rootfs.entry(inside.fd, name)).st_mode))
            except OSError as error:
                said.append(os.strerror(error.errno or 0))
        return said

    assert sandbox.apart(child, mounts=True) == [
        "Invalid cross-device link",
        "file",
        "link",
        "No such file or directory",
        "directory",
        "Invalid cross-device link",
    ]


# --- races ------------------------------------------------------------------------------------------------------

SWAPPER = """
import ctypes, sys
libc = ctypes.CDLL(None)
pairs = [(a.encode(), b.encode()) for a, b in zip(sys.argv[1::2], sys.argv[2::2])]
print(flush=True)
while True:
    for a, b in pairs:
        libc.renameat2(-100, a, -100, b, 2)
"""


@pytest.fixture
def swap() -> Iterator[Callable[..., None]]:
    """Starts a process that exchanges names without pause."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*names: Path) -> None:
        process = subprocess.Popen([sys.executable, "-IS", "-c", SWAPPER, *map(str, names)], stdout=subprocess.PIPE)
        assert process.stdout
        process.stdout.readline()
        process.stdout.close()
        started.append(process)

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def arena(tmp_path: Path) -> Path:
    """A root in which /a/dir/file is `inside`; beside it what an escape would find at the same path."""
    top = tmp_path / "root"
    (top / "a/dir").mkdir(parents=True)
    (top / "a/dir/file").write_text("inside")
    (tmp_path / "outside/dir").mkdir(parents=True)
    (tmp_path / "outside/dir/file").write_text(SECRET)
    (top / "a/away").mkdir()
    (top / "a/other").write_text("inside")
    (tmp_path / "other").write_text(SECRET)
    (tmp_path / "outside/other").mkdir()
    (top / "links").mkdir()
    for name, text in (
        ("abs", f"{tmp_path}/outside"),
        ("rel", "../../outside"),
        ("dangling", "none"),
        ("loop", "loop"),
    ):
        (top / "links" / name).symlink_to(text)
    return top


def _wrong(root: Root, path: str) -> bytes | None:
    """A resolver as many programs have it: look whether the path leads out, then open it."""
    place = f"{root.name}{path}"
    try:
        if not os.path.realpath(place).startswith(root.name + "/"):
            return None
        return Path(place).read_bytes()
    except OSError:
        return None


def _right(root: Root, path: str) -> bytes | None:
    try:
        return root.read(path, 100)
    except GpuhookError:
        return None


def _escapes(
    read: Callable[[Root, str], bytes | None], root: Root, tries: int, path: str = "/a/dir/file"
) -> tuple[int, int]:
    """How often the secret was read, and how often the right file."""
    bad = good = 0
    for _ in range(tries):
        found = read(root, path)
        bad += found == SECRET.encode()
        good += found == b"inside"
        if bad and read is _wrong:
            break
    return bad, good


FILE = "/a/dir/file"
RACES = {
    "directory and absolute link": ("a", "links/abs", FILE),
    "directory and climbing link": ("a", "links/rel", FILE),
    "directory and dangling link": ("a", "links/dangling", FILE),
    "directory and loop": ("a", "links/loop", FILE),
    "directory and directory": ("a/dir", "a/away", FILE),
    "directory and file": ("a/dir", "a/other", FILE),
    "file and link out": ("a/dir/file", "links/file", FILE),
    "directory moved out of the root": ("a/dir", "../outside/other", "/a/dir/../other"),
}


@pytest.mark.parametrize(("first", "second", "path"), RACES.values(), ids=RACES)
def test_no_race_leads_out(arena: Path, swap: Callable[..., None], first: str, second: str, path: str) -> None:
    """20,000 lookups in each case while names are exchanged, as libpathrs does."""
    swap(arena / first, arena / second)
    bad, good = _escapes(_right, Root.at(str(arena)), 20_000, path)
    assert bad == 0
    assert good > 0, "the race never let a lookup through: it proves nothing"


def test_the_harness_finds_a_wrong_resolver(arena: Path, swap: Callable[..., None]) -> None:
    """Self-check: realpath-then-open is caught by the same harness."""
    swap(arena / "a", arena / "links/abs")
    bad, _ = _escapes(_wrong, Root.at(str(arena)), 50_000)
    assert bad > 0


def test_no_directory_is_made_outside_in_a_race(arena: Path, swap: Callable[..., None]) -> None:
    outside = arena.parent / "outside"
    before = _listing(outside)
    swap(arena / "a", arena / "links/abs", arena / "a", arena / "links/rel")
    root = Root.at(str(arena))
    done = 0
    for number in range(3000):
        made: list[tuple[int, str]] = []
        try:
            os.close(root.directory(f"/a/new{number % 7}/x", made))
            done += 1
        except GpuhookError:
            pass
        for parent, name in reversed(made):
            os.rmdir(name, dir_fd=parent)
            os.close(parent)
    assert _listing(outside) == before
    assert done > 0


def _listing(top: Path) -> list[str]:
    return sorted(str(path) for path in top.rglob("*"))
