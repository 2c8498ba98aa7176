"""Field reports R1 to R20 and R173 on requirement checks, by number, each with the input that was reported.

What a report asks of environment variables is tested with the request, what it asks of a rootfs with the image.
"""

import pytest

from gpuhook import cuda, requirement, version
from gpuhook.model import Demand
from tests.requirements import (
    CUDA_11_8,
    CUDA_11_8_OLD,
    CUDA_12_8,
    CUDA_12_9,
    CUDA_13_0,
    gpu,
    host,
    judge,
    met,
    refused,
    syntax,
)

CUDA_10 = "cuda>=10.0 brand=tesla,driver>=384,driver<385"


def test_r01_the_closest_alternative_is_reported_and_not_the_last() -> None:
    error = refused(CUDA_10, "390.77", gpu("geforce", name="GeForce GTX 1080"))
    assert error.message == (
        "this container needs CUDA 10.0 or newer; GeForce GTX 1080, driver 390.77 supports CUDA up to 9.1"
    )
    assert "install driver 410.48 or newer, or use an image for CUDA 9.1 or older" in error.hint
    assert "tesla" not in str(error).lower()


@pytest.mark.parametrize(("driver", "started"), [("390.87", False), ("384.145", True), ("410.48", True)])
def test_r02_a_short_lived_branch_is_not_on_the_list(driver: str, started: bool) -> None:
    assert met(CUDA_10, driver, "tesla", compat="410.48") is started
    if not started:
        error = refused(CUDA_10, driver, gpu("tesla"), compat="410.48")
        assert "CUDA 10.0 or newer" in error.message
        assert "install driver 410.48 or newer" in error.hint
        assert "driver branch 390 is not on the image's list for this GPU: 384" in error.hint


@pytest.mark.parametrize(
    ("text", "policy", "started"),
    [
        (CUDA_11_8, "strict", False),
        (CUDA_11_8, "minor-compat", True),
        (CUDA_11_8_OLD, "strict", True),
        (CUDA_11_8_OLD, "minor-compat", True),
    ],
)
def test_r03_a_tag_whose_string_was_rewritten(text: str, policy: str, started: bool) -> None:
    assert met(text, "515.65.01", "tesla", policy=policy) is started


@pytest.mark.parametrize(
    ("brand", "policy", "started"),
    [("geforce", "strict", False), ("geforce", "minor-compat", True), ("tesla", "strict", True)],
)
def test_r04_minor_version_compatibility_and_how_to_switch_the_check_off(
    brand: str, policy: str, started: bool
) -> None:
    assert met(CUDA_12_8, "565.77", brand, policy=policy) is started
    if not started:
        hint = refused(CUDA_12_8, "565.77", gpu(brand)).hint
        assert 'policy "minor-compat", or NVIDIA_DISABLE_REQUIRE=1' in hint


def test_r05_the_host_can_relax_the_check_with_one_warning() -> None:
    parsed = (requirement.parse(Demand("NVIDIA_REQUIRE_CUDA", CUDA_12_9)),)
    gpus = (gpu("geforce", index=0), gpu("geforce", index=1))
    (warning,) = requirement.check(parsed, host("570.211.01"), gpus, "warn", lambda: "")
    assert "needs CUDA 12.9 or newer" in warning
    assert "570.211.01 supports CUDA up to 12.8" in warning


def test_r06_the_brand_list_is_only_the_second_line() -> None:
    text = "cuda>=13.3 brand=tesla,driver>=595,driver<596"
    assert met(text, "595.71.05", "tesla")
    assert met(text, "595.71.05", "geforcertx", policy="minor-compat")
    error = refused(text, "595.71.05", gpu("geforcertx"))
    lines = error.hint.split("\n")
    assert "CUDA 13.3 or newer" in error.message
    assert "brand" not in error.message + lines[0]
    assert lines[1] == "brand geforcertx is not on the image's forward-compatibility list for this driver;"


def test_r07_unknown_brands_are_text_and_unknown_names_never_hold() -> None:
    text = "cuda>=99.0 brand=hypercard,driver>=470,driver<471 brand=tesla,driver>=470"
    assert met(text, "470.82.01", "tesla", compat=None)
    verdict = judge("cuda>=11.0 frobnicate=1", "535.1")
    assert verdict.met
    assert verdict.notes == ("NVIDIA_REQUIRE_CUDA: 'frobnicate=1' has a name that is not known, so it never holds",)
    assert not met("frobnicate=1", "535.1")


