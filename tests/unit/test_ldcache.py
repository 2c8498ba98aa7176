"""The loader cache's bytes: what is read, what is refused, and the order that the loader searches by."""

import itertools
import random
import shutil
import subprocess
import time
from pathlib import Path
from struct import pack, pack_into

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhook import ldcache
from gpuhook.ldcache import Entry

CORPUS = Path(__file__).parent.parent / "corpus" / "ldcache"
X86, I386, ARM = 0x0303, 0x0003, 0x0A03
HWCAP = 1 << 62

V2 = "/opt/lib/glibc-hwcaps/x86-64-v2/libf.so.1.2"
V3 = "/opt/lib/glibc-hwcaps/x86-64-v3/libf.so.1.2"
BOTH = (
    Entry("libf.so.1", V2, X86, HWCAP),
    Entry("libf.so.1", V3, X86, HWCAP + 1),
    Entry("libf.so.1", "/opt/lib/libf.so.1", X86),
)


def made(*entries: tuple[int, bytes, bytes], hwcap: int = 0, count: int | None = None) -> bytes:
    """A cache of (flags, name, path), written without the code under test."""
    start = 48 + 24 * len(entries)
    strings = b""
    rows = b""
    for flags, name, path in entries:
        rows += pack("<IIIIQ", flags, start + len(strings), start + len(strings) + len(name) + 1, 0, hwcap)
        strings += name + b"\0" + path + b"\0"
    head = b"glibc-ld.so.cache1.1" + pack("<IIB3xI12x", len(entries) if count is None else count, len(strings), 2, 0)
    return head + rows + strings


GOOD = (X86, b"liba.so.1", b"/usr/lib/liba.so.1")
HEAD = b"glibc-ld.so.cache1.1"
FOREIGN = tuple((flags, b"liba.so.1", b"/lib/liba.so.1") for flags in (ARM, I386))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param((CORPUS / "new-hwcaps.cache").read_bytes(), BOTH, id="new format with hwcaps"),
        pytest.param((CORPUS / "combined-hwcaps.cache").read_bytes(), BOTH, id="behind the old format"),
        pytest.param(made(), (), id="no entries"),
        pytest.param(made(*FOREIGN), tuple(Entry("liba.so.1", "/lib/liba.so.1", f) for f in (ARM, I386)), id="foreign"),
        pytest.param(made(GOOD, (X86, b"libb.so", b"usr/libb.so")), 1, id="relative path"),
        pytest.param(made(GOOD, (X86, b"libb.so\nlibc.so", b"/libb.so")), 1, id="newline in a name"),
        pytest.param(made(GOOD, (X86, b"libb.so", b"/lib\n/libb.so")), 1, id="newline in a path"),
        pytest.param(made(GOOD, (X86, b"", b"/libb.so")), 1, id="no name"),
        pytest.param(made(GOOD, (X86, b"libb.so", b"")), 1, id="no path"),
        pytest.param(made(GOOD, (X86, b"libb.so.1234567890", b"/b")), 1, id="ten digits"),
        pytest.param(made(GOOD, (X86, b"libb.so.123456789", b"/b")), 2, id="nine digits"),
        pytest.param(made(GOOD, (X86, b"libb.so", b"/20250101123456/b")), 2, id="many digits in a path"),
        pytest.param(made(GOOD, (X86, "libé.so".encode(), b"/b")), 1, id="name not ASCII"),
        pytest.param(made(GOOD, (X86, b"libb.so", "/é/b".encode())), 2, id="path not ASCII"),
        pytest.param(made(GOOD, (X86, b"l" * 4096, b"/b")), 2, id="longest name"),
        pytest.param(made(GOOD, (X86, b"l" * 4097, b"/b")), 1, id="name too long"),
        pytest.param(made(GOOD, (X86, b"libb.so", b"/" + b"b" * 4096)), 1, id="path too long"),
        pytest.param(made(GOOD, hwcap=HWCAP), (), id="hwcaps directory that is not listed"),
        pytest.param(made(GOOD, hwcap=1 << 52), 1, id="hwcap word of the older kind"),
        pytest.param(made(GOOD)[:32] + b"\x30\0\0\0" + made(GOOD)[36:], 1, id="extensions that are none"),
        pytest.param(made(GOOD)[:32] + b"\xfc\xff\xff\xff" + made(GOOD)[36:], 1, id="extensions beyond the end"),
    ],
)
def test_reads(data: bytes, expected: tuple[Entry, ...] | int) -> None:
    """R89: what of a cache is taken; a number says how many entries, where all that matters is which are left out."""
    found = ldcache.parse(data)
    if isinstance(expected, int):
        assert len(found) == expected
        assert found[0] == Entry("liba.so.1", "/usr/lib/liba.so.1", X86, found[0].hwcap)
    else:
        assert found == expected


