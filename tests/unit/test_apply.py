"""Steps become mounts, links and files inside the container only; a step that fails leaves everything as it was."""

import errno
import mmap
import os
import posix
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuhook import apply, linux, rootfs
from gpuhook.errors import GpuhookError
from gpuhook.model import Bind, Image, Link, LoaderCache, Plan, Write, replace
from gpuhook.sources import Sources, acquire
from tests import container as containers
from tests import sandbox
from tests.container import Container, apply_plan, driver_file, listing

pytestmark = pytest.mark.runc

LIB = "/usr/lib"
CUDA, ML, SMI = f"{LIB}/libcuda.so.535", f"{LIB}/libnvidia-ml.so.535", "/usr/bin/nvidia-smi"
SOCKET = "/run/nvidia-persistenced/socket"
PIPES = "/tmp/nvidia-mps"


@pytest.fixture
def host(folder: Path) -> Path:
    """A driver root, at a short path: the name of a socket has 108 bytes at most."""
    top = folder / "host"
    for path in (CUDA, ML, SMI):
        (top / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (top / path[1:]).write_text(f"host's {path}")
    (top / SOCKET[1:]).parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(top / SOCKET[1:]))
    (top / PIPES[1:]).mkdir(parents=True)
    (top / PIPES[1:] / "control").touch()
    return top


@pytest.fixture
def root(folder: Path) -> Path:
    """A container's root."""
    top = folder / "rootfs"
    for name in ("usr/lib", "usr/bin", "etc", "run", "tmp"):
        (top / name).mkdir(parents=True)
    (top / "lib").symlink_to("usr/lib")
    (top / "etc/file").write_text("image's")
    return top


Start = Callable[..., Container]


@pytest.fixture
def start(root: Path) -> Iterator[Start]:
    """Starts containers on the root and ends them."""
    started: list[Container] = []

    def make(setup: Callable[[], object] = lambda: None, **options: Any) -> Container:
        started.append(containers.start(root, setup, **options))
        return started[-1]

    yield make
    for item in started:
        item.close()


def lib(path: str = CUDA, target: str = "", **more: Any) -> Bind:
    return Bind(path, target or path, "library", **more)


def done(
    container: Container,
    host: Path,
    *steps: Bind | Link | Write | LoaderCache,
    others: tuple[str, ...] = (),
    **more: Any,
) -> tuple[str, ...]:
    files = tuple(driver_file(host, path) for path in (CUDA, ML, SMI))
    return apply_plan(container, host, Plan(steps), files=files, others=others, **more)


def refusal(*args: Any, **more: Any) -> GpuhookError:
    with pytest.raises(GpuhookError) as caught:
        done(*args, **more)
    return caught.value


# --- what is made -----------------------------------------------------------------------------------------------


def test_files_appear_read_only_in_the_container_alone(start: Start, host: Path, root: Path) -> None:
    box = start()
    outside = Path("/proc/self/mountinfo").read_bytes()
    assert done(box, host, lib(), lib(ML), Bind(SMI, SMI, "binary")) == ()
    found = box.mounts()
    assert set(found) == {CUDA, ML, SMI}
    for path in (CUDA, ML, SMI):
        assert {"ro", "nosuid", "nodev"} <= found[path].flags
        assert "noexec" not in found[path].flags
        assert box.path(path).read_text() == f"host's {path}"
        with pytest.raises(OSError, match="Read-only"):
            box.path(path).open("r+")
        assert (root / path[1:]).read_bytes() == b""
    assert Path("/proc/self/mountinfo").read_bytes() == outside


def test_flags_cannot_be_taken_off_by_a_plain_remount_of_the_host_mount(start: Start, host: Path) -> None:
    """The host's own mount keeps its flags: the copy was restricted, not the original."""
    box = start()
    done(box, host, lib())
    (host / CUDA[1:]).write_text("changed by the host")
    assert box.path(CUDA).read_text() == "changed by the host"


def test_one_source_at_two_targets(start: Start, host: Path) -> None:
    box = start()
    assert done(box, host, lib(), lib(target="/opt/a/b/libcuda.so.535"), lib(target="/usr/lib/copy")) == ()
    assert set(box.mounts()) == {CUDA, "/opt/a/b/libcuda.so.535", "/usr/lib/copy"}
    assert all({"ro", "nosuid", "nodev"} <= item.flags for item in box.mounts().values())


