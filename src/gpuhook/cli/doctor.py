"""`gpuhook doctor`: would a container with GPUs work on this host, through which engine, and if not, why."""

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import click

from gpuhook import engines
from gpuhook.cli import prefix, render
from gpuhook.engines import hostcheck
from gpuhook.engines.host import Host
from gpuhook.engines.model import Finding, Options
from gpuhook.errors import GpuhookError

# engine -> the programs by which it is found in PATH, and the directories by which it is found without one
_SIGNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "docker": (("dockerd", "docker"), ("/snap/docker/current",)),
    "containerd": (
        ("containerd", "k3s", "rke2"),
        ("/var/lib/rancher/k3s/agent", "/var/lib/rancher/rke2/agent", "/var/snap/microk8s/current/args"),
    ),
    "crio": (("crio",), ("/etc/crio",)),
    "podman": (("podman",), ()),
}
# engine -> what it consists of: programs (or processes) of which one must be here, and where they lie outside of PATH
_PROGRAMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "docker": (("dockerd",), ("/snap/docker/current",)),
    "containerd": (("containerd", "k3s", "rke2"), ("/opt/rke2/bin/rke2", "/var/snap/microk8s/current/args")),
    "crio": (("crio",), ()),
    "podman": (("podman",), ()),
}
_LEVELS = ("problem", "warning", "note", "ok")


