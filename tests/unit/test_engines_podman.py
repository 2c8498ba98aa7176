"""podman: which file is to say what, and what its files come to when podman reads them."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuhook.engines import podman, tomltext
from gpuhook.engines.host import Host
from gpuhook.engines.model import Add, FileEdit, Finding, Options, Set, Value
from gpuhook.errors import GpuhookError
from tests.unit.engine_support import carry_out, program, write

SYSTEM = "/etc/containers/containers.conf"
USER = "/home/u/.config/containers/containers.conf"
BUILT_IN = ["crun", "runc", "kata", "runsc", "youki", "krun", "ocijail"]
JSON = ("engine", "runtime_supports_json")


def make(
    root: Path, files: dict[str, str], uid: int = 0, programs: tuple[str, ...] = (), environ: Mapping[str, str] = {}
) -> Host:
    """A host with these files, gpuhook, podman and these programs."""
    for path, text in files.items():
        write(root, path, text)
    for path in ("/usr/bin/gpuhook-runtime", "/usr/bin/gpuhook-hook", *programs):
        program(root, path)
    if not Path(f"{root}/usr/bin/podman").exists():
        program(root, "/usr/bin/podman")
    home = {"HOME": "/home/u" if uid else "/root"}
    return Host(str(root), uid, {"PATH": f"{root}/usr/bin", **home, **environ})


def values(edit: FileEdit) -> dict[tuple[str, ...], Value]:
    return {step.path: step.value for step in edit.steps}


def of(findings: tuple[Finding, ...], check: str) -> list[str]:
    return [finding.level for finding in findings if finding.check == check]


@pytest.mark.parametrize(
    ("uid", "options", "environ", "path"),
    [
        pytest.param(0, Options(), {}, SYSTEM, id="rootful"),
        pytest.param(0, Options(drop_in=""), {}, f"{SYSTEM}.d/99-gpuhook.conf", id="rootful-drop-in"),
        pytest.param(0, Options(drop_in=f"{SYSTEM}.d/x.conf"), {}, f"{SYSTEM}.d/x.conf", id="named-drop-in"),
        pytest.param(1000, Options(), {}, USER, id="rootless"),
        pytest.param(1000, Options(drop_in=""), {}, f"{USER}.d/99-gpuhook.conf", id="rootless-drop-in"),
        pytest.param(1000, Options(), {"XDG_CONFIG_HOME": "/c"}, "/c/containers/containers.conf", id="XDG"),
        pytest.param(0, Options(), {"CONTAINERS_CONF": "/x.conf"}, "/x.conf", id="CONTAINERS_CONF"),
        pytest.param(0, Options(config="/y.conf"), {"CONTAINERS_CONF": "/x.conf"}, "/y.conf", id="R143-config"),
    ],
)
def test_which_file(tmp_path: Path, uid: int, options: Options, environ: dict[str, str], path: str) -> None:
    proposal = podman.propose(make(tmp_path, {}, uid, environ=environ), options)
    (edit,) = proposal.files
    assert edit.path == path
    assert values(edit) == {
        ("engine", "runtimes", "gpuhook"): ["/usr/bin/gpuhook-runtime"],
        JSON: [*BUILT_IN, "gpuhook"],
    }
    assert proposal.restart.command == ()


def test_default_runtime_and_a_second_time(tmp_path: Path) -> None:
    """What the proposal makes of the files reads back well, and a second one changes nothing of them."""
    host = make(tmp_path, {SYSTEM: "# mine\n[engine]\nevents_logger = 'file'\n"})
    options = Options(default_runtime=True)
    carry_out(host, podman.propose(host, options))
    text = host.read(SYSTEM)
    carry_out(host, podman.propose(host, options))
    assert host.read(SYSTEM) == text
    findings = podman.check(host, options)
    assert of(findings, "runtime") == of(findings, "default-runtime") == ["ok"]
    assert of(findings, "runtime-json") == []


@pytest.mark.parametrize(
    ("files", "step"),
    [
        pytest.param({}, Set(JSON, [*BUILT_IN, "gpuhook"]), id="built-in"),
        pytest.param({SYSTEM: '[engine]\nruntime_supports_json = ["a"]\n'}, Add(JSON, "gpuhook"), id="in-this-file"),
        pytest.param(
            {podman.SHARE: '[engine]\nruntime_supports_json = ["a"]\n'}, Set(JSON, ["a", "gpuhook"]), id="in-an-earlier"
        ),
        pytest.param(
            {podman.SHARE: '[engine]\nruntime_supports_json = ["a", {append = true}]\n'},
            Set(JSON, [*BUILT_IN, "a", "gpuhook"]),
            id="appended",
        ),
        pytest.param(
            {SYSTEM: '[engine]\nruntime_supports_json = ["a", {append = true}]\n'},
            Add(JSON, "gpuhook"),
            id="keep-append",
        ),
        pytest.param({podman.SHARE: '[engine]\nruntime_supports_json = ["gpuhook"]\n'}, None, id="there-already"),
    ],
)
def test_the_list_of_runtimes_with_json(tmp_path: Path, files: dict[str, str], step: Set | Add | None) -> None:
    """A list in a file replaces podman's own, so it begins with what is in force."""
    (edit,) = podman.propose(make(tmp_path, files), Options()).files
    assert [found for found in edit.steps if found.path == JSON] == ([step] if step else [])


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        pytest.param(("/usr/bin/crun",), ["crun", "krun", "gpuhook"], id="crun"),
        pytest.param(("/usr/bin/crun", "/usr/bin/runc"), None, id="runc-comes-first"),
        pytest.param((), None, id="none"),
    ],
)
def test_cgroups_disabled_needs_crun(tmp_path: Path, programs: tuple[str, ...], expected: list[str] | None) -> None:
    """podman refuses --cgroups=disabled for runtimes outside a list; ours can do what the one below it can."""
    (edit,) = podman.propose(make(tmp_path, {}, programs=programs), Options()).files
    assert values(edit).get(("engine", "runtime_supports_nocgroups")) == expected


