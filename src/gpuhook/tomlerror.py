"""What tomllib says of a text that is no TOML, in words for people who do not know Python.

Off the hot path. Python's library gives a place and a key only within its sentence, a key as a tuple.
"""

import ast
import re
from typing import NamedTuple

from gpuhook import tomlscan

_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = re.compile(rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*=")
_HEADER = re.compile(rf"\s*\[\[?\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*\]")
_NAMED = re.compile(r"Cannot (declare|mutate immutable namespace|redefine namespace) (\(.*\))(?: twice)?")


class TomlError(NamedTuple):
    """What is wrong and where: line and column from 1, the sentence, and what to do where that is known."""

    line: int
    column: int
    text: str
    hint: str = ""


def of(text: str, said: str) -> TomlError:
    """The error of a text by the sentence of tomllib's exception."""
    lines = text.split("\n")
    line, column = len(lines), len(lines[-1]) + 1
    place = _PLACE.search(said)
    if place:
        said = said[: place.start()]
        if place[1]:
            line, column = int(place[1]), int(place[2])
    named = _NAMED.fullmatch(said)
    if named:
        return TomlError(line, column, *_table("\n".join(lines[: line - 1]), ast.literal_eval(named[2])))
    if said == "Cannot overwrite a value":
        return TomlError(line, column, *_key("\n".join(lines[:line])))
    return TomlError(line, column, said[:1].lower() + said[1:])


def _table(before: str, path: tuple[str, ...]) -> tuple[str, str]:
    """A table that is opened again."""
    places = _places(before)
    for end in range(len(path), 0, -1):  # an inline table above takes none below
        name = ".".join(path[:end])
        at = [number for number, place in places if place == name]
        at += [number for number, place in places if place.startswith(f"{name}.")]
        if at:
            return f"the table [{name}] is at line {at[0]} already", "put its keys there"
    return f"the table [{'.'.join(path)}] is there already", "put its keys there"


def _key(text: str) -> tuple[str, str]:
    """The last key, which is set already."""
    *before, (_, name) = _places(text)
    at = [number for number, other in before if other == name]
    if at:
        return f"the key {name} is at line {at[-1]} already", "leave only one of them"
    return "a key is set that is there already", "leave only one of them"


def _places(text: str) -> list[tuple[int, str]]:
    """The line of each header and key, by its whole name."""
    found, table = [], ""
    for statement in tomlscan.statements(text):
        header, key = _HEADER.match(statement.text), _DOTTED.match(statement.text)
        if header:
            table = _bare(header[1])
            found.append((statement.line, table))
        elif key:
            found.append((statement.line, f"{table}.{_bare(key[1])}".strip(".")))
    return found


def _bare(name: str) -> str:
    return ".".join(part.strip("\"'") for part in re.findall(_KEY, name))
