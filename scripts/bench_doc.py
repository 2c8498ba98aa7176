"""bench_doc.py [JSON]: put the figures of a run of scripts/bench into docs/performance.md.

The tables there stand between `<!-- figures of FILE -->` and `<!-- end -->`. JSON becomes FILE; without it FILE is read
again. Between `<!-- kept runs -->` and `<!-- end -->` is a line for each file that is kept. A test compares all with
the files (tests/unit/test_performance.py), so that no figure is typed.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs/performance.md"
MARKED = re.compile(r"<!-- figures of (\S+) -->\n.*?<!-- end -->", re.DOTALL)
KEPT = re.compile(r"<!-- kept runs -->\n.*?<!-- end -->", re.DOTALL)


def tables(report: dict[str, Any], name: str) -> str:
    """The text between the marks: what the run was, the bars, the parts."""
    of, bare = report["versions"], report["T"]
    load, nice = report["load"], report["nice"]
    lines = [
        f"<!-- figures of {name} -->",
        "",
        f"[{name}]({name}): {of['cpu']}; {of['system']}, Linux {of['kernel']}; runc {of['runc']},",
        f"Python {of['python']}, gpuhook {of['gpuhook']} ({of['commit']}); {report['rounds']} rounds; load average"
        f" {load['before']:.1f} before, {load['after']:.1f} after" + (f"; run with `nice -n {nice}`." if nice else "."),
        f"A GPU create made {report['mounts']} mounts, {report['links']} links and the loader's cache."
        f" T was {bare['wall']:.1f} ms ({bare['cpu']:.1f} ms of processor time).",
        "",
        "| | runc, ms | gpuhook, ms | added, ms | added, T | bar, T | | least, T | CPU added, ms | CPU added, T |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        lines.append(
            f"| {row['name']} | {row['plain']:.1f} | {row['ours']:.1f} | {row['added']:.2f} | {row['ratio']:.2f} |"
            f" {row['bar']:.2f} | {_verdict(row['ratio'], row['bar'])} | {row['least']:.2f} | {row['cpu']:.2f} |"
            f" {row['cpu_ratio']:.2f} |"
        )
    many = report["at once"]
    ratio = many["gpuhook"] / many["runc"]
    lines.append(
        f"| {many['creates']} GPU creates at once | {many['runc'] * 1e3:.0f} | {many['gpuhook'] * 1e3:.0f} |"
        f" | {ratio:.2f} x | {many['bar']:.1f} x | {_verdict(ratio, many['bar'])} | | | |"
    )
    resident = report["resident"]
    for part in ("shim", "hook"):
        lines.append(
            f"| resident memory of the {part}, MiB | | {resident[part]:.1f} | | | {resident['bar']} MiB |"
            f" {_verdict(resident[part], resident['bar'])} | | | |"
        )
    lines += ["", "| part of a GPU create | wall, ms | least, ms | CPU, ms |", "|---|---|---|---|"]
    for part in report["parts"]:
        lines.append(f"| {part['name']} | {part['wall']:.1f} | {part['least']:.1f} | {part['cpu']:.1f} |")
    return "\n".join([*lines, "", "<!-- end -->"])


def kept(folder: Path) -> str:
    """The text between the other marks: a line for each run below `folder`, in the order of their names."""
    lines = [
        "<!-- kept runs -->",
        "",
        "| run | commit | rounds | T, ms | GPU create, added, ms | in T | CPU added, in T | 50 at once |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted((folder / "bench").glob("*.json")):
        report = json.loads(path.read_text())
        (row,) = (item for item in report["rows"] if item["name"] == "create, GPU asked, record cached")
        many = report["at once"]
        lines.append(
            f"| [{path.stem}](bench/{path.name}) | {report['versions']['commit']} | {report['rounds']} |"
            f" {report['T']['wall']:.1f} | {row['added']:.1f} | {row['ratio']:.2f} | {row['cpu_ratio']:.2f} |"
            f" {many['gpuhook'] / many['runc']:.2f} x |"
        )
    return "\n".join([*lines, "", "<!-- end -->"])


def _verdict(value: float, bar: float) -> str:
    return "met" if value <= bar else "over"


def written(page: str, folder: Path, name: str = "") -> str:
    """The page with the tables of a file below `folder`: `name`, or the one that it names."""
    found = MARKED.search(page)
    if not found:
        raise SystemExit(f"bench_doc.py: {PAGE} has no marks")
    name = name or found[1]
    text = tables(json.loads((folder / name).read_text()), name)
    page = page[: found.start()] + text + page[found.end() :]
    found = KEPT.search(page)
    if not found:
        raise SystemExit(f"bench_doc.py: {PAGE} has no marks of kept runs")
    return page[: found.start()] + kept(folder) + page[found.end() :]


if __name__ == "__main__":
    named = str(Path(sys.argv[1]).resolve().relative_to(PAGE.parent)) if len(sys.argv) > 1 else ""
    PAGE.write_text(written(PAGE.read_text(), PAGE.parent, named))
