"""`scripts/test --long package`: the tests of tests/package on Debian 13."""

import pytest

from tests.package import test_deb
from tests.package.conftest import clean, host, new_deb, newer, packages

__all__ = ["clean", "host", "new_deb", "newer", "packages", "suite"]

pytestmark = pytest.mark.runc


@pytest.fixture(scope="session")
def suite() -> str:
    """The next Debian."""
    return "trixie"


globals().update({name: each for name, each in vars(test_deb).items() if name.startswith("test_")})
