"""The only door to the kernel: one function per system call, named as the kernel names it.

Hot path: imports only built-in modules. The calls that CPython 3.11 does not offer go through `syscall(2)` of libc by
`_ctypes` with one small function-pointer class, which saves the 3 ms of `import ctypes`; where the private module is
not as expected, `ctypes` itself is used. Every descriptor made here is close-on-exec. Errors are OSError with the name
of the call; a call that the kernel lacks is GpuhookError `kernel-too-old`, which names the call and its version.
"""

import errno
import posix
import sys

from gpuhook.errors import GpuhookError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# include/uapi/linux/fcntl.h, openat2.h, mount.h: the same on x86-64 and arm64
AT_EMPTY_PATH = 0x1000
AT_SYMLINK_NOFOLLOW = 0x100
RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH = 0x04
MOVE_MOUNT_T_EMPTY_PATH = 0x40
MOUNT_ATTR_RDONLY = 0x01
MOUNT_ATTR_NOSUID = 0x02
MOUNT_ATTR_NODEV = 0x04
MOUNT_ATTR_NOEXEC = 0x08
MS_REMOUNT = 32
MS_BIND = 1 << 12
MS_REC = 1 << 14
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8
FSCONFIG_SET_FLAG = 0
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6
FSCONFIG_CMD_RECONFIGURE = 7
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECUREBITS = 28
SECBIT_NO_SETUID_FIXUP = 4
BPF_PROG_LOAD = 5
BPF_PROG_ATTACH = 8
BPF_PROG_GET_FD_BY_ID = 13
BPF_OBJ_GET_INFO_BY_FD = 15
BPF_PROG_QUERY = 16
BPF_PROG_TYPE_CGROUP_DEVICE = 15
BPF_CGROUP_DEVICE = 6
BPF_F_ALLOW_MULTI = 2
BPF_F_REPLACE = 4
BPF_F_QUERY_EFFECTIVE = 1
O_PATH = 0x200000  # os.O_PATH: in `posix` from 3.10 on; the value is the same on both architectures
O_CLOEXEC = posix.O_CLOEXEC
O_NOFOLLOW = posix.O_NOFOLLOW

# name -> (number, first kernel that has it). Numbers from 424 on are the same everywhere; older ones by machine.
_X86_64 = posix.uname().machine == "x86_64"
_CALLS = {
    "setns": (308 if _X86_64 else 268, "3.0"),
    "unshare": (272 if _X86_64 else 97, "2.6.16"),
    "mount": (165 if _X86_64 else 40, "1.0"),
    "umount2": (166 if _X86_64 else 39, "2.1"),
    "bpf": (321 if _X86_64 else 280, "3.18"),
    "prctl": (157 if _X86_64 else 167, "2.1"),
    "setfsuid": (122 if _X86_64 else 151, "1.2"),
    "setfsgid": (123 if _X86_64 else 152, "1.2"),
    "open_tree": (428, "5.2"),
    "move_mount": (429, "5.2"),
    "fsopen": (430, "5.2"),
    "fsconfig": (431, "5.2"),
    "fsmount": (432, "5.2"),
    "close_range": (436, "5.9"),
    "openat2": (437, "5.6"),
    "mount_setattr": (442, "5.12"),
}

# openat2 answers EAGAIN when anything on the system was renamed meanwhile; libpathrs and securejoin bound it so too.
_OPENAT2_TRIES = 128

_PART = 1 << 15  # bytes; a spec of an engine has 10 to 20 KiB


def _bind() -> "Callable[..., int]":
    """libc's syscall(2) as a function of (number, arguments: int or bytes) that returns -errno on failure."""
    function: Callable[..., int]
    try:
        import _ctypes as c  # noqa: PLC0415

        class c_long(c._SimpleCData):  # type: ignore[type-arg]
            _type_ = "l"

        class Syscall(c.CFuncPtr):
            _flags_ = c.FUNCFLAG_CDECL | c.FUNCFLAG_USE_ERRNO
            _restype_ = c_long

        function = Syscall(c.dlsym(c.dlopen(None, 0), "syscall"))  # type: ignore[arg-type]
        get_errno = c.get_errno
    except (ImportError, AttributeError, TypeError, OSError):
        from ctypes import CDLL, c_long, get_errno  # type: ignore[assignment] # noqa: PLC0415

        libc = CDLL(None, use_errno=True)
        libc.syscall.restype = c_long
        function = libc.syscall

    def call(number: int, *args: int | bytes) -> int:
        result = function(c_long(number), *[item if type(item) is bytes else c_long(item) for item in args])
        return result if result != -1 else -get_errno()

    return call


