"""A container that draws: descriptions at their places, the DRM nodes of its own GPU, 32-bit libraries, the profile."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuhook import sim
from gpuhook.sim.data import shared_object
from tests import bundles
from tests.conftest import World
from tests.images import MULTIARCH
from tests.runc.test_userns import mapped

pytestmark = [
    pytest.mark.runc,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the 32-bit libraries are of i386"),
]

NewBundle = Callable[..., bundles.Bundle]
EVERYTHING = "NVIDIA_DRIVER_CAPABILITIES=all"
V = "580.95.05"
PROFILE = "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
DESCRIPTIONS = (
    "etc/OpenCL/vendors/nvidia.icd",
    "etc/vulkan/icd.d/nvidia_icd.json",
    "etc/vulkan/implicit_layer.d/nvidia_layers.json",
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
    "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    "usr/share/nvidia/nvoptix.bin",
)


@pytest.fixture(scope="module")
def drawing_driver(place: Path) -> Iterator[Path]:
    """A simulated driver with its 32-bit libraries."""
    sim.create(place / "drawing", sim.SimOptions(layout="fedora", libraries32=True))
    yield place / "drawing"
    shutil.rmtree(place / "drawing")


@pytest.fixture(autouse=True)
def gpu_world(world: World, drawing_driver: Path) -> World:
    """The driver of each test is that one."""
    world.use_driver(drawing_driver)
    return world


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def test_all_capabilities(shim: bundles.Runtime, new_bundle: NewBundle) -> None:
    """Every description where its loader looks, none of Mesa's, GLX's and GBM's links, X modules."""
    libdir = f"/usr/lib/{MULTIARCH}"
    paths = [
        *(f"/{path}" for path in DESCRIPTIONS),
        f"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{V}",
        "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
    ]
    script = (
        f"for path in {' '.join(paths)}; do test -s $path || echo $path is missing; touch $path && echo written; done"
        f"; readlink {libdir}/libGLX_indirect.so.0; readlink {libdir}/gbm/nvidia-drm_gbm.so"
        "; readlink /usr/lib/xorg/modules/extensions/libglxserver_nvidia.so"
        "; ls /etc/vulkan/icd.d /usr/share/glvnd/egl_vendor.d"
    )
    bundle = new_bundle(env=["NVIDIA_VISIBLE_DEVICES=all", EVERYTHING], args=shell(script))

    done = shim.run(bundle)

    assert done.err.count("Read-only file system") == len(paths)
    assert done.out.splitlines() == [
        "libGLX_nvidia.so.0",
        "../libnvidia-allocator.so.1",
        f"libglxserver_nvidia.so.{V}",
        "/etc/vulkan/icd.d:",
        "nvidia_icd.json",
        "",
        "/usr/share/glvnd/egl_vendor.d:",
        "10_nvidia.json",
    ]


@pytest.mark.parametrize(("asked", "index"), [("0", 0), ("1", 1)])
def test_drm_nodes_of_its_own_gpu_alone(
    any_shim: bundles.Runtime,
    world: World,
    new_bundle: NewBundle,
    drawing_driver: Path,
    sim_driver: Path,
    asked: str,
    index: int,
) -> None:
    """By the kernel's word: card0 is another vendor's. Links by address lead to them; the other GPU's can't be made."""
    world.use_driver(drawing_driver)
    card, render, address = f"card{index + 1}", f"renderD{128 + index}", f"0000:{11 + index:02x}:00.0"
    other = (drawing_driver / f"dev/dri/card{2 - index}").stat().st_rdev
    script = (
        f"ls /dev/dri; opendev /dev/dri/{card} /dev/dri/{render}"
        f" /dev/dri/by-path/pci-{address}-card /dev/dri/by-path/pci-{address}-render; ls /dev/dri/by-path"
        f"; mknod /dev/forged c {os.major(other)} {os.minor(other)}; opendev /dev/forged; cat /{PROFILE}"
    )
    bundle = new_bundle(env=[f"NVIDIA_VISIBLE_DEVICES={asked}", EVERYTHING], args=shell(script))

    done = any_shim.run(bundle)

    before, _, after = done.out.partition("/dev/forged: ")
    assert before.splitlines() == [
        "by-path",
        card,
        render,
        f"/dev/dri/{card}: ok",
        f"/dev/dri/{render}: ok",
        f"/dev/dri/by-path/pci-{address}-card: ok",
        f"/dev/dri/by-path/pci-{address}-render: ok",
        f"pci-{address}-card",
        f"pci-{address}-render",
    ]
    reason, _, profile = after.partition("\n")
    assert reason in ("Operation not permitted", "No such file or directory")
    assert json.loads(profile)["profiles"][0]["settings"] == ["EGLVisibleDGPUDevices", 1 << index]


