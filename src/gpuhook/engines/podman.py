"""podman: an entry in containers.conf (rootful: /etc/containers, rootless: the user's), or a file for its OCI hooks.

Order of the files (containers.conf(5), and tried with podman 4.3.1): what CONTAINERS_CONF names, alone; else
/usr/share/containers/containers.conf, /etc/containers/containers.conf and its .d/*.conf, the user's and its .d/*.conf;
then what CONTAINERS_CONF_OVERRIDE names (4.5 and newer). A later file adds entries to [engine.runtimes] and replaces
lists; from 4.9 on a list with {append=true} is added to the earlier ones. podman has no daemon: each command reads all.
"""

import json
import os
from collections.abc import Iterator

from gpuhook.engines import findings, hooksdir, installation, layers
from gpuhook.engines.host import Host
from gpuhook.engines.layers import Layer
from gpuhook.engines.model import ABSENT, Add, FileEdit, Finding, Options, Proposal, Restart, Set, Step, Value
from gpuhook.errors import GpuhookError, shown

SHARE = "/usr/share/containers/containers.conf"
SYSTEM = "/etc/containers/containers.conf"
NAME = "99-gpuhook.conf"

_RUNTIMES = ("engine", "runtimes")
_DEFAULT = ("engine", "runtime")
_HOOKS = ("engine", "hooks_dir")
# Only runtimes in this list get --log and --log-format=json: without it an error of the low-level runtime (and in it
# the hook's) is shown as a line of a log, with \n and quotes escaped. A list in a file replaces podman's own, so it has
# to begin with that: here of 4.3 to 5.8; a name that a version does not have changes nothing.
_JSON = ("engine", "runtime_supports_json")
_JSON_BUILT_IN = ("crun", "runc", "kata", "runsc", "youki", "krun", "ocijail")
# Only runtimes in this list take --cgroups=disabled; runc can't.
_NO_CGROUPS = ("engine", "runtime_supports_nocgroups")
_NO_CGROUPS_BUILT_IN = ("crun", "krun")
_BUILT_IN = ("crun", "runc")  # podman's default is the first that is there

_RESTART = Restart((), "podman reads its files at each command: nothing is to be restarted", needed=False)


def propose(host: Host, options: Options) -> Proposal:
    """What belongs into containers.conf, or the file for the hooks directory. GpuhookError `engine-...`."""
    if not options.config and not (host.which("podman") or host.exists(SHARE) or host.exists(SYSTEM)):
        raise GpuhookError(
            "engine-not-found",
            f"podman is not on this host: there is no program podman in PATH and no {SYSTEM}",
            "install podman, or name its configuration file: --config FILE",
        )
    main, paths = _paths(host, options)
    found = layers.read(host, paths)
    notes = ["podman reads CDI specs by itself (4.1 and newer): nothing is to be switched on"] if options.cdi else []
    if main not in _usual(host):
        notes.append(f"podman reads {main} only where the variable CONTAINERS_CONF names it")
    if options.hook_only:
        return _propose_hook(host, options, main, found, notes)
    target = _target(host, options, main)
    order = _inserted(main, paths, target)
    before = tuple(layer for layer in found if layer.path in order[: order.index(target)])
    here = next((layer for layer in found if layer.path == target), Layer(target, "", {}))
    later = layers.after(found, order, target)
    _refuse_conflicts(options, main, target, later)
    steps: list[Step] = [Set((*_RUNTIMES, options.runtime_name), [options.runtime])]
    steps += _listed(options, _JSON, _JSON_BUILT_IN, before, here)
    if os.path.basename(installation.low_level(host, options)).startswith("crun"):
        steps += _listed(options, _NO_CGROUPS, _NO_CGROUPS_BUILT_IN, before, here)
    if options.default_runtime:
        steps.append(Set(_DEFAULT, options.runtime_name))
    notes += _remarks(host, options, found, later)
    return Proposal("podman", (FileEdit(target, "toml", tuple(steps)),), _RESTART, tuple(notes))


