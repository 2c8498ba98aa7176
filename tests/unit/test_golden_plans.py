"""What containers get, line by line, for two layouts of the driver, three images and four requests.

The files of tests/golden are what `gpuhook explain --json` says, with places of this machine named by words. They
change by `--update-golden` only, and the diff is read like code.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuhook import sim
from gpuhook.cli import main
from gpuhook.sim.data import shared_object
from tests import bundles
from tests.images import LOADERS, MULTIARCH

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
LAYOUTS = ("ubuntu", "fedora")
REQUESTS = {
    "all": ("NVIDIA_VISIBLE_DEVICES=all",),
    "first": ("NVIDIA_VISIBLE_DEVICES=0",),
    "none": ("NVIDIA_VISIBLE_DEVICES=none",),
    "utility": ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"),
    "everything": ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"),
}


def multiarch(tree: Path) -> None:
    """Debian's and Ubuntu's layout."""
    _glibc(tree, f"usr/lib/{MULTIARCH}", "usr/lib/i386-linux-gnu")


def lib64(tree: Path) -> None:
    """Fedora's and RHEL's layout."""
    _glibc(tree, "usr/lib64", "usr/lib")


def leftovers(tree: Path) -> None:
    """Debian's layout with driver files in it: old copies, an earlier start's, newer compatibility libraries."""
    multiarch(tree)
    libraries = tree / f"usr/lib/{MULTIARCH}"
    machine = libraries / "libc.so.6"
    shutil.copy(machine, libraries / "libcuda.so.535.54.03")
    shutil.copy(machine, libraries / "libcuda.so.1")
    (libraries / "libnvidia-ml.so.580.95.05").touch()
    (libraries / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.95.05")
    (libraries / "libcudart.so.12").touch()  # not the driver's
    special = libraries / "glibc-hwcaps/special"
    special.mkdir(parents=True)
    shutil.copy(machine, special / "libcuda.so.1")
    (tree / "usr/bin").mkdir()
    (tree / "usr/bin/nvidia-smi").touch()
    compat = tree / "usr/local/cuda-13.1/compat"
    compat.mkdir(parents=True)
    (tree / "usr/local/cuda").symlink_to("/usr/local/cuda-13.1")
    for stem in ("libcuda", "libnvidia-ptxjitcompiler"):
        shutil.copy(machine, compat / f"{stem}.so.590.44.01")
        (compat / f"{stem}.so.1").symlink_to(f"{stem}.so.590.44.01")


IMAGES = {"multiarch": multiarch, "lib64": lib64, "leftovers": leftovers}


def _glibc(tree: Path, libdir: str, narrow: str) -> None:
    """The least of a glibc image: this machine's loader and C library, one for 32 bits, the links of a merged /usr."""
    (tree / libdir).mkdir(parents=True)
    (tree / narrow).mkdir(parents=True, exist_ok=True)
    (tree / narrow / "libc.so.6").write_bytes(shared_object("libc.so.6"))
    (tree / "usr/lib64").mkdir(exist_ok=True)
    (tree / "usr/lib").mkdir(exist_ok=True)
    for name in ("lib", "lib64"):
        (tree / name).symlink_to(f"usr/{name}")
    loader = LOADERS[MULTIARCH]
    shutil.copy(os.path.realpath(loader), tree / loader[1:])
    shutil.copy(f"/lib/{MULTIARCH}/libc.so.6", tree / libdir / "libc.so.6")


@pytest.fixture(scope="session")
def prefixes(place: Path) -> dict[str, Path]:
    """An installation's configuration for each layout, with a simulated driver."""
    found = {}
    for layout in LAYOUTS:
        prefix = found[layout] = place / f"golden-{layout}"
        (prefix / "etc/gpuhook").mkdir(parents=True)
        sim.create(prefix / "driver", sim.SimOptions(layout=layout, libraries32=True))
        roots = ("driver-root", "dev-root", "proc-root", "sys-root")
        text = "".join(f'{key} = "{prefix}/driver"\n' for key in roots)
        (prefix / "etc/gpuhook/runtime.toml").write_text(f"[driver]\n{text}")
    return found


