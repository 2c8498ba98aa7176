"""Who may ask for GPUs, and by what. R numbers are field reports, A numbers tables of NVIDIA's behaviour."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhook import request
from gpuhook.channels import BY_MOUNT, DEVICES, LABEL
from gpuhook.config import Config
from gpuhook.errors import GpuhookError
from gpuhook.model import Container, Request, replace

ROOT = "/var/run/nvidia-container-devices"
SWARM = "DOCKER_RESOURCE_NVIDIA-GPU"
CDI = "cdi.k8s.io/nvidia-device-plugin_7af7a99b"
OPEN = replace(
    Config(),
    accept_devices_as_volume_mounts=True,
    accept_label_annotations=True,
    annotation_prefixes=("cdi.k8s.io/",),
    swarm_resources=(SWARM, "OTHER"),
)
SHUT = replace(OPEN, accept_env_when_unprivileged=False)


def box(
    env: "dict[str, str] | None" = None,
    mounts: tuple[tuple[str, str], ...] = (),
    annotations: tuple[tuple[str, str], ...] = (),
    privileged: bool = False,
) -> Container:
    return Container(tuple((env or {}).items()), annotations, mounts, privileged)


def devices(container: Container, config: Config = OPEN) -> tuple[str, ...] | None:
    found = request.read(container, config)
    assert (found is None) == bool(request.why_not(container, config))
    return None if found is None else found.devices


def refused(container: Container, config: Config = OPEN) -> GpuhookError:
    with pytest.raises(GpuhookError) as caught:
        request.read(container, config)
    assert caught.value.message.isprintable()
    return caught.value


def at(*names: str, source: str = "/dev/null") -> tuple[tuple[str, str], ...]:
    return tuple((source, f"{ROOT}/{name}") for name in names)


# --- volume mounts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ((), None),
        (at("GPU0", source="/dev/zero"), None),
        (at("GPU0", source="/data"), None),
        (at("GPU0", source="dev/null"), ("GPU0",)),
        (at("GPU0", source="//dev/null/"), ("GPU0",)),
        ((("/dev/null", "/var/run/other/GPU0"),), None),
        ((("/dev/null", ROOT),), None),
        ((("/dev/null", ROOT + "s/GPU0"),), None),
        (at("GPU0", "GPU1"), ("GPU0", "GPU1")),
        (at("GPU1", "GPU0", "GPU1"), ("GPU1", "GPU0")),
        (at("GPU0-MIG0/0/1"), ("GPU0-MIG0/0/1",)),
        (at("cdi/nvidia.com/gpu/all"), ("all",)),
        (at("cdi/nvidia.com/gpu=0", "cdi/nvidia.com/gpu/GPU-1"), ("0", "GPU-1")),
        (at("cdi/example.com/net/eth0"), ("example.com/net=eth0",)),
        (at("imex/0"), None),
        (at("imex/0", "1"), ("1",)),
        (at("all"), ("all",)),
        (at("none"), ()),
        (at("void"), None),
    ],
)
def test_volume_mounts(mounts: tuple[tuple[str, str], ...], expected: tuple[str, ...] | None) -> None:
    """A5, R142. A source without its first slash is the runtime's business; what it says is the same."""
    assert devices(box(mounts=mounts)) == expected
    assert devices(box(mounts=mounts), Config()) is None


MOUNTS, ENV = ("GPU0", "GPU1"), {DEVICES: "GPU2,GPU3"}


