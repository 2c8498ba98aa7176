"""`scripts/test --long race`: each scenario 100,000 times, and 30 whole starts for each runtime."""

from collections import Counter
from pathlib import Path

import pytest

from tests.long.report import Report, append
from tests.security import racing, starts
from tests.security.arena import Arena

pytestmark = pytest.mark.runc

TRIES = 100_000
STARTS = 30


@pytest.mark.parametrize("scenario", racing.SCENARIOS)
def test_no_work_leaves_the_root_in_a_race(tmp_path: Path, scenario: str, report: Report) -> None:
    """As the short run (tests/security/test_races.py)."""
    count = racing.race(tmp_path, scenario, TRIES)
    report(count.figures)
    assert count.careless > 0, "the attack shows nothing"
    assert (count.escapes, count.harm) == (0, "")
    assert count.good > TRIES / 1000


def test_starts_while_names_are_exchanged(arena: Arena) -> None:
    """No escape, and at least three of ten starts succeed: else it would be a test of refusals."""
    verdicts = starts.attacked(arena, STARTS)
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    violations = [line for verdict in verdicts for line in verdict.violations]
    append("race", f"starts {arena.runtime}", {"starts": STARTS, "violations": violations, **outcomes})
    assert violations == []
    assert outcomes["runs"] >= STARTS * 0.3
