"""`gpuhook sim`: what the commands print, and that they do what the Python functions do."""

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuhook import config
from gpuhook import sim as simulator
from gpuhook.cli.sim import sim
from gpuhook.driver import record
from gpuhook.errors import GpuhookError
from tests.unit.test_cli import on_terminal


def test_create_prints_the_lines_for_the_configuration(tmp_path: Path) -> None:
    """The printed lines are TOML that names the tree by its absolute path, whatever its name, and a next step."""
    where = tmp_path / 'a "driver" ö'
    words = ["create", str(where), "--gpus", "1", "--driver", "535.161.08", "--cuda", "12.2", "--brand", "geforce"]
    words += ["--model", "NVIDIA GeForce RTX 4090", "--arch", "8.9", "--layout", "fedora", "--fault", "slow=1"]
    done = CliRunner().invoke(sim, words, catch_exceptions=False)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    start = lines.index("[driver]")
    table = tomllib.loads("\n".join(lines[start : start + 5]))["driver"]
    assert table == dict.fromkeys(("driver-root", "dev-root", "proc-root", "sys-root"), str(where))
    assert lines[-1].startswith("next: ")
    conf = (where / "sim/nvml.conf").read_text()
    assert "driver = 535.161.08\ncuda = 12020\nfault = slow=1\n" in conf
    assert conf.endswith(" 0 5 8.9 81559 NVIDIA GeForce RTX 4090\n")
    assert (where / "usr/lib64/libcuda.so.535.161.08").is_file()


def test_create_without_options_equals_the_defaults(tmp_path: Path) -> None:
    """The command's defaults are those of SimOptions."""
    CliRunner().invoke(sim, ["create", str(tmp_path / "a")], catch_exceptions=False)
    simulator.create(tmp_path / "b")
    assert (tmp_path / "a/sim/nvml.conf").read_text() == (tmp_path / "b/sim/nvml.conf").read_text()


def test_fault_changes_and_mends(tmp_path: Path) -> None:
    """`sim fault` writes the fault into the tree, and `none` takes it out."""
    simulator.create(tmp_path / "d")
    for fault in ("gpu-lost=1,slow=5", "none"):
        done = CliRunner().invoke(sim, ["fault", str(tmp_path / "d"), fault], catch_exceptions=False)
        assert done.exit_code == 0
        assert f"\nfault = {fault}\n" in (tmp_path / "d/sim/nvml.conf").read_text()


def test_a_fault_counts_from_the_next_start_on(tmp_path: Path) -> None:
    """What NVML alone says differently (a GPU lost) is in no file of proc and sys: the record is still made anew."""
    driver, prefix = tmp_path / "d", tmp_path / "prefix"
    simulator.create(driver)
    (prefix / "etc/gpuhook").mkdir(parents=True)
    lines = [f'{key} = "{driver}"\n' for key in ("driver-root", "dev-root", "proc-root", "sys-root")]
    (prefix / "etc/gpuhook/runtime.toml").write_text("[driver]\n" + "".join(lines))
    seen = []
    for fault in ("none", "gpu-lost=1", "none"):
        simulator.set_fault(driver, fault)
        gpus = record.load(config.load(str(prefix)), str(prefix)).gpus
        seen.append([not gpu.error for gpu in gpus])
    assert seen == [[True, True], [True, False], [True, True]]


@pytest.mark.parametrize(
    ("words", "reference", "says", "hint"),
    [
        (
            ["create", "/proc/foo"],
            "sim-failed",
            "in /proc/foo failed: No such file",
            "choose a directory on a file system",
        ),
        (["fault", "/etc", "hang"], "sim-invalid", "/etc is no simulated driver", "gpuhook sim create has made"),
        (["mig", "/etc/passwd"], "sim-invalid", "/etc/passwd is no simulated driver", "gpuhook sim create has made"),
        (
            ["fault", "/nowhere", "hang"],
            "sim-invalid",
            "/nowhere is no simulated driver",
            "gpuhook sim create has made",
        ),
    ],
)
def test_a_wrong_directory_is_told_in_words(words: list[str], reference: str, says: str, hint: str) -> None:
    """A sentence and what to do; no number of an error, no name of a temporary file."""
    with pytest.raises(GpuhookError) as caught:
        CliRunner().invoke(sim, words, catch_exceptions=False)
    assert caught.value.reference == reference
    assert says in caught.value.message
    assert "Errno" not in caught.value.message
    assert hint in caught.value.hint


def test_bad_fault_is_refused(tmp_path: Path) -> None:
    """The error of the Python function reaches the caller, who shows it."""
    simulator.create(tmp_path / "d")
    with pytest.raises(GpuhookError, match="'gpu-lost=9'"):
        CliRunner().invoke(sim, ["fault", str(tmp_path / "d"), "gpu-lost=9"], catch_exceptions=False)


def test_list_layouts_is_a_line_for_each_in_a_pipe() -> None:
    """With its library directory, and what it is like."""
    done = CliRunner().invoke(sim, ["list-layouts"], catch_exceptions=False)
    rows = [line.split("\t") for line in done.output.splitlines()]
    assert rows == [
        [name, "/" + layout.at(layout.libraries, "VERSION"), layout.text] for name, layout in simulator.LAYOUTS.items()
    ]


def test_list_layouts_is_two_lines_for_each_on_a_terminal() -> None:
    """In one they were 180 columns wide."""
    call = "import sys; from gpuhook.cli import main; sys.exit(main(['gpuhook', 'sim', 'list-layouts'], '/nowhere'))"
    lines = on_terminal(call).splitlines()
    assert [line.split()[0] for line in lines[::2]] == list(simulator.LAYOUTS)
    assert [line.strip() for line in lines[1::2]] == [
        "/" + layout.at(layout.libraries, "VERSION") for layout in simulator.LAYOUTS.values()
    ]
    assert max(map(len, lines)) <= 110


def test_mig_divides_and_makes_whole(tmp_path: Path) -> None:
    """`create --mig` and `sim mig` write the devices into the tree; without any the GPUs are whole."""
    words = ["create", str(tmp_path / "d"), "--mig", "0=1/0", "--mig", "1="]
    assert CliRunner().invoke(sim, words, catch_exceptions=False).exit_code == 0
    folder = tmp_path / "d/proc/driver/nvidia/capabilities"
    assert (folder / "gpu0/mig/gi1/ci0/access").is_file()
    assert list((folder / "gpu1/mig").iterdir()) == []
    for words, made in ((["1=2/0"], "gpu1/mig/gi2"), ([], "")):
        done = CliRunner().invoke(sim, ["mig", str(tmp_path / "d"), *words], catch_exceptions=False)
        assert done.exit_code == 0
        assert [path.relative_to(folder).as_posix() for path in folder.rglob("gi*")] == ([made] if made else [])
    with pytest.raises(GpuhookError, match="--mig '9='"):
        CliRunner().invoke(sim, ["mig", str(tmp_path / "d"), "9="], catch_exceptions=False)


HELP = [["--help"], *([name, "--help"] for name in ("create", "fault", "mig", "list-layouts"))]


@pytest.mark.parametrize("words", HELP)
def test_help_has_examples(words: list[str]) -> None:
    """Each command's help shows how to call it; faults are all explained where they can be given."""
    done = CliRunner().invoke(sim, words)
    assert done.exit_code == 0
    assert len(words) == 1 or "Example" in done.output
    if words[0] in ("create", "fault"):
        assert all(fault in done.output for fault in simulator.FAULTS)
