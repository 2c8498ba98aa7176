"""Images that people have, in real containers: other distributions, small and committed ones, odd mounts over them."""

import json
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuhook import ldcache, sim
from tests import bundles
from tests.conftest import World
from tests.images import LOADERS, MULTIARCH, OPENDEV
from tests.runc.test_userns import mapped
from tests.unit.test_ldcache_loader import assemble

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]

ALL = "NVIDIA_VISIBLE_DEVICES=all"
LIBCUDA = "dlopen:libcuda.so.1"
FOUND = "dlopen:libcuda.so.1: ok libcuda.so 580.95.05"
LIBDIR = f"usr/lib/{MULTIARCH}"
SPARE = "/dev/.gpuhook/lib"
MUSL = "ld-musl-x86_64.so.1" if MULTIARCH.startswith("x86") else "ld-musl-aarch64.so.1"


@pytest.fixture(autouse=True)
def gpu_world(world: World, sim_driver: Path) -> World:
    """The driver of each test is the simulated one."""
    world.use_driver(sim_driver)
    return world


@pytest.fixture
def read_only(folder: Path) -> Iterator[Callable[[Path], None]]:
    """Puts a folder on a file system that is read-only itself, as a squashfs is."""
    made: list[Path] = []

    def make(path: Path) -> None:
        old = path.rename(path.with_name("old"))
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
        made.append(path)
        subprocess.run(["cp", "-aT", old, path], check=True)
        subprocess.run(["mount", "-o", "remount,ro", path], check=True)

    yield make
    for path in made:
        subprocess.run(["umount", "-l", path], check=True)


def compiled(target: Path, *command: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, "-Os", "-s", "-x", "c", "-", "-o", target], input=OPENDEV, text=True, check=True)


def explained(world: World, bundle: bundles.Bundle) -> dict[str, object]:
    """What `gpuhook explain` says of a bundle."""
    done = subprocess.run([world.cli, "explain", "--json", bundle.path], capture_output=True, text=True)
    document: dict[str, object] = json.loads(done.stdout)
    return document


# --- layouts ------------------------------------------------------------------------------------------------------


def distroless(root: Path) -> None:
    """No shell, no ldconfig, no cache, no configuration of the loader."""
    for name in ("bin", "sbin"):
        for path in (root / "usr" / name).iterdir():
            if path.name != "opendev":
                path.unlink()
    for name in ("ld.so.cache", "ld.so.conf"):
        (root / "etc" / name).unlink()
    shutil.rmtree(root / "etc/ld.so.conf.d")


def without_cache(root: Path) -> None:
    """No cache was ever made: the configuration alone leads to libc. (Fedora's loader has /usr/lib64 built in.)"""
    (root / "etc/ld.so.cache").unlink()
    (root / "usr/sbin/ldconfig").unlink()


def unmerged(root: Path) -> None:
    """/bin, /sbin, /lib and /lib64 are folders of their own, and glibc lies in /lib, as up to Debian 11."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).unlink()
        (root / name).mkdir()
    (root / "usr/bin/busybox").rename(root / "bin/busybox")
    for path in list((root / "usr/bin").iterdir()):
        if path.is_symlink():
            path.rename(root / "bin" / path.name)
    (root / "usr/sbin/ldconfig").rename(root / "sbin/ldconfig")
    (root / LIBDIR).rename(root / "lib" / MULTIARCH)
    loader = LOADERS[MULTIARCH]
    (root / loader[1:]).symlink_to(f"/lib/{MULTIARCH}/{Path(loader).name}")
    shutil.rmtree(root / "usr/lib64")
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True)


def old_format(root: Path) -> None:
    """A cache as glibc before 2.2 reads it, and nothing else in it."""
    subprocess.run(["/sbin/ldconfig", "-c", "old", "-r", root], check=True)


def both_formats(root: Path) -> None:
    """A cache as ldconfig before glibc 2.32 writes it."""
    subprocess.run(["/sbin/ldconfig", "-c", "compat", "-r", root], check=True)


def broken_configuration(root: Path) -> None:
    """What makes an ldconfig fail, and one that does."""
    (root / "etc/ld.so.conf").write_bytes(
        b"include /no/such/*.conf\n\xff\x00garbage\ninclude /etc/ld.so.conf\nhwcap 1\n"
    )
    tool = root / "usr/sbin/ldconfig"
    tool.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")


def kubernetes_folders(root: Path) -> None:
    """Where GKE and old Kubernetes have the driver, in the image's configuration; there is nothing in them."""
    (root / "etc/ld.so.conf.d/nvidia.conf").write_text("/usr/local/nvidia/lib\n/usr/local/nvidia/lib64\n")


