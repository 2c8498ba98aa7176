"""The man pages are what scripts/man.py makes of the command line and of config/runtime.toml, and troff takes them."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from gpuhook import cli, configfile, hook
from gpuhook.errors import EXIT_CODES, GpuhookError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
man: Any = importlib.import_module("man")

PAGES = {path.name: path.read_text() for path in sorted((ROOT / "docs/man").iterdir())}
COMMAND_PAGE = PAGES["gpuhook.1"]


def read(page: str) -> str:
    """What a reader sees of a page, on one line."""
    text = subprocess.run(
        ["groff", "-man", "-Tascii", "-P-cbou", str(ROOT / "docs/man" / page)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    return " ".join(text.split())


def test_the_pages_are_what_the_script_makes() -> None:
    """Where this fails: .venv/bin/python scripts/man.py, and read the difference."""
    assert man.written() == PAGES


def test_there_is_a_page_for_each_program_and_for_the_configuration() -> None:
    programs = {path.name for path in (ROOT / "src/launchers").iterdir()} - {"gpuhook-shim"}  # it is called by sh alone
    assert {name.rpartition(".")[0] for name in PAGES} == {*programs, "runtime.toml"}


@pytest.mark.parametrize("page", PAGES)
def test_troff_takes_it_without_a_warning(page: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-ww", "-z", "-Tutf8", str(ROOT / "docs/man" / page)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("page", PAGES)
def test_mandoc_takes_it(page: str) -> None:
    """Another reader of man pages, stricter than troff. A date is left out: pages change with the code alone."""
    if shutil.which("mandoc") is None:
        pytest.skip("no mandoc here")
    path = ROOT / "docs/man" / page
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", str(path)], capture_output=True, text=True)
    assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_sections_come_in_the_order_of_man_pages(page: str) -> None:
    """man-pages(7)."""
    order = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "ENVIRONMENT", "FILES", "SEE ALSO"]
    found = re.findall(r"^\.SH (.*)$", PAGES[page], re.MULTILINE)
    assert [name for name in found if name in order] == [name for name in order if name in found]
    assert {"NAME", "SYNOPSIS", "DESCRIPTION", "SEE ALSO"} <= set(found)


def test_each_command_and_option_has_its_entry_with_the_words_of_its_help() -> None:
    shown = read("gpuhook.1")
    count = 0
    for words, command in man.walk():
        assert f"gpuhook {' '.join(words)} [OPTIONS]" in shown
        for option in command.params:
            if isinstance(option, click.Option):
                assert " ".join((option.help or "").replace("`", "").split()) in shown, (words, option.opts)
                count += 1
    assert count > 40
    assert all(f"gpuhook {name} " in shown for name in cli.COMMANDS)


def test_examples_can_be_copied_from_a_terminal() -> None:
    """Quotation marks, dashes and backslashes are the characters that a shell wants."""
    lines = COMMAND_PAGE.splitlines()
    assert "gpuhook check \\(aqcuda>=12.6\\(aq" in lines
    shown = read("gpuhook.1")
    assert "gpuhook list --capability '*'" in shown
    assert '--brand geforce \\ --model "NVIDIA GeForce RTX 4090"' in shown


def test_each_key_has_its_default_and_explanation() -> None:
    shown = read("runtime.toml.5")
    for key in configfile.KEYS:
        assert f" {key.name} = " in shown
    assert 'policy = "strict" What happens when an image needs a newer driver' in shown
    assert '"minor-compat" it starts if' in shown, "small tables are kept"


def test_each_error_has_its_exit_status() -> None:
    shown = read("gpuhook.1")
    assert [name for name, code in EXIT_CODES.items() if f" {code} {name} " not in shown] == []


def test_the_options_of_the_hook_are_those_that_it_takes() -> None:
    page = PAGES["gpuhook-hook.8"].replace("\\-", "-")
    named = re.findall(r"^\.TP\n\\fB(--[a-z]+)\\fR(.*)$", page, re.MULTILINE)
    words = [word for name, argument in named for word in ([name, "/x"] if argument else [name])]
    assert hook.parse(words).root == "/x"
    source = (ROOT / "src/gpuhook/hook.py").read_text()
    assert {name for name, _ in named} == set(re.findall(r'"(--[a-z]+)"', source))
    with pytest.raises(GpuhookError):
        hook.parse([*words, "--frob"])


@pytest.mark.parametrize("text", ["an `open mark", "`"], ids=["one", "alone"])
def test_an_open_code_mark_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is open"):
        man.inline(text)


@pytest.mark.parametrize(
    ("text", "roff"),
    [
        (".TH x", "\\&.TH x"),
        ("'quoted'", "\\(aqquoted\\(aq"),
        ("a \\n b", "a \\en b"),
        ("`--json`", "\\fB\\-\\-json\\fR"),
    ],
    ids=["a dot", "a quotation mark", "a backslash", "code"],
)
def test_no_text_becomes_a_request(text: str, roff: str) -> None:
    assert man.inline(text) == roff
