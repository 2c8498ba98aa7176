"""What gpuhook learns of an image by looking, for layouts of real distributions and for hostile ones."""

import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuhook import image
from gpuhook.errors import GpuhookError
from gpuhook.model import DriverFile, FileId, Image
from gpuhook.rootfs import Root
from tests.unit.test_elf_note import note, with_note

ID = FileId(1, 2, 3, 4, 5)
VERSION = "535.54.03"
X86, ARM, I386 = 62, 183, 3
TRIPLET = "usr/lib/x86_64-linux-gnu"
LOADER = "lib64/ld-linux-x86-64.so.2"

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the layouts are of x86-64, as the host prefers")


def library(stem: str, *links: str, bits: int = 64) -> DriverFile:
    name = f"{stem}.so.{VERSION}"
    return DriverFile(f"/drv/{name}", "library", "compute", name, ID, f"{stem}.so.1", (f"{stem}.so.1", *links), bits)


CUDA = library("libcuda", "libcuda.so")
ML = library("libnvidia-ml")
OURS = (CUDA, ML, DriverFile("/drv/nvidia-smi", "binary", "utility", "nvidia-smi", ID))


def elf(machine: int = X86, size: int = 64) -> bytes:
    return (b"\x7fELF\2\1\1" + bytes(9) + b"\3\0" + machine.to_bytes(2, "little")).ljust(size, b"\0")


