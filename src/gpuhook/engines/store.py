"""What gpuhook wrote into engines' files, and what stood there before: one record for each file, and its old content.

The store is `/var/lib/gpuhook/engines` below the installation, or `$XDG_STATE_HOME/gpuhook/engines` of a user whose
engine is rootless; it is the user's alone. A record that is damaged is never guessed at: `engine-undo-invalid`.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema

from gpuhook import __version__
from gpuhook.engines import atomic
from gpuhook.engines.host import Host
from gpuhook.engines.model import ABSENT, Add, Restart, Set, Undo
from gpuhook.errors import GpuhookError

_FORMAT = 1
_WAIT = 10.0  # seconds for another gpuhook that writes
_LIMIT = 16 << 20  # bytes of a record or a backup; engines' files are taken up to 4 MiB

_TEXT = {"type": "string"}
_PATH = {"type": "string", "pattern": "^/"}
_HASH = {"type": "string", "pattern": "^[0-9a-f]{64}$"}


def _these(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def _many(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


_BEFORE = {"anyOf": [_these(absent={"const": True}), _these(value={})]}
_STEP = {"before": _BEFORE, "kept": {"type": "integer", "minimum": 0}}
_UNDO = {"anyOf": [_these(set=_many(_TEXT), value={}, **_STEP), _these(add=_many(_TEXT), value=_TEXT, **_STEP)]}
_SCHEMA = _these(
    format={"const": _FORMAT},
    gpuhook=_TEXT,
    time={"type": "integer"},
    path=_PATH,
    real=_PATH,
    form={"enum": ["json", "toml", "block", "whole"]},
    owners=_many(_these(engine=_TEXT, config=_TEXT)),
    before={"type": "string", "pattern": "^([0-9a-f]{64})?$"},
    base=_TEXT,
    states={**_many(_these(after=_HASH, undos=_many(_UNDO))), "minItems": 1},
    directories=_many(_PATH),
    restart=_these(command=_many(_TEXT), sentence=_TEXT, needed={"type": "boolean"}),
)


def digest(data: bytes | None) -> str:
    """The SHA-256 of a file's content, `` of none."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Owner:
    """Who wants what is in a file: an engine by the configuration file that it reads."""

    engine: str
    config: str


@dataclass(frozen=True)
class State:
    """A content that was ours: the hash of the file, and how what is ours in it is taken back entry by entry."""

    after: str
    undos: tuple[Undo, ...]


@dataclass(frozen=True)
class Record:
    """What is known of one file.

    `path` as the engine names it, `real` the file itself, free of links. `before` is the hash of what stood there
    without us (the backup), `` for no file. `base` is what a block was put into where there was no file. `states`: the
    contents that lead back to the backup; the last is what was to be written, and it is there only if no kill came
    between. `directories` are those that were made for the file, outermost first.
    """

    path: str
    real: str
    form: str
    owners: tuple[Owner, ...]
    before: str
    base: str
    states: tuple[State, ...]
    directories: tuple[str, ...]
    restart: Restart

    def state(self, data: bytes | None) -> State | None:
        """The state that the file has with this content, None for a content that is not ours."""
        found = digest(data)
        return next((item for item in self.states if item.after == found), None)


