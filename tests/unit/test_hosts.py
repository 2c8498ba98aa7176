"""Every kind of host that the simulator knows: what a container gets there, from a driver root and from `/`.

The files of tests/golden/hosts are what `gpuhook explain --json` says of the driver's files for a container that asks
for all GPUs and all capabilities, on an image of Debian's layout. The same text is wanted twice: with the four roots
set to the simulator's tree, and in a machine whose / it is, with gpuhook installed as usual and nothing configured.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuhook import sim
from gpuhook.cli import main
from tests import bundles, sandbox
from tests.images import LOADERS, MULTIARCH
from tests.unit.test_golden_plans import GOLDEN, lib64, multiarch

V = sim.SimOptions().driver
REQUEST = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")


@pytest.fixture(scope="session")
def hosts(place: Path) -> Callable[[str], Path]:
    """The hosts, each made once."""

    def host(layout: str) -> Path:
        path = place / f"host-{layout}"
        if not path.exists():
            sim.create(path, sim.SimOptions(layout=layout))
        return path

    return host


@pytest.fixture(scope="session")
def image(place: Path) -> Path:
    """An image of Debian's layout."""
    path = place / "host-image"
    path.mkdir()
    multiarch(path)
    return path


def text(document: dict[str, Any]) -> str:
    """The driver's files of an explanation: for each folder of the host what goes to which folder of the container."""
    assert document["outcome"] == "granted"
    folders: dict[str, list[str]] = {}
    for mount in document["mounts"]:
        if mount["kind"] in ("library", "binary", "firmware", "data"):
            source, _, name = mount["source"].rpartition("/")
            target, _, called = mount["target"].rpartition("/")
            folders.setdefault(f"{mount['kind']} {source} -> {target}", []).append(
                name if name == called else f"{name} as {called}"
            )
    lines = [line for folder, names in folders.items() for line in (folder, *(f"  {name}" for name in names))]
    lines += [f"file {item['target']} ({item['reason']})" for item in document["files"]]
    lines += [f"node {node['path']}" for node in document["nodes"]]
    lines += [f"warning {line}" for line in document["warnings"]]
    return "".join(f"{line}\n" for line in lines).replace(MULTIARCH, "TRIPLET")


def write_bundle(folder: Path, rootfs: str) -> None:
    spec = bundles.config(env=REQUEST)
    spec["root"]["path"] = rootfs
    (folder / "config.json").write_text(json.dumps(spec))


def roots(layout: str, root: Path) -> str:
    """The [driver] section for a tree at `root`."""
    places = dict.fromkeys(("driver-root", "dev-root", "proc-root", "sys-root"), root)
    places["driver-root"] /= sim.LAYOUTS[layout].root
    return "[driver]\n" + "".join(f'{key} = "{path}"\n' for key, path in places.items())


def explained(layout: str, hosts: Callable[[str], Path], image: Path, folder: Path, capsys: Any) -> dict[str, Any]:
    """What `gpuhook explain` says where the four roots name the tree."""
    (folder / "etc/gpuhook").mkdir(parents=True)
    (folder / "etc/gpuhook/runtime.toml").write_text(roots(layout, hosts(layout)))
    write_bundle(folder, str(image))
    capsys.readouterr()
    assert main(["gpuhook", "explain", str(folder), "--json"], str(folder)) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize("layout", sim.LAYOUTS)
def test_from_a_driver_root(
    layout: str,
    hosts: Callable[[str], Path],
    image: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
) -> None:
    found = text(explained(layout, hosts, image, folder, capsys))
    file = GOLDEN / "hosts" / f"{layout}.txt"
    if pytestconfig.getoption("--update-golden"):
        file.write_text(found)
    assert found == file.read_text(), (
        f"{file.name} differs; if that is meant: pytest --update-golden, and read the diff"
    )


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in (GOLDEN / "hosts").iterdir()} == set(sim.LAYOUTS)


@pytest.mark.parametrize("layout", sim.LAYOUTS)
def test_from_the_root(layout: str, hosts: Callable[[str], Path], image: Path, installed: Path, folder: Path) -> None:
    """In a machine of its own: this one's Debian, with the driver where that host has it."""
    document = in_machine(layout, hosts(layout), image, installed, folder)
    assert text(document) == (GOLDEN / "hosts" / f"{layout}.txt").read_text()


