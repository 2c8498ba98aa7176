"""What a container gets on this host, decided: the one pipeline of the shim, of `explain` and of nobody else.

Hot path. Request, then requirement (parsed before the driver is touched), then the driver's record, then the verdict,
the GPUs and their nodes. Nothing is changed here.
"""

import posix

from gpuhook import cuda, devices, request, requirement
from gpuhook.config import Config
from gpuhook.driver import nodes, record
from gpuhook.errors import GpuhookError, shown
from gpuhook.model import Container, Gpu, Node, Record, Request, value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_FOLDERS = 64  # of LD_LIBRARY_PATH that are looked at


@value
class Grant:
    """What a container gets: GPUs and device nodes, of the driver that `record` describes.

    `compat`: the image's forward-compatibility libraries may be used, as the configuration and the GPUs' brands allow.
    `apart`: the paths of nodes that would lie in a volume.
    """

    request: Request
    record: Record
    gpus: tuple[Gpu, ...]
    nodes: tuple[Node, ...]
    compat: bool
    warnings: tuple[str, ...]
    apart: tuple[str, ...] = ()


def decide(container: Container, config: Config, prefix: str) -> Grant | None:
    """What the container gets, or None where it asks for nothing. GpuhookError where it can't have what it asks for."""
    asked = None if container.sandbox else request.read(container, config)
    if asked is None:
        return None
    devices.check(asked)
    demands, warnings = requirement.parse_all(asked.demands, policy(asked, config))
    known = record.load(config, prefix, gpus=bool(asked.devices))
    doubt = "" if asked.devices or known.gpus else record.doubt(prefix)
    if doubt:
        warnings += (f"the container asks for no GPU, and could have none: {doubt}",)
    gpus = devices.select(asked, known.gpus)
    matter = circumstances(container, asked, config, known, gpus)
    warnings += requirement.check(demands, *matter, asked.near_misses, config.allow_disable_require)
    if known.wsl:
        return _of_windows(container, config, asked, known, gpus, warnings)
    beside: tuple[Node, ...] = ()
    if asked.switches:
        from gpuhook.driver import switches  # noqa: PLC0415 - few ask for more than GPUs

        beside, doubts = switches.nodes_of(config, asked.switches)
        warnings += doubts
    cards: tuple[Node, ...] = ()
    if "graphics" in asked.capabilities or "display" in asked.capabilities:
        from gpuhook.driver import drm  # noqa: PLC0415 - who draws pays for it

        cards, doubts = drm.of_gpus(config, gpus)
        warnings += doubts
    granted = (
        *_control(config, asked.capabilities, doubt),
        *nodes.of_gpus(config, gpus),
        *nodes.beside(config, asked.mig, asked.channels),
        *beside,
        *cards,
    )
    apart, lost = in_volumes(container, granted)
    return Grant(
        request=asked,
        record=known,
        gpus=gpus,
        nodes=granted,
        compat=compat_allowed(config, gpus),
        warnings=library_path(container)
        + asked.warnings
        + devices.left_out(asked, known.gpus)
        + devices.renumbered(asked, gpus)
        + warnings
        + lost,
        apart=apart,
    )


def _of_windows(  # noqa: PLR0917 - what `decide` has decided so far
    container: Container,
    config: Config,
    asked: Request,
    known: Record,
    gpus: tuple[Gpu, ...],
    warnings: tuple[str, ...],
) -> Grant:
    """The grant on WSL2: one node brings all GPUs. GpuhookError `device-invalid` for a choice of some of them."""
    if gpus and len(gpus) < len(devices.healthy(known.gpus)):
        raise GpuhookError(
            "device-invalid",
            f"{asked.origin} asks for {len(gpus)} of {len(known.gpus)} GPUs, and WSL2 gives all by one device",
            "ask for all; CUDA_VISIBLE_DEVICES in the container chooses what programs use",
        )
    beside = nodes.beside(config, asked.mig, asked.channels)
    more = library_path(container) + asked.warnings + devices.left_out(asked, known.gpus)
    granted = nodes.of_windows(config) + beside if gpus else beside
    return Grant(asked, known, gpus, granted, compat_allowed(config, gpus), more + warnings)


def _control(config: Config, capabilities: tuple[str, ...], doubt: str) -> tuple[Node, ...]:
    """The control nodes; none where the driver does not answer and they are not there. Raises node-missing."""
    try:
        return nodes.control(config, capabilities)
    except GpuhookError:
        if doubt:
            return ()
        raise


