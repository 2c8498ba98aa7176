"""A simulated WSL2: Windows' driver store, the loaders that Linux programs see, and /dev/dxg.

Which files there are is that of Windows' driver for WSL2; a loader here is a copy of what it would load.
"""

import shutil
from pathlib import Path

from gpuhook.sim import build
from gpuhook.sim.layouts import Layout
from gpuhook.sim.libraries import LIBRARIES, Library
from gpuhook.sim.state import State

LOADED = "usr/lib/wsl/lib"
_STORE = "usr/lib/wsl/drivers"
# By their sonames; of these the driver store has a file, and LOADED what programs load.
_KNOWN = (
    "libcuda",
    "libcudadebugger",
    "libnvidia-ml",
    "libnvidia-ptxjitcompiler",
    "libnvcuvid",
    "libnvidia-encode",
    "libnvidia-opticalflow",
    "libnvoptix",
)
_LOADERS = ("libcuda", "libnvidia-ml", "libnvoptix")  # the driver store has a loader, too
_MORE = (Library("libnvdxgdmal", "1"), Library("libdxcore"), Library("libd3d12"), Library("libd3d12core"))
_OTHERS = ("u0390451.inf_amd64_9d5d0e6a6a3b5f5e", "netwtw10.inf_amd64_3f1f6b1d0c2f9a11")  # AMD's GPU, a network card


def write(root: Path, layout: Layout, state: State) -> None:
    """Write the driver store and LOADED below `root`."""
    store, loaded = root / layout.libraries, root / LOADED
    built = root / "built"
    known = [item for item in LIBRARIES if item.name in _KNOWN]
    build.build(root, "built", "built", (*known, *_MORE), state)
    store.mkdir(parents=True)
    loaded.mkdir()
    for item in known:
        file, soname = built / item.file(state.driver), item.soname_text(state.driver)
        if item.name != "libnvidia-ptxjitcompiler":  # only others of the driver load it
            shutil.copy(file, loaded / soname)
        shutil.copy(file, store / ("libcuda.so.1.1" if item.name == "libcuda" else soname))
        if item.name in _LOADERS:
            shutil.copy(file, store / f"{item.name}_loader.so")
    for item in _MORE:
        file = built / item.file(state.driver)
        if item.soname:
            shutil.copy(file, store / item.soname_text(state.driver))
        else:
            shutil.copy(file, loaded / f"{item.name}.so")
    for place in (store, loaded):
        shutil.copy(built / "nvidia-smi", place / "nvidia-smi")
    for name in ("nvcubins.bin", "nvoptix.bin", "_nvngx.dll", "nvcuda64.dll", "nv_dispi.inf"):
        (store / name).write_text(f"{name} of driver {state.driver}, simulated by gpuhook\n")
    for name in _OTHERS:
        (root / _STORE / name).mkdir()
        (root / _STORE / name / "driver.sys").write_text("another device's driver, simulated by gpuhook\n")
    shutil.rmtree(built)
