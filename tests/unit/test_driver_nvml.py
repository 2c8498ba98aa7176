"""The NVML helper: what it may do, how it ends, and what its parent makes of its answer."""

import importlib.util
import json
import os
import resource
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpuhook import sim
from gpuhook.config import Config
from gpuhook.driver import helper, nvml
from gpuhook.driver.discover import discover
from gpuhook.driver.tree import file_id
from gpuhook.errors import GpuhookError
from gpuhook.model import DriverFile, FileId, Gpu, Mig
from gpuhook.sim import BRANDS
from tests.unit.driver_support import config_of, copy_of

NOBODY = "65534"


def libraries(config: Config) -> tuple[DriverFile, DriverFile | None]:
    found = discover(config, "580.95.05")
    library = found.library("libnvidia-ml")
    assert library is not None
    return library, found.library("libcuda")


def ask(config: Config) -> nvml.Answer:
    return nvml.ask(config, *libraries(config))


# --- the process --------------------------------------------------------------------------------------------------


@pytest.fixture
def hanging(sim_driver: Path, folder: Path) -> Iterator[tuple[int, list[GpuhookError]]]:
    """A helper in the middle of a hanging NVML, for as long as the deadline lets it: its pid, and the error later."""
    driver = copy_of(sim_driver, folder / "own", "hang")
    os.chown(driver / "dev/nvidiactl", 0, 44)
    (driver / "dev/nvidiactl").chmod(0o660)
    config = config_of(driver, nvml_deadline=2)
    errors: list[GpuhookError] = []

    def run() -> None:
        try:
            ask(config)
        except GpuhookError as error:
            errors.append(error)

    inherited = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    before = set(children())
    thread = threading.Thread(target=run)
    thread.start()
    end = time.monotonic() + 10
    while sim.init_count(driver) == 0:
        assert time.monotonic() < end
        time.sleep(0.01)
    (pid,) = set(children()) - before
    yield pid, errors
    thread.join()
    os.close(inherited)
    assert [error.reference for error in errors] == ["nvml-timeout"]
    assert not Path(f"/proc/{pid}").exists()


def children() -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found


def test_helper_is_nobody_and_can_do_nothing(hanging: tuple[int, list[GpuhookError]]) -> None:
    """Uid, groups, capabilities, environment, descriptors, session, limits: while NVML runs, and killed after."""
    proc = Path(f"/proc/{hanging[0]}")
    status = {
        name: value.split()
        for name, _, value in (line.partition(":") for line in (proc / "status").read_text().splitlines())
    }
    assert status["Uid"] == status["Gid"] == [NOBODY] * 4
    assert status["Groups"] == ["44"]  # that of the node which is not open to all, and no other
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name][0], 16) == 0, name
    assert status["NoNewPrivs"] == ["1"]
    assert (proc / "environ").read_bytes() == b""
    assert os.readlink(proc / "cwd") == "/"
    session = (proc / "stat").read_text().rpartition(")")[2].split()[3]
    assert session == str(hanging[0])
    assert stat.S_IMODE(proc.stat().st_mode) == 0o555
    assert (proc / "environ").stat().st_uid == 0  # not dumpable: nobody's other processes cannot look into it
    targets = {int(fd.name): os.readlink(fd) for fd in (proc / "fd").iterdir()}
    assert [targets[number] for number in (0, 1, 2)] == ["/dev/null"] * 3
    assert targets[3].startswith("pipe:")
    assert targets[4].endswith("/libnvidia-ml.so.580.95.05")
    assert targets[5].endswith("/libcuda.so.580.95.05")
    assert "/etc/passwd" not in targets.values()
    limits = (proc / "limits").read_text()
    assert "Max core file size        0 " in limits
    maps = (proc / "maps").read_text()
    assert "libnvidia-ml.so.580.95.05" in maps
    assert "libcuda.so.580.95.05" in maps


