"""Find the driver's programs and the firmware of its GPUs. Off the hot path."""

import posix
import stat
from fnmatch import fnmatchcase

from gpuhook import linux
from gpuhook.driver import capabilities
from gpuhook.driver.data import Looked
from gpuhook.driver.tree import Tree
from gpuhook.model import DriverFile

_MAX_FIRMWARE = 64  # files; a driver has two
_MAX_PATH = 4096  # bytes of the kernel's parameter


def binaries(tree: Tree, homes: list[str]) -> Looked:
    """The programs, those beside the libraries (`data.homes`) first: another driver's may lie in /usr/bin."""
    found = Looked([], set(), [])
    directories = [*(f"{home}/bin" for home in homes), *capabilities.BINARY_DIRS]
    for directory in directories:
        place = tree.find(directory)
        found.watch.add(directory if place is None else place.path)
    for name, capability in capabilities.BINARIES.items():
        for directory in directories:
            place = tree.find(f"{directory}/{name}")
            if place is None or not stat.S_ISREG(place.status.st_mode):
                continue
            if place.untrusted:
                found.left_out.append((place.path, place.untrusted))
                continue
            found.files.append(DriverFile(place.path, "binary", capability, name, place.id))
            break
    return found


def firmware(tree: Tree, sys_root: str, version: str) -> Looked:
    """The GPUs' firmware, from where the kernel would load it (firmware_class, its parameter `path` first)."""
    found = Looked([], set(), [])
    names: set[str] = set()
    for base in (*_custom_firmware(sys_root), *capabilities.FIRMWARE_DIRS):
        directory = tree.find(f"{base.replace('RELEASE', posix.uname().release)}/nvidia/{version}")
        if directory is None:
            continue
        found.watch.add(directory.path)
        for name in tree.names(directory.path):
            if not fnmatchcase(name, "gsp*.bin") or name in names or len(names) >= _MAX_FIRMWARE:
                continue
            place = tree.find(f"{directory.path}/{name}")
            if place is None or not stat.S_ISREG(place.status.st_mode):
                continue
            if place.untrusted:
                found.left_out.append((place.path, place.untrusted))
                continue
            names.add(name)
            # a host may have it anywhere (the Nix store, /home of COS); a container has it where programs look
            target = f"/lib/firmware/nvidia/{version}/{name}"
            found.files.append(DriverFile(place.path, "firmware", capabilities.EVERY, name, place.id, target=target))
    return found


def _custom_firmware(sys_root: str) -> tuple[str, ...]:
    try:
        name = f"{sys_root.rstrip('/')}/sys/module/firmware_class/parameters/path"
        path = linux.read_file(name, _MAX_PATH).decode().strip()
    except (OSError, UnicodeDecodeError):
        return ()
    return (path,) if path.startswith("/") else ()
