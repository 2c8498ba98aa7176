"""The driver's files that are no libraries: whose they are, where they go, what is left out and why.

Numbers with R are of reports by users of other container stacks.
"""

import json
import posix
from pathlib import Path

import pytest

from gpuhook import sim
from gpuhook.driver.data import NARROW
from gpuhook.driver.discover import Found, discover
from gpuhook.model import DriverFile
from tests.unit.driver_support import config_of
from tests.unit.test_driver_discover import MACHINE, NAME, Host, V

NATIVE = posix.uname().machine
LIB = "/usr/lib64"
NAMES = (
    "libcuda",
    "libnvidia-ml",
    "libnvidia-opencl",
    "libGLX_nvidia",
    "libEGL_nvidia",
    "libnvidia-egl-gbm",
)


@pytest.fixture
def host(folder: Path) -> Host:
    made = Host(folder / "host")
    for name in NAMES:
        made.library(f"{LIB}/{name}.so.{V}", f"{name}.so.{0 if '_nvidia' in name else 1}")
    return made


def icd(library: str) -> str:
    """A description of one library."""
    return json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": library}})


def write(host: Host, path: str, text: str) -> Path:
    file = host.root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o644)
    return file


def look(host: Host, *directories: str) -> Found:
    return discover(host.config(*(directories or (LIB,))), V)


def data(found: Found) -> dict[str, DriverFile]:
    """Target -> file."""
    return {file.target: file for file in found.files if file.kind == "data"}


GLX, EGL, GBM, CL = "libGLX_nvidia.so.0", "libEGL_nvidia.so.0", "libnvidia-egl-gbm.so.1", "libnvidia-opencl.so.1"
VULKAN = "/etc/vulkan/icd.d/nvidia_icd.json"

# path on the host, its text, where it goes, capability
PLACES = {
    "Vulkan in /usr/share (R149)": ("/usr/share/vulkan/icd.d/nvidia_icd.json", icd(GLX), VULKAN, "graphics"),
    "Vulkan in /etc (R149)": ("/etc/vulkan/icd.d/nvidia_icd.json", icd(GLX), VULKAN, "graphics"),
    "Vulkan in /usr/local": ("/usr/local/share/vulkan/icd.d/nvidia_icd.json", icd(GLX), VULKAN, "graphics"),
    "Vulkan at the root (GKE)": ("/vulkan/icd.d/nvidia_icd.json", icd(GLX), VULKAN, "graphics"),
    "Vulkan with the machine in its name (R149)": (
        f"/usr/share/vulkan/icd.d/nvidia_icd.{NATIVE}.json",
        icd(GLX),
        f"/etc/vulkan/icd.d/nvidia_icd.{NATIVE}.json",
        "graphics",
    ),
    "Vulkan with machine and version in its name (R149)": (
        f"/usr/share/vulkan/icd.d/nvidia_icd.{NATIVE}-535.json",
        icd(GLX),
        f"/etc/vulkan/icd.d/nvidia_icd.{NATIVE}-535.json",
        "graphics",
    ),
    "Vulkan under a name of years to come": (
        "/usr/share/vulkan/icd.d/green.json",
        icd(GLX),
        "/etc/vulkan/icd.d/green.json",
        "graphics",
    ),
    "Vulkan layers": (
        "/usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
        json.dumps({"layers": [{"name": "A", "library_path": "libother.so"}, {"name": "B", "library_path": GLX}]}),
        "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
        "graphics",
    ),
    "EGL in /usr/share (R150)": (
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        icd(EGL),
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "graphics",
    ),
    "EGL in /etc alone (R150)": (
        "/etc/glvnd/egl_vendor.d/10_nvidia.json",
        icd(EGL),
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "graphics",
    ),
    "EGL's GBM platform (R150)": (
        "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
        icd(GBM),
        "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
        "graphics",
    ),
    "OpenCL": ("/etc/OpenCL/vendors/nvidia.icd", CL + "\n", "/etc/OpenCL/vendors/nvidia.icd", "compute"),
    "OptiX": ("/usr/share/nvidia/nvoptix.bin", "bytes", "/usr/share/nvidia/nvoptix.bin", "graphics"),
    "application profiles": (
        f"/usr/share/nvidia/nvidia-application-profiles-{V}-rc",
        "{}",
        f"/usr/share/nvidia/nvidia-application-profiles-{V}-rc",
        "graphics",
    ),
    "configuration of X": (
        "/etc/X11/xorg.conf.d/10-nvidia.conf",
        "Section",
        "/usr/share/X11/xorg.conf.d/10-nvidia.conf",
        "display",
    ),
    "X driver beside the libraries": (
        f"{LIB}/nvidia/xorg/nvidia_drv.so",
        "",
        "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
        "display",
    ),
    "X driver with X's own": (
        f"{LIB}/xorg/modules/drivers/nvidia_drv.so",
        "",
        "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
        "display",
    ),
    "X module under its short name": (
        f"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{V}",
        "",
        f"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{V}",
        "display",
    ),
}


