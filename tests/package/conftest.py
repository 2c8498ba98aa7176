"""What the tests of packages share: the packages, built once, and clean Debians to install them in."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuhook import __version__
from tests import bundles
from tests.conftest import ROOTS
from tests.engines.archive import ALL
from tests.engines.machine import Machine
from tests.images import CHECKOUT

NEWER = f"{__version__}+newer"
EPOCH = "1700000000"


@dataclass(frozen=True)
class Built:
    """The folder with the packages of one build."""

    dist: Path
    version: str

    def deb(self, name: str) -> Path:
        """A package."""
        return self.dist / f"{name}_{self.version}_all.deb"


def build(folder: Path, version: str = __version__, source: Path = CHECKOUT, umask: int = 0o022) -> Built:
    """Build the packages of a copy of the checkout at `folder`, as one that was cloned there."""
    for name in ("config", "docs", "packaging", "scripts", "src", "build/vendor"):
        shutil.copytree(source / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("LICENSE", "pyproject.toml", *(path.name for path in source.glob("*.md"))):
        shutil.copy(source / name, folder / name)
    module = folder / "src/gpuhook/__init__.py"
    module.write_text(module.read_text().replace(f'"{__version__}"', f'"{version}"'))
    done = subprocess.run(
        ["/bin/sh", "-c", f"umask {umask:o}; exec scripts/package deb"],
        cwd=folder,
        env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Built(folder / "dist", version)


@pytest.fixture(scope="session")
def packages(place: Path, installed: Path) -> Built:
    """The packages of this checkout (`installed` has fetched what they carry)."""
    return build(place / "deb")


@pytest.fixture(scope="session")
def newer(place: Path, installed: Path) -> Built:
    """The packages of a later version."""
    return build(place / "deb-newer", NEWER)


@pytest.fixture(scope="session")
def suite() -> str:
    """Which Debian; the long runs have another."""
    return "bookworm"


@pytest.fixture(scope="session")
def clean(suite: str) -> Path:
    """A Debian that has what the package depends on, and has never seen it."""
    program = CHECKOUT / "tests/package/system.sh"
    done = subprocess.run([program, suite], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())


@dataclass
class Host:
    """A machine with a clean Debian, and a simulated driver beside it."""

    machine: Machine
    driver: Path
    place: Path
    count: int = 0

    def dpkg(self, *arguments: str | Path) -> str:
        """What dpkg says. Offline: a machine has no network."""
        return self.machine.check("dpkg", *arguments, env={"DEBIAN_FRONTEND": "noninteractive"}, timeout=120)

    def use_driver(self) -> None:
        """Point runtime.toml at the simulated driver."""
        text = "[driver]\n" + "".join(f'{key} = "{self.driver}"\n' for key in ROOTS)
        self.machine.write("/etc/gpuhook/runtime.toml", text)

    def bundle(self, name: str) -> Path:
        """A bundle that asks for all GPUs, and uses the first."""
        self.count += 1
        args = ["opendev", "dlopen:libcuda.so.1", "/dev/nvidia0"]
        return bundles.make(self.machine.folder / f"{name}{self.count}", "lib64", env=[ALL], args=args).path

    def start(self, bundle: Path, name: str) -> tuple[int, str, str]:
        """A container from the installed program: its status and what it said."""
        spec = (bundle / "config.json").read_text()
        if "cgroupsPath" not in spec:
            group = f'"cgroupsPath": "/{self.machine.cgroup}/{name}", "namespaces"'
            (bundle / "config.json").write_text(spec.replace('"namespaces"', group, 1))
        done = self.machine.run("/usr/bin/gpuhook-runtime", "run", "--bundle", bundle, name)
        return done.code, done.out, done.err

    def files(self) -> set[str]:
        """All files of the system itself but for what dpkg writes of every package."""
        skip = ("/var/lib/dpkg", "/var/log", "/var/cache", "/tmp", "/proc", "/sys", "/dev", str(self.place))
        prune = " -o ".join(f"-path {path}" for path in skip)
        command = f"find / -xdev \\( {prune} \\) -prune -o -print; find /run /var/log/gpuhook -xdev 2>/dev/null; true"
        return set(self.machine.check("sh", "-c", command).splitlines())


@pytest.fixture
def host(place: Path, clean: Path, sim_driver: Path, folder: Path) -> Iterator[Host]:
    """A fresh one."""
    with Machine(folder / "m", "v1", system=clean, see=[place]) as machine:
        yield Host(machine, sim_driver, place)


NewDeb = Callable[..., Path]


@pytest.fixture
def new_deb(folder: Path) -> NewDeb:
    """Makes packages of somebody else's: a name, its files, further lines of its control."""

    def make(name: str, *files: str, more: str = "") -> Path:
        tree = folder / name
        for file in files:
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            (tree / file).write_text("#!/bin/sh\n")
            (tree / file).chmod(0o755)
        (tree / "DEBIAN").mkdir()
        (tree / "DEBIAN/control").write_text(
            f"Package: {name}\nVersion: 1.17.8-1\nArchitecture: all\nMaintainer: A <a@b.example>\n{more}"
            "Description: stand-in\n"
        )
        deb = folder / f"{name}.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, deb], check=True, stdout=subprocess.DEVNULL)
        return deb

    return make


def build_kind(kind: str, checkout: Path, dist: Path, umask: int = 0o022) -> None:
    """Run packaging/KIND/build, with its result in a folder."""
    done = subprocess.run(
        ["/bin/sh", "-c", f"umask {umask:o}; exec packaging/{kind}/build"],
        cwd=checkout,
        env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH, "DIST": str(dist)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
