"""What a container gets is a pure function of the record, the request and the image."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuhook import plan
from gpuhook.errors import GpuhookError
from gpuhook.image import look
from gpuhook.model import Bind, DriverFile, FileId, Image, Link, LoaderCache, Plan, Record, replace
from gpuhook.rootfs import Root
from tests.images import MULTIARCH

ID = FileId(1, 2, 3, 4, 5)
HOST = "/usr/lib/x86_64-linux-gnu"


def library(name: str, soname: str, capability: str = "compute", *links: str, bits: int = 64) -> DriverFile:
    return DriverFile(f"{HOST}/{name}", "library", capability, name, ID, soname, (soname, *links), bits)


CUDA = library("libcuda.so.535.161.08", "libcuda.so.1", "compute", "libcuda.so")
CUDA32 = replace(CUDA, path="/usr/lib32/libcuda.so.535.161.08", bits=32)
ML = library("libnvidia-ml.so.535.161.08", "libnvidia-ml.so.1", "utility")
GL = library("libGLX_nvidia.so.535.161.08", "libGLX_nvidia.so.0", "graphics")
ENCODE = library("libnvidia-encode.so.535.161.08", "libnvidia-encode.so.1", "video")
NEW = library("libnvidia-unknown.so.535.161.08", "libnvidia-unknown.so.535.161.08", "*")
SMI = DriverFile("/usr/lib/nvidia/current/nvidia-smi", "binary", "utility", "nvidia-smi", ID)
FIRMWARE = "/lib/firmware/nvidia/535.161.08/gsp_tu10x.bin"
GSP = DriverFile(f"/nix/store/x{FIRMWARE}", "firmware", "*", "gsp_tu10x.bin", ID, target=FIRMWARE)
FILES = (CUDA, CUDA32, ML, GL, ENCODE, NEW, SMI, GSP)
RECORD = Record("r1", "535.161.08", (12, 2), False, "x86-64", (), FILES)
DEBIAN = Image("glibc", "x86-64", "/usr/lib/x86_64-linux-gnu")
FEDORA = Image("glibc", "x86-64", "/usr/lib64")

SELECTED = {
    "nothing but what everybody gets": ((), {NEW, GSP}),
    "utility": (("utility",), {NEW, GSP, ML, SMI}),
    "compute": (("compute",), {NEW, GSP, CUDA}),
    "both": (("compute", "utility"), {NEW, GSP, CUDA, ML, SMI}),
    "video brings compute": (("video",), {NEW, GSP, CUDA, ENCODE}),
    "display brings graphics": (("display",), {NEW, GSP, GL}),
    "what has no files": (("ngx",), {NEW, GSP}),
}


@pytest.mark.parametrize(("capabilities", "expected"), SELECTED.values(), ids=SELECTED)
def test_select(capabilities: tuple[str, ...], expected: set[DriverFile]) -> None:
    assert set(plan.select(RECORD, capabilities)) == expected


@pytest.mark.parametrize(
    ("words", "missing", "soname", "named"),
    [
        (("compute",), CUDA, "libcuda.so.1", "compute"),
        (("video", "utility"), CUDA, "libcuda.so.1", "video"),
        (("compute", "utility", "video"), CUDA, "libcuda.so.1", "compute and video"),
        (("utility",), ML, "libnvidia-ml.so.1", "utility"),
    ],
    ids=["compute", "video", "both", "utility"],
)
def test_a_capability_that_cannot_work_is_refused(
    words: tuple[str, ...], missing: DriverFile, soname: str, named: str
) -> None:
    """By the words that were asked for. The 32-bit library does not make up for the missing one."""
    record = replace(RECORD, files=tuple(item for item in FILES if item != missing))
    with pytest.raises(GpuhookError) as caught:
        plan.select(record, words)
    assert caught.value.reference == "library-missing"
    assert f"the capability {named} needs" in caught.value.message
    assert f"leave {named} out" in caught.value.hint
    assert soname in caught.value.message
    assert "535.161.08" in caught.value.message


def made(image: Image = DEBIAN, files: tuple[DriverFile, ...] = (CUDA, ML, SMI), **more: Any) -> Plan:
    return plan.make(RECORD, files, image, **more)


def targets(steps: Plan, kind: str) -> dict[str, str]:
    return {step.target: step.source for step in steps.steps if isinstance(step, Bind) and step.kind == kind}


def links(steps: Plan) -> dict[str, str]:
    return {step.target: step.text for step in steps.steps if isinstance(step, Link)}


def cache(steps: Plan) -> LoaderCache | None:
    return next((step for step in steps.steps if isinstance(step, LoaderCache)), None)


@pytest.mark.parametrize("image", [DEBIAN, FEDORA], ids=["multiarch", "lib64"])
def test_libraries_go_where_the_image_has_its_own(image: Image) -> None:
    assert targets(made(image), "library") == {f"{image.libdir}/{item.name}": item.path for item in (CUDA, ML)}


def test_binaries_go_to_usr_bin_and_firmware_to_its_place() -> None:
    steps = made(files=(SMI, GSP))
    assert targets(steps, "binary") == {"/usr/bin/nvidia-smi": SMI.path}
    assert targets(steps, "firmware") == {FIRMWARE: GSP.path}
    assert [step.optional for step in steps.steps if isinstance(step, Bind)] == [False, True]


def test_links_lead_from_the_name_to_the_file() -> None:
    assert links(made(FEDORA)) == {
        "/usr/lib64/libcuda.so.1": "libcuda.so.535.161.08",
        "/usr/lib64/libcuda.so": "libcuda.so.1",
        "/usr/lib64/libnvidia-ml.so.1": "libnvidia-ml.so.535.161.08",
    }


def test_a_library_whose_soname_is_its_file_gets_no_link_to_itself() -> None:
    assert links(made(files=(NEW,))) == {}


def test_sockets_and_directories_are_optional() -> None:
    steps = made(files=(), sockets=("/run/a",), directories=("/tmp/b",))
    found = [(step.target, step.kind, step.optional) for step in steps.steps if isinstance(step, Bind)]
    assert found == [("/run/a", "socket", True), ("/tmp/b", "directory", True)]


def test_the_images_own_copies_are_covered_and_not_linked() -> None:
    image = replace(
        DEBIAN,
        cover=((f"{HOST}/libcuda.so.1", CUDA.name), ("/opt/x/libcuda.so.1", CUDA.name), ("/opt/x/other", "absent")),
    )
    steps = made(image)
    assert targets(steps, "library")[f"{HOST}/libcuda.so.1"] == CUDA.path
    assert targets(steps, "library")["/opt/x/libcuda.so.1"] == CUDA.path
    assert "/opt/x/other" not in targets(steps, "library")
    assert f"{HOST}/libcuda.so.1" not in links(steps)
    assert links(steps)[f"{HOST}/libcuda.so"] == "libcuda.so.1"


def test_no_target_is_mounted_twice(tmp_path: Path) -> None:
    """The image has files of our very names, versions and links: one mount for each, no link in a mount's place."""
    libdir = tmp_path / "usr/lib/x86_64-linux-gnu"
    (libdir / "glibc-hwcaps/x86-64-v3").mkdir(parents=True)
    for name in (
        CUDA.name,
        "libcuda.so.1",
        "libcuda.so",
        "libcuda.so.470.1",
        ML.name,
        "glibc-hwcaps/x86-64-v3/libcuda.so.1",
    ):
        (libdir / name).write_text("image's")
    shutil.copy(f"/usr/lib/{MULTIARCH}/libc.so.6", libdir / "libc.so.6")
    files = (CUDA, ML, SMI)
    steps = plan.make(RECORD, files, look(Root.at(str(tmp_path)), files, compat=False)).steps
    taken = [step.target for step in steps if isinstance(step, Bind | Link)]
    assert len(taken) == len(set(taken))
    for path in libdir.rglob("libcuda*"):
        assert f"/{path.relative_to(tmp_path)}" in taken