def test_an_entry_with_several_paths_is_taken_over(tmp_path: Path) -> None:
    """podman takes the first path that is there, so ours stands alone."""
    host = make(tmp_path, {SYSTEM: '[engine.runtimes]\nnvidia = ["/a/nvidia-container-runtime", "/b/x"]\n'})
    (edit,) = podman.propose(host, Options(runtime_name="nvidia")).files
    assert values(edit)["engine", "runtimes", "nvidia"] == ["/usr/bin/gpuhook-runtime"]


@pytest.mark.parametrize(
    ("uid", "later", "text", "options"),
    [
        pytest.param(0, f"{SYSTEM}.d/a.conf", '[engine.runtimes]\ngpuhook = ["/x"]\n', Options(), id="drop-in"),
        pytest.param(
            0, f"{SYSTEM}.d/a.conf", '[engine]\nruntime = "crun"\n', Options(default_runtime=True), id="default"
        ),
        pytest.param(1000, f"{USER}.d/a.conf", '[engine.runtimes]\ngpuhook = ["/x"]\n', Options(), id="rootless"),
        pytest.param(
            0,
            f"{SYSTEM}.d/zz.conf",
            '[engine]\nruntime = "crun"\n',
            Options(default_runtime=True, drop_in=""),
            id="after-our-drop-in",
        ),
    ],
)
def test_a_later_file_that_says_otherwise(tmp_path: Path, uid: int, later: str, text: str, options: Options) -> None:
    """Both files and the line are named, and what is read later would win."""
    host = make(tmp_path, {later: text}, uid)
    with pytest.raises(GpuhookError) as caught:
        podman.propose(host, options)
    assert caught.value.reference == "engine-config-conflict"
    assert f"{later}:2" in caught.value.message


