"""`gpuhook doctor`: what it finds on simulated hosts, well and broken, and what it ends with."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpuhook import containers, sim
from gpuhook.cli import doctor, main
from gpuhook.config import Config, load
from gpuhook.driver import record
from gpuhook.engines import NAMES, drivercheck, hooksdir, hostcheck, neighbours
from gpuhook.engines.host import Host
from gpuhook.engines.model import Finding, Options
from gpuhook.errors import GpuhookError, shown
from gpuhook.log import Log
from gpuhook.model import Record, replace
from tests.conftest import World
from tests.unit import cli_schemas as schemas
from tests.unit.driver_support import config_of, copy_of

Levels = dict[str, str]
RUNC = "#!/bin/sh\necho runc version {version}\necho commit: x\n"


@pytest.fixture
def programs(folder: Path) -> Path:
    """A PATH of its own with a low-level runtime that says its version, and no engine."""
    path = folder / "bin"
    path.mkdir()
    program(path / "frunc", RUNC.format(version="1.2.3"))
    return path


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def well(world: World, sim_driver: Path) -> World:
    """A world where nothing is wrong."""
    world.low_level = "frunc"
    world.use_driver(sim_driver)
    return world


Ask = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def ask(well: World, programs: Path) -> Ask:
    """Runs the installed command with --json; returns status, document, errors."""

    def call(*words: str) -> tuple[int, dict[str, Any], str]:
        done = subprocess.run(
            [well.cli, "doctor", "--json", *words], env={"PATH": str(programs)}, capture_output=True, text=True
        )
        told = json.loads(done.stdout)
        jsonschema.Draft202012Validator(schemas.DOCTOR).validate(told)
        return done.returncode, told, done.stderr

    return call


def levels(items: list[dict[str, str]]) -> Levels:
    return {item["check"]: item["level"] for item in items}


def one(items: list[dict[str, str]], check: str) -> dict[str, str]:
    found = [item for item in items if item["check"] == check]
    assert len(found) == 1, f"{check}: {[item['check'] for item in items]}"
    return found[0]


def of(findings: Iterator[Finding] | tuple[Finding, ...], check: str) -> Finding:
    return next(item for item in findings if item.check == check)


# --- a host that is well --------------------------------------------------------------------------------------------


def test_a_host_that_is_well_has_no_problem(ask: Ask, well: World) -> None:
    status, document, err = ask()
    assert (status, err, document["error"], document["works"]) == (0, "", None, True)
    found = levels(document["host"])
    for check in ("kernel", "installation", "python", "configuration", "runtime", "driver", "gpus", "nodes", "policy"):
        assert found[check] == "ok", check
    assert not {"problem", "warning"} & set(found.values())
    assert document["engines"] == []
    assert found["engines"] == "note"
    assert "580.95.05" in one(document["host"], "driver")["message"]
    assert "frunc: runc version 1.2.3" in one(document["host"], "runtime")["message"]


def test_people_get_a_line_for_each_finding_and_a_verdict_last(well: World, programs: Path) -> None:
    done = subprocess.run([well.cli, "doctor"], env={"PATH": str(programs)}, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0] == "host"
    assert lines[-1] == "this host: a GPU container would work"
    rows = [line for line in lines[1:-2] if not line.lstrip().startswith("fix: ")]
    assert rows
    assert all(re.match(r"  (ok|note|warning|problem) +[a-z-]+ +\S", row) for row in rows)
    assert len({re.match(r"  \S+ +\S+ +", row).end() for row in rows}) == 1, "not aligned"  # type: ignore[union-attr]


def test_nothing_is_changed_but_what_a_start_changes(ask: Ask, well: World) -> None:
    before = {path: path.read_bytes() for path in well.path.glob("etc/**/*") if path.is_file()}
    ask()
    assert {path: path.read_bytes() for path in well.path.glob("etc/**/*") if path.is_file()} == before
    assert {path.name for path in well.state.iterdir()} <= {"config.json", "shim.sh", "driver.json", "driver.lock"}
    assert well.log == ""


# --- problems -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["not-loaded", "version-mismatch"])
def test_a_broken_driver_is_the_problem(fault: str, ask: Ask, well: World, sim_driver: Path, folder: Path) -> None:
    """R134-like: the driver's files are of another version than the module."""
    well.use_driver(copy_of(sim_driver, folder / "driver", fault))
    status, document, err = ask()
    problem = one(document["host"], "driver")
    assert (status, problem["level"], document["works"]) == (98, "problem", False)
    assert problem["hint"]
    assert f"a GPU container would not work on this host: {problem['message']} [doctor-problem]" in err
    assert document["error"]["hint"] == problem["hint"]
    done = subprocess.run([well.cli, "doctor"], env={"PATH": f"{folder}/bin"}, capture_output=True, text=True)
    assert (done.stdout + done.stderr).count(problem["message"]) == 1
    assert (done.stdout + done.stderr).count("would not work: see driver above") >= 1
    assert "would not work on this host: see " in done.stderr