def test_the_cache_names_what_the_loader_looks_for() -> None:
    found = cache(made())
    assert found is not None
    assert dict(found.entries) == {
        "libcuda.so.1": f"{HOST}/libcuda.so.1",
        "libcuda.so": f"{HOST}/libcuda.so",
        "libnvidia-ml.so.1": f"{HOST}/libnvidia-ml.so.1",
    }
    assert found.directories == (HOST,)


COMPAT = replace(
    DEBIAN, compat="/usr/local/cuda-12.4/compat", compat_version="550.54.14", compat_names=("libcuda.so.1",)
)


def test_newer_compatibility_libraries_go_first() -> None:
    found = cache(made(COMPAT))
    assert found is not None
    assert dict(found.entries)["libcuda.so.1"] == "/usr/local/cuda-12.4/compat/libcuda.so.1"
    assert dict(found.entries)["libnvidia-ml.so.1"] == f"{HOST}/libnvidia-ml.so.1"
    assert found.directories == ("/usr/local/cuda-12.4/compat", HOST)
    assert "550.54.14" in found.reason
    assert made(COMPAT).warnings == ()


@pytest.mark.parametrize(
    "version", ["535.200.01", "535.161.08", "470.1.2", ""], ids=["same branch", "same", "older", "none"]
)
def test_older_compatibility_libraries_stay_unused(version: str) -> None:
    image = replace(COMPAT, compat_version=version)
    found = cache(made(image))
    assert found is not None
    assert found.directories == (HOST,)
    assert dict(found.entries)["libcuda.so.1"] == f"{HOST}/libcuda.so.1"
    assert "stay unused" in made(image).warnings[0]


