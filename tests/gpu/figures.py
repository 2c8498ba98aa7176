"""Times on a machine with a GPU: the driver's record cold and warm, creates with plain runc and through gpuhook."""

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import bundles
from tests.gpu.machine import Machine

ASKS = ("NVIDIA_VISIBLE_DEVICES=all",)
IDLE = 0.05  # seconds before each sample
COLD = 5  # samples with no record stored; each asks NVML

# Prints the milliseconds that a start takes to have the record, in a process as the shim's.
LOAD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from gpuhook import config
from gpuhook.driver import record
settings = config.load(sys.argv[2])
begun = time.perf_counter()
record.load(settings, sys.argv[2])
print((time.perf_counter() - begun) * 1e3)
"""


def record_times(machine: Machine) -> dict[str, Any]:
    """Milliseconds to have the driver's record: cold (nothing stored) and warm, medians and all samples."""
    library = next((machine.world / "usr/lib/gpuhook").glob("[0-9]*"))
    stored = machine.world / "run/gpuhook/driver.json"
    command: list[str | Path] = ["/usr/bin/python3", "-ISB", "-c", LOAD, library, machine.world]
    samples: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(COLD):
        stored.unlink(missing_ok=True)
        for name in ("cold", "warm", "warm", "warm", "warm"):
            time.sleep(IDLE)
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            samples[name].append(float(done.stdout))
    if machine.smi:
        samples["the host's nvidia-smi -L"] = [_wall([machine.smi, "-L"]) for _ in range(3)]
    return _summary(samples)


def create_times(machine: Machine, rounds: int, end: float) -> dict[str, Any]:
    """Milliseconds of interleaved creates, until `rounds` are done or the monotonic clock reaches `end`."""
    stored = machine.world / "run/gpuhook/driver.json"
    cases: dict[str, Callable[[], float]] = {
        "T: python3 -IS -c pass": lambda: _wall(["/usr/bin/python3", "-IS", "-c", "pass"]),
        "runc": lambda: _create(machine, machine.runc, ()),
        "gpuhook, no GPU asked": lambda: _create(machine, machine.shim, ()),
        "gpuhook, GPU asked": lambda: _create(machine, machine.shim, ASKS),
    }
    samples: dict[str, list[float]] = {name: [] for name in cases}
    samples["gpuhook, GPU asked, no record"] = []
    for number in range(rounds + 1):  # the first warms all up
        for name, case in cases.items():
            sample = case()
            if number:
                samples[name].append(sample)
        if 0 < number <= COLD:
            stored.unlink(missing_ok=True)
            samples["gpuhook, GPU asked, no record"].append(_create(machine, machine.shim, ASKS))
        if time.monotonic() > end and number:
            break
    summary = _summary(samples)
    bare = summary["T: python3 -IS -c pass"]["median"]
    for name in ("gpuhook, no GPU asked", "gpuhook, GPU asked"):
        pairs = zip(samples["runc"], samples[name], strict=True)
        added = statistics.median(ours - plain for plain, ours in pairs)
        summary[name]["added"] = round(added, 2)
        summary[name]["added in T"] = round(added / bare, 2)
    return summary


def _summary(samples: dict[str, list[float]]) -> dict[str, Any]:
    return {
        name: {
            "median": round(statistics.median(found), 2),
            "least": round(min(found), 2),
            "samples": [round(item, 2) for item in found],
            "unit": "ms",
        }
        for name, found in samples.items()
        if found
    }


def _wall(command: list[str]) -> float:
    time.sleep(IDLE)
    begun = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60, check=True)
    return (time.perf_counter() - begun) * 1e3


def _create(machine: Machine, runtime: Path, env: tuple[str, ...]) -> float:
    """One create of a fresh bundle, removed again outside of the time."""
    folder = machine.work / "figure"
    subprocess.run(["rm", "-rf", folder], check=True)
    bundles.make(folder, machine.pack / "rootfs", args=["/bin/sleep", "100"], env=env)
    state, log = machine.work / "figures", folder / "log"
    before: list[str | Path] = ["--root", state, "--log", log, "--log-format", "json"]
    with open(os.devnull, "r+b") as null:
        time.sleep(IDLE)
        begun = time.perf_counter()
        command: list[str | Path] = [
            runtime,
            *before,
            "create",
            "--bundle",
            folder,
            "--pid-file",
            folder / "pid",
            "figure",
        ]
        done = subprocess.run(command, stdin=null, stdout=null, stderr=null, timeout=60, check=False)
        wall = (time.perf_counter() - begun) * 1e3
        mounts = Path(f"/proc/{(folder / 'pid').read_text()}/mountinfo").read_text() if done.returncode == 0 else ""
        subprocess.run([machine.runc, "--root", state, "delete", "--force", "figure"], stdout=null, stderr=null)
    if done.returncode:
        said = log.read_text() if log.exists() else ""
        raise RuntimeError(f"{runtime} create failed ({done.returncode}): {said}")
    if bool(env) != ("libcuda.so" in mounts):
        raise RuntimeError(f"{runtime} create: libcuda is {'not ' if env else ''}mounted: {json.dumps(env)}")
    return wall
