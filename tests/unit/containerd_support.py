"""A host with a containerd for the tests of its configuration: a fake one with stand-ins, or a real one's reading."""

import os
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuhook.engines import containerd
from gpuhook.engines.host import Host
from gpuhook.engines.model import Options, Proposal
from tests.unit.engine_support import carry_out, write

V2, V3 = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
MAIN = "/etc/containerd/config.toml"
OURS = "/usr/bin/gpuhook-runtime"

# The real ones: the one of the system, and others that are named by their paths in this variable, separated by colons.
REAL = [path for path in (shutil.which("containerd"), *os.environ.get("GPUHOOK_CONTAINERDS", "").split(":")) if path]


@dataclass
class Machine:
    """Files below `path`, and a containerd of some version in the PATH, or none."""

    path: Path

    def host(self, version: str | None = "1.6.20", uid: int = 0) -> Host:
        """The host as gpuhook sees it."""
        programs = self.path / "programs"
        programs.mkdir(exist_ok=True)
        (programs / "containerd").unlink(missing_ok=True)
        if version is not None:
            self.program(programs / "containerd", f"containerd github.com/containerd/containerd {version} 0123abc")
        return Host(root=str(self.path / "root"), uid=uid, environ={"PATH": str(programs), "HOME": "/home/me"})

    def program(self, path: Path, prints: str) -> None:
        """A stand-in that answers `--version`."""
        path.write_text(f'#!/bin/sh\n[ "$*" = --version ] && echo "{prints}"\n')
        path.chmod(0o755)

    def write(self, path: str, text: str = "") -> None:
        """A file of the host."""
        write(self.path / "root", path, text)

    def read(self, path: str) -> str:
        """What is in a file of the host."""
        return Path(f"{self.path}/root{path}").read_text()

    def configure(self, host: Host, options: Options | None = None) -> Proposal:
        """Propose and write."""
        proposal = containerd.propose(host, options or Options())
        carry_out(host, proposal)
        return proposal

    def tree(self, path: str = MAIN) -> dict[str, Any]:
        """A file of the host, parsed."""
        return tomllib.loads(self.read(path))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A host with no file at all."""
    (tmp_path / "root").mkdir()
    return Machine(tmp_path)


def dump(program: str, config: Path) -> dict[str, Any]:
    """What a real containerd makes of a configuration: the CRI plugin's table."""
    done = subprocess.run(
        [program, "--config", str(config), "config", "dump"], capture_output=True, text=True, timeout=20, cwd="/"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    plugins = tomllib.loads(done.stdout)["plugins"]
    found: dict[str, Any] = plugins.get(V3) or plugins[V2]
    return found
