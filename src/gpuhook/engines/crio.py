"""CRI-O: a drop-in file with gpuhook's runtime, or a file in its OCI hooks directory.

CRI-O reads crio.conf and then every file below crio.conf.d, whatever its name ends in, in lexical order (crio.conf.d(5)
and its UpdateFromPath). A later file replaces keys and lists, and the whole table of a runtime: with Go's TOML reader,
one entry of a map is never merged. A runtime whose path is not there is ignored with a line in the log.
"""

import os
import tomllib
from collections.abc import Iterator

from gpuhook.engines import findings, hooksdir, installation, layers
from gpuhook.engines.host import Host
from gpuhook.engines.layers import Layer
from gpuhook.engines.model import ABSENT, FileEdit, Finding, Options, Proposal, Restart, Set, Step, Value
from gpuhook.errors import GpuhookError, shown

MAIN = "/etc/crio/crio.conf"
NAME = "99-gpuhook.conf"

_RUNTIME = ("crio", "runtime")
_RUNTIMES = (*_RUNTIME, "runtimes")
_DEFAULT = (*_RUNTIME, "default_runtime")
_HOOKS = (*_RUNTIME, "hooks_dir")
# What belongs to the program that a table names, and is not to be taken over for another one.
_OF_THE_PROGRAM = ("runtime_path", "runtime_config_path", "platform_runtime_paths", "inherit_default_runtime")
_MONITOR_ENV = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]  # CRI-O's own for its default
_BUILT_IN = ("crun", "runc")  # CRI-O's default from 1.31 on, and before

_RESTART = Restart(("systemctl", "restart", "crio"), "systemctl restart crio (running containers go on running)")


def propose(host: Host, options: Options) -> Proposal:
    """The drop-in file for the runtime, or the file of the hooks directory. GpuhookError `engine-...`."""
    main, paths = _paths(host, options)
    if not options.config and not (host.which("crio") or host.exists(os.path.dirname(MAIN))):
        raise GpuhookError(
            "engine-not-found",
            f"CRI-O is not on this host: there is no program crio in PATH and no {os.path.dirname(MAIN)}",
            "install CRI-O, or name its configuration file: --config FILE",
        )
    found = layers.read(host, paths)
    notes = ["CRI-O reads CDI specs by itself (cdi_spec_dirs): nothing is to be switched on"] if options.cdi else []
    if options.hook_only:
        return _propose_hook(host, options, main, found, notes)
    target = _target(options, main)
    order = _sorted(main, [*paths, target])
    # Our own file takes over anew what the others say now; in a file that a person named, others' tables stand too.
    others = found if options.drop_in else tuple(layer for layer in found if layer.path != target)
    steps = _steps(options, others)
    _refuse_conflicts(options, target, layers.after(others, order, target))
    other = installation.other_low_level(host, options, "CRI-O", _default_path(host, others))
    notes += [f"{item.message}; {item.hint}" for item in other]
    notes += hooksdir.notes(host, _hook_folders(found))
    if not options.default_runtime:
        notes.append(f"pods get this runtime by a RuntimeClass with handler: {options.runtime_name}")
    return Proposal("crio", (FileEdit(target, "toml", steps),), _RESTART, tuple(notes))


def _propose_hook(host: Host, options: Options, main: str, found: tuple[Layer, ...], notes: list[str]) -> Proposal:
    folders = _hook_folders(found)
    edit, folder = hooksdir.file(host, options, folders)
    edits = [edit]
    if folder:
        steps = (Set(_HOOKS, [*folders, folder]),)
        edits.append(FileEdit(f"{main}.d/{NAME}", "toml", steps))
        order = _sorted(main, [*(layer.path for layer in found), edits[1].path])
        for layer in layers.after(found, order, edits[1].path):
            if folder not in (layer.strings(*_HOOKS) or (folder,)):
                hint = f"put {folder} into that list, or remove the list"
                raise layers.conflict("CRI-O", edits[1].path, layer, _HOOKS, hint)
    notes += hooksdir.notes(host, folders)
    return Proposal("crio", tuple(edits), _RESTART, tuple(notes))