_syscall: "Callable[..., int] | None" = None


def _call(name: str, *args: int | bytes) -> int:
    global _syscall  # noqa: PLW0603 - bound at first use: the shim never needs it
    if _syscall is None:
        _syscall = _bind()
    number, since = _CALLS[name]
    result = _syscall(number, *args)
    if result >= 0:
        return result
    if result == -errno.ENOSYS:
        raise GpuhookError(
            "kernel-too-old",
            f"this kernel ({posix.uname().release}) does not offer {name}, which Linux {since} brought",
            f"run a kernel of version 5.6 or newer, or let the sandbox around gpuhook permit {name}",
        )
    raise OSError(-result, f"{name}: {posix.strerror(-result)}")


def openat2(dir_fd: int, path: str, flags: int, resolve: int, mode: int = 0) -> int:
    """Open `path` below `dir_fd` under the RESOLVE_* rules. OSError: EXDEV/ELOOP where a rule forbids the path."""
    how = _u64(flags | O_CLOEXEC) + _u64(mode) + _u64(resolve)
    name = _path(path)
    for _ in range(_OPENAT2_TRIES):
        try:
            return _call("openat2", dir_fd, name, how, len(how))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR):
                raise
    raise OSError(errno.EAGAIN, f"openat2: names kept changing under {path!r}")


def open_tree(dir_fd: int, path: str, flags: int) -> int:
    """A handle of a mount; with OPEN_TREE_CLONE, of a detached copy that nobody else sees."""
    return _call("open_tree", dir_fd, _path(path), flags | O_CLOEXEC)


def mount_setattr(fd: int, attributes: int, propagation: int) -> None:
    """Set MOUNT_ATTR_* and the propagation of the mount that `fd` is a handle of."""
    attr = _u64(attributes) + _u64(0) + _u64(propagation) + _u64(0)
    _call("mount_setattr", fd, b"\0", AT_EMPTY_PATH, attr, len(attr))


def move_mount(source_fd: int, target_fd: int) -> None:
    """Attach the detached mount of one handle at the object of the other."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    _call("move_mount", source_fd, b"\0", target_fd, b"\0", flags)


def fsopen(kind: str) -> int:
    """A handle by which a new file system is configured."""
    return _call("fsopen", _path(kind), 1)  # FSOPEN_CLOEXEC


def fsconfig(fd: int, command: int, key: "str | None", text: "str | None") -> None:
    """Set one option, or make or change the file system (FSCONFIG_*)."""
    _call("fsconfig", fd, command, 0 if key is None else _path(key), 0 if text is None else _path(text), 0)


def fsmount(fd: int, attributes: int) -> int:
    """A detached mount of the file system that was made, with MOUNT_ATTR_*."""
    return _call("fsmount", fd, 1, attributes)  # FSMOUNT_CLOEXEC


def unmount_at(folder: int, name: str) -> None:
    """Detach the mount at a name; by the directory's handle, since umount2 takes no descriptor."""
    posix.fchdir(folder)
    umount2(name, MNT_DETACH | UMOUNT_NOFOLLOW)


def umount2(path: str, flags: int) -> None:
    """Detach the mount at `path`, relative to the current directory."""
    _call("umount2", _path(path), flags)


def unshare(kind: int) -> None:
    """Leave a namespace for a copy of it (CPython has it from 3.12 on)."""
    _call("unshare", kind)


def change_mount(path: str, flags: int) -> None:
    """Change flags or propagation of the mount at a path by mount(2): MS_REMOUNT, MS_PRIVATE and others."""
    _call("mount", b"none\0", _path(path), 0, flags, 0)


def setns(fd: int, kind: int) -> None:
    """Enter a namespace (CPython has it from 3.12 on)."""
    _call("setns", fd, kind)


def prctl(option: int, argument: int) -> None:
    """Change one property of this process."""
    _call("prctl", option, argument, 0, 0, 0)


