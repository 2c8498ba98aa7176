"""What Linux 5.12 does in one call, for 5.6 to 5.11: flags for a detached mount.

Cold: imported where mount_setattr is not there. A mount takes flags only while it is attached, so each copy is attached
for a moment to a tmpfs in a mount namespace that nobody else is in, changed there, and copied again: a copy keeps the
flags. Then the process goes back to its own namespace, because it will be compared with the container's.
"""

import posix
from _stat import S_ISDIR

from gpuhook import linux
from gpuhook.sources import Sources, failed

_KEPT = linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV | linux.MOUNT_ATTR_NOEXEC
_DIRECTORY, _FILE = "directory", "file"


def restrict(sources: Sources) -> None:
    """Do what `sources.restrict` does. GpuhookError `mount-failed`, `kernel-too-old`."""
    try:
        home = posix.open("/proc/self/ns/mnt", posix.O_RDONLY | linux.O_CLOEXEC)
        try:
            linux.unshare(linux.CLONE_NEWNS)
            try:
                points = _stage()
                while sources.open:
                    path, attributes = sources.open.pop()
                    old = sources.handles[path]
                    sources.handles[path] = _restricted(old, points, attributes)
                    posix.close(old)
                for point in points.values():
                    posix.close(point)
            finally:
                linux.setns(home, linux.CLONE_NEWNS)
        finally:
            posix.close(home)
    except OSError as error:
        raise failed("restricting the mounts of the driver's files (without mount_setattr)", error) from None


def _stage() -> dict[str, int]:
    """A tmpfs in this new namespace, with a file and a directory to attach to; their handles, by kind.

    It covers `/`, which no lookup notices: they begin below.
    """
    linux.change_mount("/", linux.MS_REC | linux.MS_PRIVATE)
    maker = linux.fsopen("tmpfs")
    linux.fsconfig(maker, linux.FSCONFIG_CMD_CREATE, None, None)
    tree = linux.fsmount(maker, 0)
    root = posix.open("/", linux.O_PATH | posix.O_DIRECTORY | linux.O_CLOEXEC)
    linux.move_mount(tree, root)
    posix.mkdir(_DIRECTORY, dir_fd=tree)
    posix.close(posix.open(_FILE, posix.O_WRONLY | posix.O_CREAT | linux.O_CLOEXEC, 0o600, dir_fd=tree))
    flags = linux.O_PATH | linux.O_NOFOLLOW | linux.O_CLOEXEC
    points = {name: posix.open(name, flags, dir_fd=tree) for name in (_DIRECTORY, _FILE)}
    for fd in (maker, root, tree):
        posix.close(fd)
    return points


def _restricted(fd: int, points: dict[str, int], attributes: int) -> int:
    """A detached copy of a detached mount, with flags beside those that it has; MOUNT_ATTR_*, MS_* and those of statvfs
    have the same numbers here."""
    linux.move_mount(fd, points[_DIRECTORY if S_ISDIR(posix.fstat(fd).st_mode) else _FILE])
    path = f"/proc/self/fd/{fd}"  # the root of the mount itself, which is what a remount takes
    linux.change_mount(path, linux.MS_PRIVATE)
    had = posix.fstatvfs(fd).f_flag & _KEPT
    linux.change_mount(path, linux.MS_REMOUNT | linux.MS_BIND | attributes | had)
    new = linux.open_tree(fd, "", linux.OPEN_TREE_CLONE | linux.AT_EMPTY_PATH)
    linux.umount2(path, linux.MNT_DETACH)
    return new
