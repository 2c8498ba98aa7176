"""GPUs after `systemctl daemon-reload`, without systemd: what it would write again is written again here.

systemd re-applies a unit's own device list. For a container of the systemd cgroup driver that list is the rules of the
specification, which the low-level runtime hands over at create (runc libcontainer/cgroups/devices/systemd.go, crun
src/libcrun/cgroup-systemd.c): a rule with both numbers becomes `/dev/char/MAJOR:MINOR`, and systemd looks up which
device that is. So what counts is what the runtime was given: rules in the spec, links in /dev/char. Version 1 gets the
list as `a` to devices.deny and lines to devices.allow, version 2 as one more program, and all programs must agree.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import cgroup, devicefilter
from gpuhook.devicefilter import DEFAULTS, Rule
from tests import bundles
from tests.conftest import World
from tests.runc.test_hook_only import attach

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]
GPU = {"env": ["NVIDIA_VISIBLE_DEVICES=all"], "args": ["sleep", "600"]}
SEES = ("opendev", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/null")
OPEN = "".join(f"{path}: ok\n" for path in SEES[1:])


def unit_list(spec: bundles.Bundle) -> tuple[Rule, ...]:
    """The device list of the unit: of each rule with a number of its own what its link in /dev/char leads to."""
    entries = spec.spec["linux"]["resources"]["devices"]
    found = []
    for entry in entries:
        if not entry["allow"] or entry.get("type") != "c" or min(entry.get("major", -1), entry.get("minor", -1)) < 0:
            continue
        try:
            number = os.stat(f"/dev/char/{entry['major']}:{entry['minor']}").st_rdev
        except OSError:
            continue  # systemd before 240 and runc 1.1.3 to 1.1.6 drop the rule
        access = devicefilter.access_of(entry["access"])
        found.append(Rule(True, "c", os.major(number), os.minor(number), access))
    return (*found, *DEFAULTS)


def daemon_reload(pid: int, rules: tuple[Rule, ...]) -> None:
    """Write the list into the container's cgroups, as systemd does into a unit's."""
    groups = cgroup.find(pid)
    for group in (groups.v1, groups.v2):
        if group is None:
            continue
        folder = Path(f"/proc/self/fd/{group.folders[0]}")
        if group is groups.v2:
            attach(folder, devicefilter.of_rules(rules))
            continue
        (folder / "devices.deny").write_text("a")
        for rule in rules:
            numbers = [str(number) if number >= 0 else "*" for number in (rule.major, rule.minor)]
            letters = "".join(letter for letter in "rwm" if rule.access & devicefilter.access_of(letter))
            (folder / "devices.allow").write_text(f"{rule.kind} {numbers[0]}:{numbers[1]} {letters}")
    for group in (groups.v1, groups.v2):
        for handle in group.folders if group is not None else ():
            os.close(handle)


def run_and_reload(runtime: bundles.Runtime, bundle: bundles.Bundle) -> list[str]:
    """What the container sees before and after."""
    name = runtime.new_id()
    assert runtime.create(bundle, name).code == 0
    try:
        assert runtime.call("start", name).code == 0
        before = runtime.call("exec", name, *SEES).out
        daemon_reload(runtime.pid(), unit_list(bundle))
        return [before, runtime.call("exec", name, *SEES).out]
    finally:
        runtime.delete(name)


def test_gpus_stay(any_shim: bundles.Runtime, new_bundle: NewBundle, sim_driver: Path) -> None:
    """With a /dev/char that has no link of the driver, as NVIDIA's installer leaves it."""
    for node in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        number = (sim_driver / "dev" / node).stat().st_rdev
        Path(f"/dev/char/{os.major(number)}:{os.minor(number)}").unlink(missing_ok=True)
    assert run_and_reload(any_shim, new_bundle(**GPU)) == [OPEN, OPEN]


def test_rules_are_exact(any_shim: bundles.Runtime, new_bundle: NewBundle, sim_driver: Path) -> None:
    """The list that the runtime was given has each granted node with both numbers, `rw`, and no other rule of ours."""
    bundle = new_bundle(env=["NVIDIA_VISIBLE_DEVICES=1"])
    before = bundle.spec["linux"]["resources"]["devices"]
    assert any_shim.run(bundle).code == 0
    added = bundle.spec["linux"]["resources"]["devices"][len(before) :]
    numbers = [(sim_driver / "dev" / name).stat().st_rdev for name in ("nvidia1", "nvidiactl", "nvidia-uvm")]
    exact = {(True, "c", os.major(number), os.minor(number), "rw") for number in numbers}
    found = {tuple(entry[key] for key in ("allow", "type", "major", "minor", "access")) for entry in added}
    assert exact <= found
    other = (sim_driver / "dev/nvidia0").stat().st_rdev
    assert (os.major(other), os.minor(other)) not in {(major, minor) for _, _, major, minor, _ in found}
    assert {access for *_, access in found} == {"rw"}


def test_gpus_by_the_hook_alone_are_lost(
    any_shim: bundles.Runtime, world: World, new_bundle: NewBundle, folder: Path
) -> None:
    """What the other way of doing it comes to, and that the writing above takes something away: the hook without the
    shim opens devices behind the runtime's back, and the unit's list does not have them."""
    hook = {"path": str(world.hook), "args": ["gpuhook-hook", "prestart"], "env": ["PATH=/usr/bin:/bin"]}
    plain = bundles.Runtime(bundles.tool(world.low_level), folder / "plain", within=any_shim.within)

    before, after = run_and_reload(plain, new_bundle(hooks={"prestart": [hook]}, **GPU))

    assert before == OPEN
    denied = "".join(f"{path}: Operation not permitted\n" for path in SEES[1:-1])
    assert after == denied + "/dev/null: ok\n"
