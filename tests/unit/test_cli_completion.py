"""`gpuhook completion`: the scripts are those of click, and a real bash completes with them."""

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gpuhook import cli
from gpuhook.cli import COMMANDS, main
from gpuhook.cli.completion import SHELLS

ROOT = Path(__file__).resolve().parents[2]

# Completes the words after -- as bash does when a person presses the tab key, and prints what it offers.
ASK = """
source <(gpuhook completion bash)
words=("$@")
COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1)) COMPREPLY=()
compopt() { echo "(files)"; }
_gpuhook_completion gpuhook
printf '%s\\n' "${COMPREPLY[@]}"
"""


def offered(installed: Path, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    env = {"PATH": f"{installed}/usr/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "-", *words], env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if line]


CASES: dict[str, tuple[list[str], list[str]]] = {
    "every command": (["gpuhook", ""], list(COMMANDS)),
    "the beginning of one": (["gpuhook", "ex"], ["explain"]),
    "commands of a group": (["gpuhook", "record", ""], ["show", "refresh", "drop"]),
    "an option": (["gpuhook", "explain", "--im"], ["--image-config"]),
    "a choice": (["gpuhook", "completion", ""], list(SHELLS)),
    "an engine": (["gpuhook", "configure", "c"], ["containerd", "crio"]),
    "a value of an option": (["gpuhook", "list", "--capability", "ut"], ["utility"]),
    "a file": (["gpuhook", "explain", "/et"], ["(files)"]),
    "nothing of a command that is not there": (["gpuhook", "frob", "x"], []),
    "an option of the program": (["gpuhook", "--ver"], ["--version"]),
}


@pytest.mark.parametrize(("words", "expected"), CASES.values(), ids=CASES)
def test_bash_completes(words: list[str], expected: list[str], installed: Path) -> None:
    """The installed program, sourced in a real bash."""
    assert sorted(offered(installed, *words)) == sorted(expected)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_calls_gpuhook(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpuhook", "completion", shell]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert f"_GPUHOOK_COMPLETE={shell}_complete" in shown.out
    mark = {"bash": "complete -o nosort -F", "zsh": "#compdef gpuhook", "fish": "complete --no-files --command gpuhook"}
    assert mark[shell] in shown.out


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shutil.which(shell)])
def test_a_shell_that_is_here_takes_its_script(shell: str, installed: Path, tmp_path: Path) -> None:
    """bash always; zsh and fish where they are, since nothing else needs them."""
    script = tmp_path / "script"
    script.write_bytes(subprocess.run([installed / "usr/bin/gpuhook", "completion", shell], capture_output=True).stdout)
    done = subprocess.run([shell, "-n", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [[], ["tcsh"]], ids=["none", "another"])
def test_another_shell_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpuhook", "completion", *words]) == 2
    assert "bash" in capsys.readouterr().err


def test_completing_a_command_imports_no_command() -> None:
    """The tab key is quick, and a broken command does not take it away."""
    code = (
        "import sys, click; from gpuhook import cli\n"
        "context = click.Context(cli.gpuhook, resilient_parsing=True)\n"
        "items = cli.gpuhook.shell_complete(context, 'i')\n"
        "print([item.value for item in items], items[0].help)\n"
        "print([name for name in sys.modules if name.startswith('gpuhook.cli.')])"
    )
    env = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    first, second = done.stdout.splitlines()
    assert first == f"['info'] {COMMANDS['info'][1]}"
    assert second == "[]"


def test_the_table_has_the_lines_that_completion_shows() -> None:
    items = cli.gpuhook.shell_complete(click.Context(cli.gpuhook), "")
    assert {item.value: item.help for item in items if item.value in COMMANDS} == {
        name: text for name, (_, text) in COMMANDS.items()
    }
