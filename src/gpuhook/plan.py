"""Request, driver and image in; the steps that give the container its driver out. Pure: `explain` prints what it gives.

Hot path. Each kind of thing a container gets is one function. The order of steps is the order in which they are done:
mounts, links, the loader's cache last.
"""

from gpuhook import cuda
from gpuhook.errors import GpuhookError
from gpuhook.model import Bind, DriverFile, Gpu, Image, Link, LoaderCache, Node, Plan, Record, Write

TYPE_CHECKING = False
if TYPE_CHECKING:
    Step = Bind | Link | Write | LoaderCache

# What a word of NVIDIA_DRIVER_CAPABILITIES brings besides its own files (NVIDIA's stack: `video` needs the compute
# libraries, `display` the graphics ones).
_BOTH = "compute+graphics"
BRINGS = {
    "compute": (_BOTH,),
    "graphics": (_BOTH,),
    "video": ("compute", _BOTH),
    "display": ("graphics", _BOTH),
}
NARROW = "compat32"  # the word that brings the 32-bit libraries of what the other words bring

# (capability, soname): without the library the capability does not work at all.
_NEEDED = (("compute", "libcuda.so.1"), ("utility", "libnvidia-ml.so.1"))

_BINARIES = "/usr/bin"
_X_MODULES = ("/usr/lib/xorg/", "/usr/lib64/xorg/")  # of an X server of Debian, Arch, ..., and of Fedora, SUSE, ...

# The back end of Mesa's GBM loader for the driver's devices: a link beside the libraries (NVIDIA's README, "GBM").
_GBM = ("libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so")

# What has the descriptions by which Vulkan's and EGL's loaders find the driver: names of Ubuntu, Debian and Fedora.
DRAWING_PACKAGES = (
    "the driver's graphics packages (libnvidia-gl-..., nvidia-vulkan-icd and nvidia-egl-icd, nvidia-driver-libs)"
)

PROFILE = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"


def select(record: Record, capabilities: "tuple[str, ...]") -> "tuple[DriverFile, ...]":
    """The driver's files that belong to the capabilities. GpuhookError `library-missing` where one can't work."""
    wanted = {"*", *capabilities}
    for word in capabilities:
        wanted.update(BRINGS.get(word, ()))
    narrow = NARROW in wanted
    files = tuple([item for item in record.files if item.capability in wanted and (narrow or item.bits != 32)])
    for word, soname in _NEEDED:
        if word in wanted and not any(item.soname == soname and item.bits != 32 for item in files):
            mine = " and ".join([asked for asked in capabilities if word in (asked, *BRINGS.get(asked, ()))])
            raise GpuhookError(
                "library-missing",
                f"the capability {mine} needs {soname} of driver {record.driver}, and this host has none",
                f"install the driver's package with {soname}, or leave {mine} out of NVIDIA_DRIVER_CAPABILITIES",
            )
    return files


def make(  # noqa: PLR0917 - what the container gets, kind by kind
    record: Record,
    files: "tuple[DriverFile, ...]",
    image: Image,
    sockets: "tuple[str, ...]" = (),
    directories: "tuple[str, ...]" = (),
    proc: "tuple[str, ...]" = (),
    nodes: "tuple[Node, ...]" = (),
    more: "tuple[Step, ...]" = (),
) -> Plan:
    """All steps for one container; `proc` are paths of /proc/driver/nvidia, itself first; `nodes` are those that its
    spec has not; `more` are steps that hang on the granted GPUs.

    GpuhookError `rootfs-architecture` for an image of another machine.
    """
    if image.machine and record.machine and image.machine != record.machine:
        raise GpuhookError(
            "rootfs-architecture",
            f"the image is for {image.machine}, the driver of this host for {record.machine}",
            f"use an image for {record.machine}",
        )
    covered = {path for path, _ in image.cover}
    steps: list[Step] = []
    steps += _libraries(files, image)
    steps += _covers(files, image)
    steps += _binaries(files)
    steps += _firmware(files)
    data = _data(files, image)
    steps += [step for step in data if isinstance(step, Bind)]
    steps += [Bind(path, path, "socket", optional=True, reason="a daemon of the driver") for path in sockets]
    steps += [Bind(path, path, "directory", optional=True, reason="a daemon of the driver") for path in directories]
    steps += [Bind(path, path, "proc", reason="the driver's words on the granted GPUs alone") for path in proc]
    steps += [Bind(node.path, node.path, "node", reason="granted, and not in the spec") for node in nodes]
    steps += _links(files, image, covered)
    steps += [step for step in data if not isinstance(step, Bind)]
    steps += more
    cache = _loader_cache(files, image, record)
    if cache is not None:
        steps.append(cache)
    return Plan(tuple(steps), tuple(_warnings(image, record)))


def uses_compat(image: Image, record: Record) -> bool:
    """Whether the image's forward-compatibility libraries go first: only those that are for this driver."""
    return cuda.compat_used(image, record.driver, record.cuda)[0]


def _libraries(files: "tuple[DriverFile, ...]", image: Image) -> "list[Step]":
    return [
        Bind(item.path, item.target or f"{_folder(item, image)}/{item.name}", "library", reason=_because(item))
        for item in files
        if item.kind == "library" and (item.target or _folder(item, image))
    ]


def _folder(item: DriverFile, image: Image) -> str:
    """Where a library goes; empty for one of 32 bits where the image has no programs for it."""
    return image.libdir32 if item.bits == 32 else image.libdir