@pytest.mark.parametrize(
    ("text", "token", "reason", "source", "caret"),
    [
        ("cuda>=", "cuda>=", "no version", "cuda>=", "      ^"),
        ("cuda >= 11.0", "cuda", "no operator", "cuda >= 11.0", "    ^"),
        ('"cuda>=11.0"', '"cuda>=11.0"', "stray character '\"'", '"cuda>=11.0"', "^"),
        ("cuda=>11.0", "cuda=>11.0", "no such operator: =>", "cuda=>11.0", "    ^^"),
        ("cuda>=12.x", "cuda>=12.x", "no version: '12.x'", "cuda>=12.x", "         ^"),
        ("cuda≥12", "cuda\\u226512", "stray character '\\u2265'", "cuda\\u226512", "    ^^^^^^"),
        (">=11.0", ">=11.0", "no name before the operator", ">=11.0", "^"),
        (",", ",", "no condition beside it", ",", "^"),
        ("cuda==11", "cuda==11", "no such operator: ==", "cuda==11", "    ^^"),
        ("brand>=tesla", "brand>=tesla", "a brand has only = and !=", "brand>=tesla", "     ^^"),
        ("cuda>=${CUDA}", "cuda>=${CUDA}", "no version: '${CUDA}'", "cuda>=${CUDA}", "      ^"),
        ("driver>=1 brand=", "brand=", "no value", "driver>=1 brand=", " " * 16 + "^"),
        (
            "cuda>=1\n\x1b[31mx>=1",
            "\\x1b[31mx>=1",
            "stray character '\\x1b'",
            "cuda>=1\\n\\x1b[31mx>=1",
            " " * 9 + "^^^^",
        ),
    ],
)
def test_r08_the_bad_token_is_named(text: str, token: str, reason: str, source: str, caret: str) -> None:
    error = syntax(text)
    assert error is not None
    assert error.message == f"NVIDIA_REQUIRE_CUDA: can't parse '{token}' ({reason})"
    assert error.hint.split("\n")[1:] == [source, caret]
    assert error.exit_code == 40


def test_r08_empty_conditions_are_no_error() -> None:
    assert met("cuda>=11.0,,driver>=450", "535.1")


def test_r08_a_long_text_is_shortened_around_the_place() -> None:
    error = syntax("driver>=450 " * 100 + "cuda=>12" + " driver>=450" * 100)
    assert error is not None
    source, caret = error.hint.split("\n")[1:]
    assert len(source) < 90
    assert source.startswith("...") and source.endswith("...")
    assert source[caret.index("^") : caret.index("^") + 2] == "=>"


@pytest.mark.parametrize("text", ["", "   ", "\t\n"])
def test_r09_blank_is_no_requirement(text: str) -> None:
    assert requirement.parse(Demand("NVIDIA_REQUIRE_CUDA", text)).alternatives == ()
    assert met(text, "340.1")


@pytest.mark.parametrize("text", ["cuda>=8.0 ", "\tcuda>=8.0\n"])
def test_r09_blanks_around_do_not_count(text: str) -> None:
    assert met(text, "375.26")
    assert not met(text, "352.1")


@pytest.mark.parametrize(("driver", "started"), [("545.23.08", True), ("535.54.03", False)])
def test_r10_names_in_any_case(driver: str, started: bool) -> None:
    assert met("CUDA>=12.3", driver) is started


@pytest.mark.parametrize(
    ("brand", "driver", "started"),
    [("geforce", "460.73.01", True), ("geforce", "440.82", False), ("tesla", "418.87.00", True)],
)
def test_r11_an_alternative_of_a_driver_bound_alone(brand: str, driver: str, started: bool) -> None:
    text = "cuda>=11.3 brand=tesla,driver>=418,driver<419 driver>=450"
    assert met(text, driver, brand, compat="465.19.01") is started


def test_r11_the_advice_keeps_the_floor_of_minor_version_compatibility() -> None:
    text = "cuda>=11.3 brand=tesla,driver>=418,driver<419 driver>=450"
    assert "install driver 450.80.02 or newer" in refused(text, "440.82", gpu("geforce")).hint
    assert met(text, "450.80.02", "geforce")


def test_r12_the_driver_counts_and_not_the_toolkit_of_the_host() -> None:
    error = refused("cuda>=9.0", "375.26", gpu("geforce"))
    assert "driver 375.26 supports CUDA up to 8.0" in error.message
    assert "install driver 384.81 or newer" in error.hint
    assert "a CUDA toolkit on the host does not count, only its driver" in error.hint