@pytest.fixture(scope="session")
def trees(place: Path) -> Callable[[str], Path]:
    """The images, each made once."""

    def tree(name: str) -> Path:
        path = place / f"golden-image-{name}"
        if not path.exists():
            path.mkdir()
            IMAGES[name](path)
        return path

    return tree


@pytest.mark.parametrize("asked", REQUESTS)
@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_plan(
    layout: str,
    image: str,
    asked: str,
    prefixes: dict[str, Path],
    trees: Callable[[str], Path],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
) -> None:
    spec = bundles.config(env=REQUESTS[asked])
    spec["root"]["path"] = str(trees(image))
    (folder / "config.json").write_text(json.dumps(spec))
    assert main(["gpuhook", "explain", str(folder), "--json"], str(prefixes[layout])) == 0
    document = json.loads(capsys.readouterr().out)
    text = "".join(f"{line}\n" for line in lines(document))
    for place, word in (
        (document["driver"]["record"], "RECORD"),
        (str(trees(image)), "IMAGE"),
        (str(prefixes[layout]), "PREFIX"),
        (str(folder), "BUNDLE"),
        (MULTIARCH, "TRIPLET"),
        (document["image"]["machine"], "MACHINE"),
    ):
        text = text.replace(place, word)
    text = re.sub(r"(--node [^ :]+):\d+:\d+", r"\1:MAJOR:MINOR", text)  # stand-ins differ from kernel to kernel
    file = GOLDEN / f"{layout}-{image}-{asked}.txt"
    if pytestconfig.getoption("--update-golden"):
        file.write_text(text)
    assert text == file.read_text(), f"{file.name} differs; if that is meant: pytest --update-golden, and read the diff"


def test_no_golden_file_is_left_over() -> None:
    wanted = {f"{layout}-{image}-{asked}.txt" for layout in LAYOUTS for image in IMAGES for asked in REQUESTS}
    assert {path.name for path in GOLDEN.iterdir() if path.is_file()} == wanted


def test_ci_does_not_write_golden_files() -> None:
    """A machine that writes what it is to be compared with compares nothing."""
    command = [sys.executable, "-m", "pytest", "--update-golden", "--collect-only", "-q", __file__]
    run = subprocess.run(command, env={**os.environ, "CI": "true"}, capture_output=True, text=True)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--update-golden is refused" in run.stdout + run.stderr


def lines(document: dict[str, Any]) -> list[str]:
    """The document, a line for each thing. Device numbers are this machine's, so they stay out."""
    entry, image, cache = document["hook"]["entry"], document["image"], document["loader_cache"]
    found = [
        f"outcome {document['outcome']}",
        f"capabilities {' '.join(document['request']['capabilities'])}",
        *(f"gpu {gpu['index']} {gpu['uuid']}" for gpu in document["gpus"]),
        *(f"node {node['path']} {node['mode']}" for node in document["nodes"]),
        f"hook {document['hook']['stage']} {entry['path']} {' '.join(entry['args'])}",
        f"image {image['loader']} {image['machine']} {image['libdir']}",
        *([f"32-bit libraries {image['libdir32']}"] if image["libdir32"] else []),
        *([f"compat {image['compat']} {image['compat_version']}"] if image["compat"] else []),
    ]
    for mount in document["mounts"]:
        notes = [mount["reason"], *(["optional"] if mount["optional"] else [])]
        notes += [] if mount["present"] else ["not on this host"]
        found.append(f"{mount['kind']} {mount['target']} <- {mount['source']} ({', '.join(notes)})")
    found += [f"link {link['target']} -> {link['text']} ({link['reason']})" for link in document["links"]]
    for item in document["files"]:
        found.append(f"file {item['target']} ({item['reason']})")
        found += [f"  {line}" for line in item["text"].splitlines()]
    found += [f"cache {item['name']} {item['path']}" for item in cache["entries"]]
    found += [f"cache of 32 bits {item['name']} {item['path']}" for item in cache["entries32"]]
    found += [f"cache directory {path}" for path in cache["directories"]]
    found += [f"note {text}" for text in document["notes"]]
    found += [f"warning {text}" for text in document["warnings"]]
    return found
