"""Which dockerd is meant, which file it reads and what its command line sets: asked of its process and of its unit.

A host may have Docker's or a distribution's dockerd, the snap's, and one per user without root. Each reads one file:
`--config-file`, else `/etc/docker/daemon.json`, `$XDG_CONFIG_HOME/docker/daemon.json` without root, or the snap's.
"""

import os
import re
import shlex
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from gpuhook.engines.host import Host
from gpuhook.engines.model import Restart
from gpuhook.errors import GpuhookError, shown

Kind = Literal["system", "rootless", "snap"]

SNAP_REFUSES = (
    "docker is a snap here: its confinement lets dockerd run no program from outside of the snap",
    "install Docker's or the distribution's package instead",
)
SYSTEM_CONFIG = "/etc/docker/daemon.json"
# The snap starts dockerd with --config-file below its data folder, /var/snap/docker/REVISION; `current` links to it.
SNAP_CONFIG = "/var/snap/docker/current/config/daemon.json"
_SNAP_REVISION = re.compile(r"^/var/snap/docker/[^/]+/config/daemon\.json$")
_PROGRAMS = ("/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd", "/usr/local/sbin/dockerd")
_FLAGS = ("config-file", "add-runtime", "default-runtime", "feature", "host")


@dataclass(frozen=True)
class Daemon:
    """A dockerd that runs (`pid`) or that a unit would start (`pid` 0). `source` names it in a sentence, `flags` are
    those of its command line that matter here, as (name, value)."""

    kind: Kind
    uid: int
    source: str
    flags: tuple[tuple[str, str], ...]
    pid: int = 0

    def flag(self, name: str) -> str:
        """The value of a flag; the last one counts, `` is for none."""
        return next((value for key, value in reversed(self.flags) if key == name), "")

    @property
    def config(self) -> str:
        """Its `--config-file`, or `` for its kind's usual file."""
        path = self.flag("config-file")
        return SNAP_CONFIG if _SNAP_REVISION.match(path) else path


_Daemons = tuple[Daemon, ...]


@dataclass(frozen=True)
class Place:
    """The file to edit, whose it is, and the daemons (a process, a unit) that read it."""

    path: str
    kind: Kind
    daemons: tuple[Daemon, ...]
    notes: tuple[str, ...]

    @property
    def pid(self) -> int:
        """The process that reads the file, 0 for none."""
        return next((daemon.pid for daemon in self.daemons if daemon.pid), 0)


def find(host: Host, config: str) -> Place:
    """The dockerd of this host and user; `config`: the file that a person named, or ``.

    GpuhookError `engine-not-found` where there is none.
    """
    daemons = running(host)
    mine = tuple(daemon for daemon in daemons if daemon.uid == host.uid)
    unit = _unit(host)
    if config:
        readers = tuple(d for d in (*mine, *unit) if host.same(_reads(host, d), config))
        snap = config.startswith("/var/snap/docker/")
        kind: Kind = readers[0].kind if readers else "snap" if snap else "rootless" if host.uid else "system"
        others = () if any(d.pid for d in readers) else mine
        return Place(config, kind, readers, tuple(f"{d.source} reads {_reads(host, d)}, not {config}" for d in others))
    return _rootless(host, mine, unit, daemons) if host.uid else _rootful(host, mine, unit, daemons)


