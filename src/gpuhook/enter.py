"""Enter a container's mount namespace in a forked child, and be back before the deadline.

Hot path. The parent holds the handles that were opened on the host and waits on a pipe; the child enters, proves that
the root it finds is the container's own, looks at the image, and hands the plan to the `Mounter`. The child never
returns and its words cross the pipe as JSON. A child that hangs is killed, and left to the kernel where that fails: it
holds nothing that the runtime waits for.
"""

import errno
import posix
import select
import sys
import time

from gpuhook import jsonio, linux, rootfs
from gpuhook.apply import Mounter
from gpuhook.errors import GpuhookError
from gpuhook.model import Image, Plan, value
from gpuhook.sources import Sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    MakePlan = Callable[[rootfs.Root], tuple[Plan, Image]]

_ANSWER_LIMIT = 1 << 20
_SIGKILL = 9
_REAP_TRIES = 50


@value
class Target:
    """The container to enter: its init process, its root as the host names it, and the destinations where its spec
    mounts a fresh tmpfs, in which things may be made as in the root."""

    pid: int
    root: str
    tmpfs: tuple[str, ...]


def mount(
    target: Target,
    sources: Sources,
    make_plan: "MakePlan",
    deadline: int,
    acquire: "Callable[[], Sources] | None" = None,
) -> "tuple[str, ...]":
    """Do to the container what `make_plan` says of its root; returns warnings.

    `acquire` takes the sources inside instead: a user that is not root has rights over mounts in the container's user
    namespace alone, from which the host's files are seen at their places until the runtime leaves them behind.

    Raises what the child raised, `deadline-passed` after `deadline` seconds, and `container-gone` where the container's
    process has ended.
    """
    proc = rootfs.open_proc()
    try:
        entry = _entry(target.pid, proc)
    except BaseException:
        posix.close(proc)
        raise
    reading, writing = posix.pipe2(linux.O_CLOEXEC)
    nothing = linux.open_null()
    jsonio.dumps({})  # the encoder is loaded before the container's file system is in sight
    try:
        child = posix.fork()
    except OSError as failure:
        raise GpuhookError(
            "mount-failed",
            f"the process that mounts can't be started: {failure.strerror}",
            "see the limits of processes (pids.max of the engine's cgroup, TasksMax of its unit, ulimit -u)",
        ) from None
    if child == 0:
        code = 70
        try:
            posix.close(reading)
            for stream in (0, 1, 2):  # runc waits for its pipes to close, whoever holds them
                posix.dup2(nothing, stream)
            answer = _guarded(proc, entry, target, acquire or (lambda: sources), make_plan)
            linux.write_fd(writing, jsonio.dumps(answer))
            code = 0
        finally:
            posix._exit(code)
    posix.close(writing)
    for fd in (nothing, entry.mounts, entry.user):
        if fd is not None:
            posix.close(fd)
    posix.close(proc)
    try:
        answer = _await(reading, deadline)
    finally:
        posix.close(reading)
        _reap(child)
    error = answer.get("error")
    if isinstance(error, list):
        raise GpuhookError(str(error[0]), str(error[1]), str(error[2]))
    warnings = answer.get("warnings")
    return tuple([str(item) for item in warnings]) if isinstance(warnings, list) else ()


@value
class Entry:
    """What the child needs to enter a container; None where that has no user namespace of its own.

    Handles of its mount namespace and, for a user that is not root, of its user namespace; for root the ids of the
    container's root as this process sees them, by which files are made there.
    """

    mounts: int
    user: int | None
    owner: tuple[int, int] | None


def _entry(pid: int, proc: int) -> Entry:
    """The container's namespaces, all of one process, and proven not to be ours. GpuhookError `container-gone`."""
    try:
        at = posix.open(str(pid), linux.O_PATH | posix.O_DIRECTORY | linux.O_CLOEXEC, dir_fd=proc)
        try:
            if not _is_other("ns/mnt", at, proc):
                raise GpuhookError(
                    "rootfs-unsafe",
                    f"the container's process {pid} lives in the host's mount namespace",
                    "give the container a mount namespace of its own (linux.namespaces)",
                )
            user = owner = None
            if _is_other("ns/user", at, proc):
                if posix.geteuid() == 0:
                    owner = (_root_id("uid_map", at), _root_id("gid_map", at))
                else:
                    user = posix.open("ns/user", posix.O_RDONLY | linux.O_CLOEXEC, dir_fd=at)
            return Entry(posix.open("ns/mnt", posix.O_RDONLY | linux.O_CLOEXEC, dir_fd=at), user, owner)
        finally:
            posix.close(at)
    except OSError as error:
        hint = "start it again"
        if error.errno in (errno.EACCES, errno.EPERM):
            hint = "as a user that is not root, use runc, or crun in a user namespace of yours, as rootless podman does"
        raise GpuhookError(
            "container-gone", f"the container's process {pid} can't be reached: {error.strerror}", hint
        ) from None


