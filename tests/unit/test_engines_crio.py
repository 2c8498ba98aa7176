"""CRI-O: which file is to say what, and what its files come to when CRI-O reads them."""

from pathlib import Path

import pytest

from gpuhook.engines import crio, tomltext
from gpuhook.engines.host import Host
from gpuhook.engines.model import FileEdit, Finding, Options, Set, Value
from gpuhook.errors import GpuhookError
from tests.unit.engine_support import carry_out, program, write

PACKAGED = """\
# as CRI-O's packages ship it
[crio.runtime]
default_runtime = "crun"

[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/libexec/crio/conmon"
monitor_cgroup = "system.slice"
allowed_annotations = ["io.containers.trace-syscall"]
"""
NVIDIA = """\
[crio.runtime]
default_runtime = "nvidia"

[crio.runtime.runtimes.nvidia]
runtime_path = "/usr/bin/nvidia-container-runtime"
runtime_type = "oci"
monitor_path = "/opt/conmon"
"""
FOLDER = "/etc/crio/crio.conf.d"
OURS = f"{FOLDER}/99-gpuhook.conf"


def make(root: Path, files: dict[str, str], *programs: str) -> Host:
    """A host with these files, gpuhook's runtime and these programs."""
    for path, text in files.items():
        write(root, path, text)
    for path in ("/usr/bin/gpuhook-runtime", "/usr/bin/gpuhook-hook", "/usr/bin/crio", *programs):
        program(root, path)
    return Host(str(root), 0, {"PATH": f"{root}/usr/bin"})


def values(edit: FileEdit) -> dict[tuple[str, ...], Value]:
    return {step.path: step.value for step in edit.steps if isinstance(step, Set)}


def table(edit: FileEdit, name: str = "gpuhook") -> dict[str, Value]:
    return {
        path[-1]: value for path, value in values(edit).items() if path[:-1] == ("crio", "runtime", "runtimes", name)
    }


def of(findings: tuple[Finding, ...], check: str) -> list[str]:
    return [finding.level for finding in findings if finding.check == check]


def test_the_table_is_a_copy_of_the_default_runtimes(tmp_path: Path) -> None:
    """Monitor, root and allowed annotations are as for other pods; the program is ours."""
    host = make(tmp_path, {f"{FOLDER}/10-crio.conf": PACKAGED})
    (edit,) = crio.propose(host, Options()).files
    assert (edit.path, edit.form) == (OURS, "toml")
    assert table(edit) == {
        "runtime_path": "/usr/bin/gpuhook-runtime",
        "runtime_type": "oci",
        "runtime_root": "/run/crun",
        "monitor_path": "/usr/libexec/crio/conmon",
        "monitor_cgroup": "system.slice",
        "allowed_annotations": ["io.containers.trace-syscall"],
        "monitor_env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
    }
    assert ("crio", "runtime", "default_runtime") not in values(edit)


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        pytest.param("", {}, id="nothing-configured"),
        pytest.param('runtime_type = "vm"\nruntime_config_path = "/k.toml"\nruntime_root = "/run/vc"\n', {}, id="kata"),
        pytest.param(
            'runtime_type = "pod"\nmonitor_path = "/usr/bin/conmonrs"\n',
            {"runtime_type": "pod", "monitor_path": "/usr/bin/conmonrs"},
            id="conmon-rs",
        ),
        pytest.param("inherit_default_runtime = true\nno_sync_log = true\n", {"no_sync_log": True}, id="inheriting"),
        pytest.param('[crio.runtime.runtimes.x.platform_runtime_paths]\n"a/b" = "/c"\n', {}, id="platforms"),
        pytest.param("something_new = [1, 2]\n", {"something_new": [1, 2]}, id="unknown-key"),
        pytest.param('monitor_env = ["A=B"]\n', {"monitor_env": ["A=B"]}, id="own-monitor-env"),
    ],
)
def test_what_is_taken_over(tmp_path: Path, base: str, expected: dict[str, Value]) -> None:
    """What belongs to the other program is left out, everything else kept."""
    text = f'[crio.runtime]\ndefault_runtime = "x"\n[crio.runtime.runtimes.x]\n{base}' if base else ""
    host = make(tmp_path, {"/etc/crio/crio.conf": text})
    found = table(crio.propose(host, Options()).files[0])
    plain = {"runtime_path": "/usr/bin/gpuhook-runtime", "runtime_type": "oci", "monitor_env": found["monitor_env"]}
    assert found == {**plain, **expected}


def test_an_old_conmon_env_is_not_shadowed(tmp_path: Path) -> None:
    """CRI-O moves the old conmon_env into each runtime without one."""
    host = make(tmp_path, {"/etc/crio/crio.conf": '[crio.runtime]\nconmon_env = ["PATH=/x"]\n'})
    assert "monitor_env" not in table(crio.propose(host, Options()).files[0])