def test_a_broken_configuration_is_a_problem_and_the_rest_is_looked_at(ask: Ask, well: World) -> None:
    well.configure("[frob]\n")
    status, document, _ = ask()
    found = levels(document["host"])
    assert (status, found["configuration"]) == (98, "problem")
    assert "runtime.toml:1" in one(document["host"], "configuration")["message"]
    assert found["cgroup"] == "ok"
    assert "driver" not in found, "the roots of a driver are not known"


def test_a_missing_node_is_a_problem_and_names_the_cure(ask: Ask, well: World, sim_driver: Path, folder: Path) -> None:
    """R95: nvidia-uvm is not there until something makes it. Where gpuhook may, that is no problem."""
    driver = copy_of(sim_driver, folder / "driver")
    (driver / "dev/nvidia-uvm").unlink()
    well.use_driver(driver)
    status, document, _ = ask()
    noted = one(document["host"], "nodes")
    assert (status, noted["level"], "/dev/nvidia-uvm: missing" in noted["message"]) == (0, "note", True)
    assert not (driver / "dev/nvidia-uvm").exists()
    well.use_driver(driver, "make-nodes = false\n")
    status, document, _ = ask()
    problem = one(document["host"], "nodes")
    assert (status, problem["level"]) == (98, "problem")
    assert "nvidia-uvm" in problem["message"]
    assert "modprobe nvidia-uvm" in problem["hint"]


def test_a_lost_gpu_is_a_warning_while_another_works(ask: Ask, well: World, sim_driver: Path, folder: Path) -> None:
    well.use_driver(copy_of(sim_driver, folder / "driver", "gpu-lost=1"))
    status, document, _ = ask()
    assert (status, one(document["host"], "gpu")["level"]) == (0, "warning")
    assert one(document["host"], "gpus")["message"].startswith("1: ")


def test_a_driver_without_gpus_is_a_problem() -> None:
    known = Record("r1", "580.95.05", (13, 0), False, "x86-64", (), ())
    assert of(drivercheck._gpus(known), "gpus").level == "problem"


# --- the low-level runtime ------------------------------------------------------------------------------------------


def test_r129_crun_alone_is_taken(ask: Ask, well: World, programs: Path, sim_driver: Path) -> None:
    well.low_level = ""
    well.use_driver(sim_driver, '[runtime]\nlow-level = ["no-such-runc", "fcrun"]\n')
    program(programs / "fcrun", "#!/bin/sh\necho crun version 1.8.1\n")
    found = one(ask()[1]["host"], "runtime")
    assert found["level"] == "ok"
    assert found["message"] == f"{programs}/fcrun: crun version 1.8.1"


def test_r129_none_is_a_problem_that_lists_path(ask: Ask, programs: Path) -> None:
    (programs / "frunc").unlink()
    status, document, _ = ask()
    found = one(document["host"], "runtime")
    assert (status, found["level"]) == (98, "problem")
    assert str(programs) in found["message"]
    assert "frunc" in found["message"]


def test_r129_itself_by_the_name_of_the_runtime_is_passed_over(ask: Ask, well: World, programs: Path) -> None:
    """Else it would start itself for ever."""
    (programs / "frunc").unlink()
    (programs / "frunc").symlink_to(well.runtime)
    status, document, _ = ask()
    found = one(document["host"], "runtime")
    assert (status, found["level"]) == (98, "problem")
    assert f"{programs}/frunc is gpuhook itself and is passed over" in found["message"]


