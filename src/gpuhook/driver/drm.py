"""The DRM nodes of the granted GPUs, and of no other: looked at on every start that is to draw.

The kernel says by PCI address which nodes a GPU has (`/sys/bus/pci/devices/ADDRESS/drm`) and what number each has, so
neither order nor name has to be guessed. Where nvidia-drm is not loaded there are none, as on many servers: no error.

Loaded only for containers with `graphics` or `display`.
"""

import posix
from _stat import S_IMODE, S_ISCHR

from gpuhook import linux
from gpuhook.model import Link, Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.config import Config
    from gpuhook.model import Gpu

CAPABILITIES = ("graphics", "display")
_MOST = 16  # nodes of one GPU; it has two
_LIMIT = 64  # bytes of a number in sysfs


def of_gpus(config: "Config", gpus: "tuple[Gpu, ...]") -> "tuple[tuple[Node, ...], tuple[str, ...]]":
    """The DRM nodes of what was granted, in order, and a warning for each that the kernel names and /dev has not.

    Of a MIG device none, unless its profile has graphics.
    """
    found: list[Node] = []
    warnings = []
    for gpu in gpus:
        for name in names(config, gpu):
            path = f"/dev/dri/{name}"
            host = config.dev_root.rstrip("/") + path
            number = _number(f"{_folder(config, gpu)}/{name}/dev")
            try:
                status = posix.lstat(host)
            except OSError:
                warnings.append(f"left out {host}, a node of GPU {gpu.index}: it is missing; run `udevadm trigger`")
                continue
            known = (posix.major(status.st_rdev), posix.minor(status.st_rdev))
            if S_ISCHR(status.st_mode) and known == number:
                found.append(Node(path, *known, S_IMODE(status.st_mode), status.st_uid, status.st_gid))
            else:
                warnings.append(
                    f"left out {host}: it is not the device node that the kernel gave GPU {gpu.index} ({gpu.bus_id})"
                )
    return tuple(dict.fromkeys(found)), tuple(warnings)


def links(config: "Config", gpus: "tuple[Gpu, ...]", nodes: "tuple[str, ...]") -> "tuple[Link, ...]":
    """The links by PCI address that systemd makes for DRM nodes; `nodes` are the paths of those that were granted."""
    found = []
    for gpu in gpus:
        for name in names(config, gpu):
            if f"/dev/dri/{name}" in nodes:
                kind = "render" if name.startswith("renderD") else "card"  # as systemd's rules name them
                target = f"/dev/dri/by-path/pci-{address(gpu.bus_id)}-{kind}"
                found.append(Link(target, f"../{name}", f"GPU {gpu.index} by its address", optional=True))
    return tuple(found)


def names(config: "Config", gpu: "Gpu") -> "list[str]":
    """The names of a granted GPU's DRM nodes, `card0` and `renderD128`, or none."""
    if gpu.mig and not any(mig.gfx for mig in gpu.migs):
        return []
    try:
        entries = posix.listdir(_folder(config, gpu))
    except OSError:
        return []
    return sorted([name for name in entries if _is_node(name)])[:_MOST]


def address(bus_id: str) -> str:
    """A PCI address as sysfs writes it: four digits of domain, more only where they are needed."""
    domain, _, rest = bus_id.partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"


def _folder(config: "Config", gpu: "Gpu") -> str:
    return f"{config.sys_root.rstrip('/')}/sys/bus/pci/devices/{address(gpu.bus_id)}/drm"


def _is_node(name: str) -> bool:
    number = name.removeprefix("renderD" if name.startswith("renderD") else "card")
    return number != name and number.isascii() and number.isdigit()


def _number(path: str) -> "tuple[int, ...]":
    """`226:0` of a file of sysfs; nothing where it has no such text."""
    try:
        words = linux.read_file(path, _LIMIT).strip().split(b":")
    except OSError:
        return ()
    return tuple([int(word) for word in words]) if all(word.isdigit() for word in words) else ()