def _is_other(namespace: str, at: int, proc: int) -> bool:
    own, found = posix.stat(f"self/{namespace}", dir_fd=proc), posix.stat(namespace, dir_fd=at)
    return (own.st_dev, own.st_ino) != (found.st_dev, found.st_ino)


def _root_id(name: str, at: int) -> int:
    """The id of the container's root outside of its user namespace, by the kernel's own map (user_namespaces(7)); of
    its first id where no root is mapped."""
    rows = [[int(word) for word in line.split()] for line in linux.read_file(name, 1 << 16, at).splitlines()]
    if not rows:
        raise OSError(errno.ESRCH, f"{name} is empty")
    inside, outside, count = min(rows)
    return outside - inside if inside <= 0 < inside + count else outside


def _await(reading: int, deadline: int) -> "dict[str, object]":
    """The child's answer, whole, before the deadline. A child that died without one is an error of its own."""
    end = time.monotonic() + deadline
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    data = b""
    while len(data) < _ANSWER_LIMIT:
        left = end - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise GpuhookError(
                "deadline-passed",
                f"the container's file system did not answer within {deadline} s",
                "see whether a volume of the container hangs; the key deadline in runtime.toml sets the time",
            )
        part = posix.read(reading, 65536)
        if not part:
            break
        data += part
    try:
        answer = jsonio.loads(data)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise GpuhookError("mount-failed", "the process that mounts ended without an answer", "see the kernel's log")
    return answer  # type: ignore[return-value]


def _reap(child: int) -> None:
    """End the child and collect it; one that sleeps in the kernel (a dead network mount) is left to it.

    Where the runtime ignores SIGCHLD, and the hook with it, the kernel collects it first.
    """
    try:
        for _ in range(_REAP_TRIES):
            found, _ = posix.waitpid(child, posix.WNOHANG)
            if found:
                return
            posix.kill(child, _SIGKILL)
            time.sleep(0.001)
    except (ChildProcessError, ProcessLookupError):
        return


def _guarded(
    proc: int, entry: Entry, target: Target, acquire: "Callable[[], Sources]", make_plan: "MakePlan"
) -> "dict[str, object]":
    """The child's work as a value: warnings, or the error as [reference, message, hint]."""
    try:
        if entry.user is not None:
            _become_root(entry.user)
        linux.prctl(linux.PR_SET_PDEATHSIG, _SIGKILL)
        linux.setns(entry.mounts, linux.CLONE_NEWNS)
        seal_imports()
        inside = open_root(target.root, proc)
        if entry.owner is not None:
            linux.setfsid(*entry.owner)
        sources = acquire()
        steps, image = make_plan(inside)
        mounter = Mounter(inside, target.tmpfs, sources, image)
        return {"warnings": [*steps.warnings, *mounter.run(steps)]}
    except GpuhookError as error:
        return {"error": [error.reference, error.message, error.hint]}
    except OSError as error:
        return {"error": ["mount-failed", f"{target.root}: {error.strerror}", "see the kernel's log"]}
    except Exception as error:  # the parent must hear of every failure, and a traceback would import
        return {"error": ["internal", f"{type(error).__name__}: {error}", "this is a defect of gpuhook: report it"]}


def _become_root(namespace: int) -> None:
    """Enter the container's user namespace, which gives its owner all rights in it, and be its root."""
    linux.setns(namespace, linux.CLONE_NEWUSER)
    posix.setresgid(0, 0, 0)
    posix.setresuid(0, 0, 0)
    linux.prctl(linux.PR_SET_DUMPABLE, 0)  # a change of ids resets it, and PDEATHSIG


def seal_imports() -> None:
    """No module can be loaded from here on: the file system in sight is the container's (CVE-2019-14271)."""
    sys.meta_path.clear()
    sys.path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()


def open_root(path: str, proc: int) -> rootfs.Root:
    """The container's root in its own mount namespace: a mount point, not the host's `/`, and not shared with others.

    A mount made below a shared one appears on the host and outlives the container (toolkit issue 697).
    """
    root = rootfs.Root.at(path or "/", proc)
    if root.here() == b"/":
        raise GpuhookError("rootfs-unsafe", "the container's root is the host's", "give root.path a directory")
    fields = rootfs.mount_of(root.fd, proc)
    if fields and rootfs.unescaped(fields[4]) == root.here():
        if any(tag.startswith(b"shared:") for tag in fields[6 : fields.index(b"-")]):
            raise GpuhookError(
                "rootfs-shared",
                f"the container's root {path} is a shared mount: what is mounted in it would appear on the host",
                "leave rootfsPropagation out, or say private, slave or rprivate",
            )
        return root
    raise GpuhookError(
        "rootfs-unsafe",
        f"the container's root {path} is no mount point of its own",
        "call gpuhook-hook at the prestart or createRuntime stage",
    )
