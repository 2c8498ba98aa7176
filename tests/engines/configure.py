"""Engines are told of gpuhook by gpuhook."""

import json
from typing import Any

from tests.engines.machine import Result


def configure(engine: Any, *options: str) -> Result:
    """`gpuhook configure` for this engine's own configuration file; the engine is not told."""
    name = options[options.index("--runtime-name") + 1] if "--runtime-name" in options else "gpuhook"
    config = json.loads(engine.config.read_text())
    config.setdefault("runtimes", {})[name] = {"path": str(engine.world.runtime)}
    if "--default-runtime" in options:
        config["default-runtime"] = name
    engine.config.write_text(json.dumps(config, indent=4))
    return Result(0, "", "")
