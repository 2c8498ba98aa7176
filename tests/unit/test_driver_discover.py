"""Discovery: what belongs to the driver, where it is found, what is trusted, and what is left out and why."""

import os
import posix
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import ldcache
from gpuhook.config import Config
from gpuhook.driver import record, refresh
from gpuhook.driver.discover import Found, discover
from gpuhook.errors import GpuhookError
from gpuhook.model import DriverFile
from tests.unit.driver_support import config_of, copy_of
from tests.unit.test_elf import build

V = "535.161.08"
MACHINE = {"x86_64": 62, "aarch64": 183}[posix.uname().machine]
NAME = {62: "x86-64", 183: "aarch64"}[MACHINE]
MULTIARCH = f"/usr/lib/{posix.uname().machine}-linux-gnu"


class Host:
    """A driver root made by hand, in the ways that distributions lay them out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def library(self, path: str, soname: str = "", machine: int = MACHINE, bits: int = 64) -> Path:
        """A small shared object."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(build(machine=machine, bits=bits, soname=soname.encode() or None))
        file.chmod(0o644)
        return file

    def driver(self, directory: str, version: str = V, names: tuple[str, ...] = ("libcuda", "libnvidia-ml")) -> None:
        """Libraries of one version, each with soname `.so.1`."""
        for name in names:
            self.library(f"{directory}/{name}.so.{version}", f"{name}.so.1")

    def link(self, path: str, text: str) -> None:
        """A symbolic link."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(text)

    def cache(self, *paths: str) -> None:
        """A loader cache that names these files."""
        entries = tuple((path.rpartition("/")[2], path) for path in paths)
        (self.root / "etc").mkdir(exist_ok=True)
        (self.root / "etc/ld.so.cache").write_bytes(ldcache.merge(None, entries, NAME))

    def config(self, *directories: str, extra: tuple[str, ...] = (), excluded: tuple[str, ...] = ()) -> Config:
        """A configuration with this search list."""
        return config_of(self.root, library_dirs=directories, extra_libraries=extra, excluded_libraries=excluded)


@pytest.fixture
def host(folder: Path) -> Host:
    return Host(folder / "host")


def libraries(found: Found) -> dict[str, str]:
    """Name -> path of the libraries."""
    return {file.name: file.path for file in found.files if file.kind == "library"}


def one(found: Found, name: str) -> DriverFile:
    return next(file for file in found.files if file.name == name)


BOTH = (f"libcuda.so.{V}", f"libnvidia-ml.so.{V}")


def test_search_list(host: Host) -> None:
    """Directories of the list are looked in; those that are not on it are not."""
    host.driver("/opt/a")
    host.driver("/opt/b", names=("libnvidia-cfg",))
    assert libraries(discover(host.config("/opt/a"), V)) == {name: f"/opt/a/{name}" for name in BOTH}


def test_loader_cache_names_a_directory(host: Host) -> None:
    """One entry is enough: all of its directory is looked at, so a short cache does not hide libraries (R47)."""
    host.driver("/usr/lib/odd", names=("libcuda", "libnvidia-ml", "libnvidia-cfg"))
    host.link("/usr/lib/odd/libcuda.so.1", f"libcuda.so.{V}")
    host.cache("/usr/lib/odd/libcuda.so.1")
    assert len(libraries(discover(host.config(), V))) == 3


BROKEN_CACHES = {
    "absent": None,
    "empty": b"",
    "garbage": b"\0\xff" * 500,
    "cut": b"glibc-ld.so.cache1.1" + b"\xff" * 40,
}


@pytest.mark.parametrize("data", BROKEN_CACHES.values(), ids=BROKEN_CACHES)
def test_cache_that_says_nothing_is_no_error(data: bytes | None, host: Host) -> None:
    """Musl hosts, NixOS and Yocto have none (R44, R46, R53): the search list serves."""
    host.driver("/usr/local/glibc/usr/lib")
    if data is not None:
        (host.root / "etc").mkdir()
        (host.root / "etc/ld.so.cache").write_bytes(data)
    assert len(libraries(discover(host.config("/usr/local/glibc/usr/lib"), V))) == 2


def test_stale_cache_entry(host: Host) -> None:
    """A cache that names what is gone, in a directory that is there and in one that is not (R55)."""
    host.driver("/usr/lib64", "570.133.07")
    host.cache("/usr/lib64/libcuda.so.1", "/usr/lib/gone/libnvidia-ml.so.1")
    found = discover(host.config(), "570.124.04")
    assert libraries(found) == {}
    assert found.versions == {"570.133.07"}


def test_alternatives_lead_to_a_directory_that_nothing_names(host: Host) -> None:
    """Debian's layout: the cache's libcuda.so.1 is a chain of absolute links, read inside the driver root (R50)."""
    current = f"{MULTIARCH}/nvidia/current"
    host.driver(current, names=("libcuda", "libnvidia-ml", "libnvidia-eglcore"))
    host.link(f"{current}/libcuda.so.1", f"libcuda.so.{V}")
    host.link(f"{current}/libcuda.so", "libcuda.so.1")
    host.link("/etc/alternatives/nvidia--libcuda.so.1", f"{current}/libcuda.so.1")
    host.link(f"{MULTIARCH}/libcuda.so.1", "/etc/alternatives/nvidia--libcuda.so.1")
    host.cache(f"{MULTIARCH}/libcuda.so.1")
    found = discover(host.config(), V)
    assert libraries(found)[f"libnvidia-eglcore.so.{V}"] == f"{current}/libnvidia-eglcore.so.{V}"
    assert one(found, f"libcuda.so.{V}").links == ("libcuda.so.1", "libcuda.so")
    assert {"/etc/alternatives", MULTIARCH, current} <= found.watch


def test_links_do_not_leave_the_driver_root(host: Host) -> None:
    """An absolute link is the root's, not this machine's; `..` stops at the root; a circle leads nowhere (R63)."""
    host.driver("/real")
    host.link("/abs", "/real")
    host.link("/up", "../../../../../../real")
    host.link("/circle", "circle")
    for directory in ("/abs", "/up"):
        assert set(libraries(discover(host.config(directory), V)).values()) == {f"/real/{name}" for name in BOTH}
    assert libraries(discover(host.config("/circle"), V)) == {}
    host.link(f"/usr/lib/libcuda.so.{V}", "/bin/sh")
    assert libraries(discover(host.config("/usr/lib"), V)) == {}


def test_nix_store(host: Host) -> None:
    """Links in the profile, files in the store: the real path, the name of the library (R44)."""
    store = "/nix/store/abc-nvidia-x11-535/lib"
    host.driver(store)
    for name in BOTH:
        host.link(f"/run/opengl-driver/lib/{name}", f"{store}/{name}")
    (host.root / "nix/store").chmod(0o1775)
    assert libraries(discover(host.config("/run/opengl-driver/lib"), V)) == {name: f"{store}/{name}" for name in BOTH}


def test_two_drivers_side_by_side(host: Host) -> None:
    """A glob finds both; the loaded version's is taken (R49)."""
    host.driver("/opt/nvidia/525.105.17/6.1.50-flatcar/usr/lib64", "525.105.17")
    host.driver("/opt/nvidia/515.65.01/5.15.70-flatcar/usr/lib64", "515.65.01")
    found = discover(host.config("/opt/nvidia/*/*/usr/lib64"), "525.105.17")
    directory = "/opt/nvidia/525.105.17/6.1.50-flatcar/usr/lib64"
    assert libraries(found)["libcuda.so.525.105.17"] == f"{directory}/libcuda.so.525.105.17"
    assert len(libraries(found)) == 2
    assert "/opt/nvidia" in found.watch


