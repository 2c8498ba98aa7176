"""What is watched of a host: as little as shows every change."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import config
from gpuhook.driver import discover, key, places
from gpuhook.driver.tree import Tree
from gpuhook.model import replace

WATCH = {"/usr/lib", "/usr/lib/x/y", "/usr/lib/z", "/opt/a", "/opt/a/b", "/run/d/e", "/lib/m", "/lost/n", "/usr/lib/f"}
NEEDED = {"/usr/lib", "/opt/a", "/run/d/e", "/lost/n", "/usr/lib/f"}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """`/lib` is a link to a watched directory, `/lost` one that leads nowhere."""
    for folder in ("usr/lib", "run"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "usr/lib/f").touch()
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "lost").symlink_to("elsewhere")
    return tmp_path


def test_what_is_needed(host: Path) -> None:
    assert places.needed(Tree(str(host)), WATCH) == NEEDED


@pytest.mark.parametrize("path", sorted(WATCH - {"/usr/lib", "/usr/lib/f"}))
def test_the_coming_of_each_name_shows(host: Path, path: str) -> None:
    """Of those that are left out too: the key is another when the name comes."""
    roots = dict.fromkeys(("driver_root", "dev_root", "proc_root", "sys_root"), str(host))
    settings = replace(config.defaults(), **roots)
    watch = sorted(places.needed(Tree(str(host)), WATCH))
    before = key.take(settings, watch)
    (host / "elsewhere").mkdir()
    os.makedirs(f"{host}{path}")
    assert stat.S_ISDIR(os.stat(f"{host}{path}").st_mode)
    assert key.take(settings, watch) != before


ROOTS = {
    "not there": lambda root: None,
    "a link that leads nowhere": lambda root: root.symlink_to("elsewhere"),
    "a file": lambda root: root.touch(),
}


@pytest.mark.parametrize("make", ROOTS.values(), ids=ROOTS)
def test_a_driver_root_that_is_none_yet(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A driver container that has not mounted its root: looking ends, and the root's coming shows."""
    root = tmp_path / "driver"
    make(root)
    settings = replace(
        config.defaults(), **dict.fromkeys(("driver_root", "dev_root", "proc_root", "sys_root"), str(root))
    )
    found = discover.discover(settings, "")
    assert found.files == []
    before = key.take(settings, sorted(found.watch))
    if root.is_symlink() or root.exists():
        root.unlink()
    (root / "usr/lib").mkdir(parents=True)
    assert key.take(settings, sorted(found.watch)) != before
