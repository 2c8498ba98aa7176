"""Device nodes: which are given, and what is said of each that is missing or is something else."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook.config import Config
from gpuhook.driver import key, nodes
from gpuhook.errors import GpuhookError
from gpuhook.model import Gpu, Mig, Node, replace

MAJOR, UVM, CAPS = 195, 509, 238

DEVICES = """Character devices:
  1 mem
{core}
{uvm}
238 nvidia-caps
239 nvidia-caps-imex-channels
300 notnvidia

Block devices:
  7 loop
195 nvidia-block
"""


@pytest.fixture
def host(folder: Path) -> Callable[..., Config]:
    """Makes a dev and a proc root with the driver's usual nodes."""

    def make(core: str = "195 nvidia", uvm: str = "509 nvidia-uvm", mode: int = 0o666) -> Config:
        (folder / "dev").mkdir()
        (folder / "proc").mkdir()
        (folder / "proc/devices").write_text(DEVICES.format(core=core, uvm=uvm))
        for name, major, minor in (
            ("nvidiactl", MAJOR, 255),
            ("nvidia-modeset", MAJOR, 254),
            ("nvidia0", MAJOR, 0),
            ("nvidia5", MAJOR, 5),
            ("nvidia-uvm", UVM, 0),
            ("nvidia-uvm-tools", UVM, 1),
        ):
            node(folder / "dev" / name, major, minor, mode)
        return Config(dev_root=str(folder), proc_root=str(folder), make_nodes=False)

    return make


def node(path: Path, major: int, minor: int, mode: int = 0o666) -> None:
    path.unlink(missing_ok=True)
    os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
    path.chmod(mode)


def gpu(index: int, minor: int, error: str = "") -> Gpu:
    return Gpu(index, f"GPU-{index}", minor, "00000000:0b:00.0", "name", "tesla", (9, 0), error)


GIVEN = {
    "nothing": ((), ["nvidiactl"]),
    "utility": (("utility",), ["nvidiactl"]),
    "compute": (("compute",), ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]),
    "graphics": (("graphics",), ["nvidiactl", "nvidia-modeset"]),
    "display": (("display",), ["nvidiactl", "nvidia-modeset"]),
    "video": (("video",), ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]),  # decoders call CUDA
    "ngx": (("ngx",), ["nvidiactl"]),
    "all": (
        ("compute", "display", "graphics", "utility"),
        ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"],
    ),
}


@pytest.mark.parametrize(("capabilities", "names"), GIVEN.values(), ids=GIVEN)
def test_control_nodes(capabilities: tuple[str, ...], names: list[str], host: Callable[..., Config]) -> None:
    """R94: the complete list for each capability, so that none is lost."""
    assert [item.path for item in nodes.control(host(), capabilities)] == [f"/dev/{name}" for name in names]


@pytest.mark.parametrize("core", ["195 nvidia", "195 nvidia-frontend", "195 nvidia\n195 nvidiactl", "  195 nvidia"])
def test_major_by_each_name_of_the_module(core: str, host: Callable[..., Config]) -> None:
    """The kernel module has named its major differently over the years."""
    assert nodes.control(host(core=core), ()) == (Node("/dev/nvidiactl", 195, 255, 0o666, 0, 0),)


def test_node_as_it_is(host: Callable[..., Config]) -> None:
    """Number, mode and owner are those of this moment."""
    config = host(mode=0o660)
    os.chown(Path(config.dev_root) / "dev/nvidia5", 0, 44)
    assert nodes.of_gpus(config, (gpu(1, 5), gpu(0, 0))) == (
        Node("/dev/nvidia5", 195, 5, 0o660, 0, 44),
        Node("/dev/nvidia0", 195, 0, 0o660, 0, 0),
    )


def test_optional_nodes_are_left_out(host: Callable[..., Config]) -> None:
    """nvidia-uvm-tools and nvidia-modeset, missing or not the driver's."""
    config = host()
    (Path(config.dev_root) / "dev/nvidia-uvm-tools").unlink()
    node(Path(config.dev_root) / "dev/nvidia-modeset", 1, 3)
    names = [item.path for item in nodes.control(config, ("compute", "display"))]
    assert names == ["/dev/nvidiactl", "/dev/nvidia-uvm"]