def test_first_directory_of_a_name_wins(host: Host) -> None:
    """And the other is named among what is left out (R57)."""
    host.driver("/one")
    host.driver("/two", names=("libcuda", "libnvidia-cfg"))
    found = discover(host.config("/one", "/two"), V)
    assert libraries(found)[f"libcuda.so.{V}"] == f"/one/libcuda.so.{V}"
    assert (f"/two/libcuda.so.{V}", "another directory has this name first") in found.left_out
    assert f"libnvidia-cfg.so.{V}" in libraries(found)


def test_unknown_library_of_the_version_goes_with_everything(host: Host) -> None:
    """So that a new branch works (R58)."""
    host.driver("/usr/lib64", names=("libcuda", "libnvidia-ml", "libnvidia-newthing"))
    assert one(discover(host.config("/usr/lib64"), V), f"libnvidia-newthing.so.{V}").capability == "*"


CAPABILITIES = {
    "libnvidia-ml": "utility",
    "libcuda": "compute",
    "libnvidia-gpucomp": "compute+graphics",
    "libnvidia-allocator": "compute+graphics",
    "libglxserver_nvidia": "display",
    "libnvidia-encode": "video",
    "libvdpau_nvidia": "video",
    "libGLX_nvidia": "graphics",
    "libnvidia-tls": "graphics",
    "libnvidia-ngx": "ngx",
    "libnvidia-nonsense": "*",
}


