"""A container on each kind of host: its programs load the driver by soname, wherever the host keeps it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import sim
from tests import bundles
from tests.conftest import World
from tests.unit.test_hosts import hosts, roots

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]
V = sim.SimOptions().driver
ALL, EVERYTHING = "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvcuvid.so.1", "libGLX_nvidia.so.0", "libnvidia-opencl.so.1")
LOADS = " ".join(f"dlopen:{name}" for name in LIBRARIES)

__all__ = ["hosts"]  # a fixture: the hosts that the plans are made for


@pytest.mark.parametrize("layout", [name for name, layout in sim.LAYOUTS.items() if not layout.windows])
def test_what_the_plan_says_works(
    layout: str, hosts: Callable[[str], Path], world: World, shim: bundles.Runtime, new_bundle: NewBundle
) -> None:
    """Each library's own dependencies, nvidia-smi, firmware, a description and the devices, at once and after ldconfig
    ran in there; in an image of other folders than the host's. (WSL2: test_wsl.)"""
    world.configure(roots(layout, hosts(layout)))
    look = f"opendev {LOADS} /dev/nvidia0 /dev/nvidia1 /dev/nvidia-uvm"
    script = f"{look} && nvidia-smi -L && ldconfig && {look}; ls /lib/firmware/nvidia/{V} /etc/vulkan/icd.d"
    image = "glibc" if sim.LAYOUTS[layout].libraries.startswith("usr/lib64") else "lib64"

    done = shim.run(new_bundle(image, env=[ALL, EVERYTHING], args=["sh", "-c", script]))

    assert (done.code, done.err) == (0, ""), done.out
    assert done.out.count(": ok") == 2 * (len(LIBRARIES) + 3), done.out
    assert done.out.count(f" {V}\n") == 2 * len(LIBRARIES), done.out
    assert done.out.count("GPU-") == 2
    assert {"gsp_ga10x.bin", "nvidia_icd.json"} <= set(done.out.split())
    assert " warning " not in world.log


def test_r58_a_driver_of_years_to_come(
    world: World, shim: bundles.Runtime, new_bundle: NewBundle, new_driver: Callable[..., Path]
) -> None:
    """A 7xx branch: two libraries that nobody named and one that was renamed can be loaded whatever was asked for."""
    newer = "735.21.03"
    driver = new_driver(driver=newer, cuda="15.2", extra_libraries=("libnvidia-newthing", "libnvoracle"))
    (old,) = driver.rglob(f"libnvidia-ptxjitcompiler.so.{newer}")
    old.rename(old.with_name(f"libnvidia-tilejit.so.{newer}"))
    world.use_driver(driver)
    new = ("libnvidia-newthing.so.1", "libnvoracle.so.1", f"libnvidia-tilejit.so.{newer}")
    arguments = ["opendev", *(f"dlopen:{name}" for name in new), "/dev/nvidia0"]
    for word in ("utility", "compute", "video", "graphics", "ngx"):
        done = shim.run(new_bundle(env=[ALL, f"NVIDIA_DRIVER_CAPABILITIES={word}"], args=arguments))
        assert (done.code, done.out.count(": ok"), done.out.count(f" {newer}\n")) == (0, 4, 3), (word, done)


LINKS = {
    "as Debian's": "usr/lib",
    "absolute": "/usr/lib",
    "climbing": "../../../../../usr/lib",
    "a folder": "",
}


@pytest.mark.parametrize("text", LINKS.values(), ids=LINKS)
def test_r65_firmware_goes_through_the_images_link(
    text: str, world: World, shim: bundles.Runtime, new_bundle: NewBundle, sim_driver: Path
) -> None:
    """/lib is a link in the image, and each kind of it leads to a folder inside; a second start finds the file."""
    world.use_driver(sim_driver)
    path = f"/lib/firmware/nvidia/{V}/gsp_ga10x.bin"
    bundle = new_bundle("lib64", env=[ALL], args=["sh", "-c", f"cmp {path} /usr{path}; wc -c {path}"])
    link = bundle.rootfs / "lib"
    link.unlink()
    if text:
        link.symlink_to(text)
    else:
        link.mkdir()
        loader = bundle.rootfs / "usr/lib/ld-linux-aarch64.so.1"
        if loader.exists():
            shutil.copy(loader, link)
    size = next(sim_driver.rglob("gsp_ga10x.bin")).stat().st_size

    for _ in range(2):
        done = shim.run(bundle)

        assert done.out.endswith(f"{size} {path}\n"), done
        assert ("No such file" in done.err) is (text == "")
    assert "left out" not in world.log
