"""Errors carry a stable reference, an exit code of their own and words that steer no terminal."""

import pytest

from gpuhook.errors import EXIT_CODES, GpuhookError, shown


def test_each_reference_has_an_exit_code_of_its_own() -> None:
    """crun shows nothing of a hook but its exit code."""
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)


def test_exit_codes_mean_nothing_else() -> None:
    """1 is the interpreter's, 126 and more are the shell's and signals'."""
    assert all(2 <= code < 126 for code in EXIT_CODES.values())


@pytest.mark.parametrize("reference", EXIT_CODES)
def test_references_are_kebab_case(reference: str) -> None:
    assert reference == reference.lower()
    assert all(part.isalnum() and part.isascii() for part in reference.split("-"))


def test_an_error_reads_as_the_design_shows_it() -> None:
    error = GpuhookError("node-missing", "/dev/nvidia0 is not there", "load the module\nor run nvidia-modprobe")
    assert str(error) == (
        "gpuhook: /dev/nvidia0 is not there [node-missing]\n  fix: load the module\n       or run nvidia-modprobe"
    )
    assert error.exit_code == EXIT_CODES["node-missing"]


def test_an_error_without_a_hint_is_one_line() -> None:
    assert str(GpuhookError("internal", "x")) == "gpuhook: x [internal]"


SHOWN = {
    "plain": ("abc", "'abc'"),
    "escape sequence": ("\x1b[2Jx", "'\\x1b[2Jx'"),
    "line end": ("a\nb", "'a\\nb'"),
    "no string": (12, "'12'"),
    "lone surrogate": ("\udcff", "'\\udcff'"),
    "right-to-left override": ("\u202eabc", "'\\u202eabc'"),
}


@pytest.mark.parametrize(("text", "expected"), SHOWN.values(), ids=SHOWN)
def test_foreign_text_is_shown_harmless(text: object, expected: str) -> None:
    assert shown(text) == expected


def test_foreign_text_has_an_end() -> None:
    assert shown("x" * 1000) == f"'{'x' * 80}...'"
    assert shown("x" * 80) == f"'{'x' * 80}'"