def test_capabilities(host: Host) -> None:
    host.driver("/usr/lib64", names=tuple(CAPABILITIES))
    found = discover(host.config("/usr/lib64"), V)
    assert {file.name.partition(".so")[0]: file.capability for file in found.files} == CAPABILITIES


NOT_OURS = (
    "libc.so.6",
    "libGL.so.1",
    "libcuda.so",
    "libcuda.so.535.161",
    "libcuda.so.535.161.081",
    "libcuda.so.1535.161.08",
    "libxcuda.so-535.161.08",
    "mylibcuda.so.535.161.08",
    "lib.so.535.161.08",
    "libcuda.so.535.161.08.bak",
    "libnvidia-ml.so.550.1",
)


def test_files_of_the_host_never(host: Host) -> None:
    """Only the exact version counts, at the end of a library's name."""
    host.driver("/usr/lib64")
    for name in NOT_OURS:
        host.library(f"/usr/lib64/{name}", name)
    assert set(libraries(discover(host.config("/usr/lib64"), V))) == set(BOTH)


def test_link_with_our_version_to_a_system_file(host: Host) -> None:
    """A name alone does not make a system library the driver's."""
    host.driver("/usr/lib64")
    host.library("/usr/lib64/libc.so.6", "libc.so.6")
    host.link(f"/usr/lib64/libnvidia-evil.so.{V}", "libc.so.6")
    found = discover(host.config("/usr/lib64"), V)
    assert set(libraries(found)) == set(BOTH)
    assert any("no file of the driver" in reason for _, reason in found.left_out)


