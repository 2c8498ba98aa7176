"""The container's mount namespace is entered in a child that proves where it is, and never outlives its deadline."""

import contextlib
import errno
import mmap
import os
import posix
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuhook import enter, linux, rootfs
from gpuhook.errors import GpuhookError
from gpuhook.model import Image, Plan
from gpuhook.sources import Sources
from tests import container as containers
from tests import sandbox
from tests.container import NO_IMAGE, Container

pytestmark = pytest.mark.runc
NOTHING = (Plan(()), NO_IMAGE)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    top = tmp_path / "root fs"  # a blank: mountinfo writes it in octal
    (top / "usr/lib").mkdir(parents=True)
    (top / "mark").write_text("the container's")
    return top


@pytest.fixture
def start(root: Path) -> Iterator[Callable[..., Container]]:
    started: list[Container] = []

    def make(setup: Callable[[], object] = lambda: None, **options: Any) -> Container:
        started.append(containers.start(root, setup, **options))
        return started[-1]

    yield make
    for item in started:
        item.close()


def entered(
    box: Container | int,
    root: Path | str,
    make_plan: Callable[[rootfs.Root], tuple[Plan, Image]] = lambda root: NOTHING,
    deadline: int = 20,
) -> tuple[str, ...]:
    pid = box if isinstance(box, int) else box.pid
    return enter.mount(enter.Target(pid, str(root), ()), Sources(), make_plan, deadline)


def refusal(*args: Any, **more: Any) -> GpuhookError:
    with pytest.raises(GpuhookError) as caught:
        entered(*args, **more)
    return caught.value


Start = Callable[..., Container]


def test_the_childs_warnings_come_back(start: Start, root: Path) -> None:
    words = ("one", "\udcff\n\x1b", "x" * 5000)
    assert entered(start(), root, lambda _: (Plan((), words), NO_IMAGE)) == words


def test_the_plan_is_made_inside(start: Start, root: Path, tmp_path: Path) -> None:
    """The root that the plan is made for shows the container's mounts."""

    def setup() -> None:
        (root / "mnt").mkdir()
        sandbox.mount("tmpfs", root / "mnt", "tmpfs")
        (root / "mnt/inside").touch()

    def make_plan(inside: rootfs.Root) -> tuple[Plan, Image]:
        return Plan((), (str(inside.read("/mark", 99)), str(inside.names("/mnt", 9)))), NO_IMAGE

    assert entered(start(setup), root, make_plan) == ('b"the container\'s"', "('inside',)")


def test_no_module_can_be_loaded_inside(start: Start, root: Path) -> None:
    """CVE-2019-14271: a container's files became code of the host."""
    (root / "evil.py").write_text("raise SystemExit('executed')")

    def make_plan(inside: rootfs.Root) -> tuple[Plan, Image]:
        sys.path.append(str(root))
        warnings.simplefilter("ignore")  # pytest would make an error of one
        try:
            import evil  # type: ignore[import-not-found]  # noqa: F401
        except ImportError as error:
            return Plan((), (type(error).__name__,)), NO_IMAGE
        return NOTHING

    assert entered(start(), root, make_plan) == ("ModuleNotFoundError",)


@pytest.mark.parametrize(
    ("raised", "reference", "words"),
    [
        (GpuhookError("rootfs-architecture", "for \udcff", "use\nanother"), "rootfs-architecture", "for \udcff"),
        (OSError(5, "Input/output error"), "mount-failed", "Input/output error"),
        (ValueError("x\ny"), "internal", "ValueError"),
        (RecursionError("deep"), "internal", "RecursionError"),
    ],
    ids=["ours", "kernel's", "defect", "recursion"],
)
def test_the_childs_error_comes_back(start: Start, root: Path, raised: Exception, reference: str, words: str) -> None:
    def make_plan(inside: rootfs.Root) -> tuple[Plan, Image]:
        raise raised

    error = refusal(start(), root, make_plan)
    assert error.reference == reference
    assert words in error.message
    if reference == "rootfs-architecture":
        assert error.hint == "use\nanother"


# --- where it goes ----------------------------------------------------------------------------------------------


def test_a_shared_root_is_refused(start: Start, root: Path) -> None:
    error = refusal(start(propagation=containers.MS_SHARED), root)
    assert error.reference == "rootfs-shared"
    assert str(root) in error.message


def test_a_slave_root_is_taken(start: Start, root: Path) -> None:
    """runc's default: rslave."""

    def setup() -> None:
        sandbox.mount("none", root, "", containers.MS_SHARED)
        sandbox.mount("none", root, "", 1 << 19)

    assert entered(start(setup), root) == ()


