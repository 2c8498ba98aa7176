"""What `gpuhook configure` and `unconfigure` say of what they did, for people and for programs; and the restarts, whose
outcome is part of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from gpuhook.cli import render
from gpuhook.cli.restarting import restarted
from gpuhook.engines.commit import Change
from gpuhook.engines.model import Restart
from gpuhook.errors import GpuhookError

_DONE = {
    "made": "{} is made",
    "changed": "{} is changed",
    "restored": "{} is as it was before gpuhook",
    "removed": "{} is removed: gpuhook had made it",
    "taken-out": "{}: gpuhook's entries are taken out; what else changed since is kept",
    "gone": "{} is not there any more: there is nothing to take back",
    "same": "{} is as it was before gpuhook already",
    "kept": "{} stays as it is: {} is configured with it, too",
}
_WOULD = _DONE | {
    "made": "{} would be made",
    "changed": "{} would be changed",
    "restored": "{} would be as it was before gpuhook",
    "removed": "{} would be removed: gpuhook had made it",
    "taken-out": "{}: gpuhook's entries would be taken out; what else changed since would be kept",
}
_UNREAD = "nothing was restarted: no file changed; `gpuhook doctor` tells whether the engine has read its files since"


@dataclass(frozen=True)
class Result:
    """What a command came to, and how it is told. `own` is runtime.toml, which no engine reads; `left` warns of what is
    not in a change."""

    engine: str
    changes: Sequence[Change]
    lines: Sequence[str]
    notes: Sequence[str]
    own: str
    dry_run: bool
    restart: bool
    as_json: bool
    left: Sequence[str] = ()

    @property
    def changed(self) -> bool:
        """Whether a file changes, or would."""
        return any(change.changes_file for change in self.changes)

    @property
    def means(self) -> tuple[Restart, ...]:
        """What makes engines read what changes: several where several containerds had been configured."""
        own = (item.restart for item in self.changes if item.changes_file and item.path != self.own)
        return tuple(dict.fromkeys(item for item in own if item is not None))

    @property
    def warnings(self) -> list[str]:
        """Of all files."""
        return [*(text for change in self.changes for text in change.warnings), *self.left]


def outcomes(changes: Sequence[Change], *, dry_run: bool) -> list[str]:
    """What becomes of each file, or would."""
    words = _WOULD if dry_run else _DONE
    return [words[change.outcome].format(change.path, _owners(change)) for change in changes]


def _owners(change: Change) -> str:
    """Who else is in a record."""
    return " and ".join(sorted({owner.engine for owner in change.record.owners})) if change.record else ""


def tell(result: Result) -> None:
    """Print what changes, or would, and restart the engines where that was asked for.

    GpuhookError `engine-restart-failed`, after all was told.
    """
    if not result.as_json:
        click.echo("".join(f"{line}\n" for line in _lines(result)), nl=False)
    told: list[dict[str, Any]] = []
    failed: GpuhookError | None = None
    for means in result.means:
        done, why = False, ""
        line = f"{'after that' if result.dry_run else 'next'}: {means.sentence}" if means.needed else means.sentence
        try:
            if result.restart and not result.dry_run:
                done, why = restarted(means)
                line = f"done: {' '.join(means.command)}" if done else f"{why + '; ' if why else ''}{line}"
        except GpuhookError as error:  # the others are tried all the same
            failed, why, line = failed or error, error.message, f"not done: {means.sentence}"
        told.append(_restart(means, done=done, why_not=why))
        if not result.as_json:
            click.echo(line)
    if not told:
        why = _UNREAD if result.restart and not result.dry_run else ""
        told.append(_restart(Restart((), "", needed=False), done=False, why_not=why))
        if why and not result.as_json:
            click.echo(why)
    if result.as_json:
        click.echo(render.document(_document(result, told, failed)))
    if failed is not None:
        raise render.ToldError(failed)


def _lines(result: Result) -> list[str]:
    """For a person: the diff, what becomes of each file, and what is to be known of it."""
    lines = [render.coloured(line) for change in result.changes for line in _diff(change)]
    lines += [render.plain(line) for line in result.lines]
    lines += [f"note: {render.plain(text)}" for text in result.notes]
    return lines + [render.bad(f"warning: {render.plain(text)}") for text in result.warnings]


def _diff(change: Change) -> list[str]:
    return render.difference(change.path, change.before, change.after)


def _restart(means: Restart, *, done: bool, why_not: str) -> dict[str, Any]:
    """For a program."""
    return {
        "needed": means.needed,
        "command": list(means.command),
        "done": done,
        "sentence": means.sentence,
        "why_not": why_not,
    }


def _document(result: Result, restarts: list[dict[str, Any]], failed: GpuhookError | None) -> dict[str, Any]:
    """For a program."""
    return {
        "engine": result.engine,
        "changed": result.changed,
        "dry_run": result.dry_run,
        "files": [
            {
                "path": change.path,
                "outcome": change.outcome,
                "changed": change.changes_file,
                "diff": "".join(f"{line}\n" for line in _diff(change)),
            }
            for change in result.changes
        ],
        "restart": restarts[0],
        "other_restarts": restarts[1:],
        "notes": list(result.notes),
        "warnings": result.warnings,
        "error": render.failure(failed) if failed else None,
    }
