"""`gpuhook` as a whole: help, usage, failures, terminals and pipes."""

import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from gpuhook import __version__, cli
from gpuhook.cli import COMMANDS, main, render
from gpuhook.errors import GpuhookError

ROOT = Path(__file__).resolve().parents[2]
PYTHON = [sys.executable, "-c", "import sys; from gpuhook.cli import main; sys.exit(main(sys.argv))"]


@click.command()
@click.argument("how")
def fail(how: str) -> None:
    """A command that fails, for the tests below."""
    if how == "known":
        raise GpuhookError("node-missing", "a node is missing", "make it")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "lines":
        raise ValueError("one\ntwo")
    raise KeyError(how)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "fail", (f"{__name__}:fail", "Fail."))


def environment(**more: str) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), **more}


# --- help ---------------------------------------------------------------------------------------------------------


def test_help_lists_every_command_and_imports_none() -> None:
    """Help is what a person sees first: it is quick, and a broken command does not take it away."""
    code = (
        "import sys; from gpuhook.cli import main; main(['gpuhook', '--help'])\n"
        "late = ('gpuhook.cli.', 'gpuhook.sim', 'jsonschema', 'pynvml')\n"
        "print([name for name in sys.modules if name.startswith(late)])"
    )
    run = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert run.stderr == ""
    assert run.stdout.splitlines()[-1] == "[]"
    for name in COMMANDS:
        assert re.search(rf"^  {name} +\S", run.stdout, re.MULTILINE), name


