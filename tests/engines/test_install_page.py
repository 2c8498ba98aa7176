"""docs/install.md: each screen is what real engines show, as `--update-golden` writes it.

gpuhook is in the machine's own /usr and /etc, as installed; `systemctl` there is a stand-in that passes signals on,
since no init system runs, and `ctr` and `podman` are told what these machines' cgroups need.
"""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import World
from tests.engines import archive, page
from tests.engines.archive import Image
from tests.engines.docker import FLAGS
from tests.engines.machine import Machine, Running, wait
from tests.engines.podman import Podman
from tests.images import CHECKOUT

pytestmark = pytest.mark.runc

PAGE = CHECKOUT / "docs/install.md"
TOOLKIT = """\
accept-nvidia-visible-devices-envvar-when-unprivileged = true
supported-driver-capabilities = "compute,utility,video"

[nvidia-container-cli]
environment = []
ldconfig = "@/sbin/ldconfig"
root = "/srv/driver"

[nvidia-container-runtime]
log-level = "warning"
mode = "auto"
runtimes = ["runc", "crun"]
"""
DAEMON = """\
{
    "runtimes": {
        "nvidia": {
            "args": [],
            "path": "nvidia-container-runtime"
        }
    }
}
"""
ALL = "NVIDIA_VISIBLE_DEVICES=all"
NEEDS = "NVIDIA_REQUIRE_CUDA=cuda>="


Replay = Callable[[str, Callable[[str], str]], tuple[str, str]]


@dataclass(frozen=True)
class Named(Image):
    """An image under the name that it has on the page."""

    @property
    def tag(self) -> str:
        return f"{self.name}:latest" if ":" not in self.name else self.name


IMAGES = (
    Named("docker.io/library/debian"),
    Named("registry.example/fits:1", env=[ALL, f"{NEEDS}12.4"]),
    Named("registry.example/newer:1", env=[ALL, f"{NEEDS}99.0"]),
)


class Host:
    """A machine with gpuhook at its own place, the simulated driver in /srv/driver, and what is left of systemd."""

    def __init__(self, machine: Machine, installed: Path):
        self.machine = machine
        self.env = {"PATH": f"{machine.folder}/stand-ins:/usr/sbin:/usr/bin:/sbin:/bin"}
        self._running: list[Running] = []
        machine.check("sh", "-c", f"cp -a {installed}/usr/. /usr/ && mkdir -p /etc/gpuhook /srv /run/systemd/system")
        machine.check("cp", installed / "etc/gpuhook/runtime.toml", "/etc/gpuhook/")
        for command in [each for screen in page.screens(PAGE.read_text()) for each in screen.commands("sim")]:
            self.say(command)

    def say(self, command: str) -> str:
        """What a command line of the page prints."""
        return page.run(self.machine, command, self.env)

    def stand_in(self, name: str, script: str) -> None:
        """A program that is found before the system's."""
        path = self.machine.folder / "stand-ins" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def keep(self, folder: str) -> None:
        """Have a folder of the machine on a disk: overlayfs takes no upper layer that is one itself."""
        outside = self.machine.folder / folder.replace("/", "-")
        outside.mkdir()
        self.machine.check("sh", "-c", f"mkdir -p {folder} && mount --bind {outside} {folder}")

    def daemon(self, *argv: str, answers: str) -> Running:
        """Start a daemon, and wait until a command of its client answers."""
        log = self.machine.folder / f"{argv[0]}.log"
        running = self.machine.daemon(*argv, log=log)
        self._running.append(running)
        wait(lambda: self.machine.run("sh", "-c", answers).code == 0, f"{argv[0]} to answer", log=log)
        return running

    def end(self) -> None:
        """End the daemons."""
        for running in self._running:
            if not running.closed:
                end(running)


def end(running: Running) -> None:
    if not running.ended:
        running.signal(signal.SIGTERM)
        running.wait(30)
    running.kill()


@pytest.fixture
def replayed(request: pytest.FixtureRequest) -> Replay:
    """Runs the blocks of one machine: the page as it comes out, and as it is, or was written anew."""

    def call(name: str, say: Callable[[str], str]) -> tuple[str, str]:
        text = PAGE.read_text()
        found = page.replay(text, name, say)
        if request.config.getoption("--update-golden"):
            PAGE.write_text(found)
            text = found
        return page.steady(found), page.steady(text)

    return call


