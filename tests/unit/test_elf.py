"""ELF files are read by program headers, and nothing that a file holds makes the reader fail."""

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuhook import elf
from gpuhook.elf import Elf


def build(
    *,
    bits: int = 64,
    order: str = "<",
    machine: int = 62,
    kind: int = 3,
    soname: bytes | None = b"libx.so.1",
    needed: tuple[bytes, ...] = (b"libc.so.6",),
    strings: bytes | None = None,
    soname_at: int | None = None,
    strsz: int | None = None,
    strtab: int | None = None,
) -> bytes:
    """A small shared object: header, one PT_LOAD of the whole file, one PT_DYNAMIC, a string table at the end."""
    table = b"\0"
    entries: list[tuple[int, int]] = []
    for name in needed:
        entries.append((1, len(table)))
        table += name + b"\0"
    if soname is not None:
        entries.append((14, len(table) if soname_at is None else soname_at))
        table += soname + b"\0"
    if strings is not None:
        table = strings
    head, program, entry = (64, 56, 16) if bits == 64 else (52, 32, 8)
    base = 0x1000
    at_dynamic = head + 2 * program
    at_table = at_dynamic + (len(entries) + 3) * entry
    entries += [
        (5, base + at_table if strtab is None else strtab),
        (10, len(table) if strsz is None else strsz),
        (0, 0),
    ]
    ident = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1 if order == "<" else 2, 1]) + bytes(9)
    size = at_table + len(table)
    if bits == 64:
        header = struct.pack(order + "HHIQQQIHHHHHH", kind, machine, 1, 0, head, 0, 0, head, program, 2, 0, 0, 0)
        load = struct.pack(order + "IIQQQQQQ", 1, 5, 0, base, base, size, size, 4096)
        dynamic = struct.pack(order + "IIQQQQQQ", 2, 6, at_dynamic, base + at_dynamic, 0, len(entries) * entry, 0, 8)
        rows = b"".join(struct.pack(order + "qQ", *row) for row in entries)
    else:
        header = struct.pack(order + "HHIIIIIHHHHHH", kind, machine, 1, 0, head, 0, 0, head, program, 2, 0, 0, 0)
        load = struct.pack(order + "IIIIIIII", 1, 0, base, base, size, size, 5, 4096)
        dynamic = struct.pack(order + "IIIIIIII", 2, at_dynamic, base + at_dynamic, 0, len(entries) * entry, 0, 6, 8)
        rows = b"".join(struct.pack(order + "iI", *row) for row in entries)
    return ident + header + load + dynamic + rows + table


READABLE = {
    "x86-64": ({}, Elf("x86-64", 64, "libx.so.1")),
    "aarch64": ({"machine": 183}, Elf("aarch64", 64, "libx.so.1")),
    "i386": ({"machine": 3, "bits": 32}, Elf("i386", 32, "libx.so.1")),
    "big-endian": ({"machine": 22, "order": ">"}, Elf("s390x", 64, "libx.so.1")),
    "big-endian-32": ({"machine": 20, "order": ">", "bits": 32}, Elf("ppc", 32, "libx.so.1")),
    "unknown-machine": ({"machine": 9999}, Elf("unknown-9999", 64, "libx.so.1")),
    "no-soname": ({"soname": None}, Elf("x86-64", 64, "")),
    "soname-with-slash": ({"soname": b"../../etc/passwd"}, Elf("x86-64", 64, "")),
    "soname-dotdot": ({"soname": b".."}, Elf("x86-64", 64, "")),
    "soname-control": ({"soname": b"lib\nx.so"}, Elf("x86-64", 64, "")),
    "soname-no-utf8": ({"soname": b"lib\xff.so"}, Elf("x86-64", 64, "")),
    "soname-255": ({"soname": b"l" * 255}, Elf("x86-64", 64, "l" * 255)),
}

