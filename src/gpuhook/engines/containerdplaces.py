"""Where containerd's configuration is: the system's, a user's, those of k3s, rke2 and microk8s, and docker's own.

A host may have several (a system's for docker and one that k3s brings along). `find` names the one that CRI clients
most likely use, and the others.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from posixpath import dirname, isabs
from typing import Final, Literal

from gpuhook.engines.containerdconfig import V1, V2, V3
from gpuhook.engines.host import Host
from gpuhook.engines.model import Options, Restart
from gpuhook.errors import GpuhookError

Kind = Literal["system", "rootless", "k3s", "rke2", "microk8s", "docker", "other"]

MAIN = "/etc/containerd/config.toml"
RANCHER: Final[dict[Kind, str]] = {"k3s": "/var/lib/rancher/k3s", "rke2": "/var/lib/rancher/rke2"}
MICROK8S = "/var/snap/microk8s/current/args/containerd-template.toml"
_DOCKERS = ("/run/docker/", "/var/run/docker/", "/var/snap/docker/")


@dataclass(frozen=True)
class Place:
    """A containerd by its configuration file. `pid`: of the daemon that was found running with it, else 0."""

    kind: Kind
    config: str
    pid: int = 0

    @property
    def directory(self) -> str:
        """Where the file lies."""
        return dirname(self.config)


def also(other: Place) -> str:
    """That this host has this one too."""
    kind = "" if other.kind in ("system", "other") else f" ({other.kind})"
    return f"this host also has the containerd of {other.config}{kind}"


def find(host: Host, options: Options) -> tuple[Place, tuple[Place, ...]]:
    """The containerd to configure, and the others that this host has.

    GpuhookError `engine-not-found` where there is none.
    """
    running = {place.config: place for place in _running(host)}
    if options.config:
        place = _of(options.config)
        return running.get(place.config, place), ()
    if host.uid != 0:
        return _rootless(host), ()
    places = {place.config: place for place in _installed(host)} | running
    order = ("system", "other", "k3s", "rke2", "microk8s")
    usable = [place for place in places.values() if place.kind in order]
    usable.sort(key=lambda place: (cri_disabled(host, place), not place.pid, order.index(place.kind)))
    if not usable:
        private = next((place for place in places.values() if place.kind == "docker"), None)
        raise GpuhookError(
            "engine-not-found",
            f"no containerd was found: no containerd in PATH, no {MAIN}, no k3s, rke2 or microk8s"
            + (f"; that of {private.config} is docker's own" if private else ""),
            "gpuhook configure docker" if private else "install containerd, or name its file: --config FILE",
        )
    return usable[0], tuple(usable[1:])


def version_of(host: Host, place: Place) -> tuple[int, ...]:
    """The version of the containerd of this place, () where it can't be asked."""
    return host.version(program_of(host, place))


def program_of(host: Host, place: Place) -> str:
    """The containerd of a place: the one that runs, else the one in PATH where that is whose file this is, else ``."""
    if place.pid and not host.root:
        try:
            running = os.readlink(f"/proc/{place.pid}/exe")
        except OSError:
            running = ""
        if os.access(running, os.X_OK):
            return running
    return "containerd" if place.kind in ("system", "rootless", "other") else ""


def cri_disabled(host: Host, place: Place) -> bool:
    """Whether the file switches the CRI plugin off, as the one in docker's packages does."""
    found = re.search(r"^\s*disabled_plugins\s*=\s*\[([^\]]*)\]", host.text(place.config), re.M)
    return bool(found and re.search(rf"[\"'](?:{V1}|{re.escape(V2)}|{re.escape(V3)})[\"']", found[1]))


def restart(host: Host, place: Place) -> Restart:
    """How the daemon of this place is made to read its configuration."""
    flags: tuple[str, ...] = ()
    unit, then = "containerd", "running containers stay"
    if place.kind == "other":
        return Restart((), f"restart the containerd that reads {place.config}; {then}")
    if place.kind == "microk8s":
        argv: tuple[str, ...] = ("snap", "restart", "microk8s.daemon-containerd")
        return Restart(argv, f"restart microk8s's containerd: {' '.join(argv)}; {then}")
    if place.kind in RANCHER:
        names = {"k3s": ("k3s", "k3s-agent"), "rke2": ("rke2-server", "rke2-agent")}[place.kind]
        unit = next((name for name in names if _unit(host, name)), names[0])
        then = f"it writes containerd's configuration anew as it starts; {then}"
    elif place.kind == "rootless":
        flags = ("--user",)
    if not flags and not host.exists("/run/systemd/system"):
        return Restart((), f"stop {unit} and start it again (no systemd runs here); {then}")
    argv = ("systemctl", *flags, "restart", unit)
    return Restart(argv, f"restart {unit}: {' '.join(argv)}; {then}")


def _unit(host: Host, name: str) -> bool:
    return any(host.exists(f"{folder}/{name}.service") for folder in ("/etc/systemd/system", "/usr/lib/systemd/system"))


def _of(config: str) -> Place:
    """What kind of file a path is; a file that is made of another stands for that."""
    for kind, directory in RANCHER.items():
        if config.startswith(f"{directory}/"):
            return Place(kind, f"{dirname(config)}/config.toml")
    if dirname(config).endswith("/agent/etc/containerd"):  # with a --data-dir of its own
        return Place("rke2" if "rke2" in config else "k3s", f"{dirname(config)}/config.toml")
    if config.startswith("/var/snap/microk8s/"):
        return Place("microk8s", f"{dirname(config)}/containerd-template.toml")
    if config.startswith(_DOCKERS):
        return Place("docker", config)
    return Place("system" if config == MAIN else "other", config)


def _running(host: Host) -> Iterator[Place]:
    """The containerds that run here, by their command lines."""
    for process in host.processes("containerd"):
        config = MAIN
        for word, after in pairwise([*process.argv[1:], ""]):
            name, _, value = word.partition("=")
            if name in ("-c", "--config", "-config", "--c"):
                config = value or after
        if isabs(config):
            yield replace(_of(config), pid=process.pid)


def _installed(host: Host) -> Iterator[Place]:
    if host.exists(MAIN) or host.which("containerd"):
        yield Place("system", MAIN)
    for kind, directory in RANCHER.items():
        if host.exists(f"{directory}/agent"):
            yield Place(kind, f"{directory}/agent/etc/containerd/config.toml")
    if host.exists(MICROK8S):
        yield Place("microk8s", MICROK8S)


def _rootless(host: Host) -> Place:
    config = f"{host.config_home}/containerd/config.toml"
    unit = f"{host.config_home}/systemd/user/containerd.service"
    if host.exists(config) or host.exists(unit) or host.which("containerd-rootless.sh"):
        return Place("rootless", config)
    raise GpuhookError(
        "engine-not-found",
        f"no rootless containerd was found: neither {config} nor {unit}",
        "for the system's containerd run this as root; for rootless: containerd-rootless-setuptool.sh install",
    )
