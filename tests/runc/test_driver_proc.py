"""/proc/driver/nvidia in a container: the granted GPUs alone, and the parameters that let nobody make nodes.

This machine's kernel has no NVIDIA module, so no procfs here has that directory and none can be made in one. Stood in
for: the hook is started by a program that changes the fixed name to that of a directory which every procfs has
(/proc/tty/driver); what is mounted there comes from the simulated driver's files. The rest is the installed hook.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import bundles
from tests.conftest import World
from tests.runc.test_rootless import AS_USER, USER, given
from tests.runc.test_userns import mapped

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]
FIRST, SECOND = "0000:0b:00.0", "0000:0c:00.0"
STAND_IN = "tty/driver"

SPY = """#!/usr/bin/python3 -ISB
__file__ = {hook!r}
with open(__file__) as file:
    text = file.read()
text = text.replace("sys.exit(main(", '''from gpuhook import driverproc
driverproc.FOLDER, driverproc.NAME = {place!r}
sys.exit(main(''')
exec(text)
"""


@pytest.fixture
def shim_here(any_shim: bundles.Runtime, world: World, installed: Path, folder: Path) -> bundles.Runtime:
    """The shim of a world whose hook knows another place."""
    (world.path / "usr").unlink()
    shutil.copytree(installed / "usr", world.path / "usr", symlinks=True, copy_function=os.link)
    text = world.hook.read_text().replace("path = __file__\n", f"path = {str(world.hook)!r}\n")
    world.hook.unlink()
    real = world.hook.with_name("real-hook")
    real.write_text(text)
    world.hook.write_text(SPY.format(hook=str(real), place=tuple(STAND_IN.split("/"))))
    world.hook.chmod(0o755)
    return any_shim


def change(bundle: bundles.Bundle, **linux: Any) -> None:
    spec = bundle.spec
    spec["linux"].update(linux)
    (bundle.path / "config.json").write_text(json.dumps(spec))


LOOKS = f"cd /proc/{STAND_IN} && find . && cat params version registry && cat gpus/*/information"


@pytest.mark.parametrize(
    ("asked", "seen", "user"),
    [("1", [SECOND], False), ("all", [FIRST, SECOND], False), ("none", [], False), ("0", [FIRST], True)],
    ids=["one", "all", "none", "one, in a user namespace"],
)
def test_what_is_there(
    shim_here: bundles.Runtime, world: World, new_bundle: NewBundle, asked: str, seen: list[str], user: bool
) -> None:
    """Copies, of which nothing can be written, and the directories of the GPUs that were granted."""
    looks = LOOKS if seen else LOOKS.rpartition(" && ")[0]
    more = "grep tty/driver /proc/self/mountinfo; echo x > params; touch y"
    bundle = new_bundle(env=[f"NVIDIA_VISIBLE_DEVICES={asked}"], args=["sh", "-c", f"{looks}; {more}"])
    if user:
        mapped(bundle)

    done = shim_here.run(bundle)

    assert done.code == 1, done.err
    assert done.err.count("Read-only file system") == 2, done.err + done.out + world.log
    lines = done.out.splitlines()
    files = {"./params", "./version", "./registry", "./gpus", "."}
    gpus = {f"./gpus/{name}" for name in seen} | {f"./gpus/{name}/information" for name in seen}
    assert {line for line in lines if line.startswith(".")} == files | gpus
    assert "ModifyDeviceFiles: 0" in lines
    assert "DeviceFileMode: 438" in lines
    assert any("Kernel Module  580.95.05" in line for line in lines)
    assert sum(line.startswith("GPU UUID") for line in lines) == len(seen)
    mounts = [line.split() for line in lines if "/proc/tty/driver" in line]
    assert len(mounts) == 1 + len(seen)
    for fields in mounts:
        assert {"nosuid", "nodev", "noexec"} <= set(fields[5].split(","))
        assert "ro" in fields[5].split(",") + fields[-1].split(",")


def test_a_mig_device_has_its_own_capabilities(
    shim_here: bundles.Runtime, world: World, new_driver: Callable[..., Path], new_bundle: NewBundle
) -> None:
    """Its parent's directory, and where its nodes are named; nothing of the other instance."""
    world.use_driver(new_driver(mig=("0=1/0,2/0",)))
    bundle = new_bundle(
        env=["NVIDIA_VISIBLE_DEVICES=0:0"],
        args=["sh", "-c", f"cd /proc/{STAND_IN}; find . -type f; cat capabilities/*/*/*/access"],
    )

    done = shim_here.run(bundle)

    assert done.code == 0, done.err
    lines = done.out.splitlines()
    below = "./capabilities/gpu0/mig/gi1"
    assert {line for line in lines if line.startswith("./cap")} == {f"{below}/access", f"{below}/ci0/access"}
    assert [line for line in lines if line.startswith("./gpus")] == [f"./gpus/{FIRST}/information"]
    assert sum(line.startswith("DeviceFileMinor: ") for line in lines) == 1


