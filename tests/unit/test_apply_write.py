"""Small files that are written into a container, and links that it can do without: in their place alone, and undone."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuhook.errors import GpuhookError
from gpuhook.model import Bind, Link, Plan, Write
from tests import container as containers
from tests import sandbox
from tests.container import Container, apply_plan, driver_file, listing

pytestmark = pytest.mark.runc

CUDA = "/usr/lib/libcuda.so.535"
PROFILE = Write("/etc/nvidia/rc.d/10-container.conf", "profile\n", "because")
BY_PATH = Link("/etc/dri/by-path/pci-1", "../card1", "because", optional=True)
Start = Callable[..., Container]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A driver root with one library."""
    file = tmp_path / "host" / CUDA[1:]
    file.parent.mkdir(parents=True)
    file.write_text("host's")
    return tmp_path / "host"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A container's root."""
    for name in ("usr/lib", "etc"):
        (tmp_path / "rootfs" / name).mkdir(parents=True)
    (tmp_path / "rootfs/etc/file").write_text("image's")
    return tmp_path / "rootfs"


@pytest.fixture
def start(root: Path) -> Iterator[Start]:
    """Starts containers on the root and ends them."""
    started: list[Container] = []

    def make(setup: Callable[[], object] = lambda: None) -> Container:
        started.append(containers.start(root, setup))
        return started[-1]

    yield make
    for item in started:
        item.close()


def done(box: Container, host: Path, *steps: Any) -> tuple[str, ...]:
    return apply_plan(box, host, Plan(steps), files=(driver_file(host, CUDA),))


def test_a_file_is_written_for_the_containers_root(start: Start, host: Path, root: Path) -> None:
    assert done(start(), host, PROFILE) == ()
    made = root / PROFILE.target[1:]
    assert (made.read_text(), made.stat().st_mode & 0o777, made.stat().st_uid) == ("profile\n", 0o644, 0)
    before = made.stat()
    assert done(start(), host, PROFILE) == ()
    assert made.stat().st_ino == before.st_ino, "what is there already is not written again"


def test_what_stood_there_is_replaced_never_written_through(start: Start, host: Path, root: Path) -> None:
    """A link of the image, a pipe that would hang a writer, another start's file."""
    made = root / PROFILE.target[1:]
    made.parent.mkdir(parents=True)
    for place in (
        lambda: made.symlink_to("/etc/file"),
        lambda: made.symlink_to("../../../../../../../etc/hostname"),
        lambda: os.mkfifo(made),
        lambda: made.write_text("older"),
    ):
        place()
        assert done(start(), host, PROFILE) == ()
        assert made.is_file()
        assert not made.is_symlink()
        assert made.read_text() == "profile\n"
        made.unlink()
    assert (root / "etc/file").read_text() == "image's"


@pytest.mark.parametrize("step", [PROFILE, BY_PATH], ids=["file", "link"])
@pytest.mark.parametrize("way", ["file", "directory"])
def test_what_cannot_be_made_is_left_out_with_a_warning(
    start: Start, host: Path, root: Path, step: Any, way: str
) -> None:
    """A file where a folder must be, a folder where the file or link goes; the rest of the plan is done."""
    place = root / step.target[1:]
    if way == "directory":
        (place / "below").mkdir(parents=True)
    else:
        place.parent.parent.write_text("")
    warnings = done(start(), host, step, Bind(CUDA, CUDA, "library"))
    assert len(warnings) == 1
    assert "left out" in warnings[0]
    assert step.target in warnings[0]
    assert (root / CUDA[1:]).exists()


@pytest.mark.parametrize("step", [PROFILE, BY_PATH], ids=["file", "link"])
def test_nothing_is_made_in_a_volume(start: Start, host: Path, root: Path, tmp_path: Path, step: Any) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    folder = root / step.target.split("/", 3)[1] / step.target.split("/", 3)[2]
    folder.mkdir()
    box = start(lambda: sandbox.bind(volume, folder))
    (warning,) = done(box, host, step)
    assert step.target in warning
    assert list(volume.iterdir()) == []


def test_a_failure_afterwards_takes_everything_back(start: Start, host: Path, root: Path) -> None:
    """The file, the link, and the folders made for them; what a file replaced is there again."""
    (root / "usr/lib/libcuda.so.535").mkdir()  # refuses the library
    before = listing(root)
    old = Write("/etc/file", "ours")
    with pytest.raises(GpuhookError):
        done(start(), host, PROFILE, BY_PATH, old, Bind(CUDA, CUDA, "library"))
    assert listing(root) == before
    assert (root / "etc/file").read_text() == "image's"
