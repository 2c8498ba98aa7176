"""`gpuhook record`: what it shows, remakes and removes, for whom, and what it says where it may not."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuhook import sim
from gpuhook.cli import main
from gpuhook.cli import record as command
from gpuhook.config import load
from gpuhook.driver import key, record
from gpuhook.model import replace
from tests.unit.driver_support import copy_of, peek
from tests.unit.test_cli_explain import configure

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def host(sim_driver: Path, folder: Path) -> Path:
    """An installation with a driver of its own."""
    configure(folder, copy_of(sim_driver, folder / "driver"))
    return folder


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `gpuhook record ...`; returns status, output, errors."""

    def call(*words: str, where: Path = folder) -> tuple[int, str, str]:
        status = main(["gpuhook", "record", *words], str(where))
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return call


def shown(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("show", "--json")[1])
    return found


def stored(host: Path) -> Path:
    return host / "run/gpuhook/driver.json"


# --- show -----------------------------------------------------------------------------------------------------------


def test_nothing_stored_is_no_error_and_show_makes_nothing(host: Path, run: Run) -> None:
    status, out, err = run("show")
    assert (status, err) == (0, "")
    assert "nothing is stored" in out
    assert shown(run)["state"] == "none"
    assert not stored(host).exists()
    assert (host / "driver/sim/nvml.count").stat().st_size == 0, "NVML was asked"


def test_the_key_facts(host: Path, run: Run) -> None:
    known = record.load(load(str(host)), str(host))
    status, out, err = run("show")
    assert (status, err) == (0, "")
    for pattern in (
        rf"record  {re.escape(str(stored(host)))}",
        r"state   in use",
        r"made    \d+ s ago",
        rf"id      {known.id}",
        r"driver  580\.95\.05, CUDA up to 13\.0, x86-64",
        r"files   \d+ binary, \d+ data, \d+ firmware, \d+ library",
    ):
        assert re.search(f"^{pattern}$", out, re.MULTILINE), pattern
    rows = [line.split("\t") for line in out.splitlines() if "\t" in line]
    assert [row[:2] for row in rows] == [[str(gpu.index), gpu.uuid] for gpu in known.gpus]
    found = shown(run)
    assert (found["state"], found["id"], found["changed"]) == ("current", known.id, [])
    assert 0 <= found["age_seconds"] < 60
    assert sum(found["files"].values()) == len(known.files)


def test_what_is_left_out_comes_with_its_reason(host: Path, run: Run) -> None:
    library = next((host / "driver").rglob("libnvidia-opencl.so.580*"))
    library.chmod(0o666)
    record.load(load(str(host)), str(host))
    left = shown(run)["left_out"]
    # the description of OpenCL names that library, and goes with it
    assert [item["path"].rpartition("/")[2] for item in left] == [library.name, "nvidia.icd"]
    assert re.search(rf"^left out\n  \S*{re.escape(library.name)}: .+", run("show")[1], re.MULTILINE)


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "another module": (
        lambda driver: (driver / "sys/module/nvidia/version").write_text("580.95.06\n"),
        "/sys/module/nvidia/version",
    ),
    "a GPU went": (
        lambda driver: subprocess.run(["rm", "-r", next((driver / "proc/driver/nvidia/gpus").iterdir())], check=True),
        "the GPUs in /proc/driver/nvidia/gpus",
    ),
    "a library was touched": (
        lambda driver: os.utime(next(driver.rglob("libcuda.so.580*")), (1, 1)),
        "{driver}/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
    ),
    "/proc/devices": (
        lambda driver: (driver / "proc/devices").write_text("195 nvidia-else\n"),
        "the nvidia lines of /proc/devices",
    ),
}


@pytest.mark.parametrize(("change", "name"), CHANGES.values(), ids=CHANGES)
def test_an_outdated_record_says_what_changed(
    change: Callable[[Path], object], name: str, host: Path, run: Run
) -> None:
    record.load(load(str(host)), str(host))
    change(host / "driver")
    found = shown(run)
    assert found["state"] == "outdated"
    assert name.format(driver=host / "driver") in found["changed"]
    assert "not used: this host changed" in run("show")[1]