@pytest.mark.parametrize(("path", "text", "target", "capability"), PLACES.values(), ids=PLACES)
def test_found_and_placed(host: Host, path: str, text: str, target: str, capability: str) -> None:
    write(host, path, text)
    found = data(look(host))
    assert list(found) == [target]
    assert (found[target].path, found[target].capability, found[target].text) == (path, capability, "")


FOREIGN = {
    "Mesa's Vulkan": ("/usr/share/vulkan/icd.d/radeon_icd.json", icd("/usr/lib/libvulkan_radeon.so")),
    "nouveau's Vulkan": ("/usr/share/vulkan/icd.d/nouveau_icd.json", icd("libvulkan_nouveau.so")),
    "Mesa's EGL": ("/usr/share/glvnd/egl_vendor.d/50_mesa.json", icd("libEGL_mesa.so.0")),
    "another layer": ("/etc/vulkan/implicit_layer.d/MangoHud.json", icd("/usr/lib/mangohud/libMangoHud.so")),
    "another OpenCL": ("/etc/OpenCL/vendors/pocl.icd", "libpocl.so.2\n"),
    "no library at all": ("/etc/vulkan/implicit_layer.d/meta.json", json.dumps({"layer": {"component_layers": []}})),
    "a broken file of somebody": ("/etc/vulkan/icd.d/x.json", "{"),
    "an admin's X configuration": ("/etc/X11/xorg.conf.d/20-nvidia.conf", 'BusID "PCI:1:0:0"'),
    "an older driver's profiles": ("/usr/share/nvidia/nvidia-application-profiles-470.82.01-rc", "{}"),
    "documents": ("/usr/share/nvidia/monitoring.conf", ""),
}


@pytest.mark.parametrize(("path", "text"), FOREIGN.values(), ids=FOREIGN)
def test_what_is_not_the_drivers_never_goes_in(host: Host, path: str, text: str) -> None:
    write(host, path, text)
    found = look(host)
    assert (data(found), [item for item in found.left_out if item[0] == path]) == ({}, [])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "no JSON"),
        ("[" * 50_000, "no JSON"),
        ("{}" + " " * 70_000, "cannot be read as a short text"),
        (icd("libGLX_other.so.0"), "names no library that this driver has for it"),
        ("\udcff", "cannot be read as a short text"),
    ],
    ids=["broken (R153)", "deep", "long", "of a library that is not there", "no text"],
)
def test_a_bad_description_of_the_driver_is_left_out_and_said(host: Host, text: str, reason: str) -> None:
    """And the driver is found all the same (R153)."""
    path = "/usr/share/vulkan/icd.d/nvidia_icd.json"
    file = write(host, path, "")
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    found = look(host)
    assert data(found) == {}
    assert (path, reason) in found.left_out
    assert found.library("libcuda") is not None


