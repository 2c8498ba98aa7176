"""What an engine's module asks of the gpuhook that the engine is told of: its runtime.toml, and what it runs."""

from gpuhook import configfile
from gpuhook.config import Config
from gpuhook.engines.host import Host
from gpuhook.engines.model import Finding, Options
from gpuhook.errors import GpuhookError


def runtime_toml(options: Options) -> str:
    """The path of the runtime.toml that goes with the runtime."""
    return f"{options.runtime.removesuffix('/usr/bin/gpuhook-runtime')}/etc/gpuhook/runtime.toml"


def settings(host: Host, options: Options) -> Config:
    """What runtime.toml says; the defaults where it is not there or broken (`doctor` says so elsewhere)."""
    try:
        data = host.read_bytes(runtime_toml(options))
    except GpuhookError:
        return Config()
    return configfile.parse(data or b"").config


def low_level(host: Host, options: Options) -> str:
    """The runtime that gpuhook-runtime runs, as found from here; empty where there is none."""
    found = (host.find(candidate, options.runtime) for candidate in settings(host, options).low_level)
    return next(filter(None, found), "")


def other_low_level(host: Host, options: Options, engine: str, theirs: str) -> tuple[Finding, ...]:
    """What is said where gpuhook-runtime runs another runtime than the engine's usual one, `theirs`.

    Report R145: CRI-O ships its own crun outside PATH, and gpuhook does not see which one the engine would have used.
    """
    found = low_level(host, options)
    if not theirs or not host.runnable(theirs) or any(host.same(theirs, path) for path in (options.runtime, found)):
        return ()
    does = f"runs {found}" if found else "finds no low-level runtime"
    text = f"{engine} runs {theirs} where gpuhook is not asked for, and {options.runtime} {does}"
    hint = f'to keep {theirs}: low-level = ["{theirs}"] below [runtime] in {runtime_toml(options)}'
    return (Finding("note", "low-level", text, hint),)
