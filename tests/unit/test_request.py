"""What a container asks for. R numbers are field reports, A numbers tables of NVIDIA's behaviour."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhook import channels, request
from gpuhook.config import Config
from gpuhook.errors import GpuhookError
from gpuhook.model import Container, Demand, Request, replace

V = "NVIDIA_VISIBLE_DEVICES"
C = "NVIDIA_DRIVER_CAPABILITIES"
SEVEN = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
UUID = "GPU-b8ea3855-276c-c9cb-b366-c6fa655957c5"


def box(*env: tuple[str, str], privileged: bool = False, annotations: tuple[tuple[str, str], ...] = ()) -> Container:
    return Container(env=env, annotations=annotations, privileged=privileged)


def asked(*env: tuple[str, str], config: Config | None = None, privileged: bool = False) -> Request:
    found = request.read(box(*env, privileged=privileged), config or Config())
    assert found is not None
    return found


def refused(*env: tuple[str, str], config: Config | None = None) -> GpuhookError:
    with pytest.raises(GpuhookError) as caught:
        request.read(box(*env), config or Config())
    return caught.value


# --- devices ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("all", ("all",)),
        ("none", ()),
        ("0", ("0",)),
        ("0,1", ("0", "1")),
        ("1,0", ("1", "0")),
        (UUID, (UUID,)),
        # R26, all of its eleven strings; the malformed ones pass here and are judged where the GPUs are known
        ("0, 1", ("0", "1")),
        ("0,0,1", ("0", "1")),
        ("0,1,", ("0", "1")),
        ('"0"', ("0",)),
        ("ALL", ("all",)),
        ("None", ()),
        ("-1", ("-1",)),
        ("0-3", ("0", "1", "2", "3")),
        ("00", ("00",)),
        (UUID.upper(), (UUID.upper(),)),
        # more of the same kind
        ("'all'", ("all",)),
        ("all,ALL, all", ("all",)),
        (",,0,,", ("0",)),
        ("\t0 ,\n1", ("0", "1")),
        ("1-1", ("1",)),
        ("0-2,1,5", ("0", "1", "2", "5")),
        ("3-0", ("3-0",)),
        ("0-01", ("0-01",)),
        ("0-99999999", ("0-99999999",)),
        ("0-1023", tuple(str(index) for index in range(1024))),
        ("a=b", ("a=b",)),
        ("false", ("false",)),
        ("no-gpu-has-10MiB-to-run", ("no-gpu-has-10MiB-to-run",)),
        ("\uff11", ("\uff11",)),
        ("1_0", ("1_0",)),
        ("1_0-2_0", ("1_0-2_0",)),
        # R35
        ("0000:0b:00.0,00000000:0B:00.0,0b:00.0", ("0000:0b:00.0", "00000000:0B:00.0", "0b:00.0")),
    ],
)
def test_devices_are_cleaned(text: str, devices: tuple[str, ...]) -> None:
    assert asked((V, text)).devices == devices
    assert asked((V, text)).origin == V


@pytest.mark.parametrize("text", ["", " ", ",", " , ,", "void", "VOID", "void,", '""', "'void'", '" , "'])
def test_nothing_is_asked_by_void_and_by_empty_values(text: str) -> None:
    """R24 and A3: the container is left alone, and `why_not` says why."""
    assert request.read(box((V, text)), Config()) is None
    why = request.why_not(box((V, text)), Config())
    assert why in (f"{V} is empty", f"{V} says void")
    assert ("void" in text.lower()) == ("void" in why)


def test_nothing_is_asked_without_the_variable() -> None:
    assert request.read(box(("PATH", "/bin")), Config()) is None
    assert request.why_not(box(("PATH", "/bin")), Config()) == f"{V} is not set"
    assert "no legacy CUDA image" in request.why_not(box(("CUDA_VERSION", "foo")), Config())
    assert request.why_not(box((V, "0")), Config()) == ""


def test_a_sandbox_asks_for_nothing() -> None:
    sandbox = replace(box((V, "all")), sandbox=True)
    assert request.read(sandbox, Config()) is None
    assert "sandbox" in request.why_not(sandbox, Config())
    assert request.ignored(sandbox, Config()) == ""


@pytest.mark.parametrize("text", ["all,0", "0,none", "none,all", "0,ALL,1", "0,void", "void,all"])
def test_a_keyword_among_devices_is_an_error(text: str) -> None:
    """R26: `all,0` and `0,none`; the first keyword of NVIDIA's list would win there, silently."""
    error = refused((V, text))
    assert error.reference == "device-invalid"
    assert f"{V}='{text}'" in error.message
    assert "alone" in error.hint


