"""Driver branches, CUDA levels and the two kinds of compatibility."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhook import cuda, version
from gpuhook.model import Image
from tests import oracle


@pytest.mark.parametrize(("branch", "level"), oracle.BRANCH_LEVEL.items())
def test_each_branch_has_the_level_of_the_reference(branch: str, level: str) -> None:
    for driver in (branch, f"{branch}.10", f"{branch}.999.01"):
        assert cuda.level_for_driver(driver) == (version.parse(level), branch in ("430", "615"))


@pytest.mark.parametrize(
    ("driver", "level"),
    [
        ("551.78", (12, 4)),  # WSL
        ("497.29", (11, 5)),  # WSL
        ("600.10", (13, 2)),
        ("999.1", (13, 4)),
        ("304.137", (6, 0)),
        ("none", ()),
        ("", ()),
    ],
)
def test_a_branch_that_is_not_known_is_assumed(driver: str, level: tuple[int, ...]) -> None:
    assert cuda.level_for_driver(driver) == (level, True)


@pytest.mark.parametrize(
    ("level", "driver"),
    [
        ((9, 0), "384.81"),
        ((10, 0), "410.48"),
        ((11, 8), "520"),
        ((12, 6), "560"),
        ((12, 6, 3), "565"),
        ((12, 7), "565"),
        ((13,), "580"),
        ((99, 0), ""),
    ],
)
def test_driver_for_level(level: tuple[int, ...], driver: str) -> None:
    assert cuda.driver_for_level(level) == driver


@given(st.tuples(st.integers(1, 13), st.integers(0, 12)))
def test_the_driver_that_is_advised_supports_the_level(level: tuple[int, int]) -> None:
    driver = cuda.driver_for_level(level)
    if version.compare(level, (13, 4)) > 0:
        assert driver == ""
    else:
        assert version.compare(cuda.level_for_driver(driver)[0], level) >= 0


@given(st.integers(340, 700), st.integers(340, 700))
def test_a_newer_branch_never_supports_less(a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert cuda.level_for_driver(str(low))[0] <= cuda.level_for_driver(str(high))[0]


@pytest.mark.parametrize(
    ("needed", "driver", "covered"),
    [
        ((11, 8), "515.65.01", True),
        ((11, 1), "450.80.02", True),
        ((11, 1), "450.80.01", False),
        ((11, 0), "450.36.06", True),
        ((11, 0, 0), "450.36.06", True),
        ((11,), "450.36.06", True),
        ((12, 9), "525.60.13", True),
        ((12, 9), "525.53", False),
        ((12, 9), "580.65.06", False),  # a driver of the next major version has that level anyway
        ((12, 0), "520.61.05", False),
        ((13, 3), "580.65.06", True),
        ((10, 2), "418.87", False),
        ((14, 0), "615.1", False),
        ((), "580.95.05", False),
        ((12, 1), "", False),
    ],
)
def test_minor_version_compatibility(needed: tuple[int, ...], driver: str, covered: bool) -> None:
    assert cuda.minor_compat(needed, driver) is covered


@pytest.mark.parametrize(
    ("brand", "accepted"),
    [
        ("tesla", True),
        ("Tesla", True),
        ("", True),
        ("unknown", True),
        ("quadrortx", True),
        ("vws", True),
        ("geforce", False),
        ("GeForceRTX", False),
        ("titan", False),
        ("titanrtx", False),
        ("hypercard", False),
    ],
)
def test_forward_compatibility_is_for_data_centre_brands(brand: str, accepted: bool) -> None:
    assert cuda.forward_compat(brand) is accepted


@pytest.mark.parametrize(
    ("compat", "driver", "newer"),
    [
        ("455.23.05", "450.80.02", True),
        ("455.23.05", "460.32.03", False),
        ("455.23.05", "455.10", False),
        ("", "450.80.02", False),
    ],
)
def test_compatibility_libraries_are_used_only_if_their_branch_is_newer(compat: str, driver: str, newer: bool) -> None:
    assert cuda.compat_is_newer(compat, driver) is newer


def compat(version: str, cuda: tuple[int, ...] = (), drivers: tuple[int, ...] = ()) -> Image:
    directory = "/usr/local/cuda/compat" if version else ""
    return Image("glibc", "x86-64", "/usr/lib64", directory, version, compat_cuda=cuda, compat_drivers=drivers)


BRANCHES_13_1 = (535, 550, 570, 575, 580, 590)  # what the note of CUDA 13.1's libraries names

USED = {
    "R14 newer branch": ("455.23.05", (), (), "450.80.02", (11, 0), True, "newer branch than the driver (450.80.02)"),
    "R14 older branch": ("455.23.05", (), (), "460.32.03", (11, 2), False, "not newer than the driver (460.32.03)"),
    "same branch": ("455.45.01", (), (), "455.23.05", (11, 1), False, "not newer"),
    "branch is named": ("590.44.01", (13, 1), BRANCHES_13_1, "535.54.03", (12, 2), True, "535, 550, 570, 575, 580"),
    "branch is not named": ("590.44.01", (13, 1), BRANCHES_13_1, "565.77", (12, 7), False, "the driver is 565.77"),
    "own branch, newer": ("590.44.01", (13, 1), BRANCHES_13_1, "590.10", (13, 1), True, "newer than the driver"),
    "own branch, the same": ("590.44.01", (13, 1), BRANCHES_13_1, "590.44.1", (13, 1), False, "not newer"),
    "named, and older": ("535.1", (12, 2), (535, 550), "550.1", (12, 4), False, "not newer"),
    "one branch named": ("535.1", (12, 2), (470,), "470.1", (11, 4), True, "names driver branch 470, and"),
    "level is higher": ("1.1", (13, 2), (), "580.95.05", (13, 0), True, "says CUDA 13.2, the driver supports 13.0"),
    "level is the same": ("1.1", (13, 2), (), "595.10", (13, 2), False, "says CUDA 13.2, the driver supports 13.2"),
    "level is lower": ("999.1", (12, 10), (), "580.1", (13, 0), False, "says CUDA 12.10"),
    "none": ("", (), (), "450.80.02", (11, 0), False, ""),
    "no version of a driver": ("590.1", (13, 1), (535,), "", (), False, "the driver is "),
}


@pytest.mark.parametrize(("found", "level", "drivers", "driver", "own", "used", "why"), USED.values(), ids=USED)
def test_which_compatibility_libraries_serve_a_driver(
    found: str,
    level: tuple[int, ...],
    drivers: tuple[int, ...],
    driver: str,
    own: tuple[int, ...],
    used: bool,
    why: str,
) -> None:
    """By their note where they have one, by their branch where not; and why is told in both cases."""
    told = cuda.compat_used(compat(found, level, drivers), driver, own)
    assert told[0] is used
    assert why in told[1]
    assert bool(told[1]) is bool(found)