def test_r129_itself_before_another_in_path_is_noted(well: World, programs: Path, folder: Path) -> None:
    (folder / "first").mkdir()
    (folder / "first/frunc").symlink_to(well.runtime)
    done = subprocess.run(
        [well.cli, "doctor", "--json"], env={"PATH": f"{folder}/first:{programs}"}, capture_output=True, text=True
    )
    found = json.loads(done.stdout)["host"]
    assert one(found, "runtime")["message"].startswith(f"{programs}/frunc: ")
    assert one(found, "runtime-itself")["level"] == "note"


@pytest.mark.parametrize(
    ("version", "noted"),
    [
        ("1.1.2", False),
        ("1.1.3", True),
        ("1.1.5+ds1", True),
        ("1.1.6", True),
        ("1.1.7", False),
        ("1.3.0-rc.1", False),
    ],
)
def test_runc_that_drops_rules_without_links_is_noted(version: str, noted: bool, ask: Ask, programs: Path) -> None:
    path = programs / "frunc"
    path.unlink()
    program(path, RUNC.format(version=version))
    assert ("runtime-bug" in levels(ask()[1]["host"])) is noted


def test_a_runtime_that_does_not_run_is_a_problem(ask: Ask, programs: Path) -> None:
    program(programs / "frunc", "#!/bin/sh\nexit 1\n")
    assert one(ask()[1]["host"], "runtime")["level"] == "problem"


# --- the installation -----------------------------------------------------------------------------------------------


@pytest.fixture
def copied(installed: Path, folder: Path, sim_driver: Path) -> World:
    """A world whose programs are its own, to be broken."""
    path = folder / "copied"
    shutil.copytree(installed, path, symlinks=True)
    world = World(path)
    world.use_driver(sim_driver)
    return world


BREAK: dict[str, tuple[Callable[[World], Any], str]] = {
    "launcher missing": (lambda world: world.hook.unlink(), "gpuhook-hook: No such file"),
    "not executable": (lambda world: world.runtime.chmod(0o644), "gpuhook-runtime is not executable"),
    "others may write": (lambda world: world.hook.chmod(0o777), r"may be written by others \(mode 0777\)"),
    "others may write above": (lambda world: world.hook.parent.chmod(0o777), r"usr/bin may be written by others"),
    "another's": (lambda world: os.chown(world.runtime, 4321, 0), "belongs to user 4321"),
    "another version": (
        lambda world: world.hook.write_text(
            re.sub(r"/usr/lib/gpuhook/[\w.]+", "/usr/lib/gpuhook/0.0.9", world.hook.read_text())
        ),
        r"gpuhook-hook is of version 0\.0\.9",
    ),
    "no bundle": (
        lambda world: next(world.path.glob("usr/lib/gpuhook/*/hook.bundle")).unlink(),
        "hook.bundle: No such",
    ),
}


@pytest.mark.parametrize(("break_it", "text"), BREAK.values(), ids=BREAK)
def test_what_is_wrong_with_the_installation_is_said(
    break_it: Callable[[World], Any], text: str, copied: World
) -> None:
    assert [item.level for item in hostcheck._installation(str(copied.path))] == ["ok"]
    break_it(copied)
    found = list(hostcheck._installation(str(copied.path)))
    assert [item.level for item in found] == ["problem"]
    assert re.search(text, found[0].message), found[0].message


# --- containers that run --------------------------------------------------------------------------------------------


@pytest.fixture
def container() -> Iterator[subprocess.Popen[bytes]]:
    """A container's process."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def grant(world: World, name: str, pid: int, **changes: Any) -> Record:
    """Write down what a container of this world's driver was granted."""
    known = replace(record.load(load(str(world.path)), str(world.path)), **changes)
    note = containers.Granted(name, pid, ("GPU-1",), ("compute",), known)
    assert containers.note(str(world.state), note) == ""
    return known


def test_containers_of_another_driver_are_named(ask: Ask, well: World, container: subprocess.Popen[bytes]) -> None:
    grant(well, "stale", container.pid, driver="570.1.2")
    grant(well, "fresh", container.pid)
    status, document, _ = ask()
    found = one(document["host"], "containers-stale")
    assert (status, found["level"]) == (0, "warning")
    assert "stale" in found["message"]
    assert "570.1.2" in found["message"]
    assert "fresh" not in found["message"]


