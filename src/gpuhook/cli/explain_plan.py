"""The parts of an explanation as JSON values: request, host, requirements, grant, plan, hints."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpuhook import cuda, devices, driverproc, grant, hook, image, ldconf, plan, request, requirement, version
from gpuhook.cli import gpus
from gpuhook.config import Config
from gpuhook.driver import record
from gpuhook.errors import shown
from gpuhook.model import Bind, Container, DriverFile, Image, Link, LoaderCache, Plan, Record, Request, Write, replace
from gpuhook.requirement import Result
from gpuhook.rootfs import Root, open_proc, unsafe

_CUDA = "libcuda.so.1"


def request_part(container: Container, asked: Request, settings: Config) -> dict[str, object]:
    """What was asked and by which variables, and the administrator's policy on it."""
    env = dict(container.env)
    words = env.get(request.CAPABILITIES)
    return {
        "by": asked.origin,
        "value": env.get(asked.origin, ""),
        "devices": list(asked.devices),
        "capabilities": list(asked.capabilities),
        "capabilities_by": request.CAPABILITIES if words else "",
        "capabilities_value": words,
        "switches": list(asked.switches),
        "channels": list(asked.channels),
        "requirements": [{"origin": item.origin, "text": item.text} for item in asked.demands],
        "disabled_by": asked.disabled_by,
        "policy": {
            "request.accept-env-when-unprivileged": settings.accept_env_when_unprivileged,
            "request.supported-driver-capabilities": list(settings.supported_capabilities),
            "requirement.policy": settings.policy,
            "requirement.allow-disable-require": settings.allow_disable_require,
            "requirement.cuda-compat": settings.cuda_compat,
        },
    }


def add_host(document: dict[str, Any], container: Container, asked: Request, settings: Config, where: str) -> None:
    """Driver, GPUs, and how each requirement comes out. GpuhookError where one of them can't be had."""
    known = record.load(settings, where)
    document["driver"] = driver_part(known)
    document["host_gpus"] = [gpus.part(gpu) for gpu in known.gpus]
    demands, _ = requirement.parse_all(asked.demands, grant.policy(asked, settings))
    selected = devices.select(asked, known.gpus)
    document["gpus"] = [gpus.part(gpu) for gpu in selected]
    matter = grant.circumstances(container, asked, settings, known, selected)
    verdict = requirement.judge(demands, *matter)
    document["verdict"] = {"policy": verdict.policy, "met": verdict.met, "looked": verdict.policy != "off"}
    document["verdicts"] = [_result(result) for result in verdict.results]
    document["notes"] += verdict.notes


def driver_part(known: Record) -> dict[str, object]:
    """The driver's versions, and the record that says so."""
    return {
        "version": known.driver,
        "cuda": version.text(known.cuda),
        "cuda_assumed": known.cuda_assumed,
        "machine": known.machine,
        "record": known.id,
    }


def _result(result: Result) -> dict[str, object]:
    return {
        "origin": result.requirement.origin,
        "met": result.met,
        "alternative": result.closest,
        "alternatives": len(result.requirement.alternatives),
        "outcomes": [
            {
                "gpu": outcome.gpu.index if outcome.gpu else None,
                "way": outcome.way,
                "failed": [str(item) for item in outcome.failed],
                "lacking": outcome.lacking,
            }
            for outcome in result.outcomes
        ],
    }


def add_grant(document: dict[str, Any], granted: grant.Grant) -> None:
    """The device nodes."""
    document["nodes"] = [
        {
            "path": node.path,
            "major": node.major,
            "minor": node.minor,
            "mode": f"{node.mode & 0o777:04o}",
            "missing": node.missing,
        }
        for node in granted.nodes
    ]


def add_plan(
    document: dict[str, Any], container: Container, granted: grant.Grant, settings: Config, words: list[str]
) -> None:
    """The image, and every mount, link and cache entry with its reason. `words` are the spec's own orders."""
    files = plan.select(granted.record, granted.request.capabilities)
    orders = hook.parse(grant.orders(granted, replace(container, root=container.root or "/")) + words)
    proc = proc_paths(granted.record, orders, settings)
    more = hook.of_granted(granted.record, orders, settings)
    document["warnings"] += plan.lacking(granted.record, orders.capabilities)
    if container.root:
        with looking(container.root) as root:
            known, compat = granted.record, granted.compat
            container = resolved(container, root)
            parts = steps_for(root, known, files, settings, container, compat=compat, proc=proc, more=more)
            document["libcuda"] = libcuda(container, granted, settings, *parts, root)
    else:
        found = usual_image(granted.record)
        steps = plan.make(granted.record, files, found, settings.sockets, settings.directories, proc, more=more)
        parts = steps, found
        document["libcuda"] = libcuda(container, granted, settings, *parts, None)
    add_steps(document, *parts, settings, container)


