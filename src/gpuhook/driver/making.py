"""Device nodes that are missing: whether they may be made, as what, and making them.

The kernel does not make the driver's nodes; nvidia-modprobe does when somebody first uses a GPU, so after a boot they
may be missing. The driver says in /proc whether programs may make them and with which owner and mode (ModifyDeviceFiles
and DeviceFile* in its README, "NVreg_"), the administrator by `driver.make-nodes`. The numbers are the kernel's own.

Loaded only where a node is missing, and where the driver is looked at again.
"""

import posix
import time
from _stat import S_IFCHR, S_ISCHR, S_ISDIR

from gpuhook import config as settings
from gpuhook import linux
from gpuhook.errors import GpuhookError
from gpuhook.model import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.config import Config
    from gpuhook.driver.tree import Place

_LIMIT = 64 * 1024  # bytes of a file of the driver's in /proc
_MODE = 0o666  # where the driver says nothing (nvidia-modprobe-utils.c)
_OTHERS_WRITE = 0o022
_ST_NODEV = 4  # statvfs(3)
_TEMPORARY = ".gpuhook"  # how our temporary names end
_LEFT = 60  # seconds after which a node under such a name is one that a killed start left
_MOST = 1 << 31  # ids and modes that are taken


def plan(config: "Config", path: str, major: int, minor: int, rules: str) -> "tuple[Node | None, str]":
    """The node as it is to be made, or None and the reason why it is not. Changes nothing.

    `rules` is the file below /proc where the driver says whether and as what.
    """
    if not config.make_nodes:
        return None, "driver.make-nodes is false"
    if not settings.is_host_root():
        return None, "that takes root of the host, and no user namespace"
    told = _rules(config, rules)
    for name in ("ModifyDeviceFiles", "DeviceFileModify"):
        if told.get(name, 1) != 1:
            return None, f"the driver forbids it ({name} is {told[name]} in {_proc(config, rules)})"
    if "imex" in path and minor >= told.get("ImexChannelCount", _MOST):
        return None, f"the driver has {told['ImexChannelCount']} channels (ImexChannelCount)"
    place, why = _folder(config)
    if place is None:
        return None, why
    mode = told.get("DeviceFileMode", _MODE) & 0o777
    return Node(path, major, minor, mode, told.get("DeviceFileUID", 0), told.get("DeviceFileGID", 0), missing=True), ""


def make(config: "Config", node: Node) -> str:
    """Make one that `plan` planned; returns its path on the host. Raises node-missing where that fails.

    Made under another name and linked to its own, so that nobody sees it half done and nothing that another process
    made meanwhile is replaced: then that must be the same device.
    """
    host = config.dev_root.rstrip("/") + node.path
    place, why = _folder(config)
    if place is None:
        raise _failed(host, why)
    folder = -1
    try:
        folder = posix.open(place.path, posix.O_RDONLY | posix.O_DIRECTORY | linux.O_NOFOLLOW | linux.O_CLOEXEC)
        here = posix.fstat(folder)
        if (here.st_dev, here.st_ino) != (place.status.st_dev, place.status.st_ino):
            raise _failed(host, f"{place.path} was exchanged")
        *below, name = node.path.removeprefix("/dev/").split("/")
        for part in below:
            inner = _subfolder(folder, part)
            posix.close(folder)
            folder = inner
        _make(folder, name, node)
        found = posix.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        raise _failed(host, error.strerror or "") from None
    finally:
        if folder >= 0:
            posix.close(folder)
    if not S_ISCHR(found.st_mode) or found.st_rdev != posix.makedev(node.major, node.minor):
        raise _failed(host, "something else was made there meanwhile")
    return host


def before_nvml(config: "Config") -> None:
    """Make the control node and those of the GPUs, where not even the first is there and they may be made.

    NVML opens them, and makes them itself where nvidia-modprobe is installed; the process that asks it is nobody. Where
    there is a control node, somebody chose what else there is: inside a container, some GPUs. What can't be made is
    left: who needs it is told so later.
    """
    from gpuhook.driver import key, nodes  # noqa: PLC0415 - `nodes` imports this module

    try:
        posix.lstat(f"{config.dev_root.rstrip('/')}/dev/nvidiactl")
    except FileNotFoundError:
        pass
    except OSError:
        return
    else:
        return
    known = nodes.majors(config)
    minors = [_minor(config, name) for name in key.gpu_names(config)]
    names = [("nvidiactl", nodes.CONTROL), *[(f"nvidia{minor}", minor) for minor in minors if minor >= 0]]
    for name, minor in names:
        try:
            nodes.make(config, (nodes.core(config, known, name, minor),))
        except GpuhookError:
            continue


