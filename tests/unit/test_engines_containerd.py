"""containerd's configuration as `gpuhook configure containerd` changes it, on hosts made of files."""

from pathlib import Path
from typing import Any

import pytest

from gpuhook.engines import containerd, containerdruntime
from gpuhook.engines.containerdconfig import matches
from gpuhook.engines.model import FileEdit, Options, Set
from gpuhook.errors import GpuhookError
from tests.unit.containerd_support import MAIN, OURS, V2, V3, Machine, machine

__all__ = ["machine"]

RUNC = "io.containerd.runc.v2"
DROP_IN = "/etc/containerd/conf.d/99-gpuhook.toml"
NVIDIA = "/etc/containerd/conf.d/99-nvidia.toml"
FULL = f"""version = 2
# kept: a comment
[plugins."{V2}"]
  sandbox_image = "registry.example/pause:1"
  [plugins."{V2}".containerd]
    default_runtime_name = "runc"
    [plugins."{V2}".containerd.runtimes.runc]
      runtime_type = "{RUNC}"
      pod_annotations = ["mine/*"]
      privileged_without_host_devices = true
      base_runtime_spec = "/etc/containerd/base.json"
      [plugins."{V2}".containerd.runtimes.runc.options]
        SystemdCgroup = true
        ShimCgroup = "/shims"
        BinaryName = "/opt/runc"
        Unheard = 7
"""


def runtimes(tree: dict[str, Any], plugin: str) -> dict[str, Any]:
    found: dict[str, Any] = tree["plugins"][plugin]["containerd"]["runtimes"]
    return found


def refusal(machine: Machine, options: Options | None = None, version: str = "1.6.20") -> GpuhookError:
    with pytest.raises(GpuhookError) as caught:
        containerd.propose(machine.host(version), options or Options())
    return caught.value


@pytest.mark.parametrize(
    ("version", "text", "plugin"),
    [
        pytest.param("1.6.20", "", V2, id="empty-of-1.x-becomes-2"),
        pytest.param("2.1.0", "", V3, id="empty-of-2.x-becomes-3"),
        pytest.param("1.6.20", 'root = "/data"\n', "cri", id="no-version-is-1"),
        pytest.param("1.7.0", "version = 1\n[plugins.cri]\nenable_selinux = true\n", "cri", id="1"),
        pytest.param("2.1.0", 'root = "/data"\n', V3, id="2.x-reads-no-plugins.cri"),
        pytest.param("1.7.24", "version = 2\n", V2, id="2"),
        pytest.param("2.0.1", "version = 2\n", V2, id="2-of-2.x"),
        pytest.param("2.1.9", "version = 3\n", V3, id="3"),
        pytest.param("2.3.0", "version = 4\n", V3, id="4"),
        pytest.param("v1.7.2-k3s1", "version = 2\n", V2, id="a-fork's-version"),
        pytest.param("unknown", "version = 2\n", V2, id="version-not-told"),
    ],
)
def test_the_runtime_goes_into_the_table_of_the_version(machine: Machine, version: str, text: str, plugin: str) -> None:
    machine.write(MAIN, text)
    machine.configure(machine.host(version))
    ours = runtimes(machine.tree(), plugin)["gpuhook"]
    assert ours["runtime_type"] == RUNC
    assert ours["options"]["BinaryName"] == OURS
    assert list(machine.tree()["plugins"]) == [plugin]


@pytest.mark.parametrize(("version", "number"), [("1.7.24", 2), ("2.1.9", 3)])
def test_a_missing_file_is_made_with_the_version_of_containerd(machine: Machine, version: str, number: int) -> None:
    machine.configure(machine.host(version))
    assert machine.tree()["version"] == number


def test_r127_comments_order_and_keys_of_others_stay(machine: Machine) -> None:
    machine.write(MAIN, FULL)
    machine.configure(machine.host())
    assert machine.read(MAIN).startswith(FULL.rstrip("\n"))


