"""The host as an engine's module sees it: odd files, programs that hang, flood or are not there, homes."""

import os
import time
from pathlib import Path

import pytest

from gpuhook.engines import host as hosts
from gpuhook.engines.host import Host
from gpuhook.errors import GpuhookError


def program(path: Path, text: str) -> Host:
    """A host whose PATH has one program, `tool`."""
    path.mkdir(exist_ok=True)
    (path / "tool").write_text(f"#!/bin/sh\n{text}\n")
    (path / "tool").chmod(0o755)
    return Host(environ={"PATH": f"{path}:{os.environ['PATH']}"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("a" * 300, "--config FILE"),
        ("file/below", "--config FILE"),
        ("loop", "--config FILE"),
        ("folder", "--config FILE"),
        ("dangling", "remove the link"),
    ],
)
def test_what_is_no_file_is_refused_with_what_to_do(name: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(GpuhookError) as caught:
        Host().read(f"{tmp_path}/{name}")
    assert caught.value.reference == "engine-config-unreadable"
    assert hint in caught.value.hint


def test_a_file_that_opens_and_can_not_be_read_is_refused() -> None:
    """As on a failing disk: reading a process's memory at 0 is an error (EIO)."""
    with pytest.raises(GpuhookError, match="/proc/self/mem can't be read: ") as caught:
        Host().read("/proc/self/mem")
    assert caught.value.reference == "engine-config-unreadable"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo yes; echo no >&2", "yes\n"),
        ("echo yes; exit 1", None),
        ("printf '\\377'", "�"),
        ("exec yes", None),
    ],
    ids=["says", "fails", "not UTF-8", "never ends"],
)
def test_what_a_program_says(text: str, said: str | None, tmp_path: Path) -> None:
    started = time.monotonic()
    assert program(tmp_path / "bin", text).ask("tool") == said
    assert time.monotonic() - started < hosts._DEADLINE / 2, "what floods was read to the deadline"


@pytest.mark.parametrize("words", [("none",), ("tool", "a\0b")], ids=["not there", "a NUL, as another program said it"])
def test_what_can_not_be_run_says_nothing(words: tuple[str, ...], tmp_path: Path) -> None:
    assert program(tmp_path / "bin", "echo yes").ask(*words) is None


@pytest.mark.parametrize("text", ["exec sleep 60", "sleep 60 & exit 0", "exec >&-; exec sleep 60"])
def test_a_program_that_hangs_costs_one_deadline_and_is_not_asked_again(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "_DEADLINE", 0.5)
    host = program(tmp_path / "bin", f"echo $$ >>{tmp_path}/asked\n{text}")
    started = time.monotonic()
    assert host.ask("tool") is None
    assert host.ask("tool", "again") is None
    assert time.monotonic() - started < 5
    assert len((tmp_path / "asked").read_text().split()) == 1


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"HOME": "/home/me"}, "/home/me/.config"),
        ({"HOME": "/home/me", "XDG_CONFIG_HOME": "/x"}, "/x"),
        ({"HOME": "/home/me", "XDG_CONFIG_HOME": "x"}, "/home/me/.config"),
        ({}, "/root/.config"),
        ({"HOME": "me"}, "/root/.config"),
    ],
    ids=["home", "XDG", "a relative XDG is ignored", "no HOME: the account's", "a relative HOME: the account's"],
)
def test_where_a_users_configuration_lies(environ: dict[str, str], home: str) -> None:
    assert Host(uid=0, environ=environ).config_home == home
    assert not Host(uid=0x7FFFFFF0, environ={}).home.startswith("/root"), "a user without an account is not root"
