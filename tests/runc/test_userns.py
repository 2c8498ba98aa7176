"""Containers with a user namespace of their own, made by a runtime that is root."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import bundles
from tests.conftest import World
from tests.images import MULTIARCH

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]
ALL = "NVIDIA_VISIBLE_DEVICES=all"
FIRST, SIZE = 100000, 65536
LIBCUDA = "dlopen:libcuda.so.1"


def mapped(bundle: bundles.Bundle) -> bundles.Bundle:
    """Give the container ids of its own, and its root file system to them, as `dockerd --userns-remap` does."""
    spec = bundle.spec
    spec["linux"]["namespaces"].append({"type": "user"})
    for key in ("uidMappings", "gidMappings"):
        spec["linux"][key] = [{"containerID": 0, "hostID": FIRST, "size": SIZE}]
    (bundle.path / "config.json").write_text(json.dumps(spec))
    for path in [bundle.rootfs, *bundle.rootfs.rglob("*")]:
        found = path.lstat()
        os.lchown(path, FIRST + found.st_uid, FIRST + found.st_gid)
    return bundle


def objects(bundle: bundles.Bundle) -> dict[str, tuple[int, int, int]]:
    """Inode and owner of all that lies in a root."""
    found = {}
    for path in bundle.rootfs.rglob("*"):
        status = path.lstat()
        found[str(path.relative_to(bundle.rootfs))] = (status.st_ino, status.st_uid, status.st_gid)
    return found


@pytest.mark.parametrize("overlay", [False, True], ids=["plain", "overlay"])
@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_libraries_and_nodes(
    any_shim: bundles.Runtime, world: World, sim_driver: Path, new_bundle: NewBundle, stage: str, overlay: bool
) -> None:
    """The driver works there, and what was made for it is the container's own: its root may change and remove it."""
    world.use_driver(sim_driver, f'[hook]\nstage = "{stage}"\n')
    sees = f"opendev {LIBCUDA} /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl"
    more = "nvidia-smi -L && ldconfig && rm /etc/ld.so.conf.d/00-gpuhook.conf && mkdir /tmp/nvidia-new"
    bundle = mapped(new_bundle(overlay=overlay, env=[ALL], args=["sh", "-c", f"{sees} && {more} && {sees}"]))
    before = objects(bundle)

    done = any_shim.run(bundle)

    assert (done.code, done.out.count(": ok")) == (0, 8), done.out + done.err
    made = {path: owner for path, owner in objects(bundle).items() if before.get(path, (0,))[0] != owner[0]}
    assert f"usr/lib/{MULTIARCH}/libcuda.so.1" in made
    assert "usr/bin/nvidia-smi" in made
    assert {path: owner[1:] for path, owner in made.items() if owner[1:] != (FIRST, FIRST)} == {}
    again = any_shim.run(bundle)
    assert again.code == 1, "mkdir finds what the first start made"
    assert again.out.count(": ok") == 4


def test_the_other_gpu_is_out_of_reach(any_shim: bundles.Runtime, new_bundle: NewBundle, sim_driver: Path) -> None:
    """The rules of the spec hold, and the nodes' mounts can't be made and used for another device."""
    number = (sim_driver / "dev/nvidia1").stat().st_rdev
    forge = f"mknod /dev/forged c {os.major(number)} {os.minor(number)}"
    script = f"opendev /dev/nvidia0; ls /dev; grep ' /dev/nvidia0 ' /proc/self/mountinfo; {forge}"
    bundle = mapped(new_bundle(env=["NVIDIA_VISIBLE_DEVICES=0"], args=["sh", "-c", script]))

    done = any_shim.run(bundle)

    assert "/dev/nvidia0: ok" in done.out
    assert "nvidia1" not in done.out
    assert " ro,nosuid,noexec,relatime " in done.out
    assert "Operation not permitted" in done.err
    assert "additionalGids" not in bundle.spec["process"]["user"]
    assert bundle.spec["linux"].get("devices") == []


def test_a_host_mount_that_is_restricted(
    any_shim: bundles.Runtime, world: World, new_driver: Callable[..., Path], new_bundle: NewBundle
) -> None:
    """The driver lies on a mount that is nosuid and nodev already: the copies keep that and get the rest."""
    driver = new_driver()
    world.use_driver(driver)
    libraries = str(driver / "usr")
    subprocess.run(["mount", "--bind", libraries, libraries], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,nosuid,nodev,noatime", libraries], check=True)
        bundle = mapped(new_bundle(env=[ALL], args=["opendev", LIBCUDA, "/dev/nvidia0"]))

        done = any_shim.run(bundle)
    finally:
        subprocess.run(["umount", libraries], check=True)

    assert (done.code, done.out.count(": ok")) == (0, 2), done.out + done.err
