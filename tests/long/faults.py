"""`scripts/test --long faults`: a fault at every third call of the hook, of both kinds, each with a start after it."""

import pytest

from tests.long.report import append
from tests.security.arena import Arena
from tests.security.starts import Faults
from tests.security.test_starts import check_faults

pytestmark = pytest.mark.runc

FAULTS = 300  # more than a third of the calls: each third one then


@pytest.mark.parametrize("act", ["error", "kill"])
def test_a_fault_and_the_next_start(arena: Arena, act: str) -> None:
    """As the short run (tests/security/test_starts.py)."""
    came = check_faults(Faults.make(arena), act, FAULTS)
    append("faults", f"{act} {arena.runtime}", {**came, "violations": 0})
    assert came["refused"] > 100