def test_companions(host: Host) -> None:
    """Libraries of the driver that carry a version of their own (R59)."""
    host.driver("/usr/lib64")
    for name, soname in (
        ("libnvidia-nvvm70.so.4", "libnvidia-nvvm70.so.4"),
        ("libnvidia-api.so.1", "libnvidia-api.so.1"),
        ("libnvidia-egl-wayland.so.1.1.11", "libnvidia-egl-wayland.so.1"),
        ("libnvidia-egl-gbm.so.1.1.0", "libnvidia-egl-gbm.so.1"),
        ("libnvidia-egl-future.so.1.0", "libnvidia-egl-future.so.1"),  # of years to come
        ("libnvidia-egl-whole.so.1", "libnvidia-egl-whole.so.1"),
        ("libnvidia-pkcs11-openssl4.so.1.2", "libnvidia-pkcs11-openssl4.so.1"),
        ("libnvidia-container.so.1.17.4", "libnvidia-container.so.1"),  # no library of the driver
        ("libnvidia-eglcore.so.470.82.01", "libnvidia-eglcore.so.470.82.01"),  # left by another driver
        ("libnvidia-pkcs11-openssl3.so.470.82.01", "libnvidia-pkcs11-openssl3.so.470.82.01"),
    ):
        host.library(f"/usr/lib64/{name}", soname)
    host.link("/usr/lib64/libnvidia-egl-wayland.so.1", "libnvidia-egl-wayland.so.1.1.11")
    found = discover(host.config("/usr/lib64"), V)
    assert set(libraries(found)) - set(BOTH) == {
        "libnvidia-nvvm70.so.4",
        "libnvidia-api.so.1",
        "libnvidia-egl-wayland.so.1.1.11",
        "libnvidia-egl-gbm.so.1.1.0",
        "libnvidia-egl-future.so.1.0",
        "libnvidia-egl-whole.so.1",
        "libnvidia-pkcs11-openssl4.so.1.2",
    }
    assert one(found, "libnvidia-egl-wayland.so.1.1.11").links == ("libnvidia-egl-wayland.so.1",)


def test_links_that_exist_on_the_host(host: Host) -> None:
    """The soname always, and what programs load by (R69); other links where the host has them; no older version's."""
    host.driver("/usr/lib64", names=("libcuda", "libnvidia-ml", "libGLX_nvidia"))
    host.link("/usr/lib64/libcuda.so.1", f"libcuda.so.{V}")
    host.link("/usr/lib64/libcuda.so", "libcuda.so.1")
    host.link("/usr/lib64/libcuda.so.535.104.05", f"libcuda.so.{V}")
    host.link("/usr/lib64/libGLX_indirect.so.0", f"libGLX_nvidia.so.{V}")
    host.link("/usr/lib64/libnvidia-ml.so", "libnvidia-ml.so.404")
    found = discover(host.config("/usr/lib64"), V)
    assert one(found, f"libcuda.so.{V}").links == ("libcuda.so.1", "libcuda.so")
    assert one(found, f"libnvidia-ml.so.{V}").links == ("libnvidia-ml.so.1", "libnvidia-ml.so")
    assert one(found, f"libGLX_nvidia.so.{V}").links == ("libGLX_nvidia.so.1", "libGLX_indirect.so.0")


def test_vdpau_below_each_directory(host: Host) -> None:
    host.driver("/usr/lib64")
    host.driver("/usr/lib64/vdpau", names=("libvdpau_nvidia",))
    assert f"libvdpau_nvidia.so.{V}" in libraries(discover(host.config("/usr/lib64"), V))


def test_configured_patterns(host: Host) -> None:
    """R78: what the admin adds goes with everything; what he excludes is left out with that reason."""
    host.driver("/usr/lib64", names=("libcuda", "libnvidia-ml", "libnvidia-opencl"))
    host.library("/usr/lib64/libsite.so.3", "libsite.so.3")
    config = host.config("/usr/lib64", extra=("libsite.so.*",), excluded=("libnvidia-opencl.so*",))
    found = discover(config, V)
    assert set(libraries(found)) == {*BOTH, "libsite.so.3"}
    assert one(found, "libsite.so.3").capability == "*"
    assert (f"/usr/lib64/libnvidia-opencl.so.{V}", "excluded by the configuration") in found.left_out


