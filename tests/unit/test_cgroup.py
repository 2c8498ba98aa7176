"""Device rules without the shim: programs built, judged and told apart; a container's groups found by path.

What the kernel makes of them: tests/runc/test_hook_only.py.
"""

import os
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhook import cgroup, devicefilter, oci
from gpuhook.devicefilter import BLOCK, CHAR, MKNOD, READ, WRITE, Rule, allows, extended, is_plain, of_rules, permits
from gpuhook.errors import GpuhookError
from tests import bundles

ALL = MKNOD | READ | WRITE

# What runc 1.1.5 attaches for a container with no rule of its own but "deny all", as the kernel gives it out.
RUNC = bytes.fromhex(
    "611200000000000054020000ffff00006113000000000000740300001000000061140400000000006115080000000000"
    "5502050001000000bc3100000000000054010000010000005d31020000000000b4000000010000009500000000000000"
    "5502050002000000bc3100000000000054010000010000005d31020000000000b4000000010000009500000000000000"
    "550204000200000055040300010000005505020003000000b40000000100000095000000000000005502040002000000"
    "55040300010000005505020005000000b400000001000000950000000000000055020400020000005504030001000000"
    "5505020007000000b4000000010000009500000000000000550204000200000055040300010000005505020008000000"
    "b4000000010000009500000000000000550204000200000055040300010000005505020009000000b400000001000000"
    "9500000000000000550204000200000055040300050000005505020000000000b4000000010000009500000000000000"
    "550204000200000055040300050000005505020002000000b40000000100000095000000000000005502040002000000"
    "550403000a00000055050200c8000000b400000001000000950000000000000055020300020000005504020088000000"
    "b4000000010000009500000000000000b4000000000000009500000000000000"
)


def insn(code: int, target: int = 0, source: int = 0, offset: int = 0, number: int = 0) -> bytes:
    """One instruction on a little-endian machine, as all are that gpuhook is made for."""
    return struct.pack("<BBhi", code, target | source << 4, offset, number)


EXIT = insn(0x95)
YES, NO = insn(0xB7, number=1) + EXIT, insn(0xB7) + EXIT


# --- judging ----------------------------------------------------------------------------------------------------

# kind, access, major, minor, what runc's program says
VERDICTS = {
    "null": (CHAR, READ | WRITE, 1, 3, True),
    "null, all three": (CHAR, ALL, 1, 3, True),
    "a terminal": (CHAR, READ, 136, 77, True),
    "mknod of anything": (CHAR, MKNOD, 195, 0, True),
    "mknod of any block device": (BLOCK, MKNOD, 8, 0, True),
    "a GPU": (CHAR, READ, 195, 0, False),
    "a disk": (BLOCK, READ, 8, 0, False),
    "a block device with null's number": (BLOCK, READ, 1, 3, False),
    "mem": (CHAR, READ, 1, 1, False),
}


@pytest.mark.parametrize(("kind", "access", "major", "minor", "verdict"), VERDICTS.values(), ids=VERDICTS)
def test_a_real_program_is_understood(kind: int, access: int, major: int, minor: int, verdict: bool) -> None:
    assert allows(RUNC, kind, access, major, minor) is verdict


# (operation, 64 bits): left, right, result; kernel: instruction-set.rst, "Arithmetic instructions"
ARITHMETIC = {
    "add": (0x07, 5, 7, 12),
    "add, 32 bits": (0x04, -1, 1, 0),
    "sub": (0x17, 5, 7, -2),
    "mul": (0x27, 5, -7, -35),
    "div": (0x37, 9, 4, 2),
    "div by zero": (0x37, 9, 0, 0),
    "or": (0x47, 12, 3, 15),
    "and": (0x57, 12, 6, 4),
    "shift left": (0x67, 3, 4, 48),
    "shift left, 32 bits": (0x64, -1, 31, -(1 << 31)),
    "shift right": (0x77, 48, 4, 3),
    "shift right of a negative, 32 bits": (0x74, -16, 28, 15),
    "negative": (0x87, 5, 0, -5),
    "mod": (0x97, 9, 4, 1),
    "mod by zero": (0x97, 9, 0, 9),
    "xor": (0xA7, 12, 6, 10),
    "shift right with sign": (0xC7, -16, 2, -4),
    "shift right with sign, 32 bits": (0xC4, -16, 2, -4),
}