def test_the_cache_has_the_32_bit_names_for_the_32_bit_loader() -> None:
    """Beside the 64-bit ones, not in their place; and none where the image has no 32-bit side."""
    narrow = "/usr/lib/i386-linux-gnu"
    found = cache(made(replace(DEBIAN, libdir32=narrow), (CUDA, CUDA32)))
    assert found is not None
    assert found.entries == tuple((name, f"{HOST}/{name}") for name in CUDA.links)
    assert found.entries32 == tuple((name, f"{narrow}/{name}") for name in CUDA.links)
    assert found.directories == (HOST, narrow)
    none = cache(made(DEBIAN, (CUDA, CUDA32)))
    assert none is not None
    assert (none.entries, none.entries32, none.directories) == (found.entries, (), (HOST,))


def test_compatibility_libraries_are_never_mounted() -> None:
    assert not any("compat" in step.target for step in made(COMPAT).steps if isinstance(step, Bind | Link))


WARNS = {
    "no loader": (Image("", "", "/usr/lib64"), "no dynamic loader", False),
    "musl": (Image("musl", "x86-64", "/usr/lib"), "musl", True),
}


@pytest.mark.parametrize(("image", "words", "cached"), WARNS.values(), ids=WARNS)
def test_warnings_of_images(image: Image, words: str, cached: bool) -> None:
    steps = made(image)
    assert words in steps.warnings[0]
    assert (cache(steps) is not None) is cached
    assert targets(steps, "library")


def test_an_image_of_another_machine_is_refused() -> None:
    with pytest.raises(GpuhookError) as caught:
        made(replace(DEBIAN, machine="aarch64"))
    assert caught.value.reference == "rootfs-architecture"
    assert "aarch64" in caught.value.message
    assert "x86-64" in caught.value.message


@pytest.mark.parametrize("machine", ["", "x86-64"])
def test_an_image_whose_machine_is_not_known_is_taken(machine: str) -> None:
    assert made(replace(DEBIAN, machine=machine)).steps


def test_mounts_come_before_links_and_the_cache_is_last() -> None:
    """A cache that names files must not be there before them."""
    steps = made(files=(CUDA, ML, SMI, GSP), sockets=("/run/a",)).steps
    kinds = [type(step).__name__ for step in steps]
    assert kinds == sorted(kinds, key=("Bind", "Link", "LoaderCache").index)
    assert kinds[-1] == "LoaderCache"


def test_each_step_says_why() -> None:
    steps = made(files=FILES[:1] + FILES[2:], sockets=("/run/a",), directories=("/tmp/b",)).steps
    assert all(step.reason for step in steps)


def test_the_same_in_gives_the_same_out() -> None:
    assert made(COMPAT) == made(COMPAT)
    assert made(COMPAT) != made(DEBIAN)
