"""The door to the kernel: errors with names, nothing left open, files replaced whole."""

import errno
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import linux
from gpuhook.errors import GpuhookError
from tests import sandbox

root_only = pytest.mark.runc


def _open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.fixture
def folder(tmp_path: Path) -> int:
    """A directory with a file, and links in and out of it."""
    (tmp_path / "file").write_text("text")
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "in").symlink_to("/file")
    (tmp_path / "magic").symlink_to("/proc/self/root")
    return os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)


OPENAT2 = {
    "a file": ("file", linux.RESOLVE_BENEATH, 0),
    "absolute link in the root": ("in", linux.RESOLVE_IN_ROOT, 0),
    "absolute link leaves": ("in", linux.RESOLVE_BENEATH, errno.EXDEV),
    "link out stays in the root": ("out/passwd", linux.RESOLVE_IN_ROOT, errno.ENOENT),
    "dots leave": ("../x", linux.RESOLVE_BENEATH, errno.EXDEV),
    "no links": ("in", linux.RESOLVE_BENEATH | linux.RESOLVE_NO_SYMLINKS, errno.ELOOP),
    "absent": ("none", linux.RESOLVE_IN_ROOT, errno.ENOENT),
    "NUL byte": ("fi\0le", linux.RESOLVE_IN_ROOT, errno.EINVAL),
}


@pytest.mark.parametrize(("path", "resolve", "expected"), OPENAT2.values(), ids=OPENAT2)
def test_openat2(folder: int, path: str, resolve: int, expected: int) -> None:
    if not expected:
        fd = linux.openat2(folder, path, os.O_RDONLY, resolve)
        assert os.read(fd, 9) == b"text"
        assert not os.get_inheritable(fd)
        return
    with pytest.raises(OSError, match=r".") as caught:
        linux.openat2(folder, path, linux.O_PATH, resolve)
    assert caught.value.errno == expected


