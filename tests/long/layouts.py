"""`scripts/test --long layouts`: the two matrices of hostile layouts whole, for each runtime."""

from collections import Counter

import pytest

from tests.long.report import append
from tests.security import test_layouts as layouts
from tests.security.arena import Arena
from tests.security.corpus import DIRECTORIES, FILES, LINKS, STRANGE

pytestmark = pytest.mark.runc


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_directories(arena: Arena, directory: str) -> None:
    """L01-L19 and L50-L55: each directory that we look into or make things in, as each kind of link."""
    outcomes = Counter(layouts.check_directory(arena, directory, link).outcome for link in LINKS)
    append("layouts", f"{directory} {arena.runtime}", {"starts": outcomes.total(), "violations": 0, **outcomes})


@pytest.mark.parametrize("file", FILES)
def test_files(arena: Arena, file: str) -> None:
    """L30-L39: each file that we read as each strange thing."""
    outcomes = Counter(layouts.check_file(arena, file, what).outcome for what in STRANGE)
    append("layouts", f"{file} {arena.runtime}", {"starts": outcomes.total(), "violations": 0, **outcomes})
