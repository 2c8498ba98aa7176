"""OCI bundles as docker and containerd write them, and real runtimes run on them."""

import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.images import CHECKOUT, image

CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID"]
CAPABILITIES += ["CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL"]
CAPABILITIES += ["CAP_AUDIT_WRITE"]
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_numbers = itertools.count(1)


def mount(destination: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    """One entry of `mounts`."""
    return {"destination": destination, "type": kind, "source": source, "options": list(options)}


def default_mounts() -> list[dict[str, Any]]:
    """What docker and containerd mount into every container."""
    return [
        mount("/proc", "proc", "proc"),
        mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        mount("/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
        mount("/dev/shm", "tmpfs", "shm", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k"),
        mount("/dev/mqueue", "mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        mount("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", "ro"),
    ]


def config(
    *,
    args: Sequence[str] = ("/bin/true",),
    env: Sequence[str] = (),
    annotations: Mapping[str, str] | None = None,
    readonly: bool = False,
    mounts: Iterable[dict[str, Any]] = (),
    capabilities: Sequence[str] = (),
    hooks: Mapping[str, list[dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    """A config.json: the default mounts and `mounts`, only the runtime's own devices, docker's rights and more."""
    granted = [*CAPABILITIES, *capabilities]
    spec: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(args),
            "env": [PATH, *env],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), granted),
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": readonly},
        "hostname": "box",
        "mounts": [*default_mounts(), *mounts],
        "annotations": dict(annotations or {}),
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    }
    if hooks:
        spec["hooks"] = dict(hooks)
    return spec


# Somebody else's hook, that does nothing. It reads its state: to crun a hook that ends before is one that failed.
OTHERS_HOOK = {"path": "/bin/sh", "args": ["sh", "-c", "cat >/dev/null"]}


@dataclass
class Bundle:
    """A bundle folder; `close` takes down what was mounted for it."""

    path: Path
    mounted: bool = False

    @property
    def rootfs(self) -> Path:
        """The root file system as the runtime sees it."""
        return self.path / "rootfs"

    @property
    def spec(self) -> Any:
        """What config.json says now."""
        return json.loads((self.path / "config.json").read_bytes())

    def close(self) -> None:
        """Unmount the overlay, if there is one."""
        if self.mounted:
            subprocess.run(["umount", "-l", self.rootfs], check=True)
            self.mounted = False


def make(path: Path, tree: str | Path = "glibc", *, overlay: bool = False, **options: Any) -> Bundle:
    """Write a bundle on a copy of an image (by name or tree), or on an overlay of it as engines do.

    `options` are those of `config`. The image itself is never changed.
    """
    source = image(tree) if isinstance(tree, str) else tree
    path.mkdir(parents=True)
    if overlay:
        for name in ("upper", "work", "rootfs"):
            (path / name).mkdir()
        layers = f"lowerdir={source},upperdir={path}/upper,workdir={path}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, path / "rootfs"], check=True)
    else:
        subprocess.run(["cp", "-a", "--reflink=auto", source, path / "rootfs"], check=True)
    (path / "config.json").write_text(json.dumps(config(**options), indent=1))
    return Bundle(path, overlay)


@dataclass
class Result:
    """How a container ended: the runtime's exit code, all output of runtime and container, the `--log` file."""

    code: int
    out: str
    err: str
    log: str

    @property
    def logged(self) -> list[dict[str, str]]:
        """The lines of a JSON log."""
        return [json.loads(line) for line in self.log.splitlines()]


@dataclass
class Runtime:
    """A runtime binary with state and logs of its own below `state`."""

    binary: str | Path
    state: Path
    options: Sequence[str] = ()
    log_format: str = "json"
    env: Mapping[str, str] | None = None
    within: Sequence[str] = ()  # a command that runs what follows it, such as tests/in-cgroup.sh v1
    timeout: float = 60
    _log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        self._log = self.state / "log"

    def call(self, *arguments: str | Path, cwd: Path | None = None) -> Result:
        """One call of the runtime, with the global options that containerd gives."""
        self._log.unlink(missing_ok=True)
        before: list[str | Path] = ["--root", self.state / "root", "--log", self._log, "--log-format", self.log_format]
        command = [*self.within, self.binary, *before, *self.options, *arguments]
        # files, not pipes: a container that was created keeps them open
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=cwd,
                env=None if self.env is None else dict(self.env),
                timeout=self.timeout,
                check=False,
            )
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().decode(errors="replace"))
        log = self._log.read_text(errors="replace") if self._log.exists() else ""
        return Result(done.returncode, texts[0], texts[1], log)

    def run(self, bundle: Bundle, *options: str) -> Result:
        """Run a container from start to end."""
        return self.call("run", *options, "--bundle", bundle.path, self.new_id())

    def create(self, bundle: Bundle, container: str) -> Result:
        """Create a container as containerd does: it waits before its first program until it is started."""
        return self.call("create", "--bundle", bundle.path, "--pid-file", self.state / "pid", container)

    def pid(self) -> int:
        """The process of the container created last."""
        return int((self.state / "pid").read_text())

    def wait_stopped(self, container: str) -> None:
        """Wait until a container has ended."""
        end = time.monotonic() + self.timeout
        while json.loads(self.call("state", container).out or '{"status": "stopped"}')["status"] != "stopped":
            if time.monotonic() > end:
                raise TimeoutError(container)
            time.sleep(0.02)

    def delete(self, container: str) -> Result:
        """Kill and remove a container, whatever its state is."""
        return self.call("delete", "--force", container)

    @staticmethod
    def new_id() -> str:
        """A name that no container on this machine has."""
        return f"t{os.getpid()}-{next(_numbers)}"


def within(runtime: Runtime, layout: str) -> Runtime:
    """The runtime where it sees one cgroup layout: `v1`, `v2`, or the machine's own (`host`)."""
    runtime.within = [str(CHECKOUT / "tests/in-cgroup.sh"), layout]
    return runtime


def tool(name: str) -> str:
    """The absolute path of a program, looked for where root's programs are too. Raises FileNotFoundError."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not found:
        raise FileNotFoundError(f"{name} is not there; scripts/test installs what the tests need")
    return found
