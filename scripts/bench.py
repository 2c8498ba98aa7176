"""bench.py CHECKOUT WORK [--rounds N] [--json FILE]: measure what gpuhook adds to plain runc (called by scripts/bench).

All cases of a round follow each other, 50 ms idle before each sample, on a fresh copy of the image: the speed of a
machine drifts, and a create competes with the teardown of the one before. `added` is the median of the differences
within rounds. T is the median of a bare `python3 -IS -c pass` in the same run; bars are in T (design, section 5).
"""

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

CHECKOUT, WORK = Path(sys.argv[1]), Path(sys.argv[2])
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "scripts")]
import bench_parts  # noqa: E402
from tests import bundles  # noqa: E402
from tests.images import image  # noqa: E402

PYTHON = "/usr/bin/python3"
VERSION = "580.95.05"
# What an image has in its environment; the requirement is that of an image of NVIDIA's.
IMAGE = "12.6.3"
REQUIRES = next(
    line.split("\t")[4]
    for line in (CHECKOUT / "tests/data/require-strings.tsv").read_text().splitlines()
    if line.startswith(f"{IMAGE}\t")
)
ASKS = (
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video",
    f"NVIDIA_REQUIRE_CUDA={REQUIRES}",
)
AT_ONCE = 50
IDLE = 0.05
STATE = WORK / "state"
QUIET, GPU = bundles.config(args=["/bin/sleep", "100"]), bundles.config(args=["/bin/sleep", "100"], env=ASKS)

# Prints the most memory, in KiB, that the command and its children had resident. In C, because Linux counts what the
# process had resident before exec: a Python would measure itself.
RESIDENT = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) { /* FILE COMMAND ARGUMENT... */
  struct rusage used;
  int status;
  pid_t pid = fork();
  if (pid == 0) {
    execv(argv[2], argv + 2);
    _exit(127);
  }
  if (argc < 3 || pid < 0 || wait4(pid, &status, 0, &used) != pid) return 126;
  FILE *file = fopen(argv[1], "w");
  if (!file || fprintf(file, "%ld\n", used.ru_maxrss) < 0 || fclose(file)) return 125;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 124;
}
"""


@dataclass
class Samples:
    """Wall and processor time in milliseconds, one of each a round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, wall: float, cpu: float) -> None:
        """Add a round."""
        self.wall.append(wall * 1e3)
        self.cpu.append(cpu * 1e3)


def timed(command: list[str]) -> tuple[float, float]:
    """Seconds of wall time and of processor time (of the command and all that it waited for). Raises on failure."""
    with open(WORK / "errors", "w+b") as errors:
        actions = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0), (os.POSIX_SPAWN_DUP2, 0, 1)]
        actions.append((os.POSIX_SPAWN_DUP2, errors.fileno(), 2))
        start = time.perf_counter()
        pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
        _, status, used = os.wait4(pid, 0)
        wall = time.perf_counter() - start
        if status:
            errors.seek(0)
            raise SystemExit(f"bench: {' '.join(command)} failed: {errors.read().decode(errors='replace')}")
    return wall, used.ru_utime + used.ru_stime


def world(name: str, driver: Path, low_level: str = "runc") -> Path:
    """An installation with a configuration and state of its own; its programs are the installed ones."""
    path = WORK / name
    (path / "etc/gpuhook").mkdir(parents=True)
    (path / "usr").symlink_to(WORK / "installed/usr")
    roots = "".join(f'{key} = "{driver}"\n' for key in ("driver-root", "dev-root", "proc-root", "sys-root"))
    (path / "etc/gpuhook/runtime.toml").write_text(f'[runtime]\nlow-level = ["{low_level}"]\n[driver]\n{roots}')
    return path


def driver(name: str, *options: str) -> Path:
    """A simulated driver."""
    words = ["sim", "create", f"{WORK}/{name}", "--driver", VERSION, *options]
    subprocess.run([WORK / "installed/usr/bin/gpuhook", *words], check=True, stdout=subprocess.DEVNULL)
    return WORK / name


def shim(path: Path) -> str:
    """The shim of a world."""
    return f"{path}/usr/bin/gpuhook-runtime"


