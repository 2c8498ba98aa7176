"""How commands print: colour and tables on a terminal, plain stable text elsewhere, no character that steers one.

On a terminal a table has aligned columns under a heading. Piped, each row is a line of its fields with a tab between,
and no heading, so that `cut` and `while read` can take it.
"""

import difflib
import json
import os
import sys
from collections.abc import Iterable, Sequence

import click

from gpuhook.errors import GpuhookError


def on_terminal() -> bool:
    """Whether a person reads this."""
    return sys.stdout.isatty()


def in_colour() -> bool:
    """Whether to colour: on a terminal that can, unless NO_COLOR is set (no-color.org)."""
    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def plain(text: str) -> str:
    """Text of an image, a user or a GPU as it may be shown: what is not printable is escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def strong(text: str) -> str:
    """A heading."""
    return click.style(text, bold=True) if in_colour() else text


def faint(text: str) -> str:
    """A remark."""
    return click.style(text, dim=True) if in_colour() else text


def good(text: str) -> str:
    """A good verdict."""
    return click.style(text, fg="green") if in_colour() else text


def bad(text: str) -> str:
    """A warning or a bad verdict."""
    return click.style(text, fg="red", bold=True) if in_colour() else text


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table: aligned under its heading on a terminal, else fields with tabs between and no heading."""
    cells = [[plain(cell) for cell in row] for row in rows]
    if not on_terminal():
        return ["\t".join(row) for row in cells]
    widths = [max(len(row[column]) for row in [list(heading), *cells]) for column in range(len(heading))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()

    return [strong(line(heading)), *(line(row) for row in cells)]


def pairs(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Lines of `name  text`, the texts aligned."""
    rows = [(name, plain(text)) for name, text in rows]
    width = max((len(name) for name, _ in rows), default=0)
    return [f"{strong(name.ljust(width))}  {text}" for name, text in rows]


def difference(path: str, before: bytes | None, after: bytes | None) -> list[str]:
    """The lines of a unified diff of a file (None: no file); none where nothing changes."""
    if before == after:
        return []
    sides = [None if data is None else data.decode("utf-8", "replace") for data in (before, after)]
    named = path.replace("\n", "\\n")  # a name with a line end would make lines of its own
    names = ["/dev/null" if text is None else named for text in sides]
    # not splitlines(): form feeds and the like end no line of these files
    rows = [[] if not text else text.removesuffix("\n").split("\n") for text in sides]
    for text, side in zip(sides, rows, strict=True):
        if text and not text.endswith("\n"):
            side[-1] += "\n\\ No newline at end of file"
    found = difflib.unified_diff(rows[0], rows[1], names[0], names[1], lineterm="")
    return [part for line in found for part in line.split("\n")]


def coloured(line: str) -> str:
    """A line of a diff for a person."""
    text = "\t".join(plain(part) for part in line.split("\t"))
    if text.startswith(("---", "+++")):
        return strong(text)
    if text.startswith("@@"):
        return faint(text)
    return good(text) if text.startswith("+") else bad(text) if text.startswith("-") else text


def document(data: object) -> str:
    """JSON for programs: ASCII, so that no text in it can steer a terminal."""
    return json.dumps(data, indent=2)


def failure(error: GpuhookError) -> dict[str, object]:
    """An error in a JSON document."""
    return {
        "reference": error.reference,
        "message": error.message,
        "hint": error.hint,
        "exit_code": error.exit_code,
    }


class ToldError(GpuhookError):
    """A failure that the document on stdout has already; people get it on stderr all the same."""

    def __init__(self, error: GpuhookError) -> None:
        super().__init__(error.reference, error.message, error.hint)
