"""WSL2, simulated: a container gets Windows' driver through the installed shim and hook and the real runc."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import sim
from tests import bundles
from tests.conftest import World

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]
STORE = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0e1c8bd5c4aa7c2b"


@pytest.fixture
def windows(world: World, new_driver: Callable[..., Path]) -> Path:
    """A WSL2 with one GPU, whose driver each container of the world gets."""
    driver = new_driver(layout="wsl", gpus=1)
    world.use_driver(driver)
    return driver


@pytest.mark.parametrize("image", ["glibc", "lib64"])
@pytest.mark.parametrize("asked", ["all", "0"])
def test_all(
    any_shim: bundles.Runtime, windows: Path, world: World, new_bundle: NewBundle, image: str, asked: str
) -> None:
    """Libraries by soname from their own places, one device, nvidia-smi; and nothing of the driver elsewhere."""
    world.use_driver(windows)
    look = f"ls {STORE} /usr/lib/wsl/lib; ls /dev; grep -c ' {STORE}' /proc/self/mounts"
    libraries = "dlopen:libcuda.so.1 dlopen:libdxcore.so dlopen:libnvidia-encode.so.1"
    beside = f"dlopen:{STORE}/libnvidia-ptxjitcompiler.so.1"  # as others of the driver load it
    bundle = new_bundle(
        image,
        env=[f"NVIDIA_VISIBLE_DEVICES={asked}", "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"],
        args=[
            "sh",
            "-c",
            f"opendev {libraries} {beside} /dev/dxg && nvidia-smi -L && ldconfig && opendev {libraries}; {look}",
        ],
    )

    done = any_shim.run(bundle)

    assert (done.code, done.err) == (0, "")
    assert done.out.count("dlopen:libcuda.so.1: ok libcuda.so 580.95.05") == 2
    assert "/dev/dxg: ok" in done.out
    assert done.out.count("GPU-") == 1
    for name in ("nvcubins.bin", "libcuda_loader.so", "libnvdxgdmal.so.1"):
        assert name in done.out
    assert "nvidiactl" not in done.out
    assert "libd3d12" not in done.out  # graphics


def test_none(shim: bundles.Runtime, windows: Path, new_bundle: NewBundle) -> None:
    """The files, no device."""
    bundle = new_bundle(
        env=["NVIDIA_VISIBLE_DEVICES=none"], args=["sh", "-c", "opendev dlopen:libcuda.so.1; ls /dev/dxg"]
    )

    done = shim.run(bundle)

    assert "dlopen:libcuda.so.1: ok" in done.out
    assert "/dev/dxg: No such file or directory" in done.out + done.err


def test_refused_without_a_driver_on_windows(shim: bundles.Runtime, windows: Path, new_bundle: NewBundle) -> None:
    """R155: what NVIDIA's tools call `no adapters were found`, with what to do."""
    for path in windows.glob("usr/lib/wsl/drivers/nv_*/libcuda*"):
        path.unlink()

    done = shim.run(new_bundle(env=["NVIDIA_VISIBLE_DEVICES=all"]))

    assert done.code == 50
    assert "this is WSL2" in done.err
    assert "install NVIDIA's driver on Windows (never in Linux)" in done.err
    assert sim.init_count(windows) == 0