def resolved(container: Container, root: Root) -> Container:
    """The container with its mounts at the places where a runtime puts them, which follows links inside the root.

    Each stands there by its further name too where one of /usr's folders has a link beside /usr.
    """
    mounts = [(source, root.real(path) or path) for source, path in container.mounts]
    links = [(link, root.real(link)) for link in ("/lib", "/lib64", "/bin", "/sbin")]
    for source, path in mounts[:]:
        for link, real in links:
            if real not in (None, link) and path.startswith(f"{real}/"):
                mounts.append((source, link + path[len(real or "") :]))
    return replace(container, mounts=tuple(mounts))


def steps_for(
    root: Root,
    known: Record,
    files: tuple[DriverFile, ...],
    settings: Config,
    container: Container,
    *,
    compat: bool,
    proc: tuple[str, ...],
    more: "tuple[plan.Step, ...]",
) -> tuple[Plan, Image]:
    """As `hook.steps`, which sees the container's volumes where this reads of them."""
    steps, found = hook.steps(root, known, files, settings, compat=compat, proc=proc, more=more)
    if any(folder and _volume(f"{folder}/x", container) for folder in (found.libdir, found.libdir32)):
        found = image.spared(found)
        steps = plan.make(known, files, found, settings.sockets, settings.directories, proc, more=more)
    return steps, found


def libcuda(  # noqa: PLR0917 - all that decides it
    container: Container, granted: grant.Grant, settings: Config, steps: Plan, found: Image, root: Root | None
) -> dict[str, str] | None:
    """Which libcuda a program of the container loads, and why; None where it gets none, or has no loader."""
    cache = next((step for step in steps.steps if isinstance(step, LoaderCache)), None)
    path = dict(cache.entries).get(_CUDA) if cache else None
    if path is None:
        return None
    known = granted.record
    used, why = cuda.compat_used(found, known.driver, known.cuda)
    if used:
        version_ = found.compat_version
        told = {"from": "image", "why": f"the image's forward-compatibility libraries ({version_}) go first: {why}"}
    else:
        own = image.look(root, (), compat=True) if root else found
        why = _why_not_compat(own, granted, settings, why)
        told = {"from": "host", "why": f"the host's driver ({known.driver}){why}"}
    for folder in dict(container.env).get("LD_LIBRARY_PATH", "").replace(";", ":").split(":"):
        where = root.real(folder) if root and folder.startswith("/") else None
        if root is None or where is None:
            continue
        first = f"LD_LIBRARY_PATH names {folder}, and the loader looks there before its cache"
        if where == found.libdir:
            return {"path": f"{where}/{_CUDA}", "from": "host", "why": f"the host's driver ({known.driver}): {first}"}
        if root.kind(f"{where}/{_CUDA}") == "file":
            return {"path": f"{where}/{_CUDA}", "from": "image", "why": f"the image's own: {first}"}
    return {"path": path, **told}


def _why_not_compat(own: Image, granted: grant.Grant, settings: Config, why: str) -> str:
    """Why the image's forward-compatibility libraries do not go first; empty where it has none."""
    if not own.compat:
        return ""
    brands = sorted({gpu.brand for gpu in granted.gpus if not cuda.forward_compat(gpu.brand)})
    if settings.cuda_compat == "off":
        why = "the key requirement.cuda-compat is off"
    elif brands:
        why = f"CUDA accepts none on brand {shown(', '.join(brands), 80)}"
    return f"; the image's forward-compatibility libraries ({own.compat_version}) stay unused: {why}"


def add_steps(document: dict[str, Any], steps: Plan, found: Image, settings: Config, container: Container) -> None:
    """What is known of the image, and the plan for it. GpuhookError `rootfs-unsafe` where a volume is in its way."""
    document["image"] = {
        "loader": found.loader,
        "machine": found.machine,
        "libdir": found.libdir,
        "libdir32": found.libdir32,
        "compat": found.compat,
        "compat_version": found.compat_version,
        "covered": [path for path, _ in found.cover],
    }
    document |= _steps(steps, settings.driver_root, container)
    document["warnings"] += steps.warnings
    volume = _volume(ldconf.CACHE, container)
    if document["loader_cache"] is not None and (volume or ldconf.CACHE in [path for _, path in container.mounts]):
        where = f"lies in {volume}, which" if volume else "is a file that"
        document["warnings"].append(
            f"{ldconf.CACHE} {where} the container mounts, and stays as it is: "
            f"programs may not find the driver's libraries in {found.libdir}"
        )
    for step in steps.steps:
        if isinstance(step, Bind) and step.kind == "library" and _volume(step.target, container):
            raise unsafe(os.path.dirname(step.target), OSError(errno.EXDEV, ""))


