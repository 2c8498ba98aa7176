"""runtime.toml as the rest of gpuhook sees it: where it lies, its values, and the compiled form that a start reads.

Hot path: a start costs one stat of runtime.toml and one read of the compiled form. `gpuhook.configfile` (TOML, trust,
checks) is imported only when the compiled form does not fit.
"""

import posix
from _stat import S_ISDIR, S_ISREG
from errno import EACCES, ENOENT

from gpuhook import __version__, jsonio, linux
from gpuhook.errors import GpuhookError
from gpuhook.model import value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuhook.model import JSON

CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
LIMIT = 1 << 20  # bytes of runtime.toml, and of the compiled form
RUNTIME_DIR = b"XDG_RUNTIME_DIR"
_OTHERS_WRITE = 0o022
_OVERFLOW_UID = 65534  # proc_sys_kernel(5): overflowuid, which nobody changes


@value
class Config:
    """The configuration in force; `Config()` is what holds without a file. Times are whole seconds.

    The four roots are directories that contain usr, etc, dev, proc and sys. `low_level` holds names for PATH or
    absolute paths. `library_dirs` are searched besides the directories of the host's loader cache; they, `sockets` and
    `directories` are paths below the driver root. Patterns are file names with `*` and `?`. `swarm_resources` are
    names of variables, `annotation_prefixes` beginnings of annotations' names. `log_file` is a path, "" for the usual
    one or "none".
    """

    low_level: tuple[str, ...] = ("runc", "crun")
    stage: str = "prestart"
    deadline: int = 20
    driver_root: str = "/"
    dev_root: str = "/"
    proc_root: str = "/"
    sys_root: str = "/"
    library_dirs: tuple[str, ...] = (
        "/usr/lib64",
        "/usr/lib64/nvidia",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu/nvidia/current",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu/nvidia/current",
        "/usr/lib",
        "/lib64",
        "/lib/x86_64-linux-gnu",
        "/lib/aarch64-linux-gnu",
        "/usr/local/lib",
        "/usr/local/nvidia/lib64",
        "/usr/local/nvidia/lib",
        "/run/opengl-driver/lib",
        "/usr/local/glibc/usr/lib",
        "/home/kubernetes/bin/nvidia/lib64",
        "/opt/nvidia/*/*/usr/lib64",
        "/cm/local/apps/cuda/libs/current/lib64",
    )
    extra_libraries: tuple[str, ...] = ()
    excluded_libraries: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
    directories: tuple[str, ...] = ("/tmp/nvidia-mps",)  # noqa: S108  # where CUDA's MPS has its pipes by default
    nvml_deadline: int = 10
    make_nodes: bool = True
    accept_env_when_unprivileged: bool = True
    accept_devices_as_volume_mounts: bool = False
    accept_label_annotations: bool = False
    annotation_prefixes: tuple[str, ...] = ()
    swarm_resources: tuple[str, ...] = ()
    legacy_images: bool = True
    supported_capabilities: tuple[str, ...] = CAPABILITIES
    policy: str = "strict"
    allow_disable_require: bool = True
    cuda_compat: str = "path"
    log_file: str = ""
    log_level: str = "info"


FIELDS: tuple[str, ...] = Config.__match_args__


@value
class Paths:
    """Where an installation keeps its own things: runtime.toml, the state directory, and the usual log file."""

    config: str
    state: str
    log: str


def defaults() -> Config:
    """The configuration that holds where runtime.toml says nothing."""
    return Config()


def paths(prefix: str) -> Paths:
    """The paths of the installation below `prefix` ("" for the one at /).

    Who is not root of this host keeps state and log in $XDG_RUNTIME_DIR/gpuhook, where that is set.
    """
    own = posix.environ.get(RUNTIME_DIR, b"")
    if own.startswith(b"/") and not is_host_root():
        state = f"{own.decode('utf-8', 'surrogateescape')}/gpuhook"
        return Paths(f"{prefix}/etc/gpuhook/runtime.toml", state, f"{state}/gpuhook.log")
    return Paths(f"{prefix}/etc/gpuhook/runtime.toml", f"{prefix}/run/gpuhook", f"{prefix}/var/log/gpuhook/gpuhook.log")


def log_path(config: Config, prefix: str) -> str:
    """The log file in force, or "" where the configuration wants none."""
    if config.log_file == "none":
        return ""
    return config.log_file or paths(prefix).log


