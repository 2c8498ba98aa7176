"""The programs by which cgroup version 2 guards devices: read, judged by a small interpreter, and extended. Pure.

Loaded only where the hook works without the shim. A program is bytes, eight for each instruction (kernel: Documentation
bpf/standardization/instruction-set.rst); its one argument, in r1, points to three u32: `access << 16 | type`, major,
minor (include/uapi/linux/bpf.h, bpf_cgroup_dev_ctx). It answers in r0, and anything but 0 allows. The verdict of a
cgroup is that of all programs of it and of those above it, so a further program can only take away: the one that denies
is replaced by a longer one.
"""

from _struct import Struct, pack

from gpuhook.model import value

CHAR, BLOCK = 2, 1
MKNOD, READ, WRITE = 1, 2, 4
_LETTERS = {"m": MKNOD, "r": READ, "w": WRITE}
_GRANTED = READ | WRITE
_ALL = MKNOD | READ | WRITE
GRANTED = (READ, WRITE, READ | WRITE)  # how a granted device will be opened

_STEPS = 1 << 16  # instructions that the interpreter does before it gives up
_INSN = Struct("=BBhi")
_SIZE_LIMIT = 8 << 16  # bytes of a program; those of runtimes have a few hundred instructions
_LITTLE = pack("=H", 1)[0] == 1
_WORD, _DOUBLE = (1 << 32) - 1, (1 << 64) - 1

# Instruction classes and what is used of them.
_LD, _LDX, _ALU, _JMP, _JMP32, _ALU64 = 0, 1, 4, 5, 6, 7
_LD_IMM64 = 0x18
_LOADS = {0x61: 4, 0x69: 2, 0x71: 1, 0x79: 8}
_EXIT = 0x95
_ALWAYS = 0x05
_ALU_OPS = {0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xA0, 0xB0, 0xC0}  # 0xD0 swaps bytes
_JUMP_OPS = {0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xA0, 0xB0, 0xC0, 0xD0}
_MOST_NUMBER = (1 << 31) - 1
_RULES_LIMIT = 4096  # of a spec
_JUMP_LIMIT = 0x7FF0  # instructions; an offset has 16 bits


@value
class Rule:
    """One entry of a spec's `linux.resources.devices`: `kind` is `c`, `b` or `a` (both); -1 is any number; `access`
    has the bits MKNOD, READ, WRITE."""

    allow: bool
    kind: str
    major: int
    minor: int
    access: int


# What runtimes allow besides the spec (runc's specconv AllowedDevices, crun's default rules): appended to its rules.
DEFAULTS = (
    Rule(True, "c", -1, -1, MKNOD),
    Rule(True, "b", -1, -1, MKNOD),
    *[Rule(True, "c", 1, minor, _ALL) for minor in (3, 5, 7, 8, 9)],  # null, zero, full, random, urandom
    Rule(True, "c", 5, 0, _ALL),  # tty
    Rule(True, "c", 5, 2, _ALL),  # ptmx
    Rule(True, "c", 136, -1, _ALL),  # the terminals of devpts
)


def rules_of(entries: "tuple[tuple[bool, str, int, int, str], ...]") -> "tuple[Rule, ...]":
    """The rules of a spec (`oci.Spec.device_rules`). A number beyond what a jump compares with is one that no device
    has; `u` is `c` (the spec's word for an unbuffered one)."""
    return tuple(
        [
            Rule(
                allow,
                "c" if kind == "u" else kind,
                min(major, _MOST_NUMBER),
                min(minor, _MOST_NUMBER),
                access_of(access),
            )
            for allow, kind, major, minor, access in entries
        ]
    )


def access_of(letters: str) -> int:
    """The bits of an access such as `rwm`; of an empty one all. KeyError for other letters."""
    bits = 0
    for letter in letters:
        bits |= _LETTERS[letter]
    return bits or _ALL


# --- building ---------------------------------------------------------------------------------------------------


def _insn(code: int, target: int = 0, source: int = 0, offset: int = 0, number: int = 0) -> bytes:
    registers = target | source << 4 if _LITTLE else target << 4 | source
    return _INSN.pack(code, registers, offset, number)


def _answer(number: int) -> bytes:
    return _insn(0xB7, 0, number=number) + _insn(_EXIT)