def test_a_root_that_is_no_mount_point_is_refused(start: Start, root: Path) -> None:
    error = refusal(start(bound=False), root)
    assert error.reference == "rootfs-unsafe"
    assert "no mount point" in error.message
    assert str(root) in error.message


def test_a_directory_below_the_root_is_no_root(start: Start, root: Path) -> None:
    assert "no mount point" in refusal(start(), root / "usr").message


def test_a_root_that_is_a_link_is_refused(start: Start, root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    error = refusal(start(), tmp_path / "link")
    assert error.reference == "rootfs-unsafe"
    assert str(tmp_path / "link") in error.message


@pytest.mark.parametrize("path", ["/", "", "//", "/.", "/usr/.."])
def test_the_hosts_root_is_refused(start: Start, path: str) -> None:
    error = refusal(start(), path)
    assert error.reference == "rootfs-unsafe"
    assert "host" in error.message


def test_a_root_that_is_not_there_is_named(start: Start, tmp_path: Path) -> None:
    error = refusal(start(), tmp_path / "none")
    assert error.reference == "rootfs-unsafe"
    assert str(tmp_path / "none") in error.message


def test_the_hosts_own_namespace_is_refused(root: Path) -> None:
    error = refusal(os.getpid(), root)
    assert error.reference == "rootfs-unsafe"
    assert "namespace" in error.message


def test_a_container_that_is_gone_is_told(root: Path) -> None:
    box = containers.start(root)
    box.close()
    error = refusal(box.pid, root)
    assert error.reference == "container-gone"
    assert str(box.pid) in error.message


# --- how long it takes ------------------------------------------------------------------------------------------


def pid_of_child(act: Callable[[], object]) -> tuple[mmap.mmap, Callable[[rootfs.Root], tuple[Plan, Image]]]:
    """A plan maker that says in shared memory which process it runs in, then acts."""
    shared = mmap.mmap(-1, 8)

    def make_plan(inside: rootfs.Root) -> tuple[Plan, Image]:
        shared[:8] = os.getpid().to_bytes(8, "little")
        act()
        return NOTHING

    return shared, make_plan


def _deaf() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    time.sleep(60)


HANGS: dict[str, Callable[[], object]] = {
    "sleeps": lambda: time.sleep(60),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "spins": lambda: [None for _ in iter(int, 1)],
    "ignores signals": _deaf,
    "reads a fifo": lambda: os.read(os.pipe()[0], 1),
}


@pytest.mark.parametrize("act", HANGS.values(), ids=HANGS)
def test_a_child_that_hangs_is_ended_at_the_deadline(start: Start, root: Path, act: Callable[[], object]) -> None:
    shared, make_plan = pid_of_child(act)
    box = start()
    begun = time.monotonic()
    error = refusal(box, root, make_plan, deadline=1)
    assert time.monotonic() - begun < 2
    assert error.reference == "deadline-passed"
    assert "1 s" in error.message
    child = int.from_bytes(shared[:8], "little")
    assert child > 1
    until = time.monotonic() + 5  # on a busy machine a process that was killed takes its time to go
    while Path(f"/proc/{child}").exists() and time.monotonic() < until:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, os.WNOHANG)
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM], ids=lambda item: item.name)
def test_a_child_that_dies_is_an_error(start: Start, root: Path, number: signal.Signals) -> None:
    shared, make_plan = pid_of_child(lambda: os.kill(os.getpid(), number))
    begun = time.monotonic()
    error = refusal(start(), root, make_plan)
    assert time.monotonic() - begun < 5
    assert error.reference == "mount-failed"
    assert not Path(f"/proc/{int.from_bytes(shared[:8], 'little')}").exists()


@pytest.fixture
def ignored_children() -> Iterator[None]:
    """SIGCHLD ignored, as a hook may inherit it: then the kernel collects the child."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


def test_a_child_that_the_kernel_collects(start: Start, root: Path, ignored_children: None) -> None:
    for _ in range(20):
        assert entered(start(), root, lambda root: (Plan((), ("a",)), NO_IMAGE)) == ("a",)


def test_no_process_to_mount_with(start: Start, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's cgroup is full: fork(2) fails."""
    box = start()

    def full() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(posix, "fork", full)
    error = refusal(box, root)
    assert error.reference == "mount-failed"
    assert "Resource temporarily unavailable" in error.message
    assert "pids.max" in error.hint