def _covers(files: "tuple[DriverFile, ...]", image: Image) -> "list[Step]":
    """The image's own copies of driver libraries show the host's: else the loader, or a later ldconfig, takes them."""
    sources = {(item.name, item.bits == 32): item.path for item in files if item.kind == "library"}
    steps: list[Step] = []
    for path, name in image.cover:
        source = sources.get((name, path.rpartition("/")[0] == image.libdir32))
        if source:
            steps.append(Bind(source, path, "library", reason="covers the image's own copy"))
    return steps


def _binaries(files: "tuple[DriverFile, ...]") -> "list[Step]":
    return [
        Bind(item.path, f"{_BINARIES}/{item.name}", "binary", reason=_because(item))
        for item in files
        if item.kind == "binary"
    ]


def _firmware(files: "tuple[DriverFile, ...]") -> "list[Step]":
    """Read by the kernel only; inside a container it serves tools that look for it, so it never stops a start."""
    return [
        Bind(item.path, item.target, "firmware", optional=True, reason="the GPU's firmware")
        for item in files
        if item.kind == "firmware"
    ]


def _data(files: "tuple[DriverFile, ...]", image: Image) -> "list[Step]":
    """Descriptions and the like, none of which a program can't start without, and their own links."""
    steps: list[Step] = []
    for item in files:
        if item.kind != "data" or (item.bits == 32 and not image.libdir32):
            continue
        target = item.target
        if target.startswith(_X_MODULES[0]) and image.libdir.endswith("/lib64"):
            target = _X_MODULES[1] + target[len(_X_MODULES[0]) :]
        if item.text:
            steps.append(Write(target, item.text, f"{_because(item)}, without this host's places"))
        else:
            steps.append(Bind(item.path, target, "data", optional=True, reason=_because(item)))
        folder = target.rpartition("/")[0]
        steps += [Link(f"{folder}/{name}", item.name, "a module's short name", optional=True) for name in item.links]
    return steps


def profile(gpus: "tuple[Gpu, ...]") -> Write:
    """The application profile by which EGL shows a container its own GPUs alone: a bit for each minor, as there."""
    mask = 0
    for gpu in gpus:
        if 0 <= gpu.minor < 64:
            mask |= 1 << gpu.minor
    setting = f'["EGLVisibleDGPUDevices", {mask}]'
    text = (
        f'{{"profiles": [{{"name": "_container_", "settings": {setting}}}],\n'
        ' "rules": [{"pattern": [], "profile": "_container_"}]}\n'
    )
    return Write(PROFILE, text, "EGL shows the granted GPUs alone")


def lacking(record: Record, capabilities: "tuple[str, ...]") -> "tuple[str, ...]":
    """A warning where graphics were asked for and this host has nothing by which programs find the driver's."""
    if record.wsl or ("graphics" not in capabilities and "display" not in capabilities):
        return ()
    if any(item.kind == "data" and item.target.endswith(".json") for item in record.files):
        return ()
    return (
        f"graphics were asked for, and this host has no Vulkan or EGL description of driver {record.driver}: install"
        f" {DRAWING_PACKAGES}",
    )


def _links(files: "tuple[DriverFile, ...]", image: Image, covered: "set[str]") -> "list[Step]":
    """The soname leads to the file, each development link to the soname, as the driver's installer lays them."""
    steps: list[Step] = []
    draws = any(item.capability == "graphics" for item in files)
    for item in files:
        folder = _folder(item, image)
        if item.kind != "library" or item.target or not folder:
            continue
        if draws and item.soname == _GBM[0]:
            steps.append(Link(f"{folder}/{_GBM[1]}", f"../{_GBM[0]}", "back end of GBM", optional=True))
        for name in item.links:
            path = f"{folder}/{name}"
            text = item.name if name == item.soname or not item.soname else item.soname
            if path not in covered and name != text:
                steps.append(Link(path, text, reason="soname" if name == item.soname else "development link"))
    return steps


def _loader_cache(files: "tuple[DriverFile, ...]", image: Image, record: Record) -> LoaderCache | None:
    if not image.loader:
        return None
    names: dict[str, str] = {}
    narrow: dict[str, str] = {}
    own: dict[str, None] = {}  # directories of libraries that keep their host's place
    for item in files:
        if item.kind == "library" and item.target:
            if item.links:
                own[item.target.rpartition("/")[0]] = None
            names.update(dict.fromkeys(item.links, item.target))
        elif item.kind == "library":
            found, folder = (narrow, image.libdir32) if item.bits == 32 else (names, image.libdir)
            for name in item.links or (item.name,):
                found[name] = f"{folder}/{name}"
    if not image.libdir32:
        narrow.clear()
    directories = [image.libdir, image.libdir32] if narrow else list(own) or [image.libdir]
    reason = "the loader finds the host's libraries first"
    if uses_compat(image, record):
        directories.insert(0, image.compat)
        names.update({name: f"{image.compat}/{name}" for name in image.compat_names})
        reason = f"the image's forward-compatibility libraries ({image.compat_version}) first, then the host's"
    return LoaderCache(tuple(names.items()), tuple(directories), reason, tuple(narrow.items()))


def _warnings(image: Image, record: Record) -> "list[str]":
    if not image.loader:
        return ["the image has no dynamic loader: the libraries are mounted, and nothing will look for them"]
    if image.loader == "musl":
        return ["the image's C library is musl; the driver's libraries are made for glibc and need gcompat to load"]
    used, why = cuda.compat_used(image, record.driver, record.cuda)
    if image.compat and not used:
        return [f"the image's forward-compatibility libraries ({image.compat_version}) stay unused: {why}"]
    return []


def _because(item: DriverFile) -> str:
    return "every capability" if item.capability == "*" else item.capability.replace("+", ", ")