def arch(tree: Path) -> None:
    """Arch's layout: one directory for all libraries."""
    (tree / "usr/lib").mkdir(parents=True)
    for name, text in (("usr/lib64", "lib"), ("lib", "usr/lib"), ("lib64", "usr/lib")):
        (tree / name).symlink_to(text)
    shutil.copy(os.path.realpath(LOADERS[MULTIARCH]), tree / f"usr/lib/{Path(LOADERS[MULTIARCH]).name}")
    shutil.copy(f"/lib/{MULTIARCH}/libc.so.6", tree / "usr/lib/libc.so.6")


IMAGES = {"multiarch": (multiarch, f"/usr/lib/{MULTIARCH}"), "lib64": (lib64, "/usr/lib64"), "arch": (arch, "/usr/lib")}


@pytest.mark.parametrize("layout", ["arch", "ubuntu", "fedora"])
@pytest.mark.parametrize(("make", "libdir"), IMAGES.values(), ids=IMAGES)
def test_r62_the_image_says_where_libraries_go(
    layout: str,
    make: Callable[[Path], None],
    libdir: str,
    hosts: Callable[[str], Path],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Never the host's directory: each image has its own."""
    image = folder / "image"
    image.mkdir()
    make(image)
    document = explained(layout, hosts, image, folder, capsys)
    targets = {mount["target"].rpartition("/")[0] for mount in document["mounts"] if mount["kind"] == "library"}
    assert targets == {libdir}


def in_machine(layout: str, host: Path, image: Path, installed: Path, folder: Path) -> dict[str, Any]:
    """What the installed `gpuhook explain` says in a machine whose / is the tree, laid over this machine's."""

    def work() -> str:
        tmpfs, root = folder / "tmpfs", folder / "root"
        tmpfs.mkdir()
        root.mkdir()
        sandbox.mount("tmpfs", tmpfs, "tmpfs", 0, "mode=755")
        upper = tmpfs / "upper"
        upper.mkdir()
        (tmpfs / "work").mkdir()
        for tree in (installed, host):
            subprocess.run(["cp", "-aT", tree, upper], check=True)
        subprocess.run(["cp", "-aT", image, upper / "image"], check=True)
        for name in ("proc", "bundle", "run/gpuhook"):
            shutil.rmtree(upper / name, ignore_errors=True)
            (upper / name).mkdir(parents=True)
        write_bundle(upper / "bundle", "/image")
        if sim.LAYOUTS[layout].root:
            (upper / "etc/gpuhook/runtime.toml").write_text(f'[driver]\ndriver-root = "/{sim.LAYOUTS[layout].root}"\n')
        os.mknod(upper / "dev/null", 0o20666, os.makedev(1, 3))
        sandbox.mount("overlay", root, "overlay", 0, f"lowerdir=/,upperdir={upper},workdir={tmpfs}/work")
        if sim.LAYOUTS[layout].cache == "none":
            (root / "etc/ld.so.cache").unlink(missing_ok=True)
        _lend_loader(root)
        sandbox.bind("/proc", root / "proc")
        for name in ("proc/driver", "proc/devices", "proc/misc"):
            if (host / name).exists():
                sandbox.bind(host / name, root / name)
        os.chroot(root)
        os.chdir("/")
        command = ["/usr/bin/gpuhook", "explain", "/bundle", "--json"]
        run = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    document: dict[str, Any] = json.loads(sandbox.apart(work, mounts=True))
    return document


def _lend_loader(root: Path) -> None:
    """This machine's programs run in the other one, where /lib64 may be another directory than here."""
    loader = LOADERS[MULTIARCH]
    real = Path(os.path.realpath(loader))
    there = root / loader[1:]
    folder = Path(os.path.realpath(there.parent))
    if not folder.is_relative_to(root):  # a link to an absolute path, which is the other machine's
        folder = root / str(folder).lstrip("/")
    if not (folder / there.name).exists():
        shutil.copy(real, folder / there.name)