def _propose_hook(host: Host, options: Options, main: str, found: tuple[Layer, ...], notes: list[str]) -> Proposal:
    """Root's file goes into a directory that podman reads already. A user may write none of those, so gets a directory
    of his own, which containers.conf has to name."""
    folders = _list(found, _HOOKS, (hooksdir.DEFAULT,))
    own = f"{host.config_home}/containers/oci/hooks.d"
    writable = folders if host.uid == 0 else tuple(path for path in folders if path.startswith(f"{host.home}/"))
    edit, folder = hooksdir.file(host, options, writable or (own,))
    folder = "" if os.path.dirname(edit.path) in folders else folder or os.path.dirname(edit.path)
    edits = [edit]
    if folder:
        here = next((layer for layer in found if layer.path == main), Layer(main, "", {}))
        step = Set(_HOOKS, [*folders, folder]) if here.get(*_HOOKS) is ABSENT else Add(_HOOKS, folder)
        edits.append(FileEdit(main, "toml", (step,)))
        order = [layer.path for layer in found]
        for layer in layers.after(found, order, main) if main in order else ():
            if folder not in (layer.strings(*_HOOKS) or (folder,)):
                hint = f"put {folder} into that list, or remove the list"
                raise layers.conflict("podman", main, layer, _HOOKS, hint)
    notes += hooksdir.notes(host, folders)
    if os.path.dirname(edit.path) == hooksdir.DEFAULT:
        notes.append(f"rootless podman and CRI-O read {hooksdir.DEFAULT} too, unless they are configured otherwise")
    return Proposal("podman", tuple(edits), _RESTART, tuple(notes))


def _listed(
    options: Options, path: tuple[str, ...], built_in: tuple[str, ...], before: tuple[Layer, ...], here: Layer
) -> tuple[Step, ...]:
    """The steps that put our name into a list of names of runtimes, whatever the list is now."""
    if here.get(*path) is not ABSENT:
        here.strings(*path)  # refuses what is no list of strings
        return (Add(path, options.runtime_name),)
    names = _list(before, path, built_in)
    return () if options.runtime_name in names else (Set(path, [*names, options.runtime_name]),)


def _refuse_conflicts(options: Options, main: str, target: str, later: tuple[Layer, ...]) -> None:
    """GpuhookError `engine-config-conflict` where a later file takes back what we would set."""
    entry = (*_RUNTIMES, options.runtime_name)
    for layer in later:
        hint = "remove that line"
        if os.path.dirname(layer.path) == f"{main}.d":
            hint += f", or give a file that is read last: --drop-in {main}.d/zz-gpuhook.conf"
        if (layer.strings(*entry) or (options.runtime,))[0] != options.runtime:
            raise layers.conflict("podman", target, layer, entry, hint)
        if options.default_runtime and layer.text_at(*_DEFAULT) not in ("", options.runtime_name):
            raise layers.conflict("podman", target, layer, _DEFAULT, hint)


def _remarks(host: Host, options: Options, found: tuple[Layer, ...], later: tuple[Layer, ...]) -> Iterator[str]:
    for item in installation.other_low_level(host, options, "podman", _default_path(host, options, found)):
        yield f"{item.message}; {item.hint}"
    for layer in later:
        names = layer.strings(*_JSON)
        if names is not None and not _appends(layer.get(*_JSON)) and options.runtime_name not in names:
            yield (
                f"{layer.place(*_JSON)} replaces the list {'.'.join(_JSON)}: put {options.runtime_name} there, or "
                "gpuhook's errors show with JSON's escapes"
            )
    yield from hooksdir.notes(host, _list(found, _HOOKS, (hooksdir.DEFAULT,)))
    if not options.default_runtime:
        yield f"containers get it by podman run --runtime {options.runtime_name}"


# --- what podman reads --------------------------------------------------------------------------------------------


def _usual(host: Host) -> tuple[str, ...]:
    return (SYSTEM, f"{host.config_home}/containers/containers.conf")