def test_openat2_tries_again_and_ends(folder: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """EAGAIN (a rename elsewhere) is tried again, 128 times at most."""
    calls: list[str] = []

    def busy(name: str, *_: object) -> int:
        calls.append(name)
        if len(calls) == 3:
            return 77
        raise OSError(errno.EAGAIN, "busy")

    monkeypatch.setattr(linux, "_call", busy)
    assert linux.openat2(folder, "file", 0, 0) == 77
    with pytest.raises(OSError, match="names kept changing"):
        linux.openat2(folder, "file", 0, 0)
    assert len(calls) == 3 + 128


def test_a_call_that_the_kernel_lacks_is_named(folder: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(linux._CALLS, "openat2", (999, "5.6"))
    with pytest.raises(GpuhookError) as caught:
        linux.openat2(folder, "file", 0, 0)
    assert caught.value.reference == "kernel-too-old"
    assert "openat2" in caught.value.message
    assert "5.6" in caught.value.message


def above_all(fd: int) -> int:
    """A copy of a descriptor with a higher number than all that are open: the test's own pipes are not to be closed."""
    return os.dup2(fd, 1 + max(int(name) for name in os.listdir("/proc/self/fd")))


def test_close_range_on_an_old_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without close_range(2) a loop does it."""

    def child() -> bool:
        monkeypatch.setitem(linux._CALLS, "close_range", (999, "5.9"))
        kept = os.open("/dev/null", os.O_RDONLY)
        high = above_all(kept)
        linux.close_range(high)
        os.fstat(kept)
        try:
            os.fstat(high)
        except OSError:
            return True
        return False

    assert sandbox.apart(child)


def test_close_range() -> None:
    def child() -> list[int]:
        first = above_all(os.open("/dev/null", os.O_RDONLY))
        second = above_all(first)
        linux.close_range(first)
        return [fd for fd in (first, second) if Path(f"/proc/self/fd/{fd}").exists()]

    assert sandbox.apart(child) == []


def test_ctypes_serves_where_its_private_half_is_not_as_expected(folder: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes  # noqa: F401

    monkeypatch.setitem(sys.modules, "_ctypes", None)
    monkeypatch.setattr(linux, "_syscall", None)
    assert os.read(linux.openat2(folder, "file", 0, linux.RESOLVE_IN_ROOT), 9) == b"text"
    with pytest.raises(OSError, match="openat2: No such file"):
        linux.openat2(folder, "none", 0, linux.RESOLVE_IN_ROOT)
    monkeypatch.undo()


def test_errors_carry_the_name_of_the_call() -> None:
    with pytest.raises(OSError, match="setns: Bad file descriptor"):
        linux.setns(-1, linux.CLONE_NEWNS)


# --- files ------------------------------------------------------------------------------------------------------


def test_read_file_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert linux.read_file(str(path), 100) == b"x" * 100
    with pytest.raises(OSError, match="longer than 99 bytes") as caught:
        linux.read_file(str(path), 99)
    assert caught.value.errno == errno.EFBIG


def test_read_file_of_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert linux.read_file(str(tmp_path / "empty"), 10) == b""


def test_read_fd_takes_what_comes_in_pieces() -> None:
    """A pipe gives less than was asked for; the state of a container comes so."""
    ours, theirs = socket.socketpair()

    def child() -> None:
        for part in (b"ab", b"cd", b"e"):
            theirs.send(part)
            time.sleep(0.02)

    pid, reading = sandbox.start(child)
    theirs.close()
    assert linux.read_fd(ours.fileno(), 5) == b"abcde"
    sandbox.finish(pid, reading)
    ours.close()


def test_read_fd_of_an_endless_stream_ends() -> None:
    fd = os.open("/dev/zero", os.O_RDONLY)
    with pytest.raises(OSError, match="longer than 1000 bytes"):
        linux.read_fd(fd, 1000)


def test_read_file_of_a_fifo_does_not_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert linux.read_file(str(tmp_path / "fifo"), 10) == b""


def test_write_beside_replaces_with_mode_and_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    linux.write_beside(str(path), b"new", 0o640)
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o7777 == 0o640
    assert os.listdir(tmp_path) == ["file"]


@root_only
def test_write_beside_gives_the_file_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    linux.write_beside(str(path), b"new", 0o600, owner=(1234, 4321))
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (1234, 4321, 0o600)


def test_write_beside_does_not_write_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    linux.write_beside(str(tmp_path / "link"), b"new", 0o644)
    assert (tmp_path / "target").read_text() == "old"
    assert (tmp_path / "link").read_text() == "new"


def test_write_beside_clears_away_what_a_killed_process_left(tmp_path: Path) -> None:
    (tmp_path / f".file.{os.getpid()}.gpuhook").write_text("half")
    linux.write_beside(str(tmp_path / "file"), b"new", 0o644)
    assert os.listdir(tmp_path) == ["file"]


def test_write_beside_leaves_nothing_where_it_fails(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    before = _open_descriptors()
    with pytest.raises(OSError, match=r"."):
        linux.write_beside(str(tmp_path / "file"), b"new", 0o644)
    assert os.listdir(tmp_path) == ["file"]
    assert _open_descriptors() == before


@root_only
def test_write_beside_on_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    def child() -> tuple[int, str, list[str]]:
        sandbox.mount("tmpfs", tmp_path, "tmpfs", 0, "size=16k")
        (tmp_path / "file").write_text("old")
        try:
            linux.write_beside(str(tmp_path / "file"), b"x" * 100_000, 0o644)
        except OSError as error:
            return error.errno or 0, (tmp_path / "file").read_text(), os.listdir(tmp_path)
        return 0, "", []

    assert sandbox.apart(child, mounts=True) == (errno.ENOSPC, "old", ["file"])


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """A writer replaces a file without pause and is killed; each reading is one whole version."""
    path = tmp_path / "file"
    versions = [json.dumps([letter] * 20_000).encode() for letter in "ab"]
    path.write_bytes(versions[0])

    def writer() -> None:
        while True:
            for version in versions:
                linux.write_beside(str(path), version, 0o644)

    for _ in range(10):
        child, reading = sandbox.start(writer)
        seen: set[bytes] = set()
        end = time.monotonic() + 10
        while len(seen) < 2 and time.monotonic() < end:
            for _ in range(20):
                seen.add(path.read_bytes())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        assert seen == set(versions)
        assert path.read_bytes() in versions
    left = [name for name in os.listdir(tmp_path) if name != "file"]
    assert len(left) <= 10
    assert all(name.startswith(".file.") and name.endswith(".gpuhook") for name in left)


CALLS: dict[str, Callable[[], object]] = {
    "open_tree": lambda: linux.open_tree(-1, "x", 0),
    "move_mount": lambda: linux.move_mount(-1, -1),
    "mount_setattr": lambda: linux.mount_setattr(-1, linux.MOUNT_ATTR_RDONLY, 0),
    "umount2": lambda: linux.umount2("nothing-here", 0),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_has_the_right_number(name: str) -> None:
    """The kernel's answer to nonsense is EBADF or EINVAL or ENOENT of this call, never ENOSYS."""
    with pytest.raises(OSError, match=f"^.*{name}: "):
        CALLS[name]()
