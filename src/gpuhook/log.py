"""gpuhook's own log: one line an event, bounded in size, and never the reason that a container does not start.

Hot path. Several processes write at once: each line is one write to a file opened for appending.
"""

import posix
import time
from _stat import S_ISREG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LEVELS = ("error", "warning", "info", "debug")
MAX_BYTES = 4 << 20  # of the file, and of the one rotated file beside it
_MAX_LINE = 4096  # characters of text in a line


class Log:
    """A log file at `path` ("" for none) that takes `level` and what is graver, and is rotated once at `max_bytes`.

    Rotated means renamed to `path.1`, over the one before. No method raises: a log that can't be written is no reason
    to stop a container.
    """

    def __init__(self, path: str, level: str = "info", max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._levels = LEVELS[: LEVELS.index(level) + 1] if level in LEVELS else LEVELS[:3]
        self._max_bytes = max_bytes

    def write(self, level: str, container: str, text: str) -> None:
        """Append `TIME LEVEL CONTAINER TEXT`; the time is UTC in ISO 8601, line ends and the like are escaped."""
        if not self._path or level not in self._levels:
            return
        try:
            line = f"{_now()} {level} {_plain(container, 256) or '-'} {_plain(text, _MAX_LINE)}\n"
            self._append(line.encode("utf-8", "backslashreplace"))
        except (OSError, ValueError):  # ValueError: a path with a null byte
            return

    def _append(self, line: bytes) -> None:
        fd = _opened(self._path)
        try:
            status = posix.fstat(fd)
            if not S_ISREG(status.st_mode):
                return
            if status.st_size and status.st_size + len(line) > self._max_bytes and _rotate(self._path, fd, status):
                posix.close(fd)
                fd = -1
                fd = _opened(self._path)
            posix.write(fd, line)
        finally:
            if fd >= 0:
                posix.close(fd)


def _opened(path: str) -> int:
    """The log open for appending; its directories are made if they are missing. A link or a pipe is not followed."""
    flags = posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC
    try:
        return posix.open(path, flags, 0o644)
    except FileNotFoundError:
        at = path.find("/", 1)
        while at > 0:
            _quietly(posix.mkdir, path[:at], 0o755)
            at = path.find("/", at + 1)
        return posix.open(path, flags, 0o644)


def _rotate(path: str, fd: int, status: posix.stat_result) -> bool:
    """Move the full file aside, unless another process did or is about to; whether the path now names another file."""
    from fcntl import LOCK_EX, LOCK_NB, flock  # noqa: PLC0415  # needed once in thousands of lines

    try:
        flock(fd, LOCK_EX | LOCK_NB)  # released by the close
        now = posix.lstat(path)
        if (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino):
            posix.rename(path, path + ".1")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _quietly(call: "Callable[..., object]", *args: object) -> None:
    try:
        call(*args)
    except OSError:
        return


def _plain(text: str, limit: int) -> str:
    """The text in one line that steers no terminal and has an end."""
    if len(text) > limit:
        text = text[:limit] + "..."
    if text.isprintable():
        return text
    return "".join([letter if letter.isprintable() else repr(letter)[1:-1] for letter in text])


def _now() -> str:
    at = time.time_ns()
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at // 1_000_000_000))}.{at // 1_000_000 % 1000:03}Z"
