"""`gpuhook hook --dry-run`: what the hook would do for a state that a runtime gave it. Changes nothing.

The very functions of gpuhook-hook, in its order, up to the entering of the container.
"""

import os
import sys
from typing import Any

import click

from gpuhook import config, grant, hook, oci, plan, request, sources, state
from gpuhook.cli import explain_plan, explain_text, prefix, render
from gpuhook.config import Config
from gpuhook.errors import GpuhookError, shown
from gpuhook.hook import Orders
from gpuhook.model import Container, Record, replace
from gpuhook.state import State

_LIMIT = 1 << 20  # bytes of a state, as for the hook


@click.command(
    "hook",
    epilog="""\b
Examples:
  runc state ID >state.json; gpuhook hook --dry-run --state state.json
  gpuhook hook --dry-run --state state.json --bundle ./saved-bundle
  crun state ID | gpuhook hook --dry-run --state - --json

Exit status: 0 if the hook would do it; else the code of the hook's error (docs/errors.md).
""",
)
@click.option("--dry-run", is_flag=True, help="Required: say what would be done, and do nothing.")
@click.option("--state", "file", type=click.Path(), metavar="FILE", help="The saved state; - reads standard input.")
@click.option(
    "--bundle", type=click.Path(), metavar="DIR", help="The bundle, where it is not at the state's own place."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def hook_(dry_run: bool, file: str | None, bundle: str | None, as_json: bool) -> None:
    """Replay a saved state and its bundle: print the plan that the hook would apply.

    The state is what the runtime gives a hook on standard input; `runc state` prints it too. The orders are those that
    the shim wrote into the bundle's config.json; where it has none yet, they are decided now, as the shim would. The
    bundle's root is looked at as the host shows it: of a container that ended, an overlay is gone.
    """
    context = click.get_current_context()
    if not dry_run:
        raise click.UsageError("only --dry-run is done by hand; the runtime calls gpuhook-hook itself", context)
    if file is None:
        raise click.UsageError("--state FILE is needed", context)
    where = prefix()
    document, error = replay(_state(file), bundle, where)
    if as_json:
        click.echo(render.document(document))
    else:
        click.echo("\n".join(explain_text.replay_lines(document)))
    if error is not None:
        raise render.ToldError(error)


def _state(file: str) -> State:
    """The saved state. GpuhookError `state-invalid` that names the file."""
    try:
        if file == "-":
            data = sys.stdin.buffer.read(_LIMIT + 1)
        else:
            with open(file, "rb") as opened:
                data = opened.read(_LIMIT + 1)
    except OSError as error:
        raise _bad_state(f"can't be read: {error.strerror}", file) from None
    try:
        return state.parse(data[:_LIMIT])
    except GpuhookError as error:
        told = error.message.removeprefix("the container state on standard input ")
        raise _bad_state(told, file) from None


def _bad_state(what: str, file: str) -> GpuhookError:
    return GpuhookError(
        "state-invalid",
        f"the container state in {shown(file, 200)} {what}",
        "save what the runtime gives the hook on standard input, or what `runc state ID` prints",
    )


def replay(told: State, bundle: str | None, where: str) -> tuple[dict[str, Any], GpuhookError | None]:
    """The hook's steps as a document, and the error that it would end with. `outcome` as that of an explanation."""
    document: dict[str, Any] = {
        "outcome": "granted",
        "state": {"id": told.id, "pid": told.pid, "bundle": told.bundle},
        "bundle": os.path.abspath(bundle or told.bundle),
        "orders": None,
        "warnings": [],
        "error": None,
    }
    try:
        settings = config.load(where)
        spec = oci.Spec(f"{document['bundle']}/config.json")
        orders, origin = _orders(spec, settings, where)
        if orders is None:
            document |= {"outcome": "nothing", "why_not": request.why_not(spec.container(), settings)}
            return document, None
        root = spec.container().root if bundle else orders.root
        document["orders"] = {
            "from": origin,
            "record": orders.record,
            "root": root,
            "capabilities": list(orders.capabilities),
            "tmpfs": list(orders.tmpfs),
            "compat": orders.compat,
            "nodes": list(orders.nodes),
            "gpus": list(orders.gpus),
            "rights": list(orders.rights),
            "proc": orders.proc,
            "label": orders.label,
        }
        known = hook.same_record(settings, where, orders)
        document["driver"] = explain_plan.driver_part(known)
        _plan(document, known, orders, replace(spec.container(), root=root), settings)
    except GpuhookError as error:
        document |= {"outcome": "refused", "error": render.failure(error)}
        return document, error
    return document, None


def _orders(spec: oci.Spec, settings: Config, where: str) -> tuple[Orders | None, str]:
    """The orders that stand in the spec, else those that the shim would write now; None where it asks for nothing."""
    hooks = spec.data.get("hooks")
    for stage in ("prestart", "createRuntime"):
        entries = hooks.get(stage) if isinstance(hooks, dict) else None
        for entry in entries if isinstance(entries, list) else ():
            words = entry.get("args") if isinstance(entry, dict) and oci.carries_orders(entry) else None
            if isinstance(words, list):
                return hook.parse([str(word) for word in words[1:]]), stage
    container = spec.container()
    granted = grant.decide(container, settings, where)
    if granted is None:
        return None, ""
    return hook.parse(grant.orders(granted, container) + spec.orders()), "decided now"


def _plan(document: dict[str, Any], known: Record, orders: Orders, container: Container, settings: Config) -> None:
    """Every source as the hook takes it (and closed again), and the steps for the root that the host shows."""
    files = plan.select(known, orders.capabilities)
    if os.geteuid() == 0:
        sources.acquire(settings.driver_root, files, settings.sockets + settings.directories).close()
    else:
        document["warnings"].append("not root: the driver's files were not opened as the hook opens them")
    proc = explain_plan.proc_paths(known, orders, settings)
    document["warnings"] += plan.lacking(known, orders.capabilities)
    with explain_plan.looking(container.root) as inside:
        if not inside.names("/", 1 << 16):
            document["warnings"].append(
                f"{shown(container.root, 200)} is empty: the image is not mounted there now; "
                "this is the plan for an empty one"
            )
        more = hook.of_granted(known, orders, settings)
        compat, container = orders.compat, explain_plan.resolved(container, inside)
        parts = explain_plan.steps_for(inside, known, files, settings, container, compat=compat, proc=proc, more=more)
        explain_plan.add_steps(document, *parts, settings, container)
