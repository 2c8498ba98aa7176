"""The OCI hooks directories: gpuhook's file, and what is found in those of others."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuhook.engines import hooksdir
from gpuhook.engines.host import Host
from gpuhook.engines.model import Options
from gpuhook.errors import GpuhookError
from tests.unit.engine_support import write

FOLDER = "/etc/containers/oci/hooks.d"
NVIDIA = {
    "version": "1.0.0",
    "hook": {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"]},
    "when": {"always": True, "commands": [".*"]},
    "stages": ["prestart"],
}


def make(root: Path, files: dict[str, str]) -> Host:
    for path, text in {"/usr/bin/gpuhook-hook": "#!/bin/sh\n", "/bin/other": "", **files}.items():
        write(root, path, text, 0o755)
    return Host(str(root), 0, {"PATH": f"{root}/usr/bin", "HOME": "/root"})


def found(host: Host, *folders: str, registered: bool = False) -> list[tuple[str, str]]:
    findings = hooksdir.check(host, Options(), folders or (FOLDER,), registered=registered)
    return [(finding.level, finding.check) for finding in findings]


def test_the_file(tmp_path: Path) -> None:
    """Explicit environment, every container, and a timeout after gpuhook's own, whose error says more."""
    host = make(tmp_path, {})
    text = hooksdir.text(host, Options(hook="/opt/x/usr/bin/gpuhook-hook"))
    assert json.loads(text) == {
        "version": "1.0.0",
        "hook": {
            "path": "/opt/x/usr/bin/gpuhook-hook",
            "args": ["gpuhook-hook", "prestart"],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "timeout": 30,
        },
        "when": {"always": True},
        "stages": ["prestart"],
    }
    assert hooksdir.parse("/x.json", text) == json.loads(text)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        pytest.param({"XDG_RUNTIME_DIR": "/run/mine"}, "/run/mine", id="named"),
        pytest.param({"XDG_RUNTIME_DIR": "mine"}, "/run/user/1000", id="no path"),
        pytest.param({}, "/run/user/1000", id="not named"),
    ],
)
def test_a_users_file_says_where_the_log_goes(environ: dict[str, str], folder: str) -> None:
    """Without it the hook has none, and crun shows nothing of what it says."""
    document = json.loads(hooksdir.text(Host("/nowhere", 1000, environ), Options()))
    assert document["hook"]["env"] == ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"XDG_RUNTIME_DIR={folder}"]


def test_the_file_follows_runtime_toml(tmp_path: Path) -> None:
    """Deadline and stage are those of the runtime's way."""
    host = make(tmp_path, {"/etc/gpuhook/runtime.toml": '[hook]\nstage = "createRuntime"\ndeadline = 45\n'})
    document = json.loads(hooksdir.text(host, Options()))
    assert (document["stages"], document["hook"]["timeout"]) == (["createRuntime"], 55)


@pytest.mark.parametrize(
    ("folders", "drop_in", "path", "told"),
    [
        pytest.param(("/usr/share/h",), None, "/usr/share/h/99-gpuhook.json", "", id="the-only"),
        pytest.param(("/etc/h", "/usr/h"), "", "/etc/h/99-gpuhook.json", "", id="the-administrators"),
        pytest.param(("/root/h", "/usr/h"), "", "/root/h/99-gpuhook.json", "", id="the-users"),
        pytest.param((), None, f"{hooksdir.DEFAULT}/99-gpuhook.json", hooksdir.DEFAULT, id="none-read"),
        pytest.param(("/a",), "/b/x.json", "/b/x.json", "/b", id="named"),
        pytest.param(("/a", "/b"), "/b/x.json", "/b/x.json", "", id="named-and-read"),
    ],
)
def test_where_the_file_goes(
    tmp_path: Path, folders: tuple[str, ...], drop_in: str | None, path: str, told: str
) -> None:
    edit, folder = hooksdir.file(make(tmp_path, {}), Options(drop_in=drop_in), folders)
    assert (edit.path, edit.form, folder) == (path, "whole", told)


def test_a_name_that_no_engine_reads(tmp_path: Path) -> None:
    with pytest.raises(GpuhookError) as caught:
        hooksdir.file(make(tmp_path, {}), Options(drop_in="/b/x.conf"), ("/b",))
    assert caught.value.reference == "engine-option-unsupported"


