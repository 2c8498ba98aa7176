"""The published schema of runtime.toml as a second opinion."""

import importlib.resources
import json
import tomllib

import jsonschema

from gpuhook import configfile
from gpuhook.configfile import Problem


def problems(data: bytes) -> tuple[Problem, ...]:
    """What the published schema refuses: a second opinion on a file that our own checks found right."""
    text = data.decode()
    schema = json.loads(importlib.resources.files("gpuhook").joinpath("runtime-schema.json").read_text("utf-8"))
    lines = text.splitlines()
    found = []
    for error in jsonschema.Draft202012Validator(schema).iter_errors(tomllib.loads(text)):
        at = [str(part) for part in error.absolute_path if isinstance(part, str)]
        line = configfile.find(lines, at[0], at[1] if len(at) > 1 else "") if at else 0
        found.append(Problem(line, ".".join(at), error.message))
    return tuple(sorted(found))
