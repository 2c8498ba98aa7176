"""Version numbers: order, equality, and what counts as one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from gpuhook import version

PARTS = st.lists(st.integers(0, 10**6), min_size=1, max_size=5).map(tuple)
PLAIN = PARTS.map(lambda parts: ".".join(str(part) for part in parts))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("12", (12,)),
        ("12.4", (12, 4)),
        ("450.80.02", (450, 80, 2)),
        ("0012.004", (12, 4)),
        ("12.", (12, 0)),
        (".5", (0, 5)),
        ("0", (0,)),
        ("", None),
        (".", None),
        ("...", None),
        ("12.x", None),
        ("v12", None),
        ("-1", None),
        ("+1", None),
        (" 12", None),
        ("12 ", None),
        ("12\n", None),
        ("1_0", None),
        ("１２", None),
        ("٣", None),
        ("12.4a", None),
        ("9" * 128, (int("9" * 128),)),
        ("9" * 129, None),
        ("1" + ".0" * 64, None),
    ],
)
def test_parse_takes_ascii_digits_and_dots_only(text: str, parts: tuple[int, ...] | None) -> None:
    assert version.parse(text) == parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("470.57.02", (470, 57, 2)),
        ("535.104.05-grid", (535, 104, 5)),
        ("450.80.02.beta", (450, 80, 2)),
        (" 580.95.05\n", (580, 95, 5)),
        ("545.29", (545, 29)),
        ("525.60.13-1ubuntu0.22", (525, 60, 13)),
        ("", ()),
        ("beta", ()),
        (".beta", ()),
        ("9" * 5000, ()),
    ],
)
def test_parse_loose_leaves_suffixes_out(text: str, parts: tuple[int, ...]) -> None:
    assert version.parse_loose(text) == parts


@pytest.mark.parametrize(
    ("a", "b", "order"),
    [
        ("12", "12.0.0", 0),
        ("470.57.2", "470.57.02", 0),
        ("12.10", "12.9", 1),
        ("450.80", "450.51", 1),
        ("450.51.06", "450.80.02", -1),
        ("418.87.1", "418.87", 1),
        ("12.0.0.1", "12", 1),
        ("0", "0.0", 0),
        ("9.9.9", "10", -1),
    ],
)
def test_compare_by_number_and_not_by_text(a: str, b: str, order: int) -> None:
    left, right = version.parse(a), version.parse(b)
    assert left is not None and right is not None
    assert version.compare(left, right) == order
    assert version.compare(right, left) == -order


@given(PLAIN, PLAIN)
def test_order_is_that_of_packaging(a: str, b: str) -> None:
    left, right = version.parse(a), version.parse(b)
    assert left is not None and right is not None
    assert version.compare(left, right) == (Version(a) > Version(b)) - (Version(a) < Version(b))


@given(PARTS, PARTS, PARTS)
def test_order_is_total_and_transitive(a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...]) -> None:
    low, middle, high = sorted((a, b, c), key=version.trimmed)
    assert version.compare(a, b) == -version.compare(b, a)
    assert version.compare(a, b) in (-1, 0, 1)
    assert version.compare(low, middle) <= 0
    assert version.compare(middle, high) <= 0
    assert version.compare(low, high) <= 0


@given(PARTS, st.integers(0, 5), st.integers(1, 9))
def test_trailing_zeros_do_not_count_and_other_tails_do(parts: tuple[int, ...], zeros: int, tail: int) -> None:
    assert version.compare(parts, parts + (0,) * zeros) == 0
    assert version.compare(parts + (0,) * zeros + (tail,), parts) == 1


@given(PARTS)
def test_text_reads_back(parts: tuple[int, ...]) -> None:
    assert version.parse(version.text(parts)) == parts


@given(st.text(max_size=200))
def test_any_text_is_a_version_or_not_and_never_an_exception(text: str) -> None:
    found = version.parse(text)
    assert found is None or all(part >= 0 for part in found)
    assert isinstance(version.parse_loose(text), tuple)
