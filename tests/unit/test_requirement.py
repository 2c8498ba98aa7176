"""The requirement language: what parses, and what it means, against a second evaluator and by hand."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuhook import requirement, version
from gpuhook.errors import GpuhookError
from gpuhook.model import Demand
from gpuhook.requirement import Condition, Host
from tests import oracle
from tests.requirements import (
    BRANDS,
    CUDA_11_8,
    CUDA_11_8_OLD,
    CUDA_12_8,
    CUDA_12_9,
    CUDA_13_0,
    gpu,
    host,
    judge,
    met,
    rows,
    syntax,
)

DRIVERS = [f"{branch}.90" for branch in oracle.BRANCH_LEVEL if int(branch) >= 375]
DRIVERS += ["450.80.02", "450.80.01", "525.60.13", "525.60.12", "580.65.06", "580.65.05", "551.78", "620.1"]
REAL = sorted({row[4] for row in rows()} | {CUDA_11_8, CUDA_11_8_OLD, CUDA_12_8, CUDA_12_9, CUDA_13_0})


def parse(text: str) -> requirement.Requirement:
    return requirement.parse(Demand("NVIDIA_REQUIRE_CUDA", text))


def test_the_real_strings_are_all_there() -> None:
    assert len(rows()) == 329
    assert len(CUDA_13_0) == len(CUDA_12_9) == len(CUDA_12_8) == 2165
    assert (len(CUDA_11_8), len(CUDA_11_8_OLD)) == (382, 1161)


@pytest.mark.parametrize("row", rows(), ids=lambda row: "-".join(row[:3]))
def test_every_real_string_parses(row: list[str]) -> None:
    parsed = parse(row[4])
    assert len(parsed.alternatives) == len(row[4].split())
    assert not parsed.unknown


@pytest.mark.parametrize(
    ("policy", "compat"),
    [("strict", None), ("strict", ""), ("strict", "999.1"), ("minor-compat", "")],
    ids=["no-image", "no-libraries", "libraries", "minor-compat"],
)
@pytest.mark.parametrize("text", REAL, ids=lambda text: f"{text.split()[0]}-{len(text)}")
def test_every_pair_of_brand_and_branch_comes_out_as_the_oracle_says(
    text: str, compat: str | None, policy: str
) -> None:
    parsed = (parse(text),)
    for driver in DRIVERS:
        for brand in BRANDS:
            verdict = requirement.judge(parsed, host(driver), (gpu(brand),), policy, lambda: compat)
            expected = oracle.met(text, driver, brand=brand, policy=policy, compat=compat)
            assert verdict.met is expected, (driver, brand)


@pytest.mark.parametrize(
    ("text", "alternatives"),
    [
        ("", ()),
        (" \t\r\n ", ()),
        ("cuda>=8.0 ", ((Condition("cuda", ">=", "8.0", (8, 0)),),)),
        ("\tCUDA>=8.0\n", ((Condition("cuda", ">=", "8.0", (8, 0)),),)),
        ("cuda!12", ((Condition("cuda", "!=", "12", (12,)),),)),
        (
            ",cuda=11.0,,driver>450, brand=Tesla",
            (
                (Condition("cuda", "=", "11.0", (11, 0)), Condition("driver", ">", "450", (450,))),
                (Condition("brand", "=", "Tesla"),),
            ),
        ),
        ("cuda>=8 , arch<9", ((Condition("cuda", ">=", "8", (8,)),), (Condition("arch", "<", "9", (9,)),))),
    ],
    ids=["empty", "blank", "trailing", "case", "bang", "commas", "lone-comma"],
)
def test_grammar(text: str, alternatives: tuple[tuple[Condition, ...], ...]) -> None:
    assert parse(text).alternatives == alternatives


@pytest.mark.parametrize(
    ("condition", "driver", "holds"),
    [
        ("driver=535.104.5", "535.104.05", True),
        ("driver=535", "535.104.05", False),
        ("driver!=535", "535.104.05", True),
        ("driver<535.104.05", "535.104.05", False),
        ("driver<=535.104.05", "535.104.05", True),
        ("driver>535.104.05", "535.104.05", False),
        ("driver>=535.104.05", "535.104.05", True),
        ("driver>535", "535.104.05", True),
        ("driver<419", "418.226.00", True),
        ("cuda<12", "520.61.05", True),
        ("cuda<12", "525.60.13", False),
        ("cuda<=11.8", "520.61.05", True),
        ("cuda=11.8.0", "520.61.05", True),
        ("cuda!=11.8", "520.61.05", False),
        ("cuda>11.8", "520.61.05", False),
        ("driver>=1", "", True),  # what is not known holds
        ("cuda>=99", "", True),
        ("frobnicate=1", "535.104.05", False),
        ("frobnicate!=1", "535.104.05", False),
        ("driver>=470.57.2", "470.57.02-grid", True),
    ],
)
def test_one_condition(condition: str, driver: str, holds: bool) -> None:
    assert judge(condition, driver).met is holds


@pytest.mark.parametrize(
    ("condition", "brand", "arch", "holds"),
    [
        ("brand=tesla", "tesla", (), True),
        ("brand=TESLA", "Tesla", (), True),
        ("brand!=tesla", "tesla", (), False),
        ("brand!=tesla", "geforce", (), True),
        ("brand=tesla", "teslax", (), False),
        ("brand=no such card", "", (), True),
        ("brand=tesla", "", (), True),
        ("arch>=8.0", "", (7, 5), False),
        ("arch>=8.0", "", (8,), True),
        ("arch>=8.0", "", (10, 0), True),
        ("arch>=8.0", "", (), True),
    ],
)
def test_one_condition_on_a_gpu(condition: str, brand: str, arch: tuple[int, ...], holds: bool) -> None:
    text = condition.split(" ")[0]
    assert judge(text, "535.1", gpu(brand, arch)).met is holds


def test_without_a_gpu_brand_and_arch_hold() -> None:
    assert judge("brand=tesla,arch>=9.0", "535.1").met


def test_every_visible_gpu_must_meet_it() -> None:
    old, new = gpu("tesla", (7, 5), index=0), gpu("tesla", (8, 0), index=1)
    assert judge("arch>=8.0", "535.1", new).met
    assert not judge("arch>=8.0", "535.1", new, old).met
    verdict = judge("arch>=8.0", "535.1", new, old)
    assert [outcome.way for outcome in verdict.results[0].outcomes] == ["stated", ""]


def test_all_requirements_must_be_met() -> None:
    first, second = parse("cuda>=11.0"), parse("cuda>=12.4")
    assert requirement.judge((first,), host("535.1"), (), "strict", lambda: "").met
    verdict = requirement.judge((first, second), host("535.1"), (), "strict", lambda: "")
    assert [result.met for result in verdict.results] == [True, False]
    assert not verdict.met


@pytest.mark.parametrize(
    ("text", "driver", "brand", "compat", "way"),
    [
        ("cuda>=12.2 driver>=470", "535.1", "tesla", "", "stated"),
        ("driver>=470", "470.1", "geforce", "", "stated"),  # no level to fall short of
        ("cuda>=12.6 driver>=535", "535.1", "geforce", "", "minor"),
        ("cuda>=12.6 driver>=470", "470.1", "tesla", "560.35.05", "forward"),
        ("cuda>=12.6 driver>=470", "470.1", "geforce", "560.35.05", ""),
        ("cuda>=12.6 driver>=470", "470.1", "tesla", "470.256.02", ""),
        ("cuda>=12.6 driver>=470", "470.1", "tesla", "", ""),
        ("cuda>=12.6 driver>=470", "470.1", "tesla", None, "presumed"),
        ("cuda>=12.6,arch>=1 cuda<12,driver>=470", "470.1", "tesla", "", "stated"),
        ("cuda=12.6 driver>=470", "470.1", "tesla", "", ""),
        ("cuda<12.6 driver>=470", "470.1", "tesla", "", "stated"),
    ],
)
def test_an_alternative_without_cuda_presumes_forward_compatibility(
    text: str, driver: str, brand: str, compat: str | None, way: str
) -> None:
    verdict = judge(text, driver, gpu(brand), compat=compat)
    assert verdict.results[0].outcomes[0].way == way
    assert verdict.met is bool(way)


def test_presuming_is_said() -> None:
    (note,) = judge("cuda>=12.6 driver>=470", "470.1", gpu("geforce"), compat=None).notes
    assert "presumes that the image brings forward-compatibility libraries for CUDA 12.6" in note
    assert "does not accept them on brand geforce" in note


@pytest.mark.parametrize(
    ("text", "driver", "asked"),
    [("cuda>=12.2 driver>=470", "535.1", 0), ("cuda>=12.6", "470.1", 0), ("cuda>=12.6 driver>=470", "470.1", 1)],
)
def test_the_image_is_looked_at_only_if_the_verdict_hangs_on_it(text: str, driver: str, asked: int) -> None:
    calls = []

    def compat() -> str:
        calls.append(1)
        return ""

    requirement.judge((parse(text),) * 3, host(driver), (gpu("tesla"), gpu("nvidia")), "strict", compat)
    assert len(calls) == asked


@pytest.mark.parametrize(
    ("text", "driver", "arch", "started"),
    [
        ("cuda>=12.8", "565.77", (8, 9), True),
        ("cuda>=12.8", "525.60.12", (8, 9), False),
        ("cuda>=13.0", "565.77", (8, 9), False),
        ("cuda>=12.8,arch>=9.0", "565.77", (8, 9), False),
        ("cuda>=12.8,driver>=570", "565.77", (8, 9), False),
        ("cuda=12.8", "565.77", (8, 9), True),
        ("cuda<12.5", "565.77", (8, 9), False),
    ],
)
def test_minor_compat_forgives_the_level_and_nothing_else(
    text: str, driver: str, arch: tuple[int, ...], started: bool
) -> None:
    verdict = judge(text, driver, gpu("geforce", arch), policy="minor-compat")
    assert verdict.met is started
    assert len(verdict.warnings) == int(started)


def test_warn_never_refuses_and_warns_once_for_each_requirement() -> None:
    parsed = tuple(parse(text) for text in ("cuda>=99", "arch>=99", "cuda>=1"))
    gpus = (gpu("tesla", (7, 5), index=0), gpu("geforce", (8, 0), index=1))
    warnings = requirement.check(parsed, host("535.1"), gpus, "warn", lambda: "")
    assert len(warnings) == 2
    assert "CUDA 99 or newer" in warnings[0]
    assert "compute capability 99" in warnings[1]
    assert not any("\n" in text for text in warnings)


def test_off_looks_at_nothing() -> None:
    def compat() -> str:
        raise AssertionError("asked")

    parsed = (parse("cuda>=99 driver>=1"),)
    assert requirement.check(parsed, host("340.1"), (), "off", compat) == ()
    assert requirement.parse_all((Demand("X", "cuda >="),) * 40, "off") == ((), ())


def test_parse_all_bounds_the_number() -> None:
    demands = tuple(Demand(f"NVIDIA_REQUIRE_{index}", "cuda>=1") for index in range(33))
    assert len(requirement.parse_all(demands[:32])[0]) == 32
    with pytest.raises(GpuhookError, match="at most 32") as caught:
        requirement.parse_all(demands)
    assert caught.value.reference == "requirement-syntax"
    assert requirement.parse_all(demands, "warn")[0] == ()


def test_parse_all_leaves_blanks_out_and_warn_survives_bad_syntax() -> None:
    demands = (Demand("A", " "), Demand("B", "cuda=>1"), Demand("C", "cuda>=1"))
    parsed, warnings = requirement.parse_all(demands, "warn")
    assert [item.origin for item in parsed] == ["C"]
    assert len(warnings) == 1
    assert "B: can't parse 'cuda=>1'" in warnings[0]
    with pytest.raises(GpuhookError, match="B: can't parse"):
        requirement.parse_all(demands)


# --- properties -----------------------------------------------------------------------------------------------

NUMBERS = st.lists(st.integers(0, 700), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))
OPERATORS = st.sampled_from(["=", "!=", "!", "<", "<=", ">", ">="])
CUDA = st.builds("cuda{}{}.{}".format, OPERATORS, st.integers(8, 14), st.integers(0, 9))
DRIVER = st.builds("driver{}{}".format, OPERATORS, st.sampled_from([*oracle.BRANCH_LEVEL, "450.80.02", "525.60.13"]))
OTHER = st.one_of(
    st.builds("arch{}{}".format, OPERATORS, st.sampled_from(["7.5", "8", "8.9", "10.0"])),
    st.builds("brand{}{}".format, st.sampled_from(["=", "!="]), st.sampled_from(BRANDS)),
    st.just("x=1"),
)
REQUIREMENTS = st.lists(
    st.lists(st.one_of(CUDA, DRIVER, OTHER), min_size=1, max_size=3).map(",".join), min_size=1, max_size=5
).map(" ".join)
NEARLY = st.text(alphabet="cudarivebn<>=!., \t\n0129x\"'\x1b\u2265\ud800", max_size=60)


@given(
    REQUIREMENTS,
    st.sampled_from(DRIVERS),
    st.sampled_from(BRANDS),
    st.sampled_from(["7.5", "8.9", "10.0"]),
    st.sampled_from(["strict", "minor-compat", "warn"]),
    st.sampled_from([None, "", "460.1", "560.35.05"]),
)
def test_any_requirement_comes_out_as_the_oracle_says(
    text: str, driver: str, brand: str, arch: str, policy: str, compat: str | None
) -> None:
    verdict = judge(text, driver, gpu(brand, version.parse(arch) or ()), policy=policy, compat=compat)
    assert verdict.met is oracle.met(text, driver, brand=brand, arch=arch, policy=policy, compat=compat)


@given(st.one_of(st.text(max_size=100), NEARLY, REQUIREMENTS))
@example("cuda==1")
@example("cuda=!1")
@example("!=1")
@example("cuda>=1,\x85driver>=1")
def test_any_text_parses_or_is_a_syntax_error_as_the_oracle_says(text: str) -> None:
    error = syntax(text)
    assert (error is None) is (oracle.parse(text) is not None)
    if error:
        shown = str(error)
        assert all(" " <= char <= "~" or char == "\n" for char in shown)
        assert len(shown) < 700
        source, caret = error.hint.split("\n")[1:]
        assert caret.strip("^ ") == "" and 1 <= caret.count("^") <= 12
        assert len(caret) <= len(source) + 1


@given(REQUIREMENTS)
def test_str_parses_back_to_the_same(text: str) -> None:
    parsed = parse(text)
    assert parse(str(parsed)) == parsed


@given(REQUIREMENTS, st.sampled_from(DRIVERS), st.sampled_from(BRANDS))
def test_any_refusal_is_one_line_of_printable_text_with_a_hint(text: str, driver: str, brand: str) -> None:
    parsed = (parse(text),)
    try:
        requirement.check(parsed, host(driver), (gpu(brand, (8, 9)),), "strict", lambda: "")
    except GpuhookError as error:
        first = error.hint.split("\n")[0]
        assert "\n" not in error.message
        assert len(error.message) + len(first) <= 400
        assert error.message.startswith("this container needs ")
        assert not error.message.endswith(".")
        assert "  " not in error.message + first
        assert " ;" not in error.message + error.hint


@pytest.mark.parametrize(
    "text",
    [
        "cuda>=" + "9" * 60000,
        "cuda>=1" * 9000,
        "cuda>=9 " * 8000,
        "x=1," * 16000,
        "a" * 65536,
        "," * 65536,
        "driver>=1,brand=x " * 3600,
        "\x1b" * 65536,
    ],
    ids=["digits", "operators", "alternatives", "conditions", "letters", "commas", "pairs", "escapes"],
)
def test_a_hostile_text_costs_little(text: str) -> None:
    start = time.process_time()
    if syntax(text) is None:
        judge(text, "340.1", *[gpu("tesla", (7, index), index=index) for index in range(4)])
    assert time.process_time() - start < 2


def test_a_text_above_the_bound_is_refused() -> None:
    assert syntax(" " * 65536) is None
    error = syntax(" " * 65537)
    assert error is not None
    assert "at most 65536 characters" in error.message


def test_the_level_of_the_host_is_the_one_given() -> None:
    """The branch table is not asked where NVML gave a level."""
    assert requirement.judge((parse("cuda>=12.9"),), Host("535.1", (12, 9)), (), "strict", lambda: "").met


def test_met_helper_agrees() -> None:
    assert met("brand=tesla", "535.1", "tesla")
    assert not met("brand=tesla", "535.1", "geforce")