def _rootful(host: Host, mine: _Daemons, unit: _Daemons, everybody: _Daemons) -> Place:
    snap = host.exists("/snap/docker/current") or host.exists("/var/snap/docker/current")
    snap = snap or any(d.kind == "snap" for d in mine)
    # /etc/docker alone is no docker where the snap is: that folder is what guides and tools leave there.
    system = any(d.kind == "system" for d in (*mine, *unit)) or _program(host)
    system = system or (not snap and host.exists("/etc/docker"))
    runs = [d.kind for d in mine]
    if not system and not snap:
        users = [d for d in everybody if d.kind == "rootless"]
        hint = "install docker, or name the file that dockerd reads: --config FILE"
        if users:
            hint = f"{users[0].source} belongs to the user with id {users[0].uid}: run this as that user"
        raise GpuhookError(
            "engine-not-found",
            "no docker is on this host: no dockerd runs or is in PATH, and there is no /etc/docker and no snap",
            hint,
        )
    kind: Kind = "snap" if snap and (not system or ("snap" in runs and "system" not in runs)) else "system"
    usual = SNAP_CONFIG if kind == "snap" else SYSTEM_CONFIG
    place = _place(host, kind, tuple(d for d in (*mine, *unit) if d.kind == kind), usual)
    notes, path = place.notes, place.path
    if snap and system:
        other = SNAP_CONFIG if kind == "system" else SYSTEM_CONFIG
        why = "which runs" if kind in runs else "which a program of this host can be given to"
        what = "docker's snap" if kind == "snap" else "the docker that is no snap"
        notes += (f"two dockers are on this host; this is for {what}, {why}: for the other: --config {other}",)
    elif kind == "snap" and host.exists(SYSTEM_CONFIG):
        notes += (f"docker is a snap here and reads {path}; nothing reads {SYSTEM_CONFIG}",)
    return replace(place, notes=notes)


def _rootless(host: Host, mine: _Daemons, unit: _Daemons, everybody: _Daemons) -> Place:
    usual = f"{host.config_home}/docker/daemon.json"
    units = (f"{host.config_home}/systemd/user/docker.service", "/usr/lib/systemd/user/docker.service")
    there = mine or unit or host.exists(usual) or any(host.exists(path) for path in units)
    if not there and not host.which("dockerd-rootless.sh"):
        rootful = any(d.uid == 0 for d in everybody) or _program(host) or host.exists("/etc/docker")
        raise GpuhookError(
            "engine-not-found",
            f"no rootless docker of the user with id {host.uid}: no dockerd of theirs runs, and there is no {usual}",
            "for the system's docker, run this as root" if rootful else "install docker, or name its file: --config",
        )
    place = _place(host, "rootless", (*mine, *unit), usual)
    if not mine and any(d.uid == 0 for d in everybody):
        note = f"{place.path} is for a rootless dockerd, and none runs; for the system's docker, run this as root"
        return replace(place, notes=(*place.notes, note))
    return place


def _place(host: Host, kind: Kind, daemons: _Daemons, usual: str) -> Place:
    """The file of the first daemon, and who reads it too; processes come before the unit."""
    path = _reads(host, daemons[0]) if daemons else usual
    readers = tuple(d for d in daemons if host.same(_reads(host, d), path))
    others = (d for d in daemons if d not in readers)
    notes = tuple(f"{d.source} reads another file than {path}: for it: --config {_reads(host, d)}" for d in others)
    return Place(path, kind, readers, notes)


def _reads(host: Host, daemon: Daemon) -> str:
    """The file that a daemon reads."""
    usual = {"system": SYSTEM_CONFIG, "snap": SNAP_CONFIG, "rootless": f"{host.config_home}/docker/daemon.json"}
    return daemon.config or usual[daemon.kind]


def _program(host: Host) -> bool:
    """Whether a dockerd is installed that is no snap's."""
    found = host.which("dockerd")
    return bool(found and not found.startswith("/snap/")) or any(host.exists(path) for path in _PROGRAMS)


def running(host: Host) -> tuple[Daemon, ...]:
    """The dockerds of this host, those in containers left out."""
    found = []
    for process in host.processes("dockerd"):
        if process.uid < 0:  # it has ended
            continue
        kind: Kind = "rootless" if process.uid else "system"
        if any("/snap/docker/" in f"{word}/" for word in process.argv):
            kind = "snap"
        flags = tuple((name, _absolute(host, process.pid, name, value)) for name, value in _flags(process.argv))
        found.append(Daemon(kind, process.uid, f"the running dockerd (pid {process.pid})", flags, process.pid))
    return tuple(found)


def _absolute(host: Host, pid: int, name: str, value: str) -> str:
    """A flag's value; a file's path is relative to where the process is."""
    if name != "config-file" or os.path.isabs(value):
        return value
    try:
        return os.path.normpath(os.path.join(os.readlink(host.real(f"/proc/{pid}/cwd")), value))
    except OSError:
        return ""