def test_helper_reads_libraries_that_nobody_cannot_reach(sim_driver: Path, folder: Path) -> None:
    """A driver root in a closed directory, as /root is."""
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    assert len(ask(config_of(copy_of(sim_driver, closed / "driver"))).gpus) == 2


@pytest.mark.parametrize("number", [*range(4, 14), 16])
def test_too_few_descriptors(sim_driver: Path, number: int) -> None:
    """Whichever call meets the limit: it is NVML that could not be asked, and no defect of gpuhook."""
    config = config_of(sim_driver)
    found = libraries(config)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.closerange(3, 256)
            resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))
            nvml.ask(config, *found)
            code = 0
        except GpuhookError as error:
            code = 0 if error.reference == "nvml-failed" and error.hint else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_library_exchanged_after_discovery(sim_driver: Path, folder: Path) -> None:
    """What was judged is what is loaded, or nothing is."""
    driver = copy_of(sim_driver, folder / "own")
    config = config_of(driver)
    library, cuda = libraries(config)
    file = driver / library.path.lstrip("/")
    other = file.with_name("other")
    other.write_bytes(file.read_bytes())
    other.rename(file)
    with pytest.raises(GpuhookError, match="another file now") as caught:
        nvml.ask(config, library, cuda)
    assert caught.value.reference == "driver-changed"
    file.unlink()
    with pytest.raises(GpuhookError, match="No such file"):
        nvml.ask(config, library, cuda)
    file.symlink_to("libcuda.so.1")
    with pytest.raises(GpuhookError, match="driver-changed"):
        nvml.ask(config, library, cuda)


def test_library_that_cannot_be_loaded(sim_driver: Path, folder: Path) -> None:
    """The loader's own words are in the error."""
    driver = copy_of(sim_driver, folder / "own")
    config = config_of(driver)
    library, _ = libraries(config)
    file = driver / library.path.lstrip("/")
    file.write_bytes(file.read_bytes()[:200])
    library, cuda = DriverFile(library.path, "library", "utility", library.name, file_id(file.stat())), None
    with pytest.raises(GpuhookError, match=r"cannot be loaded: .*/proc/self/fd") as caught:
        nvml.ask(config, library, cuda)
    assert caught.value.reference == "nvml-failed"


@pytest.mark.parametrize("ignored", [False, True], ids=["default", "ignored"])
def test_no_child_is_left(ignored: bool, sim_driver: Path) -> None:
    """Neither after an answer nor in a caller that ignores SIGCHLD, as some engines do."""
    code = (
        "import os, signal, sys\n"
        "from tests.unit.test_driver_nvml import ask, config_of\n"
        "from pathlib import Path\n"
        f"signal.signal(signal.SIGCHLD, {'signal.SIG_IGN' if ignored else 'signal.SIG_DFL'})\n"
        f"print(len(ask(config_of(Path({str(sim_driver)!r}))).gpus))\n"
        "try:\n    os.waitpid(-1, os.WNOHANG)\nexcept ChildProcessError:\n    print('none')\n"
    )
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{root / 'src'}:{root}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["2", "none"], done.stderr


NODE_GROUPS = {
    "open-to-all": (0o666, set()),
    "group": (0o660, {44}),
    "owner-alone": (0o600, set()),
    "read-only-for-others": (0o664, {44}),
    "group-reads-only": (0o640, set()),
}