def load(prefix: str) -> Config:
    """The configuration in force below `prefix`. A missing runtime.toml means the defaults.

    Raises config-invalid (unreadable, no TOML, a bad key or value) and config-untrusted (owner, mode).
    """
    where = paths(prefix)
    try:
        status = posix.stat(where.config)
    except OSError as error:
        if error.errno == ENOENT and not _is_there(where.config):
            return Config()
        raise unreadable(where.config, error) from None
    compiled = _compiled(where.state, _key(where.config, status))
    return compiled if compiled is not None else refresh(prefix)


def refresh(prefix: str) -> Config:
    """Read runtime.toml itself, and write the compiled forms for Python and for the sh launcher where that is possible.

    What cannot be written is left: a read-only /run must not stop a start. Raises as `load` does.
    """
    from gpuhook import configfile  # noqa: PLC0415  # cold: tomllib alone costs two interpreter starts

    where = paths(prefix)
    config, status = configfile.load(where.config)
    if status is not None:
        configfile.store(where.state, config, _key(where.config, status), (status.st_atime_ns, status.st_mtime_ns))
    return config


def trusted(status: posix.stat_result) -> bool:
    """Whether a file or directory is root's or the caller's own, and nobody else may write it."""
    return is_own(status.st_uid) and not status.st_mode & _OTHERS_WRITE


def is_own(uid: int) -> bool:
    """Whether an owner is root or the caller. In a user namespace that has no host root, host root's files show the
    overflow uid (user_namespaces(7))."""
    return uid in (0, posix.geteuid()) or (uid == _OVERFLOW_UID and posix.geteuid() == 0 and not is_host_root())


def is_host_root() -> bool:
    """Whether this process is root where all ids are its own, and not in a user namespace of fewer."""
    if posix.geteuid() != 0:
        return False
    try:
        return linux.read_file("/proc/self/uid_map", 4096).split() == [b"0", b"0", b"4294967295"]
    except OSError:
        return True


def read_own(state: str, name: str, limit: int) -> "JSON":
    """The JSON in a file of the state directory; None where it is not there, not whole, longer than `limit` bytes, or
    where another could have written it or put it there."""
    try:
        folder = posix.lstat(state)
        if not S_ISDIR(folder.st_mode) or not trusted(folder):
            return None
        fd = posix.open(f"{state}/{name}", posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = posix.fstat(fd)
        if not S_ISREG(status.st_mode) or not trusted(status):
            return None
        return jsonio.loads(linux.read_fd(fd, limit))
    except (OSError, ValueError):
        return None
    finally:
        posix.close(fd)


def _key(path: str, status: posix.stat_result) -> "list[str | int]":
    """What tells one state of runtime.toml from another, and this gpuhook from the next."""
    return [
        __version__,
        path,
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_uid,
        status.st_mode,
    ]


def _compiled(state: str, key: "list[str | int]") -> Config | None:
    """The compiled form, if it is there, trusted, whole and made of this very runtime.toml; None otherwise."""
    item: Any = read_own(state, "config.json", LIMIT)
    try:
        return _from_fields(item["fields"]) if item["key"] == key else None
    except (TypeError, KeyError):
        return None


def _from_fields(fields: "dict[str, Any]") -> Config:
    """A Config of the compiled fields. Raises TypeError when one is missing, unknown or of another type."""
    named: Any = {name: tuple(item) if type(item) is list else item for name, item in fields.items()}
    config, fallback = Config(**named), Config()
    for name in FIELDS:
        item = named.get(name)
        if type(item) is not type(getattr(fallback, name)):
            raise TypeError(name)
        if type(item) is tuple and not all(type(entry) is str for entry in item):
            raise TypeError(name)
    return config


def _is_there(path: str) -> bool:
    """Whether the name exists, be it as a link that leads nowhere."""
    try:
        posix.lstat(path)
    except OSError:
        return False
    return True


def unreadable(path: str, error: OSError) -> GpuhookError:
    """The `config-invalid` of a configuration that is there and gives nothing."""
    reason = "it is a link that leads nowhere" if error.errno == ENOENT else error.strerror
    hint = "repair it, or remove it to run with the defaults"
    if error.errno == EACCES:  # there is nothing to repair in it
        hint = f"run this as root, or let everybody read it: chmod a+r {path}"
    return GpuhookError("config-invalid", f"the configuration {path} cannot be read: {reason}", hint)