LAYOUTS = {
    "distroless, Debian's folders": ("glibc", distroless),
    "no cache, Fedora's folders": ("lib64", without_cache),
    "unmerged usr": ("glibc", unmerged),
    "cache of the old format": ("glibc", old_format),
    "cache of both formats": ("lib64", both_formats),
    "R77 /usr/local/nvidia": ("glibc", kubernetes_folders),
    "R81, R82 broken configuration and ldconfig": ("glibc", broken_configuration),
}


@pytest.mark.parametrize(("image", "change"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_loader_finds_the_driver(
    shim: bundles.Runtime, new_bundle: NewBundle, image: str, change: Callable[[Path], None]
) -> None:
    bundle = new_bundle(image, env=[ALL], args=["opendev", LIBCUDA, "/dev/nvidia0"])
    change(bundle.rootfs)

    done = shim.run(bundle)

    assert (done.code, done.err) == (0, ""), done.out
    assert FOUND in done.out


def test_the_images_own_libraries_stay_in_its_cache(shim: bundles.Runtime, new_bundle: NewBundle) -> None:
    """R83: an image with Fedora's folders on a host with Debian's: what its cache had is still there, libc first."""
    bundle = new_bundle("lib64", env=[ALL], args=["opendev", LIBCUDA])
    cache = bundle.rootfs / "etc/ld.so.cache"
    before = {(entry.name, entry.path) for entry in ldcache.parse(cache.read_bytes())}

    assert shim.run(bundle).code == 0

    after = {(entry.name, entry.path) for entry in ldcache.parse(cache.read_bytes())}
    assert ("libc.so.6", "/usr/lib64/libc.so.6") in before
    assert before <= after
    assert ("libcuda.so.1", "/usr/lib64/libcuda.so.1") in after - before


def test_one_static_program(world: World, shim: bundles.Runtime, new_bundle: NewBundle) -> None:
    """An image FROM scratch: the program opens its devices, and the log says that nothing looks for the libraries."""
    bundle = new_bundle(env=[ALL], args=["/opendev", "/dev/nvidia0", "/dev/nvidiactl"])
    shutil.rmtree(bundle.rootfs)
    compiled(bundle.rootfs / "opendev", "gcc", "-static")

    done = shim.run(bundle)

    assert (done.code, done.out) == (0, "/dev/nvidia0: ok\n/dev/nvidiactl: ok\n")
    assert "the image has no dynamic loader" in world.log


def alpine(root: Path) -> None:
    """musl as Alpine has it: its loader is its library."""
    shutil.rmtree(root)
    for name in ("lib", "usr/lib", "usr/bin", "etc"):
        (root / name).mkdir(parents=True)
    shutil.copy(f"/lib/{MUSL}", root / "lib" / MUSL)
    (root / "etc/alpine-release").write_text("3.19.1\n")
    compiled(root / "usr/bin/opendev", "musl-gcc")


def gcompat(root: Path) -> None:
    """With a stand-in for glibc's loader."""
    alpine(root)
    (root / "lib64").mkdir()
    shutil.copy(f"/lib/{MUSL}", root / "lib" / Path(LOADERS[MULTIARCH]).name)
    if "lib64" in LOADERS[MULTIARCH]:
        (root / LOADERS[MULTIARCH][1:]).symlink_to(f"../lib/{Path(LOADERS[MULTIARCH]).name}")


def own_path(root: Path) -> None:
    """With a search path of its own."""
    alpine(root)
    (root / "etc" / f"{MUSL.removesuffix('.so.1')}.path").write_text("/lib:/opt/lib\n")


@pytest.mark.parametrize("change", [alpine, gcompat, own_path])
def test_musl(world: World, shim: bundles.Runtime, new_bundle: NewBundle, change: Callable[[Path], None]) -> None:
    """R85: musl's loader looks where its own file says; the log says what the driver's libraries need."""
    bundle = new_bundle(env=[ALL], args=["opendev", LIBCUDA, "/dev/nvidia0"])
    change(bundle.rootfs)

    done = shim.run(bundle)

    assert done.code == 0, done.out + done.err
    assert FOUND in done.out
    assert "musl" in world.log


def test_an_image_of_another_machine(shim: bundles.Runtime, new_bundle: NewBundle, world: World) -> None:
    """R90: refused, and both are named."""
    bundle = new_bundle(env=[ALL])
    loader = bundle.rootfs / LIBDIR / Path(LOADERS[MULTIARCH]).name
    data = bytearray(loader.read_bytes())
    number, name = (183, "aarch64") if MULTIARCH.startswith("x86") else (62, "x86-64")
    data[18:20] = number.to_bytes(2, "little")
    loader.write_bytes(data)

    done = shim.run(bundle)

    own = "x86-64" if name == "aarch64" else "aarch64"
    assert done.code != 0
    assert f"the image is for {name}, the driver of this host for {own} [rootfs-architecture]" in done.err


# --- committed images ---------------------------------------------------------------------------------------------


def test_an_image_committed_from_a_container_with_another_driver(
    world: World, shim: bundles.Runtime, new_bundle: NewBundle, new_driver: Callable[..., Path]
) -> None:
    """R66, R67, R68: links, empty mount points, cache and configuration of an older driver are in the image; the host's
    driver is found, now and after ldconfig ran in there."""
    world.use_driver(new_driver(driver="470.57.02", cuda="11.4"))
    bundle = new_bundle(env=[ALL], args=["opendev", LIBCUDA])
    first = shim.run(bundle)
    assert "ok libcuda.so 470.57.02" in first.out, first.err
    left = bundle.rootfs / LIBDIR / "libcuda.so.470.57.02"
    assert left.read_bytes() == b""
    world.use_driver(new_driver())
    spec = bundle.spec
    spec["process"]["args"] = ["sh", "-c", f"opendev {LIBCUDA} && ldconfig && opendev {LIBCUDA} && nvidia-smi -L"]
    (bundle.path / "config.json").write_text(json.dumps(spec))

    done = shim.run(bundle)

    assert done.code == 0, done.out + done.err
    assert done.out.count(FOUND) == 2
    assert "empty" not in done.out + done.err, "ldconfig found an empty file with a driver library's name"


# --- read-only file systems, and volumes --------------------------------------------------------------------------


@pytest.mark.parametrize("image", ["glibc", "lib64"])
def test_a_root_on_a_read_only_file_system(
    world: World, any_shim: bundles.Runtime, new_bundle: NewBundle, read_only: Callable[[Path], None], image: str
) -> None:
    """R71, R72: the libraries go to the container's /dev, the loader's cache is covered; what has no place is left out,
    with a word in the log, and nothing else changes."""
    bundle = new_bundle(image, env=[ALL], args=["opendev", LIBCUDA, "/dev/nvidia0"], readonly=True)
    (bundle.rootfs / "usr/lib").chmod(0o555)
    read_only(bundle.rootfs)

    told = explained(world, bundle)
    done = any_shim.run(bundle)

    assert (done.code, done.err) == (0, ""), done.out
    assert FOUND in done.out
    assert "left out" in world.log
    assert "/usr/bin/nvidia-smi" in world.log
    assert "Read-only file system" in world.log
    assert told["image"]["libdir"] == SPARE  # type: ignore[index]


def test_a_read_only_root_without_a_cache(
    world: World, shim: bundles.Runtime, new_bundle: NewBundle, read_only: Callable[[Path], None]
) -> None:
    """Nothing can lead the loader there but the user: the log says how, and that works."""
    bundle = new_bundle(env=[ALL, f"LD_LIBRARY_PATH={SPARE}"], args=["opendev", LIBCUDA])
    (bundle.rootfs / "etc/ld.so.cache").unlink()
    read_only(bundle.rootfs)

    done = shim.run(bundle)

    assert (done.code, done.err) == (0, "")
    assert FOUND in done.out
    assert f"set LD_LIBRARY_PATH={SPARE}" in world.log


def volume(bundle: bundles.Bundle, name: str, folder: Path) -> Path:
    """A copy of a folder of the image, to be mounted over it."""
    copy = folder / "volume"
    shutil.copytree(bundle.rootfs / name, copy, symlinks=True)
    spec = bundle.spec
    spec["mounts"].append(bundles.mount(f"/{name}", "bind", str(copy), "rbind"))
    (bundle.path / "config.json").write_text(json.dumps(spec))
    return copy


def listing(top: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_ino) for path in top.rglob("*"))


VOLUMES = {
    "the library directory": (LIBDIR, [LIBCUDA, "/dev/nvidia0"], ""),
    "through a link": (f"lib/{MULTIARCH}", [LIBCUDA, "/dev/nvidia0"], ""),
    "/usr": ("usr", [LIBCUDA, "/dev/nvidia0"], "/usr/bin/nvidia-smi"),
    "/usr/bin": ("usr/bin", [LIBCUDA, "/dev/nvidia0"], "/usr/bin/nvidia-smi"),
    "/etc": ("etc", [LIBCUDA, "/dev/nvidia0"], "/etc/ld.so.cache stays as it is"),
    "/etc/ld.so.cache": ("etc/ld.so.cache", [LIBCUDA], "/etc/ld.so.cache stays as it is"),
}


@pytest.mark.parametrize(("name", "arguments", "warning"), VOLUMES.values(), ids=VOLUMES)
def test_a_volume_over_a_destination(
    world: World,
    shim: bundles.Runtime,
    new_bundle: NewBundle,
    folder: Path,
    name: str,
    arguments: list[str],
    warning: str,
) -> None:
    """R79: nothing is made in it, its own files count, and the container starts with all the rest."""
    bundle = new_bundle(env=[ALL], args=["opendev", *arguments])
    if name == "etc/ld.so.cache":
        source = folder / "cache"
        shutil.copy(bundle.rootfs / name, source)
        spec = bundle.spec
        spec["mounts"].append(bundles.mount(f"/{name}", "bind", str(source), "rbind"))
        (bundle.path / "config.json").write_text(json.dumps(spec))
    else:
        source = volume(bundle, name, folder)
    before = listing(source)

    told = explained(world, bundle)
    done = shim.run(bundle)

    assert (done.code, done.err) == (0, ""), done.out
    assert FOUND in done.out
    assert listing(source) == before
    assert warning in world.log
    assert told["outcome"] == "granted"
    libdir = SPARE if name in (LIBDIR, f"lib/{MULTIARCH}", "usr") else f"/{LIBDIR}"
    assert told["image"]["libdir"] == libdir  # type: ignore[index]


def test_the_hosts_run_as_a_volume(
    world: World, shim: bundles.Runtime, new_bundle: NewBundle, sim_driver: Path, folder: Path
) -> None:
    """R70: `-v /var/run:/var/run`, and /var/run is a link to /run in the image: the sockets are those of the volume."""
    own = folder / "run"
    (own / "nvidia-persistenced").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(own / "nvidia-persistenced/socket"))
    before = listing(own)
    mount = bundles.mount("/var/run", "bind", str(own), "rbind")
    bundle = new_bundle(env=[ALL], args=["sh", "-c", f"opendev {LIBCUDA} && ls -l /run/nvidia-persistenced"])
    (bundle.rootfs / "var/run").symlink_to("/run")
    spec = bundle.spec
    spec["mounts"].append(mount)
    (bundle.path / "config.json").write_text(json.dumps(spec))

    done = shim.run(bundle)

    assert (done.code, done.err) == (0, ""), done.out
    assert "socket" in done.out
    assert listing(own) == before
    assert "left out /run/nvidia-persistenced/socket" in world.log