def test_containers_of_an_earlier_record_are_noted(ask: Ask, well: World, container: subprocess.Popen[bytes]) -> None:
    grant(well, "older", container.pid, id="0" * 16)
    found = one(ask()[1]["host"], "containers-older")
    assert found["level"] == "note"
    assert "container older" in found["message"]


def test_containers_that_ended_do_not_count(ask: Ask, well: World) -> None:
    process = subprocess.Popen(["true"])
    grant(well, "gone", process.pid, driver="570.1.2")
    process.wait()
    assert one(ask()[1]["host"], "containers")["level"] == "ok"


@pytest.mark.parametrize(("systemd", "level"), [(True, "warning"), (False, "note")], ids=["systemd", "none"])
def test_containers_of_the_hook_alone_may_lose_their_gpus_to_systemd(
    systemd: bool, level: str, well: World, sim_driver: Path, tmp_path: Path, container: subprocess.Popen[bytes]
) -> None:
    settings, prefix, host = config_of(sim_driver), str(well.path), Host(root=str(tmp_path), uid=0)
    if systemd:
        (tmp_path / "run/systemd/system").mkdir(parents=True)
    grant(well, "box", container.pid)
    assert "containers-hook-only" not in {item.check for item in drivercheck.findings(host, settings, prefix)}
    file = well.state / "containers/box.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"mode": "hook-only"}))
    found = of(drivercheck.findings(host, settings, prefix), "containers-hook-only")
    assert (found.level, "container box" in found.message) == (level, True)


def test_r91_missing_links_are_a_warning_while_a_container_has_gpus(
    well: World, sim_driver: Path, tmp_path: Path, container: subprocess.Popen[bytes]
) -> None:
    settings, prefix = config_of(sim_driver), str(well.path)
    host = Host(root=str(tmp_path))
    assert of(drivercheck.findings(host, settings, prefix), "device-links").level == "note"
    grant(well, "box", container.pid)
    found = of(drivercheck.findings(host, settings, prefix), "device-links")
    assert found.level == "warning"
    assert "daemon-reload" in found.message
    (tmp_path / "dev/char").mkdir(parents=True)
    for number in re.findall(r"/dev/char/\d+:\d+", found.message):
        (tmp_path / number[1:]).touch()
    assert of(drivercheck.findings(host, settings, prefix), "device-links").level == "ok"


# --- what is around -------------------------------------------------------------------------------------------------


def test_r105_selinux_and_closed_nodes(well: World, sim_driver: Path, folder: Path, tmp_path: Path) -> None:
    """Insufficient permissions: by SELinux, or by nodes that only a group may open."""
    driver = copy_of(sim_driver, folder / "driver")
    (driver / "dev/nvidia0").chmod(0o660)
    os.chown(driver / "dev/nvidia0", 0, 44)
    found = of(drivercheck.findings(Host(), config_of(driver), str(well.path)), "node-modes")
    assert found.level == "warning"
    assert "/dev/nvidia0: mode 0660, group 44" in found.message
    enforce = tmp_path / "sys/fs/selinux/enforce"
    enforce.parent.mkdir(parents=True)
    enforce.write_text("1")
    assert of(hostcheck._security(Host(root=str(tmp_path))), "selinux").level == "note"
    enforce.write_text("0")
    assert not [item for item in hostcheck._security(Host(root=str(tmp_path))) if item.check == "selinux"]


def test_r106_a_host_that_is_a_container(tmp_path: Path) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/environ").write_bytes(b"TERM=linux\0container=lxc\0")
    assert "(lxc)" in of(hostcheck._security(Host(root=str(tmp_path))), "nested").message


@pytest.mark.parametrize(
    ("paths", "level", "text"),
    [
        (["cgroup.controllers"], "ok", "version 2"),
        (["devices"], "ok", "version 1:"),
        (["devices", "unified"], "ok", "version 1 (version 2 beside it"),
        ([], "warning", "neither"),
    ],
    ids=["v2", "v1", "hybrid", "none"],
)
def test_r97_cgroups(paths: list[str], level: str, text: str, tmp_path: Path) -> None:
    for name in paths:
        (tmp_path / "sys/fs/cgroup" / name).mkdir(parents=True)
    found = of(hostcheck._cgroups(Host(root=str(tmp_path), uid=0)), "cgroup")
    assert found.level == level
    assert found.message.startswith(text)
    rootless = of(hostcheck._cgroups(Host(root=str(tmp_path), uid=1000)), "cgroup")
    assert ("rootless: no device rules" in rootless.message) == (level == "ok")