@pytest.mark.parametrize(("mode", "groups"), NODE_GROUPS.values(), ids=NODE_GROUPS)
def test_groups_of_the_nodes(mode: int, groups: set[int], folder: Path) -> None:
    """A group is lent only where nobody could not open the node without it, and only by a node of the driver."""
    (folder / "dev").mkdir()
    for name in ("nvidia0", "nvidia-unrelated"):
        os.mknod(folder / "dev" / name, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        os.chown(folder / "dev" / name, 0, 44 if name == "nvidia0" else 45)
        (folder / "dev" / name).chmod(mode)
    (folder / "dev/nvidia1").write_text("")
    assert nvml._node_groups(Config(dev_root=str(folder))) == groups


def test_pynvml_is_taken_from_the_installation_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`vendor` beside the package, else where this interpreter finds it; else an error that says so."""
    assert (Path(nvml._pynvml_directory()) / "pynvml.py").is_file()
    (folder / "vendor").mkdir()
    (folder / "vendor/pynvml.py").write_text("")
    monkeypatch.setattr(nvml, "__file__", str(folder / "gpuhook/driver/nvml.py"))
    assert nvml._pynvml_directory() == str(folder / "vendor")
    (folder / "vendor/pynvml.py").unlink()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(GpuhookError, match="pynvml is missing"):
        nvml._pynvml_directory()


# --- helpers that misbehave: the real parent, another script in the helper's place -----------------------------------

SCRIPTS = {
    "says-nothing": ("", "nvml-failed", "status 0 and no answer"),
    "exits-with-status": ("os._exit(7)", "nvml-failed", "status 7 and no answer"),
    "half-an-answer": ("os.write(3, b'{\"driver\":'); os._exit(0)", "nvml-failed", "no answer"),
    "no-object": ("os.write(3, b'[]')", "nvml-failed", "another form"),
    "floods": ("\nwhile True: os.write(3, b'x' * 65536)", "nvml-failed", "longer than"),
    "aborts": ("os.abort()", "nvml-crashed", "SIGABRT"),
    "is-killed": ("os.kill(os.getpid(), 9)", "nvml-crashed", "SIGKILL"),
    "sleeps": ("time.sleep(60)", "nvml-timeout", "within 1 s"),
    "ignores-signals-and-sleeps": (
        "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; time.sleep(60)",
        "nvml-timeout",
        "within 1 s",
    ),
    "closes-the-pipe-and-sleeps": ("os.close(3); time.sleep(60)", "nvml-timeout", "within 1 s"),
    "leaves-a-child-with-the-pipe": (
        "\nif os.fork() == 0:\n    time.sleep(30)\n    os._exit(0)\nos.write(3, b'{}')",
        "nvml-failed",
        "another form",
    ),
}


@pytest.mark.parametrize(("script", "reference", "words"), SCRIPTS.values(), ids=SCRIPTS)
def test_helper_that_misbehaves(
    script: str, reference: str, words: str, sim_driver: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent ends in time with an error, whatever it does, and no process stays behind."""
    file = folder / "helper.py"
    file.write_text(f"import os, signal, time\nos.setsid()\n{script}\n")
    monkeypatch.setattr(nvml, "_HELPER", file)
    start = time.monotonic()
    with pytest.raises(GpuhookError, match=words) as caught:
        ask(config_of(sim_driver, nvml_deadline=1))
    assert time.monotonic() - start < 2
    assert caught.value.reference == reference
    assert children() == []


# --- the answer ---------------------------------------------------------------------------------------------------

LIBRARY = DriverFile("/l/libnvidia-ml.so.1.2", "library", "utility", "libnvidia-ml.so.1.2", file_id(os.stat("/")))
GPU = {
    "index": 0,
    "uuid": "GPU-1",
    "minor": 3,
    "bus_id": "0000000A:0B:00.0",
    "name": "N",
    "brand": "tesla",
    "arch": [9, 0],
    "error": "",
    "mig": False,
    "migs": [],
}


def read(answer: object) -> nvml.Answer:
    return nvml._read(LIBRARY, json.dumps(answer).encode(), 0)


def answer_with(**changes: Any) -> dict[str, Any]:
    return {"driver": "1.2", "cuda": 12020, "gpus": [{**GPU, **changes}]}


def test_answer() -> None:
    assert read(answer_with()) == nvml.Answer(
        "1.2", (12, 2), (Gpu(0, "GPU-1", 3, "0000000a:0b:00.0", "N", "tesla", (9, 0), ""),)
    )


def test_answer_of_a_divided_gpu() -> None:
    (found,) = read(answer_with(mig=True, migs=[[0, "MIG-1\x1b", 1, 0, False], [5, "MIG-2", 2, 3, True]])).gpus
    assert (found.mig, found.migs) == (True, (Mig(0, "MIG-1", 1, 0), Mig(5, "MIG-2", 2, 3, gfx=True)))
    (found,) = read(answer_with(mig=True)).gpus
    assert (found.mig, found.migs) == (True, ())


def test_the_helper_asks_for_mig_devices(sim_driver: Path, folder: Path) -> None:
    """Of the GPU that is divided, as nobody; places without a device are passed over."""
    driver = copy_of(sim_driver, folder / "own")
    sim.set_mig(driver, ["1=1/0,2/3"])
    whole, divided = ask(config_of(driver)).gpus
    assert (whole.mig, whole.migs) == (False, ())
    assert (divided.mig, [(mig.index, mig.gi, mig.ci) for mig in divided.migs]) == (True, [(0, 1, 0), (1, 2, 3)])
    assert all(mig.uuid.startswith("MIG-") for mig in divided.migs)


@pytest.mark.parametrize(
    ("error", "told"), [(pynvml.NVML_ERROR_NOT_SUPPORTED, ""), (pynvml.NVML_ERROR_UNKNOWN, "Unknown Error")]
)
def test_a_mode_that_nvml_does_not_tell(error: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU without MIG has no mode; another error is the GPU's."""

    class Nvml:
        def __getattr__(self, name: str) -> Any:
            if name.startswith(("NVML", "nvmlE")):
                return getattr(pynvml, name)
            if name == "nvmlDeviceGetMigMode":
                return self.refuse
            return lambda *_: 0

        def refuse(self, _: object) -> None:
            raise pynvml.NVMLError(error)

    monkeypatch.setattr(helper, "bus_id", lambda _: "")
    monkeypatch.setattr(helper, "list", lambda _: [9, 0], raising=False)
    found = helper.ask_gpu(Nvml(), 0)
    assert (found["mig"], found["migs"], found["error"]) == (False, [], told)


@pytest.mark.parametrize(
    ("number", "level"), [(0, ()), (10020, (10, 2)), (11080, (11, 8)), (12120, (12, 12)), (13000, (13, 0)), (999, ())]
)
def test_cuda_level(number: int, level: tuple[int, ...]) -> None:
    """NVML's number is 1000 * major + 10 * minor; an absurd one is none."""
    assert read({"driver": "1", "cuda": number, "gpus": []}).cuda == level


TEXTS = {
    "escape-sequence": ("\x1b[2Jbad\x07", "[2Jbad"),
    "newline": ("a\nb\rc", "abc"),
    "right-to-left": ("a\u202eb", "ab"),
    "blanks": ("  NVIDIA A100  ", "NVIDIA A100"),
    "long": ("x" * 5000, "x" * 200),
    "umlaut": ("Größe", "Größe"),
}


@pytest.mark.parametrize(("text", "wanted"), TEXTS.values(), ids=TEXTS)
def test_texts_are_cleaned(text: str, wanted: str) -> None:
    """They end in messages and logs."""
    gpu = read(answer_with(name=text, error=text)).gpus[0]
    assert (gpu.name, gpu.error) == (wanted, wanted)
    error = nvml._refused(LIBRARY, {"code": 999, "text": text})
    assert wanted in error.message


BAD_ANSWERS: dict[str, object] = {
    "no-driver": {"cuda": 0, "gpus": []},
    "gpus-is-number": {"driver": "1", "cuda": 0, "gpus": 1},
    "gpu-is-text": {"driver": "1", "cuda": 0, "gpus": ["x"]},
    "cuda-is-text": {"driver": "1", "cuda": "12", "gpus": []},
    "cuda-is-true": {"driver": "1", "cuda": True, "gpus": []},
    "cuda-is-huge": {"driver": "1", "cuda": 10**12, "gpus": []},
    "minor-is-huge": answer_with(minor=1 << 40),
    "minor-is-below": answer_with(minor=-2),
    "uuid-is-null": answer_with(uuid=None),
    "uuid-is-a-list": answer_with(uuid="GPU-1,GPU-2"),
    "uuid-is-an-option": answer_with(uuid="--label"),
    "bus-id-is-a-path": answer_with(bus_id="../../../../etc"),
    "bus-id-climbs": answer_with(bus_id="0000/../../../etc"),
    "mig-uuid-has-a-blank": answer_with(mig=True, migs=[[0, "MIG-1 --proc", 1, 0, False]]),
    "arch-is-text": answer_with(arch="90"),
    "mig-is-short": answer_with(mig=True, migs=[[0, "MIG-1", 1]]),
    "mig-instance-is-text": answer_with(mig=True, migs=[[0, "MIG-1", "1", 0]]),
    "mig-index-is-huge": answer_with(mig=True, migs=[[64, "MIG-1", 1, 0]]),
    "migs-is-number": answer_with(mig=True, migs=1),
    "list": [],
    "null": None,
}


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_answer_of_another_form(answer: object) -> None:
    with pytest.raises(GpuhookError, match="another form") as caught:
        read(answer)
    assert caught.value.reference == "nvml-failed"


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000], ids=["empty", "half", "no-utf8", "deep"])
def test_answer_that_is_no_json(data: bytes) -> None:
    with pytest.raises(GpuhookError, match="no answer"):
        nvml._read(LIBRARY, data, 0)


