"""docker with gpuhook: configured by `gpuhook configure docker`, real containers with the simulated driver.

tests/long/engines.py runs these tests with newer systems, by a fixture `system` of its own.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import World
from tests.engines import cases
from tests.engines.archive import GPU, NEWER, PLAIN
from tests.engines.cases import FOUND, LIBCUDA, SEEN, SEES
from tests.engines.configure import configure, unconfigure
from tests.engines.docker import Docker
from tests.engines.machine import Machine
from tests.engines.results import Results

pytestmark = pytest.mark.runc

KINDS = (("runc", "v1"), ("runc", "v2"), ("runc", "host"), ("crun", "v1"))
FIRST = (("runc", "v1"),)
LASTING = ("--detach", "--runtime=gpuhook", "--stop-signal=KILL")
# what an administrator had in daemon.json before
BEFORE = {
    "runtimes": {"spied": {"path": "PATH"}, "plain-crun": {"path": "/usr/bin/crun"}},
    "log-opts": {"max-size": "10m"},
}


@pytest.fixture
def docker(
    request: pytest.FixtureRequest, engine: Callable[..., Any], system: Path, sim_driver: Path
) -> Iterator[Docker]:
    """The docker of a low-level runtime and a cgroup layout, configured, without containers."""
    low_level, layout = request.param
    new: Docker = engine(Docker, layout, system)
    new.world.low_level = low_level
    new.world.use_driver(sim_driver)
    if "gpuhook" not in json.loads(new.config.read_text()).get("runtimes", {}):
        spied = new.folder / "spy-before"
        cases.spy(spied, new.world.runtime)
        new.config.write_text(json.dumps(BEFORE).replace("PATH", str(spied)))
        configure(new)
        new.reload()
    yield new
    new.remove_all()


def each(kinds: tuple[tuple[str, str], ...]) -> pytest.MarkDecorator:
    """The test runs with each of these low-level runtimes and cgroup layouts."""
    return pytest.mark.parametrize("docker", kinds, ids=" ".join, indirect=True)


@each(KINDS)
def test_a_gpu(docker: Docker, results: Results, sim_driver: Path) -> None:
    """The image says `all`: both GPUs. The command line says `1`: that one's node, and no way to the other's."""
    every = docker("run", "--rm", "--runtime=gpuhook", GPU, *SEES)
    assert (every.code, every.out) == (0, SEEN), every

    forge = cases.forge(sim_driver / "dev/nvidia0")
    one = docker(
        *("run", "--rm", "--runtime=gpuhook", "--env=NVIDIA_VISIBLE_DEVICES=1"),
        *(GPU, "sh", "-c", f"opendev {LIBCUDA} /dev/nvidia1; ls -d /dev/nvidia0; {forge}"),
    )
    assert one.out == f"{FOUND}/dev/nvidia1: ok\n/dev/forged: Operation not permitted\n", one
    assert "/dev/nvidia0: No such file" in one.err

    results.works(docker, "GPU container")


@each(KINDS)
def test_refused(docker: Docker, results: Results, golden: Callable[[str, str, Machine], None]) -> None:
    """A requirement that is not met, as docker shows it and keeps it."""
    done = docker("run", "--name=refused", "--runtime=gpuhook", NEWER, "true")

    said = cases.said(done)
    kept = docker.inspect("refused")["State"]
    assert (done.code, kept["Status"]) == (125, "created")
    assert kept["Error"].split("\n")[0] in done.err
    golden(f"docker-{'.'.join(docker.version.split('.')[:2])}-refused", said, docker.machine)
    results.works(docker, "refused requirement shown")


@each(KINDS)
def test_a_life(docker: Docker, results: Results) -> None:
    """The GPUs are still there for exec, and after update, pause and restart."""
    docker.check("run", *LASTING, "--name=life", GPU, "sleep", "600")

    steps: dict[str, list[tuple[str, ...]]] = {"exec": []}
    if docker.machine.layout != "v2":
        steps["update"] = [("update", "--cpu-shares=200", "--memory=100m", "--memory-swap=200m")]
    steps |= {"pause": [("pause",), ("unpause",)], "restart": [("restart",)]}
    for what, commands in steps.items():
        for command in commands:
            docker.check(*command, "life")
        done = docker("exec", "life", *SEES)
        assert (done.code, done.out) == (0, SEEN), f"after {what}: {done}"
        results.works(docker, what)


@each(FIRST)
def test_the_daemon_starts_again(docker: Docker, results: Results) -> None:
    """The runtime is the configured one, for old containers too."""
    docker.check("run", *LASTING, "--name=old", GPU, "sleep", "600")

    docker.restart()

    docker.check("start", "old")
    assert docker("exec", "old", *SEES).out == SEEN
    results.works(docker, "restart of the daemon")


@each(KINDS)
def test_two_at_once(docker: Docker, results: Results) -> None:
    """With nothing compiled or recorded before, so that both come upon it."""
    done = cases.two_at_once(
        docker.world.state, lambda env, argv: docker.begin("run", "--rm", "--runtime=gpuhook", env, GPU, *argv)
    )

    assert [(one.code, one.out) for one in done] == cases.ONE_EACH, done
    results.works(docker, "two at once")


@each(KINDS)
def test_asking_for_nothing(docker: Docker, results: Results) -> None:
    """The low-level runtime gets the very file that docker wrote: bytes, inode, time of change."""
    low_level = docker.world.low_level
    before = cases.spy(docker.folder / "spy-before", docker.world.runtime)
    after = cases.spy(docker.folder / "spy-after", low_level)
    docker.world.low_level = str(docker.folder / "spy-after")
    docker.world.use_driver(Path("/nowhere"))

    done = docker("run", "--rm", "--runtime=spied", PLAIN, "sh", "-c", "echo started; ls -d /dev/nv*")

    docker.world.low_level = low_level
    assert done.out == "started\n", done
    assert before.read_text().count("config.json") == 1
    assert before.read_text() == after.read_text()
    results.works(docker, "untouched without a request")


@each((("runc", "v2"),))
def test_default_runtime_and_back(docker: Docker, results: Results) -> None:
    """As the default runtime, for containers that name none; then daemon.json is what it was, and so is docker."""
    unconfigure(docker)
    mine = '{\n  "log-opts": {"max-size": "10m"},\t"labels": [ "a=b" ]\n}'
    docker.config.write_text(mine)
    configure(docker, "--default-runtime")
    docker.reload()

    asked = docker("run", "--rm", GPU, *SEES)
    plain = docker("run", "--rm", PLAIN, "ls", "/dev")

    assert (asked.code, asked.out) == (0, SEEN), asked
    assert (plain.code, "nvidia" in plain.out) == (0, False), plain
    unconfigure(docker)
    assert docker.config.read_text() == mine
    docker.restart()
    assert LIBCUDA in docker("run", "--rm", GPU, "opendev", LIBCUDA).out
    gone = docker("run", "--rm", "--runtime=gpuhook", GPU, "true")
    assert gone.code == 125
    assert "gpuhook" in gone.err
    results.works(docker, "default runtime")
    results.works(docker, "unconfigure")


@each(FIRST)
def test_docker_run_gpus(docker: Docker, results: Results) -> None:
    """`--gpus` makes docker look for NVIDIA's hook when it starts; gpuhook takes that hook's place in the container."""
    docker.machine.write("/usr/bin/nvidia-container-runtime-hook", "#!/bin/sh\nexit 1\n", 0o755)
    docker.restart()

    done = docker("run", "--rm", "--runtime=gpuhook", "--gpus=device=1", PLAIN, "opendev", LIBCUDA, "/dev/nvidia1")

    assert (done.code, done.out) == (0, f"{FOUND}/dev/nvidia1: ok\n"), done
    results.works(docker, "docker run --gpus")


@each((("runc", "v1"), ("runc", "v2")))
def test_a_container_in_a_container(
    docker: Docker, results: Results, new_world: Callable[[str], World], folder: Path, sim_driver: Path
) -> None:
    """The inner gpuhook's driver is what the outer container was given. All rights but CAP_SYS_RESOURCE, which a test
    machine may lack, so not --privileged; Python and runc are the machine's."""
    inner = cases.inner(docker.machine, new_world("inner"), folder, sim_driver)
    done = docker(
        *("run", "--rm", "--runtime=gpuhook", "--cap-add=SYS_ADMIN", "--cap-add=SYS_PTRACE", "--cap-add=NET_ADMIN"),
        *("--cap-add=DAC_READ_SEARCH", "--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"),
        *(
            "--security-opt=systempaths=unconfined",
            "--device-cgroup-rule=a *:* rwm",
            *(f"--volume={file}:{file}:ro" for file in cases.tools(docker.machine)),
        ),
        *(f"--volume={folder}:{folder}", f"--volume={docker.folder.parent}:{docker.folder.parent}"),
        *("--volume=/sys/fs/cgroup:/sys/fs/cgroup", "--cgroupns=host", GPU),
        *inner,
    )

    assert (done.code, done.out) == (0, SEEN), done
    results.works(docker, "GPU container in a GPU container")


