"""A page's screens: console blocks whose command lines are run in a machine, and what they print.

A block that is run has `<!-- run: MACHINE -->` in the line above. In it, lines that begin with `$ ` are command lines
(one that ends with a backslash goes on in the next), the others are what they print. `gpuhook` itself is run on a
terminal, as a person sees it.
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from tests.engines.machine import Machine

_BLOCK = re.compile(r"^<!-- run: (\w+) -->\n```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# docker's client logs that it waits no more for a container that did not start, or does not
_OF_CLIENT = re.compile(r'^time="[^"]*" level=error msg="error waiting for container.*\n', re.MULTILINE)
# what is another at each run or on each machine: a kernel's version, ids, times
_VARIES = (
    (re.compile(r"\b\d+\.\d+\.\d+-[\w.~+-]+"), "KERNEL"),
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "ID"),
    (re.compile(r"\bpid \d+"), "pid N"),
    (re.compile(r"\bmade \d+ s ago"), "made 0 s ago"),
    (re.compile(r"(docker|containerd|podman|runc|crun) [0-9][\w.+~-]*"), r"\1 VERSION"),
)


@dataclass(frozen=True)
class Screen:
    """One block: the machine that it is from, and its text."""

    machine: str
    text: str

    def commands(self, machine: str = "") -> list[str]:
        """Its command lines, as they stand; with `machine`, none of another's."""
        if machine not in ("", self.machine):
            return []
        return re.findall(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)$", self.text, re.MULTILINE)


def screens(page: str) -> list[Screen]:
    """The blocks of a page that are run."""
    return [Screen(*found) for found in _BLOCK.findall(page)]


def run(machine: Machine, command: str, environ: dict[str, str]) -> str:
    """What a command line prints, on both streams, as on a screen 120 columns wide. In root's home."""
    line = f"cd; ( {command} ) 2>&1"
    if command.startswith("gpuhook ") and "|" not in command:
        line = f"cd; script -qec {shlex.quote(f'stty cols 120; {command}')} /dev/null"
    done = machine.run("bash", "-c", line, env={"TERM": "dumb", **environ}, timeout=120)
    return _OF_CLIENT.sub("", done.out.replace("\r\n", "\n"))


def replay(page: str, name: str, call: Callable[[str], str]) -> str:
    """The page with the blocks of one machine run again."""

    def block(found: re.Match[str]) -> str:
        if found[1] != name:
            return found[0]
        text = ""
        for command in Screen(found[1], found[2]).commands():
            said = call(command)
            text += f"$ {command}\n{said}{'' if not said or said.endswith(chr(10)) else chr(10)}"
        return f"<!-- run: {name} -->\n```console\n{text}```"

    return _BLOCK.sub(block, page)


def steady(page: str) -> str:
    """A page without what varies."""
    for pattern, text in _VARIES:
        page = pattern.sub(text, page)
    return page
