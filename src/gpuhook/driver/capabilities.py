"""Which capability each file of the driver belongs to: the small table behind discovery.

Names of libraries are those before `.so`. A library of the loaded driver's version that is not here goes with every
capability (`*`), so that a new branch works before this table knows it. The sorting is that of NVIDIA's own container
tools, so that a list of NVIDIA_DRIVER_CAPABILITIES means the same here.
"""

EVERY = "*"

_LIBRARIES = {
    "utility": "libnvidia-ml libnvidia-cfg libnvidia-nscq",
    "compute": "libcuda libcudadebugger libnvidia-opencl libnvidia-gpucomp libnvidia-ptxjitcompiler"
    " libnvidia-fatbinaryloader libnvidia-allocator libnvidia-compiler libnvidia-pkcs11 libnvidia-pkcs11-openssl3"
    " libnvidia-nvvm libnvidia-nvvm70 libnvidia-tileiras",
    "video": "libvdpau_nvidia libnvidia-encode libnvidia-opticalflow libnvcuvid",
    "graphics": "libnvidia-eglcore libnvidia-glcore libnvidia-tls libnvidia-glsi libnvidia-fbc libnvidia-ifr"
    " libnvidia-rtcore libnvoptix libGLX_nvidia libEGL_nvidia libGLESv2_nvidia libGLESv1_CM_nvidia"
    " libnvidia-glvkspirv libnvidia-cbl libnvidia-vulkan-producer libnvidia-egl-gbm libnvidia-egl-wayland"
    " libnvidia-egl-wayland2 libnvidia-egl-xcb libnvidia-egl-xlib libnvidia-api"
    " libGL libEGL libGLESv1_CM libGLESv2 libnvidia-gtk2 libnvidia-gtk3 libnvidia-wayland-client libglxserver_nvidia",
    "ngx": "libnvidia-ngx",
}
_BY_STEM = {stem: capability for capability, stems in _LIBRARIES.items() for stem in stems.split()}

# Libraries that come with a driver and carry a version of their own, as patterns of the real file's name.
COMPANIONS = (
    "libnvidia-nvvm70.so.4",
    "libnvidia-api.so.1",
    "libnvidia-pkcs11.so.*",
    "libnvidia-pkcs11-openssl3.so.*",
    "libnvidia-egl-wayland.so.1.*",
    "libnvidia-egl-wayland2.so.1.*",
    "libnvidia-egl-gbm.so.1.*",
    "libnvidia-egl-xcb.so.1.*",
    "libnvidia-egl-xlib.so.1.*",
)

BINARIES = {
    "nvidia-smi": "utility",
    "nvidia-debugdump": "utility",
    "nvidia-persistenced": "utility",
    "nv-fabricmanager": "utility",
    "nvidia-cuda-mps-control": "compute",
    "nvidia-cuda-mps-server": "compute",
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

# Where the kernel looks for firmware (firmware_class), most special first.
FIRMWARE_DIRS = ("/lib/firmware/updates", "/lib/firmware", "/usr/lib/firmware")


def stem(name: str) -> str:
    """A library's name before `.so`."""
    return name.partition(".so")[0]


def of_library(name: str) -> str:
    """The capability of a library by its file name."""
    return _BY_STEM.get(stem(name), EVERY)
