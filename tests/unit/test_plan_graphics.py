"""What graphics, display and compat32 add to a container: descriptions, links, a profile, 32-bit libraries."""

import json

import pytest

from gpuhook import plan
from gpuhook.model import Bind, DriverFile, FileId, Gpu, Image, Link, LoaderCache, Mig, Plan, Record, Write, replace

ID = FileId(1, 2, 3, 4, 5)
V = "535.161.08"
LIB, LIB32 = "/usr/lib/x86_64-linux-gnu", "/usr/lib/i386-linux-gnu"


def library(name: str, soname: str, capability: str, *links: str) -> DriverFile:
    return DriverFile(f"/host/{name}.so.{V}", "library", capability, f"{name}.so.{V}", ID, soname, (soname, *links), 64)


def narrow(item: DriverFile) -> DriverFile:
    return replace(item, path=item.path.replace("/host", "/host32"), bits=32)


def datum(target: str, capability: str = "graphics", **more: object) -> DriverFile:
    file = DriverFile(f"/host{target}", "data", capability, target.rpartition("/")[2], ID, target=target)
    return replace(file, **more)


CUDA = library("libcuda", "libcuda.so.1", "compute")
ML = library("libnvidia-ml", "libnvidia-ml.so.1", "utility")
ALLOCATOR = library("libnvidia-allocator", "libnvidia-allocator.so.1", "compute+graphics")
GLX = library("libGLX_nvidia", "libGLX_nvidia.so.0", "graphics", "libGLX_indirect.so.0")
NEW = library("libnvidia-new", "libnvidia-new.so.1", "*")
WIDE = (CUDA, ML, ALLOCATOR, GLX, NEW)
ICD = datum("/etc/vulkan/icd.d/nvidia_icd.json")
ICD32 = datum("/etc/vulkan/icd.d/nvidia_icd.i686.json", bits=32)
CL = datum("/etc/OpenCL/vendors/nvidia.icd", "compute")
XDRV = datum("/usr/lib/xorg/modules/drivers/nvidia_drv.so", "display")
XGLX = datum(
    f"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{V}", "display", links=("libglxserver_nvidia.so",)
)
FILES = (*WIDE, *map(narrow, WIDE), ICD, ICD32, CL, XDRV, XGLX)
RECORD = Record("r1", V, (12, 2), False, "x86-64", (), FILES)
DEBIAN = Image("glibc", "x86-64", LIB, libdir32=LIB32)
FEDORA = Image("glibc", "x86-64", "/usr/lib64", libdir32="/usr/lib")


def gpu(minor: int) -> Gpu:
    return Gpu(0, f"GPU-{minor}", minor, "00000000:0b:00.0", "", "", (9, 0))


SELECTED: dict[str, tuple[tuple[str, ...], set[DriverFile]]] = {
    "compute has the OpenCL description": (("compute",), {CUDA, ALLOCATOR, NEW, CL}),
    "utility has none": (("utility",), {ML, NEW}),
    "graphics brings what it shares with compute": (("graphics",), {GLX, ALLOCATOR, NEW, ICD}),
    "display brings graphics and X": (("display",), {GLX, ALLOCATOR, NEW, ICD, XDRV, XGLX}),
    "video brings compute": (("video",), {CUDA, ALLOCATOR, NEW, CL}),
    "compat32 alone": (("compat32",), {NEW, narrow(NEW)}),
    "compat32 with graphics": (
        ("graphics", "compat32"),
        {GLX, ALLOCATOR, NEW, ICD, narrow(GLX), narrow(ALLOCATOR), narrow(NEW), ICD32},
    ),
    "compat32 with compute": (
        ("compute", "compat32"),
        {CUDA, ALLOCATOR, NEW, CL, narrow(CUDA), narrow(ALLOCATOR), narrow(NEW)},
    ),
}


@pytest.mark.parametrize(("capabilities", "expected"), SELECTED.values(), ids=SELECTED)
def test_select(capabilities: tuple[str, ...], expected: set[DriverFile]) -> None:
    assert set(plan.select(RECORD, capabilities)) == expected


def made(image: Image, files: tuple[DriverFile, ...]) -> Plan:
    return plan.make(RECORD, files, image)


def binds(steps: Plan) -> dict[str, str]:
    return {step.target: step.source for step in steps.steps if isinstance(step, Bind)}


def links(steps: Plan) -> dict[str, str]:
    return {step.target: step.text for step in steps.steps if isinstance(step, Link)}


@pytest.mark.parametrize("image", [DEBIAN, FEDORA], ids=["Debian", "Fedora"])
def test_32_bit_libraries_go_where_the_image_has_its_own(image: Image) -> None:
    steps = made(image, (GLX, narrow(GLX)))
    name = f"libGLX_nvidia.so.{V}"
    assert binds(steps) == {
        f"{image.libdir}/{name}": f"/host/{name}",
        f"{image.libdir32}/{name}": f"/host32/{name}",
    }
    assert links(steps)[f"{image.libdir32}/libGLX_nvidia.so.0"] == name
    assert links(steps)[f"{image.libdir32}/libGLX_indirect.so.0"] == "libGLX_nvidia.so.0"