@dataclass
class Store:
    """The records below `directory`."""

    directory: str
    _held: int = 0

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """One process at a time. GpuhookError `engine-config-not-written` where the store can't be made, or another
        process has it for longer than ten seconds."""
        if self._held:
            yield
            return
        fd = self._open_lock()
        try:
            self._wait(fd)
            self._held += 1
            yield
        finally:
            self._held = 0
            os.close(fd)

    def records(self) -> tuple[Record, ...]:
        """All, by path. GpuhookError `engine-undo-invalid`."""
        try:
            names = sorted(os.listdir(self.directory))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self._unusable(self.directory, f"can't be read: {error.strerror}") from None
        found = [self._load(name) for name in names if name.endswith(".json") and not name.startswith(".")]
        return tuple(sorted((item for item in found if item), key=lambda item: item.path))

    def find(self, real: str) -> Record | None:
        """The record of a file. GpuhookError `engine-undo-invalid`."""
        return self._load(_name(real))

    def raw(self, real: str) -> bytes | None:
        """A record as it is stored, for whoever compares."""
        return self._read(_name(real))

    def backup(self, record: Record) -> bytes | None:
        """What stood in the file without us, None for no file. GpuhookError `engine-undo-invalid`."""
        if not record.before:
            return None
        name = _backup(record.real, record.before)
        data = self._read(name)
        if digest(data) != record.before:
            what = "is not there" if data is None else "is not what was stored"
            what += f": it holds {record.path} as it was before gpuhook"
            raise self._unusable(f"{self.directory}/{name}", what, f"{self.directory}/{_name(record.real)}")
        return data

    def save(self, record: Record, backup: bytes | None) -> None:
        """Write a record and what it leads back to. Only under the lock; OSError."""
        name = _backup(record.real, record.before)
        if backup is not None and self._read(name) != backup:
            self._put(name, backup)
        self._put(_name(record.real), _encoded(record))

    def restore(self, real: str, raw: bytes | None) -> None:
        """Give a record back the form that it had (None: there was none). Only under the lock; OSError."""
        if raw is None:
            self.drop(real)
        elif self._read(_name(real)) != raw:
            self._put(_name(real), raw)

    def drop(self, real: str) -> None:
        """Forget a file. Only under the lock; OSError."""
        with contextlib.suppress(FileNotFoundError):
            atomic.remove(f"{self.directory}/{_name(real)}")

    def sweep(self) -> None:
        """Remove the backups that no record leads to, and what a run that was killed left. Only under the lock.

        GpuhookError `engine-undo-invalid`, and nothing is removed, while a record is damaged; OSError.
        """
        kept = {_backup(record.real, record.before) for record in self.records()}
        for name in os.listdir(self.directory):
            if name.endswith((".backup", atomic.SUFFIX)) and name not in kept:
                os.unlink(f"{self.directory}/{name}")

    def _put(self, name: str, data: bytes) -> None:
        atomic.stage(f"{self.directory}/{name}", data, 0o600)
        atomic.put(f"{self.directory}/{name}")

    def _load(self, name: str) -> Record | None:
        data = self._read(name)
        if data is None:
            return None
        try:
            document = json.loads(data)
            jsonschema.Draft202012Validator(_SCHEMA).validate(document)
            record = _decoded(document)
        except (ValueError, RecursionError) as error:
            raise self._unusable(f"{self.directory}/{name}", f"is no record of ours: {error}") from None
        except jsonschema.ValidationError as error:
            what = f"is no record of ours: at {error.json_path}: {error.message[:200]}"
            raise self._unusable(f"{self.directory}/{name}", what) from None
        if name != _name(record.real):
            raise self._unusable(f"{self.directory}/{name}", f"is not the record of {record.real}, which it names")
        return record

    def _read(self, name: str) -> bytes | None:
        """A file of the store, None where there is none."""
        path = f"{self.directory}/{name}"
        try:
            self._check()
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(path, f"can't be read: {error.strerror}") from None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise self._unusable(path, "is no regular file")
            with open(fd, "rb", closefd=False) as file:
                data = file.read(_LIMIT + 1)
        finally:
            os.close(fd)
        if len(data) > _LIMIT:
            raise self._unusable(path, "is larger than any that gpuhook writes")
        return data

    def _check(self) -> None:
        """What is in the store decides what is written into engines' files: it must be the caller's own. OSError."""
        status = os.lstat(self.directory)
        if not stat.S_ISDIR(status.st_mode):
            raise self._unusable(self.directory, "is no directory")
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            whose = f"belongs to user {status.st_uid}" if status.st_uid != os.geteuid() else "may be written by others"
            raise self._unusable(self.directory, f"{whose}, and must be the caller's own")

    def _open_lock(self) -> int:
        path = f"{self.directory}/lock"
        try:
            os.makedirs(os.path.dirname(self.directory), 0o755, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.directory, 0o700)
            self._check()
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise atomic.failed(path, error) from None

    def _wait(self, fd: int) -> None:
        until = time.monotonic() + _WAIT
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise GpuhookError(
                        "engine-config-not-written",
                        f"another gpuhook is changing engines' configuration: it has held {self.directory}/lock for "
                        f"more than {_WAIT:.0f} seconds",
                        "wait for it to end, or see what hinders it (fuser names its process), then run this again",
                    ) from None
                time.sleep(0.05)
            except OSError as error:
                raise atomic.failed(f"{self.directory}/lock", error) from None

    def _unusable(self, path: str, what: str, record: str = "") -> GpuhookError:
        """The error for a file of the store; `record`: the one to remove, where it is another file."""
        if path == self.directory:
            hint = "nothing was changed: make it a directory of the caller's that nobody else may write, or remove it"
            return GpuhookError("engine-undo-invalid", f"{path} {what}", hint)
        return GpuhookError(
            "engine-undo-invalid",
            f"{path} {what}",
            "nothing was changed: take gpuhook's entries out of the engine's file by hand, or restore it from a "
            f"backup, then remove {record or path}",
        )


