"""Find the files of the loaded driver below the driver root.

A library is the driver's if its file name ends with the loaded driver's version, or if it is a companion that carries
a version of its own; no list of names decides, so a new branch works. Looked in: every directory that the driver
root's loader cache names, the configured search list, and `vdpau` below each. Off the hot path.
"""

import os
import posix
import re
import stat
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from gpuhook import elf, image, ldcache
from gpuhook.config import Config
from gpuhook.driver import capabilities
from gpuhook.driver.tree import Place, Tree
from gpuhook.errors import GpuhookError
from gpuhook.model import DriverFile, replace

LOADER_CACHE = "/etc/ld.so.cache"
_CACHE_LIMIT = ldcache.LIMIT_FILE
_VERSION = re.compile(r"\d{2,4}(?:\.\d{1,4}){1,3}", re.ASCII)
# Without these nothing can be said or done: that one of them cannot be trusted stops the driver, not only the file.
_VITAL = ("libcuda", "libnvidia-ml")


@dataclass
class Found:
    """What discovery learned. All paths are below the driver root.

    `watch` are the files and directories whose change makes the result stale, those that are absent too. `directories`
    are those that were looked in; `left_out` says of each file or directory that was passed over why. `versions` are
    the versions of libcuda and libnvidia-ml that were met.
    """

    machine: str
    files: list[DriverFile] = field(default_factory=list)
    watch: set[str] = field(default_factory=set)
    directories: list[str] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)

    def library(self, stem: str) -> DriverFile | None:
        """The library with this name before `.so`, if it was found."""
        return next(
            (file for file in self.files if file.kind == "library" and file.name.startswith(stem + ".so.")), None
        )


def host_machine() -> str:
    """The ELF machine of this host."""
    machine = posix.uname().machine
    return image.NATIVE.get(machine, machine)


def discover(config: Config, version: str) -> Found:
    """The files of driver `version` below the driver root; with version "", which versions are there.

    Raises library-untrusted where libcuda or libnvidia-ml is there but others than root can change it.
    """
    found = Found(host_machine())
    tree = Tree(config.driver_root)
    search = _Search(config, version, tree, found)
    for directory in _directories(config, tree, found):
        search.directory(directory)
    search.add_links()
    if version:
        _binaries(tree, found)
        _firmware(tree, found, version)
    found.watch |= tree.passed | {file.path for file in found.files} | {LOADER_CACHE}
    found.files.sort(key=lambda file: (("library", "binary", "firmware").index(file.kind), file.name))
    return found


# --- where to look ------------------------------------------------------------------------------------------------


def _directories(config: Config, tree: Tree, found: Found) -> list[str]:
    """The directories to look in, free of links and without repeats, in order: the loader's, then the configured."""
    wanted: list[str] = []
    for path, is_ours in _cached(tree, found.machine):
        wanted.append(path.rpartition("/")[0] or "/")
        place = tree.find(path) if is_ours else None
        if place is not None:  # an alternatives link: its directory holds more of the driver than the cache names
            wanted.append(place.path.rpartition("/")[0] or "/")
    for pattern in config.library_dirs:
        wanted += _expand(tree, pattern, found)
    ordered: dict[str, None] = {}
    for path in wanted:
        for name in (path, path.rstrip("/") + "/vdpau"):
            place = tree.find(name)
            if place is None:
                if name == path:
                    found.watch.add(path)
                continue
            if not stat.S_ISDIR(place.status.st_mode) or place.path in ordered:
                continue
            found.watch.add(place.path)
            if place.untrusted:
                found.left_out.append((place.path, place.untrusted))
                _refuse_vital_directory(config, tree, place)
                continue
            ordered[place.path] = None
    found.directories = list(ordered)
    return found.directories


def _refuse_vital_directory(config: Config, tree: Tree, place: Place) -> None:
    """A directory that others can write is passed over, unless the driver itself lies in it: then that is the error."""
    for name in tree.names(place.path):
        if capabilities.stem(name) in _VITAL and _VERSION.search(name):
            raise _untrusted(config, f"{place.path.rstrip('/')}/{name}", place.untrusted)