def test_a_target_behind_links_is_found_inside(start: Start, host: Path, root: Path) -> None:
    (root / "out").symlink_to("../../../../usr/lib")
    box = start()
    done(box, host, lib(target="/lib/a"), lib(target="/out/b"))
    assert set(box.mounts()) == {"/usr/lib/a", "/usr/lib/b"}


def test_links_are_made(start: Start, host: Path, root: Path) -> None:
    steps = (
        lib(),
        Link(f"{LIB}/libcuda.so.1", "libcuda.so.535"),
        Link(f"{LIB}/libcuda.so", "libcuda.so.1"),
        Link("/opt/new/x", "y"),
    )
    box = start()
    assert done(box, host, *steps) == ()
    assert os.readlink(root / "usr/lib/libcuda.so.1") == "libcuda.so.535"
    assert (box.path(f"{LIB}/libcuda.so")).read_text() == f"host's {CUDA}"
    assert os.readlink(root / "opt/new/x") == "y"


def test_links_of_another_driver_are_replaced(start: Start, host: Path, root: Path) -> None:
    (root / "usr/lib/libcuda.so.1").symlink_to("libcuda.so.470")
    (root / "usr/lib/same").symlink_to("text")
    inode = (root / "usr/lib/same").lstat().st_ino
    box = start()
    assert done(box, host, Link(f"{LIB}/libcuda.so.1", "libcuda.so.535"), Link(f"{LIB}/same", "text")) == ()
    assert os.readlink(root / "usr/lib/libcuda.so.1") == "libcuda.so.535"
    assert (root / "usr/lib/same").lstat().st_ino == inode


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_link_does_not_replace_what_is_none(start: Start, host: Path, root: Path, what: str) -> None:
    place = root / "usr/lib/libcuda.so.1"
    place.write_text("image's") if what == "file" else place.mkdir()
    (warning,) = done(start(), host, Link(f"{LIB}/libcuda.so.1", "libcuda.so.535"))
    assert f"{LIB}/libcuda.so.1" in warning
    assert not place.is_symlink()


def test_leftovers_of_an_earlier_start_are_taken_again(start: Start, host: Path, root: Path) -> None:
    """`docker restart`: the mount points, directories and links are there, the mounts are gone."""
    steps = (lib(target="/opt/a/x"), Link("/opt/a/y", "x"), Bind(PIPES, PIPES, "directory"))
    done(start(), host, *steps, others=(PIPES,))
    before = listing(root)
    inodes = {path: (root / path).lstat().st_ino for path in before}
    box = start()
    assert done(box, host, *steps, others=(PIPES,)) == ()
    assert listing(root) == before
    assert {path: (root / path).lstat().st_ino for path in before} == inodes
    assert set(box.mounts()) == {"/opt/a/x", PIPES}


def test_the_images_own_library_is_covered_and_kept(start: Start, host: Path, root: Path) -> None:
    (root / CUDA[1:]).write_text("image's")
    box = start()
    done(box, host, lib())
    assert box.path(CUDA).read_text() == f"host's {CUDA}"
    assert (root / CUDA[1:]).read_text() == "image's"


def test_a_link_at_a_librarys_name_is_replaced_not_followed(start: Start, host: Path, root: Path) -> None:
    (root / CUDA[1:]).symlink_to("/etc/file")
    box = start()
    done(box, host, lib())
    assert set(box.mounts()) == {CUDA}
    assert (root / "etc/file").read_text() == "image's"
    assert not (root / CUDA[1:]).is_symlink()


def _place(path: Path, kind: str) -> None:
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        os.mknod(path, 0o020666, os.makedev(1, 5))
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))


@pytest.mark.parametrize("kind", ["directory", "fifo", "device", "socket"])
def test_another_kind_of_thing_at_a_librarys_name_is_refused(start: Start, host: Path, root: Path, kind: str) -> None:
    _place(root / CUDA[1:], kind)
    before = listing(root)
    box = start()
    error = refusal(box, host, lib(ML), lib())
    assert error.reference == "rootfs-unsafe"
    assert CUDA in error.message
    assert kind in error.message
    assert listing(root) == before
    assert box.mounts() == {}


