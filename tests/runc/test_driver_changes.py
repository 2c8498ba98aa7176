"""The driver changes while containers start, is slow, or its nodes get other rights: each start is whole or refused."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuhook import sim
from tests import bundles, sandbox
from tests.conftest import World

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]
ALL = "NVIDIA_VISIBLE_DEVICES=all"
LIBRARIES = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-nvvm")
LOADS = [f"dlopen:{name}.so.{4 if name.endswith('nvvm') else 1}" for name in LIBRARIES]
VERSIONS = ("580.95.05", "590.48.01")
# What a start may be refused with while the driver is exchanged under it: each names the change.
SAID = ("[driver-changed]", "[driver-version-mismatch]", "[driver-not-found]", "[driver-not-loaded]", "[node-missing]")


def runtimes(world: World, folder: Path, number: int) -> list[bundles.Runtime]:
    """Shims with a state of their own, to be called at once."""
    return [bundles.Runtime(world.runtime, folder / f"state{index}") for index in range(number)]


def test_the_driver_is_replaced_while_twenty_containers_start(
    world: World, new_driver: Callable[..., Path], new_bundle: NewBundle, folder: Path
) -> None:
    """Every container has libraries of one version, or an error that says that the driver changed."""
    here, there = (new_driver(driver=version) for version in VERSIONS)
    world.use_driver(here)
    made = [new_bundle(env=[ALL], args=["opendev", *LOADS]) for _ in range(20)]
    ended = threading.Event()

    def replace() -> int:
        """Exchange the two trees, again and again: an installer that is never at rest."""
        times = 0
        while not ended.wait(0.15):
            sandbox.exchange(os.fsencode(here), os.fsencode(there))
            times += 1
        return times

    with ThreadPoolExecutor(21) as pool:
        replaced = pool.submit(replace)
        runs = [
            pool.submit(runtime.run, bundle)
            for runtime, bundle in zip(runtimes(world, folder, len(made)), made, strict=True)
        ]
        results = [run.result() for run in runs]
        ended.set()

    whole = 0
    for done in results:
        if done.code:
            assert any(words in done.err for words in SAID), done.err
            continue
        found = [version for version in VERSIONS if version in done.out]
        assert len(found) == 1, done.out
        assert done.out.count(f" {found[0]}") == len(LOADS), done.out
        whole += 1
    assert replaced.result() > 1
    print(f"{whole} of {len(results)} started, {replaced.result()} exchanges")
    # And after it has come to rest, a start is a start.
    last = runtimes(world, folder / "last", 1)[0].run(new_bundle(env=[ALL], args=["opendev", *LOADS]))
    assert last.code == 0, last.err


def test_a_slow_nvml_is_asked_once_by_many_cold_starts(
    world: World, new_driver: Callable[..., Path], new_bundle: NewBundle, folder: Path
) -> None:
    """Eight starts without a record and an NVML that takes two seconds: one asks, seven wait, all start."""
    driver = new_driver()
    sim.set_fault(driver, "slow=2000")
    world.use_driver(driver)
    made = [new_bundle(env=[ALL], args=["opendev", *LOADS]) for _ in range(8)]
    before = sim.init_count(driver)

    with ThreadPoolExecutor(8) as pool:
        shims = runtimes(world, folder, len(made))
        results = list(pool.map(lambda pair: pair[0].run(pair[1]), zip(shims, made, strict=True)))

    assert [(done.code, done.err) for done in results] == [(0, "")] * 8
    assert sim.init_count(driver) == before + 1


def test_a_nodes_rights_are_those_of_now(
    world: World, shim: bundles.Runtime, new_driver: Callable[..., Path], new_bundle: NewBundle
) -> None:
    """Owner and mode of a node are looked at on each start: the record does not hold them."""
    driver = new_driver()
    world.use_driver(driver)
    first = new_bundle(env=[ALL], args=["opendev", "/dev/nvidia0"])
    assert shim.run(first).code == 0
    node = driver / "dev/nvidia0"
    os.chown(node, 0, 44)
    node.chmod(0o660)

    second = new_bundle(env=[ALL], args=["sh", "-c", "ls -ln /dev/nvidia0; id -G"])
    done = shim.run(second)

    device = next(item for item in second.spec["linux"]["devices"] if item["path"] == "/dev/nvidia0")
    assert (device["fileMode"], device["uid"], device["gid"]) == (0o660, 0, 44)
    assert second.spec["process"]["user"]["additionalGids"] == [44]
    assert done.code == 0, done.err
    assert "crw-rw----" in done.out
    assert "44" in done.out.splitlines()[-1].split()
