"""Device nodes in real containers: those of GDS and its like, those that a boot left missing, and whose is whose."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import sim
from gpuhook.sim.options import gpu_uuid
from tests import bundles
from tests.conftest import World
from tests.runc.test_rootless import AS_USER, USER, given
from tests.runc.test_userns import mapped
from tests.unit.driver_support import copy_of

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]
BRINGS = {
    "NVIDIA_GDS": ("/dev/nvidia-fs0", "/dev/nvidia-fs1"),
    "NVIDIA_MOFED": ("/dev/infiniband/uverbs0",),
    "NVIDIA_GDRCOPY": ("/dev/gdrdrv",),
    "NVIDIA_NVSWITCH": ("/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch0"),
}
MODES = ("shim", "hook-only")


@pytest.fixture(params=MODES)
def start(
    request: pytest.FixtureRequest, world: World, shim: bundles.Runtime, runc: bundles.Runtime, new_bundle: NewBundle
) -> Callable[..., bundles.Result]:
    """Runs a container by the shim, or by plain runc with the hook as hooks.d has it."""

    def run(script: str, *env: str, **options: object) -> bundles.Result:
        options |= {"env": list(env), "args": ["sh", "-c", script]}
        if request.param == "shim":
            return shim.run(new_bundle(**options))
        hook = {"path": str(world.hook), "args": ["gpuhook-hook", "prestart"], "env": ["PATH=/usr/bin:/bin"]}
        return runc.run(new_bundle(hooks={"prestart": [hook]}, **options))

    return run


def number(path: Path) -> tuple[int, int]:
    """Major and minor of a node."""
    found = path.stat().st_rdev
    return os.major(found), os.minor(found)


def forged(driver: Path, path: str) -> str:
    """A command that makes the node of the same number under another name, and opens it."""
    return f"mknod /dev/forged c {' '.join(map(str, number(driver / path[1:])))}; opendev /dev/forged"


@pytest.fixture
def switched(world: World, sim_driver: Path, folder: Path) -> Path:
    """A host that has all four."""
    driver = copy_of(sim_driver, folder / "switched")
    sim.set_switches(driver, ["gds", "mofed", "gdrcopy", "nvswitch"])
    world.use_driver(driver)
    return driver


@pytest.mark.parametrize("name", BRINGS)
def test_switches_open_their_devices_and_no_other(
    name: str, start: Callable[..., bundles.Result], switched: Path
) -> None:
    """What was asked for is there and can be opened; the others are not there, and made anew they stay closed."""
    mine = number(switched / BRINGS[name][0][1:])
    foreign = next(paths[0] for paths in BRINGS.values() if number(switched / paths[0][1:]) != mine)
    listing = "ls /dev /dev/infiniband"
    done = start(
        f"opendev {' '.join(BRINGS[name])}; {listing}; {forged(switched, foreign)}",
        "NVIDIA_VISIBLE_DEVICES=0",
        f"{name}=enabled",
    )
    assert all(f"{path}: ok" in done.out for path in BRINGS[name]), done
    assert "/dev/forged: Operation not permitted" in done.out, done
    others = {path.rpartition("/")[2] for other, paths in BRINGS.items() if other != name for path in paths}
    assert not others & set(done.out.split())


def test_gds_brings_what_its_library_reads(start: Callable[..., bundles.Result], switched: Path) -> None:
    """The host's configuration by way of its link, and udev's data, both read-only; only GDS brings them."""
    look = "cat /etc/cufile.json; ls /run/udev; touch /run/udev/x /etc/cufile.json"
    done = start(look, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GDS=enabled")
    assert '"level": "ERROR"' in done.out, done
    assert "control" in done.out.split()
    assert (done.out + done.err).count("Read-only file system") == 2
    assert not (switched / "run/udev/x").exists()

    done = start("ls /etc /run", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GDRCOPY=enabled")
    assert done.code == 0, done
    assert not {"cufile.json", "udev"} & set(done.out.split())


def test_gds_without_those_files(
    start: Callable[..., bundles.Result], switched: Path, new_bundle: NewBundle, world: World
) -> None:
    """A host without them: the devices alone."""
    (switched / "etc/cufile.json").unlink()
    (switched / "run/udev/control").unlink()
    (switched / "run/udev").rmdir()
    done = start("opendev /dev/nvidia-fs0; ls /etc /run", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GDS=enabled")
    assert "/dev/nvidia-fs0: ok" in done.out, done
    assert not {"cufile.json", "udev"} & set(done.out.split())
    assert "warning" not in world.log


def test_asked_for_and_not_there(shim: bundles.Runtime, new_bundle: NewBundle, world: World, sim_driver: Path) -> None:
    """Refused with the variable's name, the kernel driver, and both ways out."""
    world.use_driver(sim_driver)
    done = shim.run(new_bundle(env=["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GDRCOPY=enabled"]))
    assert done.code == 59
    said = done.logged[-1]["msg"]
    assert "NVIDIA_GDRCOPY=enabled asks for" in said
    assert "the kernel has no driver gdrdrv" in said
    assert "modprobe gdrdrv" in said
    assert "leave NVIDIA_GDRCOPY out" in said


