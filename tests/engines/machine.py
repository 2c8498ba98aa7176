"""A machine of its own for container engines: namespaces, a root whose changes are in memory, one cgroup layout.

Its processes, mounts and network interfaces end with it, however a test ends: the first process waits for the end of a
pipe whose other end is pytest's. Cgroups are the machine's that all tests share, so an engine is told to keep to
`Machine.cgroup`, which is removed at the end.
"""

import functools
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.images import CHECKOUT

LAYOUTS = ("host", "v1", "v2")
PATH = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"  # /usr/local/bin may have another docker, or pyenv's python3
_LOG_LINES = 25
_CGROUPS = "gpuhook-test-"


@dataclass
class Result:
    """How a program ended."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit status {self.code}\n--- stdout\n{self.out}--- stderr\n{self.err}"


class Machine:
    """Namespaces that are one machine to an engine; a context manager.

    `folder`: short (socket names are limited to 108 bytes), and seen by both sides under its own name, as are the
    folders of `see`. `layout`: what is at /sys/fs/cgroup, see tests/in-cgroup.sh. `system`: the root file system, which
    is never written to: this machine's, or a folder with another Debian.
    """

    def __init__(self, folder: Path, layout: str = "host", *, system: Path = Path("/"), see: Sequence[Path] = ()):
        self.folder, self.layout, self.system = folder, layout, system
        self.cgroup = f"{_CGROUPS}{os.getpid()}-{folder.name}"
        self._see = see
        self._holder: subprocess.Popen[str] | None = None
        self._pid = 0
        self._running: list[Running] = []

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "root").mkdir()
        _sweep()
        with (self.folder / "machine.log").open("w") as log:
            self._holder = subprocess.Popen(
                [
                    *("unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--propagation", "private"),
                    *(CHECKOUT / "tests/in-cgroup.sh", self.layout, CHECKOUT / "tests/engines/machine.sh"),
                    *(self.system, self.folder, CHECKOUT, *self._see),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={"PATH": PATH},
                text=True,
            )
        assert self._holder.stdout
        ready, _, _ = select.select([self._holder.stdout], [], [], 20)
        said = self._holder.stdout.readline() if ready else ""
        if not said:
            self.close()
            raise RuntimeError(f"no machine with cgroups {self.layout}: {tail(self.folder / 'machine.log')}")
        self._pid = int(said)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the machine, and with them its mounts; remove its cgroups."""
        holder = self._holder
        if holder is None:
            return
        self._holder = None
        assert holder.stdin
        assert holder.stdout
        holder.stdin.close()
        try:
            holder.wait(20)
        except subprocess.TimeoutExpired:
            holder.kill()  # its child goes with it: --kill-child
            holder.wait(20)
        holder.stdout.close()
        for running in self._running:
            running.kill()
        for top in [*Path("/sys/fs/cgroup").glob(f"*/{self.cgroup}"), Path("/sys/fs/cgroup") / self.cgroup]:
            wait(functools.partial(_removed, top), f"the cgroup {top} to be empty", 10)

    def enter(self, *argv: str | Path, user: int = 0) -> list[str]:
        """The command line that runs `argv` in the machine, in its root folder."""
        within = ["nsenter", f"--target={self._pid}", "--mount", "--pid", "--net", "--"]
        if user:
            within += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
        return [*within, *map(str, argv)]

    def run(
        self,
        *argv: str | Path,
        user: int = 0,
        env: Mapping[str, str] | None = None,
        text: str = "",
        timeout: float = 60,
    ) -> Result:
        """Run a program to its end. Its environment is PATH, HOME and `env`. A containers' process that keeps the
        output open is not waited for. subprocess.TimeoutExpired when it takes too long; it is dead by then."""
        with self.start(*argv, user=user, env=env, text=text) as running:
            return running.result(timeout)

    def start(
        self, *argv: str | Path, user: int = 0, env: Mapping[str, str] | None = None, text: str = ""
    ) -> "Running":
        """As `run`, but not waited for."""
        return self._keep(Running(self.enter(*argv, user=user), environment(env), text))

    def daemon(self, *argv: str | Path, log: Path, env: Mapping[str, str] | None = None) -> "Running":
        """Start a program that lasts until it is told to end, or as long as the machine."""
        return self._keep(Running(self.enter(*argv), environment(env), log=log))

    def _keep(self, running: "Running") -> "Running":
        self._running = [*(each for each in self._running if not each.closed), running]
        return running

    def check(self, *argv: str | Path, **options: object) -> str:
        """`run`, and the output of a program that must not fail."""
        done = self.run(*argv, **options)  # type: ignore[arg-type]
        assert done.code == 0, f"{' '.join(map(str, argv))}: {done}"
        return done.out

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file of the machine's own root (in memory; gone with it)."""
        self.check("sh", "-c", 'mkdir -p "${1%/*}" && cat >"$1" && chmod "$2" "$1"', "sh", path, f"{mode:o}", text=text)

    def read(self, path: str) -> str:
        """A file of the machine's own root."""
        return self.check("cat", path)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """As an init system gives it; nothing of pytest's own."""
    return {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **(more or {})}


class Running:
    """A program that was started. Its output goes to files, since containers keep inherited pipes open."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], text: str = "", log: Path | None = None):
        self._argv = argv
        self._out = log.open("a+b") if log else tempfile.TemporaryFile()  # noqa: SIM115 - closed by `kill`
        self._err = self._out if log else tempfile.TemporaryFile()  # noqa: SIM115
        with tempfile.TemporaryFile() as given:
            given.write(text.encode())
            given.seek(0)
            self._process = subprocess.Popen(
                argv, stdin=given, stdout=self._out, stderr=self._err, env=env, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def closed(self) -> bool:
        """Whether it was killed, or had ended and was let go."""
        return self._out.closed

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def signal(self, number: signal.Signals) -> None:
        """Signal the program itself, which is the only child of nsenter."""
        nsenter = self._process.pid
        children = Path(f"/proc/{nsenter}/task/{nsenter}/children").read_text().split()
        os.kill(int(children[0]), number)

    def wait(self, timeout: float) -> bool:
        """Whether it has ended within that many seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End nsenter and the program, if they still run, and forget the output."""
        if not self.ended:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        self._out.close()
        self._err.close()

    def result(self, timeout: float = 60) -> Result:
        """Wait for the end. subprocess.TimeoutExpired, with what it said so far."""
        ended = self.wait(timeout)
        if not ended:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        texts = []
        for stream in (self._out, self._err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
        if not ended:
            raise subprocess.TimeoutExpired(self._argv, timeout, *texts)
        return Result(self._process.returncode, *texts)


def wait(what: Callable[[], object], words: str, seconds: float = 30, log: Path | None = None) -> None:
    """Wait until `what` is true. AssertionError naming `words`, with the end of a log."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds:g} s for {words}" + (f"\n{tail(log)}" if log else ""))
        time.sleep(0.03)


def tail(log: Path) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


def _removed(top: Path) -> bool:
    """Remove a tree of cgroups; False while one has processes."""
    if top.is_dir():
        for path, _, _ in os.walk(top, topdown=False):
            try:
                os.rmdir(path)
            except FileNotFoundError:
                pass
            except OSError:
                return False
    return True


def _sweep() -> None:
    """Remove the cgroups of runs that were killed."""
    root = Path("/sys/fs/cgroup")
    for top in [*root.glob(f"{_CGROUPS}*"), *root.glob(f"*/{_CGROUPS}*")]:
        if not Path("/proc", top.name.removeprefix(_CGROUPS).split("-")[0]).exists():
            _removed(top)
