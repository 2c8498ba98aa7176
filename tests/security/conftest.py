"""What the security tests share: an arena for each low-level runtime."""

from pathlib import Path

import pytest

from tests.security.arena import Arena, build


@pytest.fixture(scope="module", params=["runc", "crun"])
def arena(
    request: pytest.FixtureRequest, installed: Path, sim_driver: Path, tmp_path_factory: pytest.TempPathFactory
) -> Arena:
    """Made once for a module and runtime: the driver's record is warm after the first start."""
    return build(tmp_path_factory.mktemp("arena"), installed, sim_driver, request.param)
