"""What people reported of hosts and their loader caches, by number; drivers of other machines and of years to come."""

import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import ldcache, sim
from gpuhook.config import Config
from gpuhook.driver import key, record
from gpuhook.driver.discover import Found, discover
from gpuhook.errors import GpuhookError
from gpuhook.model import Record
from tests import sandbox
from tests.unit.driver_support import config_of, copy_of
from tests.unit.test_driver_discover import MACHINE, MULTIARCH, NAME, Host, libraries, one
from tests.unit.test_elf import build

V = "580.95.05"
CUDA, ML = f"libcuda.so.{V}", f"libnvidia-ml.so.{V}"
BOTH = {CUDA, ML}
OTHER = {"x86-64": ("aarch64", 183), "aarch64": ("x86-64", 62)}[NAME]  # a machine that this one is not
OTHER_FLAGS = ldcache.FLAGS[OTHER[0]]


@pytest.fixture
def host(folder: Path) -> Host:
    """A root made by hand."""
    return Host(folder / "host")


def reasons(found: Found) -> dict[str, str]:
    return dict(found.left_out)


# --- loader caches ------------------------------------------------------------------------------------------------


def new_cache(path: str, *, flags: int = 0, count: int = 1, hwcaps: tuple[int, ...] = (0,), value: int = 0) -> bytes:
    """A cache of the newer format, with as much wrong as asked."""
    strings = b"libcuda.so.1\0" + path.encode() + b"\0"
    at = 48 + 24 * len(hwcaps)
    rows = b"".join(
        struct.pack("<iIIIQ", flags or ldcache.FLAGS[NAME], at, value or at + 13, 0, word) for word in hwcaps
    )
    header = b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xI12x", count * len(hwcaps), len(strings), 2, 0)
    return header + rows + strings


def old_cache(path: str, count: int = 1) -> bytes:
    """A cache of the older format alone."""
    row = struct.pack("<III", ldcache.FLAGS[NAME], 0, 13)
    return b"ld.so-1.7.0\0" + struct.pack("<I", count) + row + b"libcuda.so.1\0" + path.encode() + b"\0"


ODD = "/opt/odd/lib/libcuda.so.1"  # where no search list looks
CACHES = {
    "whole": (new_cache(ODD), True),
    "old-alone": (old_cache(ODD), True),
    "old-and-new": (b"ld.so-1.7.0\0" + struct.pack("<I", 0) + new_cache(ODD), True),
    "twice-for-hwcap": (new_cache(ODD, hwcaps=(1 << 62, 0)), True),
    "relative-path": (new_cache(ODD[1:]), False),
    "other-machine-alone": (new_cache(ODD, flags=OTHER_FLAGS), False),
    "no-entry": (new_cache(ODD, count=0), False),
    "offset-out-of-range": (new_cache(ODD, value=1 << 31), False),
    "empty": (b"", False),
    "ten-bytes": (b"glibc-ld.s", False),
    "too-many": (new_cache(ODD, count=0xFFFFFFFF), False),
    "old-too-many": (old_cache(ODD, 0xFFFFFFFF), False),
    "cut": (new_cache(ODD)[:-20], False),
    "garbage": (b"\0\xff" * 500, False),
}
USELESS = ("empty", "ten-bytes", "too-many", "old-too-many", "cut", "garbage")


@pytest.mark.parametrize(("data", "known"), CACHES.values(), ids=CACHES)
def test_r89_caches(data: bytes, known: bool, host: Host) -> None:
    """What a cache names is looked at; one that is broken is said to be, and the search list still counts."""
    host.driver("/opt/odd/lib", V)
    host.link(ODD, CUDA)
    host.driver("/usr/lib64", V, names=("libnvidia-cfg",))
    (host.root / "etc").mkdir()
    (host.root / "etc/ld.so.cache").write_bytes(data)
    found = discover(host.config("/usr/lib64"), V)
    assert set(libraries(found)) == {f"libnvidia-cfg.so.{V}", *(BOTH if known else ())}


