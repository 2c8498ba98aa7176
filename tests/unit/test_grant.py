"""The whole decision for one container against a simulated driver: what it gets of GPUs, MIG devices and nodes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import grant, hook, sim
from gpuhook.errors import GpuhookError
from gpuhook.model import Container, Node
from gpuhook.sim.options import check, gpu_uuid
from gpuhook.sim.state import capability
from tests.unit.driver_support import config_of, copy_of

CAP = "/dev/nvidia-caps/nvidia-cap"


def box(devices: str, privileged: bool = False, **more: str) -> Container:
    return Container((("NVIDIA_VISIBLE_DEVICES", devices), *more.items()), privileged=privileged)


@pytest.fixture
def divided(sim_driver: Path, folder: Path) -> Path:
    """A whole GPU 0, and GPU 1 with the MIG devices 1/0, 2/0 and 2/1."""
    driver = copy_of(sim_driver, folder / "divided")
    sim.set_mig(driver, ["1=1/0,2/0,2/1"])
    return driver


def decide(driver: Path, container: Container, folder: Path) -> grant.Grant:
    granted = grant.decide(container, config_of(driver), str(folder))
    assert granted is not None
    return granted


def given(granted: grant.Grant) -> list[str]:
    """The nodes beyond those that every container with utility and compute has."""
    common = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
    assert common <= {node.path for node in granted.nodes}
    return [node.path for node in granted.nodes if node.path not in common]


def caps(gi: int, ci: int) -> list[str]:
    return [f"{CAP}{capability(1, gi)}", f"{CAP}{capability(1, gi, ci)}"]


def test_nodes_of_mig_devices(divided: Path, folder: Path) -> None:
    """R146: the parent once, the GPU instance once, each compute instance; nothing of those that were not chosen."""
    assert given(decide(divided, box("1:0"), folder)) == ["/dev/nvidia1", *caps(1, 0)]
    assert given(decide(divided, box("1:1,1:2"), folder)) == ["/dev/nvidia1", *caps(2, 0), caps(2, 1)[1]]
    assert given(decide(divided, box("0"), folder)) == ["/dev/nvidia0"]
    assert given(decide(divided, box("none"), folder)) == []
    every = ["/dev/nvidia0", "/dev/nvidia1", *caps(1, 0), *caps(2, 0), caps(2, 1)[1]]
    assert given(decide(divided, box("all"), folder)) == every
    assert sim.init_count(divided) == 1


def test_rights_bring_their_nodes(divided: Path, folder: Path) -> None:
    container = box("1", privileged=True, NVIDIA_MIG_CONFIG_DEVICES="all", NVIDIA_MIG_MONITOR_DEVICES="all")
    assert given(decide(divided, container, folder)) == ["/dev/nvidia1", f"{CAP}1", f"{CAP}2"]
    with pytest.raises(GpuhookError, match="NVIDIA_MIG_CONFIG_DEVICES asks for all MIG devices"):
        decide(divided, box("1:0", privileged=True, NVIDIA_MIG_CONFIG_DEVICES="all"), folder)


@pytest.mark.parametrize(
    ("demand", "met"), [("brand=tesla,arch>=9.0", True), ("arch<9.0", False), ("cuda>=14.0", False)]
)
def test_a_requirement_is_judged_by_a_mig_devices_gpu(demand: str, met: bool, divided: Path, folder: Path) -> None:
    container = box("1:1", NVIDIA_REQUIRE_X=demand)
    if met:
        (granted,) = decide(divided, container, folder).gpus
        assert (granted.index, granted.migs[0].index, granted.arch) == (1, 1, (9, 0))
    else:
        with pytest.raises(GpuhookError) as caught:
            decide(divided, container, folder)
        assert caught.value.reference == "requirement-not-met"


def test_a_divided_gpu_is_not_given_whole(divided: Path, folder: Path) -> None:
    with pytest.raises(GpuhookError, match="in MIG mode") as caught:
        decide(divided, box("1"), folder)
    assert caught.value.reference == "device-unknown"
    assert caught.value.hint.count("  MIG 1:") == 3


def test_an_index_leads_to_the_minor_of_that_gpu(new_driver: Callable[..., Path], folder: Path) -> None:
    """R31: index 0 is the lower PCI address, whose node is /dev/nvidia1 here; so do MIG devices count."""
    options = sim.SimOptions(minors=(1, 0), bus_ids=("0000:0b:00.0", "0000:84:00.0"), mig=("1=1/0",))
    driver = new_driver(minors=options.minors, bus_ids=options.bus_ids, mig=options.mig)
    granted = decide(driver, box("0"), folder)
    assert (given(granted), granted.gpus[0].uuid) == (["/dev/nvidia1"], check(options)[0].uuid)
    capabilities = [f"{CAP}{capability(0, 1)}", f"{CAP}{capability(0, 1, 0)}"]
    assert given(decide(driver, box("1:0"), folder)) == ["/dev/nvidia0", *capabilities]


def test_cuda_visible_devices_is_warned_about(divided: Path, folder: Path) -> None:
    """R39."""
    assert any(
        "CUDA_VISIBLE_DEVICES='1'" in text
        for text in decide(divided, box("0", CUDA_VISIBLE_DEVICES="1"), folder).warnings
    )
    assert not decide(divided, box("0", CUDA_VISIBLE_DEVICES="0"), folder).warnings


def test_an_imex_channel_without_a_node_is_named(divided: Path, folder: Path) -> None:
    """It is planned, and nothing is made by deciding; where nothing may be made the container is refused."""
    container = box("0", NVIDIA_IMEX_CHANNELS="3")
    planned = [node for node in decide(divided, container, folder).nodes if node.missing]
    assert [node.path for node in planned] == ["/dev/nvidia-caps-imex-channels/channel3"]
    assert not (divided / "dev/nvidia-caps-imex-channels").exists()
    with pytest.raises(GpuhookError, match="channel3 is missing") as caught:
        grant.decide(container, config_of(divided, make_nodes=False), str(folder))
    assert caught.value.reference == "node-missing"


@pytest.fixture(scope="module")
def shuffled(place: Path) -> Path:
    """A host where NVML's order, the PCI addresses' and the minors' are three orders."""
    buses = ("0000:84:00.0", "0000:0b:00.0", "0001:0b:00.0")
    sim.create(place / "shuffled", sim.SimOptions(gpus=3, minors=(2, 0, 1), bus_ids=buses))
    return place / "shuffled"


