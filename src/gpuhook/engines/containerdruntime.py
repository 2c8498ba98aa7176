"""Our runtime in containerd's CRI table: what of the present default's is copied, and what is ours."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from posixpath import basename
from typing import Any

from gpuhook.engines.containerdconfig import LINUX_V1, RUNC_V2, V1, Loaded, Table, table
from gpuhook.engines.model import Add, Options, Set, Step
from gpuhook.errors import GpuhookError, bare, shown

# What the request is read of (channels.py, request.py). The one has a slash and the other has not: `*` stops at one.
CONTAINER_ANNOTATIONS = ("cdi.k8s.io/*", "com.nvidia.*")  # device plugins write these
POD_ANNOTATIONS = ("com.nvidia.*",)  # and these come from the author of a pod
SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")
# containerd's CRI refuses runtimes of the v2 shim that have these.
_OLD_KEYS = ("runtime_engine", "runtime_root")


@dataclass(frozen=True)
class Base:
    """The runtime whose settings are copied: its name and table, and why it isn't the default's where it isn't."""

    name: str
    table: Table
    note: str = ""


def base(loaded: Loaded) -> Base:
    """The default runtime, or runc's where that is no runc: a VM's options would mean nothing."""
    runtimes = loaded.runtimes()
    old = table(loaded.cri(), "containerd", "default_runtime")
    said = table(loaded.cri(), "containerd").get("default_runtime_name")
    # microk8s's template has a variable there, which is runc's name at first
    name = said if isinstance(said, str) and said and "${" not in said else "runc"
    if old.get("runtime_type") and not loaded.deep:
        name, runtimes = "default_runtime", {**runtimes, "default_runtime": old}
    found = runtimes.get(name)
    if isinstance(found, dict) and is_runc(found):
        return Base(name, found)
    why = (
        f"the default runtime {shown(name)} is no runc" if found else f"the default runtime {shown(name)} has no table"
    )
    for other in ("runc", "crun"):
        candidate = runtimes.get(other)
        if isinstance(candidate, dict) and is_runc(candidate):
            return Base(other, candidate, f"{why}: the settings are copied from {other}'s")
    return Base("", {}, f"{why}, and neither runc nor crun has one: nothing is copied")


def is_runc(runtime: Table) -> bool:
    """Whether the shim of this runtime is runc's, so that a BinaryName means something to it."""
    kind = runtime.get("runtime_type") or RUNC_V2
    return isinstance(kind, str) and (kind == LINUX_V1 or bool(re.fullmatch(r"io\.containerd\.runc\.v[12]", kind)))


def wanted(loaded: Loaded, options: Options) -> Table:
    """The whole table of our runtime."""
    copied = base(loaded).table
    ours: Table = {key: value for key, value in copied.items() if key not in ("options", *_OLD_KEYS)}
    ours["runtime_type"] = RUNC_V2
    values = dict(table(copied, "options"))
    if copied.get("runtime_type") == LINUX_V1:
        values.pop("Runtime", None)
        root = values.pop("RuntimeRoot", "") or copied.get("runtime_root")
        if root:
            values["Root"] = root
        if loaded.cri().get("systemd_cgroup") is True:
            values["SystemdCgroup"] = True
    values["BinaryName"] = options.runtime
    present = table(loaded.runtimes(), options.runtime_name)
    for key, patterns in (("container_annotations", CONTAINER_ANNOTATIONS), ("pod_annotations", POD_ANNOTATIONS)):
        both = [*_strings(copied.get(key)), *_strings(present.get(key)), *patterns]
        ours[key] = list(dict.fromkeys(both))
    ours["options"] = values
    return ours