@pytest.mark.parametrize(
    ("values", "devices"),
    [
        (("all", "none"), ()),
        (("none", "all"), ("all",)),
        (("all", "none", "void"), None),
        (("void", "0"), ("0",)),
    ],
)
def test_the_last_of_equal_variables_wins(values: tuple[str, ...], devices: tuple[str, ...] | None) -> None:
    """R23."""
    found = request.read(box(*[(V, text) for text in values]), Config())
    assert (None if found is None else found.devices) == devices


@pytest.mark.parametrize("text", ['"device=0,2"', "device=0,2", "Device=0,2", " device=0,2 "])
def test_the_syntax_of_dockers_flag_gets_the_right_value_told(text: str) -> None:
    """R34."""
    error = refused((V, text))
    assert error.reference == "device-invalid"
    assert "--gpus" in error.message
    assert error.hint == f"write the devices alone: {V}=0,2"


def test_quotes_are_warned_about() -> None:
    """R26: they come from YAML and env files, where they are part of the value."""
    assert asked((V, '"0,1"')).warnings == (
        f"{V}: the quotes around '\"0,1\"' are part of the value and were left out",
    )
    assert asked((V, "0,1")).warnings == ()
    assert asked((V, '"0",1')).devices == ('"0"', "1"), "one pair around the whole value only"


@pytest.mark.parametrize(
    ("text", "limit"),
    [("0," * 40000, "characters"), (",".join(map(str, range(1025))), "more than 1024"), ("0-1023,1024", "more than")],
)
def test_devices_are_bounded(text: str, limit: str) -> None:
    error = refused((V, text))
    assert (error.reference, limit in error.message) == ("device-invalid", True)
    assert len(error.message) < 300


def test_a_hostile_value_cannot_steer_the_terminal_of_whom_reads_the_error() -> None:
    error = refused((V, "all,\x1b[2J\n\u202eevil\udc80"))
    assert error.message.isprintable()


@pytest.mark.parametrize(
    "env",
    [
        (("", ""),),
        (("", "="), (V, "a=b")),
        ((V, "a=b"), ("", "")),
    ],
)
def test_odd_entries_of_the_environment_do_no_harm(env: tuple[tuple[str, str], ...]) -> None:
    """R41; entries without `=` are skipped where config.json is read."""
    found = request.read(box(*env), Config())
    assert found is None or found.devices == ("a=b",)


# --- policy -------------------------------------------------------------------------------------------------------

STRICT = replace(Config(), accept_env_when_unprivileged=False)


@pytest.mark.parametrize(
    ("env", "privileged", "config", "devices"),
    [
        ((V, "all"), False, Config(), ("all",)),
        ((V, "all"), True, Config(), ("all",)),
        ((V, "all"), True, STRICT, ("all",)),
        ((V, "all"), False, STRICT, None),
        ((V, "all,0"), False, STRICT, None),
        (("CUDA_VERSION", "11.6"), False, STRICT, None),
        (("CUDA_VERSION", "11.6"), True, STRICT, ("all",)),
    ],
)
def test_the_environment_of_an_unprivileged_container_counts_only_if_the_admin_says_so(
    env: tuple[str, str], privileged: bool, config: Config, devices: tuple[str, ...] | None
) -> None:
    """R21 and A4: ignored, not refused, with a warning that names the value, the reason and the key."""
    container = box(env, privileged=privileged)
    found = request.read(container, config)
    assert (None if found is None else found.devices) == devices
    warning = request.ignored(container, config)
    assert (warning != "") == (devices is None)
    if warning:
        assert env[0] in warning
        assert "accept-env-when-unprivileged" in warning
        assert request.why_not(container, config) == warning


@pytest.mark.parametrize("text", ["", "void"])
def test_nothing_is_said_to_be_ignored_where_nothing_was_asked(text: str) -> None:
    assert request.ignored(box((V, text)), STRICT) == ""
    assert request.ignored(box(), STRICT) == ""


@pytest.mark.parametrize(("text", "warnings"), [("0", 1), ("none", 1), ("all", 0)])
def test_a_privileged_container_is_warned_that_the_choice_binds_it_little(text: str, warnings: int) -> None:
    """R22."""
    assert len(asked((V, text), privileged=True).warnings) == warnings