LOOK = "opendev /dev/nvidia-fs0 /dev/infiniband/uverbs0; cat /etc/cufile.json; ls /run/udev"
GDS_MOFED = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GDS=enabled", "NVIDIA_MOFED=enabled"]


def test_switches_in_a_user_namespace(shim: bundles.Runtime, new_bundle: NewBundle, switched: Path) -> None:
    """The nodes are mounts there, in a folder of /dev that is made for them."""
    done = shim.run(mapped(new_bundle(env=GDS_MOFED, args=["sh", "-c", LOOK])))
    assert (done.code, done.out.count(": ok")) == (0, 2), done
    assert '"level": "ERROR"' in done.out
    assert "control" in done.out.split()


@pytest.fixture
def user(shim: bundles.Runtime, folder: Path) -> bundles.Runtime:
    """The shim as somebody who is not root."""
    own = folder / "own"
    own.mkdir(mode=0o700)
    os.chown(own, USER, USER)
    os.chown(shim.state, USER, USER)
    shim.within = [*AS_USER, "env", f"XDG_RUNTIME_DIR={own}"]
    return shim


def test_switches_of_a_runtime_that_is_not_root(user: bundles.Runtime, new_bundle: NewBundle, switched: Path) -> None:
    done = user.run(given(new_bundle(env=GDS_MOFED, args=["sh", "-c", LOOK]), mapped=True))
    assert (done.code, done.out.count(": ok")) == (0, 2), done
    assert '"level": "ERROR"' in done.out


