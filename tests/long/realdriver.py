"""`scripts/test --long realdriver`: the user space of real drivers, as Debian packages it, unpacked by realdriver.sh.

What is expected is derived from what the packages hold, package by package; gpuhook's own tables say nothing here.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from gpuhook import sim
from gpuhook.config import defaults
from gpuhook.driver.discover import discover
from gpuhook.model import replace
from tests import bundles
from tests.conftest import World
from tests.images import BUILD, CHECKOUT, MULTIARCH
from tests.long.report import Report

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]

# By capability the packages whose files a container with it gets.
PACKAGES = {
    "utility": "libnvidia-ml1 libnvidia-cfg1 nvidia-smi nvidia-persistenced nvidia-driver-bin",
    "compute": "libcuda1 libcudadebugger1 libnvidia-ptxjitcompiler1 libnvidia-nvvm4 libnvidia-pkcs11-openssl3"
    " nvidia-opencl-icd nvidia-opencl-common nvidia-cuda-mps",
    "compute+graphics": "libnvidia-allocator1",
    "video": "libnvcuvid1 libnvidia-encode1 libnvidia-opticalflow1 nvidia-vdpau-driver",
    "graphics": "libnvidia-fbc1 libnvoptix1 libnvidia-rtcore libnvidia-glcore libnvidia-eglcore libnvidia-glvkspirv"
    " libnvidia-api1 libglx-nvidia0 libegl-nvidia0 libgles-nvidia1 libgles-nvidia2 nvidia-vulkan-icd nvidia-egl-icd"
    " nvidia-vulkan-common nvidia-egl-common libnvidia-egl-gbm1 libnvidia-egl-wayland1 nvidia-xconfig",
    "display": "xserver-xorg-video-nvidia",
    "ngx": "libnvidia-ngx1",
    "*": "firmware-nvidia-gsp",
}
# Some of the driver's, and of others, that no container gets: loaders of OpenCL and OpenGL, Mesa, the host's daemons.
FOREIGN = (
    "nvidia-alternative glx-alternative-nvidia nvidia-libopencl1 ocl-icd-libopencl1 nvidia-powerd nvidia-modprobe"
    " libegl-mesa0 libglvnd0 libegl1 libgl1 libglx0 libgles2 libopengl0 libvdpau1"
)
NARROW = (
    "libcuda1:i386 libnvidia-ml1:i386 libnvidia-ptxjitcompiler1:i386 libnvcuvid1:i386 libglx-nvidia0:i386"
    " libnvidia-glcore:i386 nvidia-vdpau-driver:i386"
)
SUITES = {
    "bookworm": {"*": PACKAGES["*"]},
    "trixie": {"*": PACKAGES["*"], "compute+graphics": f"{PACKAGES['compute+graphics']} libnvidia-gpucomp"},
}
# Files that are for another capability than the rest of their package.
OTHERWISE = {"*/nvidia-application-profiles-*-rc": "graphics"}
# What no container has a use for.
USELESS = {
    "/usr/share/doc/*": "documentation",
    "/usr/share/bug/*": "for Debian's reportbug",
    "/usr/share/man/*": "manual pages",
    "*.1.gz": "manual pages",
    "/usr/share/lintian/*": "for Debian's lintian",
    "*/nvidia-application-profiles-*-key-documentation": "documentation",
    "*/nvidia-bug-report.sh": "it asks the host's kernel log and packages",
    "/etc/init.d/*": "starts the host's daemon",
    "/usr/lib/systemd/*": "starts the host's daemon",
    "/usr/share/nvidia/rim/*": "reference measurements of firmware, for who attests the host",
    "*/nvidia/wine/*": "libraries of Windows programs; Proton and Wine bring their own place for them",
    "/usr/lib/nvidia/current/nvidia.ids": "names of GPUs for the host's tools",
}
_LINE = re.compile(r"(?P<kind>[-dl])\S+ \S+ +\d+ \S+ \S+ \.(?P<path>/.*?)(?: -> .*)?")


@dataclass(frozen=True)
class Real:
    """A real driver: the root that it lies in, its version, and the files of each package."""

    root: Path
    version: str
    files: dict[str, frozenset[str]]

    def of(self, packages: str) -> Iterator[str]:
        """The files of some packages, paths as they are below the root, whose /lib is /usr/lib."""
        for name in packages.split():
            for path in self.files.get(name, ()):
                yield f"/usr{path}" if path.startswith(("/lib/", "/bin/", "/sbin/")) else path


@pytest.fixture(scope="module", params=SUITES)
def real(request: pytest.FixtureRequest) -> Real:
    """A driver of each release of Debian, unpacked when it is not there."""
    wide = {**PACKAGES, **SUITES[request.param]}
    names = " ".join([*wide.values(), FOREIGN, NARROW]).split()
    program = CHECKOUT / "tests/realdriver.sh"
    done = subprocess.run([program, request.param, *names], stdout=subprocess.PIPE, text=True, check=True)
    folder = Path(done.stdout.strip())
    files = {}
    for name in names:
        lines = (folder / "packages" / name).read_text().splitlines()
        found = [_LINE.fullmatch(line) for line in lines]
        assert all(found), f"dpkg-deb says of {name} what this test does not understand"
        files[name] = frozenset(line["path"] for line in found if line and line["kind"] == "-")
    (library,) = (path for path in files["libcuda1"] if "/libcuda.so." in path)
    return Real(folder / "root", library.partition(".so.")[2], files)


def expected(real: Real) -> dict[str, tuple[str, int]]:
    """The files that discovery has to find, by their paths: the capability, and 32 for what only such programs use."""
    suite = SUITES[real.root.parent.name]
    found = {}
    for capability, packages in {**PACKAGES, **suite}.items():
        for path in real.of(packages):
            if not any(fnmatchcase(path, pattern) for pattern in USELESS):
                words = [word for pattern, word in OTHERWISE.items() if fnmatchcase(path, pattern)]
                found[path] = (words[0] if words else capability, 64)
    for narrow in NARROW.split():
        (capability,) = (
            word for word, packages in PACKAGES.items() if narrow.removesuffix(":i386") in packages.split()
        )
        for path in real.of(narrow):
            if not any(fnmatchcase(path, pattern) for pattern in USELESS):
                found[path] = (capability, 32)
    return found


def test_every_file_is_found_and_no_other(real: Real, report: Report) -> None:
    """In the right capability, from the packages' own folders, with Debian's links of alternatives around them."""
    found = discover(replace(defaults(), driver_root=str(real.root)), real.version)
    wanted = expected(real)

    assert {file.path: (file.capability, 32 if file.bits == 32 else 64) for file in found.files} == wanted
    assert not [path for path in real.of(FOREIGN) if path in wanted]
    report({"driver": real.version, "files": len(wanted), "left_out": len(found.left_out)})


def test_each_has_its_place(real: Real) -> None:
    """Descriptions and the like go where programs look for them, under the names that they have on any host."""
    found = discover(replace(defaults(), driver_root=str(real.root)), real.version)
    places = {file.target for file in found.files if file.kind == "data"}

    assert {
        "/etc/OpenCL/vendors/nvidia.icd",
        "/etc/vulkan/icd.d/nvidia_icd.json",
        "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
        "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
        "/usr/share/nvidia/nvoptix.bin",
        f"/usr/share/nvidia/nvidia-application-profiles-{real.version}-rc",
        "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
        "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
        f"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{real.version}",
    } == places


# --- in containers ------------------------------------------------------------------------------------------------


@pytest.fixture
def host(real: Real, folder: Path) -> Iterator[Path]:
    """What the kernel shows of this driver, simulated, and beside it `driver`, the real files."""
    sim.create(folder / "host", sim.SimOptions(driver=real.version, cuda="12.2", layout="debian"))
    copy = Path(tempfile.mkdtemp(prefix=".driver-", dir=BUILD / "realdriver"))
    copy.chmod(0o755)
    try:
        subprocess.run(["cp", "-alT", real.root, copy], check=True)
        (folder / "host/driver").symlink_to(copy)
        yield folder / "host"
    finally:
        shutil.rmtree(copy)


def use(world: World, host: Path) -> None:
    """The real files, the simulated kernel."""
    driver = (host / "driver").resolve()
    world.configure(
        f'[driver]\ndriver-root = "{driver}"\ndev-root = "{host}"\nproc-root = "{host}"\nsys-root = "{host}"\n'
    )


def library(root: Path, name: str) -> Path:
    """The file behind a soname in Debian's folder."""
    return (root / f"usr/lib/{MULTIARCH}/nvidia/current" / name).resolve()