def _flags(argv: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The values of _FLAGS in a command line: `--name value` or `--name=value`."""
    found = []
    for word, after in pairwise([*argv[1:], ""]):
        name, equals, value = word.removeprefix("--").partition("=")
        if word == "-H":
            name = "host"
        elif word.startswith("-H"):
            name, equals, value = "host", "=", word[2:].removeprefix("=")
        elif not word.startswith("--") or name not in _FLAGS:
            continue
        found.append((name, value if equals else after))
    return tuple(found)


def _unit(host: Host) -> tuple[Daemon, ...]:
    """What docker.service would start, where systemd knows it: the last ExecStart with its variables filled in."""
    scope = ("--user",) if host.uid else ()
    text = host.ask("systemctl", *scope, "cat", "docker.service")
    if not text:
        return ()
    file, where, line, command = "", "docker.service", 0, ""
    variables: dict[str, str] = {}
    for text_line in text.replace("\\\n", " ").split("\n"):
        line += 1
        key, equals, value = text_line.strip().partition("=")
        if text_line.startswith("# /"):
            file, line = text_line[2:].strip(), 0
        elif equals and key == "ExecStart":
            command = value.strip().lstrip("-@:+!")
            where = f"docker.service ({file}:{line})" if file else where
        elif equals and key == "Environment":
            variables |= _assignments(value)
        elif equals and key == "EnvironmentFile":
            variables |= _environment_file(host, value.strip().removeprefix("-"))
    argv = _expanded(command, variables)
    if not argv:
        return ()
    kind: Kind = "rootless" if host.uid else "system"
    return (Daemon(kind, host.uid, where, _flags(argv)),)


def _environment_file(host: Host, path: str) -> dict[str, str]:
    lines = (line.strip() for line in host.text(path).split("\n"))
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith(("#", ";")))
    return {key.strip(): value.strip().strip("'\"") for key, _, value in pairs}


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote without its end: systemd refuses that line too
        return text.split()


def _assignments(text: str) -> dict[str, str]:
    return {key: value for key, equals, value in (word.partition("=") for word in _words(text)) if equals}


def _expanded(command: str, variables: dict[str, str]) -> list[str]:
    """The words of an ExecStart: `$NAME` as a word is split at spaces, `${NAME}` is not (systemd.service(5))."""
    argv: list[str] = []
    for word in _words(command):
        if re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", word):
            argv += variables.get(word[1:], "").split()
        else:
            argv.append(re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", lambda m: variables.get(m[1], ""), word))
    return argv


def twice(place: Place, document: Container[str]) -> Iterator[tuple[str, str, Daemon]]:
    """The keys of a document that a command line sets too, each with the flag: dockerd does not start with both. But
    for `runtimes`: those add up."""
    for key, flag in (("default-runtime", "default-runtime"), ("features", "feature")):
        for daemon in place.daemons:
            if key in document and daemon.flag(flag):
                yield key, flag, daemon


def sockets(host: Host, place: Place) -> tuple[str, ...]:
    """The addresses of unix sockets at which the daemon of a place listens."""
    named = [value for daemon in place.daemons for key, value in daemon.flags if key == "host"]
    named = [value for value in named if value.startswith("unix://")]
    if place.kind == "rootless":
        folder = host.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{host.uid}"
        return (*named, f"unix://{folder}/docker.sock")
    return (*named, "unix:///var/run/docker.sock", "unix:///run/docker.sock")


def context_notes(host: Host, place: Place) -> tuple[str, ...]:
    """That the docker command talks to another daemon than that of `place`, where it does."""
    what, value = "DOCKER_HOST", host.environ.get("DOCKER_HOST", "")
    address = value
    if not value:
        what = "docker's context"
        value = host.environ.get("DOCKER_CONTEXT") or (host.ask("docker", "context", "show") or "").strip()
        if value in ("", "default"):
            return ()
        address = host.ask("docker", "context", "inspect", value, "--format", "{{.Endpoints.docker.Host}}") or ""
    if address.strip() in sockets(host, place):
        return ()
    if "desktop" in value:
        return (
            f"{what} is {shown(value)}: the docker command talks to Docker Desktop, whose daemon runs in a virtual "
            "machine and reads none of this host's files; `docker context use default` is for this host's dockerd",
        )
    return (f"{what} is {shown(value)}: the docker command talks to another daemon than that which reads {place.path}",)


@dataclass(frozen=True)
class _Way:
    """What makes a running dockerd read its file: a command (or none), when that is, what to do in words, and what it
    means for containers."""

    command: tuple[str, ...]
    when: str
    words: str
    containers: str


def _way(host: Host, place: Place, document: dict[str, Any], why: str) -> _Way:
    """A reload where that does. `why`: what happens at the start alone."""
    if any(daemon.flag("add-runtime") for daemon in place.daemons):
        why = why or "a reload forgets the runtimes of --add-runtime; the file is read"
    if place.kind == "snap" or why:
        command = _start_command(host, place, "restart")
        words = f"`{' '.join(command)}`" if command else f"end process {place.pid} and start dockerd as before"
        return _Way(command, f"{why or 'dockerd reads its file'} when dockerd starts:", words, _kept(document))
    # rootlesskit stands between systemd and a rootless dockerd; the signal is for dockerd itself
    reload = _has_unit(host, place) and place.kind == "system"
    command = ("systemctl", "reload", "docker") if reload else ("kill", "-HUP", str(place.pid))
    return _Way(command, "have dockerd read its file:", f"`{' '.join(command)}`", "running containers go on")


def _how_started(host: Host, place: Place) -> str:
    """The command that starts a dockerd which does not run, in brackets, where there is one."""
    user = " --user" if place.kind == "rootless" else ""
    return f" (`systemctl{user} start docker`)" if _has_unit(host, place) else ""


def restart(host: Host, place: Place, document: dict[str, Any], why: str) -> Restart:
    """What makes dockerd read its file. `why`: what happens at the start alone, ``: nothing."""
    if place.kind != "snap" and not place.pid:
        which = "no dockerd that runs reads this file" if running(host) else "dockerd does not run"
        text = f"{which}: it is read when dockerd starts{_how_started(host, place)}"
        return Restart((), text, needed=False)
    way = _way(host, place, document, why)
    return Restart(way.command, f"{way.when} {way.words}; {way.containers}")


def fix(host: Host, place: Place, document: dict[str, Any], why: str) -> str:
    """The same as something to do."""
    if place.kind != "snap" and not place.pid:
        return f"start docker{_how_started(host, place)}"
    way = _way(host, place, document, why)
    return f"{' '.join(way.command)} ({way.containers})" if way.command else f"{way.words}; {way.containers}"


def undo_restart(host: Host, place: Place, document: dict[str, Any]) -> Restart:
    """How a runtime is forgotten at any later time; nothing that only holds now, like a process id, is in it."""
    command = _start_command(host, place, "try-restart")
    how = f"`{' '.join(command)}`" if command else "end it and start it again"
    return Restart(command, f"dockerd forgets a runtime when it starts, not in a reload: {how}; {_kept(document)}")


def _has_unit(host: Host, place: Place) -> bool:
    """Whether systemd is this host's init (sd_booted(3)), and its docker.service the dockerd of this place; another
    one that somebody starts by hand is not its business."""
    return host.exists("/run/systemd/system") and any(not daemon.pid for daemon in place.daemons)


def _start_command(host: Host, place: Place, verb: str) -> tuple[str, ...]:
    """What starts a running dockerd anew; `verb` is systemd's. Empty where nothing watches over it."""
    if place.kind == "snap":
        return ("snap", "restart", "docker")
    if _has_unit(host, place):
        return ("systemctl", *(("--user",) if place.kind == "rootless" else ()), verb, "docker")
    service = host.same(place.path, SYSTEM_CONFIG) and host.exists("/etc/init.d/docker")
    return ("service", "docker", "restart") if service and host.which("service") else ()


def _kept(document: dict[str, Any]) -> str:
    """What a start means for containers."""
    return "running containers go on (live-restore)" if document.get("live-restore") else "it stops running containers"
