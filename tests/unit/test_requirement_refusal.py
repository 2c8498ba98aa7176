"""The words of a refusal: what was needed, what was found, where it stands, what to do."""

import pytest

from gpuhook import requirement
from gpuhook.errors import GpuhookError
from gpuhook.model import Demand, Gpu
from tests.requirements import CUDA_12_6, gpu, refusal, refused

RTX = gpu("geforcertx", (8, 9), "GeForce RTX 4090")
T4 = gpu("tesla", (7, 5), "Tesla T4")
DISABLE = "NVIDIA_DISABLE_REQUIRE=1 starts the container unchecked"


def test_the_message_of_the_design() -> None:
    assert str(refused(CUDA_12_6, "535.161.08", RTX)).split("\n") == [
        "gpuhook: this container needs CUDA 12.6 or newer; GeForce RTX 4090, driver 535.161.08 supports CUDA up to 12.2"
        " [requirement-not-met]",
        "  fix: install driver 560 or newer, or use an image for CUDA 12.2 or older "
        "(NVIDIA_REQUIRE_CUDA, closest of 37 alternatives);",
        "       brand geforcertx is not on the image's forward-compatibility list for this driver;",
        "       CUDA 12 programs often run here by minor-version compatibility: "
        'policy "minor-compat", or NVIDIA_DISABLE_REQUIRE=1',
    ]


@pytest.mark.parametrize(
    ("text", "gpus", "needed", "found", "advice"),
    [
        (
            "driver>=550",
            (RTX,),
            "driver 550 or newer",
            "GeForce RTX 4090 has driver 535.1",
            "install driver 550 or newer, or use another image (NVIDIA_REQUIRE_CUDA)",
        ),
        (
            "driver>=470,driver<471",
            (),
            "a driver of branch 470",
            "this host has driver 535.1",
            "install a driver of branch 470, or use another image (NVIDIA_REQUIRE_CUDA)",
        ),
        (
            "driver<500",
            (),
            "driver older than 500",
            "this host has driver 535.1",
            "install driver older than 500, or use another image (NVIDIA_REQUIRE_CUDA)",
        ),
        (
            "cuda<12",
            (),
            "CUDA older than 12",
            "driver 535.1 supports CUDA up to 12.2",
            "install a driver of branch 520 or older, or use an image for CUDA 12.2 (NVIDIA_REQUIRE_CUDA)",
        ),
        (
            "cuda<=12.1",
            (),
            "CUDA 12.1 or older",
            "driver 535.1 supports CUDA up to 12.2",
            "install a driver of branch 530 or older, or use an image for CUDA 12.2 (NVIDIA_REQUIRE_CUDA)",
        ),
        (
            "cuda=11.8",
            (),
            "CUDA 11.8",
            "driver 535.1 supports CUDA up to 12.2",
            "install a driver of branch 520, or use an image for CUDA 12.2 (NVIDIA_REQUIRE_CUDA)",
        ),
        (
            "cuda!=12.2",
            (),
            "CUDA other than 12.2",
            "driver 535.1 supports CUDA up to 12.2",
            "use another image (NVIDIA_REQUIRE_CUDA)",
        ),
        (
            "cuda>=99",
            (),
            "CUDA 99 or newer",
            "driver 535.1 supports CUDA up to 12.2",
            "install a driver that supports CUDA 99, or use an image for CUDA 12.2 or older (NVIDIA_REQUIRE_CUDA)",
        ),
        (
            "arch>=8.0",
            (T4,),
            "compute capability 8.0 or newer",
            "Tesla T4 has compute capability 7.5",
            "choose another GPU (NVIDIA_VISIBLE_DEVICES), or use an image for this one (NVIDIA_REQUIRE_CUDA)",
        ),
        (
            "brand=tesla",
            (RTX,),
            "GPU brand tesla",
            "GeForce RTX 4090 is of brand geforcertx",
            "choose another GPU (NVIDIA_VISIBLE_DEVICES), or use an image for this one (NVIDIA_REQUIRE_CUDA)",
        ),
        (
            "arch>=8.0,cuda>=12.4",
            (T4,),
            "compute capability 8.0 or newer and CUDA 12.4 or newer",
            "Tesla T4 has compute capability 7.5 and its driver 535.1 supports CUDA up to 12.2",
            "choose another GPU (NVIDIA_VISIBLE_DEVICES), or use an image for this one (NVIDIA_REQUIRE_CUDA)",
        ),
        (
            "cuda>=12.4,driver>=570",
            (),
            "CUDA 12.4 or newer and driver 570 or newer",
            "driver 535.1 supports CUDA up to 12.2",
            "install driver 570 or newer, or use an image for CUDA 12.2 or older (NVIDIA_REQUIRE_CUDA)",
        ),
        (
            "x=1",
            (),
            "'x=1', which gpuhook does not know",
            "this host can't meet that",
            "use another image (NVIDIA_REQUIRE_CUDA)",
        ),
    ],
)
def test_what_is_said(text: str, gpus: tuple[Gpu, ...], needed: str, found: str, advice: str) -> None:
    error = refused(text, "535.1", *gpus)
    assert error.message == f"this container needs {needed}; {found}"
    assert error.hint.split("\n")[0] == f"{advice};"
    assert error.exit_code == 41


