"""The files that stand for what the kernel shows of the driver: proc, sys, and the device nodes.

Formats are those of NVIDIA's kernel module (open-gpu-kernel-modules, nv-procfs.c) and of /proc/devices.
"""

import hashlib
import os
import platform
import shutil
import stat
import uuid
from collections.abc import Collection
from pathlib import Path

from gpuhook.errors import GpuhookError
from gpuhook.sim.options import MAX_CI, MAX_GI
from gpuhook.sim.state import State, capability

MISC_MAJOR = 10
DXG = "dev/dxg"  # of WSL2: one of the misc devices, whose minor /proc/misc tells
MEM_MAJOR = 1

# Character devices that do nothing to anyone who opens them, none of which runc lets a container open by default; which
# of them a kernel has, and by which minor, is said by /proc/misc. Watchdogs and the like are not here for a reason.
_HARMLESS = (
    "loop-control",
    "fuse",
    "vsock",
    "autofs",
    "btrfs-control",
    "kvm",
    "userfaultfd",
    "vga_arbiter",
    "cpu_dma_latency",
    "vhost-net",
    "vhost-vsock",
    "rfkill",
    "udmabuf",
)
# Where none of those can be opened (a container that builds this): zero, null, full, urandom, random. Every container
# may open these, so a test of device rules needs the former.
_MEMORY = (5, 3, 7, 9, 8)

# What NVIDIA_GDS and its like stand for: a kernel driver's name in /proc/devices, and its nodes.
SWITCHES = {
    "gds": ("nvidia-fs", ("nvidia-fs0", "nvidia-fs1")),
    "mofed": ("infiniband_verbs", ("infiniband/uverbs0", "infiniband/rdma_cm")),
    "gdrcopy": ("gdrdrv", ("gdrdrv",)),
    "nvswitch": ("nvidia-nvswitch", ("nvidia-nvswitchctl", "nvidia-nvswitch0")),
}

_CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


def write_module(root: Path, state: State, major: int) -> None:
    """Write (or, with no module loaded, remove) what the kernel module shows; the rest of proc stays as it is."""
    driver = root / "proc/driver/nvidia"
    module = root / "sys/module/nvidia"
    for directory in (driver, module, root / "proc/driver/nvidia-caps"):
        shutil.rmtree(directory, ignore_errors=True)
    lines = ["Character devices:", "  1 mem", "  5 /dev/tty", " 10 misc"]
    if (root / DXG).exists():
        lines[-1] = f"{major:3} misc"
        _write(root / "proc/misc", f"{os.minor((root / DXG).stat().st_rdev):3} dxg\n")
    elif version := state.module:
        # up to 545 one name stood for all nodes of major 195
        names = ["nvidia-frontend"] if int(version.split(".")[0]) < 550 else ["nvidia", "nvidia-modeset", "nvidiactl"]
        lines += [f"{major:3} {name}" for name in (*names, "nvidia-uvm")]
        lines += [f"{major:3} nvidia-caps", f"{major:3} nvidia-caps-imex-channels"]
        (driver / "gpus").mkdir(parents=True)
        for index in state.divided:
            (driver / f"capabilities/gpu{state.gpus[index].minor}/mig").mkdir(parents=True)
        for path, content in _module_files(state, version).items():
            _write(root / path, content)
    lines += [f"{major:3} {name}" for name, nodes in SWITCHES.values() if (root / "dev" / nodes[0]).exists()]
    lines += ["", "Block devices:", "  7 loop", "254 virtblk", ""]
    _write(root / "proc/devices", "\n".join(lines))


def write_firmware_path(root: Path, path: str) -> None:
    """Write where the kernel looks for firmware first (its parameter firmware_class.path)."""
    _write(root / "sys/module/firmware_class/parameters/path", f"{path}\n")


def write_boot(root: Path) -> None:
    """Write what is new at each boot."""
    _write(root / "proc/sys/kernel/random/boot_id", f"{uuid.uuid4()}\n")


def _module_files(state: State, version: str) -> dict[str, str]:
    access = "DeviceFileMinor: {}\nDeviceFileMode: {}\nDeviceFileModify: 1\n"
    files = {
        "proc/driver/nvidia/version": (
            f"NVRM version: NVIDIA UNIX {platform.machine()} Kernel Module  {version}  Tue Sep 23 10:11:16 UTC 2025\n"
            "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1) \n"
        ),
        "proc/driver/nvidia/params": (
            "ResmanDebugLevel: 4294967295\nRmLogonRC: 1\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\n"
            "DeviceFileMode: 438\nInitializeSystemMemoryAllocations: 1\nUsePageAttributeTable: 4294967295\n"
            'EnableMSI: 1\nDynamicPowerManagement: 3\nRegistryDwords: ""\nRegistryDwordsPerDevice: ""\nRmMsg: ""\n'
            'GpuBlacklist: ""\nTemporaryFilePath: ""\nExcludedGpus: ""\n'
        ),
        "proc/driver/nvidia/registry": 'Binary: ""\n',
        "proc/driver/nvidia/capabilities/mig/config": access.format(1, 256),
        "proc/driver/nvidia/capabilities/mig/monitor": access.format(2, 256),
        "proc/driver/nvidia-caps/mig-minors": _mig_minors(state),
        "sys/module/nvidia/version": f"{version}\n",
        "sys/module/nvidia/srcversion": hashlib.sha256(version.encode()).hexdigest()[:24].upper() + "\n",
        "sys/module/nvidia/initstate": "live\n",
        "sys/module/nvidia/refcnt": "4\n",
    }
    for number, gpu in enumerate(state.gpus):
        address = gpu.bus_id[4:] if gpu.bus_id.startswith("0000") else gpu.bus_id
        files[f"proc/driver/nvidia/gpus/{address}/information"] = (
            f"Model: \t\t {gpu.model}\nIRQ:   \t\t {64 + number}\nGPU UUID: \t {gpu.uuid}\n"
            "Video BIOS: \t 96.00.74.00.01\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n"
            f"Bus Location: \t {address}\nDevice Minor: \t {gpu.minor}\n"
            f"GPU Firmware: \t {version}\nGPU Excluded:\t No\n"
        )
    for mig in state.migs:
        minor = state.gpus[mig.gpu].minor
        folder = f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{mig.gi}"
        files[f"{folder}/access"] = access.format(capability(minor, mig.gi), 292)
        files[f"{folder}/ci{mig.ci}/access"] = access.format(capability(minor, mig.gi, mig.ci), 292)
    return files


