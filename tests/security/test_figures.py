"""The figures in docs/security-tests.md are those of the kept report."""

import json

from tests.images import CHECKOUT
from tests.long.report import table


def test_the_figures_are_those_of_the_newest_report() -> None:
    newest = max((CHECKOUT / "docs/security").glob("*.json"))
    text = (CHECKOUT / "docs/security-tests.md").read_text()
    assert table(json.loads(newest.read_text())) in text
    assert f"security/{newest.name}" in text
