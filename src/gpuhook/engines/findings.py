"""What the checks of all engines say in the same way. docs/errors.md (doctor-problem) has the names."""

import os
from collections.abc import Iterator, Sequence

from gpuhook.engines.host import Host
from gpuhook.engines.model import Finding


def files(engine: str, none: str, paths: Sequence[str]) -> Finding:
    """Which files an engine reads; `none` is said where it finds none."""
    if not paths:
        return Finding("note", "configuration", none)
    return Finding("ok", "configuration", f"{engine} reads {', '.join(paths)}")


def program(host: Host, path: str, where: str) -> Iterator[Finding]:
    """Problems with the program of a runtime, behind `where`; one without a folder is looked up in PATH."""
    real = host.real(path) if "/" in path else host.which(path) or ""
    if not os.path.exists(real):
        what = "is not there" if "/" in path else "is not in PATH"
    elif not (os.path.isfile(real) and os.access(real, os.X_OK)):
        what = "is no program: it can't be executed"
    else:
        return
    hint = "install gpuhook, or configure the engine anew"
    yield Finding("problem", "runtime-program", f"{where} {path}, which {what}", hint)


def default_runtime(ours: bool, default: str, otherwise: str) -> Finding:
    """What containers get that name no runtime; `otherwise` says how they get gpuhook's where that is not it."""
    if ours:
        return Finding("ok", "default-runtime", f"{default} is the default runtime")
    return Finding("note", "default-runtime", f"the default runtime is {default}: {otherwise}")
