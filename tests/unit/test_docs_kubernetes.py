"""What docs/kubernetes.md shows can be used as it stands: manifests, configuration, options."""

import re
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gpuhook import cli, configfile
from gpuhook.engines.model import Options

PAGE = (Path(__file__).resolve().parents[2] / "docs/kubernetes.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
DOCUMENTS: list[dict[str, Any]] = [item for kind, text in BLOCKS if kind == "yaml" for item in yaml.safe_load_all(text)]
MANIFESTS = [item for item in DOCUMENTS if "kind" in item]
API = {"RuntimeClass": "node.k8s.io/v1", "Pod": "v1"}


def of(kind: str) -> list[dict[str, Any]]:
    return [item for item in MANIFESTS if item["kind"] == kind]


def test_every_manifest_is_of_a_kind_that_kubernetes_has() -> None:
    assert {item["kind"] for item in MANIFESTS} == set(API)
    assert [item["apiVersion"] for item in MANIFESTS] == [API[item["kind"]] for item in MANIFESTS]
    names = [item["metadata"]["name"] for item in MANIFESTS]
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in names)
    assert len(set(zip((item["kind"] for item in MANIFESTS), names, strict=True))) == len(MANIFESTS)


def test_the_handlers_are_names_that_configure_gives() -> None:
    """gpuhook's own, and the one that it takes over."""
    assert {item["metadata"]["name"]: item["handler"] for item in of("RuntimeClass")} == {
        Options.runtime_name: Options.runtime_name,
        "nvidia": "nvidia",
    }
    assert "--runtime-name nvidia" in PAGE


def test_pods_name_a_class_that_is_there_and_a_limit_or_void() -> None:
    classes = {item["metadata"]["name"] for item in of("RuntimeClass")}
    for pod in of("Pod"):
        assert pod["spec"]["runtimeClassName"] in classes
        for container in pod["spec"]["containers"]:
            limits = container.get("resources", {}).get("limits", {})
            void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container.get("env", [])
            assert ("nvidia.com/gpu" in limits) is not void


def test_the_plugins_values_fit_the_policy() -> None:
    (values,) = [item for item in DOCUMENTS if "kind" not in item]
    assert values["runtimeClassName"] == Options.runtime_name
    assert values["deviceListStrategy"] == "volume-mounts"
    assert values["securityContext"]["privileged"] is True


def test_the_policy_is_what_runtime_toml_takes(tmp_path: Path) -> None:
    (text,) = [text for kind, text in BLOCKS if kind == "toml"]
    (tmp_path / "runtime.toml").write_text(text)
    settings, _ = configfile.load(str(tmp_path / "runtime.toml"))
    assert (settings.accept_env_when_unprivileged, settings.accept_devices_as_volume_mounts) == (False, True)
    assert tomllib.loads(text).keys() == {"request"}


LINES = sorted(set(re.findall(r"^(gpuhook (?:configure|unconfigure|doctor)[^#\n]*)", PAGE, re.MULTILINE)))


@pytest.mark.parametrize("line", [line.strip() for line in LINES])
def test_command_lines_are_understood(line: str) -> None:
    """Each option exists and takes its value."""
    _, name, *words = line.split()
    command = cli.gpuhook.get_command(click.Context(cli.gpuhook), name)
    assert command is not None
    command.make_context(name, words)


def test_there_are_command_lines_to_look_at() -> None:
    assert {line.split()[1] for line in LINES} >= {"configure", "doctor"}