def commands() -> Iterator[tuple[str, ...]]:
    """Every command, and every command of a group."""
    group = cli.gpuhook
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        yield (name,)
        if isinstance(command, click.Group):
            yield from ((name, child) for child in command.commands)


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_each_command_has_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpuhook", *words, "--help"]) == 0
    shown = capsys.readouterr()
    assert f"Usage: gpuhook {' '.join(words)}" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With its own words, or in each command of a group."""
    group = cli.gpuhook
    command = group.get_command(click.Context(group), name)
    children = [(name, child) for child in command.commands] if isinstance(command, click.Group) else []
    texts = []
    for words in [(name,), *children]:
        main(["gpuhook", *words, "--help"])
        texts.append("Example" in capsys.readouterr().out)
    assert texts[0] or all(texts[1:])


def test_without_a_command_it_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpuhook"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Usage: gpuhook")
    assert shown.err == ""


def test_debian_12s_click_says_errors_and_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """click 8.1 has no error for a call without arguments: none of our failures may ask for it."""
    monkeypatch.delattr(click.exceptions, "NoArgsIsHelpError", raising=False)
    assert main(["gpuhook", "frob"]) == 2
    assert "there is no command 'frob'" in capsys.readouterr().err
    assert main(["gpuhook"]) == 0
    assert capsys.readouterr().out.startswith("Usage: gpuhook")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpuhook", "--version"]) == 0
    assert capsys.readouterr().out == f"gpuhook {__version__}\n"


def test_a_console_script_calls_it_without_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpuhook", "config", "path"])
    assert main() == 0
    assert capsys.readouterr().out == "/etc/gpuhook/runtime.toml\n"


# --- failures -----------------------------------------------------------------------------------------------------

WRONG = {
    "unknown command": (["frob"], "there is no command 'frob'", "gpuhook --help"),
    "near command": (["exlpain"], "did you mean explain?", "gpuhook --help"),
    "unknown option": (["--frob"], "no such option", "gpuhook --help"),
    "unknown option of a command": (["info", "--frob"], "no such option", "gpuhook info --help"),
    "missing argument": (["check"], "missing argument 'EXPR'", "gpuhook check --help"),
    "too many arguments": (["info", "x"], "unexpected extra argument", "gpuhook info --help"),
    "no such choice": (["list", "--capability", "frob"], "'frob' is not one of", "gpuhook list --help"),
    "a group's command": (["config", "frob"], "no such command 'frob'", "gpuhook config --help"),
    "escape in a name": (["\x1b[31m"], "there is no command '\\x1b[31m'", "gpuhook --help"),
    "escape in an option": (["--\x1b[31m"], "no such option '--\\x1b[31m'", "gpuhook --help"),
}


@pytest.mark.parametrize(("words", "text", "hint"), WRONG.values(), ids=WRONG)
def test_a_wrong_command_line_is_an_error_like_others(
    words: list[str], text: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gpuhook", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("gpuhook: ")
    assert text in shown.err
    assert shown.err.splitlines()[0].endswith("[usage]")
    assert f"fix: {hint} shows" in shown.err


@pytest.mark.usefixtures("failing")
def test_a_known_failure_is_its_text_and_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpuhook", "fail", "known"]) == 59
    assert capsys.readouterr().err == "gpuhook: a node is missing [node-missing]\n  fix: make it\n"


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("how", ["x", "lines"])
def test_an_unknown_failure_is_one_line_and_the_log_has_the_traceback(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gpuhook", "fail", how], str(tmp_path)) == 3
    shown = capsys.readouterr().err
    log = tmp_path / "var/log/gpuhook/gpuhook.log"
    assert re.match(r"gpuhook: \w+Error at test_cli.py:\d+: .*\[internal\]\n", shown)
    assert shown.endswith(f"report it with the traceback in {log}\n")
    assert len(shown.splitlines()) == 2
    assert "Traceback" not in shown
    assert "Traceback" in log.read_text()
    assert "test_cli.py" in log.read_text()


@pytest.mark.usefixtures("failing")
def test_an_unknown_failure_without_a_log_is_said_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "var").touch()
    assert main(["gpuhook", "fail", "x"], str(tmp_path)) == 3
    assert capsys.readouterr().err.endswith("this is a defect of gpuhook: report it\n")


@pytest.mark.usefixtures("failing")
def test_an_interrupt_has_the_shells_status_and_no_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpuhook", "fail", "interrupt"]) == 130
    assert capsys.readouterr().err.strip() == ""


def test_a_reader_that_goes_away_is_no_failure_to_talk_about() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run([*PYTHON, "--help"], env=environment(), stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (run.returncode, run.stderr) == (1, "")


OUTPUTS = {
    "help": (["--help"], 4),
    "a document": (["config", "show", "--json"], 4),
    "a table": (["sim", "list-layouts"], 4),
    "an error as a document": (["explain", "/nowhere", "--json"], 4),
    "an error": (["explain", "/nowhere"], 20),
}


@pytest.mark.parametrize(("words", "status"), OUTPUTS.values(), ids=OUTPUTS)
def test_a_full_output_is_an_error_in_one_sentence(words: list[str], status: int) -> None:
    """Not a defect, and no traceback when the interpreter ends."""
    with open("/dev/full", "w") as full:
        run = subprocess.run([*PYTHON, *words], env=environment(), stdout=full, stderr=subprocess.PIPE, text=True)
    assert run.returncode == status
    wanted = "standard output can't be written: No space left on device [output-not-written]"
    assert (wanted if status == 4 else "[bundle-unreadable]") in run.stderr
    assert run.stderr.count("gpuhook: ") == 1
    assert "Traceback" not in run.stderr


def test_a_closed_output_is_an_error_before_anything_is_done(tmp_path: Path) -> None:
    """Else a file that is opened would be standard output."""
    line = f"{' '.join(map(shlex.quote, PYTHON))} sim create {tmp_path}/made >&-"
    run = subprocess.run(["/bin/sh", "-c", line], env=environment(), stderr=subprocess.PIPE, text=True)
    assert run.returncode == 4
    assert run.stderr.startswith("gpuhook: standard output is closed [output-not-written]\n")
    assert not (tmp_path / "made").exists()


def test_closed_other_streams_are_no_matter() -> None:
    line = f"{' '.join(map(shlex.quote, PYTHON))} config path <&- 2>&-"
    run = subprocess.run(["/bin/sh", "-c", line], env=environment(), stdout=subprocess.PIPE, text=True)
    assert (run.returncode, run.stdout) == (0, "/etc/gpuhook/runtime.toml\n")


def test_an_error_that_cannot_be_said_keeps_its_status() -> None:
    with open("/dev/full", "w") as full:
        run = subprocess.run([*PYTHON, "explain", "/nowhere"], env=environment(), stdout=full, stderr=full)
    assert run.returncode == 20


def test_text_that_the_locale_lacks_is_escaped(tmp_path: Path) -> None:
    command = [*PYTHON, "explain", "--env", "NVIDIA_VISIBLE_DEVICES=void", "--env", "ä=b"]
    more = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    run = subprocess.run(command, env=environment(**more), capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


# --- terminals ----------------------------------------------------------------------------------------------------


def test_a_table_in_a_pipe_is_fields_with_tabs() -> None:
    assert render.table(("A", "B"), [("one", "two"), ("x\ty", "\x1b[1m")]) == ["one\ttwo", "x\\ty\t\\x1b[1m"]


def on_terminal(code: str, **more: str) -> str:
    """What a program prints to a terminal."""
    master, slave = pty.openpty()
    with open(master, "rb", buffering=0) as reader:
        program = subprocess.Popen([sys.executable, "-c", code], env=environment(**more), stdout=slave)
        os.close(slave)
        shown = b""
        with suppress(OSError):  # EIO: the program has ended
            while part := reader.read(65536):
                shown += part
        assert program.wait() == 0
    return shown.decode().replace("\r\n", "\n")


TABLE = "from gpuhook.cli import render; print('\\n'.join(render.table(('A', 'LONG'), [('three', 'x')])))"


@pytest.mark.parametrize(
    ("more", "colour"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
    ids=["colour", "NO_COLOR", "dumb"],
)
def test_a_table_on_a_terminal_is_aligned_and_coloured_if_wanted(more: dict[str, str], colour: bool) -> None:
    shown = on_terminal(TABLE, **more)
    assert re.sub(r"\x1b\[\d+m", "", shown) == "A      LONG\nthree  x\n"
    assert ("\x1b" in shown) is colour


@pytest.mark.parametrize("text", ["a\x1b[31mb", "line\nline", "\u202eright to left", "\ud800", "tab\t"])
def test_shown_text_steers_no_terminal(text: str) -> None:
    assert render.plain(text).isprintable()


def test_json_is_ascii() -> None:
    assert render.document({"name": "ä\x1b\u202e"}).isascii()


def test_the_installed_program_finds_its_own_tree(installed: Path) -> None:
    run = subprocess.run([installed / "usr/bin/gpuhook", "config", "path"], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == (f"{installed}/etc/gpuhook/runtime.toml\n", "")
