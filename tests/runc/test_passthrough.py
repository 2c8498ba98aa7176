"""Containers that ask for nothing, and every other command, behave under the shim as under plain runc."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bundles import Bundle, Runtime, tool
from tests.conftest import World

pytestmark = pytest.mark.runc
NewBundle = Callable[..., Bundle]


def compile_configuration(world: World) -> None:
    """Let gpuhook compile its configuration, as the first create after boot does."""
    subprocess.run([world.runtime, "--root", world.path / "none", "state", "x"], capture_output=True, check=False)
    assert (world.state / "shim.sh").exists()


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "first start"])
def test_a_whole_life_is_the_same(
    world: World, shim: Runtime, runc: Runtime, new_bundle: NewBundle, compiled: bool
) -> None:
    """create, state, start, kill, delete: same exit codes, same words, and the spec stays as it was to the byte."""
    if compiled:
        compile_configuration(world)
    seen = []
    for runtime in (runc, shim):
        bundle = new_bundle("busybox", args=["/bin/sh", "-c", "sleep 100"])
        before = (bundle.path / "config.json").read_bytes()
        results = [runtime.create(bundle, "box"), runtime.call("state", "box"), runtime.call("start", "box")]
        results += [runtime.call("exec", "box", "/bin/echo", "a b", ""), runtime.call("kill", "box", "KILL")]
        runtime.wait_stopped("box")
        results += [runtime.call("delete", "box"), runtime.call("state", "box"), runtime.call("nonsense")]
        state = json.loads(results[1].out)
        assert (state["status"], state["bundle"]) == ("created", str(bundle.path))
        seen.append([(item.code, item.out if number != 1 else "", item.err) for number, item in enumerate(results)])
        assert (bundle.path / "config.json").read_bytes() == before
    assert seen[1] == seen[0]
    assert [code for code, _, _ in seen[1]] == [0, 0, 0, 0, 0, 0, 1, seen[0][-1][0]]
    assert seen[1][3][1] == "a b \n"


@pytest.mark.parametrize("arguments", [["--version"], ["features"], ["--help"], [], ["create", "--help"]])
def test_texts_of_the_runtime_pass(world: World, arguments: list[str]) -> None:
    for _ in range(2):  # before and after the configuration was compiled
        mine = subprocess.run([world.runtime, *arguments], capture_output=True, check=False)
        other = subprocess.run([tool("runc"), *arguments], capture_output=True, check=False)
        assert (mine.returncode, mine.stdout, mine.stderr) == (other.returncode, other.stdout, other.stderr)


@pytest.mark.parametrize("name", ["create", "run", "state"])
def test_a_container_may_be_called_like_a_command(
    world: World, shim: Runtime, new_bundle: NewBundle, name: str
) -> None:
    compile_configuration(world)
    bundle = new_bundle("busybox", args=["/bin/sh", "-c", "sleep 100"])
    assert shim.create(bundle, name).code == 0
    assert json.loads(shim.call("state", name).out)["id"] == name
    assert shim.delete(name).code == 0
    assert shim.call("state", name).code == 1


@pytest.mark.parametrize("form", [["--bundle"], ["-b"], ["-bundle"], ["--bundle="], ["-b="]], ids=lambda form: form[0])
@pytest.mark.parametrize("last", [False, True], ids=["before the id", "after the id"])
def test_forms_of_the_bundle(shim: Runtime, new_bundle: NewBundle, form: list[str], last: bool) -> None:
    """Each form that runc takes starts the same container, and a relative bundle is one from the working directory."""
    bundle = new_bundle("busybox", args=["/bin/echo", "here"])
    words = [form[0] + bundle.path.name] if form[0].endswith("=") else [form[0], bundle.path.name]
    name = shim.new_id()
    result = shim.call("run", *([name, *words] if last else [*words, name]), cwd=bundle.path.parent)
    assert (result.code, result.out, result.err) == (0, "here\n", "")


def test_the_bundle_is_the_working_directory_by_default(shim: Runtime, new_bundle: NewBundle) -> None:
    bundle = new_bundle("busybox", args=["/bin/echo", "here"])
    assert shim.call("run", shim.new_id(), cwd=bundle.path).out == "here\n"


def test_pid_descriptors_and_signals_are_kept(world: World, shim: Runtime, new_bundle: NewBundle) -> None:
    """The runtime is the very process that was started: preserved descriptors reach the container, signals too."""
    script = "cat <&3; trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done"
    bundle = new_bundle("busybox", args=["/bin/sh", "-c", script])
    (bundle.path / "text").write_text("through\n")
    call = f'exec "$0" --root {shim.state}/root run --preserve-fds 1 --bundle {bundle.path} box 3<{bundle.path}/text'
    with subprocess.Popen(["/bin/sh", "-c", call, world.runtime], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"through\n"
        assert process.stdout.readline() == b"up\n"
        assert os.readlink(f"/proc/{process.pid}/exe") == os.path.realpath(tool("runc"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 7


def test_a_broken_configuration_stops_no_container_that_asks_for_nothing(
    world: World, shim: Runtime, new_bundle: NewBundle
) -> None:
    world.configure("this is no TOML\n")
    assert shim.run(new_bundle("busybox", args=["/bin/echo", "here"])).out == "here\n"


@pytest.mark.parametrize("what", ["bundle", "config", "JSON"])
def test_what_is_wrong_with_a_bundle_is_said(shim: Runtime, new_bundle: NewBundle, tmp_path: Path, what: str) -> None:
    """A create that cannot be judged fails; it is never passed through."""
    bundle = new_bundle("busybox")
    if what == "bundle":
        bundle.path = tmp_path / "nowhere"
    elif what == "config":
        (bundle.path / "config.json").unlink()
    else:
        (bundle.path / "config.json").write_text('{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]')
    result = shim.create(bundle, "box")
    assert result.code != 0
    assert result.err.startswith("gpuhook: ") or what != "JSON"


@pytest.mark.parametrize(
    "env", [[], ["CUDA_VERSION=x"], ["NVIDIA_VISIBLE_DEVICES=none"]], ids=["plain", "doubt", "none"]
)
def test_a_closed_stdout_stops_nothing(world: World, sim_driver: Path, new_bundle: NewBundle, env: list[str]) -> None:
    """`runc run ... >&-` works, and so does the shim in its place, whichever half of it decides."""
    world.use_driver(sim_driver)
    bundle = new_bundle(env=env, args=["true"])
    command = f'exec "{world.runtime}" run --bundle "{bundle.path}" {Runtime.new_id()} >&-'

    done = subprocess.run(
        ["sh", "-c", command], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, b"")


def test_called_by_a_relative_path(world: World, sim_driver: Path, folder: Path, new_bundle: NewBundle) -> None:
    """The hook in the spec has an absolute path all the same."""
    world.use_driver(sim_driver)
    runtime = Runtime("./usr/bin/gpuhook-runtime", folder / "state")
    bundle = new_bundle(env=["NVIDIA_VISIBLE_DEVICES=none"], args=["true"])

    done = runtime.call("run", "--bundle", bundle.path, runtime.new_id(), cwd=world.path)

    assert (done.code, done.err) == (0, "")


def test_a_usage_error_is_in_the_engines_log(shim: Runtime) -> None:
    """Engines show what stands there, not what is on stderr."""
    done = shim.call("create", "--bundle", "/nowhere", "--no-such-option", "x")

    assert done.code == 2
    assert [line["msg"] + "\n" for line in done.logged] == [done.err]
