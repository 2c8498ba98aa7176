"""dockerd, started for tests."""

import functools
import json
import signal
from pathlib import Path
from typing import Any

from tests.conftest import World
from tests.engines.daemon import Daemon
from tests.engines.machine import Machine, wait

# No network of its own: the tests use none, and bridges and firewall rules are the host's business.
FLAGS = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false")


class Docker(Daemon):
    """A dockerd in a machine; `config` is its daemon.json."""

    name = client = "docker"

    def __init__(self, machine: Machine, world: World):
        super().__init__(machine, world, "daemon.json", "docker.sock")
        self.env = {"DOCKER_HOST": f"unix://{self.socket}"}

    def own(self) -> str:
        return "{}\n"

    def command(self) -> list[str]:
        return [
            "dockerd",
            f"--config-file={self.config}",
            f"--host=unix://{self.socket}",
            f"--data-root={self.folder}/data",
            f"--exec-root={self.folder}/exec",
            f"--pidfile={self.folder}/dockerd.pid",
            f"--cgroup-parent=/{self.machine.cgroup}",
            *FLAGS,
        ]

    @functools.cached_property
    def version(self) -> str:
        return self.check("version", "--format", "{{.Server.Version}}").strip()

    def reload(self) -> None:
        """Have the daemon read daemon.json again: SIGHUP, as `systemctl reload docker` does."""
        before = self._reloads()
        self.signal(signal.SIGHUP)
        wait(lambda: self._reloads() > before, "dockerd to read its configuration", 10, self.log)

    def _reloads(self) -> int:
        return self.log.read_text().count("Reloaded configuration")

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
