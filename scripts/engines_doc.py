"""engines_doc.py FILE [RUN...]: put what the tests of container engines found into docs/engines.md.

FILE is a `results.jsonl` that the tests wrote (tests/engines/results.py); the RUNs, by their times (the last one where
none is given), become docs/engines/DATE.json. Of what several of them looked at, the last counts. With a `.json` file
of docs/engines, and without arguments, that page is made of the file again. The table there stands between
`<!-- results of FILE -->` and `<!-- end -->`; a test compares it with the file (tests/unit/test_engines_doc.py), so
that no result is typed.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs/engines.md"
MARKED = re.compile(r"<!-- results of (\S+) -->\n.*?<!-- end -->", re.DOTALL)
_ROW = ("engine", "version", "runtime", "runtime_version", "cgroup")
_GPU = re.compile(r"GPU container(?! in )(?: by (?P<way>.+))?")  # what the first table is about
_COLUMNS = [(runtime, cgroup) for runtime in ("runc", "crun") for cgroup in ("v1", "v2", "hybrid")]


def gathered(lines: list[dict[str, Any]], runs: list[str]) -> dict[str, Any]:
    """The lines of some runs as a report: a row for each engine, runtime and cgroup layout with what works there, and
    what does not and why. SystemExit for a run that is not there."""
    known = [line["run"] for line in lines]
    runs = runs or known[-1:]
    missing = set(runs) - set(known)
    if not runs or missing:
        raise SystemExit(f"engines_doc.py: no run {', '.join(sorted(missing)) or 'at all'} in the file")
    chosen = [line for line in lines if line["run"] in runs]
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in chosen:
        found.setdefault(tuple(line[key] for key in _ROW), {})[line["what"]] = line
    rows = [
        {
            **dict(zip(_ROW, key, strict=True)),
            "works": sorted(what for what, line in of.items() if line["works"]),
            "fails": {what: line["why"] for what, line in sorted(of.items()) if not line["works"]},
        }
        for key, of in sorted(found.items(), key=lambda item: (item[0][0], _numbers(item[0][1]), item[0][2:]))
    ]
    return {
        "runs": sorted({line["run"] for line in chosen}),
        "gpuhook": sorted({line["gpuhook"] for line in chosen}),
        "kernel": sorted({line["kernel"] for line in chosen}),
        "rows": rows,
    }


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def overview(report: dict[str, Any]) -> list[str]:
    """Where GPU containers work: a line for each version of an engine and way to make them, and why not."""
    cells: dict[tuple[str, ...], dict[tuple[str, str], str]] = {}
    reasons: list[str] = []
    for row in report["rows"]:
        of = dict.fromkeys(row["works"], "") | row["fails"]
        for what, why in of.items():
            found = _GPU.fullmatch(what)
            if not found:
                continue
            if why and why not in reasons:
                reasons.append(why)
            key = (f"{row['engine']} {row['version']}", found["way"] or "")
            cell = f"no ({reasons.index(why) + 1})" if why else "yes"
            cells.setdefault(key, {})[row["runtime"], row["cgroup"]] = cell
    lines = [
        f"| engine | by | {' | '.join(' '.join(column) for column in _COLUMNS)} |",
        f"|---|---|{'---|' * len(_COLUMNS)}",
    ]
    for (engine, way), found_cells in cells.items():
        lines.append(f"| {engine} | {way} | {' | '.join(found_cells.get(column, '') for column in _COLUMNS)} |")
    return [*lines, "", *(f"{number}. {why}" for number, why in enumerate(reasons, 1))]


def details(report: dict[str, Any]) -> list[str]:
    """For each engine what else was tried: a line for each thing, and the versions only where they differ."""
    engines: dict[str, list[dict[str, Any]]] = {}
    for row in report["rows"]:
        engines.setdefault(row["engine"], []).append(row)
    lines = []
    for engine, rows in engines.items():
        lines += ["", f"### {engine}", "", *_versions(rows), "", *_things(rows)]
    return lines


def _versions(rows: list[dict[str, Any]]) -> list[str]:
    runtimes: dict[str, dict[str, None]] = {}
    for row in rows:
        runtimes.setdefault(row["version"], {})[f"{row['runtime']} {row['runtime_version']}"] = None
    return [f"- {version}: {', '.join(sorted(found, reverse=True))}" for version, found in runtimes.items()]


def _things(rows: list[dict[str, Any]]) -> list[str]:
    """The table of one engine, and its reasons."""
    versions = list(dict.fromkeys(row["version"] for row in rows))
    short = {version: ".".join(re.findall(r"\d+", version)[:2]) for version in versions}
    reasons: list[str] = []
    cells: dict[str, dict[tuple[str, str], dict[str, str]]] = {}
    for row in rows:
        for what, why in (dict.fromkeys(row["works"], "") | row["fails"]).items():
            if _GPU.fullmatch(what):  # the overview has it
                continue
            if why and why not in reasons:
                reasons.append(why)
            said = f"no ({reasons.index(why) + 1})" if why else "yes"
            of = cells.setdefault(what, {}).setdefault((row["runtime"], row["cgroup"]), {})
            of[short[row["version"]]] = said
    columns = [column for column in _COLUMNS if any(column in of for of in cells.values())]
    lines = [f"| | {' | '.join(' '.join(column) for column in columns)} |", f"|---|{'---|' * len(columns)}"]
    for what in sorted(cells, key=str.lower):
        texts = [_cell(cells[what].get(column, {}), len(versions)) for column in columns]
        lines.append(f"| {what} | {' | '.join(texts)} |")
    return [*lines, "", *(f"{number}. {why}" for number, why in enumerate(reasons, 1))] if cells else []


def _cell(of: dict[str, str], count: int) -> str:
    """What holds for every version is said once; a version that is not named was not tried."""
    groups: dict[str, list[str]] = {}
    for version, said in of.items():
        groups.setdefault(said, []).append(version)
    if len(groups) == 1 and len(of) == count:
        return next(iter(groups))
    return "; ".join(f"{', '.join(versions)}: {said}" for said, versions in groups.items())


def table(report: dict[str, Any], name: str) -> str:
    """The text between the marks."""
    lines = [
        f"<!-- results of {name} -->",
        "",
        f"[{name}]({name}): {', '.join(report['runs'])};",
        f"Linux {', '.join(report['kernel'])}; gpuhook {', '.join(report['gpuhook'])}.",
        "",
        "Where a container gets GPUs (empty: not tried):",
        "",
        *overview(report),
        "",
        "What else was tried (empty: not tried):",
        *details(report),
    ]
    return "\n".join([*lines, "", "<!-- end -->"])


def written(page: str, folder: Path, name: str = "") -> str:
    """The page with the table of a file below `folder`: `name`, or the one that it names."""
    found = MARKED.search(page)
    if not found:
        raise SystemExit(f"engines_doc.py: {PAGE} has no marks")
    name = name or found[1]
    return page[: found.start()] + table(json.loads((folder / name).read_text()), name) + page[found.end() :]


def main(arguments: list[str]) -> None:
    """The command line."""
    name = ""
    if arguments and arguments[0].endswith(".jsonl"):
        lines = [json.loads(line) for line in Path(arguments[0]).read_text().splitlines()]
        report = gathered(lines, arguments[1:])
        name = f"engines/{report['runs'][-1][:10]}.json"
        (PAGE.parent / name).parent.mkdir(exist_ok=True)
        (PAGE.parent / name).write_text(json.dumps(report, indent=1) + "\n")
    elif arguments:
        name = str(Path(arguments[0]).resolve().relative_to(PAGE.parent))
    PAGE.write_text(written(PAGE.read_text(), PAGE.parent, name))


if __name__ == "__main__":
    main(sys.argv[1:])