def test_many_changed_files_are_cut_for_people_and_whole_in_json(host: Path, run: Run) -> None:
    record.load(load(str(host)), str(host))
    for library in (host / "driver").rglob("*.so.580*"):
        os.utime(library, (1, 1))
    assert len(shown(run)["changed"]) > 15
    assert re.search(r"^  and \d+ more$", run("show")[1], re.MULTILINE)


def test_every_part_of_the_key_has_a_name(host: Path) -> None:
    """Else a change would be shown as `the kernel module's state`."""
    assert len(command._HEAD) == len(key.head(load(str(host))))


def test_a_record_of_an_earlier_boot_has_no_age(host: Path, run: Run) -> None:
    record.load(load(str(host)), str(host))
    data = json.loads(stored(host).read_text())
    data["key"][0][1] = "another-boot"
    stored(host).write_text(json.dumps(data))
    found = shown(run)
    assert (found["state"], found["age_seconds"], found["changed"]) == ("outdated", None, ["the boot"])


def test_a_stored_error_is_shown_with_its_code_and_how_long_it_is_believed(host: Path, run: Run) -> None:
    sim.set_fault(host / "driver", "not-loaded")
    run("refresh")
    status, out, err = run("show")
    assert status == 51
    assert "[driver-not-loaded]" in err
    assert "holds an error" in out
    assert "believed for 10 s" in out
    assert shown(run)["error"]["reference"] == "driver-not-loaded"


def test_an_error_whose_time_is_over_is_told_as_what_was(host: Path, run: Run) -> None:
    sim.set_fault(host / "driver", "not-loaded")
    run("refresh")
    data = json.loads(stored(host).read_text())
    data["made"] -= 11.0
    stored(host).write_text(json.dumps(data))
    status, out, err = run("show")
    assert (status, err) == (0, "")
    assert "it held the error" in out


@pytest.mark.parametrize(
    "spoil",
    [lambda path: path.write_text("{"), lambda path: path.chmod(0o666), lambda path: path.write_text("{}")],
    ids=["not whole", "others may write", "another form"],
)
def test_a_file_that_no_start_would_use_is_said_to_be_so(spoil: Callable[[Path], object], host: Path, run: Run) -> None:
    record.load(load(str(host)), str(host))
    spoil(stored(host))
    assert shown(run)["state"] == "unusable"
    assert "not used: it is not whole" in run("show")[1]


# --- refresh --------------------------------------------------------------------------------------------------------


def test_refresh_asks_nvml_again_though_the_record_fits(host: Path, run: Run) -> None:
    record.load(load(str(host)), str(host))
    count = (host / "driver/sim/nvml.count").stat().st_size
    before = stored(host).stat().st_mtime_ns
    status, out, err = run("refresh")
    assert (status, err) == (0, "")
    assert out.splitlines()[1:] == ["nothing is different"]
    assert (host / "driver/sim/nvml.count").stat().st_size > count
    assert stored(host).stat().st_mtime_ns > before
    assert peek(load(str(host)), str(host)) is not None


def test_the_first_refresh_says_that_none_was_stored(host: Path, run: Run) -> None:
    assert run("refresh")[1].endswith("none was stored before\n")


def test_refresh_shows_what_changed(host: Path, run: Run) -> None:
    known = record.load(load(str(host)), str(host))
    sim.set_fault(host / "driver", "gpu-lost=1")
    gone = next((host / "driver").rglob("libnvidia-opencl.so.580*"))
    gone.unlink()
    replaced = next((host / "driver").rglob("libcuda.so.580*"))
    os.utime(replaced, (1, 1))
    found = json.loads(run("refresh", "--json")[1])
    assert found["before"] == known.id
    assert found["id"] not in {None, known.id}
    by_name = {item["what"]: item for item in found["changes"]}
    path = str(gone).removeprefix(str(host / "driver"))
    assert by_name[path] == {"what": path, "before": "library for compute", "after": None}
    assert by_name[str(replaced).removeprefix(str(host / "driver"))]["after"] == "replaced"
    lost = by_name[f"GPU {known.gpus[1].bus_id}: error"]
    assert lost["before"] is None
    assert "lost" in lost["after"].lower()


