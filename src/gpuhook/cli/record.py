"""`gpuhook record`: what is stored of this host's driver; make it anew; remove it."""

import os
import time
from typing import Any

import click

from gpuhook import config, shim, version
from gpuhook.cli import gpus, prefix, render
from gpuhook.cli.info import age
from gpuhook.config import Config
from gpuhook.driver import key, nodes, refresh
from gpuhook.driver import record as records
from gpuhook.driver.record import Stored
from gpuhook.errors import GpuhookError
from gpuhook.model import DriverFile, Gpu, Record

# What `key.head` lists, in its order.
_HEAD = (
    "gpuhook's version",
    "the boot",
    "the driver's roots in runtime.toml",
    "the library keys in runtime.toml",
    "/proc/driver/nvidia/version",
    "/sys/module/nvidia/version",
    "/sys/module/nvidia/srcversion",
    "the GPUs in /proc/driver/nvidia/gpus",
    "the MIG devices in /proc/driver/nvidia/capabilities",
    "the minors of MIG devices' nodes",
    "the nvidia lines of /proc/devices",
)
_BOOT = 1
_MOST = 12  # changed files that are named to a person


@click.group(
    epilog="""\b
Examples:
  gpuhook record show
  gpuhook record refresh
  gpuhook record drop
"""
)
def record() -> None:
    """Show, remake or remove the record of this host's driver.

    gpuhook asks NVML once and keeps the answer with the list of the driver's files until the driver changes; a start of
    a container only reads it. Nobody needs to refresh it by hand: this is for looking, and for a driver that changed
    without a trace.
    """


