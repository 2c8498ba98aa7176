"""What tests share: the installed tree, a world of its own for each test, simulated drivers, bundles, runtimes."""

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuhook import sim
from tests import bundles
from tests.images import CHECKOUT

ROOTS = ("driver-root", "dev-root", "proc-root", "sys-root")
# crun 1.8.1 with cgroup 2 raises RLIMIT_MEMLOCK, which takes CAP_SYS_RESOURCE, and refuses a hybrid layout.
RUNTIMES = (("runc", "v1"), ("runc", "v2"), ("crun", "v1"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes tests/golden anew; the diff is for reading, so it is refused in CI."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what a machine must not decide."""
    if config.getoption("--update-golden") and os.environ.get("CI"):
        raise pytest.UsageError("--update-golden is refused where CI is set: a person reads the diff of tests/golden")


@dataclass
class World:
    """An installation that lies below `path` with a configuration and a state of its own."""

    path: Path
    low_level: str = ""  # the low-level runtime that `use_driver` configures; the shipped ones where it is empty

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
        low_level = f'[runtime]\nlow-level = ["{self.low_level}"]\n' if self.low_level else ""
        self.configure(low_level + "[driver]\n" + "".join(f'{key} = "{driver}"\n' for key in ROOTS) + more)


def lay_out(installed: Path, path: Path) -> World:
    """A world at `path`: the installed programs, the shipped configuration, an empty state."""
    (path / "etc/gpuhook").mkdir(parents=True)
    (path / "usr").symlink_to(installed / "usr")
    shutil.copy(installed / "etc/gpuhook/runtime.toml", path / "etc/gpuhook/runtime.toml")
    return World(path)


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """A folder for what a run makes once. Everybody may enter it, which pytest's own do not allow: NVML's helper is
    nobody, and containers have users of their own."""
    folder = Path(tempfile.mkdtemp(prefix="gh-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def installed(place: Path) -> Path:
    """The tree that scripts/install lays out; written by nobody after."""
    tree = place / "installed"
    subprocess.run([CHECKOUT / "scripts/install", "--destdir", tree], check=True, stdout=subprocess.DEVNULL)
    return tree


@pytest.fixture
def folder(place: Path) -> Iterator[Path]:
    """A folder of this test's own, open to everybody."""
    path = Path(tempfile.mkdtemp(prefix="t-", dir=place))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def new_world(installed: Path, folder: Path) -> Callable[[str], World]:
    """Makes worlds: the installed programs, the shipped configuration, an empty state."""

    def make(name: str) -> World:
        return lay_out(installed, folder / name)

    return make


@pytest.fixture(scope="session")
def sim_driver(place: Path) -> Path:
    """A simulated driver with the defaults: two GPUs, 580.95.05, CUDA 13.0; for tests that do not change it."""
    sim.create(place / "driver", sim.SimOptions())
    return place / "driver"


@pytest.fixture
def new_driver(folder: Path) -> Callable[..., Path]:
    """Makes simulated drivers of a test's own; the options are those of gpuhook.sim.SimOptions."""
    numbers = itertools.count(1)

    def make(**options: Any) -> Path:
        path = folder / f"driver{next(numbers)}"
        sim.create(path, sim.SimOptions(**options))
        return path

    return make


@pytest.fixture
def world(new_world: Callable[[str], World]) -> World:
    """A world for one test."""
    return new_world("world")


@pytest.fixture
def new_bundle(folder: Path) -> Iterator[Callable[..., bundles.Bundle]]:
    """Makes bundles (options of tests.bundles.make) and takes them down at the end."""
    made: list[bundles.Bundle] = []

    def make(tree: str | Path = "glibc", **options: Any) -> bundles.Bundle:
        made.append(bundles.make(folder / f"bundle{len(made)}", tree, **options))
        return made[-1]

    yield make
    for bundle in made:
        bundle.close()


@pytest.fixture
def shim(world: World, folder: Path) -> bundles.Runtime:
    """The installed shim of this test's world."""
    return bundles.Runtime(world.runtime, folder / "shim")


@pytest.fixture(params=RUNTIMES, ids=" ".join)
def any_shim(request: pytest.FixtureRequest, world: World, shim: bundles.Runtime, sim_driver: Path) -> bundles.Runtime:
    """The installed shim over each low-level runtime and cgroup version that this machine can run together."""
    world.low_level, cgroup = request.param
    world.use_driver(sim_driver)
    return bundles.within(shim, cgroup)


@pytest.fixture
def runc(folder: Path) -> bundles.Runtime:
    """Plain runc."""
    return bundles.Runtime(bundles.tool("runc"), folder / "runc")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real containers need root. In CI a missing right is a failure of its own, so nothing is skipped there."""
    if os.geteuid() == 0 or os.environ.get("CI"):
        return
    for item in items:
        if item.get_closest_marker("runc"):
            item.add_marker(pytest.mark.skip(reason="real containers need root"))
