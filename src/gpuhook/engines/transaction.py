"""What configuring an engine changes in its files, and what taking it back does; `commit` writes it.

`prepare` and `prepare_undo` write nothing. What is configured adds to what was; the backup is always the file as it
would be without us.
"""

import importlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from gpuhook.engines import block
from gpuhook.engines.commit import PLAIN, Change, commit, tried
from gpuhook.engines.host import Host
from gpuhook.engines.model import Add, FileEdit, Proposal, Step, Undo
from gpuhook.engines.store import Owner, Record, State, Store, digest
from gpuhook.errors import GpuhookError


def _language(form: str) -> ModuleType:
    """What edits the texts of a form, imported where it is needed: tomlkit costs a docker host nothing."""
    return importlib.import_module(f"gpuhook.engines.{form}text")


# --- configuring ----------------------------------------------------------------------------------------------------


def prepare(host: Host, store: Store, proposal: Proposal, config: str = "") -> tuple[Change, ...]:
    """What a proposal changes; nothing is written. `config`: the file that a person named with --config.

    GpuhookError `engine-config-...` for a file that can't be read or edited, or that is not ours to replace;
    `engine-undo-invalid` for a damaged store.
    """
    main = config or (proposal.files[0].path if proposal.files else "")
    owner = Owner(proposal.engine, main)
    changes = [_configured(host, store, proposal, owner, edit) for edit in proposal.files]
    seen: dict[str, str] = {}
    for change in changes:
        other = seen.setdefault(change.real, change.path)
        if other != change.path:
            raise GpuhookError(
                "engine-config-conflict",
                f"{other} and {change.path} are the same file, {change.real}, and gpuhook would write both",
                "name another file: --config FILE or --drop-in FILE",
            )
    if config and changes and changes[0].changes_file and not os.path.isdir(host.real(os.path.dirname(config))):
        text = f"the folder of {config} is not there: is it the file that the engine reads?"
        changes[0] = replace(changes[0], warnings=(text, *changes[0].warnings))
    return tuple(changes)


def _links(change: Change) -> tuple[str, ...]:
    """A warning for a file with several names: it is replaced by a new one, under one of them."""
    count = os.stat(change.real).st_nlink if change.before is not None else 1
    text = f"{change.path} has {count} hard links: under its other names it stays as it was, from now on another file"
    return (text,) if count > 1 else ()


def _configured(host: Host, store: Store, proposal: Proposal, owner: Owner, edit: FileEdit) -> Change:
    named = host.real(edit.path)
    real = os.path.realpath(named)
    text = host.read(edit.path)
    now = None if text is None else text.encode()
    known = store.find(real)
    if known is not None and known.form != edit.form:
        raise GpuhookError(
            "engine-config-conflict",
            f"{edit.path} was configured in another way before ({known.form}, and now {edit.form})",
            f"undo that first: gpuhook unconfigure {known.owners[0].engine}",
        )
    backup, undos = _baseline(store, known, edit, text)
    after, new = _edited(edit, text)
    change = Change(edit.path, named, real, now, now, "same", restart=proposal.restart)
    change = replace(change, stored=store.raw(real), record=known, keep=True)
    if after == text:
        if known is None or owner in known.owners or known.state(now) is None:
            return change
        joined = replace(known, owners=(*known.owners, owner))
        return replace(change, record=joined, backup=store.backup(known), keep=False)
    applied = known is not None and now is not None and digest(now) != known.before
    old = (State(digest(now), undos),) if now is not None and backup != now else ()
    missing = _missing(real)
    record = Record(
        edit.path,
        real,
        edit.form,
        tuple(dict.fromkeys([*(known.owners if known is not None and applied else ()), owner])),
        digest(backup),
        edit.base,
        (*old, State(digest(after.encode()), (*undos, *new))),
        tuple(dict.fromkeys([*(known.directories if known else ()), *missing])),
        proposal.undo_restart or proposal.restart,
    )
    return replace(
        change,
        after=after.encode(),
        outcome="made" if now is None else "changed",
        mode=edit.mode,
        record=record,
        backup=backup,
        keep=False,
        directories=missing,
        warnings=_links(change),
    )


def _baseline(
    store: Store, known: Record | None, edit: FileEdit, text: str | None
) -> tuple[bytes | None, tuple[Undo, ...]]:
    """What the file would be without us, and how what of ours is in it now is taken back."""
    now = None if text is None else text.encode()
    if text is None or (known is not None and digest(now) == known.before):
        return now, ()
    if known is None:
        if edit.form == "whole" and text != edit.text:
            raise _not_ours(edit.path, "is there already, and gpuhook did not make it")
        return (block.cut(edit.path, text).encode() if edit.form == "block" else now), ()
    state = known.state(now)
    if state is not None:
        return store.backup(known), state.undos
    if edit.form == "whole":
        raise _not_ours(edit.path, "was changed by somebody else since gpuhook made it")
    undos = _standing(edit, text, known.states[-1].undos)
    return _without(known, text, undos)[0], undos