def test_r125_every_option_of_the_default_is_copied_then_binary_name(machine: Machine) -> None:
    machine.write(MAIN, FULL)
    machine.configure(machine.host())
    ours = runtimes(machine.tree(), V2)["gpuhook"]
    assert ours["options"] == {"SystemdCgroup": True, "ShimCgroup": "/shims", "BinaryName": OURS, "Unheard": 7}
    assert ours["privileged_without_host_devices"] is True
    assert ours["base_runtime_spec"] == "/etc/containerd/base.json"
    assert "mine/*" in ours["pod_annotations"]


def test_r125_the_settings_come_from_the_default_runtime_not_from_runc(machine: Machine) -> None:
    other = FULL.replace('default_runtime_name = "runc"', 'default_runtime_name = "fast"')
    machine.write(
        MAIN,
        f'{other}[plugins."{V2}".containerd.runtimes.fast]\nruntime_type = "{RUNC}"\n'
        f'[plugins."{V2}".containerd.runtimes.fast.options]\nRoot = "/run/fast"\n',
    )
    machine.configure(machine.host())
    assert runtimes(machine.tree(), V2)["gpuhook"]["options"] == {"Root": "/run/fast", "BinaryName": OURS}


def test_a_vm_runtime_is_not_copied(machine: Machine) -> None:
    other = FULL.replace('default_runtime_name = "runc"', 'default_runtime_name = "kata"')
    kata = f'[plugins."{V2}".containerd.runtimes.kata]\nruntime_type = "io.containerd.kata.v2"\nsnapshotter = "x"\n'
    machine.write(MAIN, other + kata)
    proposal = machine.configure(machine.host())
    ours = runtimes(machine.tree(), V2)["gpuhook"]
    assert ours["options"]["SystemdCgroup"] is True
    assert "snapshotter" not in ours
    assert any("'kata' is no runc" in note for note in proposal.notes)


def test_containerd_1_keeps_its_own_runc(machine: Machine) -> None:
    """A runtimes table with any entry replaces the one that containerd 1.x has by itself, which is runc's alone."""
    machine.write(MAIN, "version = 2\n")
    machine.configure(machine.host("1.7.24"))
    assert runtimes(machine.tree(), V2)["runc"] == {"runtime_type": RUNC}


def test_containerd_2_needs_no_runc_written(machine: Machine) -> None:
    machine.write(MAIN, "version = 3\n")
    machine.configure(machine.host("2.1.9"))
    assert list(runtimes(machine.tree(), V3)) == ["gpuhook"]


def test_v1_has_runtime_too_and_translates_the_options_of_the_old_shim(machine: Machine) -> None:
    machine.write(
        MAIN,
        "[plugins.cri]\nsystemd_cgroup = true\n[plugins.cri.containerd.runtimes.runc]\n"
        'runtime_type = "io.containerd.runtime.v1.linux"\nruntime_engine = "/opt/runc"\nruntime_root = "/run/r"\n',
    )
    machine.configure(machine.host("1.3.0"))
    ours = runtimes(machine.tree(), "cri")["gpuhook"]
    assert ours["options"] == {"Root": "/run/r", "SystemdCgroup": True, "BinaryName": OURS, "Runtime": OURS}
    assert not {"runtime_engine", "runtime_root"} & set(ours)


def test_a_second_time_changes_nothing_r139(machine: Machine) -> None:
    machine.write(MAIN, FULL)
    options = Options(default_runtime=True, cdi=True)
    machine.configure(machine.host(), options)
    once = machine.read(MAIN)
    machine.configure(machine.host(), options)
    assert machine.read(MAIN) == once


