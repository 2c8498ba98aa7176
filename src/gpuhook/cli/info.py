"""`gpuhook info`: this host as gpuhook sees it: versions, driver, GPUs, low-level runtime, configuration, record."""

import os
from typing import Any

import click

from gpuhook import __version__, config, shim, version
from gpuhook.cli import gpus, prefix, render
from gpuhook.config import Config
from gpuhook.driver import record
from gpuhook.errors import GpuhookError
from gpuhook.model import Record


@click.command(
    epilog="""\b
Examples:
  gpuhook info
  gpuhook info --json | jq -r '.gpus[].uuid'

Exit status: 0 if all is well, else that of the first thing that is wrong (docs/errors.md).
"""
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def info(as_json: bool) -> None:
    """Show this host: gpuhook, kernel, low-level runtime, configuration, driver, GPUs.

    What is wrong with one of them is said at the end, and the rest is shown all the same.
    """
    where = prefix()
    data: dict[str, Any] = {"gpuhook": __version__, "kernel": os.uname().release, "machine": os.uname().machine}
    errors: list[GpuhookError] = []
    path = config.paths(where).config
    data["config"] = {"path": path, "exists": os.path.lexists(path)}
    try:
        settings = config.load(where)
    except GpuhookError as error:
        errors.append(error)
        settings = config.defaults()  # what the shim goes by, too, for a container that asks for nothing
    try:
        data["runtime"] = shim.low_level(settings.low_level, f"{where}/usr/bin/gpuhook-runtime")
    except GpuhookError as error:
        data["runtime"] = None
        errors.append(error)
    known = None
    if not errors or errors[0].reference == "runtime-not-found":
        try:
            known = record.load(settings, where)
        except GpuhookError as error:
            errors.append(error)
    data |= _driver(known, settings, where)
    data["errors"] = [render.failure(item) for item in errors]
    if as_json:
        click.echo(render.document(data))
    else:
        _print(data)
    for other in errors[1:]:
        click.echo(str(other), err=True)
    if errors:
        raise render.ToldError(errors[0])


def _driver(known: Record | None, settings: Config, where: str) -> dict[str, Any]:
    """The driver's part of the document."""
    if known is None:
        return {"driver": None, "gpus": [], "record": None}
    stored = record.read(config.paths(where).state)
    # who is not root looks at the host where root's record is out of date, and stores nothing
    is_stored = stored is not None and stored.record == known and record.fits(settings, stored)
    age = round(record.now() - stored.made, 1) if stored is not None and is_stored else None
    return {
        "driver": {
            "version": known.driver,
            "cuda": version.text(known.cuda),
            "cuda_assumed": known.cuda_assumed,
            "machine": known.machine,
            "files": len(known.files),
        },
        "gpus": [gpus.part(gpu) for gpu in known.gpus],
        "record": {"id": known.id, "path": f"{config.paths(where).state}/{record.NAME}", "age_seconds": age},
    }


def _print(data: dict[str, Any]) -> None:
    driver, found = data["driver"], data["record"]
    settings = data["config"]
    rows = [
        ("gpuhook", data["gpuhook"]),
        ("kernel", f"{data['kernel']} ({data['machine']})"),
        ("runtime", data["runtime"] or "none found"),
        ("config", settings["path"] + ("" if settings["exists"] else " (not there: the defaults hold)")),
        ("driver", "unknown"),
    ]
    if driver:
        assumed = " (assumed from the branch)" if driver["cuda_assumed"] else ""
        rows[-1] = ("driver", f"{driver['version']}, CUDA up to {driver['cuda']}{assumed}, {driver['files']} files")
        seconds = found["age_seconds"]
        made = "made now, and not stored" if seconds is None else f"made {age(seconds)} ago"
        rows.append(("record", f"{found['id']}, {made}"))
    lines = render.pairs(rows)
    if driver and not data["gpus"]:
        lines += render.pairs([("gpus", "none")])
    if data["gpus"]:
        lines += ["", *gpus.table(data["gpus"])]
    click.echo("\n".join(lines))


def age(seconds: float) -> str:
    """A time in the largest unit that fits."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
