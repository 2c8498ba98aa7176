"""The simulated driver's tree: what lies where, and that nothing is left of one that could not be made."""

import ctypes
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpuhook import sim
from gpuhook.errors import GpuhookError
from gpuhook.sim import cache, state
from gpuhook.sim.libraries import LIBRARIES, Library
from gpuhook.sim.options import check

V = "580.95.05"
LIB = sim.LAYOUTS["ubuntu"].libraries


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sim") / "driver"
    sim.create(root)
    return root


def dynamic(path: Path) -> tuple[str, list[str]]:
    """DT_SONAME and DT_NEEDED by readelf."""
    text = subprocess.run(["readelf", "-dW", str(path)], capture_output=True, text=True, check=True).stdout
    soname = re.findall(r"\(SONAME\).*\[(.*)\]", text)
    return (soname[0] if soname else ""), re.findall(r"\(NEEDED\).*\[(.*)\]", text)


# --- libraries ---


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: str(library.name))
def test_library_is_elf_with_soname_needed_and_links(tree: Path, library: Library) -> None:
    """Each library carries its soname and needs, is found by every link, and says whose it is."""
    path = tree / LIB / library.file(V)
    soname, needed = dynamic(path)
    assert soname == library.soname_text(V)
    by_name = {item.name: item for item in LIBRARIES}
    own = {by_name[name].soname_text(V) for name in library.needed}
    assert {name for name in needed if not re.match(r"lib(c|dl)\.so\.", name)} == own
    assert (path.parent / soname).resolve() == path
    name = library.name.rpartition("/")[2]
    assert (path.parent / f"{name}.so").exists() == library.dev
    if library.dev:
        assert os.readlink(path.parent / f"{name}.so") == soname
    for alias in library.aliases:
        assert (path.parent / alias).resolve() == path


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("libcuda.so.1", f"libcuda.so {V}"),
        ("libnvidia-ml.so.1", f"libnvidia-ml.so {V}"),
        ("vdpau/libvdpau_nvidia.so.1", f"libvdpau_nvidia.so {V}"),
        ("libnvidia-egl-wayland.so.1", "libnvidia-egl-wayland.so 1.1.19"),
    ],
)
def test_library_says_whose_it_is(tree: Path, file: str, says: str) -> None:
    """dlopen takes the library, and gpuhook_sim_version names it."""
    version = ctypes.CDLL(str(tree / LIB / file)).gpuhook_sim_version
    version.restype = ctypes.c_char_p
    assert version() == says.encode()


def test_libcuda_answers_with_its_level(tree: Path) -> None:
    """cuInit succeeds and the level is the one that was asked for."""
    cuda = ctypes.CDLL(str(tree / LIB / "libcuda.so.1"))
    level = ctypes.c_int()
    assert (cuda.cuInit(0), cuda.cuDriverGetVersion(ctypes.byref(level)), level.value) == (0, 0, 13000)


@pytest.mark.parametrize("file", ["usr/bin/nvidia-smi", "usr/bin/nvidia-persistenced", f"{LIB}/libnvidia-ml.so.1"])
def test_old_c_library_will_do(tree: Path, file: str) -> None:
    """Nothing asks for a symbol version newer than glibc 2.17, so any image of the last decade can run it."""
    words = ["readelf", "-VW", str(tree / file)]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, item.split("."))) for item in re.findall(r"GLIBC_([0-9.]+)", text)}
    assert versions
    assert max(versions) <= (2, 17)


def test_loader_cache_lists_the_sonames(tree: Path) -> None:
    """The real ldconfig reads the cache; each soname in the library directory is there, vdpau's is not."""
    listed = printed(tree / "etc/ld.so.cache")
    expected = {item.soname_text(V) for item in LIBRARIES if "/" not in item.name}
    assert expected <= set(listed)
    assert "libvdpau_nvidia.so.1" not in listed


def test_own_loader_cache_equals_ldconfigs(tree: Path, tmp_path: Path) -> None:
    """Where there is no ldconfig we write the cache: the same names in the same order."""
    ours = tmp_path / "ld.so.cache"
    ours.write_bytes(cache.compose(LIB, cache.names(LIBRARIES, V)))
    assert printed(ours) == printed(tree / "etc/ld.so.cache")