def test_an_earlier_file_is_no_conflict(tmp_path: Path) -> None:
    """The user's file is read after the system's, a drop-in file after the main one."""
    text = '[engine]\nruntime = "crun"\n[engine.runtimes]\ngpuhook = ["/x"]\n'
    host = make(tmp_path, {SYSTEM: text, podman.SHARE: text, f"{SYSTEM}.d/10.conf": text}, 1000)
    (own,) = podman.propose(host, Options(default_runtime=True)).files
    assert not own.path.startswith("/etc")
    (drop_in,) = podman.propose(make(tmp_path, {}), Options(default_runtime=True, drop_in="")).files
    assert drop_in.path.startswith(f"{SYSTEM}.d/")


def test_a_later_list_without_our_name_is_said(tmp_path: Path) -> None:
    """It costs the form of errors and nothing else."""
    host = make(tmp_path, {f"{SYSTEM}.d/a.conf": '[engine]\nruntime_supports_json = ["runc"]\n'})
    assert any(f"{SYSTEM}.d/a.conf:2 replaces the list" in note for note in podman.propose(host, Options()).notes)
    carry_out(host, podman.propose(host, Options()))
    assert of(podman.check(host, Options()), "runtime-json") == ["warning"]


@pytest.mark.parametrize(
    ("options", "environ"),
    [
        pytest.param(Options(drop_in="/etc/x.conf"), {}, id="elsewhere"),
        pytest.param(Options(drop_in=f"{SYSTEM}.d/x.toml"), {}, id="other-ending"),
        pytest.param(Options(drop_in=""), {"CONTAINERS_CONF": "/x.conf"}, id="CONTAINERS_CONF-has-none"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: Options, environ: dict[str, str]) -> None:
    with pytest.raises(GpuhookError) as caught:
        podman.propose(make(tmp_path, {}, environ=environ), options)
    assert caught.value.reference == "engine-option-unsupported"


def test_no_podman(tmp_path: Path) -> None:
    with pytest.raises(GpuhookError) as caught:
        podman.propose(Host(str(tmp_path), 0, {"PATH": str(tmp_path)}), Options())
    assert caught.value.reference == "engine-not-found"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[engine", id="no-toml"),
        pytest.param("engine = 1\n", id="no-table"),
        pytest.param("[engine]\nruntimes = []\n", id="runtimes-a-list"),
        pytest.param('[engine.runtimes]\nx = "/y"\n', id="a-string-for-a-list"),
        pytest.param("[engine]\nruntime_supports_json = [1]\n", id="list-of-numbers"),
        pytest.param("[engine]\nruntime = []\n", id="default-a-list"),
    ],
)
def test_broken_files(tmp_path: Path, text: str) -> None:
    """An error that names the file, for the doctor a finding, no traceback."""
    host = make(tmp_path, {SYSTEM: text})
    assert [(finding.level, finding.check) for finding in podman.check(host, Options())] == [
        ("problem", "configuration")
    ]
    with pytest.raises(GpuhookError) as caught:
        podman.propose(host, Options(default_runtime=True))
    assert caught.value.reference == "engine-config-invalid"
    assert SYSTEM in caught.value.message


def test_another_low_level_runtime_is_said(tmp_path: Path) -> None:
    """podman prefers crun, gpuhook runc."""
    host = make(tmp_path, {}, programs=("/usr/bin/crun", "/usr/bin/runc"))
    (note,) = [note for note in podman.propose(host, Options()).notes if "low-level" in note]
    assert "podman runs /usr/bin/crun" in note
    assert "gpuhook-runtime runs /usr/bin/runc" in note


# --- hooks.d ------------------------------------------------------------------------------------------------------


def test_hook_only_rootful(tmp_path: Path) -> None:
    """podman 4.3.1 reads /usr/share/containers/oci/hooks.d alone where nothing is configured."""
    host = make(tmp_path, {})
    proposal = podman.propose(host, Options(hook_only=True))
    assert [edit.path for edit in proposal.files] == ["/usr/share/containers/oci/hooks.d/99-gpuhook.json"]
    carry_out(host, proposal)
    assert of(podman.check(host, Options()), "hook-file") == ["ok"]
    assert of(podman.check(host, Options()), "runtime") == []


def test_hook_only_in_the_administrators_directory(tmp_path: Path) -> None:
    text = '[engine]\nhooks_dir = ["/etc/containers/oci/hooks.d", "/usr/share/containers/oci/hooks.d"]\n'
    proposal = podman.propose(make(tmp_path, {SYSTEM: text}), Options(hook_only=True))
    assert [edit.path for edit in proposal.files] == ["/etc/containers/oci/hooks.d/99-gpuhook.json"]


@pytest.mark.parametrize(
    ("files", "step"),
    [
        pytest.param({}, Set(("engine", "hooks_dir"), ["/usr/share/containers/oci/hooks.d", "OWN"]), id="nothing"),
        pytest.param(
            {SYSTEM: '[engine]\nhooks_dir = ["/a"]\n'}, Set(("engine", "hooks_dir"), ["/a", "OWN"]), id="the-systems"
        ),
        pytest.param({USER: '[engine]\nhooks_dir = ["/a"]\n'}, Add(("engine", "hooks_dir"), "OWN"), id="the-users"),
    ],
)
def test_hook_only_rootless(tmp_path: Path, files: dict[str, str], step: Set | Add) -> None:
    """A user writes no directory that podman reads: a new one, named besides those in force."""
    own = "/home/u/.config/containers/oci/hooks.d"
    if isinstance(step, Set):
        step = Set(step.path, [own if item == "OWN" else item for item in step.value])
    else:
        step = Add(step.path, own)
    host = make(tmp_path, files, 1000)
    proposal = podman.propose(host, Options(hook_only=True))
    assert [edit.path for edit in proposal.files] == [f"{own}/99-gpuhook.json", USER]
    assert proposal.files[1].steps == (step,)
    carry_out(host, proposal)
    assert of(podman.check(host, Options()), "hook-file") == ["ok"]
    again = podman.propose(host, Options(hook_only=True))
    assert [edit.path for edit in again.files] == [f"{own}/99-gpuhook.json"]


# --- doctor -------------------------------------------------------------------------------------------------------


def test_doctor_without_configuration(tmp_path: Path) -> None:
    assert of(podman.check(make(tmp_path, {}), Options()), "runtime") == ["problem"]


def test_doctor_sees_an_entry_that_a_later_file_replaces(tmp_path: Path) -> None:
    host = make(tmp_path, {})
    carry_out(host, podman.propose(host, Options()))
    make(tmp_path, {f"{SYSTEM}.d/a.conf": '[engine.runtimes]\ngpuhook = ["/x"]\n'})
    assert of(podman.check(host, Options()), "conflict") == ["problem"]


def test_doctor_sees_a_path_before_ours(tmp_path: Path) -> None:
    """podman takes the first that is there."""
    text = '[engine.runtimes]\ng = ["/usr/bin/runc", "/usr/bin/gpuhook-runtime"]\n'
    assert of(podman.check(make(tmp_path, {SYSTEM: text}), Options()), "runtime") == ["ok"]
    host = make(tmp_path, {}, programs=("/usr/bin/runc",))
    assert of(podman.check(host, Options()), "runtime") == ["problem"]


@pytest.mark.parametrize(
    ("answer", "level"),
    [
        pytest.param({"host": {"ociRuntime": {"path": "/usr/bin/gpuhook-runtime"}}}, ["ok"], id="ours"),
        pytest.param({"host": {"ociRuntime": {"path": "/usr/bin/runc"}}}, ["problem"], id="another"),
        pytest.param({"host": []}, ["problem"], id="nonsense"),
        pytest.param(None, ["problem"], id="nothing"),
    ],
)
def test_podman_is_asked(tmp_path: Path, answer: Value, level: list[str]) -> None:
    text = f"#!/bin/sh\n[ \"$*\" = '--runtime gpuhook info --format json' ] && echo '{json.dumps(answer)}'\n"
    program(tmp_path, "/usr/bin/podman", text)
    host = make(tmp_path, {})
    carry_out(host, podman.propose(host, Options()))
    assert of(podman.check(host, Options()), "running") == level


@pytest.mark.parametrize(
    "later",
    [pytest.param(f"{SYSTEM}.d/99-z.conf", id="after-main"), pytest.param(f"{SYSTEM}.d/a.conf", id="after-99")],
)
def test_the_hint_of_a_conflict_works(tmp_path: Path, later: str) -> None:
    """A drop-in file that sorts last is read last."""
    host = make(tmp_path, {later: '[engine]\nruntime = "crun"\n'})
    with pytest.raises(GpuhookError) as caught:
        podman.propose(host, Options(default_runtime=True))
    place = f"{SYSTEM}.d/zz-gpuhook.conf"
    assert f"--drop-in {place}" in caught.value.hint
    carry_out(host, podman.propose(host, Options(default_runtime=True, drop_in=place)))
    assert of(podman.check(host, Options()), "default-runtime") == ["ok"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        pytest.param("podman version 4.3.1", [], id="4.3"),
        pytest.param("podman version 5.0.0-rc1", ["runtime"], id="5.0"),
        pytest.param("podman version five", [], id="nonsense"),
    ],
)
def test_roots_own_file_counts_from_5_on(tmp_path: Path, version: str, expected: list[str]) -> None:
    """podman 5 reads the user's containers.conf for root too; before, it is for rootless podman alone."""
    text = '[engine.runtimes]\ngpuhook = ["/usr/bin/gpuhook-runtime"]\n'
    program(tmp_path, "/usr/bin/podman", f"#!/bin/sh\n[ \"$1\" = --version ] && echo '{version}'\n")
    host = make(tmp_path, {"/root/.config/containers/containers.conf": text})
    findings = podman.check(host, Options())
    assert [finding.check for finding in findings if finding.check == "runtime" and finding.level == "ok"] == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("# c\n[engine]\nruntime = 'crun' # d\n\n[engine.runtimes]\nx = [\n '/y', # z\n]\n", id="tables"),
        pytest.param('engine.runtime = "runc"', id="dotted-no-last-line-end"),
        pytest.param('[engine]\r\nruntime_supports_json = ["runc", {append = true}]\r\n', id="append-and-CRLF"),
    ],
)
def test_undone_to_the_byte(tmp_path: Path, text: str) -> None:
    """What the steps did to containers.conf is taken back, and nothing else."""
    (edit,) = podman.propose(make(tmp_path, {SYSTEM: text}), Options(default_runtime=True)).files
    done, undos = tomltext.apply(edit.path, text, edit.steps)
    assert done != text
    assert tomltext.undo(edit.path, done, undos) == (text, ())


