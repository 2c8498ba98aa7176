"""Engines are told of gpuhook by gpuhook."""

from typing import Any


def configure(engine: Any, *options: str) -> str:
    """`gpuhook configure` for this engine's own configuration file; the engine is not told. What it said."""
    return _call(engine, "configure", *options)


def unconfigure(engine: Any) -> str:
    """`gpuhook unconfigure`; the engine is not told. What it said."""
    return _call(engine, "unconfigure")


def _call(engine: Any, command: str, *options: str) -> str:
    argv = (engine.world.cli, command, engine.kind, f"--config={engine.config}", *options)
    said: str = engine.machine.check(*argv, user=engine.user, env=engine.env)
    return said
