"""docs/capabilities.md says what the code gives for each word, and nothing else."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuhook import plan
from gpuhook.config import CAPABILITIES
from gpuhook.driver import capabilities, drm, nodes, record
from gpuhook.model import DriverFile
from tests.unit.driver_support import config_of

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
capabilities_doc: Any = importlib.import_module("capabilities_doc")

PAGE = (ROOT / "docs/capabilities.md").read_text()
CELLS = [row[1:-1] for row in (line.split("|") for line in PAGE.splitlines()) if len(row) == 7]
ROWS = {row[0].strip("` "): row[1:] for row in CELLS if row[0].strip("` ") in CAPABILITIES}


def test_the_tables_are_the_codes() -> None:
    """Written by scripts/capabilities_doc.py."""
    assert capabilities_doc.written(PAGE) == PAGE


def test_a_changed_cell_would_be_seen() -> None:
    assert PAGE.count("`libnvidia-ngx`") == 1
    other = PAGE.replace("`libnvidia-ngx`", "`libnvidia-other`")
    assert capabilities_doc.written(other) == PAGE != other


@pytest.mark.parametrize("word", CAPABILITIES)
def test_nodes_are_those_that_a_container_gets(word: str, sim_driver: Path) -> None:
    """Beyond nvidiactl, which everybody gets."""
    config = config_of(sim_driver)
    found = [node.path for node in nodes.control(config, (word,))]
    assert found[0] == "/dev/nvidiactl"
    names = {path.removeprefix("/dev/") for path in found[1:]}
    if word in drm.CAPABILITIES:
        names |= {"dri/cardN", "dri/renderDN"}
    assert names == set(capabilities_doc.NODES.get(word, ()))


@pytest.mark.parametrize("word", CAPABILITIES)
def test_who_gets_libcuda_gets_the_node_that_it_needs(word: str, sim_driver: Path, folder: Path) -> None:
    """Whichever word brings it (`video` does, for its decoders): without nvidia-uvm CUDA does not start."""
    config = config_of(sim_driver)
    has_cuda = any(item.soname == "libcuda.so.1" for item in plan.select(record.load(config, str(folder)), (word,)))
    paths = {node.path for node in nodes.control(config, (word,))}
    assert ({"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"} <= paths) is has_cuda


@pytest.mark.parametrize("word", CAPABILITIES)
def test_what_a_container_gets_stands_in_the_rows_of_its_words(word: str, sim_driver: Path, folder: Path) -> None:
    """Of a whole driver: each library and program that a word selects is named in its row or in one that it brings."""
    known = record.load(config_of(sim_driver), str(folder))
    got = plan.select(known, (word,))
    words = {word, *(other for other in plan.BRINGS.get(word, ()) if other in CAPABILITIES)}
    named = {name for each in words for cell in ROWS[each][:2] for name in re.findall(r"`([^`]+)`", cell)}

    def short(item: DriverFile) -> str:
        return capabilities.stem(item.name)

    given = {short(item) for item in got if item.kind in ("library", "binary") and item.capability != "*"}
    assert given <= named
    there = {short(item) for item in known.files if item.kind in ("library", "binary")}
    assert given == named & there


def test_data_goes_with_the_word_of_its_row(sim_driver: Path, folder: Path) -> None:
    """Each file that is no library lies at a place of the second table, for that row's word."""
    rows = {(row[4].strip("` "), row[1].strip("` ")) for row in CELLS}
    for item in record.load(config_of(sim_driver), str(folder)).files:
        if item.kind == "data":
            assert (item.target.rpartition("/")[0], item.capability) in rows