# --- legacy CUDA images -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0", (0, 0)),
        ("8", (8, 0)),
        ("7.5", (7, 5)),
        ("9.0.116", (9, 0)),
        ("v11.6", (11, 6)),
        ("9.4294967295", (9, 4294967295)),
        *[
            (bad, None)
            for bad in (
                *("foo", "foo.5.10", "9.0.116.50", "9.0.116foo", "7.foo", "9.0.bar", "9.4294967296", "9.0.116."),
                *("9..0", "9.", ".5.10", "-9", "+9", "-9.1.116", "-9.-1.-116", "", "v", "vv9", " 9.0", "9.0 "),
                *("\uff19.0", "9_0.1", "9." + "0" * 5000),
            )
        ],
    ],
)
def test_cuda_version(text: str, version: tuple[int, int] | None) -> None:
    """The table of NVIDIA's stack, and the traps of Python's int()."""
    assert channels.cuda_version(text) == version
    assert (request.read(box(("CUDA_VERSION", text)), Config()) is None) == (version is None)


@pytest.mark.parametrize(
    ("env", "devices", "capabilities", "demands"),
    [
        ({}, ("all",), SEVEN, ("cuda>=11.8",)),
        ({V: "0"}, ("0",), SEVEN, ("cuda>=11.8",)),
        ({V: "none"}, (), SEVEN, ("cuda>=11.8",)),
        ({V: ""}, None, None, None),
        ({V: "void"}, None, None, None),
        ({C: "utility"}, ("all",), ("utility",), ("cuda>=11.8",)),
        ({C: ""}, ("all",), ("compute", "utility"), ("cuda>=11.8",)),
        ({"NVIDIA_REQUIRE_CUDA": ""}, ("all",), SEVEN, ("cuda>=11.8",)),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=11.8"}, None, None, None),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=11.8", V: "all"}, ("all",), ("compute", "utility"), ("cuda>=11.8",)),
        ({"NVIDIA_IMEX_CHANNELS": "all"}, ("all",), SEVEN, ("cuda>=11.8",)),
    ],
)
def test_legacy_images(
    env: dict[str, str],
    devices: tuple[str, ...] | None,
    capabilities: tuple[str, ...] | None,
    demands: tuple[str, ...] | None,
) -> None:
    """R37, A3 and A6: an image with CUDA_VERSION and no NVIDIA_REQUIRE_CUDA asks for all, unless it says otherwise."""
    found = request.read(box(("CUDA_VERSION", "11.8.0"), *env.items()), Config())
    if found is None:
        assert devices is None
        return
    assert (found.devices, found.capabilities) == (devices, capabilities)
    assert tuple(demand.text for demand in found.demands) == demands
    assert found.origin == (V if V in env else "CUDA_VERSION")


def test_the_rule_for_legacy_images_can_be_switched_off() -> None:
    """R37."""
    off = replace(Config(), legacy_images=False)
    assert request.read(box(("CUDA_VERSION", "11.8")), off) is None
    found = asked((V, "all"), ("CUDA_VERSION", "11.8"), config=off)
    assert (found.capabilities, found.demands) == (("compute", "utility"), ())


# --- capabilities -------------------------------------------------------------------------------------------------

FOUR = ("compute", "display", "utility", "video")


@pytest.mark.parametrize(
    ("text", "supported", "capabilities"),
    [
        (None, SEVEN, ("compute", "utility")),
        ("", SEVEN, ("compute", "utility")),
        ("  ", SEVEN, ("compute", "utility")),
        (",", SEVEN, ("compute", "utility")),
        ("all", SEVEN, SEVEN),
        ("ALL", SEVEN, SEVEN),
        ("all", FOUR, FOUR),
        ("compute,all", FOUR, FOUR),
        ("compute, utility", SEVEN, ("compute", "utility")),
        ("compute,,", SEVEN, ("compute",)),
        ("compat32", SEVEN, ("compat32",)),
        ("video,display", SEVEN, ("display", "video")),
        ("display,video", FOUR, ("display", "video")),
        ("graphics", SEVEN, ("graphics",)),  # R43: it replaces the default, and adds nothing to it
        ("Compute,UTILITY", SEVEN, ("compute", "utility")),
        ('"compute,utility"', SEVEN, ("compute", "utility")),
        (None, ("compute",), ("compute",)),
        (None, (), ()),
        ("all", (), ()),
    ],
)
def test_capabilities(text: str | None, supported: tuple[str, ...], capabilities: tuple[str, ...]) -> None:
    """R42, A6 and A7."""
    env = [(V, "all")] if text is None else [(V, "all"), (C, text)]
    assert asked(*env, config=replace(Config(), supported_capabilities=supported)).capabilities == capabilities