def test_a_directory_among_the_drop_ins(tmp_path: Path) -> None:
    """podman passes it over."""
    host = make(tmp_path, {f"{SYSTEM}.d/x.conf/y": "no toml"})
    assert podman.propose(host, Options()).files[0].path == SYSTEM


@pytest.mark.skipif(shutil.which("podman") is None, reason="needs podman")
def test_real_podman_takes_what_is_proposed(tmp_path: Path) -> None:
    """The file that the proposal makes registers the runtime with the podman of this machine, as the default one."""
    runtime = tmp_path / "usr/bin/gpuhook-runtime"
    program(tmp_path, "/usr/bin/gpuhook-runtime", "#!/bin/sh\necho runc version 9\n")
    conf = str(tmp_path / "containers.conf")
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # podman takes no --runroot of more than 50 characters
        folders = {"HOME": short, "XDG_RUNTIME_DIR": short, "CONTAINERS_CONF": conf}
        host = Host("", os.geteuid(), {"PATH": os.environ["PATH"], **folders})
        options = Options(runtime=str(runtime), default_runtime=True)
        carry_out(host, podman.propose(host, options))
        place = ["--root", f"{short}/d", "--runroot", f"{short}/r", "--tmpdir", f"{short}/t", "--storage-driver", "vfs"]
        command = ["podman", *place, "info", "--format", "{{.Host.OCIRuntime.Name}} {{.Host.OCIRuntime.Path}}"]
        done = subprocess.run(command, env=dict(host.environ), capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["gpuhook", str(runtime)], done.stderr
