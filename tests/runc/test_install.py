"""The installed tree: complete, compiled, the same wherever it is copied, kept by a second install."""

import marshal
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

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


NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


@pytest.mark.parametrize(
    ("before", "arguments", "said"),
    [
        (NOBODY, (), "install: only root can install into /; run it as root, or name a folder of yours: --destdir D"),
        (NOBODY, ("--destdir", "{}"), "install: can't lay out the tree below {}: Permission denied: {}/usr"),
        ((), ("--destdir", "/proc/nowhere"), "install: can't lay out the tree below /proc/nowhere: No such file or"),
        ((), ("--destdir={}/file",), "install: can't lay out the tree below {}/file: Not a directory: {}/file/usr"),
        ((), ("--destdir",), "install: --destdir needs a folder"),
        ((), ("--destdir", ""), "install: --destdir needs a folder"),
        ((), ("--destdir=",), "install: --destdir needs a folder"),
        ((), ("here",), "install: no option here (try --help)"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    place: Path, folder: Path, before: tuple[str, ...], arguments: tuple[str, ...], said: str
) -> None:
    """No traceback; an empty --destdir is never taken for the system's root."""
    checkout = place / "checkout"  # where everybody may read it
    if not checkout.exists():
        for name in ("scripts", "src", "config", "build/vendor"):
            shutil.copytree(CHECKOUT / name, checkout / name)
    (folder / "file").write_text("")
    words = [*before, str(checkout / "scripts/install"), *(word.format(folder) for word in arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(said.format(folder, folder))
    assert done.stderr.count("\n") == 1


def test_two_first_installs_at_once(folder: Path) -> None:
    """Packages are fetched once, by whichever comes first; neither fails."""
    checkout = folder / "checkout"
    for name in ("scripts", "src", "config"):
        shutil.copytree(CHECKOUT / name, checkout / name)
    kept = next((CHECKOUT / "build/vendor").iterdir())
    pip = checkout / "build/pip/bin"
    pip.mkdir(parents=True)
    (pip / "pip").symlink_to("/bin/true")
    # python3 -m pip install ... --target FOLDER -r FILE
    (pip / "python3").write_text(
        '#!/bin/bash\nwhile [ "$1" != --target ]; do shift; done\n'
        f'echo fetched >>"{folder}/fetched"; sleep 1; cp -a "{kept}" "$2"\n'
    )
    (pip / "python3").chmod(0o755)
    words = [str(checkout / "scripts/install"), "--destdir"]
    running = [subprocess.Popen([*words, folder / name], stderr=subprocess.PIPE, text=True) for name in ("a", "b")]
    assert [(process.communicate()[1], process.returncode) for process in running] == [("", 0), ("", 0)]
    assert (folder / "fetched").read_text() == "fetched\n"
    assert [path.is_dir() for path in (checkout / "build/vendor").iterdir()] == [True]


def test_the_test_command_names_what_failed_and_looks_at_the_sources_only(folder: Path) -> None:
    """Of all checks, in one line, before pytest; a tree that scripts/install laid out in the checkout is no source."""
    for name in ("scripts", "src/launchers", ".ci", "packaging"):
        shutil.copytree(CHECKOUT / name, folder / name)
    (folder / "tests/gpu").mkdir(parents=True)
    for name in ("tests/__init__.py", "tests/in-cgroup.sh", "tests/gpu/run", "tests/gpu/pack"):
        shutil.copy(CHECKOUT / name, folder / name)
    shutil.copy(CHECKOUT / "pyproject.toml", folder / "pyproject.toml")
    (folder / "laid/out").mkdir(parents=True)
    (folder / "laid/out/bad.py").write_text("import os\n")
    (folder / "src/good.py").write_text('"""Good."""\n')
    (folder / ".venv/bin").mkdir(parents=True)
    for tool in ("ruff", "mypy"):
        (folder / ".venv/bin" / tool).symlink_to(Path(sys.executable).with_name(tool))
    (folder / ".venv/bin/pytest").write_text("#!/bin/sh\necho pytest ran\n")
    (folder / ".venv/bin/pytest").chmod(0o755)
    # the environment that pip would make is there
    script = (folder / "scripts/test").read_text().replace("\nmake_venv ", "\n: ")
    (folder / "scripts/test").write_text(script)

    def run() -> tuple[int, str, list[str]]:
        done = subprocess.run([folder / "scripts/test"], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr.splitlines()

    assert run()[:2] == (0, "pytest ran\n")
    (folder / "src/good.py").write_text('"""Bad."""\nimport os\n\nnumber: int = "x"\n')
    (folder / ".ci/run").write_text("#!/bin/bash\necho $1\n")
    code, _, lines = run()
    assert (code, lines[-1]) == (1, "test: failed: shellcheck, ruff check, ruff format, mypy; pytest has not run")
