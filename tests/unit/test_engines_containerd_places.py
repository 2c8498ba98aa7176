"""Which containerd of a host is configured, what is restarted, and the templates of k3s, rke2 and microk8s."""

import tomllib
from typing import Any

import pytest

from gpuhook.engines import containerd
from gpuhook.engines.model import Options, Proposal
from gpuhook.errors import GpuhookError
from tests.unit.containerd_support import MAIN, OURS, V2, V3, Machine, machine

__all__ = ["machine"]

K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
RKE2 = "/var/lib/rancher/rke2/agent/etc/containerd"
MICROK8S = "/var/snap/microk8s/current/args/containerd-template.toml"
DOCKERS = 'disabled_plugins = ["cri"]\n'
RUNC = 'runtime_type = "io.containerd.runc.v2"\n'
# What k3s makes of its own template, in the parts that matter here.
GENERATED3 = f"""version = 3
[plugins.'{V3}'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'{V3}'.containerd.runtimes.runc.options]
  SystemdCgroup = true
"""
GENERATED2 = GENERATED3.replace("version = 3", "version = 2").replace(V3, V2)
MICROK8S_TEMPLATE = f"""version = 2
oom_score = 0
[plugins."{V2}"]
  stats_collect_period = 10
  [plugins."{V2}".containerd]
    snapshotter = "${{SNAPSHOTTER}}"
    default_runtime_name = "${{RUNTIME}}"
    [plugins."{V2}".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v1"
  [plugins."{V2}".cni]
    bin_dir = "${{SNAP_DATA}}/opt/cni/bin"
"""


def propose(machine: Machine, version: str | None = "1.7.24", **options: Any) -> Proposal:
    return containerd.propose(machine.host(version), Options(**options))


def refused(machine: Machine, version: str | None = "1.7.24", uid: int = 0, **options: Any) -> GpuhookError:
    with pytest.raises(GpuhookError) as caught:
        containerd.propose(machine.host(version, uid), Options(**options))
    return caught.value


def running(machine: Machine, *argv: str, pid: int = 77, inner: str = "") -> None:
    machine.write(f"/proc/{pid}/cmdline", "\0".join(argv) + "\0")
    machine.write(f"/proc/{pid}/status", f"Name:\tcontainerd\nNSpid:\t{pid}{inner}\n")


# --- which one ------------------------------------------------------------------------------------------------------


def test_no_containerd_is_not_found(machine: Machine) -> None:
    error = refused(machine, None)
    assert error.reference == "engine-not-found"
    assert MAIN in error.message


def test_containerd_in_path_is_enough(machine: Machine) -> None:
    assert [edit.path for edit in propose(machine).files] == [MAIN]


@pytest.mark.parametrize(
    "argv",
    [
        ("/usr/bin/containerd", "--config", "/opt/c.toml"),
        ("containerd", "--config=/opt/c.toml"),
        ("containerd", "-c", "/opt/c.toml", "--log-level", "debug"),
    ],
)
def test_r143_a_running_containerd_says_where_its_file_is(machine: Machine, argv: tuple[str, ...]) -> None:
    machine.write("/opt/c.toml", "version = 2\n")
    running(machine, *argv)
    assert [edit.path for edit in propose(machine, None).files] == ["/opt/c.toml"]


def test_a_containerd_inside_a_container_is_not_the_hosts(machine: Machine) -> None:
    machine.write("/opt/c.toml", "version = 2\n")
    running(machine, "containerd", "-c", "/opt/c.toml", inner="\t12")
    assert refused(machine, None).reference == "engine-not-found"


def test_r143_config_names_any_file(machine: Machine) -> None:
    machine.write("/data/my.toml", "version = 2\n")
    proposal = propose(machine, config="/data/my.toml")
    assert [edit.path for edit in proposal.files] == ["/data/my.toml"]
    assert "/data/my.toml" in proposal.restart.sentence


def test_r126_several_containerds_are_named(machine: Machine) -> None:
    machine.write(MAIN, "version = 2\n")
    machine.write(f"{K3S}/config.toml", GENERATED3)
    proposal = propose(machine)
    assert proposal.files[0].path == MAIN
    assert any(f"{K3S}/config.toml (k3s)" in note and "--config" in note for note in proposal.notes)


