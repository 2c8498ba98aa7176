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
from gpuhook.driver import capabilities, data, places, programs
from gpuhook.driver.tree import Place, Tree
from gpuhook.errors import GpuhookError
from gpuhook.model import DriverFile, replace
from gpuhook.version import parse_loose

_VERSION = re.compile(r"\d{2,4}(?:\.\d{1,4}){1,3}", re.ASCII)
# Without these nothing can be said or done: that one of them cannot be trusted stops the driver, not only the file.
_VITAL = ("libcuda", "libnvidia-ml")
_KINDS = ("library", "binary", "firmware", "data")
# What a broken loader's cache or a directory gone wild may have. Each start reads the record of all that was found.
_MAX_DIRECTORIES = 512  # a desktop's loader knows about twenty
_MAX_LIBRARIES = 1024  # a driver has about sixty, and as many of 32 bits
# Where the libraries of 32-bit programs lie, besides the directories that the loader's cache names for them.
_NARROW_DIRS = {
    "x86-64": (
        "/usr/lib/i386-linux-gnu",
        "/usr/lib/i386-linux-gnu/nvidia/current",
        "/usr/lib32",
        "/usr/lib",
        "/run/opengl-driver-32/lib",
    ),
    "aarch64": ("/usr/lib/arm-linux-gnueabihf", "/usr/lib/arm-linux-gnueabihf/nvidia/current", "/usr/lib"),
}


@dataclass
class Found:
    """What discovery learned. All paths are below the driver root.

    `watch` are the files and directories whose change makes the result stale, those that are absent too. `directories`
    are those that were looked in; `left_out` says of each file or directory that was passed over why. `versions` are
    the versions of libcuda and libnvidia-ml that were met, `foreign` the machines for which one of the wanted version
    is that is of no use here.
    """

    machine: str
    files: list[DriverFile] = field(default_factory=list)
    watch: set[str] = field(default_factory=set)
    directories: list[str] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    foreign: set[str] = field(default_factory=set)

    def library(self, stem: str) -> DriverFile | None:
        """The library with this name before `.so`, if it was found."""
        return next(
            (
                file
                for file in self.files
                if file.kind == "library" and file.bits == 64 and file.name.startswith(stem + ".so.")
            ),
            None,
        )


def host_machine() -> str:
    """The ELF machine of this host."""
    machine = posix.uname().machine
    return image.NATIVE.get(machine, machine)


def discover(config: Config, version: str, machine: str = "") -> Found:
    """The files of driver `version` below the driver root; with version "", which versions are there.

    `machine` is whose libraries are wanted, this host's where it is empty. Raises library-untrusted where libcuda or
    libnvidia-ml is there but others than root can change it.
    """
    found = Found(machine or host_machine())
    tree = Tree(config.driver_root)
    search = _Search(config, version, tree, found)
    for directory in _directories(config, tree, found):
        search.directory(directory)
    search.narrow = True
    for directory in _narrow_directories(tree, found):
        search.directory(directory)
    search.drop_leftovers()
    search.add_links()
    if version:
        libraries = list(found.files)
        for looked in (
            programs.binaries(tree, data.homes(libraries)),
            programs.firmware(tree, config.sys_root, version),
            data.look(tree, version, found.machine, libraries),
        ):
            found.files += looked.files
            found.watch |= looked.watch
            found.left_out += looked.left_out
    found.watch |= tree.passed | {file.path for file in found.files} | {places.LOADER_CACHE}
    found.watch = places.needed(tree, found.watch)
    found.files.sort(key=lambda file: (_KINDS.index(file.kind), file.bits == 32, file.target or file.name))
    return found


# --- where to look ------------------------------------------------------------------------------------------------


def _directories(config: Config, tree: Tree, found: Found) -> list[str]:
    """The directories to look in, free of links and without repeats, in order: the loader's, then the configured."""
    wanted: list[str] = []
    for path, is_ours in places.cached(tree, ldcache.FLAGS.get(found.machine, -1), found.left_out):
        wanted.append(path.rpartition("/")[0] or "/")
        place = tree.find(path) if is_ours else None
        if place is not None:  # an alternatives link: its directory holds more of the driver than the cache names
            wanted.append(place.path.rpartition("/")[0] or "/")
    configured = places.expand_all(tree, config.library_dirs, found.watch, found.left_out)
    ordered: dict[str, None] = {}
    for path in dict.fromkeys(_first(wanted, found.left_out) + _first(configured, found.left_out)):
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


def _first(wanted: list[str], left_out: list[tuple[str, str]]) -> list[str]:
    """The directories without repeats, up to a number that no host needs; each start looks at what is watched."""
    directories = list(dict.fromkeys(wanted))
    if len(directories) > _MAX_DIRECTORIES:
        more = len(directories) - _MAX_DIRECTORIES
        left_out.append((directories[_MAX_DIRECTORIES], f"not looked in, with {more - 1} more: too many directories"))
    return directories[:_MAX_DIRECTORIES]


def _narrow_directories(tree: Tree, found: Found) -> list[str]:
    """The directories to look in for 32-bit libraries alone: their usual ones that are not looked in already."""
    narrow: dict[str, None] = {}
    wanted = [path for path, _ in places.cached(tree, places.FLAGS32.get(found.machine, -1), [])]
    wanted += [place.path for place in map(tree.find, wanted) if place is not None]
    directories = _first([path.rpartition("/")[0] for path in wanted], found.left_out)
    for path in (*directories, *_NARROW_DIRS.get(found.machine, ())):
        for name in (path, f"{path}/vdpau"):
            data.watch(tree, name, found.watch)
            place = tree.find(name)
            if place is None or not stat.S_ISDIR(place.status.st_mode) or place.path in found.directories:
                continue
            if place.untrusted:
                found.left_out.append((place.path, place.untrusted))
            else:
                narrow[place.path] = None
    return list(narrow)


