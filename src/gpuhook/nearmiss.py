"""Names that people write where they mean NVIDIA_DISABLE_REQUIRE.

Cold, but imported by hot code in a container's start: imports nothing.
"""

_MEANT = "NVIDIA_DISABLE_REQUIRE"
MISSES = frozenset(
    (
        "CUDA_DISABLE_REQUIRE",
        "DISABLE_REQUIRE",
        "NVIDIA_DISABLE",
        "NVIDIA_DISABLE_CUDA_REQUIRE",
        "NVIDIA_DISABLE_REQUIREMENT",
        "NVIDIA_DISABLE_REQUIREMENTS",
        "NVIDIA_DISABLE_REQUIRE_CUDA",
        "NVIDIA_IGNORE_REQUIRE",
        "NVIDIA_NO_REQUIRE",
        "NVIDIA_REQUIRE_DISABLE",
        "NVIDIA_REQUIRE_DISABLED",
        "NVIDIA_SKIP_REQUIRE",
        "NV_DISABLE_REQUIRE",
    )
)


def is_miss(name: str) -> bool:
    """Whether a name is one of the known wrong ones, or at most two letters away from the right one."""
    upper = name.upper()
    return upper in MISSES or (abs(len(upper) - len(_MEANT)) <= 2 and _distance(upper, _MEANT) <= 2)


def _distance(one: str, other: str) -> int:
    """The number of letters to insert, remove or change to make one text of the other."""
    row = list(range(len(other) + 1))
    for number, letter in enumerate(one, 1):
        above, row[0] = row[0], number
        for at, wanted in enumerate(other, 1):
            above, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, above + (letter != wanted))
    return row[-1]
