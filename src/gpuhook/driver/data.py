"""Find the driver's files that are no libraries or programs: descriptions for loaders of OpenCL, Vulkan and EGL, data
of OptiX, modules and configuration of an X server.

Looked in: the folders of `homes`, where the libraries lie in a folder of their own (`/opt/x/lib`), and the usual places
of each kind; for Vulkan also the driver root itself, where GKE has them. What a description names decides whose it is:
a file that names a library of the driver is the driver's, whatever it is called, and one of Mesa never is. None of
these files is needed: what is absent, broken or not to be trusted is left out. Off the hot path.
"""

import json
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gpuhook.driver import capabilities
from gpuhook.driver.tree import Place, Tree
from gpuhook.model import DriverFile

_X_BASES = ("/usr/lib/xorg/modules", "/usr/lib64/xorg/modules", "/usr/X11R6/lib64/modules", "/usr/X11R6/lib/modules")
NARROW = {"x86-64": "i386", "aarch64": "arm"}  # machine -> that of its 32-bit programs
_LIMIT = 64 * 1024  # bytes of a description; the real ones have less than 1 KiB
_MACHINE = re.compile(r"(?<=[._-])(x86_64|i[3-6]86|aarch64|armhf|armv7l|ppc64le)(?=[._-])", re.ASCII)
_MACHINES = {"x86_64": "x86-64", "armhf": "arm", "armv7l": "arm", "ppc64le": "ppc64"}


@dataclass(frozen=True)
class Looked:
    """`files`, in the order of their tables; `watch` are paths whose change makes them stale; `left_out` says why."""

    files: list[DriverFile]
    watch: set[str]
    left_out: list[tuple[str, str]]


def homes(libraries: Iterable[DriverFile]) -> list[str]:
    """The folders above the driver's libraries where these lie in `lib` or `lib64` of a folder of their own.

    /usr is no such folder: what else lies in it is looked for in its usual places.
    """
    found: dict[str, None] = {}
    for file in libraries:
        above, _, last = file.path.rpartition("/")[0].rpartition("/")
        if last in ("lib", "lib64") and above not in ("", "/usr") and file.bits == 64:
            found[above] = None
    return list(found)


@dataclass(frozen=True)
class _Driver:
    """What is looked for: the driver's version, the host's machine, and the names of its libraries by their bits."""

    tree: Tree
    version: str
    machine: str
    names: dict[int, set[str]]


def look(tree: Tree, version: str, machine: str, libraries: list[DriverFile]) -> Looked:
    """The data of driver `version`, whose `libraries` were found before."""
    looked = Looked([], set(), [])
    names = {
        bits: {name for file in libraries if file.bits == bits for name in (file.name, file.soname, *file.links)}
        for bits in (64, 32)
    }
    driver = _Driver(tree, version, machine, names)
    bases = [base for home in homes(libraries) for base in (f"{home}/share", f"{home}/etc", home)]
    for data in capabilities.DATA:
        taken: set[str] = set()
        for base in (*bases, *data.bases):
            watch(tree, f"{base}/{data.folder}", looked.watch)
            for place, name in _entries(driver, f"{base}/{data.folder}", data):
                target = f"{data.place}/{name}"
                if place.path in taken or target in taken:
                    continue
                file = _file(driver, place, data, target)
                if isinstance(file, str):
                    looked.left_out.append((place.path, file))
                elif file is not None:
                    taken |= {place.path, target}
                    looked.files.append(file)
    _x_modules(tree, version, libraries, looked)
    return looked


def _entries(driver: _Driver, folder: str, data: capabilities.Data) -> Iterator[tuple[Place, str]]:
    """The regular files in a folder that the patterns name, and their names in it."""
    place = driver.tree.find(folder)
    if place is None or not stat.S_ISDIR(place.status.st_mode):
        return
    patterns = [pattern.replace("VERSION", driver.version) for pattern in data.names]
    for name in driver.tree.names(place.path):
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            found = driver.tree.find(f"{place.path}/{name}")
            if found is not None and stat.S_ISREG(found.status.st_mode):
                yield found, name


def _file(driver: _Driver, place: Place, data: capabilities.Data, target: str) -> DriverFile | str | None:
    """The file as a container gets it, why it is left out, or None for one that is not the driver's."""
    name = target.rpartition("/")[2]
    bits, text = 0, ""
    if data.names_library:
        bits = _bits(name, driver.machine)
        told = _told(driver.tree, place, name, driver.names.get(bits, set()))
        if isinstance(told, str):
            return told if "nvidia" in name else None
        ours, content = told
        if any("/" in word for word in ours):
            text = _without_places(name, content, ours)
    if place.untrusted:
        return place.untrusted
    narrow = 32 if bits == 32 else 0
    return DriverFile(place.path, "data", data.capability, name, place.id, bits=narrow, target=target, text=text)


