"""Device rules behind the runtime's back: what lets a container open nodes that its spec does not have.

Loaded only where the hook works without the shim. Version 1: lines to `devices.allow`. Version 2: the program that
denies is replaced by one that asks about the granted devices first (devicefilter.py), in one step, so that there is no
moment without a filter. Neither the runtime nor systemd knows of it: `systemctl daemon-reload` takes it away, which is
why the shim writes rules into the spec instead.

Groups are opened by handle, below mounts of the host's own cgroup file systems, by the path that the kernel says of the
container's process; where that is the hook's own group, the container has none, and nothing is changed.
"""

import errno
import posix
import sys

from gpuhook import devicefilter, linux, rootfs
from gpuhook.errors import GpuhookError, shown
from gpuhook.model import Node, value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.devicefilter import Rule

_ORDER = sys.byteorder
_TRIES = 20  # replacing a program that somebody else replaces at the same time
_BELOW = linux.RESOLVE_BENEATH | linux.RESOLVE_NO_SYMLINKS | linux.RESOLVE_NO_MAGICLINKS | linux.RESOLVE_NO_XDEV
_FOLDER = posix.O_RDONLY | posix.O_DIRECTORY
_LIMIT = 1 << 16  # bytes of /proc/PID/cgroup, and of cgroup.procs as far as it matters
_MOUNTS_LIMIT = 16 << 20
_MOST_PROGRAMS = 64  # BPF_CGROUP_MAX_PROGS
_ATTRIBUTES = 128  # bytes of a union bpf_attr: more than any field used here, and zero means absent
_LICENSE = b"Apache-2.0\0"
_NAME = b"gpuhook\0"
_RIGHTS = "changing device filters takes CAP_SYS_ADMIN on the host (or CAP_BPF and CAP_NET_ADMIN)"
_SHIM = "use gpuhook-runtime as the runtime, which has the rules made by the low-level runtime"


@value
class Group:
    """One cgroup of a container: its path as the kernel says it, and handles of its folder and of all above it up to
    the mount's root, its own first."""

    path: str
    folders: tuple[int, ...]


@value
class Groups:
    """The cgroups that guard a container's devices; None where it has none of its own."""

    v1: Group | None
    v2: Group | None


def parse(text: bytes) -> "tuple[str | None, str | None]":
    """The paths in /proc/PID/cgroup (cgroups(7)) of the version 1 devices hierarchy and of version 2; None for none."""
    v1 = v2 = None
    for line in text.decode("utf-8", "surrogateescape").split("\n"):
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        if number == "0" and not controllers:
            v2 = path
        elif "devices" in controllers.split(","):
            v1 = path
    return v1, v2


def below(path: str, mount_root: str) -> "str | None":
    """A group's path below a mount that shows the hierarchy from `mount_root` on; None where it lies outside of that.

    A path with `..` is one outside of the cgroup namespace in which it was read.
    """
    if not path.startswith("/") or ".." in path.split("/") or ".." in mount_root.split("/"):
        return None
    base = mount_root.rstrip("/")
    if path != base and not path.startswith(f"{base}/"):
        return None
    return path[len(base) :].strip("/")


def find(pid: int) -> Groups:
    """Open the groups of a container's process. GpuhookError `cgroup-failed`, `container-gone`."""
    try:
        theirs = parse(linux.read_file(f"/proc/{pid}/cgroup", _LIMIT))
        ours = parse(linux.read_file("/proc/self/cgroup", _LIMIT))
    except OSError as error:
        raise GpuhookError(
            "container-gone",
            f"the cgroup of the container's process {pid} can't be read: {error.strerror}",
            "start it again",
        ) from None
    proc = rootfs.open_proc()
    try:
        v1 = _open("cgroup", b"devices", theirs[0], proc) if theirs[0] != ours[0] else None
        v2 = _open("cgroup2", b"", theirs[1], proc) if theirs[1] != ours[1] else None
    finally:
        posix.close(proc)
    missing = theirs[0] if theirs[0] != ours[0] else theirs[1] if theirs[1] != ours[1] else None
    if missing is not None and v1 is None and v2 is None:
        raise GpuhookError(
            "cgroup-failed",
            f"the container's cgroup {shown(missing, 200)} is not below any mount of its hierarchy here",
            f"mount the host's cgroup file system where gpuhook-hook runs, or {_SHIM}",
        )
    return Groups(v1, v2)


