"""Windows' driver on WSL2: what is found of it, what is refused, and what a container gets."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import grant, sim
from gpuhook.cli import main
from gpuhook.config import Config
from gpuhook.driver import nvml, record, wsl
from gpuhook.errors import GpuhookError
from gpuhook.model import Container, Record
from gpuhook.sim.data import shared_object
from tests.unit.driver_support import config_of, copy_of

LIB, STORE = "/usr/lib/wsl/lib", "/usr/lib/wsl/drivers"


@pytest.fixture(scope="session")
def made(place: Path) -> Path:
    """A WSL2 with two GPUs."""
    sim.create(place / "wsl", sim.SimOptions(layout="wsl"))
    return place / "wsl"


@pytest.fixture
def host(made: Path, folder: Path) -> Path:
    """One of a test's own."""
    return copy_of(made, folder / "wsl")


def store_of(host: Path) -> str:
    (store,) = (host / STORE[1:]).glob("nv_*")
    return "/" + str(store.relative_to(host))


def names(host: Path) -> dict[str, str]:
    """What the loader's cache of a container leads to, by the names."""
    files = wsl.discover(config_of(host)).files
    return {name: file.target for file in files if file.kind == "library" for name in file.links}


def test_the_record(host: Path, folder: Path) -> None:
    """The version is NVML's, and the GPUs have no minor; from the store it comes as it was made."""
    config = config_of(host)
    known = record.load(config, str(folder))
    assert (known.wsl, known.driver, known.cuda) == (True, "580.95.05", (13, 0))
    assert [(gpu.index, gpu.minor, gpu.error) for gpu in known.gpus] == [(0, -1, ""), (1, -1, "")]
    assert record.load(config, str(folder)) == known
    assert sim.init_count(host) == 1


def test_capabilities(host: Path) -> None:
    """Loaders belong where their libraries do; data and libraries of NGX are known, other files of Windows left out."""
    found = {file.name: file.capability for file in wsl.discover(config_of(host)).files}
    assert found["libcuda_loader.so"] == found["libcuda.so.1.1"] == found["nvcubins.bin"] == "compute"
    assert found["libnvidia-ml_loader.so"] == found["nvidia-smi"] == "utility"
    assert found["libnvidia-encode.so.1"] == "video"
    assert found["nvoptix.bin"] == found["libnvoptix_loader.so"] == found["libd3d12.so"] == "graphics"
    assert found["_nvngx.dll"] == "ngx"
    assert found["libdxcore.so"] == found["libnvdxgdmal.so.1"] == "*"
    assert not {"nvcuda64.dll", "nv_dispi.inf", "driver.sys"} & found.keys()


def test_names_lead_where_they_do_on_the_host(host: Path) -> None:
    """To /usr/lib/wsl/lib: what is not there, the host's loader does not find either."""
    found = names(host)
    assert found["libcuda.so.1"] == f"{LIB}/libcuda.so.1"
    assert found["libnvidia-ml.so.1"] == f"{LIB}/libnvidia-ml.so.1"
    assert found["libdxcore.so"] == f"{LIB}/libdxcore.so"
    assert not [target for target in found.values() if target.startswith(STORE)]


def test_without_linux_libraries_loaders_have_the_names(host: Path) -> None:
    """Of two files with one soname in the driver store, the loader comes first."""
    shutil.rmtree(host / LIB[1:])
    found = names(host)
    assert found["libcuda.so.1"] == f"{store_of(host)}/libcuda_loader.so"
    assert found["libnvidia-ml.so.1"] == f"{store_of(host)}/libnvidia-ml_loader.so"


def test_links_into_the_store_are_one_file(host: Path) -> None:
    """A library that /usr/lib/wsl/lib has as a link is mounted once, and keeps all its names."""
    store = store_of(host)
    link = host / f"{LIB[1:]}/libnvcuvid.so.1"
    link.unlink()
    link.symlink_to(f"{store}/libnvcuvid.so.1")
    files = [file for file in wsl.discover(config_of(host)).files if file.path == f"{store}/libnvcuvid.so.1"]
    assert [(file.links, file.target) for file in files] == [(("libnvcuvid.so.1",), f"{LIB}/libnvcuvid.so.1")]


