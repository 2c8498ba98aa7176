"""Read, merge and write glibc's loader cache (`/etc/ld.so.cache`): bytes in, bytes out.

The image's cache is hostile data: every offset is checked, every amount bounded, and what does not add up is left out.
The file (glibc, sysdeps/generic/dl-cache.h), little endian: a header of 48 bytes, entries of 24 bytes sorted for the
loader's binary search, NUL-terminated strings, and a directory of extensions that names the `glibc-hwcaps` directories.
ldconfig before glibc 2.32 puts a table for libc5-time loaders in front of it.

Hot path: only bytes methods, no object per entry.
"""

from _struct import Struct

from gpuhook.model import value

# ABI flags of a cache entry: 3 is "ELF, libc6", the byte above it says for which machine
FLAGS = {"x86-64": 0x0303, "aarch64": 0x0A03}
FLAGS32 = {"x86-64": 0x0003, "aarch64": 0x0903}  # of the 32-bit loader beside it: i386, arm with hard floats

LIMIT_FILE = 16 << 20  # bytes of a cache
LIMIT_ENTRIES = 32768  # a desktop has 3000
LIMIT_STRINGS = 8 << 20  # all names and paths together: entries may share strings, so the file's size is no bound
LIMIT_NAME = 4096  # bytes of a name or a path

_MAGIC = b"glibc-ld.so.cache1.1"
_OLD_MAGIC = b"ld.so-1.7.0"
_EXTENSION_MAGIC = 0xEAA42174
_GENERATOR = b"gpuhook"
_TAG_GENERATOR = 0
_TAG_HWCAPS = 1
_HWCAP_EXTENSION = 1 << 62  # the low 32 bits are then an index into the hwcaps strings; bits 32 to 41 an ISA level
_LITTLE_ENDIAN = 2

_HEADER = Struct("<IIB3xI12x")  # entries, bytes of strings, byte order, file offset of the extensions
_ROW = Struct("<IIIIQ")  # flags, offset of the name, offset of the path, kernel version, hwcap
_PAIR = Struct("<II")
_SECTION = Struct("<IIII")  # tag, flags, file offset, size

_DIGITS = b"0123456789"
COLLAPSE = bytes.maketrans(_DIGITS, b"0" * 10)
_ABOVE = bytes.maketrans(_DIGITS, bytes(range(0xE0, 0xEA)))
_LENGTHS = tuple([bytes((0xF0 + length,)) for length in range(16)])

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    # flags, name, path, kernel version, hwcap
    Raw = tuple[int, bytes, bytes, int, int]
    Placed = tuple[tuple[bytes, int, int], Raw]  # a row and its place in the order: key, flags, hwcap


@value
class Entry:
    """One entry of a loader cache: the loader finds `name` at `path` (absolute, below the cache's root).

    `flags` is the ABI (`FLAGS`). `hwcap` is glibc's word for special hardware, 0 for a library for any. Bytes that are
    not UTF-8 are surrogate-escaped.
    """

    name: str
    path: str
    flags: int
    hwcap: int = 0


def parse(data: bytes) -> tuple[Entry, ...]:
    """The entries of a cache in their order; the newer format, alone or behind the old one.

    Entries that no loader could use or that would confuse one are left out: a path that is not absolute, a newline, a
    string longer than `LIMIT_NAME`, a number of more than nine digits (the loader's int overflows), a name that is not
    ASCII (its place in the order differs between machines). Raises ValueError with the reason where the structure is
    broken.
    """
    return tuple([Entry(text(name), text(path), flags, hwcap) for flags, name, path, _, hwcap in decode(data)[0]])


def merge(
    old: "bytes | None",
    ours: "tuple[tuple[str, str], ...]",
    machine: str,
    extra: "Iterable[Entry]" = (),
    ours32: "tuple[tuple[str, str], ...]" = (),
) -> bytes:
    """A cache in which the loader of `machine` finds `ours` (name, path) before anything of the same name.

    `ours32` is the same for the 32-bit loader beside it. Entries of `old` stay, but those for the same loader under one
    of our names; `extra` is added where neither has the name for that machine. Deterministic, and merging the result
    once more with the same names gives the same bytes.
    Raises ValueError where `old` is broken: whoever calls then says so and passes None.
    """
    rows, hwcaps = ([], ()) if old is None else decode(old)
    return merge_rows(rows, hwcaps, ours, machine, extra, ours32)


