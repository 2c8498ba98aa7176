"""checks.py PACK [--simulated DRIVER] [--out FOLDER] [--rounds N]: the checks of tests/gpu/run, which starts it.

Each check is a container or a command on this machine's driver; one that fails is written down, and the others go on.
Standard library only, since the machine is bare.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PACK = Path(sys.argv[1]) if __name__ == "__main__" else Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PACK))

from tests import bundles  # noqa: E402
from tests.gpu import figures  # noqa: E402
from tests.gpu.machine import Machine, said  # noqa: E402

MOST = 8 * 60  # seconds that all of it may take
FOR_FIGURES = 120  # seconds of them for timing creates
LAST = 60  # seconds before the end after which no check is begun
ONE = 45  # seconds that one container may take
PROBE = """\
echo @smi; nvidia-smi; echo "status $?"
echo @list; nvidia-smi -L
echo @cuda; cuda
echo @dev; ls /dev
echo @open; for node in /dev/nvidia[0-9]*; do [ ! -e "$node" ] || opendev "$node"; done
echo @closed; %s
echo @end
"""


class CheckError(AssertionError):
    """A check did not find what it expects."""


def expect(condition: bool, text: str) -> None:
    """Fail with `text` unless `condition` holds."""
    if not condition:
        raise CheckError(text)


@dataclass
class Checks:
    """The checks and what they found."""

    machine: Machine
    begun: float = field(default_factory=time.monotonic)
    results: list[dict[str, Any]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)

    def run(self, name: str, check: Callable[[], Any]) -> Any:
        """One check; what it returns is kept as its finding."""
        begun = time.monotonic()
        self.log.append(f"== {name}")
        finding, failure = None, ""
        try:
            expect(begun - self.begun < MOST - LAST, "not run: the time is over")
            finding = check()
        except Exception as error:  # any failure is a finding of this check, and no end of the others
            failure = f"{type(error).__name__}: {error}"
            self.log.append(failure)
        seconds = round(time.monotonic() - begun, 2)
        self.results.append({"name": name, "ok": not failure, "seconds": seconds, "found": finding, "failure": failure})
        print(f"{'ok    ' if not failure else 'FAILED'} {seconds:6.2f} s  {name}" + (f": {failure}" if failure else ""))
        sys.stdout.flush()
        return finding

    # --- commands and containers ------------------------------------------------------------------------------

    def gpuhook(self, *words: str) -> tuple[int, Any, str]:
        """A gpuhook command with --json: status, document, errors."""
        done = subprocess.run(
            [self.machine.cli, *words, "--json"], capture_output=True, text=True, timeout=60, check=False
        )
        self.log += [f"$ gpuhook {' '.join(words)}", done.stdout.rstrip(), done.stderr.rstrip()]
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr

    def container(self, *env: str, command: str = "", runtime: Path | None = None) -> bundles.Result:
        """Run one container to its end."""
        number = len(list(self.machine.work.glob("bundle*")))
        made = bundles.make(
            self.machine.work / f"bundle{number}",
            self.machine.pack / "rootfs",
            args=["/bin/sh", "-c", command or PROBE % ":"],
            env=env,
        )
        result = bundles.Runtime(runtime or self.machine.shim, self.machine.work / "runtime", timeout=ONE).run(made)
        self.log += [f"$ run {' '.join(env)}", result.out.rstrip(), result.err.rstrip(), f"status {result.code}"]
        return result

    def sections(self, *env: str, closed: str = ":") -> dict[str, str]:
        """What a container with a GPU request sees, by the parts of PROBE."""
        result = self.container(*env, command=PROBE % closed)
        expect(result.code == 0, f"the container ended with {result.code}: {result.out}{result.err}")
        pieces = re.split(r"^@(\w+)\n", result.out, flags=re.MULTILINE)[1:]
        parts = {name: text.strip() for name, text in zip(pieces[::2], pieces[1::2], strict=True)}
        expect("end" in parts, f"the probe did not reach its end: {result.out}")
        return parts

    # --- the checks -------------------------------------------------------------------------------------------

    def host(self) -> Any:
        """gpuhook sees this host's driver and GPUs, and the host's own nvidia-smi lists the same."""
        code, self.info, errors = self.gpuhook("info")
        expect(code == 0, errors)
        self.gpus = self.info["gpus"]
        expect(bool(self.gpus), "no GPU was found")
        if self.machine.smi:
            listed = said(self.machine.smi, "-L")
            self.log.append(listed)
            for gpu in self.gpus:
                expect(gpu["uuid"] in listed, f"the host's nvidia-smi does not list {gpu['uuid']}: {listed}")
        return {"driver": self.info["driver"], "gpus": self.gpus}

    def plain(self) -> None:
        """The packed runc works on this machine."""
        result = self.container(command="exit 7", runtime=self.machine.runc)
        expect(result.code == 7, f"plain runc: {result.code} {result.err}{result.log}")

    def granted(self, asked: str, gpus: list[dict[str, Any]]) -> Any:
        """nvidia-smi and CUDA work inside and show exactly these GPUs; nodes of others are absent."""
        parts = self.sections(f"NVIDIA_VISIBLE_DEVICES={asked}")
        expect("status 0" in parts["smi"], f"nvidia-smi failed: {parts['smi']}")
        expect(self.info["driver"]["version"] in parts["smi"], f"nvidia-smi names another driver: {parts['smi']}")
        listed = [line for line in parts["list"].splitlines() if line.startswith("GPU ")]
        wanted = {gpu["uuid"] for gpu in gpus}
        found = {gpu["uuid"] for gpu in self.gpus if gpu["uuid"] in parts["list"]}
        expect(found == wanted and len(listed) == len(gpus), f"nvidia-smi lists {listed}, wanted {sorted(wanted)}")
        cuda = json.loads(parts["cuda"])
        expect(cuda["cuInit"] == 0, f"cuInit: {cuda}")
        if not self.machine.simulated:  # the simulated libcuda knows no devices
            seen = {device["uuid"] for device in cuda["devices"]}
            expect(seen == wanted, f"CUDA sees {sorted(seen)}, wanted {sorted(wanted)}")
        nodes = {f"nvidia{gpu['minor']}" for gpu in gpus}
        there = {name for name in parts["dev"].split() if name[:6] == "nvidia" and name[6:].isdigit()}
        expect(there == nodes, f"nodes {sorted(there)}, wanted {sorted(nodes)}")
        opened = parts["open"].splitlines()
        expect(len(opened) == len(nodes) and all(line.endswith(": ok") for line in opened), f"opening nodes: {opened}")
        return {"cuda": cuda, "list": listed, "dev": sorted(name for name in parts["dev"].split() if "nvidia" in name)}

    def none(self) -> Any:
        """`none`: the driver's files, no GPU; a node that the container makes itself stays closed."""
        node = next(
            line.split() for line in self.machine.nodes() if line.split()[0] == f"nvidia{self.gpus[0]['minor']}"
        )
        major, minor = node[1].split(":")
        closed = f"mknod /tmp/own c {major} {minor} && opendev /tmp/own"
        parts = self.sections("NVIDIA_VISIBLE_DEVICES=none", closed=closed)
        there = {name for name in parts["dev"].split() if name[:6] == "nvidia" and name[6:].isdigit()}
        expect(not there, f"nodes of GPUs: {sorted(there)}")
        cuda = json.loads(parts["cuda"])
        expect(cuda["cuInit"] is not None, f"libcuda was not loaded: {cuda}")
        if not self.machine.simulated:
            expect(cuda["cuInit"] != 0 or not cuda["devices"], f"CUDA works without a GPU: {cuda}")
        expect("UUID" not in parts["list"], f"nvidia-smi lists a GPU: {parts['list']}")
        expect("Operation not permitted" in parts["closed"], f"its own node {major}:{minor}: {parts['closed']}")
        return {"cuda": cuda, "smi": parts["smi"], "own node": parts["closed"]}

    def unasked(self) -> None:
        """A container that asks for nothing gets nothing."""
        result = self.container(command="ls /dev /usr/lib/*; command -v nvidia-smi; exit 0")
        expect(result.code == 0, f"{result.code} {result.err}")
        expect("nvidia" not in result.out and "libcuda" not in result.out, f"something of the driver: {result.out}")

    def met(self) -> Any:
        """A requirement that this driver meets: the container starts."""
        demand = f"NVIDIA_REQUIRE_CUDA=cuda>={self.info['driver']['cuda']}"
        return self.sections("NVIDIA_VISIBLE_DEVICES=all", demand)["list"]

    def refused(self, status: int, reference: str, *env: str) -> str:
        """The container is not made; explain says the same words."""
        result = self.container(*env, command="echo reached")
        expect(result.code == status, f"status {result.code}, wanted {status}: {result.err}")
        expect("reached" not in result.out, "the container's program ran")
        expect(f"[{reference}]" in result.err, f"stderr: {result.err}")
        expect(f"[{reference}]" in result.log, f"the --log file: {result.log}")
        listed = said(self.machine.runc, "--root", self.machine.work / "runtime/root", "list", "-q")
        expect(not listed, f"runc knows containers: {listed}")
        code, document, _ = self.gpuhook("explain", *[word for item in env for word in ("--env", item)])
        expect((code, document["outcome"]) == (status, "refused"), f"explain: {code} {document['outcome']}")
        first = result.err.splitlines()[0]
        expect(document["error"]["message"] in first, f"explain says {document['error']['message']}, the start {first}")
        return first

    def clean(self, mounts: str, nodes: list[str]) -> None:
        """Nothing of ours is left: mounts, nodes, runc's containers. NVML in the helper made no node."""
        expect(Path("/proc/self/mounts").read_text() == mounts, "mounts changed")
        expect(self.machine.nodes() == nodes, f"device nodes changed: {nodes} to {self.machine.nodes()}")

    def all(self, rounds: int) -> dict[str, Any]:
        """Every check in order; the report."""
        if self.machine.smi:  # as root it may load modules and make nodes: that is not gpuhook's doing
            said(self.machine.smi, "-L")
        mounts, nodes = Path("/proc/self/mounts").read_text(), self.machine.nodes()
        self.run("host", self.host)
        self.run("plain runc", self.plain)
        times: dict[str, Any] = {}
        if self.gpus:
            first, last = self.gpus[0], self.gpus[-1]
            self.run("all", lambda: self.granted("all", self.gpus))
            self.run("index", lambda: self.granted(str(first["index"]), [first]))
            self.run("UUID", lambda: self.granted(last["uuid"], [last]))
            self.run("none", self.none)
            self.run("nothing asked", self.unasked)
            self.run("requirement met", self.met)
            ask = "NVIDIA_VISIBLE_DEVICES=all"
            self.run(
                "requirement not met, CUDA",
                lambda: self.refused(41, "requirement-not-met", ask, "NVIDIA_REQUIRE_CUDA=cuda>=99.0"),
            )
            self.run(
                "requirement not met, driver",
                lambda: self.refused(41, "requirement-not-met", ask, "NVIDIA_REQUIRE_DRIVER=driver>=999"),
            )
            unknown = f"NVIDIA_VISIBLE_DEVICES={len(self.gpus)}"
            self.run("a GPU that is not there", lambda: self.refused(31, "device-unknown", unknown))
            times["record"] = self.run("record, cold and warm", lambda: figures.record_times(self.machine))
            end = min(time.monotonic() + FOR_FIGURES, self.begun + MOST - LAST - ONE)
            times["creates"] = self.run("creates", lambda: figures.create_times(self.machine, rounds, end))
        self.run("nothing is left", lambda: self.clean(mounts, nodes))
        return {
            "adjusted": self.machine.adjusted,
            "seconds": round(time.monotonic() - self.begun, 1),
            "ok": bool(self.gpus) and all(item["ok"] for item in self.results),
            "checks": self.results,
            "figures": times,
        }