@pytest.mark.parametrize("words", ["", "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"], ids=["default", "video"])
def test_who_does_not_draw_gets_none_of_it(shim: bundles.Runtime, new_bundle: NewBundle, words: str) -> None:
    bundle = new_bundle(
        env=["NVIDIA_VISIBLE_DEVICES=all", *([words] if words else [])],
        args=shell(f"ls -d /dev/dri /etc/vulkan /usr/share/glvnd /{PROFILE} /etc/OpenCL/vendors/*"),
    )
    assert shim.run(bundle).out.splitlines() == ["/etc/OpenCL/vendors/nvidia.icd"]


@pytest.mark.parametrize(
    ("image", "narrow"), [("glibc", "usr/lib/i386-linux-gnu"), ("lib64", "usr/lib")], ids=["Debian", "Fedora"]
)
def test_compat32(shim: bundles.Runtime, new_bundle: NewBundle, image: str, narrow: str) -> None:
    """R61: the 32-bit libraries lie with the image's 32-bit C library, the others with the other."""
    wide = "usr/lib64" if image == "lib64" else f"usr/lib/{MULTIARCH}"
    bundle = new_bundle(
        image,
        env=["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,graphics,compat32"],
        args=shell(
            f"for name in libcuda.so.1 libGLX_nvidia.so.0; do for folder in {wide} {narrow}; do "
            "dd if=/$folder/$name bs=1 skip=4 count=1 2>/dev/null | od -An -tu1; done; done"
            f"; ls /{narrow} | grep nvidia-ml; opendev dlopen:libcuda.so.1"
        ),
    )
    (bundle.rootfs / narrow).mkdir(exist_ok=True)
    (bundle.rootfs / narrow / "libc.so.6").write_bytes(shared_object("libc.so.6"))

    done = shim.run(bundle)

    assert done.err == ""
    assert done.out.split()[:4] == ["2", "1", "2", "1"]
    assert done.out.splitlines()[4:] == ["dlopen:libcuda.so.1: ok libcuda.so 580.95.05"]


def test_compat32_brings_nothing_to_an_image_without_a_32_bit_side(
    shim: bundles.Runtime, new_bundle: NewBundle
) -> None:
    bundle = new_bundle(
        env=["NVIDIA_VISIBLE_DEVICES=all", EVERYTHING],
        args=shell("ls -d /usr/lib/i386* /usr/lib32 /lib32; ls /usr/lib | grep nvidia; opendev dlopen:libcuda.so.1"),
    )
    assert shim.run(bundle).out == "dlopen:libcuda.so.1: ok libcuda.so 580.95.05\n"