@pytest.mark.parametrize("masked", [["/proc/driver"], ["/proc/driver/nvidia"]])
def test_a_masked_proc(shim: bundles.Runtime, new_bundle: NewBundle, masked: list[str]) -> None:
    """R73: what of /proc can't be shown is no reason not to start. (Without /proc runc itself starts nothing.)"""
    bundle = new_bundle(env=[ALL], args=["opendev", LIBCUDA, "/dev/nvidia0"])
    spec = bundle.spec
    spec["linux"]["maskedPaths"] += masked
    (bundle.path / "config.json").write_text(json.dumps(spec))

    done = shim.run(bundle)

    assert FOUND in done.out, done.err


def test_a_program_of_the_users_own_volume_wins(shim: bundles.Runtime, new_bundle: NewBundle, folder: Path) -> None:
    """/usr/bin is a volume that has an nvidia-smi."""
    bundle = new_bundle(env=[ALL], args=["nvidia-smi"])
    own = volume(bundle, "usr/bin", folder) / "nvidia-smi"
    own.write_text("#!/bin/sh\necho mine\n")
    own.chmod(0o755)

    done = shim.run(bundle)

    assert (done.code, done.out) == (0, "mine\n"), done.err


def test_a_volume_over_dev(any_shim: bundles.Runtime, new_bundle: NewBundle, folder: Path, sim_driver: Path) -> None:
    """The runtime makes no nodes in it and neither does gpuhook: the nodes are those that it has."""
    own = folder / "dev"
    own.mkdir()
    subprocess.run(["cp", "-a", sim_driver / "dev/nvidia0", "/dev/null", "/dev/zero", own], check=True)
    before = listing(own)
    bundle = new_bundle(env=[ALL], args=["opendev", LIBCUDA, "/dev/nvidia0", "/dev/nvidia1"])
    spec = bundle.spec
    spec["mounts"] = [item for item in spec["mounts"] if not item["destination"].startswith("/dev")]
    spec["mounts"].append(bundles.mount("/dev", "bind", str(own), "rbind"))
    (bundle.path / "config.json").write_text(json.dumps(spec))

    done = any_shim.run(bundle)

    assert FOUND in done.out, done.err
    assert "/dev/nvidia0: ok" in done.out
    assert "/dev/nvidia1: No such file or directory" in done.out
    assert listing(own) == before


