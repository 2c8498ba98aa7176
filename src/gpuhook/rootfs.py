"""Look and make inside a container's root by handle; the kernel keeps every lookup inside, whatever the image holds.

Hot path. Each path is resolved anew by openat2 with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS: absolute links and `..`
stay inside, `/proc/self/root` and its like are refused. A file is opened without effect (O_PATH), looked at, and only a
regular one is opened for reading, through a procfs handle of the host: a FIFO, a device or a link put in its place in
between is never opened. Nothing here returns a path that a caller could open again.
"""

import errno
import posix
from _stat import S_ISBLK, S_ISCHR, S_ISDIR, S_ISFIFO, S_ISLNK, S_ISREG, S_ISSOCK

from gpuhook import linux
from gpuhook.errors import GpuhookError

IN_ROOT = linux.RESOLVE_IN_ROOT | linux.RESOLVE_NO_MAGICLINKS
ONE_NAME = linux.RESOLVE_BENEATH | linux.RESOLVE_NO_SYMLINKS | linux.RESOLVE_NO_MAGICLINKS | linux.RESOLVE_NO_XDEV
PROC_ROOT_INO = 1  # include/linux/proc_fs.h: the root of every procfs (and of a tmpfs: `self` tells them apart)
_LINKS = 40  # as the kernel's MAXSYMLINKS

# File systems whose files are the kernel's words: to read one may show what the runtime masks later (/proc/keys), take
# a message away from who waits for it (/proc/kmsg), or wake a device.
_OF_KERNEL = frozenset(
    b"proc sysfs cgroup cgroup2 debugfs tracefs securityfs selinuxfs smackfs configfs pstore efivarfs bpf binfmt_misc"
    b" fusectl resctrl nsfs mqueue devpts devtmpfs rpc_pipefs nfsd".split()
)

# What a lookup says of a path that is not there, or that leads through something that is no directory.
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


def open_proc() -> int:
    """A handle of the host's procfs; made before the container's mount namespace is entered. Its caller closes it."""
    fd = posix.open("/proc", linux.O_PATH | linux.O_CLOEXEC | posix.O_DIRECTORY)
    try:
        own = posix.readlink("self", dir_fd=fd) == str(posix.getpid())
    except OSError:
        own = False
    if posix.fstat(fd).st_ino != PROC_ROOT_INO or not own:
        posix.close(fd)
        raise GpuhookError(
            "rootfs-unsafe",
            "/proc of this host is no procfs of gpuhook's own process namespace",
            "mount procfs at /proc",
        )
    return fd


class ForeignError(GpuhookError):
    """Nothing can be made at a place: it lies on a volume of the container, or on a read-only file system."""


