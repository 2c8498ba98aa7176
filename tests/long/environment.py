"""`scripts/test --long environment`: each variable of the matrix alone, at each stage, in each form of `env`."""

import pytest

from tests.long.report import append
from tests.security.test_environment import FORMS, STAGES, VARIABLES, Attack
from tests.security.test_environment import attack as attack

pytestmark = pytest.mark.runc


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stage", STAGES)
def test_each_variable(attack: Attack, stage: str, form: str) -> None:
    """As the short run (tests/security/test_environment.py)."""
    for name in VARIABLES:
        attack.check((name,), stage, form)
    append("environment", f"{stage}, {form}, {attack.arena.runtime}", {"starts": len(VARIABLES), "marks": 0})