def test_other_architectures_and_no_libraries(host: Host) -> None:
    """32-bit builds, another machine's, and files that are no ELF objects are left out, each with its reason."""
    host.driver("/usr/lib64")
    host.library(f"/usr/lib/libcuda.so.{V}", "libcuda.so.1", machine=3, bits=32)
    host.library(f"/usr/lib64/libnvidia-cfg.so.{V}", "x", machine=243)
    text = host.root / f"usr/lib64/libnvidia-tls.so.{V}"
    text.write_text("#!/bin/sh\n")
    (host.root / f"usr/lib64/libnvidia-dir.so.{V}").mkdir()
    os.mkfifo(host.root / f"usr/lib64/libnvidia-fifo.so.{V}")
    found = discover(host.config("/usr/lib", "/usr/lib64"), V)
    assert set(libraries(found)) == set(BOTH)
    reasons = {path.rpartition("/")[2].partition(".so")[0]: reason for path, reason in found.left_out}
    assert "riscv" in reasons["libnvidia-cfg"]
    assert reasons["libnvidia-tls"] == "no ELF shared object"
    assert reasons["libnvidia-dir"] == reasons["libnvidia-fifo"] == "no regular file"


# --- trust --------------------------------------------------------------------------------------------------------


def foreign(path: Path) -> None:
    os.chown(path, 1234, 1234)


SPOILED: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "foreign-file": ("usr/lib64/{name}", foreign, "owned by uid 1234"),
    "group-writable-file": ("usr/lib64/{name}", lambda path: path.chmod(0o664), "written by others"),
    "world-writable-file": ("usr/lib64/{name}", lambda path: path.chmod(0o646), "written by others"),
    "foreign-directory": ("usr/lib64", foreign, "owned by uid 1234"),
    "writable-directory": ("usr/lib64", lambda path: path.chmod(0o777), "written by others"),
    "writable-directory-above": ("usr", lambda path: path.chmod(0o775), "written by others"),
    "foreign-root": ("", foreign, "owned by uid 1234"),
    "writable-root": ("", lambda path: path.chmod(0o777), "written by others"),
}


@pytest.mark.parametrize(("path", "spoil", "reason"), SPOILED.values(), ids=SPOILED)
@pytest.mark.parametrize("name", BOTH)
def test_untrusted_vital_library_is_an_error(
    name: str, path: str, spoil: Callable[[Path], object], reason: str, host: Host
) -> None:
    """libcuda and libnvidia-ml: the error names the file and what is wrong."""
    host.driver("/usr/lib64", names=(name.partition(".so")[0],))
    spoil(host.root / path.format(name=name))
    with pytest.raises(GpuhookError, match=reason) as caught:
        discover(host.config("/usr/lib64"), V)
    assert caught.value.reference == "library-untrusted"
    assert f"{host.root}/usr/lib64/{name}" in caught.value.message


def test_untrusted_other_library_is_left_out(host: Host) -> None:
    host.driver("/usr/lib64", names=("libcuda", "libnvidia-ml", "libnvidia-cfg"))
    foreign(host.root / f"usr/lib64/libnvidia-cfg.so.{V}")
    found = discover(host.config("/usr/lib64"), V)
    assert set(libraries(found)) == set(BOTH)
    assert "uid 1234" in dict(found.left_out)[f"/usr/lib64/libnvidia-cfg.so.{V}"]


def test_sticky_directory_with_roots_entry_below(host: Host) -> None:
    """Above the directory of the libraries: accepted while what lies below is root's, as /tmp and /nix/store are."""
    host.driver("/shared/lib")
    (host.root / "shared").chmod(0o1777)
    assert len(libraries(discover(host.config("/shared/lib"), V))) == 2


def test_writable_directory_without_the_driver_is_passed_over(host: Host) -> None:
    """It does not stop the driver that lies elsewhere."""
    host.driver("/usr/lib64")
    host.driver("/usr/local/lib", names=("libnvidia-cfg",))
    (host.root / "usr/local/lib").chmod(0o2775)
    found = discover(host.config("/usr/local/lib", "/usr/lib64"), V)
    assert set(libraries(found)) == set(BOTH)
    assert "/usr/local/lib" in dict(found.left_out)


