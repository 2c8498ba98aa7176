"""The values of configuring an engine: what is asked, what is to be changed, what was found. No files are touched."""

from dataclasses import dataclass
from typing import Any, Final, Literal

Value = Any  # what JSON and TOML have in common: str, int, float, bool, list, dict (and None in JSON alone)


class _Absent:
    """The type of ABSENT."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()  # of a key: it is not there


@dataclass(frozen=True)
class Options:
    """What a person asks for on the command line.

    `config`: the engine's main configuration file, or `` to find it as the engine does. `runtime`, `hook`: gpuhook's
    own programs as the engine is to call them. `drop_in`: None: edit the main file; ``: the engine's usual drop-in
    file; else that file. `hook_only`: write a file into the engine's OCI hooks directory instead of naming a runtime.
    """

    runtime: str = "/usr/bin/gpuhook-runtime"
    hook: str = "/usr/bin/gpuhook-hook"
    config: str = ""
    runtime_name: str = "gpuhook"
    default_runtime: bool = False
    drop_in: str | None = None
    cdi: bool = False
    hook_only: bool = False


@dataclass(frozen=True)
class Set:
    """The value at `path` of a JSON or TOML document shall be `value`; tables on the way are made."""

    path: tuple[str, ...]
    value: Value


@dataclass(frozen=True)
class Add:
    """The list of strings at `path` shall hold `value`, as its last element where it is not there yet."""

    path: tuple[str, ...]
    value: str


Step = Set | Add


@dataclass(frozen=True)
class Undo:
    """How one step is taken back: `step` as it was done; what stood there `before` (ABSENT: nothing; for an Add: the
    list before, or ABSENT); `kept`: how many leading keys of the step's path were there before it."""

    step: Step
    before: Value
    kept: int


@dataclass(frozen=True)
class FileEdit:
    """What is ours in one file.

    `form`: `json` and `toml`: `steps` in a document that has others' keys too. `block`: `text` between two marker
    comments, for templates that no TOML parser can read; a file that is not there begins with `base`. `whole`: the
    file is ours alone, and is `text`. `path` is absolute, as the engine names it; `mode` is for a file that is made.
    """

    path: str
    form: Literal["json", "toml", "block", "whole"]
    steps: tuple[Step, ...] = ()
    text: str = ""
    base: str = ""
    mode: int = 0o644


@dataclass(frozen=True)
class Restart:
    """What makes the engine read its configuration: `command` (argv; empty: there is none that gpuhook could run), and
    the sentence that tells a person (`systemctl restart containerd`, `snap restart docker`, or why none is needed).
    `needed`: whether a process runs that has to be restarted, as far as it is known."""

    command: tuple[str, ...]
    sentence: str
    needed: bool = True


@dataclass(frozen=True)
class Proposal:
    """What configuring an engine comes to. `notes`: sentences for the person, none ends with a full stop.
    `undo_restart`: what makes the engine forget it again, where `restart` does not."""

    engine: str
    files: tuple[FileEdit, ...]
    restart: Restart
    notes: tuple[str, ...] = ()
    undo_restart: Restart | None = None


@dataclass(frozen=True)
class Finding:
    """One thing that `doctor` looked at. `check` is kebab-case and stable; `hint` says what to do about it."""

    level: Literal["ok", "note", "warning", "problem"]
    check: str
    message: str
    hint: str = ""