def _cached(tree: Tree, machine: str) -> list[tuple[str, bool]]:
    """The paths in the driver root's loader cache, for this machine, libcuda's and libnvidia-ml's first.

    With each, whether it is likely the driver's. A cache that is missing or broken names nothing: that is no error.
    """
    place = tree.find(LOADER_CACHE)
    flags = ldcache.FLAGS.get(machine)
    if place is None or place.untrusted or not stat.S_ISREG(place.status.st_mode) or flags is None:
        return []
    if place.status.st_size > _CACHE_LIMIT:
        return []
    try:
        with open(tree.host(place.path), "rb") as file:
            entries = ldcache.parse(file.read(_CACHE_LIMIT))
    except (OSError, ValueError):
        return []
    mine = [entry for entry in entries if entry.flags == flags]
    mine.sort(key=lambda entry: not entry.name.startswith(("libcuda.so.", "libnvidia-ml.so.")))
    return [(entry.path, _is_driver_like(entry.name)) for entry in mine]


def _is_driver_like(name: str) -> bool:
    return name.startswith(("libcuda", "libnvidia-", "libnvcuvid", "libnvoptix")) or "_nvidia.so" in name


def _expand(tree: Tree, pattern: str, found: Found) -> list[str]:
    """The directories that a search-list entry names; `*` and `?` match within one component."""
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
                found.watch.add(path or "/")
                continue
            found.watch.add(place.path)
            step += [f"{path}/{name}" for name in tree.names(place.path) if fnmatchcase(name, part)]
        paths = step[:64]
    return paths


# --- libraries ----------------------------------------------------------------------------------------------------


