"""What tests share: the installed tree, a world of its own for each test, simulated drivers, bundles, runtimes."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import bundles
from tests.images import BUILD, CHECKOUT

ROOTS = ("driver-root", "dev-root", "proc-root", "sys-root")


@dataclass
class World:
    """An installation that lies below `path` with a configuration and a state of its own."""

    path: Path

    @property
    def runtime(self) -> Path:
        """The shim."""
        return self.path / "usr/bin/gpuhook-runtime"

    @property
    def hook(self) -> Path:
        """The hook."""
        return self.path / "usr/bin/gpuhook-hook"

    @property
    def cli(self) -> Path:
        """The command line for people."""
        return self.path / "usr/bin/gpuhook"

    @property
    def config(self) -> Path:
        """runtime.toml."""
        return self.path / "etc/gpuhook/runtime.toml"

    @property
    def state(self) -> Path:
        """The folder of compiled configuration and driver record."""
        return self.path / "run/gpuhook"

    @property
    def log(self) -> str:
        """All of gpuhook's own log."""
        file = self.path / "var/log/gpuhook/gpuhook.log"
        return file.read_text() if file.exists() else ""

    def configure(self, text: str) -> None:
        """Replace the configuration."""
        new = self.config.with_name("new.toml")
        new.write_text(text)
        new.rename(self.config)

    def use_driver(self, driver: Path, more: str = "") -> None:
        """Point the four driver roots at a simulated driver; `more` is further TOML."""
        self.configure("[driver]\n" + "".join(f'{key} = "{driver}"\n' for key in ROOTS) + more)


@pytest.fixture(scope="session")
def installed() -> Path:
    """The tree that scripts/install lays out, made once in a run and written by nobody after."""
    place = BUILD / "installed"
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([CHECKOUT / "scripts/install", "--destdir", place], check=True, stdout=subprocess.DEVNULL)
    return place


@pytest.fixture
def new_world(installed: Path, tmp_path: Path) -> Callable[[str], World]:
    """Makes worlds: the installed programs, the shipped configuration, an empty state."""

    def make(name: str) -> World:
        path = tmp_path / name
        (path / "etc/gpuhook").mkdir(parents=True)
        (path / "usr").symlink_to(installed / "usr")
        shutil.copy(installed / "etc/gpuhook/runtime.toml", path / "etc/gpuhook/runtime.toml")
        return World(path)

    return make


@pytest.fixture
def world(new_world: Callable[[str], World]) -> World:
    """A world for one test."""
    return new_world("world")


@pytest.fixture
def new_bundle(tmp_path: Path) -> Iterator[Callable[..., bundles.Bundle]]:
    """Makes bundles (options of tests.bundles.make) and takes them down at the end."""
    made: list[bundles.Bundle] = []

    def make(tree: str | Path = "glibc", **options: Any) -> bundles.Bundle:
        made.append(bundles.make(tmp_path / f"bundle{len(made)}", tree, **options))
        return made[-1]

    yield make
    for bundle in made:
        bundle.close()


@pytest.fixture
def shim(world: World, tmp_path: Path) -> bundles.Runtime:
    """The installed shim of this test's world."""
    return bundles.Runtime(world.runtime, tmp_path / "shim")


@pytest.fixture
def runc(tmp_path: Path) -> bundles.Runtime:
    """Plain runc."""
    return bundles.Runtime(bundles.tool("runc"), tmp_path / "runc")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real containers need root. In CI a missing right is a failure of its own, so nothing is skipped there."""
    if os.geteuid() == 0 or os.environ.get("CI"):
        return
    for item in items:
        if item.get_closest_marker("runc"):
            item.add_marker(pytest.mark.skip(reason="real containers need root"))
