"""What the tests of gpuhook.driver share."""

import os
import subprocess
from pathlib import Path
from typing import Any

from gpuhook import sim
from gpuhook.config import Config, paths
from gpuhook.driver import record
from gpuhook.model import Record, replace


def config_of(driver: Path, **changes: Any) -> Config:
    """A configuration whose four roots are a simulated driver."""
    root = str(driver)
    return replace(Config(driver_root=root, dev_root=root, proc_root=root, sys_root=root), **changes)


def peek(config: Config, prefix: str) -> Record | None:
    """The record if a current one is stored; None otherwise, and for a stored error. Starts nothing, writes nothing."""
    stored = record.read(paths(prefix).state)
    return stored.record if stored is not None and stored.error is None and record.fits(config, stored) else None


def copy_of(driver: Path, copy: Path, fault: str = "none") -> Path:
    """A simulated driver of a test's own: copied, which is much faster than compiled."""
    subprocess.run(["cp", "-a", driver, copy], check=True)
    os.truncate(copy / "sim/nvml.count", 0)
    if fault != "none":
        sim.set_fault(copy, fault)
    return copy
