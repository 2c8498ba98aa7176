"""What the tests of engines share: engines that are started once for each cgroup layout, golden texts, results."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import lay_out
from tests.engines import archive
from tests.engines.machine import Machine
from tests.engines.results import Results
from tests.images import CHECKOUT

GOLDEN = CHECKOUT / "tests/golden/engines"


@pytest.fixture(scope="session")
def images(place: Path) -> Path:
    """The archive of all images."""
    return archive.write(place / "images.tar")


@pytest.fixture(scope="session")
def results() -> Results:
    """Writes down what works and what does not."""
    return Results()


@pytest.fixture(scope="session")
def new_machine(place: Path) -> Iterator[Callable[..., Machine]]:
    """Makes machines that last as long as the session: options of Machine, but for `folder` and `see`."""
    with contextlib.ExitStack() as stack:
        made: list[Machine] = []

        def make(layout: str, **options: Any) -> Machine:
            machine = Machine(place / f"m{len(made)}", layout, see=[place], **options)
            made.append(machine)
            return stack.enter_context(machine)

        yield make


@pytest.fixture(scope="session")
def engine(new_machine: Callable[..., Machine], installed: Path, images: Path) -> Callable[..., Any]:
    """The running engine of a class, a cgroup layout and a system, with the images and a gpuhook of its own
    (`.world`); started when it is first asked for, and kept."""
    kept: dict[tuple[type, str, Path], Any] = {}

    def get(kind: type, layout: str, system: Path = Path("/")) -> Any:
        key = (kind, layout, system)
        if key not in kept:
            machine = new_machine(layout, system=system)
            tree = installed if system == Path("/") else _installed_there(installed, machine)
            new = kind(machine, lay_out(tree, machine.folder / "gpuhook"))
            new.start()
            new.load(images)
            kept[key] = new
        return kept[key]

    return get


def _installed_there(installed: Path, machine: Machine) -> Path:
    """The tree that the machine's own Python lays out, as scripts/install does on that system."""
    tree = installed.with_name(f"installed-{machine.system.name}")
    if not tree.exists():
        vendor = next(installed.glob("usr/lib/gpuhook/*/vendor"))
        machine.check("python3", "-I", CHECKOUT / "scripts/layout.py", CHECKOUT, vendor, tree)
    return tree


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str, Machine], None]:
    """Compares what an engine showed with a file of tests/golden/engines; `--update-golden` writes it."""

    def compare(name: str, text: str, machine: Machine) -> None:
        text = re.sub(r"\b[0-9a-f]{64}\b", "ID", text).replace(str(machine.folder), "FOLDER")
        file = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        assert text == (file.read_text() if file.exists() else ""), f"{file.name}: see --update-golden"

    return compare


@pytest.fixture(scope="session")
def system() -> Path:
    """The root file system that engines come from; the long runs have others."""
    return Path("/")