@pytest.mark.parametrize(
    ("driver", "advice"),
    [
        ("545.23.08", "install a driver of branch 550, or 560 or newer"),  # nearest above, not the lowest of all
        ("390.154", "install a driver of branch 470, or 560 or newer"),
        ("555.1", "install driver 560 or newer"),
    ],
)
def test_the_closest_alternative_is_the_nearest_driver(driver: str, advice: str) -> None:
    assert refused(CUDA_12_6, driver, T4, compat="560.28.03").hint.startswith(f"{advice}, or use an image")


def test_a_branch_that_would_need_missing_libraries_is_not_advised() -> None:
    """Without compatibility libraries branch 470 would be refused too; 535 has minor-version compatibility."""
    assert refused(CUDA_12_6, "390.154", T4).hint.startswith("install a driver of branch 535, or 560 or newer")


def test_the_gpus_that_fail_are_named() -> None:
    gpus = (
        gpu("nvidia", (8, 0), "A100", 0),
        gpu("tesla", (7, 5), "Tesla T4", 1),
        gpu("tesla", (7, 0), "Tesla V100", 2),
    )
    error = refused("arch>=8.0", "535.1", *gpus)
    assert error.message.endswith("; GPU 1 (Tesla T4) has compute capability 7.5")
    assert "not met either on GPU 2 (Tesla V100)" in error.hint
    alike = (gpu("tesla", (7, 5), "Tesla T4", 0), gpu("tesla", (7, 5), "Tesla T4", 1))
    assert refused("arch>=8.0", "535.1", *alike).message.endswith("; Tesla T4 has compute capability 7.5")


def test_switching_off_is_advised_only_where_it_works() -> None:
    for text in ("cuda>=12.6", "cuda>=13.0", "arch>=9.0"):
        allowed = refusal(text, "535.1", T4)
        ignored = refusal(text, "535.1", T4, disable_allowed=False)
        assert allowed is not None and "NVIDIA_DISABLE_REQUIRE=1" in allowed.hint
        assert ignored is not None and "NVIDIA_DISABLE_REQUIRE" not in ignored.hint


@pytest.mark.parametrize(
    ("text", "driver", "policy"),
    [
        ("cuda>=13.0", "535.1", "strict"),
        ("cuda>=12.6", "525.53", "strict"),
        ("cuda>=12.6,driver>=560", "535.1", "strict"),
        ("arch>=9.0", "535.1", "strict"),
        ("cuda>=13.0", "535.1", "minor-compat"),
    ],
)
def test_minor_compat_is_advised_only_where_it_helps(text: str, driver: str, policy: str) -> None:
    error = refusal(text, driver, T4, policy=policy)
    assert error is not None
    assert "minor-compat" not in error.hint
    assert DISABLE in error.hint


def test_texts_of_image_and_driver_can_not_write_to_the_terminal() -> None:
    error = refused("cuda>=" + "9" * 100, "535.1", gpu("tesla", name="\x1b]0;x\x07" * 20))
    shown = str(refused("brand=\x1b[2J\u202e", "535.1", gpu("tes\x1bla"))) + str(error)
    assert all(" " <= char <= "~" or char == "\n" for char in shown)
    assert len(error.message) < 250


def test_a_thousand_conditions_make_a_short_refusal() -> None:
    """Found by the fuzzer: one alternative of unknown names was repeated whole, a line of a megabyte in the log."""
    message = str(refused(",".join(f"name{number}=1" for number in range(1000)), "535.1", T4))
    assert len(message) < 1000
    assert "and 997 conditions more" in message


def test_an_endless_operator_makes_a_short_refusal() -> None:
    """Found by the fuzzer: the operator was repeated whole above the caret."""
    with pytest.raises(GpuhookError) as caught:
        requirement.parse(Demand("NVIDIA_REQUIRE_CUDA", "cuda" + "!=" * 30_000))
    assert len(str(caught.value)) < 1000