@pytest.mark.parametrize(
    ("text", "supported", "bad", "reason"),
    [
        ("graphics;display", SEVEN, "'graphics;display'", "does not exist"),
        ("compute,unknown", SEVEN, "'unknown'", "does not exist"),
        ("compute,utility", ("video",), "'compute'", "does not allow"),
        ("none", SEVEN, "'none'", "does not exist"),
        ("x" * 70000, SEVEN, "xxx...", "does not exist"),
        ("\x1b[2J", SEVEN, "\\x1b[2J", "does not exist"),
    ],
)
def test_capabilities_that_are_not_to_be_had(text: str, supported: tuple[str, ...], bad: str, reason: str) -> None:
    """R42 and A6: the error lists the valid ones."""
    error = refused((V, "all"), (C, text), config=replace(Config(), supported_capabilities=supported))
    assert error.reference == "capability-unsupported"
    assert C in error.message
    assert bad in error.message
    assert reason in error.message
    assert ", ".join((*supported, "all")) in error.hint
    assert ("supported-driver-capabilities" in error.hint) == (reason == "does not allow")


def test_a_capability_spelled_wrong() -> None:
    assert refused((V, "all"), (C, "compute,utilty")).hint.startswith("did you mean utility? separate these")


# --- requirements -------------------------------------------------------------------------------------------------


def test_demands_are_sorted_by_name_and_jetpack_is_none() -> None:
    """R18 and A8."""
    found = asked(
        (V, "all"),
        ("NVIDIA_REQUIRE_DRIVER", "driver>=1"),
        ("NVIDIA_REQUIRE_CUDA", "cuda>=10"),
        ("NVIDIA_REQUIRE_CUDA", "cuda>=11"),
        ("NVIDIA_REQUIRE_ARCH", " "),
        ("NVIDIA_REQUIRE_JETPACK", "x"),
        ("NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS", "base-only"),
    )
    assert found.demands == (
        Demand("NVIDIA_REQUIRE_CUDA", "cuda>=11"),
        Demand("NVIDIA_REQUIRE_DRIVER", "driver>=1"),
    )


def test_an_annotation_is_one_more_demand_and_asks_for_nothing_itself() -> None:
    annotations = (("com.nvidia.cuda.version", "12.4.1"),)
    assert request.read(box(annotations=annotations), Config()) is None
    found = request.read(box((V, "0"), ("NVIDIA_REQUIRE_X", "arch>=8"), annotations=annotations), Config())
    assert found is not None
    assert found.demands == (
        Demand("NVIDIA_REQUIRE_X", "arch>=8"),
        Demand("annotation com.nvidia.cuda.version", "cuda>=12.4"),
    )


@pytest.mark.parametrize("text", ["", "12", "v12.4", "cuda>=12", "12.x", "12.4.1.0", " 12.4", "\uff11.2", "1.\n2"])
def test_a_bad_annotation_is_an_error_unless_the_check_is_off(text: str) -> None:
    container = box((V, "0"), annotations=(("com.nvidia.cuda.version", text),))
    with pytest.raises(GpuhookError, match=r"annotation com\.nvidia\.cuda\.version=") as caught:
        request.read(container, Config())
    assert caught.value.reference == "requirement-syntax"
    assert caught.value.message.isprintable()
    found = request.read(replace(container, env=((V, "0"), ("NVIDIA_DISABLE_REQUIRE", "1"))), Config())
    assert found is not None
    assert "not checked because of NVIDIA_DISABLE_REQUIRE" in found.warnings[0]


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ([(f"NVIDIA_REQUIRE_{index}", "cuda>=1") for index in range(33)], "33 requirements"),
        ([("NVIDIA_REQUIRE_CUDA", "cuda>=1 " * 10000)], "NVIDIA_REQUIRE_CUDA' has 80000 characters"),
    ],
    ids=["many", "long"],
)
def test_demands_are_bounded(env: list[tuple[str, str]], text: str) -> None:
    error = refused((V, "all"), *env)
    assert (error.reference, text in error.message) == ("requirement-syntax", True)


