"""Which GPUs a request names. R numbers are field reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhook import devices
from gpuhook.errors import GpuhookError
from gpuhook.model import Gpu, Mig, Request, replace

V = "NVIDIA_VISIBLE_DEVICES"


def gpu(index: int, uuid: str, minor: int, bus: str, error: str = "") -> Gpu:
    return Gpu(index, uuid, minor, bus, "NVIDIA H200", "tesla", (9, 0), error)


# R31: indices follow the PCI order, minors do not. R30: the UUIDs share their beginning.
HOST = (
    gpu(0, "GPU-7af7a99b-276c-c9cb-b366-c6fa655957c5", 1, "00000000:0b:00.0"),
    gpu(1, "GPU-7af71234-1111-2222-3333-444455556666", 0, "00000000:84:00.0"),
    gpu(2, "GPU-00c0ffee-0000-0000-0000-000000000000", 2, "00000001:84:00.0"),
)
LOST = (HOST[0], replace(HOST[1], error="GPU is lost"), HOST[2])
BLIND = (replace(HOST[0], error="unknown error", uuid="", bus_id="", name=""), *HOST[1:])


def ask(*tokens: str) -> Request:
    return Request(tokens, V, ("compute", "utility"))


def refused(*tokens: str, host: tuple[Gpu, ...] = HOST) -> GpuhookError:
    with pytest.raises(GpuhookError) as caught:
        devices.select(ask(*tokens), host)
    assert V in caught.value.message
    assert caught.value.message.isprintable()
    return caught.value


@pytest.mark.parametrize(
    ("tokens", "indices"),
    [
        (("all",), (0, 1, 2)),
        ((), ()),
        (("0",), (0,)),
        (("2", "0"), (2, 0)),
        (("GPU-7af7a99b-276c-c9cb-b366-c6fa655957c5",), (0,)),
        (("gpu-7AF7A99B-276C-C9CB-B366-C6FA655957C5",), (0,)),  # R26
        (("GPU-7af7a99b",), (0,)),  # R30
        (("GPU-0",), (2,)),
        (("0000:0b:00.0",), (0,)),  # R35, all three forms
        (("00000000:0B:00.0",), (0,)),
        (("0b:00.0",), (0,)),
        (("84:00.0", "0001:84:00.0"), (1, 2)),
        (("0", "GPU-7af7a", "0b:00.0", "1"), (0, 1)),
    ],
)
def test_select(tokens: tuple[str, ...], indices: tuple[int, ...]) -> None:
    assert tuple(found.index for found in devices.select(ask(*tokens), HOST)) == indices
    devices.check(ask(*tokens))


def test_an_index_is_no_minor() -> None:
    """R31: index 0 is the GPU with the lower PCI address, /dev/nvidia1 here."""
    (found,) = devices.select(ask("0"), HOST)
    assert (found.minor, found.bus_id) == (1, "00000000:0b:00.0")


def test_all_follows_the_drivers_order_whatever_the_record_has() -> None:
    assert [found.index for found in devices.select(ask("all"), HOST[::-1])] == [0, 1, 2]


@pytest.mark.parametrize(
    ("token", "text"),
    [
        ("-1", "a negative index"),  # R26
        ("00", "leading zero"),
        ("3-0", "a range that runs backwards"),
        ("0-99999", "too long"),
        ("99999999999", "too many digits"),
        ("GPU-", "nothing is written"),
        ("GPU-xyz", "no index, UUID or PCI bus id"),
        ("7af7a99b-276c-c9cb-b366-c6fa655957c5", "no index, UUID or PCI bus id"),
        ("false", "for no GPU write none"),  # R25
        ("true", "for no GPU write none"),
        ("no", "for no GPU write none"),
        ("null", "for no GPU write none"),
        ("no-gpu-has-10MiB-to-run", "no index, UUID or PCI bus id"),  # R29
        ("a=b", "no index, UUID or PCI bus id"),  # R41
        ("nvidia.com/gpu=0", "no index, UUID or PCI bus id"),
        ("0b:00.8", "no index, UUID or PCI bus id"),
        ("00:0b:00.0", "no index, UUID or PCI bus id"),
        ("0000:0b:00", "no index, UUID or PCI bus id"),
        ("\uff11", "no index, UUID or PCI bus id"),
        ("1_0", "no index, UUID or PCI bus id"),
        ("\x1b[2J", "no index, UUID or PCI bus id"),
        ("x" * 5000, "no index, UUID or PCI bus id"),
    ],
)
def test_a_malformed_token_is_quoted_with_the_forms_and_the_gpus_there_are(token: str, text: str) -> None:
    """R25, R26 and R29; on a host whose GPUs are not known, `check` says the same without them."""
    error = refused(token)
    assert error.reference == "device-invalid"
    assert text in error.message
    assert repr(token[:20])[:-1] in error.message
    assert "a list of indices" in error.hint
    assert "GPU 1  GPU-7af71234-1111-2222-3333-444455556666  00000000:84:00.0" in error.hint
    assert len(error.message) < 300
    with pytest.raises(GpuhookError) as caught:
        devices.check(ask("0", token))
    assert caught.value.message == error.message
    assert "this host" not in caught.value.hint


@pytest.mark.parametrize("token", ["3", "GPU-7af7a99c", "0c:00.0", "ffffffff:84:00.0"])
def test_what_does_not_exist_is_answered_by_what_does(token: str) -> None:
    error = refused(token)
    assert (error.reference, repr(token) in error.message) == ("device-unknown", True)
    assert error.hint.count("\nGPU ") == 3


# --- MIG ----------------------------------------------------------------------------------------------------------

PARENT = "GPU-b8ea3855-276c-c9cb-b366-c6fa655957c5"
MIGS = (
    Mig(0, "MIG-7b7c4a6e-1d9e-5b1c-9f5a-0a1b2c3d4e5f", 1, 0, 12, 13),
    Mig(1, "MIG-7b7c0000-1d9e-5b1c-9f5a-0a1b2c3d4e5f", 2, 0, 21, 22),
    Mig(3, "MIG-aaaa0000-1d9e-5b1c-9f5a-0a1b2c3d4e5f", 2, 10, 21, 32),
)
# A host with a GPU in MIG mode, a whole one, and one in MIG mode that has no MIG device. Its ids are R27's.
MIXED = (
    replace(gpu(0, PARENT, 0, "00000000:0b:00.0"), mig=True, migs=MIGS),
    gpu(1, "GPU-11111111-0000-0000-0000-000000000000", 1, "00000000:0c:00.0"),
    replace(gpu(2, "GPU-22222222-0000-0000-0000-000000000000", 2, "00000000:0d:00.0"), mig=True),
)
OLD_NAMES = (replace(MIXED[0], migs=(replace(MIGS[0], uuid=f"MIG-{PARENT}/1/0"),)),)
PLACES = {mig.uuid: f"0:{mig.index}" for mig in MIGS}


def places(request: Request, host: tuple[Gpu, ...] = MIXED) -> list[str]:
    """What was chosen, as `index` of a GPU or `index:index` of a MIG device."""
    found = devices.select(request, host)
    for one in found:
        assert (one.minor, one.bus_id, one.brand) == (one.index, f"00000000:0{'bcd'[one.index]}:00.0", "tesla")
        assert not one.migs or one.migs[0].uuid == one.uuid
    return [f"{one.index}:{one.migs[0].index}" if one.migs else str(one.index) for one in found]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (("0:0",), ["0:0"]),
        (("0:3", "0:0"), ["0:3", "0:0"]),
        ((MIGS[0].uuid,), ["0:0"]),
        ((MIGS[0].uuid.upper(),), ["0:0"]),
        (("MIG-7b7c4",), ["0:0"]),
        (("MIG-aa",), ["0:3"]),
        ((f"MIG-{PARENT}/1/0",), ["0:0"]),
        ((f"mig-{PARENT.lower()}/2/0",), ["0:1"]),
        ((f"MIG-{PARENT}/2/10",), ["0:3"]),
        (("0:0", MIGS[0].uuid, f"MIG-{PARENT}/1/0", "0:0"), ["0:0"]),
        (("1", "0:1"), ["1", "0:1"]),
        (("all",), ["0:0", "0:1", "0:3", "1"]),
    ],
)
def test_mig_devices_are_chosen(tokens: tuple[str, ...], expected: list[str]) -> None:
    """R27: the new id, the old one, the index form, beginnings; and `all` on a mixed machine."""
    assert places(ask(*tokens)) == expected
    devices.check(ask(*tokens))


def test_the_old_id_is_the_one_that_an_old_driver_says() -> None:
    assert places(ask(f"MIG-{PARENT}/1/0"), OLD_NAMES) == ["0:0"]
    assert places(ask("0:0"), OLD_NAMES) == ["0:0"]


@pytest.mark.parametrize(
    "token",
    [
        "MIG-7b7c4a6e-1d9e-5b1c-9f5a-0a1b2c3d4e5e",
        f"MIG-{PARENT}/1/1",
        f"MIG-{PARENT}/2/1",  # is the beginning of /2/10, and not that
        "MIG-GPU-00000000/1/0",
        "0:2",
        "0:4",
        "1:0",
        "2:0",
        "9:0",
    ],
)
def test_a_mig_device_that_does_not_exist_is_answered_by_those_that_do(token: str) -> None:
    """R27."""
    error = refused(token, host=MIXED)
    assert (error.reference, repr(token) in error.message) == ("device-unknown", True)
    for mig in MIGS:
        assert f"\n  MIG 0:{mig.index}  {mig.uuid}  MIG-{PARENT}/{mig.gi}/{mig.ci}" in error.hint


@pytest.mark.parametrize("token", ["/var/run/nvidia-container-devices", "/var/run/nvidia-container-devices/0"])
def test_the_place_of_volume_mounts_is_answered_by_the_key_that_reads_them(token: str) -> None:
    """What Kubernetes' device plugin writes with its strategy volume-mounts, on a host that is not set up for it."""
    error = refused(token)
    assert (error.reference, "the place of volume mounts" in error.message) == ("device-invalid", True)
    assert "set request.accept-devices-as-volume-mounts = true in runtime.toml" in error.hint
    assert "`gpuhook configure ENGINE --privileged-only`" in error.hint