@pytest.mark.parametrize(("code", "left", "right", "result"), ARITHMETIC.values(), ids=ARITHMETIC)
@pytest.mark.parametrize("by_register", [False, True], ids=["number", "register"])
def test_arithmetic(code: int, left: int, right: int, result: int, by_register: bool) -> None:
    """Each operation gives what the kernel's documents say; the comparison is one of the low 32 bits for 32."""
    load = insn(0xB7, 2, number=left) + insn(0xB7, 3, number=right)
    work = insn(code | 8, 2, 3) if by_register else insn(code, 2, number=right)
    jump = 0x15 if code & 7 == 7 else 0x16
    for number, verdict in ((result, True), (result ^ 1, False)):
        program = load + work + insn(jump, 2, offset=2, number=number) + NO + YES
        assert allows(program, CHAR, READ, 0, 0) is verdict


# code of the jump, left, right, is it taken
JUMPS = {
    "equal": (0x15, 5, 5, True),
    "not equal": (0x55, 5, 5, False),
    "above, unsigned": (0x25, -1, 1, True),
    "above, signed": (0x65, -1, 1, False),
    "at least": (0x35, 5, 5, True),
    "at least, signed": (0x75, -5, -4, False),
    "below": (0xA5, 5, 5, False),
    "below, signed": (0xC5, -5, 5, True),
    "at most": (0xB5, 5, 5, True),
    "at most, signed": (0xD5, 6, 5, False),
    "a bit in common": (0x45, 12, 4, True),
    "no bit in common": (0x45, 12, 3, False),
    "equal, 32 bits": (0x16, 1 << 31, -(1 << 31), True),
}


@pytest.mark.parametrize(("code", "left", "right", "taken"), JUMPS.values(), ids=JUMPS)
def test_jumps(code: int, left: int, right: int, taken: bool) -> None:
    wide = insn(0x18, 2, number=(left + (1 << 31)) % (1 << 32) - (1 << 31)) + insn(0, number=left >> 32)
    assert allows(wide + insn(code, 2, offset=2, number=right) + NO + YES, CHAR, READ, 0, 0) is taken
    by_register = wide + insn(0xB7, 3, number=right) + insn(code | 8, 2, 3, offset=2)
    assert allows(by_register + NO + YES, CHAR, READ, 0, 0) is taken


PARTS = {"type": (0x69, 0, CHAR), "access": (0x69, 2, READ), "major": (0x61, 4, 195), "minor, one byte": (0x71, 8, 7)}


@pytest.mark.parametrize(("code", "offset", "number"), PARTS.values(), ids=PARTS)
def test_parts_of_the_question(code: int, offset: int, number: int) -> None:
    """By another register than the first, and in parts: as other runtimes read it."""
    program = insn(0xBF, 6, 1) + insn(code, 3, 6, offset) + insn(0x15, 3, offset=2, number=number) + NO + YES
    assert allows(program, CHAR, READ, 195, 7) is True
    assert allows(program, BLOCK, WRITE, 194, 8) is False


UNTOLD = {
    "empty": b"",
    "half an instruction": YES[:12],
    "a call": insn(0x85, number=5) + YES,
    "a map": insn(0x18, 2, 1) + insn(0) + YES,
    "the kernel's own register": insn(0xB7, 11) + YES,
    "a store": insn(0x7B, 10, 1, -8) + YES,
    "an unknown code": insn(0xFF) + YES,
    "a division with sign": insn(0xB7, 2, number=4) + insn(0x37, 2, offset=1, number=2) + YES,
    "a jump past the end": insn(0x05, offset=2) + YES,
    "a jump before the start": insn(0x05, offset=-2) + YES,
    "a jump into a long instruction": insn(0x05, offset=1) + insn(0x18, 2) + insn(0) + YES,
    "no end": insn(0xB7, number=1),
    "half of a long instruction": YES + insn(0x18, 2),
}


@pytest.mark.parametrize("program", UNTOLD.values(), ids=UNTOLD)
def test_what_is_not_plain_gets_no_verdict(program: bytes) -> None:
    assert not is_plain(program)
    assert allows(program, CHAR, READ, 1, 3) is None
    assert permits(program, ((1, 3),)) is None