def steps(loaded: Loaded, options: Options) -> tuple[Step, ...]:
    """What makes our runtime part of the CRI table."""
    top = ("plugins", loaded.plugin)
    at = (*top, "containerd", "runtimes", options.runtime_name)
    present = table(loaded.runtimes(), options.runtime_name)
    result: list[Step] = []
    configured = table(loaded.cri(), "containerd", "runtimes")
    if not loaded.deep and loaded.version < 3 and not configured and options.runtime_name != "runc":
        # In 1.x a table of runtimes takes the place of containerd's own, which has runc.
        result.append(Set((*top, "containerd", "runtimes", "runc", "runtime_type"), RUNC_V2))
    ours = wanted(loaded, options)
    for key, value in ours.items():
        if key.endswith("_annotations") and isinstance(present.get(key), list):
            result += [Add((*at, key), item) for item in value if item not in present[key]]
        elif key != "options":
            result.append(Set((*at, key), value))
    result += [Set((*at, key), "") for key in _OLD_KEYS if present.get(key)]
    result += [Set((*at, "options", key), value) for key, value in ours["options"].items()]
    if loaded.plugin == V1:
        result.append(Set((*at, "options", "Runtime"), options.runtime))
    if options.default_runtime:
        result += _default(loaded, options, top)
    if options.cdi:
        result += _cdi(loaded, top)
    return tuple(result)


def notes(loaded: Loaded, options: Options) -> Iterator[str]:
    """What a person should know about these steps."""
    found = base(loaded)
    if found.note:
        yield found.note
    program = table(found.table, "options").get("BinaryName")
    if program and program != options.runtime and not basename(str(program)).startswith("nvidia"):
        yield (
            f"the runtime {found.name} calls {bare(str(program))}, and gpuhook calls what low-level in "
            "/etc/gpuhook/runtime.toml names: name it there"
        )
    if options.cdi:
        if loaded.engine and loaded.engine < (1, 7):
            yield (
                f"containerd {'.'.join(map(str, loaded.engine))} knows no CDI: enable_cdi has no effect before "
                "1.7, and a device asked for by its CDI name is left out silently"
            )
        elif loaded.deep and loaded.cri().get("enable_cdi", True) is True:
            yield "containerd 2.x has CDI on by itself: nothing is set for --cdi"


def _default(loaded: Loaded, options: Options, top: tuple[str, ...]) -> Iterator[Step]:
    cri, containerd = loaded.cri(), table(loaded.cri(), "containerd")
    for there, keys in ((cri, ("systemd_cgroup",)), (containerd, ("containerd", "no_pivot"))):
        if there.get(keys[-1]) is True and not loaded.deep:
            source = loaded.source(*keys)
            where = source.place("plugins", loaded.plugin, *keys) if source else loaded.path
            instead = "SystemdCgroup" if keys[-1] == "systemd_cgroup" else "NoPivotRoot"
            raise GpuhookError(
                "engine-config-conflict",
                f"{where}: with {keys[-1]} = true containerd takes a default runtime of type {LINUX_V1} only, and "
                f"gpuhook's is {RUNC_V2}",
                f"remove it, and write {instead} = true into the default runtime's options",
            )
    if table(containerd, "default_runtime").get("runtime_type") and not loaded.deep:
        # The deprecated table wins over default_runtime_name.
        yield Set((*top, "containerd", "default_runtime", "runtime_type"), RUNC_V2)
        yield Set((*top, "containerd", "default_runtime", "options", "BinaryName"), options.runtime)
        for key in _OLD_KEYS:
            if table(containerd, "default_runtime").get(key):
                yield Set((*top, "containerd", "default_runtime", key), "")
    yield Set((*top, "containerd", "default_runtime_name"), options.runtime_name)


def _cdi(loaded: Loaded, top: tuple[str, ...]) -> Iterator[Step]:
    cri = loaded.cri()
    if not (loaded.deep and cri.get("enable_cdi", True) is True):
        yield Set((*top, "enable_cdi"), True)
    if cri.get("cdi_spec_dirs") == []:
        yield Set((*top, "cdi_spec_dirs"), list(SPEC_DIRS))


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
