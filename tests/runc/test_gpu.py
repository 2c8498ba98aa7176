"""A container asks for GPUs and gets them, through the installed shim and hook and the real runc."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import sim
from tests import bundles
from tests.conftest import World
from tests.images import MULTIARCH

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]

LIBCUDA = "dlopen:libcuda.so.1"
LIBML = "dlopen:libnvidia-ml.so.1"
ALL = "NVIDIA_VISIBLE_DEVICES=all"
MULTIARCH_DIR = f"usr/lib/{MULTIARCH}"


@pytest.fixture(autouse=True)
def gpu_world(world: World, sim_driver: Path) -> World:
    """The driver of each test is the simulated one."""
    world.use_driver(sim_driver)
    return world


@pytest.mark.parametrize("overlay", [False, True], ids=["plain", "overlay"])
@pytest.mark.parametrize("readonly", [False, True], ids=["writable", "readonly"])
@pytest.mark.parametrize("image", ["glibc", "lib64"])
def test_all(any_shim: bundles.Runtime, new_bundle: NewBundle, image: str, readonly: bool, overlay: bool) -> None:
    """`all`: the host's libraries by soname, every GPU's node, nvidia-smi; whatever the root and cgroup version are."""
    bundle = new_bundle(
        image,
        readonly=readonly,
        overlay=overlay,
        env=[ALL],
        args=[
            "sh",
            "-c",
            f"opendev {LIBCUDA} {LIBML} /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl /dev/nvidia-uvm && nvidia-smi",
        ],
    )

    done = any_shim.run(bundle)

    assert (done.code, done.err) == (0, "")
    assert "dlopen:libcuda.so.1: ok libcuda.so 580.95.05" in done.out
    assert done.out.count("NVIDIA H100 80GB HBM3") == 2


@pytest.mark.parametrize(
    ("asked", "granted", "other"),
    [("0", 0, 1), ("1", 1, 0), ("GPU-9521cdd4", 0, 1), ("gpu-B641BE59-0b7f", 1, 0), ("0c:00.0", 1, 0)],
)
def test_one_gpu(
    any_shim: bundles.Runtime, new_bundle: NewBundle, asked: str, granted: int, other: int, sim_driver: Path
) -> None:
    """By index, by UUID and by bus id: that GPU's node is there, and the other can't even be made (CVE-2021-1056)."""
    number = (sim_driver / f"dev/nvidia{other}").stat().st_rdev
    forge = f"mknod /dev/forged c {os.major(number)} {os.minor(number)} && opendev /dev/forged"
    bundle = new_bundle(
        env=[f"NVIDIA_VISIBLE_DEVICES={asked}"],
        args=["sh", "-c", f"opendev /dev/nvidia{granted} && nvidia-smi -L; ls /dev; {forge}"],
    )

    done = any_shim.run(bundle)

    assert f"/dev/nvidia{granted}: ok" in done.out
    assert f"nvidia{other}" not in done.out
    assert done.out.count("GPU-") == 1
    assert done.code != 0
    assert "Operation not permitted" in done.out + done.err


def test_none(any_shim: bundles.Runtime, new_bundle: NewBundle) -> None:
    """`none`: the driver's files, control nodes, no GPU."""
    bundle = new_bundle(
        env=["NVIDIA_VISIBLE_DEVICES=none"],
        args=["sh", "-c", f"opendev {LIBCUDA} /dev/nvidiactl; ls /dev | grep nvidia"],
    )

    done = any_shim.run(bundle)

    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "dlopen:libcuda.so.1: ok libcuda.so 580.95.05",
        "/dev/nvidiactl: ok",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidiactl",
    ]


@pytest.mark.parametrize("devices", [None, "", "void"])
def test_asking_for_nothing_leaves_the_spec_alone(
    world: World, shim: bundles.Runtime, new_bundle: NewBundle, devices: str | None
) -> None:
    """Unset, empty, void: runc reads the very bytes that the engine wrote."""
    bundle = new_bundle(env=[] if devices is None else [f"NVIDIA_VISIBLE_DEVICES={devices}"], args=["ls", "/dev"])
    before = (bundle.path / "config.json").read_bytes()

    done = shim.run(bundle)

    assert (done.code, done.err) == (0, "")
    assert "nvidia" not in done.out
    assert (bundle.path / "config.json").read_bytes() == before


def test_a_sandbox_is_left_alone(shim: bundles.Runtime, new_bundle: NewBundle) -> None:
    """A pod's sandbox gets nothing, though its image says `all`."""
    for key, word in (
        ("io.kubernetes.cri.container-type", "sandbox"),
        ("io.kubernetes.cri-o.ContainerType", "sandbox"),
    ):
        bundle = new_bundle(env=[ALL], annotations={key: word}, args=["ls", "/dev"])
        before = (bundle.path / "config.json").read_bytes()

        done = shim.run(bundle)

        assert (done.code, "nvidia" in done.out) == (0, False)
        assert (bundle.path / "config.json").read_bytes() == before


