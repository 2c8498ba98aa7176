"""A process inside or beside a container exchanges names without pause while the hook works in its root.

First each kind of work alone, 5,000 times (racing.py; 100,000 times in tests/long/race.py). Then the hook's whole plan
on a container made by hand (tests/container.py): nothing may appear outside the root, the mounts that were made lie in
it, and a good part of the starts succeeds, else this would be a test of nothing. Whole starts are in test_starts.py.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuhook.errors import GpuhookError
from gpuhook.model import Bind, Image, Link, LoaderCache, Plan
from tests import container as containers
from tests.container import apply_plan, driver_file, listing
from tests.security import racing

pytestmark = pytest.mark.runc

TRIES = 5000
STARTS = 100


@pytest.mark.parametrize("scenario", racing.SCENARIOS)
def test_no_work_leaves_the_root_in_a_race(tmp_path: Path, scenario: str) -> None:
    """The careless form escapes under the same attack, the careful one never does and gets through now and then."""
    count = racing.race(tmp_path, scenario, TRIES)
    assert count.careless > 0, "the attack shows nothing"
    assert (count.escapes, count.harm) == (0, "")
    assert count.good > 0


SWAPPER = """
import ctypes, sys
libc = ctypes.CDLL(None)
a, b = sys.argv[1].encode(), sys.argv[2].encode()
print(flush=True)
while True:
    for _ in range(50):
        libc.renameat2(-100, a, -100, b, 2)
    libc.usleep(300)
"""


@pytest.fixture
def swap() -> Iterator[Callable[[Path, Path], None]]:
    """Starts a process that exchanges two names in bursts."""
    started: list[subprocess.Popen[bytes]] = []

    def start(first: Path, second: Path) -> None:
        command = [sys.executable, "-IS", "-c", SWAPPER, str(first), str(second)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        pipe = started[-1].stdout
        assert pipe
        pipe.readline()
        pipe.close()

    yield start
    for process in started:
        process.kill()
        process.wait()


# what is exchanged: a path of the root, and what stands in its place now and then
ATTACKS: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
    "library directory and absolute link": ("usr/lib", lambda at, victim: at.symlink_to(victim)),
    "library directory and climbing link": ("usr/lib", lambda at, victim: at.symlink_to("../" * 20 + str(victim)[1:])),
    "library directory and loop": ("usr/lib", lambda at, victim: at.symlink_to("/usr/lib")),
    "library directory and another": ("usr/lib", lambda at, victim: at.mkdir()),
    "usr and absolute link": ("usr", lambda at, victim: at.symlink_to(victim)),
    "etc and absolute link": ("etc", lambda at, victim: at.symlink_to(victim)),
    "cache and link to a file": ("etc/ld.so.cache", lambda at, victim: at.symlink_to(victim / "file")),
    "target and link to a file": ("usr/lib/libcuda.so.1.1", lambda at, victim: at.symlink_to(victim / "file")),
    "target and fifo": ("usr/lib/libcuda.so.1.1", lambda at, victim: os.mkfifo(at)),
}


@pytest.mark.parametrize(("path", "make"), ATTACKS.values(), ids=ATTACKS)
def test_nothing_leaves_the_root_in_a_race(
    tmp_path: Path, swap: Callable[[Path, Path], None], path: str, make: Callable[[Path, Path], object]
) -> None:
    root, victim, host = tmp_path / "rootfs", tmp_path / "victim", tmp_path / "host"
    for name in ("usr/lib", "etc"):
        (root / name).mkdir(parents=True)
    for name in ("lib", "ld.so.conf.d"):
        (victim / name).mkdir(parents=True)
    (victim / "file").write_text("the host's")
    (host / "usr/lib").mkdir(parents=True)
    (host / "usr/lib/libcuda.so.1.1").write_text("the driver's")
    (root / "usr/lib/libcuda.so.1.1").touch()
    (root / "etc/ld.so.cache").touch()
    make(root / "swapped", victim)
    files = (driver_file(host, "/usr/lib/libcuda.so.1.1"),)
    steps = Plan(
        (
            Bind("/usr/lib/libcuda.so.1.1", "/usr/lib/libcuda.so.1.1", "library"),
            Link("/usr/lib/libcuda.so.1", "libcuda.so.1.1"),
            LoaderCache((("libcuda.so.1", "/usr/lib/libcuda.so.1"),), ("/usr/lib",)),
        )
    )
    before, table = listing(victim), Path("/proc/self/mountinfo").read_bytes().count(str(tmp_path).encode())
    swap(root / path, root / "swapped")
    good = 0
    for _ in range(STARTS):
        box = containers.start(root)
        try:
            apply_plan(box, host, steps, files=files, image=Image("glibc", "x86-64", "/usr/lib"))
            good += 1
        except GpuhookError as error:
            assert error.reference in ("rootfs-unsafe", "mount-failed"), error
        finally:
            mounted = [item.target for item in containers.mounts(box.pid) if str(tmp_path) in item.target]
            box.close()
        assert all(target == str(root) or target.startswith(f"{root}/") for target in mounted)
        assert listing(victim) == before
    assert Path("/proc/self/mountinfo").read_bytes().count(str(tmp_path).encode()) == table
    assert good >= STARTS * 0.3, f"{good} of {STARTS}"