@pytest.mark.parametrize(
    ("changes", "level", "text"),
    [
        ({}, "ok", "every container may ask"),
        ({"accept_env_when_unprivileged": False}, "warning", "only privileged"),
        (
            {"accept_env_when_unprivileged": False, "accept_devices_as_volume_mounts": True},
            "ok",
            "unprivileged containers ask by volume mounts alone",
        ),
        ({"accept_devices_as_volume_mounts": True}, "note", "every container may ask"),
        (
            {"accept_env_when_unprivileged": False, "annotation_prefixes": ("cdi.k8s.io/",)},
            "ok",
            "unprivileged containers ask by annotations alone",
        ),
    ],
    ids=["shipped", "closed", "privileged-only", "both", "annotations"],
)
def test_the_policy_in_words(changes: dict[str, Any], level: str, text: str) -> None:
    found = of(hostcheck.policy(replace(Config(), **changes)), "policy")
    assert found.level == level
    assert found.message.startswith(text)


def test_nvidias_toolkit_and_who_uses_it(tmp_path: Path) -> None:
    """R110: both ways installed side by side."""
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin/nvidia-container-runtime-hook", "#!/bin/sh\n")
    hooks = tmp_path / "usr/share/containers/oci/hooks.d"
    hooks.mkdir(parents=True)
    (hooks / "oci-nvidia-hook.json").write_text('{"hook":{"path":"/usr/bin/nvidia-container-runtime-hook"}}')
    (hooks / "other.json").write_text('{"hook":{"path":"/usr/bin/other"}}')
    (tmp_path / "etc/docker").mkdir(parents=True)
    (tmp_path / "etc/docker/daemon.json").write_text('{"runtimes":{"nvidia":{"path":"nvidia-container-runtime"}}}')
    (tmp_path / "etc/containers").mkdir()
    (tmp_path / "etc/containers/containers.conf").write_text("# nvidia-container-runtime\n")
    host = Host(root=str(tmp_path), environ={"PATH": f"{tmp_path}/bin"})
    found = [(item.level, item.check, item.message.split(" ")[0]) for item in neighbours.toolkit(host, "")]
    assert found == [
        ("note", "toolkit", "NVIDIA's"),
        ("note", "toolkit-runtime", "/etc/docker/daemon.json"),
    ]
    assert [item.check for item in neighbours.toolkit(host, "", "podman")] == ["toolkit"]
    assert [item.check for item in neighbours.toolkit(host, "", "docker")] == ["toolkit", "toolkit-runtime"]
    empty = Host(root=str(tmp_path / "none"), environ={"PATH": "/none"})
    assert [item.level for item in neighbours.toolkit(empty, "")] == ["ok"]