@pytest.mark.parametrize("offset", [0, 47, 48, 71, 0x7FFFFFFF, 0xFFFFFFFF], ids=hex)
@pytest.mark.parametrize("field", [52, 56], ids=["name", "path"])
def test_offset_out_of_range(field: int, offset: int) -> None:
    """An entry whose strings lie outside of the strings is left out."""
    data = bytearray(made(GOOD, GOOD))
    pack_into("<I", data, field, offset)
    assert len(ldcache.parse(bytes(data))) == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "does not begin", id="empty"),
        pytest.param(b"\x7fELF" * 100, "does not begin", id="garbage"),
        pytest.param(HEAD[:10], "does not begin", id="ten bytes"),
        pytest.param(HEAD + bytes(20), "truncated", id="half a header"),
        pytest.param(made(GOOD)[:-1], "truncated", id="one byte short"),
        pytest.param(made(GOOD, count=0xFFFFFFFF), "4294967295 entries", id="four billion entries"),
        pytest.param(made(GOOD, count=2), "truncated", id="one entry too many"),
        pytest.param(made(GOOD)[:-1] + b"x", "do not end", id="no NUL at the end"),
        pytest.param(made(GOOD)[:28] + b"\3" + made(GOOD)[29:], "little endian", id="big endian"),
        pytest.param(b"ld.so-1.7.0\0\xff\xff\xff\xff" + made(GOOD), "does not begin", id="old table beyond the end"),
        pytest.param(b"ld.so-1.7.0\0", "truncated", id="old header only"),
        pytest.param((CORPUS / "old-only.cache").read_bytes(), "does not begin", id="old format alone"),
        pytest.param(made(GOOD) + bytes(16 << 20), "accepted", id="too long"),
    ],
)
def test_refuses(data: bytes, reason: str) -> None:
    """R89: a broken structure is a ValueError that says what is broken."""
    with pytest.raises(ValueError, match=reason):
        ldcache.parse(data)


def test_shared_strings_are_bounded() -> None:
    """32 000 entries that share one long string would be 130 MB of text from a 1 MB file."""
    name = b"l" * 4000
    start = 48 + 24 * 32000
    rows = pack("<IIIIQ", X86, start, start + len(name) + 1, 0, 0) * 32000
    data = HEAD + pack("<IIB3xI12x", 32000, 4003 + len(name), 2, 0) + rows + name + b"\0/" + b"p" * 4000 + b"\0"
    with pytest.raises(ValueError, match="8388608"):
        ldcache.parse(data)


def loader_compare(one: bytes, two: bytes) -> int:
    """glibc's `_dl_cache_libcmp`, letter by letter (elf/dl-cache.c), as the oracle for the order."""
    a, b = one + b"\0", two + b"\0"
    i = j = 0
    digits = b"0123456789"
    while a[i]:
        if a[i] in digits:
            if b[j] not in digits:
                return 1
            x = y = 0
            while a[i] in digits:
                x, i = x * 10 + a[i] - 48, i + 1
            while b[j] in digits:
                y, j = y * 10 + b[j] - 48, j + 1
            if x != y:
                return x - y
        elif b[j] in digits:
            return -1
        elif a[i] != b[j]:
            return a[i] - b[j]
        else:
            i, j = i + 1, j + 1
    return a[i] - b[j]


NAMES = st.lists(
    st.from_regex(rb"\A(lib)?[a-c.+~-]{0,3}[0-9]{0,9}([a.][0-9]{1,9})?[.z]?\Z").filter(len), min_size=1, max_size=12
)


@given(NAMES)
@settings(max_examples=150, deadline=None)
def test_keys_order_as_the_loader_does(names: list[bytes]) -> None:
    """For every pair of names the keys compare as the loader's own comparison does."""
    keys = ldcache.order_keys(names)
    for one, key in zip(names, keys, strict=True):
        for two, other in zip(names, keys, strict=True):
            sign = loader_compare(one, two)
            assert (key > other) - (key < other) == (sign > 0) - (sign < 0), (one, two)


