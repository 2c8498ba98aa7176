"""The values that pass between the parts of gpuhook: frozen, compared by content, made at the edge and never changed.

Hot path: imports nothing. `value` does what a frozen dataclass does without the 17 ms that `dataclasses` costs at
each container start; type checkers see it as one (PEP 681).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar, dataclass_transform

    T = TypeVar("T")
    JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]

    @dataclass_transform(frozen_default=True)
    def value(cls: type[T]) -> type[T]:  # noqa: ARG001
        """Make a frozen value class of an annotated class body."""
        raise AssertionError
else:

    def value(cls):
        """Make a frozen value class of an annotated class body."""
        cls.__match_args__ = tuple(cls.__annotations__)
        cls.__init__, cls.__eq__, cls.__hash__, cls.__repr__ = _init, _eq, _hash, _repr
        cls.__setattr__ = cls.__delattr__ = _refuse
        return cls


def _init(self: "Any", *args: object, **named: object) -> None:
    fields = self.__match_args__
    values = self.__dict__
    values.update(zip(fields, args, strict=False))
    if len(args) == len(fields) and not named:
        return
    if len(args) > len(fields):
        raise TypeError(f"{type(self).__name__} takes {len(fields)} values, not {len(args)}")
    for name in fields[len(args) :]:
        if name in named:
            values[name] = named.pop(name)
        elif name in type(self).__dict__:  # the default
            values[name] = type(self).__dict__[name]
        else:
            raise TypeError(f"{type(self).__name__} lacks {name}")
    if named:
        raise TypeError(f"{type(self).__name__} has no {', '.join(named)}")


def _eq(self: "Any", other: object) -> bool:
    return type(self) is type(other) and self.__dict__ == other.__dict__


def _hash(self: "Any") -> int:
    return hash(astuple(self))


def _repr(self: "Any") -> str:
    return f"{type(self).__name__}({', '.join([f'{name}={item!r}' for name, item in self.__dict__.items()])})"


def _refuse(self: "Any", name: str, *_: object) -> None:
    raise AttributeError(f"{type(self).__name__} is frozen: {name}")


def astuple(item: "Any") -> tuple[object, ...]:
    """The fields of a value, in order (one level deep)."""
    return tuple([getattr(item, name) for name in item.__match_args__])


def replace(item: "T", **changes: object) -> "T":
    """A copy of a value with some fields changed."""
    return type(item)(**{**item.__dict__, **changes})


# --- what this host has -----------------------------------------------------------------------------------------


@value
class Mig:
    """One MIG device: compute instance `ci` of GPU instance `gi` of a GPU.

    `index` is NVML's, the second number of `0:1`. `uuid` is as NVML says it: `MIG-<uuid>`, of drivers before 470
    `MIG-GPU-<uuid>/<gi>/<ci>`. `gi_minor` and `ci_minor` are the N of their nodes nvidia-capN, -1 where the kernel
    tells none. `gfx` says that its profile has graphics (`1g.24gb+gfx`).
    """

    index: int
    uuid: str
    gi: int
    ci: int
    gi_minor: int = -1
    ci_minor: int = -1
    gfx: bool = False


@value
class Gpu:
    """One GPU as NVML describes it, or what a container gets of it.

    `mig` says that it is divided: then it is given by its MIG devices, `migs`. A Gpu that was granted for one of them
    has that one alone in `migs`, and its UUID. `bus_id` is `dddddddd:bb:dd.f` in lower case with eight digits of
    domain. `brand` is the requirement language's word in lower case (`tesla`, `geforcertx`, ...). `error` is empty for
    a GPU that answers; else what NVML said of it, and then every field that it did not answer is empty.
    """

    index: int
    uuid: str
    minor: int
    bus_id: str
    name: str
    brand: str
    arch: tuple[int, ...]
    error: str = ""
    mig: bool = False
    migs: "tuple[Mig, ...]" = ()


@value
class FileId:
    """What tells one state of a file from another: st_dev, st_ino, st_size, st_mtime_ns, st_ctime_ns."""

    dev: int
    ino: int
    size: int
    mtime: int
    ctime: int


@value
class DriverFile:
    """One file of the driver's user space that a container may get.

    `path` is absolute below the driver root and free of symbolic links. `kind` is `library`, `binary`, `firmware`, or
    `data` for what programs look for at a fixed place: `target`, absolute in the container. A library has one where it
    keeps its host's place (WSL2); then `links` are the names by which the loader's cache leads to it, and nothing else.
    `capability` is a word of NVIDIA_DRIVER_CAPABILITIES, two with `+` between where each of them brings the file, or
    `*` where every container that has a driver gets it.
    `name` is the file name inside the container. `links` are further names in the same directory that lead to it: the
    ELF soname first, development links after it. `bits` is 64 or 32 for a library, else 0, but 32 for data that is for
    32-bit programs alone. `text` is what the container gets in place of the file's own content, where that names places
    of this host; else it is empty and the file itself is mounted.
    """

    path: str
    kind: str
    capability: str
    name: str
    id: FileId
    soname: str = ""
    links: tuple[str, ...] = ()
    bits: int = 0
    target: str = ""
    text: str = ""


@value
class Node:
    """A character device of the driver as it is now; `path` is below the dev root and in the container.

    `missing` says that it is to be made first, as what the other fields say.
    """

    path: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int
    missing: bool = False


@value
class Record:
    """What is known of this host's driver: read once, kept until its key no longer matches.

    `id` names this state of the driver. `driver` is the version of the loaded kernel module, `cuda` the CUDA level that
    it supports; `cuda_assumed` is true where the level comes from the branch table. `machine` is the ELF machine of the
    libraries (`x86-64`, `aarch64`). `wsl`: the GPUs are behind Windows' driver, and one device brings all of them.
    """

    id: str
    driver: str
    cuda: tuple[int, ...]
    cuda_assumed: bool
    machine: str
    gpus: tuple[Gpu, ...]
    files: tuple[DriverFile, ...]
    wsl: bool = False


# --- what a container asks for ----------------------------------------------------------------------------------


@value
class Container:
    """What a decision needs of an OCI bundle's config.json, and nothing more.

    `env` keeps order and repeats, only entries with `=`, as (name, value). `privileged` is CAP_SYS_ADMIN in the
    bounding set, as NVIDIA's stack has it. `mounts` are (source, destination); `root` is the absolute rootfs path.
    `tmpfs` are the destinations where the runtime mounts a fresh tmpfs and nothing else after it.
    """

    env: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    privileged: bool = False
    sandbox: bool = False
    root: str = ""
    tmpfs: tuple[str, ...] = ()


@value
class Demand:
    """One requirement of the image, not yet parsed: the variable or annotation that states it, and its text."""

    origin: str
    text: str


@value
class Request:
    """What a container asks for. `devices` are the cleaned tokens: `("all",)`, ids in their order, or `()` for `none`.

    `origin` says which variable asked. `warnings` are sentences for the log and for `explain`.
    """

    devices: tuple[str, ...]
    origin: str
    capabilities: tuple[str, ...]
    demands: tuple[Demand, ...] = ()
    disabled_by: str = ""  # what switched the requirement check off: a variable or configuration key, or empty
    warnings: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()  # variables that look like NVIDIA_DISABLE_REQUIRE and are not
    mig: tuple[str, ...] = ()  # rights over all MIG devices: `config`, `monitor`
    channels: tuple[int, ...] = ()  # numbers of IMEX channels
    cuda_visible: str = ""  # CUDA_VISIBLE_DEVICES, which counts what the container sees
    switches: tuple[str, ...] = ()  # devices beside the GPUs: `gds`, `mofed`, `gdrcopy`, `nvswitch`


# --- what the image is ------------------------------------------------------------------------------------------


@value
class Image:
    """What gpuhook learned of the container's root by handle; all of it is hostile data, checked.

    `loader` is `glibc`, `musl` or `` (none). `machine` is that of the loader (`x86-64`, `aarch64`), or ``. `libdir` is
    where libraries go (absolute, in the container). `compat` is the directory of the image's forward-compatibility
    libraries (or ``), `compat_version` the driver version in their libcuda's file name, `compat_names` their sonames.
    `cover` are absolute paths of the image's own regular files that carry a driver library's name, as
    (path, name of our library): each must show the host's library instead. `libdir32` is where 32-bit libraries go,
    or `` where the image has no 32-bit side or nothing 32-bit is to go in. `compat_cuda` and `compat_drivers` are the
    CUDA level and the driver branches that a note in the forward-compatibility libcuda names; empty without one.
    """

    loader: str
    machine: str
    libdir: str
    compat: str = ""
    compat_version: str = ""
    compat_names: tuple[str, ...] = ()
    cover: tuple[tuple[str, str], ...] = ()
    libdir32: str = ""
    compat_cuda: tuple[int, ...] = ()
    compat_drivers: tuple[int, ...] = ()


# --- what will be done ------------------------------------------------------------------------------------------


@value
class Bind:
    """Bind the host object `source` (below the driver root) at `target` in the container.

    `kind` as in DriverFile, or `socket`, `directory`, `proc` for a path of /proc/driver/nvidia, or `node`, whose source
    is below the dev root. An optional one that cannot be made is left out with a warning.
    """

    source: str
    target: str
    kind: str
    optional: bool = False
    reason: str = ""


@value
class Link:
    """Make `target` a symbolic link with the text `text`; what stood there as a link or is our own is replaced.

    An optional one that cannot be made is left out with a warning.
    """

    target: str
    text: str
    reason: str = ""
    optional: bool = False


@value
class Write:
    """Make `target` a small file with this text, in the place of what was there; left out with a warning if it can't
    be made."""

    target: str
    text: str
    reason: str = ""
    optional: bool = True


@value
class LoaderCache:
    """Make the container's loader find `entries` (name, absolute path) before all others, and later ldconfigs agree.

    `entries32` are those of the 32-bit loader.
    """

    entries: tuple[tuple[str, str], ...]
    directories: tuple[str, ...]
    reason: str = ""
    entries32: tuple[tuple[str, str], ...] = ()


@value
class Plan:
    """All that the hook will do to one container, in order."""

    steps: tuple["Bind | Link | Write | LoaderCache", ...]
    warnings: tuple[str, ...] = ()
