"""What the sh launcher decides by itself, in each shell that may be /bin/sh, and what the two programs see of it.

A fake runtime and a fake second half stand at the ends: each prints its name and what it was given.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuhook.config import Config
from gpuhook.errors import EXIT_CODES
from gpuhook.fastpath import render
from tests.images import CHECKOUT

SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
LAUNCHERS = CHECKOUT / "src/launchers"
FAKE = '#!/bin/sh\nprintf "runc\\n%s\\n" "$0"\nfor a do printf "<%s>\\n" "$a"; done\n'
SECOND_HALF = 'import sys\nprint("python", *sys.argv[1:], sep="\\n")\n'
ASKS = {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}
QUIET = {"env": ["A=<&>"], "args": ["$(touch /tmp/was-here)", "`id`", "';id;'", "\\", '"']}


class Tree:
    """An installation with fakes at its ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.launcher = path / "usr/bin/gpuhook-runtime"
        self.low = path / "low/runc"
        self.config = path / "etc/gpuhook/runtime.toml"
        self.compiled = path / "run/gpuhook/shim.sh"
        library = path / "usr/lib/gpuhook/1"
        for folder in (self.launcher.parent, self.low.parent, self.config.parent, self.compiled.parent, library):
            folder.mkdir(parents=True)
        self.launcher.write_text((LAUNCHERS / "gpuhook-runtime").read_text().replace("@VERSION@", "1"))
        self.launcher.chmod(0o755)
        self.low.write_text(FAKE)
        self.low.chmod(0o755)
        (library / "gpuhook-shim").write_text(SECOND_HALF)
        (library / "whole").write_text("")
        self.config.write_text("")
        self.compile(Config())
        self.bundle("bundle", ASKS)
        self.bundle("quiet", QUIET)

    def compile(self, config: Config) -> None:
        """Write what the compiler of runtime.toml writes."""
        self.compiled.write_bytes(render(config))
        shutil.copystat(self.config, self.compiled)

    def bundle(self, name: str, spec: object) -> None:
        """A folder with a config.json written as Go writes JSON."""
        (self.path / name).mkdir()
        text = json.dumps(spec).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        (self.path / name / "config.json").write_text(text)

    def call(self, shell: Sequence[str], *arguments: str, cwd: str = "", **env: str) -> list[str]:
        """Call the launcher in a shell; the lines that came out."""
        done = subprocess.run(
            [*shell, self.launcher, *arguments],
            cwd=self.path / cwd,
            env={"PATH": f"{self.low.parent}:/usr/bin:/bin", **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout.splitlines()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def command(name: str) -> list[str]:
    """The words that start a shell."""
    program = shutil.which(SHELLS[name][0])
    assert program, f"{name} is not there; scripts/test installs it"
    return [program, *SHELLS[name][1:]]


@pytest.fixture(params=list(SHELLS))
def shell(request: pytest.FixtureRequest) -> list[str]:
    return command(request.param)


# arguments (cwd is the bundle that asks), whether Python has to decide
COMMANDS = {
    "nothing": ([], False),
    "version": (["--version"], False),
    "state": (["--root", "/r", "--log=/l", "--log-format", "json", "state", "box"], False),
    "unknown global option": (["--rootless", "true", "kill", "box", "KILL"], False),
    "odd arguments": (["exec", "", "a b", "*", "$HOME", "-- ", "\n"], False),
    "container called create": (["--root", "/r", "state", "create"], False),
    "container called run": (["delete", "--force", "run"], False),
    "root called create": (["--root", "create", "state", "x"], False),
    "create": (["create", "box"], True),
    "create, quiet": (["create", "--bundle", "../quiet", "box"], False),
    "create, quiet, short": (["create", "-b", "../quiet", "--pid-file", "p", "box"], False),
    "create, quiet, equals": (["--debug", "create", "--no-pivot", "--bundle=../quiet", "--pid-file=p", "box"], False),
    "create, quiet, containerd": (["--log", "l", "--root=r", "create", "--bundle", "../quiet", "box"], False),
    "run, quiet": (["run", "-d", "-b", "../quiet", "box"], False),
    "run": (["run", "--detach", "--bundle", ".", "box"], True),
    "checkpoint": (["--root", "/r", "checkpoint", "--image-path", "/i", "box"], True),
    "restore": (["--log=/l", "restore", "--bundle", "../quiet", "box"], True),
    "container called restore": (["kill", "restore"], False),
    "update by runc": (["--root", "/r", "update", "--resources", "-", "box"], False),
    "value that is the verb": (["--root", "create", "create", "--bundle", "../quiet", "box"], False),
    "log called create, asks": (["--log", "create", "create", "box"], True),
    "two bundles": (["create", "--bundle", "../quiet", "--bundle", "../quiet", "box"], True),
    "empty bundle": (["create", "--bundle", "", "box"], True),
    "empty bundle, equals": (["create", "--bundle=", "box"], True),
    "no such bundle": (["create", "--bundle", "../nowhere", "box"], True),
    "option after the id": (["create", "box", "--bundle", "../quiet"], True),
    "no id": (["create", "--bundle", "../quiet"], True),
    "two ids": (["create", "--bundle", "../quiet", "box", "box"], True),
    "one dash": (["create", "-bundle", "../quiet", "box"], True),
    "crun's config": (["create", "-f", "/c", "--bundle", "../quiet", "box"], True),
    "crun's joined form": (["create", "-b../quiet", "box"], True),
    "unknown option": (["create", "--bundle", "../quiet", "--pidfd-socket", "s", "box"], True),
    "unknown global option before create": (["--rootless", "x", "create", "--bundle", "../quiet", "box"], True),
    "end of options": (["--", "create", "box"], True),
    "end of options after": (["create", "--bundle", "../quiet", "--", "box"], True),
    "value missing": (["create", "--bundle"], True),
    "empty word": (["", "create", "box"], True),
}


@pytest.mark.parametrize(("arguments", "doubt"), COMMANDS.values(), ids=COMMANDS)
def test_only_a_doubt_goes_to_python(tree: Tree, shell: list[str], arguments: list[str], doubt: bool) -> None:
    out = tree.call(shell, *arguments, cwd="bundle")
    given = "".join(f"<{argument}>\n" for argument in arguments).splitlines()
    assert out == (
        ["python", str(tree.path), *"\n".join(arguments).splitlines()] if doubt else ["runc", str(tree.low), *given]
    )


def test_an_update_by_crun_goes_to_python_for_a_container_with_gpus(tree: Tree, shell: list[str]) -> None:
    """crun would take the devices from it; gpuhook keeps a file of each such container."""
    tree.low.rename(tree.low.with_name("crun"))
    tree.compile(Config(low_level=("crun",)))
    (tree.path / "run/gpuhook/containers").mkdir()
    (tree.path / "run/gpuhook/containers/box.json").touch()
    for words, first in (("-- box", "python"), ("box", "python"), ("other", "runc"), ("../box", "runc")):
        assert tree.call(shell, "--root", "/r", "update", "--resources", "-", *words.split())[0] == first, words


SPECS = {
    "the variable": '{"env": ["NVIDIA_VISIBLE_DEVICES=none"]}',
    "a legacy image": '{"env": ["CUDA_VERSION=11"]}',
    "a letter written as an escape": '{"env": ["\\u004eVIDIA_VISIBLE_DEVICES=all"]}',
    "bytes that are no UTF-8": '{"env": ["\udcff", "NVIDIA_VISIBLE_DEVICES=all"]}',
    "after a NUL": '{"\0": ["NVIDIA_VISIBLE_DEVICES=all"]}',
}


@pytest.mark.parametrize("text", SPECS.values(), ids=SPECS)
def test_a_spec_that_may_ask_goes_to_python(tree: Tree, shell: list[str], text: str) -> None:
    (tree.path / "quiet/config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert tree.call(shell, "create", "box", cwd="quiet")[0] == "python"


def test_a_bundle_named_like_an_option_is_read(tree: Tree, shell: list[str]) -> None:
    tree.bundle("-e x", QUIET)
    tree.bundle("-v", ASKS)
    assert tree.call(shell, "create", "-b", "-e x", "box")[0] == "runc"
    assert tree.call(shell, "create", "-b", "-v", "box")[0] == "python"


def test_a_config_that_is_no_file_goes_to_python(tree: Tree, shell: list[str]) -> None:
    (tree.path / "quiet/config.json").unlink()
    os.mkfifo(tree.path / "quiet/config.json")
    assert tree.call(shell, "create", "-b", "quiet", "box")[0] == "python"


def test_no_text_of_the_spec_is_run(tree: Tree, shell: list[str]) -> None:
    assert tree.call(shell, "create", "-b", "quiet", "box")[0] == "runc"
    assert not Path("/tmp/was-here").exists()


# what was done to the compiled configuration: each makes it one that sh must not take
def _remove(tree: Tree) -> None:
    tree.compiled.unlink()


def _newer_config(tree: Tree) -> None:
    os.utime(tree.config, (2e9, 2e9))


def _older_config(tree: Tree) -> None:
    os.utime(tree.config, (1e9, 1e9))


def _no_config(tree: Tree) -> None:
    tree.config.unlink()


def _link(tree: Tree) -> None:
    tree.compiled.rename(tree.path / "shim.sh")
    tree.compiled.symlink_to(tree.path / "shim.sh")


def _linked_state(tree: Tree) -> None:
    tree.compiled.parent.rename(tree.path / "elsewhere")
    tree.compiled.parent.symlink_to(tree.path / "elsewhere")


def _foreign(tree: Tree) -> None:
    os.chown(tree.compiled, 65534, 65534)


def _foreign_state(tree: Tree) -> None:
    os.chown(tree.compiled.parent, 65534, 65534)


def _other_format(tree: Tree) -> None:
    tree.compiled.write_text(tree.compiled.read_text().replace("gpuhook_format=1", "gpuhook_format=2"))
    shutil.copystat(tree.config, tree.compiled)


def _empty(tree: Tree) -> None:
    tree.compiled.write_text("gpuhook_format=1\n")
    shutil.copystat(tree.config, tree.compiled)


def _no_runtime(tree: Tree) -> None:
    tree.compile(Config(low_level=("nowhere", "/nowhere/runc")))


DISTRUST = [_remove, _newer_config, _older_config, _no_config, _link, _linked_state, _other_format, _empty, _no_runtime]
DISTRUST += [_foreign, _foreign_state] if os.geteuid() == 0 else []


@pytest.mark.parametrize("change", DISTRUST, ids=lambda change: change.__name__[1:])
def test_a_compiled_configuration_in_doubt_is_not_taken(tree: Tree, shell: list[str], change: object) -> None:
    assert callable(change)
    change(tree)
    assert tree.call(shell, "state", "box")[:2] == ["python", str(tree.path)]


def test_the_environment_decides_nothing(tree: Tree, shell: list[str]) -> None:
    """Variables named as ours are not believed, even where nothing was compiled."""
    tree.compiled.unlink()
    env = {"gpuhook_low_level": str(tree.low), "gpuhook_patterns": "x", "gpuhook_format": "1", "IFS": "/"}
    assert tree.call(shell, "state", "box", **env)[0] == "python"


def test_candidates_are_tried_in_order(tree: Tree, shell: list[str]) -> None:
    tree.compile(Config(low_level=("/nowhere/crun", "nowhere", "runc")))
    assert tree.call(shell, "state", "box")[1] == str(tree.low)


def test_it_never_calls_itself(tree: Tree, shell: list[str]) -> None:
    """A link called runc that leads back to the launcher comes first in PATH."""
    (tree.path / "first").mkdir()
    (tree.path / "first/runc").symlink_to(tree.launcher)
    out = tree.call(shell, "state", "box", PATH=f"{tree.path}/first:{tree.low.parent}:/usr/bin:/bin")
    assert out[:2] == ["runc", str(tree.low)]


def test_the_current_folder_is_no_part_of_path(tree: Tree, shell: list[str]) -> None:
    shutil.copy(tree.low, tree.path / "runc")
    out = tree.call(shell, "state", "box", PATH=f":.::low:{tree.low.parent}:/usr/bin:/bin")
    assert out[:2] == ["runc", str(tree.low)]


@pytest.mark.parametrize("way", ["link", "chain", "relative"])
def test_the_installation_is_found_by_links_and_relative_calls(tree: Tree, shell: list[str], way: str) -> None:
    link = tree.path / "runtime"
    link.symlink_to(tree.launcher)
    if way == "chain":
        (tree.path / "usr/bin/other").symlink_to("../../runtime")
        link = tree.path / "usr/bin/other"
    name = "usr/bin/gpuhook-runtime" if way == "relative" else str(link)
    env = {"PATH": f"{tree.low.parent}:/usr/bin:/bin"}
    done = subprocess.run([*shell, name, "state", "box"], cwd=tree.path, env=env, capture_output=True, check=True)
    assert done.stdout.decode().splitlines()[:2] == ["runc", str(tree.low)]
    done = subprocess.run([*shell, name, "create", "box"], cwd=tree.path, env=env, capture_output=True, check=True)
    assert done.stdout.decode().splitlines()[:2] == ["python", str(tree.path)]


# what each shell does to an exported environment by itself; docs/hacking.md has the same table
CHANGED: dict[str, dict[str, str | None]] = {
    "dash": {"PWD": "{cwd}", "IFS": " \t\n", "FO.O": None},
    "bash": {"PWD": "{cwd}", "IFS": " \t\n", "_": None},
    "busybox": {"PWD": "{cwd}", "IFS": " \t\n", "SHLVL": "8", "FO.O": None},
}


@pytest.mark.parametrize("name", SHELLS)
def test_the_environment_is_passed_on(tree: Tree, name: str) -> None:
    """Nothing is added or lost but what the shell changes by itself."""
    tree.low.write_text("#!/usr/bin/python3 -ISB\nimport os\nprint(dict(os.environb))\n")
    given = {"PATH": f"{tree.low.parent}:/usr/bin", "A": "1", "FO.O": "2", "IFS": "x", "_": "zz", "SHLVL": "7"}
    given |= {"LD_LIBRARY_PATH": "/opt/lib:", "ODD": "a\nb $(id) \udcff", "LC_ALL": "de", "gpuhook_path": "mine"}
    done = subprocess.run(
        [*command(name), tree.launcher, "state", "box"], cwd=tree.path, env=given, capture_output=True, check=True
    )
    expected: dict[str, str | None] = {**given, **CHANGED[name], "gpuhook_path": None}
    seen = eval(done.stdout, {"__builtins__": {}})  # the repr of a dict of bytes
    seen.pop(b"LC_CTYPE", None)  # Python's own, in the C locale
    assert seen == {
        os.fsencode(key): os.fsencode(text.format(cwd=tree.path) if key == "PWD" else text)
        for key, text in expected.items()
        if text is not None
    }


def test_it_waits_for_a_library_that_is_being_unpacked(tree: Tree, shell: list[str]) -> None:
    """dpkg puts this program in its place before the library; the library's last file says that it is there."""
    whole = tree.path / "usr/lib/gpuhook/1/whole"
    whole.unlink()
    words = [*shell, str(tree.launcher), "create", "--bundle", "bundle", "box"]
    env = {"PATH": f"{tree.low.parent}:/usr/bin:/bin"}
    with subprocess.Popen(words, cwd=tree.path, env=env, stdout=subprocess.PIPE, text=True) as start:
        time.sleep(0.3)
        assert start.poll() is None
        whole.touch()
        assert "python" in start.communicate(timeout=10)[0]
    assert start.returncode == 0


def test_it_waits_longer_while_dpkg_has_the_library_beside_its_place(tree: Tree) -> None:
    """A disk may need long for what dpkg does between this program and the library's last file."""
    whole = tree.path / "usr/lib/gpuhook/1/whole"
    whole.rename(f"{whole}.dpkg-new")
    words = [*command("dash"), str(tree.launcher), "create", "--bundle", "bundle", "box"]
    env = {"PATH": f"{tree.low.parent}:/usr/bin:/bin"}
    with subprocess.Popen(words, cwd=tree.path, env=env, stdout=subprocess.PIPE, text=True) as start:
        time.sleep(4)
        assert start.poll() is None
        Path(f"{whole}.dpkg-new").rename(whole)
        assert "python" in start.communicate(timeout=10)[0]
    assert start.returncode == 0


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "not compiled"])
def test_a_damaged_library_is_named_soon(tree: Tree, shell: list[str], compiled: bool) -> None:
    """A container that may ask for a GPU is refused within seconds, in the engine's log too; any other starts."""
    whole = tree.path / "usr/lib/gpuhook/1/whole"
    whole.unlink()
    if not compiled:
        tree.compiled.unlink()
    began = time.monotonic()
    done = subprocess.run(
        [*shell, tree.launcher, "--log", "log", "--log-format", "json", "create", "--bundle", "bundle", "box"],
        cwd=tree.path,
        env={"PATH": f"{tree.low.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert time.monotonic() - began < 8
    assert (done.returncode, done.stdout) == (EXIT_CODES["installation-damaged"], "")
    assert done.stderr.startswith(f"gpuhook: {whole} is not there")
    assert "apt reinstall gpuhook" in done.stderr
    assert done.stderr.endswith(" [installation-damaged]\n")
    assert json.loads((tree.path / "log").read_text())["msg"] + "\n" == done.stderr
    assert tree.call(shell, "create", "--bundle", "quiet", "box")[0] == "runc"


@pytest.mark.parametrize("name", ["gpuhook-hook", "gpuhook"])
def test_a_damaged_library_is_named_by_the_programs_in_python(installed: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(installed, tmp_path, dirs_exist_ok=True)
    whole = next((tmp_path / "usr/lib/gpuhook").glob("*/whole"))
    whole.unlink()
    done = subprocess.run([tmp_path / "usr/bin" / name], capture_output=True, text=True, timeout=10, check=False)
    assert (done.returncode, done.stdout) == (EXIT_CODES["installation-damaged"], "")
    assert done.stderr.startswith(f"gpuhook: {whole} is not there")
    assert "[installation-damaged]" in done.stderr


def test_the_hook_waits_too_and_works_uncompiled(installed: Path, tmp_path: Path) -> None:
    """From the sources where there is no bundle."""
    shutil.copytree(installed, tmp_path, dirs_exist_ok=True)
    library = next((tmp_path / "usr/lib/gpuhook").iterdir())
    for bundle in library.glob("*.bundle"):
        bundle.unlink()
    (library / "whole").unlink()
    with subprocess.Popen([tmp_path / "usr/bin/gpuhook-hook", "poststop"], stdin=subprocess.PIPE) as hook:
        time.sleep(0.3)
        assert hook.poll() is None
        (library / "whole").touch()
        hook.communicate(b"{}", timeout=10)
    assert hook.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="hiding python3 needs root")
class TestWithoutPython:
    """/usr/bin/python3 is hidden in a mount namespace of the call's own."""

    HIDDEN = (
        "/usr/bin/unshare",
        "-m",
        "/bin/sh",
        "-c",
        '/bin/mount --bind /dev/null /usr/bin/python3 && exec "$@"',
        "sh",
    )

    @pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "not compiled"])
    @pytest.mark.parametrize(
        ("arguments", "starts"),
        {
            "state": (["--rootless", "x", "state", "box"], True),
            "quiet": (["create", "-b", "quiet", "box"], True),
            "asks": (["--log", "log", "--log-format", "json", "create", "-b", "bundle", "box"], False),
            "escape": (["--log=log", "--log-format=json", "create", "-b", "escape", "box"], False),
        }.values(),
        ids=["state", "quiet", "asks", "escape"],
    )
    def test_what_asks_for_nothing_starts(
        self, tree: Tree, shell: list[str], arguments: list[str], starts: bool, compiled: bool
    ) -> None:
        if not compiled:
            tree.compiled.unlink()
        (tree.path / "escape").mkdir()
        (tree.path / "escape/config.json").write_text('{"env": ["N\\u0056IDIA_VISIBLE_DEVICES=all"]}')
        env = {"PATH": f"{tree.low.parent}:/usr/bin:/bin"}
        words = [*self.HIDDEN, *shell, str(tree.launcher), *arguments]
        done = subprocess.run(words, cwd=tree.path, env=env, capture_output=True, text=True, check=False)
        if starts:
            assert (done.returncode, done.stdout.splitlines()[0], done.stderr) == (0, "runc", "")
        else:
            assert (done.returncode, done.stdout) == (14, "")
            assert done.stderr.endswith("[python-missing]\n")
            line = json.loads((tree.path / "log").read_text())
            assert (line["level"], line["msg"] + "\n") == ("error", done.stderr)

    def test_without_a_runtime_it_says_so(self, tree: Tree, shell: list[str]) -> None:
        tree.low.unlink()
        tree.compiled.unlink()
        words = [*self.HIDDEN, *shell, str(tree.launcher), "state", "box"]
        done = subprocess.run(
            words, cwd=tree.path, env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (13, "")
        assert done.stderr.endswith("[runtime-not-found]\n")
