"""The host as an engine's module sees it: files by the engine's own names, programs with a deadline.

A test gives another `root` (all files below it), another environment and a `PATH` with stand-ins.
"""

import errno
import glob
import os
import pwd
import re
import select
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuhook.errors import GpuhookError, shown

_DEADLINE = 10.0  # seconds for a program that is asked something; a hung daemon must not hang us
_LIMIT = 4 << 20  # bytes; no engine's configuration comes near
_MOST = 16 << 20  # bytes of what a program says; a `docker info` has kilobytes
_PLACES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")  # as in shim.py


@dataclass(frozen=True)
class Process:
    """A process of a program. `uid` is -1 where /proc does not say."""

    pid: int
    uid: int
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Host:
    """Files below `root`, the user `uid` and its `environ`. `uid` 0 is for the system's engines, else for rootless."""

    root: str = ""
    uid: int = field(default_factory=os.geteuid)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    _hung: set[str] = field(default_factory=set, init=False, repr=False, compare=False)  # programs that did not answer

    @property
    def home(self) -> str:
        """The user's home directory: HOME's, else the account's."""
        named = self.environ.get("HOME", "")
        if named.startswith("/"):
            return named
        try:
            return pwd.getpwuid(self.uid).pw_dir
        except KeyError:
            return "/root" if self.uid == 0 else "/"

    @property
    def config_home(self) -> str:
        """Where the user's configuration lies (XDG base directories, which has a relative path ignored)."""
        named = self.environ.get("XDG_CONFIG_HOME", "")
        return named if named.startswith("/") else f"{self.home}/.config"

    def real(self, path: str) -> str:
        """Where this process finds `path`."""
        return self.root + path

    def exists(self, path: str) -> bool:
        """Whether something is there; a dangling link counts."""
        return os.path.lexists(self.real(path))

    def glob(self, pattern: str) -> tuple[str, ...]:
        """The paths that match, sorted, as the engine names them; `*` stands for a dot in front too, as for Go."""
        return tuple(sorted(path[len(self.root) :] for path in glob.glob(self.real(pattern), include_hidden=True)))

    def read(self, path: str) -> str | None:
        """The text of a configuration file, None where there is none.

        GpuhookError `engine-config-unreadable` for a directory, a dangling link, a missing right, a device, a file
        that is not UTF-8 or larger than 4 MiB.
        """
        data = self.read_bytes(path)
        if data is None:
            return None
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            raise _unreadable(path, f"line {line}: it is not UTF-8 text", "save it as UTF-8") from None

    def read_bytes(self, path: str) -> bytes | None:
        """As `read`, but for the encoding."""
        real = self.real(path)
        try:
            fd = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            if os.path.islink(real):
                target = os.readlink(real)
                raise _unreadable(
                    path, f"it is a link to {shown(target)}, which is not there", "make that file, or remove the link"
                ) from None
            return None
        except OSError as error:
            raise _unreadable(path, f"{error.strerror}", _hint(error)) from None
        try:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode):  # before open(), which takes no directory
                what = "a directory" if stat.S_ISDIR(mode) else "no regular file"
                raise _unreadable(path, f"it is {what}", "name the engine's configuration file: --config FILE")
            with open(fd, "rb", closefd=False) as file:
                data = file.read(_LIMIT + 1)
        except OSError as error:  # a failing disk, and files of /proc that can't be read as a whole
            raise _unreadable(path, f"{error.strerror}", _hint(error)) from None
        finally:
            os.close(fd)
        if len(data) > _LIMIT:
            raise _unreadable(path, "it is larger than 4 MiB", "name the engine's configuration file: --config FILE")
        return data

    def text(self, path: str) -> str:
        """A file that is looked at beside the matter: empty where it can't be read, whatever its encoding."""
        try:
            return (self.read_bytes(path) or b"").decode("utf-8", "surrogateescape")
        except GpuhookError:
            return ""

    def same(self, one: str, other: str) -> bool:
        """Whether two paths lead to the same file, there or not, by whatever links."""
        real = [os.path.realpath(self.real(path)) for path in (one, other)]
        return real[0] == real[1] or (all(map(os.path.exists, real)) and os.path.samefile(*real))

    def runnable(self, path: str) -> bool:
        """Whether `path` is a program."""
        real = self.real(path)
        return os.path.isfile(real) and os.access(real, os.X_OK)

    def find(self, name: str, but: str = "") -> str:
        """Where a program is: as a path, or in PATH and the usual places; empty where it is not. Never `but`."""
        folders = [part for part in self.environ.get("PATH", "").split(":") if part.startswith("/")]
        for path in [name] if "/" in name else [f"{folder}/{name}" for folder in (*folders, *_PLACES) if name]:
            if self.runnable(path) and not (but and self.same(path, but)):
                return path
        return ""

    def processes(self, program: str) -> Iterator[Process]:
        """The processes of a program, by their ids. One in a pid namespace below ours is a container's own."""
        for path in sorted(self.glob("/proc/[0-9]*/cmdline"), key=lambda path: int(path.split("/")[2])):
            argv = tuple(self.text(path).split("\0")[:-1])
            if not argv or os.path.basename(argv[0]) != program:
                continue
            status = dict(re.findall(r"^(Uid|NSpid):(.*)$", self.text(f"{path[:-8]}/status"), re.MULTILINE))
            if len(status.get("NSpid", "").split()) < 2:
                yield Process(int(path.split("/")[2]), int(status.get("Uid", "-1").split()[0]), argv)

    def which(self, program: str) -> str | None:
        """Where a program is, by the PATH of `environ`."""
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    def ask(self, *argv: str) -> str | None:
        """What a program prints; None where it is not there, fails, says more than 16 MiB or takes longer than ten
        seconds. One that took longer is not asked again: a hung daemon costs ten seconds, however often it is asked.
        """
        program = self.which(argv[0])
        if program is None or program in self._hung:
            return None
        end = time.monotonic() + _DEADLINE
        try:
            child = subprocess.Popen(  # noqa: S603 - argv is ours, the program is the administrator's
                [program, *argv[1:]],
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except (OSError, ValueError):  # ValueError: a NUL in a word that another program said
            return None
        with child:
            try:
                said = _heard(child, end)
                code = child.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._hung.add(program)
                return None
            finally:
                child.kill()
        return said.decode("utf-8", "replace") if code == 0 and len(said) <= _MOST else None

    def version(self, program: str) -> tuple[int, ...]:
        """The two or three numbers of a program's version, as it says itself; () where it does not."""
        said = self.ask(program, "--version") if program else None
        found = re.search(r"(?:^|\s)v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", said or "", re.ASCII)
        return tuple(int(part) for part in found.groups() if part) if found else ()


def _heard(child: subprocess.Popen[bytes], end: float) -> bytes:
    """What a program prints until it ends, or a byte more than `_MOST`; TimeoutExpired at `end`."""
    assert child.stdout
    said = bytearray()
    while len(said) <= _MOST:
        left = end - time.monotonic()
        if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
            raise subprocess.TimeoutExpired(child.args, _DEADLINE)
        part = os.read(child.stdout.fileno(), 1 << 16)
        if not part:
            return bytes(said)
        said += part
    child.kill()
    return bytes(said)


def _hint(error: OSError) -> str:
    """What to do about a file that can't be opened or read."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return "run this as the user whose file it is"
    return "name the engine's configuration file: --config FILE"


def _unreadable(path: str, why: str, hint: str) -> GpuhookError:
    return GpuhookError("engine-config-unreadable", f"{path} can't be read: {why}", hint)
