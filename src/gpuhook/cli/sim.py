"""`gpuhook sim`: make a simulated driver for a machine without a GPU, and let it fail."""

import json
from pathlib import Path
from typing import Any

import click

from gpuhook import sim as simulator
from gpuhook.cli import render

_DEFAULTS = simulator.SimOptions()
_FAULT_HELP = "\n".join(f"  {name:<18} {text}" for name, text in simulator.FAULTS.items())


@click.group(epilog="\b\nExample:\n  gpuhook sim create /tmp/driver --gpus 1\n")
def sim() -> None:
    """Make a simulated driver: a directory with all that a real one puts on a host.

    gpuhook takes it for the host's driver when the four roots in runtime.toml name it. It needs root (for device nodes)
    and a C compiler.
    """


@sim.command(
    short_help="Make a directory the root of a host with a simulated driver.",
    epilog=f"""\b
Faults:
{_FAULT_HELP}

\b
Examples:
  gpuhook sim create /tmp/driver
  gpuhook sim create /tmp/old --gpus 1 --driver 535.161.08 --cuda 12.2 --brand geforce \\
      --model "NVIDIA GeForce RTX 4090" --arch 8.9 --layout fedora
  gpuhook sim create /tmp/divided --mig 0=1/0,2/0
  gpuhook sim create /tmp/broken --fault gpu-lost=1 --fault slow=300
""",
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--gpus", type=int, default=_DEFAULTS.gpus, show_default=True, help="How many GPUs.")
@click.option("--driver", default=_DEFAULTS.driver, show_default=True, help="Version of the driver.")
@click.option("--cuda", default=_DEFAULTS.cuda, show_default=True, help="CUDA level that the driver supports.")
@click.option("--brand", default=_DEFAULTS.brand, show_default=True, help=f"One of {', '.join(simulator.BRANDS)}.")
@click.option("--model", default=_DEFAULTS.model, show_default=True, help="Name of the GPUs.")
@click.option("--arch", default=_DEFAULTS.arch, show_default=True, help="Compute capability of the GPUs.")
@click.option("--layout", default=_DEFAULTS.layout, show_default=True, help="Where libraries lie: see list-layouts.")
@click.option("--mig", multiple=True, metavar="GPU=GI/CI,...", help="Divide a GPU into MIG devices (repeatable).")
@click.option("--fault", "faults", multiple=True, help="What is wrong with the driver (repeatable): see below.")
def create(directory: Path, faults: tuple[str, ...], **options: Any) -> None:
    """Make DIR, which must not exist or be empty, the root of a host with a simulated driver."""
    wanted = simulator.SimOptions(**options, faults=faults)
    simulator.create(directory, wanted)
    roots = dict.fromkeys(("driver-root", "dev-root", "proc-root", "sys-root"), directory.resolve())
    roots["driver-root"] /= simulator.LAYOUTS[wanted.layout].root
    click.echo(f"made driver {wanted.driver} (CUDA {wanted.cuda}) with {wanted.gpus} x {wanted.model} in {directory}\n")
    click.echo("[driver]")
    for key, root in roots.items():
        click.echo(f"{key} = {json.dumps(str(root), ensure_ascii=False)}")  # a TOML string is written alike
    where = "below the [driver] of runtime.toml (gpuhook config path says where it is)"
    click.echo(f"\nnext: put these lines {where}, then: gpuhook info")


@sim.command(
    short_help="Let a simulated driver fail from now on.",
    epilog=f"""\b
Faults:
{_FAULT_HELP}

\b
Examples:
  gpuhook sim fault /tmp/driver gpu-lost=1
  gpuhook sim fault /tmp/driver none
""",
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("fault")
def fault(directory: Path, fault: str) -> None:
    """Let the simulated driver in DIR fail from now on: FAULT is `none` or a comma list.

    It counts from the next container on.
    """
    simulator.set_fault(directory, fault)
    click.echo(f"{directory}: fault {fault}")


@sim.command(
    short_help="Divide the GPUs of a simulated driver anew.",
    epilog="\b\nExamples:\n  gpuhook sim mig /tmp/driver 0=1/0,2/0\n  gpuhook sim mig /tmp/driver\n",
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("mig", metavar="[GPU=GI/CI,...]...", nargs=-1)
def mig(directory: Path, mig: tuple[str, ...]) -> None:
    """Divide the GPUs of the simulated driver in DIR anew; those that are not named are whole."""
    simulator.set_mig(directory, mig)
    click.echo(f"{directory}: {' '.join(mig) or 'no MIG devices'}")


@sim.command("list-layouts", epilog="\b\nExample:\n  gpuhook sim list-layouts\n")
def list_layouts() -> None:
    """Say which layouts there are and where their libraries lie."""
    width = max(map(len, simulator.LAYOUTS))
    for name, layout in simulator.LAYOUTS.items():
        libraries = "/" + layout.at(layout.libraries, "VERSION")
        if render.on_terminal():  # in one line they are 180 columns wide
            click.echo(f"{name.ljust(width)}  {layout.text}\n{' ' * width}  {libraries}")
        else:
            click.echo(f"{name}\t{libraries}\t{layout.text}")
