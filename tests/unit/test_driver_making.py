"""Device nodes that are missing: when they are made, as what, and that nothing else is."""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import config as settings
from gpuhook.config import Config
from gpuhook.driver import making, nodes
from gpuhook.errors import GpuhookError
from gpuhook.model import Gpu, Mig, Node, replace

DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
509 nvidia-uvm
238 nvidia-caps
239 nvidia-caps-imex-channels

Block devices:
  7 loop
"""
PARAMS = "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\nImexChannelCount: 2048\n"
GPU = Gpu(0, "GPU-0", 3, "00000000:0b:00.0", "name", "tesla", (9, 0))
PART = replace(GPU, mig=True, uuid="MIG-1", migs=(Mig(0, "MIG-1", 1, 0, 12, 13),))


@pytest.fixture
def host(folder: Path) -> Config:
    """A host after its boot: the kernel has the drivers, /dev has nothing."""
    (folder / "dev").mkdir()
    (folder / "dev").chmod(0o755)
    write(folder / "proc/devices", DEVICES)
    write(folder / "proc/driver/nvidia/params", PARAMS)
    write(folder / "proc/driver/nvidia/capabilities/gpu3/mig/gi1/access", access(12))
    write(folder / "proc/driver/nvidia/capabilities/gpu3/mig/gi1/ci0/access", access(13))
    write(folder / "proc/driver/nvidia/capabilities/mig/config", access(1, 256))
    write(folder / "proc/driver/nvidia-caps/mig-minors", "config 1\n")
    return Config(dev_root=str(folder), proc_root=str(folder))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def access(minor: int, mode: int = 292, modify: int = 1) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: {modify}\n"


def missing(name: str, major: int, minor: int, mode: int = 0o660, gid: int = 44) -> Node:
    return Node(f"/dev/{name}", major, minor, mode, 0, gid, missing=True)


def all_of(config: Config) -> tuple[Node, ...]:
    return (
        nodes.control(config, ("compute",)) + nodes.of_gpus(config, (PART,)) + nodes.beside(config, ("config",), (7,))
    )


WANTED = (
    missing("nvidiactl", 195, 255),
    missing("nvidia-uvm", 509, 0),
    missing("nvidia-uvm-tools", 509, 1),
    missing("nvidia3", 195, 3),
    missing("nvidia-caps/nvidia-cap12", 238, 12, 0o444, 0),
    missing("nvidia-caps/nvidia-cap13", 238, 13, 0o444, 0),
    missing("nvidia-caps/nvidia-cap1", 238, 1, 0o400, 0),
    missing("nvidia-caps-imex-channels/channel7", 239, 7),
)


def test_r93_r95_r147_all_are_planned_and_made(host: Config, folder: Path) -> None:
    """Each kind with the kernel's major, the driver's minor, and owner and mode as the driver says, once planned and
    nothing done; and once made they are there like any other."""
    planned = all_of(host)
    assert planned == WANTED
    assert os.listdir(folder / "dev") == []

    old = os.umask(0o077)
    try:
        made = nodes.make(host, planned)
    finally:
        os.umask(old)

    assert made == tuple(f"{folder}{node.path}" for node in WANTED)
    assert all_of(host) == tuple(replace(node, missing=False) for node in WANTED)
    assert stat.S_IMODE((folder / "dev/nvidia-caps").stat().st_mode) == 0o755
    assert sorted(os.listdir(folder / "dev")) == [
        *("nvidia-caps", "nvidia-caps-imex-channels", "nvidia-uvm", "nvidia-uvm-tools", "nvidia3", "nvidiactl"),
    ]
    assert nodes.make(host, all_of(host)) == ()


def test_without_the_drivers_words_they_are_open(host: Config, folder: Path) -> None:
    """As NVIDIA's own tool has it: mode 0666, root's."""
    (folder / "proc/driver/nvidia/params").unlink()
    assert nodes.control(host, ())[0] == missing("nvidiactl", 195, 255, 0o666, 0)


def test_only_what_is_missing_is_made(host: Config, folder: Path) -> None:
    os.mknod(folder / "dev/nvidiactl", stat.S_IFCHR | 0o600, os.makedev(195, 255))
    before = (folder / "dev/nvidiactl").stat()
    granted = nodes.control(host, ("compute",))
    assert [node.missing for node in granted] == [False, True, True]
    assert len(nodes.make(host, granted)) == 2
    assert (folder / "dev/nvidiactl").stat() == before


def test_modeset_where_its_module_is_loaded(host: Config, folder: Path) -> None:
    """A newer driver's module has a line of its own; of an older one nobody knows, and nothing is made."""
    assert nodes.control(host, ("graphics",))[1:] == (missing("nvidia-modeset", 195, 254),)
    write(folder / "proc/devices", DEVICES.replace("195 nvidia-modeset\n", ""))
    assert nodes.control(host, ("graphics",))[1:] == ()


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "the-driver": (
        lambda at: write(at / "proc/driver/nvidia/params", PARAMS.replace("Files: 1", "Files: 0")),
        "the driver forbids it (ModifyDeviceFiles is 0",
    ),
    "others-may-write": (lambda at: (at / "dev").chmod(0o777), "can be written by others"),
    "another-owner": (lambda at: os.chown(at / "dev", 1000, 0), "owned by uid 1000"),
    "above-it": (lambda at: os.chown(at, 1000, 0), "owned by uid 1000"),
    "no-directory": (lambda at: (at / "dev").rmdir(), "is no directory"),
}