class _Search:
    """Looks through directories for libraries of one version; the first of a name stays."""

    def __init__(self, config: Config, version: str, tree: Tree, found: Found) -> None:
        self.config = config
        self.suffix = f".so.{version}" if version else ""
        self.tree = tree
        self.found = found
        self.links: list[tuple[str, str]] = []  # directory, name
        self.taken: dict[str, DriverFile] = {}  # by real path

    def directory(self, directory: str) -> None:
        """Take the driver's libraries of one directory."""
        base = directory.rstrip("/")
        for name in self.tree.names(directory):
            if not name.startswith("lib") or ".so" not in name:
                continue
            match = _VERSION.fullmatch(name.partition(".so.")[2])
            if match and capabilities.stem(name) in _VITAL:
                self._note_version(f"{base}/{name}", match.group())
            if self._is_wanted(name):
                self._take(f"{base}/{name}", name)
            self.links.append((base, name))

    def _note_version(self, path: str, version: str) -> None:
        if self.tree.find(path) is not None:
            self.found.versions.add(version)

    def _is_wanted(self, name: str) -> bool:
        """Whether a name is one of the driver's files, or one that the configuration adds."""
        return self._is_ours(name) or any(fnmatchcase(name, pattern) for pattern in self.config.extra_libraries)

    def _is_ours(self, name: str) -> bool:
        if not self.suffix:
            return False
        versioned = len(name) > len(self.suffix) + 3 and name.endswith(self.suffix)
        return versioned or any(fnmatchcase(name, pattern) for pattern in capabilities.COMPANIONS)

    def _take(self, path: str, name: str) -> None:
        place = self.tree.find(path)
        if place is None:
            self._leave(path, "leads nowhere")
            return
        real = place.path.rpartition("/")[2]
        if not self._is_wanted(real):
            self._leave(path, f"leads to {place.path}, which is no file of the driver")
            return
        if place.path in self.taken:
            return
        if real != name and not name.endswith(self.suffix):
            name = real  # libnvidia-egl-wayland.so.1 is a link to the file that counts
        if any(fnmatchcase(name, pattern) for pattern in self.config.excluded_libraries):
            self._leave(path, "excluded by the configuration")
        elif any(file.name == name for file in self.taken.values()):
            self._leave(path, "another directory has this name first")
        else:
            file = self._library(place, name)
            if isinstance(file, str):
                self._leave(place.path, file)
            else:
                self.taken[place.path] = file

    def _library(self, place: Place, name: str) -> DriverFile | str:
        """The library at a place, or the reason why it is left out."""
        if not stat.S_ISREG(place.status.st_mode):
            return "no regular file"
        if place.untrusted:
            if capabilities.stem(name) in _VITAL:
                raise _untrusted(self.config, place.path, place.untrusted)
            return place.untrusted
        try:
            descriptor = os.open(self.tree.host(place.path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return f"cannot be opened: {error.strerror}"
        try:
            read = elf.read_fd(descriptor)
        finally:
            os.close(descriptor)
        if read is None:
            return "no ELF shared object"
        if (read.machine, read.bits) != (self.found.machine, 64):
            return f"for {read.machine}, {read.bits} bits; this host is {self.found.machine}"
        links = (read.soname,) if read.soname and read.soname != name else ()
        capability = capabilities.of_library(name) if self._is_ours(name) else capabilities.EVERY
        return DriverFile(place.path, "library", capability, name, place.id, read.soname, links, read.bits)

    def _leave(self, path: str, reason: str) -> None:
        self.found.left_out.append((path, reason))

    def add_links(self) -> None:
        """Give each library the further names that lead to it on the host, and hand the libraries over."""
        stems = {capabilities.stem(file.name) for file in self.taken.values()} | {"libGLX_indirect"}
        more: dict[str, list[str]] = {}
        for base, name in self.links:
            file = None
            if capabilities.stem(name) in stems and _is_development_link(name):
                place = self.tree.find(f"{base}/{name}")
                file = None if place is None else self.taken.get(place.path)
            if file is not None and name not in (file.name, file.soname):
                more.setdefault(file.path, []).append(name)
        for path, file in self.taken.items():
            names = sorted(set(more.get(path, ())), key=lambda name: (len(name), name))
            self.found.files.append(replace(file, links=(*file.links, *names)))


def _is_development_link(name: str) -> bool:
    """`libx.so`, `libx.so.1`: not another full version, which would be a leftover of an earlier driver."""
    number = name.partition(".so")[2]
    return number == "" or (number[1:].isascii() and number[1:].isdigit())


def _untrusted(config: Config, path: str, reason: str) -> GpuhookError:
    root = config.driver_root.rstrip("/")
    return GpuhookError(
        "library-untrusted",
        f"the driver's library {root}{path} cannot be given to a container: {reason}",
        "make the file and each directory above it root's and writable by root alone (chown root, chmod go-w)",
    )


# --- binaries and firmware ----------------------------------------------------------------------------------------


def _binaries(tree: Tree, found: Found) -> None:
    for directory in capabilities.BINARY_DIRS:
        place = tree.find(directory)
        found.watch.add(directory if place is None else place.path)
    for name, capability in capabilities.BINARIES.items():
        for directory in capabilities.BINARY_DIRS:
            place = tree.find(f"{directory}/{name}")
            if place is None or not stat.S_ISREG(place.status.st_mode):
                continue
            if place.untrusted:
                found.left_out.append((place.path, place.untrusted))
                continue
            found.files.append(DriverFile(place.path, "binary", capability, name, place.id))
            break


def _firmware(tree: Tree, found: Found, version: str) -> None:
    names: set[str] = set()
    for base in capabilities.FIRMWARE_DIRS:
        directory = tree.find(f"{base}/nvidia/{version}")
        if directory is None:
            continue
        found.watch.add(directory.path)
        for name in tree.names(directory.path):
            if not fnmatchcase(name, "gsp*.bin") or name in names:
                continue
            place = tree.find(f"{directory.path}/{name}")
            if place is None or not stat.S_ISREG(place.status.st_mode):
                continue
            if place.untrusted:
                found.left_out.append((place.path, place.untrusted))
                continue
            names.add(name)
            found.files.append(DriverFile(place.path, "firmware", capabilities.EVERY, name, place.id))