def test_a_second_create_adds_nothing(any_shim: bundles.Runtime, new_bundle: NewBundle) -> None:
    """The spec after two creates of one bundle is the spec after one; both containers get their GPUs."""
    bundle = new_bundle(env=[ALL], args=["opendev", LIBCUDA, "/dev/nvidia0"])

    first = any_shim.run(bundle)
    once = (bundle.path / "config.json").read_bytes()
    second = any_shim.run(bundle)

    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert (bundle.path / "config.json").read_bytes() == once


@pytest.mark.parametrize(("then", "left"), [("0", {"/dev/nvidia0"}), ("void", set()), ("", set())])
def test_a_bundle_started_again_keeps_nothing_of_before(
    world: World, shim: bundles.Runtime, new_bundle: NewBundle, then: str, left: set[str]
) -> None:
    """After `all`, the same bundle with a smaller request gets just that: nodes, rules and hook of before are gone."""
    bundle = new_bundle(env=[ALL], args=["sh", "-c", "ls -d /dev/nvidia[0-9] 2>/dev/null; true"])
    untouched = bundle.spec
    first = shim.run(bundle)
    spec = bundle.spec
    spec["process"]["env"][-1] = f"NVIDIA_VISIBLE_DEVICES={then}"
    (bundle.path / "config.json").write_text(json.dumps(spec))

    second = shim.run(bundle)

    assert first.out.split() == ["/dev/nvidia0", "/dev/nvidia1"]
    assert (second.code, set(second.out.split())) == (0, left)
    rules = bundle.spec["linux"]["resources"]["devices"]
    if left:
        assert len(rules) == len(untouched["linux"]["resources"]["devices"]) + 4  # control nodes and one GPU
    else:
        assert rules == untouched["linux"]["resources"]["devices"]
        assert bundle.spec["hooks"]["prestart"] == []


def test_nvidias_hook_is_replaced_in_its_place(world: World, any_shim: bundles.Runtime, new_bundle: NewBundle) -> None:
    """`docker run --gpus` puts NVIDIA's hook into the spec; ours takes its place, and the log says so."""
    theirs = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"]}
    bundle = new_bundle(
        env=[ALL], hooks={"prestart": [bundles.OTHERS_HOOK, theirs, bundles.OTHERS_HOOK]}, args=["opendev", LIBCUDA]
    )

    done = any_shim.run(bundle)

    assert (done.code, done.err) == (0, "")
    assert [Path(hook["path"]).name for hook in bundle.spec["hooks"]["prestart"]] == ["sh", "gpuhook-hook", "sh"]
    assert "/usr/bin/nvidia-container-runtime-hook" in world.log


def test_refused_before_anything_is_made(world: World, shim: bundles.Runtime, new_bundle: NewBundle) -> None:
    """A newer CUDA than the driver's: one error on stderr, one line in the runtime's log, nothing created."""
    bundle = new_bundle(env=[ALL, "NVIDIA_REQUIRE_CUDA=cuda>=13.3 brand=tesla,driver>=595,driver<596"])
    before = (bundle.path / "config.json").read_bytes()

    done = shim.run(bundle)

    assert done.code == 41
    assert done.err.startswith(
        "gpuhook: this container needs CUDA 13.3 or newer; NVIDIA H100 80GB HBM3, driver 580.95.05 supports CUDA up to "
        "13.0 [requirement-not-met]\n  fix: install"
    )
    assert [(line["level"], line["msg"] + "\n") for line in done.logged] == [("error", done.err)]
    assert (bundle.path / "config.json").read_bytes() == before
    assert "requirement-not-met" in world.log
    assert shim.call("list", "-q").out == ""


def test_a_driver_root_that_is_not_there_yet(
    world: World, shim: bundles.Runtime, new_bundle: NewBundle, sim_driver: Path, folder: Path
) -> None:
    """The driver container comes up after the engine: refused until then, and started once it is there."""
    root = folder / "run/nvidia/driver"
    world.use_driver(root)

    done = shim.run(new_bundle(env=[ALL]))

    assert done.code == 50, done.err
    assert f"no libcuda or libnvidia-ml in driver-root {root}, which is no directory" in done.err
    root.parent.mkdir(parents=True)
    root.symlink_to(sim_driver)
    assert shim.run(new_bundle(env=[ALL], args=["opendev", LIBCUDA])).code == 0