def _steps(options: Options, others: tuple[Layer, ...]) -> tuple[Step, ...]:
    """The table of our runtime: that of the same name where there is one (NVIDIA's, taken over), else a copy of the
    default runtime's with our program; so that cgroups, monitor and allowed annotations are as for other pods."""
    tables = _tables(others)
    base = tables.get(options.runtime_name) or tables.get(_default_name(others)) or {}
    if base.get("runtime_type") == "vm":  # Kata: monitor and root belong to another kind of runtime
        base = next((tables[name] for name in _BUILT_IN if name in tables), {})
    values: dict[str, Value] = {"runtime_path": options.runtime, "runtime_type": "oci"}
    values |= {key: item for key, item in base.items() if key not in _OF_THE_PROGRAM and item != ""}
    has_env = any(layer.get(*_RUNTIME, "conmon_env") is not ABSENT for layer in others)
    if "monitor_env" not in values and not has_env:
        values["monitor_env"] = _MONITOR_ENV
    steps: list[Step] = [Set((*_RUNTIMES, options.runtime_name, key), item) for key, item in values.items()]
    if options.default_runtime:
        steps.append(Set(_DEFAULT, options.runtime_name))
    return tuple(steps)


def _refuse_conflicts(options: Options, target: str, later: tuple[Layer, ...]) -> None:
    """GpuhookError `engine-config-conflict` where a later file takes back what we would set."""
    last = f"{os.path.dirname(target)}/zz-gpuhook.conf"
    for layer in later:
        table = (*_RUNTIMES, options.runtime_name)
        path = layer.get(*table, "runtime_path")
        if layer.get(*table) is not ABSENT and path != options.runtime:
            hint = f"remove that table, or give a file that is read last: --drop-in {last}"
            raise layers.conflict("CRI-O", target, layer, table if path is ABSENT else (*table, "runtime_path"), hint)
        if options.default_runtime and layer.text_at(*_DEFAULT) not in ("", options.runtime_name):
            hint = f"remove that line, or give a file that is read last: --drop-in {last}"
            raise layers.conflict("CRI-O", target, layer, _DEFAULT, hint)


# --- what CRI-O reads ---------------------------------------------------------------------------------------------


def _paths(host: Host, options: Options) -> tuple[str, list[str]]:
    """The main file, and all files that CRI-O reads, in order."""
    main = options.config or MAIN
    below = [f"{folder}/{name}" for folder, _, names in os.walk(host.real(f"{main}.d")) for name in names]
    return main, _sorted(main, [path[len(host.root) :] for path in below])


def _sorted(main: str, paths: list[str]) -> list[str]:
    """The order of CRI-O's walk: by the names, folder by folder; the main file first."""
    return [main, *sorted({*paths} - {main}, key=lambda path: path.split("/"))]


def _target(options: Options, main: str) -> str:
    """The file that is ours. GpuhookError `engine-option-unsupported` for one that CRI-O would not read."""
    if options.drop_in and options.drop_in != main and not options.drop_in.startswith(f"{main}.d/"):
        raise GpuhookError(
            "engine-option-unsupported",
            f"--drop-in {shown(options.drop_in)}: CRI-O reads {main} and the files below {main}.d alone",
            f"name a file there, for example {main}.d/{NAME}",
        )
    return options.drop_in or f"{main}.d/{NAME}"


def _tables(found: tuple[Layer, ...]) -> dict[str, dict[str, Value]]:
    """The table of each runtime in force: the last one, whole."""
    tables = {}
    for layer, name in layers.entries(found, *_RUNTIMES):
        layer.get(*_RUNTIMES, name, "")  # refuses an entry that is no table
        tables[name] = layer.get(*_RUNTIMES, name)
    return tables