def _open(kind: str, controller: bytes, path: "str | None", proc: int) -> "Group | None":
    """The group at a path of a hierarchy, through the mount that shows it; None for none."""
    if path is None:
        return None
    for line in linux.read_file("self/mountinfo", _MOUNTS_LIMIT, proc).splitlines()[::-1]:
        fields = line.split(b" ")
        end = fields.index(b"-")
        if fields[end + 1] != kind.encode() or (controller and controller not in fields[-1].split(b",")):
            continue
        root, place = [rootfs.unescaped(item).decode("utf-8", "surrogateescape") for item in fields[3:5]]
        name = below(path, root)
        folders = _folders(place, fields[0], name, proc) if name is not None else ()
        if folders:
            return Group(path, folders)
    return None


def _folders(place: str, mount: bytes, name: str, proc: int) -> "tuple[int, ...]":
    """The handles, none where another mount hides this one, or the group is not there."""
    found: list[int] = []
    try:
        top = posix.open(place, _FOLDER | linux.O_NOFOLLOW | linux.O_CLOEXEC)
        try:
            if rootfs.mount_of(top, proc)[:1] != [mount]:
                return ()
            parts = [part for part in name.split("/") if part]
            for count in range(len(parts), -1, -1):
                found.append(linux.openat2(top, "/".join(parts[:count]) or ".", _FOLDER, _BELOW))
        finally:
            posix.close(top)
    except OSError:
        for fd in found:
            posix.close(fd)
        return ()
    return tuple(found)


def permit(groups: Groups, nodes: "tuple[Node, ...]", rules: "tuple[Rule, ...]") -> "tuple[str, ...]":
    """Let the container read and write the granted nodes; returns warnings. `rules` are those of its spec.

    GpuhookError `cgroup-failed` where a filter still denies one.
    """
    numbers = tuple(dict.fromkeys([(node.major, node.minor) for node in nodes]))
    if groups.v1 is not None:
        _allow(groups.v1, numbers)
    if groups.v2 is None:
        return ()
    for _ in range(_TRIES):
        try:
            return _extend(groups.v2, numbers, rules)
        except FileNotFoundError:  # another program by now: look again
            continue
        except OSError as error:
            hint = _RIGHTS if error.errno in (errno.EPERM, errno.EACCES) else _SHIM
            what = f"the device filter of the cgroup {groups.v2.path} can't be changed: {error.strerror}"
            raise GpuhookError("cgroup-failed", what, hint) from None
    raise GpuhookError(
        "cgroup-failed",
        f"the device filter of the cgroup {groups.v2.path} can't be replaced: it keeps changing, or a bpf link holds"
        " it",
        _SHIM,
    )


def _allow(group: Group, numbers: "tuple[tuple[int, int], ...]") -> None:
    """Version 1: one write a rule."""
    rule = ""
    try:
        fd = linux.openat2(group.folders[0], "devices.allow", posix.O_WRONLY, _BELOW)
        try:
            for major, minor in numbers:
                rule = f"c {major}:{minor} rw"
                linux.write_fd(fd, rule.encode())
        finally:
            posix.close(fd)
    except OSError as error:
        hint = "see that the hook is root of the host, and the cgroup file system is writable"
        if rule and error.errno == errno.EPERM:  # security/device_cgroup.c: no more than its parent has
            hint = "a cgroup above the container's forbids it: allow it there, as in DeviceAllow= of its systemd unit"
        raise GpuhookError(
            "cgroup-failed",
            f"{rule or 'the granted devices'} can't be allowed in the devices cgroup {group.path}: {error.strerror}",
            hint,
        ) from None