@pytest.mark.parametrize(("spoil", "said"), REFUSED.values(), ids=REFUSED)
def test_not_made(spoil: Callable[[Path], object], said: str, host: Config, folder: Path) -> None:
    """The error says what forbids it, and what to run."""
    spoil(folder)
    with pytest.raises(GpuhookError) as caught:
        nodes.control(host, ("compute",))
    assert caught.value.reference == "node-missing"
    assert "gpuhook does not make it" in caught.value.message
    assert said in caught.value.message
    assert "nvidia-modprobe" in caught.value.hint


def test_the_administrator_forbids_it(host: Config) -> None:
    with pytest.raises(GpuhookError, match=r"driver\.make-nodes is false"):
        nodes.control(replace(host, make_nodes=False), ())


def test_a_capability_that_the_driver_keeps(host: Config, folder: Path) -> None:
    """Each capability has its own word on it."""
    write(folder / "proc/driver/nvidia/capabilities/gpu3/mig/gi1/access", access(12, modify=0))
    with pytest.raises(GpuhookError, match="DeviceFileModify is 0"):
        nodes.of_gpus(host, (PART,))


def test_r38_a_channel_that_the_driver_has_not(host: Config, folder: Path) -> None:
    write(folder / "proc/driver/nvidia/params", PARAMS.replace("2048", "4"))
    assert nodes.beside(host, (), (3,)) == (missing("nvidia-caps-imex-channels/channel3", 239, 3),)
    with pytest.raises(GpuhookError, match=r"the driver has 4 channels \(ImexChannelCount\)"):
        nodes.beside(host, (), (4,))


def test_without_its_kernel_driver_nothing_is_made(host: Config, folder: Path) -> None:
    """R93: then the error is about the module."""
    write(folder / "proc/devices", DEVICES.replace("509 nvidia-uvm\n", ""))
    with pytest.raises(GpuhookError, match="the kernel has no driver nvidia-uvm") as caught:
        nodes.control(host, ("compute",))
    assert "modprobe nvidia-uvm" in caught.value.hint


def test_no_root_of_the_host(host: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "is_host_root", lambda: False)
    with pytest.raises(GpuhookError, match="takes root of the host"):
        nodes.control(host, ())


def test_in_a_user_namespace(host: Config, folder: Path) -> None:
    """Its root is not the host's: the same words from the kernel's own map."""
    code = (
        "from gpuhook.config import Config; from gpuhook.driver import nodes\n"
        "from gpuhook.errors import GpuhookError\n"
        f"try: nodes.control(Config(dev_root={str(folder)!r}, proc_root={str(folder)!r}), ())\n"
        "except GpuhookError as error: print(error.message)"
    )
    package = str(Path(nodes.__file__).parents[2])
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-c", code],
        env={"PYTHONPATH": package},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr:
        pytest.skip("user namespaces are closed here")
    assert "takes root of the host" in done.stdout, done


def test_somebody_else_is_faster(host: Config, folder: Path) -> None:
    """The same node made meanwhile is fine and stays; another object in its place is an error and stays too."""
    node = nodes.control(host, ())[0]
    os.mknod(folder / "dev/nvidiactl", stat.S_IFCHR | 0o600, os.makedev(195, 255))
    making.make(host, node)
    assert stat.S_IMODE((folder / "dev/nvidiactl").stat().st_mode) == 0o600
    (folder / "dev/nvidiactl").unlink()
    (folder / "dev/nvidiactl").symlink_to("/etc/passwd")
    with pytest.raises(GpuhookError, match="something else was made there meanwhile"):
        making.make(host, node)
    assert os.listdir(folder / "dev") == ["nvidiactl"]