def printed(file: Path) -> list[str]:
    words = ["/sbin/ldconfig", "-p", "-C", str(file)]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return re.findall(r"^\t(\S+) \(libc6,", text, re.MULTILINE)


def test_fedora_layout(tmp_path: Path) -> None:
    """Libraries in /usr/lib64, and the cache says so."""
    sim.create(tmp_path / "d", sim.SimOptions(layout="fedora", gpus=0, extra_libraries=("libnvidia-newthing",)))
    assert (tmp_path / "d/usr/lib64/libcuda.so.1").is_file()
    assert (tmp_path / f"d/usr/lib64/libnvidia-newthing.so.{V}").is_file()
    assert not (tmp_path / "d" / LIB).exists()
    assert "libnvidia-newthing.so.1" in printed(tmp_path / "d/etc/ld.so.cache")
    assert not list((tmp_path / "d/dev").glob("nvidia[0-9]*"))


# --- the rest of the tree ---


def test_all_is_owned_by_root_and_nobody_else_writes(tree: Path) -> None:
    """Regular files and directories have a host's owner and modes; only the count is everybody's."""
    writable = []
    for path in tree.rglob("*"):
        status = path.lstat()
        assert (status.st_uid, status.st_gid) == (0, 0), path
        if path.is_file() and not path.is_symlink() and status.st_mode & 0o022:
            writable.append(path.relative_to(tree).as_posix())
    assert writable == [state.COUNT]


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    """A tree made under umask 077 can be read by all."""
    old = os.umask(0o077)
    try:
        sim.create(tmp_path / "d", sim.SimOptions(gpus=1))
    finally:
        os.umask(old)
    for name, mode in (
        (".", 0o755),
        ("usr/bin/nvidia-smi", 0o755),
        (f"{LIB}/libcuda.so.{V}", 0o644),
        ("proc/driver/nvidia/version", 0o644),
        ("dev/nvidia0", 0o666),
        (state.COUNT, 0o666),
        ("run/nvidia-persistenced/socket", 0o666),
        ("tmp", 0o1777),
    ):
        assert (tmp_path / "d" / name).stat().st_mode & 0o7777 == mode, name


