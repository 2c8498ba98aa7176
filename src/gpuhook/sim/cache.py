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

from gpuhook.sim.layouts import Layout
from gpuhook.sim.libraries import Library

_MAGIC = b"glibc-ld.so.cache1.1"
_LITTLE_ENDIAN = 2
_HEADER = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03}  # ELF for glibc 2, and the machine


def write(root: Path, layout: Layout, libraries: Iterable[Library], driver: str) -> None:
    """Write etc/ld.so.conf and etc/ld.so.cache of a driver's root in which the libraries are in place."""
    if layout.cache == "none":
        return
    etc = root / "etc"
    etc.mkdir(exist_ok=True)
    (etc / "ld.so.conf").write_text("".join(f"{directory}\n" for directory in layout.conf))
    directory = layout.conf[-1].lstrip("/")
    if layout.cache == "host":
        (etc / "ld.so.cache").write_bytes(compose(directory, {"libc.so.6"}))
        return
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    if ldconfig := shutil.which("ldconfig", path=path):
        words = [ldconfig, "-r", str(root)]
        done = subprocess.run(words, capture_output=True, check=False, timeout=120)  # noqa: S603
        if done.returncode == 0 and (etc / "ld.so.cache").is_file():
            return
    there = {name for name in names(libraries, driver) if os.path.lexists(root / directory / name)}
    (etc / "ld.so.cache").write_bytes(compose(directory, there))


def names(libraries: Iterable[Library], driver: str) -> set[str]:
    """The sonames and development links in the library directory itself: what ldconfig lists."""
    return {
        name
        for item in libraries
        if "/" not in item.name
        for name in (item.soname_text(driver), *([f"{item.name}.so"] if item.dev else ()))
    }


def compose(directory: str, found: set[str]) -> bytes:
    """The cache that ldconfig would write for these names in a directory."""
    ordered = sorted(found, key=_key, reverse=True)  # the loader's binary search expects descending order
    strings = bytearray()
    at = _HEADER.size + _ENTRY.size * len(ordered)
    entries = []
    for name in ordered:
        key = at + len(strings)
        strings += name.encode() + b"\0"
        value = at + len(strings)
        strings += f"/{directory}/{name}".encode() + b"\0"
        entries.append(_ENTRY.pack(_FLAGS[platform.machine()], key, value, 0, 0))
    header = _HEADER.pack(_MAGIC, len(ordered), len(strings), _LITTLE_ENDIAN, 0)
    return header + b"".join(entries) + bytes(strings)


def _key(name: str) -> list[tuple[int, int]]:
    """The order of glibc's _dl_cache_libcmp: runs of digits count as numbers, and above any other character."""
    return [(1, int(part)) if part.isdigit() else (0, ord(part)) for part in re.findall(r"[0-9]+|[^0-9]", name)]
