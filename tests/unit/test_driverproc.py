"""The copy of /proc/driver/nvidia: what is in it, and that nothing but a whole procfs is its target.

This kernel has no such directory; another one of procfs stands in for it, by changing the fixed name.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuhook import driverproc, enter, linux, sim
from gpuhook.errors import GpuhookError
from gpuhook.model import Bind, Image, Plan
from gpuhook.rootfs import Root
from gpuhook.sources import Sources, acquire
from tests import container as containers
from tests import sandbox
from tests.container import NO_IMAGE, Container

GPU = driverproc.gpu_names("00000000:0b:00.0")
LOST = driverproc.gpu_names("00000000:ff:00.0")


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driverproc, "FOLDER", "tty")
    monkeypatch.setattr(driverproc, "NAME", "driver")


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """Files as the driver shows them."""
    sim.create(tmp_path / "driver", sim.SimOptions())
    return tmp_path / "driver"


@pytest.fixture
def taken() -> Iterator[Sources]:
    sources = Sources()
    yield sources
    sources.close()


PARAMS = {
    "one": (b"A: 1\nModifyDeviceFiles: 1\nB: 2\n", b"A: 1\nModifyDeviceFiles: 0\nB: 2\n"),
    "at the end": (b"ModifyDeviceFiles: 1", b"ModifyDeviceFiles: 0"),
    "zero": (b"ModifyDeviceFiles: 0\n", None),
    "eleven": (b"ModifyDeviceFiles: 11\n", None),
    "another blank": (b"ModifyDeviceFiles: 1 \n", None),
    "a blank before": (b" ModifyDeviceFiles: 1\n", None),
    "none": (b"", None),
}


@pytest.mark.parametrize(("text", "expected"), PARAMS.values(), ids=PARAMS)
def test_masked(text: bytes, expected: bytes | None) -> None:
    """As NVIDIA's toolkit does it: that line alone, and only in the form that the module writes."""
    assert driverproc.masked(text) == (text if expected is None else expected)


@pytest.mark.runc
def test_what_is_in_it(driver: Path, taken: Sources) -> None:
    (driver / "proc/driver/nvidia/registry").unlink()
    paths = driverproc.acquire(str(driver), (GPU, LOST), "", taken)
    tree = taken.handles[driverproc.TARGET]
    assert paths == (driverproc.TARGET, f"{driverproc.TARGET}/gpus/0000:0b:00.0")
    assert set(taken.handles) == set(paths)
    listing = os.open(".", os.O_RDONLY, dir_fd=tree)
    assert sorted(os.listdir(listing)) == ["gpus", "params", "version"], "what the host lacks is left out"
    os.close(listing)
    assert stat.S_IMODE(os.fstat(tree).st_mode) == 0o555
    for name, mode in (("params", 0o444), ("version", 0o444), ("gpus", 0o555), ("gpus/0000:0b:00.0", 0o555)):
        assert stat.S_IMODE(os.stat(name, dir_fd=tree).st_mode) == mode
    with pytest.raises(OSError, match="Read-only"):
        os.open("params", os.O_WRONLY, dir_fd=tree)


