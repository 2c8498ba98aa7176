"""Find the files of Windows' own driver on WSL2, where all GPUs are behind /dev/dxg and no module of NVIDIA is loaded.

Windows shows its driver store below STORE, one folder for each driver of the machine, and what Linux programs load in
LIBRARIES: loaders that ask libdxcore which folder is the GPU's, and take the real library from that very path. So
everything keeps its path in a container. Of several folders with a libcuda, as an upgrade may leave, all are given:
only libdxcore can say which one counts. Off the hot path.
"""

import os
import stat
from dataclasses import dataclass

from gpuhook import elf
from gpuhook.config import Config
from gpuhook.driver import capabilities, data
from gpuhook.driver.discover import Found, host_machine, shared_object
from gpuhook.driver.tree import Place, Tree
from gpuhook.errors import GpuhookError
from gpuhook.model import DriverFile, replace

DEVICE = "/dev/dxg"
LIBRARIES = "/usr/lib/wsl/lib"
STORE = "/usr/lib/wsl/drivers"
_CUDA, _NVML = "libcuda.so.1", "libnvidia-ml.so.1"
_LOADER = "_loader"  # libcuda_loader.so has the soname of what it loads
_PROGRAMS = ("nvidia-smi", "nvidia-debugdump")
# What is no library of NVIDIA's on Linux: Direct3D's, which Mesa draws by, and what its driver takes from Windows.
_CAPABILITIES = {
    "libd3d12": "graphics",
    "libd3d12core": "graphics",
    "libnvwgf2umx": "graphics",
    "nvoptix": "graphics",
    "nvcubins": "compute",
}
_NGX = ("nvngx", "_nvngx")  # beginnings of the names of the libraries that NGX gives to Windows programs under Wine
_LIMIT = 256  # folders of the driver store that are looked into, the newest first


def is_here(config: Config) -> bool:
    """Whether this is WSL2: the device is there, or the driver store."""
    return _has_device(config) or os.path.isdir(config.driver_root.rstrip("/") + STORE)


def discover(config: Config) -> Found:
    """The files of the driver store's NVIDIA drivers. Raises driver-not-found where there is none.

    A library's `links` are the names by which the loader's cache of a container leads to it; `target` is its path.
    """
    found = Found(host_machine())
    tree = Tree(config.driver_root)
    for folder in (STORE, LIBRARIES):
        data.watch(tree, folder, found.watch)
    stores, others = _stores(tree)
    found.watch |= set(stores)
    if not stores:
        raise _no_store(config, others)
    libraries: list[_Library] = []
    programs: dict[str, DriverFile] = {}
    for folder in (LIBRARIES, *stores):
        place = tree.find(folder)
        if place is None:
            continue
        found.directories.append(place.path)
        for name in tree.names(place.path):
            file = _file(tree, f"{place.path}/{name}", name, found)
            if isinstance(file, _Library):
                libraries.append(file)
            elif file is not None and file.kind == "binary":
                programs.setdefault(name, file)
            elif file is not None:
                found.files.append(file)
    found.files += [*_named(libraries), *programs.values()]
    found.watch |= tree.passed | {file.path for file in found.files}
    found.files.sort(key=lambda file: (("library", "binary", "data").index(file.kind), file.target))
    return found


def check(config: Config) -> None:
    """Raises driver-not-loaded where the driver store is there and the device is not."""
    if not _has_device(config):
        raise GpuhookError(
            "driver-not-loaded",
            f"this is WSL2: {config.driver_root.rstrip('/')}{STORE} is there, and {config.dev_root.rstrip('/')}{DEVICE}"
            " is missing",
            "run `wsl --update` and `wsl --shutdown` on Windows; [gpu] enabled=false in /etc/wsl.conf takes it away",
        )


def _has_device(config: Config) -> bool:
    return os.path.lexists(config.dev_root.rstrip("/") + DEVICE)


@dataclass(frozen=True)
class _Library:
    """A library, and whether it stands in LIBRARIES, where its file's name is what Linux programs load it by."""

    file: DriverFile
    is_linux: bool

    def rank(self, name: str) -> int:
        """How good a claim this has to a name: lower is better."""
        if self.is_linux:
            return 0 if name == self.file.name else 3
        if name == self.file.soname and _LOADER in self.file.name:
            return 1
        return 2 if name == self.file.name else 4