def test_taking_nvidia_over_keeps_its_other_keys_and_sets_leaves(machine: Machine) -> None:
    machine.write(
        MAIN,
        f'{FULL}[plugins."{V2}".containerd.runtimes.nvidia]\nruntime_type = "{RUNC}"\nsnapshotter = "theirs"\n'
        'container_annotations = ["theirs/*"]\n'
        f'[plugins."{V2}".containerd.runtimes.nvidia.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n',
    )
    proposal = machine.configure(machine.host(), Options(runtime_name="nvidia"))
    ours = runtimes(machine.tree(), V2)["nvidia"]
    assert ours["options"]["BinaryName"] == OURS
    assert ours["options"]["SystemdCgroup"] is True
    assert ours["snapshotter"] == "theirs"
    assert ours["container_annotations"][0] == "theirs/*"
    (edit,) = proposal.files
    assert all(len(step.path) >= 6 for step in edit.steps), "a step above a leaf could not be undone by leaves"


def test_taking_over_clears_what_containerd_would_refuse_beside_the_new_shim(machine: Machine) -> None:
    machine.write(
        MAIN,
        '[plugins.cri.containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runtime.v1.linux"\n'
        'runtime_engine = "/usr/bin/nvidia-container-runtime"\n',
    )
    machine.configure(machine.host("1.4.0"), Options(runtime_name="nvidia"))
    assert runtimes(machine.tree(), "cri")["nvidia"]["runtime_engine"] == ""


@pytest.mark.parametrize(
    ("program", "told"), [("/opt/runc", True), ("/usr/bin/nvidia-container-runtime", False), (OURS, False)]
)
def test_another_low_level_runtime_is_told(machine: Machine, program: str, told: bool) -> None:
    machine.write(MAIN, FULL.replace("/opt/runc", program))
    notes = containerd.propose(machine.host(), Options()).notes
    assert any("low-level in /etc/gpuhook/runtime.toml" in note for note in notes) is told


def test_default_runtime(machine: Machine) -> None:
    machine.write(MAIN, FULL)
    machine.configure(machine.host(), Options(default_runtime=True))
    assert machine.tree()["plugins"][V2]["containerd"]["default_runtime_name"] == "gpuhook"


def test_default_runtime_of_the_table_of_before_1_4(machine: Machine) -> None:
    """That table wins over default_runtime_name, so it is changed too."""
    machine.write(
        MAIN,
        '[plugins.cri.containerd.default_runtime]\nruntime_type = "io.containerd.runtime.v1.linux"\n'
        'runtime_engine = "x"\n',
    )
    machine.configure(machine.host("1.4.0"), Options(default_runtime=True))
    old = machine.tree()["plugins"]["cri"]["containerd"]["default_runtime"]
    assert old == {"runtime_type": RUNC, "runtime_engine": "", "options": {"BinaryName": OURS}}


@pytest.mark.parametrize(
    ("line", "key"),
    [("systemd_cgroup = true", "systemd_cgroup"), ("[plugins.cri.containerd]\nno_pivot = true", "no_pivot")],
    ids=["systemd_cgroup", "no_pivot"],
)
def test_a_default_that_containerd_would_refuse_is_refused_here(machine: Machine, line: str, key: str) -> None:
    machine.write(MAIN, f"[plugins.cri]\n{line}\n")
    error = refusal(machine, Options(default_runtime=True))
    assert error.reference == "engine-config-conflict"
    assert f"{MAIN}:{2 if key == 'systemd_cgroup' else 3}" in error.message


@pytest.mark.parametrize(
    ("version", "text", "expected", "note"),
    [
        ("1.6.20", "version = 2\n", True, "1.6.20 knows no CDI"),
        ("1.7.24", "version = 2\n", True, ""),
        ("2.1.9", "version = 3\n", None, "CDI on by itself"),
        ("2.1.9", f'version = 3\n[plugins."{V3}"]\nenable_cdi = false\n', True, ""),
    ],
    ids=["1.6", "1.7", "2.1", "2.1-switched-off"],
)
def test_cdi(machine: Machine, version: str, text: str, expected: bool | None, note: str) -> None:
    machine.write(MAIN, text)
    proposal = machine.configure(machine.host(version), Options(cdi=True))
    cri = next(iter(machine.tree()["plugins"].values()))
    assert cri.get("enable_cdi") is expected
    assert bool(note) == any("CDI" in line for line in proposal.notes)
    assert not note or any(note in line for line in proposal.notes)


