"""tests/gpu/pack and tests/gpu/run, rehearsed on simulated drivers: what will run on a machine with a real GPU."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.images import CHECKOUT

MOST = 64 << 20  # bytes that may travel to such a machine
CHECKS = (
    "host",
    "plain runc",
    "all",
    "index",
    "UUID",
    "none",
    "nothing asked",
    "requirement met",
    "requirement not met, CUDA",
    "requirement not met, driver",
    "a GPU that is not there",
    "record, cold and warm",
    "creates",
    "nothing is left",
)


@pytest.fixture(scope="module")
def pack(place: Path) -> Path:
    """The pack, made once."""
    subprocess.run([CHECKOUT / "tests/gpu/pack", place / "pack"], check=True, stdout=subprocess.DEVNULL)
    return place / "pack"


def run(pack: Path, driver: Path, out: Path) -> tuple[int, dict[str, Any], str]:
    """Status, report and output of a rehearsal."""
    command: list[str | Path] = [pack / "run", "--simulated", driver, "--out", out, "--rounds", "1"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    return done.returncode, json.loads((out / "gpu.json").read_text()), done.stdout + done.stderr


def test_the_pack_is_small_enough_to_travel_and_alone(pack: Path) -> None:
    """No link leads out of it, since what it leads to would stay behind."""
    files = [path for path in pack.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) <= MOST
    inside = [path for path in pack.rglob("*") if path.is_symlink() and pack / "rootfs" not in path.parents]
    assert inside == []
    assert (pack / "MANIFEST").read_text().startswith("gpuhook ")


@pytest.mark.runc
def test_every_check_passes_on_a_healthy_driver_and_the_figures_are_kept(
    pack: Path, sim_driver: Path, folder: Path
) -> None:
    code, report, said = run(pack, sim_driver, folder / "out")
    assert code == 0, said
    assert report["ok"] is True
    assert tuple(item["name"] for item in report["checks"]) == CHECKS
    assert [item["name"] for item in report["checks"] if not item["ok"]] == []
    assert report["seconds"] < 8 * 60
    assert report["figures"]["record"]["cold"]["median"] > report["figures"]["record"]["warm"]["median"]
    assert report["figures"]["creates"]["gpuhook, GPU asked"]["median"] > 0
    assert report["machine"]["simulated"] is True
    log = (folder / "out/gpu.log").read_text()
    assert "NVIDIA-SMI" in log
    assert [path.name for path in (folder / "out").iterdir() if path.suffix not in {".json", ".log"}] == []


@pytest.mark.runc
@pytest.mark.parametrize(
    ("options", "failed"),
    [
        ({"faults": ("not-loaded",)}, {"host"}),
        ({"faults": ("gpu-lost=1",)}, {"all", "UUID"}),
    ],
    ids=["no driver", "a lost GPU"],
)
def test_a_broken_driver_fails_its_checks_and_the_others_go_on(
    options: dict[str, Any], failed: set[str], pack: Path, new_driver: Callable[..., Path], folder: Path
) -> None:
    """The checks can fail: each of these drivers takes something away that they look for."""
    code, report, said = run(pack, new_driver(**options), folder / "out")
    assert code == 1
    assert report["ok"] is False
    bad = {item["name"] for item in report["checks"] if not item["ok"]}
    assert failed <= bad, said
    assert next(item["ok"] for item in report["checks"] if item["name"] == "plain runc")
    assert next(item["ok"] for item in report["checks"] if item["name"] == "nothing is left")


def test_run_without_a_pack_says_what_to_do(folder: Path) -> None:
    (folder / "a/b").mkdir(parents=True)
    copy = folder / "a/b/run"
    copy.write_bytes((CHECKOUT / "tests/gpu/run").read_bytes())
    copy.chmod(0o755)
    done = subprocess.run([copy], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "tests/gpu/pack" in done.stderr
