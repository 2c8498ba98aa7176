"""The simulated NVML as pynvml sees it, in a process of its own as gpuhook's helper is; its faults; nvidia-smi."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpuhook import sim
from gpuhook.errors import GpuhookError
from gpuhook.sim.options import check

V = "580.95.05"
LIB = sim.LAYOUTS["ubuntu"].libraries

# Prints what NVML said as JSON, or the number of the error that stopped it.
READER = """
import ctypes, json, os, sys
import pynvml as n
ctypes.CDLL(sys.argv[1])
if len(sys.argv) > 2:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
def ask(call, *items):
    try:
        return call(*items)
    except n.NVMLError as error:
        return {"error": error.value}
try:
    n.nvmlInit()
except n.NVMLError as error:
    print(json.dumps({"error": error.value, "text": str(error)})); sys.exit()
gpus = []
for index in range(n.nvmlDeviceGetCount()):
    gpu = ask(n.nvmlDeviceGetHandleByIndex, index)
    if isinstance(gpu, dict):
        gpus.append(gpu); continue
    uuid, pci = n.nvmlDeviceGetUUID(gpu), n.nvmlDeviceGetPciInfo(gpu)
    gpus.append({
        "uuid": uuid, "bus_id": pci.busId, "legacy": pci.busIdLegacy, "minor": n.nvmlDeviceGetMinorNumber(gpu),
        "where": [pci.domain, pci.bus, pci.device],
        "name": n.nvmlDeviceGetName(gpu), "brand": n.nvmlDeviceGetBrand(gpu),
        "cc": n.nvmlDeviceGetCudaComputeCapability(gpu), "mig": ask(n.nvmlDeviceGetMigMode, gpu),
        "migs": n.nvmlDeviceGetMaxMigDeviceCount(gpu), "memory": n.nvmlDeviceGetMemoryInfo(gpu).total,
        "memory_v2": n.nvmlDeviceGetMemoryInfo(gpu, n.nvmlMemory_v2).total,
        "by_uuid": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(uuid)),
        "by_bus": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(pci.busId.lower())),
        "by_short_bus": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(pci.busIdLegacy)),
    })
result = {
    "driver": n.nvmlSystemGetDriverVersion(), "nvml": n.nvmlSystemGetNVMLVersion(),
    "cuda": ask(n.nvmlSystemGetCudaDriverVersion), "cuda_v2": ask(n.nvmlSystemGetCudaDriverVersion_v2),
    "past": ask(n.nvmlDeviceGetHandleByIndex, len(gpus)), "unknown": ask(n.nvmlDeviceGetHandleByUUID, "GPU-0"),
    "gpus": gpus,
}
n.nvmlShutdown()
result["after"] = ask(n.nvmlDeviceGetCount)
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sim") / "driver"
    sim.create(root)
    return root


@pytest.fixture
def tree(template: Path, tmp_path: Path) -> Path:
    """A tree of the test's own: a copy, nodes and socket included."""
    subprocess.run(["cp", "-a", str(template), str(tmp_path / "driver")], check=True)
    return tmp_path / "driver"


def read(library: Path, *more: str) -> dict[str, Any]:
    words = [sys.executable, "-c", READER, str(library), *more]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_pynvml_reads_what_was_created(tmp_path: Path) -> None:
    """A mixed machine: each GPU's words and numbers come back, in NVML's order, which is not that of minors."""
    options = sim.SimOptions(
        driver="535.161.08",
        cuda="12.2",
        brands=("geforce", "tesla"),
        models=("NVIDIA GeForce GTX 1080", "Tesla V100-SXM2-16GB"),
        archs=("6.1", "7.0"),
        minors=(3, 1),
        bus_ids=("0001:c1:1f.0", "0000:0A:00.0"),
        memory=16384,
    )
    sim.create(tmp_path / "d", options)
    told = read(tmp_path / "d" / LIB / "libnvidia-ml.so.1")
    assert (told["driver"], told["nvml"], told["cuda"], told["cuda_v2"]) == (
        "535.161.08",
        "12.535.161.08",
        12020,
        12020,
    )
    assert (told["past"], told["unknown"], told["after"]) == ({"error": 2}, {"error": 6}, {"error": 1})
    uuids = [gpu.uuid for gpu in check(options)]
    common = {"mig": {"error": 3}, "migs": 0, "memory": 16384 << 20, "memory_v2": 16384 << 20}
    first = {"name": "NVIDIA GeForce GTX 1080", "brand": 5, "cc": [6, 1], "minor": 3, "uuid": uuids[0], **common}
    first |= {"bus_id": "00000001:C1:1F.0", "legacy": "0001:C1:1F.0", "where": [1, 0xC1, 0x1F]}
    second = {"name": "Tesla V100-SXM2-16GB", "brand": 2, "cc": [7, 0], "minor": 1, "uuid": uuids[1], **common}
    second |= {"bus_id": "00000000:0A:00.0", "legacy": "0000:0A:00.0", "where": [0, 0x0A, 0]}
    assert told["gpus"] == [
        {**first, "by_uuid": 0, "by_bus": 0, "by_short_bus": 0},
        {**second, "by_uuid": 1, "by_bus": 1, "by_short_bus": 1},
    ]
    assert {path.name for path in (tmp_path / "d/dev").glob("nvidia[0-9]")} == {"nvidia1", "nvidia3"}