def test_writable_directory_of_links_to_the_driver(host: Host) -> None:
    """Whoever can change the links could choose the library: refused, though the library itself is root's."""
    host.driver("/usr/lib64")
    host.link(f"/open/libcuda.so.{V}", f"/usr/lib64/libcuda.so.{V}")
    (host.root / "open").chmod(0o777)
    with pytest.raises(GpuhookError, match="/open/libcuda"):
        discover(host.config("/open"), V)


# --- binaries and firmware ----------------------------------------------------------------------------------------


def test_binaries_and_firmware(host: Host) -> None:
    """The first directory with the name; a link to the real file; firmware of the loaded version alone."""
    host.driver("/usr/lib64")
    for path in (
        "usr/lib/nvidia/current/nvidia-smi",
        "usr/local/bin/nvidia-debugdump",
        "usr/sbin/nv-fabricmanager",
        "usr/bin/nvidia-cuda-mps-server",
        "usr/bin/nvidia-unknown",
        f"lib/firmware/nvidia/{V}/gsp_ga10x.bin",
        f"lib/firmware/nvidia/{V}/gsp_tu10x.bin",
        f"lib/firmware/nvidia/{V}/other.bin",
        "lib/firmware/nvidia/550.1/gsp_ga10x.bin",
    ):
        file = host.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    host.link("/etc/alternatives/nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    host.link("/usr/bin/nvidia-smi", "/etc/alternatives/nvidia-smi")
    foreign(host.root / "usr/sbin/nv-fabricmanager")
    found = discover(host.config("/usr/lib64"), V)
    rest = {file.name: (file.path, file.kind, file.capability) for file in found.files if file.kind != "library"}
    firmware = f"/lib/firmware/nvidia/{V}"
    assert rest == {
        "nvidia-smi": ("/usr/lib/nvidia/current/nvidia-smi", "binary", "utility"),
        "nvidia-debugdump": ("/usr/local/bin/nvidia-debugdump", "binary", "utility"),
        "nvidia-cuda-mps-server": ("/usr/bin/nvidia-cuda-mps-server", "binary", "compute"),
        "gsp_ga10x.bin": (f"{firmware}/gsp_ga10x.bin", "firmware", "*"),
        "gsp_tu10x.bin": (f"{firmware}/gsp_tu10x.bin", "firmware", "*"),
    }
    assert "uid 1234" in dict(found.left_out)["/usr/sbin/nv-fabricmanager"]


def test_a_driver_in_usr_local_nvidia_is_found_without_being_told(host: Host) -> None:
    """Where cloud machines have it; no loader cache names it, and it brings its programs."""
    host.driver("/usr/local/nvidia/lib64")
    program = host.root / "usr/local/nvidia/bin/nvidia-smi"
    program.parent.mkdir()
    program.touch()
    found = discover(config_of(host.root), V)
    assert one(found, f"libcuda.so.{V}").path == f"/usr/local/nvidia/lib64/libcuda.so.{V}"
    assert one(found, "nvidia-smi").path == "/usr/local/nvidia/bin/nvidia-smi"


def test_identity_is_that_of_the_file(host: Host) -> None:
    host.driver("/usr/lib64")
    status = (host.root / f"usr/lib64/libcuda.so.{V}").stat()
    state = one(discover(host.config("/usr/lib64"), V), f"libcuda.so.{V}").id
    assert (state.dev, state.ino, state.size) == (status.st_dev, status.st_ino, status.st_size)
    assert (state.mtime, state.ctime) == (status.st_mtime_ns, status.st_ctime_ns)


@pytest.mark.parametrize("layout", ["debian", "fedora"])
def test_simulated_layouts(layout: str, new_driver: Callable[..., Path]) -> None:
    """Both layouts have the same libraries, each under its soname, found without a search list."""
    driver = new_driver(layout=layout, extra_libraries=("libnvidia-newthing",))
    found = discover(config_of(driver, library_dirs=()), "580.95.05")
    assert len(libraries(found)) > 25
    assert one(found, "libcuda.so.580.95.05").links == ("libcuda.so.1", "libcuda.so")
    assert one(found, "libnvidia-newthing.so.580.95.05").capability == "*"
    assert found.left_out == []
    for file in found.files:
        assert (driver / file.path.lstrip("/")).is_file()
        assert not (driver / file.path.lstrip("/")).is_symlink()


def test_nothing_of_this_machine_is_found(sim_driver: Path, folder: Path) -> None:
    """Everything that discovery names lies below the driver root and exists there or is absent."""
    driver = copy_of(sim_driver, folder / "copy")
    found = discover(config_of(driver), "580.95.05")
    assert all(path.startswith("/") and ".." not in path for path in found.watch)
    assert all((driver / path.lstrip("/")).exists() for path in found.directories)


# --- hosts that went wild: each ends soon, with the driver found and the record small -----------------------------

MANY = 4000


def _many(root: Path, directory: str, name: str, make: Callable[[Path], object], count: int = MANY) -> None:
    folder = root / directory.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        make(folder / name.format(number))


def _cache(root: Path, *paths: str) -> None:
    entries = tuple((path.rpartition("/")[2], path) for path in paths)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/ld.so.cache").write_bytes(ldcache.merge(None, entries, NAME))


def _old_cache(root: Path) -> None:
    """The older format, all entries with one long text as name and path."""
    (root / "etc").mkdir()
    head = b"ld.so-1.7.0\0" + (32768).to_bytes(4, "little")
    (root / "etc/ld.so.cache").write_bytes(head + (3).to_bytes(12, "little") * 32768 + b"/" * 8_000_000)


def _firmware_path(root: Path, make: Callable[[Path], object]) -> None:
    path = root / "sys/module/firmware_class/parameters/path"
    path.parent.mkdir(parents=True)
    make(path)


WILD: dict[str, Callable[[Path], object]] = {
    "libraries": lambda root: _many(
        root, "/lib64", f"libnvidia-x{{}}.so.{V}", lambda path: os.link(root / f"lib64/libcuda.so.{V}", path)
    ),
    "libraries of their own": lambda root: _many(
        root,
        "/lib64",
        f"libnvidia-x{{}}.so.{V}",
        lambda path: path.write_bytes(build(machine=MACHINE, soname=path.name.encode())),
    ),
    "files that are no libraries": lambda root: _many(root, "/lib64", f"libnvidia-x{{}}.so.{V}", Path.touch),
    "firmware": lambda root: _many(root, f"/lib/firmware/nvidia/{V}", "gsp_{}.bin", Path.touch),
    "directories of the cache": lambda root: _cache(
        root, *(f"/d{number}/libcuda.so.{number}" for number in range(MANY))
    ),
    "deep directories of the cache": lambda root: _cache(
        root, *(f"/{'d/' * 1900}{number}/libcuda.so.{number}" for number in range(400))
    ),
    "an old cache": _old_cache,
    "a fifo that names the firmware": lambda root: _firmware_path(root, os.mkfifo),
    "a NUL in the firmware's path": lambda root: _firmware_path(root, lambda path: path.write_bytes(b"/a\0b\n")),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", WILD.values(), ids=WILD)
def test_a_host_that_went_wild(host: Host, make: Callable[[Path], object]) -> None:
    """Looking ends within seconds of processor time, what each start has to look at is bounded, and so are its words.

    The driver's own libraries are found all the same.
    """
    host.driver("/lib64")
    make(host.root)
    before = time.process_time()
    stored = refresh.make(host.config("/lib64"))
    assert time.process_time() - before < 6
    assert len(record.encode(stored)) < record.LIMIT // 2
    assert len(stored.watch) < 2500
    assert len(stored.left_out) <= 256
    found = discover(host.config("/lib64"), V)
    assert {file.name for file in found.files} >= {f"libcuda.so.{V}", f"libnvidia-ml.so.{V}"}
