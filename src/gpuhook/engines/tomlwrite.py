"""How values, keys and new elements are written in TOML, in the layout of what stands around them."""

import datetime
import json
import re

from gpuhook.engines import model, tomlscan
from gpuhook.engines.tree import Path

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LITERAL = re.compile(r"[^'\x00-\x1f\x7f]*")


def key(text: str) -> str:
    """A key, in quotation marks where it needs them."""
    return text if _BARE.fullmatch(text) else string(text)


def dotted(path: Path) -> str:
    """A path as a key of several parts."""
    return ".".join(map(key, path))


def string(text: str) -> str:
    """A text in double quotation marks; JSON's escapes are TOML's, but TOML wants one for DEL too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def value(item: model.Value) -> str:
    """A value in one line."""
    if isinstance(item, dict):
        pairs = ", ".join(f"{key(name)} = {value(inner)}" for name, inner in item.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(item, list):
        return f"[{', '.join(map(value, item))}]"
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):
        return string(item)
    if isinstance(item, datetime.datetime | datetime.date | datetime.time):
        return item.isoformat()
    return repr(item)


def value_as(item: model.Value, old: str) -> str:
    """A value in place of `old`: a text keeps to single quotation marks where it can."""
    if isinstance(item, str) and re.match("'(?!'')|''$", old) and _LITERAL.fullmatch(item):
        return f"'{item}'"
    return value(item)


def indentation(text: str, at: int) -> str:
    """The blanks that begin the line of a position."""
    start = text.rfind("\n", 0, at) + 1
    return text[start : start + len(text[start:at]) - len(text[start:at].lstrip(" \t"))]


def _comma(text: str, at: int) -> int:
    """Where the comma after an element is, behind blanks and comments; -1 where none is."""
    found = tomlscan.FILL.match(text, at)
    at = found.end() if found else at
    return at if text[at] == "," else -1


def _line_end(text: str, at: int, limit: int, newline: str) -> int:
    """Where the line of `at` ends, before its line end; -1 where it goes on to `limit`."""
    end = text.find(newline, at, limit)
    return end if end >= 0 else text.find("\n", at, limit)


def insert(text: str, into: tomlscan.Value, new: str, newline: str) -> str:
    """Make `new` the last of a list or an inline table."""
    spans = into.spans()
    close = into.end - 1
    if not spans:
        blank = text[into.start + 1 : close]
        if "\n" not in blank:
            return text[: into.start + 1] + blank + new + blank + text[close:]
        at = into.start + 1 + len(blank.rstrip())
        return text[:at] + newline + indentation(text, into.start) + "    " + new + text[at:]
    start, end = spans[-1]
    before = spans[-2][1] if len(spans) > 1 else into.start + 1
    comma = _comma(text, end)
    if "\n" not in text[before:start]:
        return f"{text[:end]}, {new}{text[end:]}" if comma < 0 else f"{text[: comma + 1]} {new},{text[comma + 1 :]}"
    new = newline + text[text.rfind("\n", 0, start) + 1 : start] + new
    if comma >= 0:
        at = _line_end(text, comma, close, newline)
        at = comma + 1 if at < 0 else at
        return text[:at] + new + "," + text[at:]
    at = _line_end(text, end, close, newline)
    at = end if at < 0 else at
    return text[:end] + "," + text[end:at] + new + text[at:]


def take_out(text: str, out_of: tomlscan.Value, index: int) -> str:
    """Take an element out, with the comma, the line and the blanks that only it needs; comments stay."""
    spans = out_of.spans()
    start, end = spans[index]
    comma = _comma(text, end)
    before = spans[index - 1][1] if index else out_of.start + 1
    line = text.rfind("\n", 0, start)
    if line >= before and not text[line + 1 : start].strip(" \t"):
        line -= text[line - 1] == "\r"
        if comma >= 0:
            return text[:line] + text[end:comma] + text[comma + 1 :]
        if not index:
            return text[:line] + text[end:]
        previous = _comma(text, before)
        return text[:previous] + text[previous + 1 : line] + text[end:]
    if comma >= 0:
        first = _comma(text, before) + 1 if index else start
        last = comma + 1
        while not index and text[last] in " \t":
            last += 1
        return text[:first] + text[end:comma] + text[last:]
    if index:
        return text[: _comma(text, before)] + text[end:]
    close = out_of.end - 1
    return text[:start] + text[end if text[end:close].strip(" \t") else close :]