@pytest.mark.parametrize("name", USELESS)
def test_r89_a_broken_cache_is_reported(name: str, host: Host) -> None:
    host.driver("/usr/lib64", V)
    (host.root / "etc").mkdir()
    (host.root / "etc/ld.so.cache").write_bytes(CACHES[name][0])
    assert "no usable loader cache" in reasons(discover(host.config("/usr/lib64"), V))["/etc/ld.so.cache"]


@pytest.mark.parametrize("form", ["new", "compat", "old"])
def test_caches_of_the_real_ldconfig(form: str, host: Host) -> None:
    """Each of the three formats that it can write leads to a directory that is on no list."""
    host.driver("/opt/odd/lib", V)
    (host.root / "etc").mkdir()
    (host.root / "etc/ld.so.conf").write_text("/opt/odd/lib\n")
    shutil.copy(f"/lib/{os.uname().machine}-linux-gnu/libc.so.6", host.root / f"opt/odd/lib/{CUDA}")
    host.link("/opt/odd/lib/libc.so.6", CUDA)
    subprocess.run(["/sbin/ldconfig", "-r", host.root, "-c", form], check=True)
    assert set(libraries(discover(host.config(), V))) == BOTH


def test_an_untrusted_cache_is_not_read(host: Host) -> None:
    host.driver("/usr/lib64", V)
    host.cache("/usr/lib64/libcuda.so.1")
    (host.root / "etc/ld.so.cache").chmod(0o666)
    assert "written by others" in reasons(discover(host.config("/usr/lib64"), V))["/etc/ld.so.cache"]


def test_r47_r55_short_and_stale_at_once(host: Host) -> None:
    """A cache that knows libcuda alone, by a link that leads nowhere: the search list has the rest."""
    host.driver("/usr/local/glibc/usr/lib", V, names=("libcuda", "libnvidia-ml", "libnvidia-cfg"))
    host.link("/usr/lib64/libcuda.so.1", "libcuda.so.570.124.04")
    host.cache("/usr/lib64/libcuda.so.1")
    assert len(libraries(discover(config_of(host.root), V))) == 3


# --- what is installed --------------------------------------------------------------------------------------------


def test_leftovers_of_an_upgrade(host: Host) -> None:
    """Files of the version before, a soname that still leads to one, an older companion: only the loaded driver's."""
    host.driver("/usr/lib64", V)
    host.driver("/usr/lib64", "570.172.08", names=("libcuda", "libnvidia-ml", "libnvidia-gone"))
    host.link("/usr/lib64/libcuda.so.1", "libcuda.so.570.172.08")
    for name in ("libnvidia-egl-gbm.so.1.1.9", "libnvidia-egl-gbm.so.1.1.10"):
        host.library(f"/usr/lib64/{name}", "libnvidia-egl-gbm.so.1")
    found = discover(host.config("/usr/lib64"), V)
    assert set(libraries(found)) == {*BOTH, "libnvidia-egl-gbm.so.1.1.10"}
    assert one(found, CUDA).links[0] == "libcuda.so.1"
    assert "libcuda.so.570.172.08" not in one(found, CUDA).links
    assert found.versions == {V, "570.172.08"}
    assert "same soname" in reasons(found)["/usr/lib64/libnvidia-egl-gbm.so.1.1.9"]


def test_of_two_companions_the_loaders(host: Host) -> None:
    """After a downgrade the newer one is the leftover: the link says which one counts."""
    host.driver("/usr/lib64", V)
    for name in ("libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-gbm.so.1.2.0"):
        host.library(f"/usr/lib64/{name}", "libnvidia-egl-gbm.so.1")
    host.link("/usr/lib64/libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.2")
    assert "libnvidia-egl-gbm.so.1.1.2" in libraries(discover(host.config("/usr/lib64"), V))


