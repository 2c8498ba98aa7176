"""The driver's device nodes as they are now: looked at on every start, since they come and go without the driver.

A node counts if it is a character device, no link, and its major is one that `/proc/devices` lists for its driver: the
majors of nvidia-uvm and nvidia-caps differ from boot to boot, and a leftover node can belong to another driver by now.

Hot path.
"""

import posix
from _stat import S_IFMT, S_IMODE, S_ISBLK, S_ISCHR, S_ISDIR, S_ISLNK

from gpuhook import linux
from gpuhook.driver import key
from gpuhook.errors import GpuhookError
from gpuhook.model import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.config import Config
    from gpuhook.model import Gpu, Mig

_LIMIT = 64 * 1024  # bytes of /proc/devices
_CORE = ("nvidia", "nvidia-frontend", "nvidiactl")  # the kernel module's names for its major, by its age
_UVM = ("nvidia-uvm",)
_CAPS = ("nvidia-caps",)
_IMEX = ("nvidia-caps-imex-channels",)
_MODESET = ("nvidia-modeset", "nvidia", "nvidia-frontend")
_MAKE_CORE = "run `nvidia-modprobe -c 0` as root (or nvidia-smi, which makes the nodes too)"
_MAKE_CAP = "run `nvidia-smi -L` as root, which makes the nodes of all MIG devices"
_MAKE_IMEX = "make it by `mknod`: its major is that of nvidia-caps-imex-channels in /proc/devices, its minor the number"
_MAKE_UVM = "run `modprobe nvidia-uvm` and `nvidia-modprobe -c 0 -u` as root; nvidia-persistenced does so at boot"


def control(config: "Config", capabilities: "tuple[str, ...]") -> tuple[Node, ...]:
    """The nodes that a container needs besides those of its GPUs, for these words of NVIDIA_DRIVER_CAPABILITIES.

    nvidiactl always; nvidia-uvm with compute (nvidia-uvm-tools where it is there); nvidia-modeset with display or
    graphics where it is there. Raises node-missing.
    """
    majors = _majors(config)
    nodes = [_node(config, majors, "nvidiactl", _CORE, _MAKE_CORE)]
    if "compute" in capabilities:
        nodes.append(_node(config, majors, "nvidia-uvm", _UVM, _MAKE_UVM))
        nodes += _optional(config, majors, "nvidia-uvm-tools", _UVM)
    if "display" in capabilities or "graphics" in capabilities:
        nodes += _optional(config, majors, "nvidia-modeset", _MODESET)
    return tuple(nodes)


def of_gpus(config: "Config", gpus: "tuple[Gpu, ...]") -> tuple[Node, ...]:
    """The nodes of what was granted, in order: of each GPU one, of each MIG device its parent's and its capabilities.

    Raises node-missing, and device-lost for a GPU whose minor NVML did not tell.
    """
    majors = _majors(config)
    nodes = []
    for gpu in gpus:
        if gpu.minor < 0:
            raise GpuhookError(
                "device-lost",
                f"GPU {gpu.index} ({gpu.bus_id or 'address unknown'}) has no device node: NVML says of it:"
                f" {gpu.error or 'no minor number'}",
                "look for NVRM and Xid lines in dmesg; a reset of the GPU or a reboot brings it back",
            )
        nodes.append(_node(config, majors, f"nvidia{gpu.minor}", _CORE, _MAKE_CORE.replace(" 0`", f" {gpu.minor}`")))
        for mig in gpu.migs:
            nodes += [_capability(config, majors, minor, _named(gpu, mig)) for minor in (mig.gi_minor, mig.ci_minor)]
    return tuple(dict.fromkeys(nodes))