@pytest.mark.parametrize("is_mapped", [False, True], ids=["plain", "user-namespace"])
@pytest.mark.parametrize("has", [True, False], ids=["with-nodes", "empty"])
def test_a_volume_below_dev(
    world: World,
    any_shim: bundles.Runtime,
    new_bundle: NewBundle,
    folder: Path,
    sim_driver: Path,
    has: bool,
    is_mapped: bool,
) -> None:
    """`-v /dev/dri:/dev/dri`, as people write beside asking for a GPU: no runtime is told to make nodes in it, and
    those that it has can be opened as far as they were granted."""
    own = folder / "dri"
    own.mkdir()
    if has:
        subprocess.run(["cp", "-a", *(sim_driver / "dev/dri").iterdir(), own], check=True)
    before = listing(own)
    bundle = new_bundle(
        env=["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"],
        args=["opendev", "/dev/dri/renderD128", "/dev/nvidia0"],
        mounts=[bundles.mount("/dev/dri", "bind", str(own), "rbind")],
    )
    bundle = mapped(bundle) if is_mapped else bundle

    told = explained(world, bundle)
    done = any_shim.run(bundle)

    assert f"/dev/dri/renderD128: {'ok' if has else 'No such file'}" in done.out, done
    assert "/dev/nvidia0: ok" in done.out
    assert listing(own) == before
    warning = "left out /dev/dri/renderD128: it would lie in /dev/dri"
    assert (warning in world.log) is not has
    assert any(warning in text for text in told["warnings"]) is not has  # type: ignore[attr-defined]


