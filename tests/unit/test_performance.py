"""docs/performance.md says what the kept run of scripts/bench found, digit by digit."""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
bench_doc: Any = importlib.import_module("bench_doc")
bench_parts: Any = importlib.import_module("bench_parts")

PAGE = (ROOT / "docs/performance.md").read_text()
REPORTS = sorted((ROOT / "docs/bench").glob("*.json"))


def test_the_tables_are_those_of_the_kept_run() -> None:
    """Written by scripts/bench_doc.py; a figure that was typed or a run that was exchanged shows here."""
    assert bench_doc.written(PAGE, ROOT / "docs") == PAGE


def test_a_changed_figure_would_be_seen() -> None:
    found = bench_doc.MARKED.search(PAGE)
    assert found
    figure = re.search(r"\| (\d+\.\d\d) \|", found[0])
    assert figure
    other = PAGE.replace(figure[0], "| 0.01 |", 1)
    assert bench_doc.written(other, ROOT / "docs") != other


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.name)
def test_a_kept_run_is_whole(path: Path) -> None:
    """Its summary follows from its samples, of which there are as many as rounds."""
    report = json.loads(path.read_text())
    assert {len(found[kind]) for found in report["samples"].values() for kind in ("wall", "cpu")} == {report["rounds"]}
    samples = {kind: {name: found[kind] for name, found in report["samples"].items()} for kind in ("wall", "cpu")}
    assert bench_parts.table(samples["wall"], samples["cpu"]) == report["parts"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d(-\d+)?\.json", path.name)


def test_the_parts_add_up() -> None:
    """All but the last are the last."""
    samples = {
        "T": [8.0, 8.0],
        "true": [1.0, 1.0],
        "create, runc": [20.0, 22.0],
        "create, shim, quiet": [22.0, 24.0],
        "create, shim, GPU": [40.0, 42.0],
        "shim alone": [14.0, 14.0],
        "modules, shim": [10.0, 10.0],
        "modules, hook": [9.0, 9.0],
    }
    parts = bench_parts.split(samples, bench_parts.median)
    assert sum(list(parts.values())[:-1]) == pytest.approx(parts["all that is added"])
    assert parts["all that is added"] == pytest.approx(20.0)
    assert parts["sh: command line, search in config.json"] == pytest.approx(2.0)
    assert bench_parts.split(samples, bench_parts.least) == pytest.approx(parts), "the samples do not scatter"
    assert parts["shim: request, record, verdict, nodes, config.json"] == pytest.approx(1.0)