def regular(path: Path) -> None:
    path.unlink()
    path.write_text("")


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/null")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def block(path: Path) -> None:
    path.unlink()
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(MAJOR, 255))


MISSING: dict[str, tuple[str, Callable[[Path], object], str, str]] = {
    "core-missing": ("nvidiactl", Path.unlink, "is missing: No such file", "nvidia-modprobe -c 0"),
    "uvm-missing": ("nvidia-uvm", Path.unlink, "is missing", "nvidia-modprobe -c 0 -u"),
    "regular-file": ("nvidiactl", regular, "is a regular file", "remove it"),
    "link-to-a-device": ("nvidiactl", linked, "is a symbolic link", "remove it"),
    "directory": ("nvidia-uvm", directory, "is a directory", "remove it"),
    "fifo": ("nvidia-uvm", fifo, "is a file of type 1", "remove it"),
    "block-device": ("nvidiactl", block, "is a block device", "remove it"),
    "foreign-major": (
        "nvidia-uvm",
        lambda path: node(path, 510, 0),
        "510:0, but {root}/proc/devices gives nvidia-uvm the major 509",
        "remove it",
    ),
    "major-of-another-nvidia-driver": ("nvidiactl", lambda path: node(path, CAPS, 255), "238:255", "remove it"),
    "major-of-a-block-device-only": ("nvidia-uvm", lambda path: node(path, 7, 0), "7:0", "remove it"),
}


@pytest.mark.parametrize(("name", "spoil", "found", "hint"), MISSING.values(), ids=MISSING)
def test_missing_or_wrong(
    name: str, spoil: Callable[[Path], object], found: str, hint: str, host: Callable[..., Config]
) -> None:
    """The error names the path, what is there, and the command that makes it right (R95)."""
    config = host()
    path = Path(config.dev_root) / "dev" / name
    spoil(path)
    with pytest.raises(GpuhookError) as caught:
        nodes.control(config, ("compute",))
    assert caught.value.reference == "node-missing"
    assert str(path) in caught.value.message
    assert found.format(root=config.proc_root) in caught.value.message
    assert hint in caught.value.hint


def test_uvm_module_not_loaded(host: Callable[..., Config]) -> None:
    """No line in /proc/devices: the module is what is missing, whether a leftover node is there or not (R93)."""
    config = host(uvm="")
    with pytest.raises(GpuhookError, match="has no line nvidia-uvm") as caught:
        nodes.control(config, ("compute",))
    assert "modprobe nvidia-uvm" in caught.value.hint
    (Path(config.dev_root) / "dev/nvidia-uvm").unlink()
    with pytest.raises(GpuhookError, match="the kernel has no driver nvidia-uvm"):
        nodes.control(config, ("compute",))
    assert len(nodes.control(config, ("utility",))) == 1


def test_no_proc_devices(host: Callable[..., Config]) -> None:
    config = host()
    (Path(config.proc_root) / "proc/devices").unlink()
    with pytest.raises(GpuhookError, match="has no line nvidia"):
        nodes.control(config, ())


def test_gpu_node_missing(host: Callable[..., Config]) -> None:
    with pytest.raises(GpuhookError, match="/dev/nvidia3 is missing") as caught:
        nodes.of_gpus(host(), (gpu(0, 0), gpu(1, 3)))
    assert "nvidia-modprobe -c 3" in caught.value.hint


def test_lost_gpu_has_no_node(host: Callable[..., Config]) -> None:
    """A GPU whose minor is not known is not guessed; one that has a minor is given although NVML complained."""
    config = host()
    with pytest.raises(GpuhookError, match="GPU is lost") as caught:
        nodes.of_gpus(config, (gpu(0, 0), gpu(1, -1, "GPU is lost")))
    assert caught.value.reference == "device-lost"


def test_simulated_driver(sim_driver: Path) -> None:
    """The simulator's stand-ins are what its own proc/devices declares."""
    root = str(sim_driver)
    config = Config(dev_root=root, proc_root=root)
    assert len(nodes.control(config, ("compute", "graphics"))) == 4
    assert len(nodes.of_gpus(config, (gpu(0, 0), gpu(1, 1)))) == 2