@pytest.mark.parametrize(
    ("driver", "compat", "started"),
    [("450.80.02", "", True), ("450.51.05", "", False), ("450.51.05", "455.23.05", True), ("418.87", "", False)],
)
def test_r13_compatibility_libraries_of_the_image_count(driver: str, compat: str, started: bool) -> None:
    text = "cuda>=11.1 brand=tesla,driver>=418,driver<419 brand=tesla,driver>=450,driver<451"
    assert met(text, driver, "tesla", compat=compat) is started


def test_r14_compatibility_libraries_count_on_data_centre_brands_only() -> None:
    text = "cuda>=11.1 driver>=418"
    assert met(text, "418.87", "tesla", compat="455.23.05")
    error = refused(text, "418.87", gpu("geforce"), compat="455.23.05")
    assert error.message.endswith(", and forward compatibility does not work on brand geforce")
    assert not cuda.compat_is_newer("455.23.05", "460.32.03")


def test_r15_without_compatibility_libraries_it_is_said() -> None:
    error = refused("cuda>=11.1 driver>=418", "418.87", gpu("tesla"))
    assert error.message.endswith(", and the image has no forward-compatibility libraries that are for it")
    assert "use an image with its cuda-compat package" in error.hint


def test_r16_windows_drivers_go_by_the_same_table() -> None:
    error = refused("cuda>=12.6 brand=tesla,driver>=535,driver<536", "551.78")
    assert "driver 551.78 supports CUDA up to 12.4 (assumed from the branch)" in error.message
    assert met("cuda>=12.4", "551.78")


@pytest.mark.parametrize(
    ("text", "driver", "holds"),
    [
        ("driver>=450", "450.00", True),
        ("driver<419", "418.226.00", True),
        ("driver>=535.104", "535.54.03", False),
        ("driver>=470.57.2", "470.57.02", True),
        ("driver>=545.29", "545.29.06", True),
        ("driver>=580.65.06", "580.65.06-vgpu", True),
        ("driver>=390.154", "390.87", False),
    ],
)
def test_r17_driver_versions_are_numbers(text: str, driver: str, holds: bool) -> None:
    assert met(text, driver) is holds


def test_r17_cuda_12_10_is_newer_than_12_9() -> None:
    assert not met("cuda>=12.10", "575.57.08")


def test_r18_each_variable_is_a_requirement_and_the_failing_one_is_named() -> None:
    demands = (Demand("NVIDIA_REQUIRE_ARCH", "arch>=8.0"), Demand("NVIDIA_REQUIRE_CUDA", "cuda>=11.0"))
    parsed, _ = requirement.parse_all(demands)
    with pytest.raises(Exception, match=r"needs compute capability 8\.0 or newer; Tesla T4 has") as caught:
        requirement.check(parsed, host("535.1"), (gpu("tesla", (7, 5), "Tesla T4"),), "strict", lambda: "")
    assert "NVIDIA_REQUIRE_ARCH" in str(caught.value)
    assert "NVIDIA_REQUIRE_CUDA" not in str(caught.value)


def test_r19_a_near_miss_is_pointed_out() -> None:
    parsed = (requirement.parse(Demand("NVIDIA_REQUIRE_CUDA", "cuda>=13.0")),)
    with pytest.raises(Exception, match=r"needs CUDA 13\.0") as caught:
        requirement.check(parsed, host("535.1"), (), "strict", lambda: "", ("NVIDIA_DISABLE_REQUIRES",))
    assert "NVIDIA_DISABLE_REQUIRES has no effect: did you mean NVIDIA_DISABLE_REQUIRE" in str(caught.value)


@pytest.mark.parametrize(("driver", "level"), [("396.37", "9.2"), ("535.113.01", "12.2"), ("610.43.03", "13.3")])
def test_r20_the_level_comes_from_nvml_or_the_branch_table(driver: str, level: str) -> None:
    """No header of nvidia-smi is read: not the missing field of 396, not the renamed one of 610."""
    assert version.text(cuda.level_for_driver(driver)[0]) == level


@pytest.mark.parametrize("text", [CUDA_13_0, CUDA_12_9, CUDA_12_8])
@pytest.mark.parametrize("brand", ["tesla", "geforcertx"])
def test_r173_the_longest_strings_give_a_short_message(text: str, brand: str) -> None:
    error = refused(text, "390.154", gpu(brand, name="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"))
    assert len(str(error).split("\n  fix: ")[0]) + len(error.hint.split("\n")[0]) <= 400
    assert "closest of 61 alternatives" in error.hint
    assert str(error).count("brand=") == 0
