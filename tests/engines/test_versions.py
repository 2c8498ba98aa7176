"""What engines of different versions do differently, and what `configure` and `doctor` of gpuhook say of it.

tests/long/engines.py runs these tests with newer systems, by a fixture `system` of its own.
"""

import json
from collections.abc import Iterator

import pytest

from tests.engines.archive import PLAIN
from tests.engines.configure import configure, unconfigure
from tests.engines.docker import Docker
from tests.engines.machine import Result
from tests.engines.podman import Podman
from tests.engines.results import Results
from tests.engines.test_docker import docker as docker
from tests.engines.test_docker import each as each_docker
from tests.engines.test_podman import ROOTFUL
from tests.engines.test_podman import each as each_podman
from tests.engines.test_podman import podman as podman

pytestmark = pytest.mark.runc

DEVICE = "gpuhook.test/probe=one"
SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "gpuhook.test/probe",
    "devices": [{"name": "one", "containerEdits": {"env": ["PROBE=found"]}}],
}
PROBE = (f"--device={DEVICE}", PLAIN, "sh", "-c", 'echo "$PROBE"')


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _doctor(engine: Docker) -> Result:
    """What the doctor says of this docker."""
    argv = (engine.world.cli, "doctor", "--engine=docker", f"--config={engine.config}")
    return engine.machine.run(*argv, env=engine.env)


@each_docker((("runc", "v1"),))
def test_dockers_cdi(docker: Docker, results: Results) -> None:
    """`configure docker --cdi` is for the versions that have CDI and do not have it on; the others are named."""
    version = _numbers(docker.version)
    docker.machine.write("/etc/cdi/gpuhook-test.json", json.dumps(SPEC))
    unconfigured = docker("run", "--rm", *PROBE)

    said = configure(docker, "--cdi")
    before = _doctor(docker)
    docker.restart()
    after, done = _doctor(docker), docker("run", "--rm", *PROBE)

    unconfigure(docker)
    docker.restart()
    assert after.code == 0, after
    assert "knows the runtime" in after.out
    assert (unconfigured.out == "found\n") == (version >= (28, 3)), unconfigured
    if version < (25, 0):
        assert done.code == 125, done
        assert "has no CDI and ignores `features.cdi`; 25.0 is the first that has it" in said
        assert "`features.cdi` does nothing in dockerd" in after.out
        results.fails(docker, "CDI", "docker has CDI since 25.0")
        return
    assert (done.code, done.out) == (0, "found\n"), done
    assert ("has CDI on without `features.cdi`" in said) == (version >= (28, 3))
    assert ("the running dockerd has no CDI yet" in before.out) == (version < (28, 3)), before
    assert "cdi" not in after.out, after
    results.works(docker, "CDI")


@pytest.fixture
def persons_file(podman: Podman) -> Iterator[str]:
    """A drop-in file of somebody else, which podman reads after the main file."""
    path = f"{podman.config}.d/50-person.conf"
    yield path
    podman.machine.check("rm", "-f", path)


@each_podman("podman", (ROOTFUL[0],))
def test_podmans_lists_of_several_files(podman: Podman, results: Results, persons_file: str) -> None:
    """`runtime_supports_json` decides how podman shows what runc says under gpuhook's runtime: plainly, or as a line of
    a log. A later file replaces the list, which configure tells, or adds to it."""
    escaped = 'msg="runc create failed: '
    assert escaped not in _failing(podman)
    appends = _numbers(podman.version) >= (4, 9)
    for items, adds in (('"runc"', False), *((('"runc", {append=true}', True),) if appends else ())):
        podman.machine.write(persons_file, f"[engine]\nruntime_supports_json = [{items}]\n")

        said = podman.gpuhook("configure", "podman")

        assert (escaped in _failing(podman)) != adds
        assert ("50-person.conf:2 replaces the list" in said) != adds, said
    results.works(podman, "runtime_supports_json in several files")


def _failing(podman: Podman) -> str:
    """What podman shows of a container that can't start."""
    done = podman.run("--rm", PLAIN, "/nothing")
    assert done.code != 0
    assert "/nothing" in done.err, done
    return done.err
