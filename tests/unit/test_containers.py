"""What a container was granted is written down, and removed when its process is gone."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuhook import containers
from gpuhook.model import Record

RECORD = Record("r1", "580.95.05", (13, 0), False, "x86-64", (), ())


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A container's process."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def granted(name: str, pid: int) -> containers.Granted:
    return containers.Granted(name, pid, ("GPU-1", "MIG-2"), ("compute", "utility"), RECORD)


def files(state: Path) -> set[str]:
    return {path.name for path in (state / "containers").iterdir()}


def test_what_is_written(tmp_path: Path) -> None:
    before = os.umask(0)  # as in the hook
    assert containers.note(str(tmp_path / "run"), granted("box", os.getpid())) == ""
    os.umask(before)
    path = tmp_path / "run/containers/box.json"
    found = json.loads(path.read_text())
    assert found.pop("time").endswith("Z")
    assert found.pop("born") > 0
    assert found == {
        "format": 1,
        "id": "box",
        "mode": "shim",
        "pid": os.getpid(),
        "devices": ["GPU-1", "MIG-2"],
        "capabilities": ["compute", "utility"],
        "driver": "580.95.05",
        "record": "r1",
    }
    assert (path.stat().st_mode & 0o7777, path.stat().st_uid) == (0o644, os.geteuid())
    assert [item.stat().st_mode & 0o7777 for item in (path.parent, tmp_path / "run")] == [0o755, 0o755]


BAD = {
    "above": "..",
    "hidden": ".box",
    "folder": "a/b",
    "empty": "",
    "blank": "a b",
    "newline": "a\nb",
    "long": "x" * 201,
    "other letters": "\u00e4",
    "other digits": "\uff11",
}


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
def test_an_id_that_is_no_plain_name_is_not_written(tmp_path: Path, name: str) -> None:
    assert "no plain file name" in containers.note(str(tmp_path), granted(name, os.getpid()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a", "A_1+2-3.4", "0" * 64, "x" * 200])
def test_ids_of_engines(tmp_path: Path, name: str) -> None:
    assert containers.note(str(tmp_path), granted(name, os.getpid())) == ""
    assert files(tmp_path) == {f"{name}.json"}


@pytest.mark.parametrize("what", ["link", "open to all", "file", "not to be made"])
def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path, what: str) -> None:
    state, victim = tmp_path / "run", tmp_path / "victim"
    victim.mkdir()
    state.mkdir()
    if what == "link":
        (state / "containers").symlink_to(victim)
    elif what == "open to all":
        (state / "containers").mkdir()
        (state / "containers").chmod(0o777)
    elif what == "file":
        (state / "containers").touch()
    else:
        state = victim / "missing/run"
    assert containers.note(str(state), granted("box", os.getpid())).startswith(
        "what it was granted is not written down"
    )
    assert list(victim.iterdir()) == []
    assert not (state / "containers/box.json").exists()


def test_files_of_ended_containers_go(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    """Dozens of starts are enough for dozens of files, and what runs stays."""
    for number in range(40):
        containers.note(str(tmp_path), granted(f"lives{number}", other.pid))
    assert len(files(tmp_path)) == 40
    (tmp_path / "containers/broken.json").write_text("{")
    (tmp_path / "containers/no-pid.json").write_text("{}")
    (tmp_path / "containers/.box.json.999999999.gpuhook").touch()
    reborn = json.loads((tmp_path / "containers/lives0.json").read_text())
    (tmp_path / "containers/reborn.json").write_text(json.dumps({**reborn, "born": reborn["born"] - 1}))
    for _ in range(300):
        containers.note(str(tmp_path), granted("box", os.getpid()))
    assert files(tmp_path) == {"box.json", *(f"lives{number}.json" for number in range(40))}
    other.kill()
    while " Z " not in Path(f"/proc/{other.pid}/stat").read_text():
        time.sleep(0.01)  # a zombie is over, too
    for _ in range(300):
        containers.note(str(tmp_path), granted("box", os.getpid()))
    assert files(tmp_path) == {"box.json"}


def test_a_start_looks_at_a_few_files_only(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    for number in range(20):
        containers.note(str(tmp_path), granted(f"ends{number}", other.pid))
    other.kill()
    other.wait()
    containers.note(str(tmp_path), granted("box", os.getpid()))
    assert len(files(tmp_path)) == 21 - 2
