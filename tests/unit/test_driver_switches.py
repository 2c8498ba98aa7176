"""NVIDIA_GDS, NVIDIA_MOFED, NVIDIA_GDRCOPY and NVIDIA_NVSWITCH: who may say them, and which nodes they bring."""

import os
import stat
from pathlib import Path

import pytest

from gpuhook import channels, fastpath, request
from gpuhook.config import Config
from gpuhook.driver import switches
from gpuhook.errors import GpuhookError
from gpuhook.model import Container, Request

DEVICES = """Character devices:
 10 misc
231 infiniband_verbs
240 infiniband_verbs
241 nvidia-fs
242 gdrdrv
243 nvidia-nvswitch
195 nvidia

Block devices:
"""
NODES = {
    "nvidia-fs0": (241, 0),
    "nvidia-fs1": (241, 1),
    "nvidia-fs10": (241, 10),
    "gdrdrv": (242, 0),
    "nvidia-nvswitchctl": (243, 255),
    "nvidia-nvswitch0": (243, 0),
    "nvidia-nvswitch1": (243, 1),
    "infiniband/uverbs0": (231, 192),
    "infiniband/uverbs33": (240, 1),
    "infiniband/rdma_cm": (10, 58),
    "infiniband/umad0": (231, 0),
}


@pytest.fixture
def host(folder: Path) -> Config:
    """A host that has all of them."""
    (folder / "dev/infiniband").mkdir(parents=True)
    (folder / "proc").mkdir()
    (folder / "proc/devices").write_text(DEVICES)
    (folder / "proc/misc").write_text(" 58 rdma_cm\n232 kvm\n")
    for name, number in NODES.items():
        node(folder / "dev" / name, *number)
    return Config(dev_root=str(folder), proc_root=str(folder))


def node(path: Path, major: int, minor: int) -> None:
    path.unlink(missing_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))


BRINGS = {
    "gds": ["nvidia-fs0", "nvidia-fs1", "nvidia-fs10"],
    "mofed": ["infiniband/uverbs0", "infiniband/uverbs33", "infiniband/rdma_cm"],
    "gdrcopy": ["gdrdrv"],
    "nvswitch": ["nvidia-nvswitchctl", "nvidia-nvswitch0", "nvidia-nvswitch1"],
}


@pytest.mark.parametrize("word", BRINGS)
def test_what_each_brings(word: str, host: Config) -> None:
    """Its nodes by the numbers that they have here, in order, and nothing that is named alike."""
    found, warnings = switches.nodes_of(host, (word,))
    assert [item.path for item in found] == [f"/dev/{name}" for name in BRINGS[word]]
    assert [(item.major, item.minor) for item in found] == [NODES[name] for name in BRINGS[word]]
    assert warnings == ()


def test_all_together(host: Config) -> None:
    found, _ = switches.nodes_of(host, tuple(BRINGS))
    assert [item.path[5:] for item in found] == [name for names in BRINGS.values() for name in names]


@pytest.mark.parametrize(("word", "kind"), switches.KINDS.items(), ids=switches.KINDS)
def test_asked_for_and_not_there(word: str, kind: switches.Kind, host: Config, folder: Path) -> None:
    """The error names the variable, the nodes, and the kernel driver where that is not loaded."""
    for name in BRINGS[word]:
        (folder / "dev" / name).unlink()
    with pytest.raises(GpuhookError) as caught:
        switches.nodes_of(host, (word,))
    assert caught.value.reference == "node-missing"
    assert f"{kind.variable}=enabled" in caught.value.message
    assert "no driver" not in caught.value.message
    assert f"leave {kind.variable} out" in caught.value.hint
    lines = [line for line in DEVICES.splitlines(keepends=True) if not line.rstrip().endswith(kind.drivers[0])]
    (folder / "proc/devices").write_text("".join(lines))
    with pytest.raises(GpuhookError, match=f"the kernel has no driver {kind.drivers[0]}"):
        switches.nodes_of(host, (word,))


