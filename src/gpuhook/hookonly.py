"""gpuhook-hook where no shim decided (hooks.d of CRI-O and podman, docker's --gpus): main() is the table of contents.

Hot path: called for every container where an engine puts the hook into every spec, so a container that asks for nothing
loads little. For one that asks, the same pipeline as the shim's decides, and the hook adds what the shim would have
written into the spec: the device nodes, by handle, and the cgroup rules, behind the runtime's back.
"""

import posix

from gpuhook import config, linux, oci, request, state
from gpuhook.errors import GpuhookError, shown
from gpuhook.log import Log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.model import Node

_STAGES = ("prestart", "createRuntime")
_AFTER = ("poststart", "poststop")  # nothing is to be done there
_CMDLINE_LIMIT = 1 << 20


def main(argv: list[str], prefix: str) -> int:
    """See whether the container asks for GPUs, decide, and do it. Ends the process (`state.leave`)."""
    name = "-"
    find_runtime_dir()
    log = Log(config.paths(prefix).log)
    try:
        if argv[1:] in [[word] for word in _AFTER]:
            linux.read_fd(0, state.LIMIT)
            return state.leave(0)
        if argv[1:] not in ([], *[[word] for word in _STAGES]):
            raise GpuhookError(
                "usage",
                f"gpuhook-hook does not take {shown(' '.join(argv[1:]))}",
                f"give it one of {', '.join(_STAGES + _AFTER)}, or the arguments that gpuhook-runtime writes",
            )
        told = state.read(0)
        name = told.id
        spec = find_spec(told)
        container = spec.container()
        if container.sandbox or spec.has_orders():  # the shim's hook does the work
            return state.leave(0)
        try:
            settings, distrust = config.load(prefix), None
        except GpuhookError as error:
            settings, distrust = config.defaults(), error
        log = Log(config.log_path(settings, prefix), settings.log_level)
        if request.read(container, settings) is None:
            ignored = request.ignored(container, settings)
            if ignored:
                log.write("warning", name, ignored)
            return state.leave(0)
        if distrust is not None:
            raise distrust
        state.harden()
        give(told, spec, settings, prefix, log)
        return state.leave(0)
    except Exception as error:
        return state.leave(state.report(error, name, log))


def find_runtime_dir() -> None:
    """A hook in a directory of the system's is not told whose rootless engine calls it: state and log go to where
    systemd keeps that user's files (pam_systemd(8))."""
    if config.RUNTIME_DIR in posix.environ or config.is_host_root():
        return
    uid = posix.geteuid()
    if uid == 0:  # in a user namespace, whose first line says: from 0, who that is outside, how many
        try:
            uid = int(linux.read_file("/proc/self/uid_map", 4096).split()[1])
        except (OSError, ValueError, IndexError):
            return  # then there is no such place
    posix.environ[config.RUNTIME_DIR] = b"/run/user/%d" % uid


def find_spec(told: state.State) -> oci.Spec:
    """The container's config.json. GpuhookError `bundle-unreadable`, `spec-invalid`.

    crun 1.8.1 calls the bundle `/`, and starts hooks there, where the spec has a user namespace and `linux.devices`;
    then its own command line has it.
    """
    if told.bundle != "/":
        return oci.Spec(f"{told.bundle}/config.json")
    from gpuhook import cmdline  # noqa: PLC0415 - where the bundle is not told

    words = linux.read_file(f"/proc/{posix.getppid()}/cmdline", _CMDLINE_LIMIT).decode("utf-8", "surrogateescape")
    command = cmdline.parse("crun", words.split("\0")[1:-1])
    bundle = command.get("bundle")
    if command.verb not in cmdline.CREATING or command.arguments[:1] != (told.id,) or not bundle.startswith("/"):
        raise GpuhookError(
            "bundle-unreadable",
            "the runtime says that the bundle is /, as crun 1.8 does for a container with a user namespace and devices",
            "use gpuhook-runtime as the runtime, or a newer crun",
        )
    return oci.Spec(f"{bundle}/{command.get('config', 'config.json')}")


def give(told: state.State, spec: oci.Spec, settings: config.Config, prefix: str, log: Log) -> None:
    """Decide, and give the container what it gets. GpuhookError where it can't have what it asks for."""
    from gpuhook import cgroup, containers, devicefilter, grant, hook  # noqa: PLC0415 - a container asks for GPUs
    from gpuhook.driver import nodes  # noqa: PLC0415

    container = spec.container()
    granted = grant.decide(container, settings, prefix)
    if granted is None:
        return
    grant.check_dev(container)
    for path in nodes.make(settings, granted.nodes):
        log.write("info", told.id, f"made the device node {path}, which was missing")
    orders = hook.parse(grant.orders(granted, container) + spec.orders())
    # who is not root of the host has no device cgroup: what is mounted is what can be opened
    groups = cgroup.find(told.pid) if config.is_host_root() else None
    rules = devicefilter.rules_of(spec.device_rules())
    warnings = granted.warnings + closed(granted.nodes)
    warnings += hook.provide(told, orders, granted.record, settings, granted.nodes)
    if groups is not None:
        warnings += cgroup.permit(groups, granted.nodes, rules)
    done = containers.Granted(told.id, told.pid, orders.gpus, orders.capabilities, granted.record, "hook-only")
    hook.finish(done, warnings, prefix, log)
    names = ", ".join([f"GPU {gpu.index} ({gpu.uuid})" for gpu in granted.gpus]) or "no GPU, the driver's files"
    log.write("info", told.id, f"granted {names} of driver {granted.record.driver}, without the shim")


def closed(nodes: "tuple[Node, ...]") -> "tuple[str, ...]":
    """A warning for nodes that others may not open: the groups of a container's processes stand in its spec."""
    names = [node.path for node in nodes if node.mode & 0o006 != 0o006]
    if not names:
        return ()
    return (f"{', '.join(names)}: not open to others, and only gpuhook-runtime can give the container their group",)