def test_an_optional_thing_that_cannot_be_is_left_out(start: Start, host: Path, root: Path) -> None:
    """And what was made on the way to it is taken back, while the rest goes on."""
    (root / "opt").mkdir()
    (root / "opt/file").touch()
    (root / ML[1:]).mkdir()
    box = start()
    warnings = done(box, host, lib(target="/opt/file/x", optional=True), lib(ML, optional=True), lib())
    assert len(warnings) == 2
    assert "/opt/file/x" in warnings[0]
    assert ML in warnings[1]
    assert set(box.mounts()) == {CUDA}


def test_a_directory_that_an_optional_step_made_serves_the_next_one(start: Start, host: Path, root: Path) -> None:
    """It is made again, not used by its dead handle."""

    def refuse_once() -> None:
        real, calls = linux.move_mount, []

        def call(source: int, target: int) -> None:
            calls.append(1)
            if len(calls) == 1:
                raise OSError(errno.EINVAL, "no")
            real(source, target)

        linux.__dict__["move_mount"] = call

    box = start()
    warnings = done(box, host, lib(target="/opt/x/a", optional=True), lib(ML, "/opt/x/b"), before=refuse_once)
    assert "/opt/x/a" in warnings[0]
    assert set(box.mounts()) == {"/opt/x/b"}
    assert not (root / "opt/x/a").exists()


def test_sockets_and_directories(start: Start, host: Path, root: Path) -> None:
    steps = (Bind(SOCKET, SOCKET, "socket", optional=True), Bind(PIPES, PIPES, "directory", optional=True))
    box = start()
    assert done(box, host, *steps, others=(SOCKET, PIPES)) == ()
    found = box.mounts()
    for path in (SOCKET, PIPES):
        assert {"nosuid", "nodev", "noexec"} <= found[path].flags
        assert "ro" not in found[path].flags
    assert box.path(SOCKET).is_socket()
    assert box.path(f"{PIPES}/control").exists()


def test_a_socket_of_an_earlier_image_layer_is_covered(start: Start, host: Path, root: Path) -> None:
    (root / SOCKET[1:]).parent.mkdir()
    _place(root / SOCKET[1:], "socket")
    box = start()
    assert done(box, host, Bind(SOCKET, SOCKET, "socket"), others=(SOCKET,)) == ()
    assert SOCKET in box.mounts()


def test_what_the_host_does_not_have_is_not_mounted(start: Start, host: Path, root: Path) -> None:
    before = listing(root)
    assert done(start(), host, Bind("/run/none", "/run/none", "socket", optional=True), others=("/run/none",)) == ()
    assert listing(root) == before


def test_a_mount_of_the_users_own_stays(start: Start, host: Path, root: Path, tmp_path: Path) -> None:
    (root / CUDA[1:]).touch()
    (tmp_path / "own").write_text("the user's")
    box = start(lambda: sandbox.bind(tmp_path / "own", root / CUDA[1:]))
    (warning,) = done(box, host, lib(), lib(ML))
    assert CUDA in warning
    assert box.path(CUDA).read_text() == "the user's"
    assert len([item for item in containers.mounts(box.pid) if item.target.endswith(CUDA)]) == 1


@pytest.mark.parametrize("target", ["/usr/lib/x", "/usr/lib/new/x"])
def test_nothing_is_made_in_a_volume(start: Start, host: Path, root: Path, tmp_path: Path, target: str) -> None:
    """A volume over the library directory is a directory of the host."""
    volume = tmp_path / "volume"
    volume.mkdir()
    box = start(lambda: sandbox.bind(volume, root / "usr/lib"))
    error = refusal(box, host, lib(target=target))
    assert error.reference == "rootfs-unsafe"
    assert target.rpartition("/")[0] in error.message
    assert "another mount" in error.message
    assert os.listdir(volume) == []


def test_a_fresh_tmpfs_takes_mount_points(start: Start, host: Path, root: Path) -> None:
    """podman and Kubernetes mount a tmpfs at /run: the socket goes there, and the image stays as it is."""
    before = listing(root)
    box = start(lambda: sandbox.mount("tmpfs", root / "run", "tmpfs"))
    steps = (Bind(SOCKET, SOCKET, "socket"), Link("/run/x/y", "z"))
    assert done(box, host, *steps, others=(SOCKET,), tmpfs=("/run",)) == ()
    assert box.path(SOCKET).is_socket()
    assert os.readlink(box.path("/run/x/y")) == "z"
    assert listing(root) == before


