"""Handles of what is mounted: what the driver's root may be between the shim's look and the hook's."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook import sources
from gpuhook.errors import GpuhookError

TAKE: dict[str, Callable[[str], object]] = {
    "files": lambda root: sources.acquire(root, (), ()),
    "nodes": lambda root: sources.acquire_nodes(root, (), sources.Sources()),
    "optional": lambda root: sources.acquire_steps(root, (), sources.Sources()),
}


@pytest.mark.parametrize("take", TAKE.values(), ids=TAKE)
@pytest.mark.parametrize("name", ["absent", "file"])
def test_a_root_that_went_away(tmp_path: Path, name: str, take: Callable[[str], object]) -> None:
    """A driver container ends while a container starts."""
    (tmp_path / "file").touch()
    with pytest.raises(GpuhookError) as caught:
        take(str(tmp_path / name))
    assert caught.value.reference == "driver-changed"
    assert str(tmp_path / name) in caught.value.message