def in_volumes(container: Container, granted: tuple[Node, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The paths of nodes that would lie in a volume (`-v /dev/dri:/dev/dri`), where nothing is made; and a warning for
    each that the volume itself does not have."""
    apart: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    for node in granted:
        source, place = "", ""  # of the nearest mount; of several at one place the last
        for one, at in container.mounts:
            if at.startswith("/dev") and node.path.startswith(f"{at}/") and len(at) >= len(place):
                source, place = one, at
        if not place or place in container.tmpfs:
            continue
        apart += (node.path,)
        try:
            has = posix.stat(source + node.path[len(place) :]).st_rdev == posix.makedev(node.major, node.minor)
        except (OSError, ValueError):
            has = False
        if not has:
            warnings += (
                f"left out {node.path}: it would lie in {place}, which the container mounts and which does not have it",
            )
    return apart, warnings


def library_path(container: Container) -> tuple[str, ...]:
    """Warnings where LD_LIBRARY_PATH names folders whose libcuda a program should not load by accident."""
    found: tuple[str, ...] = ()
    for folder in dict(container.env).get("LD_LIBRARY_PATH", "").split(":", LIMIT_FOLDERS)[:LIMIT_FOLDERS]:
        name = folder.rstrip("/").rpartition("/")[2]
        if name in ("stubs", "compat") and len(found) < 2:
            what = "stubs that only serve to link" if name == "stubs" else "libraries that may not fit this driver"
            found += (
                f"LD_LIBRARY_PATH has {shown(folder)}, and the loader looks there before it finds the host's driver: "
                f"{what}; leave that folder out",
            )
    return found


def policy(asked: Request, config: Config) -> str:
    """The requirement policy that counts for this request."""
    return "off" if asked.disabled_by else config.policy


def circumstances(
    container: Container, asked: Request, config: Config, known: Record, gpus: tuple[Gpu, ...]
) -> "tuple[requirement.Host, tuple[Gpu, ...], str, Callable[[], str | None]]":
    """What requirements are judged by: the arguments of `requirement.judge` after the requirements."""
    allowed = compat_allowed(config, gpus)
    return (
        requirement.Host(known.driver, known.cuda, known.cuda_assumed),
        gpus,
        policy(asked, config),
        lambda: compat_version(container, known) if allowed else "",
    )


def compat_allowed(config: Config, gpus: tuple[Gpu, ...]) -> bool:
    """Whether the image's forward-compatibility libraries may be used: by the configuration and each GPU's brand."""
    return config.cuda_compat == "path" and all(cuda.forward_compat(gpu.brand) for gpu in gpus)


def orders(granted: Grant, container: Container) -> list[str]:
    """The arguments of our hook: all that it has to know, so that it need not decide again.

    They stand in config.json, which only the engine and gpuhook write; `--record` binds them to one driver.
    """
    words = ["--record", granted.record.id, "--root", container.root]
    words += ["--capabilities", ",".join(granted.request.capabilities)]
    words += ["--gpus", ",".join([gpu.uuid for gpu in granted.gpus])]
    if granted.request.mig:
        words += ["--rights", ",".join(granted.request.mig)]
    for mount in container.tmpfs:
        words += ["--tmpfs", mount]
    for node in granted.nodes:
        words += ["--node", f"{node.path}:{node.major}:{node.minor}"]
    if granted.compat:
        words.append("--compat")
    return words


def check_dev(container: Container) -> None:
    """GpuhookError `dev-not-mounted` where the spec mounts nothing at /dev."""
    if not any(destination == "/dev" for _, destination in container.mounts):
        raise GpuhookError(
            "dev-not-mounted",
            "the container asks for GPUs and its spec mounts nothing at /dev: device nodes would be made in the image",
            'mount a tmpfs at /dev, as `runc spec` and every engine do: {"destination":"/dev","type":"tmpfs"}',
        )


def compat_version(container: Container, known: Record) -> str | None:
    """The driver version of the image's forward-compatibility libraries that would be used, or ``.

    Looked for only where a verdict hangs on it: before the container exists, in its root as the engine prepared it.
    None for a container without a root, which only `explain` has: no image is at hand.
    """
    from gpuhook import image  # noqa: PLC0415
    from gpuhook.rootfs import Root, open_proc  # noqa: PLC0415

    if not container.root:
        return None
    proc = open_proc()
    try:
        root = Root.at(container.root, proc)
        try:
            found = image.look(root, (), compat=True)
        finally:
            root.close()
    except GpuhookError:
        return ""
    finally:
        posix.close(proc)
    return found.compat_version if cuda.compat_used(found, known.driver, known.cuda)[0] else ""
