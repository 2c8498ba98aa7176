"""Whole starts under an exchange of names, with a fault at the hook's n-th call, at once, and one after another."""

import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests import bundles
from tests.security import starts
from tests.security.arena import ALL, Arena

pytestmark = pytest.mark.runc

ATTACKED = 10
FAULTS = 25  # of each kind and runtime
KILLS = 10
CROWD = 30
SERIES = 50


def test_starts_while_names_are_exchanged(arena: Arena) -> None:
    """30 for each runtime in tests/long/race.py. No escape, and a good part of the starts succeeds."""
    verdicts = starts.attacked(arena, ATTACKED)
    assert [verdict.violations for verdict in verdicts] == [[]] * ATTACKED
    good = sum(verdict.outcome == "runs" for verdict in verdicts)
    assert good >= ATTACKED * 0.3, [verdict.said for verdict in verdicts if verdict.outcome != "runs"]


def check_faults(faults: starts.Faults, act: str, count: int) -> dict[str, int]:
    """Faults at calls all over the hook's work; 0 for every one. Says how many were refused, survived, not reached."""
    assert faults.start(0, "").code == 0
    total = faults.counted
    assert total > 100, "the calls are not counted"
    came: dict[str, int] = {"calls": total}
    for at in range(1, total + 1, max(1, total // count) if count else 1):
        said = faults.check(at, act)
        came[said] = came.get(said, 0) + 1
    return came


@pytest.mark.parametrize("act", ["error", "kill"])
def test_a_fault_at_any_call_and_the_next_start(arena: Arena, act: str) -> None:
    """The hook's call fails or kills its process, in the parent or the child. Nothing stays, and the next start works.

    Every call in tests/long/faults.py.
    """
    came = check_faults(starts.Faults.make(arena), act, FAULTS)
    assert came["refused"] >= FAULTS / 2
    if act == "kill":
        assert set(came) <= {"calls", "refused", "not reached"}


def check_killed_runtime(arena: Arena, count: int) -> int:
    """Kill the shim, or the runtime that it became, at random moments. Says how many were killed before their end."""
    bundle = bundles.make(arena.bundle("killed"), arena.tree, env=[ALL], args=starts.GPUS)
    spec = (bundle.path / "config.json").read_bytes()
    within = arena.within[:2]
    shim = bundles.Runtime(arena.world.runtime, arena.place / "killed-state", within=within)
    pick = random.Random(arena.runtime)
    begun = time.monotonic()
    assert shim.run(bundle).out == starts.SEEN
    usual = time.monotonic() - begun
    killed = 0
    for _ in range(count):
        (bundle.path / "config.json").write_bytes(spec)
        name = shim.new_id()
        command = [
            *within,
            str(shim.binary),
            "--root",
            str(shim.state / "root"),
            "run",
            "--bundle",
            str(bundle.path),
            name,
        ]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(pick.uniform(0, usual))
        process.kill()  # every program before the runtime becomes the next one, so this is the one that works now
        killed += process.wait() == -9
        low_level = bundles.Runtime(bundles.tool(arena.runtime), shim.state, within=within)
        low_level.delete(name)
        assert starts.processes(arena.place) == []
        (bundle.path / "config.json").write_bytes(spec)
        after = shim.run(bundle)
        assert (after.code, after.out) == (0, starts.SEEN), after.err
    assert not mounts_below(arena.place)
    return killed


def mounts_below(place: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {place}/" in line]


def test_the_runtime_is_killed_at_random_moments(arena: Arena) -> None:
    """Nothing of ours goes on for long, nothing stays mounted on the host, and the next start on the root works."""
    assert check_killed_runtime(arena, KILLS) >= KILLS / 2


@pytest.mark.parametrize("state", ["cold", "warm"])
def test_thirty_at_once(arena: Arena, state: str) -> None:
    """All succeed, also where each finds no record of the driver."""
    with starts.crowd(arena, CROWD) as start:
        if state == "cold":
            shutil.rmtree(arena.world.state, ignore_errors=True)
        done = start()
    assert [(result.code, result.out) for result in done.results] == [(0, starts.SEEN)] * CROWD, [
        result.err for result in done.results if result.code
    ][:1]
    assert starts.processes(arena.place) == []


def check_leaks(arena: Arena, count: int) -> None:
    """Starts one after another at one root; each third is refused in the hook."""
    bundle = bundles.make(arena.bundle("leaks"), arena.tree, env=[ALL], args=["/keep/busybox", "ls", "/proc/self/fd"])
    spec = (bundle.path / "config.json").read_bytes()

    def start(number: int) -> None:
        (bundle.path / "config.json").write_bytes(spec)
        spoiled = bundle.rootfs / "usr/bin/nvidia-smi"
        if number % 3 == 2:
            spoiled.unlink()
            spoiled.mkdir()
        done = arena.shim.run(bundle)
        if number % 3 == 2:
            spoiled.rmdir()
            spoiled.touch()
            assert done.code != 0
        else:
            assert (done.code, done.out) == (0, "0\n1\n2\n3\n"), done.err  # 3 is ls's own

    for number in range(3):
        start(number)
    before, tree = starts.traces(arena), listing(bundle.rootfs)
    for number in range(count):
        start(number)
    assert starts.traces(arena) == before
    # notes on containers that are gone: each start takes away two, those of a crowd before too
    assert len(list((arena.world.state / "containers").iterdir())) <= 2
    assert listing(bundle.rootfs) == tree


def listing(top: Path) -> list[str]:
    return sorted(str(path) for path in top.rglob("*"))


def test_nothing_is_left_after_many_starts(arena: Arena) -> None:
    """Mounts, processes, descriptors, cgroups, files of the state, files of the image."""
    check_leaks(arena, SERIES)
