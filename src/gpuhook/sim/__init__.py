"""The simulated driver: a directory that holds all that a real NVIDIA driver spreads over a host.

For people without a GPU, and the ground of all tests. `create` writes files; nothing outside this package (and the
tests) knows that a driver is simulated: gpuhook is pointed at the directory by its four driver roots.
"""

from gpuhook.sim.layouts import LAYOUTS, Layout
from gpuhook.sim.options import BRANDS, FAULTS, SimOptions
from gpuhook.sim.switches import set_switches
from gpuhook.sim.tree import create, init_count, set_fault, set_mig

__all__ = [
    "BRANDS",
    "FAULTS",
    "LAYOUTS",
    "Layout",
    "SimOptions",
    "create",
    "init_count",
    "set_fault",
    "set_mig",
    "set_switches",
]
