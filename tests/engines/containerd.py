"""containerd for tests: its client `ctr`, and its plugin for the Container Runtime Interface."""

import functools
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import World
from tests.engines import archive
from tests.engines.cri import Client, CriError
from tests.engines.daemon import Daemon
from tests.engines.machine import Machine, Result, Running
from tests.engines.results import Results

TABLE = 'plugins."io.containerd.grpc.v1.cri"'
SPIED = "spied"  # a runtime whose program is FOLDER/spied: for a test to make
# Pods are on the host's network, so there is no CNI plugin. Root of a test machine may lack CAP_SYS_RESOURCE, without
# which no score of the OOM killer can be lowered.
_CONFIG = f"""\
# An administrator's own words.
version = 2
root = "FOLDER/data"
state = "FOLDER/state"

[grpc]
  address = "FOLDER/containerd.sock"
[ttrpc]
  address = "FOLDER/containerd.sock.ttrpc"

[{TABLE}]
  sandbox_image = "{archive.PAUSE}"
  restrict_oom_score_adj = true
  disable_cgroup = NO_CGROUP
  [{TABLE}.cni]
    conf_dir = "FOLDER/cni"
  [{TABLE}.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"   # runc's own shim
    [{TABLE}.containerd.runtimes.runc.options]
      Root = "FOLDER/runc"
  [{TABLE}.containerd.runtimes.{SPIED}]
    runtime_type = "io.containerd.runc.v2"
    [{TABLE}.containerd.runtimes.{SPIED}.options]
      BinaryName = "FOLDER/{SPIED}"
"""
_numbers = itertools.count(1)


class Containerd(Daemon):
    """A containerd in a machine; `config` is its configuration, which it reads at its start alone. A call is one of
    `ctr`, in its namespace `default`; `cri` calls the CRI plugin, whose containers are in the namespace `k8s.io`."""

    name = "containerd"
    client = "ctr"

    def __init__(self, machine: Machine, world: World):
        super().__init__(machine, world, "containerd.toml", "containerd.sock")
        self.env = {"CONTAINERD_ADDRESS": str(self.socket)}
        self.cri = Client(self.socket, self.folder / "pods", cgroup=f"/{machine.cgroup}")

    def own(self) -> str:
        """A file with comments, and with indentation as containerd's own."""
        return _CONFIG.replace("FOLDER", str(self.folder)).replace("NO_CGROUP", str(self._lacks_cpu).lower())

    @functools.cached_property
    def _lacks_cpu(self) -> bool:
        """Whether there is only a cgroup version 2 without the controller `cpu`, for whose weight every pod asks."""
        found = self.machine.run("grep", "-qw", "cpu", "/sys/fs/cgroup/cgroup.controllers")
        return self.machine.layout == "v2" and found.code != 0

    @property
    def major(self) -> int:
        """The first part of the version."""
        return int(self.version.partition(".")[0])

    def need_pods(self, results: Results) -> None:
        """Skip the test where containerd can't run any pod, with gpuhook or without, once a pod has proven that."""
        if self._lacks_cpu and self.major >= 2:
            with pytest.raises(CriError, match=r"/cpu\.weight: no such file or directory"), self.cri.pod("runc"):
                pass
            why = "containerd 2 has no disable_cgroup, and the tests' cgroup v2 lacks the controller cpu"
            results.fails(self, "GPU container by the CRI", why)
            pytest.skip(why)

    def command(self) -> list[str]:
        return ["containerd", f"--config={self.config}"]

    def _answers(self) -> bool:
        return super()._answers() and self.cri.ready()

    @functools.cached_property
    def version(self) -> str:
        return self.cri.version().split()[-1]

    def load(self, images: Path) -> None:
        """Load images for both clients."""
        for namespace in ("default", "k8s.io"):
            self.check("--namespace", namespace, "images", "import", images)

    def run(self, image: str, *argv: str | Path, options: Sequence[str] = ()) -> Result:
        """`ctr run --rm` with gpuhook; ctr reads no configuration of runtimes."""
        return self(*self._run("--rm", *options, image=image, argv=argv))

    def begin_run(self, image: str, *argv: str | Path, options: Sequence[str] = ()) -> Running:
        """As `run`, not waited for."""
        return self.begin(*self._run("--rm", *options, image=image, argv=argv))

    def detach(self, name: str, image: str, *argv: str | Path) -> None:
        """`ctr run --detach` with gpuhook: a container that lasts."""
        self.check(*self._run("--detach", image=image, argv=argv, name=name))

    def _run(self, *options: str, image: str, argv: Sequence[str | Path], name: str = "") -> list[str | Path]:
        name = name or f"c{next(_numbers)}"
        binary = f"--runc-binary={self.world.runtime}"
        # ctr asks for a weight too, if it isn't told otherwise
        cgroup = (f"--cgroup=/{self.machine.cgroup}/{name}", "--cpu-shares=0")
        return ["run", binary, *cgroup, *options, image, name, *argv]

    def remove_all(self) -> None:
        """Remove what pods and containers there are."""
        self.cri.remove_all()
        for task in self.check("tasks", "list", "--quiet").split():
            self.check("tasks", "delete", "--force", task)
        names = self.check("containers", "list", "--quiet").split()
        if names:
            self.check("containers", "delete", *names)

    def pid(self, container: str) -> int:
        """The first process of a pod's container or sandbox, as the machine numbers it."""
        for line in self.check("--namespace=k8s.io", "tasks", "list").splitlines()[1:]:
            if line.split()[0] == container:
                return int(line.split()[1])
        raise AssertionError(f"no task of {container}")

    def spec(self, container: str) -> Any:
        """What the runtime of a pod's container or sandbox was called with."""
        return json.loads(self.check("--namespace=k8s.io", "containers", "info", "--spec", container))
