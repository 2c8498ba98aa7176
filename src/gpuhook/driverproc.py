"""/proc/driver/nvidia as a container sees it: copies of the driver's own files, and of the GPUs the granted ones alone.

Hot path. A small read-only tmpfs is filled on the host while nobody sees it, then attached in the container's procfs:
the one target on a procfs, by its fixed name from a root that the kernel calls a procfs. What lies below
`gpus` is mounted, never read: reading can wake a GPU. A kernel without the driver's module has no such directory, nor
has the procfs of any container on it.
"""

import errno
import posix
from _stat import S_ISDIR

from gpuhook import linux, rootfs, sources
from gpuhook.errors import GpuhookError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER, NAME = "driver", "nvidia"  # below a procfs
TARGET = "/proc/driver/nvidia"
_COPIES = ("params", "version", "registry")
_LIMIT = 1 << 16  # bytes of one of them; the real ones have less than 2 KiB
_RESTRICTED = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV | linux.MOUNT_ATTR_NOEXEC


def gpu_names(bus_id: str) -> "tuple[str, ...]":
    """Where a GPU's directory may be: the module writes the PCI domain with four digits where that is enough."""
    return (f"gpus/{bus_id}", f"gpus/{bus_id[4:]}") if bus_id.startswith("0000") else (f"gpus/{bus_id}",)


def mig_names(minor: int, gi: int, ci: int) -> "tuple[str, str]":
    """Where the capabilities of a MIG device stand: its GPU instance's and its compute instance's."""
    folder = f"capabilities/gpu{minor}/mig/gi{gi}"
    return f"{folder}/access", f"{folder}/ci{ci}/access"


def acquire(
    proc_root: str, names: "tuple[tuple[str, ...], ...]", label: str, into: sources.Sources
) -> "tuple[str, ...]":
    """Make the tmpfs and the copies of what is named; returns the paths that a plan mounts, the tmpfs first.

    Each of `names` is one object below the directory, by the names that it may have; one that is not there is left out.
    Nothing where this kernel has no such directory. `label` is the container's mount label (SELinux), or empty.
    """
    try:
        posix.stat(f"/proc/{FOLDER}/{NAME}")
        root = posix.open(f"{proc_root.rstrip('/')}{TARGET}", linux.O_PATH | posix.O_DIRECTORY | linux.O_CLOEXEC)
    except OSError:
        return ()
    try:
        maker, tree = _tmpfs(label)
        into.handles[TARGET] = tree
        try:
            _fill(root, tree)
            _directories(tree, ["gpus"])
            paths = [path for each in names for path in _copy(root, tree, each, into)]
            sources.restrict(into)
            linux.fsconfig(maker, linux.FSCONFIG_SET_FLAG, "ro", None)
            linux.fsconfig(maker, linux.FSCONFIG_CMD_RECONFIGURE, None, None)
        finally:
            posix.close(maker)
    except OSError as error:
        raise sources.failed(f"making {TARGET} for the container", error) from None
    finally:
        posix.close(root)
    return (TARGET, *paths)


def _tmpfs(label: str) -> tuple[int, int]:
    """A new tmpfs as (handle to configure it, detached mount)."""
    maker = linux.fsopen("tmpfs")
    try:
        options = [("source", "gpuhook"), ("mode", "0555"), ("size", "256k")]
        if label:
            options.append(("context", label))
        for key, text in options:
            linux.fsconfig(maker, linux.FSCONFIG_SET_STRING, key, text)
        linux.fsconfig(maker, linux.FSCONFIG_CMD_CREATE, None, None)
        return maker, linux.fsmount(maker, _RESTRICTED)
    except OSError as error:
        words = _kernel_words(maker)
        posix.close(maker)
        if words:
            raise OSError(error.errno or 0, f"{error.strerror} ({words})") from None
        raise


def _kernel_words(maker: int) -> str:
    """What the kernel says of a file system that it did not make, one message a read (fsopen(2))."""
    try:
        return posix.read(maker, 4096).decode("utf-8", "replace").removeprefix("e ").strip()
    except OSError:
        return ""