def merge_rows(  # noqa: PLR0917 - as `merge`, once taken apart
    rows: "list[Raw]",
    hwcaps: "tuple[bytes, ...]",
    ours: "tuple[tuple[str, str], ...]",
    machine: str,
    extra: "Iterable[Entry]",
    ours32: "tuple[tuple[str, str], ...]" = (),
) -> bytes:
    """As `merge`, of a cache that `decode` took apart."""
    keys = order_keys([row[1] for row in rows])
    order = [((key, row[0], row[4]), row) for key, row in zip(keys, rows, strict=True)]
    order = _with(order, ours, FLAGS[machine])
    if ours32:
        order = _with(order, ours32, FLAGS32[machine])
    added = [(entry.flags, raw(entry.name), raw(entry.path), 0, 0) for entry in extra if not entry.hwcap]
    if added:
        known = {item[0][:2] for item in order}
        for key, row in zip(order_keys([row[1] for row in added]), added, strict=True):
            if (key, row[0]) not in known:
                known.add((key, row[0]))
                order.append(((key, row[0], 0), row))
    order.sort(key=_place, reverse=True)  # keeps the order of equals
    return _encode([item[1] for item in order], hwcaps)


def _with(order: "list[Placed]", ours: "tuple[tuple[str, str], ...]", abi: int) -> "list[Placed]":
    """The rows without those that a loader of this ABI would take for one of `ours`, and `ours` behind them."""
    wanted: dict[bytes, bytes] = {}
    for name, path in ours:
        wanted.setdefault(raw(name), raw(path))
    # The loader takes libcuda.so.01 for libcuda.so.1, so names are compared as it compares them. An ABI of 1 (ELF for
    # any libc) matches everywhere.
    own_keys = order_keys(list(wanted))
    taken = set(own_keys)
    kept = [item for item in order if item[0][0] not in taken or (item[0][1] != abi and item[0][1] != 1)]
    kept += [((key, abi, 0), (abi, *item, 0, 0)) for key, item in zip(own_keys, wanted.items(), strict=True)]
    return kept


def _place(item: "Placed") -> "tuple[bytes, int, int]":
    return item[0]


def _is_extension(hwcap: int) -> bool:
    return hwcap >> 42 == _HWCAP_EXTENSION >> 42


def text(data: bytes) -> str:
    """A name or path as text; what is not UTF-8 is surrogate-escaped."""
    return data.decode("utf-8", "surrogateescape")


def raw(text: str) -> bytes:
    """The bytes that `text` was made of."""
    return text.encode("utf-8", "surrogateescape")


def decode(data: bytes) -> "tuple[list[Raw], tuple[bytes, ...]]":
    """The usable entries and the names of the hwcaps directories that they refer to."""
    base = _start(data)
    count, length, order, extension = _HEADER.unpack_from(data, base + len(_MAGIC))
    table = base + 48 + count * _ROW.size
    end = table + length
    if order & 3 not in (0, _LITTLE_ENDIAN):
        raise ValueError("it is not little endian")
    if count > LIMIT_ENTRIES:
        raise ValueError(f"{count} entries, at most {LIMIT_ENTRIES} are accepted")
    if end > len(data):
        raise ValueError(f"truncated: {count} entries and their strings end at {end}, the file at {len(data)}")
    if count and (length == 0 or data[end - 1]):
        raise ValueError("the strings do not end")
    hwcaps = _hwcaps(data, base, extension)
    body = data[base:] if base else data
    start, end = table - base, end - base
    find = body.find
    total = 0
    rows: list[Raw] = []
    for flags, key, at, kernel, hwcap in _ROW.iter_unpack(memoryview(body)[48:start]):
        if not (start <= at < end and start <= key < end and body[at] == 0x2F):
            continue
        if hwcap >= _HWCAP_EXTENSION and not _is_known(hwcap, hwcaps):
            continue
        stop = find(0, at, at + LIMIT_NAME + 1)
        if stop < 0:
            continue
        path = body[at:stop]
        if at < key < stop:  # ldconfig has a name share the end of its path
            name = path[key - at :]
        else:
            name_stop = find(0, key, key + LIMIT_NAME + 1)
            name = body[key:name_stop] if name_stop > 0 else b""
        total += len(path) + len(name)
        if total > LIMIT_STRINGS:
            raise ValueError(f"names and paths of more than {LIMIT_STRINGS} bytes")
        if name:
            rows.append((flags, name, path, kernel, hwcap))
    # one look at all strings tells whether a look at each is needed
    strings = body[start:end]
    if b"\n" in strings or not strings.isascii() or b"0" * 10 in strings.translate(COLLAPSE):
        rows = [row for row in rows if _is_usable(row[1], row[2])]
    return rows, hwcaps


def _is_usable(name: bytes, path: bytes) -> bool:
    return b"\n" not in name and b"\n" not in path and name.isascii() and b"0" * 10 not in name.translate(COLLAPSE)