@pytest.mark.parametrize("variable", [DEVICES, SWARM])
@pytest.mark.parametrize(
    ("mounted", "privileged", "unprivileged_env", "accepted", "expected"),
    [
        (True, False, False, True, MOUNTS),
        (False, False, False, True, None),
        (False, True, False, True, ("GPU2", "GPU3")),
        (False, False, True, True, ("GPU2", "GPU3")),
        (True, False, True, False, ("GPU2", "GPU3")),
        (True, False, False, False, None),
        (True, True, True, True, MOUNTS),
        (True, True, False, False, ("GPU2", "GPU3")),
    ],
)
def test_mounts_outrank_the_environment(
    variable: str,
    mounted: bool,
    privileged: bool,
    unprivileged_env: bool,
    accepted: bool,
    expected: tuple[str, ...] | None,
) -> None:
    """A4, with NVIDIA_VISIBLE_DEVICES and with the preferred variable."""
    config = replace(OPEN, accept_env_when_unprivileged=unprivileged_env, accept_devices_as_volume_mounts=accepted)
    container = box({variable: "GPU2,GPU3"}, at(*MOUNTS) if mounted else (), privileged=privileged)
    assert devices(container, config) == expected
    assert bool(request.ignored(container, config)) == (expected is None)


def test_an_unread_mount_says_which_key_would_read_it() -> None:
    container = box(mounts=at("GPU0"))
    told = request.why_not(container, Config())
    assert "accept-devices-as-volume-mounts" in told
    assert "GPU0" in told
    assert request.ignored(container, Config()) == told


def test_an_error_says_that_a_mount_asked() -> None:
    error = refused(box(mounts=at("all", "0")))
    assert error.reference == "device-invalid"
    assert error.message == f"{BY_MOUNT} ('all,0') mixes all with other devices"


# --- swarm --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "expected", "origin"),
    [
        ({SWARM: "GPU-7af7a99b"}, ("GPU-7af7a99b",), SWARM),
        ({SWARM: "GPU-2", DEVICES: "all"}, ("GPU-2",), SWARM),
        ({SWARM: "", DEVICES: "all"}, None, ""),
        ({SWARM: "void", DEVICES: "all"}, None, ""),
        ({SWARM: "none", DEVICES: "all"}, (), SWARM),
        ({"OTHER": "GPU-3", SWARM: "GPU-2"}, ("GPU-2", "GPU-3"), f"{SWARM} + OTHER"),
        ({"OTHER": "GPU-3", DEVICES: "0"}, ("GPU-3",), "OTHER"),
        ({DEVICES: "0"}, ("0",), DEVICES),
        ({SWARM: "GPU-2", "CUDA_VERSION": "11.8"}, ("GPU-2",), SWARM),
        ({"CUDA_VERSION": "11.8"}, ("all",), "CUDA_VERSION"),
        ({"CUDA_VERSION": "11.8", SWARM: ""}, None, ""),
    ],
)
def test_swarm_resources(env: dict[str, str], expected: tuple[str, ...] | None, origin: str) -> None:
    """R30 and A3: the dash is part of the name; the values follow the order of the configuration."""
    assert devices(box(env)) == expected
    found = request.read(box(env), OPEN)
    assert ("" if found is None else found.origin) == origin
    assert devices(box(env), SHUT) is None


def test_a_swarm_variable_that_is_not_configured_says_nothing() -> None:
    """A3."""
    assert devices(box({SWARM: "0"}), Config()) is None
    assert devices(box({SWARM: "0", DEVICES: "1"}), Config()) == ("1",)


# --- annotations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (((CDI, "nvidia.com/gpu=0"),), ("0",)),
        (((CDI, "nvidia.com/gpu=0, nvidia.com/gpu=GPU-1 ,"),), ("0", "GPU-1")),
        (((CDI, "k8s.device-plugin.nvidia.com/gpu=GPU-1"),), ("GPU-1",)),
        (((CDI, "nvidia.com/gpu=1:0"),), ("1:0",)),
        (((CDI, "device"),), ("device",)),
        (((CDI, "nvidia.com/gpu=all"),), ("all",)),
        (((CDI, "nvidia.com/gpu=none"),), ()),
        (((CDI, "nvidia.com/gpu=void"),), None),
        ((("cdi.k8s.io/b", "nvidia.com/gpu=1"), ("cdi.k8s.io/a", "nvidia.com/gpu=0")), ("0", "1")),
        (((CDI, "example.com/nic=eth0"),), None),
        (((CDI, "example.com/nic=eth0,nvidia.com/gpu=0"),), ("0",)),
        (((CDI, "nvidia.com/gds=all"),), None),
        (((CDI, ""),), None),
        ((("cdi.example.io/x", "nvidia.com/gpu=0"),), None),
    ],
)
def test_annotations(annotations: tuple[tuple[str, str], ...], expected: tuple[str, ...] | None) -> None:
    """As device plugins write them for CRI-O and containerd; other vendors' devices are left to the engine."""
    assert devices(box(annotations=annotations)) == expected
    assert devices(box(annotations=annotations), SHUT) == expected
    assert devices(box(annotations=annotations), Config()) is None