def test_for_a_user_that_is_not_root(
    shim_here: bundles.Runtime, world: World, sim_driver: Path, folder: Path, new_bundle: NewBundle
) -> None:
    """It is made inside there, with the same in it."""
    own = folder / "own"
    own.mkdir(mode=0o700)
    for path in (own, shim_here.state):
        os.chown(path, USER, USER)
    shim_here.within = [*shim_here.within, *AS_USER, "env", f"XDG_RUNTIME_DIR={own}"]
    script = f"{LOOKS}; grep tty/driver /proc/self/mountinfo"
    bundle = given(new_bundle(env=["NVIDIA_VISIBLE_DEVICES=0"], args=["sh", "-c", script]), mapped=True)

    done = shim_here.run(bundle)

    if world.low_level == "crun":
        assert done.code == 255
        pytest.xfail("crun by hand closes its process to the user: tests/runc/test_rootless.py has the text")
    assert done.code == 0, done.err
    assert "ModifyDeviceFiles: 0" in done.out
    assert [line for line in done.out.splitlines() if line.startswith("./gpus/")] == [
        f"./gpus/{FIRST}",
        f"./gpus/{FIRST}/information",
    ]
    assert len([line for line in done.out.splitlines() if "/proc/tty/driver" in line]) == 2


@pytest.mark.parametrize("masked", [None, []], ids=["absent", "empty"])
def test_a_container_without_masked_paths_keeps_a_bare_proc(
    shim_here: bundles.Runtime, new_bundle: NewBundle, masked: list[str] | None
) -> None:
    """It makes containers of its own: the kernel allows no new procfs in a user namespace where one is covered."""
    bundle = new_bundle(env=["NVIDIA_VISIBLE_DEVICES=all"], args=["sh", "-c", "cat /proc/self/mountinfo; ls /dev"])
    change(bundle, maskedPaths=masked)

    done = shim_here.run(bundle)

    assert (done.code, "nvidia0" in done.out, "tty/driver" in done.out) == (0, True, False), done.err


# Mount something at /proc/tty before our hook is called, as a volume of the container would be.
MOUNTS = """#!/bin/sh
pid=$(grep -o '"pid":[0-9]*' | grep -o '[0-9]*')
exec nsenter -t $pid -m sh -c 'mount -t tmpfs own {rootfs}/proc/{at} && mkdir -p {rootfs}/proc/tty/driver'
"""


@pytest.mark.parametrize("at", ["tty", "tty/driver"])
def test_what_the_user_mounts_there_stays(
    shim_here: bundles.Runtime, world: World, new_bundle: NewBundle, at: str
) -> None:
    bundle = new_bundle(
        env=["NVIDIA_VISIBLE_DEVICES=all"], args=["sh", "-c", "ls -A /proc/tty/driver; cat /proc/self/mountinfo"]
    )
    hook = bundle.path / "mounts"
    hook.write_text(MOUNTS.format(rootfs=bundle.rootfs, at=at))
    hook.chmod(0o755)
    spec = bundle.spec
    spec["hooks"] = {"prestart": [{"path": str(hook), "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}]}
    (bundle.path / "config.json").write_text(json.dumps(spec))

    done = shim_here.run(bundle)

    assert done.code == 0, done.err
    assert done.out.count("/proc/tty") == 1
    assert "left out /proc/driver/nvidia: the container mounts something of its own there" in world.log


def test_r74_what_is_there_outlives_the_hosts(
    shim_here: bundles.Runtime, world: World, new_bundle: NewBundle, new_driver: Callable[..., Path]
) -> None:
    """A driver is replaced between create and start: the container has its words still, since they are copies."""
    driver = new_driver()
    world.use_driver(driver)
    looks = f"cd /proc/{STAND_IN} && cat params version registry >/seen 2>&1"
    bundle = new_bundle(env=["NVIDIA_VISIBLE_DEVICES=all"], args=["sh", "-c", looks])
    name = shim_here.new_id()
    try:
        assert shim_here.create(bundle, name).code == 0
        shutil.rmtree(driver / "proc/driver/nvidia")
        assert shim_here.call("start", name).code == 0
        shim_here.wait_stopped(name)
    finally:
        shim_here.delete(name)
    seen = (bundle.rootfs / "seen").read_text()
    assert "Kernel Module  580.95.05" in seen
    assert "ModifyDeviceFiles: 0" in seen
    assert "No such file" not in seen
