"""Read of an ELF shared object what a loader would: machine and soname, by program headers; and one note of CUDA's.

The file may be an image's, so it is hostile: every offset and count is checked against the file and bounded, and what
does not add up is no ELF shared object (`None`), never an exception. Sections are not looked at, but for that note: a
loader does not look at them either, and a stripped library need not have any. Layout: System V ABI, chapters 4 and 5
(elf.h).

Hot path.
"""

import posix
from _struct import Struct

from gpuhook.model import value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    Reader = Callable[[int, int], bytes | None]

MACHINES = {3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86-64", 183: "aarch64"}
MACHINES[243] = "riscv"
MACHINES[258] = "loongarch"

_SHARED = 3  # e_type ET_DYN
_LOAD, _DYNAMIC = 1, 2  # p_type
_END, _STRTAB, _STRSZ, _SONAME = 0, 5, 10, 14  # d_tag
_MAX_HEADERS = 256  # a library has about ten program headers
_MAX_DYNAMIC = 64 * 1024  # and about forty dynamic entries of 16 bytes
_MAX_NAME = 255  # NAME_MAX of Linux file systems
_MAX_SECTIONS = 512  # libcuda has about thirty, with names of some hundred bytes
_MAX_SECTION_NAMES = 64 * 1024
_MAX_NOTE = 16 * 1024  # the one looked for has some hundred bytes
_SECTION_NOTE = 7  # sh_type SHT_NOTE

# by class and byte order: header after e_ident, program header, dynamic entry
_LAYOUTS = {
    (cls, order): (Struct(sign + head), Struct(sign + program), Struct(sign + entry))
    for cls, head, program, entry in ((1, "HHIIIIIHHH", "IIIIIIII", "iI"), (2, "HHIQQQIHHH", "IIQQQQQQ", "qQ"))
    for order, sign in ((1, "<"), (2, ">"))
}
# by class and byte order: what is behind e_phoff in the header up to its end, and a section header
_SECTION_LAYOUTS = {
    (cls, order): (Struct(sign + head), at, Struct(sign + section))
    for cls, head, at, section in ((1, "IIHHHHHH", 32, "IIIIIIIIII"), (2, "QIHHHHHH", 40, "IIQQQQIIQQ"))
    for order, sign in ((1, "<"), (2, ">"))
}


@value
class Elf:
    """What a loader needs to know of a shared object.

    `machine` is a name of MACHINES, or `unknown-N` for number N; `bits` is 32 or 64. `soname` is a plain file name, or
    empty where the object states none or one that is no file name.
    """

    machine: str
    bits: int
    soname: str


def read(data: bytes) -> Elf | None:
    """What `data`, a whole file, is as an ELF shared object; None where it is none."""
    size = len(data)

    def part(offset: int, length: int) -> bytes | None:
        return data[offset : offset + length] if offset + length <= size else None

    return _read(part, size)


def read_fd(descriptor: int) -> Elf | None:
    """As `read`, of an open file: a handful of short reads, whatever its size. The file position stays."""
    try:
        size = posix.fstat(descriptor).st_size

        def part(offset: int, length: int) -> bytes | None:
            if offset + length > size:
                return None
            data = posix.pread(descriptor, length, offset)
            return data if len(data) == length else None

        return _read(part, size)
    except OSError:
        return None


def note_fd(descriptor: int, section: bytes, owner: bytes) -> bytes | None:
    """The content of the first note in the section of this name, where `owner` wrote it; None where there is none.

    NUL bytes before and after it are left out: whatever the note's parts are aligned to, and linkers differ there.
    """

    def part(offset: int, length: int) -> bytes | None:
        data = posix.pread(descriptor, length, offset) if 0 <= offset < 1 << 62 else b""
        return data if len(data) == length else None

    try:
        return _note(part, section, owner)
    except OSError:
        return None


def _note(part: "Reader", section: bytes, owner: bytes) -> bytes | None:
    head = part(0, 64) or part(0, 52)
    layout = _SECTION_LAYOUTS.get((head[4], head[5])) if head and head[:4] == b"\x7fELF" else None
    if head is None or layout is None:
        return None
    header, at, row = layout
    if len(head) < at + header.size:
        return None
    start, _, _, _, _, each, count, names = header.unpack_from(head, at)
    if each != row.size or not names < count <= _MAX_SECTIONS:
        return None
    table = part(start, each * count)
    if table is None:
        return None
    rows = list(row.iter_unpack(table))
    where, length = rows[names][4], rows[names][5]
    strings = part(where, length) if 0 < length <= _MAX_SECTION_NAMES else None
    if strings is None:
        return None
    for name, kind, _, _, where, length, _, _, _, _ in rows:
        if kind == _SECTION_NOTE and strings[name : name + len(section) + 1] == section + b"\0":
            data = part(where, length) if length <= _MAX_NOTE else None
            return None if data is None else _content(data, owner, "big" if head[5] == 2 else "little")
    return None


def _content(data: bytes, owner: bytes, order: "Literal['big', 'little']") -> bytes | None:
    """The content of the note that `data` begins with."""
    length, size = int.from_bytes(data[:4], order), int.from_bytes(data[4:8], order)
    if 12 + length > len(data) or data[12 : 12 + length].rstrip(b"\0") != owner:
        return None
    return data[12 + length :].lstrip(b"\0")[:size].rstrip(b"\0")


def _read(part: "Reader", size: int) -> Elf | None:
    head = part(0, 64) or part(0, 52)
    if head is None or head[:4] != b"\x7fELF":
        return None
    layout = _LAYOUTS.get((head[4], head[5]))
    if layout is None or len(head) < 16 + layout[0].size:
        return None
    header, program, entry = layout
    kind, machine, _, _, start, _, _, _, each, count = header.unpack_from(head, 16)
    if kind != _SHARED or each != program.size or not 0 < count <= _MAX_HEADERS:
        return None
    table = part(start, each * count)
    if table is None:
        return None
    loads, dynamic = _segments(program, table)
    if dynamic is None:
        return None
    found = _dynamic(part, entry, dynamic)
    if found is None:
        return None
    strings, length, soname = found
    offset = _file_offset(loads, strings)
    if offset is None or offset + length > size:
        return None
    name = "" if soname is None else _name(part, offset, length, soname)
    if name is None:
        return None
    return Elf(MACHINES.get(machine, f"unknown-{machine}"), 32 * head[4], name if _is_plain(name) else "")


def _segments(program: Struct, table: bytes) -> tuple[list[tuple[int, int, int]], tuple[int, int] | None]:
    """The loaded segments as (address, size in the file, offset), and where the dynamic section is in the file."""
    loads = []
    dynamic = None
    for row in program.iter_unpack(table):
        if program.size == 32:
            kind, offset, address, _, filled, _, _, _ = row
        else:
            kind, _, offset, address, _, filled, _, _ = row
        if kind == _LOAD:
            loads.append((address, filled, offset))
        elif kind == _DYNAMIC and dynamic is None:
            dynamic = (offset, filled)
    return loads, dynamic


def _dynamic(part: "Reader", entry: Struct, where: tuple[int, int]) -> tuple[int, int, int | None] | None:
    """Address and size of the string table, and the offset in it of the soname."""
    offset, filled = where
    data = part(offset, min(filled, _MAX_DYNAMIC) // entry.size * entry.size)
    if data is None:
        return None
    strings = length = soname = None
    for tag, item in entry.iter_unpack(data):
        if tag == _END:
            break
        if tag == _SONAME:
            soname = item
        elif tag == _STRTAB:
            strings = item
        elif tag == _STRSZ:
            length = item
    return None if strings is None or length is None else (strings, length, soname)


def _file_offset(loads: list[tuple[int, int, int]], address: int) -> int | None:
    for start, filled, offset in loads:
        if start <= address < start + filled:
            return offset + address - start
    return None


def _name(part: "Reader", table: int, length: int, at: int) -> str | None:
    """One string of the string table; None where it does not end inside the table or is longer than a file name."""
    if at >= length:
        return None
    data = part(table + at, min(length - at, _MAX_NAME + 1))
    end = -1 if data is None else data.find(b"\0")
    return None if data is None or end < 0 else data[:end].decode("utf-8", "surrogateescape")


def _is_plain(name: str) -> bool:
    return name not in (".", "..") and "/" not in name and name.isprintable()
