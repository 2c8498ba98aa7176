"""What the documents say of errors, commands and configuration is what the code has, both ways."""

import re
from pathlib import Path

import pytest

from gpuhook.cli import COMMANDS
from gpuhook.configfile import KEYS
from gpuhook.errors import EXIT_CODES

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
ERRORS = (ROOT / "docs/errors.md").read_text()
SECTIONS = re.findall(r"^### (\S+) \((\d+)\)\n\n(.*?)(?=^##|\Z)", ERRORS, re.MULTILINE | re.DOTALL)


def test_each_reference_has_its_section_with_its_exit_code_and_each_section_a_reference() -> None:
    assert {name: int(code) for name, code, _ in SECTIONS} == EXIT_CODES
    assert len(SECTIONS) == len(EXIT_CODES), "a section is there twice"


def test_every_section_says_something() -> None:
    assert [name for name, _, text in SECTIONS if len(text.split()) < 8] == []


def test_exit_codes_are_unique_and_leave_those_of_shells_and_signals_alone() -> None:
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)
    assert all(2 <= code < 126 for code in EXIT_CODES.values())


def test_each_reference_is_used_by_the_code() -> None:
    """A reference that nothing raises would be a promise that nothing keeps."""
    sources = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", "") and path.is_file()]
    text = "\n".join(path.read_text() for path in sources if path.name != "errors.py")
    assert [name for name in EXIT_CODES if not re.search(rf"[\"'\[]{name}[\"'\]]", text)] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_between_the_pages_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if "://" not in link]
    assert [link for link in targets if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_files_that_the_pages_name_are_there(page: str) -> None:
    """`src/...`, `tests/...`, `docs/...`, `scripts/...` in code marks."""
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:src|tests|docs|scripts|config|packaging)/[\w./-]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_the_pages_name_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    code = re.findall(r"`(gpuhook [^`\n]+)`", text)
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        code += block.splitlines()
    named = [match.group(1) for line in code if (match := re.match(r"(?:\$ )?gpuhook ([a-z]+)\b", line))]
    assert sorted(set(named) - set(COMMANDS)) == []


@pytest.mark.parametrize("page", PAGES)
def test_configuration_keys_that_the_pages_name_exist(page: str) -> None:
    """`section.key` in code marks, for each section that runtime.toml has; some files are called like keys."""
    text = (ROOT / page).read_text()
    known = {key.dotted for key in KEYS}
    sections = "|".join(sorted({key.section for key in KEYS}))
    named = re.findall(rf"`((?:{sections})\.[a-z-]+)`", text)
    assert sorted(set(named) - known - {"runtime.toml", "hook.bundle", "driver.json"}) == []


@pytest.mark.parametrize("page", PAGES)
def test_exit_statuses_and_references_in_other_pages_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    assert sorted(set(re.findall(r"\S \[([a-z]+(?:-[a-z]+)+)\]$", text, re.MULTILINE)) - set(EXIT_CODES)) == []


def test_the_screen_of_the_readme_is_what_the_engines_show() -> None:
    """Lines of docs/install.md, which tests/engines compares with real engines."""
    text = (ROOT / "README.md").read_text()
    (screen,) = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    configured = screen[screen.index("$ gpuhook configure docker\n") :].splitlines()
    shown = [line for line in configured if line != "[...]" and not line.startswith("$ ")]
    assert len(shown) == 5
    assert sorted(set(shown) - set((ROOT / "docs/install.md").read_text().splitlines())) == []


def anchors(page: Path) -> set[str]:
    """What a link can name behind #: the headings, as GitHub writes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("page", PAGES)
def test_links_to_parts_of_pages_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^):#]*)#([^)]*)\)", (ROOT / page).read_text())
    broken = [
        f"{name}#{part}"
        for name, part in links
        if part not in anchors((ROOT / page).parent / name if name else ROOT / page)
    ]
    assert broken == []
