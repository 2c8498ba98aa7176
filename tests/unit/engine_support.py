"""Hosts below a folder, for the tests of what engines' modules propose."""

from pathlib import Path

from gpuhook.engines import block, tomltext
from gpuhook.engines.host import Host
from gpuhook.engines.model import Proposal


def write(root: Path, path: str, text: str = "", mode: int = 0o644) -> None:
    """A file of a host."""
    real = Path(f"{root}{path}")
    real.parent.mkdir(parents=True, exist_ok=True)
    real.write_text(text)
    real.chmod(mode)


def program(root: Path, path: str, text: str = "#!/bin/sh\nexit 1\n") -> None:
    """A program of a host; it fails, unless `text` says otherwise."""
    write(root, path, text, 0o755)


def carry_out(host: Host, proposal: Proposal) -> None:
    """Write what is proposed, with none of the ways back."""
    for edit in proposal.files:
        before = host.read(edit.path)
        if edit.form == "whole":
            text = edit.text
        elif edit.form == "block":
            text = block.put(edit.path, edit.base if before is None else before, edit.text)
        else:
            text, _ = tomltext.apply(edit.path, before or "", edit.steps)
        write(Path(host.root or "/"), edit.path, text)
