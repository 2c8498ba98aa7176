"""What `gpuhook doctor --engine docker` looks at: daemon.json as dockerd reads it, and the dockerd that runs."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuhook import version
from gpuhook.engines import dockerd, findings
from gpuhook.engines.dockerconfig import at, load, runtimes
from gpuhook.engines.dockerd import Place
from gpuhook.engines.host import Host
from gpuhook.engines.model import Finding, Options
from gpuhook.errors import GpuhookError, shown

_USERNS = Finding(
    "note",
    "userns-remap",
    "containers run in user namespaces (userns-remap): they open the host's device nodes as another user",
    "leave the nodes /dev/nvidia* open to everybody (mode 0666)",
)
_CONFIGURE = "gpuhook configure docker"
CDI_SINCE = (25, 0)  # Docker's release notes


@dataclass(frozen=True)
class _View:
    """What the checks look at. `known`: the runtimes that dockerd has after a start; `ours`: gpuhook's among them."""

    host: Host
    options: Options
    place: Place
    text: str
    document: dict[str, Any]
    known: dict[str, Any]
    ours: tuple[str, ...]

    def at(self, *keys: str) -> str:
        """`file:line` of a key."""
        return at(self.place.path, self.text, keys)

    def restart(self, why: str = "") -> str:
        """What to do for dockerd to read its file."""
        return dockerd.fix(self.host, self.place, self.document, why)

    @property
    def default(self) -> str:
        """The default runtime after a start."""
        flags = [daemon.flag("default-runtime") for daemon in self.place.daemons]
        return self.document.get("default-runtime") or next((name for name in flags if name), "runc")


def check(host: Host, options: Options) -> tuple[Finding, ...]:
    """The findings. GpuhookError `engine-not-found` where no docker is here."""
    return tuple(_check(host, options))


def _check(host: Host, options: Options) -> Iterator[Finding]:
    place = dockerd.find(host, options.config)
    for note in place.notes:
        yield Finding("note", "others", note)
    for note in dockerd.context_notes(host, place):
        yield Finding("problem", "context", note, "docker context use default\nunset DOCKER_HOST DOCKER_CONTEXT")
    if place.kind == "snap":
        yield Finding("problem", "snap", *dockerd.SNAP_REFUSES)
    try:
        document, text = load(host, place.path)
    except GpuhookError as error:
        yield Finding("problem", "configuration", error.message, error.hint)
        return
    paths = [place.path] if host.exists(place.path) else []
    yield findings.files("dockerd", f"{place.path} is not there: dockerd has its command line alone", paths)
    known = _known(place, document)
    ours = tuple(name for name, entry in known.items() if _is_ours(host, _path(entry), options))
    view = _View(host, options, place, text, document, known, ours)
    for part in (_command_line, _registered, _default, _running, _others):
        yield from part(view)


def _command_line(view: _View) -> Iterator[Finding]:
    """Keys that dockerd finds twice: it does not start then, in whatever state it runs now."""
    for key, flag, daemon in dockerd.twice(view.place, view.document):
        what = f"dockerd does not start: `{key}` is set by {view.at(key)} and by --{flag} {shown(daemon.flag(flag))}"
        yield Finding("problem", "conflict", f"{what} of {daemon.source}", f"take --{flag} off that command line")


def _known(place: Place, document: dict[str, Any]) -> dict[str, Any]:
    """The runtimes that dockerd has after a start: those of its command line, and those of the file before them."""
    flags = [value for daemon in place.daemons for key, value in daemon.flags if key == "add-runtime"]
    pairs = (value.partition("=") for value in flags)
    return {name: {"path": path} for name, _, path in pairs} | runtimes(document)


def _path(entry: object) -> str:
    return (entry.get("path") or "") if isinstance(entry, dict) else ""


def _is_ours(host: Host, path: str, options: Options) -> bool:
    """Whether a runtime's program is gpuhook's: the one of this installation, or one of that name."""
    return os.path.basename(path) == "gpuhook-runtime" or (bool(path) and host.same(path, options.runtime))


def _registered(view: _View) -> Iterator[Finding]:
    name = view.options.runtime_name
    if "runc" in runtimes(view.document):
        what = f"{view.at('runtimes', 'runc')}: dockerd does not start: `runc` is its own name"
        yield Finding("problem", "runtime", what, "rename that entry")
    if not view.ours:
        if name in view.known:
            program = shown(_path(view.known[name]) or view.known[name])
            what = f"the runtime {shown(name)} is {program}, and not gpuhook's"
            where = view.at("runtimes", name)
            yield Finding("problem", "runtime", f"{where}: {what}", f"{_CONFIGURE} --runtime-name {name}")
        else:
            yield Finding("problem", "runtime", f"{view.place.path} has no runtime that is gpuhook's", _CONFIGURE)
        return
    for own in view.ours:
        path = _path(view.known[own])
        entry = f"the runtime {shown(own)} is"
        wrong = tuple(findings.program(view.host, path, f"{view.at('runtimes', own)}: {entry}"))
        yield from wrong or (Finding("ok", "runtime", f"{entry} gpuhook's, {path}"),)
        if not view.host.same(path, view.options.runtime) and os.path.isabs(path):
            what = f"{entry} another installation's gpuhook, {path}; this one's is {view.options.runtime}"
            yield Finding("warning", "runtime", what, f"{_CONFIGURE} --runtime-name {own}")


