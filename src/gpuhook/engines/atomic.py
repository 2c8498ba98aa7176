"""A file is replaced whole or not at all, and keeps its mode, owner and extended attributes.

`stage` writes the new text beside the file under a name that no engine reads as configuration (containerd's imports and
CRI-O's drop-in folder match `*.toml` and `*.conf`); `put` renames it. Between the two the file is the old one.
"""

import errno
import os
import stat

from gpuhook.errors import GpuhookError

SUFFIX = ".gpuhook-tmp"
# Of the content, not of the file: the kernel or its owner sets them anew.
_OF_CONTENT = {"security.ima", "security.evm", "security.capability"}


def temporary(path: str) -> str:
    """The name under which the new text of `path` is written; one of a run that was killed has it, too."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}{SUFFIX}")


def stage(path: str, data: bytes, mode: int) -> None:
    """Write `data` to the temporary file of `path`, safe on disk. `mode` is for a path that is not there; OSError."""
    name = temporary(path)
    discard(path)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            _write(fd, data)
            _like(fd, path, mode)
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        discard(path)
        raise


def put(path: str) -> None:
    """Let what was staged take the place of `path`; OSError."""
    os.rename(temporary(path), path)
    sync(os.path.dirname(path))


def remove(path: str) -> None:
    """Remove a file, safe on disk; OSError."""
    os.unlink(path)
    sync(os.path.dirname(path))


def discard(path: str) -> None:
    """Remove the temporary file of `path`, if there is one; OSError."""
    try:
        os.unlink(temporary(path))
    except FileNotFoundError:
        pass


def sync(folder: str) -> None:
    """What was renamed or removed in a directory is on disk; OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no such thing for directories
            raise
    finally:
        os.close(fd)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _like(fd: int, path: str, mode: int) -> None:
    """Give an open file the owner, mode and attributes that `path` has."""
    try:
        old = os.stat(path)
    except FileNotFoundError:
        os.fchmod(fd, mode)
        return
    own = os.fstat(fd)
    if (old.st_uid, old.st_gid) != (own.st_uid, own.st_gid):
        os.fchown(fd, old.st_uid, old.st_gid)
    os.fchmod(fd, stat.S_IMODE(old.st_mode))  # after the owner, whose change takes set-id bits away
    for name in os.listxattr(path):
        if name in _OF_CONTENT:
            continue
        text = os.getxattr(path, name)
        if name not in os.listxattr(fd) or os.getxattr(fd, name) != text:
            os.setxattr(fd, name, text)


def failed(path: str, error: OSError) -> GpuhookError:
    """The error for a file that can't be written. It says what stopped it, and that nothing was changed."""
    reason = error.strerror or str(error)
    hints = {
        errno.ENOSPC: "make room on its file system",
        errno.EDQUOT: "make room: the quota of its owner is used up",
        errno.EROFS: "its file system is read-only: where another program makes this file (NixOS, ostree), have "
        "that program write the lines that --dry-run shows",
        errno.EBUSY: "it is a mount of its own: change the file that is mounted there",
    }
    hint = hints.get(error.errno or 0)
    if hint is None and error.errno in (errno.EACCES, errno.EPERM):
        hint = (
            "see lsattr for a file that is immutable (chattr -i), and the security modules in force"
            if os.geteuid() == 0
            else "run this as the user whose file it is (sudo for an engine of the system)"
        )
    message = f"{path} can't be written: {reason}; it is as it was"
    return GpuhookError("engine-config-not-written", message, hint or "see the kernel's log for its file system")
