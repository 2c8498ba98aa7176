"""The host as an engine's module sees it: files by the engine's own names, programs with a deadline.

A test gives another `root` (all files below it), another environment and a `PATH` with stand-ins.
"""

import glob
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuhook.errors import GpuhookError, shown

_DEADLINE = 10.0  # seconds for a program that is asked something; a hung daemon must not hang us
_LIMIT = 4 << 20  # bytes; no engine's configuration comes near


@dataclass(frozen=True)
class Host:
    """Files below `root`, the user `uid` and its `environ`. `uid` 0 is for the system's engines, else for rootless."""

    root: str = ""
    uid: int = field(default_factory=os.geteuid)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def home(self) -> str:
        """The user's home directory."""
        return self.environ.get("HOME") or "/root"

    @property
    def config_home(self) -> str:
        """Where the user's configuration lies (XDG base directories)."""
        return self.environ.get("XDG_CONFIG_HOME") or f"{self.home}/.config"

    def real(self, path: str) -> str:
        """Where this process finds `path`."""
        return self.root + path

    def exists(self, path: str) -> bool:
        """Whether something is there; a dangling link counts."""
        return os.path.lexists(self.real(path))

    def glob(self, pattern: str) -> tuple[str, ...]:
        """The paths that match, sorted, as the engine names them."""
        return tuple(sorted(path[len(self.root) :] for path in glob.glob(self.real(pattern))))

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
            raise _unreadable(path, f"{error.strerror}", "run this as the user whose file it is") from None
        try:
            kind = os.fstat(fd).st_mode >> 12
            if kind != 0o10:  # before open(), which takes no directory
                what = "a directory" if kind == 0o4 else "no regular file"
                raise _unreadable(path, f"it is {what}", "name the engine's configuration file: --config FILE")
            with open(fd, "rb", closefd=False) as file:
                data = file.read(_LIMIT + 1)
        finally:
            os.close(fd)
        if len(data) > _LIMIT:
            raise _unreadable(path, "it is larger than 4 MiB", "name the engine's configuration file: --config FILE")
        return data

    def which(self, program: str) -> str | None:
        """Where a program is, by the PATH of `environ`."""
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    def ask(self, *argv: str) -> str | None:
        """What a program prints; None where it is not there, fails or takes longer than ten seconds."""
        program = self.which(argv[0])
        if program is None:
            return None
        try:
            done = subprocess.run(  # noqa: S603 - argv is ours, the program is the administrator's
                [program, *argv[1:]],
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_DEADLINE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def _unreadable(path: str, why: str, hint: str) -> GpuhookError:
    return GpuhookError("engine-config-unreadable", f"{path} can't be read: {why}", hint)
