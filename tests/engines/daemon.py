"""What daemons have in common: a private one is started, waited for, told to end and started again."""

import functools
import signal
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import World
from tests.engines.machine import Machine, Result, Running, tail, wait


class Daemon:
    """A daemon in a machine, with a client. `config` is its configuration file, which a test may change; `env` is what
    the client is told by."""

    name = ""
    client = ""
    user = 0

    @property
    def kind(self) -> str:
        """What gpuhook calls the engine."""
        return self.name

    def __init__(self, machine: Machine, world: World, config: str, socket: str):
        self.machine, self.world = machine, world
        self.folder = machine.folder
        self.config = self.folder / config
        self.socket = self.folder / socket
        self.log = self.folder / f"{self.name}.log"
        self.env: dict[str, str] = {}
        self._daemon: Running | None = None

    def own(self) -> str:
        """The configuration of one who knows nothing of gpuhook; written where there is no file yet."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """How the daemon is started."""
        raise NotImplementedError

    @functools.cached_property
    def version(self) -> str:
        """The daemon's version, as it says itself."""
        raise NotImplementedError

    def start(self, env: Mapping[str, str] | None = None) -> None:
        """Start the daemon and wait until it answers."""
        if not self.config.exists():
            self.config.write_text(self.own())
        self._daemon = self.machine.daemon(*self.command(), log=self.log, env=env)
        wait(self._answers, f"{self.name} to answer", log=self.log)

    def _answers(self) -> bool:
        assert self._daemon
        assert not self._daemon.ended, f"{self.name} has ended\n{tail(self.log)}"
        return self.socket.exists() and self("version").code == 0

    def signal(self, number: signal.Signals) -> None:
        """Signal the daemon."""
        assert self._daemon
        self._daemon.signal(number)

    def stop(self) -> None:
        """End the daemon as an init system does."""
        assert self._daemon
        self._daemon.signal(signal.SIGTERM)
        assert self._daemon.wait(30), f"{self.name} does not end\n{tail(self.log)}"
        self._daemon.kill()

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def __call__(self, *arguments: str | Path, timeout: float = 60, text: str = "") -> Result:
        """One call of the client."""
        return self.machine.run(self.client, *arguments, env=self.env, timeout=timeout, text=text)

    def begin(self, *arguments: str | Path) -> Running:
        """A call of the client that is not waited for."""
        return self.machine.start(self.client, *arguments, env=self.env)

    def check(self, *arguments: str | Path) -> str:
        """The output of a call that must not fail."""
        done = self(*arguments)
        assert done.code == 0, f"{self.client} {' '.join(map(str, arguments))}: {done}\n{tail(self.log)}"
        return done.out
