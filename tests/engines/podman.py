"""podman for tests: no daemon, but storage and settings of its own. They lie where podman looks for them by itself,
since the machine's /etc is nobody else's."""

import functools
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.conftest import World
from tests.engines.machine import Machine, Result, Running

# Of the machine, not of a person, so not in the file that `gpuhook configure` edits. Root without CAP_SYS_RESOURCE can
# raise no limit, and podman asks for more than there is; a limit of processes needs a controller that a machine's
# cgroup version 2 may lack.
_MACHINE = """\
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
pids_limit = 0
log_driver = "k8s-file"
netns = "none"

[engine]
cgroup_manager = "cgroupfs" # no systemd runs
events_logger = "file"
pull_policy = "never"
"""
_STORAGE = """\
[storage]
driver = "{driver}"
graphroot = "{folder}/data"
runroot = "{folder}/run"
"""


class Podman:
    """podman in a machine, as root. `config` is its containers.conf in the machine's root."""

    name = "podman"
    user = 0
    driver = "overlay"

    def __init__(self, machine: Machine, world: World):
        self.machine, self.world = machine, world
        self.folder = machine.folder
        self.env = {"PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
        self.config = Path("/etc/containers/containers.conf")
        self.configured: tuple[str, ...] | None = None
        self._numbers = itertools.count()

    def start(self) -> None:
        """Write the machine's settings, and see that podman answers."""
        files, processes = self.machine.check("bash", "-c", "ulimit -Hn; ulimit -Hu").split()
        most = int(self.machine.read("/proc/sys/kernel/pid_max"))  # podman lowers its own limit to that first
        processes = str(most if processes == "unlimited" else min(most, int(processes)))
        settings = _MACHINE.format(files=files, processes=processes)
        self.machine.write("/etc/containers/containers.conf.d/00-machine.conf", settings)
        self.write(self.config.with_name("storage.conf"), _STORAGE.format(driver=self.driver, folder=self.folder))
        self.check("info")

    def write(self, path: Path, text: str) -> None:
        """Write a file as the user whose podman it is."""
        script = 'mkdir -p "${1%/*}" && cat >"$1"'
        done = self.machine.run("sh", "-c", script, "sh", path, text=text, user=self.user, env=self.env)
        assert done.code == 0, done

    def configure(self, *options: str) -> None:
        """`gpuhook configure podman` with these options and none from before, by the user whose podman it is."""
        if self.configured != options:
            self.unconfigure()
            self.configure_also(*options)

    def configure_also(self, *options: str) -> None:
        """`gpuhook configure podman`, on top of what is configured."""
        self.gpuhook("configure", "podman", *options)
        self.configured = (*(self.configured or ()), *options)

    def unconfigure(self) -> None:
        """`gpuhook unconfigure podman`, where it was configured."""
        if self.configured is not None:
            self.gpuhook("unconfigure", "podman")
            self.configured = None

    def gpuhook(self, *arguments: str) -> str:
        """What the command line for people says to the user whose podman it is."""
        return self.machine.check(self.world.cli, *arguments, user=self.user, env=self.env)

    @property
    def state(self) -> Path:
        """gpuhook's files of this user: compiled configuration, driver record; rootless: its log."""
        return self.world.state

    @property
    def log(self) -> str:
        """gpuhook's log of this user."""
        return self.world.log

    @functools.cached_property
    def version(self) -> str:
        """podman's version."""
        return self.machine.check("podman", "--version").split()[2]

    def __call__(self, *arguments: str | Path, timeout: float = 60) -> Result:
        """One call of podman."""
        return self.machine.run("podman", *arguments, user=self.user, env=self.env, timeout=timeout)

    def check(self, *arguments: str | Path) -> str:
        """The output of a call that must not fail."""
        done = self(*arguments)
        assert done.code == 0, f"podman {' '.join(map(str, arguments))}: {done}"
        return done.out

    def run(self, *arguments: str | Path, runtime: str = "gpuhook") -> Result:
        """`podman run` with that runtime (empty: with podman's default)."""
        with self.begin_run(*arguments, runtime=runtime) as begun:
            return begun.result()

    def begin_run(self, *arguments: str | Path, runtime: str = "gpuhook") -> "Run":
        """As `run`, but not waited for."""
        log = self.folder / f"container{next(self._numbers)}.log"
        words = ["podman", *self.run_words(runtime), f"--log-opt=path={log}", *arguments]
        return Run(self.machine.start(*words, user=self.user, env=self.env), log)

    def run_words(self, runtime: str = "gpuhook") -> list[str]:
        """What comes before the options of `podman run`."""
        parent = [] if self.user else [f"--cgroup-parent=/{self.machine.cgroup}"]
        return [*([f"--runtime={runtime}"] if runtime else []), "run", *parent]

    def load(self, archive: Path) -> None:
        """Load images."""
        self.check("load", "--quiet", "--input", archive)

    def remove_all(self) -> None:
        """Remove what containers there are."""
        self.check("rm", "--all", "--force", "--time=0")

    def inspect(self, container: str) -> Any:
        """What podman says of a container."""
        return json.loads(self.check("container", "inspect", container))[0]

    def stop(self) -> None:
        """There is no daemon; what runs ends with the machine."""


@dataclass
class Run:
    """A `podman run` that was started. What the container says is taken from its log: podman attaches to a container
    that has begun, and on a busy machine misses what a short one says."""

    running: Running
    log: Path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.running.kill()

    def result(self) -> Result:
        """Wait for the end. `err` is podman's own where no container said anything there."""
        done = self.running.result()
        said = {"stdout": "", "stderr": ""}
        for line in self.log.read_text().splitlines() if self.log.exists() else ():
            _, stream, tag, text = line.split(" ", 3)
            said[stream] += text + ("\n" if tag == "F" else "")  # P: the line goes on
        return Result(done.code, said["stdout"], said["stderr"] or done.err)


class RootlessPodman(Podman):
    """podman of a user with subordinate numbers. `config` is in the user's home."""

    name = "rootless podman"
    user = 1234
    driver = "vfs"

    def __init__(self, machine: Machine, world: World):
        super().__init__(machine, world)
        self.home = self.folder / "home"
        self.env |= {"HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.folder / "xdg")}
        self.config = self.home / ".config/containers/containers.conf"
        self.folder = self.home

    def start(self) -> None:
        """Make the user first."""
        name = "gpuhook-test"
        line = f"{name}:x:{self.user}:{self.user}::{self.home}:/bin/sh"
        script = 'echo "$1" >>/etc/passwd; for file in subuid subgid; do echo "$2" >>/etc/$file; done'
        self.machine.check("sh", "-c", script, "sh", line, f"{name}:1000000:65536")
        for path in (self.home, Path(self.env["XDG_RUNTIME_DIR"])):
            path.mkdir(mode=0o700)
            os.chown(path, self.user, self.user)
        super().start()

    @property
    def state(self) -> Path:
        return Path(self.env["XDG_RUNTIME_DIR"]) / "gpuhook"

    @property
    def log(self) -> str:
        file = self.state / "gpuhook.log"
        return file.read_text() if file.exists() else ""