@pytest.mark.parametrize(
    "token",
    ["MIG-", "MIG-xx", "MIG-GPU-", "MIG-1/2/3", "MIG-GPU-1/2", "MIG-GPU-1/2/3/4", "MIG-GPU-1/02/0", "MIG-GPU-1/x/0"],
)
def test_a_malformed_mig_device(token: str) -> None:
    """R27: bad hex is an error that names what there is."""
    error = refused(token, host=MIXED)
    assert (error.reference, "no MIG device" in error.message) == ("device-invalid", True)
    assert MIGS[0].uuid in error.hint


@pytest.mark.parametrize("token", ["MIG-7b7c", f"MIG-{PARENT}", "MIG-GPU-b8"])
def test_an_ambiguous_beginning_of_a_mig_id(token: str) -> None:
    error = refused(token, host=MIXED)
    assert error.reference == "device-ambiguous"
    assert MIGS[0].uuid in error.message


@pytest.mark.parametrize("token", ["0", PARENT, "0b:00.0", "2"])
def test_a_gpu_in_mig_mode_is_not_given_whole(token: str) -> None:
    error = refused(token, host=MIXED)
    assert (error.reference, "MIG mode" in error.message) == ("device-unknown", True)
    assert MIGS[0].uuid in error.hint


def test_all_warns_of_a_divided_gpu_without_devices() -> None:
    (warning,) = devices.left_out(ask("all"), MIXED)
    assert "GPU 2 " in warning
    assert "no MIG device" in warning
    assert devices.left_out(ask("1"), MIXED) == ()


