"""What `gpuhook doctor --engine containerd` finds in configurations that work, and in those that do not."""

import os
from pathlib import Path

import pytest

from gpuhook.engines import containerd
from gpuhook.engines.model import Finding, Options
from tests.unit.containerd_support import MAIN, OURS, V2, V3, Machine, machine
from tests.unit.test_engines_containerd import FULL, NVIDIA, nvidia

__all__ = ["machine"]

K3S = "/var/lib/rancher/k3s/agent/etc/containerd"


def check(machine: Machine, options: Options | None = None, version: str | None = "1.7.24") -> list[Finding]:
    return list(containerd.check(machine.host(version), options or Options()))


def one(findings: list[Finding], name: str, level: str = "") -> Finding:
    found = [item for item in findings if item.check == name and level in ("", item.level)]
    assert len(found) == 1, findings
    return found[0]


def problems(findings: list[Finding]) -> list[str]:
    return [item.check for item in findings if item.level == "problem"]


@pytest.fixture
def configured(machine: Machine) -> Machine:
    """The full configuration with our runtime in it, and its program."""
    machine.write(MAIN, FULL)
    machine.configure(machine.host())
    machine.write(OURS, "#!/bin/sh\n")
    Path(f"{machine.path}/root{OURS}").chmod(0o755)
    return machine


def test_what_is_configured_is_fine(configured: Machine) -> None:
    findings = check(configured)
    assert problems(findings) == []
    assert one(findings, "runtime").level == "ok"
    assert "RuntimeClass" in one(findings, "default-runtime").message
    assert one(findings, "running").level == "note"


@pytest.mark.parametrize("drop_in", [None, ""])
@pytest.mark.parametrize("version", ["1.6.20", "2.1.9"])
def test_each_way_of_configuring_is_fine(machine: Machine, version: str, drop_in: str | None) -> None:
    machine.write(OURS, "#!/bin/sh\n")
    Path(f"{machine.path}/root{OURS}").chmod(0o755)
    options = Options(drop_in=drop_in, default_runtime=True, cdi=True)
    machine.configure(machine.host(version), options)
    assert problems(check(machine, options, version)) == []


def test_r138_nothing_configured(machine: Machine) -> None:
    machine.write(MAIN, FULL)
    found = one(check(machine), "runtime")
    assert found.level == "problem"
    assert "there is no runtime 'gpuhook'" in found.message
    assert found.hint == "gpuhook configure containerd"


def test_r138_a_drop_in_that_nobody_imports(configured: Machine) -> None:
    configured.write(MAIN, FULL)
    configured.configure(configured.host(), Options(drop_in=""))
    configured.write(MAIN, FULL)
    findings = check(configured)
    assert "no import of /etc/containerd/config.toml names it" in one(findings, "drop-in", "warning").message
    assert problems(findings) == ["runtime"]


