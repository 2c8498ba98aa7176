"""`gpuhook configure ENGINE` and `gpuhook unconfigure ENGINE`: tell an engine of gpuhook, and take that back."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import click

from gpuhook import config as configuration
from gpuhook import configfile, configtrust, engines
from gpuhook.cli import prefix
from gpuhook.cli.configure_text import Result, outcomes, tell
from gpuhook.engines import leftover, transaction
from gpuhook.engines import store as stores
from gpuhook.engines.commit import Change, commit
from gpuhook.engines.host import Host
from gpuhook.engines.model import FileEdit, Options, Proposal, Restart, Set
from gpuhook.errors import GpuhookError

_Command = TypeVar("_Command", bound=Callable[..., object])
_TABLE = "\n".join(f"  {name:<10}  {text}" for name, text in engines.NAMES.items())
_DAEMONS = {"docker": "dockerd", "containerd": "containerd", "crio": "crio"}  # podman has none
_CONTAINERS = (
    "containers that name a runtime which is gone now still name it, and do not start: make them anew with another "
    "runtime, or configure the engine again"
)
_RUNTIME_CLASSES = (
    "RuntimeClasses whose handler is gone now still name it, and their pods do not start: remove them, or configure "
    "the engine again"
)
_LEFT = {
    "docker": _CONTAINERS,
    "podman": _CONTAINERS,
    "containerd": f"{_CONTAINERS}; {_RUNTIME_CLASSES}",
    "crio": _RUNTIME_CLASSES,
}
_PRIVILEGED = (
    Set(("request", "accept-env-when-unprivileged"), False),
    Set(("request", "accept-devices-as-volume-mounts"), True),
)


def _runtime_name(_context: click.Context, option: click.Parameter, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise click.BadParameter(
            "letters, digits and . _ - are expected, beginning with a letter or digit, 64 at most", param=option
        )
    if text in ("runc", "crun"):
        raise click.BadParameter(f"{text} is what the engine calls the runtime that gpuhook itself runs", param=option)
    return text


def _absolute(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    return os.path.abspath(text) if text else text


def _named(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text == "":  # of a script whose variable is empty: the engine's own file is not what it means
        raise click.BadParameter("no file is named", param=option)
    return _absolute(context, option, text)


def _config(text: str) -> Callable[[_Command], _Command]:
    return click.option("--config", callback=_named, type=click.Path(readable=False), metavar="FILE", help=text)


_ENGINE = click.argument("engine", type=click.Choice(list(engines.NAMES)))
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show the diff and what is to be known of it; write nothing.")
_RESTART = click.option("--restart", is_flag=True, help="Make the engine read it, where an init system runs.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


@click.command(
    epilog=f"""\b
Engines:
{_TABLE}

\b
Examples:
  gpuhook configure docker --dry-run              # what would change; nothing is written
  gpuhook configure docker --restart
  gpuhook configure containerd --default-runtime --privileged-only
  gpuhook configure containerd --config /var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl
  gpuhook configure crio --hook                   # for every runtime of the engine, by an OCI hooks directory
  gpuhook configure docker --json | jq .changed

Exit status: 0, also where nothing had to change (with --json `changed` tells); else that of the error, and then
nothing was changed.
"""
)
@_ENGINE
@_config("The engine's configuration file.")
@click.option(
    "--runtime-name",
    default=Options.runtime_name,
    show_default=True,
    callback=_runtime_name,
    metavar="NAME",
    help="What containers call it; `nvidia` takes that name over until unconfigure.",
)
@click.option("--default-runtime", is_flag=True, help="For every container that names no runtime.")
@click.option(
    "--drop-in",
    is_flag=False,
    flag_value="",
    callback=_absolute,
    type=click.Path(readable=False),
    metavar="[FILE]",
    help="Write a drop-in file (FILE, or the engine's usual one) instead of the main file.",
)
@click.option("--cdi", is_flag=True, help="Switch on the engine's own support of CDI, too.")
@click.option(
    "--privileged-only",
    is_flag=True,
    help="In runtime.toml, for all engines of this host: NVIDIA_VISIBLE_DEVICES counts in privileged containers alone; "
    "others get GPUs by volume mounts.",
)
@click.option(
    "--hook", "hook_only", is_flag=True, help="Write into the engine's OCI hooks directory (crio, podman); no runtime."
)
@_DRY_RUN
@_RESTART
@_JSON
def configure(  # noqa: PLR0917 - click names them
    engine: str,
    config: str | None,
    runtime_name: str,
    default_runtime: bool,
    drop_in: str | None,
    cdi: bool,
    privileged_only: bool,
    hook_only: bool,
    dry_run: bool,
    restart: bool,
    as_json: bool,
) -> None:
    """Tell ENGINE of gpuhook: find its configuration, put gpuhook's entries into it, keep everything else.

    What is configured adds to what was. The files as they were are kept, and `gpuhook unconfigure` brings them back.
    """
    where, host = prefix(), Host()
    options = Options(
        runtime=f"{where}/usr/bin/gpuhook-runtime",
        hook=f"{where}/usr/bin/gpuhook-hook",
        config=config or "",
        runtime_name=runtime_name,
        default_runtime=default_runtime,
        drop_in=drop_in,
        cdi=cdi,
        hook_only=hook_only,
    )
    _installed(options.hook if hook_only else options.runtime)
    store = stores.locate(host, where)

    def plan() -> tuple[Proposal, tuple[Change, ...]]:
        proposal = engines.load(engine).propose(host, options)
        proposal = replace(proposal, notes=(*proposal.notes, *_handler(engine, options)))
        if privileged_only:
            proposal = _privileged(proposal, where)
        changes = transaction.prepare(host, store, proposal, options.config)
        for change in changes:
            if change.path == _own(where) and change.after is not None:
                _check_own(change.path, change.after)
        return proposal, changes

    proposal, changes = plan()
    if not dry_run and any(change.writes for change in changes):
        with store.lock():  # another gpuhook may have changed the files meanwhile
            proposal, changes = plan()
            commit(store, changes)
    lines = outcomes([change for change in changes if change.changes_file], dry_run=dry_run)
    if not lines:
        names = ", ".join(change.path for change in changes)
        lines = [f"{engine} is configured already: {names}, nothing to change"]
    changes = _restarting(host, engine, changes)
    tell(Result(engine, changes, lines, proposal.notes, _own(where), dry_run, restart, as_json))


@click.command(
    epilog="""\b
