"""gpuhook-hook: the OCI hook that gives a container its driver. main() is the table of contents.

Hot path: called by the low-level runtime with the container's namespaces made and its root mounted but not entered.
The shim decided who gets what and wrote it into the hook's arguments with the id of the driver's record; it holds for
that record, so nothing is decided again here. Another record now means that the driver changed in between: refused.
"""

import posix

from gpuhook import config, containers, driverproc, enter, image, plan, sources, state
from gpuhook.driver import record
from gpuhook.errors import GpuhookError
from gpuhook.log import Log
from gpuhook.model import DriverFile, Image, Node, Plan, Record, replace, value
from gpuhook.rootfs import Root

_GDS = "/dev/nvidia-fs"  # how the paths of the nodes of GDS begin
_USAGE = "such arguments are written into the spec by gpuhook-runtime; without them the hook decides by itself"


def main(argv: list[str], prefix: str) -> int:
    """Read what the runtime says, plan for this record, enter the container and do it. Ends the process (`leave`)."""
    name = "-"
    log = Log(config.paths(prefix).log)
    try:
        state.harden()
        orders = parse(argv[1:])
        told = state.read(0)
        name = told.id
        settings = config.load(prefix)
        log = Log(config.log_path(settings, prefix), settings.log_level)
        known = same_record(settings, prefix, orders)
        warnings = provide(told, orders, known, settings)
        finish(containers.Granted(name, told.pid, orders.gpus, orders.capabilities, known), warnings, prefix, log)
        return state.leave(0)
    except Exception as error:
        return state.leave(state.report(error, name, log))


def provide(
    told: state.State, orders: "Orders", known: Record, settings: config.Config, nodes: "tuple[Node, ...]" = ()
) -> "tuple[str, ...]":
    """Give the container the driver's files, and `nodes` where its spec has none of them; returns warnings."""
    files = plan.select(known, orders.capabilities)
    proc: list[str] = []
    more = of_granted(known, orders, settings)
    has_gds = _has_gds(orders)
    if has_gds:
        from gpuhook.driver import switches  # noqa: PLC0415 - few have more than GPUs

    def take() -> sources.Sources:
        taken = sources.acquire(settings.driver_root, files, settings.sockets + settings.directories)
        if nodes:
            sources.acquire_nodes(settings.dev_root, nodes, taken)
        if has_gds:
            sources.acquire_steps(settings.driver_root, switches.STEPS, taken)
        if orders.proc:
            names = proc_names(known, orders)
            proc.extend(driverproc.acquire(settings.proc_root, names, orders.label, taken))
        return taken

    is_root = posix.geteuid() == 0
    if not is_root:  # then sources are taken in the container's namespaces, where nothing is to be loaded
        from gpuhook import oldkernel  # noqa: F401, PLC0415

    return enter.mount(
        enter.Target(told.pid, orders.root, orders.tmpfs),
        take() if is_root else sources.Sources(),
        lambda root: steps(
            root, known, files, settings, compat=orders.compat, proc=tuple(proc), nodes=nodes, more=more
        ),
        settings.deadline,
        None if is_root else take,
    )


def finish(done: containers.Granted, warnings: "tuple[str, ...]", prefix: str, log: Log) -> None:
    """Write down what was granted, and the warnings in the log.

    What the host lacks for drawing is the same at each start, and images ask for `all` on servers, too: `explain` and
    `doctor` say it, and the log only to who asks it for everything.
    """
    for text in plan.lacking(done.record, done.capabilities):
        log.write("debug", done.id, text)
    for warning in (*warnings, containers.note(config.paths(prefix).state, done)):
        if warning:
            log.write("warning", done.id, warning)


@value
class Orders:
    """What the shim decided (`grant.orders`, `oci.Spec.orders`).

    The record it decided by, the container's root, its capabilities, where its spec mounts a fresh tmpfs; whether the
    image's forward-compatibility libraries may be used; the device nodes granted (`PATH:MAJOR:MINOR`), which stand here
    so that a later start of the bundle can take them back; the UUIDs of what was granted, and the rights over all MIG
    devices; whether /proc/driver/nvidia is masked; and the spec's mount label.
    """

    record: str
    root: str
    capabilities: tuple[str, ...]
    tmpfs: tuple[str, ...]
    compat: bool
    nodes: tuple[str, ...]
    gpus: tuple[str, ...]
    rights: tuple[str, ...]
    proc: bool
    label: str


