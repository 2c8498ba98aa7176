"""The installed tree: complete, compiled, the same wherever it is copied, kept by a second install."""

import marshal
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from gpuhook import __version__
from tests.conftest import World
from tests.images import CHECKOUT


def install(destdir: Path | str, *, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [CHECKOUT / "scripts/install", "--destdir", destdir]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True)


def everything(tree: Path) -> dict[str, tuple[int, int, bytes]]:
    """Mode, owner and contents of all that lies below."""
    found = {}
    for path in sorted(tree.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(tree))] = (
            status.st_mode,
            status.st_uid,
            path.read_bytes() if stat.S_ISREG(status.st_mode) else b"",
        )
    return found


def test_modes_and_owners(installed: Path) -> None:
    for name, (mode, owner, _) in everything(installed).items():
        runs = stat.S_ISDIR(mode) or name.startswith("usr/bin/")
        assert (stat.S_IMODE(mode), owner) == (0o755 if runs else 0o644, os.geteuid()), name


def test_each_launcher_names_the_version(installed: Path) -> None:
    for name in ("gpuhook-runtime", "gpuhook-hook", "gpuhook"):
        text = (installed / "usr/bin" / name).read_text()
        assert f"/usr/lib/gpuhook/{__version__}" in text
        assert "@VERSION@" not in text


def test_a_second_install_changes_nothing(folder: Path) -> None:
    """Under another umask, with a relative path; the configuration that is there is kept."""
    install("tree", cwd=folder)
    (folder / "tree/etc/gpuhook/runtime.toml").write_text("# mine\n")
    before = everything(folder / "tree")
    inode = (folder / f"tree/usr/lib/gpuhook/{__version__}").stat().st_ino
    subprocess.run(["/bin/sh", "-c", f'umask 077; "{CHECKOUT}/scripts/install" --destdir tree'], cwd=folder, check=True)
    assert everything(folder / "tree") == before
    assert (folder / f"tree/usr/lib/gpuhook/{__version__}").stat().st_ino == inode


def test_a_changed_version_folder_is_exchanged_whole(folder: Path) -> None:
    """A file that does not belong there goes, nothing is left beside, and who holds the old folder keeps its files."""
    install(folder)
    library = folder / f"usr/lib/gpuhook/{__version__}"
    (library / "gpuhook/stray.py").write_text("")
    descriptor = os.open(library, os.O_RDONLY | os.O_DIRECTORY)
    try:
        old = os.fstat(descriptor).st_ino
        install(folder)
        assert not (library / "gpuhook/stray.py").exists()
        assert library.stat().st_ino != old
    finally:
        os.close(descriptor)
    assert [path.name for path in library.parent.iterdir()] == [__version__]


def test_compiled_files_hold_after_a_copy_with_other_times(installed: Path, folder: Path) -> None:
    """No module is compiled at a start, which would cost more than all the rest of it."""
    shutil.copytree(installed, folder / "copy", copy_function=shutil.copyfile)
    library = folder / f"copy/usr/lib/gpuhook/{__version__}"
    for source in library.rglob("*.py"):
        os.utime(source, (1, 1))
    code = (
        f"import sys; sys.path.insert(0, {str(library)!r}); import importlib._bootstrap_external as loader\n"
        "def compiled(*a, **k): raise SystemExit(f'compiled {a[1:2]}')\n"
        "loader.SourceLoader.source_to_code = compiled\n"
        "import gpuhook.shim, gpuhook.hook"
    )
    done = subprocess.run(["/usr/bin/python3", "-ISB", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_compiled_files_name_their_place_and_not_where_they_were_made(installed: Path) -> None:
    library = f"usr/lib/gpuhook/{__version__}"
    data = next((installed / library / "gpuhook/__pycache__").glob("errors.*.pyc")).read_bytes()
    assert marshal.loads(data[16:]).co_filename == f"/{library}/gpuhook/errors.py"


def test_the_command_runs_alone(world: World, tmp_path: Path) -> None:
    """With its vendored packages only: by its path, by a link, from anywhere, with a hostile environment."""
    link = tmp_path / "anything"
    link.symlink_to(world.cli)
    (tmp_path / "click.py").write_text("raise SystemExit('an import from the working directory')\n")
    env = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nowhere", "PATH": "/nowhere"}
    for program in (world.cli, link):
        done = subprocess.run(
            [program, "--version"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert __version__ in done.stdout


def test_the_packages_of_the_tree_import(installed: Path) -> None:
    library = installed / f"usr/lib/gpuhook/{__version__}"
    code = (
        f"import sys; sys.path[:0] = ['{library}/vendor', '{library}']\n"
        "import click, yaml, packaging.version, pynvml, jsonschema; print(click.__file__)"
    )
    done = subprocess.run(["/usr/bin/python3", "-ISB", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(library))


def test_a_system_that_is_not_debian_is_told_what_is_missing(tmp_path: Path) -> None:
    """Without apt-get a script names the packages and stops before it changes anything."""
    (tmp_path / "bin").mkdir()
    for program in ("bash", "dirname", "sed", "id", "mkdir", "env"):
        (tmp_path / "bin" / program).symlink_to(shutil.which(program) or sys.exit(program))
    script = f'. "{CHECKOUT}/scripts/lib.sh"; need runc=no-such-program tar=/no/such/file bash=bash'
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", script],
        env={"PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.endswith("this system is not Debian; install what Debian calls: runc tar\n")
