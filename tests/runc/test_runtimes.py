"""What differs between low-level runtimes and between hook stages, each with the real programs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import bundles
from tests.conftest import World

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]
ALL = "NVIDIA_VISIBLE_DEVICES=all"
SEES = ["opendev", "dlopen:libcuda.so.1", "/dev/nvidia0", "/dev/nvidia1"]
SEEN = "dlopen:libcuda.so.1: ok libcuda.so 580.95.05\n/dev/nvidia0: ok\n/dev/nvidia1: ok\n"

# Writes down what its process is when the hook it stands for leaves.
SPY = """#!/usr/bin/python3 -ISB
import posix
own, leave = posix.getpid(), posix._exit
def line(name):
    with open("/proc/self/status") as file:
        return next(text for text in file if text.startswith(name))
before = line("SigBlk")
def end(code):
    if posix.getpid() == own:
        with open({answer!r}, "w") as file:
            file.write(before + line("SigBlk"))
    leave(code)
posix._exit = end
__file__ = {hook!r}
with open(__file__) as file:
    exec(file.read())
"""


@pytest.fixture
def crun(world: World, shim: bundles.Runtime, sim_driver: Path) -> bundles.Runtime:
    """The shim over crun."""
    world.low_level = "crun"
    world.use_driver(sim_driver)
    return bundles.within(shim, "v1")


def test_stage_by_configuration(
    any_shim: bundles.Runtime, world: World, sim_driver: Path, new_bundle: NewBundle
) -> None:
    """`createRuntime` instead of `prestart`: the hook is in that list alone, and does the same."""
    world.use_driver(sim_driver, '[hook]\nstage = "createRuntime"\n')
    bundle = new_bundle(
        env=[ALL], args=SEES, hooks={"prestart": [bundles.OTHERS_HOOK], "createRuntime": [bundles.OTHERS_HOOK]}
    )

    done = any_shim.run(bundle)

    assert (done.code, done.out) == (0, SEEN), done.err
    hooks = {stage: [Path(hook["path"]).name for hook in entries] for stage, entries in bundle.spec["hooks"].items()}
    assert hooks == {"prestart": ["sh"], "createRuntime": ["sh", "gpuhook-hook"]}


def test_another_stage_leaves_one_hook(
    any_shim: bundles.Runtime, world: World, sim_driver: Path, new_bundle: NewBundle
) -> None:
    """The configuration changes between two creates of one bundle: the hook moves, and there is one."""
    bundle = new_bundle(env=[ALL], args=SEES)
    assert any_shim.run(bundle).code == 0
    world.use_driver(sim_driver, '[hook]\nstage = "createRuntime"\n')

    done = any_shim.run(bundle)

    assert (done.code, done.out) == (0, SEEN), done.err
    assert {stage: len(entries) for stage, entries in bundle.spec["hooks"].items()} == {
        "prestart": 0,
        "createRuntime": 1,
    }


def test_signals_that_crun_blocks_are_unblocked(
    crun: bundles.Runtime, world: World, folder: Path, new_bundle: NewBundle
) -> None:
    """crun starts hooks with every signal blocked; gpuhook-hook works with none blocked."""
    bundle = new_bundle(env=[ALL], args=SEES)
    assert crun.run(bundle).code == 0
    spy, answer = folder / "spy", folder / "answer"
    spy.write_text(SPY.format(answer=str(answer), hook=str(world.hook)))
    spy.chmod(0o755)
    spec = bundle.spec
    spec["hooks"]["prestart"][0]["path"] = str(spy)
    (bundle.path / "config.json").write_text(json.dumps(spec))

    done = bundles.within(bundles.Runtime(bundles.tool("crun"), folder / "plain"), "v1").run(bundle)

    assert (done.code, done.out) == (0, SEEN), done.err
    before, after = [int(line.split()[1], 16) for line in answer.read_text().splitlines()]
    assert bin(before).count("1") > 55, "this crun blocks no signals: the test shows nothing"
    assert after == 0


FORMS = {
    "short": ["run", "-b", "{bundle}", "{id}"],
    "short, attached": ["run", "-b{bundle}", "{id}"],
    "a prefix of the long one": ["run", "--bun={bundle}", "{id}"],
    "cluster": ["run", "-b{bundle}", "--no-piv", "{id}"],
    "another file of the bundle": ["run", "-f", "{bundle}/other.json", "-b", "{bundle}", "{id}"],
    "end of options": ["run", "--bundle", "{bundle}", "--", "{id}"],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_crun_takes_its_own_forms(crun: bundles.Runtime, new_bundle: NewBundle, form: list[str]) -> None:
    """Whatever form crun takes, the shim finds the same spec."""
    bundle = new_bundle(env=[ALL], args=SEES)
    if "-f" in form:
        (bundle.path / "config.json").rename(bundle.path / "other.json")

    done = crun.call(*[word.format(bundle=bundle.path, id=crun.new_id()) for word in form])

    assert (done.code, done.out) == (0, SEEN), done.err


def test_create_start_delete(any_shim: bundles.Runtime, new_bundle: NewBundle) -> None:
    """As an engine does it: three calls, of which the first alone is the shim's business."""
    bundle = new_bundle(env=[ALL], args=[*SEES[:1], "/dev/nvidia0"])
    name = any_shim.new_id()
    created = any_shim.create(bundle, name)
    assert created.code == 0, created.err

    started = any_shim.call("start", name)

    assert started.code == 0, started.err
    any_shim.wait_stopped(name)
    assert any_shim.delete(name).code == 0
    assert any_shim.call("list", "-q").out == ""


def test_where_crun_shows_a_hooks_words(crun: bundles.Runtime, world: World, new_bundle: NewBundle) -> None:
    """crun throws a hook's output away, unless an annotation names a file for it; gpuhook's log has it either way."""
    bundle = new_bundle(env=[ALL])
    words = bundle.path / "words"
    spec = bundle.spec
    spec["annotations"]["run.oci.hooks.stderr"] = str(words)
    spec["linux"]["rootfsPropagation"] = "private"
    (bundle.path / "config.json").write_text(json.dumps(spec))
    (bundle.rootfs / "usr/bin/nvidia-smi").mkdir()

    done = crun.run(bundle)

    assert done.code == 255
    assert f"error executing hook `{world.hook}` (exit code: 70)" in done.err
    text = "/usr/bin/nvidia-smi (a directory) can't be used: something of another type stands there [rootfs-unsafe]"
    assert words.read_text().startswith(f"gpuhook: {text}\n  fix: ")
    assert text in world.log
