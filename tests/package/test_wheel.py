"""The wheel and the source distribution: the command line alone, which says so."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gpuhook import __version__
from tests.images import CHECKOUT
from tests.package.conftest import build_kind

NAMES = [f"gpuhook-{__version__}-py3-none-any.whl", f"gpuhook-{__version__}.tar.gz"]


def build(checkout: Path, dist: Path, umask: int = 0o022) -> Path:
    """Build both into a folder."""
    build_kind("wheel", checkout, dist, umask)
    assert sorted(path.name for path in dist.iterdir()) == NAMES
    return dist


@pytest.fixture(scope="module")
def dist(place: Path) -> Path:
    """The folder with both."""
    return build(CHECKOUT, place / "wheel")


def test_two_builds_are_equal(dist: Path, folder: Path) -> None:
    """In another folder, under another umask, from what the first one was made of."""
    subprocess.run(["tar", "--extract", "--file", dist / NAMES[1], "--directory", folder], check=True)
    checkout = folder / f"gpuhook-{__version__}"
    for name in ("scripts", "packaging"):
        shutil.copytree(CHECKOUT / name, checkout / name)
    (checkout / "build/wheel").mkdir(parents=True)
    (checkout / "build/wheel/venv").symlink_to(CHECKOUT / "build/wheel/venv")
    again = build(checkout, folder / "again", 0o077)
    for name in NAMES:
        assert (again / name).read_bytes() == (dist / name).read_bytes(), name


@pytest.fixture(scope="module")
def command(dist: Path, place: Path) -> Path:
    """The command as pipx installs it; what it depends on is this environment's."""
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
    modules = next((place / "venv/lib").glob("python3*/site-packages"))
    (modules / "depends.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = [str(place / "venv/bin/pip"), "--disable-pip-version-check", "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, dist / NAMES[0]], check=True, stdout=subprocess.DEVNULL)
    return place / "venv/bin/gpuhook"


def test_the_command_alone(command: Path, folder: Path) -> None:
    """It works with all that it needs, down to the simulated driver's sources."""
    said = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"gpuhook {__version__}\n"
    subprocess.run([command, "sim", "create", folder / "driver"], check=True, stdout=subprocess.DEVNULL)
    assert (folder / "driver/proc/driver/nvidia/version").exists()


def test_the_shim_wants_the_package(command: Path, folder: Path) -> None:
    """No engine is told of a shim that is not there."""
    file = folder / "daemon.json"
    file.write_text("{}")
    done = subprocess.run(
        [command, "configure", "docker", "--config", file], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert file.read_text() == "{}"
    assert "/usr/bin/gpuhook-runtime, which is not there" in done.stderr
    assert "pip and pipx bring the command line alone" in done.stderr