def beside(config: "Config", rights: "tuple[str, ...]", channels: "tuple[int, ...]") -> tuple[Node, ...]:
    """The nodes of rights over all MIG devices (`config`, `monitor`) and of IMEX channels. Raises node-missing."""
    if not rights and not channels:
        return ()
    majors = _majors(config)
    table = key.cap_minors(config) if rights else ""
    nodes = [_capability(config, majors, key.cap_minor(table, right), f"the right mig/{right}") for right in rights]
    nodes += [_node(config, majors, f"nvidia-caps-imex-channels/channel{n}", _IMEX, _MAKE_IMEX) for n in channels]
    return tuple(nodes)


def _capability(config: "Config", majors: "dict[str, list[int]]", minor: int, what: str) -> Node:
    """The node of a capability, by its minor in the kernel module's table."""
    if minor < 0:
        table = config.proc_root.rstrip("/") + "/proc/driver/nvidia-caps/mig-minors"
        raise GpuhookError(
            "node-missing",
            f"{what} has no capability: {table} has no line of it",
            "MIG takes driver 450 or newer, with its module nvidia-caps loaded; look for NVRM lines in dmesg",
        )
    return _node(config, majors, f"nvidia-caps/nvidia-cap{minor}", _CAPS, _MAKE_CAP)


def _named(gpu: "Gpu", mig: "Mig") -> str:
    return f"the MIG device {gpu.index}:{mig.index} ({mig.uuid})"


def _node(config: "Config", majors: "dict[str, list[int]]", name: str, drivers: tuple[str, ...], hint: str) -> Node:
    """The node `/dev/NAME`, whose major must be one of `drivers`. Raises node-missing."""
    path = f"/dev/{name}"
    host = config.dev_root.rstrip("/") + path
    mine = [major for driver in drivers for major in majors.get(driver, ())]
    try:
        status = posix.lstat(host)
    except OSError as error:
        module = "" if mine else f", and the kernel has no driver {drivers[0]}"
        raise GpuhookError(
            "node-missing", f"the device node {host} is missing: {error.strerror}{module}", hint
        ) from None
    if not S_ISCHR(status.st_mode):
        raise GpuhookError(
            "node-missing", f"{host} is {_kind(status.st_mode)}, not the driver's device node", f"remove it and {hint}"
        )
    major, minor = posix.major(status.st_rdev), posix.minor(status.st_rdev)
    if major not in mine:
        proc = config.proc_root.rstrip("/")
        if not mine:
            raise GpuhookError(
                "node-missing",
                f"{host} belongs to no driver: {proc}/proc/devices has no line {drivers[0]}",
                hint,
            )
        raise GpuhookError(
            "node-missing",
            f"{host} has device number {major}:{minor}, but {proc}/proc/devices gives {drivers[0]} the major"
            f" {' or '.join([str(number) for number in mine])}",
            f"remove it and {hint}",
        )
    return Node(path, major, minor, S_IMODE(status.st_mode), status.st_uid, status.st_gid)


def _optional(
    config: "Config", majors: "dict[str, list[int]]", name: str, drivers: tuple[str, ...]
) -> tuple[Node, ...]:
    """The node if it is there and right; a container does without."""
    try:
        return (_node(config, majors, name, drivers, ""),)
    except GpuhookError:
        return ()


def _majors(config: "Config") -> "dict[str, list[int]]":
    """The character majors of the NVIDIA drivers, by the driver's name in /proc/devices."""
    try:
        text = linux.read_file(config.proc_root.rstrip("/") + "/proc/devices", _LIMIT)
    except OSError:
        return {}
    majors: dict[str, list[int]] = {}
    for line in text.partition(b"Block devices:")[0].split(b"\n"):
        number, _, name = line.strip().partition(b" ")
        if name.startswith(b"nvidia") and number.isdigit() and len(number) < 10:
            majors.setdefault(name.strip().decode("utf-8", "replace"), []).append(int(number))
    return majors


def _kind(mode: int) -> str:
    if S_ISLNK(mode):
        return "a symbolic link"
    if S_ISDIR(mode):
        return "a directory"
    if S_ISBLK(mode):
        return "a block device"
    return f"a file of type {S_IFMT(mode) >> 12:o}" if S_IFMT(mode) != 0o100000 else "a regular file"
