"""Where in containerd's configuration our values are written: the main file, or a file of our own that it imports.

Which it is, what a drop-in has to repeat and whether another file would hide ours is said by loading the configuration
as it would be afterwards.
"""

import os
from posixpath import basename, dirname, splitext

import tomlkit

from gpuhook.engines import containerdconfig, containerdruntime, tomltext
from gpuhook.engines.containerdconfig import File, Loaded, Table, table
from gpuhook.engines.host import Host
from gpuhook.engines.model import Add, FileEdit, Options, Set, Step
from gpuhook.errors import GpuhookError, bare

MARK = "# gpuhook's drop-in for containerd"  # how our own file begins; older ones must be known again: never change it


def ours(loaded: Loaded) -> File | None:
    """Our drop-in among the imports."""
    return next((file for file in loaded.files[1:] if file.text.startswith(MARK)), None)


def main(host: Host, loaded: Loaded, options: Options) -> tuple[FileEdit, ...]:
    """Our values in the main file. GpuhookError `engine-config-conflict` where an import would hide them."""
    steps = (*_version(loaded), *containerdruntime.steps(loaded, options))
    path = loaded.path
    text, _ = tomltext.apply(path, loaded.main.text if loaded.main else "", steps)
    _prove(containerdconfig.load(host, path, loaded.engine, {path: text}), options, path)
    return (FileEdit(path, "toml", steps),)


def drop_in(host: Host, loaded: Loaded, options: Options, path: str) -> tuple[tuple[FileEdit, ...], list[str]]:
    """Our values in a file of their own, which the main file imports; with notes.

    GpuhookError `engine-config-conflict` where the file is somebody else's, or one that is merged later would hide it.
    """
    present = host.read(path)
    if present is not None and not present.startswith(MARK):
        raise GpuhookError(
            "engine-config-conflict", f"{path} is there and is not gpuhook's", "name another file: --drop-in FILE"
        )
    edits, notes, texts = [], [], {path: MARK}
    if not containerdconfig.is_imported(loaded, path):
        pattern = f"{splitext(path)[0]}*.toml"  # a pattern: containerd 1.x does not start without a file that is named
        steps: tuple[Step, ...] = (*_version(loaded), Add(("imports",), pattern))
        texts[loaded.path], _ = tomltext.apply(loaded.path, loaded.main.text if loaded.main else "", steps)
        edits.append(FileEdit(loaded.path, "toml", steps))
        notes.append(f"{loaded.path} does not import {path} yet: {bare(pattern)} is added to its imports")
    seen = containerdconfig.load(host, loaded.path, loaded.engine, texts)
    version = loaded.version if loaded.fresh else seen.files[0].version
    tree: Table = {"version": version} if version else {}
    copied = None if loaded.deep or not seen.cri() else seen.source()
    source = copied.path if copied else ""
    if copied:
        tree["plugins"] = {seen.plugin: seen.cri()}
    text, _ = tomltext.apply(path, _head(seen, source) + tomlkit.dumps(tree), _steps(seen, options))
    edits.append(FileEdit(path, "whole", text=text, mode=_mode(host, seen) if copied else 0o644))
    _prove(containerdconfig.load(host, loaded.path, loaded.engine, {**texts, path: text}), options, path)
    if copied:
        notes.append(
            f"containerd 1.x takes a plugin's table from the last file that has it: {path} begins with a copy of "
            f'plugins."{seen.plugin}" of {source}; later edits there have no effect until this is run again'
        )
    return tuple(edits), notes


def _mode(host: Host, seen: Loaded) -> int:
    """Nobody may read in a copy what he may not read in the files: registries' passwords are among it."""
    mode = 0o644
    for file in seen.files:
        mode &= os.stat(host.real(file.path)).st_mode if host.exists(file.path) else mode
    return mode


def _steps(seen: Loaded, options: Options) -> tuple[Step, ...]:
    """The runtime's steps for a file of its own, where nothing of ours is present: lists are written whole."""
    whole = containerdruntime.wanted(seen, options)
    steps = containerdruntime.steps(seen, options)
    puts = [Set(step.path, whole[step.path[-1]]) if isinstance(step, Add) else step for step in steps]
    return tuple(step for at, step in enumerate(puts) if step not in puts[:at])


def _version(loaded: Loaded) -> tuple[Step, ...]:
    """An empty or missing file is given the version whose tables we write: without one it would be read as 1."""
    return (Set(("version",), loaded.version),) if loaded.fresh else ()


def _prove(after: Loaded, options: Options, path: str) -> None:
    """Raise where containerd would not see what is written into `path`: another file hides it."""
    keys: tuple[str, ...] = ("containerd", "runtimes", options.runtime_name)
    found = table(after.runtimes(), options.runtime_name)
    right = table(found, "options").get("BinaryName") == options.runtime
    if right and options.default_runtime:
        keys = ("containerd", "default_runtime_name")
        right = table(after.cri(), "containerd").get("default_runtime_name") == options.runtime_name
    if right:
        return
    hiding = after.source(*keys) if after.deep else after.source()
    mine = next(file for file in after.files if file.path == path)
    if hiding is None or hiding is mine:  # not seen to happen: the tables are ours and yet not as they were written
        hiding = after.files[-1]
    where = hiding.place("plugins", after.plugin, *(keys if after.deep else ()))
    why = (
        f"it sets {'.'.join(keys)} too"
        if after.deep
        else f'containerd 1.x takes the whole of plugins."{after.plugin}" from the last file that has it'
    )
    last = basename(hiding.path)
    name = "zz-gpuhook.toml" if last < "zz-gpuhook.toml" else f"{splitext(last)[0]}-gpuhook.toml"
    raise GpuhookError(
        "engine-config-conflict",
        f"{where} is merged after {mine.place('plugins', after.plugin)} and would hide gpuhook's values: {why}",
        f"have gpuhook's file merged last: --drop-in {dirname(hiding.path)}/{name}",
    )


def _head(seen: Loaded, source: str) -> str:
    text = f"{MARK}; `gpuhook configure containerd` writes it anew.\n"
    if source:
        text += (
            f'# containerd 1.x takes the whole of plugins."{seen.plugin}" from the last file that has it, so\n'
            f"# this begins with a copy of {source}. An edit there has no effect before this is written anew.\n"
        )
    return text