def _minor(config: "Config", name: str) -> int:
    """The minor that the kernel module gave a GPU, by its PCI address; -1 where it does not say."""
    for line in _text(_proc(config, f"driver/nvidia/gpus/{name}/information")).split("\n"):
        what, _, text = line.partition(":")
        if what == "Device Minor":
            return _number(text, 255)
    return -1


def _rules(config: "Config", rules: str) -> "dict[str, int]":
    """The numbers in a file of the driver's, `NAME: NUMBER` a line."""
    told: dict[str, int] = {}
    for line in _text(_proc(config, rules)).split("\n"):
        name, _, text = line.partition(":")
        number = _number(text, _MOST)
        if number >= 0:
            told[name] = number
    return told


def _number(text: str, most: int) -> int:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 and int(text) < most else -1


def _text(path: str) -> str:
    try:
        return linux.read_file(path, _LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""


def _proc(config: "Config", path: str) -> str:
    return f"{config.proc_root.rstrip('/')}/proc/{path}"


def _folder(config: "Config") -> "tuple[Place | None, str]":
    """The directory `dev` of the dev root, free of links, or None and what is wrong with it."""
    from gpuhook.driver.tree import Tree  # noqa: PLC0415 - most nodes that are missing may not be made

    path = f"{config.dev_root.rstrip('/')}/dev"
    place = Tree("/").find(path)
    if place is None or not S_ISDIR(place.status.st_mode):
        return None, f"{path} is no directory"
    if place.untrusted:
        return None, place.untrusted
    try:
        flags = posix.statvfs(place.path).f_flag
    except OSError as error:
        return None, f"{path}: {error.strerror}"
    if flags & (_ST_NODEV | posix.ST_RDONLY):
        return None, f"{path} is on a file system that is mounted {'nodev' if flags & _ST_NODEV else 'read-only'}"
    return place, ""


def _subfolder(folder: int, name: str) -> int:
    """A handle of a directory of the driver's in /dev, made 0755 where it is missing. OSError."""
    made = True
    try:
        posix.mkdir(name, 0o755, dir_fd=folder)
    except FileExistsError:
        made = False
    inner = posix.open(name, posix.O_RDONLY | posix.O_DIRECTORY | linux.O_NOFOLLOW | linux.O_CLOEXEC, dir_fd=folder)
    if made:
        posix.fchmod(inner, 0o755)  # whatever the umask
    status = posix.fstat(inner)
    if status.st_uid != 0 or status.st_mode & _OTHERS_WRITE:
        posix.close(inner)
        raise PermissionError(1, f"others than root may write {name}")
    return inner


def _make(folder: int, name: str, node: Node) -> None:
    _sweep(folder)
    temporary = f".{name}.{posix.getpid()}{_TEMPORARY}"
    number = posix.makedev(node.major, node.minor)
    try:
        posix.mknod(temporary, S_IFCHR, number, dir_fd=folder)
    except FileExistsError:  # of a process that was killed and whose pid is ours now
        posix.unlink(temporary, dir_fd=folder)
        posix.mknod(temporary, S_IFCHR, number, dir_fd=folder)
    try:
        posix.chown(temporary, node.uid, node.gid, dir_fd=folder, follow_symlinks=False)
        posix.chmod(temporary, node.mode, dir_fd=folder)
        try:
            posix.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            pass  # another start, or nvidia-modprobe, was faster
    finally:
        posix.unlink(temporary, dir_fd=folder)


def _sweep(folder: int) -> None:
    """Remove the nodes that killed starts left under a temporary name."""
    with posix.scandir(folder) as entries:
        names = [item.name for item in entries if item.name.startswith(".") and item.name.endswith(_TEMPORARY)]
    for name in names:
        try:
            found = posix.stat(name, dir_fd=folder, follow_symlinks=False)
            if S_ISCHR(found.st_mode) and time.time() - found.st_ctime > _LEFT:
                posix.unlink(name, dir_fd=folder)
        except FileNotFoundError:  # another start was faster
            pass


def _failed(host: str, why: str) -> GpuhookError:
    return GpuhookError(
        "node-missing",
        f"the device node {host} is missing, and can't be made: {why}",
        "make it by nvidia-modprobe (`nvidia-modprobe -c 0 -u`) as root; nvidia-persistenced does so at boot",
    )