@pytest.mark.parametrize(
    ("text", "disabled", "warned"),
    [
        *[(yes, True, False) for yes in ("1", "t", "T", "true", "TRUE", "True", "yes", "YES")],
        *[(no, False, False) for no in ("", "0", "f", "false", "False", "no")],
        ("maybe", False, True),
        (" 1", False, True),
    ],
)
def test_disable_require(text: str, disabled: bool, warned: bool) -> None:
    """R19 and A8, for legacy images too; what is neither yes nor no counts as no, and is told."""
    found = asked(("CUDA_VERSION", "12.0"), ("NVIDIA_DISABLE_REQUIRE", text))
    assert found.disabled_by == ("NVIDIA_DISABLE_REQUIRE" if disabled else "")
    assert len(found.warnings) == warned


def test_the_admin_may_forbid_disable_require_and_may_switch_the_check_off() -> None:
    env = ((V, "all"), ("NVIDIA_DISABLE_REQUIRE", "1"))
    found = asked(*env, config=replace(Config(), allow_disable_require=False))
    assert found.disabled_by == ""
    assert "allow-disable-require" in found.warnings[0]
    assert asked(*env, config=replace(Config(), policy="off")).disabled_by == "requirement.policy"


@pytest.mark.parametrize(
    ("name", "text", "miss"),
    [
        ("NVIDIA_DISABLE_REQUIRES", "1", True),
        ("NVIDIA_REQUIRE_DISABLE", "true", True),
        ("NVIDIA_DISABLE_REQUIREMENTS", "yes", True),
        ("NVIDIA_DISABLE_REQIRE", "1", True),
        ("NVIDA_DISABLE_REQUIRE", "1", True),
        ("nvidia_disable_require", "1", True),
        ("NVIDIA-DISABLE-REQUIRE", "1", True),
        ("NVIDIA_DISABLE_REQUIRES", "0", False),
        ("NVIDIA_DISABLE_REQUIRES", "cuda>=12", False),
        ("NVIDIA_DISABLE_REQUIRE", "1", False),
        ("NVIDIA_REQUIRE_CUDA", "1", False),
        ("NVIDIA_DISABLE_SQUIRREL", "1", False),
    ],
)
def test_near_misses(name: str, text: str, miss: bool) -> None:
    """R19: such a variable switches nothing off, and is no constraint."""
    found = asked((V, "all"), (name, text))
    assert found.near_misses == ((name,) if miss else ())
    if miss:
        assert (found.disabled_by, found.demands) == ("", ())


def test_a_constraint_in_a_name_near_to_the_switch_stays_a_constraint() -> None:
    found = asked((V, "all"), ("NVIDIA_REQUIRE_DISABLE", "cuda>=12"))
    assert found.demands == (Demand("NVIDIA_REQUIRE_DISABLE", "cuda>=12"),)


# --- any environment ----------------------------------------------------------------------------------------------

NAMES = st.one_of(
    st.sampled_from([V, C, "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA", "NVIDIA_DISABLE_REQUIRE", "NVIDIA_DISABLE_REQUIRES"]),
    st.text(max_size=30),
)
ODD = st.characters(codec=None, exclude_categories=())
VALUES = st.one_of(
    st.text(ODD, max_size=40),
    st.text("0123456789-, \"'.:vVoidalnegpuGPU\x00=", max_size=20),
    st.sampled_from(["all", "none", "void", "0-3", "1", "true", "11.8", "compute,utility", "cuda>=12"]),
)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(NAMES, VALUES), max_size=8),
    st.lists(st.tuples(st.just("com.nvidia.cuda.version"), VALUES), max_size=1),
    st.booleans(),
    st.sampled_from([Config(), STRICT, replace(Config(), supported_capabilities=(), policy="off")]),
)
def test_any_environment_gives_a_request_none_or_an_error_of_ours(
    env: list[tuple[str, str]], annotations: list[tuple[str, str]], privileged: bool, config: Config
) -> None:
    """R41; whatever comes out is printable where people read it, and `why_not` speaks exactly where there is None."""
    container = box(*env, privileged=privileged, annotations=tuple(annotations))
    try:
        found = request.read(container, config)
    except GpuhookError as error:
        assert error.message.isprintable()
        return
    assert (request.why_not(container, config) == "") == (found is not None)
    if found is not None:
        assert set(found.capabilities) <= set(config.supported_capabilities)
        assert len(found.devices) <= 1024
        assert all(warning.isprintable() for warning in found.warnings)