def test_the_child_dies_with_the_hook(start: Start, root: Path) -> None:
    """The runtime kills a hook at its timeout: nothing of it goes on in the container."""
    shared, make_plan = pid_of_child(lambda: time.sleep(60))
    box = start()
    hook, reading = sandbox.start(lambda: entered(box, root, make_plan))
    end = time.monotonic() + 5
    while not any(shared[:8]) and time.monotonic() < end:
        time.sleep(0.01)
    child = int.from_bytes(shared[:8], "little")
    assert child > 1
    os.kill(hook, signal.SIGKILL)
    os.waitpid(hook, 0)
    os.close(reading)
    while _is_alive(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not _is_alive(child)


def _is_alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff"], ids=repr)
def test_an_answer_that_is_none_is_an_error(data: bytes) -> None:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    with pytest.raises(GpuhookError) as caught:
        enter._await(reading, 5)
    os.close(reading)
    assert caught.value.reference == "mount-failed"


def test_an_endless_answer_ends() -> None:
    reading, writing = os.pipe()

    def flood() -> None:
        while True:
            os.write(writing, b"x" * 65536)

    child, answer = sandbox.start(flood)
    os.close(writing)
    with pytest.raises(GpuhookError) as caught:
        enter._await(reading, 20)
    assert caught.value.reference == "mount-failed"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)
    os.close(answer)


def test_an_answer_that_trickles_in_counts_against_the_deadline() -> None:
    reading, writing = os.pipe()

    def trickle() -> None:
        while True:
            os.write(writing, b" ")
            time.sleep(0.05)

    child, answer = sandbox.start(trickle)
    os.close(writing)
    begun = time.monotonic()
    with pytest.raises(GpuhookError) as caught:
        enter._await(reading, 1)
    assert caught.value.reference == "deadline-passed"
    assert time.monotonic() - begun < 2
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)
    os.close(answer)


def test_nothing_is_left_open_in_a_hundred_starts(start: Start, root: Path) -> None:
    """Descriptors and processes; also where each start fails."""
    box = start()

    def broken(inside: rootfs.Root) -> tuple[Plan, Image]:
        raise ValueError("x")

    before = len(os.listdir("/proc/self/fd"))
    others = _children() - {str(box.pid)}  # what other tests keep for the session
    for number in range(100):
        if number % 4 == 0:
            refusal(box, root, broken)
        elif number % 4 == 1:
            refusal(os.getpid(), root)
        else:
            entered(box, root)
    assert len(os.listdir("/proc/self/fd")) == before
    assert _children() - others == {str(box.pid)}


def _children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


UNESCAPED = {
    b"/a\\040b": b"/a b",
    b"/a\\011\\012b": b"/a\t\nb",
    b"/a\\134040": b"/a\\040",
    b"/plain": b"/plain",
}


@pytest.mark.parametrize(("text", "expected"), UNESCAPED.items(), ids=repr)
def test_unescaped(text: bytes, expected: bytes) -> None:
    assert rootfs.unescaped(text) == expected


MAPS = {
    "usual": (b"         0     100000      65536\n", 100000),
    "one id": (b"0 1001 1\n", 1001),
    "rootless podman": (b"0 1001 1\n1 100000 65536\n", 1001),
    "in another order": (b"1 100000 65536\n0 1001 1\n", 1001),
    "root not mapped": (b"1000 5000 10\n2000 7000 10\n", 5000),
}


@pytest.mark.parametrize(("text", "expected"), MAPS.values(), ids=MAPS)
def test_the_containers_root_as_the_host_counts(tmp_path: Path, text: bytes, expected: int) -> None:
    (tmp_path / "uid_map").write_bytes(text)
    at = os.open(tmp_path, os.O_PATH)
    assert enter._root_id("uid_map", at) == expected
    os.close(at)


def test_a_namespace_without_ids_is_refused(tmp_path: Path) -> None:
    (tmp_path / "uid_map").touch()
    at = os.open(tmp_path, os.O_PATH)
    with pytest.raises(OSError, match="empty"):
        enter._root_id("uid_map", at)
    os.close(at)


def test_a_root_with_strange_letters_is_found(tmp_path: Path) -> None:
    root = tmp_path / "a\\040b\t\n#\xff"
    root.mkdir()
    box = containers.start(root)
    try:
        assert entered(box, root) == ()
    finally:
        box.close()


def test_the_kernel_that_lacks_a_call_is_told(start: Start, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(linux._CALLS, "setns", (999, "3.0"))
    error = refusal(start(), root)
    assert error.reference == "kernel-too-old"
    assert "setns" in error.message


def test_the_child_holds_nothing_that_the_runtime_waits_for(start: Start, root: Path) -> None:
    """Its three streams lead nowhere: runc waits for its pipes to close, however long a dead mount holds the child."""

    def make_plan(inside: rootfs.Root) -> tuple[Plan, Image]:
        return Plan((), tuple(os.readlink(f"self/fd/{fd}", dir_fd=inside.proc) for fd in (0, 1, 2))), NO_IMAGE

    assert entered(start(), root, make_plan) == ("/dev/null",) * 3