def test_r126_one_without_cri_gives_way(machine: Machine) -> None:
    """docker's packages ship the system's containerd with its CRI plugin switched off, beside k3s."""
    machine.write(MAIN, DOCKERS)
    machine.write(f"{K3S}/config.toml", GENERATED3)
    proposal = propose(machine)
    assert proposal.files[0].path.startswith(K3S)
    assert any(MAIN in note for note in proposal.notes)


def test_r126_one_that_runs_comes_first(machine: Machine) -> None:
    machine.write(MAIN, "version = 2\n")
    machine.write(f"{K3S}/config.toml", GENERATED3)
    running(machine, "containerd", "-c", f"{K3S}/config.toml")
    assert propose(machine).files[0].path.startswith(K3S)


@pytest.mark.parametrize("plugin", ["cri", V2, V3])
def test_a_switched_off_cri_is_told(machine: Machine, plugin: str) -> None:
    machine.write(MAIN, f'disabled_plugins = [\n  "{plugin}",\n]\n')
    assert "disables the CRI plugin" in propose(machine).notes[0]


def test_dockers_own_containerd_is_not_configured(machine: Machine) -> None:
    path = "/run/docker/containerd/containerd.toml"
    error = refused(machine, config=path)
    assert error.reference == "engine-config-conflict"
    assert error.hint == "gpuhook configure docker"
    running(machine, "containerd", "--config", path)
    assert refused(machine, None).hint == "gpuhook configure docker"


def test_rootless(machine: Machine) -> None:
    machine.write("/home/me/.config/containerd/config.toml", "version = 2\n")
    proposal = containerd.propose(machine.host(uid=1000), Options())
    assert proposal.files[0].path == "/home/me/.config/containerd/config.toml"
    assert proposal.restart.command == ("systemctl", "--user", "restart", "containerd")


def test_rootless_without_one(machine: Machine) -> None:
    machine.write(MAIN, "version = 2\n")
    error = refused(machine, uid=1000)
    assert error.reference == "engine-not-found"
    assert "as root" in error.hint


# --- restart --------------------------------------------------------------------------------------------------------


def test_restart_of_the_systems(machine: Machine) -> None:
    assert propose(machine).restart.command == ()
    machine.write("/run/systemd/system/x")
    restart = propose(machine).restart
    assert restart.command == ("systemctl", "restart", "containerd")
    assert "running containers stay" in restart.sentence


@pytest.mark.parametrize(
    ("folder", "unit", "expected"),
    [(K3S, "", "k3s"), (K3S, "k3s-agent", "k3s-agent"), (RKE2, "", "rke2-server"), (RKE2, "rke2-agent", "rke2-agent")],
)
def test_restart_of_k3s_and_rke2(machine: Machine, folder: str, unit: str, expected: str) -> None:
    machine.write(f"{folder}/config.toml", GENERATED3)
    machine.write("/run/systemd/system/x")
    if unit:
        machine.write(f"/etc/systemd/system/{unit}.service")
    assert propose(machine, None).restart.command == ("systemctl", "restart", expected)


# --- k3s and rke2 ---------------------------------------------------------------------------------------------------


def rendered(machine: Machine, template: str, base: str) -> dict[str, Any]:
    """What k3s would make of a template."""
    text = machine.read(template).replace('{{ template "base" . }}', base).replace("{{ .SystemdCgroup }}", "true")
    return tomllib.loads(text)