def _in_place_of_the_profile(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def act(root: Path) -> None:
        (root / PROFILE).parent.mkdir(parents=True)
        make(root / PROFILE)

    return act


WAYS = ("the hook alone", "a user namespace", "read-only root", "overlay", "everything over /dev")


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_start(
    shim: bundles.Runtime,
    runc: bundles.Runtime,
    world: World,
    new_bundle: NewBundle,
    drawing_driver: Path,
    folder: Path,
    way: str,
) -> None:
    """DRM nodes and descriptions are there whoever makes the nodes. In a volume at /dev nothing is made."""
    volume = folder / "dev"
    see = "opendev /dev/dri/card1 /dev/dri/renderD128; ls /dev/dri /dev/dri/by-path; ls /etc/vulkan/icd.d"
    options: dict[str, Any] = {"env": ["NVIDIA_VISIBLE_DEVICES=0", EVERYTHING], "args": shell(see)}
    runtime = shim
    if way == "the hook alone":
        runtime = runc
        hook = {"path": str(world.hook), "args": ["gpuhook-hook", "prestart"], "env": ["PATH=/usr/bin:/bin"]}
        options["hooks"] = {"prestart": [hook]}
    options |= {"readonly": way == "read-only root", "overlay": way == "overlay"}
    bundle = new_bundle(**options)
    if way == "a user namespace":
        bundle = mapped(bundle)
    if way == "everything over /dev":
        subprocess.run(["cp", "-a", drawing_driver / "dev", volume], check=True)
        for name in ("null", "zero", "full", "random", "urandom", "tty"):
            subprocess.run(["cp", "-a", f"/dev/{name}", volume], check=True)
        spec = bundle.spec
        spec["mounts"] = [item for item in spec["mounts"] if not item["destination"].startswith("/dev")]
        spec["mounts"].append(bundles.mount("/dev", "bind", str(volume), "rbind", "rprivate"))
        (bundle.path / "config.json").write_text(json.dumps(spec))

    done = runtime.run(bundle)

    assert "/dev/dri/card1: ok\n/dev/dri/renderD128: ok\n" in done.out, done
    assert done.out.endswith("nvidia_icd.json\n")
    assert ("pci-0000:0b:00.0-render" in done.out) is (way != "everything over /dev")
    assert not (volume / "dri/by-path").exists()


def test_mig_devices_with_and_without_graphics(world: World, shim: bundles.Runtime, new_bundle: NewBundle) -> None:
    """The DRM nodes of the GPU go to the one whose profile has graphics; both have their GPU's bit for EGL."""
    driver = world.path / "driver"
    sim.create(driver, sim.SimOptions(mig=("1=1/0+gfx,2/0",)))
    world.use_driver(driver)
    for asked, nodes in (("1:0", ["by-path", "card2", "renderD129"]), ("1:1", [])):
        bundle = new_bundle(
            env=[f"NVIDIA_VISIBLE_DEVICES={asked}", EVERYTHING], args=shell(f"cat /{PROFILE}; ls /dev/dri")
        )
        done = shim.run(bundle)
        assert '["EGLVisibleDGPUDevices", 2]' in done.out
        assert done.out.splitlines()[2:] == nodes


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a link out of the root": lambda root: os.symlink("../../../../../../etc", root / "etc/vulkan"),
    "a link to the host": lambda root: os.symlink("/proc/self/root/etc", root / "etc/nvidia"),
    "a file in the way": lambda root: (root / "etc/vulkan").write_text(""),
    "a directory at the file": _in_place_of_the_profile(os.mkdir),
    "a link at the file": _in_place_of_the_profile(lambda path: path.symlink_to("/etc/passwd")),
    "a pipe at the file": _in_place_of_the_profile(os.mkfifo),
}


@pytest.mark.parametrize("trap", HOSTILE)
def test_a_hostile_root_stops_or_harms_nothing(shim: bundles.Runtime, new_bundle: NewBundle, trap: str) -> None:
    """The files go in, or are left out with a warning; nothing of the host is written, and no link is followed."""
    bundle = new_bundle(
        env=["NVIDIA_VISIBLE_DEVICES=0", EVERYTHING], args=shell("opendev dlopen:libcuda.so.1; cat /etc/passwd")
    )
    HOSTILE[trap](bundle.rootfs)
    before = sorted(os.listdir("/etc"))

    done = shim.run(bundle)

    assert (done.code, done.err) == (0, "")
    assert "dlopen:libcuda.so.1: ok" in done.out
    assert "root:x:0:0" in done.out
    assert "EGLVisible" not in done.out
    assert sorted(os.listdir("/etc")) == before