# Those of compute and video that need no more of the C library than the small images have, and no X library.
SONAMES = (
    "libcuda.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-opencl.so.1",
    "libnvidia-cfg.so.1",
    "libnvcuvid.so.1",
    "libnvidia-encode.so.1",
    "libnvidia-opticalflow.so.1",
)


@pytest.mark.parametrize("image", ["glibc", "lib64"])
def test_programs_load_the_real_libraries(
    real: Real, host: Path, world: World, shim: bundles.Runtime, new_bundle: NewBundle, image: str, report: Report
) -> None:
    """By soname, with the simulated NVML in the real one's place: what it says is needed before a GPU is given."""
    nvml = library(host / "driver", "libnvidia-ml.so.1")
    nvml.unlink()  # a hard link to the kept one
    shutil.copy(library(host, "libnvidia-ml.so.1"), nvml)
    shutil.copytree(host / "sim", host / "driver/sim")  # its answers
    use(world, host)
    bundle = new_bundle(
        image,
        env=["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"],
        args=["opendev", "dlopen:libcuda.so.1:cuInit", *(f"dlopen:{name}" for name in SONAMES), "/dev/nvidia0"],
    )

    done = shim.run(bundle)

    assert done.out.splitlines() == [
        "dlopen:libcuda.so.1:cuInit: ok",
        *(f"dlopen:{name}: ok" for name in SONAMES),
        "/dev/nvidia0: ok",
    ]
    assert (done.code, done.err) == (0, "")
    report({"driver": real.version, "libraries": len(SONAMES)})