def test_a_tmpfs_that_the_spec_does_not_name_is_a_volume(start: Start, host: Path, root: Path) -> None:
    box = start(lambda: sandbox.mount("tmpfs", root / "run", "tmpfs"))
    (warning,) = done(box, host, Bind(SOCKET, SOCKET, "socket", optional=True), others=(SOCKET,))
    assert "another mount" in warning


def test_a_volume_in_place_of_a_fresh_tmpfs_stays_as_it_is(
    start: Start, host: Path, root: Path, tmp_path: Path
) -> None:
    """The image's /run leads to where the user has a volume: the spec's tmpfs lies below that."""
    (root / "run").rmdir()
    (root / "run").symlink_to("/data")
    (root / "data").mkdir()
    volume = tmp_path / "volume"
    volume.mkdir()

    def setup() -> None:
        sandbox.mount("tmpfs", root / "data", "tmpfs")
        sandbox.bind(volume, root / "data")

    step = Bind(SOCKET, SOCKET, "socket", optional=True)
    (warning,) = done(start(setup), host, step, others=(SOCKET,), tmpfs=("/run",))
    assert "another mount" in warning
    assert os.listdir(volume) == []


def test_a_volume_that_is_a_whole_tmpfs_hides_the_fresh_one(
    start: Start, host: Path, root: Path, tmp_path: Path
) -> None:
    """The host's /run, or a volume in memory, at /var/run, which the image links to /run."""
    (root / "var").mkdir()
    (root / "var/run").symlink_to("../run")
    volume = tmp_path / "volume"
    volume.mkdir()

    def setup() -> None:
        sandbox.mount("tmpfs", root / "run", "tmpfs")
        sandbox.mount("tmpfs", volume, "tmpfs")
        sandbox.bind(volume, root / "var/run")

    box = start(setup)
    step = Bind(SOCKET, SOCKET, "socket", optional=True)
    (warning,) = done(box, host, step, others=(SOCKET,), tmpfs=("/run",))
    assert "another mount" in warning
    assert os.listdir(f"/proc/{box.pid}/root{volume}") == []


@pytest.mark.parametrize("exists", [True, False], ids=["mount point there", "mount point missing"])
def test_a_read_only_root(start: Start, host: Path, root: Path, exists: bool) -> None:
    """What is there is covered; what is missing can't be made, and the start is refused with the reason."""
    if exists:
        (root / CUDA[1:]).touch()
    box = start(lambda: sandbox.mount("none", root, "", 0x1000 | 0x20 | 1))
    if exists:
        assert done(box, host, lib()) == ()
        assert set(box.mounts()) == {CUDA}
    else:
        error = refusal(box, host, lib())
        assert error.reference == "rootfs-not-writable"
        assert CUDA in error.message


# --- the loader's files -----------------------------------------------------------------------------------------

GLIBC = Image("glibc", "x86-64", LIB)
CACHE = LoaderCache((("libcuda.so.1", f"{LIB}/libcuda.so.1"),), (LIB,))


def test_the_loaders_files_are_written(start: Start, host: Path, root: Path) -> None:
    (root / "etc/ld.so.conf").write_text("/usr/lib\n")
    done(start(), host, CACHE, image=GLIBC)
    assert (root / "etc/ld.so.cache").read_bytes().startswith(b"glibc-ld.so.cache")
    assert LIB in (root / "etc/ld.so.conf.d/00-gpuhook.conf").read_text() or list((root / "etc/ld.so.conf.d").iterdir())
    assert (root / "etc/ld.so.conf").read_text().endswith("/usr/lib\n")
    assert not list(root.rglob("*.gpuhook"))


CONFS = [(GLIBC, "etc/ld.so.conf"), (Image("musl", "x86-64", "/usr/lib/gpu"), "etc/ld-musl-x86_64.path")]