# What crun can't do on a machine without CAP_SYS_RESOURCE, with all controllers in cgroup version 1.
REFUSED = {
    "v2": {
        "1.8.1": (
            "setrlimit (RLIM_MEMLOCK): Operation not permitted",
            "crun 1.8.1 raises RLIMIT_MEMLOCK on cgroup v2, for which root needs CAP_SYS_RESOURCE",
        ),
        "": (
            "controller `io` is not available under",
            "docker asks for limits of io, and the tests' cgroup v2 has no such controller, which crun insists on",
        ),
    },
    "host": {
        "": (
            "cgroups in hybrid mode not supported, drop all controllers from cgroupv2",
            "crun refuses a machine with controllers in both cgroup versions",
        )
    },
}


@each((("crun", "v2"), ("crun", "host")))
def test_what_crun_refuses(docker: Docker, results: Results) -> None:
    """With gpuhook in the same words as without it."""
    by_version = REFUSED[docker.machine.layout]
    version = docker.machine.check("crun", "--version").split()[2]
    words, why = by_version.get(version) or by_version[""]

    done, plain = (docker("run", "--rm", f"--runtime={name}", PLAIN, "true") for name in ("gpuhook", "plain-crun"))

    assert (done.code, plain.code) == (125, 125), f"{done}\n{plain}"
    assert words in cases.said(done)
    assert _same(cases.said(done)) == _same(cases.said(plain))
    results.fails(docker, "GPU container", why)


def _same(text: str) -> str:
    return re.sub(r"[0-9a-f]{64}", "ID", text)
