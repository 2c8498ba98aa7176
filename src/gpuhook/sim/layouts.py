"""Where distributions put a driver: one row of LAYOUTS for each kind of host.

Facts are those of the distributions' own packages and of what their users report (docs/compatibility.md); the hashes of
the Nix store, kernel and second versions are invented.
"""

import platform
from dataclasses import dataclass

_TRIPLET = f"{platform.machine()}-linux-gnu"
_MULTIARCH = f"usr/lib/{_TRIPLET}"
_MULTIARCH32 = "usr/lib/i386-linux-gnu"
_STORE = "nix/store/"
_NIX = f"{_STORE}9ywdlr0bgq1pnq4ph0yc0rzqppxjzvnl-nvidia-x11-"
_NIX32 = f"{_STORE}3vhn9cyw5r1s0c8gmkx4q4jd2jm9lr7b-nvidia-x11-"
_PROFILE = f"{_STORE}b5ip3fsl4ycz1vkzgklk8fqqm0zjrs8p-graphics-drivers"
_SYSTEM = f"{_STORE}0f8qwmpfkxb5ny1ldck3xnyy8v6xgyk2-nixos-system"


@dataclass(frozen=True)
class Link:
    """A symbolic link `at` with the text `to`.

    With `each`, one for every link (`links`) or every name (`names`) of the library folder, or for every program
    (`programs`): its name stands for `*` in both.
    """

    at: str
    to: str
    each: str = ""


@dataclass(frozen=True)
class Layout:
    """Where one kind of host has the driver. Paths are below the driver's root; `{driver}` is the version.

    `text` names the distributions. `libraries` are for the host's machine, `libraries32` for i386 (empty: none there).
    `conf` are the directories that /etc/ld.so.conf names. `cache` is what /etc/ld.so.cache holds: `whole` (as ldconfig
    makes it), `host` (made for the system alone, before the driver came) or `none` (no such file). `usr` is how / and
    /usr go together: `merged`, `split`, `arch` (merged, and one folder for all libraries), or `none` (neither /lib nor
    /usr/lib). `root` is the driver's root below that of the host, `second` a version that is installed as well,
    `kernel_path` where the kernel was told to look for firmware first. `windows`: the driver is that of Windows around
    this Linux, and `libraries` a folder of its driver store (gpuhook.sim.wsl).
    """

    text: str
    libraries: str
    libraries32: str = ""
    binaries: str = "usr/bin"
    firmware: str = "usr/lib/firmware"
    conf: tuple[str, ...] = ()
    cache: str = "whole"
    usr: str = "merged"
    links: tuple[Link, ...] = ()
    root: str = ""
    second: str = ""
    kernel_path: str = ""
    windows: bool = False

    def at(self, path: str, driver: str) -> str:
        """One of these paths for a version of the driver, below the host's root."""
        path = path.format(driver=driver)
        return f"{self.root}/{path}" if self.root else path


