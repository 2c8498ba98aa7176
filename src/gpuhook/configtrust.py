"""Whether a file that decides over containers is the administrator's: its owner and mode, and those of the way to it.

Cold: imported when runtime.toml changed, and by the CLI.
"""

import os
import stat

from gpuhook.config import is_own, unreadable
from gpuhook.errors import GpuhookError

_LINKS = 40  # as many as the kernel follows


def read(path: str, limit: int) -> tuple[bytes, os.stat_result]:
    """The content and status of a trusted regular file.

    Trusted: the file, each directory on the way to it and each link is root's or the caller's, and no one else may
    write it; a directory that others may write passes if it is sticky and the entry taken from it is so owned. Links
    are followed (NixOS links into its store), each under the same rule.
    Raises config-untrusted; config-invalid for what is no regular file, too long or unreadable.
    """
    try:
        real = _walk(os.path.abspath(path), path)
        fd = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        status = os.fstat(fd)
        _check(path, real, status)
        if not stat.S_ISREG(status.st_mode):
            raise _invalid(path, "is no regular file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise unreadable(path, error) from None
    finally:
        os.close(fd)
    if len(data) > limit:
        raise _invalid(path, f"is longer than {limit} bytes")
    return data, status


def _walk(path: str, wanted: str) -> str:
    """The path free of links, each step of which was found trusted. Raises OSError where it leads nowhere."""
    rest = path.split("/")[::-1]
    real, links = "", 0
    parent = os.lstat("/")
    _check(wanted, "/", parent)
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            real = real.rpartition("/")[0]
            parent = os.lstat(real or "/")
            continue
        here = f"{real}/{name}"
        status = os.lstat(here)
        if stat.S_ISLNK(status.st_mode):
            _check_owner(wanted, here, status)
            links += 1
            if links > _LINKS:
                raise _invalid(wanted, "is reached through too many links")
            text = os.readlink(here)
            rest += text.split("/")[::-1]
            if text.startswith("/"):
                real = ""
        else:
            _check(wanted, here, status)
            real = here
    return real


def _check(wanted: str, path: str, status: os.stat_result) -> None:
    """Refuse what another may change. A sticky directory passes: each entry in it is checked for its own owner."""
    _check_owner(wanted, path, status)
    sticky_directory = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky_directory:
        whom = "everyone" if status.st_mode & stat.S_IWOTH else f"group {status.st_gid}"
        mode = stat.S_IMODE(status.st_mode)
        raise _untrusted(wanted, path, f"may be written by {whom} (mode {mode:04o})", _cure(wanted, path, "chmod go-w"))


def _check_owner(wanted: str, path: str, status: os.stat_result) -> None:
    caller = os.geteuid()
    if not is_own(status.st_uid):
        owners = "root" if caller == 0 else f"root or user {caller}"
        flag = "-h " if stat.S_ISLNK(status.st_mode) else ""
        cure = _cure(wanted, path, f"chown {flag}root:root")
        raise _untrusted(wanted, path, f"belongs to user {status.st_uid}, not to {owners}", cure)


def _cure(wanted: str, path: str, command: str) -> str:
    """The command that makes `path` root's alone; above `etc` (a home, a checkout) no command: it is not gpuhook's."""
    above_etc = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(wanted))))
    if f"{above_etc}/".startswith(f"{path.rstrip('/')}/"):
        return "put the configuration below directories that root owns and nobody else may write"
    return f"{command} {path}"


def _untrusted(wanted: str, path: str, text: str, cure: str) -> GpuhookError:
    subject = f"the configuration {wanted}" if path == wanted else f"the configuration {wanted}: {path}"
    return GpuhookError("config-untrusted", f"{subject} {text}, so it is not used", cure)


def _invalid(path: str, text: str) -> GpuhookError:
    hint = "repair it, or remove it to run with the defaults"
    return GpuhookError("config-invalid", f"the configuration {path} {text}", hint)
