"""Where the long runs write what they found: one JSON object for each case, in build/long/report.jsonl."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from typing import Any

from tests.images import BUILD, CHECKOUT

Report = Callable[[dict[str, object]], None]
_DESCRIBE = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
COMMIT = subprocess.run(_DESCRIBE, capture_output=True, text=True, check=False).stdout.strip()  # as the run began
FILE = BUILD / "long/report.jsonl"


def append(family: str, case: str, figures: dict[str, object]) -> None:
    """Add one line: the family and the case, the commit (`-dirty` where the tree differs), the time, the figures."""
    line = {
        "family": family,
        "case": case,
        "commit": COMMIT,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        **figures,
    }
    FILE.parent.mkdir(parents=True, exist_ok=True)
    with FILE.open("a") as file:
        file.write(json.dumps(line) + "\n")


def kept() -> list[dict[str, Any]]:
    """The report without the cases that a later run of the same case stands for, in the order of families and cases."""
    last = {}
    for line in FILE.read_text().splitlines():
        item = json.loads(line)
        last[item["family"], item["case"]] = item
    return [last[key] for key in sorted(last)]


def table(items: list[dict[str, Any]]) -> str:
    """The figures of a kept report as rows for docs/security-tests.md."""

    def of(family: str, key: str = "") -> list[dict[str, Any]]:
        return [item for item in items if item["family"] == family and (not key or key in item)]

    def total(rows: list[dict[str, Any]], key: str) -> str:
        return f"{sum(row.get(key, 0) for row in rows):,}"

    races, starts = of("race", "tries"), of("race", "starts")
    at_once, series = of("leaks", "good"), of("leaks", "left")
    kills = of("kills")
    faults, layouts, fuzz, environment = of("faults"), of("layouts"), of("fuzz"), of("environment")
    rows = [
        ("races of one kind of work", f"{total(races, 'tries')} tries in {len(races)} scenarios",
         f"{total(races, 'escapes')} escapes; {total(races, 'good')} succeeded; "
         f"the careless form escaped after {max(row['careless'] for row in races):,} tries at most"),
        ("whole starts under attack", f"{total(starts, 'starts')} starts",
         f"{sum(len(row['violations']) for row in starts)} violations; {total(starts, 'runs')} succeeded"),
        ("hostile layouts", f"{total(layouts, 'starts')} starts",
         f"{total(layouts, 'violations')} violations; {total(layouts, 'runs')} ran, {total(layouts, 'refused')} were "
         f"refused, {total(layouts, 'runtime')} the runtime could not start"),
        ("hostile variables", f"{total(environment, 'starts')} starts", f"{total(environment, 'marks')} marks"),
        ("faults", f"{sum(row['refused'] + row.get('survived', 0) for row in faults):,} of "
         f"{total(faults, 'calls')} calls",
         f"{total(faults, 'violations')} violations; {total(faults, 'survived')} were survived; the next start worked"),
        ("the runtime killed", f"{total(kills, 'starts')} starts",
         f"{total(kills, 'killed')} killed before their end; {total(kills, 'violations')} violations"),
        ("starts at once", f"{total(at_once, 'starts')} starts",
         f"{total(at_once, 'good')} good; the slowest took {max(row['slowest_seconds'] for row in at_once)} s"),
        ("starts one after another", f"{total(series, 'starts')} starts", f"{total(series, 'left')} traces"),
        ("parsers", f"{total(fuzz, 'inputs')} inputs for {len(fuzz)} parsers",
         f"{sum(len(row['findings']) for row in fuzz)} findings left; the slowest input took "
         f"{max(row['slowest_ms'] for row in fuzz)} ms"),
    ]  # fmt: skip
    lines = ["| what | how much | what came of it |", "|---|---|---|"]
    return "".join(f"{line}\n" for line in [*lines, *[f"| {' | '.join(row)} |" for row in rows]])


if __name__ == "__main__":  # python -m tests.long.report >docs/security/DATE.json
    print(json.dumps(kept(), indent=1))