def _fill(root: int, tree: int) -> None:
    for name in _COPIES:
        try:
            data = linux.read_file(name, _LIMIT, root)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            continue
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | linux.O_CLOEXEC
        fd = posix.open(name, flags, 0o444, dir_fd=tree)
        try:
            linux.write_fd(fd, masked(data) if name == "params" else data)
        finally:
            posix.close(fd)


def masked(params: bytes) -> bytes:
    """The module's parameters, but for `ModifyDeviceFiles: 1`: the driver's libraries shall make no nodes there."""
    lines = params.split(b"\n")
    return b"\n".join([b"ModifyDeviceFiles: 0" if line == b"ModifyDeviceFiles: 1" else line for line in lines])


def _copy(root: int, tree: int, names: "tuple[str, ...]", into: sources.Sources) -> "list[str]":
    """A copy of the mount of one object, and a mountpoint for it; its path, or nothing where the kernel shows none."""
    for name in names:
        path = f"{TARGET}/{name}"
        try:
            fd = sources.clone(root, name, sources.FILE | linux.MOUNT_ATTR_NOEXEC, into, path)
        except GpuhookError as error:
            if error.reference != "driver-changed":
                raise
            continue
        folder, _, last = name.rpartition("/")
        parts = folder.split("/") if folder else []
        is_directory = S_ISDIR(posix.fstat(fd).st_mode)
        _directories(tree, [*parts, last] if is_directory else parts)
        if not is_directory:
            posix.close(posix.open(name, posix.O_WRONLY | posix.O_CREAT | linux.O_CLOEXEC, 0o444, dir_fd=tree))
        return [path]
    return []


def _directories(tree: int, parts: "list[str]") -> None:
    for end in range(1, len(parts) + 1):
        try:
            posix.mkdir("/".join(parts[:end]), 0o555, dir_fd=tree)
        except FileExistsError:
            pass


def attach(
    root: rootfs.Root, own: sources.Sources, target: str, used: "set[str]", undo: "list[Callable[[], None]]"
) -> str:
    """Mount the tmpfs, or a GPU's directory in it; inside the container. Returns a warning, or nothing.

    Nothing is done where the container's procfs has no such directory; what the user mounted there stays.
    """
    try:
        if target != TARGET:
            if TARGET in used:
                _attach_below(own.handles[TARGET], own.handles[target], target[len(TARGET) + 1 :])
            return ""
        folder = _folder(root)
        if folder >= 0 and _attach_at(folder, own.handles[TARGET]):
            used.add(TARGET)
            undo.append(lambda: linux.unmount_at(folder, NAME))
    except OSError as error:
        if error.errno == errno.EXDEV:
            return f"left out {target}: the container mounts something of its own there"
        raise sources.failed(f"mounting {target}", error) from None
    return ""


def _folder(root: rootfs.Root) -> int:
    """A handle of `driver` in the container's procfs; -1 where there is none, or /proc is none or a part of one."""
    try:
        proc = root.open("/proc", linux.O_PATH | posix.O_DIRECTORY | linux.O_NOFOLLOW)
    except OSError:
        return -1
    try:
        fields = rootfs.mount_of(proc, root.proc)
        is_procfs = bool(fields) and fields[3] == b"/" and fields[fields.index(b"-") + 1] == b"proc"
        if not is_procfs or posix.fstat(proc).st_ino != rootfs.PROC_ROOT_INO:
            return -1
        return linux.openat2(proc, FOLDER, linux.O_PATH | posix.O_DIRECTORY, rootfs.ONE_NAME)
    except FileNotFoundError:
        return -1
    finally:
        posix.close(proc)


def _attach_at(folder: int, handle: int) -> bool:
    try:
        point = rootfs.entry(folder, NAME)
    except FileNotFoundError:
        return False
    try:
        if not S_ISDIR(posix.fstat(point).st_mode):
            return False
        linux.move_mount(handle, point)
        return True
    finally:
        posix.close(point)


def _attach_below(tree: int, handle: int, path: str) -> None:
    """In the tmpfs, by the handle of it: no name of the container is looked up."""
    point = linux.openat2(tree, path, linux.O_PATH | linux.O_NOFOLLOW, rootfs.ONE_NAME)
    try:
        linux.move_mount(handle, point)
    finally:
        posix.close(point)
