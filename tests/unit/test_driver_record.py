"""The record: what is in it, when it is believed, when it is made again, and that one helper serves many starts."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import sim
from gpuhook.config import Config, paths
from gpuhook.driver import key, record
from gpuhook.errors import GpuhookError
from gpuhook.model import Record
from tests.unit.driver_support import config_of, copy_of, peek
from tests.unit.test_elf import build

NewDriver = Callable[..., Path]
CopyDriver = Callable[..., Path]
SOURCES = str(Path(record.__file__).parents[2])


@pytest.fixture
def prefix(folder: Path) -> str:
    """The prefix of an installation that has no state yet."""
    path = folder / "prefix"
    path.mkdir()
    return str(path)


@pytest.fixture
def own_driver(sim_driver: Path, folder: Path) -> CopyDriver:
    """Makes a copy of the simulated driver for a test to change, with a fault if it names one."""
    return lambda fault="none": copy_of(sim_driver, folder / "own", fault)


def stored_file(prefix: str) -> Path:
    return Path(paths(prefix).state) / record.NAME


# --- content ------------------------------------------------------------------------------------------------------


def test_content(sim_driver: Path, prefix: str) -> None:
    """Version, level and GPUs are NVML's; files are found; a second load gives an equal record without NVML."""
    before = sim.init_count(sim_driver)
    config = config_of(sim_driver)
    made = record.load(config, prefix)
    assert (made.driver, made.cuda, made.cuda_assumed) == ("580.95.05", (13, 0), False)
    assert [(gpu.index, gpu.minor, gpu.bus_id, gpu.brand, gpu.arch, gpu.error) for gpu in made.gpus] == [
        (0, 0, "00000000:0b:00.0", "tesla", (9, 0), ""),
        (1, 1, "00000000:0c:00.0", "tesla", (9, 0), ""),
    ]
    assert {gpu.name for gpu in made.gpus} == {"NVIDIA H100 80GB HBM3"}
    assert all(gpu.uuid.startswith("GPU-") for gpu in made.gpus)
    assert {file.kind for file in made.files} == {"library", "binary", "firmware", "data"}
    assert record.load(config, prefix) == made
    assert peek(config, prefix) == made
    assert sim.init_count(sim_driver) == before + 1


