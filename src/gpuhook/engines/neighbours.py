"""What `gpuhook doctor` looks at beside gpuhook: NVIDIA's container toolkit, and gpuhook's own log.

Off the hot path.
"""

import calendar
import os
import re
import time
from collections.abc import Iterator

from gpuhook import config
from gpuhook.config import Config
from gpuhook.engines.host import Host
from gpuhook.engines.model import Finding
from gpuhook.errors import EXIT_CODES, bare

_PROGRAMS = (
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-container-cli",
    "nvidia-ctk",
)
_NAMED = re.compile(r"nvidia-container-(?:runtime(?:-hook)?|toolkit)\b", re.ASCII)
# engine -> files in which a runtime of NVIDIA's may be named
_CONFIGURATIONS = {
    "docker": ("/etc/docker/daemon.json", "/var/snap/docker/current/config/daemon.json"),
    "containerd": ("/etc/containerd/config.toml", "/etc/containerd/conf.d/*.toml", "/etc/containerd/config.d/*.toml"),
    "crio": ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*"),
    "podman": ("/etc/containers/containers.conf", "/etc/containers/containers.conf.d/*.conf"),
}
_TAIL = 1 << 16  # bytes of the log that are looked at
_RECENT = 3600  # seconds
_HINT = re.compile(r".* \[([a-z-]+)\](\\n  fix: )(.*)")  # GpuhookError.__str__ in a line of the log
_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d{3}Z error (\S+) (.*)", re.ASCII)


def findings(host: Host, settings: Config, prefix: str, engine: str = "") -> Iterator[Finding]:
    """The neighbours' findings and the log's. `engine`: without what is about other engines alone."""
    yield from toolkit(host, prefix, engine)
    if engine in ("", "docker"):
        yield from docker_gpus(host, prefix)
    yield from log(settings, prefix)


# --- NVIDIA's container toolkit -------------------------------------------------------------------------------------


def toolkit(host: Host, prefix: str, only: str = "") -> Iterator[Finding]:
    """Whether NVIDIA's container toolkit is here too, and who uses it. A link to gpuhook's own hook is none of it."""
    own = f"{prefix}/usr/bin/gpuhook-hook"
    places = {name: host.which(name) for name in _PROGRAMS}
    programs = [name for name, path in places.items() if path is not None and not host.same(path, own)]
    uses = {
        engine: [path for pattern in patterns for path in host.glob(pattern) if _names_nvidia(host, path)]
        for engine, patterns in _CONFIGURATIONS.items()
    }
    if not programs and not any(uses.values()):
        yield Finding("ok", "toolkit", "NVIDIA's container toolkit is not here")
        return
    if programs:
        text = f"NVIDIA's container toolkit is here too: {', '.join(programs)}"
        if "nvidia-container-runtime-hook" in programs:
            text += "; `docker run --gpus` takes its hook, which gpuhook-runtime replaces by its own"
        yield Finding("note", "toolkit", text)
    for engine, paths in uses.items():
        for path in paths if only in ("", engine) else ():
            text = f"{path} names NVIDIA's runtime: containers of {engine} that ask for it by its name go there"
            hint = f"take the name over: gpuhook configure {engine} --runtime-name nvidia"
            yield Finding("note", "toolkit-runtime", text, hint)


def docker_gpus(host: Host, prefix: str) -> Iterator[Finding]:
    """Where docker knows no `--gpus`: dockerd looks for a program of this name, or of CDI's, in PATH as it starts."""
    known = any(host.which(name) is not None for name in ("nvidia-container-runtime-hook", "nvidia-cdi-hook"))
    if known or host.which("dockerd") is None:
        return
    text = "`docker run --gpus` fails here (could not select device driver): no nvidia-container-runtime-hook in PATH"
    get = "install the package gpuhook-docker-gpus, or make its link: ln -s gpuhook-hook"
    if prefix:
        get = f"make a link in a folder of dockerd's PATH: ln -s {prefix}/usr/bin/gpuhook-hook"
    hint = (
        f"{get} /usr/bin/nvidia-container-runtime-hook; then restart docker\n"
        "without it: docker run --runtime gpuhook -e NVIDIA_VISIBLE_DEVICES=all ..."
    )
    yield Finding("note", "docker-gpus", text, hint)


def _names_nvidia(host: Host, path: str) -> bool:
    """Whether a configuration file names NVIDIA's runtime or hook outside of its comments."""
    return any(_NAMED.search(line) for line in host.text(path).splitlines() if not line.lstrip().startswith("#"))


# --- the log -------------------------------------------------------------------------------------------------------


def log(settings: Config, prefix: str) -> Iterator[Finding]:
    """Whether gpuhook's log can be read, and its last error of the last hour."""
    path = config.log_path(settings, prefix)
    if not path:
        yield Finding("note", "log", "there is none: runtime.toml says so (log.file)")
        return
    try:
        # a FIFO must not hang us: it is no error to open, and one to seek in
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL, 0))
            lines = file.read(_TAIL).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        yield Finding("ok", "log", f"{path}: nothing was logged yet")
        return
    except OSError as error:
        yield Finding("note", "log", f"{path} can't be read: {error.strerror}", "run this as root")
        return
    yield Finding("ok", "log", path)
    for line in reversed(lines):
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        try:
            age = time.time() - calendar.timegm(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S"))
        except ValueError:  # a 99th month
            continue
        if 0 <= age <= _RECENT:
            text, hint = _told(match[2], match[3])
            yield Finding("note", "last-error", f"{int(age // 60)} min ago, {text}", hint)
        return


def _told(container: str, text: str) -> tuple[str, str]:
    """What a line of the log says, and its hint; of a traceback the last line, which says what was wrong.

    The log has line ends as \\n. Those that str() of an error made are taken back, and no others: what a container
    asks for may have such in it, before the reference.
    """
    whose = "no container" if container == "-" else f"container {bare(container, 64)}"
    hint = ""
    if text.startswith("Traceback "):
        text = text.removesuffix("\\n").rpartition("\\n")[2] + " (the log has the traceback)"
    elif (found := _HINT.search(text)) and found[1] in EXIT_CODES:
        text, hint = text[: found.start(2)], found[3].replace("\\n       ", "\n")
    return f"{whose}: {text[:400]}{'...' * (len(text) > 400)}", hint
