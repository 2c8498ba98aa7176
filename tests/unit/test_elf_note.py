"""The note in which CUDA's forward-compatibility libraries say what driver they are for, read from hostile files."""

import os
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhook import elf

SECTION, OWNER = b".note.cuda.fwd_compatibility", b"NVIDIA Corporation"
TEXT = b'{"Format": 1, "CUDA Version": "13.1", "Driver": [535, 550, 590], "Device": [1, 2]}'


def note(text: bytes = TEXT, owner: bytes = OWNER + b"\0", *, align: int = 4, order: str = "<") -> bytes:
    """One note: sizes, type, owner, content; each part padded to the alignment."""
    padded = owner + bytes(-len(owner) % align)
    return struct.pack(order + "III", len(owner), len(text), 1) + padded + text + bytes(-len(text) % align)


def with_note(
    data: bytes | None = None,
    *,
    bits: int = 64,
    order: str = "<",
    align: int = 4,
    name: bytes = SECTION,
    kind: int = 7,
    offset: int | None = None,
    size: int | None = None,
    count: int = 3,
    names: int = 1,
) -> bytes:
    """An ELF file with three sections: none, the names, the note; which is the whole of it."""
    data = note(align=align, order=order) if data is None else data
    strings = b"\0.shstrtab\0" + name + b"\0"
    head, row = (64, 64) if bits == 64 else (52, 40)
    at_strings = head
    at_note = at_strings + len(strings)
    at_rows = at_note + len(data)
    rows = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (1, 3, 0, 0, at_strings, len(strings), 0, 0, 1, 0),
        (11, kind, 0, 0, at_note if offset is None else offset, len(data) if size is None else size, 0, 0, align, 0),
    ]
    layout = "IIQQQQIIQQ" if bits == 64 else "IIIIIIIIII"
    table = b"".join(struct.pack(order + layout, *item) for item in rows)
    ident = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1 if order == "<" else 2, 1]) + bytes(9)
    layout = "HHIQQQIHHHHHH" if bits == 64 else "HHIIIIIHHHHHH"
    header = struct.pack(order + layout, 3, 62, 1, 0, 0, at_rows, 0, head, 0, 0, row, count, names)
    return ident + header + strings + data + table


def found(path: Path, data: bytes) -> bytes | None:
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        return elf.note_fd(fd, SECTION, OWNER)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bits": 32},
        {"order": ">"},
        {"bits": 32, "order": ">"},
        {"align": 8},
        {"align": 1},
        {"data": note(TEXT + bytes(9))},
        {"data": note(owner=OWNER)},
        {"data": note(align=8)},
        {"data": note()[:4] + struct.pack("<I", 1 << 31) + note()[8:]},
    ],
    ids=[
        *("64", "32", "big endian", "32, big endian", "align 8", "align 1", "padded content", "owner without NUL"),
        *("section says another alignment", "content said to be longer"),
    ],
)
def test_a_note_is_read(options: dict[str, object], tmp_path: Path) -> None:
    assert found(tmp_path / "lib", with_note(**options)) == TEXT  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"name": b".note.cuda.fwd_compatibility2"},
        {"name": b".note.gnu"},
        {"kind": 1},
        {"data": note(owner=b"GNU\0")},
        {"data": note(owner=b"\0")},
        {"data": b""},
        {"data": b"\xff" * 11},
        {"data": struct.pack("<III", 0xFFFFFFFF, 0xFFFFFFFF, 1) + OWNER + b"\0\0"},
        {"offset": 1 << 40},
        {"offset": (1 << 64) - 1},
        {"size": 1 << 40},
        {"size": 20000, "data": note(b"x" * 20000)},
        {"count": 0},
        {"count": 65535, "names": 65534},
        {"count": 3, "names": 3},
        {"names": 0},
    ],
    ids=[
        *("longer name", "other section", "no note", "other owner", "no owner", "empty", "cut header"),
        *("owner beyond", "offset beyond", "offset of full size", "size beyond", "too long"),
        *("no sections", "too many sections", "names beyond", "names nowhere"),
    ],
)
def test_what_is_no_such_note_is_none(options: dict[str, object], tmp_path: Path) -> None:
    assert found(tmp_path / "lib", with_note(**options)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 60, b"#!/bin/sh\n" * 9, bytes(64)])
def test_what_is_no_elf_has_none(data: bytes, tmp_path: Path) -> None:
    assert found(tmp_path / "lib", data) is None


def test_a_pipe_has_none() -> None:
    one, other = os.pipe()
    assert elf.note_fd(one, SECTION, OWNER) is None
    os.close(one)
    os.close(other)


def test_a_note_that_the_assembler_wrote(tmp_path: Path) -> None:
    """A real shared object: the linker lays out sections and notes."""
    source = f"""
        .section {SECTION.decode()}, "", %note
        .align 4
        .long 19, 2f - 1f, 1
        .asciz "{OWNER.decode()}"
        .align 4
    1:  .ascii "{TEXT.decode().replace('"', chr(92) + '"')}"
    2:  .align 4
    """
    library = tmp_path / "libcuda.so.1"
    subprocess.run(
        ["gcc", "-shared", "-nostdlib", "-x", "assembler", "-", "-o", library], input=source, text=True, check=True
    )
    assert found(tmp_path / "copy", library.read_bytes()) == TEXT
    subprocess.run(["strip", library], check=True)
    assert found(tmp_path / "copy", library.read_bytes()) == TEXT


@settings(max_examples=300, deadline=None)
@given(
    at=st.integers(0, len(with_note()) - 1),
    patch=st.sampled_from([b"\0", b"\xff", b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f", b"\x80"]),
    cut=st.integers(0, len(with_note())),
)
def test_patched_and_cut(at: int, patch: bytes, cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Extreme numbers at any place, and a file that ends anywhere, give a bounded text or None."""
    path = tmp_path_factory.getbasetemp() / "patched"
    data = with_note()
    for text in (data[:at] + patch + data[at + len(patch) :], data[:cut]):
        read = found(path, text)
        assert read is None or len(read) <= len(data)