def fresh(folder: Path, spec: dict[str, Any]) -> None:
    """Make a bundle of the image as it was built, and its config.json as an engine writes it: anew for each start."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    subprocess.run(["cp", "-a", image("glibc"), folder / "rootfs"], check=True)
    (folder / "config.json").write_text(json.dumps(spec))


def create(runtime: str, folder: Path, name: str) -> list[str]:
    """The command that creates a container as containerd does."""
    words = ["--root", str(STATE), "--log", f"{folder}/log.json", "--log-format", "json", "create"]
    return [runtime, *words, "--bundle", str(folder), "--pid-file", f"{folder}/pid", name]


def check(folder: Path, *, gpu: bool) -> tuple[int, int]:
    """The mounts and links that a created container got from gpuhook. Raises unless it has the driver's libraries
    exactly if it asked for a GPU."""
    pid = (folder / "pid").read_text()
    mounts = [line.split()[4] for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    ours = [target for target in mounts if target.endswith(f".{VERSION}") or "nvidia" in target]
    if gpu != any(target.endswith(f"/libcuda.so.{VERSION}") for target in ours):
        raise SystemExit(f"bench: {folder.name}: the container {'lacks' if gpu else 'has'} the driver's libraries")
    root = Path(f"/proc/{pid}/root")
    folders = {target.rpartition("/")[0] for target in ours}
    links = [path for name in folders for path in (root / name[1:]).glob("lib*") if path.is_symlink()]
    if gpu and b"libcuda.so.1" not in (root / "etc/ld.so.cache").read_bytes():
        raise SystemExit(f"bench: {folder.name}: the loader's cache does not name libcuda.so.1")
    return len(ours), len(links)


def delete(names: Iterable[str]) -> None:
    """Remove containers."""
    for name in names:
        subprocess.run(["runc", "--root", STATE, "delete", "--force", name], check=True)


def dlopens(runtime: str, *, gpu: bool) -> None:
    """Run one container to its end: a program in it loads libcuda by soname exactly if the container asked."""
    spec = bundles.config(args=["opendev", "dlopen:libcuda.so.1"], env=ASKS if gpu else ())
    fresh(WORK / "full", spec)
    command: list[str | Path] = [runtime, "--root", STATE, "run", "--bundle", WORK / "full", "full"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if gpu != (f"libcuda.so.1: ok libcuda.so {VERSION}" in done.stdout):
        raise SystemExit(f"bench: {runtime}: libcuda.so.1 by soname: {done.stdout}{done.stderr}")


def measure(rounds: int, cases: dict[str, Callable[[], tuple[float, float]]]) -> dict[str, Samples]:
    """Rounds of one sample for each case; a round before them warms all up and is not counted."""
    found = {name: Samples() for name in cases}
    for number in range(rounds + 1):
        for name, case in cases.items():
            sample = case()
            if number:
                found[name].add(*sample)
        if sys.stderr.isatty():
            print(f"\rround {number} of {rounds} ", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r" + " " * 30, end="\r", file=sys.stderr, flush=True)
    return found


def creating(runtime: str, spec: dict[str, Any], name: str, seen: set[tuple[int, int]]) -> Callable[[], Any]:
    """A case: one create of a fresh bundle, checked and removed outside of the time."""

    def case() -> tuple[float, float]:
        folder = WORK / f"bundle-{name}"
        fresh(folder, spec)
        time.sleep(IDLE)
        sample = timed(create(runtime, folder, f"bench-{name}"))
        seen.add(check(folder, gpu=spec is GPU))
        delete([f"bench-{name}"])
        return sample

    return case


def commanding(command: list[str]) -> Callable[[], tuple[float, float]]:
    """A case: one command that changes nothing."""

    def case() -> tuple[float, float]:
        time.sleep(IDLE)
        return timed(command)

    return case


def alone(path: Path) -> Callable[[], tuple[float, float]]:
    """A case: the shim of a world whose low-level runtime does nothing."""

    def case() -> tuple[float, float]:
        fresh(WORK / "bundle-alone", GPU)
        time.sleep(IDLE)
        return timed(create(shim(path), WORK / "bundle-alone", "alone"))

    return case


def at_once(runtime: str, spec: dict[str, Any]) -> float:
    """Seconds from the first of fifty creates to the end of the last, all started together."""
    folders = [WORK / f"many-{number}" for number in range(AT_ONCE)]
    for folder in folders:
        fresh(folder, spec)
    time.sleep(IDLE * 10)
    start = time.perf_counter()
    running = [
        subprocess.Popen(create(runtime, folder, folder.name), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for folder in folders
    ]
    codes = [process.wait() for process in running]
    wall = time.perf_counter() - start
    if any(codes):
        raise SystemExit(f"bench: {sum(map(bool, codes))} of {AT_ONCE} creates at once failed")
    for folder in folders:
        check(folder, gpu=spec is GPU)
    delete(folder.name for folder in folders)
    for folder in folders:
        shutil.rmtree(folder)
    return wall


def resident(sim: Path) -> dict[str, float]:
    """MiB that the shim (all of it, to the exec of a low-level runtime that does nothing) and the hook had resident."""
    helper, answer = WORK / "resident", WORK / "resident.txt"
    subprocess.run(["gcc", "-O1", "-x", "c", "-", "-o", helper], input=RESIDENT, text=True, check=True)
    path = world("memory", sim, "/bin/true")
    folder = WORK / "bundle-memory"
    found = {}
    for _ in range(2):  # the first makes the record
        fresh(folder, GPU)
        timed([str(helper), str(answer), *create(shim(path), folder, "memory")])
    found["shim"] = int(answer.read_text()) / 1024
    spec = json.loads((folder / "config.json").read_text())
    for stage in spec["hooks"].values():
        for hook in stage:
            hook["args"] = ["resident", str(answer), hook["path"], *hook["args"][1:]]
            hook["path"] = str(helper)
    (folder / "config.json").write_text(json.dumps(spec))
    timed(create(bundles.tool("runc"), folder, "memory"))
    check(folder, gpu=True)
    delete(["memory"])
    found["hook"] = int(answer.read_text()) / 1024
    return found


@dataclass
class Row:
    """A line of the table: times in ms, ratios and the bar in T."""

    name: str
    plain: float
    ours: float
    added: float
    cpu: float
    ratio: float
    cpu_ratio: float
    bar: float
    least: float


def rows(found: dict[str, Samples], pairs: Iterable[tuple[str, str, str, float]]) -> list[Row]:
    """Compare each case with its plain one, by the differences within rounds."""
    bare_wall, bare_cpu = statistics.median(found["T"].wall), statistics.median(found["T"].cpu)
    made = []
    for text, plain, ours, bar in pairs:
        one, other = found[plain], found[ours]
        added = statistics.median(b - a for a, b in zip(one.wall, other.wall, strict=True))
        cpu = statistics.median(b - a for a, b in zip(one.cpu, other.cpu, strict=True))
        walls = statistics.median(one.wall), statistics.median(other.wall)
        least = bench_parts.least(one.wall, other.wall) / min(found["T"].wall)
        made.append(Row(text, *walls, added, cpu, added / bare_wall, cpu / bare_cpu, bar, least))
    return made


def verdict(value: float, bar: float) -> str:
    """How a figure stands to its bar."""
    return "met" if value <= bar else "OVER"


def main() -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(sys.argv[3:])
    load = os.getloadavg()[0]
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    sim, slow = driver("driver"), driver("slow", "--fault", "slow=300")
    fast_world, slow_world, runc = world("world", sim), world("slow-world", slow), bundles.tool("runc")
    for runtime, gpu in ((runc, False), (shim(fast_world), False), (shim(fast_world), True), (shim(slow_world), True)):
        dlopens(runtime, gpu=gpu)
    inits = (slow / "sim/nvml.count").read_bytes()
    fresh(WORK / "bundle-state", QUIET)
    timed(create(runc, WORK / "bundle-state", "bench-state"))
    seen: dict[str, set[tuple[int, int]]] = {"quiet": set(), "gpu": set()}
    library = next((WORK / "installed/usr/lib/gpuhook").glob("[0-9]*"))
    alone_world, more = world("alone", sim, "/bin/true"), bench_parts.commands(PYTHON, library, len(MAGIC_NUMBER))
    found = measure(
        options.rounds,
        {
            "T": commanding([PYTHON, "-IS", "-c", "pass"]),
            "state, runc": commanding([runc, "--root", str(STATE), "state", "bench-state"]),
            "state, shim": commanding([shim(fast_world), "--root", str(STATE), "state", "bench-state"]),
            "create, runc": creating(runc, QUIET, "runc", seen["quiet"]),
            "create, shim, quiet": creating(shim(fast_world), QUIET, "quiet", seen["quiet"]),
            "create, shim, GPU": creating(shim(fast_world), GPU, "gpu", seen["gpu"]),
            "create, shim, GPU, slow": creating(shim(slow_world), GPU, "slow", seen["gpu"]),
            "shim alone": alone(alone_world),
            **{name: commanding(command) for name, command in more.items()},
        },
    )
    delete(["bench-state"])
    if (slow / "sim/nvml.count").read_bytes() != inits:
        raise SystemExit("bench: NVML was initialised during the rounds: the record was not used")
    table = rows(
        found,
        (
            ("any command but create", "state, runc", "state, shim", 0.12),
            ("create, no GPU asked", "create, runc", "create, shim, quiet", 0.3),
            ("create, GPU asked, record cached", "create, runc", "create, shim, GPU", 2.5),
            ("the same, NVML takes 300 ms", "create, runc", "create, shim, GPU, slow", 2.5),
        ),
    )
    many = [(at_once(runc, QUIET), at_once(shim(fast_world), GPU)) for _ in range(3)]
    together = [statistics.median(column) for column in zip(*many, strict=True)]
    mounts, links = max(seen["gpu"])
    report = {
        "versions": bench_parts.versions(CHECKOUT, WORK / "installed/usr/bin/gpuhook", PYTHON),
        "rounds": options.rounds,
        "load": {"before": load, "after": os.getloadavg()[0]},
        "nice": os.nice(0),
        "mounts": mounts,
        "links": links,
        "T": {"wall": statistics.median(found["T"].wall), "cpu": statistics.median(found["T"].cpu)},
        "rows": [vars(row) for row in table],
        "parts": bench_parts.table(*({name: vars(found[name])[kind] for name in found} for kind in ("wall", "cpu"))),
        "at once": {"creates": AT_ONCE, "runc": together[0], "gpuhook": together[1], "bar": 2.3},
        "resident": {**resident(sim), "bar": 16, "unit": "MiB"},
        "samples": {name: vars(samples) for name, samples in found.items()},
    }
    show(report)
    path = options.json or CHECKOUT / "build/bench" / f"{datetime.datetime.now():%Y-%m-%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nwritten to {path}")
    return 0


def show(report: dict[str, Any]) -> None:
    """Print the report."""
    for name, text in report["versions"].items():
        print(f"{name:<9} {text}")
    print(f"method    {report['rounds']} rounds, interleaved, {IDLE * 1e3:.0f} ms idle before each sample, on tmpfs;")
    print(f"          a GPU create makes {report['mounts']} mounts, {report['links']} links and the loader's cache;")
    print("          medians in ms; added: the median of the differences within rounds")
    print(
        f"T         {report['T']['wall']:.1f} ms wall, {report['T']['cpu']:.1f} ms CPU: a bare Python on this machine"
    )
    print("          (python3 -IS -c pass), the unit in which machines can be compared")
    print("bar       the most that the figure before it may be, in T, in times (x) or in MiB: met, or OVER\n")
    print(f"{'':34}{'runc':>8}{'gpuhook':>9}{'added':>8}{'in T':>8}{'bar':>8}  {'':5}{'CPU added':>10}{'in T':>8}")
    for row in report["rows"]:
        print(
            f"{row['name']:34}{row['plain']:8.1f}{row['ours']:9.1f}{row['added']:8.2f}{row['ratio']:8.2f}{row['bar']:8.2f}"
            f"  {verdict(row['ratio'], row['bar']):5}{row['cpu']:10.2f}{row['cpu_ratio']:8.2f}"
        )
    print()
    for part in report["parts"]:
        print(f"  {part['name']:57}{part['wall']:8.2f} ms{part['cpu']:8.2f} ms CPU")
    print()
    many = report["at once"]
    name, ratio = f"{AT_ONCE} GPU creates at once", many["gpuhook"] / many["runc"]
    print(
        f"{name:34}{many['runc'] * 1e3:8.0f}{many['gpuhook'] * 1e3:9.0f}{'':8}{ratio:7.2f}x{many['bar']:7.1f}x"
        f"  {verdict(ratio, many['bar'])}"
    )
    for part in ("shim", "hook"):
        size, bar = report["resident"][part], report["resident"]["bar"]
        print(f"{'resident, ' + part + ', MiB':34}{'':8}{size:9.1f}{'':16}{bar:8}  {verdict(size, bar)}")


if __name__ == "__main__":
    sys.exit(main())