def _told(tree: Tree, place: Place, name: str, names: set[str]) -> tuple[set[str], str] | str:
    """The driver's libraries that a description names, and its text; or why it is none of the driver's."""
    content = _content(tree, place)
    if content is None:
        return "cannot be read as a short text"
    told = _libraries(name, content)
    if told is None:
        return "no JSON"
    ours = {word for word in told if word.rpartition("/")[2] in names}
    return (ours, content) if ours else "names no library that this driver has for it"


def _bits(name: str, machine: str) -> int:
    """64 or 32 by the machine in a file's name (`nvidia_icd.i686.json`), 0 where it has none or is no name of ours."""
    found = _MACHINE.search(name)
    if found is None:
        return 64
    word = found[1]
    told = "i386" if word.startswith("i") else _MACHINES.get(word, word)
    return 64 if told == machine else 32 if told == NARROW.get(machine) else 0


def _content(tree: Tree, place: Place) -> str | None:
    if place.status.st_size > _LIMIT:
        return None
    try:
        with open(tree.host(place.path), "rb") as file:
            return file.read(_LIMIT).decode()
    except (OSError, UnicodeDecodeError):
        return None


def _libraries(name: str, content: str) -> list[str] | None:
    """The libraries that a description names; None where it is not of its format."""
    if name.endswith(".icd"):
        return [line.strip() for line in content.splitlines() if line.strip()]
    try:
        return list(_paths(json.loads(content)))
    except (ValueError, RecursionError):
        return None


def _paths(item: Any) -> Iterator[str]:
    """The words behind each `library_path` of a document."""
    if isinstance(item, dict):
        for key, below in item.items():
            if key == "library_path" and isinstance(below, str):
                yield below
            else:
                yield from _paths(below)
    elif isinstance(item, list):
        for below in item:
            yield from _paths(below)


def _without_places(name: str, content: str, ours: set[str]) -> str:
    """The description with plain file names for the driver's libraries, which lie elsewhere in a container."""
    if name.endswith(".icd"):
        return "".join(f"{line.rpartition('/')[2]}\n" for line in content.split() if line in ours)
    return json.dumps(_plain(json.loads(content), ours), indent=4) + "\n"


def _plain(item: Any, ours: set[str]) -> Any:
    if isinstance(item, dict):
        return {
            key: below.rpartition("/")[2] if key == "library_path" and below in ours else _plain(below, ours)
            for key, below in item.items()
        }
    return [_plain(below, ours) for below in item] if isinstance(item, list) else item


def _x_modules(tree: Tree, version: str, libraries: list[DriverFile], looked: Looked) -> None:
    """The driver's modules of an X server; of two places the one beside the libraries."""
    beside = dict.fromkeys(file.path.rpartition("/")[0] for file in libraries if file.bits == 64)
    for kind, pattern in capabilities.X_FILES:
        name = pattern.replace("VERSION", version)
        short = pattern.removesuffix(".VERSION")
        folders = [f"{folder}/nvidia/xorg" for folder in beside]
        for base in (*(f"{folder}/xorg/modules" for folder in beside), *_X_BASES):
            folders += [f"{base}/updates/{kind}", f"{base}/{kind}"]
        for folder in dict.fromkeys(folders):
            watch(tree, folder, looked.watch)
            place = tree.find(f"{folder}/{name}") or tree.find(f"{folder}/{short}")
            if place is None or not stat.S_ISREG(place.status.st_mode):
                continue
            if place.path.rpartition("/")[2] != name:
                looked.left_out.append((place.path, f"not of driver {version}"))
            elif place.untrusted:
                looked.left_out.append((place.path, place.untrusted))
            else:
                target = f"{capabilities.X_MODULES}/{kind}/{name}"
                links = (short,) if short != name else ()
                looked.files.append(
                    DriverFile(
                        place.path, "data", capabilities.X_CAPABILITY, name, place.id, links=links, target=target
                    )
                )
                break


def watch(tree: Tree, path: str, into: set[str]) -> None:
    """Note what changes when something appears in the directory `path`: itself, or the first part that is missing."""
    done = ""
    for part in path.split("/")[1:]:
        place = tree.find(f"{done}/{part}")
        if place is None:
            into.add(f"{done}/{part}")
            return
        done = "" if place.path == "/" else place.path
    into.add(done or "/")
