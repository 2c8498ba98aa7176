"""Which libraries a driver has.

Sonames and what the libraries need of each other were read from driver 550.163.01 as Debian packages it; development
links are those that NVIDIA's installer makes. Of the host's libraries they need only the C library.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Library:
    """A library of the driver: `name` is the file name up to `.so`, with a directory below the library directory.

    `soname` is the number behind `.so.`; empty: the soname is the file name. `dev`: a link `libX.so` exists.
    `needed` are `name`s of other libraries. `version` is the file's own version, empty for the driver's.
    """

    name: str
    soname: str = ""
    dev: bool = False
    needed: tuple[str, ...] = ()
    version: str = ""
    aliases: tuple[str, ...] = ()

    def file(self, driver: str) -> str:
        """The file name, with its directory."""
        return f"{self.name}.so.{self.version or driver}"

    def soname_text(self, driver: str) -> str:
        """DT_SONAME."""
        name = self.name.rpartition("/")[2]
        return f"{name}.so.{self.soname or self.version or driver}"


LIBRARIES = (
    Library("libcuda", "1", dev=True),
    Library("libnvidia-ml", "1", dev=True),
    Library("libcudadebugger", "1"),
    Library("libnvidia-ptxjitcompiler", "1", dev=True),
    Library("libnvidia-nvvm", "4", dev=True),
    Library("libnvidia-gpucomp"),
    Library("libnvidia-opencl", "1"),
    Library("libnvidia-allocator", "1", dev=True),
    Library("libnvidia-cfg", "1", dev=True),
    Library("libnvidia-pkcs11-openssl3"),
    Library("libnvidia-sandboxutils", "1", dev=True),
    Library("libnvcuvid", "1", dev=True),
    Library("libnvidia-encode", "1", dev=True, needed=("libnvcuvid",)),
    Library("libnvidia-opticalflow", "1", dev=True, needed=("libnvcuvid",)),
    Library("libnvidia-tls"),
    Library("libnvidia-glsi"),
    Library("libnvidia-glcore", needed=("libnvidia-tls", "libnvidia-gpucomp")),
    Library("libnvidia-eglcore", needed=("libnvidia-glsi", "libnvidia-gpucomp")),
    Library("libnvidia-glvkspirv"),
    Library(
        "libGLX_nvidia",
        "0",
        needed=("libnvidia-glsi", "libnvidia-tls", "libnvidia-glcore"),
        aliases=("libGLX_indirect.so.0",),
    ),
    Library("libEGL_nvidia", "0", needed=("libnvidia-glsi",)),
    Library("libGLESv1_CM_nvidia", "1"),
    Library("libGLESv2_nvidia", "2"),
    Library("libnvoptix", "1"),
    Library("libnvidia-rtcore"),
    Library("libnvidia-ngx", "1"),
    Library("libnvidia-fbc", "1", dev=True),
    Library("vdpau/libvdpau_nvidia", "1", dev=True),
    # companions: shipped with the driver under versions of their own
    Library("libnvidia-nvvm70", version="4"),
    Library("libnvidia-api", version="1"),
    Library("libnvidia-egl-wayland", "1", version="1.1.19"),
    Library("libnvidia-egl-gbm", "1", version="1.1.2"),
)

# besides nvidia-smi, which is a program of its own
PROGRAMS = ("nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