class Tree:
    """A root to fill."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, *names: str, data: bytes = b"x") -> "Tree":
        for name in names:
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        return self

    def link(self, name: str, text: str) -> "Tree":
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(text)
        return self

    def directory(self, *names: str) -> "Tree":
        for name in names:
            (self.path / name).mkdir(parents=True, exist_ok=True)
        return self

    def look(self, libraries: tuple[DriverFile, ...] = OURS, compat: bool = True) -> Image:
        root = Root.at(str(self.path))
        try:
            return image.look(root, libraries, compat)
        finally:
            root.close()
            os.close(root.proc)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    (tmp_path / "root").mkdir()
    yield Tree(tmp_path / "root")


def debian(tree: Tree) -> Tree:
    tree.file(f"{TRIPLET}/ld-linux-x86-64.so.2", data=elf()).file(f"{TRIPLET}/libc.so.6", "etc/debian_version")
    return (
        tree.link("lib", "usr/lib").link("lib64", "usr/lib64").link(f"usr/{LOADER}", f"/{TRIPLET}/ld-linux-x86-64.so.2")
    )


def old_debian(tree: Tree) -> Tree:
    tree.file("lib/x86_64-linux-gnu/ld-2.28.so", data=elf()).file(
        "lib/x86_64-linux-gnu/libc-2.28.so", "etc/debian_version"
    )
    tree.link("lib/x86_64-linux-gnu/libc.so.6", "libc-2.28.so").directory(TRIPLET)
    return tree.link(LOADER, "/lib/x86_64-linux-gnu/ld-2.28.so")


def fedora(tree: Tree) -> Tree:
    tree.file(f"usr/{LOADER}", data=elf()).file("usr/lib64/libc.so.6").directory("usr/lib")
    return tree.link("lib", "usr/lib").link("lib64", "usr/lib64")


def arch(tree: Tree) -> Tree:
    tree.file("usr/lib/ld-linux-x86-64.so.2", data=elf()).file("usr/lib/libc.so.6")
    return tree.link("lib", "usr/lib").link("lib64", "usr/lib").link("usr/lib64", "lib")


def opensuse(tree: Tree) -> Tree:
    tree.file(LOADER, data=elf()).file("lib64/libc.so.6").directory("usr/lib64", "usr/lib", "lib")
    return tree


def alpine(tree: Tree) -> Tree:
    return tree.file("lib/ld-musl-x86_64.so.1", data=elf()).directory("usr/lib")


def gcompat(tree: Tree) -> Tree:
    alpine(tree).file("lib/ld-linux-x86-64.so.2", data=elf())
    return tree.link(LOADER, "../lib/ld-linux-x86-64.so.2")


def libc6_compat(tree: Tree) -> Tree:
    alpine(tree).link("lib/libc.musl-x86_64.so.1", "ld-musl-x86_64.so.1").link("lib/libc.so.6", "libc.musl-x86_64.so.1")
    return tree.link(LOADER, "../lib/ld-musl-x86_64.so.1")


def debian_with_musl(tree: Tree) -> Tree:
    return debian(tree).file("usr/lib/ld-musl-x86_64.so.1", data=elf())


def arm(tree: Tree) -> Tree:
    tree.file("lib/ld-linux-aarch64.so.1", data=elf(ARM)).file("usr/lib/aarch64-linux-gnu/libc.so.6")
    return tree


def two_machines(tree: Tree) -> Tree:
    return debian(tree).file("usr/lib/ld-linux-aarch64.so.1", data=elf(ARM))


def lies(tree: Tree) -> Tree:
    return debian(tree).file(f"{TRIPLET}/ld-linux-x86-64.so.2", data=elf(ARM))


def climbing(tree: Tree) -> Tree:
    tree.file(LOADER, data=elf()).file("etc/libc.so.6").directory("usr")
    return tree.link("usr/lib64", "../../../../../etc")


MULTIARCH = f"/{TRIPLET}"


@pytest.mark.parametrize(
    ("fill", "expected"),
    [
        (debian, ("glibc", "x86-64", MULTIARCH)),
        (old_debian, ("glibc", "x86-64", MULTIARCH)),
        (fedora, ("glibc", "x86-64", "/usr/lib64")),
        (arch, ("glibc", "x86-64", "/usr/lib")),
        (opensuse, ("glibc", "x86-64", "/usr/lib64")),
        (alpine, ("musl", "x86-64", "/usr/lib")),
        (gcompat, ("musl", "x86-64", "/usr/lib")),
        (libc6_compat, ("musl", "x86-64", "/usr/lib")),
        (debian_with_musl, ("glibc", "x86-64", MULTIARCH)),
        (arm, ("glibc", "aarch64", "/usr/lib/aarch64-linux-gnu")),
        (two_machines, ("glibc", "x86-64", MULTIARCH)),
        (lies, ("glibc", "aarch64", "/usr/lib/aarch64-linux-gnu")),
        (climbing, ("glibc", "x86-64", "/etc")),
        (lambda tree: tree, ("", "", "/usr/lib64")),
        (lambda tree: tree.file("etc/debian_version"), ("", "", MULTIARCH)),
        (lambda tree: tree.file(LOADER, data=b"#!/bin/sh\n"), ("", "", "/usr/lib64")),
        (lambda tree: tree.file(LOADER, data=elf()), ("glibc", "x86-64", "/usr/lib64")),
        (lambda tree: tree.directory(LOADER), ("", "", "/usr/lib64")),
        (lambda tree: tree.link(LOADER, "/proc/self/exe"), ("", "", "/usr/lib64")),
        (lambda tree: tree.file(LOADER, data=elf(243)), ("glibc", "riscv", "/usr/lib64")),
    ],
    ids=[
        *("debian", "old-debian", "fedora", "arch", "opensuse", "alpine", "gcompat", "libc6-compat"),
        *("debian-with-musl", "arm", "two-machines", "other-machine-inside", "climbing-link", "empty"),
        *("no-loader-debian", "script-as-loader", "loader-only", "directory", "magic-link", "riscv"),
    ],
)
def test_layouts(tree: Tree, fill: Callable[[Tree], Tree], expected: tuple[str, str, str]) -> None:
    """R62, R85: loader, machine and library directory go by what the image has."""
    fill(tree)
    found = tree.look()
    assert (found.loader, found.machine, found.libdir) == expected


def narrow(tree: Tree, folder: str, loader: str = "lib/ld-linux.so.2") -> Tree:
    """A 32-bit C library and its loader."""
    return tree.file(f"{folder}/libc.so.6", loader, data=elf(I386))


NARROW = {
    "debian": (lambda tree: narrow(debian(tree), "usr/lib/i386-linux-gnu"), "/usr/lib/i386-linux-gnu"),
    "unmerged debian": (lambda tree: narrow(old_debian(tree), "lib/i386-linux-gnu"), "/usr/lib/i386-linux-gnu"),
    "debian's libc6-i386": (lambda tree: narrow(debian(tree), "usr/lib32"), "/usr/lib32"),
    "fedora": (lambda tree: narrow(fedora(tree), "usr/lib"), "/usr/lib"),
    "opensuse, unmerged": (lambda tree: narrow(opensuse(tree), "lib"), "/usr/lib"),
    "arch": (lambda tree: narrow(arch(tree), "usr/lib32"), "/usr/lib32"),
    "arch without": (arch, ""),
    "fedora without": (fedora, ""),
    "debian with an empty folder": (lambda tree: debian(tree).directory("usr/lib/i386-linux-gnu"), ""),
    "another machine's": (lambda tree: debian(tree).file("usr/lib/i386-linux-gnu/libc.so.6", data=elf(40)), ""),
    "alpine": (alpine, ""),
    "a 32-bit image": (lambda tree: narrow(tree, "usr/lib/i386-linux-gnu"), ""),
}


@pytest.mark.parametrize(("fill", "expected"), NARROW.values(), ids=NARROW)
def test_32_bit_directory(tree: Tree, fill: Callable[[Tree], Tree], expected: str) -> None:
    """Where 32-bit programs of the image look; looked for only if something 32-bit is to go in."""
    fill(tree)
    assert tree.look((*OURS, library("libcuda", bits=32))).libdir32 == expected
    assert tree.look().libdir32 == ""


def test_hostile_loader(tree: Tree) -> None:
    """A FIFO where the loader should be is not opened: nothing hangs."""
    tree.directory("lib64")
    os.mkfifo(tree.path / LOADER)
    os.mkfifo(tree.path / "usr-lib")
    assert tree.look().loader == ""


def test_link_with_odd_name(tree: Tree) -> None:
    """A directory name that could add a line to a configuration file is not used as text."""
    debian(tree)
    (tree.path / "opt").mkdir()
    (tree.path / TRIPLET).rename(tree.path / "opt/a\nb")
    tree.link(TRIPLET, "/opt/a\nb")
    assert tree.look().libdir == MULTIARCH


# --- volumes and read-only file systems ---


@pytest.fixture
def mounted(tree: Tree) -> Iterator[Callable[..., None]]:
    """Mounts a tmpfs in the root, with options."""
    made: list[Path] = []

    def mount(name: str, *options: str) -> None:
        target = tree.path / name
        if target not in made:
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", target], check=True)
            made.append(target)
        if options:
            subprocess.run(["mount", "-o", ",".join(options), target], check=True)

    yield mount
    for target in reversed(made):
        subprocess.run(["umount", "-l", target], check=True)


@pytest.mark.runc
@pytest.mark.parametrize("name", ["usr", TRIPLET])
def test_a_volume_over_the_library_directory(tree: Tree, mounted: Callable[..., None], name: str) -> None:
    """R79: libraries go below the tmpfs at /dev, and nothing in the volume is covered."""
    tree.directory(TRIPLET)
    mounted(name)
    debian(tree).file(f"{TRIPLET}/libcuda.so.1")
    found = tree.look()
    assert (found.loader, found.libdir, found.cover) == ("glibc", "/dev/.gpuhook/lib", ())


@pytest.mark.runc
def test_a_volume_elsewhere_changes_nothing(tree: Tree, mounted: Callable[..., None]) -> None:
    debian(tree).directory("usr/bin", "data")
    mounted("usr/bin")
    mounted("data")
    assert tree.look().libdir == MULTIARCH


@pytest.mark.runc
@pytest.mark.parametrize("fill", [debian, alpine, lambda tree: tree])
def test_a_read_only_file_system(tree: Tree, mounted: Callable[..., None], fill: Callable[[Tree], Tree]) -> None:
    """R72: whatever the image is."""
    mounted("")
    fill(tree)
    mounted("", "remount", "ro")
    assert tree.look().libdir == "/dev/.gpuhook/lib"


def test_a_missing_library_directory_is_the_roots_own(tree: Tree) -> None:
    assert tree.file("etc/debian_version").look().libdir == MULTIARCH


# --- forward compatibility ---

COMPAT = "usr/local/cuda-11.1/compat"
FULL = ("/usr/local/cuda-11.1/compat", "455.23.05", ("libcuda.so.1", "libnvidia-ptxjitcompiler.so.1"))
NONE: tuple[str, str, tuple[str, ...]] = ("", "", ())


def cuda_image(tree: Tree) -> Tree:
    """Absolute links as NVIDIA's images have them, and all files of a compatibility package."""
    debian(tree).link("usr/local/cuda", "/etc/alternatives/cuda").link("etc/alternatives/cuda", "/usr/local/cuda-11.1")
    for stem in ("libcuda", "libnvidia-ptxjitcompiler"):
        tree.file(f"{COMPAT}/{stem}.so.455.23.05", data=elf(size=4096))
        tree.link(f"{COMPAT}/{stem}.so.1", f"{stem}.so.455.23.05")
    return tree.link(f"{COMPAT}/libcuda.so", "libcuda.so.1")


