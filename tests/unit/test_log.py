"""gpuhook's own log: whole lines, bounded, and never an exception."""

import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhook.log import LEVELS, Log

SOURCE = str(Path(__file__).parents[2] / "src")


def test_a_line_has_time_level_container_and_text(tmp_path: Path) -> None:
    path = tmp_path / "a/b/gpuhook.log"
    before = time.time()
    Log(str(path)).write("warning", "0a1b", "the text")
    (line,) = path.read_text().splitlines()
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d{3}Z warning 0a1b the text", line)
    assert found
    assert abs(time.mktime(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S")) - time.timezone - before) < 5
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)] == [0o755, 0o755]


@pytest.mark.parametrize("level", [*LEVELS, "nonsense"])
def test_the_level_decides_what_is_written(tmp_path: Path, level: str) -> None:
    """A level that does not exist counts as info."""
    log = Log(str(tmp_path / "log"), level)
    for one in LEVELS:
        log.write(one, "", "x")
    written = [line.split()[1] for line in (tmp_path / "log").read_text().splitlines()]
    assert written == list(LEVELS[: LEVELS.index(level if level in LEVELS else "info") + 1])


def test_no_path_is_no_log(tmp_path: Path) -> None:
    Log("").write("error", "c", "x")
    assert os.listdir(tmp_path) == []


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=50), st.text(max_size=10))
def test_any_text_is_one_printable_line(tmp_path_factory: pytest.TempPathFactory, text: str, container: str) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    Log(str(path)).write("info", container, text)
    data = path.read_bytes()
    assert data.endswith(b"\n")
    assert data.decode()[:-1].isprintable()


def test_a_line_has_an_end(tmp_path: Path) -> None:
    Log(str(tmp_path / "log")).write("info", "c" * 5000, "x" * 100000)
    assert len((tmp_path / "log").read_bytes()) < 5000


def test_a_full_log_is_moved_aside_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(str(path), "info", 1000)
    for number in range(100):
        log.write("info", "c", f"line {number:03} " + "x" * 50)
    assert sorted(os.listdir(tmp_path)) == ["log", "log.1"]
    assert all((tmp_path / name).stat().st_size <= 1000 for name in os.listdir(tmp_path))
    numbers = [
        int(found) for name in ("log.1", "log") for found in re.findall(r"line (\d+)", (tmp_path / name).read_text())
    ]
    assert numbers == list(range(numbers[0], 100)), "the latest lines, none lost between the two files"


def test_several_processes_lose_no_line_and_mix_none(tmp_path: Path) -> None:
    """With one rotation in the middle, which must not throw away what another process moved aside."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from gpuhook.log import Log\n"
        "log = Log(sys.argv[2], 'info', 20000)\n"
        "for number in range(60): log.write('info', sys.argv[3], f'line {number} end')\n"
    )
    run = [sys.executable, "-ISc", script, SOURCE, str(tmp_path / "log")]
    workers = [subprocess.Popen([*run, f"w{worker}"]) for worker in range(8)]
    assert [worker.wait() for worker in workers] == [0] * 8
    lines = [line for name in ("log", "log.1") for line in (tmp_path / name).read_text().splitlines()]
    assert all(re.fullmatch(r"\S+Z info w\d line \d+ end", line) for line in lines)
    assert len(lines) == 480


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "below a file", "null byte", "relative nowhere"])
def test_what_is_no_log_file_is_left_alone(tmp_path: Path, kind: str) -> None:
    """No exception, nothing written through a link, and no hang on a pipe that nobody reads."""
    path = tmp_path / "log"
    target = tmp_path / "target"
    target.write_text("")
    if kind == "link":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "below a file":
        path = target / "log"
    name = {"null byte": "/a\0b", "relative nowhere": ""}.get(kind, str(path))
    Log(name).write("error", "c", "x")
    assert target.read_text() == ""