@pytest.mark.parametrize(("image", "conf"), CONFS, ids=["glibc", "musl"])
@pytest.mark.parametrize("what", ["/proc/timer_list", "/proc/keys", "/volume/secret"])
def test_a_link_of_the_image_copies_nothing_for_it(
    start: Start, host: Path, root: Path, image: Image, conf: str, what: str
) -> None:
    """What runtimes mask later, and a volume's file that the container's user may not read: the hook may, as root."""
    (root / "proc").mkdir()
    (root / "volume").mkdir()
    (root / conf).symlink_to(what)

    def setup() -> None:
        sandbox.mount("proc", root / "proc", "proc")
        sandbox.mount("tmpfs", root / "volume", "tmpfs")
        (root / "volume/secret").write_text("a secret\n")

    container = start(setup)
    secret = container.path(what).read_bytes()[:8]
    assert secret
    done(container, host, LoaderCache(CACHE.entries, (image.libdir,)), image=image)
    made = [path for path in (root / "etc").rglob("*") if path.is_file() and not path.is_symlink()]
    assert made
    assert all(secret not in path.read_bytes() for path in made)


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "device"])
def test_a_strange_loader_cache_is_replaced_not_written_through(
    start: Start, host: Path, root: Path, kind: str
) -> None:
    place = root / "etc/ld.so.cache"
    if kind in ("link", "dangling"):
        place.symlink_to("/etc/file" if kind == "link" else "/etc/none")
    else:
        _place(place, kind)
    done(start(), host, CACHE, image=GLIBC)
    assert place.is_file()
    assert not place.is_symlink()
    assert (root / "etc/file").read_text() == "image's"
    assert not (root / "etc/none").exists()


def test_a_directory_at_the_loader_cache_is_refused(start: Start, host: Path, root: Path) -> None:
    (root / "etc/ld.so.cache/x").mkdir(parents=True)
    before = listing(root)
    error = refusal(start(), host, lib(), CACHE, image=GLIBC)
    assert "/etc/ld.so.cache" in error.message
    assert listing(root) == before


@pytest.mark.parametrize("kind", ["library", "binary", "link", "file"])
def test_what_belongs_in_a_volume_is_left_out_in_one_sentence(
    start: Start, host: Path, root: Path, tmp_path: Path, kind: str
) -> None:
    """R79: everything but a library of the plan's own directory, without which a start is of no use."""
    volume = tmp_path / "volume"
    (volume / "sub").mkdir(parents=True)
    box = start(lambda: sandbox.bind(volume, root / "usr/bin"))
    kinds: dict[str, tuple[Bind | Link | Write, ...]] = {
        "library": (lib(target="/usr/bin/x"),),
        "binary": (Bind(SMI, SMI, "binary"), Bind(SMI, "/usr/bin/b", "binary")),
        "link": (Link("/usr/bin/a", "x"), Link("/usr/bin/b", "x")),
        "file": (Write("/usr/bin/a", "x"), Write("/usr/bin/b", "x")),
    }
    steps = kinds[kind]
    if kind == "library":
        assert refusal(box, host, *steps).reference == "rootfs-unsafe"
    else:
        (warning,) = done(box, host, lib(), *steps)
        assert "another mount" in warning
        assert all(step.target in warning for step in steps)
        assert set(box.mounts()) == {CUDA, "/usr/bin"}
    assert listing(volume) == {"sub": ("40755", "")}


@pytest.mark.parametrize("name", ["etc", "etc/ld.so.cache", "etc/ld.so.conf.d"])
def test_a_volume_over_the_loaders_files_stays(start: Start, host: Path, root: Path, tmp_path: Path, name: str) -> None:
    """The user's own cache counts, and a warning says what to do; elsewhere a new cache is written as ever."""
    (root / "etc/ld.so.conf.d").mkdir()
    (root / "etc/ld.so.cache").write_bytes(b"old")
    volume = tmp_path / "volume"
    if name == "etc/ld.so.cache":
        volume.write_bytes(b"own")
    else:
        volume.mkdir()
    before = listing(tmp_path)
    box = start(lambda: sandbox.bind(volume, root / name))
    warnings = done(box, host, lib(), CACHE, image=GLIBC)
    if name == "etc/ld.so.conf.d":
        assert (root / "etc/ld.so.cache").read_bytes().startswith(b"glibc-ld.so.cache")
        assert not [text for text in warnings if "stays as it is" in text]
    else:
        assert "/etc/ld.so.cache stays as it is: " in warnings[-1]
        assert f"set LD_LIBRARY_PATH={LIB}" in warnings[-1]
        assert (root / "etc/ld.so.cache").read_bytes() == b"old"
    after = {path: what for path, what in listing(tmp_path).items() if path.startswith("volume")}
    assert after == {path: what for path, what in before.items() if path.startswith("volume")}


