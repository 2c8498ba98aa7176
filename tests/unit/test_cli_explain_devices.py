"""`gpuhook explain` of devices beside the GPUs, of nodes that a boot left missing, and of a server without screens."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuhook import sim
from tests.conftest import World
from tests.unit.driver_support import copy_of

Explain = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def driver(world: World, sim_driver: Path, folder: Path) -> Path:
    """A driver of this test's own."""
    made = copy_of(sim_driver, folder / "driver")
    world.use_driver(made)
    return made


@pytest.fixture
def explain(world: World, driver: Path) -> Explain:
    """The installed command with variables beside `all`: its document and its text."""

    def run(*items: str) -> tuple[dict[str, Any], str]:
        words = [str(world.cli), "explain", "--env", "NVIDIA_VISIBLE_DEVICES=all"]
        words += [word for item in items for word in ("--env", item)]
        told = subprocess.run([*words, "--json"], capture_output=True, text=True, check=False)
        text = subprocess.run(words, capture_output=True, text=True, check=False)
        return json.loads(told.stdout), text.stdout + text.stderr

    return run


def test_switches_and_channels(explain: Explain, driver: Path) -> None:
    """What was asked for, its nodes, and for GDS the files beside them."""
    sim.set_switches(driver, ["gds", "gdrcopy"])
    document, text = explain("NVIDIA_GDS=enabled", "NVIDIA_GDRCOPY=enabled", "NVIDIA_IMEX_CHANNELS=0-1")
    assert document["outcome"] == "granted"
    assert (document["request"]["switches"], document["request"]["channels"]) == (["gds", "gdrcopy"], [0, 1])
    assert "beside GPUs   gds, gdrcopy" in text
    assert "IMEX channel  0, 1" in text
    paths = {node["path"] for node in document["nodes"]}
    assert {"/dev/nvidia-fs0", "/dev/nvidia-fs1", "/dev/gdrdrv", "/dev/nvidia-caps-imex-channels/channel1"} <= paths
    mounts = {mount["target"]: mount["present"] for mount in document["mounts"]}
    assert (mounts["/run/udev"], mounts["/etc/cufile.json"]) == (True, True)


def test_another_host_has_none(explain: Explain) -> None:
    document, text = explain("NVIDIA_GDS=enabled")
    assert (document["outcome"], document["error"]["reference"]) == ("refused", "node-missing")
    assert "NVIDIA_GDS=enabled asks for" in text
    assert "leave NVIDIA_GDS out" in text


def test_r95_what_is_missing_would_be_made_and_is_not(explain: Explain, driver: Path) -> None:
    """The node is marked; explaining makes nothing."""
    explain()  # the record of the driver
    (driver / "dev/nvidia-uvm").unlink()
    document, text = explain()
    assert [node["path"] for node in document["nodes"] if node["missing"]] == ["/dev/nvidia-uvm"]
    assert "missing, made at the start" in text
    assert not (driver / "dev/nvidia-uvm").exists()


def test_r98_no_modeset_is_a_hint(explain: Explain, driver: Path) -> None:
    """Only for who draws."""
    (driver / "dev/nvidia-modeset").unlink()
    devices = (driver / "proc/devices").read_text().splitlines(keepends=True)
    (driver / "proc/devices").write_text("".join(line for line in devices if "modeset" not in line))
    document, _ = explain("NVIDIA_DRIVER_CAPABILITIES=all")
    assert document["outcome"] == "granted"
    assert [warning for warning in document["warnings"] if "/dev/nvidia-modeset" in warning]
    document, _ = explain()
    assert not [warning for warning in document["warnings"] if "/dev/nvidia-modeset" in warning]
