"""What `gpuhook doctor` looks at of the driver: record, GPUs, nodes, and the containers that have them now.

Off the hot path. The record is loaded as a start loads it, and made anew where it is out of date.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

from gpuhook import config, containers, plan, version
from gpuhook.config import Config
from gpuhook.driver import key, nodes, record
from gpuhook.engines.host import Host
from gpuhook.engines.model import Finding
from gpuhook.errors import GpuhookError, bare
from gpuhook.model import Gpu, Node, Record

_EVERYTHING = ("compute", "graphics", "utility")  # what the driver's common nodes are for
_MOST = 8  # containers, libraries or nodes that are named
_NOTE_LIMIT = 1 << 16  # bytes of a container's file
_OTHERS = 0o006
_CDI = ("/etc/cdi", "/var/run/cdi", "/run/cdi")  # CDI 0.7 and 1.0, container-device-interface/SPEC.md
_CDI_VERSION = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d{2,4}\.\d{1,4}(?:\.\d{1,4})?)\b", re.ASCII)
_REFRESH = "see what is different now: gpuhook record refresh"


def findings(host: Host, settings: Config, prefix: str) -> Iterator[Finding]:
    """All of the driver's findings, and those of running containers."""
    try:
        known = record.load(settings, prefix)
    except GpuhookError as error:
        yield Finding("problem", "driver", error.message, error.hint)
        yield from granted(host, settings, prefix, None)
        return
    cuda = version.text(known.cuda) + (" (assumed from the branch)" if known.cuda_assumed else "")
    has = f"CUDA up to {cuda}, {len(known.files)} files"
    if known.wsl:
        yield Finding("ok", "driver", f"Windows' driver {bare(known.driver)} (WSL2), {has}")
        yield from _gpus(known)
        yield from _node_of_windows(settings)
        yield from granted(host, settings, prefix, known)
        return
    in_proc, in_sys = key.loaded_version(settings)
    loaded = in_sys.strip() or known.driver
    which = "its libraries are of the same version" if loaded == known.driver else f"libraries of {known.driver}"
    source = "" if in_proc else ", by /sys alone"
    yield Finding("ok", "driver", f"module {bare(loaded)} is loaded{source}, {which}, {has}")
    stored = record.read(config.paths(prefix).state)
    if stored is None or stored.record != known:
        yield Finding("note", "record", "the driver's record is not stored: each start makes it anew", _cure())
    else:
        yield Finding("ok", "record", f"{known.id} fits this host")
        if stored.left_out:
            path, reason = stored.left_out[0]
            more = f", and {len(stored.left_out) - 1} more" if len(stored.left_out) > 1 else ""
            text = f"no container gets {bare(path)}: {bare(reason)}{more}"
            yield Finding("note", "files", text, "see all of them: gpuhook list")
    if plan.lacking(known, ("graphics",)):
        text = f"no Vulkan or EGL description of driver {known.driver}: who asks for graphics starts, and cannot draw"
        yield Finding("note", "graphics", text, f"where containers draw, install {plan.DRAWING_PACKAGES}")
    yield from _gpus(known)
    yield from _nodes(host, settings, known, has_containers=bool(running(prefix)))
    yield from granted(host, settings, prefix, known)
    yield from cdi(host, known)


def _node_of_windows(settings: Config) -> Iterator[Finding]:
    try:
        (node,) = nodes.of_windows(settings)
    except GpuhookError as error:
        yield Finding("problem", "nodes", error.message, error.hint)
    else:
        yield Finding("ok", "nodes", f"{node.path}, with the number of /proc/misc")


def _cure() -> str:
    """What lets the record be stored."""
    if os.geteuid() != 0:
        return "run `sudo gpuhook record refresh`; each start by root stores it, too"
    return "see that /run is writable and /run/gpuhook is root's alone"


# --- GPUs and their nodes -----------------------------------------------------------------------------------------


def _gpus(known: Record) -> Iterator[Finding]:
    well = [gpu for gpu in known.gpus if not gpu.error]
    for gpu in known.gpus:
        if gpu.error:
            text = f"{_name(gpu)} does not answer: {bare(gpu.error)}"
            hint = "look for NVRM and Xid lines in dmesg; a reset of the GPU or a reboot brings it back"
            yield Finding("warning", "gpu", text, hint)
    if well:
        kinds = ", ".join(dict.fromkeys([bare(gpu.name) for gpu in well]))
        parts = sum(len(gpu.migs) for gpu in well)
        divided = f", {parts} MIG devices" if any(gpu.mig for gpu in well) else ""
        yield Finding("ok", "gpus", f"{len(well)}{divided}: {kinds}")
    else:
        text = "the driver has no GPU that answers" if known.gpus else "the driver has found no GPU"
        hint = "see `lspci -d 10de:` and the NVRM lines in dmesg"
        yield Finding("problem", "gpus", text, hint)