class Root:
    """A directory that lookups cannot leave. Owns `fd`; borrows `proc`, a handle of the host's procfs."""

    __slots__ = ("devices", "fd", "name", "proc")

    def __init__(self, fd: int, proc: int, name: str) -> None:
        self.devices: dict[int, bool] = {}  # st_dev of files that were found, and whether such are opened
        self.fd = fd
        self.proc = proc
        self.name = name

    @classmethod
    def at(cls, path: str, proc: int | None = None) -> "Root":
        """The root at a path of the host. GpuhookError `rootfs-unsafe` where that is no directory or a link."""
        try:
            flags = linux.O_PATH | posix.O_DIRECTORY | linux.O_NOFOLLOW | linux.O_CLOEXEC
            return cls(posix.open(path, flags), open_proc() if proc is None else proc, path)
        except OSError as error:
            raise GpuhookError(
                "rootfs-unsafe",
                f"the root {path!r} can't be opened as a directory: {error.strerror}",
                "give a directory that is no symbolic link",
            ) from None

    def close(self) -> None:
        """Close the handle of the root."""
        posix.close(self.fd)

    # --- looking ------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int = linux.O_PATH, resolve: int = IN_ROOT) -> int:
        """A handle of what `path` leads to. OSError as openat2(2)."""
        return linux.openat2(self.fd, path, flags, resolve)

    def _find(self, path: str, flags: int = 0, resolve: int = IN_ROOT) -> int | None:
        """As `open`, None where `path` is absent and GpuhookError where it can't be resolved."""
        try:
            return self.open(path, linux.O_PATH | flags, resolve)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise self._unsafe(path, error) from None

    def kind(self, path: str) -> str | None:
        """`file`, `directory`, `link` (a dangling or looping one), `socket`, `device`, `fifo`, or None for absent."""
        try:
            return self._kind(path, 0) or self.lkind(path)
        except GpuhookError:
            return self.lkind(path)

    def lkind(self, path: str) -> str | None:
        """As `kind`, but a link at the end of the path is a `link`."""
        try:
            return self._kind(path, linux.O_NOFOLLOW)
        except GpuhookError:
            return None

    def _kind(self, path: str, flags: int) -> str | None:
        fd = self._find(path, flags)
        if fd is None:
            return None
        try:
            return kind_of(posix.fstat(fd).st_mode)
        finally:
            posix.close(fd)

    def read(self, path: str, limit: int, *, own: bool = False) -> bytes | None:
        """The content of the regular file at `path`; None where there is none.

        GpuhookError `rootfs-unsafe` for one longer than `limit` bytes, or a path that can't be resolved safely. `own`:
        only of the root's own mount, else ForeignError. What may be copied into another file has to be: on a volume may
        lie what root can read and the container's user can't.
        """
        fd = self.open_regular(path, IN_ROOT | linux.RESOLVE_NO_XDEV if own else IN_ROOT)
        if fd is None:
            return None
        try:
            return linux.read_fd(fd, limit)
        except OSError as error:
            raise self._unsafe(path, error) from None
        finally:
            posix.close(fd)

    def open_regular(self, path: str, resolve: int = IN_ROOT) -> int | None:
        """The regular file at `path`, open for reading; None where there is none, or where it is the kernel's own.

        GpuhookError `rootfs-unsafe`.
        """
        fd = self._find(path, 0, resolve)
        if fd is None:
            return None
        try:
            found = posix.fstat(fd)
            is_file = S_ISREG(found.st_mode) and self._is_plain(fd, found.st_dev)
            return self._reopen(fd, posix.O_RDONLY) if is_file else None
        except OSError as error:
            raise self._unsafe(path, error) from None
        finally:
            posix.close(fd)

    def _is_plain(self, fd: int, device: int) -> bool:
        """Whether a file lies on a file system that keeps data (and not in /proc or /sys). OSError."""
        if not self.devices:
            self.devices[posix.fstat(self.fd).st_dev] = True
        known = self.devices.get(device)
        if known is None:
            fields = mount_of(fd, self.proc)
            known = bool(fields) and fields[fields.index(b"-") + 1] not in _OF_KERNEL
            self.devices[device] = known
        return known

    def names(self, path: str, limit: int) -> tuple[str, ...] | None:
        """The names in the directory at `path`; None where there is none. GpuhookError for more than `limit`."""
        fd = self._find(path)
        if fd is None:
            return None
        try:
            if not S_ISDIR(posix.fstat(fd).st_mode):
                return None
            listing = self._reopen(fd, posix.O_RDONLY | posix.O_DIRECTORY)
        except OSError as error:
            raise self._unsafe(path, error) from None
        finally:
            posix.close(fd)
        try:
            found = _listed(listing, limit + 1)
        finally:
            posix.close(listing)
        if len(found) > limit:
            raise GpuhookError("rootfs-unsafe", f"{path} in {self.name} holds more than {limit} names")
        return tuple(found)

    def some_names(self, folder: int, limit: int) -> list[str]:
        """At most `limit` names in a directory of which there is a handle. OSError as open(2)."""
        listing = self._reopen(folder, posix.O_RDONLY | posix.O_DIRECTORY)
        try:
            return _listed(listing, limit)
        finally:
            posix.close(listing)

    def readlink(self, path: str) -> str | None:
        """The text of the symbolic link at `path`; None where there is no link."""
        try:
            fd = self._find(path, linux.O_NOFOLLOW)
        except GpuhookError:
            return None
        if fd is None:
            return None
        try:
            return posix.readlink("", dir_fd=fd)
        except OSError:
            return None
        finally:
            posix.close(fd)

    def real(self, path: str) -> str | None:
        """`path` free of links, as the container would say it; None where it leads to nothing.

        Text for messages, records and loader caches, never to be opened without `resolve` rules. It is the kernel's own
        where that lies below the root's, else (a directory that was moved meanwhile) it is walked link by link.
        """
        try:
            fd = self._find(path)
        except GpuhookError:
            return None
        if fd is None:
            return None
        try:
            base = posix.readlink(f"self/fd/{self.fd}", dir_fd=self.proc)
            text = posix.readlink(f"self/fd/{fd}", dir_fd=self.proc)
        except OSError:
            return None
        finally:
            posix.close(fd)
        base = "" if base == "/" else base
        if text.startswith(f"{base}/") and not text.endswith(" (deleted)"):
            return text[len(base) :]
        return "/" if text == base else self._walked(path)

    def here(self) -> bytes:
        """Where the root lies in this mount namespace, as the kernel says it."""
        return posix.readlink(f"self/fd/{self.fd}", dir_fd=self.proc).encode("utf-8", "surrogateescape")

    def _walked(self, path: str) -> str | None:
        parts = path.split("/")[::-1]
        done: list[str] = []
        links = 0
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]
                continue
            text = self.readlink("/".join(["", *done, part]))
            if text is None:
                done.append(part)
                continue
            links += 1
            if links > _LINKS:
                return None
            if text.startswith("/"):
                done = []
            parts += text.split("/")[::-1]
        return "/" + "/".join(done)

    def _reopen(self, fd: int, flags: int) -> int:
        """Open what an O_PATH handle is of; OSError as open(2). Never for a FIFO or a device: its caller looked."""
        flags |= linux.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY
        return posix.open(f"self/fd/{fd}", flags, dir_fd=self.proc)

    # --- making -------------------------------------------------------------------------------------------------

    def directory(self, path: str, made: "list[tuple[int, str]]") -> int:
        """A handle of the directory at `path`, made with its parents (mode 0755) where it is missing.

        Stays on the mount of the root: GpuhookError `rootfs-unsafe` where the path leads to another one, or through
        a dangling link; `rootfs-not-writable`. What was made is added to `made` as (handle of the parent, name).
        """
        missing: list[str] = []
        at = path
        while True:
            try:
                fd = self.open(at, linux.O_PATH | posix.O_DIRECTORY, IN_ROOT | linux.RESOLVE_NO_XDEV)
                break
            except OSError as error:
                if error.errno != errno.ENOENT or at == "/":
                    raise self._unsafe(path, error) from None
            at, _, name = at.rstrip("/").rpartition("/")
            at = at or "/"
            missing.append(name)
        while missing:
            parent, name = fd, missing.pop()
            try:
                kept = posix.dup(parent)
                try:
                    posix.mkdir(name, 0o755, dir_fd=parent)
                    made.append((kept, name))
                except OSError as error:
                    posix.close(kept)
                    if error.errno != errno.EEXIST:
                        raise
                    # another start made it, or it is a dangling link, which the next lookup refuses
                fd = linux.openat2(parent, name, linux.O_PATH | posix.O_DIRECTORY, ONE_NAME)
            except OSError as error:
                raise self._unsafe(path, error) from None
            finally:
                posix.close(parent)
        return fd

    def _unsafe(self, path: str, error: OSError) -> GpuhookError:
        return unsafe(f"{path} in {self.name}", error)


