"""Handles of what a container may get, taken on the host: opened below the driver root, proven, cloned, restricted.

Hot path. Each source is proven to be the file that the record names, and made read-only while it is still a detached
mount that nobody else sees. What is done with them in the container is apply.py's.
"""

import errno
import posix
from _stat import S_ISCHR

from gpuhook import linux
from gpuhook.errors import GpuhookError
from gpuhook.model import Bind, DriverFile, Node

FILE = linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV
_PLAIN = linux.RESOLVE_BENEATH | linux.RESOLVE_NO_SYMLINKS | linux.RESOLVE_NO_MAGICLINKS
NODE = linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NOEXEC  # as the shim's mounts of nodes
SOCKET = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV | linux.MOUNT_ATTR_NOEXEC


class Sources:
    """Detached mounts of host objects, by their path below the driver root; attached, or closed with the rest.

    `open` are those that `restrict` has yet to do, each with its MOUNT_ATTR_*. `left_out` has a warning for each socket
    or directory that the host has and that can't be given.
    """

    __slots__ = ("handles", "left_out", "open")

    def __init__(self) -> None:
        self.left_out: dict[str, str] = {}
        self.handles: dict[str, int] = {}
        self.open: list[tuple[str, int]] = []

    def close(self) -> None:
        """Close all handles; a mount that was attached stays, a detached one vanishes."""
        for fd in self.handles.values():
            posix.close(fd)
        self.handles.clear()


def acquire(driver_root: str, files: "tuple[DriverFile, ...]", others: "tuple[str, ...]") -> Sources:
    """Handles of all that may be mounted. `others` are sockets and directories of daemons.

    One of those is left out where it is absent, and with a warning where it is a link or a mount point: /tmp is
    everybody's, and a FUSE mount in it that never answers would hold up every start.

    A file that is not the one in the record (device, inode, size, times) is GpuhookError `driver-changed`: the record
    proved its owner and its directories, and the identity carries that proof here.
    """
    sources = Sources()
    root = _open_root(driver_root)
    try:
        for item in files:
            if item.text:  # the container gets that in its place
                continue
            found = posix.fstat(clone(root, item.path, FILE, sources, item.path))
            know = item.id
            if (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns) != (
                know.dev,
                know.ino,
                know.size,
                know.mtime,
                know.ctime,
            ):
                raise _changed(item.path)
        for path in others:
            try:
                _take_daemons(root, path, sources)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    reason = "something is mounted there" if error.errno == errno.EXDEV else error.strerror
                    sources.left_out[path] = f"left out {path}: {reason} on the host"
        restrict(sources)
    except OSError as error:
        sources.close()
        raise failed("looking at the driver's files", error) from None
    except BaseException:
        sources.close()
        raise
    finally:
        posix.close(root)
    return sources


def acquire_nodes(dev_root: str, nodes: "tuple[Node, ...]", into: Sources) -> None:
    """Handles of device nodes, each proven to be of the number that was granted. GpuhookError `driver-changed`."""
    try:
        root = _open_root(dev_root)
        try:
            for node in nodes:
                found = posix.fstat(clone(root, node.path, NODE, into, node.path))
                number = (posix.major(found.st_rdev), posix.minor(found.st_rdev))
                if not S_ISCHR(found.st_mode) or number != (node.major, node.minor):
                    raise _changed(node.path)
            restrict(into)
        finally:
            posix.close(root)
    except OSError as error:
        raise failed("looking at the driver's device nodes", error) from None


def acquire_steps(driver_root: str, steps: "tuple[Bind, ...]", into: Sources) -> None:
    """Handles of what optional mounts show of the host, read-only: files, and directories of kind `directory`.

    Links are followed below the driver root (/etc/cufile.json is one of update-alternatives); what the host does not
    have is left out.
    """
    root = _open_root(driver_root)
    try:
        for step in steps:
            flags, attributes = linux.O_PATH, FILE
            if step.kind == "directory":
                flags, attributes = linux.O_PATH | posix.O_DIRECTORY, SOCKET | linux.MOUNT_ATTR_RDONLY
            resolve = linux.RESOLVE_IN_ROOT | linux.RESOLVE_NO_MAGICLINKS
            try:
                at = linux.openat2(root, step.source.lstrip("/"), flags, resolve)
            except OSError:
                continue
            try:
                clone(at, "", attributes, into, step.source)
            finally:
                posix.close(at)
        restrict(into)
    finally:
        posix.close(root)


def _open_root(path: str) -> int:
    """A handle of a driver or dev root. GpuhookError `driver-changed` where it went away since the shim looked."""
    try:
        return posix.open(path, linux.O_PATH | posix.O_DIRECTORY | linux.O_CLOEXEC)
    except OSError:
        raise _changed(path) from None


def _take_daemons(root: int, path: str, sources: Sources) -> None:
    """A socket or directory of a daemon. OSError: EXDEV where something is mounted right there, ELOOP for a link."""
    folder, _, name = path.lstrip("/").rpartition("/")
    parent = linux.openat2(root, folder or ".", linux.O_PATH | posix.O_DIRECTORY, _PLAIN)
    try:
        at = linux.openat2(parent, name, linux.O_PATH | linux.O_NOFOLLOW, _PLAIN | linux.RESOLVE_NO_XDEV)
    finally:
        posix.close(parent)
    try:
        clone(at, "", SOCKET, sources, path)
    finally:
        posix.close(at)


def clone(at: int, path: str, attributes: int, sources: Sources, name: str) -> int:
    """A detached copy of the mount of what `path` is below the handle `at`, or of `at` itself where it is empty.

    Kept in `sources` by `name`, for `restrict` to give it `attributes`. GpuhookError `driver-changed` where there is
    nothing, `mount-failed`, `kernel-too-old`.
    """
    flags = linux.OPEN_TREE_CLONE | (linux.AT_SYMLINK_NOFOLLOW if path else linux.AT_EMPTY_PATH)
    try:
        fd = linux.open_tree(at, path.lstrip("/"), flags)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise _changed(name) from None
        raise failed(f"a copy of the mount of {name}", error) from None
    sources.handles[name] = fd
    sources.open.append((name, attributes))
    return fd


def restrict(sources: Sources) -> None:
    """Make every copy read-only or what else it shall be, and private. GpuhookError `mount-failed`.

    Linux 5.12 can do that to a detached mount; before, it must be attached for a moment (gpuhook.oldkernel).
    """
    while sources.open:
        path, attributes = sources.open[-1]
        try:
            linux.mount_setattr(sources.handles[path], attributes, linux.MS_PRIVATE)
        except OSError as error:
            raise failed(f"restricting the mount of {path}", error) from None
        except GpuhookError as error:
            if error.reference != "kernel-too-old":
                raise
            from gpuhook import oldkernel  # noqa: PLC0415 - a kernel of before 5.12 pays for it

            oldkernel.restrict(sources)
            return
        sources.open.pop()


def failed(what: str, error: OSError) -> GpuhookError:
    """The error for a mount that the kernel refused."""
    return GpuhookError("mount-failed", f"{what} failed: {error.strerror}", "see the kernel's log")


def _changed(path: str) -> GpuhookError:
    return GpuhookError(
        "driver-changed",
        f"{path} is not the file that it was when this start began: the driver is being changed",
        "start the container again when the driver's installation has ended",
    )