@pytest.mark.parametrize("folder", [K3S, RKE2, "/data/k3s/agent/etc/containerd"])
@pytest.mark.parametrize(
    ("generated", "template", "plugin"),
    [(GENERATED3, "config-v3.toml.tmpl", V3), (GENERATED2, "config.toml.tmpl", V2)],
    ids=["3", "2"],
)
def test_a_template_is_made_of_the_base(
    machine: Machine, folder: str, generated: str, template: str, plugin: str
) -> None:
    machine.write(f"{folder}/config.toml", generated)
    proposal = machine.configure(machine.host(None), Options(config=f"{folder}/config.toml"))
    assert [edit.path for edit in proposal.files] == [f"{folder}/{template}"]
    tree = rendered(machine, f"{folder}/{template}", generated)
    ours = tree["plugins"][plugin]["containerd"]["runtimes"]["gpuhook"]
    assert ours["runtime_type"] == "io.containerd.runc.v2"
    assert ours["options"] == {"BinaryName": OURS, "SystemdCgroup": True}
    assert "runc" in tree["plugins"][plugin]["containerd"]["runtimes"]
    assert machine.read(f"{folder}/config.toml") == generated


def test_an_old_template_is_used_as_long_as_there_is_no_new_one(machine: Machine) -> None:
    own = '# mine\n{{ template "base" . }}\n'
    machine.write(f"{K3S}/config.toml", GENERATED2)
    machine.write(f"{K3S}/config.toml.tmpl", own)
    machine.configure(machine.host(None))
    assert machine.read(f"{K3S}/config.toml.tmpl").startswith(own)
    machine.write(f"{K3S}/config-v3.toml.tmpl", own)
    assert [edit.path for edit in propose(machine, None).files] == [f"{K3S}/config-v3.toml.tmpl"]


def test_a_template_a_second_time_stays_as_it_is_r139(machine: Machine) -> None:
    machine.write(f"{K3S}/config.toml", GENERATED3)
    machine.configure(machine.host(None))
    once = machine.read(f"{K3S}/config-v3.toml.tmpl")
    machine.write(
        f"{K3S}/config.toml",
        once.replace('{{ template "base" . }}', GENERATED3).replace("{{ .SystemdCgroup }}", "true"),
    )
    machine.configure(machine.host(None))
    assert machine.read(f"{K3S}/config-v3.toml.tmpl") == once


def test_a_second_name_in_a_template_joins_the_first(machine: Machine) -> None:
    """Pods name the first one: it stays, and both are there once however often this is run."""
    machine.write(f"{K3S}/config.toml", GENERATED3)
    for name in ("gpuhook", "a.b", "gpuhook"):
        machine.configure(machine.host(None), Options(runtime_name=name))
    text = machine.read(f"{K3S}/config-v3.toml.tmpl")
    assert [text.count(f"runtimes.'{name}']") for name in ("gpuhook", "a.b")] == [1, 1]
    assert [text.count(f"runtimes.'{name}'.options]") for name in ("gpuhook", "a.b")] == [1, 1]


def test_k3s_that_imports_drop_ins_gets_one(machine: Machine) -> None:
    machine.write(f"{K3S}/config.toml", f'imports = ["{K3S}/config-v3.toml.d/*.toml"]\n{GENERATED3}')
    proposal = machine.configure(machine.host(None), Options(default_runtime=True))
    path = f"{K3S}/config-v3.toml.d/99-gpuhook.toml"
    assert [edit.path for edit in proposal.files] == [path]
    cri = machine.tree(path)["plugins"][V3]
    assert cri["containerd"]["default_runtime_name"] == "gpuhook"
    assert cri["containerd"]["runtimes"]["gpuhook"]["options"] == {"SystemdCgroup": True, "BinaryName": OURS}


def test_k3s_that_imports_drop_ins_of_version_2_gets_ours_alone(machine: Machine) -> None:
    """Only those with containerd 2 import any, so nothing has to be copied."""
    machine.write(f"{K3S}/config.toml", f'imports = ["{K3S}/config.toml.d/*.toml"]\n{GENERATED2}')
    machine.configure(machine.host(None))
    tree = machine.tree(f"{K3S}/config.toml.d/99-gpuhook.toml")
    assert list(tree["plugins"][V2]["containerd"]["runtimes"]) == ["gpuhook"]


def test_k3s_a_template_that_has_ours_stays_its_place(machine: Machine) -> None:
    machine.write(f"{K3S}/config.toml", GENERATED3)
    machine.configure(machine.host(None))
    machine.write(f"{K3S}/config.toml", f'imports = ["{K3S}/config-v3.toml.d/*.toml"]\n{GENERATED3}')
    assert [edit.path for edit in propose(machine, None).files] == [f"{K3S}/config-v3.toml.tmpl"]