@click.command(
    short_help="Say whether a GPU container would work on this host, and if not, why.",
    epilog="""\b
Examples:
  gpuhook doctor
  gpuhook doctor --engine docker
  gpuhook doctor --engine containerd --config /etc/containerd/config.toml --runtime-name nvidia
  gpuhook doctor --json | jq -r '.host[] | select(.level == "problem").message'

Exit status: 0 if a GPU container would work through the engine, without --engine through one at least of those that are
here; 98 if not (docs/errors.md, doctor-problem). Notes and warnings change nothing of that.
""",
)
@click.option("--engine", type=click.Choice(tuple(engines.NAMES)), help="One engine; else every one that is here.")
@click.option("--config", "path", metavar="FILE", help="The engine's configuration; else where the engine has it.")
@click.option("--runtime-name", "name", metavar="NAME", help="The name that gpuhook has in the engine; else gpuhook.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def doctor(engine: str | None, path: str | None, name: str | None, as_json: bool) -> None:
    """Say whether a GPU container would work on this host, and if not, why.

    Looks at the kernel, gpuhook's installation, the low-level runtime, driver, nodes and policy, at running containers
    that have GPUs, and reads each engine's configuration back as the engine would. Changes no configuration.
    """
    context = click.get_current_context()
    if engine is None and (path is not None or name is not None):
        raise click.UsageError("--config and --runtime-name are of one engine: name it with --engine", context)
    where, host = prefix(), Host()
    options = Options(
        runtime=f"{where}/usr/bin/gpuhook-runtime",
        hook=f"{where}/usr/bin/gpuhook-hook",
        config=os.path.abspath(path) if path else "",
        runtime_name=name or Options.runtime_name,
    )
    document = examination(host, where, options, engine)
    error = failure(document)
    document["error"] = render.failure(error) if error else None
    if as_json:
        click.echo(render.document(document))
    else:
        click.echo("\n".join(lines(document)))
        error = failure(document, brief=True)
    if error is not None:
        raise render.ToldError(error)


def here(host: Host) -> tuple[str, ...]:
    """The engines that are on this host."""
    return tuple(
        name
        for name, (programs, folders) in _SIGNS.items()
        if any(host.which(program) for program in programs) or any(host.exists(folder) for folder in folders)
    )


def examination(host: Host, where: str, options: Options, engine: str | None) -> dict[str, Any]:
    """What --json says, but for the error; of one engine, or of all that are here."""
    names = (engine,) if engine else here(host)
    found = hostcheck.findings(host, where, engine or "")
    if not names:
        text = "none was found: no docker, containerd, CRI-O or podman in PATH or in the usual places"
        found += (Finding("note", "engines", text, "`gpuhook configure ENGINE --config FILE` takes one elsewhere"),)
    parts = []
    for name in names:
        own = _engine(host, name, options)
        why = _first((*found, *own))
        parts.append(
            {
                "engine": name,
                "works": why is None,
                "why": why.message if why else "",
                "findings": [vars(item) for item in own],
            }
        )
    works = any(part["works"] for part in parts) if parts else _first(found) is None
    return {"works": works, "host": [vars(item) for item in found], "engines": parts}


def _engine(host: Host, name: str, options: Options) -> tuple[Finding, ...]:
    try:
        found = engines.load(name).check(host, options)
    except GpuhookError as error:
        found = (Finding("problem", error.reference, error.message, error.hint),)
    if not any(item.check == "engine-not-found" for item in found):
        found = (*_absent(host, name), *found)
    if not options.config:
        return found
    # what was looked at is what a person then configures, not the engine's usual file
    command = f"gpuhook configure {name}"
    wanted = f"{command} --config {shlex.quote(options.config)}"
    return tuple(replace(item, hint=item.hint.replace(command, wanted)) for item in found)


def _absent(host: Host, name: str) -> Iterator[Finding]:
    """A configuration without the engine's program runs no container."""
    programs, places = _PROGRAMS[name]
    there = any(host.which(item) or host.find(item) or next(host.processes(item), None) for item in programs)
    if not there and not any(host.exists(place) for place in places):
        text = f"{' or '.join(programs)} is not on this host: not in PATH or the usual places, and it does not run"
        yield Finding(
            "problem", "engine-not-found", text, f"install {name}, or remove what is left of its configuration"
        )


def _first(findings: Sequence[Finding]) -> Finding | None:
    """The first problem."""
    return next((item for item in findings if item.level == "problem"), None)


def failure(document: dict[str, Any], *, brief: bool = False) -> GpuhookError | None:
    """The error of a host, or of all its engines; None where a GPU container would work. `brief`: for whoever has just
    read the findings."""
    if document["works"]:
        return None
    problems = [item for item in document["host"] if item["level"] == "problem"]
    through = "on this host" if problems else f"through {' or '.join(part['engine'] for part in document['engines'])}"
    problems += [item for part in document["engines"] for item in part["findings"] if item["level"] == "problem"]
    why = _reasons(document).get(problems[0]["message"]) if brief else None
    text = f"a GPU container would not work {through}: {why or problems[0]['message']}"
    if len(problems) > 1:
        text += f" (the first of {len(problems)} problems)"
    return GpuhookError("doctor-problem", text, "" if why else problems[0]["hint"])


def _reasons(document: dict[str, Any]) -> dict[str, str]:
    """For the message of each problem of the host where it stands: some are long, and all engines share them."""
    problems = [item for item in document["host"] if item["level"] == "problem"]
    return {item["message"]: f"see {item['check']} above" for item in problems}


# --- for people -----------------------------------------------------------------------------------------------------


def lines(document: dict[str, Any]) -> list[str]:
    """The findings by where they are of, each with its hint below, and a verdict for each engine."""
    parts = [("host", document["host"]), *((part["engine"], part["findings"]) for part in document["engines"])]
    width = max(len(item["check"]) for _, findings in parts for item in findings)
    shown = []
    for name, findings in parts:
        shown.append(render.strong(name))
        for item in findings:
            shown += _lines(item, width)
        shown.append("")
    if not document["engines"]:
        shown.append(_verdict("this host", document["works"], next(iter(_reasons(document).values()), "")))
    return shown + _verdicts(document["engines"], _reasons(document))


def _verdicts(parts: list[dict[str, Any]], reasons: dict[str, str]) -> list[str]:
    """A line for each engine; engines that share a reason share a line, and the host's is not said again."""
    shared: dict[tuple[bool, str], list[str]] = {}
    for part in parts:
        shared.setdefault((part["works"], reasons.get(part["why"], part["why"])), []).append(part["engine"])
    return [_verdict(", ".join(names), works, why) for (works, why), names in shared.items()]


def _lines(item: dict[str, str], width: int) -> list[str]:
    level = item["level"].ljust(len(_LEVELS[0]))
    colour = {"ok": render.good, "note": render.faint}.get(item["level"], render.bad)
    found = [f"  {colour(level)}  {item['check'].ljust(width)}  {render.plain(item['message'])}"]
    margin = " " * (2 + len(level) + 2 + width + 2)
    hints = item["hint"].split("\n") if item["hint"] else []
    return found + [f"{margin}{'fix: ' if not at else '     '}{render.plain(hint)}" for at, hint in enumerate(hints)]


def _verdict(name: str, works: bool, why: str) -> str:
    if works:
        return f"{name}: {render.good('a GPU container would work')}"
    return f"{name}: {render.bad('a GPU container would not work')}: {render.plain(why)}"