def test_a_volume_of_the_users_stays(world: World, shim: bundles.Runtime, new_bundle: NewBundle, folder: Path) -> None:
    """A mount over a description's place, and one over its folder: nothing is made in them, and the log says so."""
    own = folder / "own"
    own.mkdir()
    (own / "mine.json").write_text("mine")
    mounts = [
        {"destination": "/etc/vulkan", "type": "bind", "source": str(own), "options": ["rbind", "rw"]},
        {
            "destination": "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
            "type": "bind",
            "source": str(own / "mine.json"),
            "options": ["bind"],
        },
    ]
    bundle = new_bundle(
        env=["NVIDIA_VISIBLE_DEVICES=0", EVERYTHING],
        args=shell("ls /etc/vulkan; cat /usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
        mounts=mounts,
    )

    done = shim.run(bundle)

    assert done.out == "mine.json\nmine"
    assert os.listdir(own) == ["mine.json"]
    for path in ("/etc/vulkan/icd.d/nvidia_icd.json", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"):
        assert f"left out {path}" in world.log


def test_r151_a_host_without_descriptions(world: World, shim: bundles.Runtime, new_bundle: NewBundle) -> None:
    """Graphics start all the same. It is the same at each start, so the log says it to who asks for everything alone,
    and `explain` and `doctor` say which packages are missing."""
    driver = world.path / "driver"
    sim.create(driver, sim.SimOptions(gpus=1))
    for path in ("usr/share/vulkan", "usr/share/glvnd", "usr/share/egl"):
        shutil.rmtree(driver / path)
    world.use_driver(driver)
    bundle = new_bundle(env=["NVIDIA_VISIBLE_DEVICES=0", EVERYTHING], args=["opendev", "dlopen:libGLX_nvidia.so.0"])
    done = shim.run(bundle)
    assert (done.code, done.err) == (0, "")
    assert "granted" in world.log
    assert " warning " not in world.log
    for command in (["explain", bundle.path], ["doctor"]):
        told = subprocess.run([world.cli, *command], capture_output=True, text=True).stdout
        assert "nvidia-vulkan-icd" in told, command

    world.use_driver(driver, '[log]\nlevel = "debug"\n')
    assert shim.run(bundle).code == 0
    assert "nvidia-vulkan-icd" in world.log


@pytest.mark.parametrize("capabilities", ["compute,utility", "all"])
def test_r153_a_broken_description_on_the_host_stops_nobody(
    world: World, shim: bundles.Runtime, new_bundle: NewBundle, capabilities: str
) -> None:
    driver = world.path / "driver"
    sim.create(driver, sim.SimOptions(gpus=1))
    (driver / "usr/share/vulkan/icd.d/nvidia_icd.json").write_text("{")
    world.use_driver(driver)
    bundle = new_bundle(
        env=["NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"],
        args=shell("opendev dlopen:libcuda.so.1; ls /etc/vulkan/icd.d"),
    )
    assert shim.run(bundle).out == "dlopen:libcuda.so.1: ok libcuda.so 580.95.05\n"


def test_r149_a_description_with_places_of_the_host(world: World, shim: bundles.Runtime, new_bundle: NewBundle) -> None:
    """NixOS: the container's names the library alone, and is no file of the host."""
    driver = world.path / "driver"
    sim.create(driver, sim.SimOptions(gpus=1, layout="nixos"))
    assert "/nix/store/" in next(driver.glob("nix/store/*/share/vulkan/icd.d/nvidia_icd.json")).read_text()
    world.use_driver(driver)
    bundle = new_bundle(env=["NVIDIA_VISIBLE_DEVICES=0", EVERYTHING], args=["cat", "/etc/vulkan/icd.d/nvidia_icd.json"])
    done = shim.run(bundle)
    assert json.loads(done.out)["ICD"] == {"library_path": "libGLX_nvidia.so.0", "api_version": "1.4.312"}
