"""docs/engines.md says what the kept run of the engines' tests found."""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
engines_doc: Any = importlib.import_module("engines_doc")

PAGE = (ROOT / "docs/engines.md").read_text()


def test_the_table_is_that_of_the_kept_run() -> None:
    """Written by scripts/engines_doc.py; a result that was typed or a run that was exchanged shows here."""
    assert engines_doc.written(PAGE, ROOT / "docs") == PAGE


def test_a_changed_result_would_be_seen() -> None:
    found = engines_doc.MARKED.search(PAGE)
    assert found
    other = PAGE.replace(found[0], found[0].replace("| GPU container", "| everything", 1), 1)
    assert other != PAGE
    assert engines_doc.written(other, ROOT / "docs") != other


@pytest.mark.parametrize("path", sorted((ROOT / "docs/engines").glob("*.json")), ids=lambda path: path.name)
def test_a_kept_run_is_of_a_commit(path: Path) -> None:
    """Not of a tree that nobody can have again."""
    report = json.loads(path.read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d\.json", path.name)
    assert [commit for commit in report["gpuhook"] if "dirty" in commit or commit == "unknown"] == []
    assert all(row["works"] or row["fails"] for row in report["rows"])


def line(run: str, what: str, why: str = "", version: str = "9.1") -> dict[str, Any]:
    """As tests/engines/results.py writes it."""
    of = {"engine": "docker", "version": version, "cgroup": "v1", "runtime": "runc", "runtime_version": "1.1"}
    result = {"works": False, "why": why} if why else {"works": True}
    return {"run": run, "gpuhook": "abc", "kernel": "6.1", **of, "what": what, **result}


def test_rows_are_gathered_from_the_named_runs() -> None:
    """The last result counts; versions are sorted by number; other runs play no part."""
    lines = [
        line("1", "exec", "broken"),
        line("2", "exec", "broken"),
        line("2", "run", version="20.10"),
        line("3", "exec"),
        line("3", "update", "the kernel"),
    ]

    report = engines_doc.gathered(lines, ["2", "3"])

    assert [(row["version"], row["works"], row["fails"]) for row in report["rows"]] == [
        ("9.1", ["exec"], {"update": "the kernel"}),
        ("20.10", ["run"], {}),
    ]
    assert report["runs"] == ["2", "3"]
    assert [row["works"] for row in engines_doc.gathered(lines, [])["rows"]] == [["exec"]]
    assert "| update | 9.1: no (1) |" in engines_doc.table(report, "engines/x.json")
    with pytest.raises(SystemExit, match="no run 4"):
        engines_doc.gathered(lines, ["4"])


def test_the_overview() -> None:
    """A reason is told once, however often it holds; what else works is not in it."""
    lines = [
        line("1", "GPU container by ctr"),
        line("1", "GPU container in a GPU container"),
        *(
            line("1", f"GPU container{way}", "the kernel", version)
            for way in ("", " by hooks")
            for version in ("2", "9.1")
        ),
        {**line("1", "GPU container", "a bug", "2"), "runtime": "crun", "cgroup": "hybrid"},
    ]

    assert engines_doc.overview(engines_doc.gathered(lines, [])) == [
        "| engine | by | runc v1 | runc v2 | runc hybrid | crun v1 | crun v2 | crun hybrid |",
        "|---|---|---|---|---|---|---|---|",
        "| docker 2 |  | no (2) |  |  |  |  | no (1) |",
        "| docker 2 | hooks | no (2) |  |  |  |  |  |",
        "| docker 9.1 | ctr | yes |  |  |  |  |  |",
        "| docker 9.1 |  | no (2) |  |  |  |  |  |",
        "| docker 9.1 | hooks | no (2) |  |  |  |  |  |",
        "",
        "1. a bug",
        "2. the kernel",
    ]


def test_the_details() -> None:
    """A version is named where not all are alike; what the overview has is not said again."""
    lines = [
        line("1", "GPU container"),
        *(line("1", what, version=version) for what in ("exec", "update") for version in ("2.0-x", "9.1")),
        line("1", "update", "a bug", "2.0-x"),
        {**line("1", "exec"), "runtime": "crun", "runtime_version": "1"},
    ]

    assert engines_doc.details(engines_doc.gathered(lines, [])) == [
        "",
        "### docker",
        "",
        "- 2.0-x: runc 1.1",
        "- 9.1: runc 1.1, crun 1",
        "",
        "| | runc v1 | crun v1 |",
        "|---|---|---|",
        "| exec | yes | 9.1: yes |",
        "| update | 2.0: no (1); 9.1: yes |  |",
        "",
        "1. a bug",
    ]