def test_cdi_directories_that_were_emptied_come_back(machine: Machine) -> None:
    machine.write(MAIN, f'version = 2\n[plugins."{V2}"]\ncdi_spec_dirs = []\n')
    machine.configure(machine.host("1.7.1"), Options(cdi=True))
    assert machine.tree()["plugins"][V2]["cdi_spec_dirs"] == ["/etc/cdi", "/var/run/cdi"]


# --- what can't be read, or not by this containerd ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param('version = "2"\n', ":1: version is '2': containerd takes a whole number only", id="R122-text"),
        pytest.param("version = 2.0\n", ":1: version is 2.0: containerd takes a whole number only", id="R122-float"),
        pytest.param("# a\nversion = 99\n", ":2: version is 99: containerd knows 1 to 4", id="R122-99"),
        pytest.param("version = true\n", ":1: version is true: ", id="R122-bool"),
        pytest.param("version = -1\n", ":1: version is -1", id="R122-negative"),
        pytest.param(
            "version = 2\n[plugins.cri]\nx = 1\n", ":2: plugins.cri belongs into a file of version 1", id="R121"
        ),
        pytest.param("version = 2\nplugins = 3\n", ":2: plugins must be a table, is '3'", id="plugins-no-table"),
        pytest.param(f'version = 2\n[plugins."{V2}"]\ncontainerd = []\n', ":3: ", id="containerd-no-table"),
        pytest.param('version = 2\nimports = "a"\n', ":2: imports must be a list of strings", id="imports-no-list"),
        pytest.param(
            f'version = 2\n[plugins."{V2}".containerd.runtimes]\nrunc = "runc"\n', ":3: ", id="runtime-no-table"
        ),
        pytest.param("version = \n", "config.toml", id="not-toml"),
    ],
)
def test_what_containerd_refuses_is_refused_with_its_line(machine: Machine, text: str, words: str) -> None:
    machine.write(MAIN, text)
    error = refusal(machine)
    assert error.reference == "engine-config-invalid"
    assert words in error.message
    assert MAIN in error.message


@pytest.mark.parametrize(
    ("version", "text", "words"),
    [
        pytest.param("1.6.20", f'[plugins."{V2}"]\nx = 1\n', "write version = 2 on top", id="R121-no-version"),
        pytest.param("2.1.9", "version = 2\n[plugins.cri]\nx = 1\n", "takes no account of it", id="R121-v2-cri-on-2.x"),
        pytest.param("2.1.9", "[plugins.cri]\nx = 1\n", "not read by containerd 2.x", id="R121-v1-on-2.x"),
        pytest.param(
            "1.7.24", f'version = 2\n[plugins."{V3}"]\nx = 1\n', "belongs into a file of version 3", id="v3-in-2"
        ),
        pytest.param(
            "2.1.9", f'version = 3\n[plugins."{V2}"]\nx = 1\n', "version 3 ignores its runtimes", id="v2-in-3"
        ),
    ],
)
def test_tables_of_another_version_are_told(machine: Machine, version: str, text: str, words: str) -> None:
    machine.write(MAIN, text)
    assert any(words in note for note in machine.configure(machine.host(version)).notes)


