"""`gpuhook explain`: what one container would get and why, by the very functions of shim and hook. Changes nothing.

`explanation` gathers a JSON document; `explain_text` prints it for people.
"""

import os
from contextlib import suppress
from typing import Any

import click

from gpuhook import config, grant, oci, request, shim
from gpuhook.cli import explain_plan, explain_text, imageconfig, prefix, render
from gpuhook.config import Config
from gpuhook.errors import GpuhookError, shown
from gpuhook.model import Container, replace


@click.command(
    epilog="""\b
Examples:
  gpuhook explain .                                     # a bundle: the folder of a config.json
  gpuhook explain /run/.../config.json --json
  gpuhook explain --env NVIDIA_VISIBLE_DEVICES=all      # no container: what this environment would bring
  gpuhook explain . --env NVIDIA_DRIVER_CAPABILITIES=all
  gpuhook explain --image-config nvidia/cuda:12.4.1-base-ubuntu22.04    # of the local docker or podman
  gpuhook explain --image-config config.json --env NVIDIA_VISIBLE_DEVICES=0
  gpuhook explain "$(podman inspect --format '{{.OCIConfigPath}}' NAME)"

\b
Bundles of running containers, by their full ID:
  docker      /run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/ID
              with the host's containerd: /run/containerd/io.containerd.runtime.v2.task/moby/ID
  containerd  /run/containerd/io.containerd.runtime.v2.task/NAMESPACE/ID (k8s.io, default)
  podman      where podman inspect has OCIConfigPath

Exit status: 0 if gpuhook lets the container start; if it would refuse it, the code of that error (docs/errors.md).
"""
)
@click.argument("bundle", required=False, metavar="[BUNDLE_DIR | CONFIG.json]", type=click.Path())
@click.option(
    "--image-config",
    "image",
    type=click.Path(),
    metavar="FILE|IMAGE",
    help="The environment of an image: a file with its configuration, or its name at the local docker or podman.",
)
@click.option("--env", "-e", "env", multiple=True, metavar="NAME=VALUE", help="Add or change a variable (repeatable).")
@click.option("--annotation", multiple=True, metavar="NAME=VALUE", help="Add or change an annotation (repeatable).")
@click.option("--privileged", is_flag=True, help="As if the container had CAP_SYS_ADMIN.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def explain(  # noqa: PLR0917 - click names them
    bundle: str | None,
    image: str | None,
    env: tuple[str, ...],
    annotation: tuple[str, ...],
    privileged: bool,
    as_json: bool,
) -> None:
    """Say what a container would get of this host's GPUs, and why; or why it would be refused.

    Nothing is started and nothing is written, but for the record of the driver where that is out of date. Without a
    bundle no image is looked at, and the paths in the container are those of a Debian image. Of --image-config the
    environment is taken, as a container of that image has it; labels of an image do not reach a runtime.
    """
    context = click.get_current_context()
    if bundle is None and image is None and not env and not annotation:
        raise click.UsageError("a bundle, --image-config or --env NAME=VALUE is needed", context)
    if bundle is not None and image is not None:
        raise click.UsageError("a bundle has its environment already: give it or --image-config, not both", context)
    where = prefix()
    settings = config.load(where)
    spec = None if bundle is None else _spec(bundle)
    taken = None if image is None else imageconfig.read(image)
    container = Container(env=taken.env if taken else ()) if spec is None else spec.container()
    container = replace(
        container,
        env=container.env + _pairs("--env", env),
        annotations=container.annotations + _pairs("--annotation", annotation),
        privileged=container.privileged or privileged,
    )
    document, error = explanation(container, spec, settings, where)
    if taken is not None:
        document["container"]["image_config"] = taken.source
        driver = document.get("driver") or {}
        document["notes"] += imageconfig.notes(taken, driver.get("machine", ""))
    if as_json:
        click.echo(render.document(document))
    else:
        click.echo("\n".join(explain_text.lines(document)))
    if error is not None:
        raise render.ToldError(error)


def _spec(bundle: str) -> oci.Spec:
    """The spec of a bundle, or of a config.json that is named itself."""
    path = f"{bundle}/config.json" if os.path.isdir(bundle) else bundle
    try:
        return oci.Spec(os.path.abspath(path))
    except GpuhookError as error:
        hint = (
            "give a bundle's folder or a config.json (gpuhook explain --help says where engines keep them), or an image"
            " by --image-config; --env NAME=VALUE needs neither"
        )
        raise GpuhookError(error.reference, error.message, hint) from None


def _pairs(option: str, items: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """NAME=VALUE of the command line. UsageError."""
    for item in items:
        if not item.partition("=")[0] or "=" not in item:
            raise click.UsageError(f"{option} takes NAME=VALUE, not {item!r}", click.get_current_context())
    return tuple((item.partition("=")[0], item.partition("=")[2]) for item in items)


def explanation(
    container: Container, spec: oci.Spec | None, settings: Config, where: str
) -> tuple[dict[str, Any], GpuhookError | None]:
    """All that is known of the container, and the error that it would be refused with.

    `outcome` is `granted`, `nothing` (it asks for nothing) or `refused`; what a refused one would have got is shown as
    far as it is known.
    """
    looked = container.root if os.path.isdir(container.root) else ""
    document: dict[str, Any] = {
        "outcome": "granted",
        "container": {
            "config": spec.path if spec else "",
            "image_config": "",
            "root": container.root,
            "image_looked_at": bool(looked),
            "privileged": container.privileged,
            "sandbox": container.sandbox,
        },
        "warnings": [],
        "notes": [],
        "error": None,
    }
    named, container = container, replace(container, root=looked)
    try:
        asked = None if container.sandbox else request.read(container, settings)
        if asked is None:
            document |= {"outcome": "nothing", "why_not": request.why_not(container, settings)}
            return document, None
        document["request"] = explain_plan.request_part(container, asked, settings)
        document["warnings"] += asked.warnings
        try:
            granted = grant.decide(container, settings, where)
        except GpuhookError:
            with suppress(GpuhookError):  # as much as is known; the error itself is the one above
                explain_plan.add_host(document, container, asked, settings, where)
            raise
        if granted is not None:
            document["warnings"] = [*granted.warnings, *explain_plan.hints(container, granted)]
            if spec is not None and not looked:
                document["warnings"].append(f"{shown(named.root, 200)} is not there: a runtime refuses this container")
            explain_plan.add_host(document, container, asked, settings, where)
            explain_plan.add_grant(document, granted)
            if spec is not None:
                document["hook"] = _hook(spec, named, granted, settings, where)
            # without a spec as for one that an engine writes: it masks paths, so /proc/driver/nvidia is shown
            explain_plan.add_plan(document, container, granted, settings, spec.orders() if spec else ["--proc"])
    except GpuhookError as error:
        document |= {"outcome": "refused", "error": render.failure(error)}
        return document, error
    return document, None


def _hook(
    spec: oci.Spec, container: Container, granted: grant.Grant, settings: Config, where: str
) -> dict[str, object]:
    """The hook entry that the shim would write, and whose place it would take; in memory only."""
    replaced = shim.write(spec, container, granted, settings, where)
    hooks: Any = spec.data["hooks"]
    entry = next(item for item in hooks[settings.stage] if os.path.basename(str(item.get("path"))) == oci.HOOK)
    return {"stage": settings.stage, "entry": entry, "replaces": list(replaced)}