@pytest.fixture
def host(new_machine: Callable[..., Machine], installed: Path) -> Iterator[Host]:
    new = Host(new_machine("v1"), installed)
    yield new
    new.end()


@pytest.fixture(scope="session")
def page_images(place: Path) -> Path:
    return archive.write(place / "page-images.tar", IMAGES)


def test_the_simulated_driver(host: Host, replayed: Replay) -> None:
    """What the other machines of the page have been given, too."""
    host.machine.check("rm", "-r", "/srv/driver", "/etc/gpuhook/runtime.toml")
    found, text = replayed("sim", host.say)
    assert found == text


@pytest.mark.parametrize("name", ["docker", "moving"])
def test_docker(name: str, host: Host, page_images: Path, replayed: Replay) -> None:
    host.machine.check("ln", "-s", "gpuhook-hook", "/usr/bin/nvidia-container-runtime-hook")  # gpuhook-docker-gpus
    others = IMAGES[1:] if name == "docker" else IMAGES[:1]
    if name == "moving":
        host.machine.write("/etc/nvidia-container-runtime/config.toml", TOOLKIT)
        host.machine.write("/etc/docker/daemon.json", DAEMON)
        host.machine.check(
            "sed", "-i", "-E", "/^(driver|dev)-root/d", "/etc/gpuhook/runtime.toml"
        )  # import brings them
    host.keep("/var/lib/docker")
    host.stand_in("systemctl", _SYSTEMCTL)
    host.daemon("dockerd", f"--cgroup-parent=/{host.machine.cgroup}", *FLAGS, answers="docker version")
    host.machine.check("docker", "load", "--quiet", "--input", page_images)
    host.machine.check("docker", "rmi", *(each.tag for each in others))
    log = host.machine.folder / "dockerd.log"

    def say(command: str) -> str:
        before = log.read_text().count("Reloaded configuration")
        said = host.say(command)
        if command == "systemctl reload docker":
            wait(lambda: log.read_text().count("Reloaded configuration") > before, "dockerd to read", 10, log)
        return said

    found, text = replayed(name, say)
    assert found == text


_SYSTEMCTL = """\
case $* in
  "cat docker.service") printf '# %s\\n' /lib/systemd/system/docker.service; cat /lib/systemd/system/docker.service ;;
  "reload docker") kill -HUP "$(pidof dockerd)" ;;
  *) exit 1 ;;
esac"""


def test_containerd(host: Host, page_images: Path, replayed: Replay) -> None:
    host.keep("/var/lib/containerd")
    host.machine.write("/etc/containerd/config.toml", "version = 2\n")
    cgroup = f"--cgroup=/{host.machine.cgroup}/c --cpu-shares=0"
    host.stand_in("ctr", f'[ "$1" = run ] || exec /usr/bin/ctr "$@"; shift; exec /usr/bin/ctr run {cgroup} "$@"')
    running = host.daemon("containerd", answers="ctr version")
    host.machine.check("ctr", "images", "import", page_images)

    def say(command: str) -> str:
        if command == "systemctl restart containerd":
            end(running)
            host.daemon("containerd", answers="ctr version")
            return ""
        return host.say(command)

    found, text = replayed("containerd", say)
    assert found == text


def test_podman(host: Host, page_images: Path, replayed: Replay) -> None:
    """podman attaches to a container that has begun, and may miss what a short one says: then it is asked again."""
    podman = Podman(host.machine, World(host.machine.folder / "world"))
    podman.start()
    podman.load(page_images)
    parent = f"--cgroup-parent=/{host.machine.cgroup}"
    host.stand_in(
        "podman", f'[ "$1" = run ] || exec /usr/bin/podman "$@"; shift; exec /usr/bin/podman run {parent} "$@"'
    )
    host.env |= podman.env

    def say(command: str) -> str:
        said = host.say(command)
        for _ in range(3):
            said = said or host.say(command)
        return said

    found, text = replayed("podman", say)
    assert found == text


def test_each_screen_is_from_one_of_these_machines() -> None:
    text = PAGE.read_text()
    found = page.screens(text)
    assert {screen.machine for screen in found} == {"sim", "docker", "moving", "containerd", "podman"}
    assert text.count("```console") == len(found)
    assert [screen for screen in found if not screen.commands()] == []
