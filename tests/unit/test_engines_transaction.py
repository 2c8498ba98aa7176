"""Engines' files are written whole or not at all, and undone to the byte; also by hand, by others, and half-way."""

import fcntl
import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NoReturn

import pytest

from gpuhook.engines import atomic, block, jsontext, transaction
from gpuhook.engines import store as stores
from gpuhook.engines.commit import commit
from gpuhook.engines.host import Host
from gpuhook.engines.model import Add, FileEdit, Proposal, Restart, Set, Step
from gpuhook.engines.store import Store
from gpuhook.errors import GpuhookError

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="mounts and chattr take root")
HOST = Host(root="", environ={})
RUNTIME = Set(("runtimes", "gpuhook"), {"path": "/usr/bin/gpuhook-runtime"})
DEFAULT = Set(("default-runtime",), "gpuhook")
TEXT = '{\r\n  "log-driver": "json-file", "id": 12345678901234567890,\r\n  "x": 1.0\r\n}'  # no line end at its end
RESTART = Restart(("systemctl", "restart", "docker"), "systemctl restart docker")


@pytest.fixture
def store(folder: Path) -> Store:
    return Store(str(folder / "store/engines"))


@pytest.fixture
def file(folder: Path) -> Path:
    """A daemon.json of somebody's."""
    path = folder / "etc/daemon.json"
    path.parent.mkdir()
    path.write_bytes(TEXT.encode())
    return path


def proposal(path: Path, *steps: Step, engine: str = "docker") -> Proposal:
    return Proposal(engine, (FileEdit(str(path), "json", steps or (RUNTIME,)),), RESTART)


def own(path: Path, text: str, form: Any = "whole", base: str = "") -> Proposal:
    return Proposal("crio", (FileEdit(str(path), form, text=text, base=base),), RESTART)


def configure(store: Store, wanted: Proposal, config: str = "") -> list[str]:
    changes = transaction.prepare(HOST, store, wanted, config)
    commit(store, changes)
    return [change.outcome for change in changes]


def unconfigure(store: Store, engine: str = "docker", config: str = "") -> list[str]:
    return [change.outcome for change in transaction.undo(store, engine, config)]


def refused(reference: str, call: Callable[..., object], *words: Any) -> str:
    """The message and hint of a call that must fail."""
    with pytest.raises(GpuhookError) as caught:
        call(*words)
    assert caught.value.reference == reference
    return f"{caught.value.message}\n{caught.value.hint}"


