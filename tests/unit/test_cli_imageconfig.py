"""`gpuhook explain --image-config`: files in every form, images of docker and podman, and names that are no names."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuhook.cli import imageconfig, main
from gpuhook.errors import GpuhookError
from tests.unit.test_cli_explain import configure

ALL = "NVIDIA_VISIBLE_DEVICES=all"
OCI = {"architecture": "amd64", "os": "linux", "config": {"Env": [ALL, "PATH=/usr/bin"], "Labels": {"a": "b"}}}
INSPECTED = [{"Id": "sha256:1", "Architecture": "amd64", "Config": {"Env": [ALL, "PATH=/usr/bin"], "Labels": None}}]
Explain = Callable[..., dict[str, Any]]


@pytest.fixture
def explain(sim_driver: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    """Runs `explain --json --image-config ...`; the document with `status` and `stderr`."""
    configure(folder, sim_driver)

    def call(*words: str) -> dict[str, Any]:
        status = main(["gpuhook", "explain", "--json", "--image-config", *words], str(folder))
        shown = capsys.readouterr()
        document: dict[str, Any] = json.loads(shown.out) if shown.out else {}
        return document | {"status": status, "stderr": shown.err}

    return call


def engine(folder: Path, name: str, body: str) -> None:
    """A docker or podman of this test: a script that writes down its arguments, then `body`."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@" >>"{folder}/called"\n{body}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def only_ours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No engine but those that the test makes."""
    (folder / "bin").mkdir(exist_ok=True)
    monkeypatch.setenv("PATH", str(folder / "bin"))
    return folder


def printing(folder: Path, document: object) -> str:
    """A script's line that prints a document, without any other program."""
    text = json.dumps(document)
    assert "'" not in text
    return f"printf '%s' '{text}'"


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", [OCI, INSPECTED, INSPECTED[0]], ids=["OCI", "docker inspect", "one object"])
def test_a_file_in_each_known_form(document: object, folder: Path, explain: Explain) -> None:
    (folder / "image.json").write_text(json.dumps(document))
    found = explain(str(folder / "image.json"))
    assert (found["outcome"], found["status"]) == ("granted", 0)
    assert found["request"]["by"] == "NVIDIA_VISIBLE_DEVICES"
    assert found["container"]["image_config"] == str(folder / "image.json")
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1]


def test_env_goes_over_the_image_as_the_engines_do(folder: Path, explain: Explain) -> None:
    (folder / "image.json").write_text(json.dumps(OCI))
    found = explain(str(folder / "image.json"), "--env", "NVIDIA_VISIBLE_DEVICES=1")
    assert [gpu["index"] for gpu in found["gpus"]] == [1]
    assert explain(str(folder / "image.json"), "--env", "NVIDIA_VISIBLE_DEVICES=void")["outcome"] == "nothing"


def test_an_images_requirement_is_judged(folder: Path, explain: Explain) -> None:
    (folder / "image.json").write_text(json.dumps({"config": {"Env": [ALL, "NVIDIA_REQUIRE_CUDA=cuda>=99.0"]}}))
    found = explain(str(folder / "image.json"))
    assert (found["status"], found["error"]["reference"]) == (41, "requirement-not-met")


@pytest.mark.parametrize(
    ("labels", "named"),
    [({"maintainer": "x"}, False), ({"com.nvidia.cuda.version": "99.0"}, True)],
    ids=["others", "one of NVIDIA's"],
)
def test_labels_do_not_reach_a_runtime_and_that_is_said(
    labels: dict[str, str], named: bool, folder: Path, explain: Explain
) -> None:
    """The label would refuse the container if it counted."""
    (folder / "image.json").write_text(json.dumps({"config": {"Env": [ALL], "Labels": labels}}))
    found = explain(str(folder / "image.json"))
    assert found["outcome"] == "granted"
    note = next(text for text in found["notes"] if text.startswith("labels of an image do not reach a runtime"))
    assert ("'com.nvidia.cuda.version'" in note) is named
    counted = explain(str(folder / "image.json"), "--annotation", "com.nvidia.cuda.version=99.0")
    assert counted["status"] == 41


def test_another_machines_image_is_said(folder: Path, explain: Explain) -> None:
    (folder / "image.json").write_text(json.dumps({**OCI, "architecture": "arm64"}))
    assert any("for aarch64" in text for text in explain(str(folder / "image.json"))["notes"])
    (folder / "image.json").write_text(json.dumps(OCI))
    assert not any("the image is for" in text for text in explain(str(folder / "image.json"))["notes"])


def test_an_image_without_settings_asks_for_nothing(folder: Path, explain: Explain) -> None:
    (folder / "image.json").write_text(json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {}}))
    assert explain(str(folder / "image.json"))["outcome"] == "nothing"


BAD_FILES: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "is no JSON"),
    "empty": ("", "is no JSON"),
    "a text": ('"x"', "an object is expected"),
    "two images": ("[{}, {}]", "an object is expected"),
    "no image": ("[]", "an object is expected"),
    "a manifest": ('{"schemaVersion": 2, "layers": []}', "it looks like a manifest or index"),
    "a manifest with its config": (
        '{"schemaVersion": 2, "config": {"digest": "sha256:1"}}',
        "it looks like a manifest",
    ),
    "a bundle's config.json": ('{"process": {"env": []}}', "it looks like a container's config.json"),
    "Env is no list": ('{"config": {"Env": "A=b"}}', "Env is no list of strings"),
    "Env has a number": ('{"config": {"Env": [1]}}', "Env is no list of strings"),
    "Labels is a list": ('{"config": {"Labels": ["a"]}}', "Labels is no object"),
    "config is a text": ('{"config": "x"}', "it has no object `config`"),
    "deep": ("[" * 100000, "is no JSON"),
}