def test_an_annotation_outranks_all() -> None:
    container = box({DEVICES: "2", SWARM: "3"}, at("1"), ((CDI, "nvidia.com/gpu=0"), (LABEL, "nvidia_driver")))
    found = request.read(container, OPEN)
    assert found is not None
    assert (found.devices, found.origin) == (("0",), f"annotation {CDI}")


@pytest.mark.parametrize(
    ("text", "env", "expected"),
    [
        ("nvidia_driver", {}, ("all",)),
        ("other nvidia_driver more", {}, ("all",)),
        ("nvidia_driver_535", {}, None),
        ("", {}, None),
        ("nvidia_driver", {DEVICES: "0"}, ("0",)),
        ("nvidia_driver", {DEVICES: "void"}, None),
        ("nvidia_driver", {SWARM: "1"}, ("1",)),
        ("nvidia_driver", {"CUDA_VERSION": "11.8"}, ("all",)),
    ],
)
def test_the_label_of_nvidia_docker_1(text: str, env: dict[str, str], expected: tuple[str, ...] | None) -> None:
    container = box(env, annotations=((LABEL, text),))
    assert devices(container) == expected
    assert devices(container, replace(OPEN, accept_label_annotations=False)) == devices(box(env))


def test_the_label_counts_where_the_environment_may_not() -> None:
    """The policy for the environment is not about it: what an image carries is ignored, what the pod says is not."""
    container = box({DEVICES: "0"}, annotations=((LABEL, "nvidia_driver"),))
    assert devices(container, SHUT) == ("all",)
    assert request.ignored(container, SHUT) == ""


# --- one meaning in all of them -----------------------------------------------------------------------------------


def channels(text: str) -> "list[Container]":
    """A container for each channel, which says the same by it."""
    return [
        box({DEVICES: text}),
        box({SWARM: text}),
        box(mounts=at(*text.split(","))),
        box(annotations=((CDI, ",".join(f"nvidia.com/gpu={item}" for item in text.split(","))),)),
        box({DEVICES: ",".join(f"nvidia.com/gpu={item}" for item in text.split(","))}),
    ]


@pytest.mark.parametrize("text", ["all", "none", "void", "0", "0,1", "ALL", "0-2", "MIG-7b7c4a6e", "1:0", "0b:00.0"])
def test_a_value_means_the_same_in_each_channel(text: str) -> None:
    """R24."""
    one, *others = [devices(container) for container in channels(text)]
    assert others == [one] * 4


@pytest.mark.parametrize("text", ["all,0", "none,1", "0,void"])
def test_a_keyword_among_devices_is_an_error_in_each_channel(text: str) -> None:
    assert {refused(container).reference for container in channels(text)} == {"device-invalid"}


# --- rights and IMEX ----------------------------------------------------------------------------------------------


CONFIG, MONITOR = "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"


def read(env: dict[str, str], privileged: bool = True, **more: object) -> Request:
    found = request.read(box({DEVICES: "all", **env}, privileged=privileged, **more), OPEN)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("env", "rights"),
    [
        ({}, ()),
        ({CONFIG: ""}, ()),
        ({CONFIG: "none", MONITOR: "void"}, ()),
        ({CONFIG: "all"}, ("config",)),
        ({MONITOR: "ALL"}, ("monitor",)),
        ({MONITOR: "all,", CONFIG: '"all"'}, ("config", "monitor")),
    ],
)
def test_rights_over_mig_devices(env: dict[str, str], rights: tuple[str, ...]) -> None:
    assert read(env).mig == rights