def test_one_that_others_can_write_is_left_out(host: Host) -> None:
    write(host, "/usr/share/vulkan/icd.d/nvidia_icd.json", icd(GLX)).chmod(0o666)
    found = look(host)
    assert data(found) == {}
    assert any("nvidia_icd.json" in path and "0666" in reason for path, reason in found.left_out)


def test_r149_absolute_places_of_the_host_are_taken_out(host: Host) -> None:
    """NixOS: the libraries lie elsewhere in a container, so it gets a text with their names."""
    store = "/nix/store/abc-nvidia-x11-535.161.08"
    write(
        host,
        "/etc/vulkan/icd.d/nvidia_icd.json",
        json.dumps({"ICD": {"library_path": f"{store}/lib/{GLX}", "api_version": "1.3"}}),
    )
    write(host, "/etc/OpenCL/vendors/nvidia.icd", f"{store}/lib/{CL}\n")
    found = data(look(host))
    assert json.loads(found[VULKAN].text) == {"ICD": {"library_path": GLX, "api_version": "1.3"}}
    assert found["/etc/OpenCL/vendors/nvidia.icd"].text == f"{CL}\n"


def test_the_first_of_a_name_counts(host: Host) -> None:
    """Beside the libraries, then /etc, /usr/local/share, /usr/share."""
    host.driver("/opt/nvidia/lib")
    host.library(f"/opt/nvidia/lib/libGLX_nvidia.so.{V}", GLX)
    for base in ("/usr/share", "/usr/local/share", "/etc", "/opt/nvidia/share"):
        write(host, f"{base}/vulkan/icd.d/nvidia_icd.json", icd(GLX))
        found = data(look(host, "/opt/nvidia/lib", LIB))
        assert found[VULKAN].path == f"{base}/vulkan/icd.d/nvidia_icd.json"
        assert len(found) == 1


def test_a_link_and_its_target_are_one(host: Host) -> None:
    """Debian: /etc/vulkan leads by alternatives to the file."""
    write(host, "/usr/share/vulkan/icd.d/nvidia_icd.json", icd(GLX))
    host.link("/etc/vulkan/icd.d/nvidia_icd.json", "/etc/alternatives/icd")
    host.link("/etc/alternatives/icd", "/usr/share/vulkan/icd.d/nvidia_icd.json")
    assert [file.path for file in data(look(host)).values()] == ["/usr/share/vulkan/icd.d/nvidia_icd.json"]


def test_x_module_of_another_driver_is_left_out(host: Host) -> None:
    path = "/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so"
    write(host, f"{path}.470.82.01", "")
    host.link(path, "libglxserver_nvidia.so.470.82.01")
    found = look(host)
    assert data(found) == {}
    assert (f"{path}.470.82.01", f"not of driver {V}") in found.left_out


def test_x_module_has_its_short_name(host: Host) -> None:
    write(host, f"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{V}", "")
    (file,) = data(look(host)).values()
    assert file.links == ("libglxserver_nvidia.so",)


NEW_THINGS = {
    "a file in a folder that is there": "/usr/share/vulkan/icd.d/nvidia_icd.json",
    "the folder": "/usr/share/glvnd/egl_vendor.d",
    "all of it": "/usr/local/share/egl/egl_external_platform.d",
    "in /etc": "/etc/OpenCL",
    "at the root": "/vulkan",
    "X modules": "/usr/lib/xorg",
}


@pytest.mark.parametrize("path", NEW_THINGS.values(), ids=NEW_THINGS)
def test_what_appears_later_is_watched(host: Host, path: str) -> None:
    """The directory itself, or the first part of the way that is missing: never /etc, which changes all the time."""
    (host.root / "usr/share/vulkan/icd.d").mkdir(parents=True)
    (host.root / "etc").mkdir(exist_ok=True)
    watch = look(host).watch
    missing = host.root / path.lstrip("/")
    while not missing.parent.is_dir():
        missing = missing.parent
    place = "/" + str(missing.relative_to(host.root))
    assert place in watch or place.rpartition("/")[0] in watch
    assert not {"/etc", "/", "/usr"} & watch