def changed(**values: Any) -> str:
    hook: dict[str, Any] = {"path": "/bin/other"}
    document: dict[str, Any] = {"version": "1.0.0", "hook": hook, "when": {"always": True}, "stages": ["prestart"]}
    for key, item in values.items():
        target = hook if key in ("path", "args", "env", "timeout") else document
        target.pop(key, None)
        if item is not None:
            target[key] = item
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(changed(), id="least"),
        pytest.param(changed(args=["a"], env=["A=b", "C="], timeout=1), id="all"),
        pytest.param(changed(when={}), id="empty-when"),
        pytest.param(
            changed(when={"annotations": {"^a$": "^b$"}, "commands": ["^/x$"], "hasBindMounts": True}), id="when"
        ),
        pytest.param(changed(stages=["precreate", "poststop"]), id="podmans-stages"),
        pytest.param(changed(comment="x"), id="unknown-key"),
        pytest.param('{"version": "0.1.0", "hook": "/bin/other", "stages": ["prestart"], "cmds": [".*"]}', id="0.1.0"),
        pytest.param('{"hook": "/bin/other", "stage": ["prestart"]}', id="no-version"),
    ],
)
def test_files_that_engines_take(tmp_path: Path, text: str) -> None:
    """podman 4.3.1 starts containers with each of these."""
    assert found(make(tmp_path, {f"{FOLDER}/a.json": text})) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("{", "is no JSON", id="no-json"),
        pytest.param("", "is no JSON", id="empty"),
        pytest.param("[" * 100_000, "is nested too deeply", id="deep"),
        pytest.param("[]", "is no JSON object", id="no-object"),
        pytest.param(changed(version="2.0.0"), "has version '2.0.0'", id="version"),
        pytest.param(changed(version=1), "has version '1'", id="version-number"),
        pytest.param(changed(version=[]), "has version '[]'", id="version-list"),
        pytest.param(changed(stages=["preStart"]), "stages.0: 'preStart' is not one of", id="stage"),
        pytest.param(changed(stages=None), "'stages' is a required property", id="no-stages"),
        pytest.param(changed(hook="/x"), "hook: '/x' is not of type 'object'", id="hook-a-string"),
        pytest.param(changed(path=None), "hook: 'path' is a required property", id="no-path"),
        pytest.param(changed(path="other"), "hook.path: 'other' does not match", id="relative-path"),
        pytest.param(changed(timeout=0), "hook.timeout: 0 is less than the minimum", id="timeout"),
        pytest.param(changed(env=["A"]), "hook.env.0: 'A' does not match", id="env"),
        pytest.param('{"hook": "/bin/other"}', "is not valid under any of the given schemas", id="0.1.0-no-stage"),
    ],
)
def test_files_that_engines_refuse(tmp_path: Path, text: str, said: str) -> None:
    """With one broken file podman starts no container at all, so the finding names it and says so."""
    host = make(tmp_path, {f"{FOLDER}/a.json": text})
    (finding,) = hooksdir.check(host, Options(), (FOLDER,), registered=False)
    assert (finding.level, finding.check) == ("problem", "hook-file")
    assert f"{FOLDER}/a.json" in finding.message
    assert said in finding.message
    assert "no container starts" in finding.hint


def ours(**values: Any) -> str:
    full = {"path": "/usr/bin/gpuhook-hook", "env": ["PATH=/usr/bin"], "timeout": 30}
    return changed(**{**full, **values})


@pytest.mark.parametrize(
    ("text", "level", "check"),
    [
        pytest.param(ours(), "ok", "hook-file", id="good"),
        pytest.param(ours(path="/gone/gpuhook-hook"), "problem", "hook-program", id="program-gone"),
        pytest.param(ours(env=None), "problem", "hook-file", id="CVE-2025-23266-no-env"),
        pytest.param(ours(timeout=20), "warning", "hook-file", id="timeout-too-short"),
        pytest.param(ours(timeout=None), "ok", "hook-file", id="no-timeout"),
        pytest.param(ours(stages=["poststart"]), "problem", "hook-file", id="stage"),
        pytest.param(ours(when={"commands": [".*"]}), "note", "hook-file", id="some-containers"),
    ],
)
def test_our_own_file(tmp_path: Path, text: str, level: str, check: str) -> None:
    assert found(make(tmp_path, {f"{FOLDER}/a.json": text})) == [(level, check)]


def test_the_later_directory_counts(tmp_path: Path) -> None:
    """A file of the same name in a later directory takes the place of the earlier, even a broken one."""
    host = make(tmp_path, {"/a/x.json": "{", "/b/x.json": ours(), "/b/README": "{"})
    assert found(host, "/a", "/b", "/not/there") == [("ok", "hook-file")]
    assert found(host, "/b", "/a") == [("problem", "hook-file")]


def test_nvidias_file(tmp_path: Path) -> None:
    """With the hook alone both would work on one container; with the runtime ours takes its place."""
    host = make(tmp_path, {f"{FOLDER}/oci-nvidia-hook.json": json.dumps(NVIDIA)})
    assert found(host) == [("warning", "toolkit-hook")]
    assert found(host, registered=True) == [("note", "toolkit-hook")]
    (note,) = hooksdir.notes(host, (FOLDER,))
    assert f"{FOLDER}/oci-nvidia-hook.json" in note


def test_r110_hook_and_runtime_both(tmp_path: Path) -> None:
    """Not an error: the runtime replaces the hook that the engine put into the spec."""
    host = make(tmp_path, {f"{FOLDER}/a.json": ours()})
    assert found(host, registered=True) == [("ok", "hook-file"), ("note", "hook-file")]


def test_a_hook_that_is_not_there(tmp_path: Path) -> None:
    """podman skips the file without a word."""
    assert found(make(tmp_path, {f"{FOLDER}/a.json": changed(path="/gone")})) == [("note", "hook-file")]


def test_a_directory_named_as_a_file(tmp_path: Path) -> None:
    host = make(tmp_path, {f"{FOLDER}/a.json/x": ""})
    assert found(host) == [("problem", "hook-file")]