def test_compat(tree: Tree) -> None:
    """R13: found through absolute links, inside the root; not looked for unless asked."""
    cuda_image(tree)
    found = tree.look()
    assert (found.compat, found.compat_version, found.compat_names) == FULL
    assert tree.look(compat=False).compat == ""


@pytest.mark.parametrize(
    ("name", "what", "expected"),
    [
        pytest.param("libcuda.so.999.0", "fifo", FULL, id="fifo beside it"),
        pytest.param("libcuda.so.999.0", "link", FULL, id="link beside it"),
        pytest.param("libcuda.so.999.0", "directory", FULL, id="directory beside it"),
        pytest.param("libcuda.so.999.0", "empty", FULL, id="0 bytes beside it"),
        pytest.param("libcuda.so.999.0", "script", FULL, id="script beside it"),
        pytest.param("libcuda.so.999.0", "arm", FULL, id="other machine beside it"),
        pytest.param("libcuda.so.999.0", "file", NONE, id="two versions"),
        pytest.param("libcuda.so.999", "file", FULL, id="no version"),
        pytest.param("libcuda.so.999.0\n", "file", FULL, id="newline"),
        pytest.param("libcuda.so.99９.0", "file", FULL, id="wide digit"),
        pytest.param("libcuda.so.9.1234567890", "file", FULL, id="ten digits"),
        pytest.param("libcuda.so.455.23.05", "fifo", NONE, id="fifo"),
        pytest.param("libcuda.so.455.23.05", "link", NONE, id="link to a host file"),
        pytest.param("libcuda.so.455.23.05", "directory", NONE, id="directory"),
        pytest.param("libcuda.so.455.23.05", "empty", NONE, id="0 bytes"),
        pytest.param("libcuda.so.455.23.05", "script", NONE, id="script"),
        pytest.param("libcuda.so.455.23.05", "gone", NONE, id="gone"),
        pytest.param("libcuda.so.1", "gone", NONE, id="no soname link"),
    ],
)
def test_compat_hostile(tree: Tree, name: str, what: str, expected: tuple[str, str, tuple[str, ...]]) -> None:
    """R178: only one regular ELF file of the image's machine with a plain version counts."""
    path = cuda_image(tree).path / COMPAT / name
    path.unlink(missing_ok=True)
    if what == "fifo":
        os.mkfifo(path)
    elif what == "link":
        path.symlink_to("/etc/shadow")
    elif what == "directory":
        path.mkdir()
    elif what != "gone":
        path.write_bytes({"empty": b"", "script": b"#!/bin/sh\n" * 9, "arm": elf(ARM), "file": elf()}[what])
    found = tree.look()
    assert (found.compat, found.compat_version, found.compat_names) == expected