def test_kernel_files(tree: Path) -> None:
    """proc and sys speak as the driver does."""
    proc = tree / "proc/driver/nvidia"
    assert re.match(rf"NVRM version: NVIDIA UNIX \S+ Kernel Module  {V}  \w", (proc / "version").read_text())
    assert "\nGCC version:  gcc" in (proc / "version").read_text()
    assert "\nModifyDeviceFiles: 1\n" in (proc / "params").read_text()
    assert (tree / "sys/module/nvidia/version").read_text() == V + "\n"
    assert re.fullmatch(r"[0-9A-F]{24}\n", (tree / "sys/module/nvidia/srcversion").read_text())
    assert sorted(path.name for path in (proc / "gpus").iterdir()) == ["0000:0b:00.0", "0000:0c:00.0"]
    text = (proc / "gpus/0000:0c:00.0/information").read_text()
    fields = {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    assert fields["Model"] == "NVIDIA H100 80GB HBM3"
    assert fields["GPU UUID"] == check(sim.SimOptions())[1].uuid
    assert (fields["Bus Location"], fields["Device Minor"]) == ("0000:0c:00.0", "1")


@pytest.mark.parametrize(
    ("driver", "names"),
    [("535.161.08", {"nvidia-frontend", "nvidia-uvm"}), (V, {"nvidia", "nvidiactl", "nvidia-modeset", "nvidia-uvm"})],
)
def test_proc_devices_declares_the_nodes_major(tmp_path: Path, driver: str, names: set[str]) -> None:
    """Each node opens, read and write, and its major is the one that proc/devices names."""
    sim.create(tmp_path / "d", sim.SimOptions(driver=driver))
    text = (tmp_path / "d/proc/devices").read_text().partition("Block")[0]
    majors = {name: int(number) for number, name in re.findall(r"^ *(\d+) (nvidia\S*)$", text, re.MULTILINE)}
    assert names <= set(majors)
    nodes = {path.name: path.stat() for path in (tmp_path / "d/dev").iterdir() if path.name != "dri"}
    assert set(nodes) == {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}
    assert {os.major(status.st_rdev) for status in nodes.values()} == {majors["nvidia-uvm"]}
    assert len({nodes[name].st_rdev for name in ("nvidia0", "nvidia1", "nvidiactl")}) == 3
    for name in nodes:
        os.close(os.open(tmp_path / "d/dev" / name, os.O_RDWR | os.O_NONBLOCK))


def test_many_gpus_share_stand_ins(tmp_path: Path) -> None:
    """64 GPUs have 64 nodes; none of them stands on a control node's device."""
    sim.create(tmp_path / "d", sim.SimOptions(gpus=64))
    dev = tmp_path / "d/dev"
    gpus = {(dev / f"nvidia{minor}").stat().st_rdev for minor in range(64)}
    assert len(gpus) >= 2
    assert (dev / "nvidiactl").stat().st_rdev not in gpus


def test_sockets_firmware_and_programs(tree: Path) -> None:
    """What utility and compute mount besides libraries is there, of the right kind."""
    assert (tree / "run/nvidia-persistenced/socket").is_socket()
    assert (tree / "var/run/nvidia-persistenced/socket").is_socket()
    assert (tree / "tmp/nvidia-mps").is_dir()
    assert (tree / f"lib/firmware/nvidia/{V}/gsp_ga10x.bin").is_file()
    for name in ("nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
        done = subprocess.run([str(tree / "usr/bin" / name)], capture_output=True, text=True, check=True)
        assert done.stdout == f"{name}: simulated by gpuhook, version {V}\n"


def test_gpus_keep_their_identity() -> None:
    """UUIDs and bus ids follow from the index alone."""
    assert check(sim.SimOptions(gpus=2)) == check(sim.SimOptions(gpus=3))[:2]


# --- what is refused ---

BASE = sim.SimOptions()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (replace(BASE, gpus=-1), "--gpus '-1'"),
        (replace(BASE, gpus=65), "--gpus '65'"),
        (replace(BASE, driver="580"), "--driver '580'"),
        (replace(BASE, driver="580.95.05/../x"), "--driver '580.95.05/../x'"),
        (replace(BASE, driver="５80.95"), "--driver '５80.95'"),
        (replace(BASE, driver="580.95\n"), "--driver"),
        (replace(BASE, cuda="13"), "--cuda '13'"),
        (replace(BASE, brand="Tesla"), "--brand 'Tesla'"),
        (replace(BASE, brands=("tesla",)), "--brand"),
        (replace(BASE, model=""), "--model ''"),
        (replace(BASE, model="a\nfault = crash"), "--model"),
        (replace(BASE, arch="9"), "--arch '9'"),
        (replace(BASE, layout="plan9"), "--layout 'plan9'"),
        (replace(BASE, faults=("gone",)), "--fault 'gone'"),
        (replace(BASE, faults=("gpu-lost",)), "--fault 'gpu-lost'"),
        (replace(BASE, faults=("gpu-lost=2",)), "--fault 'gpu-lost=2'"),
        (replace(BASE, faults=("slow=1_0",)), "--fault 'slow=1_0'"),
        (replace(BASE, faults=("hang=1",)), "--fault 'hang=1'"),
        (replace(BASE, memory=0), "memory '0'"),
        (replace(BASE, minors=(0, 0)), "minors"),
        (replace(BASE, minors=(0, 254)), "minors '254'"),
        (replace(BASE, bus_ids=("0000:0b:00.0", "0b:00.0")), "bus_ids '0b:00.0'"),
        (replace(BASE, bus_ids=("0000:0b:00.0", "00000000:0B:00.0")), "bus_ids"),
        (replace(BASE, uuids=("GPU-1", "GPU-2")), "uuids 'GPU-1'"),
        (replace(BASE, mig=("0",)), "--mig '0'"),
        (replace(BASE, mig=("2=1/0",)), "--mig '2=1/0'"),
        (replace(BASE, mig=("0=1/0", "0=2/0")), "--mig '0=2/0'"),
        (replace(BASE, mig=("0=1/0,1/0",)), "--mig '0=1/0,1/0'"),
        (replace(BASE, mig=("0=15/0",)), "--mig '0=15/0'"),
        (replace(BASE, mig=("0=1/8",)), "--mig '0=1/8'"),
        (replace(BASE, mig=("0=" + ",".join(f"{gi}/0" for gi in range(9)),)), "--mig"),
        (replace(BASE, mig=("０=1/0",)), "--mig"),
        (replace(BASE, mig=("0=1/0",), arch="7.5"), "--mig '0=1/0'"),
        (replace(BASE, extra_libraries=("../x",)), "extra_libraries '../x'"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_bad_option_is_named_and_nothing_is_made(tmp_path: Path, options: sim.SimOptions, names: str) -> None:
    """A bad option: sim-invalid with its name and text."""
    with pytest.raises(GpuhookError) as caught:
        sim.create(tmp_path / "d", options)
    assert caught.value.reference == "sim-invalid"
    assert caught.value.message.startswith(names)
    assert list(tmp_path.iterdir()) == []


def test_second_creation_refuses(tree: Path) -> None:
    """A directory that holds something is left as it is."""
    before = (tree / "dev").stat().st_mtime_ns
    with pytest.raises(GpuhookError, match="is not empty") as caught:
        sim.create(tree)
    assert caught.value.reference == "sim-invalid"
    assert (tree / "dev").stat().st_mtime_ns == before


def test_file_dangling_link_and_missing_parent_refuse(tmp_path: Path) -> None:
    """DIR must be a directory or nothing, in a directory."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name, text in (("file", "no directory"), ("link", "no directory"), ("a/b", "there is no directory")):
        with pytest.raises(GpuhookError, match=text):
            sim.create(tmp_path / name)


def test_empty_directory_is_taken(tmp_path: Path) -> None:
    """An empty DIR becomes the root."""
    (tmp_path / "d").mkdir()
    sim.create(tmp_path / "d", sim.SimOptions(gpus=1))
    assert (tmp_path / "d/usr/bin/nvidia-smi").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


@pytest.mark.parametrize("cc", [None, "no-such-compiler -m64"], ids=["none in PATH", "CC names none"])
def test_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cc: str | None) -> None:
    """Without a compiler the package that has one is named, and nothing is left."""
    (tmp_path / "empty").mkdir()
    monkeypatch.delenv("CC", raising=False)
    if cc is None:
        monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    else:
        monkeypatch.setenv("CC", cc)
    with pytest.raises(GpuhookError) as caught:
        sim.create(tmp_path / "d")
    assert caught.value.reference == "sim-compiler-missing"
    assert "gcc" in caught.value.hint
    assert ("no-such-compiler" in caught.value.message) == (cc is not None)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_failing_compiler_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the compiler said is in the error, and nothing is left."""
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'stdio.h: No such file' >&2\necho second >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(GpuhookError) as caught:
        sim.create(tmp_path / "d")
    assert caught.value.reference == "sim-failed"
    assert "stdio.h: No such file" in caught.value.message
    assert "second" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["cc"]


def test_without_the_right_to_make_nodes(tmp_path: Path) -> None:
    """A process that may not make device nodes is told so, and nothing is left."""
    code = (
        "import sys; from pathlib import Path; from gpuhook import errors, sim\n"
        "try: sim.create(Path(sys.argv[1]))\n"
        "except errors.GpuhookError as error: sys.exit(str(error))"
    )
    capbset_drop, cap_mknod = 24, 27  # linux/prctl.h, linux/capability.h
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "d")],
        capture_output=True,
        text=True,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(capbset_drop, cap_mknod, 0, 0, 0),
    )
    assert "[sim-failed]" in done.stderr
    assert "run it as root" in done.stderr
    assert list(tmp_path.iterdir()) == []