@pytest.mark.runc
def test_nothing_of_a_gpu_is_read(driver: Path, taken: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading can wake a GPU."""
    read: list[str] = []
    real = linux.read_file

    def read_file(path: str, *rest: Any) -> bytes:
        read.append(path)
        return real(path, *rest)

    monkeypatch.setattr(linux, "read_file", read_file)
    before = (driver / "proc/driver/nvidia/gpus/0000:0b:00.0/information").stat().st_atime_ns
    driverproc.acquire(str(driver), (GPU,), "", taken)
    assert read == ["params", "version", "registry"]
    assert (driver / "proc/driver/nvidia/gpus/0000:0b:00.0/information").stat().st_atime_ns == before


@pytest.mark.runc
def test_a_domain_of_eight_digits(driver: Path, taken: Sources) -> None:
    gpus = driver / "proc/driver/nvidia/gpus"
    (gpus / "0000:0b:00.0").rename(gpus / "00010000:0b:00.0")
    names = driverproc.gpu_names("00010000:0b:00.0")
    assert driverproc.acquire(str(driver), (names,), "", taken)[1:] == (f"{driverproc.TARGET}/gpus/00010000:0b:00.0",)


@pytest.mark.runc
def test_a_kernel_without_the_module(driver: Path, taken: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driverproc, "NAME", "nothing")
    assert driverproc.acquire(str(driver), (GPU,), "", taken) == ()
    assert taken.handles == {}


@pytest.mark.runc
def test_the_mount_label_reaches_the_kernel(driver: Path, taken: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """`linux.mountLabel` is the tmpfs's `context`. A kernel without SELinux knows no such option and says so."""
    label = "system_u:object_r:container_file_t:s0:c1,c2"
    given: list[tuple[str | None, str | None]] = []
    real = linux.fsconfig

    def fsconfig(fd: int, command: int, key: str | None, text: str | None) -> None:
        given.append((key, text))
        real(fd, command, key, text)

    monkeypatch.setattr(linux, "fsconfig", fsconfig)
    if Path("/sys/fs/selinux/enforce").exists():
        driverproc.acquire(str(driver), (GPU,), label, taken)
    else:
        with pytest.raises(GpuhookError, match="Unknown parameter 'context'") as caught:
            driverproc.acquire(str(driver), (GPU,), label, taken)
        assert caught.value.reference == "mount-failed"
    assert ("context", label) in given


@pytest.mark.runc
def test_the_same_without_mount_setattr(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux 5.6 to 5.11: the same flags; this process is where it was, and holds no descriptor more."""

    def flags() -> tuple[list[int], bool]:
        namespace, open_before = os.readlink("/proc/self/ns/mnt"), len(os.listdir("/proc/self/fd"))
        sources = Sources()
        driverproc.acquire(str(driver), (GPU, ("capabilities/mig/config",)), "", sources)
        found = [os.fstatvfs(fd).f_flag for fd in sources.handles.values()]
        sources.close()
        same = os.readlink("/proc/self/ns/mnt") == namespace and len(os.listdir("/proc/self/fd")) == open_before
        return found, same

    newer = sandbox.apart(flags)
    monkeypatch.setitem(linux._CALLS, "mount_setattr", (999, "5.12"))
    assert sandbox.apart(flags) == newer
    assert newer[1]
    assert all(item & os.ST_RDONLY and item & os.ST_NOSUID and item & os.ST_NODEV for item in newer[0])
    assert len(newer[0]) == 3


@pytest.mark.runc
def test_flags_that_a_mount_has_stay_without_mount_setattr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a host mount that is restricted already, all flags are kept, those of access times too."""
    top = tmp_path / "top"
    (top / "mps").mkdir(parents=True)

    def flags() -> int:
        sandbox.bind(top, top)
        sandbox.mount("none", top, "", 0x1000 | 0x20 | 1 | 8 | 0x400)  # bind, remount: ro, noexec, noatime
        taken = acquire(str(top), (), ("/mps",))
        return os.fstatvfs(taken.handles["/mps"]).f_flag

    newer = sandbox.apart(flags, mounts=True)
    monkeypatch.setitem(linux._CALLS, "mount_setattr", (999, "5.12"))
    assert sandbox.apart(flags, mounts=True) == newer
    assert all(newer & flag for flag in (1, 2, 4, 8, 1024))


# --- the target -------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    top = tmp_path / "rootfs"
    (top / "proc").mkdir(parents=True)
    return top


def attached(root: Path, driver: Path, taken: Sources, setup: Callable[[], object]) -> tuple[Container, list[str]]:
    """Acquire and attach in a container; its mounts of our kind."""
    box = containers.start(root, setup)
    try:
        paths = driverproc.acquire(str(driver), (GPU,), "", taken)
        steps = Plan(tuple(Bind(path, path, "proc") for path in paths))

        def make_plan(inside: Root) -> tuple[Plan, Image]:
            return steps, NO_IMAGE

        assert enter.mount(enter.Target(box.pid, str(root), ()), taken, make_plan, 20) == ()
        return box, [path for path in box.mounts() if path.startswith(f"/proc/{driverproc.FOLDER}/")]
    finally:
        box.close()


def _procfs(root: Path) -> None:
    sandbox.mount("proc", root / "proc", "proc")


def _tmpfs(root: Path) -> None:
    sandbox.mount("tmpfs", root / "proc", "tmpfs")
    (root / "proc/self").symlink_to("1")
    (root / "proc/tty/driver").mkdir(parents=True)


def _subset(root: Path) -> None:
    sandbox.mount("proc", root / "proc", "proc", 0, "subset=pid")


def _link(root: Path) -> None:
    (root / "real").mkdir()
    sandbox.mount("proc", root / "real", "proc")
    (root / "proc").rmdir()
    (root / "proc").symlink_to("real")


def _none(root: Path) -> None:
    (root / "proc").rmdir()


def _directory(root: Path) -> None:
    (root / "proc/tty/driver").mkdir(parents=True)


LAYOUTS: dict[str, tuple[Callable[[Path], None], int]] = {
    "a procfs": (_procfs, 2),
    "a tmpfs": (_tmpfs, 0),
    "a procfs with subset=pid": (_subset, 0),
    "a link to a procfs": (_link, 0),
    "nothing": (_none, 0),
    "a directory of the image": (_directory, 0),
}


@pytest.mark.runc
@pytest.mark.parametrize(("make", "count"), LAYOUTS.values(), ids=LAYOUTS)
def test_only_a_whole_procfs_is_a_target(
    root: Path, driver: Path, taken: Sources, make: Callable[[Path], None], count: int
) -> None:
    """CVE-2019-16884 and its like: a /proc that the image or a volume shapes is never taken for the kernel's."""
    _, found = attached(root, driver, taken, lambda: make(root))
    assert len(found) == count


@pytest.mark.runc
@pytest.mark.parametrize(("source", "count"), [("/proc", 2), ("/proc/sys", 0)])
def test_a_part_of_a_procfs_is_no_target(
    root: Path, driver: Path, taken: Sources, monkeypatch: pytest.MonkeyPatch, source: str, count: int
) -> None:
    """Both have a directory of the name; the first shows that it would have been found."""
    if not (Path("/proc/fs/xfs").is_dir() and Path("/proc/sys/fs/xfs").is_dir()):
        pytest.skip("this kernel shows no directory that is in procfs and in a part of it")
    monkeypatch.setattr(driverproc, "FOLDER", "fs")
    monkeypatch.setattr(driverproc, "NAME", "xfs")
    _, found = attached(root, driver, taken, lambda: sandbox.mount(source, root / "proc", "", 0x1000))
    assert len(found) == count
