"""MIG devices through the installed shim and hook and the real runc: a container gets its own and no other."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuhook import sim
from gpuhook.sim import state
from tests import bundles
from tests.conftest import World

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]
CAPS = "/dev/nvidia-caps/nvidia-cap"


@pytest.fixture(scope="module")
def divided(place: Path) -> Path:
    """A host with a GPU of three MIG devices and a whole GPU."""
    sim.create(place / "divided", sim.SimOptions(mig=("0=1/0,2/0,3/0",)))
    return place / "divided"


@pytest.fixture
def driver(world: World, divided: Path) -> Path:
    """The driver of each test is that one."""
    world.use_driver(divided)
    return divided


def capabilities(gi: int) -> tuple[str, str]:
    """The nodes of compute instance 0 of a GPU instance of GPU 0."""
    return f"{CAPS}{state.capability(0, gi)}", f"{CAPS}{state.capability(0, gi, 0)}"


def uuids(driver: Path) -> list[str]:
    """The ids of the MIG devices, in order."""
    lines = (driver / "sim/nvml.conf").read_text().splitlines()
    return [line.split()[-1] for line in lines if line.startswith("mig = ") and "MIG-" in line]


@pytest.mark.parametrize("cgroup", ["v1", "v2"])
@pytest.mark.parametrize("form", ["uuid", "beginning", "old", "index"])
def test_one_mig_device(
    shim: bundles.Runtime, new_bundle: NewBundle, driver: Path, world: World, form: str, cgroup: str
) -> None:
    """R146: its parent's node and its own capabilities are there; another's are not, and cannot be made and opened."""
    parent = (driver / "sim/nvml.conf").read_text().partition("gpu = ")[2].split()[0]
    mine = uuids(driver)[1]
    asked = {"uuid": mine, "beginning": mine[:9], "old": f"MIG-{parent}/2/0", "index": "0:1"}[form]
    granted, other = capabilities(2), capabilities(1)
    number = (driver / other[1].lstrip("/")).stat().st_rdev
    assert number not in {(driver / path.lstrip("/")).stat().st_rdev for path in granted}
    forge = f"mknod /dev/forged c {os.major(number)} {os.minor(number)} && opendev /dev/forged"
    bundle = new_bundle(
        env=[f"NVIDIA_VISIBLE_DEVICES={asked}"],
        args=[
            "sh",
            "-c",
            f"opendev /dev/nvidia0 {' '.join(granted)} && nvidia-smi -L; ls /dev/nvidia-caps /dev; {forge}",
        ],
    )

    done = bundles.within(shim, cgroup).run(bundle)

    assert all(f"{path}: ok" in done.out for path in ("/dev/nvidia0", *granted)), done
    assert "/dev/forged: EPERM" in done.out.replace("Operation not permitted", "EPERM"), done
    assert done.out.count("UUID: MIG-") == 1
    assert mine in done.out
    assert not any(path.rpartition("/")[2] in done.out.split() for path in other)
    assert "nvidia1" not in done.out
    assert done.code != 0
    assert mine in world.log


def test_all_on_a_mixed_machine(shim: bundles.Runtime, new_bundle: NewBundle, driver: Path) -> None:
    """All MIG devices and the whole GPU; rights over them are not part of it."""
    nodes = " ".join(["/dev/nvidia0", "/dev/nvidia1", *capabilities(1), *capabilities(2), *capabilities(3)])
    bundle = new_bundle(
        env=["NVIDIA_VISIBLE_DEVICES=all"],
        args=["sh", "-c", f"opendev {nodes} && nvidia-smi -L && ls /dev/nvidia-caps"],
    )

    done = shim.run(bundle)

    assert done.code == 0, done
    assert [uuid in done.out for uuid in uuids(driver)] == [True] * 3
    assert not {"nvidia-cap1", "nvidia-cap2"} & set(done.out.split())


def test_rights_over_all_mig_devices(shim: bundles.Runtime, new_bundle: NewBundle, driver: Path) -> None:
    """R147: their nodes for a privileged container, an error that names the variable for any other."""
    options = {
        "env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all"],
        "args": ["opendev", f"{CAPS}1", f"{CAPS}2"],
    }
    done = shim.run(new_bundle(**options, capabilities=["CAP_SYS_ADMIN"]))
    assert (done.code, done.out.count(": ok")) == (0, 2), done

    done = shim.run(new_bundle(**options))
    assert done.code == 35
    assert "NVIDIA_MIG_CONFIG_DEVICES" in done.logged[-1]["msg"]


def test_an_unknown_mig_device_is_answered_by_those_there_are(
    shim: bundles.Runtime, new_bundle: NewBundle, driver: Path
) -> None:
    """R27."""
    done = shim.run(new_bundle(env=["NVIDIA_VISIBLE_DEVICES=MIG-GPU-b8ea3855-276c-c9cb-b366-c6fa655957c5/1/0"]))
    assert done.code == 31
    assert all(uuid in done.logged[-1]["msg"] for uuid in uuids(driver))


def test_volume_mounts_annotations_and_swarm(
    shim: bundles.Runtime, new_bundle: NewBundle, driver: Path, world: World
) -> None:
    """Each further way to ask, from the launcher on; closed ones change nothing of the spec."""
    mount = bundles.mount("/var/run/nvidia-container-devices/1", "bind", "/dev/null", "bind")
    ways: dict[str, dict[str, Any]] = {
        "mounts": {"mounts": [mount]},
        "annotation": {"annotations": {"cdi.k8s.io/plugin_x": "nvidia.com/gpu=1"}},
        "swarm": {"env": ["DOCKER_RESOURCE_NVIDIA-GPU=1"]},
        "label": {"annotations": {"com.nvidia.volumes.needed": "nvidia_driver"}},
    }
    args = ["sh", "-c", "opendev /dev/nvidia1"]
    for way, options in ways.items():
        assert shim.run(new_bundle(**options, args=args)).code != 0, way
    world.use_driver(
        driver,
        "[request]\naccept-env-when-unprivileged = true\naccept-devices-as-volume-mounts = true\n"
        'accept-label-annotations = true\nannotation-prefixes = ["cdi.k8s.io/"]\n'
        'swarm-resources = ["DOCKER_RESOURCE_NVIDIA-GPU"]\n',
    )
    for _ in range(2):  # once with the configuration read by Python, once as the launcher finds it compiled
        for way, options in ways.items():
            done = shim.run(new_bundle(**options, args=args))
            assert (done.code, "/dev/nvidia1: ok" in done.out) == (0, True), (way, done)