FOREIGN = {
    "gds": ("nvidia-fs1", 195, 0),
    "mofed": ("infiniband/uverbs0", 242, 0),
    "gdrcopy": ("gdrdrv", 1, 1),
    "nvswitch": ("nvidia-nvswitch1", 243, 0),
}


@pytest.mark.parametrize(("word", "wrong"), FOREIGN.items(), ids=FOREIGN)
def test_a_node_of_another_driver_is_never_given(
    word: str, wrong: tuple[str, int, int], host: Config, folder: Path
) -> None:
    node(folder / "dev" / wrong[0], *wrong[1:])
    with pytest.raises(GpuhookError, match="has device number") as caught:
        switches.nodes_of(host, (word,))
    assert caught.value.reference == "node-missing"


@pytest.mark.parametrize("case", ["missing", "kvm", "untold"])
def test_rdma_cm_is_one_of_many_drivers(case: str, host: Config, folder: Path) -> None:
    """Its major is that of all miscellaneous devices, such as kvm: the kernel's table decides; it is optional."""
    if case == "missing":
        (folder / "dev/infiniband/rdma_cm").unlink()
    elif case == "kvm":
        node(folder / "dev/infiniband/rdma_cm", 10, 232)
    else:
        (folder / "proc/misc").unlink()
    found, warnings = switches.nodes_of(host, ("mofed",))
    assert [item.path for item in found] == ["/dev/infiniband/uverbs0", "/dev/infiniband/uverbs33"]
    assert len(warnings) == 1
    assert "rdma_cm" in warnings[0]


# --- who may say it -----------------------------------------------------------------------------------------------


def asked(name: str, text: str, devices: str = "all") -> Request:
    found = request.read(Container((("NVIDIA_VISIBLE_DEVICES", devices), (name, text))), Config())
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "word"), [("NVIDIA_GDS", "gds"), ("NVIDIA_MOFED", "mofed")])
def test_the_word_is_enabled(name: str, word: str) -> None:
    assert asked(name, "enabled").switches == (word,)
    assert asked(name, "enabled", "none").switches == (word,)


@pytest.mark.parametrize("text", ["Enabled", "1", "true", "yes", "enabled ", "all", "disable"])
def test_no_other_word_counts(text: str) -> None:
    """NVIDIA's stack takes this one word; another one is pointed out."""
    found = asked("NVIDIA_GDRCOPY", text)
    assert found.switches == ()
    assert [warning for warning in found.warnings if "NVIDIA_GDRCOPY" in warning and "enabled" in warning]


@pytest.mark.parametrize("text", ["", "disabled"])
def test_off_is_off(text: str) -> None:
    assert (asked("NVIDIA_NVSWITCH", text).switches, asked("NVIDIA_NVSWITCH", text).warnings) == ((), ())


@pytest.mark.parametrize("devices", ["", "void"])
def test_without_a_request_for_devices_they_say_nothing(devices: str) -> None:
    container = Container((("NVIDIA_VISIBLE_DEVICES", devices), ("NVIDIA_GDS", "enabled")))
    assert request.read(container, Config()) is None
    assert request.read(Container((("NVIDIA_GDS", "enabled"),)), Config()) is None
    assert not [name for name, _ in channels.SWITCHES if name in "".join(fastpath.patterns(Config()))]


def test_the_policy_for_the_environment_is_for_them_too() -> None:
    """An image can carry the variable: where images may not ask, this one does not either."""
    config = Config(accept_env_when_unprivileged=False, accept_devices_as_volume_mounts=True)
    mount = ("/dev/null", "/var/run/nvidia-container-devices/0")
    for privileged, words in ((False, ()), (True, ("gds",))):
        found = request.read(Container((("NVIDIA_GDS", "enabled"),), mounts=(mount,), privileged=privileged), config)
        assert found is not None
        assert found.switches == words
        assert privileged or "NVIDIA_GDS=enabled is ignored" in found.warnings[0]