@record.command(
    short_help="Say what is stored, and whether it still fits this host.",
    epilog="""\b
Examples:
  gpuhook record show
  gpuhook record show --json | jq .state

Exit status: 0, also where nothing is stored; of a record that holds an error, the code of that error.
""",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def show(as_json: bool) -> None:
    """Say what is stored: the driver, its age, whether it still fits this host, what it leaves out and why.

    Nothing is made or changed. Everybody may: the record is open to all.
    """
    where = prefix()
    document = _document(where, config.load(where))
    if as_json:
        click.echo(render.document(document))
    else:
        click.echo("\n".join(_lines(document)))
    if document["error"] is not None and document["state"] == "error":
        raise render.ToldError(GpuhookError(*(document["error"][name] for name in ("reference", "message", "hint"))))


@record.command(
    "refresh",
    short_help="Make the record anew, and show what is different.",
    epilog="""\b
Examples:
  gpuhook record refresh
  gpuhook record refresh --json | jq -r '.changes[].what'
  gpuhook record refresh --nodes          # after a boot, as gpuhook-record.service does

Exit status: 0 if the record was made and stored; else that of the error (docs/errors.md).
""",
)
@click.option(
    "--nodes",
    "make_nodes",
    is_flag=True,
    help="Make missing device nodes of all GPUs and links to them in /dev/char, too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def refresh_(make_nodes: bool, as_json: bool) -> None:
    """Make the record anew, and show what is different from the one before.

    Containers that start meanwhile wait for it. Root makes the one of this host; the user of a rootless engine has one
    of their own, in $XDG_RUNTIME_DIR/gpuhook.
    """
    where = prefix()
    settings = config.load(where)
    state = config.paths(where).state
    before = records.read(state)
    _remove(state, "refresh")
    begun = time.monotonic()
    error: GpuhookError | None = None
    made: Record | None = None
    try:
        made = refresh.renew(settings, state)
    except GpuhookError as problem:
        error = problem
    seconds = round(time.monotonic() - begun, 3)
    if records.read(state) is None:
        raise _not_written(f"{state}/{records.NAME}", "it could not be stored", "refresh")
    document = {
        "path": f"{state}/{records.NAME}",
        "seconds": seconds,
        "id": made.id if made else None,
        "before": before.record.id if before and before.record else None,
        "changes": changes(before.record if before else None, made),
        "error": render.failure(error) if error else None,
    }
    if as_json:
        click.echo(render.document(document))
    elif made is not None:
        click.echo("\n".join(_refreshed(document, made, known=before is not None and before.record is not None)))
    if error is not None:
        raise render.ToldError(error)
    if make_nodes and made is not None:
        provide(settings, made)


def provide(settings: Config, known: Record) -> None:
    """Make the device nodes of a driver that are missing, and links to nodes in /dev/char. GpuhookError `node-missing`.

    A start does this itself for what its container is given; here it is done before. Under WSL2 Windows has the nodes.
    """
    if not known.gpus or not key.gpu_names(settings):
        return
    whole = tuple(gpu for gpu in known.gpus if gpu.minor >= 0)
    wanted = nodes.control(settings, ("compute", "graphics")) + nodes.of_gpus(settings, whole)
    for path in nodes.make(settings, wanted):
        click.echo(f"made {path}", err=True)
    for node in wanted:
        shim.link_number(node, settings.dev_root)


@record.command(short_help="Remove the record.", epilog="\b\nExample:\n  gpuhook record drop\n")
def drop() -> None:
    """Remove the record. The next container that asks for a GPU makes it anew.

    Root removes the one of this host; the user of a rootless engine has one of their own, in $XDG_RUNTIME_DIR/gpuhook.
    """
    state = config.paths(prefix()).state
    path = f"{state}/{records.NAME}"
    click.echo(f"{path} is removed" if _remove(state, "drop") else f"{path} was not there")


# --- what is stored -------------------------------------------------------------------------------------------------


def _document(where: str, settings: Config) -> dict[str, Any]:
    """What `record show --json` says. `state` is `none`, `current`, `outdated`, `error` or `unusable`."""
    state = config.paths(where).state
    path = f"{state}/{records.NAME}"
    document: dict[str, Any] = {
        "path": path,
        "state": "none",
        "changed": [],
        "age_seconds": None,
        "life_seconds": None,
        "id": None,
        "driver": None,
        "gpus": [],
        "files": {},
        "left_out": [],
        "error": None,
    }
    stored = records.read(state)
    if stored is None:
        if os.path.lexists(path):
            document["state"] = "unusable"
        return document
    document["changed"] = changed(settings, stored)
    document["age_seconds"] = _age(settings, stored)
    document["life_seconds"] = stored.life
    root = settings.driver_root.rstrip("/")
    document["left_out"] = [{"path": root + item, "reason": reason} for item, reason in stored.left_out]
    fits = records.fits(settings, stored)
    if stored.error is not None:
        document["state"] = "error" if fits else "outdated"
        document["error"] = render.failure(GpuhookError(*stored.error))
    else:
        document["state"] = "current" if fits else "outdated"
    known = stored.record
    if known is not None:
        document["id"] = known.id
        document["driver"] = {
            "version": known.driver,
            "cuda": version.text(known.cuda),
            "cuda_assumed": known.cuda_assumed,
            "machine": known.machine,
        }
        document["gpus"] = [gpus.part(gpu) for gpu in known.gpus]
        kinds = sorted({item.kind for item in known.files})
        document["files"] = {kind: sum(item.kind == kind for item in known.files) for kind in kinds}
    return document


def _age(settings: Config, stored: Stored) -> float | None:
    """Seconds since it was made; None for one of an earlier boot, whose clock says nothing today."""
    then: Any = stored.key
    try:
        same = then[0][_BOOT] == key.head(settings)[_BOOT]
    except (IndexError, TypeError, KeyError):
        same = False
    return round(max(records.now() - stored.made, 0), 1) if same else None


def changed(settings: Config, stored: Stored) -> list[str]:
    """What is different on this host since the record was made, by name; empty while its key matches."""
    now: list[Any] = key.take(settings, stored.watch)
    then: Any = stored.key
    if now == then:
        return []
    try:
        (head, files), (old_head, old_files) = now, then
        found = [
            _HEAD[place] if place < len(_HEAD) else "the kernel module's state"
            for place, pair in enumerate(zip(head, old_head, strict=True))
            if pair[0] != pair[1]
        ]
        pairs = zip(stored.watch, files, old_files, strict=True)
        return found + [settings.driver_root.rstrip("/") + path for path, one, other in pairs if one != other]
    except (TypeError, ValueError):
        return ["the record's form"]


def _lines(document: dict[str, Any]) -> list[str]:
    rows = [("record", document["path"]), ("state", _state(document))]
    driver = document["driver"]
    if document["age_seconds"] is not None:
        life = document["life_seconds"]
        rows.append(
            ("made", f"{age(document['age_seconds'])} ago" + ("" if life is None else f", believed for {life:.0f} s"))
        )
    if driver is not None:
        assumed = " (assumed from the branch)" if driver["cuda_assumed"] else ""
        rows += [
            ("id", document["id"]),
            ("driver", f"{driver['version']}, CUDA up to {driver['cuda']}{assumed}, {driver['machine']}"),
            ("files", ", ".join(f"{count} {kind}" for kind, count in document["files"].items()) or "none"),
        ]
    lines = render.pairs(rows)
    if document["gpus"]:
        lines += ["", *gpus.table(document["gpus"])]
    for name, items in (
        ("changed since", [render.plain(item) for item in document["changed"]]),
        (
            "left out",
            [f"{render.plain(item['path'])}: {render.plain(item['reason'])}" for item in document["left_out"]],
        ),
    ):
        if items:
            more = [f"  and {len(items) - _MOST} more"] if len(items) > _MOST and name == "changed since" else []
            shown = items[:_MOST] if more else items
            lines += ["", render.strong(name), *(f"  {item}" for item in shown), *more]
    if document["error"] is not None and document["state"] != "error":
        lines += ["", render.strong("it held the error"), f"  {render.plain(document['error']['message'])}"]
    return lines


def _state(document: dict[str, Any]) -> str:
    return {
        "none": "nothing is stored: the next container that asks for a GPU makes it",
        "unusable": "not used: it is not whole, of another version, or others could write it; it will be made anew",
        "current": "in use",
        "outdated": "not used: this host changed, or its time is over; it will be made anew",
        "error": "holds an error, which every start gets while it is believed",
    }[str(document["state"])]


# --- changing it ----------------------------------------------------------------------------------------------------


def _remove(state: str, command: str) -> bool:
    """Remove the stored record; whether there was one. GpuhookError `record-not-written`."""
    path = f"{state}/{records.NAME}"
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _not_written(path, error.strerror or str(error), command) from None
    return True


def _not_written(path: str, reason: str, command: str) -> GpuhookError:
    if os.geteuid() != 0:
        hint = f"the record is root's: run `sudo gpuhook record {command}`"
    else:
        hint = "see that its directory is root's, that nobody else may write it, and that its file system is writable"
    return GpuhookError("record-not-written", f"the driver's record {path} can't be replaced: {reason}", hint)


def changes(before: Record | None, now: Record | None) -> list[dict[str, Any]]:
    """What is different between two records: `what`, `before`, `after` (None where there is none)."""
    if before is None or now is None:
        return []
    found: list[dict[str, Any]] = []

    def compare(what: str, one: object, other: object) -> None:
        if one != other:
            found.append({"what": what, "before": one, "after": other})

    compare("driver", before.driver, now.driver)
    compare("cuda", version.text(before.cuda), version.text(now.cuda))
    compare("machine", before.machine, now.machine)
    old, new = {_gpu_name(gpu): gpu for gpu in before.gpus}, {_gpu_name(gpu): gpu for gpu in now.gpus}
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in old or name not in new:
            compare(name, _whole(old.get(name)), _whole(new.get(name)))
            continue
        one, other = _fields(old[name]), _fields(new[name])
        for field in [*one, *(field for field in other if field not in one)]:
            compare(f"{name}: {field}", one.get(field), other.get(field))
    files, others = {item.path: item for item in before.files}, {item.path: item for item in now.files}
    for path in sorted({*files, *others}):
        if files.get(path) != others.get(path):
            was, is_now = _file(files.get(path)), _file(others.get(path))
            compare(path, was, "replaced" if was == is_now else is_now)
    return found


def _gpu_name(gpu: Gpu) -> str:
    """By its address, which a GPU that is lost keeps."""
    return f"GPU {gpu.bus_id or gpu.uuid or gpu.index}"


def _whole(gpu: Gpu | None) -> str | None:
    return None if gpu is None else f"{gpu.name} {gpu.uuid}".strip() or gpu.error


def _fields(gpu: Gpu) -> dict[str, str]:
    """What a GPU says of itself, by name, as far as it says something; a MIG device is a field."""
    plain = {name: str(item) for name, item in gpus.part(gpu).items() if name not in {"bus_id", "mig_devices"}}
    migs = {f"MIG device {mig.index}": f"{mig.gi}/{mig.ci} {mig.uuid}" for mig in gpu.migs}
    return {name: item for name, item in (plain | migs).items() if item}


def _file(item: DriverFile | None) -> str | None:
    return None if item is None else f"{item.kind} for {item.capability}"


def _refreshed(document: dict[str, Any], made: Record, *, known: bool) -> list[str]:
    counted = f"{len(made.gpus)} GPUs, {len(made.files)} files"
    lines = [f"record {made.id}: driver {render.plain(made.driver)}, {counted}; made in {document['seconds']:.2f} s"]
    if not known:
        return [*lines, "none was stored before"]
    if not document["changes"]:
        return [*lines, "nothing is different"]
    for item in document["changes"]:
        one, other = (render.plain(str(item[name])) if item[name] is not None else None for name in ("before", "after"))
        if one is None:
            lines.append(f"new: {render.plain(item['what'])}: {other}")
        elif other is None:
            lines.append(f"gone: {render.plain(item['what'])}: {one}")
        else:
            lines.append(f"changed: {render.plain(item['what'])}: {one} -> {other}")
    return lines