@pytest.mark.parametrize(
    "text", ["/usr/local/cuda", "../../../../../../etc", "/proc/self/root", "/nowhere", "/etc/passwd"]
)
def test_compat_links(tree: Tree, text: str) -> None:
    """R13: a loop, a climbing link, a magic link, a dangling one and a link to a file lead to none."""
    debian(tree).link("usr/local/cuda", text)
    assert tree.look().compat == ""


def test_compat_note(tree: Tree) -> None:
    """What the libcuda says of the drivers that it is for; nothing where it says nothing."""
    assert (cuda_image(tree).look().compat_cuda, tree.look().compat_drivers) == ((), ())
    (tree.path / COMPAT / "libcuda.so.455.23.05").write_bytes(with_note())
    assert (tree.look().compat_cuda, tree.look().compat_drivers) == ((13, 1), (535, 550, 590))
    assert tree.look(compat=False).compat_drivers == ()


NOTES = {
    "no branches": (b'{"CUDA Version": "13.2"}', (13, 2), ()),
    "no level": (b'{"Driver": [535]}', (), (535,)),
    "level is no text": (b'{"CUDA Version": 13.1, "Driver": [535]}', (), (535,)),
    "level is no version": (b'{"CUDA Version": "13.x"}', (), ()),
    "level with wide digits": ('{"CUDA Version": "１３.1"}'.encode(), (), ()),
    "level without end": (b'{"CUDA Version": "' + b"1" * 99 + b'"}', (), ()),
    "branches that are none": (b'{"Driver": [true, -1, 0, 1e3, "535", null, 10000, 550]}', (), (550,)),
    "huge branch": (b'{"Driver": [' + b"9" * 5000 + b"]}", (), ()),
    "too many branches": (b'{"Driver": [' + b"535," * 64 + b"535]}", (), ()),
    "branches are no list": (b'{"Driver": {"535": 1}}', (), ()),
    "a list": (b"[535]", (), ()),
    "no JSON": (b"{'Driver': [535]}", (), ()),
    "deep": (b"[" * 10000, (), ()),
    "no UTF-8": (b'{"CUDA Version": "\xff"}', (), ()),
    "empty": (b"", (), ()),
}