def _named(libraries: list[_Library]) -> list[DriverFile]:
    """The libraries, each with the names that it has in a container: its own and its soname, where no other is before.

    The host's loader knows LIBRARIES alone, and so does a container's. Only where that has no libcuda, the driver store
    has the names: a loader first, then the file of that name.
    """
    linux = [library for library in libraries if library.is_linux]
    has_cuda = any(_CUDA in (library.file.name, library.file.soname) for library in linux)
    best: dict[str, _Library] = {}
    for library in linux if has_cuda else libraries:
        for name in {library.file.name, library.file.soname} - {""}:
            if name not in best or library.rank(name) < best[name].rank(name):
                best[name] = library
    names: dict[str, list[str]] = {}  # by the file, which LIBRARIES may have as a link
    for library in libraries:
        if library.file.soname == _NVML:  # gpuhook itself asks it
            best.setdefault(_NVML, library)
    for name, library in sorted(best.items()):
        names.setdefault(library.file.path, []).append(name)
    files = {library.file.path: library.file for library in reversed(libraries)}
    return [replace(file, links=tuple(names.get(path, ()))) for path, file in files.items()]


def _stores(tree: Tree) -> tuple[list[str], int]:
    """The folders of the driver store that have a libcuda, the newest first; and how many others there are.

    Windows shows the drivers of everything there, hundreds of folders.
    """
    place = tree.find(STORE)
    if place is None:
        return [], 0
    folders = [found for name in tree.names(place.path) if (found := tree.find(f"{place.path}/{name}")) is not None]
    folders.sort(key=lambda folder: folder.status.st_mtime_ns, reverse=True)
    names = [folder.path for folder in folders[:_LIMIT] if stat.S_ISDIR(folder.status.st_mode)]
    stores = [name for name in names if any(entry.startswith("libcuda") for entry in tree.names(name))]
    return stores, len(folders) - len(stores)


def _file(tree: Tree, path: str, name: str, found: Found) -> DriverFile | _Library | None:
    """A file of a folder as a container gets it; None for what it has no use for."""
    is_library = name.startswith("lib") and (name.endswith(".so") or ".so." in name)
    is_program = name in _PROGRAMS
    if not (is_library or is_program or name.endswith(".bin") or name.lower().startswith(_NGX)):
        return None
    place = tree.find(path)
    if place is None or not stat.S_ISREG(place.status.st_mode):
        return None
    if place.untrusted:
        found.left_out.append((path, place.untrusted))
        return None
    if is_program:
        return DriverFile(place.path, "binary", "utility", name, place.id)
    if not is_library:
        return DriverFile(place.path, "data", _capability(name), name, place.id, target=path)
    return _library(tree, place, path, name, found)


def _library(tree: Tree, place: Place, path: str, name: str, found: Found) -> _Library | None:
    read = shared_object(tree, place)
    if not isinstance(read, elf.Elf) or (read.machine, read.bits) != (found.machine, 64):
        what = read if isinstance(read, str) else f"for {read.machine}, {read.bits} bits; this host is {found.machine}"
        found.left_out.append((path, what))
        return None
    file = DriverFile(place.path, "library", _capability(name), name, place.id, read.soname, (), 64, path)
    return _Library(file, path.startswith(f"{LIBRARIES}/"))


def _capability(name: str) -> str:
    if name.lower().startswith(_NGX):
        return "ngx"
    stem = name.partition(".")[0].removesuffix(_LOADER)
    return _CAPABILITIES.get(stem) or capabilities.of_library(stem)


def _no_store(config: Config, others: int) -> GpuhookError:
    store = config.driver_root.rstrip("/") + STORE
    what = f"none of the {others} drivers in {store} has a libcuda" if others else f"{store} has no driver"
    return GpuhookError(
        "driver-not-found",
        f"this is WSL2 ({config.dev_root.rstrip('/')}{DEVICE} is there), and {what}",
        "install NVIDIA's driver on Windows (never in Linux), then run `wsl --shutdown` there",
    )
