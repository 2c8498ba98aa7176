"""Kernels that lack a call, by a filter that hides it from the installed hook: one is made up for, others are named.

The first half of each start is the shim's, so what is hidden is hidden from the hook alone.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import linux
from tests import bundles, seccomp
from tests.conftest import World
from tests.images import MULTIARCH
from tests.runc.test_userns import mapped

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]
ALL = "NVIDIA_VISIBLE_DEVICES=all"


def mounts(folder: Path) -> list[str]:
    """What the host has mounted in a test's folder, where the container is."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]


def without(
    shim: bundles.Runtime, world: World, bundle: bundles.Bundle, folder: Path, *calls: str
) -> tuple[bundles.Result, bool]:
    """Start a container whose hook can't make these calls; says also whether the host's mounts are as before."""
    subject = seccomp.hiding(folder / "hiding", world.hook, [linux._CALLS[name][0] for name in calls])
    before = mounts(folder)
    assert shim.run(bundle).code == 0
    spec = bundle.spec
    spec["hooks"]["prestart"][0]["path"] = str(subject)
    (bundle.path / "config.json").write_text(json.dumps(spec))
    plain = bundles.Runtime(bundles.tool(world.low_level), folder / "plain", within=shim.within)
    return plain.run(bundle), mounts(folder) == before


@pytest.mark.parametrize("user", [False, True], ids=["host ids", "user namespace"])
def test_without_mount_setattr(
    any_shim: bundles.Runtime, world: World, folder: Path, new_bundle: NewBundle, user: bool
) -> None:
    """Linux 5.6 to 5.11: every mount has the flags that it has on a newer one, and nothing is left on the host."""
    bundle = new_bundle(
        env=[ALL], args=["sh", "-c", "opendev dlopen:libcuda.so.1 /dev/nvidia0; cat /proc/self/mountinfo"]
    )
    if user:
        mapped(bundle)
    newer = any_shim.run(bundle)

    older, is_same = without(any_shim, world, bundle, folder, "mount_setattr")

    assert (older.code, older.out.count(": ok"), is_same) == (0, 2, True), older.err
    flags = [
        {line.split()[4]: line.split(" - ")[0].split()[5:] for line in done.out.splitlines() if " - " in line}
        for done in (newer, older)
    ]
    assert flags[0] == flags[1]
    assert set(flags[1][f"/usr/lib/{MULTIARCH}/libcuda.so.580.95.05"][0].split(",")) >= {"ro", "nosuid", "nodev"}


@pytest.mark.parametrize("name", ["openat2", "open_tree", "move_mount", "setns"])
def test_a_call_that_is_missing_is_named(
    any_shim: bundles.Runtime, world: World, folder: Path, new_bundle: NewBundle, name: str
) -> None:
    """The container does not start, and the error says which call and since when Linux has it."""
    bundle = new_bundle(env=[ALL])
    done, is_same = without(any_shim, world, bundle, folder, name)

    assert done.code != 0
    assert is_same
    text = f"does not offer {name}, which Linux {linux._CALLS[name][1]} brought [kernel-too-old]"
    assert text in world.log
    assert (text in done.err) == (world.low_level != "crun")


def test_without_close_range(any_shim: bundles.Runtime, world: World, folder: Path, new_bundle: NewBundle) -> None:
    """Linux before 5.9: descriptors are closed one by one."""
    bundle = new_bundle(env=[ALL], args=["opendev", "/dev/nvidia0"])
    done, _ = without(any_shim, world, bundle, folder, "close_range", "mount_setattr")

    assert (done.code, done.out) == (0, "/dev/nvidia0: ok\n"), done.err