def _default(view: _View) -> Iterator[Finding]:
    name = view.default
    if name not in view.known and name != "runc" and not name.startswith("io.containerd."):
        where = view.at("default-runtime")
        what = f"{where}: dockerd does not start: the default runtime {shown(name)} is not among the runtimes"
        yield Finding("problem", "default-runtime", what, "name one of `runtimes`, or take `default-runtime` out")
    elif view.ours:
        otherwise = f"a container gets its GPUs with `docker run --runtime {view.ours[0]}`"
        yield findings.default_runtime(name in view.ours, shown(name), otherwise)


def _running(view: _View) -> Iterator[Finding]:
    """Whether the dockerd that runs has read its file since it was changed."""
    host, place = view.host, view.place
    if host.which("docker") is None:
        yield Finding("warning", "running", "there is no docker command in PATH: the running dockerd can't be asked")
        return
    address = next(iter(dockerd.sockets(host, place)))
    answer = host.ask("docker", "--host", address, "info", "--format", "{{json .}}")
    try:
        info = json.loads(answer or "{}")
    except (ValueError, RecursionError):
        info = {}
    if not isinstance(info, dict) or not info.get("ServerVersion"):
        what = f"dockerd does not answer at {address}: what it knows can't be told"
        yield Finding("warning", "running", what, f"docker --host {address} info" if place.pid else view.restart())
        return
    if "Docker Desktop" in str(info.get("OperatingSystem")):
        what = "the daemon that answers is Docker Desktop's, in a virtual machine: it reads none of this host's files"
        yield Finding("problem", "running", what, "use a dockerd of this host: docker context use default")
        return
    yield from _stale(view, info)
    yield from _settings(info)


def _stale(view: _View, info: dict[str, Any]) -> Iterator[Finding]:
    has = info.get("Runtimes")
    has = has if isinstance(has, dict) else {}
    running = shown(info["ServerVersion"])
    missing = [name for name in view.ours if _path(has.get(name)) != _path(view.known[name])]
    hint = view.restart()
    for name in missing:
        what = f"the running dockerd {running} does not know the runtime {shown(name)} as {_path(view.known[name])}"
        yield Finding("problem", "running", f"{what}: it has not read {view.place.path} since", hint)
    if view.ours and not missing:
        yield Finding("ok", "running", f"the running dockerd {running} knows the runtime {shown(view.ours[0])}")
    wanted, default = view.default, info.get("DefaultRuntime") or "runc"
    if wanted != default:
        what = f"the running dockerd's default runtime is {shown(default)}, and is {shown(wanted)} after its next start"
        # a reload does not notice that the key is gone
        why = "" if "default-runtime" in view.document else "the default runtime goes back to runc"
        yield Finding("problem" if wanted in view.ours else "warning", "default-runtime", what, view.restart(why))
    cdi = (view.document.get("features") or {}).get("cdi")
    if cdi and version.parse_loose(str(info["ServerVersion"])) < CDI_SINCE:
        what = f"`features.cdi` does nothing in dockerd {running}: 25.0 is the first that has CDI"
        yield Finding("warning", "cdi", what, "use the runtime, or a newer docker")
    elif cdi and not info.get("CDISpecDirs"):
        what = "the running dockerd has no CDI yet: `features.cdi` is read when it starts"
        yield Finding("warning", "cdi", what, view.restart("CDI is set up"))


def _settings(info: dict[str, Any]) -> Iterator[Finding]:
    """What else of the daemon bears on GPUs."""
    security = info.get("SecurityOptions")
    if isinstance(security, list) and "name=userns" in security:
        yield _USERNS
    if info.get("CgroupDriver") == "systemd":
        what = "the cgroups are systemd's: after `systemctl daemon-reload` it applies the rules of the container's spec"
        yield Finding("ok", "cgroup-driver", what)
    if info.get("CgroupDriver") == "none":
        what = "dockerd makes no cgroups (rootless, cgroup v1): no rule keeps a container from devices it can open"
        yield Finding("note", "cgroup-driver", what)


def _others(view: _View) -> Iterator[Finding]:
    for name, entry in runtimes(view.document).items():
        path, shim, more = ((entry or {}).get(key) for key in ("path", "runtimeType", "options"))
        if bool(path) == bool(shim) or (path and more):
            what = f"{view.at('runtimes', name)}: dockerd 23.0 and newer do not start: {shown(name)} must have"
            hint = f"{_CONFIGURE} --runtime-name {name}" if name in view.ours else "correct that entry, or take it out"
            yield Finding("warning", "runtime", f"{what} a `path`, or a `runtimeType` and its `options`", hint)
    if view.document.get("userns-remap") and not view.place.pid:
        yield _USERNS