@pytest.mark.parametrize("name", [CONFIG, MONITOR])
def test_rights_over_mig_devices_take_a_privileged_container(name: str) -> None:
    """R147."""
    error = refused(box({DEVICES: "all", name: "all"}))
    assert (error.reference, name in error.message, name in error.hint) == ("privilege-missing", True, True)
    assert request.read(box({name: "all"}), OPEN) is None, "without a request for devices it says nothing"
    assert read({name: "none"}, privileged=False).mig == ()


@pytest.mark.parametrize("text", ["0", "all,0", "MIG-x", "\x1b[2J", "none,all"])
def test_rights_over_mig_devices_are_all_or_none(text: str) -> None:
    """R147."""
    error = refused(box({DEVICES: "all", CONFIG: text}, privileged=True))
    assert (error.reference, CONFIG in error.message, "all or none" in error.hint) == ("device-invalid", True, True)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        *[("0", (0,)), ("0,1", (0, 1)), ("0-2,2", (0, 1, 2)), ("2047", (2047,)), ("", ()), (" , ", ()), ("all", ())],
        ("0-2047", tuple(range(2048))),
    ],
)
def test_imex_channels(text: str, numbers: tuple[int, ...]) -> None:
    """R37 and R38: `all` on an old image gives none, and no error."""
    found = read({"NVIDIA_IMEX_CHANNELS": text}, privileged=False)
    assert found.channels == numbers
    assert bool(found.warnings) == (text == "all")


@pytest.mark.parametrize("text", ["bogus", "../../etc", "-1", "2048", "0,x", "all,0", "\uff11", "1_0", "0-2048", "01"])
def test_an_imex_channel_is_a_number(text: str) -> None:
    """R38."""
    error = refused(box({DEVICES: "all", "NVIDIA_IMEX_CHANNELS": text}))
    assert (error.reference, "NVIDIA_IMEX_CHANNELS" in error.message) == ("device-invalid", True)


def test_imex_channels_by_mounts_and_by_policy() -> None:
    """A mount outranks the variable; the variable of an unprivileged container counts only if the policy says so."""
    env = {"NVIDIA_IMEX_CHANNELS": "7"}
    mounts = at("0", "imex/3", "imex/4")
    assert read(env, mounts=mounts).channels == (3, 4)
    found = request.read(box({DEVICES: "0", **env}, at("0")), SHUT)
    assert found is not None
    assert found.channels == ()
    assert refused(box(mounts=at("0", "imex/../x"))).reference == "device-invalid"


# --- anything at all ----------------------------------------------------------------------------------------------

TEXT = st.text(max_size=12) | st.sampled_from(
    ["all", "void", "nvidia.com/gpu=0", "nvidia_driver", "=", "nvidia.com/gpu="]
)


@given(
    st.dictionaries(st.sampled_from([DEVICES, SWARM, "OTHER", "CUDA_VERSION", CONFIG, "NVIDIA_IMEX_CHANNELS"]), TEXT),
    st.lists(TEXT.map(lambda name: ("/dev/null", f"{ROOT}/{name}")), max_size=3),
    st.dictionaries(st.sampled_from([CDI, LABEL, "cdi.k8s.io/"]) | TEXT, TEXT, max_size=3),
    st.booleans(),
    st.sampled_from([OPEN, SHUT, Config()]),
)
def test_any_way_of_asking_gives_a_request_none_or_an_error_of_ours(
    env: dict[str, str], mounts: list[tuple[str, str]], annotations: dict[str, str], privileged: bool, config: Config
) -> None:
    container = box(env, tuple(mounts), tuple(annotations.items()), privileged)
    try:
        found = request.read(container, config)
    except GpuhookError as error:
        assert error.message.isprintable()
        return
    assert (request.why_not(container, config) == "") == (found is not None)
    assert found is None or found.origin.isprintable()


def test_a_sandbox_asks_by_no_channel() -> None:
    ways = itertools.chain(channels("all"), [box(annotations=((LABEL, "nvidia_driver"),))])
    for container in ways:
        assert request.read(replace(container, sandbox=True), OPEN) is None