def _default_name(found: tuple[Layer, ...]) -> str:
    """The default runtime in force; where no file says, the one of CRI-O's own two that has a table."""
    said = [name for name in (layer.text_at(*_DEFAULT) for layer in found) if name]
    tables = _tables(found)
    return said[-1] if said else next((name for name in _BUILT_IN if name in tables), "")


def _default_path(host: Host, found: tuple[Layer, ...]) -> str:
    """The program of the default runtime; empty where that can't be said."""
    name = _default_name(found)
    path = _tables(found).get(name, {}).get("runtime_path")
    return host.find(str(path or name))


def _hook_folders(found: tuple[Layer, ...]) -> tuple[str, ...]:
    """The hooks directories in force, in order."""
    said = [folders for folders in (layer.strings(*_HOOKS) for layer in found) if folders is not None]
    return said[-1] if said else (hooksdir.DEFAULT,)


# --- doctor -------------------------------------------------------------------------------------------------------


def check(host: Host, options: Options) -> tuple[Finding, ...]:
    """CRI-O's files read as CRI-O would: is gpuhook's runtime there, is it the default, is its program?"""
    try:
        main, paths = _paths(host, options)
        found = layers.read(host, paths)
        tables = _tables(found)
        names = tuple(sorted(name for name, table in tables.items() if table.get("runtime_path") == options.runtime))
        folders = _hook_folders(found)
        default = _default_name(found)
        theirs = _default_path(host, tuple(layer for layer in found if layer.path != _target(options, main)))
    except GpuhookError as error:
        return (Finding("problem", "configuration", error.message, error.hint),)
    hooked = hooksdir.present(host, options, folders)
    none = f"neither {main} nor a file below {main}.d is there"
    said = [findings.files("CRI-O", none, [layer.path for layer in found])]
    said += _registered(options, found, names, hooked)
    if names:
        said += findings.program(host, options.runtime, f"runtime {names[0]} is")
        default = default or "the one built into CRI-O"
        otherwise = f"pods name {names[0]} by a RuntimeClass"
        said.append(findings.default_runtime(default in names, default, otherwise))
        said += installation.other_low_level(host, options, "CRI-O", theirs)
        said += _in_force(host, names)
    said += hooksdir.check(host, options, folders, registered=bool(names))
    return tuple(said)


def _registered(options: Options, found: tuple[Layer, ...], names: tuple[str, ...], hooked: bool) -> Iterator[Finding]:
    entries = layers.entries(found, *_RUNTIMES)
    ours = [item for item in entries if item[0].get(*_RUNTIMES, item[1], "runtime_path") == options.runtime]
    for name, layer in {name: layer for layer, name in ours if name in names}.items():
        place = layer.place(*_RUNTIMES, name, "runtime_path")
        yield Finding("ok", "runtime", f"runtime {name} is {options.runtime} ({place})")
    for layer, name in ours:
        if name not in names:
            yield layers.replaced(found, layer, *_RUNTIMES, name)
    if not ours and not hooked:
        yield Finding("problem", "runtime", f"no runtime of CRI-O is {options.runtime}", "gpuhook configure crio")


def _in_force(host: Host, names: tuple[str, ...]) -> Iterator[Finding]:
    """What a running CRI-O says; nothing where none answers. The command's name changed in 1.29."""
    said = host.ask("crio", "status", "config") or host.ask("crio-status", "config")
    try:
        runtimes = tomllib.loads(said or "").get("crio", {}).get("runtime", {}).get("runtimes", {})
    except (tomllib.TOMLDecodeError, AttributeError):
        return
    missing = [name for name in names if name not in runtimes]
    if runtimes and missing:
        text = f"the running CRI-O does not know {', '.join(missing)}"
        yield Finding("warning", "running", text, _RESTART.sentence)
    elif runtimes:
        yield Finding("ok", "running", f"the running CRI-O knows {', '.join(names)}")
