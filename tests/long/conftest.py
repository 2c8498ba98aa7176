"""The long runs: not collected by a plain pytest (no file is called test_*.py); scripts/test --long names them."""

import pytest

from tests.long.report import Report, append
from tests.security.conftest import arena

__all__ = ["arena", "report"]


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Appends the figures of this case to the report of long runs."""
    path = request.path
    return lambda figures: append(path.stem, request.node.name, figures)