@pytest.mark.parametrize("brand", sim.BRANDS)
def test_brand_numbers_are_pynvmls(brand: str) -> None:
    """The place in BRANDS is the number that pynvml gives the brand of that name."""
    import pynvml

    names = {
        name.removeprefix("NVML_BRAND_").replace("_", "").lower(): value
        for name, value in vars(pynvml).items()
        if name.startswith("NVML_BRAND_")
    }
    assert sim.BRANDS.index(brand) == names[brand if brand in names else f"nvidia{brand}"]


@pytest.mark.parametrize(("fault", "error"), [("not-loaded", 9), ("version-mismatch", 18)])
def test_fault_stops_initialisation(tree: Path, fault: str, error: int) -> None:
    """NVML says by number what is wrong, and answers again once it is mended."""
    sim.set_fault(tree, fault)
    told = read(tree / LIB / "libnvidia-ml.so.1")
    assert told["error"] == error
    sim.set_fault(tree, "none")
    assert len(read(tree / LIB / "libnvidia-ml.so.1")["gpus"]) == 2


def test_not_loaded_takes_the_modules_files_away(tree: Path) -> None:
    """No module: nothing of it in proc and sys; the nodes stay, as on a host. Mended: all as it was."""
    files = ("proc/driver/nvidia/version", "proc/devices", "sys/module/nvidia/srcversion")
    before = [(tree / name).read_text() for name in files]
    sim.set_fault(tree, "not-loaded")
    assert not (tree / "proc/driver/nvidia").exists()
    assert not (tree / "sys/module/nvidia").exists()
    assert "nvidia" not in (tree / "proc/devices").read_text()
    assert (tree / "dev/nvidia0").exists()
    sim.set_fault(tree, "none")
    assert [(tree / name).read_text() for name in files] == before


def test_version_mismatch_shows_in_proc(tree: Path) -> None:
    """The module's version is not the libraries'."""
    sim.set_fault(tree, "version-mismatch")
    assert "Kernel Module  580.95.06  " in (tree / "proc/driver/nvidia/version").read_text()
    assert (tree / "sys/module/nvidia/version").read_text() == "580.95.06\n"
    assert (tree / LIB / f"libcuda.so.{V}").is_file()


def test_lost_gpu_alone_is_lost(tmp_path: Path) -> None:
    """The lost GPU has no handle; the other one answers. Given at creation."""
    sim.create(tmp_path / "d", sim.SimOptions(faults=("gpu-lost=1",)))
    gpus = read(tmp_path / "d" / LIB / "libnvidia-ml.so.1")["gpus"]
    assert gpus[0]["minor"] == 0
    assert gpus[1] == {"error": 15}


def test_no_cuda_call(tree: Path) -> None:
    """The CUDA level is not known; the rest is."""
    sim.set_fault(tree, "no-cuda-call")
    told = read(tree / LIB / "libnvidia-ml.so.1")
    assert (told["cuda"], told["cuda_v2"], told["driver"]) == ({"error": 13}, {"error": 13}, V)


MIGS = """
gpus = []
for index in range(n.nvmlDeviceGetCount()):
    gpu = n.nvmlDeviceGetHandleByIndex(index)
    migs = []
    for place in range(n.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        mig = ask(n.nvmlDeviceGetMigDeviceHandleByIndex, gpu, place)
        if isinstance(mig, dict):
            continue
        assert n.nvmlDeviceIsMigDeviceHandle(mig).value == 1
        parent = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
        assert n.nvmlDeviceGetIndex(parent) == index
        uuid = n.nvmlDeviceGetUUID(mig)
        assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(uuid)) == uuid
        migs.append([place, n.nvmlDeviceGetGpuInstanceId(mig), n.nvmlDeviceGetComputeInstanceId(mig), uuid])
    gpus.append({
        "mode": ask(n.nvmlDeviceGetMigMode, gpu), "migs": migs,
        "not": [ask(n.nvmlDeviceGetGpuInstanceId, gpu), n.nvmlDeviceIsMigDeviceHandle(gpu).value],
    })
print(json.dumps({"gpus": gpus}))
"""