def _standing(edit: FileEdit, text: str, undos: tuple[Undo, ...]) -> tuple[Undo, ...]:
    """Without those whose entries somebody took out or changed: these are no longer ours."""
    if edit.form == "block":
        return ()
    language = _language(edit.form)
    last = {_entry(undo.step): undo.step for undo in undos}
    standing = {name for name, step in last.items() if not language.apply(edit.path, text, [step])[1]}
    return tuple(undo for undo in undos if _entry(undo.step) in standing)


def _entry(step: Step) -> tuple[object, ...]:
    """What two steps have in common that are about the same entry."""
    return (*step.path, step.value) if isinstance(step, Add) else step.path


def _edited(edit: FileEdit, text: str | None) -> tuple[str, tuple[Undo, ...]]:
    """The text with what is ours in it, and the way back."""
    if edit.form == "whole":
        return edit.text, ()
    if edit.form == "block":
        return block.put(edit.path, edit.base if text is None else text, edit.text), ()
    after: tuple[str, tuple[Undo, ...]] = _language(edit.form).apply(edit.path, text or "", edit.steps)
    return after


def _missing(real: str) -> tuple[str, ...]:
    """The directories of a file that are not there, outermost first."""
    return tuple(str(folder) for folder in reversed(Path(real).parents) if not os.path.lexists(folder))


def _not_ours(path: str, what: str) -> GpuhookError:
    return GpuhookError(
        "engine-config-conflict",
        f"{path} {what}",
        "look at it, and move it away if nobody needs it; then run this again",
    )


# --- undoing --------------------------------------------------------------------------------------------------------


def prepare_undo(store: Store, engine: str, config: str = "") -> tuple[Change, ...]:
    """What unconfiguring an engine changes; nothing is written. `config`: only what was done for that file.

    GpuhookError `engine-undo-invalid` for a damaged store, or a file of our own that somebody changed since; those of
    reading and editing.
    """
    records = store.records()
    owners = {owner for record in records for owner in record.owners if owner.engine == engine}
    if config:
        real = os.path.realpath(config)
        named = {owner for record in records if real == record.real for owner in record.owners}
        owners = {item for item in owners if item in named or config == item.config}
    changes = []
    for record in records:
        left = tuple(owner for owner in record.owners if owner not in owners)
        if left == record.owners:
            continue
        real, now = record.real, PLAIN.read_bytes(record.real)
        change = Change(record.path, real, real, now, now, "kept", stored=store.raw(real), restart=record.restart)
        if left:
            change = replace(change, record=replace(record, owners=left), backup=store.backup(record))
        else:
            change = _undone(store, record, change)
        changes.append(change)
    return tuple(changes)


def undo(store: Store, engine: str, config: str = "") -> tuple[Change, ...]:
    """Prepare and commit it. GpuhookError as both say."""
    with store.lock():
        changes = prepare_undo(store, engine, config)
        commit(store, changes)
        if not changes:
            tried(store.sweep)  # of a run that was killed before it came to a record
    return changes


def _undone(store: Store, record: Record, change: Change) -> Change:
    now = change.before
    change = replace(change, directories=record.directories)
    if now is None:
        return replace(change, outcome="gone")
    if digest(now) == record.before:
        return replace(change, outcome="same")
    change = replace(change, mode=os.stat(record.real).st_mode & 0o7777)
    if record.state(now) is not None:
        backup = store.backup(record)
        return replace(change, after=backup, outcome="removed" if backup is None else "restored")
    if record.form == "whole":
        raise GpuhookError(
            "engine-undo-invalid",
            f"{record.path} is gpuhook's own file, and somebody changed it since it was written; it is left as it is",
            f"look at it, and remove it if nobody needs it (rm {record.path}), then run this again",
        )
    text = PLAIN.read(record.real)
    assert text is not None  # it was read above
    after, warnings = _without(record, text, record.states[-1].undos)
    return replace(change, after=after, outcome="removed" if after is None else "taken-out", warnings=warnings)


def _without(record: Record, text: str, undos: Sequence[Undo]) -> tuple[bytes | None, tuple[str, ...]]:
    """The text without what is ours; None where we made the file and nobody's entries are left in it."""
    warnings: tuple[str, ...] = ()
    if record.form == "block":
        after = block.cut(record.path, text)
        empty = after.strip() == record.base.strip()
    else:
        after, warnings = _language(record.form).undo(record.path, text, undos)
        empty = not after.strip() or (record.form == "json" and "".join(after.split()) == "{}")
    return (None if empty and not record.before else after.encode()), warnings