def locate(host: Host, prefix: str) -> Store:
    """The store of an installation, or of the user where the engine is the user's."""
    if host.uid == 0:
        return Store(f"{prefix}/var/lib/gpuhook/engines")
    own = host.environ.get("XDG_STATE_HOME", "")
    return Store(f"{own if own.startswith('/') else f'{host.home}/.local/state'}/gpuhook/engines")


def _stem(real: str) -> str:
    return hashlib.sha256(os.fsencode(real)).hexdigest()[:32]


def _name(real: str) -> str:
    return f"{_stem(real)}.json"


def _backup(real: str, before: str) -> str:
    return f"{_stem(real)}-{before[:16]}.backup"


# --- records as JSON ------------------------------------------------------------------------------------------------


def _encoded(record: Record) -> bytes:
    document = vars(record) | {
        "format": _FORMAT,
        "gpuhook": __version__,
        "time": int(time.time()),
        "owners": [vars(item) for item in record.owners],
        "states": [{"after": item.after, "undos": [_undo(undo) for undo in item.undos]} for item in record.states],
        "restart": vars(record.restart),
    }
    try:
        return json.dumps(document, indent=1).encode() + b"\n"
    except TypeError as error:
        raise GpuhookError(
            "engine-config-invalid",
            f"{record.path} has a value where gpuhook's belongs that can't be kept for undoing: {error}",
            "remove that value, then run this again",
        ) from None


def _undo(undo: Undo) -> dict[str, Any]:
    step = undo.step
    return {
        "set" if isinstance(step, Set) else "add": list(step.path),
        "value": step.value,
        "before": {"absent": True} if undo.before is ABSENT else {"value": undo.before},
        "kept": undo.kept,
    }


def _decoded(document: dict[str, Any]) -> Record:
    """Of a document that fits the schema."""
    restart = document["restart"]
    return Record(
        **{key: document[key] for key in ("path", "real", "form", "before", "base")},
        owners=tuple(Owner(**item) for item in document["owners"]),
        states=tuple(State(item["after"], tuple(map(_redo, item["undos"]))) for item in document["states"]),
        directories=tuple(document["directories"]),
        restart=Restart(tuple(restart["command"]), restart["sentence"], restart["needed"]),
    )


def _redo(item: dict[str, Any]) -> Undo:
    before = ABSENT if "absent" in item["before"] else item["before"]["value"]
    step = Set(tuple(item["set"]), item["value"]) if "set" in item else Add(tuple(item["add"]), item["value"])
    return Undo(step, before, item["kept"])