@pytest.mark.parametrize(("text", "words"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_of_another_form_is_named_with_what_is_wrong(
    text: str, words: str, folder: Path, explain: Explain
) -> None:
    (folder / "image.json").write_text(text)
    found = explain(str(folder / "image.json"))
    assert set(found) == {"status", "stderr", "error"}
    assert found["status"] == 25
    first = found["stderr"].splitlines()[0]
    assert words in first
    assert "image.json" in first


def test_a_huge_file_is_not_read_whole(folder: Path, explain: Explain) -> None:
    with open(folder / "image.json", "wb") as file:
        file.truncate(1 << 40)
    assert "is longer than" in explain(str(folder / "image.json"))["stderr"]


@pytest.mark.parametrize("name", ["{folder}", "{folder}/none.json", "./none.json", "/none"])
def test_a_path_is_never_an_image(name: str, only_ours: Path, explain: Explain) -> None:
    engine(only_ours, "docker", printing(only_ours, INSPECTED))
    assert explain(name.format(folder=only_ours))["status"] == 25
    assert not (only_ours / "called").exists()


# --- engines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_an_image_by_name_from_whichever_engine_is_there(name: str, only_ours: Path, explain: Explain) -> None:
    engine(only_ours, name, printing(only_ours, INSPECTED))
    found = explain("nvidia/cuda:12.4.1-base-ubuntu22.04")
    assert (found["outcome"], found["status"]) == ("granted", 0)
    assert found["container"]["image_config"] == f"{name} image nvidia/cuda:12.4.1-base-ubuntu22.04"
    called = (only_ours / "called").read_text().splitlines()
    assert called == [name, "image", "inspect", "--", "nvidia/cuda:12.4.1-base-ubuntu22.04"]


def test_an_image_that_docker_lacks_may_be_podmans(only_ours: Path, explain: Explain) -> None:
    engine(only_ours, "docker", 'echo "[]"; echo "No such image: x" >&2; exit 1')
    engine(only_ours, "podman", printing(only_ours, INSPECTED))
    assert explain("x")["container"]["image_config"] == "podman image x"


def test_without_an_engine_the_error_says_so(only_ours: Path, explain: Explain) -> None:
    found = explain("ubuntu:22.04")
    assert found["status"] == 25
    assert "neither docker nor podman is there to ask for the image 'ubuntu:22.04'" in found["stderr"]


def test_an_unknown_image_is_told_in_the_engines_words(only_ours: Path, explain: Explain) -> None:
    engine(only_ours, "docker", 'printf "Error: \\033[2JNo such image: x\\n" >&2; exit 1')
    engine(only_ours, "podman", "exit 125")
    found = explain("x")
    assert found["status"] == 25
    first, hint = found["stderr"].splitlines()
    assert "docker says 'Error: \\x1b[2JNo such image: x'" in first
    assert "podman says 'nothing (status 125)'" in first
    assert "pull it first" in hint


def test_an_engine_that_hangs_is_left_after_a_while(
    only_ours: Path, explain: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imageconfig, "_SECONDS", 0.2)
    engine(only_ours, "docker", "exec /bin/sleep 30")
    assert "docker gave no answer within 0.2 s" in explain("x")["stderr"]


def test_what_an_engine_prints_is_checked_too(only_ours: Path, explain: Explain) -> None:
    engine(only_ours, "docker", "echo surprise")
    assert "docker image x' is no JSON" in explain("x")["stderr"]


NO_NAMES = ["-x", "--format=x", "", " ", "a b", "a;b", "$(id)", "a\nb", "ä", "@x", "x" * 513, "\x1b[2J"]


@pytest.mark.parametrize("name", NO_NAMES, ids=repr)
def test_what_is_no_name_reaches_no_engine(name: str, only_ours: Path) -> None:
    """Above all nothing that an engine would take for an option."""
    engine(only_ours, "docker", printing(only_ours, INSPECTED))
    with pytest.raises(GpuhookError, match="no name that an image can have") as caught:
        imageconfig.read(name)
    assert caught.value.reference == "image-unreadable"
    assert caught.value.message.isprintable()
    assert not (only_ours / "called").exists()


# --- for people -----------------------------------------------------------------------------------------------------


def test_the_text_says_what_was_read(folder: Path, sim_driver: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(folder, sim_driver)
    (folder / "image.json").write_text(json.dumps(OCI))
    assert main(["gpuhook", "explain", "--image-config", str(folder / "image.json")], str(folder)) == 0
    out = capsys.readouterr().out
    assert "only its configuration was read" in out
    assert "labels of an image do not reach a runtime" in out


def test_a_bundle_and_an_image_are_one_too_many(folder: Path, explain: Explain) -> None:
    found = explain(str(folder / "image.json"), str(folder))
    assert found["status"] == 2
    assert "not both" in found["stderr"]


def test_the_images_words_steer_no_terminal(folder: Path, sim_driver: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(folder, sim_driver)
    evil = "\x1b[2J\u202e"
    config = {"Env": [f"NVIDIA_VISIBLE_DEVICES={evil}"], "Labels": {f"nvidia{evil}": evil}}
    (folder / "image.json").write_text(json.dumps({"config": config}))
    main(["gpuhook", "explain", "--image-config", str(folder / "image.json")], str(folder))
    shown = capsys.readouterr()
    assert all(line.isprintable() for line in (shown.out + shown.err).splitlines())
    assert os.fspath(folder)