REFUSALS: dict[str, tuple[object, str, str]] = {
    "not-loaded": ({"code": 9, "text": "Driver Not Loaded"}, "driver-not-loaded", "Driver Not Loaded"),
    "mismatch": ({"code": 18, "text": "RM mismatch"}, "driver-version-mismatch", r"libraries \(1\.2\)"),
    "permission": ({"code": 4, "text": "Insufficient Permissions"}, "nvml-failed", "may not open"),
    "unknown": ({"code": 999, "text": "Unknown Error"}, "nvml-failed", "NVML failed: Unknown Error"),
    "silent": ({"code": 999, "text": ""}, "nvml-failed", "no reason given"),
    "no-pynvml": ({"code": -1, "text": "pynvml cannot"}, "nvml-failed", "pynvml cannot"),
    "no-object": ("x", "nvml-failed", "no reason given"),
}


@pytest.mark.parametrize(("error", "reference", "words"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(error: object, reference: str, words: str) -> None:
    """NVML's numbers have errors of their own; each has a hint."""
    with pytest.raises(GpuhookError, match=words) as caught:
        read({"error": error})
    assert caught.value.reference == reference
    assert caught.value.hint


def test_brands() -> None:
    """The simulator's order is NVML's too; the vGPU brands are written as the requirement strings have them."""
    short = {"nvidia" + word: word for word in ("vapps", "vpc", "vcs", "vws", "cloudgaming")}
    assert tuple(short.get(word, word) for word in BRANDS) == helper.BRANDS
    assert helper.brand(-1) == helper.brand(17) == helper.brand(1000) == "unknown"


def test_an_error_without_words_is_an_answer_of_another_form() -> None:
    """Found by the fuzzer: the text of an error was taken for one, whatever it was, and the defect had no name."""
    with pytest.raises(GpuhookError) as caught:
        nvml._read(
            DriverFile("/l", "library", "utility", "l", FileId(0, 0, 0, 0, 0)), b'{"error":{"code":9,"text":9}}', 0
        )
    assert caught.value.reference == "nvml-failed"


@pytest.mark.parametrize(
    ("name", "graphics"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell MIG 1g.24gb+gfx", True),
        (b"NVIDIA RTX PRO 6000 Blackwell MIG 1g.24gb+me+gfx", True),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", False),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", False),
        ("NVIDIA gfx 1g.10gb", False),
    ],
)
def test_a_mig_device_has_graphics_by_its_profile(name: str | bytes, graphics: bool) -> None:
    library = SimpleNamespace(NVMLError=OSError, nvmlDeviceGetName=lambda _: name)
    assert helper.has_graphics(library, None) is graphics
