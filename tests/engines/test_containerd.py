"""containerd with gpuhook, by `ctr` and by the CRI plugin as kubelet calls it, configured by `gpuhook configure
containerd`; real containers with the simulated driver.

tests/long/engines.py runs these tests with newer systems, by a fixture `system` of its own.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.archive import GPU
from tests.engines.configure import configure
from tests.engines.containerd import Containerd
from tests.engines.cri import Container
from tests.engines.results import Results

pytestmark = pytest.mark.runc

KINDS = (("runc", "v1"), ("runc", "v2"), ("crun", "v1"))
FIRST = (("runc", "v1"),)
LIBCUDA = "dlopen:libcuda.so.1"
FOUND = "dlopen:libcuda.so.1: ok libcuda.so 580.95.05\n"
SEES = ("opendev", LIBCUDA, "/dev/nvidia0", "/dev/nvidia1")
SEEN = f"{FOUND}/dev/nvidia0: ok\n/dev/nvidia1: ok\n"


@pytest.fixture
def containerd(
    request: pytest.FixtureRequest, engine: Callable[..., Any], system: Path, sim_driver: Path
) -> Iterator[Containerd]:
    """The containerd of a low-level runtime and a cgroup layout, configured, without containers."""
    low_level, layout = request.param
    new: Containerd = engine(Containerd, layout, system)
    new.world.low_level = low_level
    new.world.use_driver(sim_driver)
    if "runtimes.gpuhook" not in new.config.read_text():
        configure(new)
        new.restart()
    yield new
    new.remove_all()


def each(kinds: tuple[tuple[str, str], ...]) -> pytest.MarkDecorator:
    """The test runs with each of these low-level runtimes and cgroup layouts."""
    return pytest.mark.parametrize("containerd", kinds, ids=" ".join, indirect=True)


def forge(node: Path) -> str:
    """Shell that makes a node of a device's number and opens it."""
    device = node.stat().st_rdev
    return f"mknod /dev/forged c {device >> 8} {device & 0xFF} && opendev /dev/forged"


@each(KINDS)
def test_a_gpu_by_ctr(containerd: Containerd, results: Results, sim_driver: Path) -> None:
    """The image says `all`: both GPUs. The command line says `1`: that one's node, and no way to the other's."""
    every = containerd.run(GPU, *SEES)
    assert (every.code, every.out) == (0, SEEN), every

    script = f"opendev {LIBCUDA} /dev/nvidia1; ls -d /dev/nvidia0; {forge(sim_driver / 'dev/nvidia0')}"
    one = containerd.run(GPU, "sh", "-c", script, options=["--env=NVIDIA_VISIBLE_DEVICES=1"])
    assert one.out == f"{FOUND}/dev/nvidia1: ok\n/dev/forged: Operation not permitted\n", one
    assert "/dev/nvidia0: No such file" in one.err

    results.works(containerd, "GPU container by ctr")


@each(KINDS)
def test_a_gpu_by_the_cri(containerd: Containerd, results: Results) -> None:
    """A pod with the runtime handler that `configure` made."""
    with containerd.cri.pod("gpuhook") as pod:
        assert pod.run(Container(GPU, SEES)) == (0, SEEN.rstrip())

    results.works(containerd, "GPU container by the CRI")
