"""Version numbers as tuples of integers: driver versions, CUDA levels, compute capabilities.

Hot path and pure: imports nothing. A level is a tuple like `(12, 4)`; missing parts count as 0, so `12`, `12.0` and
`12.0.0` are equal, and `470.57.2` equals `470.57.02`. Nothing here compares text or floats: `12.10` is newer
than `12.9`.
"""

_DIGITS_AND_DOTS = "0123456789."
_LIMIT = 128  # characters; far above any real version, and small enough that int() costs nothing


def parse(text: str) -> tuple[int, ...] | None:
    """The parts of a version of ASCII digits and dots only, or None where `text` is none.

    An empty part counts as 0 (`12.` is 12), as NVIDIA's parser has it; a text without a digit, or one longer than 128
    characters, is no version.
    """
    if len(text) > _LIMIT or text.strip(_DIGITS_AND_DOTS) or not text.strip("."):
        return None
    return tuple([int(part) if part else 0 for part in text.split(".")])


def parse_loose(text: str) -> tuple[int, ...]:
    """The leading numbers of a version found on a host, `()` where there is none.

    Blanks around it and a suffix after the numbers do not count: `535.104.05-grid` and `450.80.02.beta` are
    `(535, 104, 5)` and `(450, 80, 2)`.
    """
    text = text.strip()[: _LIMIT + 1]
    numbers = text[: len(text) - len(text.lstrip(_DIGITS_AND_DOTS))]
    return parse(numbers.rstrip(".")) or ()


def trimmed(item: tuple[int, ...]) -> tuple[int, ...]:
    """The version without its trailing zeros: two versions are equal, or ordered, exactly as these tuples are."""
    while item and not item[-1]:
        item = item[:-1]
    return item


def compare(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """-1, 0 or 1 as `a` is older than, equal to or newer than `b`."""
    a, b = trimmed(a), trimmed(b)
    return (a > b) - (a < b)


def text(item: tuple[int, ...]) -> str:
    """The version as people write it: `12.4`. Leading zeros of the original text are lost."""
    return ".".join([str(part) for part in item])