def _mig_minors(state: State) -> str:
    """All capabilities that there could be, as the kernel module lists them, whatever instances there are."""
    lines = ["config 1", "monitor 2"]
    for minor in sorted(gpu.minor for gpu in state.gpus):
        for gi in range(MAX_GI + 1):
            lines.append(f"gpu{minor}/gi{gi}/access {capability(minor, gi)}")
            lines += [f"gpu{minor}/gi{gi}/ci{ci}/access {capability(minor, gi, ci)}" for ci in range(MAX_CI + 1)]
    return "\n".join(lines) + "\n"


def major(root: Path) -> int:
    """The major of the stand-ins of a tree."""
    node = root / DXG
    return os.major((node if node.exists() else root / "dev/nvidiactl").stat().st_rdev)


def make_nodes(root: Path, state: State, *, windows: bool = False) -> int:
    """Make the stand-ins below dev and say their major. Raises sim-failed where nodes can't be made or opened.

    With `windows` there is one for all GPUs.

    GPU 0 and 1 differ, and no GPU shares a stand-in with a control node as long as there are enough to go round.
    """
    directory = root / "dev"
    directory.mkdir(exist_ok=True)
    major, controls, gpus = _shared_out(directory)
    if windows:
        _node(root / DXG, major, gpus[0])
        return major
    for name, minor in zip(_CONTROL, controls, strict=True):
        _node(directory / name, major, minor)
    for index, gpu in enumerate(state.gpus):
        _node(directory / f"nvidia{gpu.minor}", major, gpus[index % len(gpus)])
    divide(root, state)
    return major


def divide(root: Path, state: State) -> None:
    """Make the nodes of MIG anew, if any GPU is divided: a stand-in for each MIG device in turn, of those left over.

    The rights over all (config, monitor) stand on nvidia-modeset's, which few containers get.
    """
    directory = root / "dev/nvidia-caps"
    shutil.rmtree(directory, ignore_errors=True)
    if not state.divided:
        return
    major, controls, gpus = _shared_out(root / "dev")
    minors = gpus[len(state.gpus) :] or gpus
    directory.mkdir()
    directory.chmod(0o755)
    nodes = {1: controls[-1], 2: controls[-1]}
    for index, mig in enumerate(state.migs):
        minor = state.gpus[mig.gpu].minor
        for number in (capability(minor, mig.gi), capability(minor, mig.gi, mig.ci)):
            nodes.setdefault(number, minors[index % len(minors)])
    for number, minor in nodes.items():
        _node(directory / f"nvidia-cap{number}", major, minor)


def switch(root: Path, state: State, words: Collection[str]) -> None:
    """Give the host the drivers of these words and no other: their nodes, each word's of a stand-in that no GPU has."""
    directory = root / "dev"
    major, _, gpus = _shared_out(directory)
    minors = gpus[len(state.gpus) :] or gpus
    (directory / "infiniband").mkdir(exist_ok=True)
    (directory / "infiniband").chmod(0o755)
    for number, (word, (_, names)) in enumerate(SWITCHES.items()):
        for name in names:
            (directory / name).unlink(missing_ok=True)
            if word in words:
                _node(directory / name, major, minors[number % len(minors)])
    if "mofed" in words:
        _write(root / "proc/misc", f"{os.minor((directory / 'infiniband/rdma_cm').stat().st_rdev):3} rdma_cm\n")


def _shared_out(directory: Path) -> tuple[int, list[int], list[int]]:
    """The stand-ins' major, the minors of the control nodes, and those for GPUs and MIG devices."""
    major, minors = _stand_ins(directory)
    controls = minors[-4:] if len(minors) >= 6 else minors[-1:] * 4
    return major, controls, minors[: len(minors) - len(set(controls))]


def _stand_ins(directory: Path) -> tuple[int, list[int]]:
    try:
        lines = [line.split() for line in Path("/proc/misc").read_text().splitlines()]
    except OSError:
        lines = []
    known = {words[1]: int(words[0]) for words in lines if len(words) == 2}
    for major, minors in (
        (MISC_MAJOR, [known[name] for name in _HARMLESS if name in known]),
        (MEM_MAJOR, list(_MEMORY)),
    ):
        usable = [minor for minor in minors if _opens(directory / "stand-in", major, minor)]
        if len(usable) >= 3:
            return major, usable
    raise GpuhookError(
        "sim-failed",
        f"no device node made in {directory.parent.parent} can be opened, so none can stand in for the driver's",
        "choose a directory on a file system that is not mounted nodev, or allow this container to open devices",
    )


def _opens(path: Path, major: int, minor: int) -> bool:
    _node(path, major, minor)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    finally:
        path.unlink()
    return True


def _node(path: Path, major: int, minor: int) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    except PermissionError:
        raise GpuhookError(
            "sim-failed",
            f"making the device node {path.name} was refused: only root may, and the simulated driver needs some",
            "run it as root (not in a user namespace)",
        ) from None
    path.chmod(0o666)  # whatever the umask


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
