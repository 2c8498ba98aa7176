"""scripts/demo does gpuhook's main job from start to end, and shows nothing but commands and what they said."""

import re
import subprocess

import pytest

from tests.images import CHECKOUT

pytestmark = pytest.mark.runc


def test_the_demo_shows_the_main_job() -> None:
    done = subprocess.run([CHECKOUT / "scripts/demo"], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    # each command with what it said
    blocks = dict(block.split("\n", 1) for block in re.split(r"^\$ ", done.stdout, flags=re.MULTILINE)[1:])
    every, first, by_uuid, none, newer = (
        blocks[f"gpuhook-runtime run --bundle {name} demo"] for name in ("all", "first", "uuid", "none", "newer")
    )
    assert "NVIDIA-SMI 580.95.05" in every
    assert "dlopen:libcuda.so.1: ok libcuda.so 580.95.05" in every
    assert re.findall(r"^/dev/nvidia\d: (.*)$", every, re.MULTILINE) == ["ok", "ok"]
    assert re.findall(r"^/dev/nvidia\d$", first, re.MULTILINE) == ["/dev/nvidia0"]
    assert re.findall(r"^/dev/nvidia\d$", by_uuid, re.MULTILINE) == ["/dev/nvidia1"]
    assert re.findall(r"^/dev/nvidia\d$", none, re.MULTILINE) == []
    assert newer.startswith("gpuhook: this container needs CUDA 13.1 or newer; ")
    assert "[requirement-not-met]\n  fix: " in newer
    assert "never reached" not in newer
    assert "libcuda.so.580.95.05" in blocks["gpuhook explain all"]
    assert "\nNext:\n" in done.stdout
