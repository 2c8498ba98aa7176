"""`scripts/test --long race`: each scenario 100,000 times, and 30 whole starts for each runtime and attack."""

from pathlib import Path

import pytest

from tests.long.report import Report
from tests.security import racing

pytestmark = pytest.mark.runc

TRIES = 100_000


@pytest.mark.parametrize("scenario", racing.SCENARIOS)
def test_no_work_leaves_the_root_in_a_race(tmp_path: Path, scenario: str, report: Report) -> None:
    """As the short run (tests/security/test_races.py)."""
    count = racing.race(tmp_path, scenario, TRIES)
    report(count.figures)
    assert count.careless > 0, "the attack shows nothing"
    assert (count.escapes, count.harm) == (0, "")
    assert count.good > TRIES / 1000