def test_an_image_without_a_32_bit_side_gets_nothing_for_it() -> None:
    image = replace(DEBIAN, libdir32="")
    assert made(image, (GLX, narrow(GLX), ICD, ICD32)) == made(image, (GLX, ICD))


def test_each_copy_of_the_image_is_covered_by_the_library_of_its_bits() -> None:
    name = f"libGLX_nvidia.so.{V}"
    image = replace(
        DEBIAN, cover=((f"{LIB}/libGLX_nvidia.so.0", name), (f"{LIB32}/libGLX_nvidia.so.0", name), ("/opt/x", name))
    )
    steps = made(image, (GLX, narrow(GLX)))
    assert binds(steps)[f"{LIB}/libGLX_nvidia.so.0"] == f"/host/{name}"
    assert binds(steps)[f"{LIB32}/libGLX_nvidia.so.0"] == f"/host32/{name}"
    assert binds(steps)["/opt/x"] == f"/host/{name}"


def test_the_gbm_back_end_is_a_link_that_comes_with_graphics() -> None:
    """Not with compute, which has the allocator too."""
    found = links(made(DEBIAN, (ALLOCATOR, GLX, narrow(ALLOCATOR))))
    assert found[f"{LIB}/gbm/nvidia-drm_gbm.so"] == "../libnvidia-allocator.so.1"
    assert found[f"{LIB32}/gbm/nvidia-drm_gbm.so"] == "../libnvidia-allocator.so.1"
    assert not any("gbm" in target for target in links(made(DEBIAN, (ALLOCATOR, CUDA))))


def test_data_goes_to_its_place_and_never_stops_a_start() -> None:
    steps = made(DEBIAN, (ICD, CL, XDRV, XGLX)).steps
    assert {step.target for step in steps if isinstance(step, Bind)} == {item.target for item in (ICD, CL, XDRV, XGLX)}
    assert all(step.optional for step in steps if not isinstance(step, LoaderCache))


@pytest.mark.parametrize(("image", "folder"), [(DEBIAN, "/usr/lib/xorg"), (FEDORA, "/usr/lib64/xorg")])
def test_x_modules_go_where_the_images_x_server_looks(image: Image, folder: str) -> None:
    steps = made(image, (XDRV, XGLX))
    assert list(binds(steps)) == [
        f"{folder}/modules/drivers/nvidia_drv.so",
        f"{folder}/modules/extensions/libglxserver_nvidia.so.{V}",
    ]
    assert links(steps) == {f"{folder}/modules/extensions/libglxserver_nvidia.so": f"libglxserver_nvidia.so.{V}"}


def test_r149_a_description_with_places_of_the_host_is_written_instead() -> None:
    steps = made(DEBIAN, (replace(ICD, text="{}\n"),)).steps
    assert [(step.target, step.text) for step in steps if isinstance(step, Write)] == [(ICD.target, "{}\n")]
    assert not any(isinstance(step, Bind) for step in steps)


@pytest.mark.parametrize(
    ("minors", "mask"),
    [((), 0), ((0,), 1), ((1, 3), 10), ((63,), 1 << 63), ((64, -1, 2), 4)],
    ids=["none", "first", "two", "last", "no bit for it"],
)
def test_the_profile_has_a_bit_for_each_granted_minor(minors: tuple[int, ...], mask: int) -> None:
    step = plan.profile(tuple(map(gpu, minors)))
    document = json.loads(step.text)
    assert document["profiles"] == [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", mask]}]
    assert document["rules"] == [{"pattern": [], "profile": "_container_"}]
    assert (step.target, step.optional) == (
        "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf",
        True,
    )


def test_the_profile_of_a_mig_device_has_its_gpus_bit() -> None:
    divided = replace(gpu(2), mig=True, migs=(Mig(0, "MIG-1", 1, 0),))
    assert '"EGLVisibleDGPUDevices", 4' in plan.profile((divided,)).text


@pytest.mark.parametrize(
    ("files", "capabilities", "warned"),
    [
        (WIDE, ("graphics",), True),
        ((), ("display",), True),
        ((*WIDE, CL), ("graphics", "compute"), True),
        ((*WIDE, ICD), ("graphics",), False),
        (WIDE, ("compute", "utility"), False),
    ],
    ids=["no description", "no graphics at all", "OpenCL's is none", "there is one", "not asked for"],
)
def test_r151_graphics_without_a_description_on_the_host(
    files: tuple[DriverFile, ...], capabilities: tuple[str, ...], warned: bool
) -> None:
    found = plan.lacking(replace(RECORD, files=files), capabilities)
    assert bool(found) is warned
    if warned:
        assert V in found[0]
        assert "nvidia-vulkan-icd" in found[0]


def test_mounts_come_before_links_and_files_and_the_cache_is_last() -> None:
    more = (plan.profile((gpu(0),)),)
    files = (replace(ICD, text="{}"), GLX, XGLX, CL)
    kinds = [type(step).__name__ for step in plan.make(RECORD, files, DEBIAN, ("/run/a",), more=more).steps]
    first = [number for number, kind in enumerate(kinds) if kind in ("Link", "Write")]
    assert kinds[: first[0]] == ["Bind"] * first[0]
    assert kinds[first[-1] + 1 :] == ["LoaderCache"]