def test_a_newer_gpuhook_makes_it_anew_with_the_same_id(
    sim_driver: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During an upgrade a hook may be newer than the shim that decided by the record; the driver is the same one."""
    config = config_of(sim_driver)
    first = record.load(config, prefix)
    monkeypatch.setattr(key, "__version__", "99")
    before = sim.init_count(sim_driver)
    assert record.load(config, prefix).id == first.id
    assert sim.init_count(sim_driver) == before + 1


def test_stored_file_is_for_all_to_read_and_root_to_write(sim_driver: Path, prefix: str) -> None:
    """Whatever the umask of the engine."""
    old = os.umask(0o077)
    try:
        record.load(config_of(sim_driver), prefix)
    finally:
        os.umask(old)
    file = stored_file(prefix)
    assert file.stat().st_mode & 0o7777 == 0o644
    assert file.parent.stat().st_mode & 0o7777 == 0o755
    assert (file.parent / "driver.lock").stat().st_mode & 0o7777 == 0o600
    assert sorted(os.listdir(file.parent)) == ["driver.json", "driver.lock"]


def test_id_names_the_state(own_driver: CopyDriver, prefix: str, folder: Path) -> None:
    """Made again without a change: the same id; after a change: another one."""
    driver = own_driver()
    config = config_of(driver)
    first = record.load(config, prefix)
    stored_file(prefix).unlink()
    assert record.load(config, prefix).id == first.id
    (driver / "usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05").touch()
    assert record.load(config, prefix).id != first.id


def test_cuda_level_of_the_branch_where_nvml_has_no_such_call(new_driver: NewDriver, prefix: str) -> None:
    made = record.load(config_of(new_driver(driver="535.161.08", cuda="12.2", faults=("no-cuda-call",))), prefix)
    assert (made.cuda, made.cuda_assumed) == ((12, 2), True)


def test_many_gpus_with_their_own_words(new_driver: NewDriver, prefix: str) -> None:
    """Each brand of the language that NVML can say, GPUs of odd minors and a domain above ffff."""
    brands = ("geforce", "geforcertx", "titanrtx", "quadrortx", "nvidiartx", "nvidia", "unknown")
    minors = (7, 3, 0, 12, 5, 2, 200)
    addresses = tuple(f"{0x1FFFF + n:08x}:{n + 1:02x}:1f.0" for n in range(7))
    driver = new_driver(gpus=7, brands=brands, minors=minors, bus_ids=addresses)
    made = record.load(config_of(driver), prefix)
    assert tuple(gpu.brand for gpu in made.gpus) == brands
    assert tuple(gpu.minor for gpu in made.gpus) == minors
    assert tuple(gpu.bus_id for gpu in made.gpus) == addresses


# --- faults -------------------------------------------------------------------------------------------------------

FAULTS = {
    "not-loaded": ("driver-not-loaded", "kernel module is not loaded", "modprobe nvidia"),
    "version-mismatch": ("driver-version-mismatch", "580.95.06, the libraries are 580.95.05", "reboot"),
    "hang": ("nvml-timeout", "within 1 s (nvml-deadline)", "Xid"),
    "crash": ("nvml-crashed", "signal SIGSEGV", "nvidia-smi"),
    "slow=5000": ("nvml-timeout", "within 1 s (nvml-deadline)", "nvidia-persistenced"),
}


@pytest.mark.parametrize(("fault", "wanted"), FAULTS.items(), ids=FAULTS)
def test_fault_ends_in_time_with_its_own_error(
    fault: str, wanted: tuple[str, str, str], own_driver: CopyDriver, prefix: str
) -> None:
    """Every fault of NVML is an error that says what was found and what to do, a second after the deadline at most."""
    config = config_of(own_driver(fault), nvml_deadline=1)
    start = time.monotonic()
    with pytest.raises(GpuhookError) as caught:
        record.load(config, prefix)
    assert time.monotonic() - start < 2
    reference, message, hint = wanted
    assert caught.value.reference == reference
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_nvml_that_says_not_loaded_although_the_module_is(own_driver: CopyDriver, prefix: str) -> None:
    """NVML's own refusals become errors too, in its words."""
    driver = own_driver()
    conf = driver / "sim/nvml.conf"
    for fault, reference, words in (
        ("not-loaded", "driver-not-loaded", "Driver Not Loaded"),
        ("version-mismatch", "driver-version-mismatch", "mismatch"),
    ):
        conf.write_text(conf.read_text().replace("fault = none", f"fault = {fault}"))
        with pytest.raises(GpuhookError, match=words) as caught:
            record.load(config_of(driver), f"{prefix}/{fault}")
        assert caught.value.reference == reference
        conf.write_text(conf.read_text().replace(f"fault = {fault}", "fault = none"))


def test_slow_nvml_is_waited_for(own_driver: CopyDriver, prefix: str) -> None:
    assert len(record.load(config_of(own_driver("slow=600"), nvml_deadline=5), prefix).gpus) == 2


def test_lost_gpu_does_not_stop_the_others(new_driver: NewDriver, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has NVML's words and the address that is left over; the record with it is believed for a minute only."""
    driver = new_driver(gpus=3, faults=("gpu-lost=1",))
    config = config_of(driver)
    made = record.load(config, prefix)
    assert [gpu.error for gpu in made.gpus] == ["", "GPU is lost", ""]
    lost = made.gpus[1]
    assert (lost.index, lost.uuid, lost.minor, lost.bus_id) == (1, "", -1, "00000000:0c:00.0")
    assert record.load(config, prefix) == made
    assert sim.init_count(driver) == 1
    real = record.now()
    monkeypatch.setattr(record, "now", lambda: real + record.LOST_GPU_LIFE + 5)
    assert peek(config, prefix) is None
    record.load(config, prefix)
    assert sim.init_count(driver) == 2


def test_no_driver_at_all(folder: Path, prefix: str) -> None:
    """An empty root: the error names where was looked."""
    empty = folder / "empty"
    (empty / "usr/lib64").mkdir(parents=True)
    with pytest.raises(GpuhookError, match=f"{empty}/usr/lib64") as caught:
        record.load(config_of(empty), prefix)
    assert caught.value.reference == "driver-not-found"


def test_not_loaded_names_the_installed_libraries(own_driver: CopyDriver, prefix: str) -> None:
    with pytest.raises(GpuhookError, match=r"libraries of driver 580\.95\.05 are installed"):
        record.load(config_of(own_driver("not-loaded")), prefix)


def test_module_without_any_library(own_driver: CopyDriver, prefix: str) -> None:
    driver = own_driver()
    for file in (driver / "usr/lib/x86_64-linux-gnu").glob("lib*.so*"):
        file.unlink()
    with pytest.raises(GpuhookError, match=r"driver 580\.95\.05 is loaded, but no library of it") as caught:
        record.load(config_of(driver), prefix)
    assert caught.value.reference == "driver-not-found"


def test_libcuda_without_nvml(own_driver: CopyDriver, prefix: str) -> None:
    driver = own_driver()
    (driver / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05").unlink()
    with pytest.raises(GpuhookError, match=r"libnvidia-ml\.so\.580\.95\.05") as caught:
        record.load(config_of(driver), prefix)
    assert caught.value.reference == "library-missing"


def test_nvml_without_libcuda(own_driver: CopyDriver, prefix: str) -> None:
    """A driver for utility alone has a record: that compute lacks its library is for the plan to say (R54)."""
    driver = own_driver()
    (driver / "usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05").unlink()
    made = record.load(config_of(driver), prefix)
    assert len(made.gpus) == 2
    assert not [file for file in made.files if file.soname == "libcuda.so.1"]


def test_error_is_kept_ten_seconds(own_driver: CopyDriver, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within them no helper runs and the error is the same; after them, or before they began, NVML is asked again."""
    driver = own_driver("crash")
    config = config_of(driver)
    errors = [error_of(config, prefix) for _ in range(3)]
    assert sim.init_count(driver) == 1
    assert len({str(error) for error in errors}) == 1
    assert peek(config, prefix) is None
    real = record.now
    for seconds, wanted in ((9.0, 1), (10.5, 2), (-20.0, 3)):
        monkeypatch.setattr(record, "now", lambda seconds=seconds: real() + seconds)
        error_of(config, prefix)
        assert sim.init_count(driver) == wanted, seconds


def test_error_ends_at_once_when_the_driver_changes(own_driver: CopyDriver, prefix: str) -> None:
    """`modprobe nvidia` helps at the next start, not ten seconds later."""
    driver = own_driver("not-loaded")
    config = config_of(driver)
    assert error_of(config, prefix).reference == "driver-not-loaded"
    sim.set_fault(driver, "none")
    assert record.load(config, prefix).driver == "580.95.05"


@pytest.mark.parametrize("fault", ["crash", "not-loaded"])
def test_who_wants_no_gpu_gets_a_silent_drivers_files(own_driver: CopyDriver, prefix: str, fault: str) -> None:
    """The record beside the error has the files and no GPU, from the store and made anew; who wants GPUs is refused."""
    config = config_of(own_driver(fault))
    first = record.load(config, prefix, gpus=False)
    error = error_of(config, prefix)
    assert (first.driver, first.gpus, first.cuda_assumed) == ("580.95.05", (), True)
    assert {file.soname for file in first.files} > {"libcuda.so.1", "libnvidia-ml.so.1"}
    assert record.load(config, prefix, gpus=False) == first
    assert record.doubt(prefix) == f"{error.message} [{error.reference}]"


@pytest.mark.parametrize("fault", ["version-mismatch"])
def test_files_of_another_version_are_nobodys(own_driver: CopyDriver, prefix: str, fault: str) -> None:
    """Nobody can say what works with them: who wants no GPU is refused too."""
    with pytest.raises(GpuhookError, match="driver-version-mismatch"):
        record.load(config_of(own_driver(fault)), prefix, gpus=False)


def error_of(config: Config, prefix: str) -> GpuhookError:
    with pytest.raises(GpuhookError) as caught:
        record.load(config, prefix)
    return caught.value


# --- what is noticed ----------------------------------------------------------------------------------------------

LIBRARIES = "usr/lib/x86_64-linux-gnu"
CUDA = f"{LIBRARIES}/libcuda.so.580.95.05"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


CHANGES: dict[str, Callable[[Path], object]] = {
    "library-touched": lambda root: (root / CUDA).touch(),
    "library-chmod": lambda root: (root / CUDA).chmod(0o600),
    "library-chown": lambda root: os.chown(root / CUDA, 0, 7),
    "library-added": lambda root: (root / LIBRARIES / "libnvidia-new.so.580.95.05").write_bytes(
        build(machine=int.from_bytes((root / CUDA).read_bytes()[18:20], "little"), soname=b"libnvidia-new.so.1")
    ),
    "description-added": lambda root: (root / "usr/share/vulkan/icd.d/new.json").write_text(
        '{"ICD": {"library_path": "libGLX_nvidia.so.0"}}'
    ),
    "first-local-description": lambda root: shutil.copytree(root / "usr/share/vulkan", root / "usr/local/share/vulkan"),
    "description-changed": lambda root: append(root / "usr/share/glvnd/egl_vendor.d/10_nvidia.json", "\n"),
    "library-removed": lambda root: (root / LIBRARIES / "libnvidia-opencl.so.580.95.05").unlink(),
    "development-link-removed": lambda root: (root / LIBRARIES / "libnvidia-allocator.so").unlink(),
    "binary-replaced": lambda root: (root / "usr/bin/nvidia-smi").touch(),
    "firmware-removed": lambda root: (root / "usr/lib/firmware/nvidia/580.95.05/gsp_ga10x.bin").unlink(),
    "gpu-added": lambda root: (root / "proc/driver/nvidia/gpus/0000:0d:00.0").mkdir(),
    "mig-mode-on": lambda root: sim.set_mig(root, ["0="]),
    "mig-devices-made": lambda root: sim.set_mig(root, ["1=1/0"]),
    "mig-instance-made": lambda root: (root / "proc/driver/nvidia/capabilities/gpu0/mig/gi1").mkdir(parents=True),
    "module-rebuilt": lambda root: (root / "sys/module/nvidia/srcversion").write_text("ABCDEF\n"),
    "major-changed": lambda root: append(root / "proc/devices", "511 nvidia-uvm\n"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_change_is_noticed_at_the_next_load(
    change: Callable[[Path], object], own_driver: CopyDriver, prefix: str
) -> None:
    driver = own_driver()
    config = config_of(driver)
    first = record.load(config, prefix)
    change(driver)
    assert peek(config, prefix) is None
    assert record.load(config, prefix).id != first.id
    assert sim.init_count(driver) == 2


def test_mig_devices_are_in_the_record_with_their_capabilities(own_driver: CopyDriver, prefix: str) -> None:
    """Minors of the nodes are the kernel module's, which counts GPUs by their minor."""
    driver = own_driver()
    sim.set_mig(driver, ["1=1/0,3/2"])
    config = config_of(driver)
    made = record.load(config, prefix)
    assert [(gpu.mig, len(gpu.migs)) for gpu in made.gpus] == [(False, 0), (True, 2)]
    access = driver / "proc/driver/nvidia/capabilities/gpu1/mig"
    for mig in made.gpus[1].migs:
        for folder, minor in ((f"gi{mig.gi}", mig.gi_minor), (f"gi{mig.gi}/ci{mig.ci}", mig.ci_minor)):
            assert (access / folder / "access").read_text().startswith(f"DeviceFileMinor: {minor}\n")
    assert record.load(config, prefix) == made
    assert sim.init_count(driver) == 1


MIG_CHANGES: dict[str, Callable[[Path], object]] = {
    "none": lambda _: None,
    "another-instance": lambda root: sim.set_mig(root, ["1=1/0,2/0"]),
    "another-compute-instance": lambda root: sim.set_mig(root, ["1=1/1"]),
    "no-instance": lambda root: sim.set_mig(root, ["1="]),
    "mode-off": lambda root: sim.set_mig(root, []),
    "other-gpu": lambda root: sim.set_mig(root, ["0=1/0"]),
    "other-minors": lambda root: (root / MINORS).write_text(
        (root / MINORS).read_text().replace("access 147", "access 7")
    ),
    "minors-gone": lambda root: (root / MINORS).unlink(),
}
MINORS = "proc/driver/nvidia-caps/mig-minors"


@pytest.mark.parametrize("change", MIG_CHANGES)
def test_a_change_of_mig_is_noticed_at_the_next_load(change: str, own_driver: CopyDriver, prefix: str) -> None:
    driver = own_driver()
    sim.set_mig(driver, ["1=1/0"])
    config = config_of(driver)
    first = record.load(config, prefix)
    assert first.gpus[1].migs[0].gi_minor == 147
    before = key.head(config)
    MIG_CHANGES[change](driver)
    assert (key.head(config) == before) == (change == "none"), "by what the kernel says, not by the libraries' times"
    assert (peek(config, prefix) is None) == (change != "none")
    assert (record.load(config, prefix).id != first.id) == (change != "none")


SAME_DRIVER: dict[str, Callable[[Path], object]] = {
    "directory-chmod": lambda root: (root / LIBRARIES).chmod(0o700),
    "searched-directory-appears": lambda root: (root / "usr/lib64/nvidia").mkdir(),
    "loader-cache-touched": lambda root: (root / "etc/ld.so.cache").touch(),
    "unrelated-library-added": lambda root: (root / LIBRARIES / "libz.so.1").write_text(""),
}


@pytest.mark.parametrize("change", SAME_DRIVER.values(), ids=SAME_DRIVER)
def test_change_around_the_driver_is_looked_at(
    change: Callable[[Path], object], own_driver: CopyDriver, prefix: str
) -> None:
    """Made again, with the same id as nothing of the driver changed: a start in flight goes on."""
    driver = own_driver()
    config = config_of(driver)
    first = record.load(config, prefix)
    change(driver)
    assert peek(config, prefix) is None
    assert record.load(config, prefix).id == first.id
    assert sim.init_count(driver) == 2


def test_driver_upgrade_is_noticed(new_driver: NewDriver, prefix: str) -> None:
    """New libraries in place while the old module runs: the mismatch is named; after a reboot all is well."""
    driver = new_driver(driver="570.124.04", cuda="12.8")
    config = config_of(driver)
    assert record.load(config, prefix).driver == "570.124.04"
    newer = new_driver(driver="580.95.05")
    for file in (driver / LIBRARIES).glob("*570.124.04"):
        file.unlink()
    for file in (newer / LIBRARIES).glob("*580.95.05"):
        file.rename(driver / LIBRARIES / file.name)
    error = error_of(config, prefix)
    assert error.reference == "driver-version-mismatch"
    assert "570.124.04" in error.message
    assert "580.95.05" in error.message


def test_what_does_not_matter_is_not_noticed(own_driver: CopyDriver, prefix: str) -> None:
    """Reading `information` is left alone, and another module's major is no change of the driver."""
    driver = own_driver()
    config = config_of(driver)
    record.load(config, prefix)
    append(driver / "proc/devices", "300 somebody-else\n")
    (driver / "proc/driver/nvidia/gpus/0000:0b:00.0/information").write_text("changed")
    (driver / "usr/include").mkdir()
    record.load(config, prefix)
    assert sim.init_count(driver) == 1


def test_configuration_is_part_of_the_key(own_driver: CopyDriver, prefix: str) -> None:
    """What is excluded now is in no record of before."""
    driver = own_driver()
    record.load(config_of(driver), prefix)
    made = record.load(config_of(driver, excluded_libraries=("libnvidia-opencl*",)), prefix)
    assert not [file for file in made.files if file.name.startswith("libnvidia-opencl")]
    assert sim.init_count(driver) == 2


# --- what is not trusted ------------------------------------------------------------------------------------------


def half(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def changed(**fields: object) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))

    return change


def by_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere.json"))
    file.symlink_to("elsewhere.json")


def as_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def as_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def with_row(field: int, item: object) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        stored = json.loads(file.read_text())
        stored["record"][field] = item
        file.write_text(json.dumps(stored))

    return change


UNTRUSTED: dict[str, Callable[[Path], object]] = {
    "foreign-owner": lambda file: os.chown(file, 1234, 1234),
    "group-writable": lambda file: file.chmod(0o664),
    "world-writable": lambda file: file.chmod(0o646),
    "symbolic-link": by_link,
    "fifo": as_fifo,
    "empty": lambda file: file.write_bytes(b""),
    "garbage": lambda file: file.write_bytes(os.urandom(4096)),
    "half-written": half,
    "no-object": lambda file: file.write_text("[]"),
    "another-format": changed(format=99),
    "nested-deeply": lambda file: file.write_text("[" * 100_000),
    "too-long": lambda file: append(file, " " * record.LIMIT),
    "no-record-and-no-error": changed(record=None),
    "unknown-error": changed(error=["no-such-reference", "a", "b"], life=10.0),
    "error-for-ever": changed(error=["nvml-failed", "a", "b"], life=None),
    "watch-is-text": changed(watch=[1]),
    "made-is-text": changed(made="now"),
    "key-of-another-boot": changed(key=[]),
    "level-is-text": with_row(2, "12"),
    "gpu-row-too-short": with_row(5, [[1, 2]]),
    "files-are-numbers": with_row(6, [3]),
}


@pytest.mark.parametrize("spoil", UNTRUSTED.values(), ids=UNTRUSTED)
def test_untrusted_record_is_made_again(spoil: Callable[[Path], object], sim_driver: Path, prefix: str) -> None:
    """Never used, and replaced by a good one."""
    config = config_of(sim_driver)
    first = record.load(config, prefix)
    file = stored_file(prefix)
    spoil(file)
    assert peek(config, prefix) is None
    before = sim.init_count(sim_driver)
    assert record.load(config, prefix) == first
    assert sim.init_count(sim_driver) == before + 1
    assert peek(config, prefix) == first
    status = file.lstat()
    assert (status.st_uid, status.st_mode) == (0, 0o100644)


def test_directory_in_the_records_place(sim_driver: Path, prefix: str) -> None:
    """It cannot be replaced, so the record serves this start alone."""
    config = config_of(sim_driver)
    record.load(config, prefix)
    as_directory(stored_file(prefix))
    assert record.load(config, prefix).driver == "580.95.05"


def make_foreign(state: Path) -> None:
    state.mkdir()
    os.chown(state, 1234, 1234)


def make_writable(state: Path) -> None:
    state.mkdir()
    state.chmod(0o777)


def make_link(state: Path) -> None:
    (state.parent / "other").mkdir()
    state.symlink_to("other")


STATE_DIRECTORIES: dict[str, Callable[[Path], object]] = {
    "foreign": make_foreign,
    "world-writable": make_writable,
    "file": lambda state: state.write_text(""),
    "link": make_link,
}


@pytest.mark.parametrize("make", STATE_DIRECTORIES.values(), ids=STATE_DIRECTORIES)
def test_state_directory_of_others_is_not_used(make: Callable[[Path], object], sim_driver: Path, prefix: str) -> None:
    """The record is made for this start, and nothing is left where others could have prepared something."""
    state = Path(paths(prefix).state)
    state.parent.mkdir()
    make(state)
    assert record.load(config_of(sim_driver), prefix).driver == "580.95.05"
    assert not state.is_dir() or not os.listdir(state)


def test_planted_record_in_a_foreign_directory_is_not_read(sim_driver: Path, prefix: str) -> None:
    """A good file of root's, but in a directory where somebody else can exchange it."""
    config = config_of(sim_driver)
    record.load(config, prefix)
    os.chown(paths(prefix).state, 1234, 1234)
    assert peek(config, prefix) is None


# --- many at once, and what is imported ---------------------------------------------------------------------------

LOAD = """
    import sys
    sys.path.insert(0, {sources!r})
    from gpuhook.config import Config
    from gpuhook.driver import nodes, record
    from gpuhook.errors import GpuhookError
    root = {root!r}
    config = Config(driver_root=root, dev_root=root, proc_root=root, sys_root=root, nvml_deadline={deadline})
    try:
        print(record.load(config, {prefix!r}).id)
    except GpuhookError as error:
        print(error.reference)
    print(*sorted(sys.modules))
"""


def start(driver: Path, prefix: str, deadline: int = 10) -> "subprocess.Popen[str]":
    code = textwrap.dedent(LOAD).format(sources=SOURCES, root=str(driver), prefix=prefix, deadline=deadline)
    # the interpreter of the environment that the tests run in: it finds pynvml, which a bare one may not have
    code = f"import sys; sys.path += {[path for path in sys.path if path.endswith('site-packages')]!r}\n" + code
    return subprocess.Popen([sys.executable, "-ISB", "-c", code], stdout=subprocess.PIPE, text=True)


def answers(processes: "list[subprocess.Popen[str]]") -> list[str]:
    return [process.communicate(timeout=60)[0].splitlines()[0] for process in processes]


def test_twenty_cold_starts_run_one_helper(own_driver: CopyDriver, prefix: str) -> None:
    """All get the same record, though NVML takes a while."""
    driver = own_driver("slow=700")
    ids = answers([start(driver, prefix) for _ in range(20)])
    assert len(set(ids)) == 1
    assert len(ids[0]) == 16
    assert sim.init_count(driver) == 1


def test_starts_that_wait_for_a_hanging_nvml_share_its_error(own_driver: CopyDriver, prefix: str) -> None:
    """They end when the one helper is given up, not each after a deadline of its own."""
    driver = own_driver("hang")
    begin = time.monotonic()
    assert set(answers([start(driver, prefix, deadline=2) for _ in range(5)])) == {"nvml-timeout"}
    assert time.monotonic() - begin < 5
    assert sim.init_count(driver) == 1


def test_killed_refresher_leaves_the_lock_free(own_driver: CopyDriver, prefix: str) -> None:
    """The kernel frees the lock, and the helper of the dead process dies with it."""
    driver = own_driver("slow=3000")
    first = start(driver, prefix)
    wait_until(lambda: sim.init_count(driver) == 1)
    helpers = children_of(first.pid)
    assert len(helpers) == 1
    first.kill()
    first.communicate()
    wait_until(lambda: not is_running(helpers[0]))
    sim.set_fault(driver, "none")
    begin = time.monotonic()
    assert record.load(config_of(driver), prefix).driver == "580.95.05"
    assert time.monotonic() - begin < 2


def test_lock_that_is_held_for_ever(sim_driver: Path, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is given up on, naming the lock."""
    import fcntl

    from gpuhook.driver import refresh

    config = config_of(sim_driver, nvml_deadline=0)
    monkeypatch.setattr(refresh, "_EXTRA_WAIT", 0.3)
    state = Path(paths(prefix).state)
    state.mkdir(parents=True)
    with (state / "driver.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        error = error_of(config, prefix)
    assert error.reference == "record-unavailable"
    assert f"{state}/driver.lock" in error.message


def test_cached_load_imports_next_to_nothing(sim_driver: Path, prefix: str) -> None:
    """On the hot path nothing of the cold one is loaded (design, section 5)."""
    record.load(config_of(sim_driver), prefix)
    process = start(sim_driver, prefix)
    modules = process.communicate(timeout=30)[0].splitlines()[1].split()
    forbidden = {"subprocess", "json", "re", "typing", "ctypes", "enum", "hashlib", "dataclasses", "pynvml", "os"}
    assert not forbidden & set(modules)
    assert not [name for name in modules if name.startswith("gpuhook.driver.") and name not in HOT]


HOT = ("gpuhook.driver.key", "gpuhook.driver.nodes", "gpuhook.driver.record")


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_record_survives_encoding(sim_driver: Path, prefix: str) -> None:
    """Every field of the stored form comes back."""
    record.load(config_of(sim_driver), prefix)
    stored = record.read(paths(prefix).state)
    assert stored is not None
    assert isinstance(stored.record, Record)
    assert json.loads(record.encode(stored)) == json.loads(stored_file(prefix).read_text())