ENDLESS = {
    "a loop": insn(0x05, offset=-1),
    "an answer that nobody wrote": EXIT,
    "an address as answer": insn(0xBF, 0, 1) + EXIT,
    "outside of the question": insn(0x61, 0, 1, 12) + EXIT,
    "through a number": insn(0xB7, 2, number=4) + insn(0x61, 0, 2) + EXIT,
}


@pytest.mark.parametrize("program", ENDLESS.values(), ids=ENDLESS)
def test_what_the_kernel_would_not_take_gets_no_verdict(program: bytes) -> None:
    assert is_plain(program)
    assert allows(program, CHAR, READ, 1, 3) is None


# --- building ---------------------------------------------------------------------------------------------------

numbers = st.integers(0, 3)
accesses = st.integers(1, ALL)
rules = st.lists(
    st.builds(Rule, st.booleans(), st.sampled_from("abc"), st.integers(-1, 3), st.integers(-1, 3), accesses), max_size=8
)
questions = st.tuples(st.sampled_from([CHAR, BLOCK]), accesses, numbers, numbers)


def judged(entries: Sequence[Rule], kind: int, access: int, major: int, minor: int) -> bool:
    """What a spec's rules say, by the words of OCI: in their order, the last one that fits counts, for each right."""
    for bit in (MKNOD, READ, WRITE):
        allowed = False
        for rule in entries:
            fits = rule.kind == "a" or (
                rule.kind == ("c" if kind == CHAR else "b") and rule.major in (-1, major) and rule.minor in (-1, minor)
            )
            if fits and rule.access & bit:
                allowed = rule.allow
        if access & bit and not allowed:
            return False
    return True


@given(rules, questions)
def test_a_program_of_rules_says_what_the_rules_say(entries: list[Rule], question: tuple[int, int, int, int]) -> None:
    assert allows(of_rules(tuple(entries)), *question) is judged(entries, *question)


@given(rules, st.lists(st.tuples(numbers, numbers), max_size=4), questions)
def test_extended_allows_just_the_granted_more(
    entries: list[Rule], granted: list[tuple[int, int]], question: tuple[int, int, int, int]
) -> None:
    """What the base allowed stays allowed; what it denied stays denied, but for reading and writing the granted."""
    kind, access, major, minor = question
    base = of_rules(tuple(entries))
    more = kind == CHAR and not access & MKNOD and (major, minor) in granted
    assert allows(extended(base, tuple(granted)), *question) is (judged(entries, *question) or more)


@given(st.lists(st.tuples(st.integers(0, 4095), st.integers(0, (1 << 20) - 1)), min_size=1, max_size=40))
def test_a_real_program_extended(granted: list[tuple[int, int]]) -> None:
    program = extended(RUNC, tuple(granted))
    assert is_plain(program)
    assert permits(program, tuple(granted)) is True
    for kind, access, major, minor, verdict in VERDICTS.values():
        more = kind == CHAR and not access & MKNOD and (major, minor) in granted
        assert allows(program, kind, access, major, minor) is (verdict or more)


def test_twice_is_no_different() -> None:
    once = extended(RUNC, ((195, 0),))
    assert permits(once, ((195, 0),)) is True
    assert permits(extended(once, ((195, 1),)), ((195, 0), (195, 1))) is True
    assert permits(RUNC, ((1, 3), (195, 0))) is False


def test_all_channels_of_imex_fit() -> None:
    program = extended(RUNC, tuple((511, minor) for minor in range(2048)))
    assert permits(program, ((511, 0), (511, 2047))) is True
    assert allows(program, CHAR, READ, 511, 2048) is False


@pytest.mark.parametrize("count", [8200, 70000])
def test_more_devices_than_jumps_reach_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="too many"):
        extended(RUNC, tuple((1, minor) for minor in range(count)))


def test_the_defaults_are_those_of_runc() -> None:
    """Rebuilt from a spec that denies all: what runc's own program allows, but for tun, which later ones leave out."""
    program = of_rules((Rule(False, "a", -1, -1, ALL), *devicefilter.DEFAULTS))
    for major in (0, 1, 5, 10, 136, 195):
        for minor in (*range(12), 200, 229):
            for kind in (CHAR, BLOCK):
                for access in range(1, ALL + 1):
                    expected = allows(RUNC, kind, access, major, minor) and (major != 10 or access == MKNOD)
                    if bin(access).count("1") == 1 or kind == BLOCK:  # runc asks for all rights in one of its rules
                        assert allows(program, kind, access, major, minor) == expected