def main() -> int:
    """Run all, write the report, print the figures."""
    parser = argparse.ArgumentParser(prog="run")
    parser.add_argument("--simulated", type=Path)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or PACK.parent / "out"))
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(sys.argv[2:])
    work = Path(tempfile.mkdtemp(prefix="gpuhook-gpu-"))
    work.chmod(0o755)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "gpuhook-gpu", work], check=True)
    machine = Machine(PACK, work, (options.simulated or Path("/")).resolve(), options.simulated is not None)
    checks = Checks(machine)
    report: dict[str, Any] = {"ok": False, "machine": machine.facts()}
    try:
        with machine.prepared():
            report |= checks.all(options.rounds)
    except Exception as error:
        report["failure"] = f"{type(error).__name__}: {error}"
        print(f"FAILED  {report['failure']}")
    finally:
        log = machine.world / "var/log/gpuhook/gpuhook.log"
        checks.log += ["== gpuhook's own log", log.read_text() if log.exists() else ""]
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "gpu.json").write_text(json.dumps(report, indent=1) + "\n")
        (options.out / "gpu.log").write_text("\n".join(line for line in checks.log if line) + "\n")
        subprocess.run(["umount", "-l", work], check=False)
        work.rmdir()
    for kind, found in report.get("figures", {}).items():
        for name, item in (found or {}).items():
            added = f", added {item['added']:.2f} ms, {item['added in T']:.2f} T" if "added" in item else ""
            print(f"{kind:8} {name:32} {item['median']:8.2f} ms{added}")
    for text in report.get("adjusted", []):
        print(f"adjusted {text}")
    print(f"{'all ok' if report['ok'] else 'FAILED'}: {options.out / 'gpu.json'}")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