# --- 32 bits ------------------------------------------------------------------------------------------------------

NARROW_NUMBER = {"i386": 3, "arm": 40}[NARROW[NAME]]
NARROW_DIRS = {62: ("/usr/lib/i386-linux-gnu", "/usr/lib32", "/usr/lib"), 183: ("/usr/lib/arm-linux-gnueabihf",)}[
    MACHINE
]


def narrow(found: Found) -> dict[str, str]:
    return {file.name: file.path for file in found.files if file.kind == "library" and file.bits == 32}


@pytest.mark.parametrize("directory", NARROW_DIRS)
def test_libraries_of_32_bits(host: Host, directory: str) -> None:
    """Under the same names as those of 64 bits, which stay; one for another machine is none."""
    host.library(f"{directory}/libGLX_nvidia.so.{V}", GLX, machine=NARROW_NUMBER, bits=32)
    host.library(f"{directory}/libEGL_nvidia.so.{V}", EGL, machine=8, bits=32)
    found = look(host)
    assert narrow(found) == {f"libGLX_nvidia.so.{V}": f"{directory}/libGLX_nvidia.so.{V}"}
    wide = {file.name: file.path for file in found.files if file.kind == "library" and file.bits == 64}
    assert wide == {f"{name}.so.{V}": f"{LIB}/{name}.so.{V}" for name in NAMES}
    (file,) = [file for file in found.files if file.bits == 32]
    assert (file.capability, file.links) == ("graphics", (GLX, "libGLX_indirect.so.0"))


def test_a_leftover_of_32_bits_is_no_version_of_the_driver(host: Host) -> None:
    """A mismatch is never blamed on it, and libcuda of 32 bits does not count as libcuda."""
    host.library(f"{NARROW_DIRS[0]}/libcuda.so.470.82.01", machine=NARROW_NUMBER, bits=32)
    (host.root / f"usr/lib64/libcuda.so.{V}").unlink()
    host.library(f"{NARROW_DIRS[0]}/libcuda.so.{V}", "libcuda.so.1", machine=NARROW_NUMBER, bits=32)
    found = look(host)
    assert found.versions == {V}
    assert found.library("libcuda") is None


def test_a_description_for_32_bits(host: Host) -> None:
    """By the machine in its name; it counts where the driver has the library for it."""
    word = {"i386": "i686", "arm": "armhf"}[NARROW[NAME]]
    path = f"/usr/share/vulkan/icd.d/nvidia_icd.{word}.json"
    write(host, path, icd(GLX))
    found = look(host)
    assert (path, "names no library that this driver has for it") in found.left_out
    host.library(f"{NARROW_DIRS[0]}/libGLX_nvidia.so.{V}", GLX, machine=NARROW_NUMBER, bits=32)
    (file,) = data(look(host)).values()
    assert (file.path, file.bits) == (path, 32)


def test_a_description_for_another_machine(host: Host) -> None:
    other = "aarch64" if NATIVE == "x86_64" else "x86_64"
    write(host, f"/usr/share/vulkan/icd.d/nvidia_icd.{other}.json", icd(GLX))
    assert data(look(host)) == {}


# --- simulated hosts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["ubuntu", "debian", "fedora", "nixos", "cos"])
def test_every_layout_has_the_same_data(layout: str, folder: Path) -> None:
    """Wherever a distribution puts them, a container gets the same files at the same places."""
    sim.create(folder / "driver", sim.SimOptions(layout=layout))
    found = data(discover(config_of(folder / "driver"), "580.95.05"))
    names = {target.rpartition("/")[2] for target in found}
    assert {
        "nvidia.icd",
        "nvidia_icd.json",
        "nvidia_layers.json",
        "10_nvidia.json",
        "10_nvidia_wayland.json",
        "15_nvidia_gbm.json",
        "nvoptix.bin",
    } <= names
    assert not {"radeon_icd.json", "50_mesa.json"} & names
    assert {bool(file.text) for file in found.values() if file.name.endswith(("json", "icd"))} == {layout == "nixos"}