def test_a_directory_of_another_version_gives_no_companions(host: Host) -> None:
    """It comes first in the list, and what it has without a driver's version belongs to the other driver."""
    host.driver("/opt/a", "515.65.01")
    host.library("/opt/a/libnvidia-nvvm70.so.4", "libnvidia-nvvm70.so.4")
    host.library("/opt/a/libsite.so.3", "libsite.so.3")
    host.driver("/opt/b", V)
    found = discover(host.config("/opt/a", "/opt/b", extra=("libsite.so.*",)), V)
    assert set(libraries(found)) == {*BOTH, "libsite.so.3"}


def test_r57_two_files_with_one_name(host: Host) -> None:
    """The first directory's stays; a cache that names `tls/` does not bring a second one."""
    host.driver("/usr/lib/nvidia-410", V, names=("libcuda", "libnvidia-ml", "libnvidia-tls"))
    host.driver("/usr/lib/nvidia-410/tls", V, names=("libnvidia-tls",))
    host.cache("/usr/lib/nvidia-410/libcuda.so.1", "/usr/lib/nvidia-410/tls/libnvidia-tls.so.1")
    host.link("/usr/lib/nvidia-410/libcuda.so.1", CUDA)
    found = discover(host.config(), V)
    assert libraries(found)[f"libnvidia-tls.so.{V}"] == f"/usr/lib/nvidia-410/libnvidia-tls.so.{V}"
    assert len(libraries(found)) == 3


