"""dockerd, started for tests."""

import functools
import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conftest import World
from tests.engines.machine import Machine, Result, Running, tail, wait

# No network of its own: the tests use none, and bridges and firewall rules are the host's business.
FLAGS = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false")


class Docker:
    """A dockerd in a machine. `config` is its daemon.json, which a test may change and `reload`."""

    name = "docker"

    def __init__(self, machine: Machine, world: World):
        self.machine, self.world = machine, world
        self.folder = machine.folder
        self.config = self.folder / "daemon.json"
        self.log = self.folder / "dockerd.log"
        self.socket = self.folder / "docker.sock"
        self.env = {"DOCKER_HOST": f"unix://{self.socket}"}  # for whoever calls the client
        self._daemon: Running | None = None

    def start(self, env: Mapping[str, str] | None = None) -> None:
        """Start the daemon and wait until it answers."""
        if not self.config.exists():
            self.config.write_text("{}\n")
        self._daemon = self.machine.daemon(
            "dockerd",
            f"--config-file={self.config}",
            f"--host=unix://{self.socket}",
            f"--data-root={self.folder}/data",
            f"--exec-root={self.folder}/exec",
            f"--pidfile={self.folder}/dockerd.pid",
            f"--cgroup-parent=/{self.machine.cgroup}",
            *FLAGS,
            log=self.log,
            env=env,
        )
        wait(self._answers, "dockerd to answer", log=self.log)

    def _answers(self) -> bool:
        assert self._daemon
        assert not self._daemon.ended, f"dockerd has ended\n{tail(self.log)}"
        return self.socket.exists() and self("version").code == 0

    def stop(self) -> None:
        """End the daemon as an init system does, and the containers with it."""
        assert self._daemon
        self._daemon.signal(signal.SIGTERM)
        assert self._daemon.wait(30), f"dockerd does not end\n{tail(self.log)}"
        self._daemon.kill()

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def reload(self) -> None:
        """Have the daemon read daemon.json again: SIGHUP, as `systemctl reload docker` does."""
        assert self._daemon
        before = self._reloads()
        self._daemon.signal(signal.SIGHUP)
        wait(lambda: self._reloads() > before, "dockerd to read its configuration", 10, self.log)

    def _reloads(self) -> int:
        return self.log.read_text().count("Reloaded configuration")

    def __call__(self, *arguments: str | Path, timeout: float = 60, text: str = "") -> Result:
        """One call of the client."""
        return self.machine.run("docker", *arguments, env=self.env, timeout=timeout, text=text)

    def begin(self, *arguments: str | Path) -> Running:
        """A call of the client that is not waited for."""
        return self.machine.start("docker", *arguments, env=self.env)

    def check(self, *arguments: str | Path) -> str:
        """The output of a call that must not fail."""
        done = self(*arguments)
        assert done.code == 0, f"docker {' '.join(map(str, arguments))}: {done}\n{tail(self.log)}"
        return done.out

    def load(self, archive: Path) -> None:
        """Load images."""
        self.check("load", "--quiet", "--input", archive)

    def remove_all(self) -> None:
        """Remove what containers there are."""
        names = self.check("ps", "--all", "--quiet").split()
        if names:
            self.check("rm", "--force", *names)

    def inspect(self, container: str) -> Any:
        """What the daemon says of a container."""
        return json.loads(self.check("inspect", container))[0]

    def bundle(self, container: str) -> Path:
        """The bundle of a container that runs."""
        task = self.folder / "exec/containerd/daemon/io.containerd.runtime.v2.task/moby"
        return task / str(self.inspect(container)["Id"])

    @functools.cached_property
    def version(self) -> str:
        """The daemon's version."""
        return self.check("version", "--format", "{{.Server.Version}}").strip()