def test_the_text_log_is_a_line_too(shim: bundles.Runtime, new_bundle: NewBundle) -> None:
    """Without `--log-format json` the line has the form of runc's text log."""
    shim.log_format = "text"

    done = shim.run(new_bundle(env=["NVIDIA_VISIBLE_DEVICES=7"]))

    assert done.code == 31
    assert done.log.startswith('time="')
    assert ' level=error msg="gpuhook: ' in done.log
    assert done.log.count("\n") == 1


def test_no_dev_mount_is_refused(shim: bundles.Runtime, new_bundle: NewBundle) -> None:
    """runc 1.1.5 would follow the image's /dev and make the nodes on the host."""
    bundle = new_bundle(env=[ALL])
    spec = bundle.spec
    spec["mounts"] = [mount for mount in spec["mounts"] if not mount["destination"].startswith("/dev")]
    (bundle.path / "config.json").write_text(json.dumps(spec))

    done = shim.run(bundle)

    assert done.code == 24
    assert "[dev-not-mounted]" in done.err


# --- images that already ship driver files ----------------------------------------------------------------------

OLDER, NEWER = "libcuda.so.470.57.02", "libcuda.so.610.43.03"


def _ship(rootfs: Path, libdir: str, how: str, tmp: Path) -> None:
    """Put driver files of the image's own where ours go."""
    folder = rootfs / libdir
    foreign = tmp / "foreign"
    if not foreign.exists():
        sim.create(foreign, sim.SimOptions(driver="610.43.03", cuda="13.3"))
    library = foreign / "usr/lib" / MULTIARCH / "libcuda.so.610.43.03"
    if how in ("older", "newer"):
        name = OLDER if how == "older" else NEWER
        (folder / name).write_bytes(library.read_bytes())
        (folder / "libcuda.so.1").symlink_to(name)
        (folder / "libcuda.so").symlink_to("libcuda.so.1")
    elif how == "file at the soname":
        (folder / "libcuda.so.1").write_bytes(library.read_bytes())
    elif how == "empty leftovers":
        for name in ("libcuda.so.580.95.05", OLDER, "libcuda.so.1"):
            (folder / name).touch()
    elif how == "link at the file's name":
        (folder / "libcuda.so.580.95.05").symlink_to("/etc/passwd")
        (rootfs / "usr/bin/nvidia-smi").symlink_to("../../opt/nvidia-smi")
    elif how == "hwcaps":
        special = folder / "glibc-hwcaps/x86-64-v2"
        special.mkdir(parents=True)
        (special / "libcuda.so.1").write_bytes(library.read_bytes())
    elif how == "other directory first":
        other = rootfs / "usr/local/nvidia/lib64"
        other.mkdir(parents=True)
        (other / "libcuda.so.1").write_bytes(library.read_bytes())
        (rootfs / "etc/ld.so.conf.d").mkdir(exist_ok=True)
        (rootfs / "etc/ld.so.conf.d/000-nvidia.conf").write_text("/usr/local/nvidia/lib64\n")
    subprocess.run(["/sbin/ldconfig", "-r", rootfs], check=True, capture_output=True)


@pytest.mark.parametrize("image", ["glibc", "lib64"])
@pytest.mark.parametrize(
    "how",
    [
        "older",
        "newer",
        "file at the soname",
        "empty leftovers",
        "link at the file's name",
        "hwcaps",
        "other directory first",
    ],
)
def test_the_hosts_version_is_found(
    shim: bundles.Runtime, new_bundle: NewBundle, folder: Path, image: str, how: str
) -> None:
    """An image's own driver files: the loader finds the host's, at once and after a later ldconfig inside (R66-R68)."""
    libdir = MULTIARCH_DIR if image == "glibc" else "usr/lib64"
    bundle = new_bundle(
        image, env=[ALL], args=["sh", "-c", f"opendev {LIBCUDA} && ldconfig && opendev {LIBCUDA} && nvidia-smi -L"]
    )
    _ship(bundle.rootfs, libdir, how, folder)

    done = shim.run(bundle)

    assert done.code == 0, done.err
    assert done.out.count("dlopen:libcuda.so.1: ok libcuda.so 580.95.05") == 2, done.out
    assert (bundle.rootfs / "etc/passwd").read_text().startswith("root:x:0:0")


def test_the_same_root_starts_again(any_shim: bundles.Runtime, new_bundle: NewBundle) -> None:
    """What a start leaves in the image's layer (mountpoints, links, cache) serves the next one; nothing grows."""
    bundle = new_bundle(env=[ALL], args=["opendev", LIBCUDA])

    def listing() -> list[str]:
        return sorted(str(path) for path in bundle.rootfs.rglob("*"))

    first = any_shim.run(bundle)
    once = listing()
    cache = (bundle.rootfs / "etc/ld.so.cache").read_bytes()
    second = any_shim.run(bundle)

    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert listing() == once
    assert (bundle.rootfs / "etc/ld.so.cache").read_bytes() == cache
    assert not [name for name in once if "gpuhook" in name and not name.endswith("00-gpuhook.conf")]


