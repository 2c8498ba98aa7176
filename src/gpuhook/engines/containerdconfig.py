"""containerd's configuration as containerd itself puts it together: versions, imports, the CRI plugin's table.

Facts, each seen in the output of `containerd config dump` of 1.6.20, 1.7.24 and 2.1.9:

- The main file comes first, then what its `imports` name, in their order, then what those import. A pattern is sorted;
  only one with `*` is a pattern, anything else is a file that has to be there. Relative ones start at the directory of
  the file that names them, but a relative pattern of 1.6 and before starts at the daemon's working directory.
- An import replaces the whole table of each plugin that it mentions; since 2.0 tables are merged key by key.
- The last `version` that is written wins. No `version`, or 0, is version 1; no file at all is the newest version.
- 1.x: a `runtimes` table that has any entry has no `runc` of its own any more. 2.x keeps its default `runc`.
- 2.x moves the CRI settings of version 2, and not those of version 1: `plugins.cri` counts beside a file of version 2.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from posixpath import dirname, isabs, join, normpath
from typing import Any

from gpuhook.engines import tomltext
from gpuhook.engines.host import Host
from gpuhook.engines.layers import Layer
from gpuhook.engines.model import ABSENT
from gpuhook.engines.tree import get
from gpuhook.errors import GpuhookError, shown

V1, V2, V3 = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
NEWEST = 4  # version 4, of the newest 2.x, moves settings of the server; those of the CRI plugin stay
RUNC_V2 = "io.containerd.runc.v2"
LINUX_V1 = "io.containerd.runtime.v1.linux"
_MOST_FILES = 256

Table = dict[str, Any]


@dataclass(frozen=True)
class File(Layer):
    """One file of the configuration."""

    @property
    def version(self) -> int:
        """Its version, 0 where it names none."""
        found = self.tree.get("version", 0)
        return found if isinstance(found, int) and not isinstance(found, bool) else -1

    @property
    def plugins(self) -> Table:
        """The tables of the plugins, by name."""
        return table(self.tree, "plugins")


@dataclass(frozen=True)
class Loaded:
    """The main file and its imports, in the order in which containerd merges them. No files: there is no main file."""

    path: str
    files: tuple[File, ...]
    engine: tuple[int, ...]  # containerd's version; () where it is not known
    problems: tuple[str, ...] = ()  # what containerd itself would refuse or leave out, a sentence each

    @property
    def main(self) -> File | None:
        """The main file."""
        return self.files[0] if self.files else None

    @property
    def deep(self) -> bool:
        """Whether this containerd merges an import key by key."""
        return self.engine >= (2,) if self.engine else self.version >= 3

    @property
    def fresh(self) -> bool:
        """Whether the main file says nothing yet, so that its version may be chosen."""
        return self.main is None or not self.main.tree

    @property
    def version(self) -> int:
        """The version by which containerd reads the tables."""
        if self.fresh and len(self.files) < 2:
            return 3 if self.engine >= (2,) else 2
        found = 0
        for file in self.files:
            found = file.version or found
        return found or 1

    @property
    def plugin(self) -> str:
        """The name of the CRI plugin's table, where a runtime belongs."""
        if self.version == 2:
            return V2
        return V3 if self.version >= 3 or self.engine >= (2,) else V1

    def cri(self) -> Table:
        """The CRI plugin's table, all files merged."""
        plugins: Table = {}
        for file in self.files:
            for key, value in file.plugins.items():
                name = V2 if self.deep and key == V1 and file.version < 2 else key
                if self.deep and isinstance(value, dict):
                    plugins[name] = merged(table(plugins, name), value)
                else:
                    plugins[name] = value
        found = table(plugins, self.plugin)
        return merged(found, table(plugins, V3)) if self.deep and self.version == 2 else found

    def runtimes(self) -> Table:
        """The runtimes by name, with the `runc` that containerd has by itself."""
        found = table(self.cri(), "containerd", "runtimes")
        own = {"runc": {"runtime_type": RUNC_V2}}
        if self.deep:
            return merged(own, found)
        return found or own

    def source(self, *path: str) -> File | None:
        """The last file that sets a key of the CRI plugin's table, or without `path` has that table."""
        for file in reversed(self.files):
            for name in dict.fromkeys((self.plugin, V3) if self.deep else (self.plugin,)):
                if file.get("plugins", name, *path) is not ABSENT:
                    return file
        return None


def table(tree: Mapping[str, Any], *keys: str) -> Table:
    """The table at `keys`, empty where there is none."""
    found = get(tree, keys)
    return found if isinstance(found, dict) else {}


def merged(under: Table, over: Table) -> Table:
    """Two tables merged key by key; lists are replaced."""
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return result


def matches(pattern: str, name: str) -> bool:
    """Go's path.Match, by which containerd passes annotations on: `*` and `?` stop at a slash."""
    parts = {"*": "[^/]*", "?": "[^/]"}
    regex = ""
    at = 0
    while at < len(pattern):
        char = pattern[at]
        end = pattern.find("]", at + 2)
        if char == "[":
            if end < 0:
                return False  # Go calls the pattern malformed, and containerd goes on to the next
            body = pattern[at + 1 : end]
            inner = body.removeprefix("^").replace("[", "\\[").replace("&&", "&\\&").replace("||", "|\\|")
            regex += f"[{'^' if body.startswith('^') else ''}{inner}]"
            at = end
        elif char == "\\" and at + 1 < len(pattern):
            at += 1
            regex += re.escape(pattern[at])
        else:
            regex += parts.get(char, re.escape(char))
        at += 1
    try:
        return re.fullmatch(regex, name) is not None
    except re.error:
        return False