@pytest.mark.skipif(not MULTIARCH.startswith("x86"), reason="only x86-64 has a 32-bit side in NVIDIA's drivers")
@pytest.mark.parametrize("libdir32", ["usr/lib/i386-linux-gnu", "usr/lib", "usr/lib32"])
def test_32_bit_programs(
    world: World, shim: bundles.Runtime, new_bundle: NewBundle, new_driver: Callable[..., Path], libdir32: str
) -> None:
    """compat32: the real 32-bit loader finds the host's 32-bit libcuda, though the image has one that its cache knows;
    beside it the 64-bit one is found as ever."""
    world.use_driver(new_driver(libraries32=True))
    env = [ALL, "NVIDIA_DRIVER_CAPABILITIES=compute,utility,compat32"]
    command = f"/lib/ld-linux.so.2 --list /program32; opendev {LIBCUDA}"
    bundle = new_bundle("lib64" if libdir32 == "usr/lib" else "glibc", env=env, args=["sh", "-c", command])
    root = bundle.rootfs
    for name in (libdir32, "opt/lib32"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copy("/lib32/libc.so.6", root / libdir32)
    shutil.copy("/lib32/ld-linux.so.2", root / "usr/lib/ld-linux.so.2")
    assemble(root / "opt/lib32/libcuda.so.1", "-shared", "-Wl,-soname,libcuda.so.1")
    own = root / "opt/lib32/libcuda.so.1"
    assemble(root / "program32", "-pie", "-Wl,--dynamic-linker=/lib/ld-linux.so.2", own)
    (root / "etc/ld.so.conf.d/000.conf").write_text("/opt/lib32\n")
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True)

    told = explained(world, bundle)
    done = shim.run(bundle)

    assert f"libcuda.so.1 => /{libdir32}/libcuda.so.1" in done.out, done.out + done.err
    assert FOUND in done.out
    assert told["image"]["libdir32"] == f"/{libdir32}"  # type: ignore[index]


