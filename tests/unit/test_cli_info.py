"""`gpuhook info` and `gpuhook list`: what they say of a simulated host, well and broken."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuhook import __version__, sim
from gpuhook.cli import info as info_module
from gpuhook.cli import main
from gpuhook.cli.info import age
from gpuhook.config import load
from gpuhook.driver import record
from tests.unit.driver_support import copy_of
from tests.unit.test_cli import on_terminal
from tests.unit.test_cli_explain import configure

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def prefix(place: Path, sim_driver: Path) -> Path:
    """An installation's configuration, made once."""
    path = place / "info"
    if not path.exists():
        configure(path, sim_driver)
    return path


@pytest.fixture
def run(prefix: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command; returns status, output, errors."""

    def call(*words: str, where: Path = prefix) -> tuple[int, str, str]:
        status = main(["gpuhook", *words], str(where))
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return call


def document(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out)
    return found


def test_info_names_everything(run: Run, prefix: Path) -> None:
    status, out, err = run("info")
    assert (status, err) == (0, "")
    for pattern in (
        rf"gpuhook  {re.escape(__version__)}",
        rf"kernel   {re.escape(os.uname().release)} ",
        r"runtime  /.*(runc|crun)",
        rf"config   {re.escape(str(prefix))}/etc/gpuhook/runtime.toml",
        r"driver   580\.95\.05, CUDA up to 13\.0, \d+ files",
        r"record   [0-9a-f]{16}, made \d+ s ago",
    ):
        assert re.search(f"^{pattern}", out, re.MULTILINE), pattern


def test_infos_gpus_are_rows_with_tabs_in_a_pipe(run: Run) -> None:
    rows = [line.split("\t") for line in run("info")[1].splitlines() if "\t" in line]
    assert [row[0] for row in rows] == ["0", "1"]
    assert {tuple(row[3:]) for row in rows} == {("NVIDIA H100 80GB HBM3", "tesla", "9.0", "ok")}


def test_info_as_json(run: Run, prefix: Path) -> None:
    found = document(run("info", "--json")[1])
    known = record.load(load(str(prefix)), str(prefix))
    assert found["driver"]["version"] == known.driver
    assert found["record"]["id"] == known.id
    assert found["record"]["age_seconds"] >= 0
    assert [gpu["uuid"] for gpu in found["gpus"]] == [gpu.uuid for gpu in known.gpus]
    assert found["errors"] == []


@pytest.mark.parametrize(
    ("fault", "status", "reference"),
    [("not-loaded", 51, "driver-not-loaded"), ("version-mismatch", 52, "driver-version-mismatch")],
)
def test_info_shows_the_rest_of_a_host_with_a_broken_driver(
    fault: str, status: int, reference: str, sim_driver: Path, folder: Path, run: Run
) -> None:
    configure(folder, copy_of(sim_driver, folder / "driver", fault))
    code, out, err = run("info", where=folder)
    assert code == status
    assert f"[{reference}]" in err
    assert "driver   unknown" in out
    assert "kernel   " in out
    found = document(run("info", "--json", where=folder)[1])
    assert [item["reference"] for item in found["errors"]] == [reference]
    assert found["driver"] is None


def test_infos_age_is_not_that_of_another_record(sim_driver: Path, folder: Path, run: Run) -> None:
    """Who is not root looks at the host anew where root's record is out of date, and can't store what is found."""
    configure(folder, copy_of(sim_driver, folder / "driver"))
    settings = load(str(folder))
    known = record.load(settings, str(folder))
    assert info_module._driver(known, settings, str(folder))["record"]["age_seconds"] is not None
    sim.set_fault(folder / "driver", "not-loaded")
    assert run("info", where=folder)[0] == 51  # that error is what is stored now
    sim.set_fault(folder / "driver", "none")
    document = info_module._driver(known, settings, str(folder))
    assert document["record"]["age_seconds"] is None


def test_info_shows_a_lost_gpu(sim_driver: Path, folder: Path, run: Run) -> None:
    configure(folder, copy_of(sim_driver, folder / "driver", "gpu-lost=1"))
    rows = [line.split("\t") for line in run("info", where=folder)[1].splitlines() if "\t" in line]
    assert rows[0][-1] == "ok"
    assert "lost" in rows[1][-1].lower()


def test_info_says_everything_that_is_wrong(folder: Path, sim_driver: Path, run: Run) -> None:
    configure(folder, sim_driver, '[runtime]\nlow-level = ["no-such-runtime"]\n')
    code, out, err = run("info", where=folder)
    assert (code, "[runtime-not-found]" in err) == (13, True)
    assert "580.95.05" in out
    configure(folder, sim_driver, "[frob]\n")
    code, out, err = run("info", where=folder)
    assert (code, "[config-invalid]" in err) == (11, True)
    assert "driver   unknown" in out


def test_info_without_a_configuration_says_that_the_defaults_hold(folder: Path, run: Run) -> None:
    assert "(not there: the defaults hold)" in run("info", where=folder)[1]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.9, "59 s"), (60, "1 min"), (7199, "1 h"), (7200, "2 h"), (172800, "2 d")]
)
def test_age(seconds: float, text: str) -> None:
    assert age(seconds) == text


# --- list ---------------------------------------------------------------------------------------------------------


def test_list_has_every_file_of_the_record(run: Run, prefix: Path, sim_driver: Path) -> None:
    """By its path on the host: below the driver root."""
    status, out, _ = run("list")
    known = record.load(load(str(prefix)), str(prefix))
    rows = [line.split("\t") for line in out.splitlines()]
    assert status == 0
    assert all(len(row) == 5 for row in rows)
    assert {(row[0], row[1], row[2], row[4]) for row in rows} == {
        (item.capability, item.kind, item.target or item.name, f"{sim_driver}{item.path}") for item in known.files
    }
    assert [row[3] for row in rows if row[2].startswith("libcuda.so")] == ["libcuda.so.1 libcuda.so"]


def test_list_on_a_terminal_is_narrow_and_has_all_that_a_pipe_gets(run: Run, prefix: Path) -> None:
    """As a table it was 240 columns wide."""
    rows = [line.split("\t") for line in run("list")[1].splitlines()]
    call = f"import sys; from gpuhook.cli import main; sys.exit(main(['gpuhook', 'list'], {str(prefix)!r}))"
    lines = on_terminal(call, TERM="dumb").splitlines()
    root = load(str(prefix)).driver_root
    assert lines[0] == "driver 580.95.05"
    assert max(len(line) - len(root) for line in lines if line.startswith("  /")) <= 80
    assert max(len(line) for line in lines if not line.startswith("  /")) <= 80
    assert [line.strip() for line in lines if line.startswith("  /")] == [path for *_, path in rows]
    assert [line for line in lines if line.startswith("    links ")] == [
        f"    links {links}" for _, _, _, links, _ in rows if links != "-"
    ]
    parts = [line for line in lines[1:] if line and not line.startswith(" ")]
    kinds = [f"{'every capability' if row[0] == '*' else row[0]}, {row[1]}" for row in rows]
    assert parts == list(dict.fromkeys(kinds))
    named = [line.split()[-1] for line in lines if line.startswith("    in the container ")]
    assert named == [name for _, _, name, _, path in rows if name.startswith("/") and f"{root}{name}" != path]


@pytest.mark.parametrize("capability", ["utility", "compute", "*"])
def test_list_of_one_capability(capability: str, run: Run) -> None:
    rows = [line.split("\t") for line in run("list", "--capability", capability)[1].splitlines()]
    assert rows
    assert all(capability in row[0].split("+") for row in rows)


def test_list_as_json(run: Run, prefix: Path, sim_driver: Path) -> None:
    found = document(run("list", "--json")[1])
    known = record.load(load(str(prefix)), str(prefix))
    assert found["driver"] == "580.95.05"
    assert sorted(item["path"] for item in found["files"]) == sorted(f"{sim_driver}{item.path}" for item in known.files)


def test_list_tells_what_no_container_gets_and_why(sim_driver: Path, folder: Path, run: Run) -> None:
    driver = copy_of(sim_driver, folder / "driver")
    library = next(driver.rglob("libnvidia-opencl.so.580*"))
    library.chmod(0o666)
    configure(folder, driver)
    status, out, err = run("list", where=folder)
    assert status == 0
    assert library.name not in out
    assert re.search(rf"^left out: \S*{re.escape(library.name)}: .+$", err, re.MULTILINE)
    left = document(run("list", "--json", where=folder)[1])["left_out"]
    assert [item["path"].rpartition("/")[2] for item in left] == [library.name, "nvidia.icd"]


def test_list_without_a_driver(folder: Path, run: Run) -> None:
    (folder / "empty").mkdir()
    configure(folder, folder / "empty")
    status, out, err = run("list", where=folder)
    assert (status, out) == (50, "")
    assert "[driver-not-found]" in err


# --- MIG ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def divided(sim_driver: Path, folder: Path) -> Path:
    """An installation whose first GPU is divided."""
    configure(folder, copy_of(sim_driver, folder / "driver"))
    sim.set_mig(folder / "driver", ("0=1/0,2/0",))
    return folder


def test_info_lists_mig_devices_below_the_gpus(divided: Path, run: Run) -> None:
    rows = [line.split("\t") for line in run("info", where=divided)[1].splitlines() if "\t" in line]
    assert [(row[0], row[-1]) for row in rows] == [("0", "MIG mode"), ("1", "ok"), ("0:0", "1/0"), ("0:1", "2/0")]
    assert all(row[1].startswith("MIG-") for row in rows[2:])
    found = document(run("info", "--json", where=divided)[1])["gpus"]
    assert [len(gpu["mig_devices"]) for gpu in found] == [2, 0]
    assert found[0]["mig_devices"][1] == {
        "index": 1,
        "uuid": rows[3][1],
        "gpu_instance": 2,
        "compute_instance": 0,
    }


def test_record_and_explain_say_the_same_of_them(divided: Path, run: Run) -> None:
    known = document(run("info", "--json", where=divided)[1])["gpus"]
    assert document(run("record", "show", "--json", where=divided)[1])["gpus"] == known
    told = document(run("explain", "--json", "--env", "NVIDIA_VISIBLE_DEVICES=0:1", where=divided)[1])
    assert told["host_gpus"] == known
    assert [[mig["index"] for mig in gpu["mig_devices"]] for gpu in told["gpus"]] == [[1]]
    assert "MIG 0:1 (2/0)" in run("explain", "--env", "NVIDIA_VISIBLE_DEVICES=0:1", where=divided)[1]


def test_a_mig_change_outdates_the_record_and_refresh_names_it(divided: Path, run: Run) -> None:
    run("info", where=divided)
    sim.set_mig(divided / "driver", ("0=1/0,5/0",))
    found = document(run("record", "show", "--json", where=divided)[1])
    assert found["state"] == "outdated"
    assert "the MIG devices in /proc/driver/nvidia/capabilities" in found["changed"]
    out = run("record", "refresh", where=divided)[1]
    assert re.search(r"^changed: GPU 00000000:\S+: MIG device 1: 2/0 MIG-\S+ -> 5/0 MIG-\S+$", out, re.MULTILINE)