def test_r51_no_search_path_of_the_environment(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """LD_LIBRARY_PATH decides nothing; the configuration does."""
    host.driver("/snap/x/lib", V)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{host.root}/snap/x/lib:/snap/x/lib")
    assert not libraries(discover(config_of(host.root), V))
    assert set(libraries(discover(host.config("/snap/*/lib"), V))) == BOTH


def without(driver: Path, pattern: str) -> None:
    for path in driver.rglob(pattern):
        path.unlink()


def load(driver: Path, folder: Path, **changes: object) -> Record:
    (folder / "etc/gpuhook").mkdir(parents=True, exist_ok=True)
    return record.load(config_of(driver, **changes), str(folder))


def test_r54_no_libcuda(sim_driver: Path, folder: Path) -> None:
    """A driver package for displays alone: the version is the kernel module's, NVML answers, the rest is there."""
    driver = copy_of(sim_driver, folder / "driver")
    without(driver, "libcuda.so*")
    made = load(driver, folder)
    assert (made.driver, len(made.gpus)) == (V, 2)
    assert not any(file.name.startswith("libcuda.") for file in made.files)


def test_r55_module_and_libraries_differ(sim_driver: Path, folder: Path) -> None:
    """Both versions and what to do, whatever packages the distribution has."""
    driver = copy_of(sim_driver, folder / "driver")
    version = driver / "proc/driver/nvidia/version"
    version.write_text(version.read_text().replace(V, "570.124.04"))
    with pytest.raises(GpuhookError) as caught:
        load(driver, folder)
    assert caught.value.reference == "driver-version-mismatch"
    assert "570.124.04" in caught.value.message
    assert V in caught.value.message
    assert caught.value.hint.startswith("reboot, so that the kernel loads the installed driver, or install")


def test_r63_a_decoy_in_the_hosts_root(sim_driver: Path, folder: Path) -> None:
    """Of a driver container's root and the host's, only the configured one is looked in."""
    root = folder / "host"
    root.mkdir()
    decoy = Host(root / "run")
    decoy.driver(MULTIARCH, V)
    driver = copy_of(sim_driver, root / "driver")
    found = discover(config_of(driver, library_dirs=(MULTIARCH, f"../run{MULTIARCH}")), V)
    for file in found.files:
        assert (driver / file.path[1:]).exists()
    assert one(found, CUDA).id.ino == (driver / one(found, CUDA).path[1:]).stat().st_ino


# --- other machines -----------------------------------------------------------------------------------------------


def test_another_machines_driver_is_found_as_ours_is(host: Host) -> None:
    """arm64 on x86-64 and the other way round: names, directories and the cache's flags are that machine's."""
    triplet = f"/usr/lib/{'aarch64' if OTHER[0] == 'aarch64' else 'x86_64'}-linux-gnu"
    for name in ("libcuda", "libnvidia-ml"):
        host.library(f"{triplet}/{name}.so.{V}", f"{name}.so.1", machine=OTHER[1])
    host.library(f"/opt/odd/libnvidia-cfg.so.{V}", "libnvidia-cfg.so.1", machine=OTHER[1])
    host.library(f"/opt/ours/libnvidia-ngx.so.{V}", "libnvidia-ngx.so.1")
    (host.root / "etc").mkdir()
    entries = (("libnvidia-cfg.so.1", f"/opt/odd/libnvidia-cfg.so.{V}"),)
    mixed = ldcache.merge(None, entries, OTHER[0])
    mixed = ldcache.merge(mixed, (("libnvidia-ngx.so.1", f"/opt/ours/libnvidia-ngx.so.{V}"),), NAME)
    (host.root / "etc/ld.so.cache").write_bytes(mixed)
    found = discover(config_of(host.root), V, OTHER[0])
    assert set(libraries(found)) == {*BOTH, f"libnvidia-cfg.so.{V}"}
    assert found.machine == OTHER[0]


def of_other_machine(driver: Path) -> None:
    """Make every library of a simulated driver another machine's, by e_machine and in the loader's cache."""
    for path in driver.rglob("lib*.so.*"):
        if path.is_file() and not path.is_symlink():
            with path.open("r+b") as file:
                file.seek(18)
                file.write(struct.pack("<H", OTHER[1]))
    data = (driver / "etc/ld.so.cache").read_bytes()
    ours, theirs = (struct.pack("<i", flags) for flags in (ldcache.FLAGS[NAME], OTHER_FLAGS))
    (driver / "etc/ld.so.cache").write_bytes(data.replace(ours, theirs))


def test_a_driver_of_another_machine_is_refused(sim_driver: Path, folder: Path) -> None:
    """Both machines are named."""
    driver = copy_of(sim_driver, folder / "driver")
    of_other_machine(driver)
    with pytest.raises(GpuhookError) as caught:
        load(driver, folder)
    assert caught.value.reference == "driver-architecture"
    assert f"for {OTHER[0]}, and this host is {NAME}" in caught.value.message
    assert NAME in caught.value.hint
    assert len(libraries(discover(config_of(driver), V, OTHER[0]))) > 25


def test_both_machines_side_by_side(sim_driver: Path, folder: Path) -> None:
    """Multiarch with a foreign driver, first in the list: ours is taken, the other is no error."""
    driver = copy_of(sim_driver, folder / "driver")
    foreign = Host(folder / "foreign")
    for name in ("libcuda", "libnvidia-ml"):
        file = foreign.library(f"/{name}.so.{V}", f"{name}.so.1", machine=OTHER[1])
        target = driver / "usr/lib/foreign-linux-gnu" / file.name
        target.parent.mkdir(exist_ok=True)
        shutil.copy(file, target)
        target.chmod(0o644)
    made = load(driver, folder, library_dirs=("/usr/lib/foreign-linux-gnu",))
    assert {file.name for file in made.files if file.kind == "library"} > BOTH
    assert all("foreign" not in file.path for file in made.files)


# --- years to come ------------------------------------------------------------------------------------------------


def test_r58_a_driver_of_years_to_come(new_driver: Callable[..., Path], folder: Path) -> None:
    """A 7xx branch with two unknown libraries and a renamed one: all are taken, the unknown with every capability."""
    newer = "735.21.03"
    driver = new_driver(driver=newer, cuda="15.2", extra_libraries=("libnvidia-newthing", "libnvoracle"))
    folders = {path.parent for path in driver.rglob(f"libnvidia-ptxjitcompiler.so.{newer}")}
    (place,) = folders
    (place / f"libnvidia-ptxjitcompiler.so.{newer}").rename(place / f"libnvidia-tilejit.so.{newer}")
    made = load(driver, folder)
    assert (made.driver, made.cuda) == (newer, (15, 2))
    found = {file.name.partition(".so")[0]: file.capability for file in made.files if file.kind == "library"}
    for name in ("libnvidia-newthing", "libnvoracle", "libnvidia-tilejit"):
        assert found[name] == "*"
    assert found["libcuda"] == "compute"
    assert "libnvidia-ptxjitcompiler" not in found


# --- the places that distributions have ---------------------------------------------------------------------------


def test_what_else_happens_in_run_is_no_new_driver(host: Host) -> None:
    """NixOS: /run/opengl-driver is a link in a directory that changes all the time; the link itself counts."""
    host.driver("/nix/store/a/lib", V)
    host.driver("/nix/store/b/lib", V)
    host.link("/run/opengl-driver", "/nix/store/a")
    config = config_of(host.root)
    watch = sorted(discover(config, V).watch)
    before = key.take(config, watch)
    (host.root / "run/some.pid").touch()
    assert key.take(config, watch) == before
    (host.root / "run/new").symlink_to("/nix/store/b")
    (host.root / "run/new").rename(host.root / "run/opengl-driver")
    assert key.take(config, watch) != before


FLAGS = {"read-only": (1, ""), "noexec": (8, "nvml-failed")}  # MS_RDONLY, MS_NOEXEC


@pytest.mark.parametrize(("flag", "reference"), FLAGS.values(), ids=FLAGS)
def test_driver_on_a_mount_of_its_own(flag: int, reference: str, sim_driver: Path, folder: Path) -> None:
    """Talos and COS: read-only is as good as any; from a mount without exec no library can be loaded, which is said."""
    driver = copy_of(sim_driver, folder / "driver")

    def work() -> tuple[str, str]:
        place = driver / MULTIARCH[1:]
        sandbox.bind(place, place)
        sandbox.mount("none", place, "", 0x1000 | 32 | flag)  # MS_BIND, MS_REMOUNT
        try:
            load(driver, folder)
        except GpuhookError as error:
            return error.reference, error.message + error.hint
        return "", ""

    found, text = sandbox.apart(work, mounts=True)
    assert found == reference
    if reference:
        assert "libnvidia-ml" in text
        assert "exec" in text


def test_configured_places_and_names(sim_driver: Path, folder: Path) -> None:
    """A search directory with a pattern, a library of the site, an exclusion: from the configuration to the record."""
    driver = copy_of(sim_driver, folder / "driver")
    place = driver / MULTIARCH[1:]
    place.rename(driver / "srv-lib")
    (driver / "srv/a").mkdir(parents=True)
    (driver / "srv-lib").rename(driver / "srv/a/lib")
    (driver / "etc/ld.so.cache").unlink()
    (driver / "srv/a/lib/libsite.so.3").write_bytes(build(machine=MACHINE, bits=64, soname=b"libsite.so.3"))
    (driver / "srv/a/lib/libsite.so.3").chmod(0o644)
    config = Config(
        library_dirs=("/srv/*/lib",), extra_libraries=("libsite.so.*",), excluded_libraries=("libnvoptix*",)
    )
    changes = {name: getattr(config, name) for name in ("library_dirs", "extra_libraries", "excluded_libraries")}
    names = {file.name for file in load(driver, folder, **changes).files}
    assert {CUDA, "libsite.so.3"} <= names
    assert f"libnvoptix.so.{V}" not in names


def test_r45_nothing_of_a_container_is_placed_in_the_store() -> None:
    """A container that mounts /nix itself keeps it: what the store has goes to the usual places."""
    golden = Path(__file__).resolve().parent.parent / "golden/hosts/nixos.txt"
    arrows = [line.partition(" -> ") for line in golden.read_text().splitlines() if " -> " in line]
    assert any(source.split()[1].startswith("/nix/store/") for source, _, _ in arrows)
    assert not any(target.startswith(("/nix", "/run")) for _, _, target in arrows)
    assert set(sim.LAYOUTS) >= {"nixos"}
