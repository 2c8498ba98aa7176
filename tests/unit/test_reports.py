"""Each report of users on hosts, mounts, loader caches, devices and WSL2 has its test, or its reason not to have one.

The numbers are those of the project's collection of public reports (A.3 to A.6, A.13; it has gaps). A test carries its
report's number in its name, its cases' names or its docstring; docs/compatibility.md says why one is not done.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORTS = (
    *(44, 45, 46, 47, 49, 50, 51, 53, 54, 55, 57, 58, 59, 61, 62, 63, 65),  # where the driver is
    *(66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 77, 78, 79),  # mounts and roots
    *(81, 82, 83, 85, 86, 87, 89, 90),  # loader caches and C libraries
    *(91, 92, 93, 94, 95, 97, 98, 99),  # cgroups and device nodes
    *(154, 155, 157),  # WSL2 and Tegra
)
_NUMBER = re.compile(r"(?<![A-Za-z0-9])[Rr]([0-9]{2,3})(?![0-9])")


def named(text: str) -> set[int]:
    """The reports that a text names: `R44`, `test_r44_...`."""
    return {int(number) for number in _NUMBER.findall(text.replace("_", " "))}


TESTS = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)}
DONE = set().union(*map(named, TESTS.values()))
NOT_DONE = named((ROOT / "docs/compatibility.md").read_text())


@pytest.mark.parametrize("number", REPORTS)
def test_each_report_has_a_test_or_a_reason(number: int) -> None:
    assert number in DONE | NOT_DONE


def test_a_reason_is_for_what_has_no_test() -> None:
    """Where somebody writes the test, the reason goes."""
    assert not NOT_DONE & DONE & set(REPORTS)


def test_how_numbers_are_found() -> None:
    assert named("def test_r44_r45_x: R46, (R155) 'R157 x'") == {44, 45, 46, 155, 157}
    assert named("R1234 xR44 R44x test_rr44 R66 to R68") == {44, 66, 68}
