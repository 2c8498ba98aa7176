"""DRM nodes: those that the kernel gives the granted GPUs, by their number, and links by PCI address."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import hook, sim
from gpuhook.driver import drm
from gpuhook.model import Gpu, Link, Mig, Record, Write, replace
from tests.unit.driver_support import config_of


def gpu(index: int, bus_id: str, minor: int | None = None) -> Gpu:
    return Gpu(index, f"GPU-{index}", index if minor is None else minor, bus_id, "N", "tesla", (9, 0))


FIRST, SECOND = gpu(0, "00000000:0b:00.0"), gpu(1, "00000000:0c:00.0")


class Host:
    """Nodes and what sysfs says of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = config_of(root)

    def card(self, address: str, name: str, number: tuple[int, int] = (1, 3), told: str = "") -> "Host":
        """A DRM node, and the number that the kernel tells."""
        folder = self.root / f"sys/bus/pci/devices/{address}/drm/{name}"
        folder.mkdir(parents=True)
        (folder / "dev").write_text(told or f"{number[0]}:{number[1]}\n")
        node = self.root / "dev/dri" / name
        node.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(node, stat.S_IFCHR | 0o660, os.makedev(*number))
        node.chmod(0o660)  # whatever the umask
        os.chown(node, 0, 44)
        return self


@pytest.fixture
def host(folder: Path) -> Host:
    return Host(folder / "host")


def paths(host: Host, *gpus: Gpu) -> list[str]:
    return [node.path for node in drm.of_gpus(host.config, gpus)[0]]


def test_by_the_kernels_word_not_by_any_order(host: Host) -> None:
    """R99: card0 is another vendor's, and the cards of the GPUs count the other way round."""
    host.card("0000:01:00.0", "card0").card("0000:0b:00.0", "card2", (1, 5)).card("0000:0b:00.0", "renderD129", (1, 7))
    host.card("0000:0c:00.0", "card1").card("0000:0c:00.0", "renderD128")
    assert paths(host, FIRST) == ["/dev/dri/card2", "/dev/dri/renderD129"]
    assert paths(host, SECOND) == ["/dev/dri/card1", "/dev/dri/renderD128"]
    assert paths(host, SECOND, FIRST)[:2] == ["/dev/dri/card1", "/dev/dri/renderD128"]
    assert paths(host) == []
    (card, _), warnings = drm.of_gpus(host.config, (FIRST,))
    assert (card.major, card.minor, card.mode, card.uid, card.gid, warnings) == (1, 5, 0o660, 0, 44, ())


def test_a_host_without_nvidia_drm_has_none_and_nothing_is_said(host: Host) -> None:
    assert drm.of_gpus(host.config, (FIRST, SECOND)) == ((), ())


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        ("00000000:0b:00.0", "0000:0b:00.0"),
        ("0000000a:0b:00.0", "000a:0b:00.0"),
        ("00010000:0b:00.0", "10000:0b:00.0"),
        ("", "0000:"),
    ],
)
def test_addresses_are_written_as_in_sysfs(bus_id: str, address: str) -> None:
    assert drm.address(bus_id) == address


def test_names_that_are_no_nodes_are_passed_over(host: Host) -> None:
    for name in ("card", "cardx", "card0-DP-1", "renderD", "version", "controlD64"):
        (host.root / f"sys/bus/pci/devices/0000:0b:00.0/drm/{name}").mkdir(parents=True)
    assert paths(host, FIRST) == []


def test_a_node_that_is_missing_is_warned_about(host: Host) -> None:
    host.card("0000:0b:00.0", "card1").card("0000:0b:00.0", "renderD128")
    (host.root / "dev/dri/card1").unlink()
    found, warnings = drm.of_gpus(host.config, (FIRST,))
    assert [node.path for node in found] == ["/dev/dri/renderD128"]
    assert "dev/dri/card1" in warnings[0]
    assert "udevadm" in warnings[0]


NUMBER, NODE = "sys/bus/pci/devices/0000:0b:00.0/drm/card1/dev", "dev/dri/card1"


def _as_a_link(root: Path) -> None:
    (root / NODE).rename(root / "dev/dri/x")
    (root / NODE).symlink_to("x")


def _as_a_file(root: Path) -> None:
    (root / NODE).unlink()
    (root / NODE).touch()


WRONG: dict[str, Callable[[Path], object]] = {
    "another number": lambda root: (root / NUMBER).write_text("226:9"),
    "no number": lambda root: (root / NUMBER).write_text("x"),
    "no file": lambda root: os.unlink(root / NUMBER),
    "a link": _as_a_link,
    "a file": _as_a_file,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_node_that_is_not_the_kernels_is_not_given(host: Host, wrong: str) -> None:
    host.card("0000:0b:00.0", "card1")
    WRONG[wrong](host.root)
    found, warnings = drm.of_gpus(host.config, (FIRST,))
    assert found == ()
    assert "GPU 0 (00000000:0b:00.0)" in warnings[0]


@pytest.mark.parametrize(
    ("mig", "migs", "given"),
    [
        (True, (Mig(0, "MIG-1", 1, 0, gfx=True),), True),
        (True, (Mig(0, "MIG-1", 1, 0), Mig(1, "MIG-2", 2, 0, gfx=True)), True),
        (True, (Mig(0, "MIG-1", 1, 0),), False),
        (True, (), False),
        (False, (), True),
    ],
    ids=["graphics", "one of two", "no graphics", "no device", "not divided"],
)
def test_mig_devices_get_them_where_their_profile_has_graphics(
    host: Host, mig: bool, migs: tuple[Mig, ...], given: bool
) -> None:
    host.card("0000:0b:00.0", "card1")
    assert (paths(host, replace(FIRST, mig=mig, migs=migs)) != []) is given


def test_links_by_address_lead_to_what_was_granted_alone(host: Host) -> None:
    host.card("0000:0b:00.0", "card1").card("0000:0b:00.0", "renderD128").card("0000:0c:00.0", "card2")
    found = drm.links(host.config, (FIRST, SECOND), ("/dev/dri/card1", "/dev/dri/renderD128", "/dev/nvidia0"))
    assert {link.target: link.text for link in found} == {
        "/dev/dri/by-path/pci-0000:0b:00.0-card": "../card1",
        "/dev/dri/by-path/pci-0000:0b:00.0-render": "../renderD128",
    }
    assert all(link.optional for link in found)


# --- what the hook makes of it -------------------------------------------------------------------------------------


def orders(capabilities: str, *more: str) -> hook.Orders:
    return hook.parse(["--record", "r", "--root", "/r", "--capabilities", capabilities, *more])


def test_the_hook_adds_links_and_profile_for_who_draws(folder: Path) -> None:
    sim.create(folder / "driver")
    config = config_of(folder / "driver")
    known = Record("r", "580.95.05", (13, 0), False, "x86-64", (FIRST, SECOND), ())
    words = ("--gpus", "GPU-1", "--node", "/dev/dri/card2:10:1", "--node", "/dev/nvidia1:10:1")
    *links, profile = hook.of_granted(known, orders("graphics", *words), config)
    assert [link.target for link in links if isinstance(link, Link)] == ["/dev/dri/by-path/pci-0000:0c:00.0-card"]
    assert isinstance(profile, Write)
    assert '"EGLVisibleDGPUDevices", 2' in profile.text
    assert hook.of_granted(known, orders("compute,utility", *words), config) == ()
