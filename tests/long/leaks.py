"""`scripts/test --long leaks`: 100 starts one after another, and three rounds of 30 at once, cold and warm."""

import shutil

import pytest

from tests.long.report import append
from tests.security import starts
from tests.security.arena import Arena
from tests.security.test_starts import CROWD, check_leaks

pytestmark = pytest.mark.runc

SERIES = 100
ROUNDS = 3


def test_nothing_is_left_after_many_starts(arena: Arena) -> None:
    """As the short run (tests/security/test_starts.py)."""
    check_leaks(arena, SERIES)
    append("leaks", f"one after another {arena.runtime}", {"starts": SERIES, "left": 0})


@pytest.mark.parametrize("state", ["cold", "warm"])
def test_thirty_at_once(arena: Arena, state: str) -> None:
    """Each start of each round succeeds."""
    for number in range(ROUNDS):
        with starts.crowd(arena, CROWD) as start:
            if state == "cold":
                shutil.rmtree(arena.world.state, ignore_errors=True)
            done = start()
        good = sum((result.code, result.out) == (0, starts.SEEN) for result in done.results)
        append(
            "leaks",
            f"{CROWD} at once, {state}, round {number + 1} {arena.runtime}",
            {"starts": CROWD, "good": good, "slowest_seconds": done.slowest},
        )
        assert good == CROWD
    assert starts.processes(arena.place) == []