def _paths(host: Host, options: Options) -> tuple[str, list[str]]:
    """The main file, which we would change, and all that podman reads, in order."""
    system, user = _usual(host)
    named = host.environ.get("CONTAINERS_CONF", "")
    main = options.config or named or (system if host.uid == 0 else user)
    if main not in (system, user) or named:
        paths = [main]
    else:
        paths = [SHARE, system, *_drop_ins(host, system)]
        if host.uid != 0 or host.version("podman") >= (5,):  # for root too, from 5.0 on
            paths += [user, *_drop_ins(host, user)]
        if main not in paths:
            paths.append(main)
    override = host.environ.get("CONTAINERS_CONF_OVERRIDE", "")
    return main, [*paths, override] if override else paths


def _drop_ins(host: Host, main: str) -> list[str]:
    return [path for path in host.glob(f"{main}.d/*.conf") if not os.path.isdir(host.real(path))]


def _target(host: Host, options: Options, main: str) -> str:
    """The file that is ours. GpuhookError `engine-option-unsupported` for one that podman would not read."""
    if options.drop_in is None:
        return main
    if main not in _usual(host) or host.environ.get("CONTAINERS_CONF"):
        raise GpuhookError(
            "engine-option-unsupported",
            f"--drop-in: podman reads {main} alone, since CONTAINERS_CONF names it",
            "leave out --drop-in, or unset CONTAINERS_CONF",
        )
    target = options.drop_in or f"{main}.d/{NAME}"
    if os.path.dirname(target) != f"{main}.d" or not target.endswith(".conf"):
        raise GpuhookError(
            "engine-option-unsupported",
            f"--drop-in {shown(target)}: podman reads files {main}.d/*.conf alone",
            f"name a file there, for example {main}.d/{NAME}",
        )
    return target


def _inserted(main: str, paths: list[str], target: str) -> list[str]:
    """The order with `target` in it, whether it is there yet or not."""
    if target in paths:
        return paths
    beside = sorted([*(path for path in paths if path.startswith(f"{main}.d/")), target])
    at = paths.index(main) + 1
    return [*paths[:at], *beside, *(path for path in paths[at:] if path not in beside)]


def _appends(items: Value) -> bool | None:
    """What a list says of its being appended: {append = true or false} in it, None where it says nothing."""
    said = [item["append"] for item in items if isinstance(item, dict) and "append" in item]
    return bool(said[-1]) if said else None


def _list(found: tuple[Layer, ...], path: tuple[str, ...], built_in: tuple[str, ...]) -> tuple[str, ...]:
    """A list of strings in force: the last one, or added to the earlier where it or one before it says append."""
    names, appends = built_in, False
    for layer in found:
        own = layer.strings(*path)
        if own is not None:
            said = _appends(layer.get(*path))
            appends = appends if said is None else said
            names = (*names, *own) if appends else own
    return names


def _runtimes(found: tuple[Layer, ...]) -> dict[str, tuple[tuple[str, ...], Layer]]:
    """Each runtime of the files: its paths, and the file that says so last."""
    entries = layers.entries(found, *_RUNTIMES)
    return {name: (layer.strings(*_RUNTIMES, name) or (), layer) for layer, name in entries}


def _default_name(found: tuple[Layer, ...]) -> tuple[str, Layer | None]:
    said = [(layer.text_at(*_DEFAULT), layer) for layer in found if layer.text_at(*_DEFAULT)]
    return said[-1] if said else ("", None)


def _default_path(host: Host, options: Options, found: tuple[Layer, ...]) -> str:
    """The program that podman runs where no runtime is named (ours aside): its own choice, or that of the files."""
    name, _ = _default_name(found)
    runtimes = _runtimes(found)
    for candidate in (name,) if name and name != options.runtime_name else _BUILT_IN:
        paths = runtimes[candidate][0] if candidate in runtimes else (candidate,)
        program = next(filter(None, map(host.find, paths)), "")
        if program:
            return program
    return ""


