"""What tests of engines stand on: a machine that leaves nothing behind, engines that say why they do not start."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import lay_out
from tests.engines.archive import PLAIN
from tests.engines.docker import Docker
from tests.engines.machine import LAYOUTS, Machine

pytestmark = pytest.mark.runc


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout(folder: Path, layout: str) -> None:
    """One cgroup version alone, or what this machine has; the caller's own is as before."""
    before = Path("/proc/self/mountinfo").read_text()

    with Machine(folder / "m", layout) as machine:
        kinds = machine.check("sh", "-c", "grep -o ' - cgroup2\\?' /proc/self/mountinfo | sort -u").split()

    assert layout == "host" or [kind for kind in kinds if kind != "-"] == ["cgroup" if layout == "v1" else "cgroup2"]
    assert Path("/proc/self/mountinfo").read_text() == before


def test_what_is_written_is_the_machines_own(folder: Path) -> None:
    """/etc of the machine is not this one's; the named folders are shared."""
    with Machine(folder / "m") as machine:
        machine.write("/etc/gpuhook-test", "there\n")
        (folder / "m/shared").write_text("both\n")

        assert machine.read("/etc/gpuhook-test") == "there\n"
        assert machine.read(f"{folder}/m/shared") == "both\n"
        assert machine.run("cat", "/etc/no-such").code == 1
    assert not Path("/etc/gpuhook-test").exists()


def test_nothing_is_left(folder: Path, installed: Path, images: Path) -> None:
    """Of a container that runs when the machine ends: no process, mount or cgroup."""
    with Machine(folder / "m", see=[images.parent]) as machine:
        docker = Docker(machine, lay_out(installed, folder / "m/gpuhook"))
        docker.start()
        docker.load(images)
        docker.check("run", "--detach", PLAIN, "sleep", "54321")
        assert _processes("54321")
        assert list(Path("/sys/fs/cgroup").glob(f"*/{machine.cgroup}"))

    assert _processes("54321") == []
    assert list(Path("/sys/fs/cgroup").rglob(machine.cgroup)) == []
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()


def _processes(word: str) -> list[str]:
    """The processes of this machine with that word in their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in path.read_text().split("\0") and int(path.parent.name) != os.getpid():
                found.append(path.parent.name)
        except OSError:
            pass
    return found


def test_an_engine_that_does_not_start_says_why(new_machine: Callable[..., Machine], installed: Path) -> None:
    machine = new_machine("host")
    docker = Docker(machine, lay_out(installed, machine.folder / "gpuhook"))
    docker.config.write_text('{"no-such-key": 1}')

    with pytest.raises(AssertionError, match=r"docker has ended\n(.|\n)*no-such-key"):
        docker.start()