LAYOUTS = {
    "ubuntu": Layout(
        "Ubuntu; NVIDIA's own packages for Debian",
        libraries=_MULTIARCH,
        libraries32=_MULTIARCH32,
        conf=(f"/usr/local/lib/{_TRIPLET}", f"/lib/{_TRIPLET}", f"/{_MULTIARCH}"),
    ),
    "debian": Layout(
        "Debian: alternatives lead to nvidia/current",
        libraries=f"{_MULTIARCH}/nvidia/current",
        libraries32=f"{_MULTIARCH32}/nvidia/current",
        binaries="usr/lib/nvidia/current",
        conf=(f"/usr/local/lib/{_TRIPLET}", f"/lib/{_TRIPLET}", f"/{_MULTIARCH}"),
        links=(
            Link(f"{_MULTIARCH}/*", f"/etc/alternatives/nvidia--*-{_TRIPLET}", each="links"),
            Link(f"etc/alternatives/nvidia--*-{_TRIPLET}", f"/{_MULTIARCH}/nvidia/current/*", each="links"),
            Link("usr/bin/*", "/etc/alternatives/nvidia--*", each="programs"),
            Link("etc/alternatives/nvidia--*", "/usr/lib/nvidia/current/*", each="programs"),
        ),
    ),
    "fedora": Layout(
        "Fedora, RHEL and its kin",
        libraries="usr/lib64",
        libraries32="usr/lib",
        conf=("/lib64", "/usr/lib64"),
    ),
    "rpmfusion": Layout(
        "RPM Fusion's folder of its own, which a file of ld.so.conf.d names",
        libraries="usr/lib64/nvidia",
        libraries32="usr/lib/nvidia",
        conf=("/lib64", "/usr/lib64", "/usr/lib64/nvidia"),
    ),
    "arch": Layout(
        "Arch",
        libraries="usr/lib",
        libraries32="usr/lib32",
        conf=("/usr/lib",),
        usr="arch",
    ),
    "opensuse": Layout(
        "openSUSE, SLES",
        libraries="usr/lib64",
        libraries32="usr/lib",
        firmware="lib/firmware",
        conf=("/usr/local/lib64", "/lib64", "/usr/lib64"),
        usr="split",
    ),
    "nixos": Layout(
        "NixOS: links in /run/opengl-driver lead into the store; no loader cache",
        libraries=_NIX + "{driver}-6.12.41/lib",
        libraries32=_NIX32 + "{driver}-6.12.41-lib32/lib",
        binaries=_NIX + "{driver}-6.12.41-bin/bin",
        firmware=_NIX + "{driver}-6.12.41-firmware/lib/firmware",
        cache="none",
        usr="none",
        kernel_path="/run/current-system/firmware",
        links=(
            Link("run/opengl-driver", f"/{_PROFILE}"),
            Link(f"{_PROFILE}/lib/*", f"/{_NIX}{{driver}}-6.12.41/lib/*", each="names"),
            Link("run/opengl-driver-32", f"/{_NIX32}{{driver}}-6.12.41-lib32"),
            Link("run/current-system", f"/{_SYSTEM}"),
            Link(f"{_SYSTEM}/sw/bin/*", f"/{_NIX}{{driver}}-6.12.41-bin/bin/*", each="programs"),
            Link(
                f"{_SYSTEM}/firmware/nvidia/{{driver}}",
                f"/{_NIX}{{driver}}-6.12.41-firmware/lib/firmware/nvidia/{{driver}}",
            ),
        ),
    ),
    "talos": Layout(
        "Talos: a glibc of the driver's own beside musl; no loader cache",
        libraries="usr/local/glibc/usr/lib",
        binaries="usr/local/bin",
        cache="none",
    ),
    "cos": Layout(
        "GKE's Container-Optimized OS",
        libraries="home/kubernetes/bin/nvidia/lib64",
        binaries="home/kubernetes/bin/nvidia/bin",
        firmware="home/kubernetes/bin/nvidia/firmware",
        kernel_path="/home/kubernetes/bin/nvidia/firmware",
        conf=("/lib64", "/usr/lib64"),
        cache="host",
    ),
    "flatcar": Layout(
        "Flatcar: versions side by side",
        libraries="opt/nvidia/{driver}/6.1.50-flatcar/usr/lib64",
        binaries="opt/nvidia/{driver}/6.1.50-flatcar/usr/bin",
        conf=("/lib64", "/usr/lib64"),
        cache="host",
        second="515.65.01",
    ),
    "bright": Layout(
        "Bright Cluster Manager, Base Command Manager",
        libraries="cm/local/apps/cuda-driver/libs/{driver}/lib64",
        binaries="cm/local/apps/cuda-driver/libs/{driver}/bin",
        conf=("/lib64", "/usr/lib64"),
        cache="host",
        links=(Link("cm/local/apps/cuda/libs/current", "/cm/local/apps/cuda-driver/libs/{driver}"),),
    ),
    "yocto": Layout(
        "Yocto, Buildroot: no loader cache, no ldconfig",
        libraries="usr/lib",
        firmware="lib/firmware",
        cache="none",
        usr="split",
    ),
    "driver-container": Layout(
        "a driver container: driver-root is /run/nvidia/driver, the other roots are the host's",
        libraries=_MULTIARCH,
        libraries32=_MULTIARCH32,
        firmware="lib/firmware",
        conf=(f"/{_MULTIARCH}",),
        root="run/nvidia/driver",
    ),
    "run": Layout(
        "NVIDIA's .run installer, where there is no multiarch",
        libraries="usr/lib64",
        libraries32="usr/lib32",
        firmware="lib/firmware",
        conf=("/usr/local/lib64", "/lib64", "/usr/lib64"),
    ),
    "wsl": Layout(
        "WSL2: Windows' driver store, and one device for all GPUs",
        libraries="usr/lib/wsl/drivers/nv_dispi.inf_amd64_0e1c8bd5c4aa7c2b",
        binaries="usr/lib/wsl/drivers/nv_dispi.inf_amd64_0e1c8bd5c4aa7c2b",
        conf=("/lib/x86_64-linux-gnu", "/usr/lib/wsl/lib"),
        cache="host",
        windows=True,
    ),
}