def _read_only(root: Path) -> None:
    """The root becomes read-only, with a tmpfs at /dev as every spec has it."""
    sandbox.mount("tmpfs", root / "dev", "tmpfs")
    sandbox.mount("none", root, "", 0x1000 | 0x20 | 1)


SPARE = "/dev/.gpuhook"
SPARED = LoaderCache((("libcuda.so.1", f"{SPARE}/lib/libcuda.so.1"),), (f"{SPARE}/lib",))


@pytest.mark.parametrize("loader", ["glibc", "musl"])
def test_the_loaders_file_is_covered_on_a_read_only_root(start: Start, host: Path, root: Path, loader: str) -> None:
    """R72: its content is in the tmpfs at /dev; the image's own stays, and an undoing takes the cover off."""
    (root / "dev").mkdir()
    name = "ld.so.cache" if loader == "glibc" else "ld-musl-x86_64.path"
    (root / "etc" / name).write_text("/usr/lib\n" if loader == "musl" else "")
    before = listing(root)
    box = start(lambda: _read_only(root))
    library, image = lib(target=f"{SPARE}/lib/libcuda.so.535"), replace(GLIBC, loader=loader, libdir=f"{SPARE}/lib")
    done(box, host, library, SPARED, image=image, tmpfs=("/dev",))
    assert set(box.mounts()) == {"/dev", f"{SPARE}/lib/libcuda.so.535", f"/etc/{name}"}
    assert f"{SPARE}/lib".encode() in box.path(f"/etc/{name}").read_bytes()
    assert listing(root) == before

    other = start(lambda: _read_only(root))
    error = refusal(other, host, library, SPARED, lib(ML, "/usr/lib/new"), image=image, tmpfs=("/dev",))
    assert error.reference == "rootfs-not-writable"
    assert set(other.mounts()) == {"/dev"}


@pytest.mark.parametrize("kind", ["missing", "directory", "link"])
def test_no_loaders_file_to_cover(start: Start, host: Path, root: Path, kind: str) -> None:
    """Nothing is followed; the warning says what the user can do."""
    (root / "dev").mkdir()
    if kind == "directory":
        (root / "etc/ld.so.cache").mkdir()
    elif kind == "link":
        (root / "etc/ld.so.cache").symlink_to("/etc/file")
    box = start(lambda: _read_only(root))
    warnings = done(box, host, SPARED, image=replace(GLIBC, libdir=f"{SPARE}/lib"), tmpfs=("/dev",))
    assert "/etc/ld.so.cache" in warnings[-1]
    assert f"set LD_LIBRARY_PATH={SPARE}/lib" in warnings[-1]
    assert set(box.mounts()) == {"/dev"}


# --- undoing ----------------------------------------------------------------------------------------------------

ALL: tuple[Bind | Link | LoaderCache, ...] = (
    lib(),
    lib(ML, "/opt/deep/libnvidia-ml.so.535"),
    lib(target=f"{LIB}/again"),
    Bind(SMI, SMI, "binary"),
    Bind(PIPES, PIPES, "directory"),
    Bind(SOCKET, SOCKET, "socket"),
    Link(f"{LIB}/libcuda.so.1", "libcuda.so.535"),
    Link(f"{LIB}/new.so", "libcuda.so.1"),
    Link("/opt/other/x", "y"),
    CACHE,
)
CALLS = ("mkdir", "open", "symlink", "rename", "unlink", "readlink", "stat", "write", "dup")


def furnish(root: Path) -> None:
    """All that a plan may find and must bring back."""
    (root / "usr/lib/libcuda.so.1").symlink_to("libcuda.so.470")
    (root / CUDA[1:]).write_text("image's")
    (root / "usr/lib/again").symlink_to("/etc/file")
    (root / "etc/ld.so.conf").write_text("/usr/lib\n")
    (root / "etc/ld.so.conf").chmod(0o640)
    (root / "etc/cache").write_text("some cache")
    (root / "etc/ld.so.cache").symlink_to("cache")


