"""`gpuhook config import`: what NVIDIA's config.toml says, put into runtime.toml as far as it means something here."""

import os
import shlex
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import click
import tomlkit

from gpuhook import config as configuration
from gpuhook import configfile, configtrust
from gpuhook.cli import configschema, localimages, prefix, render, toolkitconfig
from gpuhook.cli.toolkitconfig import Line
from gpuhook.config import Config
from gpuhook.configfile import Parsed
from gpuhook.engines import atomic, tomltext
from gpuhook.engines.host import Host
from gpuhook.errors import GpuhookError, shown

_OUTCOMES = {
    "carried": "carries over",
    "same": "is so already",
    "kept": "is otherwise here",
    "left": "does not carry over",
    "unknown": "is unknown",
    "invalid": "is invalid",
}


@dataclass(frozen=True)
class _Own:
    """runtime.toml as it is (None: it is not there) and as it is to be, and what that comes to."""

    path: str
    before: bytes | None
    after: bytes | None
    settings: Config


@click.command(
    "import",
    short_help="Take over what NVIDIA's toolkit is configured with.",
    epilog=f"""\b
Examples:
  gpuhook config import                     # what would carry over, and the diff; nothing is written
  gpuhook config import --write
  gpuhook config import ./config.toml --no-images
  gpuhook config import --json | jq -r '.keys[] | select(.outcome == "left") | .key + ": " + .why'

Without FILE, {toolkitconfig.PATH} is read.

Exit status: 0, also where nothing carries over (with --json `changed` tells); else that of the error, and then
nothing was changed.
""",
)
@click.argument("file", required=False, type=click.Path())
@click.option("--write", is_flag=True, help="Write runtime.toml; without it only the diff is shown.")
@click.option("--dry-run", is_flag=True, help="Only show what would change, as without --write.")
@click.option(
    "--images/--no-images",
    default=True,
    help="Look at the images of the local docker and podman: which would be refused here?",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def import_(file: str | None, write: bool, dry_run: bool, images: bool, as_json: bool) -> None:
    """Say key by key what of FILE, the config.toml of NVIDIA's container toolkit, carries over into runtime.toml.

    What runtime.toml sets itself is kept, and so are its comments. FILE is not changed. Images count as if they were
    given all GPUs, by what their own environment demands; nothing is started, and no image is unpacked.
    """
    if write and dry_run:
        raise click.UsageError("--write writes and --dry-run does not: give one of them", click.get_current_context())
    where = prefix()
    source = file or toolkitconfig.PATH
    tree = _read(source)
    own, lines = _plan(configuration.paths(where).config, tree)
    changed = own.before != own.after
    if write and changed:
        _write(own)
    found = _images(own.settings) if images else None
    if as_json:
        document = {"source": source, "path": own.path, "changed": changed, "dry_run": not write}
        document |= {"keys": [_key(line) for line in lines], "images": found}
        document |= {"diff": "".join(f"{line}\n" for line in render.difference(own.path, own.before, own.after))}
        click.echo(render.document(document | {"error": None}))
        return
    click.echo("\n".join(_lines(lines, own, found, written=write, file=file)))


def _read(path: str) -> dict[str, Any]:
    """The toolkit's configuration. GpuhookError `engine-config-unreadable`, `engine-config-invalid`."""
    text = Host(environ={}).read(os.path.abspath(path))
    if text is None:
        raise GpuhookError(
            "engine-config-unreadable",
            f"{shown(path, 200)} is not there",
            "name the config.toml of NVIDIA's container toolkit; where it has none its defaults hold, and there is "
            "nothing to take over",
        )
    return tomltext.parse(path, text)


def _plan(path: str, tree: dict[str, Any]) -> tuple[_Own, list[Line]]:
    """What becomes of runtime.toml. GpuhookError where that is broken, not trusted, or can't be edited safely."""
    before = configtrust.read(path, configuration.LIMIT)[0] if os.path.lexists(path) else None
    parsed = _parsed(path, before or b"")
    lines = toolkitconfig.lines(tree, parsed, _has_nodes)
    steps = toolkitconfig.steps(lines)
    after = before
    if steps:
        text, _ = tomltext.apply(path, (before or b"").decode(), steps)
        after = text.encode()
    return _Own(path, before, after, _parsed(path, after or b"").config), lines


def _parsed(path: str, data: bytes) -> Parsed:
    """GpuhookError `config-invalid` for what gpuhook itself would refuse: it is neither edited nor written."""
    parsed = configfile.parse(data)
    problems = parsed.problems or configschema.problems(data)
    if problems:
        configfile.refuse(path, problems)
    return parsed


def _has_nodes(root: str) -> bool:
    return os.path.exists(f"{root.rstrip('/')}/dev/nvidiactl")


def _write(own: _Own) -> None:
    """Replace runtime.toml, whole. GpuhookError `engine-config-not-written`."""
    assert own.after is not None
    try:
        os.makedirs(os.path.dirname(own.path), 0o755, exist_ok=True)
        real = os.path.realpath(own.path)  # a link stays a link
        atomic.stage(real, own.after, 0o644)
        atomic.put(real)
    except OSError as error:
        with suppress(OSError):
            atomic.discard(os.path.realpath(own.path))
        raise atomic.failed(own.path, error) from None


def _images(settings: Config) -> dict[str, Any]:
    """The images of this host that would be refused, with what was not looked at."""
    from gpuhook.driver import record, refresh  # noqa: PLC0415 - --no-images needs neither

    images = localimages.find()
    found: dict[str, Any] = {"looked_at": len(images.found), "refused": [], "notes": images.notes}
    if not any(localimages.asks(config) for _, _, config in images.found):
        return found
    try:
        known = record.result(refresh.make(settings))  # of the new configuration; not stored
    except GpuhookError as error:
        return found | {"notes": [*images.notes, f"images were not judged: {error.message} [{error.reference}]"]}
    found["refused"] = [
        {"engine": item.engine, "image": item.image, **render.failure(item.error)}
        for item in localimages.refused(images, settings, known)
    ]
    return found


def _lines(lines: list[Line], own: _Own, found: dict[str, Any] | None, written: bool, file: str | None) -> list[str]:
    """For a person; `file` as the command line has it."""
    shown_lines = _grouped(lines) if render.on_terminal() else _rows(lines)
    difference = render.difference(own.path, own.before, own.after)
    if difference and not written:
        shown_lines += ["", *(render.coloured(line) for line in difference)]
    if found is not None:
        shown_lines += ["", *_told(found)]
    if not difference:
        shown_lines += ["", f"{own.path} has all that carries over: nothing to change"]
    elif written:
        what = "is made" if own.before is None else "is changed"
        shown_lines += ["", f"{own.path} {what}; it counts from the next container on"]
    else:
        named = f"{render.plain(shlex.quote(file))} " if file else ""
        shown_lines += ["", f"nothing is written; next: gpuhook config import {named}--write"]
    return shown_lines


def _rows(lines: list[Line]) -> list[str]:
    """A row for each key."""
    rows = [(_OUTCOMES[line.outcome], _text(line.key, line.value), _target(line), line.why or "-") for line in lines]
    return render.table(("WHAT", "KEY", "IN RUNTIME.TOML", "WHY"), rows)


def _grouped(lines: list[Line]) -> list[str]:
    """For a terminal, on which such rows are too long: each key with what becomes of it below."""
    told: list[str] = []
    for outcome, heading in _OUTCOMES.items():
        group = [line for line in lines if line.outcome == outcome]
        told += ([""] if told and group else []) + ([render.strong(heading)] if group else [])
        for line in group:
            below = [_target(line)] * bool(line.target) + [line.why] * bool(line.why)
            told += [
                render.plain(f"  {_text(line.key, line.value)}"),
                *(render.plain(f"      {text}") for text in below),
            ]
    return told


def _told(found: dict[str, Any]) -> list[str]:
    count, looked_at = len(found["refused"]), found["looked_at"]
    lines = [f"of {looked_at} local images {count or 'none'} would be refused"] if looked_at else []
    for item in found["refused"]:
        lines.append(render.plain(f"  {item['image']} ({item['engine']}): {item['message']} [{item['reference']}]"))
    return lines + [f"note: {render.plain(text)}" for text in found["notes"]]


def _target(line: Line) -> str:
    return _text(line.target, line.wanted) if line.target else "-"


def _text(key: str, item: Any) -> str:
    """A key with its value as TOML has it; long ones are cut."""
    text = _toml(item)
    return f"{key} = {text if len(text) <= 100 else text[:97] + '...'}"


def _key(line: Line) -> dict[str, Any]:
    """For a program. Values are TOML's texts, since TOML has some that JSON has not."""
    return {
        "key": line.key,
        "value": _toml(line.value),
        "outcome": line.outcome,
        "target": line.target,
        "wanted": _toml(line.wanted) if line.target else "",
        "why": line.why,
    }


def _toml(item: Any) -> str:
    """A value as it is written in a TOML file."""
    text: str = tomlkit.item(list(item) if isinstance(item, tuple) else item).as_string()
    return text.strip()
