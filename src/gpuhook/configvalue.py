"""What a value of runtime.toml may be: checks that return it as Config has it, or raise BadValueError.

Cold, as configfile.py, whose table of keys names them.
"""

import difflib
import re
from collections.abc import Callable
from typing import Any

from gpuhook import fastpath
from gpuhook.config import CAPABILITIES
from gpuhook.errors import shown

Check = Callable[[Any], Any]


class BadValueError(Exception):
    """A value that a key cannot take: what was found, what to write instead, and the part of it that is bad."""

    def __init__(self, text: str, hint: str = "", part: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint
        self.part = part


def shape(item: object) -> str:
    """What a value is, in words."""
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}
    return names.get(type(item), "a table" if isinstance(item, dict) else "a date or time")


def _text(item: object) -> str:
    if not isinstance(item, str):
        raise BadValueError(
            f"must be text in quotes, is {shape(item)} ({shown(item)})", f'write "{item}" in double quotes'
        )
    if not item.isprintable():
        raise BadValueError(f"has unprintable characters: {shown(item)}", "", item)
    return item


def boolean(item: object) -> bool:
    """true or false."""
    if not isinstance(item, bool):
        raise BadValueError(
            f"must be true or false, is {shape(item)} ({shown(item)})", "write true or false without quotes"
        )
    return item


def seconds(most: int) -> Check:
    """Whole seconds from 1 to `most`."""

    def check(item: object) -> int:
        if not isinstance(item, int) or isinstance(item, bool):
            raise BadValueError(
                f"must be whole seconds, is {shape(item)} ({shown(item)})", f"write a number from 1 to {most}"
            )
        if not 1 <= item <= most:
            raise BadValueError(f"is {item}, and must be 1 to {most} seconds", f"write a number from 1 to {most}")
        return item

    return check


def one_of(*words: str) -> Check:
    """One of these words."""

    def check(item: object) -> str:
        if _text(item) not in words:
            raise BadValueError(f"is {shown(item)}, and must be one of: {', '.join(words)}", nearest(str(item), words))
        return str(item)

    return check


def list_of(check: Check, least: int = 0, most: int = 64) -> Check:
    """A list of `least` to `most` entries that pass `check`; each once."""

    def whole(item: object) -> tuple[str, ...]:
        if not isinstance(item, list):
            raise BadValueError(f"must be a list, is {shape(item)} ({shown(item)})", 'write a list: ["one", "two"]')
        if len(item) < least:
            raise BadValueError("is an empty list", f"name at least {least}, or remove the key for the default")
        if len(item) > most:
            raise BadValueError(f"has {len(item)} entries, and at most {most} are taken")
        return tuple(dict.fromkeys([check(entry) for entry in item]))

    return whole


def absolute_path(item: object) -> str:
    """An absolute path without detours and without a slash at its end."""
    text = _text(item)
    if not text.startswith("/"):
        raise BadValueError(f"{shown(text)} is no absolute path", "write a path that starts with /", text)
    if len(text) > 4095 or ".." in text.split("/"):
        raise BadValueError(f"{shown(text)} has a .. in it or is too long", "write the path without detours", text)
    return re.sub("/+", "/", text).rstrip("/") or "/"


def deep_path(item: object) -> str:
    """An absolute path below a directory of the root: not all of /usr goes to containers."""
    path = absolute_path(item)
    if path.count("/") < 2:
        raise BadValueError(
            f"{shown(item)} is too wide to be given to containers", "name something below it", str(item)
        )
    return path


def file_pattern(item: object) -> str:
    """A file's name, with `*` and `?` where it varies."""
    text = _text(item)
    if "/" in text or not text:
        raise BadValueError(f"{shown(text)} is no file name", "write a file name, with * and ? where it varies", text)
    if re.search(r"[^A-Za-z0-9._+*?-]", text):
        raise BadValueError(
            f"{shown(text)} has a character that patterns do not know", "* and ? are the only wildcards", text
        )
    if len(re.split(r"[*?]", text)[0]) < 3:
        raise BadValueError(
            f"{shown(text)} would match nearly every file", "begin with at least three plain characters", text
        )
    return text


def program(item: object) -> str:
    """A name that is found in PATH, or an absolute path; the shell launcher reads it unquoted."""
    text = _text(item)
    if not re.fullmatch(fastpath.NAME, text) or text.rsplit("/", 1)[-1] in ("", ".", ".."):
        raise BadValueError(f"{shown(text)} is no program name", "letters, digits and . _ + - / only", text)
    if "/" in text and not text.startswith("/"):
        raise BadValueError(
            f"{shown(text)} is a relative path", "write a bare name, found in PATH, or an absolute path", text
        )
    if text.rsplit("/", 1)[-1].startswith("gpuhook"):
        raise BadValueError(
            f"{shown(text)} is gpuhook itself", "name the runtime that gpuhook stands for: runc or crun", text
        )
    return text


def _capability(item: object) -> str:
    text = _text(item)
    if text not in (*CAPABILITIES, "all"):
        raise BadValueError(
            f"{shown(text)} is no capability; there are {', '.join(CAPABILITIES)} and all",
            nearest(text, CAPABILITIES),
            text,
        )
    return text


def capabilities(item: object) -> tuple[str, ...]:
    """A list of words of NVIDIA_DRIVER_CAPABILITIES; `all` is all of them."""
    words = list_of(_capability)(item)
    return CAPABILITIES if "all" in words else tuple(sorted(words))


def variable(item: object) -> str:
    """A name of an environment variable."""
    text = _text(item)
    if not re.fullmatch(fastpath.VARIABLE, text) or len(text) > 255:
        raise BadValueError(
            f"{shown(text)} is no name of a variable", "letters, digits and _ . - only, as in DOCKER_RESOURCE_GPU", text
        )
    return text


def annotation_prefix(item: object) -> str:
    """The beginning of an annotation's name."""
    text = _text(item)
    if not re.fullmatch(fastpath.PREFIX, text) or not 4 <= len(text) <= 255:
        raise BadValueError(
            f"{shown(text)} is no beginning of an annotation's name",
            'write the domain and its slash: "cdi.k8s.io/"',
            text,
        )
    return text


def log_file(item: object) -> str:
    """An absolute path; empty for the usual place, `none` for no log."""
    return _text(item) if item in ("", "none") else absolute_path(item)


def nearest(word: str, words: tuple[str, ...], known: str = "") -> str:
    """`did you mean X`; `known` where none is near."""
    near = difflib.get_close_matches(word.lower().replace("_", "-"), words, 1)
    return f"did you mean {near[0]}" if near else known
