"""The driver's device nodes as they are now: looked at on every start, since they come and go without the driver.

A node counts if it is a character device, no link, and its major is one that `/proc/devices` lists for its driver: the
majors of nvidia-uvm and nvidia-caps differ from boot to boot, and a leftover node can belong to another driver by now.
Its minor must be the one that the driver gives the name, or a container would get another GPU than it was granted.

One that is missing, as after a boot, is planned where it may be made (`gpuhook.driver.making`), and `make` makes it.

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
    from gpuhook.model import Gpu

_LIMIT = 64 * 1024  # bytes of /proc/devices
_CORE = ("nvidia", "nvidia-frontend", "nvidiactl")  # the kernel module's names for its major, by its age
_UVM = ("nvidia-uvm",)
_CAPS = ("nvidia-caps",)
_IMEX = ("nvidia-caps-imex-channels",)
_MODESET = ("nvidia-modeset", "nvidia", "nvidia-frontend")
_FAMILY = (*_CORE, "nvidia-modeset")  # names of one and the same major
CONTROL = 255  # the minors of nvidiactl and nvidia-modeset (nvidia-modprobe-utils.h)
_MODESET_MINOR = 254
_CUDA_WORDS = ("compute", "video")  # words that bring libcuda, which nothing runs on without nvidia-uvm
_PARAMS = "driver/nvidia/params"  # below /proc: whether, and as what, the driver lets its nodes be made
_MAKE_CORE = "run `nvidia-modprobe -c 0` as root (or nvidia-smi, which makes the nodes too)"
_MAKE_CAP = "run `nvidia-smi -L` as root, which makes the nodes of all MIG devices"
_MAKE_IMEX = "make it by `mknod`: its major is that of nvidia-caps-imex-channels in /proc/devices, its minor the number"
_MAKE_DXG = "run `wsl --update` and `wsl --shutdown` on Windows"
_MAKE_UVM = "run `modprobe nvidia-uvm` and `nvidia-modprobe -c 0 -u` as root; nvidia-persistenced does so at boot"


def control(config: "Config", capabilities: "tuple[str, ...]") -> tuple[Node, ...]:
    """The nodes that a container needs besides those of its GPUs, for these words of NVIDIA_DRIVER_CAPABILITIES.

    nvidiactl always; nvidia-uvm with what brings libcuda (nvidia-uvm-tools where it can be had); nvidia-modeset with
    display or graphics where it can be had: a server without screens does not load that module. Raises node-missing.
    """
    known = majors(config)
    nodes = [core(config, known, "nvidiactl", CONTROL)]
    if any(word in capabilities for word in _CUDA_WORDS):
        nodes.append(one(config, known, "nvidia-uvm", _UVM, _MAKE_UVM, 0))
        nodes += _optional(config, known, "nvidia-uvm-tools", _UVM, 1)
    if "display" in capabilities or "graphics" in capabilities:
        rules = _PARAMS if "nvidia-modeset" in known else ""  # up to 545 nothing here says that the module is loaded
        nodes += _optional(config, known, "nvidia-modeset", _MODESET, _MODESET_MINOR, rules)
    return tuple(nodes)


def of_gpus(config: "Config", gpus: "tuple[Gpu, ...]") -> tuple[Node, ...]:
    """The nodes of what was granted, in order: of each GPU one, of each MIG device its parent's and its capabilities.

    Raises node-missing, and device-lost for a GPU whose minor NVML did not tell.
    """
    known = majors(config)
    nodes = []
    for gpu in gpus:
        if gpu.minor < 0:
            raise GpuhookError(
                "device-lost",
                f"GPU {gpu.index} ({gpu.bus_id or 'address unknown'}) has no device node: NVML says of it:"
                f" {gpu.error or 'no minor number'}",
                "look for NVRM and Xid lines in dmesg; a reset of the GPU or a reboot brings it back",
            )
        nodes.append(core(config, known, f"nvidia{gpu.minor}", gpu.minor))
        for mig in gpu.migs:
            what, folder = f"the MIG device {gpu.index}:{mig.index} ({mig.uuid})", f"gpu{gpu.minor}/mig/gi{mig.gi}"
            nodes.append(_capability(config, known, mig.gi_minor, what, f"{folder}/access"))
            nodes.append(_capability(config, known, mig.ci_minor, what, f"{folder}/ci{mig.ci}/access"))
    return tuple(dict.fromkeys(nodes))


def beside(config: "Config", rights: "tuple[str, ...]", channels: "tuple[int, ...]") -> tuple[Node, ...]:
    """The nodes of rights over all MIG devices (`config`, `monitor`) and of IMEX channels. Raises node-missing."""
    if not rights and not channels:
        return ()
    known = majors(config)
    table = key.cap_minors(config) if rights else ""
    nodes = []
    for right in rights:
        minor = key.cap_minor(table, right)
        nodes.append(_capability(config, known, minor, f"the right mig/{right}", f"mig/{right}"))
    nodes += [one(config, known, f"nvidia-caps-imex-channels/channel{n}", _IMEX, _MAKE_IMEX, n) for n in channels]
    return tuple(nodes)


def of_windows(config: "Config") -> tuple[Node, ...]:
    """WSL2's one node for all GPUs, /dev/dxg, a misc device whose minor /proc/misc tells. Raises node-missing."""
    try:
        lines = linux.read_file(config.proc_root.rstrip("/") + "/proc/misc", _LIMIT).split(b"\n")
    except OSError:
        lines = []
    minors = [line.split()[0] for line in lines if line.split()[1:] == [b"dxg"] and line.split()[0].isdigit()]
    if not minors:
        raise GpuhookError(
            "node-missing", f"{config.proc_root.rstrip('/')}/proc/misc has no line dxg: no kernel of WSL2", _MAKE_DXG
        )
    return (one(config, majors(config, (b"misc",)), "dxg", ("misc",), _MAKE_DXG, int(minors[0][:9]), ""),)


