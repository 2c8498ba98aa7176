"""A container asks for GPUs and gets them, through the installed shim and hook and the real runc."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import bundles
from tests.conftest import World

pytestmark = pytest.mark.runc

LIBCUDA = "dlopen:libcuda.so.1"


@pytest.fixture
def gpu_world(world: World, sim_driver: Path) -> World:
    """A world whose driver is the simulated one."""
    world.use_driver(sim_driver)
    return world


def test_all_gpus(gpu_world: World, shim: bundles.Runtime, new_bundle: Callable[..., bundles.Bundle]) -> None:
    """`all`: libcuda by soname is the host's, and both GPUs' nodes open."""
    bundle = new_bundle(
        env=["NVIDIA_VISIBLE_DEVICES=all"],
        args=["opendev", LIBCUDA, "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"],
    )

    done = shim.run(bundle)

    assert (done.code, done.err) == (0, "")
    assert "580.95.05" in done.out