def parse(words: list[str]) -> Orders:
    """Read the hook's arguments. GpuhookError `usage` for what the shim would not write."""
    found = {"--record": "", "--root": "", "--capabilities": "", "--gpus": "", "--rights": "", "--label": ""}
    flags = {"--compat": False, "--proc": False}
    tmpfs = []
    nodes = []
    left = words[::-1]
    while left:
        word = left.pop()
        if word in flags:
            flags[word] = True
        elif word == "--tmpfs" and left:
            tmpfs.append(left.pop())
        elif word == "--node" and left:
            nodes.append(left.pop())
        elif word in found and left:
            found[word] = left.pop()
        else:
            raise GpuhookError("usage", f"gpuhook-hook does not take {word!r}", _USAGE)
    if not found["--record"] or not found["--root"].startswith("/"):
        raise GpuhookError("usage", "gpuhook-hook was called without --record and --root", _USAGE)
    return Orders(
        found["--record"],
        found["--root"],
        _list(found["--capabilities"]),
        tuple(tmpfs),
        flags["--compat"],
        tuple(nodes),
        _list(found["--gpus"]),
        _list(found["--rights"]),
        flags["--proc"],
        found["--label"],
    )


def _list(text: str) -> tuple[str, ...]:
    return tuple([word for word in text.split(",") if word])


def same_record(settings: config.Config, prefix: str, orders: Orders) -> Record:
    """The record that the shim decided by, a moment ago. GpuhookError `driver-changed` where there is another by now.

    The stored one is taken by its id, without its key: `sources.acquire` proves each file to be the one that the record
    names. Where none is stored (a read-only /run) or another, this host's driver is looked at again; the id names the
    driver's state, so the same driver gets the same one.
    """
    stored = record.read(config.paths(prefix).state)
    known = stored.record if stored is not None else None
    if known is None or known.id != orders.record:
        known = record.load(settings, prefix, gpus=bool(orders.gpus))
    if known.id != orders.record:
        raise GpuhookError(
            "driver-changed",
            f"the driver changed while the container was started: it is {known.driver} now",
            "start the container again",
        )
    return known


def of_granted(known: Record, orders: Orders, settings: config.Config) -> "tuple[plan.Step, ...]":
    """What hangs on the nodes that were granted: for GDS the files that its library reads; for a container that draws
    links to the DRM nodes and the application profile."""
    beside: tuple[plan.Step, ...] = ()
    if _has_gds(orders):
        from gpuhook.driver import switches  # noqa: PLC0415 - few have more than GPUs

        beside = switches.STEPS
    if known.wsl or ("graphics" not in orders.capabilities and "display" not in orders.capabilities):
        return beside
    from gpuhook.driver import drm  # noqa: PLC0415 - who draws pays for it

    gpus = []
    for gpu in known.gpus:
        migs = tuple([mig for mig in gpu.migs if mig.uuid in orders.gpus])
        if migs or gpu.uuid in orders.gpus:
            gpus.append(replace(gpu, migs=migs))
    paths = tuple([text.partition(":")[0] for text in orders.nodes])
    return (*beside, *drm.links(settings, tuple(gpus), paths), plan.profile(tuple(gpus)))


def _has_gds(orders: Orders) -> bool:
    """Whether nodes of GDS were granted: with them go the files that its library reads."""
    return any(text.startswith(_GDS) for text in orders.nodes)


def proc_names(known: Record, orders: Orders) -> "tuple[tuple[str, ...], ...]":
    """What the container's /proc/driver/nvidia has (`driverproc.acquire`).

    Of each granted GPU its directory; of a MIG device its parent's, and its capabilities' own.
    """
    names = []
    for gpu in known.gpus:
        migs = [mig for mig in gpu.migs if mig.uuid in orders.gpus]
        if migs or gpu.uuid in orders.gpus:
            names.append(driverproc.gpu_names(gpu.bus_id))
        for mig in migs:
            names += [(name,) for name in driverproc.mig_names(gpu.minor, mig.gi, mig.ci)]
    if orders.rights:
        names = [each for each in names if not each[0].startswith("capabilities/")] + [("capabilities",)]
    return tuple(names)


def steps(
    root: Root,
    known: Record,
    files: "tuple[DriverFile, ...]",
    settings: config.Config,
    *,
    compat: bool,
    proc: tuple[str, ...] = (),
    nodes: "tuple[Node, ...]" = (),
    more: "tuple[plan.Step, ...]" = (),
) -> tuple[Plan, Image]:
    """The plan for the image that `root` shows; called inside the container's mount namespace, and by `explain`."""
    found = image.look(root, files, compat=compat)
    return plan.make(known, files, found, settings.sockets, settings.directories, proc, nodes, more), found