def core(config: "Config", known: "dict[str, list[int]]", name: str, minor: int) -> Node:
    """A node of the kernel module's own major: nvidiactl, or that of a GPU. Raises node-missing."""
    hint = _MAKE_CORE if minor == CONTROL else _MAKE_CORE.replace(" 0`", f" {minor}`")
    return one(config, known, name, _CORE, hint, minor)


def make(config: "Config", granted: tuple[Node, ...]) -> tuple[str, ...]:
    """Make those of the nodes that are missing; returns what was made. Raises node-missing where it can't be done."""
    missing = [node for node in granted if node.missing]
    if not missing:
        return ()
    from gpuhook.driver import making  # noqa: PLC0415 - after a boot

    return tuple([making.make(config, node) for node in missing])


def _capability(config: "Config", known: "dict[str, list[int]]", minor: int, what: str, name: str) -> Node:
    """The node of a capability, by its minor in the kernel module's table; `name` is its file in /proc."""
    if minor < 0:
        table = config.proc_root.rstrip("/") + "/proc/driver/nvidia-caps/mig-minors"
        raise GpuhookError(
            "node-missing",
            f"{what} has no capability: {table} has no line of it",
            "MIG takes driver 450 or newer, with its module nvidia-caps loaded; look for NVRM lines in dmesg",
        )
    rules = f"driver/nvidia/capabilities/{name}"
    return one(config, known, f"nvidia-caps/nvidia-cap{minor}", _CAPS, _MAKE_CAP, minor, rules)


def one(  # noqa: PLR0917 - what a node is, word by word
    config: "Config",
    known: "dict[str, list[int]]",
    name: str,
    drivers: tuple[str, ...],
    hint: str,
    minor: int = -1,
    rules: str = _PARAMS,
) -> Node:
    """The node `/dev/NAME`, whose major must be one of `drivers`, its minor the given one where that is known.

    `rules` is the file below /proc that says whether and as what a missing one may be made; none is made without it,
    or without a minor. Raises node-missing.
    """
    path = f"/dev/{name}"
    host = config.dev_root.rstrip("/") + path
    mine = [major for driver in drivers for major in known.get(driver, ())]
    try:
        status = posix.lstat(host)
    except OSError as error:
        more = "" if mine else f", and the kernel has no driver {drivers[0]}"
        if mine and minor >= 0 and rules:
            from gpuhook.driver import making  # noqa: PLC0415 - after a boot

            planned, why = making.plan(config, path, mine[0], minor, rules)
            if planned is not None:
                return planned
            more = f", and gpuhook does not make it: {why}"
        raise GpuhookError("node-missing", f"the device node {host} is missing: {error.strerror}{more}", hint) from None
    if not S_ISCHR(status.st_mode):
        raise GpuhookError(
            "node-missing", f"{host} is {_kind(status.st_mode)}, not the driver's device node", f"remove it and {hint}"
        )
    major, found = posix.major(status.st_rdev), posix.minor(status.st_rdev)
    proc = config.proc_root.rstrip("/")
    if major not in mine:
        if not mine:
            raise GpuhookError(
                "node-missing",
                f"{host} belongs to no driver: {proc}/proc/devices has no line {drivers[0]}",
                hint,
            )
        raise GpuhookError(
            "node-missing",
            f"{host} has device number {major}:{found}, but {proc}/proc/devices gives {drivers[0]} the major"
            f" {' or '.join([str(number) for number in mine])}",
            f"remove it and {hint}",
        )
    if minor not in (-1, found) and not _is_shared(known, major, drivers):
        raise GpuhookError(
            "node-missing",
            f"{host} has device number {major}:{found}, and the driver gives {name} the minor {minor}",
            f"remove it and {hint}",
        )
    return Node(path, major, found, S_IMODE(status.st_mode), status.st_uid, status.st_gid)


def _is_shared(known: "dict[str, list[int]]", major: int, drivers: tuple[str, ...]) -> bool:
    """Whether other drivers have the same major: then it says nothing of what its minors mean."""
    own = _FAMILY if drivers[0] in _FAMILY else drivers
    return any(major in numbers for name, numbers in known.items() if name not in own)


def _optional(  # noqa: PLR0917 - as `one`
    config: "Config",
    known: "dict[str, list[int]]",
    name: str,
    drivers: tuple[str, ...],
    minor: int,
    rules: str = _PARAMS,
) -> tuple[Node, ...]:
    """The node if it is there and right; a container does without."""
    try:
        return (one(config, known, name, drivers, "", minor, rules),)
    except GpuhookError:
        return ()


def majors(config: "Config", beginnings: tuple[bytes, ...] = (b"nvidia",)) -> "dict[str, list[int]]":
    """The character majors of drivers whose names begin so, by the driver's name in /proc/devices."""
    try:
        text = linux.read_file(config.proc_root.rstrip("/") + "/proc/devices", _LIMIT)
    except OSError:
        return {}
    found: dict[str, list[int]] = {}
    for line in text.partition(b"Block devices:")[0].split(b"\n"):
        number, _, name = line.strip().partition(b" ")
        if name.startswith(beginnings) and number.isdigit() and len(number) < 10:
            found.setdefault(name.strip().decode("utf-8", "replace"), []).append(int(number))
    return found


def _kind(mode: int) -> str:
    if S_ISLNK(mode):
        return "a symbolic link"
    if S_ISDIR(mode):
        return "a directory"
    if S_ISBLK(mode):
        return "a block device"
    return f"a file of type {S_IFMT(mode) >> 12:o}" if S_IFMT(mode) != 0o100000 else "a regular file"
