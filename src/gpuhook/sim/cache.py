"""etc/ld.so.cache of a simulated driver: by the host's ldconfig, or in its format where there is none.

Format: glibc, sysdeps/generic/dl-cache.h (struct cache_file_new).
"""

import os
import platform
import re
import shutil
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

from gpuhook.sim.libraries import Layout, Library

_MAGIC = b"glibc-ld.so.cache1.1"
_LITTLE_ENDIAN = 2
_HEADER = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03}  # ELF for glibc 2, and the machine


def write(root: Path, layout: Layout, libraries: Iterable[Library], driver: str) -> None:
    """Write etc/ld.so.conf and etc/ld.so.cache for a tree in which the libraries are in place."""
    etc = root / "etc"
    etc.mkdir(exist_ok=True)
    (etc / "ld.so.conf").write_text(layout.conf)
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    if ldconfig := shutil.which("ldconfig", path=path):
        words = [ldconfig, "-r", str(root)]
        done = subprocess.run(words, capture_output=True, check=False, timeout=120)  # noqa: S603
        if done.returncode == 0 and (etc / "ld.so.cache").is_file():
            return
    (etc / "ld.so.cache").write_bytes(compose(layout.libraries, libraries, driver))


def compose(directory: str, libraries: Iterable[Library], driver: str) -> bytes:
    """The cache as ldconfig would write it: sonames and development links of what lies in the directory itself."""
    found = {
        name
        for item in libraries
        if "/" not in item.name
        for name in (item.soname_text(driver), *([f"{item.name}.so"] if item.dev else ()))
    }
    names = sorted(found, key=_key, reverse=True)  # the loader's binary search expects descending order
    strings = bytearray()
    at = _HEADER.size + _ENTRY.size * len(names)
    entries = []
    for name in names:
        key = at + len(strings)
        strings += name.encode() + b"\0"
        value = at + len(strings)
        strings += f"/{directory}/{name}".encode() + b"\0"
        entries.append(_ENTRY.pack(_FLAGS[platform.machine()], key, value, 0, 0))
    header = _HEADER.pack(_MAGIC, len(names), len(strings), _LITTLE_ENDIAN, 0)
    return header + b"".join(entries) + bytes(strings)


def _key(name: str) -> list[tuple[int, int]]:
    """The order of glibc's _dl_cache_libcmp: runs of digits count as numbers, and above any other character."""
    return [(1, int(part)) if part.isdigit() else (0, ord(part)) for part in re.findall(r"[0-9]+|[^0-9]", name)]
