"""Where an image keeps its 32-bit libraries: found by its 32-bit C library, as its loader finds them."""

import os
import platform
from pathlib import Path

import pytest

from gpuhook import image
from gpuhook.model import DriverFile, FileId, Image
from gpuhook.rootfs import Root
from gpuhook.sim.data import shared_object
from tests.unit.test_elf import build

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the layouts are of x86-64, as the host prefers")

V = "535.54.03"
ID = FileId(1, 2, 3, 4, 5)
I386 = shared_object("libc.so.6")
WIDE = DriverFile(
    f"/d/libcuda.so.{V}", "library", "compute", f"libcuda.so.{V}", ID, "libcuda.so.1", ("libcuda.so.1",), 64
)
NARROW = DriverFile(
    f"/d32/libGLX_nvidia.so.{V}",
    "library",
    "graphics",
    f"libGLX_nvidia.so.{V}",
    ID,
    "libGLX_nvidia.so.0",
    ("libGLX_nvidia.so.0",),
    32,
)
MULTIARCH = "usr/lib/x86_64-linux-gnu"


def look(tree: Path, *libraries: DriverFile) -> Image:
    root = Root.at(str(tree))
    try:
        return image.look(root, libraries or (WIDE, NARROW), compat=False)
    finally:
        root.close()
        os.close(root.proc)


def fill(tree: Path, wide: str, narrow: str = "", data: bytes = I386) -> Path:
    """An image with its C libraries in these folders."""
    (tree / wide).mkdir(parents=True)
    (tree / wide / "libc.so.6").write_bytes(build(machine=62))
    (tree / "usr/lib64").mkdir(parents=True, exist_ok=True)
    (tree / "usr/lib64/ld-linux-x86-64.so.2").write_bytes(build(machine=62))
    if narrow:
        (tree / narrow).mkdir(parents=True, exist_ok=True)
        (tree / narrow / "libc.so.6").write_bytes(data)
    for name in ("lib", "lib64"):
        (tree / name).symlink_to(f"usr/{name}")
    return tree


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (MULTIARCH, "usr/lib/i386-linux-gnu"),
        (MULTIARCH, "usr/lib32"),
        ("usr/lib64", "usr/lib"),
        ("usr/lib", "usr/lib32"),
    ],
    ids=["Debian", "Debian with libc6-i386", "Fedora", "Arch"],
)
def test_layouts(tmp_path: Path, wide: str, narrow: str) -> None:
    found = look(fill(tmp_path, wide, narrow))
    assert (found.libdir, found.libdir32) == (f"/{wide}", f"/{narrow}")


def test_unmerged_usr(tmp_path: Path) -> None:
    """The C library lies in /lib, the others below /usr."""
    tree = fill(tmp_path, MULTIARCH)
    (tree / "lib").unlink()
    (tree / "lib/i386-linux-gnu").mkdir(parents=True)
    (tree / "lib/i386-linux-gnu/libc.so.6").write_bytes(I386)
    (tree / "usr/lib/i386-linux-gnu").mkdir()
    assert look(tree).libdir32 == "/usr/lib/i386-linux-gnu"


NONE = {
    "no 32-bit folder": ("", I386),
    "another machine's": ("usr/lib/i386-linux-gnu", build(machine=8, bits=32)),
    "64 bits in a 32-bit folder": ("usr/lib32", build(machine=62)),
    "no library": ("usr/lib32", b"x"),
}


@pytest.mark.parametrize(("narrow", "data"), NONE.values(), ids=NONE)
def test_images_without_a_32_bit_side(tmp_path: Path, narrow: str, data: bytes) -> None:
    assert look(fill(tmp_path, MULTIARCH, narrow, data)).libdir32 == ""


def test_nobody_looks_where_nothing_of_32_bits_is_to_go_in(tmp_path: Path) -> None:
    assert look(fill(tmp_path, MULTIARCH, "usr/lib32"), WIDE).libdir32 == ""


def test_copies_of_the_image_are_covered_in_both_folders(tmp_path: Path) -> None:
    """Each by the library of its bits (the plan tells them by the folder)."""
    tree = fill(tmp_path, MULTIARCH, "usr/lib32")
    for folder in (MULTIARCH, "usr/lib32"):
        for name in ("libcuda.so.1", "libGLX_nvidia.so.0"):
            (tree / folder / name).write_text("image's")
    assert look(tree).cover == (
        (f"/{MULTIARCH}/libcuda.so.1", WIDE.name),
        ("/usr/lib32/libGLX_nvidia.so.0", NARROW.name),
    )


def test_a_folder_that_leads_out_of_the_root(tmp_path: Path) -> None:
    """It is looked for inside; the host's own 32-bit libraries are none of the image."""
    tree = fill(tmp_path, MULTIARCH)
    (tree / "usr/lib32").symlink_to("../../../../../../../usr/lib32")
    assert look(tree).libdir32 == ""