def _refuse_vital_directory(config: Config, tree: Tree, place: Place) -> None:
    """A directory that others can write is passed over, unless the driver itself lies in it: then that is the error."""
    for name in tree.names(place.path):
        if capabilities.stem(name) in _VITAL and _VERSION.search(name):
            raise _untrusted(config, f"{place.path.rstrip('/')}/{name}", place.untrusted)


# --- libraries ----------------------------------------------------------------------------------------------------


class _Search:
    """Looks through directories for libraries of one version; the first of a name stays, of 64 and of 32 bits each.

    With `narrow` only those of 32 bits are taken, and nothing is said of others.
    """

    def __init__(self, config: Config, version: str, tree: Tree, found: Found) -> None:
        self.config = config
        self.suffix = f".so.{version}" if version else ""
        self.tree = tree
        self.found = found
        self.links: list[tuple[str, str]] = []  # directory, name
        self.taken: dict[str, DriverFile] = {}  # by real path
        self.named: set[tuple[str, int]] = set()  # name and bits of those
        self.narrow = False

    def directory(self, directory: str) -> None:
        """Take the driver's libraries of one directory.

        Where another version of the driver lies and nothing of this one, the companions are the other's, too.
        """
        base = directory.rstrip("/")
        names = [name for name in self.tree.names(directory) if name.startswith("lib") and ".so" in name]
        others = False
        for name in names:
            match = _VERSION.fullmatch(name.partition(".so.")[2])
            if match and capabilities.stem(name) in _VITAL:
                others = True
                if not self.narrow:
                    self._note_version(f"{base}/{name}", match.group())
        others = others and not any(self.suffix and name.endswith(self.suffix) for name in names)
        for name in names:
            if self._is_added(name) if others else self._is_wanted(name):
                self._take(f"{base}/{name}", name)
            if not others:
                self.links.append((base, name))

    def _note_version(self, path: str, version: str) -> None:
        if self.tree.find(path) is not None:
            self.found.versions.add(version)

    def _is_wanted(self, name: str) -> bool:
        """Whether a name is one of the driver's files, or one that the configuration adds."""
        return self._is_ours(name) or self._is_added(name)

    def _is_added(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.config.extra_libraries)

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
            return
        read = shared_object(self.tree, place)
        bits = read.bits if isinstance(read, elf.Elf) else 64
        if self.narrow and bits != 32:
            return
        if (name, bits) in self.named:
            self._leave(path, "another directory has this name first")
            return
        file = self._library(place, name, read)
        if isinstance(file, DriverFile) and len(self.taken) >= _MAX_LIBRARIES:
            file = f"{_MAX_LIBRARIES} libraries are more than any driver has"
        if isinstance(file, str):
            self._leave(place.path, file)
        else:
            self.taken[place.path] = file
            self.named.add((file.name, file.bits))

    def _library(self, place: Place, name: str, read: elf.Elf | str) -> DriverFile | str:
        """The library at a place, or the reason why it is left out."""
        if place.untrusted:
            if capabilities.stem(name) in _VITAL and not self.narrow:
                raise _untrusted(self.config, place.path, place.untrusted)
            return place.untrusted
        if isinstance(read, str):
            return read
        machine = self.found.machine
        if (read.machine, read.bits) not in ((machine, 64), (data.NARROW.get(machine), 32)):
            if capabilities.stem(name) in _VITAL:
                self.found.foreign.add(read.machine)
            return f"for {read.machine}, {read.bits} bits; this host is {machine}"
        links = (read.soname,) if read.soname and read.soname != name else ()
        capability = capabilities.of_library(name) if self._is_ours(name) else capabilities.EVERY
        return DriverFile(place.path, "library", capability, name, place.id, read.soname, links, read.bits)

    def _leave(self, path: str, reason: str) -> None:
        self.found.left_out.append((path, reason))

    def drop_leftovers(self) -> None:
        """Of several files with the same soname, as an upgrade may leave companions, keep one.

        The loaded version's own, else the one that the host's loader takes, else the newest.
        """
        same: dict[tuple[str, int], list[DriverFile]] = {}
        bases: dict[str, list[str]] = {}
        for base, name in self.links:
            bases.setdefault(name, []).append(base)
        for file in self.taken.values():
            same.setdefault((file.soname or file.name, file.bits), []).append(file)
        for (soname, _), files in same.items():
            if len(files) < 2:
                continue
            found = [self.tree.find(f"{base}/{soname}") for base in bases.get(soname, ())]
            led = {place.path for place in found if place is not None}
            best = max(
                files,
                key=lambda file: (
                    bool(self.suffix) and file.name.endswith(self.suffix),
                    file.path in led,
                    parse_loose(file.name.partition(".so.")[2]),
                ),
            )
            for file in files:
                if file is not best:
                    self._leave(file.path, f"{best.path} has the same soname {soname}")
                    del self.taken[file.path]

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
            given = set(capabilities.LINKS.get(capabilities.stem(file.name), ())) - {file.name, file.soname}
            names = sorted(given.union(more.get(path, ())), key=lambda name: (len(name), name))
            self.found.files.append(replace(file, links=(*file.links, *names)))


def shared_object(tree: Tree, place: Place) -> elf.Elf | str:
    """The file at a place as a shared object, or the reason why it is none."""
    if not stat.S_ISREG(place.status.st_mode):
        return "no regular file"
    try:
        descriptor = os.open(tree.host(place.path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    try:
        return elf.read_fd(descriptor) or "no ELF shared object"
    finally:
        os.close(descriptor)


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
