"""The container engines: how each is told of gpuhook, how that is checked and how it is undone.

Off the hot path. An engine's module is pure but for what it reads through `Host`: `propose` says which values belong
into which files, `check` reads the configuration back as the engine would. Texts are edited by `jsontext` and
`tomltext`, files are written by `commit`, and nobody else writes any; `transaction` says what, and the way back.
"""

import importlib
from typing import Protocol, cast

from gpuhook.engines.host import Host
from gpuhook.engines.model import Finding, Options, Proposal

# name -> what it is in a line
NAMES = {
    "docker": "dockerd, rootful, rootless or snap",
    "containerd": "containerd and its CRI plugin; also those of k3s, rke2 and microk8s",
    "crio": "CRI-O",
    "podman": "podman, rootful or rootless",
}


class Engine(Protocol):
    """What the module of an engine has."""

    def propose(self, host: Host, options: Options) -> Proposal:
        """Which values belong into which files. GpuhookError `engine-...` where that can't be said."""

    def check(self, host: Host, options: Options) -> tuple[Finding, ...]:
        """The configuration as the engine would read it: would a GPU container work, and if not, why."""


def load(name: str) -> Engine:
    """The module of one of NAMES."""
    return cast("Engine", importlib.import_module(f"gpuhook.engines.{name}"))