def _name(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({bare(gpu.bus_id or gpu.uuid)})"


def _nodes(host: Host, settings: Config, known: Record, *, has_containers: bool) -> Iterator[Finding]:
    """The nodes, looked for as a start does; those that a container can do without are noted."""
    found: list[Node] = []
    try:
        found += nodes.control(settings, _EVERYTHING)
        found += nodes.of_gpus(settings, tuple(gpu for gpu in known.gpus if not gpu.error))
    except GpuhookError as error:
        yield Finding("problem", "nodes", error.message, error.hint)
        return
    absent = [node.path for node in found if node.missing]
    if absent:
        text = f"{_some(absent)}: missing, as after a boot; gpuhook makes what a container is granted"
        hint = "run `nvidia-modprobe -c 0 -u` as root, or nvidia-persistenced at boot"
        yield Finding("note", "nodes", text, hint)
    else:
        yield Finding("ok", "nodes", f"{len(found)} device nodes, with the numbers of /proc/devices")
    paths = {node.path for node in found}
    if "/dev/nvidia-modeset" not in paths:
        text = "/dev/nvidia-modeset is not there: containers do without; only displays need it"
        yield Finding("note", "modeset", text, "run `nvidia-modprobe -m` as root")
    closed = [node for node in found if node.mode & _OTHERS != _OTHERS]
    if closed:
        one = closed[0]
        text = f"{_some([node.path for node in closed])}: mode {one.mode:04o}, group {one.gid}: not open to others"
        hint = "set NVreg_DeviceFileMode=0666 (the default), or give others the group (--group-add keep-groups)"
        yield Finding("warning", "node-modes", text, hint)
    yield from _links(host, found, has_containers=has_containers)


def _links(host: Host, found: list[Node], *, has_containers: bool) -> Iterator[Finding]:
    """What systemd and some versions of runc find a device by."""
    missing = [path for node in found if not os.path.exists(host.real(path := f"/dev/char/{node.major}:{node.minor}"))]
    if not missing:
        yield Finding("ok", "device-links", "/dev/char has a link of each node: device rules survive daemon-reload")
    elif has_containers:
        text = f"{_some(missing)}: no such link: containers may lose their GPUs at the next `systemctl daemon-reload`"
        yield Finding("warning", "device-links", text, "start a container with GPUs: that makes the links")
    elif not config.is_host_root():
        text = "/dev/char lacks links of nodes: containers without root have no device rules, and need none"
        yield Finding("ok", "device-links", text)
    else:
        text = f"{_some(missing)}: no such link: gpuhook-runtime makes it when a container gets GPUs"
        yield Finding("note", "device-links", text)


# --- containers that have GPUs --------------------------------------------------------------------------------------


def running(prefix: str) -> list[dict[str, Any]]:
    """What is written down of the containers that were granted devices and run now."""
    state = config.paths(prefix).state
    folder = f"{state}/{containers.FOLDER}"
    try:
        names = sorted(name[:-5] for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return []
    items: list[Any] = [
        config.read_own(folder, f"{name}.json", _NOTE_LIMIT) for name in names if containers.running(state, name)
    ]
    return [item for item in items if isinstance(item, dict) and isinstance(item.get("id"), str)]


def granted(host: Host, settings: Config, prefix: str, known: Record | None) -> Iterator[Finding]:
    """Containers that were granted GPUs: whether the driver is still theirs, whether systemd may take GPUs away."""
    items = running(prefix)
    if not items:
        yield Finding("ok", "containers", "none that runs has GPUs of gpuhook's")
        return
    counted = f"{len(items)} running" if len(items) > 1 else "1 running"
    driver = known.driver if known is not None else key.loaded_version(settings)[1].strip()
    stale = [item for item in items if driver and item.get("driver") != driver]
    if stale:
        now = bare(driver)
        versions = ", ".join(dict.fromkeys([bare(item.get("driver")) for item in stale]))
        text = f"{_ids(stale)} got the files of driver {versions}, and now {now} is loaded: their GPUs do not work"
        yield Finding("warning", "containers-stale", text, "start these containers anew")
    older = [item for item in items if item not in stale and known is not None and item.get("record") != known.id]
    if older:
        text = f"since {_ids(older)} started, the driver's files, the GPUs or the configuration changed"
        yield Finding("note", "containers-older", text, _REFRESH)
    if not stale and not older:
        yield Finding("ok", "containers", f"{counted} with GPUs, all of the driver as it is now")
    alone = [item for item in items if item.get("mode") == "hook-only"]
    if alone:
        exposed = host.uid == 0 and host.exists("/run/systemd/system")
        after = "`systemctl daemon-reload` may take them away" if exposed else "nothing here applies other rules"
        text = f"{_ids(alone)} got the devices by the hook alone, behind the runtime's back: {after}"
        hint = "name gpuhook's runtime for them instead of the hook: `gpuhook configure ENGINE` without --hook"
        yield Finding("warning" if exposed else "note", "containers-hook-only", text, hint if exposed else "")


def _ids(items: list[dict[str, Any]]) -> str:
    names = [bare(item["id"]) for item in items]
    return f"{'container' if len(names) == 1 else 'containers'} {_some([name[:12] for name in names])}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


# --- specifications for CDI that others made -------------------------------------------------------------------------


def cdi(host: Host, known: Record) -> Iterator[Finding]:
    """CDI specifications for NVIDIA's GPUs name files by the driver's version: those of a driver that is gone fail."""
    for folder in _CDI[:2] if os.path.realpath(host.real(_CDI[2])) == os.path.realpath(host.real(_CDI[1])) else _CDI:
        for path in (*host.glob(f"{folder}/*.yaml"), *host.glob(f"{folder}/*.yml"), *host.glob(f"{folder}/*.json")):
            text = host.text(path)
            named = sorted(set(_CDI_VERSION.findall(text)))
            if "nvidia.com/" in text and named and known.driver not in named:
                found = f"{path} is for driver {', '.join(named)}, and {known.driver} is loaded: what uses it fails"
                hint = "make it anew by the program that made it (`nvidia-ctk cdi generate`), or remove it"
                yield Finding("warning", "cdi", found, hint)
