"""`docker run --gpus` without NVIDIA's stack: gpuhook's hook under the name that dockerd looks for when it starts.

The package gpuhook-docker-gpus has that name as a link (tests/package); here it leads to a world of the test's own. No
runtime but docker's own runc takes part, except where a test says so. tests/long/engines.py runs these tests with newer
systems.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.archive import GPU, NEWER, PLAIN
from tests.engines.cases import FOUND, LIBCUDA, forge
from tests.engines.configure import configure, unconfigure
from tests.engines.docker import Docker
from tests.engines.results import Results

pytestmark = pytest.mark.runc

HOOK = "/usr/bin/nvidia-container-runtime-hook"
# the driver's library if it is there, then each node that can be opened
LOOK = ("sh", "-c", f"opendev {LIBCUDA} /dev/nvidia0 /dev/nvidia1; ls -d /dev/nvidia[0-9]")


@pytest.fixture(params=["v1", "v2"])
def served(
    request: pytest.FixtureRequest, engine: Callable[..., Any], system: Path, sim_driver: Path
) -> Iterator[Docker]:
    """A docker that found the hook when it started, and was told of no runtime."""
    new: Docker = engine(Docker, request.param, system)
    new.world.low_level = "runc"
    new.world.use_driver(sim_driver)
    script = f'#!/bin/sh\nexec {new.world.hook} "$@"\n'
    if new.machine.run("cat", HOOK).out != script:
        new.machine.write(HOOK, script, 0o755)
        new.restart()
    yield new
    new.remove_all()


@pytest.mark.parametrize(
    ("gpus", "image", "seen"),
    [
        ("all", PLAIN, "01"),
        ("1", PLAIN, "0"),
        ("2", PLAIN, "01"),
        ("device=1", PLAIN, "1"),
        ('"device=0,1"', PLAIN, "01"),
        ("all,capabilities=utility", PLAIN, "01"),
        ("1", GPU, "0"),  # the image's `all` is there, too: the last of two counts
        ("0", PLAIN, ""),  # adds the hook, and no variable
        ("0", GPU, "01"),  # so what the image says holds
    ],
)
def test_docker_run_gpus(served: Docker, results: Results, gpus: str, image: str, seen: str) -> None:
    """Exactly the GPUs asked for can be opened, and the driver's library is found where CUDA was asked for."""
    done = served("run", "--rm", f"--gpus={gpus}", image, *LOOK)

    opened = "".join(number for number in "01" if f"/dev/nvidia{number}: ok\n" in done.out)
    listed = "".join(number for number in "01" if f"\n/dev/nvidia{number}\n" in f"\n{done.out}")
    assert (opened, listed) == (seen, seen), done
    has_cuda = bool(seen) and "utility" not in gpus
    assert (FOUND in done.out) == has_cuda, done
    results.works(served, "docker run --gpus without NVIDIA's runtime")


def test_nothing_else_can_be_opened(served: Docker, sim_driver: Path) -> None:
    """A node that the container makes itself of the GPU that it was not given."""
    done = served("run", "--rm", "--gpus=device=1", PLAIN, "sh", "-c", forge(sim_driver / "dev/nvidia0"))
    assert done.out == "/dev/forged: Operation not permitted\n", done


def test_a_device_that_is_not_there(served: Docker) -> None:
    """Refused, with gpuhook's sentence in docker's error; nothing of the container is left running."""
    done = served("run", "--name=refused", "--gpus=device=7", PLAIN, "true")
    assert done.code in (125, 127), done
    assert "gpuhook" in done.err
    assert "[device-" in done.err
    assert served.inspect("refused")["State"]["Running"] is False


def test_a_requirement_that_is_not_met(served: Docker) -> None:
    """As under the runtime."""
    done = served("run", "--rm", "--gpus=all", NEWER, "true")
    assert done.code != 0
    assert "[requirement-not-met]" in done.err, done


def test_the_quoting_trap(served: Docker) -> None:
    """Commas inside of quotes make all of it a device's name: refused by that name, and not given everything."""
    done = served("run", "--rm", '--gpus="device=0,capabilities=compute;utility"', PLAIN, *LOOK)
    assert done.code != 0, done
    assert "/dev/nvidia1: ok" not in done.out


def test_with_the_runtime_too(served: Docker, results: Results) -> None:
    """The shim decides, takes docker's hook out, and the GPUs are there once."""
    had = "gpuhook" in json.loads(served.config.read_text()).get("runtimes", {})
    if not had:
        configure(served)
        served.reload()
    done = served("run", "--rm", "--runtime=gpuhook", "--gpus=device=1", PLAIN, *LOOK)
    assert done.out.startswith(FOUND), done
    assert "/dev/nvidia1: ok\n" in done.out
    assert "/dev/nvidia0: ok\n" not in done.out
    results.works(served, "docker run --gpus")
    if not had:
        unconfigure(served)
        served.reload()


def test_without_gpus_nothing_is_given(served: Docker) -> None:
    """Docker puts the hook in for --gpus alone."""
    done = served("run", "--rm", GPU, "sh", "-c", "ls -d /dev/nv*")
    assert done.out == "", done