# --- version 2 --------------------------------------------------------------------------------------------------


def _extend(group: Group, numbers: "tuple[tuple[int, int], ...]", rules: "tuple[Rule, ...]") -> "tuple[str, ...]":
    """One try. OSError as bpf(2); FileNotFoundError where a program was replaced meanwhile."""
    programs = {identity: _Program(identity) for identity in _attached(group.folders[0], effective=True)[0]}
    unknown = []
    for level, folder in enumerate(group.folders):
        identities, flags = _attached(folder)
        for identity in identities:
            program = programs.get(identity)
            if program is None:
                raise FileNotFoundError(errno.ENOENT, "a program came in between")
            verdict = devicefilter.permits(program.text, numbers)
            if verdict or (verdict is None and level):
                unknown += [] if verdict else [identity]
                continue
            if level and not _is_alone(folder):
                raise GpuhookError(
                    "cgroup-failed",
                    f"a cgroup above {group.path}, which others are in too, has a filter that denies the granted"
                    " devices",
                    "allow them there, as in DeviceAllow= of its systemd unit",
                )
            _replace(folder, flags, program, _longer(program, identities, numbers, rules))
    denying = []
    for identity in _attached(group.folders[0], effective=True)[0]:
        verdict = devicefilter.permits((programs.get(identity) or _Program(identity)).text, numbers)
        denying += [identity] if verdict is False else []
    if denying:
        raise GpuhookError(
            "cgroup-failed",
            f"the granted devices are denied by a filter (bpf program {denying[0]}) above what is seen of the cgroup"
            f" {group.path}",
            "allow them in the cgroup around this host's, or " + _SHIM,
        )
    if unknown:
        return (f"a device filter above the container (bpf program {unknown[0]}) can't be read: it may deny devices",)
    return ()


def _longer(
    program: "_Program",
    identities: "tuple[int, ...]",
    numbers: "tuple[tuple[int, int], ...]",
    rules: "tuple[Rule, ...]",
) -> bytes:
    """The granted devices, then what the program says; where its text can't be had (JIT hardening), then what the spec
    and the runtime's own rules say, if it is the only one there and so the runtime's."""
    base = program.text
    try:
        if not devicefilter.is_plain(base):
            if len(identities) > 1:
                raise GpuhookError(
                    "cgroup-failed",
                    "the container's cgroup has several device filters, and one that denies the granted devices can't"
                    " be read",
                    "set net.core.bpf_jit_harden to 0 or 1, or " + _SHIM,
                )
            base = devicefilter.of_rules(rules + devicefilter.DEFAULTS)
        return devicefilter.extended(base, numbers)
    except ValueError as error:
        raise GpuhookError("cgroup-failed", f"no device filter can be made: {error}", _SHIM) from None


def _is_alone(folder: int) -> bool:
    """Whether a folder has no process of its own and one group below it: then it is the container's alone."""
    if linux.read_file("cgroup.procs", _LIMIT, folder):
        return False
    with posix.scandir(folder) as entries:
        return len([item for item in entries if item.is_dir(follow_symlinks=False)]) == 1