SILENT = {
    "not loaded": ("not-loaded", r"the NVIDIA kernel module is not loaded: .* libraries of driver \S+ are installed"),
    "no node": ("none", r"NVML says that the kernel module is not loaded: Driver Not Loaded"),
}


@pytest.mark.parametrize(("fault", "reason"), SILENT.values(), ids=SILENT)
@pytest.mark.parametrize("asked", ["none", "all"])
def test_the_real_nvml_without_a_driver(
    real: Real,
    host: Path,
    world: World,
    shim: bundles.Runtime,
    new_bundle: NewBundle,
    asked: str,
    fault: str,
    reason: str,
) -> None:
    """Who asks for no GPU is started, and the real nvidia-smi says what is wrong; `all` is refused, with the fix."""
    sim.set_fault(host, fault)
    shutil.rmtree(host / "dev")
    (host / "dev").mkdir()
    (host / "proc/devices").write_text("Character devices:\n  1 mem\n 10 misc\n")
    use(world, host)
    bundle = new_bundle(env=[f"NVIDIA_VISIBLE_DEVICES={asked}"], args=["nvidia-smi"])
    spec = bundle.spec
    # as root NVML makes the node that it misses, is not let open it, and calls that an unknown error
    spec["process"]["user"] = {"uid": 65534, "gid": 65534}
    (bundle.path / "config.json").write_text(json.dumps(spec))

    done = shim.run(bundle)

    if asked == "none":
        assert "couldn't communicate with the NVIDIA driver" in done.out
        assert done.err == ""
        assert "driver-not-loaded" in world.log
    else:
        assert re.search(rf"gpuhook: {reason} \[driver-not-loaded\]\n  fix: run `modprobe nvidia`", done.err)
        assert done.out == ""
    assert done.code != 0