# r2 = type, r3 = access, r4 = major, r5 = minor; r1 stays, for a base program to begin with.
_PROLOGUE = (
    _insn(0x61, 2, 1, 0)
    + _insn(0xBC, 3, 2)
    + _insn(0x54, 2, number=0xFFFF)
    + _insn(0x74, 3, number=16)
    + _insn(0x61, 4, 1, 4)
    + _insn(0x61, 5, 1, 8)
)


def extended(base: bytes, numbers: "tuple[tuple[int, int], ...]") -> bytes:
    """A program that allows reading and writing the character devices (major, minor), else says what `base` says.

    ValueError for more devices than a program's jumps can pass over.
    """
    past = 4 * len(numbers)
    if past > _JUMP_LIMIT:
        raise ValueError(f"{len(numbers)} devices are too many")
    granted = b"".join(
        [
            _insn(0x55, 4, offset=3, number=major) + _insn(0x55, 5, offset=2, number=minor) + _answer(1)
            for major, minor in numbers
        ]
    )
    only = _insn(0xBC, 0, 3) + _insn(0x54, 0, number=~_GRANTED) + _insn(0x55, 0, offset=past, number=0)
    return _PROLOGUE + _insn(0x55, 2, offset=past + 3, number=CHAR) + only + granted + base


def of_rules(rules: "tuple[Rule, ...]") -> bytes:
    """A program that judges as the rules of a spec do: for each bit of an access the last rule with that bit counts,
    and what none names is denied. ValueError for more rules than a program holds.
    """
    if len(rules) > _RULES_LIMIT:
        raise ValueError(f"{len(rules)} rules are too many")
    judged = b"".join([_judged(rule) for rule in rules[::-1]])
    return _PROLOGUE + judged + _insn(0xB7, 0, number=0) + _insn(0x55, 3, offset=1, number=0) + _answer(1)