def test_r154_the_files_of_a_report(folder: Path, made: Path) -> None:
    """A driver store with two files, and the loaders: all of both, by their places."""
    host = folder / "host"
    store = f"{STORE}/nv_dispi.inf_amd64_abc"
    source = made / store_of(made)[1:]
    for path, name in (
        (f"{LIB}/libcuda.so.1", "libcuda.so.1.1"),
        (f"{LIB}/libdxcore.so", "libnvdxgdmal.so.1"),
        (f"{LIB}/libnvidia-ml.so.1", "libnvidia-ml.so.1"),
        (f"{LIB}/nvidia-smi", "nvidia-smi"),
        (f"{store}/libcuda.so.1.1", "libcuda.so.1.1"),
        (f"{store}/nvidia-smi", "nvidia-smi"),
    ):
        (host / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, host / path[1:])
    found = wsl.discover(config_of(host))
    assert {file.target for file in found.files if file.kind == "library"} == {
        f"{LIB}/libcuda.so.1",
        f"{LIB}/libdxcore.so",
        f"{LIB}/libnvidia-ml.so.1",
        f"{store}/libcuda.so.1.1",
    }
    assert [file.path for file in found.files if file.kind == "binary"] == [f"{LIB}/nvidia-smi"]


def test_r155_the_store_with_a_libcuda(host: Path) -> None:
    """Other devices' drivers have nothing to give; of two of NVIDIA's, an old one's files come too, without names."""
    (host / f"{STORE[1:]}/u0390451.inf_amd64_x").mkdir()
    new, old = store_of(host), f"{STORE}/nvhdc.inf_amd64_y"
    shutil.copytree(host / new[1:], host / old[1:])
    os.utime(host / old[1:], (1, 1))
    found = wsl.discover(config_of(host))
    assert found.directories == [LIB, new, old]
    assert not any(file.links for file in found.files if file.kind == "library" and file.path.startswith(old))
    assert [file.path for file in found.files if file.kind == "binary"] == [f"{LIB}/nvidia-smi"]


def test_what_is_no_library_or_not_trusted_is_left_out(host: Path) -> None:
    """Each with the reason."""
    store = host / store_of(host)[1:]
    (store / "libnvtext.so").write_text("no library")
    (store / "libnvnarrow.so").write_bytes(shared_object("libnvnarrow.so"))
    (store / "libnvdxgdmal.so.1").chmod(0o666)
    reasons = dict(wsl.discover(config_of(host)).left_out)
    assert [reasons[f"{store_of(host)}/{name}"].partition(" ")[0] for name in ("libnvtext.so", "libnvnarrow.so")] == [
        "no",
        "for",
    ]
    assert "can be written by others" in reasons[f"{store_of(host)}/libnvdxgdmal.so.1"]


def no_store(host: Path) -> None:
    shutil.rmtree(host / STORE[1:])


def no_nvidia(host: Path) -> None:
    shutil.rmtree(host / store_of(host)[1:])


def no_device(host: Path) -> None:
    (host / "dev/dxg").unlink()


def no_nvml(host: Path) -> None:
    for path in (host / "usr/lib/wsl").rglob("libnvidia-ml*"):
        path.unlink()


BROKEN: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no driver store": (no_store, "driver-not-found", "has no driver"),
    "no driver of NVIDIA": (no_nvidia, "driver-not-found", "none of the 2 drivers in"),
    "no device": (no_device, "driver-not-loaded", "/dev/dxg is missing"),
    "no NVML": (no_nvml, "library-missing", "Windows' driver store has no libnvidia-ml.so.1"),
}


@pytest.mark.parametrize(("spoil", "reference", "words"), BROKEN.values(), ids=BROKEN)
def test_what_is_missing(spoil: Callable[[Path], None], reference: str, words: str, host: Path, folder: Path) -> None:
    """Said as what it is on WSL2, with what to do on Windows."""
    spoil(host)
    error = error_of(host, folder)
    assert (error.reference, "Windows" in error.hint) == (reference, True)
    assert words in error.message


def test_nvml_without_a_gpu_sends_to_windows(host: Path, folder: Path) -> None:
    """`modprobe nvidia` is of no use there."""
    sim.set_fault(host, "not-loaded")
    error = error_of(host, folder)
    assert (error.reference, "modprobe" in error.hint) == ("driver-not-loaded", False)