def test_changes_in_words(host: Path, run: Run) -> None:
    known = record.load(load(str(host)), str(host))
    next((host / "driver").rglob("libnvidia-opencl.so.580*")).unlink()
    out = run("refresh")[1]
    assert re.search(r"^gone: /usr/lib/\S+/libnvidia-opencl\.so\.580\.95\.05: library for compute$", out, re.MULTILINE)
    new = replace(known, driver="590.1", cuda=(13, 1), gpus=known.gpus[:1])
    assert [(item["what"], item["before"], item["after"]) for item in command.changes(known, new)[:2]] == [
        ("driver", "580.95.05", "590.1"),
        ("cuda", "13.0", "13.1"),
    ]
    gone = command.changes(known, new)[2]
    assert (gone["what"], gone["after"]) == (f"GPU {known.gpus[1].bus_id}", None)


def test_refresh_of_a_broken_driver_is_its_error_and_is_stored(host: Path, run: Run) -> None:
    sim.set_fault(host / "driver", "not-loaded")
    status, out, err = run("refresh")
    assert (status, out) == (51, "")
    assert "[driver-not-loaded]" in err
    assert stored(host).exists()


def test_refresh_makes_nodes_that_are_missing_and_their_links(host: Path, run: Run) -> None:
    """What gpuhook-record.service does after a boot, before a first start; the second time there is nothing to do."""
    node = host / "driver/dev/nvidia1"
    node.unlink()
    try:
        status, _, err = run("refresh", "--nodes")
        assert (status, err) == (0, f"made {node}\n")
        number = node.stat().st_rdev
        assert Path(f"/dev/char/{os.major(number)}:{os.minor(number)}").stat().st_rdev == number
        assert run("refresh", "--nodes")[2] == ""
    finally:
        for link in Path("/dev/char").iterdir():
            if str(link.readlink()).startswith(str(host)):
                link.unlink()


# --- drop -----------------------------------------------------------------------------------------------------------


def test_drop_removes_it_and_the_next_start_makes_it(host: Path, run: Run) -> None:
    known = record.load(load(str(host)), str(host))
    assert run("drop") == (0, f"{stored(host)} is removed\n", "")
    assert not stored(host).exists()
    assert run("drop") == (0, f"{stored(host)} was not there\n", "")
    assert record.load(load(str(host)), str(host)).id == known.id


def test_drop_works_with_a_broken_configuration(host: Path, run: Run) -> None:
    """Nothing of the configuration is needed for it."""
    record.load(load(str(host)), str(host))
    (host / "etc/gpuhook/runtime.toml").write_text("[frob]\n")
    assert run("drop")[0] == 0


# --- who may --------------------------------------------------------------------------------------------------------

AS_NOBODY = """
import os, sys
sys.dont_write_bytecode = True
import gpuhook.cli, gpuhook.cli.record, gpuhook.jsonio, click.shell_completion
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
sys.exit(gpuhook.cli.main(["gpuhook", "record", *sys.argv[2:]], sys.argv[1]))
"""


@pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="becoming somebody else needs root")
@pytest.mark.parametrize("word", ["refresh", "drop"])
def test_without_root_the_error_names_what_to_do(word: str, host: Path, installed: Path) -> None:
    known = record.load(load(str(host)), str(host))
    library = next((installed / "usr/lib/gpuhook").glob("[0-9]*"))
    env = {**os.environ, "PYTHONPATH": f"{library}:{library}/vendor"}

    def nobody(*words: str) -> subprocess.CompletedProcess[str]:
        line = ["/usr/bin/python3", "-c", AS_NOBODY, str(host), *words]
        return subprocess.run(line, env=env, capture_output=True, text=True)

    done = nobody(word)
    assert (done.returncode, done.stdout) == (61, "")
    assert done.stderr.splitlines()[0].endswith("[record-not-written]")
    assert f"sudo gpuhook record {word}" in done.stderr
    assert peek(load(str(host)), str(host)) == known, "the record is gone"
    assert json.loads(nobody("show", "--json").stdout)["state"] == "current"


def test_the_module_is_imported_for_its_command_alone() -> None:
    """`gpuhook --help` and completion stay quick."""
    code = "import sys, gpuhook.cli; print([name for name in sys.modules if name.startswith('gpuhook.driver')])"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout == "[]\n"