def _is_known(hwcap: int, hwcaps: "tuple[bytes, ...]") -> bool:
    """Whether an entry's hwcap word names a directory that the cache lists, or is one of the older kind."""
    return not _is_extension(hwcap) or hwcap & 0xFFFFFFFF < len(hwcaps)


def _start(data: bytes) -> int:
    """Where the newer format's header begins."""
    if len(data) > LIMIT_FILE:
        raise ValueError(f"{len(data)} bytes, at most {LIMIT_FILE} are accepted")
    base = 0
    if data.startswith(_OLD_MAGIC):
        if len(data) < 16:
            raise ValueError("truncated in the header")
        base = (16 + 12 * int.from_bytes(data[12:16], "little") + 7) & ~7
    if not data.startswith(_MAGIC, base):
        raise ValueError("it does not begin as a loader cache does")
    if len(data) < base + 48:
        raise ValueError("truncated in the header")
    return base


def _hwcaps(data: bytes, base: int, offset: int) -> "tuple[bytes, ...]":
    """The names of the `glibc-hwcaps` directories from the extensions; none where the extensions are broken.

    glibc before 2.33 has nothing there and may leave anything in the field. The offset of the directory counts from the
    start of the file, those of the strings from the newer header: so ldconfig 2.36 writes a combined file. (Its own
    reader counts both from the file and then takes the names from the wrong place; gpuhook's output is never combined.)
    """
    size = len(data)
    if not offset or offset & 3 or offset + 8 > size:
        return ()
    magic, sections = _PAIR.unpack_from(data, offset)
    if magic != _EXTENSION_MAGIC or sections > 64 or offset + 8 + sections * _SECTION.size > size:
        return ()
    for place in range(offset + 8, offset + 8 + sections * _SECTION.size, _SECTION.size):
        tag, _, at, length = _SECTION.unpack_from(data, place)
        if tag == _TAG_HWCAPS:
            if length > 4 * 256 or length & 3 or at + length > size:
                return ()
            words = [int.from_bytes(data[i : i + 4], "little") + base for i in range(at, at + length, 4)]
            names = [data[word : word + 256].partition(b"\0")[0] for word in words]
            return tuple(names) if all(0 < len(name) < 256 for name in names) else ()
    return ()


def order_keys(names: "list[bytes]") -> "list[bytes]":
    """For each name, bytes that compare as the loader compares names (`_dl_cache_libcmp`).

    Runs of digits count as numbers, and a digit is above all else. A one-digit number is one byte from 0xe0; a longer
    one has its length in a byte from 0xf0 before its digits. Names are ASCII without NUL.
    """
    if not names:
        return []
    joined = b"\0".join(names)
    shape = joined.translate(COLLAPSE)
    above = joined.translate(_ABOVE)
    parts = []
    done = 0
    at = shape.find(b"00")
    while at >= 0:
        stop = at + 2
        while shape[stop : stop + 1] == b"0":
            stop += 1
        number = above[at:stop].lstrip(b"\xe0") or b"\xe0"
        parts.append(above[done:at])
        if len(number) > 1:
            parts.append(_LENGTHS[min(len(number), 15)])
        parts.append(number)
        done = stop
        at = shape.find(b"00", stop)
    parts.append(above[done:])
    return b"".join(parts).split(b"\0")


def _encode(rows: "list[Raw]", hwcaps: "tuple[bytes, ...]") -> bytes:
    start = 48 + len(rows) * _ROW.size
    at = start
    strings: list[bytes] = []
    packed: list[bytes] = []
    pack = _ROW.pack
    for flags, name, path, kernel, hwcap in rows:
        where = at
        strings.append(path)
        at += len(path) + 1
        if path.endswith(name):
            key = at - 1 - len(name)
        else:
            key = at
            strings.append(name)
            at += len(name) + 1
        packed.append(pack(flags, key, where, kernel, hwcap))
    words = bytearray()
    for name in hwcaps:
        words += at.to_bytes(4, "little")
        strings.append(name)
        at += len(name) + 1
    strings.append(b"")
    table = b"\0".join(strings)
    extension = (at + 3) & ~3
    sections = 2 if hwcaps else 1
    content = extension + 8 + sections * _SECTION.size
    directory = _PAIR.pack(_EXTENSION_MAGIC, sections)
    if hwcaps:  # first, as the array must lie at a multiple of 4
        directory += _SECTION.pack(_TAG_HWCAPS, 0, content, len(words))
    directory += _SECTION.pack(_TAG_GENERATOR, 0, content + len(words), len(_GENERATOR))
    header = _MAGIC + _HEADER.pack(len(rows), len(table), _LITTLE_ENDIAN, extension)
    return b"".join((header, *packed, table, bytes(extension - at), directory, words, _GENERATOR))
