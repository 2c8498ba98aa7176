"""What the tests found out about engines, a line of JSON for each thing: docs/engines.md is made of them.

`scripts/engines_doc.py` reads the file. Runs are appended; each line names its run.
"""

import json
import platform
import subprocess
import time
from pathlib import Path
from typing import Any, Protocol

from tests.conftest import World
from tests.engines.machine import Machine
from tests.images import BUILD, CHECKOUT

FILE = BUILD / "engines/results.jsonl"


class Engine(Protocol):
    """What the classes of engines have in common."""

    name: str
    machine: Machine
    world: World

    @property
    def version(self) -> str: ...


class Results:
    """Appends to the file. A test calls it after the assertions that a line stands for."""

    def __init__(self, file: Path = FILE):
        self._file = file
        self._runtimes: dict[tuple[Path, str], str] = {}
        self._run = {
            "run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "gpuhook": _asked("git", "-C", str(CHECKOUT), "describe", "--always", "--dirty"),
            "kernel": platform.release(),
        }

    def works(self, engine: Engine, what: str, **more: str) -> None:
        """`what` works with this engine, its cgroup layout and its low-level runtime."""
        self._write(engine, {"what": what, "works": True, **more})

    def fails(self, engine: Engine, what: str, why: str, **more: str) -> None:
        """`what` is known not to work there; `why` begins with who is to blame."""
        self._write(engine, {"what": what, "works": False, "why": why, **more})

    def _write(self, engine: Engine, found: dict[str, Any]) -> None:
        runtime = engine.world.low_level or "runc"
        line = {
            **self._run,
            "engine": engine.name,
            "version": engine.version,
            "cgroup": _cgroup(engine.machine.layout),
            "runtime": runtime,
            "runtime_version": self._version(engine.machine, runtime),
            **found,
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _version(self, machine: Machine, runtime: str) -> str:
        key = (machine.system, runtime)
        if key not in self._runtimes:
            self._runtimes[key] = machine.check(runtime, "--version").split("\n")[0].split()[2]
        return self._runtimes[key]


def _cgroup(layout: str) -> str:
    """The name of a layout; of the machine's own: what it is."""
    if layout != "host":
        return layout
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "v2"
    return "hybrid" if Path("/sys/fs/cgroup/unified").is_dir() else "v1"


def _asked(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