def test_default_runtime_and_a_second_time(tmp_path: Path) -> None:
    """With our own file in place the proposal is the same, not a copy of our own table."""
    host = make(tmp_path, {f"{FOLDER}/10-crio.conf": PACKAGED})
    first = crio.propose(host, Options(default_runtime=True))
    assert values(first.files[0])["crio", "runtime", "default_runtime"] == "gpuhook"
    carry_out(host, first)
    assert crio.propose(host, Options(default_runtime=True)) == first
    findings = crio.check(host, Options())
    assert of(findings, "runtime") == of(findings, "default-runtime") == ["ok"]


def test_the_name_nvidia_is_taken_over_with_its_settings(tmp_path: Path) -> None:
    """Containers and RuntimeClasses hold the name; what an administrator set for it stays."""
    host = make(tmp_path, {f"{FOLDER}/10-crio.conf": PACKAGED, f"{FOLDER}/20-nvidia.toml": NVIDIA})
    (edit,) = crio.propose(host, Options(runtime_name="nvidia")).files
    assert table(edit, "nvidia")["monitor_path"] == "/opt/conmon"
    assert table(edit, "nvidia")["runtime_path"] == "/usr/bin/gpuhook-runtime"


@pytest.mark.parametrize(
    ("options", "place"),
    [
        pytest.param(Options(runtime_name="nvidia"), "99-nvidia.toml:5", id="the-table"),
        pytest.param(Options(default_runtime=True), "99-nvidia.toml:2", id="the-default"),
    ],
)
def test_a_later_file_that_says_otherwise(tmp_path: Path, options: Options, place: str) -> None:
    """`99-nvidia.toml` comes after `99-gpuhook.conf`: what it sets would win, so both files and the line are named."""
    host = make(tmp_path, {f"{FOLDER}/99-nvidia.toml": NVIDIA})
    with pytest.raises(GpuhookError) as caught:
        crio.propose(host, options)
    assert caught.value.reference == "engine-config-conflict"
    assert OURS in caught.value.message
    assert place in caught.value.message
    assert "zz-gpuhook.conf" in caught.value.hint


def test_the_hint_of_a_conflict_works(tmp_path: Path) -> None:
    """A drop-in file that sorts last is read last."""
    host = make(tmp_path, {f"{FOLDER}/99-nvidia.toml": NVIDIA})
    options = Options(runtime_name="nvidia", drop_in=f"{FOLDER}/zz-gpuhook.conf")
    carry_out(host, crio.propose(host, options))
    assert of(crio.check(host, options), "runtime") == ["ok"]


@pytest.mark.parametrize(
    ("later", "conflict"),
    [
        pytest.param("99-h.conf", True, id="lexically-later"),
        pytest.param("99-a.conf", False, id="lexically-earlier"),
        pytest.param("99-gpuhook.conf.bak", True, id="a-backup-counts"),
        pytest.param(".swp", False, id="hidden-ones-come-first"),
        pytest.param("a/z.conf", True, id="folder-after"),
        pytest.param("00/z.conf", False, id="folder-before"),
    ],
)
def test_the_order_of_files(tmp_path: Path, later: str, conflict: bool) -> None:
    """CRI-O reads every file below the folder, whatever its name ends in, folder by folder."""
    text = '[crio.runtime]\ndefault_runtime = "other"\n'
    host = make(tmp_path, {f"{FOLDER}/{later}": text})
    if not conflict:
        crio.propose(host, Options(default_runtime=True))
        return
    with pytest.raises(GpuhookError, match=r"default_runtime would be set in .*99-gpuhook\.conf"):
        crio.propose(host, Options(default_runtime=True))


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        pytest.param(Options(drop_in="/etc/other.conf"), "engine-option-unsupported", id="drop-in-elsewhere"),
        pytest.param(Options(drop_in="crio.conf"), "engine-option-unsupported", id="relative-drop-in"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: Options, reference: str) -> None:
    with pytest.raises(GpuhookError) as caught:
        crio.propose(make(tmp_path, {}), options)
    assert caught.value.reference == reference


def test_r143_another_main_file_has_its_folder_beside_it(tmp_path: Path) -> None:
    """Distributions keep crio.conf elsewhere; --config names it, and its drop-in files lie beside it."""
    host = make(tmp_path, {"/opt/crio/crio.conf": PACKAGED})
    (edit,) = crio.propose(host, Options(config="/opt/crio/crio.conf")).files
    assert edit.path == "/opt/crio/crio.conf.d/99-gpuhook.conf"
    assert table(edit)["runtime_root"] == "/run/crun"