def setfsid(uid: int, gid: int) -> None:
    """Make files as another user from now on, and keep the rights of root all the same. OSError where that is refused.

    The two calls answer the old id, whatever they did; a second call shows what holds.
    """
    prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)
    for name, number in (("setfsgid", gid), ("setfsuid", uid)):
        _call(name, number)
        if _call(name, number) != number:
            raise OSError(errno.EPERM, f"{name}: {number} was not taken")


def close_range(first: int) -> None:
    """Close every descriptor from `first` on; kernels before 5.9 by a loop."""
    try:
        _call("close_range", first, 0xFFFFFFFF, 0)
    except GpuhookError:
        posix.closerange(first, 65536)


class Memory:
    """Bytes at an address that the kernel may be told: `data` keeps its size and its place as long as this lives."""

    __slots__ = ("_block", "address", "data")

    def __init__(self, data: bytes) -> None:
        try:
            import _ctypes as c  # noqa: PLC0415 - for who asks for it alone
        except ImportError:
            import ctypes as c  # type: ignore[no-redef] # noqa: PLC0415

        class c_char(c._SimpleCData):  # type: ignore[type-arg]
            _type_ = "c"

        class Block(c.Array):  # type: ignore[type-arg]
            _type_ = c_char
            _length_ = len(data)

        self.data = bytearray(data)
        self._block = Block.from_buffer(self.data)
        self.address: int = c.addressof(self._block)


def bpf(command: int, attributes: Memory) -> int:
    """One command of bpf(2) with its `union bpf_attr`, which the kernel may write to."""
    return _call("bpf", command, attributes.address, len(attributes.data))


def open_null() -> int:
    """A descriptor that gives nothing and takes everything."""
    return posix.open("/dev/null", posix.O_RDWR | O_CLOEXEC)


def read_file(path: str, limit: int, dir_fd: int | None = None) -> bytes:
    """The content of a host file. OSError as open(2), read(2); EFBIG where it is longer than `limit` bytes."""
    fd = posix.open(path, posix.O_RDONLY | O_CLOEXEC | posix.O_NONBLOCK, dir_fd=dir_fd)
    try:
        return read_fd(fd, limit)
    finally:
        posix.close(fd)


def read_fd(fd: int, limit: int) -> bytes:
    """What is left to read of a descriptor. OSError EFBIG where that is more than `limit` bytes.

    In parts, because CPython makes room for all that it is asked to read; to the very end, because files of procfs give
    less than they have.
    """
    parts: list[bytes] = []
    size = 0
    while size <= limit:
        data = posix.read(fd, min(_PART, limit + 1 - size))
        if not data:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        parts.append(data)
        size += len(data)
    raise OSError(errno.EFBIG, f"longer than {limit} bytes")


def write_fd(fd: int, data: bytes) -> None:
    """Write all of `data`."""
    view = memoryview(data)
    while view:
        view = view[posix.write(fd, view) :]


def write_beside(
    path: str,
    data: bytes,
    mode: int,
    *,
    owner: tuple[int, int] | None = None,
    times: tuple[int, int] | None = None,
) -> None:
    """Replace a host file whole: written beside it and renamed, so that a reader sees the old one or the new one.

    `times` are those of access and change in ns; without `owner` and `times` they are the caller's and now.
    A kill half-way leaves the old file and at most one `.NAME.PID.gpuhook` beside it. OSError as open, write, rename.
    """
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/.{name}.{posix.getpid()}.gpuhook"
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | O_NOFOLLOW | O_CLOEXEC
    try:
        fd = posix.open(temporary, flags, 0o600)
    except FileExistsError:  # of a process that was killed and whose pid is ours now
        posix.unlink(temporary)
        fd = posix.open(temporary, flags, 0o600)
    try:
        try:
            write_fd(fd, data)
            if owner is not None and owner != (posix.geteuid(), posix.getegid()):
                posix.fchown(fd, *owner)
            posix.fchmod(fd, mode)  # after fchown, which clears set-id bits
            if times is not None:
                posix.utime(fd, ns=times)
        finally:
            posix.close(fd)
        posix.rename(temporary, path)
    except BaseException:
        posix.unlink(temporary)
        raise


def _u64(number: int) -> bytes:
    return number.to_bytes(8, sys.byteorder)


def _path(path: str) -> bytes:
    data = path.encode("utf-8", "surrogateescape")
    if b"\0" in data:
        raise OSError(errno.EINVAL, f"a NUL byte in the path {path!r}")
    return data + b"\0"
