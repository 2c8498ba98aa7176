"""What `doctor` says of containerd: its configuration as it reads it, and whether a pod with our runtime starts."""

import os
import re
import tomllib
from collections.abc import Iterator

from gpuhook.engines import (
    containerdconfig,
    containerddropin,
    containerdplaces,
    containerdruntime,
    containerdtemplates,
    findings,
    installation,
)
from gpuhook.engines.containerdconfig import Loaded, Table, table
from gpuhook.engines.containerdplaces import Place
from gpuhook.engines.host import Host
from gpuhook.engines.model import ABSENT, Finding, Options
from gpuhook.errors import shown

_HINT = "gpuhook configure containerd"


def check(host: Host, options: Options) -> tuple[Finding, ...]:
    """The configuration read back as containerd would. GpuhookError as in `propose`, for what can't be read at all."""
    return tuple(_check(host, options))


def _check(host: Host, options: Options) -> Iterator[Finding]:
    place, others = containerdplaces.find(host, options)
    engine = containerdplaces.version_of(host, place)
    if place.kind in containerdplaces.RANCHER:
        loaded = containerdtemplates.load(host, place)
        version = ".".join(map(str, engine)) or f"{loaded.engine[0]}.x"  # by the kind of its file
    else:
        loaded = containerdconfig.load(host, place.config, engine)
        version = ".".join(map(str, engine)) or "of unknown version"
    if loaded.main is None:
        yield Finding("note", "configuration", f"containerd {version}: {place.config} is not there: the defaults count")
    else:
        files = ", ".join(file.path for file in loaded.files[1:])
        text = f"containerd {version}: {place.config}, version {loaded.version}"
        yield Finding("ok", "configuration", f"{text}, imports {files}" if files else text)
    for text in loaded.problems:
        yield Finding("warning", "configuration", text, "make all files one version")
    for other in others:
        text = containerdplaces.also(other)
        yield Finding("note", "others", text, f"gpuhook doctor --engine containerd --config {other.config}")
    if containerdplaces.cri_disabled(host, place):
        text = f'{place.config} has "cri" among its disabled_plugins, as that of docker has: Kubernetes can\'t use it'
        hint = "for docker: gpuhook configure docker; for Kubernetes: remove it from disabled_plugins"
        yield Finding("problem", "cri", text, hint)
    yield from _runtime(host, place, loaded, _effective(host, place, loaded), options)
    yield from _restart(host, place, loaded)


def _effective(host: Host, place: Place, loaded: Loaded) -> tuple[Table, str]:
    """The CRI plugin's table, by containerd itself where it can be asked, else by our reading; and which it was."""
    program = containerdplaces.program_of(host, place)
    # 1.6 takes relative patterns from its working directory, which is ours and not the daemon's.
    relative = () < loaded.engine < (1, 7) and any(
        "*" in item and not item.startswith("/") for file in loaded.files for item in file.tree.get("imports", [])
    )
    if program and loaded.main is not None and not host.root and not relative:
        dump = host.ask(program, "--config", place.config, "config", "dump")
        try:
            plugins = table(tomllib.loads(dump), "plugins") if dump else {}
        except tomllib.TOMLDecodeError:
            plugins = {}
        for name in (containerdconfig.V3, containerdconfig.V2):
            if table(plugins, name, "containerd"):
                return plugins[name], "`containerd config dump`"
    return containerdconfig.merged(loaded.cri(), {"containerd": {"runtimes": loaded.runtimes()}}), place.config


def _runtime(host: Host, place: Place, loaded: Loaded, read: tuple[Table, str], options: Options) -> Iterator[Finding]:
    (cri, origin), name = read, options.runtime_name
    containerd = table(cri, "containerd")
    runtimes = table(containerd, "runtimes")
    found = runtimes.get(name)
    default = containerd.get("default_runtime_name") or "runc"
    default = "runc" if "${" in str(default) else str(default)
    if not isinstance(found, dict):
        yield from _missing(host, place, loaded, origin, options)
        return
    values = table(found, "options")
    program = values.get("BinaryName")
    kind = found.get("runtime_type")
    if kind != containerdconfig.RUNC_V2:
        text = f"by {origin} the runtime {name} has runtime_type {shown(str(kind))}, not {containerdconfig.RUNC_V2}"
        yield Finding("problem", "runtime", text, _HINT)
    elif program != options.runtime:
        text = f"by {origin} the runtime {name} has BinaryName {shown(str(program or ''))}, not {options.runtime}"
        hint = f"{_HINT}, or name it: --runtime {program}" if name == "gpuhook" else f"{_HINT} --runtime-name {name}"
        yield Finding("problem", "runtime", text, hint)
    else:
        yield Finding("ok", "runtime", f"by {origin} the runtime {name} calls {program}")
    if isinstance(program, str) and program.startswith("/"):
        yield from findings.program(host, program, f"the runtime {name} calls")
    yield from _default(name, default, runtimes, values)
    yield from _annotations(host, found, options)


