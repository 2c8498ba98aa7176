"""SECURITY.md, CONTRIBUTING.md and CHANGELOG.md: what they name is there."""

import ast
import re
from pathlib import Path

import pytest

from gpuhook import __version__
from gpuhook.configfile import KEYS

ROOT = Path(__file__).resolve().parents[2]
SECURITY = (ROOT / "SECURITY.md").read_text()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
PAGES = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
INVARIANTS = re.findall(r"^\| (\d) \| (.+?) \| (.+?) \|$", SECURITY, re.MULTILINE)
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", SECURITY)


def test_each_invariant_has_tests() -> None:
    assert [number for number, _, _ in INVARIANTS] == list("1234567")
    assert [number for number, _, tests in INVARIANTS if len(re.findall(r"::test_\w+`", tests)) < 3] == []


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_test_that_holds_an_invariant_is_there(file: str, name: str) -> None:
    """And is collected: a function of the module itself, that is not skipped as a whole."""
    tree = ast.parse((ROOT / file).read_text())
    (found,) = [item for item in tree.body if isinstance(item, ast.FunctionDef) and item.name == name]
    assert not any("skip" in ast.unparse(mark) for mark in found.decorator_list)


def test_everything_that_looks_like_a_test_was_checked() -> None:
    assert len(re.findall(r"::", SECURITY)) == len(NAMED) > 30


@pytest.mark.parametrize("page", PAGES)
def test_files_and_links_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    named = re.findall(r"`((?:src|tests|docs|scripts|config|packaging)/[\w./-]+)(?:::\w+)?`", text)
    assert [name for name in links + named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_keys_of_the_configuration_exist(page: str) -> None:
    named = re.findall(r"`((?:runtime|hook|driver|request|requirement|log)\.[a-z-]+)", (ROOT / page).read_text())
    assert sorted(set(named) - {key.dotted for key in KEYS} - {"runtime.toml"}) == []


def test_the_version_has_its_section() -> None:
    """The newest section is this version's."""
    assert re.findall(r"^## (\S+) \(.+\)$", CHANGELOG, re.MULTILINE)[0] == __version__


def test_sections_are_in_order_and_have_content() -> None:
    versions = [tuple(map(int, text.split("."))) for text in re.findall(r"^## (\S+) \(", CHANGELOG, re.MULTILINE)]
    assert versions == sorted(set(versions), reverse=True)
    assert [part for part in CHANGELOG.split("\n## ")[1:] if "\n- " not in part] == []
