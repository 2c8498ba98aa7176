"""`gpuhook hook --dry-run`: it says what the hook would do, by its functions, and does nothing."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuhook import hook, oci, shim
from gpuhook.cli import main
from gpuhook.config import load
from gpuhook.driver import record
from gpuhook.grant import decide
from tests import bundles
from tests.conftest import World
from tests.images import image
from tests.unit.driver_support import copy_of
from tests.unit.test_cli_explain import configure, listing

ALL = "NVIDIA_VISIBLE_DEVICES=all"
Replay = Callable[..., dict[str, Any]]


@pytest.fixture
def host(sim_driver: Path, folder: Path) -> Path:
    """An installation, a bundle `full` that asks for all GPUs, and its state."""
    configure(folder, sim_driver)
    bundle(folder / "full", ALL)
    state(folder / "state.json", folder / "full")
    return folder


def bundle(path: Path, *env: str, tree: Path | str = "") -> Path:
    path.mkdir()
    spec = bundles.config(env=env)
    spec["root"]["path"] = str(tree or image("glibc"))
    (path / "config.json").write_text(json.dumps(spec))
    return path


def state(path: Path, of: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({"id": "box", "pid": 4242, "bundle": str(of), "status": "creating", **changes}))
    return path


def ordered(place: Path, where: Path) -> None:
    """Let the shim's own functions write its orders into a bundle."""
    spec = oci.Spec(str(place / "config.json"))
    container = spec.container()
    granted = decide(container, load(str(where)), str(where))
    assert granted is not None
    shim.write(spec, container, granted, load(str(where)), str(where))
    spec.save()


@pytest.fixture
def replay(folder: Path, capsys: pytest.CaptureFixture[str]) -> Replay:
    """Runs it with --json and returns the document, with `status` and `stderr`."""

    def call(*words: str | Path, state: Path = folder / "state.json") -> dict[str, Any]:
        line = ["gpuhook", "hook", "--dry-run", "--json", "--state", str(state), *map(str, words)]
        status = main(line, str(folder))
        shown = capsys.readouterr()
        document: dict[str, Any] = json.loads(shown.out) if shown.out else {}
        return document | {"status": status, "stderr": shown.err}

    return call


# --- the plan -------------------------------------------------------------------------------------------------------


def test_the_plan_is_that_of_explain(host: Path, replay: Replay, capsys: pytest.CaptureFixture[str]) -> None:
    found = replay()
    main(["gpuhook", "explain", "--json", str(host / "full")], str(host))
    explained = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["status"], found["error"]) == ("granted", 0, None)
    for part in ("image", "mounts", "links", "loader_cache", "driver"):
        assert found[part] == explained[part], part
    assert len(found["mounts"]) > 5


def test_orders_that_the_shim_wrote_are_taken(host: Path, replay: Replay) -> None:
    """The image's words are not read again: another environment changes nothing after the shim."""
    ordered(host / "full", host)
    path = host / "full/config.json"
    spec = json.loads(path.read_text())
    spec["process"]["env"] = ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRIVER_CAPABILITIES=video"]
    path.write_text(json.dumps(spec))
    found = replay()
    assert found["orders"]["from"] == "prestart"
    assert found["orders"]["capabilities"] == ["compute", "utility"]
    assert found["orders"]["record"] == record.load(load(str(host)), str(host)).id
    assert found["orders"]["root"] == str(image("glibc"))


def test_without_orders_they_are_decided_now(host: Path, replay: Replay) -> None:
    """As the shim would write them: the two ways differ in nothing but where they come from."""
    found = replay()["orders"]
    assert found["from"] == "decided now"
    assert any(node.startswith("/dev/nvidia0:") for node in found["nodes"])
    ordered(host / "full", host)
    assert replay()["orders"] == found | {"from": "prestart"}
    bundle(host / "quiet")
    found = replay("--bundle", host / "quiet")
    assert (found["outcome"], found["orders"]) == ("nothing", None)
    assert "NVIDIA_VISIBLE_DEVICES is not set" in found["why_not"]


def test_another_bundle_takes_the_place_of_the_states(host: Path, replay: Replay) -> None:
    bundle(host / "other", ALL, tree=image("lib64"))
    ordered(host / "other", host)
    assert replay("--bundle", host / "other")["image"]["libdir"] == "/usr/lib64"
    moved = host / "moved"
    (host / "other").rename(moved)
    assert replay("--bundle", moved)["bundle"] == str(moved)


def test_a_root_that_is_not_mounted_now_is_said(host: Path, replay: Replay) -> None:
    (host / "empty").mkdir()
    bundle(host / "gone", ALL, tree=host / "empty")
    found = replay("--bundle", host / "gone")
    assert found["outcome"] == "granted"
    assert any("is empty: the image is not mounted there now" in text for text in found["warnings"])


