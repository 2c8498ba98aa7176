"""Every --json output, in good and bad cases, against its schema."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest

from gpuhook import cli
from gpuhook.cli import COMMANDS, main
from tests import bundles
from tests.images import image
from tests.unit import cli_schemas as schemas
from tests.unit.driver_support import copy_of
from tests.unit.test_cli_explain import configure

ALL = "NVIDIA_VISIBLE_DEVICES=all"
STATE = {"ociVersion": "1.0.2", "id": "box", "status": "creating", "pid": 4242, "annotations": {"a": "b"}}
Print = Callable[..., tuple[int, Any]]

# command line without --json, exit status, schema; {folder} has a bundle `full`, one that asks for nothing, and states
CASES: dict[str, tuple[list[str], int, schemas.Schema]] = {
    "explain granted": (["explain", "{folder}/full"], 0, schemas.EXPLAIN),
    "explain without an image": (["explain", "--env", ALL], 0, schemas.EXPLAIN),
    "explain nothing": (["explain", "{folder}/quiet"], 0, schemas.EXPLAIN),
    "explain refused early": (["explain", "--env", "NVIDIA_VISIBLE_DEVICES=x"], 30, schemas.EXPLAIN),
    "explain refused late": (["explain", "--env", ALL, "--env", "NVIDIA_REQUIRE_X=cuda>=99"], 41, schemas.EXPLAIN),
    "explain an image's configuration": (["explain", "--image-config", "{folder}/image.json"], 0, schemas.EXPLAIN),
    "hook granted": (["hook", "--dry-run", "--state", "{folder}/state.json"], 0, schemas.HOOK),
    "hook nothing": (
        ["hook", "--dry-run", "--state", "{folder}/state.json", "--bundle", "{folder}/quiet"],
        0,
        schemas.HOOK,
    ),
    "hook without a bundle": (
        ["hook", "--dry-run", "--state", "{folder}/state.json", "--bundle", "{folder}"],
        20,
        schemas.HOOK,
    ),
    "record show": (["record", "show"], 0, schemas.RECORD_SHOW),
    "record refresh": (["record", "refresh"], 0, schemas.RECORD_REFRESH),
    "list": (["list"], 0, schemas.LIST),
    "list of one capability": (["list", "--capability", "utility"], 0, schemas.LIST),
    "info": (["info"], 0, schemas.INFO),
    "doctor without an installation": (["doctor", "--engine", "crio"], 98, schemas.DOCTOR),
    "doctor of no engine": (["doctor", "--engine", "frob"], 2, schemas.FAILED),
    "check met": (["check", "cuda>=12.4"], 0, schemas.CHECK),
    "check not met": (["check", "cuda>=99", "--driver", "535.161.08", "--brand", "tesla"], 41, schemas.CHECK),
    "check that can't be parsed": (["check", "cuda>>1"], 40, schemas.CHECK),
    "config show": (["config", "show"], 0, schemas.CONFIG_SHOW),
    "config import": (["config", "import", "{folder}/toolkit.toml"], 0, schemas.CONFIG_IMPORT),
    "config import without images": (
        ["config", "import", "{folder}/toolkit.toml", "--no-images"],
        0,
        schemas.CONFIG_IMPORT,
    ),
    "config import of nothing": (["config", "import", "{folder}/nowhere"], 91, schemas.FAILED),
    "configure": (["configure", "docker", "--config", "{folder}/daemon.json"], 0, schemas.CONFIGURE),
    "configure a broken file": (["configure", "docker", "--config", "{folder}/full"], 91, schemas.FAILED),
    "unconfigure what is not configured": (["unconfigure", "docker"], 0, schemas.CONFIGURE),
    "explain without its bundle": (["explain", "{folder}/nowhere"], 20, schemas.FAILED),
    "check misspelt": (["check", "cuda>=12.4", "--frob"], 2, schemas.FAILED),
    "list of no capability": (["list", "--capability", "frob"], 2, schemas.FAILED),
}
BROKEN: dict[str, tuple[list[str], int, schemas.Schema]] = {
    "explain": (["explain", "--env", ALL], 51, schemas.EXPLAIN),
    "hook": (["hook", "--dry-run", "--state", "{folder}/state.json"], 51, schemas.HOOK),
    "record show": (["record", "show"], 51, schemas.RECORD_SHOW),
    "record refresh": (["record", "refresh"], 51, schemas.RECORD_REFRESH),
    "info": (["info"], 51, schemas.INFO),
    "doctor": (["doctor", "--engine", "crio"], 98, schemas.DOCTOR),
    "list": (["list"], 51, schemas.FAILED),
    "check": (["check", "cuda>=12.4"], 51, schemas.CHECK),
}


@pytest.fixture
def told(folder: Path, capsys: pytest.CaptureFixture[str]) -> Print:
    """Runs a command with --json; returns status and document."""
    full = folder / "full"
    for name, env in (("full", [ALL, "NVIDIA_REQUIRE_CUDA=cuda>=12.0"]), ("quiet", [])):
        (folder / name).mkdir()
        spec = bundles.config(env=env)
        spec["root"]["path"] = str(image("glibc"))
        (folder / name / "config.json").write_text(json.dumps(spec))
    program = folder / "prefix/usr/bin/gpuhook-runtime"  # engines are told of no program that is not there
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (folder / "toolkit.toml").write_text(
        "disable-require = true\nfrob = [2026-01-01, {a = inf}]\nnvidia-ctk.path = 1\n"
    )
    (folder / "state.json").write_text(json.dumps({**STATE, "bundle": str(full)}))
    (folder / "image.json").write_text(json.dumps({"config": {"Env": [ALL], "Labels": {"com.nvidia.x": "1"}}}))

    def call(*words: str) -> tuple[int, Any]:
        line = ["gpuhook", *[word.format(folder=folder) for word in words], "--json"]
        status = main(line, str(folder / "prefix"))
        shown = capsys.readouterr()
        document = json.loads(shown.out)
        for error in document.get("errors") or [document.get("error")]:
            said = f"gpuhook: {error['message']} [{error['reference']}]" if error else ""
            assert shown.err.count(said) == 1 if error else shown.err == "", "the error is not once on stderr"
        return status, document

    return call


@pytest.mark.parametrize(("words", "status", "schema"), CASES.values(), ids=CASES)
def test_a_document_has_the_fields_of_its_schema(
    words: list[str], status: int, schema: schemas.Schema, sim_driver: Path, folder: Path, told: Print
) -> None:
    configure(folder / "prefix", sim_driver)
    found, document = told(*words)
    assert found == status
    jsonschema.Draft202012Validator(schema).validate(document)


@pytest.mark.parametrize(("words", "status", "schema"), BROKEN.values(), ids=BROKEN)
def test_a_document_of_a_broken_host_has_them_too(
    words: list[str], status: int, schema: schemas.Schema, sim_driver: Path, folder: Path, told: Print
) -> None:
    configure(folder / "prefix", copy_of(sim_driver, folder / "driver", "not-loaded"))
    if words[:2] == ["record", "show"]:
        told("record", "refresh")  # an error is there to show
    found, document = told(*words)
    assert found == status
    jsonschema.Draft202012Validator(schema).validate(document)


def test_no_command_with_json_is_left_out() -> None:
    """A new command's --json gets a schema and a case here."""
    found = set()
    for name in COMMANDS:
        command = cli.gpuhook.get_command(click.Context(cli.gpuhook), name)
        assert command is not None
        children = command.commands if isinstance(command, click.Group) else {"": command}
        for child, item in children.items():
            if any("--json" in parameter.opts for parameter in item.params):
                found.add(f"{name} {child}".strip())
    twofold = {"show", "refresh", "import"}
    covered = {" ".join(words[: 2 if twofold & set(words) else 1]) for words, _, _ in CASES.values()}
    assert found == covered


@pytest.mark.parametrize(
    "change",
    [{"outcome": "maybe"}, {"extra": 1}, {"error": "text"}, {"warnings": None}],
    ids=["another value", "another field", "another type", "null"],
)
def test_a_schema_refuses_what_is_not_in_it(
    change: dict[str, Any], sim_driver: Path, folder: Path, told: Print
) -> None:
    """The schemas above would be no test if they took everything."""
    configure(folder / "prefix", sim_driver)
    _, document = told("explain", "--env", ALL)
    assert not jsonschema.Draft202012Validator(schemas.EXPLAIN).is_valid(document | change)


def test_documents_are_ascii(sim_driver: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No text in one can steer a terminal."""
    configure(folder, sim_driver)
    (folder / "image.json").write_text(json.dumps({"config": {"Env": ["NVIDIA_VISIBLE_DEVICES=\x1b[2J\u202e"]}}))
    main(["gpuhook", "explain", "--json", "--image-config", str(folder / "image.json")], str(folder))
    out = capfd.readouterr().out
    assert out.isascii()
    assert "\x1b" not in out
    assert os.linesep in out