def error_of(host: Path, folder: Path) -> GpuhookError:
    with pytest.raises(GpuhookError) as caught:
        record.load(config_of(host), str(folder))
    return caught.value


def test_a_new_driver_on_windows_is_seen(host: Path, folder: Path) -> None:
    """It lies in another folder of the driver store."""
    config = config_of(host)
    first = record.load(config, str(folder))
    shutil.copytree(host / store_of(host)[1:], host / f"{STORE[1:]}/nv_dispi.inf_amd64_new")
    assert record.load(config, str(folder)).id != first.id


# --- what a container gets ----------------------------------------------------------------------------------------


def decide(config: Config, folder: Path, *env: tuple[str, str]) -> grant.Grant:
    granted = grant.decide(Container(env), config, str(folder))
    assert granted is not None
    return granted


@pytest.mark.parametrize(
    ("asked", "gpus", "paths"),
    [("all", 2, ["/dev/dxg"]), ("0,1", 2, ["/dev/dxg"]), ("none", 0, [])],
)
def test_one_node_for_all(asked: str, gpus: int, paths: list[str], host: Path, folder: Path) -> None:
    granted = decide(config_of(host), folder, ("NVIDIA_VISIBLE_DEVICES", asked), ("NVIDIA_DRIVER_CAPABILITIES", "all"))
    assert (len(granted.gpus), [node.path for node in granted.nodes]) == (gpus, paths)
    assert granted.warnings == ()


def test_some_of_them_cannot_be_given(host: Path, folder: Path) -> None:
    with pytest.raises(GpuhookError, match="1 of 2 GPUs, and WSL2 gives all by one device") as caught:
        decide(config_of(host), folder, ("NVIDIA_VISIBLE_DEVICES", "0"))
    assert caught.value.reference == "device-invalid"


def test_the_requirement_is_judged_by_nvmls_version(host: Path, folder: Path) -> None:
    with pytest.raises(GpuhookError, match="requirement-not-met"):
        decide(config_of(host), folder, ("NVIDIA_VISIBLE_DEVICES", "all"), ("NVIDIA_REQUIRE_CUDA", "cuda>=13.1"))


def other_number(host: Path) -> None:
    (host / "proc/misc").write_text("  1 dxg\n")


def no_kernel(host: Path) -> None:
    (host / "proc/misc").write_text("  1 psaux\n")


@pytest.mark.parametrize("spoil", [other_number, no_kernel])
def test_a_node_that_is_not_the_kernels_is_refused(spoil: Callable[[Path], None], host: Path, folder: Path) -> None:
    """Its number has to be that of /proc/misc."""
    spoil(host)
    with pytest.raises(GpuhookError, match="node-missing"):
        decide(config_of(host), folder, ("NVIDIA_VISIBLE_DEVICES", "all"))


def test_a_loaded_module_counts_more(host: Path, sim_driver: Path, folder: Path) -> None:
    """Where NVIDIA's kernel module is loaded, the host is no WSL2, whatever lies in /usr/lib/wsl."""
    driver = copy_of(sim_driver, folder / "native")
    shutil.copytree(host / "usr/lib/wsl", driver / "usr/lib/wsl")
    known: Record = record.load(config_of(driver), str(folder))
    assert (known.wsl, [gpu.minor for gpu in known.gpus]) == (False, [0, 1])


def test_the_doctor_knows_it(host: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No finding of it is about kernel modules or nodes that WSL2 has not."""
    (folder / "etc/gpuhook").mkdir(parents=True)
    roots = "".join(f'{key} = "{host}"\n' for key in ("driver-root", "dev-root", "proc-root", "sys-root"))
    (folder / "etc/gpuhook/runtime.toml").write_text(f"[driver]\n{roots}")
    main(["gpuhook", "doctor"], str(folder))
    said = capsys.readouterr().out
    assert "Windows' driver 580.95.05 (WSL2)" in said
    assert "/dev/dxg, with the number of /proc/misc" in said
    assert "modeset" not in said
    assert "modprobe" not in said


def test_nvml_may_open_a_device_of_a_group(host: Path) -> None:
    """Its process is nobody, who gets the group of a device that is closed to others."""
    os.chown(host / "dev/dxg", 0, 4711)
    (host / "dev/dxg").chmod(0o660)
    assert nvml._node_groups(config_of(host)) == {4711}