def test_the_link_of_gpuhook_docker_gpus_is_no_toolkit(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    program(tmp_path / "usr/bin/gpuhook-hook", "#!/bin/sh\n")
    (tmp_path / "usr/bin/nvidia-container-runtime-hook").symlink_to("gpuhook-hook")
    host = Host(environ={"PATH": f"{tmp_path}/usr/bin"})
    assert [item.level for item in neighbours.toolkit(host, str(tmp_path)) if item.check == "toolkit"] == ["ok"]


@pytest.mark.parametrize(
    ("names", "noted"),
    [
        (["dockerd"], True),
        (["dockerd", "nvidia-container-runtime-hook"], False),
        (["dockerd", "nvidia-cdi-hook"], False),
        ([], False),
    ],
    ids=lambda item: "+".join(item) if isinstance(item, list) else str(item),
)
def test_r169_docker_without_its_gpus_option(names: list[str], noted: bool, tmp_path: Path) -> None:
    for name in names:
        program(tmp_path / name, "#!/bin/sh\n")
    for prefix, part in (
        ("", "gpuhook-docker-gpus, or make its link: ln -s gpuhook-hook /usr/bin/nvidia-container-runtime-hook;"),
        ("/p", "PATH: ln -s /p/usr/bin/gpuhook-hook /usr/bin/nvidia-container-runtime-hook;"),
    ):
        found = list(neighbours.docker_gpus(Host(root="", environ={"PATH": str(tmp_path)}), prefix))
        assert [item.check for item in found] == ["docker-gpus"] * noted
        assert all(part in item.hint for item in found)


def test_r134_a_cdi_specification_of_another_driver_is_a_warning(tmp_path: Path) -> None:
    known = Record("r1", "570.133.07", (12, 8), False, "x86-64", (), ())
    folder = tmp_path / "etc/cdi"
    folder.mkdir(parents=True)
    spec = folder / "nvidia.yaml"
    host = Host(root=str(tmp_path))
    spec.write_text("kind: nvidia.com/gpu\n- hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.570.124.04\n")
    (found,) = drivercheck.cdi(host, known)
    assert found.level == "warning"
    assert "570.124.04" in found.message
    assert "570.133.07" in found.message
    assert found.hint
    spec.write_text("kind: nvidia.com/gpu\n- hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.570.133.07\n")
    assert list(drivercheck.cdi(host, known)) == []


def test_the_logs_last_error_is_shown_for_an_hour(tmp_path: Path) -> None:
    path = tmp_path / "gpuhook.log"
    settings = replace(Config(), log_file=str(path))
    assert [item.check for item in neighbours.log(settings, "")] == ["log"]
    Log(str(path)).write("error", "box1", "first")
    Log(str(path)).write("error", "box2", "gpuhook: the last [device-unknown]")
    Log(str(path)).write("info", "box3", "granted")
    found = of(neighbours.log(settings, ""), "last-error")
    assert found.level == "note"
    assert "container box2: gpuhook: the last [device-unknown]" in found.message
    old = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - 3700))
    path.write_text(f"{old}.000Z error box1 first\n")
    assert [item.check for item in neighbours.log(settings, "")] == ["log"]
    assert of(neighbours.log(replace(settings, log_file="none"), ""), "log").level == "note"


def test_the_logs_last_error_has_its_hint_as_the_fix(tmp_path: Path) -> None:
    """Its line ends are the only ones that come back: a container's variable that has some makes no fix."""
    settings = replace(Config(), log_file=f"{tmp_path}/gpuhook.log")
    asked = shown("x [device-invalid]\n  fix: rm -rf /", 400)
    error = GpuhookError("device-invalid", f"NVIDIA_VISIBLE_DEVICES asks for {asked}", "take one of\nGPU 0\n  MIG 0:0")
    Log(settings.log_file).write("error", "box", str(error))
    found = of(neighbours.log(settings, ""), "last-error")
    assert found.message.endswith(f"container box: gpuhook: {error.message} [device-invalid]")
    assert found.hint == error.hint


def test_of_a_traceback_the_logs_last_error_is_what_went_wrong(tmp_path: Path) -> None:
    """Its first four hundred characters name Python files alone."""
    settings = replace(Config(), log_file=f"{tmp_path}/gpuhook.log")
    Log(settings.log_file).write("error", "-", "Traceback (most recent call last):\n  File x\nValueError: what\n")
    with open(settings.log_file, "a") as file:
        file.write("2026-99-99T00:00:00.000Z error box1 no such month\n")
    found = of(neighbours.log(settings, ""), "last-error")
    assert found.message.endswith(" min ago, no container: ValueError: what (the log has the traceback)")


def test_a_log_that_is_no_file_does_not_hang_doctor(tmp_path: Path) -> None:
    settings = replace(Config(), log_file=f"{tmp_path}/fifo")
    os.mkfifo(settings.log_file)
    assert "can't be read" in of(neighbours.log(settings, ""), "log").message


