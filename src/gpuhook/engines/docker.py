"""docker: gpuhook as one of the runtimes in dockerd's daemon.json. Off the hot path.

What dockerd does with its file is stated from Docker 20.10.24 as it ran, and from Docker's own documentation:
a reload (SIGHUP) reads `runtimes` and `default-runtime` anew, the CDI driver is registered at the start alone, and
runtimes of the command line (`--add-runtime`) are forgotten by a reload until the next start. A reload does not notice
that `runtimes` or `default-runtime` is gone from the file, and 20.10 crashes in one where the runtime goes that is its
default: what was configured is taken back by a start.
"""

from typing import Any

from gpuhook.engines import dockerd
from gpuhook.engines.dockercheck import CDI_SINCE, check
from gpuhook.engines.dockerconfig import at, load, runtimes
from gpuhook.engines.dockerd import Place
from gpuhook.engines.host import Host
from gpuhook.engines.model import FileEdit, Options, Proposal, Set, Step
from gpuhook.errors import GpuhookError, shown

__all__ = ["check", "propose"]

_CDI_ALWAYS_SINCE = (28, 3)  # Docker's release notes


def propose(host: Host, options: Options) -> Proposal:
    """gpuhook under `runtimes` of the file that this host's dockerd reads.

    GpuhookError `engine-not-found`, `engine-config-unreadable`, `engine-config-invalid`, `engine-config-conflict`
    (dockerd refuses a key that its command line sets too) or `engine-option-unsupported`.
    """
    _supported(options)
    place = dockerd.find(host, options.config)
    document, text = load(host, place.path)
    steps: list[Step] = [Set(("runtimes", options.runtime_name), _entry(document, options))]
    if options.default_runtime:
        steps.append(Set(("default-runtime",), options.runtime_name))
    if options.cdi:
        steps.append(Set(("features", "cdi"), True))
    _refuse_conflicts(place, text, document, steps)
    snap = ("; ".join(dockerd.SNAP_REFUSES),) if place.kind == "snap" else ()
    notes = (*place.notes, *dockerd.context_notes(host, place), *snap, *_notes(document, options))
    if options.cdi:
        notes += _cdi_notes(host.version("dockerd"))
    return Proposal(
        "docker",
        (FileEdit(place.path, "json", tuple(steps)),),
        dockerd.restart(host, place, document, "CDI is set up" if options.cdi else ""),
        notes,
        undo_restart=dockerd.undo_restart(host, place, document),
    )


def _supported(options: Options) -> None:
    if options.drop_in is not None:
        raise GpuhookError(
            "engine-option-unsupported",
            "dockerd reads one file and no drop-in files",
            "leave --drop-in out: the entry goes into daemon.json, and `gpuhook unconfigure docker` takes it out again",
        )
    if options.hook_only:
        raise GpuhookError(
            "engine-option-unsupported",
            "dockerd has no folder of OCI hooks; a container gets gpuhook's by its runtime",
            "leave --hook out",
        )
    name = options.runtime_name
    if name == "runc" or name.startswith("io.containerd."):  # the second is that of containerd's shims
        raise GpuhookError(
            "engine-option-unsupported",
            f"dockerd reserves the runtime name {shown(name)} for itself",
            "name another one: --runtime-name gpuhook",
        )


def _entry(document: dict[str, Any], options: Options) -> dict[str, Any]:
    """What the runtime's entry shall be. One of another program is replaced as a whole, since its arguments or shim
    options are not gpuhook's; one that is gpuhook's already keeps what a person added."""
    there = runtimes(document).get(options.runtime_name)
    if isinstance(there, dict) and there.get("path") == options.runtime:
        return {"path": options.runtime} if there.get("runtimeType") or there.get("options") else there
    return {"path": options.runtime}


def _notes(document: dict[str, Any], options: Options) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    name = options.runtime_name
    there = runtimes(document).get(name)
    if there and _entry(document, options) != there:
        was = there.get("path") or there.get("runtimeType") or "nothing"
        notes += (f"the runtime {shown(name)} is {shown(was)} now, and is again after `gpuhook unconfigure docker`",)
    default = document.get("default-runtime") or "runc"
    if not options.default_runtime and default != name:
        notes += (f"a container gets its GPUs with `docker run --runtime {name}`; --default-runtime does without",)
    return notes


def _cdi_notes(version: tuple[int, ...]) -> tuple[str, ...]:
    if not version:
        return ("dockerd knows CDI since version 25.0; which version this host's has can't be told",)
    text = ".".join(map(str, version[:2]))
    if version < CDI_SINCE:
        return (f"this host's dockerd {text} has no CDI and ignores `features.cdi`; 25.0 is the first that has it",)
    if version >= _CDI_ALWAYS_SINCE:
        return (f"this host's dockerd {text} has CDI on without `features.cdi`",)
    return ()


def _refuse_conflicts(place: Place, text: str, document: dict[str, Any], steps: list[Step]) -> None:
    for key, flag, daemon in dockerd.twice(place, [step.path[0] for step in steps]):
        raise GpuhookError(
            "engine-config-conflict",
            f"`{key}` would be set by {at(place.path, text, (key,) if key in document else ())} and is set by "
            f"--{flag} {shown(daemon.flag(flag))} on the command line of {daemon.source}: dockerd does not start with "
            "both",
            f"take --{flag} off that command line, start dockerd anew and run this again",
        )
