"""What a container gets beside its GPUs for NVIDIA_GDS, NVIDIA_MOFED, NVIDIA_GDRCOPY and NVIDIA_NVSWITCH, if `enabled`.

Each word stands for the nodes of one kernel driver, found by their names in /dev and proven by their majors as those of
GPUs are. Their drivers make them as they load, so none is made here, and what was asked for and is not there is an
error. The files beside the nodes of GDS are what its library reads: who backs a file system, and its configuration.

Loaded only for containers that ask for one.
"""

import posix

from gpuhook import linux
from gpuhook.driver import nodes
from gpuhook.errors import GpuhookError
from gpuhook.model import Bind, Node, value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.config import Config

_MOST = 256  # nodes of one kind
_LIMIT = 1 << 16  # bytes of /proc/misc
_DRIVERS = (b"nvidia", b"gdrdrv", b"infiniband_verbs", b"misc")  # beginnings of names in /proc/devices
_UDEV, _CUFILE = "/run/udev", "/etc/cufile.json"
STEPS = (
    Bind(_UDEV, _UDEV, "directory", optional=True, reason="GDS: which device backs a file system"),
    Bind(_CUFILE, _CUFILE, "data", optional=True, reason="GDS: the configuration of its library"),
)


@value
class Kind:
    """The nodes of one word: their folder below /dev, how their names begin before a number, names without one.

    `drivers` are the names of their kernel driver in /proc/devices, `hint` says how to get the nodes.
    """

    variable: str
    folder: str
    beginning: str
    names: tuple[str, ...]
    drivers: tuple[str, ...]
    hint: str


KINDS = {
    "gds": Kind(
        "NVIDIA_GDS",
        "",
        "nvidia-fs",
        ("nvidia-fs",),
        ("nvidia-fs",),
        "run `modprobe nvidia-fs` (package nvidia-fs or nvidia-gds)",
    ),
    "mofed": Kind(
        "NVIDIA_MOFED",
        "infiniband/",
        "uverbs",
        (),
        ("infiniband_verbs",),
        "run `modprobe ib_uverbs`, and see by `ibv_devices` whether this host has an RDMA card",
    ),
    "gdrcopy": Kind(
        "NVIDIA_GDRCOPY",
        "",
        "",
        ("gdrdrv",),
        ("gdrdrv",),
        "run `modprobe gdrdrv` and `systemctl restart gdrcopy` (package gdrcopy)",
    ),
    "nvswitch": Kind(
        "NVIDIA_NVSWITCH",
        "",
        "nvidia-nvswitch",
        ("nvidia-nvswitchctl",),
        ("nvidia-nvswitch",),
        "start nvidia-fabricmanager, if this host has NVSwitches",
    ),
}
_RDMA_CM = "infiniband/rdma_cm"


def nodes_of(config: "Config", words: "tuple[str, ...]") -> "tuple[tuple[Node, ...], tuple[str, ...]]":
    """The nodes of the words, and warnings. Raises node-missing where one brings none, or one that is another's."""
    known = nodes.majors(config, _DRIVERS)
    root = config.dev_root.rstrip("/")
    found: list[Node] = []
    warnings: list[str] = []
    for word in words:
        kind = KINDS[word]
        hint = f"{kind.hint}, or leave {kind.variable} out"
        names = _names(config, kind)
        if not names:
            wanted = f"{root}/dev/{kind.folder}{kind.beginning}*" if kind.beginning else f"{root}/dev/{kind.names[0]}"
            module = "" if known.get(kind.drivers[0]) else f", and the kernel has no driver {kind.drivers[0]}"
            raise GpuhookError(
                "node-missing",
                f"{kind.variable}=enabled asks for {wanted}, and there is none{module}",
                hint,
            )
        found += [nodes.one(config, known, name, kind.drivers, hint, _minor(kind, name), "") for name in names]
        if word == "mofed":
            found += _connection_manager(config, known, warnings)
    return tuple(found), tuple(warnings)


def _names(config: "Config", kind: Kind) -> "list[str]":
    """The names below /dev of the nodes that are there, in the order of their numbers."""
    try:
        entries = posix.listdir(f"{config.dev_root.rstrip('/')}/dev/{kind.folder}")
    except OSError:
        return []
    numbers = []
    for entry in entries:
        number = entry.removeprefix(kind.beginning) if kind.beginning else ""
        if number != entry and number.isascii() and number.isdigit() and len(number) < 6:
            numbers.append(int(number))
    names = [name for name in kind.names if name in entries]
    names += [f"{kind.beginning}{number}" for number in sorted(numbers) if f"{kind.beginning}{number}" in entries]
    return [kind.folder + name for name in names[:_MOST]]


def _minor(kind: Kind, name: str) -> int:
    """The minor that the driver gives a name; -1 for one of whose numbers nothing is known."""
    if kind.variable != "NVIDIA_NVSWITCH":
        return -1
    number = name.removeprefix(kind.beginning)
    return int(number) if number.isdigit() else nodes.CONTROL  # linux_nvswitch.c: 255 is the control node's


def _connection_manager(config: "Config", known: "dict[str, list[int]]", warnings: "list[str]") -> "list[Node]":
    """rdma_cm: one of the kernel's miscellaneous devices, whose minor /proc/misc tells."""
    host = f"{config.dev_root.rstrip('/')}/dev/{_RDMA_CM}"
    try:
        text = linux.read_file(f"{config.proc_root.rstrip('/')}/proc/misc", _LIMIT)
    except OSError:
        text = b""
    minors = [line.split()[0] for line in text.split(b"\n") if line.split()[1:] == [b"rdma_cm"]]
    try:
        found = nodes.one(config, known, _RDMA_CM, ("misc",), "run `modprobe rdma_ucm`")
    except GpuhookError as error:
        warnings.append(f"{error.message}: RDMA connections by address need it, {error.hint}")
        return []
    if [b"%d" % found.minor] != minors:
        warnings.append(f"left out {host}: /proc/misc does not say that its number is rdma_cm's")
        return []
    return [found]