class Counter:
    """Counts the kernel calls of the child that apply the plan, and does something at the n-th; seen by both sides."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        self.at = at
        self.act = act
        self.shared = mmap.mmap(-1, 8)

    @property
    def reached(self) -> bool:
        return self.count >= self.at

    @property
    def count(self) -> int:
        return int.from_bytes(self.shared[:8], "little")

    def install(self) -> None:
        """In the child: put the counter before each call."""

        def before(call: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*args: Any, **named: Any) -> Any:
                number = self.count + 1
                self.shared[:8] = number.to_bytes(8, "little")
                if number == self.at:
                    self.act()
                return call(*args, **named)

            return counted

        linux._call = before(linux._call)
        for name in CALLS:
            setattr(posix, name, before(getattr(posix, name)))


def fail() -> None:
    raise OSError(errno.EIO, "injected")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


STEPS = 400  # more than there are; the tests stop at the last


def _apply_all(box: Container, host: Path, **more: Any) -> tuple[str, ...]:
    return done(box, host, *ALL, others=(SOCKET, PIPES), image=GLIBC, **more)


def _mounts(box: Container, root: Path) -> list[containers.Mount]:
    """Those of the container's root: others of this machine come and go meanwhile."""
    return [item for item in containers.mounts(box.pid) if item.target.startswith(str(root))]


def test_a_failure_at_any_call_leaves_everything_as_it_was(start: Start, host: Path, root: Path) -> None:
    """The n-th call of the child fails, for each n: an error that names what failed, the tree and mounts as before.

    Where the failure is survived (an image that can't be read is no reason to stop), the start is complete.
    """
    furnish(root)
    before = listing(root)
    refused = survived = 0
    for number in range(1, STEPS):
        box = start()
        table = _mounts(box, root)
        counter = Counter(number, fail)
        try:
            _apply_all(box, host, before=counter.install)
        except GpuhookError as error:
            refused += 1
            assert counter.reached
            if "without an answer" in error.message:  # the last call of all: its answer to the parent
                break
            assert error.reference in ("mount-failed", "rootfs-unsafe"), error
            assert listing(root) == before, f"call {number}: {error}"
            assert _mounts(box, root) == table, f"call {number}: {error}"
            continue
        assert counter.reached
        survived += 1
        assert len(box.mounts()) == 6
        _restore(root, before)
    assert counter.at == counter.count > 80
    assert refused > 50
    assert survived < refused


def _restore(root: Path, before: dict[str, tuple[str, str]]) -> None:
    """Bring the tree back by hand."""
    for path in sorted(root.rglob("*"), reverse=True):
        name = str(path.relative_to(root))
        if name not in before:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    for name in ("usr/lib/libcuda.so.1", "usr/lib/again", "etc/ld.so.cache", "etc/ld.so.conf", CUDA[1:]):
        (root / name).unlink(missing_ok=True)
    (root / "etc/cache").unlink()
    furnish(root)
    assert listing(root) == before


def test_a_kill_at_any_call_does_not_stop_the_next_start(start: Start, host: Path, root: Path) -> None:
    """The child is killed at its n-th call: an error now; a second start gives what an undisturbed one gives."""
    furnish(root)
    before = listing(root)
    _apply_all(start(), host)
    clean = listing(root)
    _restore(root, before)
    for number in range(1, STEPS, 3):
        counter = Counter(number, kill)
        try:
            _apply_all(start(), host, before=counter.install)
        except GpuhookError as error:
            assert error.reference == "mount-failed"
            assert "without an answer" in error.message
        else:
            break
        box = start()
        _apply_all(box, host)
        assert listing(root) == clean, f"call {number}"
        assert len(box.mounts()) == 6
        _restore(root, before)
    assert not counter.reached
    assert number > 60


# --- acquiring --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gone", "other content", "other file", "link", "directory"])
def test_a_driver_that_changes_is_told(host: Path, how: str) -> None:
    files = (driver_file(host, ML), driver_file(host, CUDA))
    path = host / CUDA[1:]
    if how == "other content":
        path.write_text("new")
    else:
        path.unlink()
        if how == "other file":
            path.write_text(f"host's {CUDA}")
        elif how == "link":
            path.symlink_to(ML)
        elif how == "directory":
            path.mkdir()
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(GpuhookError) as caught:
        acquire(str(host), files, ())
    assert caught.value.reference == "driver-changed"
    assert CUDA in caught.value.message
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_identity_is_all_of_device_inode_size_and_times(host: Path) -> None:
    good = driver_file(host, CUDA)
    for field in ("dev", "ino", "size", "mtime", "ctime"):
        wrong = replace(good, id=replace(good.id, **{field: getattr(good.id, field) + 1}))
        with pytest.raises(GpuhookError):
            acquire(str(host), (wrong,), ())
    acquire(str(host), (good,), ()).close()


