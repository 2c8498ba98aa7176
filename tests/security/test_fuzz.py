"""50,000 mutated inputs for each parser of what an attacker wrote; 1,000,000 in the long run (tests/long/fuzz.py)."""

import pytest

from gpuhook.errors import GpuhookError
from tests.security import fuzzing

INPUTS = 50_000


@pytest.mark.parametrize("name", fuzzing.PARSERS)
def test_a_parser_answers_or_refuses(name: str) -> None:
    """Nothing but its declared exception, at most 50 ms of CPU and 64 MiB, no control characters in its words."""
    outcome = fuzzing.run(name, INPUTS)
    assert outcome.findings == []
    assert outcome.inputs == INPUTS
    assert outcome.accepted > INPUTS / 1000, "the mutations are too wild: all is refused at the door"


def _slow() -> None:
    for _ in range(5_000_000):
        pass


def _loud() -> None:
    raise GpuhookError("usage", "no \x1b[31m")


def _wordy() -> None:
    raise GpuhookError("usage", "x" * 100_000)


def _defect() -> None:
    raise KeyError("x")


BAD = {"ms for": _slow, r"no \x1b": _loud, "words of 100": _wordy, "KeyError": _defect}


@pytest.mark.parametrize(("words", "act"), BAD.items(), ids=BAD)
def test_the_fuzzer_tells(words: str, act: object) -> None:
    """Self-check: slow, unsafe words, endless words, an exception that is not declared."""
    assert callable(act)
    parser = fuzzing.Parser([b"x"], [b"y"], lambda place: lambda data: act())
    assert words in fuzzing._run("bad", parser, 1, 1, 60).findings[0]


def test_memory_is_measured() -> None:
    kept: list[bytes] = []
    parser = fuzzing.Parser([b"x"], [b"y"], lambda place: lambda data: kept.append(b"x" * (1 << 20)))
    assert "MiB" in fuzzing._run("big", parser, 200, 1, 60).findings[-1]