Examples:
  gpuhook unconfigure docker --dry-run    # what would change; nothing is written
  gpuhook unconfigure docker --restart

Exit status: 0, also where nothing had been configured (with --json `changed` tells); else that of the error, and then
nothing was changed.
"""
)
@_ENGINE
@_config("Only what was done for this file.")
@_DRY_RUN
@_RESTART
@_JSON
def unconfigure(engine: str, config: str | None, dry_run: bool, restart: bool, as_json: bool) -> None:
    """Take back what `gpuhook configure ENGINE` did, all of it.

    A file that nobody else changed since is as it was, to the byte. From one that somebody changed only gpuhook's
    entries are taken out. A file is removed only where gpuhook had made it.
    """
    where, host = prefix(), Host()
    store = stores.locate(host, where)
    if dry_run:
        changes = transaction.prepare_undo(store, engine, config or "")
    else:
        changes = transaction.undo(store, engine, config or "") if os.path.isdir(store.directory) else ()
    lines = outcomes(changes, dry_run=dry_run)
    if not changes:
        whose = "" if host.uid == 0 else " as this user (what root configured, root takes back)"
        lines = [f"{engine}: gpuhook has configured nothing{f' for {config}' if config else ''}{whose}"]
    options = Options(f"{where}/usr/bin/gpuhook-runtime", f"{where}/usr/bin/gpuhook-hook", config or "")
    named = any(change.changes_file and options.runtime.encode() in (change.before or b"") for change in changes)
    # a hook's file has no name that anybody could have used
    notes = (_LEFT[engine],) if named else ()
    changes = _restarting(host, engine, changes)
    left = leftover.warnings(host, engine, options, changes)
    tell(Result(engine, changes, lines, notes, _own(where), dry_run, restart, as_json, left))


def _restarting(host: Host, engine: str, changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """With no restart of a daemon that does not run now; a record keeps how it is restarted when it does."""
    program = _DAEMONS.get(engine)
    if program is None or any(process.uid == host.uid for process in host.processes(program)):
        return changes
    none = Restart((), f"{program} does not run: it reads its files when it starts", needed=False)
    return tuple(
        replace(change, restart=none) if change.restart and change.restart.needed else change for change in changes
    )


def _handler(engine: str, options: Options) -> tuple[str, ...]:
    """A note on a name that Kubernetes can't use: a RuntimeClass's handler is a DNS label (RFC 1123), by its API."""
    name = options.runtime_name
    if (
        options.hook_only
        or engine not in ("containerd", "crio")
        or re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)
    ):
        return ()
    return (
        f"no RuntimeClass can name {name} as its handler: that takes lower-case letters, digits and - alone; for "
        "Kubernetes name another one: --runtime-name",
    )


def _installed(program: str) -> None:
    """The engine shall not be told of a program that is not there: no container would start."""
    if not os.access(program, os.X_OK):
        raise GpuhookError(
            "runtime-not-found",
            f"the engine would be told of {program}, which is not there",
            "install the package gpuhook, or run scripts/install, and run the `gpuhook` of that installation: pip and"
            " pipx bring the command line alone, without what stands where runc stands",
        )


# --- runtime.toml ---------------------------------------------------------------------------------------------------


def _own(where: str) -> str:
    return configuration.paths(where).config


def _privileged(proposal: Proposal, where: str) -> Proposal:
    """With the privileged-only policy in gpuhook's own runtime.toml."""
    path = _own(where)
    try:
        _check_own(path, configtrust.read(path, configuration.LIMIT)[0])
    except GpuhookError as error:
        if error.reference == "config-untrusted" or os.path.lexists(path):  # a file that is not there yet is made
            raise
    note = (
        f"{path} holds for all engines of this host: from the next container on, those that are not privileged get "
        "GPUs by volume mounts alone (the strategy `volume-mounts` of Kubernetes' device plugin)"
    )
    return replace(
        proposal, files=(*proposal.files, FileEdit(path, "toml", _PRIVILEGED)), notes=(*proposal.notes, note)
    )


def _check_own(path: str, data: bytes) -> None:
    """What gpuhook itself would refuse is not edited, and not written. GpuhookError `config-invalid`."""
    parsed = configfile.parse(data)
    if parsed.problems:
        configfile.refuse(path, parsed.problems)