OLD = (
    (X86, b"libnvidia-ml.so.1", b"/opt/old/libnvidia-ml.so.1"),
    (I386, b"libcuda.so.1", b"/usr/lib32/libcuda.so.1"),
    (X86, b"libcuda.so.1", b"/opt/old/libcuda.so.1"),
    (X86, b"libc.so.6", b"/lib/libc.so.6"),
)
OURS = (("libcuda.so.1", "/usr/lib/libcuda.so.1"), ("libnvidia-ml.so.1", "/usr/lib/libnvidia-ml.so.1"))


def pairs(data: bytes) -> list[tuple[str, str]]:
    return [(entry.name, entry.path) for entry in ldcache.parse(data)]


def test_ours_replace_the_image_s() -> None:
    """Same name and machine: ours. Same name of another machine and all other names: the image's, in loader order."""
    assert pairs(ldcache.merge(made(*OLD), OURS, "x86-64")) == [
        ("libnvidia-ml.so.1", "/usr/lib/libnvidia-ml.so.1"),
        ("libcuda.so.1", "/usr/lib/libcuda.so.1"),
        ("libcuda.so.1", "/usr/lib32/libcuda.so.1"),
        ("libc.so.6", "/lib/libc.so.6"),
    ]


@pytest.mark.parametrize(
    ("name", "flags", "kept"),
    [
        pytest.param(b"libcuda.so.1", X86, False, id="same"),
        pytest.param(b"libcuda.so.01", X86, False, id="a leading zero is the same to the loader"),
        pytest.param(b"libcuda.so.1", 1, False, id="ELF of any libc"),
        pytest.param(b"libcuda.so.1", ARM, True, id="another machine"),
        pytest.param(b"libcuda.so.10", X86, True, id="another number"),
        pytest.param(b"libcuda.so", X86, True, id="a name that is not ours"),
    ],
)
def test_what_is_replaced(name: bytes, flags: int, kept: bool) -> None:
    """Which entries of the image go: those that the loader could take for one of ours."""
    found = pairs(ldcache.merge(made((flags, name, b"/opt/evil")), OURS, "x86-64"))
    assert ("/opt/evil" in [path for _, path in found]) is kept
    assert ("libcuda.so.1", "/usr/lib/libcuda.so.1") in found


@pytest.mark.parametrize(("machine", "narrow"), [("x86-64", I386), ("aarch64", 0x0903)])
def test_32_bit_names_beside_the_others(machine: str, narrow: int) -> None:
    """Each loader's own entry is replaced by ours for that loader; what ours do not name stays."""
    wide = ldcache.FLAGS[machine]
    old = [(flags, b"libcuda.so.1", b"/opt/evil") for flags in (wide, narrow, 1)]
    old += [(flags, b"libc.so.6", b"/lib/libc.so.6") for flags in (wide, narrow)]
    ours32 = (("libcuda.so.1", "/usr/lib32/libcuda.so.1"),)
    merged = ldcache.merge(made(*old), OURS[:1], machine, (), ours32)
    found = {(entry.name, entry.flags): entry.path for entry in ldcache.parse(merged)}
    assert found == {
        ("libcuda.so.1", wide): "/usr/lib/libcuda.so.1",
        ("libcuda.so.1", narrow): "/usr/lib32/libcuda.so.1",
        ("libc.so.6", wide): "/lib/libc.so.6",
        ("libc.so.6", narrow): "/lib/libc.so.6",
    }
    assert ldcache.merge(merged, OURS[:1], machine, (), ours32) == merged


def test_hwcaps_variants_go_and_others_stay() -> None:
    """The loader prefers a glibc-hwcaps variant, so ours would lose to it; those of other names stay."""
    old = (CORPUS / "combined-hwcaps.cache").read_bytes()
    assert pairs(ldcache.merge(old, (("libf.so.1", "/usr/lib/libf.so.1"),), "x86-64")) == [
        ("libf.so.1", "/usr/lib/libf.so.1")
    ]
    assert set(ldcache.parse(ldcache.merge(old, OURS, "x86-64"))) >= set(BOTH)


def test_first_of_equal_names_wins() -> None:
    """The order of `ours` is the caller's say: a forward-compatibility directory first."""
    ours = (("libcuda.so.1", "/compat/libcuda.so.1"), ("libcuda.so.1", "/usr/lib/libcuda.so.1"))
    assert pairs(ldcache.merge(None, ours, "aarch64")) == [("libcuda.so.1", "/compat/libcuda.so.1")]
    assert ldcache.parse(ldcache.merge(None, ours, "aarch64"))[0].flags == ARM