def test_mounts_are_what_was_promised(shim: bundles.Runtime, new_bundle: NewBundle, sim_driver: Path) -> None:
    """Files are read-only, nosuid, nodev; sockets nosuid, nodev, noexec; and the host's mount table is as before."""
    bundle = new_bundle(env=[ALL], args=["cat", "/proc/self/mountinfo"])
    before = Path("/proc/self/mountinfo").read_text()

    done = shim.run(bundle)

    flags = {line.split()[4]: set(line.split()[5].split(",")) for line in done.out.splitlines()}
    for path in (
        f"/{MULTIARCH_DIR}/libcuda.so.580.95.05",
        "/usr/bin/nvidia-smi",
        "/usr/lib/firmware/nvidia/580.95.05/gsp_ga10x.bin",
    ):
        assert flags[path] >= {"ro", "nosuid", "nodev"}, path
    assert flags["/run/nvidia-persistenced/socket"] >= {"nosuid", "nodev", "noexec"}
    assert flags["/tmp/nvidia-mps"] >= {"nosuid", "nodev", "noexec"}
    assert Path("/proc/self/mountinfo").read_text() == before


def test_a_broken_configuration_stops_gpu_requests_alone(
    world: World, shim: bundles.Runtime, new_bundle: NewBundle
) -> None:
    """Fail closed where a GPU was asked for, open where none was (decision 7)."""
    cases = (("[hook]\nstage = 3\n", 0o644, 11, "config-invalid"), ("", 0o666, 12, "config-untrusted"))
    for text, mode, code, reference in cases:
        world.configure(text)
        world.config.chmod(mode)

        asked = shim.run(new_bundle(env=[ALL]))
        plain = shim.run(new_bundle(env=["NVIDIA_DRIVER_CAPABILITIES=all"], args=["echo", "started"]))

        assert (asked.code, f"[{reference}]" in asked.err) == (code, True), asked.err
        assert (plain.code, plain.out, plain.err) == (0, "started\n", "")


def test_the_driver_changes_between_shim_and_hook(
    world: World, any_shim: bundles.Runtime, new_bundle: NewBundle, new_driver: Callable[..., Path], folder: Path
) -> None:
    """An upgrade in the middle of a start: the hook refuses and says so, never mixes two drivers."""
    driver = new_driver()
    world.use_driver(driver)
    swap = folder / "swap"
    swap.write_text(f"#!/bin/sh\ntouch {driver}/usr/lib/{MULTIARCH}/libcuda.so.580.95.05\n")
    swap.chmod(0o755)
    bundle = new_bundle(env=[ALL], hooks={"prestart": [{"path": str(swap), "args": ["swap"]}]})

    done = any_shim.run(bundle)

    text = "is not the file that it was when this start began: the driver is being changed [driver-changed]"
    if world.low_level == "crun":  # which shows nothing of a hook but its exit code
        assert (done.code, f"{world.hook}` (exit code: 53)" in done.err, text in done.err) == (255, True, False)
    else:
        assert (done.code, text in done.err) == (1, True)
    assert text in world.log
    assert any_shim.call("list", "-q").out == ""
    assert any_shim.run(new_bundle(env=[ALL], args=["opendev", LIBCUDA])).code == 0


def test_what_was_granted_is_written_down(
    world: World, any_shim: bundles.Runtime, new_bundle: NewBundle, sim_driver: Path
) -> None:
    """While the container is there; a later start clears it away. A start that fails leaves none."""
    bundle = new_bundle(env=["NVIDIA_VISIBLE_DEVICES=1"], args=["sleep", "60"])
    name = any_shim.new_id()
    created = any_shim.create(bundle, name)
    assert created.code == 0, created.err
    noted = json.loads((world.state / f"containers/{name}.json").read_text())
    assert (noted["id"], noted["pid"], noted["driver"]) == (name, any_shim.pid(), "580.95.05")
    assert noted["devices"] == ["GPU-b641be59-0b7f-5b21-a990-13f40203ca90"]
    assert noted["capabilities"] == ["compute", "utility"]
    any_shim.delete(name)

    bad = new_bundle(env=[ALL])
    (bad.rootfs / "usr/bin/nvidia-smi").mkdir()
    assert any_shim.run(bad).code != 0
    assert [path.name for path in (world.state / "containers").iterdir()] == [f"{name}.json"]

    assert any_shim.run(new_bundle(env=[ALL])).code == 0
    assert f"{name}.json" not in [path.name for path in (world.state / "containers").iterdir()]