def test_handles_are_closed_and_detached_mounts_vanish(host: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    table = Path("/proc/self/mountinfo").read_bytes()
    sources = acquire(str(host), (driver_file(host, CUDA),), (SOCKET, PIPES, "/run/none"))
    assert set(sources.handles) == {CUDA, SOCKET, PIPES}
    assert all(not os.get_inheritable(fd) for fd in sources.handles.values())
    sources.close()
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert Path("/proc/self/mountinfo").read_bytes() == table


def test_two_starts_at_one_root_do_not_tear_each_others_files(tmp_path: Path) -> None:
    """Each reader sees a whole file, and no start fails, while two processes replace it as fast as they can."""
    folder = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    texts = (b"a" * 100_000, b"b" * 100_000)
    apply._replace(folder, "file", lambda new: apply._write_new(folder, new, texts[0]))
    children = []
    for text in texts:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for _ in range(400):
                    apply._replace(folder, "file", lambda new, text=text: apply._write_new(folder, new, text))  # type: ignore[misc]
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    torn = 0
    while children:
        torn += (tmp_path / "file").read_bytes() not in texts
        found, status = os.waitpid(children[-1], os.WNOHANG)
        if found:
            assert status == 0
            children.pop()
    os.close(folder)
    assert torn == 0
    assert os.listdir(tmp_path) == ["file"]


def test_what_a_killed_start_left_is_swept_away(start: Start, host: Path, root: Path) -> None:
    """A temporary name of a process that is gone goes at the next start; that of a living one stays."""
    gone = os.fork() or os._exit(0)
    os.waitpid(gone, 0)
    (root / "etc").mkdir(exist_ok=True)
    left = [root / f"etc/.ld.so.cache.{pid}.gpuhook" for pid in (gone, os.getpid())]
    for path in (*left, root / "etc/.mine.x.gpuhook"):
        path.touch()

    done(start(), host, CACHE, image=GLIBC)

    assert [path.exists() for path in left] == [False, True]
    assert (root / "etc/.mine.x.gpuhook").exists()


def test_a_mount_of_anybodys_is_no_source(host: Path, tmp_path: Path) -> None:
    """A file system mounted right at /tmp/nvidia-mps may be a user's and never answer: it is not even looked at."""

    def inside() -> bool:
        (host / "tmp/nvidia-mps").mkdir(parents=True, exist_ok=True)
        plain = "/tmp/nvidia-mps" in acquire(str(host), (), ("/tmp/nvidia-mps",)).handles
        sandbox.mount("tmpfs", host / "tmp/nvidia-mps", "tmpfs")
        taken = acquire(str(host), (), ("/tmp/nvidia-mps",))
        words = taken.left_out["/tmp/nvidia-mps"]
        return (
            plain and not taken.handles and words == "left out /tmp/nvidia-mps: something is mounted there on the host"
        )

    assert sandbox.apart(inside, mounts=True)


def test_a_name_that_keeps_changing_is_refused_not_chased(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour that takes the name away before each look and puts it back before each try gets an error, soon."""

    def absent(*_: object, **__: object) -> str:
        raise FileNotFoundError

    (root / "usr/lib").mkdir(parents=True, exist_ok=True)
    (root / "usr/lib/libcuda.so.1").symlink_to("elsewhere")
    mounter = apply.Mounter(rootfs.Root.at(str(root)), (), Sources(), GLIBC)
    monkeypatch.setattr(posix, "readlink", absent)

    with pytest.raises(GpuhookError) as caught:
        mounter.run(Plan((Link("/usr/lib/libcuda.so.1", "libcuda.so.580.95.05"),)))

    assert caught.value.reference == "rootfs-unsafe"
    monkeypatch.undo()
    assert os.readlink(root / "usr/lib/libcuda.so.1") == "elsewhere"
