"""The files of a simulated driver that are no libraries or programs, its 32-bit libraries, and its DRM nodes.

Contents are those of NVIDIA's own files as far as anyone reads them: descriptions name the driver's libraries.
"""

import json
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from gpuhook.sim.layouts import Layout
from gpuhook.sim.libraries import Library
from gpuhook.sim.state import State

_RENDER = 128  # the number of the first render node
_WIDE_ALONE = ("libcudadebugger", "libnvidia-pkcs11-openssl3", "libnvidia-rtcore", "libnvoptix", "libnvidia-ngx")


def write(root: Path, layout: Layout, driver: str) -> None:
    """Write descriptions, data and X modules of driver `driver` into its root, where the layout has them."""
    libraries = layout.libraries.format(driver=driver)
    above = libraries.rpartition("/")[0]
    share, vendors, modules = f"{above}/share", f"{above}/etc/OpenCL/vendors", f"{libraries}/xorg/modules"
    if libraries.startswith("usr/lib"):
        share, vendors = "usr/share", "etc/OpenCL/vendors"
        modules = "usr/lib64/xorg/modules" if libraries.startswith("usr/lib64") else "usr/lib/xorg/modules"
    elif libraries.startswith("home/"):  # GKE's has no `share`
        share, vendors = above, f"{above}/OpenCL/vendors"
    place = f"/{libraries}/" if libraries.startswith("nix/store/") else ""
    files = {
        f"{vendors}/nvidia.icd": f"{place}libnvidia-opencl.so.1\n",
        f"{share}/vulkan/icd.d/nvidia_icd.json": _icd(f"{place}libGLX_nvidia.so.0", api_version="1.4.312"),
        f"{share}/vulkan/implicit_layer.d/nvidia_layers.json": json.dumps(
            {
                "file_format_version": "1.0.0",
                "layer": {
                    "name": "VK_LAYER_NV_optimus",
                    "type": "INSTANCE",
                    "library_path": f"{place}libGLX_nvidia.so.0",
                    "api_version": "1.4.312",
                },
            },
            indent=4,
        ),
        f"{share}/glvnd/egl_vendor.d/10_nvidia.json": _icd(f"{place}libEGL_nvidia.so.0"),
        f"{share}/egl/egl_external_platform.d/10_nvidia_wayland.json": _icd(f"{place}libnvidia-egl-wayland.so.1"),
        f"{share}/egl/egl_external_platform.d/15_nvidia_gbm.json": _icd(f"{place}libnvidia-egl-gbm.so.1"),
        f"{share}/nvidia/nvoptix.bin": f"OptiX data of {driver}, simulated by gpuhook\n",
        f"{share}/nvidia/nvidia-application-profiles-{driver}-rc": '{"rules": [], "profiles": []}\n',
        f"{share}/X11/xorg.conf.d/nvidia-drm-outputclass.conf": 'Section "OutputClass"\n    Driver "nvidia"\n',
        # what is not the driver's lies beside it
        "usr/share/vulkan/icd.d/radeon_icd.json": _icd("/usr/lib/libvulkan_radeon.so", api_version="1.4.305"),
        "usr/share/glvnd/egl_vendor.d/50_mesa.json": _icd("libEGL_mesa.so.0"),
    }
    files[f"{modules}/drivers/nvidia_drv.so"] = f"X driver of {driver}\n"
    files[f"{modules}/extensions/libglxserver_nvidia.so.{driver}"] = f"GLX module of {driver}\n"
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / modules / "extensions/libglxserver_nvidia.so").symlink_to(f"libglxserver_nvidia.so.{driver}")


def _icd(library: str, **more: str) -> str:
    document = {"file_format_version": "1.0.1", "ICD": {"library_path": library, **more}}
    return json.dumps(document, indent=4) + "\n"


def write_narrow(root: Path, directory: str, libraries: Iterable[Library], driver: str) -> None:
    """Write 32-bit builds of the libraries into `directory`: shared objects that a loader accepts and nothing more."""
    for library in libraries:
        if library.name in _WIDE_ALONE:
            continue
        target = root / directory / library.file(driver)
        target.parent.mkdir(parents=True, exist_ok=True)
        soname = library.soname_text(driver)
        target.write_bytes(shared_object(soname))
        if soname != target.name:
            (target.parent / soname).symlink_to(target.name)


def shared_object(soname: str) -> bytes:
    """An i386 ELF shared object with this soname and nothing else (System V ABI, i386 supplement)."""
    strings = b"\0" + soname.encode() + b"\0"
    headers = 52 + 2 * 32
    table = headers + len(strings) + (-len(strings) % 4)
    dynamic = b"".join(
        struct.pack("<iI", tag, item)
        # DT_STRTAB, DT_STRSZ, DT_SONAME, DT_HASH, DT_SYMTAB, DT_SYMENT, DT_NULL
        for tag, item in (
            (5, headers),
            (10, len(strings)),
            (14, 1),
            (4, table + 7 * 8),
            (6, table + 7 * 8 + 16),
            (11, 16),
            (0, 0),
        )
    )
    end = struct.pack("<4I", 1, 1, 0, 0) + bytes(16)  # a hash table of one bucket, and the null symbol
    size = table + len(dynamic) + len(end)
    ident = b"\x7fELF\x01\x01\x01" + bytes(9)
    head = ident + struct.pack("<HHIIIIIHHHHHH", 3, 3, 1, 0, 52, 0, 0, 52, 32, 2, 40, 0, 0)
    load = struct.pack("<8I", 1, 0, 0, 0, size, size, 4, 0x1000)
    dyn = struct.pack("<8I", 2, table, table, table, len(dynamic), len(dynamic), 4, 4)
    return head + load + dyn + strings + bytes(table - headers - len(strings)) + dynamic + end


def write_drm(root: Path, state: State) -> None:
    """Make DRM nodes for each GPU, of the number of its own stand-in, and say in sys whose they are.

    card0 is another vendor's, as on a server with graphics on its board, so a card's number is never the GPU's index.
    """
    directory = root / "dev/dri"
    directory.mkdir()
    directory.chmod(0o755)
    first = root / "dev/nvidiactl"
    owners = [("0000:01:00.0", "card0", first.stat().st_rdev)]
    for index, gpu in enumerate(state.gpus):
        domain, _, rest = gpu.bus_id.partition(":")
        address = f"{int(domain, 16):04x}:{rest}"
        number = (root / f"dev/nvidia{gpu.minor}").stat().st_rdev
        owners += [(address, f"card{index + 1}", number), (address, f"renderD{_RENDER + index}", number)]
    for address, name, number in owners:
        os.mknod(directory / name, stat.S_IFCHR | 0o666, number)
        (directory / name).chmod(0o666)  # whatever the umask
        folder = root / f"sys/bus/pci/devices/{address}/drm/{name}"
        folder.mkdir(parents=True)
        (folder / "dev").write_text(f"{os.major(number)}:{os.minor(number)}\n")
