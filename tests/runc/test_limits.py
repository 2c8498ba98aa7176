"""`update` with device rules of the engine's, as containerd's CRI plugin sends them: by crun too, the GPUs stay."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import bundles
from tests.bundles import Bundle, Runtime
from tests.conftest import World

pytestmark = pytest.mark.runc
NewBundle = Callable[..., Bundle]
NODES = ("/dev/nvidia0", "/dev/nvidia1")
SEEN = "".join(f"{node}: ok\n" for node in NODES)
RESOURCES = {"devices": [{"allow": False, "access": "rwm"}], "memory": {}, "cpu": {"shares": 200}}


@pytest.fixture
def crun(world: World, shim: Runtime, sim_driver: Path) -> Runtime:
    """The installed shim over crun."""
    world.low_level = "crun"
    world.use_driver(sim_driver)
    return bundles.within(shim, "v1")


def update(runtime: Runtime, name: str, options: list[str], text: str) -> None:
    """Update a container, with `text` on the standard input."""
    command = [*runtime.within, runtime.binary, "--root", runtime.state / "root", "update", *options, name]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def shares(runtime: Runtime) -> int:
    """The CPU shares of the container that was created last."""
    lines = Path(f"/proc/{runtime.pid()}/cgroup").read_text().splitlines()
    path = next(line.split(":")[2] for line in lines if "cpu" in line.split(":")[1].split(","))
    return int(Path(f"/sys/fs/cgroup/cpu{path}/cpu.shares").read_text())


@pytest.mark.parametrize("form", ["--resources -", "--resources=/dev/stdin", "-r FILE", "-rFILE --cpu-period 9999"])
def test_the_gpus_stay(crun: Runtime, new_bundle: NewBundle, folder: Path, form: str) -> None:
    """The limit is set, and the nodes can still be opened; the file is only read."""
    text = json.dumps(RESOURCES)
    (folder / "resources").write_text(text)
    name = crun.new_id()
    bundle = new_bundle(env=["NVIDIA_VISIBLE_DEVICES=all"], args=["sleep", "100"])
    assert crun.create(bundle, name).code == 0
    try:
        assert crun.call("start", name).code == 0
        update(crun, name, form.replace("FILE", f"{folder}/resources").split(), "" if "FILE" in form else text)
        assert shares(crun) == 200
        assert crun.call("exec", name, "opendev", *NODES).out == SEEN
    finally:
        crun.delete(name)
    assert (folder / "resources").read_text() == text


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"cpu": {"shares": 300}})], ids=["no JSON", "a list", "fine"])
def test_what_has_no_rules_reaches_crun_as_it_is(crun: Runtime, new_bundle: NewBundle, text: str) -> None:
    """Its own answer: what it says to the same text where it is called without gpuhook."""
    name = crun.new_id()
    bundle = new_bundle(env=["NVIDIA_VISIBLE_DEVICES=all"], args=["sleep", "100"])
    assert crun.create(bundle, name).code == 0
    try:
        answers = []
        for program in (crun.binary, bundles.tool("crun")):
            command = [*crun.within, program, "--root", crun.state / "root", "update", "--resources=-", name]
            done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
            answers.append((done.returncode, done.stderr))
        assert answers[0] == answers[1]
    finally:
        crun.delete(name)


def test_a_container_without_gpus_is_the_engines_own(crun: Runtime, new_bundle: NewBundle) -> None:
    """Its rules are set as crun sets them."""
    name = crun.new_id()
    assert crun.create(new_bundle(args=["sleep", "100"]), name).code == 0
    try:
        assert crun.call("start", name).code == 0
        update(crun, name, ["--resources=-"], json.dumps({"devices": [{"allow": True, "access": "rwm"}]}))
        done = crun.call("exec", name, "sh", "-c", "mknod /tmp/x c 10 237 && opendev /tmp/x")
        assert done.out == "/tmp/x: ok\n", done
    finally:
        crun.delete(name)