def test_no_crio(tmp_path: Path) -> None:
    with pytest.raises(GpuhookError) as caught:
        crio.propose(Host(str(tmp_path), 0, {"PATH": str(tmp_path)}), Options())
    assert caught.value.reference == "engine-not-found"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[crio.runtime", id="no-toml"),
        pytest.param("[crio]\nruntime = 1\n", id="no-table"),
        pytest.param("[crio.runtime]\nruntimes = []\n", id="runtimes-a-list"),
        pytest.param('[crio.runtime.runtimes]\nrunc = "x"\n', id="runtime-a-string"),
        pytest.param("[crio.runtime]\ndefault_runtime = 1\n", id="default-a-number"),
        pytest.param('[crio.runtime]\nhooks_dir = "/x"\n', id="hooks-dir-a-string"),
    ],
)
def test_broken_files(tmp_path: Path, text: str) -> None:
    """An error that names the file for configure, a finding for the doctor, no traceback."""
    host = make(tmp_path, {"/etc/crio/crio.conf": text})
    with pytest.raises(GpuhookError) as caught:
        crio.propose(host, Options())
    assert caught.value.reference == "engine-config-invalid"
    assert "/etc/crio/crio.conf" in caught.value.message
    assert [(finding.level, finding.check) for finding in crio.check(host, Options())] == [("problem", "configuration")]


# --- R145: which runtime is below ours ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toml", "programs", "said"),
    [
        pytest.param("", ("/usr/bin/runc",), "runs /usr/bin/runc", id="R145-other"),
        pytest.param("", (), "finds no low-level runtime", id="R129-none"),
        pytest.param(
            '[runtime]\nlow-level = ["/usr/libexec/crio/crun"]\n', ("/usr/bin/runc",), "", id="R145-configured"
        ),
    ],
)
def test_the_low_level_runtime(tmp_path: Path, toml: str, programs: tuple[str, ...], said: str) -> None:
    """CRI-O ships a crun of its own that is in no PATH: gpuhook has to be told of it, and says so."""
    files = {f"{FOLDER}/10-crio.conf": PACKAGED, "/etc/gpuhook/runtime.toml": toml}
    host = make(tmp_path, files, "/usr/libexec/crio/crun", *programs)
    notes = [note for note in crio.propose(host, Options()).notes if "low-level" in note]
    assert len(notes) == bool(said)
    assert all(said in note and 'low-level = ["/usr/libexec/crio/crun"]' in note for note in notes)
    carry_out(host, crio.propose(host, Options()))
    assert of(crio.check(host, Options()), "low-level") == ["note"] * bool(said)


# --- hooks.d ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "extra"),
    [
        pytest.param("", "/usr/share/containers/oci/hooks.d", None, id="default"),
        pytest.param('hooks_dir = ["/a", "/b"]', "/b", None, id="the-last"),
        pytest.param(
            'hooks_dir = ["/etc/containers/oci/hooks.d", "/b"]', "/etc/containers/oci/hooks.d", None, id="etc"
        ),
        pytest.param(
            "hooks_dir = []", "/usr/share/containers/oci/hooks.d", ["/usr/share/containers/oci/hooks.d"], id="none"
        ),
    ],
)
def test_hook_only(tmp_path: Path, text: str, path: str, extra: list[str] | None) -> None:
    """The file goes where CRI-O looks; where it looks nowhere it is told to."""
    host = make(tmp_path, {"/etc/crio/crio.conf": f"[crio.runtime]\n{text}\n"})
    proposal = crio.propose(host, Options(hook_only=True))
    assert proposal.files[0].path == f"{path}/99-gpuhook.json"
    told = [values(edit)["crio", "runtime", "hooks_dir"] for edit in proposal.files[1:]]
    assert told == ([extra] if extra else [])
    carry_out(host, proposal)
    findings = crio.check(host, Options())
    assert of(findings, "hook-file") == ["ok"]
    assert of(findings, "runtime") == []


def test_hook_only_is_no_default_runtime(tmp_path: Path) -> None:
    with pytest.raises(GpuhookError) as caught:
        crio.propose(make(tmp_path, {}), Options(hook_only=True, default_runtime=True))
    assert caught.value.reference == "engine-option-unsupported"


# --- doctor -------------------------------------------------------------------------------------------------------


def test_doctor_without_configuration(tmp_path: Path) -> None:
    findings = crio.check(make(tmp_path, {}), Options())
    assert of(findings, "runtime") == ["problem"]


