"""The machine under the checks of tests/gpu/run: what it is, and what must be put right for runc to work on it.

Everything that is changed is named in `adjusted` and taken back at the end. The process has a mount namespace of its
own, so mounts go with it.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIBRARY_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/nvidia")  # beside the usual ones
PROGRAM_FOLDERS = ("/usr/local/nvidia/bin", "/opt/nvidia/bin")


def said(*command: str | Path, seconds: float = 30) -> str:
    """What a command prints, or why it did not run."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({error})"
    return (done.stdout + done.stderr).strip()


def text(path: str | Path) -> str:
    """A small file, empty where it is not there."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


@dataclass
class Machine:
    """Where things are: the pack, a folder for work, the driver (`/`, or a simulated one)."""

    pack: Path
    work: Path
    driver: Path
    simulated: bool
    adjusted: list[str] = field(default_factory=list)
    library_folders: list[str] = field(default_factory=list)
    smi: str = ""  # the host's own nvidia-smi
    _undo: list[Path] = field(default_factory=list)

    @property
    def world(self) -> Path:
        """gpuhook's installation."""
        return self.work / "world"

    @property
    def shim(self) -> Path:
        """gpuhook as a runtime."""
        return self.world / "usr/bin/gpuhook-runtime"

    @property
    def cli(self) -> Path:
        """The command line."""
        return self.world / "usr/bin/gpuhook"

    @property
    def runc(self) -> Path:
        """The low-level runtime."""
        return self.work / "bin/runc"

    def facts(self) -> dict[str, Any]:
        """What the figures hold for."""
        cpu = [line for line in text("/proc/cpuinfo").splitlines() if line.startswith("model name")]
        return {
            "pack": text(self.pack / "MANIFEST").splitlines(),
            "kernel": platform.release(),
            "cpu": f"{cpu[0].partition(':')[2].strip() if cpu else platform.machine()}, {os.cpu_count()} cores",
            "system": [line for line in text("/etc/os-release").splitlines() if line.startswith("PRETTY_NAME")],
            "python": said("/usr/bin/python3", "--version"),
            "module": text(self.driver / "proc/driver/nvidia/version")
            or text(self.driver / "sys/module/nvidia/version"),
            "gpus in /proc": sorted(path.name for path in (self.driver / "proc/driver/nvidia/gpus").glob("*")),
            "nodes": self.nodes(),
            "cgroup": [line.split()[1:3] for line in text("/proc/mounts").splitlines() if "cgroup" in line.split()[2]],
            "loader cache": [line.strip() for line in said("ldconfig", "-p").splitlines() if "libcuda" in line],
            "simulated": self.simulated,
        }

    def nodes(self) -> list[str]:
        """The driver's device nodes, as `name major:minor mode owner:group`."""
        found = []
        for path in sorted((self.driver / "dev").glob("nvidia*")):
            status = path.lstat()
            number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            found.append(f"{path.name} {number} {status.st_mode & 0o777:o} {status.st_uid}:{status.st_gid}")
        return found

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Install gpuhook and make runc work; take back what was changed."""
        try:
            self._python()
            self._runc()
            self._cgroups()
            command: list[str | Path] = ["/usr/bin/python3", "-I"]
            command += [self.pack / "scripts/layout.py", self.pack, self.pack / "vendor"]
            done = subprocess.run([*command, self.world], capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"layout.py failed: {done.stdout}{done.stderr}")
            self._find_driver()
            self.configure()
            yield
        finally:
            for path in self._undo:
                path.unlink(missing_ok=True)

    def configure(self, more: str = "") -> None:
        """Write runtime.toml; `more` is further TOML."""
        lines = ["[runtime]", f'low-level = ["{self.runc}"]', "[driver]"]
        if self.simulated:
            lines += [f'{name} = "{self.driver}"' for name in ("driver-root", "dev-root", "proc-root", "sys-root")]
        if self.library_folders:
            listed = ", ".join(f'"{folder}"' for folder in self.library_folders)
            lines.append(f"library-dirs = [{listed}]")
        path = self.world / "etc/gpuhook/runtime.toml"
        path.write_text("\n".join(lines) + f"\n{more}\n")

    def _put(self, path: Path, source: Path, why: str) -> None:
        """Make a link that was not there, until the end."""
        path.symlink_to(source)
        self._undo.append(path)
        self.adjusted.append(f"{path} -> {source}: {why}")

    def _python(self) -> None:
        """The launchers start /usr/bin/python3."""
        place = Path("/usr/bin/python3")
        found = shutil.which("python3")
        if not place.exists() and found:
            self._put(place, Path(found), "the machine's Python is elsewhere")

    def _runc(self) -> None:
        """The packed runc; a library of it that the machine lacks goes where the loader looks without a cache."""
        shutil.copytree(self.pack / "bin", self.work / "bin")
        missing = [line.split()[0] for line in said("ldd", self.runc).splitlines() if "not found" in line]
        folder = next((path for path in Path("/usr/lib").glob("*-linux-gnu") if path.is_dir()), Path("/usr/lib"))
        for name in missing:
            if (self.pack / "lib" / name).exists():
                copy = self.work / "bin" / name
                shutil.copy(self.pack / "lib" / name, copy)
                self._put(folder / name, copy, "runc needs it")

    def _cgroups(self) -> None:
        """A machine that shows no cgroups gets them, in this mount namespace."""
        if any("cgroup" in line.split()[2] for line in text("/proc/mounts").splitlines()):
            return
        Path("/sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
        told = said("mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
        self.adjusted.append(f"mounted cgroup2 at /sys/fs/cgroup {told}".strip())

    def _find_driver(self) -> None:
        """Where a driver lies that no package put there, as in many cloud machines."""
        if self.simulated:
            return
        usual = said("ldconfig", "-p")
        folders = [folder for folder in LIBRARY_FOLDERS if list(Path(folder).glob("libcuda.so.*.*"))]
        if folders and "libcuda.so.1" not in usual:
            self.library_folders = folders
            self.adjusted.append(f"library-dirs of runtime.toml: {', '.join(folders)}")
        self.smi = shutil.which("nvidia-smi") or ""
        for folder in PROGRAM_FOLDERS:
            program = Path(folder) / "nvidia-smi"
            if not program.exists():
                continue
            self.smi = self.smi or str(program)
            place = Path("/usr/local/bin/nvidia-smi")
            if not place.exists() and not Path("/usr/bin/nvidia-smi").exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                self._put(place, program, "gpuhook looks for programs in the usual folders only")