def test_a_state_from_standard_input(host: Path, replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (host / "state.json").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert replay(state=Path("-"))["outcome"] == "granted"


def test_the_text_has_its_parts(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpuhook", "hook", "--dry-run", "--state", str(host / "state.json")], str(host)) == 0
    out = capsys.readouterr().out
    headings = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert headings[:4] == ["container", "orders", "driver", "image"]
    assert headings[-1] == "The hook would do this."
    assert "box, process 4242" in out
    assert "libcuda.so.1 -> libcuda.so.580.95.05" in out


# --- errors ---------------------------------------------------------------------------------------------------------

BAD_STATES = {
    "no file": (None, "can't be read"),
    "no JSON": ("{", "is no JSON"),
    "no object": ("[]", "is no JSON object"),
    "pid of a container's own view": ('{"id": "x", "pid": 1, "bundle": "/x"}', "has the pid 1"),
    "relative bundle": ('{"id": "x", "pid": 9, "bundle": "x"}', "has the bundle 'x'"),
    "id with a slash": ('{"id": "x/y", "pid": 9, "bundle": "/x"}', "has the id 'x/y'"),
}


@pytest.mark.parametrize(("text", "words"), BAD_STATES.values(), ids=BAD_STATES)
def test_a_bad_state_is_an_error_that_names_the_file(text: str | None, words: str, host: Path, replay: Replay) -> None:
    bad = host / "bad.json"
    if text is not None:
        bad.write_text(text)
    found = replay(state=bad)
    assert found["status"] == 23
    assert f"the container state in '{bad}' {words}" in found["stderr"]
    assert "runc state" in found["stderr"]
    assert "standard input " not in found["stderr"].splitlines()[0]


def test_errors_are_the_hooks_own(host: Path, replay: Replay) -> None:
    """Another driver by now, a root that is away, orders that the shim would not write."""
    ordered(host / "full", host)
    path = host / "full/config.json"
    text = path.read_text()
    identity = record.load(load(str(host)), str(host)).id
    for old, new, status, reference in (
        (identity, "0" * 16, 53, "driver-changed"),
        (str(image("glibc")), "/nowhere", 70, "rootfs-unsafe"),
        ("--capabilities", "--frobnicate", 2, "usage"),
    ):
        path.write_text(text.replace(old, new))
        found = replay()
        assert (found["status"], found["outcome"], found["error"]["reference"]) == (status, "refused", reference)
        assert f"[{reference}]" in found["stderr"]


@pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="sources are opened as root only")
def test_a_library_that_is_another_file_now_is_driver_changed(
    sim_driver: Path, host: Path, folder: Path, replay: Replay
) -> None:
    """The record by the id of the orders is taken without its key, so the sources themselves must be proven."""
    driver = copy_of(sim_driver, folder / "driver")
    configure(folder, driver)
    ordered(host / "full", host)
    os.utime(next(driver.rglob("libcuda.so.580*")), (1, 1))
    found = replay()
    assert (found["status"], found["error"]["reference"]) == (53, "driver-changed")
    assert "libcuda" in found["stderr"]


USAGE = {
    "no dry run": (["--state", "x"], "only --dry-run"),
    "no state": (["--dry-run"], "--state FILE is needed"),
    "neither": ([], "only --dry-run"),
}


@pytest.mark.parametrize(("words", "text"), USAGE.values(), ids=USAGE)
def test_what_it_needs(words: list[str], text: str, host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpuhook", "hook", *words], str(host)) == 2
    assert text in capsys.readouterr().err


def test_what_the_state_says_steers_no_terminal(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state(host / "evil.json", host / "full", id="\x1b[2J\u202e")
    main(["gpuhook", "hook", "--dry-run", "--state", str(host / "evil.json")], str(host))
    shown = capsys.readouterr()
    assert all(line.isprintable() for line in (shown.out + shown.err).splitlines())


# --- it changes nothing, and is what the hook does -----------------------------------------------------------------


def test_it_changes_nothing(sim_driver: Path, host: Path, folder: Path, replay: Replay) -> None:
    tree = folder / "tree"
    subprocess.run(["cp", "-a", image("glibc"), tree], check=True)
    bundle(host / "own", ALL, tree=tree)
    ordered(host / "own", host)
    mounts = Path("/proc/self/mountinfo").read_text()
    before = listing(tree), listing(host / "own"), len(os.listdir("/proc/self/fd"))
    assert replay("--bundle", host / "own")["outcome"] == "granted"
    assert (listing(tree), listing(host / "own"), len(os.listdir("/proc/self/fd"))) == before
    assert Path("/proc/self/mountinfo").read_text() == mounts


@pytest.mark.runc
def test_what_it_says_is_what_a_real_container_has(
    world: World, sim_driver: Path, new_bundle: Callable[..., bundles.Bundle], shim: bundles.Runtime, folder: Path
) -> None:
    """The installed programs: every mount of the replay is in the container that the same bundle became."""
    world.use_driver(sim_driver)
    made = new_bundle(env=[ALL], args=["/bin/cat", "/proc/self/mountinfo"])
    done = shim.run(made)
    assert done.code == 0, done.err
    targets = {line.split()[4] for line in done.out.splitlines()}
    saved = state(folder / "state.json", made.path)
    command: list[str | Path] = [world.cli, "hook", "--dry-run", "--state", saved, "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert told["orders"]["from"] == "prestart"
    # in that image /lib is a link, which a mount does not show
    places = [os.path.realpath(f"{made.rootfs}{item['target']}") for item in told["mounts"] if item["present"]]
    planned = {place.removeprefix(os.path.realpath(made.rootfs)) for place in places}
    assert planned
    assert planned <= targets
    assert hook.parse(made.spec["hooks"]["prestart"][0]["args"][1:]).record == told["orders"]["record"]
