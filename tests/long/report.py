"""Where the long runs write what they found: one JSON object for each case, in build/long/report.jsonl."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable

from tests.images import BUILD, CHECKOUT

Report = Callable[[dict[str, object]], None]
FILE = BUILD / "long/report.jsonl"


def append(family: str, case: str, figures: dict[str, object]) -> None:
    """Add one line: the family and the case, the commit (`-dirty` where the tree differs), the time, the figures."""
    command = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    line = {
        "family": family,
        "case": case,
        "commit": commit,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        **figures,
    }
    FILE.parent.mkdir(parents=True, exist_ok=True)
    with FILE.open("a") as file:
        file.write(json.dumps(line) + "\n")