def proc_paths(known: Record, orders: hook.Orders, settings: Config) -> tuple[str, ...]:
    """What the container's /proc/driver/nvidia would be of: what `driverproc.acquire` would find, only looked at."""
    root = f"{settings.proc_root.rstrip('/')}{driverproc.TARGET}"
    ours = f"/proc/{driverproc.FOLDER}/{driverproc.NAME}"  # what every procfs of this kernel has, or none
    if not orders.proc or not os.path.isdir(ours) or not os.path.isdir(root):
        return ()
    found = [name for each in hook.proc_names(known, orders) for name in _first(root, each)]
    return (driverproc.TARGET, *(f"{driverproc.TARGET}/{name}" for name in found))


def _first(root: str, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if os.path.lexists(f"{root}/{name}")][:1]


@contextmanager
def looking(path: str) -> Iterator[Root]:
    """The root at a path of the host, closed again with the handle of /proc that it works with."""
    proc = open_proc()
    try:
        root = Root.at(path, proc)
        try:
            yield root
        finally:
            root.close()
    finally:
        os.close(proc)


def usual_image(known: Record) -> Image:
    """What stands for the image where none is at hand: Debian's layout with glibc, for the driver's machine."""
    triplet = image.TRIPLETS.get(known.machine, image.TRIPLETS["x86-64"])
    return Image(loader="glibc", machine=known.machine, libdir=f"/usr/lib/{triplet}")


def _volume(target: str, container: Container) -> str:
    """The mount of the container's own that `target` would lie in, and nothing is put into; `` where there is none."""
    above = [path for _, path in container.mounts if target.startswith(f"{path.rstrip('/')}/")]
    nearest = max(above, key=len, default="")
    return "" if nearest in container.tmpfs else nearest


def _left_out(step: Bind, container: Container) -> str:
    """What of the container's own mounts keeps a step from being done (apply.py), in words."""
    if any(path == step.target for _, path in container.mounts):
        return "the container mounts something of its own there"
    volume = "" if step.kind in ("proc", "library") else _volume(step.target, container)
    return f"it would lie in {volume}, which the container mounts" if volume else ""


def _steps(steps: Plan, driver_root: str, container: Container) -> dict[str, Any]:
    parts: dict[str, Any] = {"mounts": [], "links": [], "files": [], "loader_cache": None}
    for step in steps.steps:
        match step:
            case Bind():
                parts["mounts"].append(
                    {
                        "source": step.source,
                        "target": step.target,
                        "kind": step.kind,
                        "optional": step.optional,
                        "present": step.kind == "proc" or os.path.lexists(f"{driver_root.rstrip('/')}{step.source}"),
                        "reason": step.reason,
                        "left_out": _left_out(step, container),
                    }
                )
            case Link():
                parts["links"].append({"target": step.target, "text": step.text, "reason": step.reason})
            case Write():
                parts["files"].append({"target": step.target, "text": step.text, "reason": step.reason})
            case LoaderCache():
                parts["loader_cache"] = {
                    "entries": [{"name": name, "path": path} for name, path in step.entries],
                    "entries32": [{"name": name, "path": path} for name, path in step.entries32],
                    "directories": list(step.directories),
                    "reason": step.reason,
                }
    return parts


# --- hints: what starts, and then surprises -----------------------------------------------------------------------


def hints(container: Container, granted: grant.Grant) -> list[str]:
    """What people trip over in a container that starts."""
    env = dict(container.env)
    found = []
    draws = [word for word in ("graphics", "display") if word in granted.request.capabilities]
    if draws and not granted.record.wsl and not any(node.path == "/dev/nvidia-modeset" for node in granted.nodes):
        found.append(
            f"no /dev/nvidia-modeset: this host does not have it, as a server without screens (nvidia-modeset is not "
            f"loaded); {draws[0]} works without it, but for output to a screen"
        )
    if "utility" not in granted.request.capabilities:
        found.append(
            f"no nvidia-smi and no libnvidia-ml: {request.CAPABILITIES} does not name utility, and what it names takes "
            "the place of the default compute,utility"
        )
    elif "PATH" in env and "/usr/bin" not in [folder.rstrip("/") for folder in env["PATH"].split(":")]:
        found.append(f"PATH={shown(env['PATH'])} lacks /usr/bin, where nvidia-smi will be")
    return found