RIGHTS = replace(ask("all"), mig=("config",))


def test_who_may_divide_gpus_gets_them_whole() -> None:
    """The MIG devices bring their parent's node; a GPU without any is given itself, to be divided."""
    assert places(RIGHTS) == ["0:0", "0:1", "0:3", "1", "2"]
    assert places(replace(RIGHTS, devices=("0", "2"))) == ["0", "2"]
    assert devices.left_out(RIGHTS, MIXED) == ()


@pytest.mark.parametrize("right", ["config", "monitor"])
@pytest.mark.parametrize("token", ["0:0", "MIG-aa"])
def test_a_right_over_all_mig_devices_and_a_choice_of_some_exclude_each_other(right: str, token: str) -> None:
    with pytest.raises(GpuhookError) as caught:
        devices.select(replace(ask(token), mig=(right,)), MIXED)
    assert caught.value.reference == "device-invalid"
    assert f"NVIDIA_MIG_{right.upper()}_DEVICES" in caught.value.message
    assert repr(token) in caught.value.message


# --- CUDA_VISIBLE_DEVICES -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "visible", "warned"),
    [
        (("2",), "2", True),
        (("2",), "0", False),
        (("0", "2"), "0,1", False),
        (("0", "2"), "1, 2", True),
        (("all",), "2", False),
        (("all",), "3", True),
        ((), "0", True),
        (("2",), "", False),
        (("2",), "GPU-00c0ffee,-1,NoDevFiles,\uff11", False),
    ],
)
def test_cuda_visible_devices_counts_what_the_container_has(
    tokens: tuple[str, ...], visible: str, warned: bool
) -> None:
    """R39."""
    request = replace(ask(*tokens), cuda_visible=visible)
    warnings = devices.renumbered(request, devices.select(request, HOST))
    assert bool(warnings) == warned
    assert all("CUDA_VISIBLE_DEVICES" in text and text.isprintable() for text in warnings)