def _judged(rule: Rule) -> bytes:
    """Where the rule fits: allowed bits are taken out of r3, and the access is allowed when none is left; a denied bit
    that is still in r3 ends it."""
    if rule.allow:
        act = _insn(0x54, 3, number=~rule.access) + _insn(0x55, 3, offset=2, number=0) + _answer(1)
    else:
        act = _insn(0xBC, 0, 3) + _insn(0x54, 0, number=rule.access) + _insn(0x15, 0, offset=2, number=0) + _answer(0)
    for register, number in ((5, rule.minor), (4, rule.major)):
        if number >= 0 and rule.kind != "a":
            act = _insn(0x55, register, offset=len(act) // 8, number=number) + act
    if rule.kind != "a":
        act = _insn(0x55, 2, offset=len(act) // 8, number=CHAR if rule.kind == "c" else BLOCK) + act
    return act


# --- reading ----------------------------------------------------------------------------------------------------


def is_plain(program: bytes) -> bool:
    """Whether a dumped program is surely the one that was loaded, and can be judged and extended.

    That is: instructions that this module knows, no call and no map, no register that the kernel keeps for its own
    rewriting (r11), and jumps that lead to an instruction in it.
    """
    return bool(_decoded(program))


def _decoded(program: bytes) -> "list[tuple[int, int, int, int, int]]":
    """The instructions as (code, target, source, offset, number); none where the program is not plain."""
    if len(program) % 8 or len(program) > _SIZE_LIMIT:
        return []
    found = [_parts(item) for item in _INSN.iter_unpack(program)]
    starts, aims = set(), []
    at = 0
    while at < len(found):
        code, target, source, offset, _ = found[at]
        if target > 10 or source > 10 or not _is_known(code, source, offset):
            return []
        starts.add(at)
        if code & 7 in (_JMP, _JMP32) and code != _EXIT:
            aims.append(at + 1 + offset)
        if code not in (_EXIT, _ALWAYS):
            aims.append(at + (2 if code == _LD_IMM64 else 1))
        at += 2 if code == _LD_IMM64 else 1
    return found if starts.issuperset(aims) else []


def _parts(item: "tuple[int, int, int, int]") -> "tuple[int, int, int, int, int]":
    code, registers, offset, number = item
    low, high = registers & 15, registers >> 4
    return (code, low, high, offset, number) if _LITTLE else (code, high, low, offset, number)


def _is_known(code: int, source: int, offset: int) -> bool:
    kind, operation = code & 7, code & 0xF0
    if kind in (_ALU, _ALU64):
        return operation in _ALU_OPS and offset == 0  # with an offset it is a signed division, or a copy with sign
    if kind == _JMP:
        return code in (_EXIT, _ALWAYS) or operation in _JUMP_OPS
    if kind == _JMP32:
        return operation in _JUMP_OPS
    return code in _LOADS or (code == _LD_IMM64 and source == 0)


# --- judging ----------------------------------------------------------------------------------------------------


class _Context:
    """What r1 holds: the address of the question."""


_CONTEXT = _Context()


def allows(program: bytes, kind: int, access: int, major: int, minor: int) -> "bool | None":
    """What a plain program says of one access; None where this can't be told (it is not plain, or takes too long)."""
    return _judge(_decoded(program), pack("=III", access << 16 | kind, major, minor))


def permits(program: bytes, numbers: "tuple[tuple[int, int], ...]") -> "bool | None":
    """Whether a program lets each of the character devices be read and written; None where this can't be told."""
    steps = _decoded(program)
    for major, minor in numbers:
        for access in GRANTED:
            found = _judge(steps, pack("=III", access << 16 | CHAR, major, minor))
            if not found:
                return found
    return True


def _judge(steps: "list[tuple[int, int, int, int, int]]", question: bytes) -> "bool | None":
    registers: list[int | _Context | None] = [None] * 11
    registers[1] = _CONTEXT
    at = 0
    try:
        for _ in range(_STEPS):
            code, target, source, offset, number = steps[at]
            at += 1
            if code == _EXIT:
                return _number(registers[0]) & _WORD != 0
            if code == _ALWAYS:
                at += offset
            elif code == _LD_IMM64:
                registers[target] = number & _WORD | (steps[at][4] & _WORD) << 32
                at += 1
            elif code in _LOADS:
                if registers[source] is not _CONTEXT:
                    return None
                registers[target] = _loaded(question, offset, _LOADS[code])
            else:
                other = registers[source] if code & 8 else number & _DOUBLE
                if code & 7 in (_JMP, _JMP32):
                    at += offset if _jumps(code, registers[target], other) else 0
                else:
                    registers[target] = _computed(code, registers[target], other)
    except (TypeError, IndexError):  # it reads what nobody wrote: the kernel would not have taken it
        pass
    return None


def _number(item: "int | _Context | None") -> int:
    if not isinstance(item, int):
        raise TypeError(item)
    return item


def _loaded(question: bytes, offset: int, size: int) -> int:
    if not 0 <= offset <= len(question) - size:
        raise IndexError(offset)
    return int.from_bytes(question[offset : offset + size], "little" if _LITTLE else "big")


def _computed(code: int, old: "int | _Context | None", other: "int | _Context | None") -> "int | _Context | None":
    operation, wide = code & 0xF0, code & 7 == _ALU64
    if operation == 0xB0 and wide:
        return other  # a copy, also of the question's address
    mask = _DOUBLE if wide else _WORD
    bits = 64 if wide else 32
    right = _number(other) & mask
    if operation == 0xB0:
        return right
    left = _number(old) & mask
    if operation == 0x80:
        return -left & mask
    if operation in (0x60, 0x70, 0xC0):
        right &= bits - 1  # as the kernel's interpreter does
        if operation == 0x60:
            return left << right & mask
        return (left if operation == 0x70 else _signed(left, bits)) >> right & mask
    if operation in (0x30, 0x90):  # unsigned, and defined for 0
        if operation == 0x30:
            return left // right if right else 0
        return left % right if right else left
    if operation == 0x40:
        return left | right
    if operation == 0x50:
        return left & right
    if operation == 0xA0:
        return left ^ right
    if operation == 0x20:
        return left * right & mask
    return (left + right if operation == 0 else left - right) & mask


def _jumps(code: int, one: "int | _Context | None", other: "int | _Context | None") -> bool:
    bits = 64 if code & 7 == _JMP else 32
    mask = (1 << bits) - 1
    left, right = _number(one) & mask, _number(other) & mask
    operation = code & 0xF0
    if operation in (0x60, 0x70, 0xC0, 0xD0):
        left, right = _signed(left, bits), _signed(right, bits)
    if operation in (0x10, 0x50):
        return (left == right) == (operation == 0x10)
    if operation == 0x40:
        return left & right != 0
    if operation in (0x20, 0x60):
        return left > right
    if operation in (0x30, 0x70):
        return left >= right
    return left < right if operation in (0xA0, 0xC0) else left <= right


def _signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >> (bits - 1) else number