def test_k3s_without_imports_takes_no_drop_in(machine: Machine) -> None:
    machine.write(f"{K3S}/config.toml", GENERATED3)
    error = refused(machine, None, drop_in="")
    assert error.reference == "engine-option-unsupported"
    assert "config-v3.toml.tmpl" in error.hint


NVIDIAS = (
    f"[plugins.'{V3}'.containerd.runtimes.'nvidia']\n{RUNC}"
    f"[plugins.'{V3}'.containerd.runtimes.'nvidia'.options]\nBinaryName = '/usr/bin/nvidia-container-runtime'\n"
)


def test_k3s_makes_nvidia_itself_so_a_template_cannot(machine: Machine) -> None:
    machine.write(f"{K3S}/config.toml", GENERATED3 + NVIDIAS)
    error = refused(machine, None, runtime_name="nvidia")
    assert error.reference == "engine-config-conflict"
    assert "/usr/bin/nvidia-container-runtime" in error.message
    assert "RuntimeClass" in error.hint


def test_k3s_a_drop_in_can_take_nvidia_over(machine: Machine) -> None:
    machine.write(f"{K3S}/config.toml", f'imports = ["{K3S}/config-v3.toml.d/*.toml"]\n{GENERATED3}{NVIDIAS}')
    machine.configure(machine.host(None), Options(runtime_name="nvidia"))
    tree = machine.tree(f"{K3S}/config-v3.toml.d/99-gpuhook.toml")
    assert tree["plugins"][V3]["containerd"]["runtimes"]["nvidia"]["options"]["BinaryName"] == OURS


@pytest.mark.parametrize(
    ("generated", "options"),
    [(GENERATED3, {"default_runtime": True}), (GENERATED2, {"cdi": True})],
    ids=["default-runtime", "cdi-of-2"],
)
def test_what_a_template_cannot_say(machine: Machine, generated: str, options: dict[str, bool]) -> None:
    machine.write(f"{K3S}/config.toml", generated)
    assert refused(machine, None, **options).reference == "engine-option-unsupported"


def test_k3s_that_never_started(machine: Machine) -> None:
    machine.write(f"{K3S}/x")
    error = refused(machine, None)
    assert error.reference == "engine-not-found"
    assert "start k3s once" in error.hint


# --- microk8s -------------------------------------------------------------------------------------------------------


def test_r141_the_template_of_microk8s_keeps_its_variables(machine: Machine) -> None:
    machine.write(MICROK8S, MICROK8S_TEMPLATE)
    proposal = machine.configure(machine.host(None))
    assert machine.read(MICROK8S).startswith(MICROK8S_TEMPLATE.partition("  [plugins.")[0])
    assert 'default_runtime_name = "${RUNTIME}"' in machine.read(MICROK8S)
    assert 'bin_dir = "${SNAP_DATA}/opt/cni/bin"' in machine.read(MICROK8S)
    ours = machine.tree(MICROK8S)["plugins"][V2]["containerd"]["runtimes"]["gpuhook"]
    assert ours["runtime_type"] == "io.containerd.runc.v2"
    assert proposal.restart.command == ("snap", "restart", "microk8s.daemon-containerd")
    assert proposal.notes == (), "the variable stands for runc, and needs no word"


def test_r141_the_rendered_file_of_microk8s_stands_for_its_template(machine: Machine) -> None:
    machine.write(MICROK8S, MICROK8S_TEMPLATE)
    running(machine, "/snap/microk8s/1/bin/containerd", "--config", "/var/snap/microk8s/current/args/containerd.toml")
    assert [edit.path for edit in propose(machine, None).files] == [MICROK8S]


def test_r141_a_variable_that_stands_free_is_an_error_with_its_line(machine: Machine) -> None:
    machine.write(MICROK8S, MICROK8S_TEMPLATE.replace("oom_score = 0", "oom_score = ${SCORE}"))
    error = refused(machine, None)
    assert error.reference == "engine-config-invalid"
    assert f"{MICROK8S}:2" in error.message