# --- engines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], ()),
        (["bin/docker", "bin/containerd"], ("docker", "containerd")),
        (["bin/podman"], ("podman",)),
        (["etc/crio"], ("crio",)),
        (["var/lib/rancher/k3s/agent"], ("containerd",)),
        (["var/snap/microk8s/current/args"], ("containerd",)),
        (["snap/docker/current"], ("docker",)),
    ],
    ids=lambda item: "+".join(item) or "none",
)
def test_engines_are_found_by_program_or_folder(names: list[str], found: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("bin/"):
            program(path, "#!/bin/sh\n")
        else:
            path.mkdir()
    assert doctor.here(Host(root=str(tmp_path), environ={"PATH": f"{tmp_path}/bin"})) == found


DESKTOP = """#!/bin/sh
case "$1 $2" in
  "context show") echo desktop-linux ;;
  "context inspect") echo unix:///root/.docker/desktop/docker.sock ;;
  *) exit 1 ;;
esac
"""


@pytest.fixture
def engines_host(well: World, programs: Path, sim_driver: Path, tmp_path: Path) -> Host:
    """Files of engines below a folder, programs in a PATH of its own, and a host that is well otherwise."""
    well.low_level = str(programs / "frunc")
    well.use_driver(sim_driver)
    (tmp_path / "sys/fs/cgroup/devices").mkdir(parents=True)
    for path in (well.runtime, well.hook):  # as the engine would find them
        below = tmp_path / str(path)[1:]
        below.parent.mkdir(parents=True, exist_ok=True)
        below.symlink_to(path)
    return Host(root=str(tmp_path), uid=0, environ={"PATH": str(programs)})


def test_r118_docker_that_talks_to_another_daemon(engines_host: Host, well: World, programs: Path) -> None:
    """The file of this host is right, and `docker run` says that the runtime is unknown."""
    program(programs / "docker", DESKTOP)
    program(programs / "dockerd", "#!/bin/sh\nexit 1\n")
    options = Options(runtime=str(well.runtime))
    file = Path(engines_host.real("/etc/docker/daemon.json"))
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"runtimes": {"gpuhook": {"path": options.runtime}}}))
    told = doctor.examination(engines_host, str(well.path), options, "docker")
    (part,) = told["engines"]
    assert not [item for item in told["host"] if item["level"] == "problem"]
    assert (told["works"], part["works"]) == (False, False)
    assert "desktop-linux" in part["why"]
    assert doctor.lines(told | {"error": None})[-1].startswith("docker: a GPU container would not work: ")
    program(programs / "docker", "#!/bin/sh\n[ \"$1 $2\" = 'context show' ] && echo default\n")
    told = doctor.examination(engines_host, str(well.path), options, "docker")
    assert (told["works"], told["engines"][0]["why"]) == (True, "")
    assert doctor.lines(told | {"error": None})[-1] == "docker: a GPU container would work"