# --- which libcuda ------------------------------------------------------------------------------------------------


def ship_compat(root: Path, folder: Path) -> None:
    """Forward-compatibility libraries where NVIDIA's images have them, by absolute links; no note in them."""
    foreign = folder / "foreign"
    sim.create(foreign, sim.SimOptions(driver="610.43.03", cuda="13.3"))
    place = root / "usr/local/cuda-13.3/compat"
    place.mkdir(parents=True)
    shutil.copy(foreign / LIBDIR / "libcuda.so.610.43.03", place)
    (place / "libcuda.so.1").symlink_to("libcuda.so.610.43.03")
    (root / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    (root / "etc/alternatives").mkdir()
    (root / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-13.3")


COMPAT = "/usr/local/cuda-13.3/compat"
WINS = {
    "R13, R15 path": ("", [], "610.43.03", f"{COMPAT}/libcuda.so.1", "newer branch than the driver"),
    "R15 off": ("off", [], "580.95.05", f"/{LIBDIR}/libcuda.so.1", "requirement.cuda-compat is off"),
    "off, and LD_LIBRARY_PATH": (
        "off",
        ["LD_LIBRARY_PATH=/usr/local/cuda/compat"],
        "610.43.03",
        f"{COMPAT}/libcuda.so.1",
        "LD_LIBRARY_PATH names /usr/local/cuda/compat",
    ),
    "R87 stubs": (
        "",
        ["LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs"],
        "470.57.02",
        "/usr/local/cuda-13.3/lib64/stubs/libcuda.so.1",
        "LD_LIBRARY_PATH names /usr/local/cuda/lib64/stubs",
    ),
    "R86 LD_LIBRARY_PATH without one": (
        "",
        ["LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/cuda/lib64"],
        "610.43.03",
        f"{COMPAT}/libcuda.so.1",
        "newer branch than the driver",
    ),
}


@pytest.mark.parametrize(("key", "env", "loaded", "path", "why"), WINS.values(), ids=WINS)
def test_which_libcuda_wins(
    world: World,
    shim: bundles.Runtime,
    new_bundle: NewBundle,
    sim_driver: Path,
    folder: Path,
    key: str,
    env: list[str],
    loaded: str,
    path: str,
    why: str,
) -> None:
    """What the real loader loads is what `explain` says, and it says why."""
    if key:
        world.use_driver(sim_driver, f'[requirement]\ncuda-compat = "{key}"\n')
    bundle = new_bundle(env=[ALL, *env], args=["opendev", LIBCUDA])
    ship_compat(bundle.rootfs, folder)
    stubs = bundle.rootfs / "usr/local/cuda-13.3/lib64/stubs"
    stubs.mkdir(parents=True)
    old = folder / "old"
    sim.create(old, sim.SimOptions(driver="470.57.02", cuda="11.4"))
    shutil.copy(old / LIBDIR / "libcuda.so.470.57.02", stubs / "libcuda.so.1")

    told = explained(world, bundle)["libcuda"]
    done = shim.run(bundle)

    assert f"ok libcuda.so {loaded}" in done.out, done.err
    assert isinstance(told, dict)
    assert told["path"] == path
    assert why in told["why"]
    named = any(item.rstrip("/").endswith(("/stubs", "/compat")) for item in env)
    assert ("the loader looks there before it finds the host's driver" in world.log) is named


BRANDS = {
    "R14 data centre": ({"brand": "tesla"}, "610.43.03", "newer branch"),
    "R14 GeForce": ({"brand": "geforcertx"}, "580.95.05", "CUDA accepts none on brand 'geforcertx'"),
    "R14 newer driver": ({"driver": "615.10", "cuda": "13.4"}, "615.10", "not newer than the driver (615.10)"),
}


@pytest.mark.parametrize(("driver", "loaded", "why"), BRANDS.values(), ids=BRANDS)
def test_compatibility_libraries_by_brand_and_version(
    world: World,
    shim: bundles.Runtime,
    new_bundle: NewBundle,
    new_driver: Callable[..., Path],
    folder: Path,
    driver: dict[str, str],
    loaded: str,
    why: str,
) -> None:
    world.use_driver(new_driver(**driver))
    bundle = new_bundle(env=[ALL], args=["opendev", LIBCUDA])
    ship_compat(bundle.rootfs, folder)

    told = explained(world, bundle)["libcuda"]
    done = shim.run(bundle)

    assert f"ok libcuda.so {loaded}" in done.out, done.err
    assert isinstance(told, dict)
    assert why in told["why"]
    assert not [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "compat" in line]


NOTES = {
    "branch is named": (b'{"CUDA Version": "13.3", "Driver": [570, 580]}', "610.43.03", "driver branches 570, 580"),
    "branch is not named": (b'{"CUDA Version": "13.3", "Driver": [570, 590]}', "580.95.05", "the driver is 580.95.05"),
    "only the level": (b'{"CUDA Version": "13.3"}', "610.43.03", "says CUDA 13.3, the driver supports 13.0"),
    "a lower level": (b'{"CUDA Version": "12.9"}', "580.95.05", "says CUDA 12.9"),
    "a broken note": (b'{"CUDA Version', "610.43.03", "newer branch"),
}


def add_note(root: Path, text: bytes, folder: Path) -> None:
    """Put a note into the image's forward-compatibility libcuda."""
    owner = b"NVIDIA Corporation\0\0"
    note = struct.pack("<III", 19, len(text), 1) + owner + text + bytes(-len(text) % 4)
    (folder / "note").write_bytes(note)
    library = f"{root}{COMPAT}/libcuda.so.610.43.03"
    section = ".note.cuda.fwd_compatibility"
    options = ["--add-section", f"{section}={folder}/note", "--set-section-alignment", f"{section}=4"]
    subprocess.run(["objcopy", *options, library], check=True)


@pytest.mark.parametrize(("text", "loaded", "why"), NOTES.values(), ids=NOTES)
def test_compatibility_libraries_by_their_note(
    world: World, shim: bundles.Runtime, new_bundle: NewBundle, folder: Path, text: bytes, loaded: str, why: str
) -> None:
    """The note of a real ELF library, as binutils put it in, decides."""
    bundle = new_bundle(env=[ALL], args=["opendev", LIBCUDA])
    ship_compat(bundle.rootfs, folder)
    add_note(bundle.rootfs, text, folder)

    told = explained(world, bundle)["libcuda"]
    done = shim.run(bundle)

    assert f"ok libcuda.so {loaded}" in done.out, done.err
    assert isinstance(told, dict)
    assert why in told["why"]


@pytest.mark.parametrize(("branch", "code"), [(580, 0), (570, 41)], ids=["met", "not met"])
def test_a_requirement_is_judged_by_the_same_rule(
    shim: bundles.Runtime, new_bundle: NewBundle, folder: Path, branch: int, code: int
) -> None:
    """R13: an image that presumes forward compatibility starts exactly where its libraries would be used."""
    needed = "NVIDIA_REQUIRE_CUDA=cuda>=14.0 brand=tesla,driver>=580,driver<581"
    bundle = new_bundle(env=[ALL, needed], args=["opendev", LIBCUDA])
    ship_compat(bundle.rootfs, folder)
    add_note(bundle.rootfs, b'{"CUDA Version": "13.3", "Driver": [%d]}' % branch, folder)

    done = shim.run(bundle)

    assert done.code == code, done.err
    assert ("no forward-compatibility libraries that are for it" in done.err) is bool(code)
    assert ("ok libcuda.so 610.43.03" in done.out) is not bool(code)
