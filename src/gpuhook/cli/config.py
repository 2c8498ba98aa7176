"""`gpuhook config`: what is in force, whether a runtime.toml is right, where it lies; `import` has its own module."""

import json
import os
from typing import Any

import click

from gpuhook import config as configuration
from gpuhook import configfile, configtrust
from gpuhook.cli import configschema, prefix, render
from gpuhook.cli.config_import import import_
from gpuhook.errors import GpuhookError, shown


@click.group(
    epilog="""\b
Examples:
  gpuhook config show
  gpuhook config validate
  gpuhook config validate ./runtime.toml
  gpuhook config import
"""
)
def config() -> None:
    """Show and check gpuhook's configuration (runtime.toml), or take over that of NVIDIA's toolkit."""


config.add_command(import_)


@config.command(
    short_help="Print every key with the value in force.",
    epilog="""\b
Examples:
  gpuhook config show
  gpuhook config show | grep '# file'                         # what runtime.toml itself sets
  gpuhook config show --json | jq '.keys["hook.stage"].value'
""",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def show(as_json: bool) -> None:
    """Print every key with the value in force, and whether the file or the default gives it."""
    path = configuration.paths(prefix()).config
    parsed = configfile.parse(_content(path, trust=True) if os.path.lexists(path) else b"")
    if parsed.problems:
        configfile.refuse(path, parsed.problems)
    rows = [(key, getattr(parsed.config, key.field), _source(key, parsed)) for key in configfile.KEYS]
    if as_json:
        keys = {key.dotted: {"value": item, "source": source} for key, item, source in rows}
        click.echo(render.document({"path": path, "keys": keys}))
        return
    click.echo(f"# {path}" + ("" if os.path.lexists(path) else " (not there: defaults)"))
    section = ""
    for key, item, source in rows:
        if key.section != section:
            section = key.section
            click.echo(f"\n[{section}]")
        click.echo(f"{key.name} = {_toml(item)}  # {source}")


@config.command(
    short_help="Check a runtime.toml.",
    epilog="""\b
Examples:
  gpuhook config validate                   # the one in force
  gpuhook config validate ./runtime.toml    # a draft
""",
)
@click.argument("file", required=False, type=click.Path())
def validate(file: str | None) -> None:
    """Check FILE, or the runtime.toml in force: every error with its line. Exit status 0 means that it is right.

    A FILE that is named need not be trusted (owner and mode) as the one in force must be.
    """
    path = file or configuration.paths(prefix()).config
    if file is None and not os.path.lexists(path):
        click.echo(f"{path} is not there: the defaults hold")
        return
    data = _content(path, trust=file is None)
    problems = configfile.parse(data).problems or configschema.problems(data)
    if problems:
        configfile.refuse(path, problems)
    click.echo(f"{path} is right")


@config.command(
    short_help="Print where the runtime.toml in force lies.",
    epilog="""\b
Example:
  sudoedit "$(gpuhook config path)"
""",
)
def path() -> None:
    """Print where the runtime.toml in force lies, be it there or not."""
    click.echo(configuration.paths(prefix()).config)


def _content(path: str, trust: bool) -> bytes:
    """The text of a runtime.toml; the one in force must be trusted, a draft need not be."""
    if trust:
        return configtrust.read(path, configuration.LIMIT)[0]
    try:
        with open(path, "rb") as file:
            data = file.read(configuration.LIMIT + 1)
    except OSError as error:
        hint = "name a runtime.toml, or no file for the one in force (gpuhook config path says where that is)"
        raise GpuhookError("config-invalid", f"{shown(path, 200)} can't be read: {error.strerror}", hint) from None
    if len(data) > configuration.LIMIT:
        text = f"{shown(path, 200)} is longer than {configuration.LIMIT} bytes"
        raise GpuhookError("config-invalid", text, "leave out comments, or see whether it is a runtime.toml at all")
    return data


def _source(key: configfile.Key, parsed: configfile.Parsed) -> str:
    return "file" if key.dotted in parsed.given else "default"


def _toml(item: Any) -> str:
    """A value as it is written in runtime.toml; JSON's texts, numbers and lists are TOML too."""
    return json.dumps(list(item) if isinstance(item, tuple) else item)
