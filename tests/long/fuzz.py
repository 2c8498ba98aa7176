"""`scripts/test --long fuzz`: a million mutated inputs for each parser."""

import pytest

from tests.long.report import Report
from tests.security import fuzzing

INPUTS = 1_000_000


@pytest.mark.parametrize("name", fuzzing.PARSERS)
def test_a_parser_answers_or_refuses(name: str, report: Report) -> None:
    """As the short run (tests/security/test_fuzz.py), from another seed."""
    outcome = fuzzing.run(name, INPUTS, seed=2)
    report(outcome.figures)
    assert outcome.findings == []
    assert outcome.inputs == INPUTS