def read_migs(library: Path) -> list[dict[str, Any]]:
    words = [sys.executable, "-c", READER[: READER.index("gpus = []")] + MIGS, str(library)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    found: list[dict[str, Any]] = json.loads(done.stdout)["gpus"]
    return found


def test_mig_devices(tree: Path) -> None:
    """Handles of their own, found by place and by UUID, that lead back to their GPU; divided anew and made whole."""
    library = tree / LIB / "libnvidia-ml.so.1"
    sim.set_mig(tree, ["1=2/0,1/0,1/1"])
    whole, divided = read_migs(library)
    assert whole == {"mode": [0, 0], "migs": [], "not": [{"error": 2}, 0]}
    assert (divided["mode"], divided["not"]) == ([1, 1], [{"error": 2}, 0])
    assert [row[:3] for row in divided["migs"]] == [[0, 1, 0], [1, 1, 1], [2, 2, 0]]
    assert len({row[3] for row in divided["migs"]}) == 3
    nodes = tree / "dev/nvidia-caps"
    listed = dict(
        line.rsplit(" ", 1) for line in (tree / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    )
    for path in ("gi1/access", "gi1/ci0/access", "gi1/ci1/access", "gi2/access", "gi2/ci0/access"):
        assert (nodes / f"nvidia-cap{listed['gpu1/' + path]}").is_char_device()
        text = (tree / "proc/driver/nvidia/capabilities/gpu1/mig" / path).read_text()
        assert text.startswith(f"DeviceFileMinor: {listed['gpu1/' + path]}\n")
    assert len(list(nodes.iterdir())) == 7, "and config and monitor"
    sim.set_fault(tree, "slow=1")
    assert [row[:3] for row in read_migs(library)[1]["migs"]] == [[0, 1, 0], [1, 1, 1], [2, 2, 0]], "a fault keeps them"
    sim.set_mig(tree, ["0="])
    assert [gpu["mode"] for gpu in read_migs(library)] == [[1, 1], [0, 0]]
    assert sorted(path.name for path in nodes.iterdir()) == ["nvidia-cap1", "nvidia-cap2"]
    sim.set_mig(tree, [])
    assert [gpu["mode"] for gpu in read_migs(library)] == [[0, 0], [0, 0]]
    assert not nodes.exists()


def test_an_old_driver_makes_mig_ids_of_the_gpus(tmp_path: Path) -> None:
    """R27: before 470."""
    sim.create(tmp_path / "d", sim.SimOptions(driver="460.91.03", cuda="11.2", gpus=1, mig=("0=1/0",)))
    ((_, gi, ci, name),) = read_migs(tmp_path / "d" / LIB / "libnvidia-ml.so.1")[0]["migs"]
    assert name == f"MIG-{check(sim.SimOptions(gpus=1))[0].uuid}/{gi}/{ci}"


def test_slow(tree: Path) -> None:
    """Initialisation takes the time it was told to take."""
    sim.set_fault(tree, "slow=700")
    start = time.monotonic()
    read(tree / LIB / "libnvidia-ml.so.1")
    assert time.monotonic() - start >= 0.7


def test_crash(tree: Path) -> None:
    """The process dies of SIGSEGV."""
    sim.set_fault(tree, "crash")
    done = subprocess.run([sys.executable, "-c", READER, str(tree / LIB / "libnvidia-ml.so.1")], capture_output=True)
    assert done.returncode == -11


def test_hang(tree: Path) -> None:
    """Initialisation has begun (it was counted) and does not end."""
    sim.set_fault(tree, "hang")
    with subprocess.Popen([sys.executable, "-c", READER, str(tree / LIB / "libnvidia-ml.so.1")]) as process:
        deadline = time.monotonic() + 30
        while not sim.init_count(tree) and time.monotonic() < deadline:
            time.sleep(0.02)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.kill()
    assert sim.init_count(tree) == 1


def test_helper_that_became_nobody(tree: Path) -> None:
    """Loaded as root, called as nobody, under a directory that is closed to nobody: state and count still work."""
    tree.parent.chmod(0o700)
    sim.set_fault(tree, "gpu-lost=0")
    told = read(tree / LIB / "libnvidia-ml.so.1", "nobody")
    assert told["gpus"][0] == {"error": 15}
    assert sim.init_count(tree) == 1


def test_count_and_state_follow_a_moved_tree(tree: Path) -> None:
    """The text is found from where the library lies, not from where it was made."""
    moved = tree.with_name("moved")
    tree.rename(moved)
    read(moved / LIB / "libnvidia-ml.so.1")
    read(moved / LIB / f"libnvidia-ml.so.{V}")
    assert sim.init_count(moved) == 2


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("fault = melted", "--fault 'melted'"),
        ("gpu = x", "sim/nvml.conf line 15 'gpu = x'"),
        ("colour = red", "line 15"),
        ("mig = 0", "line 15"),
        ("mig = x", "line 15"),
    ],
)
def test_conf_that_is_not_understood_is_named(tree: Path, line: str, names: str) -> None:
    """A text edited by hand into nonsense is not overwritten but named."""
    conf = tree / "sim/nvml.conf"
    lines = [text for text in conf.read_text().splitlines() if not text.startswith("gpu")]
    conf.write_text("\n".join([*lines, line]) + "\n")
    with pytest.raises(GpuhookError) as caught:
        sim.set_fault(tree, "none")
    assert names in caught.value.message
    assert conf.read_text().endswith(line + "\n")


