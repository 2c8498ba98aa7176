"""What tells one state of this host's driver from the next, cheaply.

Nothing below `gpus/` is read, only the names: reading `information` can wake a GPU that sleeps. The list that `take`
returns is JSON as it stands, so that the stored one and a new one compare with `==`.

Hot path: about forty lstat calls and eight small reads.
"""

import posix

from gpuhook import __version__, linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.config import Config
    from gpuhook.model import JSON

_LIMIT = 64 * 1024  # bytes of any of these files
_MINORS_LIMIT = 1 << 20  # bytes of mig-minors, which lists what 32 GPUs could have: 150 KiB
_MAX_NAMES = 4096
_DEPTH = 5  # capabilities/gpu0/mig/gi1/ci0
_MAX_TREE = 16384  # names below it; eight GPUs, divided as far as they can be, have 1100


def take(config: "Config", watch: "list[str]") -> "list[JSON]":
    """The key: what the kernel says of the driver, and the state of every watched path below the driver root."""
    return [head(config), _states(config.driver_root, watch)]


def head(config: "Config") -> "list[JSON]":
    """The part that does not depend on the files: gpuhook, the boot, the configuration, the kernel module, its GPUs."""
    proc, module = _below(config.proc_root, "/proc"), _below(config.sys_root, "/sys/module/nvidia")
    tree = _tree(proc + "/driver/nvidia/capabilities", _DEPTH, [_MAX_TREE])
    instances = _instances(tree, "")
    minors = cap_minors(config) if instances else ""
    return [
        __version__,
        _text("/proc/sys/kernel/random/boot_id"),
        [config.driver_root, config.dev_root, config.proc_root, config.sys_root],
        [list(config.library_dirs), list(config.extra_libraries), list(config.excluded_libraries)],
        _text(proc + "/driver/nvidia/version"),
        _text(module + "/version"),
        _text(module + "/srcversion"),
        list(gpu_names(config)),
        tree,
        [cap_minor(minors, name + "/access") for name in instances],
        [line for line in _text(proc + "/devices").split("\n") if "nvidia" in line],
    ]


def cap_minors(config: "Config") -> str:
    """The kernel module's table of MIG's capabilities and the minors of their nodes; empty where it has none."""
    return "\n" + _text(_below(config.proc_root, "/proc/driver/nvidia-caps/mig-minors"), _MINORS_LIMIT)


def cap_minor(table: str, name: str) -> int:
    """The minor of a capability (`config`, `gpu0/gi1/access`, `gpu0/gi1/ci0/access`) in such a table, or -1.

    Looked for as text: the table has thousands of lines, of which a start needs two.
    """
    at = table.find(f"\n{name} ")
    text = table[at + len(name) + 2 : at + len(name) + 14].partition("\n")[0].strip() if at >= 0 else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else -1


def gpu_names(config: "Config") -> tuple[str, ...]:
    """The PCI addresses of the GPUs that the kernel module drives, as it writes them, in order."""
    return tuple(_names(_below(config.proc_root, "/proc/driver/nvidia/gpus")))


def loaded_version(config: "Config") -> tuple[str, str]:
    """What the kernel module says of its version: the text in /proc and the text in /sys, each empty where absent."""
    proc = _text(_below(config.proc_root, "/proc/driver/nvidia/version"))
    return proc, _text(_below(config.sys_root, "/sys/module/nvidia/version"))


def _states(root: str, watch: "list[str]") -> "list[JSON]":
    """Device, inode, size, mtime and ctime of each path, None for what is not there; links are not followed."""
    base = root.rstrip("/")
    states: list[JSON] = []
    for path in watch:
        try:
            at = posix.lstat(base + path)
        except OSError:
            states.append(None)
        else:
            states.append([at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns])
    return states


def _below(root: str, path: str) -> str:
    return path if root == "/" else root.rstrip("/") + path


def _text(path: str, limit: int = _LIMIT) -> str:
    try:
        return linux.read_file(path, limit).decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def _names(directory: str) -> list[str]:
    try:
        return sorted(posix.listdir(directory)[:_MAX_NAMES])
    except OSError:
        return []


def _tree(directory: str, depth: int, room: list[int]) -> "list[JSON]":
    """The names below a directory: of GPUs, their MIG directory, and its instances; files have other names.

    `room` is how many names there may still be.
    """
    found: list[JSON] = []
    for name in _names(directory):
        found.append(name)
        room[0] -= 1
        if depth and room[0] > 0 and name.startswith(("gpu", "mig", "gi", "ci")):
            below = _tree(f"{directory}/{name}", depth - 1, room)
            if below:
                found.append(below)
    return found


def _instances(tree: "list[JSON]", path: str) -> list[str]:
    """The MIG instances in such a tree, as the table of minors calls them: `gpu0/gi1`, `gpu0/gi1/ci0`."""
    found: list[str] = []
    name = ""
    for item in tree:
        if isinstance(item, list):
            found += _instances(item, path if name == "mig" else f"{path}{name}/")
        elif isinstance(item, str):
            name = item
            if name.startswith(("gi", "ci")):
                found.append(path + name)
    return found
