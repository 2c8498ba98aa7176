"""Which capability each file of the driver belongs to: the small tables behind discovery.

Names of libraries are those before `.so`. A library of the loaded driver's version that is not here goes with every
capability (`*`), so that a new branch works before this table knows it. The sorting is that of NVIDIA's own container
tools, so that a list of NVIDIA_DRIVER_CAPABILITIES means the same here; but what the graphics libraries can't be
loaded without comes with them too (`compute+graphics`).
"""

from gpuhook.model import value

EVERY = "*"

_LIBRARIES = {
    "utility": "libnvidia-ml libnvidia-cfg libnvidia-nscq",
    "compute": "libcuda libcudadebugger libnvidia-opencl libnvidia-ptxjitcompiler libnvidia-fatbinaryloader"
    " libnvidia-compiler libnvidia-pkcs11 libnvidia-pkcs11-openssl3 libnvidia-nvvm libnvidia-nvvm70 libnvidia-tileiras",
    # the compiler of shaders and the allocator behind GBM
    "compute+graphics": "libnvidia-gpucomp libnvidia-allocator",
    "video": "libvdpau_nvidia libnvidia-encode libnvidia-opticalflow libnvcuvid",
    "graphics": "libnvidia-eglcore libnvidia-glcore libnvidia-tls libnvidia-glsi libnvidia-fbc libnvidia-ifr"
    " libnvidia-rtcore libnvoptix libGLX_nvidia libEGL_nvidia libGLESv2_nvidia libGLESv1_CM_nvidia"
    " libnvidia-glvkspirv libnvidia-cbl libnvidia-vulkan-producer libnvidia-egl-gbm libnvidia-egl-wayland"
    " libnvidia-egl-wayland2 libnvidia-egl-xcb libnvidia-egl-xlib libnvidia-api libnvidia-present libnvidia-vksc-core"
    " libGL libEGL libGLESv1_CM libGLESv2 libnvidia-gtk2 libnvidia-gtk3 libnvidia-wayland-client",
    "display": "libglxserver_nvidia",
    "ngx": "libnvidia-ngx",
}
_BY_STEM = {stem: capability for capability, stems in _LIBRARIES.items() for stem in stems.split()}

# Libraries that come with a driver and carry a version of their own, as patterns of the real file's name. One digit
# first: that of a driver has three, and then the file is another driver's. EGL's platforms are a family that each few
# branches add to.
COMPANIONS = (
    "libnvidia-nvvm70.so.[0-9]",
    "libnvidia-api.so.[0-9]",
    *("libnvidia-pkcs11*.so.[0-9]", "libnvidia-pkcs11*.so.[0-9].*"),
    *("libnvidia-egl-*.so.[0-9]", "libnvidia-egl-*.so.[0-9].*"),
)

# Links that programs load by, made whether or not this host has them. The host's may lead elsewhere, as Mesa's
# libGLX_indirect does.
LINKS = {
    "libcuda": ("libcuda.so",),
    "libnvidia-ml": ("libnvidia-ml.so",),
    "libnvcuvid": ("libnvcuvid.so",),
    "libnvidia-encode": ("libnvidia-encode.so",),
    "libnvidia-opticalflow": ("libnvidia-opticalflow.so",),
    "libGLX_nvidia": ("libGLX_indirect.so.0",),
}

BINARIES = {
    "nvidia-smi": "utility",
    "nvidia-debugdump": "utility",
    "nvidia-persistenced": "utility",
    "nv-fabricmanager": "utility",
    "nvidia-imex": "utility",
    "nvidia-imex-ctl": "utility",
    "nvidia-cuda-mps-control": "compute",
    "nvidia-cuda-mps-server": "compute",
    "nvidia-xconfig": "graphics",
}
BINARY_DIRS = (
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/bin",
    "/sbin",
    "/opt/bin",
    "/usr/local/nvidia/bin",
    "/run/current-system/sw/bin",
)

# Where the kernel looks for firmware (firmware_class), most special first; RELEASE is the running kernel's.
FIRMWARE_DIRS = (
    "/lib/firmware/updates/RELEASE",
    "/lib/firmware/updates",
    "/lib/firmware/RELEASE",
    "/lib/firmware",
    "/usr/lib/firmware",
)


@value
class Data:
    """Files that are no libraries and that programs look for at a fixed place.

    `folder` is where: below each of `bases`, and of the folders that the driver's libraries lie in (data.py). `names`
    are patterns of file names. `place` is the folder in the container. With `names_library` a file counts only if it
    names a library of the driver that was found, which is how the driver's are told from those of Mesa and others.
    """

    capability: str
    folder: str
    names: tuple[str, ...]
    place: str
    names_library: bool
    what: str
    bases: tuple[str, ...]


_SHARE = ("/usr/local/share", "/usr/share")
_LOADERS = ("/etc", *_SHARE)  # where the loaders of Vulkan and EGL look

DATA = (
    Data("compute", "OpenCL/vendors", ("*.icd",), "/etc/OpenCL/vendors", True, "OpenCL driver", ("/etc",)),
    Data("graphics", "vulkan/icd.d", ("*.json",), "/etc/vulkan/icd.d", True, "Vulkan driver", (*_LOADERS, "")),
    Data(
        "graphics",
        "vulkan/implicit_layer.d",
        ("*.json",),
        "/etc/vulkan/implicit_layer.d",
        True,
        "Vulkan layers",
        (*_LOADERS, ""),
    ),
    Data("graphics", "vulkansc/icd.d", ("*.json",), "/etc/vulkansc/icd.d", True, "Vulkan SC driver", _LOADERS),
    Data("graphics", "glvnd/egl_vendor.d", ("*.json",), "/usr/share/glvnd/egl_vendor.d", True, "EGL vendor", _LOADERS),
    Data(
        "graphics",
        "egl/egl_external_platform.d",
        ("*.json",),
        "/usr/share/egl/egl_external_platform.d",
        True,
        "EGL external platforms (GBM, Wayland, X)",
        _LOADERS,
    ),
    Data(
        "graphics",
        "nvidia",
        ("nvoptix.bin", "nvidia-application-profiles-VERSION-rc"),
        "/usr/share/nvidia",
        False,
        "OptiX data, the driver's own application profiles",
        _SHARE,
    ),
    Data(
        "display",
        "X11/xorg.conf.d",
        ("10-nvidia.conf", "nvidia-drm-outputclass.conf"),
        "/usr/share/X11/xorg.conf.d",
        False,
        "configuration of an X server",
        ("/etc", "/usr/share"),
    ),
)

# Modules of an X server, by the folder below X_MODULES where it looks for them: patterns of the real file's name.
X_MODULES = "/usr/lib/xorg/modules"
X_FILES = (("drivers", "nvidia_drv.so"), ("extensions", "libglxserver_nvidia.so.VERSION"))
X_CAPABILITY = "display"


def stem(name: str) -> str:
    """A library's name before `.so`."""
    return name.partition(".so")[0]


def of_library(name: str) -> str:
    """The capability of a library by its file name."""
    return _BY_STEM.get(stem(name), EVERY)


def libraries() -> dict[str, tuple[str, ...]]:
    """The names of libraries that the table has for each capability."""
    return {capability: tuple(stems.split()) for capability, stems in _LIBRARIES.items()}
