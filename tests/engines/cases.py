"""What the tests of several engines do alike. Nothing here asserts: each test says what has to come out."""

import os
import re
from collections.abc import Callable
from pathlib import Path

from tests import bundles
from tests.conftest import World
from tests.engines.archive import ALL
from tests.engines.machine import Machine, Result, Running
from tests.engines.podman import Run
from tests.images import CHECKOUT

LIBCUDA = "dlopen:libcuda.so.1"
FOUND = f"{LIBCUDA}: ok libcuda.so 580.95.05\n"
SEES = ("opendev", LIBCUDA, "/dev/nvidia0", "/dev/nvidia1")
SEEN = f"{FOUND}/dev/nvidia0: ok\n/dev/nvidia1: ok\n"
ONE_EACH = [(0, f"{FOUND}/dev/nvidia0: ok\n"), (0, f"{FOUND}/dev/nvidia1: ok\n")]


def forge(node: Path) -> str:
    """Shell that makes a node of a device's number and opens it."""
    device = node.stat().st_rdev
    return f"mknod /dev/forged c {os.major(device)} {os.minor(device)} && opendev /dev/forged"


def said(done: Result) -> str:
    """What a client shows; a line of its own log comes and goes."""
    return re.sub(r"^time=.*\n", "", done.err, flags=re.MULTILINE)


def two_at_once(state: Path, begin: Callable[[str, tuple[str, ...]], Running | Run]) -> list[Result]:
    """Two containers, each with one GPU: `begin` takes the variable and the program. Nothing is compiled or recorded
    before in gpuhook's `state`, so that both come upon it."""
    for file in state.glob("*.json"):
        file.unlink()

    def one(number: int) -> Running | Run:
        return begin(f"--env=NVIDIA_VISIBLE_DEVICES={number}", (*SEES[:2], f"/dev/nvidia{number}"))

    with one(0) as first, one(1) as second:
        return [first.result(), second.result()]


def spy(script: Path, following: str | Path) -> Path:
    """Make `script` a runtime that becomes `following`; the file into which it writes what it saw."""
    notes = script.with_suffix(".notes")
    notes.unlink(missing_ok=True)
    script.write_text(f'#!/bin/sh\nexec {CHECKOUT}/tests/engines/spy.sh {notes} {following} "$@"\n')
    script.chmod(0o755)
    return notes


def inner(machine: Machine, world: World, folder: Path, driver: Path) -> tuple[str | Path, ...]:
    """The command line by which gpuhook, in a container with GPUs, starts one: `world` is its own, its driver is what
    the outer one was given, and its runc a copy in `folder`."""
    # as a file of a folder: runc 1.3 starts itself through an overlay of its folder, which has no mounted files
    machine.check("sh", "-c", 'cp "$(command -v runc)" "$1"', "sh", folder / "runc")
    world.configure(
        f'[runtime]\nlow-level = ["{folder}/runc"]\n[driver]\nproc-root = "{driver}"\nsys-root = "{driver}"\n'
    )
    bundle = bundles.make(folder / "bundle", env=[ALL], args=list(SEES))
    return (world.runtime, "--root", folder / "state", "run", "--bundle", bundle.path, "inner")


def tools(machine: Machine) -> list[str]:
    """Python of the machine and the libraries of it and runc, each file at its own place."""
    find = "import _ctypes, os, shutil; print(shutil.which('runc'), _ctypes.__file__, os.path.dirname(os.__file__))"
    runc, ctypes, modules = machine.check("python3", "-c", find).split()
    linked = machine.check("ldd", "/usr/bin/python3", runc, ctypes)
    return sorted({"/usr/bin/python3", modules, *re.findall(r"(/\S+) \(0x", linked)})