def test_extra_fills_gaps_only() -> None:
    """Libraries of further directories never displace a cached one or ours; the first of equal ones counts."""
    extra = tuple(
        Entry(name, f"/{where}/{name}", X86)
        for name, where in (("libc.so.6", "x"), ("libcuda.so.1", "x"), ("libq.so.2", "x"), ("libq.so.2", "y"))
    )
    found = dict(pairs(ldcache.merge(made(*OLD), OURS, "x86-64", extra)))
    assert found["libc.so.6"] == "/lib/libc.so.6"
    assert found["libcuda.so.1"] == "/usr/lib32/libcuda.so.1"  # the last of the two, of another machine
    assert found["libq.so.2"] == "/x/libq.so.2"


def test_broken_is_the_caller_s_to_hear_of() -> None:
    """A broken cache is not silently taken for an empty one."""
    with pytest.raises(ValueError, match="does not begin"):
        ldcache.merge(b"junk", OURS, "x86-64")


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from([X86, I386, ARM, 1]),
        st.sampled_from(
            [b"libcuda.so.1", b"libcuda.so", b"libz.so.10", b"libz.so.9", b"liba9z.so", b"libc.so.6", b"l-1"]
        ),
        st.sampled_from([b"/a/x", b"/b/libz.so.9", b"/c/libcuda.so.1"]),
    ),
    max_size=20,
)


@given(ENTRIES, st.sampled_from(["x86-64", "aarch64"]))
@settings(max_examples=200, deadline=None)
def test_merge_is_stable(entries: list[tuple[int, bytes, bytes]], machine: str) -> None:
    """A second merge changes nothing, and the result is in descending order for the loader's search."""
    once = ldcache.merge(made(*entries), OURS, machine)
    assert ldcache.merge(once, OURS, machine) == once
    names = [entry.name.encode() for entry in ldcache.parse(once)]
    assert all(loader_compare(one, two) >= 0 for one, two in itertools.pairwise(names))


def real_cache() -> bytes:
    path = Path("/etc/ld.so.cache")
    if not path.exists():
        pytest.skip("this host has no /etc/ld.so.cache")
    return path.read_bytes()


def test_real_cache_round_trip(tmp_path: Path) -> None:
    """`ldconfig -p` reads the same from the host's own cache and from what gpuhook makes of it, in the same order."""
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin")
    if ldconfig is None:
        pytest.skip("ldconfig is not installed")
    copy = tmp_path / "copy"
    copy.write_bytes(ldcache.merge(real_cache(), (), "x86-64"))

    def listed(path: str) -> list[str]:
        output = subprocess.run([ldconfig, "-p", "-C", path], capture_output=True, text=True, check=True).stdout
        return [line for line in output.splitlines() if "=>" in line]

    assert listed(str(copy)) == listed("/etc/ld.so.cache")
    assert len(listed(str(copy))) == len(ldcache.parse(real_cache()))


def parse_time(data: bytes) -> float:
    """Processor time that it takes to parse a cache or to refuse it."""
    begin = time.process_time()
    try:
        ldcache.parse(data)
    except ValueError:
        pass
    return time.process_time() - begin


def test_real_cache_mutated() -> None:
    """1000 damaged copies of the host's cache: nothing but ValueError, and none is slow."""
    source = real_cache()
    chance = random.Random(20)
    slowest = 0.0
    for _ in range(1000):
        data = bytearray(source)
        for _ in range(chance.choice((1, 1, 2, 8, 64))):
            limit = chance.choice((48, 48 + 24 * 20, len(data)))
            at = chance.randrange(limit)
            data[at : at + chance.choice((1, 1, 4))] = chance.choice(
                (b"\xff", b"\0", b"\xff\xff\xff\x7f", chance.randbytes(1), chance.randbytes(4), b"")
            )
        if chance.random() < 0.1:
            del data[chance.randrange(len(data)) :]
        took = parse_time(bytes(data))
        for _ in range(5):  # a busy machine's caches are no property of the parser
            took = took if took < 0.05 else min(took, parse_time(bytes(data)))
        slowest = max(slowest, took)
    assert slowest < 0.05


@given(st.binary(max_size=400), st.sampled_from([b"", HEAD, b"ld.so-1.7.0\0\1\0\0\0" + bytes(16) + HEAD]))
@settings(max_examples=300, deadline=None)
def test_noise(noise: bytes, head: bytes) -> None:
    """Arbitrary bytes behind a valid beginning: a value or a ValueError."""
    try:
        entries = ldcache.parse(head + noise)
    except ValueError:
        return
    ldcache.merge(head + noise, OURS, "x86-64")
    assert all(entry.path.startswith("/") for entry in entries)