def _listed(fd: int, limit: int) -> list[str]:
    found: list[str] = []
    with posix.scandir(fd) as entries:
        for item in entries:
            if len(found) >= limit:
                break
            found.append(item.name)
    return found


def entry(dir_fd: int, name: str) -> int:
    """A handle of one name in a directory, no link followed. OSError: EXDEV where something is mounted on it."""
    resolve = linux.RESOLVE_BENEATH | linux.RESOLVE_NO_MAGICLINKS | linux.RESOLVE_NO_XDEV
    return linux.openat2(dir_fd, name, linux.O_PATH | linux.O_NOFOLLOW, resolve)


def mount_of(fd: int, proc: int) -> "list[bytes]":
    """The fields of the line of mountinfo (proc(5)) that describes the mount an object lies on; empty for none."""
    number = b""
    for line in linux.read_file(f"self/fdinfo/{fd}", 4096, proc).splitlines():
        if line.startswith(b"mnt_id:"):
            number = line[7:].strip() + b" "
    for line in linux.read_file("self/mountinfo", 16 << 20, proc).splitlines():
        if number and line.startswith(number):
            return line.split(b" ")
    return []


def unescaped(text: bytes) -> bytes:
    """A path of mountinfo: space, tab, newline and backslash stand there in octal (proc(5))."""
    if b"\\" not in text:
        return text
    for code, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        text = text.replace(code, char)
    return text


def unsafe(what: str, error: OSError) -> GpuhookError:
    """The error for something in a container's root that can't be used as it is."""
    code = error.errno
    kind = ForeignError if code in (errno.EXDEV, errno.EBUSY, errno.EROFS) else GpuhookError
    if code in (errno.ENOSPC, errno.EDQUOT):
        return GpuhookError("rootfs-not-writable", f"{what} can't be made: {error.strerror}", "make room on that disk")
    if code in (errno.EROFS, errno.EACCES, errno.EPERM):
        return kind(
            "rootfs-not-writable",
            f"{what} can't be made: {error.strerror}",
            "give the container a root file system that the runtime may write (its own read-only flag does no harm)",
        )
    reason = {
        errno.EXDEV: "it lies on another mount, a volume of the container",
        errno.EBUSY: "the container mounts something of its own there",
        errno.ELOOP: "it leads through a loop of links, a dangling link or a magic link",
        errno.ENOTDIR: "something on the way is no directory",
        errno.EEXIST: "something of another type stands there",
    }.get(code or 0, error.strerror)
    return kind("rootfs-unsafe", f"{what} can't be used: {reason}", "see what the image has at that path")


def kind_of(mode: int) -> str:
    """The word for a file type: `file`, `directory`, `link`, `socket`, `fifo`, `device`."""
    for is_kind, kind in _KINDS:
        if is_kind(mode):
            return kind
    return "file"


_KINDS = (
    (S_ISREG, "file"),
    (S_ISDIR, "directory"),
    (S_ISLNK, "link"),
    (S_ISSOCK, "socket"),
    (S_ISFIFO, "fifo"),
    (S_ISCHR, "device"),
    (S_ISBLK, "device"),
)