def test_doctor_sees_a_table_that_a_later_file_replaces(tmp_path: Path) -> None:
    """The later table counts whole: ours is gone, although the file is there."""
    host = make(tmp_path, {f"{FOLDER}/10-crio.conf": PACKAGED})
    carry_out(host, crio.propose(host, Options(runtime_name="nvidia")))
    make(tmp_path, {f"{FOLDER}/99-nvidia.toml": NVIDIA})
    (shadowed,) = [finding for finding in crio.check(host, Options()) if finding.check == "conflict"]
    assert shadowed.level == "problem"
    assert OURS in shadowed.message
    assert f"{FOLDER}/99-nvidia.toml" in shadowed.message


def test_doctor_misses_the_program(tmp_path: Path) -> None:
    """CRI-O ignores such a runtime with a line in its log: pods then fail for another reason."""
    host = make(tmp_path, {f"{FOLDER}/10-crio.conf": PACKAGED})
    carry_out(host, crio.propose(host, Options()))
    Path(host.real("/usr/bin/gpuhook-runtime")).unlink()
    assert of(crio.check(host, Options()), "runtime-program") == ["problem"]


@pytest.mark.parametrize(
    ("answer", "level"),
    [
        pytest.param('[crio.runtime.runtimes.runc]\nruntime_path = ""', ["warning"], id="R138-not-restarted"),
        pytest.param('[crio.runtime.runtimes.gpuhook]\nruntime_path = ""', ["ok"], id="in-force"),
        pytest.param("no toml", [], id="nonsense"),
        pytest.param("[crio]\nruntime = 1", [], id="no-table"),
    ],
)
def test_the_running_crio_is_asked(tmp_path: Path, answer: str, level: list[str]) -> None:
    host = make(tmp_path, {f"{FOLDER}/10-crio.conf": PACKAGED})
    carry_out(host, crio.propose(host, Options()))
    program(tmp_path, "/usr/bin/crio", f"#!/bin/sh\n[ \"$*\" = 'status config' ] || exit 1\nprintf '%s' '{answer}'\n")
    assert of(crio.check(host, Options()), "running") == level


def test_notes(tmp_path: Path) -> None:
    """What can't be done for the person is said: CDI, the RuntimeClass, the restart."""
    proposal = crio.propose(make(tmp_path, {}), Options(cdi=True))
    assert any("CDI" in note for note in proposal.notes)
    assert any("handler: gpuhook" in note for note in proposal.notes)
    assert proposal.restart.command == ("systemctl", "restart", "crio")


def test_undone_to_the_byte(tmp_path: Path) -> None:
    """In a file that others wrote in too, for the form that --drop-in with an existing file has."""
    text = f"{PACKAGED}\n[crio.image]\npause_image = 'x' # mine\n"
    host = make(tmp_path, {f"{FOLDER}/10-crio.conf": text})
    options = Options(drop_in=f"{FOLDER}/10-crio.conf", default_runtime=True)
    (edit,) = crio.propose(host, options).files
    assert table(edit)["runtime_root"] == "/run/crun"
    done, undos = tomltext.apply(edit.path, text, edit.steps)
    assert done != text
    assert tomltext.undo(edit.path, done, undos) == (text, ())


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(Options(default_runtime=True), id="own-file"),
        pytest.param(Options(drop_in=f"{FOLDER}/10-crio.conf", default_runtime=True), id="others-file"),
        pytest.param(Options(drop_in=f"{FOLDER}/99-nvidia.toml", runtime_name="nvidia"), id="taken-over-in-place"),
        pytest.param(Options(drop_in=f"{FOLDER}/zz.conf", runtime_name="nvidia"), id="taken-over-later"),
    ],
)
def test_r139_a_second_time_changes_nothing(tmp_path: Path, options: Options) -> None:
    files = {f"{FOLDER}/10-crio.conf": PACKAGED}
    if options.runtime_name == "nvidia":
        files[f"{FOLDER}/99-nvidia.toml"] = NVIDIA
    host = make(tmp_path, files)
    carry_out(host, crio.propose(host, options))
    (edit,) = crio.propose(host, options).files
    text = host.read(edit.path) or ""
    assert tomltext.apply(edit.path, text, edit.steps) == (text, ())


def test_a_changed_default_runtime_is_taken_over(tmp_path: Path) -> None:
    """After an update of CRI-O that moves its monitor, configuring again follows it."""
    host = make(tmp_path, {f"{FOLDER}/10-crio.conf": PACKAGED})
    carry_out(host, crio.propose(host, Options()))
    make(tmp_path, {f"{FOLDER}/10-crio.conf": PACKAGED.replace("/usr/libexec/crio/conmon", "/usr/bin/conmon")})
    assert table(crio.propose(host, Options()).files[0])["monitor_path"] == "/usr/bin/conmon"