def test_an_import_of_another_version_is_told(machine: Machine) -> None:
    machine.write(MAIN, 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    machine.write("/etc/containerd/conf.d/a.toml", "version = 3\n")
    assert any("is version 3" in note for note in machine.configure(machine.host("2.1.9")).notes)


# --- imports and drop-ins -------------------------------------------------------------------------------------------


def test_a_drop_in_of_1_x_begins_with_a_copy_of_the_table(machine: Machine) -> None:
    machine.write(MAIN, FULL)
    proposal = machine.configure(machine.host(), Options(drop_in=""))
    tree = machine.tree(DROP_IN)
    assert tree["version"] == 2
    assert tree["plugins"][V2]["sandbox_image"] == "registry.example/pause:1"
    assert runtimes(tree, V2)["runc"] == runtimes(machine.tree(), V2)["runc"]
    assert runtimes(tree, V2)["gpuhook"]["options"]["SystemdCgroup"] is True
    assert f"a copy of {MAIN}" in machine.read(DROP_IN)
    assert any("later edits there have no effect" in note for note in proposal.notes)
    assert machine.tree()["imports"] == ["/etc/containerd/conf.d/99-gpuhook*.toml"]


def test_a_drop_in_of_2_x_has_ours_alone(machine: Machine) -> None:
    machine.write(MAIN, FULL.replace("version = 2", "version = 3").replace(V2, V3))
    machine.configure(machine.host("2.0.2"), Options(drop_in="", default_runtime=True))
    tree = machine.tree(DROP_IN)
    assert tree["version"] == 3
    assert list(tree["plugins"][V3]) == ["containerd"]
    assert list(runtimes(tree, V3)) == ["gpuhook"]
    assert runtimes(tree, V3)["gpuhook"]["options"]["Unheard"] == 7


def test_r123_a_drop_in_that_is_imported_needs_no_change_of_the_main_file(machine: Machine) -> None:
    machine.write(MAIN, 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    proposal = machine.configure(machine.host("2.1.9"), Options(drop_in=""))
    assert [edit.path for edit in proposal.files] == [DROP_IN]


@pytest.mark.parametrize(
    ("version", "imports", "covered"),
    [
        pytest.param("2.1.9", "[]", False, id="none"),
        pytest.param("2.1.9", '["/etc/containerd/config.d/*.toml"]', False, id="config.d"),
        pytest.param("2.1.9", '["conf.d/*.toml"]', True, id="relative"),
        pytest.param("1.7.24", '["conf.d/*.toml"]', True, id="relative-1.7"),
        pytest.param("1.6.20", '["conf.d/*.toml"]', False, id="relative-pattern-of-1.6-is-the-daemon's-directory"),
        pytest.param("2.1.9", '["conf.d/99-gpuhook.toml"]', True, id="by-name"),
    ],
)
def test_r123_the_imports_really_match(machine: Machine, version: str, imports: str, covered: bool) -> None:
    machine.write(MAIN, f"version = 2\nimports = {imports}\n")
    proposal = machine.configure(machine.host(version), Options(drop_in=""))
    assert ([edit.path for edit in proposal.files] == [DROP_IN]) is covered
    assert covered or "/etc/containerd/conf.d/99-gpuhook*.toml" in machine.tree()["imports"]


def test_a_named_drop_in_without_a_main_file(machine: Machine) -> None:
    machine.configure(machine.host("2.1.9"), Options(drop_in="/etc/containerd/more/gpu.toml"))
    assert machine.tree() == {"version": 3, "imports": ["/etc/containerd/more/gpu*.toml"]}
    assert machine.tree("/etc/containerd/more/gpu.toml")["version"] == 3


def nvidia(machine: Machine, version: int = 2, plugin: str = V2) -> None:
    machine.write(MAIN, f'version = {version}\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    machine.write(
        NVIDIA,
        f'version = {version}\n[plugins."{plugin}".containerd.runtimes.nvidia]\nruntime_type = "{RUNC}"\n'
        f'[plugins."{plugin}".containerd.runtimes.nvidia.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n',
    )


def test_an_import_that_replaces_the_table_is_a_conflict_with_both_lines(machine: Machine) -> None:
    nvidia(machine)
    error = refusal(machine)
    assert error.reference == "engine-config-conflict"
    assert f"{NVIDIA}:2" in error.message
    assert f"{MAIN}:" in error.message
    assert error.hint.endswith("--drop-in /etc/containerd/conf.d/zz-gpuhook.toml")


def test_a_drop_in_that_sorts_before_that_import_is_a_conflict_too(machine: Machine) -> None:
    nvidia(machine)
    error = refusal(machine, Options(drop_in=""))
    assert error.reference == "engine-config-conflict"
    assert f"{NVIDIA}:2 is merged after {DROP_IN}" in error.message


def test_the_hinted_drop_in_works_and_keeps_what_the_other_has(machine: Machine) -> None:
    nvidia(machine)
    path = "/etc/containerd/conf.d/zz-gpuhook.toml"
    machine.configure(machine.host(), Options(drop_in=path))
    assert set(runtimes(machine.tree(path), V2)) == {"nvidia", "gpuhook"}


def test_2_x_merges_so_that_import_is_no_conflict(machine: Machine) -> None:
    nvidia(machine, 3, V3)
    machine.configure(machine.host("2.1.9"))
    assert runtimes(machine.tree(), V3)["gpuhook"]["options"]["BinaryName"] == OURS


def test_2_x_an_import_that_sets_the_same_key_is_a_conflict(machine: Machine) -> None:
    nvidia(machine, 3, V3)
    error = refusal(machine, Options(runtime_name="nvidia"), "2.1.9")
    assert error.reference == "engine-config-conflict"
    assert "it sets containerd.runtimes.nvidia too" in error.message


def test_a_foreign_file_of_the_drop_ins_name_is_left_alone(machine: Machine) -> None:
    machine.write(MAIN, "version = 2\n")
    machine.write(DROP_IN, "version = 2\n")
    assert "is not gpuhook's" in refusal(machine, Options(drop_in="")).message


def test_a_drop_in_that_is_there_is_used_again_and_stays_the_same(machine: Machine) -> None:
    machine.write(MAIN, FULL)
    machine.configure(machine.host(), Options(drop_in=""))
    once, main = machine.read(DROP_IN), machine.read(MAIN)
    proposal = machine.configure(machine.host())
    assert [edit.path for edit in proposal.files] == [DROP_IN]
    assert (machine.read(DROP_IN), machine.read(MAIN)) == (once, main)


def test_a_drop_in_follows_the_main_file_when_it_is_written_anew(machine: Machine) -> None:
    machine.write(MAIN, FULL)
    machine.configure(machine.host(), Options(drop_in=""))
    machine.write(MAIN, machine.read(MAIN).replace("pause:1", "pause:2"))
    machine.configure(machine.host(), Options(drop_in=""))
    assert machine.tree(DROP_IN)["plugins"][V2]["sandbox_image"] == "registry.example/pause:2"


def test_a_copy_may_be_read_by_those_who_may_read_its_source(machine: Machine) -> None:
    machine.write(MAIN, FULL)
    Path(f"{machine.path}/root{MAIN}").chmod(0o600)
    edits = containerd.propose(machine.host(), Options(drop_in="")).files
    assert [edit.mode for edit in edits if edit.path == DROP_IN] == [0o600]


def test_the_copy_is_of_the_last_file_that_has_the_table(machine: Machine) -> None:
    nvidia(machine)
    machine.write(MAIN, machine.read(MAIN) + FULL.partition("\n")[2])
    path = "/etc/containerd/conf.d/zz-gpuhook.toml"
    proposal = machine.configure(machine.host(), Options(drop_in=path))
    assert any(f"of {NVIDIA};" in note for note in proposal.notes)
    assert "sandbox_image" not in machine.tree(path)["plugins"][V2]


def test_2_x_a_drop_in_copies_options_that_a_later_file_gives(machine: Machine) -> None:
    machine.write(MAIN, 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    at = f'[plugins."{V3}".containerd.runtimes.runc.options]'
    machine.write("/etc/containerd/conf.d/zz.toml", f"version = 3\n{at}\nSystemdCgroup = true\n")
    machine.configure(machine.host("2.1.9"), Options(drop_in=""))
    assert runtimes(machine.tree(DROP_IN), V3)["gpuhook"]["options"]["SystemdCgroup"] is True


def test_2_x_a_default_that_an_import_sets_is_a_conflict(machine: Machine) -> None:
    machine.write(MAIN, 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    machine.write(NVIDIA, f'version = 3\n[plugins."{V3}".containerd]\ndefault_runtime_name = "nvidia"\n')
    error = refusal(machine, Options(default_runtime=True), "2.1.9")
    assert error.reference == "engine-config-conflict"
    assert f"{NVIDIA}:3" in error.message


def test_2_x_a_drop_in_that_takes_nvidia_over_keeps_its_annotations(machine: Machine) -> None:
    """Lists are replaced where tables are merged."""
    machine.write(
        MAIN,
        f'version = 3\n[plugins."{V3}".containerd.runtimes.nvidia]\nruntime_type = "{RUNC}"\n'
        'container_annotations = ["theirs/*"]\n',
    )
    machine.configure(machine.host("2.1.9"), Options(runtime_name="nvidia", drop_in=""))
    assert runtimes(machine.tree(DROP_IN), V3)["nvidia"]["container_annotations"] == [
        "theirs/*",
        *containerdruntime.CONTAINER_ANNOTATIONS,
    ]


def test_2_x_reads_version_2_together_with_the_table_of_version_3(machine: Machine) -> None:
    machine.write(MAIN, f'version = 2\n[plugins."{V3}".containerd.runtimes.runc.options]\nNoPivotRoot = true\n')
    machine.configure(machine.host("2.1.9"))
    assert runtimes(machine.tree(), V2)["gpuhook"]["options"]["NoPivotRoot"] is True


def test_the_last_version_that_is_written_counts(machine: Machine) -> None:
    machine.write(MAIN, 'version = 3\nimports = ["a.toml"]\n')
    machine.write("/etc/containerd/a.toml", "version = 2\n")
    machine.configure(machine.host("2.1.9"))
    assert list(machine.tree()["plugins"]) == [V2]


def test_imports_that_go_round_end(machine: Machine) -> None:
    machine.write(MAIN, 'version = 2\nimports = ["a.toml", "config.toml"]\n')
    machine.write("/etc/containerd/a.toml", 'version = 2\nimports = ["config.toml"]\n')
    machine.configure(machine.host())
    assert "gpuhook" in runtimes(machine.tree(), V2)


def test_an_import_by_name_that_is_not_there_is_told(machine: Machine) -> None:
    machine.write(MAIN, 'version = 2\nimports = ["gone.toml"]\n')
    assert any("/etc/containerd/gone.toml is imported" in note for note in machine.configure(machine.host()).notes)


# --- options, annotations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(hook_only=True), "no directory of OCI hooks"),
    ],
    ids=["hook-only"],
)
def test_options_that_mean_nothing(machine: Machine, options: Options, words: str) -> None:
    machine.write(MAIN, "version = 2\n")
    error = refusal(machine, options)
    assert error.reference == "engine-option-unsupported"
    assert words in error.message


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*", "plain", True),
        ("*", "a/b", False),
        ("*/*", "a/b", True),
        ("cdi.k8s.io/*", "cdi.k8s.io/nvidia-device-plugin_x", True),
        ("com.nvidia.*", "com.nvidia.cuda.version", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("[a-c]x", "bx", True),
        ("[^a-c]x", "bx", False),
        ("a\\*", "a*", True),
        ("a\\*", "ab", False),
        ("[", "[", False),
        ("a.c", "abc", False),
    ],
)
def test_patterns_match_as_go_does(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


@pytest.mark.parametrize(
    "name", ["cdi.k8s.io/nvidia-device-plugin_1", "com.nvidia.cuda.version", "com.nvidia.volumes.needed"]
)
def test_the_annotations_that_gpuhook_reads_pass(name: str) -> None:
    assert any(matches(pattern, name) for pattern in containerdruntime.CONTAINER_ANNOTATIONS)


def test_the_steps_name_no_table_as_a_whole(machine: Machine) -> None:
    """So undoing takes out leaves, and what others write into the same tables stays."""
    machine.write(MAIN, FULL)
    (edit,) = containerd.propose(machine.host(), Options()).files
    assert isinstance(edit, FileEdit)
    assert not any(isinstance(step, Set) and isinstance(step.value, dict) for step in edit.steps)