def load(host: Host, path: str, engine: tuple[int, ...], instead: Mapping[str, str] | None = None) -> Loaded:
    """The main file and all that it imports. `instead`: texts that some files would have, there or not yet.

    GpuhookError: `engine-config-unreadable`, `engine-config-invalid` (not TOML, a wrong type, a version that no
    containerd takes, a table that containerd refuses for the version).
    """
    new = instead or {}
    if path not in new and host.read(path) is None:
        return Loaded(path, (), engine)
    files: dict[str, File] = {}
    problems: list[str] = []
    pending = [path]
    while pending:
        at = pending.pop(0)
        if at in files:
            continue
        if len(files) == _MOST_FILES:
            raise GpuhookError(
                "engine-config-invalid",
                f"{path} imports more than {_MOST_FILES} files",
                "narrow the patterns of its imports",
            )
        found = new[at] if at in new else host.read(at)
        if found is None:
            problems.append(f"{at} is imported by name and is not there: containerd 1.x does not start without it")
            continue
        files[at] = read(at, found)
        for pattern in import_patterns(files[at], engine):
            there = {*host.glob(pattern), *(name for name in new if matches(pattern, name))}
            pending += sorted(there) if "*" in pattern else [pattern]
    loaded = Loaded(path, tuple(files.values()), engine)
    if engine and engine < (2,) and loaded.version >= 3:
        versioned = next(file for file in reversed(loaded.files) if file.version)
        raise GpuhookError(
            "engine-config-invalid",
            f"{versioned.place('version')}: version {loaded.version} is for containerd 2.0 and newer, and this is "
            f"{'.'.join(map(str, engine))}: it does not start, or takes no account of the tables",
            "write version = 2 and the tables' names of version 2, or update containerd",
        )
    problems += _mixtures(loaded)
    return Loaded(path, loaded.files, engine, tuple(problems))


def read(path: str, text: str) -> File:
    """One file, its keys' types checked as far as they matter here."""
    file = File(path, text, tomltext.parse(path, text))
    if not 0 <= file.version <= NEWEST:
        said = file.tree["version"]
        number = isinstance(said, int) and not isinstance(said, bool)
        why = f"containerd knows 1 to {NEWEST}" if number else "containerd takes a whole number only, without quotes"
        raise GpuhookError(
            "engine-config-invalid",
            f"{file.place('version')}: version is {shown(said) if isinstance(said, str) else str(said).lower()}: {why}",
            "write version = 2 for containerd 1.3 to 1.7, version = 3 for 2.0 and newer",
        )
    for name in (V1, V2, V3):  # `get` refuses what is no table on its way
        at = ("plugins", name, "containerd", "runtimes")
        file.get(*at, "")
        for runtime in table(file.plugins, name, "containerd", "runtimes"):
            file.get(*at, runtime, "options", "")
    file.strings("imports")
    return file


def is_imported(loaded: Loaded, path: str) -> bool:
    """Whether an import of one of the files names `path`, or would if it was there."""
    for file in loaded.files:
        for pattern in import_patterns(file, loaded.engine):
            if matches(pattern, path) if "*" in pattern else pattern == path:
                return True
    return False


def import_patterns(file: File, engine: tuple[int, ...]) -> Iterator[str]:
    """The imports of a file as absolute paths or patterns."""
    for item in file.strings("imports") or ():
        if not item:
            continue
        if isabs(item):
            yield normpath(item)
        elif "*" in item and engine and engine < (1, 7):
            yield normpath(join("/", item))
        else:
            yield normpath(join(dirname(file.path), item))


def _mixtures(loaded: Loaded) -> Iterator[str]:
    """What a file of one version says in the words of another."""
    main = loaded.files[0]
    for file in loaded.files:
        version = file.version or main.version or 1
        for name in (V1, V2, V3):
            if name in file.plugins:
                yield from _misplaced(loaded, file, version, name)
        if file.version and file.version != (main.version or 1):
            yield (
                f"{file.path} is version {file.version} and {main.path} is version {main.version or 1}: containerd "
                "reads the tables of both by the last one"
            )


def _misplaced(loaded: Loaded, file: File, version: int, name: str) -> Iterator[str]:
    where = f"{file.place('plugins', name)}: " + ("plugins.cri" if name == V1 else f'plugins."{name}"')
    if name == V1 and version >= 2 and not loaded.deep:
        raise GpuhookError(
            "engine-config-invalid",
            f"{where} belongs into a file of version 1, and this is version {version}: containerd 1.x would not start",
            f'rename it to plugins."{V2}", or remove it',
        )
    if name == V1 and file.version >= 2:
        yield f"{where} belongs into a file of version 1, and containerd 2.x takes no account of it"
    elif name == V1 and loaded.deep and loaded.version < 2:
        yield f"{where} is not read by containerd 2.x: `containerd config migrate` makes a new file of this"
    elif name == V2 and version == 1:
        yield f"{where} belongs into a file of version 2, and is ignored without one: write version = 2 on top"
    elif name == V2 and version >= 3:
        yield f'{where}: version {version} ignores its runtimes, which belong below plugins."{V3}"'
    elif name == V3 and version < 3 and not loaded.deep:
        yield f"{where} belongs into a file of version 3, and containerd 1.x takes no account of it"
