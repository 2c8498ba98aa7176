"""docker with gpuhook: configured by `gpuhook configure docker`, real containers with the simulated driver."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.archive import GPU
from tests.engines.configure import configure
from tests.engines.docker import Docker
from tests.engines.results import Results

pytestmark = pytest.mark.runc

KINDS = (("runc", "v1"), ("runc", "v2"), ("runc", "host"), ("crun", "v1"))
SEES = "dlopen:libcuda.so.1"
FOUND = "dlopen:libcuda.so.1: ok libcuda.so 580.95.05"


@pytest.fixture
def docker(request: pytest.FixtureRequest, engine: Callable[..., Any], sim_driver: Path) -> Iterator[Docker]:
    """The docker of a low-level runtime and a cgroup layout, configured, without containers."""
    low_level, layout = getattr(request, "param", KINDS[0])
    new: Docker = engine(Docker, layout)
    new.world.low_level = low_level
    new.world.use_driver(sim_driver)
    if "gpuhook" not in new.config.read_text():
        done = configure(new)
        assert done.code == 0, done
        new.reload()
    yield new
    new.remove_all()


each_docker = pytest.mark.parametrize("docker", KINDS, ids=" ".join, indirect=True)


@each_docker
def test_a_gpu(docker: Docker, results: Results) -> None:
    """The image says `all`: both GPUs. The command line says `1`: that one's node, and no way to the other's."""
    every = docker("run", "--rm", "--runtime=gpuhook", GPU, "opendev", SEES, "/dev/nvidia0", "/dev/nvidia1")
    assert (every.code, every.out) == (0, f"{FOUND}\n/dev/nvidia0: ok\n/dev/nvidia1: ok\n"), every

    asked = ["run", "--rm", "--runtime=gpuhook", "--env=NVIDIA_VISIBLE_DEVICES=1"]
    one = docker(*asked, GPU, "opendev", SEES, "/dev/nvidia1", "/dev/nvidia0")
    assert (one.code, one.out) == (1, f"{FOUND}\n/dev/nvidia1: ok\n/dev/nvidia0: No such file or directory\n"), one

    results.works(docker, "a GPU container")
