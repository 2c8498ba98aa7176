"""What is watched of a host: as little as shows every change."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import config, jsonio
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


def test_wildcards_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of patterns that pass through half of the host no more is read than one search list needs, and it is said which.

    Entries before and behind them count, and so does a pattern that passes many names in one directory.
    """
    for first in range(30):
        for second in range(20):
            (tmp_path / f"a{first}/b{second}/c/d").mkdir(parents=True)
    read: list[str] = []
    names = Tree.names

    def counted(tree: Tree, directory: str) -> list[str]:
        read.append(directory)
        return names(tree, directory)

    monkeypatch.setattr(Tree, "names", counted)
    left_out: list[tuple[str, str]] = []
    watch: set[str] = set()
    wild = [f"/*/*/{'*' * more}/*" for more in range(1, 61)]
    found = places.expand_all(Tree(str(tmp_path)), ["/first", "/a*/b1/c", *wild, "/last"], watch, left_out)
    assert found[0] == "/first"
    assert found[-1] == "/last"
    assert "/a7/b1/c" in found
    assert "/a0/b0/c/d" in found
    assert len(read) <= 512
    assert len(watch) <= 512
    assert [pattern for pattern, _ in left_out] == wild[-len(left_out) :]
    assert len(left_out) > 50


@pytest.mark.timeout(60)
def test_a_key_has_an_end(tmp_path: Path) -> None:
    """Directories of capabilities that lead to themselves, as no procfs has them."""
    folder = tmp_path / "proc/driver/nvidia/capabilities"
    folder.mkdir(parents=True)
    for number in range(40):
        (folder / f"gpu{number}").symlink_to(".")
    roots = dict.fromkeys(("driver_root", "dev_root", "proc_root", "sys_root"), str(tmp_path))
    taken = key.take(replace(config.defaults(), **roots), [])
    assert len(jsonio.dumps(taken)) < 1 << 20