# --- MIG and IMEX -------------------------------------------------------------------------------------------------

MIG = Mig(0, "MIG-1", 1, 0, 12, 13)
TABLE = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\nfabric-imex-mgmt x\n"


@pytest.fixture
def mig_host(host: Callable[..., Config], folder: Path) -> Config:
    """A host with the nodes of one MIG device, of both rights, and of an IMEX channel."""
    config = host()
    (folder / "dev/nvidia-caps").mkdir()
    (folder / "dev/nvidia-caps-imex-channels").mkdir()
    (folder / "proc/driver/nvidia-caps").mkdir(parents=True)
    (folder / "proc/driver/nvidia-caps/mig-minors").write_text(TABLE)
    for minor in (1, 2, 12, 13):
        node(folder / f"dev/nvidia-caps/nvidia-cap{minor}", CAPS, minor, 0o444)
    node(folder / "dev/nvidia-caps-imex-channels/channel7", CAPS + 1, 7)
    return config


def parts(*migs: Mig) -> tuple[Gpu, ...]:
    return tuple(replace(gpu(0, 0), mig=True, uuid=mig.uuid, migs=(mig,)) for mig in migs)


def test_a_mig_device_has_its_parents_node_and_two_capabilities(mig_host: Config) -> None:
    found = nodes.of_gpus(mig_host, parts(MIG))
    assert [(item.path, item.major, item.minor, item.mode) for item in found] == [
        ("/dev/nvidia0", MAJOR, 0, 0o666),
        ("/dev/nvidia-caps/nvidia-cap12", CAPS, 12, 0o444),
        ("/dev/nvidia-caps/nvidia-cap13", CAPS, 13, 0o444),
    ]


def test_what_two_mig_devices_share_comes_once(mig_host: Config, folder: Path) -> None:
    node(folder / "dev/nvidia-caps/nvidia-cap14", CAPS, 14)
    found = nodes.of_gpus(mig_host, parts(MIG, replace(MIG, index=1, ci=1, ci_minor=14)))
    assert [item.minor for item in found] == [0, 12, 13, 14]


def test_rights_and_channels(mig_host: Config) -> None:
    paths = [item.path for item in nodes.beside(mig_host, ("config", "monitor"), (7,))]
    assert paths == [
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-caps/nvidia-cap2",
        "/dev/nvidia-caps-imex-channels/channel7",
    ]
    assert nodes.beside(mig_host, (), ()) == ()


def test_what_has_no_capability_or_no_node_is_named(mig_host: Config, folder: Path) -> None:
    def told(call: Callable[[], object]) -> GpuhookError:
        with pytest.raises(GpuhookError) as caught:
            call()
        assert caught.value.reference == "node-missing"
        return caught.value

    assert "MIG device 0:0 (MIG-1)" in told(lambda: nodes.of_gpus(mig_host, parts(replace(MIG, gi_minor=-1)))).message
    assert "nvidia-cap99 is missing" in told(lambda: nodes.of_gpus(mig_host, parts(replace(MIG, ci_minor=99)))).message
    assert "channel8 is missing" in told(lambda: nodes.beside(mig_host, (), (8,))).message
    (folder / "proc/driver/nvidia-caps/mig-minors").unlink()
    assert "mig/config has no capability" in told(lambda: nodes.beside(mig_host, ("config",), ())).message
    node(folder / "dev/nvidia-caps/nvidia-cap12", MAJOR, 12)
    assert "gives nvidia-caps the major 238" in told(lambda: nodes.of_gpus(mig_host, parts(MIG))).message


@pytest.mark.parametrize(
    ("name", "minor"),
    [
        ("config", 1),
        ("gpu0/gi1/access", 12),
        ("gpu0/gi1/ci0/access", 13),
        ("gpu0/gi1", -1),
        ("i1/access", -1),
        ("gpu1/gi1/access", -1),
        ("fabric-imex-mgmt", -1),
    ],
)
def test_the_table_of_capabilities(name: str, minor: int) -> None:
    assert key.cap_minor("\n" + TABLE, name) == minor
