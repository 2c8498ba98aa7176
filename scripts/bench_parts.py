"""What the time of a GPU create is made of: cases for scripts/bench.py to measure, and the sum that they make.

The shim is run alone by giving it /bin/true as its low-level runtime; what an interpreter start costs, with and without
the modules that shim and hook load, is measured beside it. The hook's own work is what is left of the whole.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

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


def commands(python: str, library: Path, magic: int) -> dict[str, list[str]]:
    """The cases that are commands; `magic` is the length of what stands before a bundle's code."""
    found = {"true": ["/bin/true"]}
    for entry in ("shim", "hook"):
        code = LOAD.format(library=str(library), entry=entry, magic=magic)
        found[f"modules, {entry}"] = [python, "-ISB", "-c", code]
    return found


def table(wall: Mapping[str, Sequence[float]], cpu: Mapping[str, Sequence[float]]) -> list[dict[str, object]]:
    """The parts of what a GPU create adds, in ms of wall time and of processor time.

    Both are samples by case: those of `commands`, `shim alone`, `T`, and bench.py's creates.
    """
    walls, cpus = split(wall), split(cpu)
    return [{"name": name, "wall": walls[name], "cpu": cpus[name]} for name in walls]


def split(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The parts by name: medians of the differences within rounds. The last is their sum."""

    def between(less: str, more: str) -> float:
        return statistics.median(b - a for a, b in zip(samples[less], samples[more], strict=True))

    whole = between("create, runc", "create, shim, GPU")
    shim = between("true", "shim alone")
    start = statistics.median(samples["T"])
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