def _missing(host: Host, place: Place, loaded: Loaded, origin: str, options: Options) -> Iterator[Finding]:
    """Our runtime is not there: because nobody wrote it, because a file is not imported, or because one hides it."""
    name = options.runtime_name
    if place.kind in containerdplaces.RANCHER:
        made_of = containerdtemplates.source(host, place, options.runtime)
        if made_of:
            text = f"{made_of} has the runtime {name}, and {place.config}, which is made of it, has not"
            yield Finding("problem", "runtime", text, containerdplaces.restart(host, place).sentence)
            return
    for path in host.glob(f"{place.directory}/*.d/*.toml"):
        text = host.text(path)
        if text.startswith(containerddropin.MARK) and path not in [file.path for file in loaded.files]:
            text = f"{path} is gpuhook's, and no import of {place.config} names it: containerd does not read it"
            yield Finding("warning", "drop-in", text, f"{_HINT} --drop-in {path}")
    at = (loaded.plugin, "containerd", "runtimes", name)
    hidden = [file for file in loaded.files if file.get("plugins", *at) is not ABSENT]
    last = loaded.source()
    if hidden and last is not None and not loaded.deep and last is not hidden[-1]:
        text = f"{hidden[-1].place('plugins', *at)} has the runtime {name}, and {last.place('plugins', loaded.plugin)}"
        hint = f"{_HINT} --drop-in {os.path.dirname(last.path)}/zz-gpuhook.toml"
        yield Finding("problem", "conflict", f"{text}, merged after it, takes the place of the whole table", hint)
    else:
        yield Finding("problem", "runtime", f"by {origin} there is no runtime {shown(name)}", _HINT)


def _default(name: str, default: str, runtimes: Table, values: Table) -> Iterator[Finding]:
    otherwise = f"a pod asks for {name} by a RuntimeClass with that handler"
    yield findings.default_runtime(default == name, shown(default), otherwise)
    other = runtimes.get(default if default != name else "runc")
    if not isinstance(other, dict):
        if default != name:
            text = f"the default runtime {shown(default)} has no table: containerd refuses the pods that name none"
            yield Finding("problem", "default-runtime", text, f"write its table, or {_HINT} --default-runtime")
        return
    theirs, mine = (of.get("SystemdCgroup") is True for of in (table(other, "options"), values))
    if containerdruntime.is_runc(other) and theirs != mine:
        text = f"SystemdCgroup is {str(mine).lower()} for {name} and {str(theirs).lower()} for {default}"
        why = "the kubelet works with one cgroup driver: pods of the other runtime are killed or restart"
        yield Finding("problem", "cgroup-driver", f"{text}: {why}", _HINT)


def _annotations(host: Host, found: Table, options: Options) -> Iterator[Finding]:
    """Whether the annotations that runtime.toml reads reach a container."""
    settings = installation.settings(host, options)
    names = [*settings.annotation_prefixes, *["com.nvidia.volumes.needed"] * settings.accept_label_annotations]
    lists = (found.get(key) for key in ("container_annotations", "pod_annotations"))
    patterns = [item for items in lists if isinstance(items, list) for item in items if isinstance(item, str)]
    for name in names:
        probe = f"{name}x" if name.endswith("/") else name
        if not any(containerdconfig.matches(pattern, probe) for pattern in patterns):
            slash = ' ("*" stops at a slash)' if "*" in patterns and "/" in name else ""
            text = f"{installation.runtime_toml(options)} reads annotations {shown(name)}"
            hint = f"{_HINT}; or add {shown(name + '*' if name.endswith('/') else name)} to its container_annotations"
            text += f", and no pattern of the runtime lets them through{slash}"
            yield Finding("warning", "annotations", text, hint)


def _restart(host: Host, place: Place, loaded: Loaded) -> Iterator[Finding]:
    """Whether the daemon that runs is older than what it would read now."""
    if not place.pid:
        yield Finding("note", "running", f"no containerd was found running with {place.config}")
        return
    started = _started(host, place.pid)
    templates = host.glob(f"{place.directory}/*.toml.tmpl") if place.kind in containerdplaces.RANCHER else ()
    paths = [path for path in (*(file.path for file in loaded.files), *templates) if os.path.exists(host.real(path))]
    newer = [path for path in paths if os.path.getmtime(host.real(path)) > started]
    if started and newer:
        text = f"containerd (pid {place.pid}) was started before {', '.join(newer)} was written, and does not know it"
        yield Finding("problem", "running", text, containerdplaces.restart(host, place).sentence)
    elif started:
        yield Finding("ok", "running", f"containerd (pid {place.pid}) was started after its files were written")


def _started(host: Host, pid: int) -> float:
    """When a process was started, in seconds since 1970; 0 where /proc does not say."""
    boot = re.search(r"^btime ([0-9]+)$", host.text("/proc/stat"), re.MULTILINE)
    fields = host.text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if not boot or len(fields) < 20:
        return 0.0
    return int(boot[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK") + 1  # btime has no fractions of its second
