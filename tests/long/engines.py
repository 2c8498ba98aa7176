"""`scripts/test --long engines`: the tests of tests/engines with the engines of newer Debians, which lie in folders.

What is found goes to build/engines/results.jsonl, as in the short run.
"""

import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.engines import test_containerd, test_docker, test_docker_gpus, test_kubernetes, test_podman, test_versions
from tests.engines.conftest import engine, golden, images, new_machine, results
from tests.images import CHECKOUT
from tests.unit import test_engines_containerd_real

__all__ = ["engine", "golden", "images", "new_machine", "results", "system"]

MODULES = (
    test_docker,
    test_docker_gpus,
    test_containerd,
    test_engines_containerd_real,
    test_kubernetes,
    test_podman,
    test_versions,
)
SUITES = ("trixie", "sid")

pytestmark = pytest.mark.runc


@pytest.fixture(scope="session", params=SUITES)
def system(request: pytest.FixtureRequest) -> Path:
    """The root of another Debian, made when it is not there."""
    program = CHECKOUT / "tests/engines/system.sh"
    done = subprocess.run([program, request.param], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())


def _taken(module: ModuleType) -> dict[str, Any]:
    """A module's tests, with its name in theirs, and its fixtures."""
    fixture = type(system)
    engine_name = module.__name__.rpartition("test_")[2]
    found: dict[str, Any] = {}
    for name, each in vars(module).items():
        if name.startswith("test_"):
            found[f"test_{engine_name}_{name.removeprefix('test_')}"] = each
        elif isinstance(each, fixture):
            found[name] = each
    return found


for module in MODULES:
    globals().update(_taken(module))


@pytest.fixture
def real(system: Path, tmp_path: Path) -> test_engines_containerd_real.Real:
    """The containerd that is asked what a configuration comes to; it needs no library but the C library."""
    return test_engines_containerd_real.Real(str(system / "usr/bin/containerd"), tmp_path)