FORMS = {
    "r31-index": ("0", "1", "2"),
    "bus": ("0000:84:00.0", "0b:00.0", "0001:0b:00.0"),
    "long-bus": ("00000000:84:00.0", "00000000:0B:00.0", "00000001:0B:00.0"),
    "uuid": tuple(gpu_uuid(index) for index in range(3)),
    "beginning": tuple(gpu_uuid(index)[:12] for index in range(3)),
}


@pytest.mark.parametrize("names", FORMS.values(), ids=FORMS)
def test_r31_index_address_uuid_and_minor_have_orders_of_their_own(
    names: tuple[str, ...], shuffled: Path, folder: Path
) -> None:
    """Each form leads to the one card, and its node is that of the card's minor, never that of its place in a list."""
    buses = ("0000:84:00.0", "0000:0b:00.0", "0001:0b:00.0")
    for name, minor, index, bus in zip(names, (2, 0, 1), range(3), buses, strict=True):
        granted = decide(shuffled, box(name), folder)
        orders = hook.parse(grant.orders(granted, Container((), root="/")))
        assert bus in hook.proc_names(granted.record, orders)[0][-1]  # its directory of /proc/driver/nvidia
        assert [gpu.index for gpu in granted.gpus] == [index]
        assert given(granted) == [f"/dev/nvidia{minor}"]
    assert given(decide(shuffled, box(f"{names[2]},{names[0]}"), folder)) == ["/dev/nvidia1", "/dev/nvidia2"]
    assert given(decide(shuffled, box("all"), folder)) == ["/dev/nvidia2", "/dev/nvidia0", "/dev/nvidia1"]


def test_r31_capabilities_go_by_the_minor(shuffled: Path, folder: Path) -> None:
    """The kernel's table of MIG capabilities counts minors, NVML counts its own indices."""
    driver = copy_of(shuffled, folder / "parted")
    sim.set_mig(driver, ["0=1/0", "1=2/0"])
    for name, minor, gi in (("0:0", 2, 1), ("1:0", 0, 2)):
        nodes = [f"{CAP}{capability(minor, gi)}", f"{CAP}{capability(minor, gi, 0)}"]
        assert given(decide(driver, box(name), folder)) == [f"/dev/nvidia{minor}", *nodes]


SWITCHES = {
    "NVIDIA_GDS": ["/dev/nvidia-fs0", "/dev/nvidia-fs1"],
    "NVIDIA_GDRCOPY": ["/dev/gdrdrv"],
    "NVIDIA_NVSWITCH": ["/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch0"],
}


def switched(devices: str, name: str) -> Container:
    return Container((("NVIDIA_VISIBLE_DEVICES", devices), (name, "enabled")))


def test_switches(sim_driver: Path, folder: Path) -> None:
    """Each brings its own nodes beside the GPU's, and is refused by its name where this host has none."""
    driver = copy_of(sim_driver, folder / "switched")
    with pytest.raises(GpuhookError, match=r"NVIDIA_GDRCOPY=enabled asks for \S+/dev/gdrdrv, and there is none, and"):
        decide(driver, box("0", NVIDIA_GDRCOPY="enabled"), folder)
    sim.set_switches(driver, ["gds", "mofed", "gdrcopy", "nvswitch"])
    for name, paths in SWITCHES.items():
        assert given(decide(driver, switched("0", name), folder)) == ["/dev/nvidia0", *paths]
        assert given(decide(driver, switched("none", name), folder)) == paths
    assert given(decide(driver, box("0"), folder)) == ["/dev/nvidia0"]
    assert "/dev/infiniband/uverbs0" in given(decide(driver, box("0", NVIDIA_MOFED="enabled"), folder))


