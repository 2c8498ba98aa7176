"""`gpuhook check`: does a driver meet a requirement? It needs no container, and with `--driver` no driver."""

import click

from gpuhook import cuda, refusal, requirement, version
from gpuhook.cli import prefix, render
from gpuhook.cli.explain_text import WAYS
from gpuhook.errors import GpuhookError
from gpuhook.model import Demand, Gpu
from gpuhook.requirement import Host, Outcome, Requirement, Verdict

ORIGIN = "EXPR"  # stands where a container's error names the variable
_NEWER = "4294967295"  # newer than any driver: what `--compat-libs yes` says of the libraries


def _version(_context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is not None and version.parse(text) is None:
        raise click.BadParameter("digits and dots are expected, as in 12.4", param=option)
    return text


def _driver_version(_context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is not None and not version.parse_loose(text):
        raise click.BadParameter("a driver version is expected, as in 535.161.08", param=option)
    if text is not None and version.parse_loose(text)[0] < cuda.BRANCHES[0][0]:
        raise click.BadParameter(f"nothing is known of drivers before {cuda.BRANCHES[0][0]}", param=option)
    return text


def _libraries(_context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """What the image's libraries are to the judgement: None (not known), `` (none) or a driver version."""
    if text is None or text == "no":
        return None if text is None else ""
    if text == "yes":
        return _NEWER
    if version.parse(text) is None:
        raise click.BadParameter("yes, no or a driver version is expected, as in 560.35.05", param=option)
    return text


@click.command(
    epilog="""\b
Examples:
  gpuhook check 'cuda>=12.6'
  gpuhook check 'cuda>=12.6 brand=tesla,driver>=535,driver<536' --driver 535.161.08 --brand tesla
  gpuhook check 'cuda>=12.6' --driver 535.161.08 --policy minor-compat
  gpuhook check 'arch>=8.0' --driver 580.95.05 --arch 7.5 --json

Exit status: 0 if it is met, 41 if not, 40 if it can't be parsed; of this host's driver, the code of its error.
"""
)
@click.argument("expr")
@click.option(
    "--driver", callback=_driver_version, metavar="V", help="Driver version; else this host's driver and GPUs."
)
@click.option("--cuda", "level", callback=_version, metavar="V", help="CUDA level of the driver; else by its branch.")
@click.option("--brand", metavar="B", help="Brand of the GPU, as in NVIDIA_REQUIRE_CUDA (tesla, geforcertx, ...).")
@click.option("--arch", callback=_version, metavar="A", help="Compute capability of the GPU, as in 8.9.")
@click.option(
    "--policy", type=click.Choice(requirement.POLICIES), help="Else strict; for this host, what runtime.toml says."
)
@click.option(
    "--compat-libs",
    "compat",
    callback=_libraries,
    metavar="yes|no|V",
    help="The image's forward-compatibility libraries.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def check(  # noqa: PLR0917 - click names them
    expr: str,
    driver: str | None,
    level: str | None,
    brand: str | None,
    arch: str | None,
    policy: str | None,
    compat: str | None,
    as_json: bool,
) -> None:
    """Say whether a driver meets EXPR, the value of an NVIDIA_REQUIRE_* variable.

    Without --driver this host's driver and each of its GPUs are judged. Without --brand or --arch (and no GPU of this
    host) conditions on them count as met. No image is at hand: an alternative without a cuda condition presumes
    forward-compatibility libraries, and this says so, unless --compat-libs tells.
    """
    try:
        parsed = requirement.parse(Demand(ORIGIN, expr))
        if driver is None:
            host, gpus, in_force = _this_host()
        else:
            host, gpus, in_force = Host(driver, *cuda.level_for_driver(driver)), (), "strict"
        if level is not None:
            host = Host(host.driver, version.parse(level) or (), False)
        gpus = _gpus(gpus, brand, arch)
        verdict = requirement.judge((parsed,), host, gpus, policy or in_force, lambda: compat)
        error = None if verdict.met else _unmet(verdict)
    except GpuhookError as failure:
        if as_json:
            click.echo(render.document({"met": False, "error": render.failure(failure)}))
        raise render.ToldError(failure) from None
    if as_json:
        click.echo(render.document(_document(verdict, gpus, error)))
    else:
        _print(verdict, parsed, gpus)
    if error:
        raise render.ToldError(error)


def _unmet(verdict: Verdict) -> GpuhookError:
    """A container's refusal, without the variable that it would name."""
    error = refusal.error(verdict, (), True)
    hint = error.hint.replace(f" ({ORIGIN})", "").replace(f"({ORIGIN}, ", "(")
    return GpuhookError(error.reference, error.message, hint)


def _this_host() -> tuple[Host, tuple[Gpu, ...], str]:
    """This host's driver, its GPUs and the requirement policy in force."""
    from gpuhook import config  # noqa: PLC0415 - a check of another machine needs neither
    from gpuhook.driver import record  # noqa: PLC0415

    where = prefix()
    settings = config.load(where)
    known = record.load(settings, where)
    return Host(known.driver, known.cuda, known.cuda_assumed), known.gpus, settings.policy


def _gpus(gpus: tuple[Gpu, ...], brand: str | None, arch: str | None) -> tuple[Gpu, ...]:
    """The GPUs to judge: the host's, or one made of what the command line says."""
    if brand is None and arch is None:
        return gpus
    name = f"a {brand} GPU" if brand else "a GPU"
    return (Gpu(0, "", 0, "", name, brand or "", version.parse(arch or "") or ()),)


def _print(verdict: Verdict, parsed: Requirement, gpus: tuple[Gpu, ...]) -> None:
    if not verdict.results:
        reason = "the policy is off" if verdict.policy == "off" else "EXPR is blank"
        click.echo(f"needed:  nothing: {reason}")
        click.echo(f"found:   {_driver(verdict.host)}")
        return
    result = verdict.results[0]
    count = len(parsed.alternatives)
    which = "" if count == 1 else f" (of {count} alternatives the {'one that is met' if result.met else 'closest'})"
    click.echo(f"needed:  {requirement.visible(result.closest, 160)}{which}")
    devices = [_gpu(gpu) for gpu in gpus[:1]] if len(gpus) < 2 else []
    click.echo(f"found:   {'; '.join([_driver(verdict.host), *devices])}")
    if len(gpus) < 2:
        click.echo(f"verdict: {WAYS[result.outcomes[0].way]}")
    else:
        click.echo("verdict:")
        for outcome in result.outcomes:
            click.echo(f"  {_device(outcome)}: {WAYS[outcome.way]}")
    for text in verdict.notes:
        click.echo(f"note:    {text}")
    for text in verdict.warnings:
        click.echo(f"warning: {text}")


def _driver(host: Host) -> str:
    how = " (assumed from the branch)" if host.cuda_assumed else ""
    return f"driver {requirement.visible(host.driver, 40)}, CUDA up to {version.text(host.cuda)}{how}"


def _gpu(gpu: Gpu) -> str:
    parts = [f"brand {requirement.visible(gpu.brand, 24)}"] if gpu.brand else []
    if gpu.arch:
        parts.append(f"compute capability {version.text(gpu.arch)}")
    return ", ".join(parts)


def _device(outcome: Outcome) -> str:
    if outcome.gpu is None:
        return "no GPU"
    return f"GPU {outcome.gpu.index} ({requirement.visible(outcome.gpu.name, 48)}; {_gpu(outcome.gpu)})"


def _document(verdict: Verdict, gpus: tuple[Gpu, ...], error: GpuhookError | None) -> dict[str, object]:
    result = verdict.results[0] if verdict.results else None
    return {
        "met": verdict.met,
        "policy": verdict.policy,
        "needed": result.closest if result else "",
        "alternatives": len(result.requirement.alternatives) if result else 0,
        "found": {
            "driver": verdict.host.driver,
            "cuda": version.text(verdict.host.cuda),
            "cuda_assumed": verdict.host.cuda_assumed,
            "gpus": [
                {"index": gpu.index, "name": gpu.name, "brand": gpu.brand, "arch": version.text(gpu.arch)}
                for gpu in gpus
            ],
        },
        "ways": [outcome.way or "not met" for outcome in result.outcomes] if result else [],
        "notes": list(verdict.notes),
        "warnings": list(verdict.warnings),
        "error": render.failure(error) if error else None,
    }
