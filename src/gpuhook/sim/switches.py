"""Devices beside the GPUs, of a simulated driver that is there already: those of NVIDIA_GDS and its like."""

import os
from collections.abc import Collection
from pathlib import Path

from gpuhook.sim import kernel, state
from gpuhook.sim.options import invalid


def set_switches(directory: Path, words: Collection[str]) -> None:
    """Give a simulated driver the devices of these words (keys of `kernel.SWITCHES`) and no other. Raises sim-invalid.

    With `gds` come the files that its library reads, the configuration by a link as update-alternatives makes it.
    """
    for word in words:
        if word not in kernel.SWITCHES:
            raise invalid("switches", word, "expected " + ", ".join(kernel.SWITCHES))
    directory = Path(directory)
    now = state.parse((directory / state.CONF).read_text())
    kernel.switch(directory, now, words)
    kernel.write_module(directory, now, os.major((directory / "dev/nvidiactl").stat().st_rdev))
    if "gds" in words:
        target = directory / "usr/local/cuda/gds/cufile.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text('{"logging": {"level": "ERROR"}}\n')
        (directory / "run/udev").mkdir(parents=True, exist_ok=True)
        (directory / "run/udev/control").touch()
        link = directory / "etc/cufile.json"
        link.unlink(missing_ok=True)
        link.symlink_to("/usr/local/cuda/gds/cufile.json")
