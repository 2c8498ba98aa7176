"""Where containerd's configuration is: the system's, a user's, those of k3s, rke2 and microk8s, and docker's own.

A host may have several (a system's for docker and one that k3s brings along). `find` names the one that CRI clients
most likely use, and the others.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from posixpath import basename, dirname, isabs
from typing import Literal

from gpuhook.engines.host import Host
from gpuhook.engines.model import Options, Restart
from gpuhook.errors import GpuhookError, shown

MAIN = "/etc/containerd/config.toml"
RANCHER = {"k3s": "/var/lib/rancher/k3s", "rke2": "/var/lib/rancher/rke2"}
MICROK8S = "/var/snap/microk8s/current/args/containerd-template.toml"
_DOCKERS = ("/run/docker/", "/var/run/docker/", "/var/snap/docker/")

Kind = Literal["system", "rootless", "k3s", "rke2", "microk8s", "docker", "other"]


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

    def describe(self) -> str:
        """`k3s's /var/lib/...`."""
        return self.config if self.kind in ("system", "other") else f"{self.config} ({self.kind})"


def find(host: Host, options: Options) -> tuple[Place, tuple[Place, ...]]:
    """The containerd to configure, and the others that this host has.

    GpuhookError `engine-not-found` where there is none.
    """
    running = {place.config: place for place in _running(host)}
    if options.config:
        if not isabs(options.config):
            raise GpuhookError(
                "engine-option-unsupported",
                f"--config {shown(options.config)} is no absolute path",
                "write the whole path of containerd's configuration file",
            )
        place = _of(options.config)
        seen = running.get(place.config)
        return (seen or place), ()
    if host.uid != 0:
        return _rootless(host), ()
    places = {**running}
    for place in _installed(host):
        places.setdefault(place.config, place)
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
    return usable[0], tuple(place for place in usable[1:])


def version_of(host: Host, place: Place) -> str | None:
    """What the containerd of this place says about its version, where it can be asked."""
    program = program_of(host, place)
    return host.ask(program, "--version") if program else None


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
    try:
        text = host.read(place.config) or ""
    except GpuhookError:
        return False
    found = re.search(r"^\s*disabled_plugins\s*=\s*\[([^\]]*)\]", text, re.M)
    return bool(
        found
        and re.search(r"[\"'](?:cri|io\.containerd\.grpc\.v1\.cri|io\.containerd\.cri\.v1\.runtime)[\"']", found[1])
    )


def restart(host: Host, place: Place) -> Restart:
    """How the daemon of this place is made to read its configuration."""
    stay = "running containers stay"
    systemd = host.exists("/run/systemd/system")
    if place.kind == "microk8s":
        argv = ("snap", "restart", "microk8s.daemon-containerd")
        return Restart(argv, f"restart microk8s's containerd: {' '.join(argv)}; {stay}")
    if place.kind in RANCHER:
        names = {"k3s": ("k3s", "k3s-agent"), "rke2": ("rke2-server", "rke2-agent")}[place.kind]
        unit = next((name for name in names if _unit(host, name)), names[0])
        return _unit_restart(systemd, (), unit, f"it writes containerd's configuration anew as it starts; {stay}")
    if place.kind == "rootless":
        return _unit_restart(True, ("--user",), "containerd", stay)
    if place.kind == "other":
        return Restart((), f"restart the containerd that reads {place.config}; {stay}")
    return _unit_restart(systemd, (), "containerd", stay)


def _unit_restart(systemd: bool, flags: tuple[str, ...], unit: str, then: str) -> Restart:
    argv = ("systemctl", *flags, "restart", unit)
    if systemd:
        return Restart(argv, f"restart {unit}: {' '.join(argv)}; {then}")
    return Restart((), f"stop {unit} and start it again (no systemd runs here); {then}")


def _unit(host: Host, name: str) -> bool:
    return any(host.exists(f"{folder}/{name}.service") for folder in ("/etc/systemd/system", "/usr/lib/systemd/system"))


def _of(config: str) -> Place:
    """What kind of file a path is; a file that is made of another stands for that."""
    for kind, directory in RANCHER.items():
        if config.startswith(f"{directory}/"):
            return Place("k3s" if kind == "k3s" else "rke2", f"{dirname(config)}/config.toml")
    if dirname(config).endswith("/agent/etc/containerd"):  # with a --data-dir of its own
        return Place("rke2" if "rke2" in config else "k3s", f"{dirname(config)}/config.toml")
    if config.startswith("/var/snap/microk8s/"):
        return Place("microk8s", f"{dirname(config)}/containerd-template.toml")
    if config.startswith(_DOCKERS):
        return Place("docker", config)
    return Place("system" if config == MAIN else "other", config)


def _running(host: Host) -> Iterator[Place]:
    """The containerds that run here, by their command lines."""
    for path in host.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(host.real(path), "rb") as file:
                argv = file.read(16384).decode("utf-8", "replace").split("\0")
        except OSError:
            continue  # it has ended, or is another user's
        if basename(argv[0]) != "containerd":
            continue
        pid = int(path.split("/")[2])
        if _in_a_container(host, pid):
            continue
        config = MAIN
        for at, word in enumerate(argv[1:], 1):
            name, _, value = word.partition("=")
            if name in ("-c", "--config", "-config", "--c"):
                config = value or next(iter(argv[at + 1 : at + 2]), "")
        if isabs(config):
            place = _of(config)
            yield Place(place.kind, place.config, pid)


def _in_a_container(host: Host, pid: int) -> bool:
    """Whether a process has an id in a pid namespace below ours: a node of kind or k3d has a containerd of its own."""
    try:
        with open(host.real(f"/proc/{pid}/status"), "rb") as file:
            found = re.search(rb"^NSpid:(.*)$", file.read(65536), re.MULTILINE)
    except OSError:
        return False
    return bool(found and len(found[1].split()) > 1)


def _installed(host: Host) -> Iterator[Place]:
    if host.exists(MAIN) or host.which("containerd"):
        yield Place("system", MAIN)
    for kind, directory in RANCHER.items():
        if host.exists(f"{directory}/agent"):
            yield Place("k3s" if kind == "k3s" else "rke2", f"{directory}/agent/etc/containerd/config.toml")
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