def tree(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    """All below a folder but the lock: modes and contents."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name != "lock":
            mode = path.lstat().st_mode
            found[str(path.relative_to(folder))] = (mode, path.read_bytes() if stat.S_ISREG(mode) else None)
    return found


def stored(store: Store) -> dict[str, tuple[int, bytes | None]]:
    return tree(Path(store.directory))


# --- there and back -------------------------------------------------------------------------------------------------


def test_undo_gives_the_bytes_back_and_the_store_holds_the_record_meanwhile(file: Path, store: Store) -> None:
    assert configure(store, proposal(file)) == ["changed"]
    assert json.loads(file.read_text())["runtimes"] == {"gpuhook": {"path": "/usr/bin/gpuhook-runtime"}}
    (record,) = store.records()
    assert (record.path, record.owners[0].engine, record.restart) == (str(file), "docker", RESTART)
    assert store.backup(record) == TEXT.encode()
    assert unconfigure(store) == ["restored"]
    assert file.read_bytes() == TEXT.encode()
    assert stored(store) == {}
    assert unconfigure(store) == []


def test_the_store_is_its_owners_alone_and_nothing_lies_beside_the_file(file: Path, store: Store) -> None:
    configure(store, proposal(file))
    assert stat.S_IMODE(Path(store.directory).stat().st_mode) == 0o700
    assert {stat.S_IMODE(mode) for mode, _ in stored(store).values()} == {0o600}
    assert [path.name for path in file.parent.iterdir()] == ["daemon.json"]


def test_r139_the_same_again_writes_nothing(file: Path, store: Store, folder: Path) -> None:
    configure(store, proposal(file))
    before, status, records = tree(folder), file.stat(), {path: path.stat() for path in Path(store.directory).iterdir()}
    time.sleep(0.02)
    assert configure(store, proposal(file)) == ["same"]
    assert file.stat().st_mtime_ns == status.st_mtime_ns
    assert file.stat().st_ino == status.st_ino
    assert tree(folder) == before
    assert {path: path.stat().st_mtime_ns for path in records} == {
        path: item.st_mtime_ns for path, item in records.items()
    }


def test_prepare_writes_nothing(file: Path, store: Store, folder: Path) -> None:
    before = tree(folder)
    transaction.prepare(HOST, store, proposal(file))
    assert tree(folder) == before


def test_what_is_configured_adds_up_and_the_backup_stays_the_original(file: Path, store: Store) -> None:
    for step in (RUNTIME, DEFAULT, Set(("features", "cdi"), True), Set(("default-runtime",), "runc")):
        assert configure(store, proposal(file, step)) == ["changed"]
    document = json.loads(file.read_text())
    assert document["runtimes"]["gpuhook"]
    assert (document["features"], document["default-runtime"]) == ({"cdi": True}, "runc")
    assert len([name for name in stored(store) if name.endswith(".backup")]) == 1
    assert unconfigure(store) == ["restored"]
    assert file.read_bytes() == TEXT.encode()


def test_r111_a_file_that_others_changed_loses_our_entries_alone(file: Path, store: Store) -> None:
    configure(store, proposal(file, RUNTIME, DEFAULT))
    file.write_bytes(file.read_bytes().replace(b"json-file", b"journald"))
    assert unconfigure(store) == ["taken-out"]
    assert file.read_bytes() == TEXT.replace("json-file", "journald").encode()
    assert stored(store) == {}


def test_r111_a_file_of_others_is_never_removed_however_empty_it_gets(folder: Path, store: Store) -> None:
    for text in ("", "\n", "{}"):
        path = folder / "daemon.json"
        path.write_text(text)
        configure(store, proposal(path))
        path.write_text(path.read_text() + "\n")
        unconfigure(store)
        assert path.exists(), repr(text)
        assert path.read_text().strip() in ("", "{}")


def test_a_file_that_we_made_goes_with_the_folders_that_we_made(folder: Path, store: Store) -> None:
    path = folder / "there/new/deeper/daemon.json"
    (folder / "there").mkdir(mode=0o750)
    assert configure(store, proposal(path)) == ["made"]
    assert [stat.S_IMODE(item.stat().st_mode) for item in (path, path.parent, folder / "there/new")] == [
        0o644,
        0o755,
        0o755,
    ]
    assert unconfigure(store) == ["removed"]
    assert list((folder / "there").iterdir()) == []


def test_a_folder_that_we_made_stays_where_others_put_something(folder: Path, store: Store) -> None:
    path = folder / "new/daemon.json"
    configure(store, proposal(path))
    (folder / "new/key.json").write_text("{}")
    assert unconfigure(store) == ["removed"]
    assert [item.name for item in (folder / "new").iterdir()] == ["key.json"]


def test_a_file_that_we_made_and_others_use_stays_for_them(folder: Path, store: Store) -> None:
    path = folder / "daemon.json"
    configure(store, proposal(path))
    document = json.loads(path.read_text()) | {"debug": True}
    path.write_text(json.dumps(document))
    assert unconfigure(store) == ["taken-out"]
    assert json.loads(path.read_text()) == {"debug": True}


def test_a_file_that_we_made_and_others_reformatted_goes(folder: Path, store: Store) -> None:
    path = folder / "daemon.json"
    configure(store, proposal(path))
    path.write_text(json.dumps(json.loads(path.read_text()), indent=7))
    assert unconfigure(store) == ["removed"]


def test_a_file_that_is_gone_is_not_made_again(file: Path, store: Store) -> None:
    configure(store, proposal(file))
    file.unlink()
    assert unconfigure(store) == ["gone"]
    assert not file.exists()
    assert stored(store) == {}


def test_a_file_that_somebody_restored_by_hand_is_nothing_to_do(file: Path, store: Store) -> None:
    configure(store, proposal(file))
    file.write_bytes(TEXT.encode())
    status = file.stat()
    assert unconfigure(store) == ["same"]
    assert file.stat().st_mtime_ns == status.st_mtime_ns
    assert stored(store) == {}


def test_configuring_after_others_changed_the_file_keeps_theirs_and_a_new_way_back(file: Path, store: Store) -> None:
    configure(store, proposal(file, RUNTIME))
    theirs = TEXT.replace("json-file", "journald")
    file.write_bytes(file.read_bytes().replace(b"json-file", b"journald"))
    assert configure(store, proposal(file, RUNTIME, DEFAULT)) == ["changed"]
    (record,) = store.records()
    assert store.backup(record) == theirs.encode()
    assert unconfigure(store) == ["restored"]
    assert file.read_bytes() == theirs.encode()


def test_an_entry_that_somebody_took_out_does_not_come_back_with_another(file: Path, store: Store) -> None:
    configure(store, proposal(file, RUNTIME, DEFAULT))
    file.write_text(json.dumps({key: item for key, item in json.loads(file.read_text()).items() if "def" not in key}))
    mine = json.loads(file.read_text())
    assert configure(store, proposal(file, Set(("features", "cdi"), True))) == ["changed"]
    assert "default-runtime" not in json.loads(file.read_text())
    assert unconfigure(store) == ["restored"]
    del mine["runtimes"]
    assert json.loads(file.read_text()) == mine


def test_a_value_that_somebody_set_instead_of_ours_is_what_undo_gives_back(file: Path, store: Store) -> None:
    configure(store, proposal(file, DEFAULT))
    theirs = file.read_text().replace('"gpuhook"', '"crun"')
    file.write_text(theirs)
    configure(store, proposal(file, DEFAULT))
    assert json.loads(file.read_text())["default-runtime"] == "gpuhook"
    unconfigure(store)
    assert json.loads(file.read_text())["default-runtime"] == "crun"


def test_what_undo_leaves_alone_it_says(file: Path, store: Store) -> None:
    configure(store, proposal(file, DEFAULT))
    file.write_text(file.read_text().replace('"gpuhook"', '"crun"'))
    (change,) = transaction.prepare_undo(store, "docker")
    assert any("default-runtime" in text for text in change.warnings)
    assert change.after == change.before


# --- whose it is ----------------------------------------------------------------------------------------------------


def test_what_two_engines_want_stays_until_the_second_lets_go(file: Path, store: Store) -> None:
    configure(store, proposal(file, engine="crio"))
    assert configure(store, proposal(file, engine="podman")) == ["same"]
    assert unconfigure(store, "crio") == ["kept"]
    assert unconfigure(store, "crio") == []
    assert "runtimes" in json.loads(file.read_text())
    assert unconfigure(store, "podman") == ["restored"]
    assert file.read_bytes() == TEXT.encode()


def test_undoing_one_configuration_of_an_engine_leaves_the_other(folder: Path, store: Store) -> None:
    """Two configurations, each with a drop-in, and a file that both want."""
    common = FileEdit(str(folder / "common"), "json", (DEFAULT,))
    for name in ("one", "two"):
        edits = (FileEdit(str(folder / f"{name}.conf"), "whole", text=name), common)
        configure(store, Proposal("crio", edits, RESTART), str(folder / name))
    assert unconfigure(store, "crio", str(folder / "three")) == []
    assert unconfigure(store, "crio", str(folder / "one")) == ["kept", "removed"]
    assert sorted(path.name for path in folder.iterdir()) == ["common", "store", "two.conf"]
    assert unconfigure(store, "crio", str(folder / "two.conf")) == ["removed", "removed"]
    assert [path.name for path in folder.iterdir()] == ["store"]


def test_other_engines_are_not_undone(file: Path, store: Store) -> None:
    configure(store, proposal(file))
    assert unconfigure(store, "podman") == []
    assert "runtimes" in json.loads(file.read_text())


# --- files as a whole, and blocks -----------------------------------------------------------------------------------


def test_a_file_of_our_own_is_made_replaced_and_removed(folder: Path, store: Store) -> None:
    path = folder / "hooks.d/99-gpuhook.json"
    assert configure(store, own(path, "one\n")) == ["made"]
    assert configure(store, own(path, "two\n")) == ["changed"]
    assert path.read_text() == "two\n"
    assert unconfigure(store, "crio") == ["removed"]
    assert not path.parent.exists()


def test_a_file_of_others_in_the_place_of_ours_is_refused_and_stays(folder: Path, store: Store) -> None:
    path = folder / "99-gpuhook.conf"
    path.write_text("theirs")
    assert str(path) in refused("engine-config-conflict", configure, store, own(path, "ours"))
    assert path.read_text() == "theirs"
    assert not Path(store.directory).exists()


def test_a_file_of_our_own_that_somebody_changed_is_refused_and_stays(folder: Path, store: Store) -> None:
    path = folder / "99-gpuhook.conf"
    configure(store, own(path, "ours"))
    path.write_text("theirs")
    assert f"rm {path}" in refused("engine-undo-invalid", unconfigure, store, "crio")
    assert str(path) in refused("engine-config-conflict", configure, store, own(path, "more"))
    assert path.read_text() == "theirs"
    path.unlink()  # as the hint says
    assert unconfigure(store, "crio") == ["gone"]


TEMPLATE = '{{ template "base" . }}\n[x]\n  y = "${SNAP}"'


@pytest.mark.parametrize("text", [TEMPLATE, TEMPLATE + "\n", "", TEMPLATE.replace("\n", "\r\n")], ids=repr)
def test_a_block_is_put_in_replaced_and_cut_out(folder: Path, store: Store, text: str) -> None:
    path = folder / "config.toml.tmpl"
    path.write_bytes(text.encode())
    assert configure(store, own(path, "a = 1\n", "block")) == ["changed"]
    assert configure(store, own(path, "a = 2\nb = 3\n", "block")) == ["changed"]
    lines = path.read_text().splitlines()
    assert lines[-4:] == [block.BEGIN, "a = 2", "b = 3", block.END]
    path.write_bytes(b"# theirs\n" + path.read_bytes())
    assert unconfigure(store, "crio") == ["taken-out"]
    assert path.read_bytes().rstrip(b"\r\n") == b"# theirs\n" + text.encode().rstrip(b"\r\n") or not text


def test_a_block_whose_file_is_as_we_left_it_is_undone_to_the_byte(folder: Path, store: Store) -> None:
    path = folder / "config.toml.tmpl"
    path.write_text(TEMPLATE)
    configure(store, own(path, "a = 1\n", "block"))
    assert unconfigure(store, "crio") == ["restored"]
    assert path.read_text() == TEMPLATE


def test_a_template_that_we_made_begins_with_the_base_and_goes(folder: Path, store: Store) -> None:
    path = folder / "config.toml.tmpl"
    base = '{{ template "base" . }}\n'
    assert configure(store, own(path, "a = 1\n", "block", base)) == ["made"]
    assert path.read_text().startswith(base)
    path.write_text(path.read_text() + "\n")  # a line that says nothing
    assert unconfigure(store, "crio") == ["removed"]
    configure(store, own(path, "a = 1\n", "block", base))
    path.write_text("[z]\n" + path.read_text())
    assert unconfigure(store, "crio") == ["taken-out"]
    assert path.read_text() == "[z]\n" + base


@pytest.mark.parametrize(
    "text",
    [f"{block.BEGIN}\na\n", f"a\n{block.END}\n", f"{block.END}\n{block.BEGIN}\n", f"{block.BEGIN}\n{block.END}\n" * 2],
    ids=["no end", "no beginning", "turned round", "two"],
)
def test_markers_that_are_no_pair_are_refused_with_their_line(folder: Path, store: Store, text: str) -> None:
    path = folder / "config.toml.tmpl"
    path.write_text(text)
    assert f"{path}:" in refused("engine-config-invalid", configure, store, own(path, "a = 1\n", "block"))
    assert path.read_text() == text


# --- how a file is replaced -----------------------------------------------------------------------------------------


@ROOT_ONLY
def test_r114_mode_owner_and_attributes_are_kept(file: Path, store: Store) -> None:
    file.chmod(0o640)
    os.chown(file, 12, 34)
    os.setxattr(file, "user.label", b"text")
    inode = file.stat().st_ino
    for outcome in ("changed", "restored"):
        assert (configure(store, proposal(file)) if outcome == "changed" else unconfigure(store)) == [outcome]
        status = file.stat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o640, 12, 34)
        assert os.getxattr(file, "user.label") == b"text"
        assert status.st_ino != inode, "it was written in place"
        inode = status.st_ino


def test_r118_a_link_is_followed_and_kept(folder: Path, file: Path, store: Store) -> None:
    link = folder / "linked/daemon.json"
    link.parent.mkdir()
    link.symlink_to("../etc/daemon.json")
    configure(store, proposal(link))
    assert str(link.readlink()) == "../etc/daemon.json"
    assert "runtimes" in json.loads(file.read_text())
    assert list(link.parent.iterdir()) == [link]
    assert configure(store, proposal(file)) == ["same"], "the file by its other name has the same record"
    unconfigure(store)
    assert link.is_symlink()
    assert file.read_bytes() == TEXT.encode()


def test_the_temporary_file_is_no_configuration_and_a_left_one_is_replaced(file: Path, store: Store) -> None:
    name = Path(atomic.temporary(str(file)))
    assert name.parent == file.parent
    assert not any(fnmatch(name.name, pattern) for pattern in ("*.json", "*.toml", "*.conf"))
    assert name.name.startswith(".")
    name.write_text("half of a te")
    name.chmod(0o444)
    configure(store, proposal(file))
    assert list(file.parent.iterdir()) == [file]


def test_a_left_temporary_file_that_is_a_link_is_not_followed(folder: Path, file: Path, store: Store) -> None:
    victim = folder / "victim"
    victim.write_text("whole")
    Path(atomic.temporary(str(file))).symlink_to(victim)
    configure(store, proposal(file))
    assert victim.read_text() == "whole"


@pytest.mark.parametrize("mask", [0o077, 0o000], ids=oct)
def test_the_umask_of_the_caller_counts_for_nothing(folder: Path, store: Store, mask: int) -> None:
    path = folder / "new/daemon.json"
    old = os.umask(mask)
    try:
        configure(store, proposal(path))
    finally:
        now = os.umask(old)
    assert now == mask
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o644, 0o755)


# --- what can go wrong ----------------------------------------------------------------------------------------------


@pytest.fixture
def disk(folder: Path) -> Iterator[Path]:
    """A file system of its own, with 64 KiB."""
    path = folder / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", path], check=True)


def fill(disk: Path, left: int) -> None:
    """Leave so many bytes of it."""
    room = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
    (disk / "filler").write_bytes(bytes(room - left))


@ROOT_ONLY
@pytest.mark.parametrize("again", [False, True], ids=["first", "additive"])
@pytest.mark.parametrize("left", [0, 4096, 8192, 12288])
@pytest.mark.parametrize("where", ["file", "store", "both"])
def test_a_full_disk_leaves_all_as_it_was(folder: Path, disk: Path, where: str, left: int, again: bool) -> None:
    """Whatever fits and whatever does not: the file is whole, and so is the way back."""
    store = Store(str((folder if where == "file" else disk) / "store/engines"))
    file = (folder if where == "store" else disk) / "daemon.json"
    text = TEXT.replace("json-file", "x" * 9000)  # three pages
    file.write_bytes(text.encode())
    if again:
        configure(store, proposal(file))
    before, records = file.read_bytes(), stored(store)
    fill(disk, left)
    try:
        configure(store, proposal(file, RUNTIME, DEFAULT))
    except GpuhookError as error:
        assert error.reference == "engine-config-not-written"
        assert "No space left on device" in error.message
        assert file.read_bytes() == before
        assert stored(store) == records
    else:
        assert left > (4096 if where == "store" and not again else 0), "it fitted"
        assert left > 8192 or where == "store", "it fitted"
    (disk / "filler").unlink()
    if again:
        assert unconfigure(store) == ["restored"]
    else:
        configure(store, proposal(file))
        unconfigure(store)
    assert file.read_bytes() == text.encode()
    assert stored(store) == {}
    assert not list(file.parent.glob(".*"))


@ROOT_ONLY
def test_a_read_only_file_system(folder: Path, disk: Path, store: Store) -> None:
    file = disk / "daemon.json"
    file.write_text("{}")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    text = refused("engine-config-not-written", configure, store, proposal(file))
    assert "Read-only file system" in text
    assert file.read_text() == "{}"
    assert stored(store) == {}


@ROOT_ONLY
def test_an_immutable_file(file: Path, store: Store) -> None:
    subprocess.run(["chattr", "+i", file], check=True)
    try:
        text = refused("engine-config-not-written", configure, store, proposal(file))
    finally:
        subprocess.run(["chattr", "-i", file], check=True)
    assert "lsattr" in text
    assert file.read_bytes() == TEXT.encode()
    assert list(file.parent.iterdir()) == [file]
    assert stored(store) == {}


@ROOT_ONLY
def test_a_file_that_is_a_mount_of_its_own(folder: Path, file: Path, store: Store) -> None:
    subprocess.run(["mount", "--bind", file, file], check=True)
    try:
        text = refused("engine-config-not-written", configure, store, proposal(file))
    finally:
        subprocess.run(["umount", file], check=True)
    assert "mount" in text
    assert list(file.parent.iterdir()) == [file]
    assert stored(store) == {}


def in_child(call: Callable[[], object]) -> tuple[int, str]:
    """Wait status of a process that made a call, and the error that it met."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
        except GpuhookError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        text = pipe.read().decode()
    return os.waitpid(child, 0)[1], text


@ROOT_ONLY
def test_without_the_right_to_write(folder: Path, file: Path) -> None:
    place = folder / "store"
    place.mkdir()
    os.chown(place, 65534, 65534)

    def call() -> None:
        os.setgid(65534)
        os.setuid(65534)
        configure(Store(str(place / "engines")), proposal(file))

    _, text = in_child(call)
    assert "[engine-config-not-written]" in text
    assert "sudo" in text
    assert file.read_bytes() == TEXT.encode()
    assert tree(place) == {"engines": (0o40700, None)}


def test_a_change_by_others_between_prepare_and_commit_is_refused(folder: Path, file: Path, store: Store) -> None:
    changes = transaction.prepare(HOST, store, proposal(file))
    file.write_text("{}")
    assert str(file) in refused("engine-config-not-written", commit, store, changes)
    assert file.read_text() == "{}"
    link = folder / "daemon.json"
    link.symlink_to(file)
    changes = transaction.prepare(HOST, store, proposal(link))
    link.unlink()
    link.symlink_to(folder / "elsewhere")
    refused("engine-config-not-written", commit, store, changes)
    assert file.read_text() == "{}"
    assert stored(store) == {}


@ROOT_ONLY
def test_of_several_files_all_are_written_or_none(folder: Path, file: Path, store: Store) -> None:
    """The last can't be replaced; those before it can."""
    stuck = folder / "etc/stuck.json"
    stuck.write_text("{}")
    new = folder / "etc/conf.d/new.json"
    edits = tuple(FileEdit(str(path), "json", (RUNTIME,)) for path in (file, new, stuck))
    before = tree(folder / "etc")
    subprocess.run(["mount", "--bind", stuck, stuck], check=True)
    try:
        text = refused("engine-config-not-written", configure, store, Proposal("docker", edits, RESTART))
    finally:
        subprocess.run(["umount", stuck], check=True)
    assert str(stuck) in text
    assert tree(folder / "etc") == before
    assert stored(store) == {}
    assert configure(store, Proposal("docker", edits, RESTART)) == ["changed", "made", "changed"]
    assert sorted(unconfigure(store)) == ["removed", "restored", "restored"]
    assert tree(folder / "etc") == before


def test_two_names_of_one_file_are_refused(folder: Path, file: Path, store: Store) -> None:
    link = folder / "drop-in.json"
    link.symlink_to(file)
    edits = tuple(FileEdit(str(path), "json", (RUNTIME,)) for path in (file, link))
    text = refused("engine-config-conflict", configure, store, Proposal("docker", edits, RESTART))
    assert str(link) in text
    assert str(file) in text


# --- two at once ----------------------------------------------------------------------------------------------------


def test_the_second_of_two_processes_waits_and_then_says_so(
    file: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = transaction.prepare(HOST, store, proposal(file))
    os.makedirs(store.directory, 0o700)
    other = os.open(f"{store.directory}/lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(other, fcntl.LOCK_EX)
    monkeypatch.setattr(stores, "_WAIT", 0.3)
    begun = time.monotonic()
    text = refused("engine-config-not-written", commit, store, changes)
    assert time.monotonic() - begun >= 0.3
    assert "another gpuhook" in text
    assert file.read_bytes() == TEXT.encode()
    os.close(other)
    commit(store, changes)
    assert "runtimes" in json.loads(file.read_text())


def test_processes_that_configure_at_once_leave_a_way_back(file: Path, store: Store) -> None:
    def call(number: int) -> None:
        with store.lock():
            configure(store, proposal(file, Set(("runtimes", f"r{number}"), {"path": "/x"})))

    children = []
    for number in range(8):
        child = os.fork()
        if child == 0:
            try:
                call(number)
            finally:
                os._exit(0)
        children.append(child)
    assert {os.waitpid(child, 0)[1] for child in children} == {0}
    assert sorted(json.loads(file.read_text())["runtimes"]) == [f"r{number}" for number in range(8)]
    assert unconfigure(store) == ["restored"]
    assert file.read_bytes() == TEXT.encode()


# --- killed half-way ------------------------------------------------------------------------------------------------

CALLS = ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir", "fchmod")


def killed_at(number: int) -> None:
    """From now on this process is killed at the number-th of the system's calls that could change something; of a
    write, half is done."""
    count = 0

    def wrap(name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)

        def call(*words: Any, **more: Any) -> Any:
            nonlocal count
            if name == "open" and not words[1] & os.O_CREAT:
                return real(*words, **more)
            count += 1
            if count == number:
                if name == "write":
                    real(words[0], words[1][: len(words[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*words, **more)

        setattr(os, name, call)

    for name in CALLS:
        wrap(name)


def _first(place: Path, store: Store) -> None:
    configure(store, proposal(place / "etc/daemon.json", RUNTIME, DEFAULT))


def _more(place: Path, store: Store) -> None:
    configure(store, proposal(place / "etc/daemon.json", RUNTIME, DEFAULT, Set(("features", "cdi"), True)))


def _new(place: Path, store: Store) -> None:
    edits = tuple(
        FileEdit(str(place / name), "json", (RUNTIME,)) for name in ("etc/daemon.json", "etc/a/b/one.json", "etc/a/two")
    )
    configure(store, Proposal("docker", edits, RESTART))


def _theirs(place: Path, _store: Store) -> None:
    path = place / "etc/daemon.json"
    path.write_bytes(path.read_bytes().replace(b"json-file", b"journald"))


def _undo(_place: Path, store: Store) -> None:
    unconfigure(store)


Act = Callable[[Path, Store], None]
# what was done before, and what is killed
SCENES: dict[str, tuple[tuple[Act, ...], Act]] = {
    "configure": ((), _first),
    "configure files in new folders": ((), _new),
    "configure more": ((_first,), _more),
    "configure what others changed": ((_first, _theirs), _more),
    "unconfigure": ((_first,), _undo),
    "unconfigure files in new folders": ((_new,), _undo),
    "unconfigure what others changed": ((_first, _theirs), _undo),
}


def scene(place: Path, acts: tuple[Act, ...]) -> Store:
    """A place where this was done."""
    (place / "etc").mkdir(parents=True)
    (place / "etc/daemon.json").write_bytes(TEXT.encode())
    store = Store(str(place / "store/engines"))
    for act in acts:
        act(place, store)
    return store


@pytest.mark.parametrize(("acts", "last"), SCENES.values(), ids=SCENES)
@pytest.mark.parametrize("then", ["unconfigure", "configure and unconfigure"])
def test_a_kill_at_any_call_leaves_old_or_new_and_the_way_back(
    folder: Path, acts: tuple[Act, ...], last: Act, then: str
) -> None:
    finished = scene(folder / "finished", acts)
    olds = tree(folder / "finished/etc")
    last(folder / "finished", finished)
    news = tree(folder / "finished/etc")
    unconfigure(finished)
    wanted = tree(folder / "finished/etc")  # which are the original bytes where nobody else changed them
    assert wanted["daemon.json"][1] == (TEXT.replace("json-file", "journald") if _theirs in acts else TEXT).encode()
    for number in range(1, 400):
        place = folder / f"{number}"
        store = scene(place, acts)

        def call(number: int = number, place: Path = place, store: Store = store) -> None:
            killed_at(number)
            last(place, store)

        status, error = in_child(call)
        found = tree(place / "etc")
        for name in {*olds, *news} & {*found}:
            assert found[name] in (olds.get(name), news.get(name)), f"call {number}: {name}"
        assert {name for name in {*found} - {*olds, *news} if not name.endswith(atomic.SUFFIX)} == set()
        again = Store(store.directory)
        if then != "unconfigure":
            (_more if last is not _new else _new)(place, again)
        unconfigure(again)
        assert tree(place / "etc") == wanted, f"call {number}"
        assert stored(again) == {}, f"call {number}"
        if status == 0:
            assert (error, found) == ("", news)
            assert number > 10, "the calls are not the ones that it makes"
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
    raise AssertionError("it never came to its end")


# --- a store that is damaged ----------------------------------------------------------------------------------------


def _edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return apply


def _backup(path: Path) -> Path:
    return next(path.parent.glob("*.backup"))


def _aside(path: Path) -> Path:
    """The path, where nothing is now."""
    path.unlink()
    return path


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: path.write_text(path.read_text()[:100]),
    "empty": lambda path: path.write_text(""),
    "no object": lambda path: path.write_text("[]"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "a field is missing": _edit(lambda item: item.pop("owners")),
    "a field is unknown": _edit(lambda item: item.update(more=1)),
    "another type": _edit(lambda item: item["states"][0].update(undos={})),
    "another format": _edit(lambda item: item.update(format=2)),
    "another file's": _edit(lambda item: item.update(real="/etc/passwd")),
    "no backup": lambda path: _backup(path).unlink(),
    "another backup": lambda path: _backup(path).write_text("{}"),
    "a link": lambda path: path.rename(path.parent / "x").with_name(path.name).symlink_to("x"),
    "a folder": lambda path: _aside(path).mkdir(),
    "a fifo": lambda path: os.mkfifo(_aside(path)),
    "others may write it": lambda path: path.parent.chmod(0o777),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_store_is_named_and_nothing_is_guessed(
    file: Path, store: Store, damage: Callable[[Path], object]
) -> None:
    configure(store, proposal(file))
    (path,) = Path(store.directory).glob("*.json")
    damage(path)
    before = file.read_bytes()
    whole = path.parent.stat().st_mode & 0o002  # then no file in it is named
    said = "nobody else may write" if whole else f"then remove {path}"
    assert said in refused("engine-undo-invalid", unconfigure, store)
    assert said in refused("engine-undo-invalid", configure, store, proposal(file, DEFAULT))
    assert file.read_bytes() == before


def test_a_file_with_several_names_is_warned_of(file: Path, store: Store) -> None:
    """It is replaced under one name; whoever reads the other goes on with the old file."""
    assert transaction.prepare(HOST, store, proposal(file))[0].warnings == ()
    file.with_name("other").hardlink_to(file)
    (change,) = transaction.prepare(HOST, store, proposal(file))
    assert change.warnings[0].startswith(f"{file} has 2 hard links: ")
    commit(store, (change,))
    assert file.with_name("other").read_bytes() == TEXT.encode() != file.read_bytes()


@pytest.mark.parametrize(
    ("name", "warned"), [("etc/daemon.json", False), ("etc/new.json", False), ("ect/x.json", True)]
)
def test_a_named_file_whose_folder_is_not_there_is_warned_of(
    folder: Path, file: Path, store: Store, name: str, warned: bool
) -> None:
    """A path with a slip of the pen is configured, and no engine reads it."""
    path = folder / name
    (change,) = transaction.prepare(HOST, store, proposal(path), str(path))
    assert (f"the folder of {path} is not there: is it the file that the engine reads?" in change.warnings) is warned
    assert transaction.prepare(HOST, store, proposal(path))[0].warnings == ()


def test_undo_values_survive_the_store(file: Path, store: Store) -> None:
    """What stood in the way of ours: every type that a document can have, and nothing at all."""
    values: list[Any] = [None, True, 1, 10**30, 1.5, "ü\u2028", [], ["a"], {"a": {"b": []}}]
    document = {f"k{number}": value for number, value in enumerate(values)} | {"list": ["one"]}
    file.write_text(json.dumps(document, ensure_ascii=False))
    steps: list[Step] = [Set((f"k{number}",), "ours") for number in range(len(values))]
    configure(store, proposal(file, *steps, Set(("new", "deep"), 1), Add(("list",), "two"), Add(("other",), "x")))
    file.write_text(file.read_text() + "\n")
    assert unconfigure(store) == ["taken-out"]
    assert json.loads(file.read_text()) == document


def test_where_the_store_lies() -> None:
    root = Host(uid=0, environ={"HOME": "/root", "XDG_STATE_HOME": "/elsewhere"})
    assert stores.locate(root, "/p").directory == "/p/var/lib/gpuhook/engines"
    assert stores.locate(Host(uid=7, environ={"HOME": "/home/a"}), "/p").directory == (
        "/home/a/.local/state/gpuhook/engines"
    )
    given = Host(uid=7, environ={"HOME": "/home/a", "XDG_STATE_HOME": "/s"})
    assert stores.locate(given, "").directory == "/s/gpuhook/engines"
    relative = Host(uid=7, environ={"HOME": "/home/a", "XDG_STATE_HOME": "s"})  # which the XDG rules forbid
    assert stores.locate(relative, "").directory == "/home/a/.local/state/gpuhook/engines"


def test_a_broken_text_is_refused_by_undo_too(file: Path, store: Store) -> None:
    configure(store, proposal(file))
    file.write_text("{")
    assert str(file) in refused("engine-config-invalid", unconfigure, store)
    assert file.read_text() == "{"
    assert store.records()


def test_files_are_found_below_the_hosts_root(folder: Path, store: Store) -> None:
    """As tests have it: the engine's names below another root."""
    host = Host(root=str(folder), environ={})
    edit = FileEdit("/etc/docker/daemon.json", "json", (RUNTIME,))
    commit(store, transaction.prepare(host, store, Proposal("docker", (edit,), RESTART)))
    made = folder / "etc/docker/daemon.json"
    assert jsontext.parse("", made.read_text())["runtimes"]
    unconfigure(store)
    assert not (folder / "etc").exists()


def test_a_stop_by_the_user_puts_everything_back(file: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a write."""

    def stop(*_words: object) -> NoReturn:
        raise KeyboardInterrupt

    changes = transaction.prepare(HOST, store, proposal(file))
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "put", lambda path, put=atomic.put: stop() if path == str(file) else put(path))
        with pytest.raises(KeyboardInterrupt):
            commit(store, changes)
    assert file.read_bytes() == TEXT.encode()
    assert list(file.parent.iterdir()) == [file]
    assert stored(store) == {}
