"""`gpuhook list`: the files of this host's driver that containers get, by the capability that brings them."""

import itertools

import click

from gpuhook import config
from gpuhook.cli import prefix, render
from gpuhook.driver import record
from gpuhook.model import DriverFile


@click.command(
    "list",
    epilog="""\b
Examples:
  gpuhook list
  gpuhook list --capability utility
  gpuhook list --capability '*'                  # what each container with a driver gets; quoted, for the shell
  gpuhook list --json | jq -r '.files[].path'    # their paths on the host
""",
)
@click.option(
    "--capability",
    type=click.Choice((*config.CAPABILITIES, "*")),
    help="Only the files of one capability; * are those that every container with a driver gets.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def list_(capability: str | None, as_json: bool) -> None:
    """List the driver's files that containers get: capability, kind, path on the host, name and links in the container.

    On a terminal a file's path stands below its capability and kind, what else there is to say of it below that; in a
    pipe each file is a line: capability, kind, name in the container, links, path, with tabs between.

    What the driver has and no container gets is listed after them with the reason (in a pipe: on stderr).
    """
    where = prefix()
    settings = config.load(where)
    known = record.load(settings, where)
    root = settings.driver_root.rstrip("/")
    files = sorted(
        [item for item in known.files if capability in (None, item.capability, *item.capability.split("+"))],
        key=lambda item: (item.capability, item.kind, item.name),
    )
    left_out = [(root + path, reason) for path, reason in record.left_out(where)]
    if as_json:
        data = {
            "driver": known.driver,
            "files": [_document(item, root) for item in files],
            "left_out": [{"path": path, "reason": reason} for path, reason in left_out],
        }
        click.echo(render.document(data))
        return
    click.echo(
        "\n".join(_for_people(files, known.driver, root) if render.on_terminal() else _for_programs(files, root))
    )
    for path, reason in left_out:
        click.echo(
            render.faint(f"left out: {render.plain(path)}: {render.plain(reason)}"), err=not render.on_terminal()
        )


def _for_programs(files: list[DriverFile], root: str) -> list[str]:
    rows = [
        (item.capability, item.kind, item.target or item.name, " ".join(item.links) or "-", root + item.path)
        for item in files
    ]
    return ["\t".join(render.plain(cell) for cell in row) for row in rows]


def _for_people(files: list[DriverFile], driver: str, root: str) -> list[str]:
    """A table would be as wide as three screens: paths have up to 80 characters, links nearly as many."""
    lines = [f"driver {render.plain(driver)}"]
    for (capability, kind), items in itertools.groupby(files, lambda item: (item.capability, item.kind)):
        lines += ["", render.strong(f"{'every capability' if capability == '*' else capability}, {kind}")]
        for item in items:
            lines.append(f"  {render.plain(root + item.path)}")
            if item.target and item.target != item.path:
                lines.append(f"    in the container {render.plain(item.target)}")
            if item.links:
                lines.append(f"    links {render.plain(' '.join(item.links))}")
    return lines


def _document(item: DriverFile, root: str) -> dict[str, object]:
    return {
        "capability": item.capability,
        "kind": item.kind,
        "path": root + item.path,
        "name": item.name,
        "soname": item.soname,
        "links": list(item.links),
        "bits": item.bits,
        "target": item.target,
    }