# --- the rules of a spec ------------------------------------------------------------------------------------------


def spec(devices: object) -> oci.Spec:
    made = oci.Spec.__new__(oci.Spec)
    data = bundles.config()
    data["linux"]["resources"]["devices"] = devices
    made.path, made.data = "/b/config.json", data
    return made


RULES = {
    "deny all": ({"allow": False, "access": "rwm"}, Rule(False, "a", -1, -1, ALL)),
    "no access is all": ({"allow": True, "type": "c", "major": 1}, Rule(True, "c", 1, -1, ALL)),
    "a number": ({"allow": True, "type": "b", "major": 8, "minor": 0, "access": "r"}, Rule(True, "b", 8, 0, READ)),
    "unbuffered": ({"allow": True, "type": "u", "major": 1, "minor": 3, "access": "w"}, Rule(True, "c", 1, 3, WRITE)),
    "a number that none has": ({"allow": True, "type": "c", "major": 1 << 40}, Rule(True, "c", (1 << 31) - 1, -1, ALL)),
    "allow that is no boolean": ({"allow": "yes", "type": "c"}, Rule(False, "c", -1, -1, ALL)),
}


@pytest.mark.parametrize(("entry", "rule"), RULES.values(), ids=RULES)
def test_rules_of_a_spec(entry: object, rule: Rule) -> None:
    assert devicefilter.rules_of(spec([entry]).device_rules()) == (rule,)


BAD = {
    "no object": "c 1:3 rwm",
    "text for a number": {"allow": True, "type": "c", "major": "1"},
    "negative": {"allow": True, "type": "c", "major": -2},
    "another type": {"allow": True, "type": "x"},
    "another letter": {"allow": True, "access": "rx"},
}


@pytest.mark.parametrize("entry", BAD.values(), ids=BAD)
def test_bad_rules_of_a_spec(entry: object) -> None:
    with pytest.raises(GpuhookError) as caught:
        spec([entry]).device_rules()
    assert caught.value.reference == "spec-invalid"


# --- where the groups are -----------------------------------------------------------------------------------------

CGROUPS = {
    "version 1": ("5:devices:/docker/c1\n4:memory:/other\n", ("/docker/c1", None)),
    "version 2": ("0::/system.slice/docker-c1.scope\n", (None, "/system.slice/docker-c1.scope")),
    "hybrid": ("6:devices:/c1\n1:name=systemd:/s\n0::/u\n", ("/c1", "/u")),
    "with others": ("3:cpuset,devices:/a\n", ("/a", None)),
    "a name only": ("3:name=devices:/a\n", (None, None)),
    "a colon in the path": ("0::/a:b\n5:devices:/c:devices:d\n", ("/c:devices:d", "/a:b")),
    "nothing": ("", (None, None)),
}


@pytest.mark.parametrize(("text", "paths"), CGROUPS.values(), ids=CGROUPS)
def test_the_paths_of_a_process(text: str, paths: tuple[str | None, str | None]) -> None:
    assert cgroup.parse(text.encode()) == paths


BELOW = {
    "whole": ("/docker/c1", "/", "docker/c1"),
    "the root itself": ("/", "/", ""),
    "a nested mount": ("/docker/outer/inner/c1", "/docker/outer", "inner/c1"),
    "the mount's own": ("/docker/outer", "/docker/outer", ""),
    "beside it": ("/docker/outer2/c1", "/docker/outer", None),
    "above it": ("/docker", "/docker/outer", None),
    "out of the namespace": ("/../c1", "/", None),
    "a mount out of the namespace": ("/c1", "/..", None),
    "up again": ("/docker/../../etc", "/", None),
    "no path": ("docker", "/", None),
}


@pytest.mark.parametrize(("path", "root", "name"), BELOW.values(), ids=BELOW)
def test_a_path_below_a_mount(path: str, root: str, name: str | None) -> None:
    assert cgroup.below(path, root) == name


def test_a_process_of_our_own_group_has_none_to_change() -> None:
    """Where a runtime makes no cgroup, the hook's own is what it would change: nothing is."""
    assert cgroup.find(os.getpid()) == cgroup.Groups(None, None)


def test_a_process_that_is_gone() -> None:
    with pytest.raises(GpuhookError) as caught:
        cgroup.find(2**22 + 1)
    assert caught.value.reference == "container-gone"
