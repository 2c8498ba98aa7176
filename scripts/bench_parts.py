"""What stands beside the bars of scripts/bench.py: what its figures hold for, and what a GPU create's time is made of.

The shim is run alone by giving it /bin/true as its low-level runtime; what an interpreter start costs, with and without
the modules that shim and hook load, is measured beside it. The hook's own work is what is left of the whole.
"""

import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Samples = Mapping[str, Sequence[float]]

# Loads what a launcher loads and leaves as it does.
LOAD = """
import gc, posix, sys
from marshal import loads
gc.disable()
sys.path.reverse()
library = {library!r}
sys.path.append(library)
with open(library + "/{entry}.bundle", "rb") as file:
    data = file.read()
boot, modules = loads(data[{magic}:])
exec(boot)
posix._exit(0)
"""


def versions(checkout: Path, cli: Path, python: str) -> dict[str, str]:
    """What the figures hold for."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    release = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if line.count("=") == 1
    )

    def said(*command: str) -> str:
        try:
            lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        except FileNotFoundError:  # git is a convenience here
            lines = []
        return lines[0] if lines else ""

    return {
        "cpu": f"{cpu[0].partition(':')[2].strip() if cpu else platform.machine()}, {os.cpu_count()} cores",
        "kernel": platform.release(),
        "system": release.get("PRETTY_NAME", "").strip('"'),
        "runc": said("runc", "--version").removeprefix("runc version "),
        "python": said(python, "--version").removeprefix("Python "),
        "sh": os.path.realpath("/bin/sh"),
        "gpuhook": said(str(cli), "--version").removeprefix("gpuhook "),
        "commit": said("git", "-C", str(checkout), "describe", "--always", "--dirty"),
    }


def commands(python: str, library: Path, magic: int) -> dict[str, list[str]]:
    """The cases that are commands; `magic` is the length of what stands before a bundle's code."""
    found = {"true": ["/bin/true"]}
    for entry in ("shim", "hook"):
        code = LOAD.format(library=str(library), entry=entry, magic=magic)
        found[f"modules, {entry}"] = [python, "-ISB", "-c", code]
    return found


def table(wall: Samples, cpu: Samples) -> list[dict[str, object]]:
    """The parts of what a GPU create adds, in ms of wall time, of processor time, and of the least wall time seen.

    Both are samples by case: those of `commands`, `shim alone`, `T`, and bench.py's creates.
    """
    columns = {"wall": split(wall, median), "cpu": split(cpu, median), "least": split(wall, least)}
    return [{"name": name, **{kind: parts[name] for kind, parts in columns.items()}} for name in columns["wall"]]


def median(less: Sequence[float], more: Sequence[float]) -> float:
    """The median of the differences within rounds."""
    return statistics.median(b - a for a, b in zip(less, more, strict=True))


def least(less: Sequence[float], more: Sequence[float]) -> float:
    """The difference of the least: what a machine that others use comes nearest to when they pause."""
    return min(more) - min(less)


def split(samples: Samples, difference: Callable[[Sequence[float], Sequence[float]], float]) -> dict[str, float]:
    """The parts by name. The last is their sum."""

    def between(less: str, more: str) -> float:
        return difference(samples[less], samples[more])

    nothing = [0.0] * len(samples["T"])
    whole = between("create, runc", "create, shim, GPU")
    shim = between("true", "shim alone")
    start = difference(nothing, samples["T"])
    launcher = between("create, runc", "create, shim, quiet")
    shim_modules, hook_modules = between("T", "modules, shim"), between("T", "modules, hook")
    return {
        "sh: command line, search in config.json": launcher,
        "shim: Python starts": start,
        "shim: modules": shim_modules,
        "shim: request, record, verdict, nodes, config.json": shim - launcher - start - shim_modules,
        "hook: Python starts": start,
        "hook: modules": hook_modules,
        "hook: sources, mounts, links, loader cache; runc's call": whole - shim - start - hook_modules,
        "all that is added": whole,
    }