REFUSED = {
    "executable": {"kind": 2},
    "relocatable": {"kind": 1},
    "soname-256": {"soname": b"l" * 256},
    "soname-outside-table": {"soname_at": 1000},
    "soname-unterminated": {"strings": b"\0libc.so.6\0libx"},
    "table-outside-segments": {"strtab": 0x10},
    "table-at-the-end-of-addresses": {"strtab": 2**64 - 1},
    "table-longer-than-file": {"strsz": 2**40},
    "table-of-full-size": {"strsz": 2**64 - 1},
}


@pytest.mark.parametrize(("build_with", "wanted"), READABLE.values(), ids=READABLE)
def test_reads(build_with: dict[str, object], wanted: Elf, tmp_path: Path) -> None:
    data = build(**build_with)  # type: ignore[arg-type]
    assert elf.read(data) == wanted
    assert of_file(tmp_path / "lib", data) == wanted


@pytest.mark.parametrize("build_with", REFUSED.values(), ids=REFUSED)
def test_refuses(build_with: dict[str, object], tmp_path: Path) -> None:
    data = build(**build_with)  # type: ignore[arg-type]
    assert elf.read(data) is None
    assert of_file(tmp_path / "lib", data) is None


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF", b"#!/bin/sh\n" * 20, b"\x7fELF" + bytes(60), b"\x7fELF\x02\x01" + b"\xff" * 58, bytes(64)]
)
def test_refuses_what_is_no_elf(data: bytes, tmp_path: Path) -> None:
    assert elf.read(data) is None
    assert of_file(tmp_path / "x", data) is None


def of_file(path: Path, data: bytes) -> Elf | None:
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return elf.read_fd(descriptor)
    finally:
        os.close(descriptor)


def real_library() -> Path:
    """A shared object of this machine's C library."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split()[-1]
        if "/libc.so" in path or "/libc-" in path:
            return Path(path)
    raise AssertionError("no libc in /proc/self/maps")


REAL = real_library().read_bytes()


def test_real_library_agrees_with_readelf() -> None:
    """The name is the one that readelf prints."""
    readelf = shutil.which("readelf")
    assert readelf, "readelf (binutils) is missing"
    text = subprocess.run([readelf, "-dW", real_library()], capture_output=True, text=True, check=True).stdout
    found = elf.read(REAL)
    assert found is not None
    assert f"Library soname: [{found.soname}]" in text


def test_pipe_and_closed_descriptor_are_no_library() -> None:
    one, other = os.pipe()
    assert elf.read_fd(one) is None
    os.close(one)
    os.close(other)
    assert elf.read_fd(one) is None


def test_every_truncation_of_a_small_object() -> None:
    """Cut anywhere before its last byte, an object is refused or read as what it says; never an exception."""
    data = build()
    assert [elf.read(data[:size]) for size in range(len(data))] == [None] * len(data)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=12), cut=st.integers(0, 8192))
def test_corrupted_real_library(changes: list[tuple[int, int]], cut: int) -> None:
    """Bytes changed in the headers of a real library, and its end cut off, give an Elf or None."""
    data = bytearray(REAL)
    for at, byte in changes:
        data[at] = byte
    for text in (bytes(data), bytes(data[:cut])):
        found = elf.read(text)
        assert found is None or found.bits in (32, 64)


@settings(max_examples=300, deadline=None)
@given(
    at=st.integers(0, len(build()) - 1),
    patch=st.sampled_from([b"\0", b"\xff", b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f", b"\x80"]),
)
def test_patched_object(at: int, patch: bytes) -> None:
    """Extreme numbers at any place give an Elf whose name is bounded, or None."""
    data = build()
    found = elf.read(data[:at] + patch + data[at + len(patch) :])
    assert found is None or len(found.soname) <= 255


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_behind_the_magic(data: bytes) -> None:
    """A few hundred bytes cannot hold a longer name."""
    found = elf.read(b"\x7fELF\x02\x01" + data)
    assert found is None or len(found.soname) <= len(data)
