"""Where a host may have its driver: the directories that its loader's cache names, and what a search list means.

Off the hot path. Nothing here knows a library by name: a directory is looked at as a whole.
"""

import os
import stat
from collections.abc import Iterable
from fnmatch import fnmatchcase
from struct import Struct

from gpuhook import ldcache, linux
from gpuhook.driver.tree import MAX_PARTS, Tree

LOADER_CACHE = "/etc/ld.so.cache"
# ABI flags of the entries for 32-bit programs that a host of this machine runs: ELF for glibc 2 (and armhf's floats)
FLAGS32 = {"x86-64": 0x0003, "aarch64": 0x0903}

_OLD_MAGIC = b"ld.so-1.7.0"
_OLD_HEADER = 16  # bytes: the magic, padded, and the number of entries
_OLD_ROW = Struct("<III")  # flags, offset of the name, offset of the path, both from where the strings begin
_MAX_DIRECTORIES = 64  # that one pattern may name
_MAX_LISTED = 512  # directories that are read for all patterns of a search list, and the names in them
_MAX_NAMES = 500_000  # one of the Nix store has 200,000


def cached(tree: Tree, flags: int, left_out: list[tuple[str, str]]) -> list[tuple[str, bool]]:
    """The paths in the driver root's loader cache under these ABI flags, libcuda's and libnvidia-ml's first.

    With each, whether it is likely the driver's. A cache that is absent names nothing, and that is no error (musl,
    NixOS and embedded systems have none); nor is one that cannot be used: then `left_out` says why.
    """
    place = tree.find(LOADER_CACHE)
    if place is None:
        return []
    if place.untrusted or not stat.S_ISREG(place.status.st_mode):
        left_out.append((place.path, place.untrusted or "no regular file"))
        return []
    try:
        entries = _entries(linux.read_file(tree.host(place.path), ldcache.LIMIT_FILE))
    except OSError as error:
        left_out.append((place.path, f"cannot be read: {error.strerror}"))
        return []
    except ValueError as error:
        left_out.append((place.path, f"no usable loader cache ({error}): the search list alone counts; run ldconfig"))
        return []
    mine = [(name, path) for found, name, path in entries if found == flags]
    mine.sort(key=lambda entry: not entry[0].startswith(("libcuda.so.", "libnvidia-ml.so.")))
    return [(path, _is_driver_like(name)) for name, path in mine]


def _entries(data: bytes) -> list[tuple[int, str, str]]:
    """Flags, name and path of each entry, in the newer format, in both, or in the older alone. Raises ValueError."""
    if data.startswith(_OLD_MAGIC) and b"glibc-ld.so.cache" not in data:
        return _old_entries(data)
    return [(entry.flags, entry.name, entry.path) for entry in ldcache.parse(data)]


def _old_entries(data: bytes) -> list[tuple[int, str, str]]:
    """The entries of a cache that has the older format alone, as `ldconfig -c old` writes it (dl-cache.h)."""
    count = int.from_bytes(data[12:_OLD_HEADER], "little")
    start = _OLD_HEADER + count * _OLD_ROW.size
    if count > ldcache.LIMIT_ENTRIES or not _OLD_HEADER <= start <= len(data) <= ldcache.LIMIT_FILE:
        raise ValueError(f"truncated: {count} entries in {len(data)} bytes")
    found = []
    size = 0
    for flags, key, at in _OLD_ROW.iter_unpack(data[_OLD_HEADER:start]):
        name, path = (data[start + offset : start + offset + ldcache.LIMIT_NAME] for offset in (key, at))
        name, path = name.partition(b"\0")[0], path.partition(b"\0")[0]
        size += len(name) + len(path)
        if size > ldcache.LIMIT_STRINGS:  # entries may share strings
            raise ValueError(f"names and paths of more than {ldcache.LIMIT_STRINGS} bytes")
        if name and path.startswith(b"/"):
            found.append((flags, os.fsdecode(name), os.fsdecode(path)))
    return found


def _is_driver_like(name: str) -> bool:
    return name.startswith(("libcuda", "libnvidia-", "libnvcuvid", "libnvoptix")) or "_nvidia.so" in name


def expand_all(tree: Tree, patterns: Iterable[str], watch: set[str], left_out: list[tuple[str, str]]) -> list[str]:
    """The directories that a search list names, in its order; an entry that takes too long to follow is left out.

    `/*/*/*/*` would read half of the host, and each start look at every directory that was read.
    """
    room = Room()
    found: list[str] = []
    for pattern in patterns:
        named = expand(tree, pattern, watch, room)
        if named is None:
            left_out.append((pattern, f"its wildcards, and those before it, pass more than {_MAX_LISTED} directories"))
        else:
            found += named
    return found


class Room:
    """How many directories, and names in them, may still be read to follow patterns."""

    def __init__(self) -> None:
        self.directories = _MAX_LISTED
        self.names = _MAX_NAMES

    def read(self, tree: Tree, directory: str) -> list[str] | None:
        """The names in a directory; None where no more may be read."""
        if self.directories <= 0 or self.names <= 0:
            return None
        names = tree.names(directory)
        self.directories -= 1
        self.names -= len(names)
        return names


def expand(tree: Tree, pattern: str, watch: set[str], room: Room) -> list[str] | None:
    """The directories that a search-list entry names; `*` and `?` match within one component.

    What would make the answer another goes to `watch`. None where `room` does not do.
    """
    if not any(letter in pattern for letter in "*?["):
        return [pattern]
    paths = [""]
    for part in pattern.split("/"):
        if not part:
            continue
        step: list[str] = []
        for path in paths:
            if not any(letter in part for letter in "*?["):
                step.append(f"{path}/{part}")
                continue
            place = tree.find(path or "/")
            if place is None:
                watch.add(path or "/")
                continue
            names = room.read(tree, place.path)
            if names is None:
                return None
            watch.add(place.path)
            step += [f"{path}/{name}" for name in names if fnmatchcase(name, part)]
        paths = step[:_MAX_DIRECTORIES]
    return paths


def needed(tree: Tree, watch: set[str]) -> set[str]:
    """What is to be watched of `watch`: each start looks at every path.

    What is deeper than `MAX_PARTS` is not looked at. Of what is not there the coming shows in the directory above it,
    or in a name further up that is not there either, where that is watched. A link that leads nowhere shows nothing of
    what comes behind it. Where the driver root itself is not there, everything comes with it.
    """
    if tree.find("/") is None:
        return {"/"}

    there: dict[str, bool] = {}

    def is_there(path: str) -> bool:
        if path not in there:
            there[path] = os.path.lexists(tree.host(path))
        return there[path]

    def shows_itself(path: str) -> bool:
        while not is_there(path):
            path = path.rpartition("/")[0] or "/"
            place = tree.find(path)
            if place is not None:
                return place.path not in watch
            if path in watch and not is_there(path):
                return False
        return True

    return {path for path in watch if path.count("/") <= MAX_PARTS and shows_itself(path)}