@pytest.mark.parametrize(("text", "level", "branches"), NOTES.values(), ids=NOTES)
def test_compat_note_hostile(tree: Tree, text: bytes, level: tuple[int, ...], branches: tuple[int, ...]) -> None:
    """A note is the image's word: what is not of the documented form is left out."""
    path = cuda_image(tree).path / COMPAT / "libcuda.so.455.23.05"
    path.write_bytes(with_note(note(text)))
    found = tree.look()
    assert (found.compat_cuda, found.compat_drivers) == (level, branches)


# --- files to cover ---


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        pytest.param("libcuda.so.1", b"x", CUDA.name, id="file where our link goes"),
        pytest.param("libcuda.so", b"x", CUDA.name, id="file where our development link goes"),
        pytest.param("libnvidia-ml.so", b"x", ML.name, id="development name that we have no link for"),
        pytest.param("libcuda.so.470.57.02", b"", CUDA.name, id="0 bytes left of a commit"),
        pytest.param("libcuda.so.580.65.06", b"x", CUDA.name, id="newer version"),
        pytest.param(CUDA.name, b"x", None, id="the name that is mounted itself"),
        pytest.param("libcuda.so.535.54.03.bak", b"x", None, id="not a version"),
        pytest.param("libcuda.so1", b"x", None, id="no dot"),
        pytest.param("libcudart.so.12", b"x", None, id="another library"),
        pytest.param("libcuda", b"x", None, id="no library"),
        pytest.param("libcuda.a", b"x", None, id="static"),
        pytest.param("glibc-hwcaps/x86-64-v3/libcuda.so.1", b"x", CUDA.name, id="variant"),
        pytest.param(f"glibc-hwcaps/x86-64-v3/{CUDA.name}", b"x", CUDA.name, id="variant of the mounted name"),
        pytest.param("glibc-hwcaps/x86-64-v3/libz.so.1", b"x", None, id="variant of another library"),
        pytest.param("sub/libcuda.so.1", b"x", None, id="another directory"),
    ],
)
def test_cover(tree: Tree, name: str, data: bytes, expected: str | None) -> None:
    """R66 to R68: which of the image's files must show the host's library instead."""
    debian(tree).file(f"{TRIPLET}/{name}", data=data)
    assert tree.look().cover == (() if expected is None else ((f"{MULTIARCH}/{name}", expected),))


@pytest.mark.parametrize("kind", ["link", "directory", "fifo"])
def test_cover_regular_files_only(tree: Tree, kind: str) -> None:
    """A link is replaced or left, never covered: nothing is followed."""
    path = debian(tree).path / TRIPLET / "libcuda.so.1"
    if kind == "link":
        path.symlink_to("libc.so.6")
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    assert tree.look().cover == ()


def test_cover_is_in_the_resolved_directory(tree: Tree) -> None:
    """The paths are free of links, so each file appears once."""
    arch(tree).file("usr/lib/libcuda.so.470.57.02")
    assert tree.look().cover == (("/usr/lib/libcuda.so.470.57.02", CUDA.name),)


def test_32_bit_libraries_cover_nothing(tree: Tree) -> None:
    """They go elsewhere; a 64-bit directory must not show one."""
    debian(tree).file(f"{TRIPLET}/libcuda.so.1")
    assert tree.look((library("libcuda", bits=32),)).cover == ()


def test_32_bit_cover(tree: Tree) -> None:
    """The image's own 32-bit copies show the host's 32-bit library, and 64-bit ones the other."""
    narrow(fedora(tree), "usr/lib").file("usr/lib/libcuda.so.470.57.02", "usr/lib64/libcuda.so.470.57.02")
    found = tree.look((CUDA, library("libcuda", bits=32)))
    assert found.cover == (
        ("/usr/lib64/libcuda.so.470.57.02", CUDA.name),
        ("/usr/lib/libcuda.so.470.57.02", CUDA.name),
    )


def test_too_many_to_cover(tree: Tree) -> None:
    """More files than any image has is refused, not half done."""
    debian(tree).file(*[f"{TRIPLET}/libcuda.so.1.{number}" for number in range(image.LIMIT_COVER + 1)])
    with pytest.raises(GpuhookError, match="257 files") as caught:
        tree.look()
    assert caught.value.reference == "rootfs-unsafe"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("/a/b-1.2_c+", True),
        ("/", False),
        ("a", False),
        ("/a b", False),
        ("/a\n", False),
        ("/é", False),
        ("/$ORIGIN", False),
    ],
)
def test_plain_path(text: str, plain: bool) -> None:
    """What of an image may stand in a configuration file."""
    assert image.is_plain_path(text) is plain
