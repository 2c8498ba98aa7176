"""Run a piece of a test in a forked process of its own, in a mount namespace of its own when asked."""

import ctypes
import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
CLONE_NEWNS = 0x00020000
MS_REC_PRIVATE = 0x4000 | (1 << 18)
MS_REC_SHARED = 0x4000 | (1 << 20)
MS_BIND_REC = 0x1000 | 0x4000
RENAME_EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)


class ChildError(AssertionError):
    """What failed in the child, with its traceback."""


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare_mounts(propagation: int = MS_REC_PRIVATE) -> None:
    """Leave this process's mount namespace for a copy of it that nobody else sees."""
    _check(_libc.unshare(CLONE_NEWNS), "unshare")
    mount("none", "/", "", propagation)


def mount(source: object, target: object, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    arguments = (
        os.fsencode(str(source)),
        os.fsencode(str(target)),
        kind.encode() or None,
        flags,
        data.encode() or None,
    )
    _check(_libc.mount(*arguments), f"mount {target}")


def bind(source: object, target: object) -> None:
    """Bind a tree, with the mounts in it."""
    mount(source, target, "", MS_BIND_REC)


def exchange(first: bytes, second: bytes) -> None:
    """Swap two names at once."""
    _check(_libc.renameat2(-100, first, -100, second, RENAME_EXCHANGE), "renameat2")


def start(work: Callable[[], object]) -> tuple[int, int]:
    """Fork, do `work` in the child, end it. Returns the child's pid and a descriptor of its pickled answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        os.close(reading)
        try:
            answer = pickle.dumps((True, work()))
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
        with open(writing, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)


def finish(child: int, reading: int) -> Any:
    """The answer of a started child; ChildError where it raised or died."""
    with open(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if not data:
        raise ChildError(f"the child ended with status {status:#x} and no answer")
    good, answer = pickle.loads(data)
    if not good:
        raise ChildError(answer)
    return answer


def apart(work: Callable[[], T], *, mounts: bool = False) -> T:
    """Do `work` in a forked child, with `mounts` in a private mount namespace; what it raises is raised here."""

    def inner() -> T:
        if mounts:
            unshare_mounts()
        return work()

    answer: T = finish(*start(inner))
    return answer