def test_r123_an_import_that_hides_ours(machine: Machine) -> None:
    machine.write(MAIN, FULL)
    machine.configure(machine.host())
    text = machine.read(MAIN)
    nvidia(machine)
    machine.write(MAIN, text.replace("version = 2", 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]'))
    found = one(check(machine), "conflict")
    assert f"{MAIN}:" in found.message
    assert f"{NVIDIA}:2" in found.message
    assert found.hint.endswith("--drop-in /etc/containerd/conf.d/zz-gpuhook.toml")


def test_another_program_has_the_name(configured: Machine) -> None:
    found = one(check(configured, Options(runtime="/usr/local/bin/other")), "runtime")
    assert found.level == "problem"
    assert "not /usr/local/bin/other" in found.message


def test_a_vm_shim_has_the_name(configured: Machine) -> None:
    text = configured.read(MAIN)
    head, _, tail = text.rpartition('runtime_type = "io.containerd.runc.v2"')
    configured.write(MAIN, f'{head}runtime_type = "io.containerd.kata.v2"{tail}')
    assert "runtime_type 'io.containerd.kata.v2'" in one(check(configured), "runtime", "problem").message


@pytest.mark.parametrize(("mode", "words"), [(None, "is not there"), (0o644, "can't be executed")])
def test_the_program(configured: Machine, mode: int | None, words: str) -> None:
    path = Path(f"{configured.path}/root{OURS}")
    path.unlink() if mode is None else path.chmod(mode)
    assert words in one(check(configured), "runtime-program", "problem").message


def test_r125_another_cgroup_driver(configured: Machine) -> None:
    text = configured.read(MAIN)
    configured.write(MAIN, text.replace("SystemdCgroup = true", "SystemdCgroup = false", 1))
    found = one(check(configured), "cgroup-driver")
    assert found.level == "problem"
    assert "SystemdCgroup is true for gpuhook and false for runc" in found.message


def test_a_default_runtime_without_a_table(machine: Machine) -> None:
    """1.x has no runc where the table of runtimes names others only."""
    machine.write(
        MAIN,
        f'version = 2\n[plugins."{V2}".containerd.runtimes.gpuhook]\nruntime_type = "io.containerd.runc.v2"\n'
        f'[plugins."{V2}".containerd.runtimes.gpuhook.options]\nBinaryName = "{OURS}"\n',
    )
    assert "'runc' has no table" in one(check(machine), "default-runtime", "problem").message
    machine.write(MAIN, machine.read(MAIN).replace("version = 2", "version = 3").replace(V2, V3))
    assert "default-runtime" not in problems(check(machine, version="2.1.9"))


def test_the_default(configured: Machine) -> None:
    configured.configure(configured.host(), Options(default_runtime=True))
    assert one(check(configured), "default-runtime").level == "ok"


@pytest.mark.parametrize(
    ("settings", "patterns", "warned"),
    [
        ("", '["x"]', False),
        ('[request]\nannotation-prefixes = ["cdi.k8s.io/"]\n', '["*"]', True),
        ('[request]\nannotation-prefixes = ["cdi.k8s.io/"]\n', '["*", "*/*"]', False),
        ("[request]\naccept-label-annotations = true\n", '["*"]', False),
        ("[request]\naccept-label-annotations = true\n", '["*/*"]', True),
    ],
    ids=["none-read", "star-stops-at-a-slash", "both", "label", "label-has-no-slash"],
)
def test_annotations_that_are_read_must_pass(machine: Machine, settings: str, patterns: str, warned: bool) -> None:
    machine.write("/etc/gpuhook/runtime.toml", settings)
    machine.write(
        MAIN,
        f'version = 3\n[plugins."{V3}".containerd.runtimes.gpuhook]\nruntime_type = "io.containerd.runc.v2"\n'
        f"container_annotations = {patterns}\n"
        f'[plugins."{V3}".containerd.runtimes.gpuhook.options]\nBinaryName = "{OURS}"\n',
    )
    assert ("annotations" in [item.check for item in check(machine, version="2.1.9")]) is warned


def test_dockers_containerd_without_cri(configured: Machine) -> None:
    configured.write(MAIN, 'disabled_plugins = ["cri"]\n')
    found = one(check(configured), "cri")
    assert found.level == "problem"
    assert "docker" in found.hint


def test_r126_others_are_named(configured: Machine) -> None:
    configured.write(f"{K3S}/config.toml", "version = 3\n")
    assert f"{K3S}/config.toml (k3s)" in one(check(configured), "others").message


def test_r121_mixed_versions(configured: Machine) -> None:
    configured.write(MAIN, configured.read(MAIN) + f'[plugins."{V3}"]\nx = 1\n')
    assert one(check(configured), "configuration", "warning").message


@pytest.mark.parametrize(("age", "level"), [(-60, "ok"), (60, "problem")], ids=["before", "after"])
def test_r138_a_daemon_older_than_its_file(configured: Machine, age: int, level: str) -> None:
    started = 1_700_000_000 + 500
    ticks = 500 * os.sysconf("SC_CLK_TCK")
    configured.write("/proc/stat", "cpu 1 2 3\nbtime 1700000000\n")
    configured.write("/proc/77/cmdline", "/usr/bin/containerd\0")
    configured.write("/proc/77/stat", f"77 (contai ner)) S {' 0' * 18} {ticks} 0 0\n")
    os.utime(f"{configured.path}/root{MAIN}", (started + age, started + age))
    assert one(check(configured), "running").level == level


def test_k3s_was_not_restarted_since(machine: Machine) -> None:
    generated = f'version = 3\n[plugins."{V3}".containerd.runtimes.runc.options]\nSystemdCgroup = true\n'
    machine.write(f"{K3S}/config.toml", generated)
    machine.configure(machine.host(None))
    found = one(check(machine, version=None), "runtime")
    assert f"{K3S}/config-v3.toml.tmpl has the runtime gpuhook" in found.message
    assert one(check(machine, version=None), "configuration").message.startswith("containerd 2.x: ")
    assert "k3s" in found.hint
