"""Stand-ins for older kernels: a program that hides system calls from what it starts, by a seccomp filter.

The kernel then answers ENOSYS, as one does that never heard of the call (crun's own tests do the same to openat2).
"""

from pathlib import Path

WRAPPER = """#!/usr/bin/python3 -IS
import ctypes, os, struct, sys
program = struct.pack("HBBI", 0x20, 0, 0, 0)  # load the number of the call
for number in {numbers}:
    program += struct.pack("HBBI", 0x15, 0, 1, number) + struct.pack("HBBI", 0x06, 0, 0, 0x00050000 | 38)
program += struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
code = ctypes.create_string_buffer(program)
filter = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(22, 2, ctypes.c_char_p(filter), 0, 0):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER; root needs no more
    sys.exit("seccomp: " + os.strerror(ctypes.get_errno()))
os.execv({program!r}, [{program!r}, *sys.argv[1:]])
"""


def hiding(path: Path, program: Path, numbers: list[int]) -> Path:
    """Write a program at `path` that runs `program` on a kernel without these calls."""
    path.write_text(WRAPPER.format(numbers=numbers, program=str(program)))
    path.chmod(0o755)
    return path