def test_another_word_is_no_request(start: Callable[..., bundles.Result], switched: Path, world: World) -> None:
    done = start("ls /dev", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GDRCOPY=1")
    assert done.code == 0, done
    assert "gdrdrv" not in done.out
    assert "NVIDIA_GDRCOPY='1' has no effect: it takes the one value enabled" in world.log


def test_video_alone_can_decode(start: Callable[..., bundles.Result], world: World, sim_driver: Path) -> None:
    """The decoder's library calls CUDA: libcuda is there, and so are the nodes that it opens."""
    world.use_driver(sim_driver)
    look = "opendev dlopen:libnvcuvid.so.1 dlopen:libcuda.so.1 /dev/nvidia0 /dev/nvidia-uvm /dev/nvidia-uvm-tools"
    done = start(look, "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=video")
    assert (done.code, done.out.count(": ok")) == (0, 5), done


# --- missing nodes ------------------------------------------------------------------------------------------------


@pytest.fixture
def booted(world: World, sim_driver: Path, place: Path, folder: Path) -> Path:
    """A host after its boot: no node of the driver is there. Its GPUs' minors are those of devices that open."""
    made = place / "booted"
    if not made.exists():
        minors = tuple(number(sim_driver / f"dev/nvidia{index}")[1] for index in range(2))
        sim.create(made, sim.SimOptions(minors=minors))
    driver = copy_of(made, folder / "booted")
    for path in (driver / "dev").glob("nvidia*"):
        path.unlink()
    world.use_driver(driver)
    return driver


def test_r95_missing_nodes_are_made(
    start: Callable[..., bundles.Result], booted: Path, sim_driver: Path, world: World
) -> None:
    """Those that the container gets: there with the kernel's number and the driver's mode, open in it, and said in the
    log. The second start finds them."""
    (booted / "proc/driver/nvidia/params").write_text("ModifyDeviceFiles: 1\nDeviceFileMode: 438\n")
    first, second = (number(sim_driver / f"dev/nvidia{index}")[1] for index in range(2))
    channel = number(sim_driver / "dev/nvidiactl")[1]  # a number that can be opened too
    major = number(sim_driver / "dev/nvidiactl")[0]
    ask = ("NVIDIA_VISIBLE_DEVICES=1", f"NVIDIA_IMEX_CHANNELS={channel}")
    look = f"opendev /dev/nvidia{second} /dev/nvidia-caps-imex-channels/channel{channel}; ls -l /dev"

    done = start(look, *ask)

    assert done.out.count(": ok") == 2, done
    assert f"nvidia{first}" not in done.out.split()
    for name, minor in (("nvidiactl", 255), ("nvidia-uvm", 0), (f"nvidia{second}", second)):
        assert number(booted / "dev" / name) == (major, minor)
        assert name in done.out.split()
    assert (booted / f"dev/nvidia{second}").stat().st_mode & 0o777 == 0o666
    assert f"made the device node {booted}/dev/nvidia-uvm, which was missing" in world.log
    assert [path for path in (booted / "dev").rglob("*") if path.name.endswith(".gpuhook")] == []

    before = world.log.count("made the device node")
    assert start(look, *ask).out.count(": ok") == 2
    assert world.log.count("made the device node") == before


@pytest.mark.parametrize("who", ["administrator", "driver"])
def test_r95_missing_nodes_are_an_error_where_they_may_not_be_made(
    who: str, shim: bundles.Runtime, new_bundle: NewBundle, booted: Path, world: World
) -> None:
    """It says what is missing, who forbids it, and what to run; nothing is made."""
    if who == "administrator":
        world.use_driver(booted, "make-nodes = false\n")
    else:
        (booted / "proc/driver/nvidia/params").write_text("ModifyDeviceFiles: 0\n")
    done = shim.run(new_bundle(env=["NVIDIA_VISIBLE_DEVICES=all"]))
    assert done.code == 59
    said = done.logged[-1]["msg"]
    assert f"{booted}/dev/nvidiactl is missing" in said
    assert ("driver.make-nodes is false" if who == "administrator" else "ModifyDeviceFiles is 0") in said
    assert "nvidia-modprobe" in said
    assert list((booted / "dev").glob("nvidia*")) == []


def test_r95_who_is_not_root_makes_nothing(user: bundles.Runtime, new_bundle: NewBundle, booted: Path) -> None:
    """A rootless container is told what root has to run."""
    done = user.run(given(new_bundle(env=["NVIDIA_VISIBLE_DEVICES=all"]), mapped=True))
    assert done.code == 59, done
    assert "that takes root of the host" in done.err
    assert "nvidia-modprobe" in done.err
    assert list((booted / "dev").glob("nvidia*")) == []


# --- orders -------------------------------------------------------------------------------------------------------


def test_r31_a_container_has_the_card_that_it_asked_for(
    start: Callable[..., bundles.Result], world: World, place: Path
) -> None:
    """NVML's order, the PCI addresses' and the minors' differ: the node is that of the card."""
    driver = place / "mixed"
    if not driver.exists():
        buses = ("0000:84:00.0", "0000:0b:00.0", "0001:0b:00.0")
        sim.create(driver, sim.SimOptions(gpus=3, minors=(2, 0, 1), bus_ids=buses))
    world.use_driver(driver)
    by_uuid = [(gpu_uuid(index), minor) for index, minor in enumerate((2, 0, 1))]
    for asked, minor in (("0", 2), ("0b:00.0", 0), ("0001:0b:00.0", 1), ("2", 1), *by_uuid):
        done = start("ls /dev", f"NVIDIA_VISIBLE_DEVICES={asked}")
        names = [name for name in done.out.split() if name[:6] == "nvidia" and name[6:].isdigit()]
        assert names == [f"nvidia{minor}"], done