def test_fault_needs_a_simulated_driver(tmp_path: Path) -> None:
    """Another directory is refused and left alone."""
    with pytest.raises(GpuhookError, match="is no simulated driver") as caught:
        sim.set_fault(tmp_path, "hang")
    assert caught.value.reference == "sim-invalid"
    assert list(tmp_path.iterdir()) == []


# --- in a container ---


def container(root: Path, tree: Path, gpus: tuple[int, ...]) -> Path:
    """A root with the C library, nvidia-smi, NVML and the nodes of some GPUs, as gpuhook would leave it."""
    text = subprocess.run(["ldd", str(tree / "usr/bin/nvidia-smi")], capture_output=True, text=True, check=True).stdout
    for word in text.split():
        if word.startswith("/"):
            (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, root / word[1:])
    (root / "usr/bin").mkdir(parents=True)
    shutil.copy(tree / "usr/bin/nvidia-smi", root / "usr/bin")
    (root / LIB).mkdir(parents=True, exist_ok=True)
    shutil.copy(tree / LIB / "libnvidia-ml.so.1", root / LIB)
    (root / "dev").mkdir()
    for minor in gpus:
        status = (tree / f"dev/nvidia{minor}").stat()
        os.mknod(root / f"dev/nvidia{minor}", status.st_mode, status.st_rdev)
    return root


def smi(root: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["chroot", str(root), "/usr/bin/nvidia-smi", *words], capture_output=True, text=True)


@pytest.mark.parametrize("gpus", [(0, 1), (1,), (0,)], ids=str)
def test_nvidia_smi_in_a_container_sees_the_granted_gpus(tree: Path, tmp_path: Path, gpus: tuple[int, ...]) -> None:
    """Without the tree's text the compiled-in answers serve, for GPUs whose node opens."""
    sim.set_fault(tree, "not-loaded")
    root = container(tmp_path / "c", tree, gpus)
    described = check(sim.SimOptions())
    done = smi(root, "-L")
    expected = [f"GPU {i}: {described[g].model} (UUID: {described[g].uuid})" for i, g in enumerate(gpus)]
    assert (done.returncode, done.stdout.splitlines()) == (0, expected), done
    table = smi(root)
    assert table.returncode == 0
    assert {len(line) for line in table.stdout.splitlines()} == {91}
    assert f"NVIDIA-SMI {V}" in table.stdout
    assert "CUDA Version: 13.0" in table.stdout
    shown = [line.split()[-5] for line in table.stdout.splitlines() if "81559MiB" in line]
    assert shown == [f"00000000:0{'BC'[gpu]}:00.0" for gpu in gpus]


def test_nvidia_smi_says_what_is_missing(tree: Path, tmp_path: Path) -> None:
    """Each lack has the real one's exit status and a text: no node, no library, an option that is not simulated."""
    root = container(tmp_path / "c", tree, ())
    done = smi(root)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (6, "No devices were found")
    done = smi(root, "-q")
    assert (done.returncode, "not -q" in done.stderr) == (2, True)
    (root / LIB / "libnvidia-ml.so.1").unlink()
    done = smi(root)
    assert (done.returncode, "couldn't find libnvidia-ml.so library" in done.stderr) == (12, True)


def test_nvidia_smi_on_the_host_with_a_lost_gpu(tree: Path) -> None:
    """One row for the GPU that answers, a message for the other, and its status."""
    sim.set_fault(tree, "gpu-lost=0")
    words = [str(tree / "usr/bin/nvidia-smi")]
    done = subprocess.run(words, capture_output=True, text=True, env={"LD_LIBRARY_PATH": str(tree / LIB)})
    assert done.returncode == 15
    assert "GPU 0: GPU is lost" in done.stderr
    assert "00000000:0C:00.0" in done.stdout
