"""`scripts/test --long faults`: a fault at every call of the hook, of both kinds, each with a start after it."""

import pytest

from tests.long.report import append
from tests.security.arena import Arena
from tests.security.starts import Faults
from tests.security.test_starts import check_faults, check_killed_runtime

pytestmark = pytest.mark.runc

EVERY = 0
KILLS = 50


@pytest.mark.parametrize("act", ["error", "kill"])
def test_a_fault_and_the_next_start(arena: Arena, act: str) -> None:
    """As the short run (tests/security/test_starts.py)."""
    came = check_faults(Faults.make(arena), act, EVERY)
    append("faults", f"{act} {arena.runtime}", {**came, "violations": 0})
    assert came["refused"] > 100


def test_the_runtime_is_killed_at_random_moments(arena: Arena) -> None:
    """As the short run."""
    killed = check_killed_runtime(arena, KILLS)
    append("kills", arena.runtime, {"starts": KILLS, "killed": killed, "violations": 0})