@pytest.mark.parametrize("kind", ["link", "file", "open"])
def test_a_folder_of_nodes_that_is_none(kind: str, host: Config, folder: Path) -> None:
    """/dev/nvidia-caps is a link elsewhere, a file, or everybody's: nothing is made through it."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    planned = nodes.beside(host, ("config",), ())
    caps = folder / "dev/nvidia-caps"
    if kind == "link":
        caps.symlink_to(elsewhere)
    elif kind == "file":
        caps.touch()
    else:
        caps.mkdir()
        caps.chmod(0o777)
    with pytest.raises(GpuhookError, match="can't be made"):
        nodes.make(host, planned)
    assert os.listdir(elsewhere) == []
    assert kind != "open" or os.listdir(caps) == []


def test_left_by_a_killed_start(host: Config, folder: Path) -> None:
    (folder / f"dev/.nvidiactl.{os.getpid()}.gpuhook").touch()
    assert nodes.make(host, nodes.control(host, ())) == (f"{folder}/dev/nvidiactl",)
    assert os.listdir(folder / "dev") == ["nvidiactl"]


def test_what_other_killed_starts_left_is_swept_away(
    host: Config, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a node that another start is making now, and nothing that is no node."""
    left, other, made = [folder / "dev" / name for name in (".nvidia0.1.gpuhook", ".file.gpuhook", "nvidiactl")]
    os.mknod(left, 0o666 | stat.S_IFCHR, os.makedev(195, 0))
    other.touch()
    nodes.make(host, nodes.control(host, ()))
    assert left.exists()
    made.unlink()
    later = time.time() + making._LEFT + 1
    monkeypatch.setattr(time, "time", lambda: later)
    nodes.make(host, nodes.control(host, ()))
    assert made.exists()
    assert not left.exists()
    assert other.exists()


def test_many_at_once(host: Config, folder: Path) -> None:
    """Sixteen starts after a boot: each succeeds, and nothing is left over."""
    planned = nodes.control(host, ("compute",))
    children = []
    for _ in range(16):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if len(nodes.make(host, planned)) == 3 else 2
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 16
    assert sorted(os.listdir(folder / "dev")) == ["nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"]


def test_a_file_system_without_devices(host: Config, folder: Path) -> None:
    """Nodes on a nodev mount open for nobody."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nodev,mode=755", "none", folder / "dev"], check=True)
    try:
        with pytest.raises(GpuhookError, match="is mounted nodev"):
            nodes.control(host, ())
    finally:
        subprocess.run(["umount", folder / "dev"], check=True)


def test_before_nvml(host: Config, folder: Path) -> None:
    """NVML opens the nodes of all GPUs, whose minors are the kernel's word: not the order of their addresses (R31)."""
    for address, minor in (("0000:0b:00.0", "1"), ("0000:84:00.0", "0"), ("0000:85:00.0", "x")):
        write(folder / f"proc/driver/nvidia/gpus/{address}/information", f"Model: \t x\nDevice Minor: \t {minor}\n")
    making.before_nvml(host)
    assert sorted(os.listdir(folder / "dev")) == ["nvidia0", "nvidia1", "nvidiactl"]
    assert os.minor((folder / "dev/nvidia1").stat().st_rdev) == 1

    (folder / "dev/nvidia0").unlink()
    making.before_nvml(host)
    assert not (folder / "dev/nvidia0").exists(), "who has made some has chosen"
    (folder / "dev/nvidiactl").unlink()
    making.before_nvml(replace(host, make_nodes=False))
    assert os.listdir(folder / "dev") == ["nvidia1"]
    making.before_nvml(replace(host, dev_root="/nonexistent"))


WRONG = {
    "another-gpu": ("nvidia3", 195, 0, "gives nvidia3 the minor 3"),
    "control": ("nvidiactl", 195, 3, "gives nvidiactl the minor 255"),
    "uvm": ("nvidia-uvm", 509, 1, "gives nvidia-uvm the minor 0"),
    "capability": ("nvidia-caps/nvidia-cap13", 238, 12, "gives nvidia-caps/nvidia-cap13 the minor 13"),
    "channel": ("nvidia-caps-imex-channels/channel7", 239, 8, "the minor 7"),
}


@pytest.mark.parametrize(("name", "major", "minor", "said"), WRONG.values(), ids=WRONG)
def test_a_node_of_another_minor(name: str, major: int, minor: int, said: str, host: Config, folder: Path) -> None:
    """A name that leads to another GPU, or another container's MIG device, is never given."""
    nodes.make(host, all_of(host))
    path = folder / "dev" / name
    path.unlink()
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    with pytest.raises(GpuhookError) as caught:
        all_of(host)
    assert said in caught.value.message
    assert "remove it" in caught.value.hint