# --- doctor -------------------------------------------------------------------------------------------------------


def check(host: Host, options: Options) -> tuple[Finding, ...]:
    """podman's files read as podman would, and podman asked itself: is gpuhook's runtime there and the default?"""
    try:
        main, paths = _paths(host, options)
        found = layers.read(host, paths)
        runtimes = _runtimes(found)
        folders = _list(found, _HOOKS, (hooksdir.DEFAULT,))
        default, source = _default_name(found)
        json_names = _list(found, _JSON, _JSON_BUILT_IN)
        theirs = _default_path(host, options, found)
    except GpuhookError as error:
        return (Finding("problem", "configuration", error.message, error.hint),)
    names = tuple(sorted(name for name, (own, _) in runtimes.items() if options.runtime in own))
    said = [
        findings.files(
            "podman", f"{main} is not there: podman works with what is built in", [layer.path for layer in found]
        )
    ]
    if not names and not hooksdir.present(host, options, folders):
        text = f"no runtime of podman is {options.runtime}"
        said.append(Finding("problem", "runtime", text, "gpuhook configure podman"))
    for name in names:
        said += _registered(host, options, name, *runtimes[name])
        if name not in json_names:
            text = f"runtime_supports_json lacks {name}: errors show with escaped quotes and line ends"
            said.append(Finding("warning", "runtime-json", text, "gpuhook configure podman"))
    if names:
        said += findings.program(host, options.runtime, f"runtime {names[0]} is")
        where = f"{default} ({source.place(*_DEFAULT)})" if source is not None else "podman's own choice"
        otherwise = f"containers need --runtime {names[0]}"
        said.append(findings.default_runtime(default in names, where, otherwise))
        said += installation.other_low_level(host, options, "podman", theirs)
        said += _asked(host, options, names)
    for layer, name in layers.entries(found, *_RUNTIMES):
        if options.runtime in (layer.strings(*_RUNTIMES, name) or ()) and name not in names:
            said.append(layers.replaced(found, layer, *_RUNTIMES, name))
    said += hooksdir.check(host, options, folders, registered=bool(names))
    return tuple(said)


def _registered(host: Host, options: Options, name: str, paths: tuple[str, ...], layer: Layer) -> Iterator[Finding]:
    """podman takes the first path of an entry that is there."""
    place = layer.place(*_RUNTIMES, name)
    first = next((path for path in paths if host.exists(path)), paths[0])
    if first != options.runtime:
        text = f"runtime {name} is {first}, which comes before {options.runtime} ({place})"
        yield Finding("problem", "runtime", text, f"remove {first} from that list")
    else:
        yield Finding("ok", "runtime", f"runtime {name} is {options.runtime} ({place})")


def _asked(host: Host, options: Options, names: tuple[str, ...]) -> Iterator[Finding]:
    """What podman itself says of our runtime. It gives no answer for a name that it does not know."""
    if host.which("podman") is None:
        yield Finding("note", "running", "podman is not in PATH: what it says could not be compared")
        return
    said = host.ask("podman", "--runtime", names[0], "info", "--format", "json")
    try:
        info = json.loads(said or "null")["host"]
        path = info["ociRuntime"]["path"]
    except (ValueError, KeyError, TypeError):
        text = f"podman --runtime {names[0]} info gives no answer"
        yield Finding("problem", "running", text, "run it: podman says what is wrong")
        return
    if path != options.runtime:
        text = f"podman says that runtime {names[0]} is {path}"
        yield Finding("problem", "running", text, "see which file podman reads: CONTAINERS_CONF")
        return
    yield Finding("ok", "running", f"podman says that runtime {names[0]} is {path}")
    if host.uid != 0:
        manager, version = info.get("cgroupManager", "?"), info.get("cgroupVersion", "?")
        yield Finding("ok", "cgroup-driver", f"rootless: cgroup manager {manager}, cgroups {version}")
