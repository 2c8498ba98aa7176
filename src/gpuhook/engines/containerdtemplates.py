"""k3s and rke2: they write containerd's config.toml anew at each start, of a template and of drop-ins beside it.

k3s since v1.31.6 and v1.32.2 has containerd 2.0: its template is config-v3.toml.tmpl, and config.toml.tmpl still works,
with tables of version 2, where the first is not there. Before that only config.toml.tmpl is read. A template may begin
with `{{ template "base" . }}` since v1.24.17 and its siblings. Newer ones import config-v3.toml.d/*.toml, or
config.toml.d/*.toml for a template of version 2. `--default-runtime` of k3s refuses a name that is not one of its own.
"""

import re

import tomlkit

from gpuhook.engines import block, containerdconfig, containerddropin, containerdplaces, containerdruntime
from gpuhook.engines.containerdconfig import Loaded, table
from gpuhook.engines.containerdplaces import Place
from gpuhook.engines.host import Host
from gpuhook.engines.model import FileEdit, Options
from gpuhook.errors import GpuhookError, shown

BASE = '{{ template "base" . }}\n'
_FILES = {2: ("config.toml.tmpl", "config.toml.d"), 3: ("config-v3.toml.tmpl", "config-v3.toml.d")}


def propose(host: Host, place: Place, options: Options) -> tuple[tuple[FileEdit, ...], list[str]]:
    """The edit of a template, or a drop-in where config.toml imports those, and notes.

    GpuhookError: as containerd.propose, and `engine-config-conflict` where the template would have our table twice.
    """
    loaded = load(host, place)
    version = _generation(host, place, loaded)
    template, folder = (f"{place.directory}/{name}" for name in _FILES[version])
    notes = [f"{place.config} is written by {place.kind} at each start, and is left alone"]
    present = host.read(template)
    written = present is not None and options.runtime in present
    usual = f"{folder}/99-gpuhook.toml"
    path = options.drop_in or usual
    imported = loaded.main is not None and containerdconfig.is_imported(loaded, path)
    if options.drop_in is not None and not imported:
        raise GpuhookError(
            "engine-option-unsupported",
            f"{place.config} does not import {path}: this {place.kind} reads no drop-ins there",
            f"leave --drop-in out: {template} is edited then",
        )
    if imported and not written:
        edits, more = containerddropin.drop_in(host, loaded, options, path)
        return edits, [*notes, *more, *containerdruntime.notes(loaded, options)]
    return (_block(loaded, place, options, version, (template, present)),), notes


def load(host: Host, place: Place) -> Loaded:
    """The config.toml that was written at the last start, by the rules of the containerd that fits its version."""
    engine = containerdplaces.version_of(host, place)
    if not engine:
        text = host.read(place.config)
        file = containerdconfig.read(place.config, text) if text else None
        # Drop-ins came after containerd 2.
        new = file is not None and (file.version >= 3 or "imports" in file.tree)
        engine = (2, 0, 0) if new else (1, 7, 0)
    return containerdconfig.load(host, place.config, engine)


def source(host: Host, place: Place, runtime: str) -> str:
    """The template or drop-in that has our runtime, from which the next start makes config.toml; `` for none."""
    paths = (*host.glob(f"{place.directory}/*.toml.tmpl"), *host.glob(f"{place.directory}/*.toml.d/*.toml"))
    return next((path for path in paths if runtime in host.text(path)), "")


def _generation(host: Host, place: Place, loaded: Loaded) -> int:
    """The version of the template that counts."""
    if host.exists(f"{place.directory}/config-v3.toml.tmpl"):
        return 3
    if loaded.main is not None:
        return 3 if loaded.version >= 3 else 2
    if host.exists(f"{place.directory}/config.toml.tmpl"):
        return 2
    raise GpuhookError(
        "engine-not-found",
        f"{place.config} is not there: {place.kind} writes it at its start, and it says which template is read",
        f"start {place.kind} once, then run this again",
    )


def _block(loaded: Loaded, place: Place, options: Options, version: int, template: tuple[str, str | None]) -> FileEdit:
    name = options.runtime_name
    there = table(loaded.runtimes(), name, "options").get("BinaryName")
    if there and there != options.runtime:
        raise GpuhookError(
            "engine-config-conflict",
            f"{place.config} has a runtime {shown(name)} already, with BinaryName {shown(str(there))}: {place.kind} "
            "adds one for each runtime that it finds in its PATH, and a template can't have the table twice",
            f"take another --runtime-name and RuntimeClass, or remove {shown(str(there))} and restart {place.kind}",
        )
    if options.default_runtime:
        raise GpuhookError(
            "engine-option-unsupported",
            f"the template of {place.kind} can't name a default runtime, and its own option takes no other's",
            f"name the runtime in a RuntimeClass with the handler {name}",
        )
    if options.cdi and loaded.cri().get("enable_cdi", version >= 3) is not True:
        raise GpuhookError(
            "engine-option-unsupported",
            f"the template of {place.kind} can't set enable_cdi beside its own table",
            f"update {place.kind} to a version with containerd 2, where CDI is on",
        )
    plugin = containerdconfig.V3 if version >= 3 else containerdconfig.V2
    ours = containerdruntime.wanted(loaded, options)
    values = ours.pop("options")
    head = f"[plugins.'{plugin}'.containerd.runtimes.'{name}'"
    values.pop("SystemdCgroup", None)
    own, more = ([f"  {key} = {tomlkit.item(value).as_string()}" for key, value in of.items()] for of in (ours, values))
    # SystemdCgroup as the base template gives it to runc
    lines = [f"{head}]", *own, f"{head}.options]", *more, "  SystemdCgroup = {{ .SystemdCgroup }}"]
    path, present = template
    tables = _tables(block.body(path, present or ""))
    tables[name] = "".join(f"{line}\n" for line in lines)
    return FileEdit(path, "block", text="".join(tables.values()), base=BASE if present is None else "")


def _tables(text: str) -> dict[str, str]:
    """The tables of our block by the runtime's name: a runtime that was configured before stays, pods name it."""
    found: dict[str, str] = {}
    for part in re.split(r"^(?=\[[^\n]*\.runtimes\.'[^']+'\]$)", text.replace("\r\n", "\n"), flags=re.MULTILINE):
        head = re.match(r"\[[^\n]*\.runtimes\.'([^']+)'\]$", part, re.MULTILINE)
        if head:
            found[head[1]] = part
    return found