def test_engines_share_a_line_where_they_share_the_reason() -> None:
    """A host without a driver said so once for each engine, in a line of four hundred characters."""

    def part(engine: str, why: str) -> dict[str, Any]:
        return {"engine": engine, "works": not why, "why": why, "findings": []}

    host = [{"level": "problem", "check": "driver", "message": "no driver", "hint": ""}]
    engines = [part("docker", "no driver"), part("containerd", "else"), part("crio", ""), part("podman", "no driver")]
    assert doctor.lines({"works": True, "host": host, "engines": engines})[-3:] == [
        "docker, podman: a GPU container would not work: see driver above",
        "containerd: a GPU container would not work: else",
        "crio: a GPU container would work",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_fix_of_a_file_that_was_named_names_it(name: str, engines_host: Host, well: World) -> None:
    path = f"{well.path}/its own.{'json' if name == 'docker' else 'toml'}"
    Path(engines_host.real(path)).parent.mkdir(parents=True, exist_ok=True)
    Path(engines_host.real(path)).write_text("{}" if name == "docker" else "")
    told = doctor.examination(engines_host, str(well.path), Options(str(well.runtime), config=path), name)
    hints = [item["hint"] for item in told["engines"][0]["findings"] if "gpuhook configure" in item["hint"]]
    assert hints
    assert all(f"gpuhook configure {name} --config '{path}'" in hint for hint in hints)


def test_an_engine_whose_file_is_broken_is_a_problem_that_names_the_line(
    engines_host: Host, well: World, programs: Path
) -> None:
    """R119: a comma is missing."""
    program(programs / "dockerd", "#!/bin/sh\nexit 1\n")
    file = Path(engines_host.real("/etc/docker/daemon.json"))
    file.parent.mkdir(parents=True)
    file.write_text('{"dns": ["172.17.0.1"]\n "runtimes": {}}')
    told = doctor.examination(engines_host, str(well.path), Options(runtime=str(well.runtime)), "docker")
    assert told["works"] is False
    assert "/etc/docker/daemon.json:2" in told["engines"][0]["why"]


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_that_is_not_here_is_a_problem_of_its_own(name: str, engines_host: Host, well: World) -> None:
    told = doctor.examination(engines_host, str(well.path), Options(runtime=str(well.runtime)), name)
    assert (told["works"], told["engines"][0]["works"]) == (False, False)
    assert told["engines"][0]["why"]


@pytest.mark.parametrize("here", ["", "bin/crio", "usr/sbin/crio", "proc/1/cmdline"])
def test_files_alone_are_no_engine(here: str, engines_host: Host, well: World, programs: Path) -> None:
    """CRI-O's package was removed, and its configuration is still right."""
    folder = Path(engines_host.real("/etc/crio/crio.conf.d"))
    folder.mkdir(parents=True)
    entry = f'[crio.runtime.runtimes.gpuhook]\nruntime_path = "{well.runtime}"\n'
    (folder / "99-gpuhook.conf").write_text(entry)
    if here:
        path = programs / "crio" if here.startswith("bin") else Path(engines_host.real(f"/{here}"))
        path.parent.mkdir(parents=True, exist_ok=True)
        program(path, "/usr/bin/crio\0" if here.startswith("proc") else "#!/bin/sh\nexit 1\n")
    told = doctor.examination(engines_host, str(well.path), Options(runtime=str(well.runtime)), "crio")
    assert told["works"] is bool(here)
    assert ("crio is not on this host" in told["engines"][0]["why"]) is not bool(here)


def document(host: list[str], **engines: list[str]) -> dict[str, Any]:
    """A document with findings of these levels."""

    def findings(items: list[str], name: str) -> list[dict[str, str]]:
        return [{"level": level, "check": name, "message": f"{name}-{level}", "hint": "do"} for level in items]

    parts = [
        {"engine": name, "works": "problem" not in [*host, *items], "why": "w", "findings": findings(items, name)}
        for name, items in engines.items()
    ]
    works = any(part["works"] for part in parts) if parts else "problem" not in host
    return {"works": works, "host": findings(host, "host"), "engines": parts}


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (document(["ok"]), None),
        (document(["note", "warning"], docker=["ok", "warning"]), None),
        (document(["ok"], docker=["problem"], podman=["ok"]), None),
        (
            document(["ok"], docker=["problem"], podman=["problem"]),
            "a GPU container would not work through docker or podman: docker-problem (the first of 2 problems)",
        ),
        (document(["problem"], docker=["ok"]), "a GPU container would not work on this host: host-problem"),
    ],
    ids=["well", "warnings", "one of two works", "none works", "the host"],
)
def test_what_it_ends_with(told: dict[str, Any], message: str | None) -> None:
    error = doctor.failure(told)
    assert (error.message if error else None) == message
    assert error is None or (error.exit_code, error.hint) == (98, "do")


def test_an_option_of_an_engine_needs_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpuhook", "doctor", "--config", "x"]) == 2
    assert "name it with --engine" in capsys.readouterr().err


def test_text_of_others_steers_no_terminal(
    well: World, sim_driver: Path, container: subprocess.Popen[bytes], programs: Path
) -> None:
    grant(well, "box", container.pid, driver="5\x1b[2J")
    program(programs / "frunc", "#!/bin/sh\nprintf 'runc version \\033[2J\\n'\n")
    done = subprocess.run([well.cli, "doctor"], env={"PATH": str(programs)}, capture_output=True)
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"containers-stale" in done.stdout


def test_mig_devices_are_counted(ask: Ask, well: World, sim_driver: Path, folder: Path) -> None:
    driver = copy_of(sim_driver, folder / "driver")
    sim.set_mig(driver, ("0=1/0,2/0",))
    well.use_driver(driver)
    assert one(ask()[1]["host"], "gpus")["message"].startswith("2, 2 MIG devices: ")


def test_each_name_of_an_engines_finding_is_explained() -> None:
    """docs/errors.md lists the names that the engines' modules use, and no other: the same for the same thing."""
    folder = Path(hooksdir.__file__).parent
    names = ("findings", "installation", "layers", "hooksdir", "dockercheck", "containerdcheck", "crio", "podman")
    source = "".join((folder / f"{name}.py").read_text() for name in names)
    used = set(re.findall(r'Finding\(\s*(?:level|"\w+"[^,]*|[^,]* else "\w+"),\s*"([a-z-]+)"', source))
    page = Path(folder.parents[2], "docs/errors.md").read_text().split("### doctor-problem")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert used == set(re.findall("`([a-z-]+)`", " ".join(rows)))