# --- ambiguity ----------------------------------------------------------------------------------------------------


def test_an_ambiguous_prefix_lists_the_uuids() -> None:
    """R30."""
    error = refused("GPU-7")
    assert error.reference == "device-ambiguous"
    assert HOST[0].uuid in error.message
    assert HOST[1].uuid in error.message
    assert HOST[2].uuid not in error.message


def test_a_full_uuid_is_never_ambiguous() -> None:
    short = replace(HOST[1], uuid="GPU-7")
    assert devices.select(ask("GPU-7"), (HOST[0], short)) == (short,)


@pytest.mark.parametrize(
    ("tokens", "host", "text"),
    [
        (("0", "1"), HOST[:1], "asked for 2 GPUs (0,1), host has 1"),
        (("0", "1", "2", "3"), HOST, "asked for 4 GPUs (0,1,2,3), host has 3"),
        (("0",), (), "asked for GPU 0, host has none"),
        (tuple(map(str, range(1024))), HOST, "13,14,15,...), host has 3"),
    ],
)
def test_more_indices_than_gpus(tokens: tuple[str, ...], host: tuple[Gpu, ...], text: str) -> None:
    """R33: docker turns `--gpus 2` into `0,1`."""
    error = refused(*tokens, host=host)
    assert error.reference == "device-unknown"
    assert text in error.message


def test_a_lost_gpu_stops_only_those_who_ask_for_it() -> None:
    assert devices.select(ask("0", "2"), LOST) == (LOST[0], LOST[2])
    assert devices.select(ask("all"), LOST) == (LOST[0], LOST[2])
    assert devices.left_out(ask("all"), LOST) == (
        "GPU 1  GPU-7af71234-1111-2222-3333-444455556666  00000000:84:00.0  NVIDIA H200 was left out: "
        "it does not answer (GPU is lost)",
    )
    assert devices.left_out(ask("0"), LOST) == ()
    error = refused("0", "1", host=LOST)
    assert (error.reference, "GPU is lost" in error.message, "'1'" in error.message) == ("device-lost", True, True)


def test_a_lost_gpu_that_tells_nothing_but_its_index_is_found_by_it() -> None:
    error = refused("0", host=BLIND)
    assert (error.reference, "GPU 0 does not answer: unknown error" in error.message) == ("device-lost", True)
    assert refused("GPU-ffff", host=BLIND).reference == "device-unknown"


def test_all_is_refused_where_every_gpu_is_lost_and_warned_about_where_there_is_none() -> None:
    dead = tuple(replace(one, error="GPU is lost") for one in HOST)
    assert refused("all", host=dead).reference == "device-lost"
    assert devices.select(ask("all"), ()) == ()
    assert devices.left_out(ask("all"), ()) == (f"{V} asks for all GPUs, and this host has none",)


def test_an_error_describes_16_gpus_at_most() -> None:
    many = tuple(gpu(index, f"GPU-{index:08x}", index, f"00000000:{index:02x}:00.0") for index in range(40))
    hint = refused("x", host=many).hint
    assert hint.count("\nGPU ") == 16
    assert hint.endswith("and 24 more")


@given(st.lists(st.text(max_size=20) | st.text("0123456789abcdefGPUMI-:.", max_size=16), max_size=4))
def test_any_tokens_give_gpus_of_the_host_or_an_error_of_ours(tokens: list[str]) -> None:
    try:
        found = devices.select(ask(*tokens), HOST)
        devices.select(ask(*tokens), MIXED)
    except GpuhookError as error:
        assert error.message.isprintable()
        return
    assert set(found) <= set(HOST)
    assert len(set(found)) == len(found)