class _Program:
    """A loaded program: a handle of it, and its instructions as far as the kernel gives them out."""

    __slots__ = ("fd", "text")

    def __init__(self, identity: int) -> None:
        self.fd = linux.bpf(linux.BPF_PROG_GET_FD_BY_ID, _attributes(_u32(identity)))
        size = int.from_bytes(self._info(b"")[20:24], _ORDER)
        self.text = b""
        if size:
            room = linux.Memory(bytes(size))
            found = self._info(_u32(size) + bytes(8) + _u64(room.address))
            if found[32:40] != bytes(8):  # 0 where the kernel has rewritten constants (JIT hardening)
                self.text = bytes(room.data)

    def _info(self, wanted: bytes) -> bytes:
        """struct bpf_prog_info: xlated_prog_len at 20, jited_prog_insns at 24, xlated_prog_insns at 32."""
        info = linux.Memory((bytes(20) + wanted).ljust(_ATTRIBUTES, b"\0"))
        attributes = _attributes(_u32(self.fd) + _u32(_ATTRIBUTES) + _u64(info.address))
        linux.bpf(linux.BPF_OBJ_GET_INFO_BY_FD, attributes)
        return bytes(info.data)


def _attached(folder: int, *, effective: bool = False) -> "tuple[tuple[int, ...], int]":
    """The ids of a group's device programs (`effective`: and of those above it), and the flags they are attached by.

    None where the kernel has no such filters.
    """
    room = linux.Memory(bytes(4 * _MOST_PROGRAMS * (8 if effective else 1)))
    flags = linux.BPF_F_QUERY_EFFECTIVE if effective else 0
    attributes = _attributes(
        _u32(folder)
        + _u32(linux.BPF_CGROUP_DEVICE)
        + _u32(flags)
        + _u32(0)
        + _u64(room.address)
        + _u32(len(room.data) // 4)
    )
    try:
        linux.bpf(linux.BPF_PROG_QUERY, attributes)
    except OSError as error:
        if error.errno == errno.EINVAL:  # no CONFIG_CGROUP_BPF: nothing is filtered
            return (), 0
        raise
    count = int.from_bytes(attributes.data[24:28], _ORDER)
    ids = tuple([int.from_bytes(room.data[at : at + 4], _ORDER) for at in range(0, 4 * count, 4)])
    return ids, int.from_bytes(attributes.data[12:16], _ORDER)


def _replace(folder: int, flags: int, old: _Program, text: bytes) -> None:
    """Load a program and put it in the place of another in one step; ENOENT where that is not there any more."""
    new = _load(text)
    try:
        named = b""
        if flags & linux.BPF_F_ALLOW_MULTI:  # without, there is one alone, and the new one takes its place
            flags |= linux.BPF_F_REPLACE
            named = _u32(old.fd)
        words = _u32(folder) + _u32(new) + _u32(linux.BPF_CGROUP_DEVICE) + _u32(flags) + named
        linux.bpf(linux.BPF_PROG_ATTACH, _attributes(words))
    finally:
        posix.close(new)


def _load(text: bytes) -> int:
    """A handle of a new program. Kernels before 5.11 charge it to RLIMIT_MEMLOCK, which is raised where that may be."""
    code, license_text = linux.Memory(text), linux.Memory(_LICENSE)
    attributes = _attributes(
        _u32(linux.BPF_PROG_TYPE_CGROUP_DEVICE)
        + _u32(len(text) // 8)
        + _u64(code.address)
        + _u64(license_text.address)
        + bytes(24)
        + _NAME.ljust(16, b"\0")
        + bytes(4)
        + _u32(linux.BPF_CGROUP_DEVICE)
    )
    try:
        return linux.bpf(linux.BPF_PROG_LOAD, attributes)
    except PermissionError:
        from resource import RLIM_INFINITY, RLIMIT_MEMLOCK, setrlimit  # noqa: PLC0415

        try:
            setrlimit(RLIMIT_MEMLOCK, (RLIM_INFINITY, RLIM_INFINITY))
        except (OSError, ValueError):
            pass
        return linux.bpf(linux.BPF_PROG_LOAD, attributes)


def _attributes(text: bytes) -> linux.Memory:
    return linux.Memory(text.ljust(_ATTRIBUTES, b"\0"))


def _u32(number: int) -> bytes:
    return number.to_bytes(4, _ORDER)


def _u64(number: int) -> bytes:
    return number.to_bytes(8, _ORDER)
