"""daemon.json as dockerd reads it. Off the hot path."""

import json
import os
from typing import Any

import jsonschema

from gpuhook.engines import jsontext
from gpuhook.engines.host import Host
from gpuhook.errors import GpuhookError, shown

_KINDS = {"object": "an object {...}", "array": "a list [...]", "string": "a string", "boolean": "true or false"}


def load(host: Host, path: str) -> tuple[dict[str, Any], str]:
    """A daemon.json as (document, text); a file that is not there is empty.

    GpuhookError `engine-config-unreadable`, or `engine-config-invalid` with file and line.
    """
    text = host.read(path) or ""
    document = jsontext.parse(path, text)
    _validate(path, text, document)
    return document, text


def _validate(path: str, text: str, document: dict[str, Any]) -> None:
    """GpuhookError `engine-config-invalid` with file and line where a key has a type that dockerd can't read."""
    with open(os.path.join(os.path.dirname(__file__), "docker-schema.json"), encoding="utf-8") as file:
        validator = jsonschema.Draft202012Validator(json.load(file))
    errors = sorted(validator.iter_errors(document), key=lambda error: [str(key) for key in error.absolute_path])
    if not errors:
        return
    keys = [str(key) for key in errors[0].absolute_path]
    named = [key for key in errors[0].absolute_path if isinstance(key, str)]
    wanted = [_KINDS[kind] for kind in errors[0].validator_value if kind in _KINDS]
    if isinstance(errors[0].validator_value, str):
        wanted = [_KINDS[errors[0].validator_value]]
    raise GpuhookError(
        "engine-config-invalid",
        f"{at(path, text, tuple(named))}: `{'.'.join(keys)}` must be {' or '.join(wanted)} for dockerd, "
        f"and is {shown(json.dumps(errors[0].instance))}",
        "correct that line; nothing was changed",
    )


def at(path: str, text: str, keys: tuple[str, ...]) -> str:
    """`file:line` of a key."""
    line = jsontext.line_of(text, keys)
    return f"{path}:{line}" if line else path


def runtimes(document: dict[str, Any]) -> dict[str, Any]:
    """`runtimes`; null is as good as none for dockerd."""
    return document.get("runtimes") or {}