def test_r98_a_server_without_modeset(sim_driver: Path, folder: Path) -> None:
    """Graphics and display without nvidia-modeset: the module is not loaded, and nobody misses it."""
    driver = copy_of(sim_driver, folder / "headless")
    (driver / "dev/nvidia-modeset").unlink()
    planned = decide(driver, box("0", NVIDIA_DRIVER_CAPABILITIES="all"), folder)
    assert [node.path for node in planned.nodes if node.missing] == ["/dev/nvidia-modeset"], "the module is loaded"
    devices = (driver / "proc/devices").read_text().splitlines(keepends=True)
    (driver / "proc/devices").write_text("".join(line for line in devices if "modeset" not in line))
    granted = decide(driver, box("0", NVIDIA_DRIVER_CAPABILITIES="all"), folder)
    assert "/dev/nvidia0" in given(granted)
    assert "/dev/nvidia-modeset" not in given(granted)


def test_none_on_a_host_whose_driver_is_not_loaded(sim_driver: Path, folder: Path) -> None:
    """The driver's files without a node, and the reason as a warning; who asks for a GPU is refused."""
    driver = copy_of(sim_driver, folder / "silent", "not-loaded")
    granted = decide(driver, box("none"), folder)
    assert (granted.gpus, granted.nodes) == ((), ())
    assert any("[driver-not-loaded]" in warning for warning in granted.warnings)
    orders = hook.parse([*grant.orders(granted, box("none")), "--root", "/"])
    assert hook.same_record(config_of(driver), str(folder), orders) == granted.record
    with pytest.raises(GpuhookError, match="driver-not-loaded"):
        decide(driver, box("all"), folder)


def test_none_on_a_host_without_its_nodes_is_refused(sim_driver: Path, folder: Path) -> None:
    """Where the driver answers, a missing control node is an error for everybody."""
    driver = copy_of(sim_driver, folder / "bare")
    (driver / "dev/nvidia-uvm").unlink()
    (driver / "proc/devices").write_text("Character devices:\n 10 misc\n")
    with pytest.raises(GpuhookError, match="node-missing"):
        decide(driver, box("none"), folder)


PATHS = {
    "none": ("", 0),
    "others": ("/usr/local/cuda/lib64:/opt/stubs/x:/compat2", 0),
    "stubs": ("/usr/local/cuda/lib64/stubs", 1),
    "both, and an end with a slash": ("/a/compat/:/b/stubs", 2),
    "many": (":".join(["/a/stubs"] * 50000), 2),
    "beyond those that are looked at": (":".join(["/x"] * grant.LIMIT_FOLDERS + ["/a/stubs"]), 0),
}


@pytest.mark.parametrize(("value", "count"), PATHS.values(), ids=PATHS)
def test_stubs_and_compat_in_the_library_path_are_warned_of(value: str, count: int) -> None:
    """R87: by folder; a long value makes no long log."""
    assert len(grant.library_path(box("all", LD_LIBRARY_PATH=value))) == count


MOUNTS = {
    "a fresh /dev": ((("tmpfs", "/dev"), ("devpts", "/dev/pts")), ("/dev",), []),
    "a volume at /dev": ((("/srv", "/dev"),), (), ["/dev/dri/card1", "/dev/nvidia0"]),
    "a volume below it": ((("tmpfs", "/dev"), ("/srv", "/dev/dri")), ("/dev",), ["/dev/dri/card1"]),
    "a fresh folder in a volume": ((("/srv", "/dev"), ("tmpfs", "/dev/dri")), ("/dev/dri",), ["/dev/nvidia0"]),
    "a volume over the node itself": ((("tmpfs", "/dev"), ("/srv", "/dev/nvidia0")), ("/dev",), []),
    "a volume over a fresh one": ((("tmpfs", "/dev"), ("/srv", "/dev")), (), ["/dev/dri/card1", "/dev/nvidia0"]),
    "a name that only begins so": ((("tmpfs", "/dev"), ("/srv", "/dev/dr")), ("/dev",), []),
    "elsewhere": ((("tmpfs", "/dev"), ("/srv", "/data"), ("/dev/dri", "/mnt")), ("/dev",), []),
}


@pytest.mark.parametrize(("mounts", "tmpfs", "expected"), MOUNTS.values(), ids=MOUNTS)
def test_nodes_that_would_lie_in_a_volume(
    mounts: tuple[tuple[str, str], ...], tmpfs: tuple[str, ...], expected: list[str]
) -> None:
    """The nearest mount above a node decides; each that the volume lacks is warned of."""
    nodes = tuple(Node(path, 10, 1, 0o666, 0, 0) for path in ("/dev/dri/card1", "/dev/nvidia0"))
    apart, warnings = grant.in_volumes(Container((), mounts=mounts, tmpfs=tmpfs), nodes)
    assert list(apart) == expected
    assert [text.partition(": it would lie in /dev")[0] for text in warnings] == [f"left out {path}" for path in apart]
