"""`gpuhook configure` and `unconfigure` as they are installed: what they write, say and refuse, and the way back."""

import json
import os
import pty
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuhook.cli import configure_text, main, restarting
from gpuhook.config import load
from gpuhook.engines.commit import Change
from gpuhook.engines.host import Host, Process
from gpuhook.engines.model import Restart
from gpuhook.errors import EXIT_CODES, GpuhookError
from tests.conftest import World

DAEMON = '{\n    "log-driver": "journald",\n    "max-concurrent-downloads": 3\n}'
# what each engine's file has before; the comment, the order and the odd blanks must survive
FILES = {
    "docker": ("daemon.json", DAEMON),
    "containerd": (
        "config.toml",
        'version = 2\n# mine\n[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image =  "pause" # keep\n',
    ),
    "crio": ("crio.conf", '# mine\n[crio.runtime]\nlog_level =   "info"\n'),
    "podman": ("containers.conf", '# mine\n[engine]\nevents_logger =   "file"\n'),
}


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass
class Cli:
    """The installed program in a world of its own, and the folder of an engine's files."""

    world: World
    etc: Path

    def __call__(self, *words: str | Path, **env: str) -> Done:
        done = subprocess.run(
            [self.world.cli, *words],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.etc), "LC_ALL": "C.UTF-8", **env},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def file(self, engine: str) -> Path:
        """The engine's configuration file, as somebody wrote it."""
        path = self.etc / FILES[engine][0]
        path.write_text(FILES[engine][1])
        return path

    def document(self, *words: str | Path) -> dict[str, Any]:
        """What a command says to programs; it must succeed."""
        done = self(*words, "--json")
        assert (done.code, done.err) == (0, "")
        found: dict[str, Any] = json.loads(done.out)
        return found


@pytest.fixture
def cli(world: World, folder: Path) -> Cli:
    etc = folder / "etc"
    etc.mkdir()
    return Cli(world, etc)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("engine", FILES)
def test_each_engine_there_and_back(cli: Cli, engine: str) -> None:
    """Configured, again without a change (R139), and undone to the byte."""
    path = cli.file(engine)
    before = snapshot(cli.etc)
    done = cli("configure", engine, "--config", path)
    assert (done.code, done.err) == (0, "")
    after = snapshot(cli.etc)
    assert any(str(cli.world.runtime).encode() in data for data in after.values())
    for name, data in after.items():
        assert data == before.get(name) or f"+++ {name}\n" in done.out
    times = {name: os.stat(name).st_mtime_ns for name in after}
    done = cli("configure", engine, "--config", path)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{engine} is configured already: ")
    assert "nothing to change" in done.out
    assert "next:" not in done.out
    assert {name: os.stat(name).st_mtime_ns for name in after} == times
    done = cli("unconfigure", engine)
    assert (done.code, done.err) == (0, "")
    assert snapshot(cli.etc) == before
    done = cli("unconfigure", engine)
    assert (done.code, done.out) == (0, f"{engine}: gpuhook has configured nothing\n")


def test_what_a_person_reads(cli: Cli) -> None:
    path = cli.file("docker")
    program = cli.world.runtime
    diff = (
        f"--- {path}\n+++ {path}\n@@ -1,4 +1,9 @@\n {{\n"
        '     "log-driver": "journald",\n'
        '-    "max-concurrent-downloads": 3\n'
        '+    "max-concurrent-downloads": 3,\n'
        '+    "runtimes": {\n'
        '+        "gpuhook": {\n'
        f'+            "path": "{program}"\n'
        "+        }\n"
        "+    }\n"
        " }\n\\ No newline at end of file\n"
    )
    done = cli("configure", "docker", "--config", path, "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(diff + f"{path} would be changed\nnote: ")
    assert "\nnote: a container gets its GPUs with `docker run --runtime gpuhook`" in done.out
    assert path.read_text() == DAEMON
    assert not (cli.world.path / "var/lib").exists()
    done = cli("configure", "docker", "--config", path)
    assert done.out.startswith(diff + f"{path} is changed\n")
    done = cli("unconfigure", "docker", "--dry-run")
    assert f"\n{path} would be as it was before gpuhook\n" in done.out
    assert path.read_text() != DAEMON
    done = cli("unconfigure", "docker")
    assert f"\n{path} is as it was before gpuhook\n" in done.out
    assert "note: containers that name a runtime which is gone" in done.out
    assert "RuntimeClass" not in done.out


@pytest.fixture
def called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], world: World
) -> Callable[..., tuple[int, str]]:
    """Calls a command on a host where every daemon runs, or none: the exit status, and what it printed."""

    def call(*words: str | Path, runs: bool) -> tuple[int, str]:
        process = Process(1, os.geteuid(), ())
        monkeypatch.setattr(Host, "processes", lambda _self, _program: iter([process] * runs))
        code = main(["gpuhook", *map(str, words)], str(world.path))
        return code, capsys.readouterr().out

    return call


@pytest.mark.parametrize(
    ("engine", "runs", "dry", "wet"),
    [
        ("containerd", True, "after that: restart ", "next: restart "),
        ("crio", True, "after that: systemctl restart crio", "next: systemctl restart crio"),
        ("docker", False, "dockerd does not run", "dockerd does not run"),
        ("containerd", False, "containerd does not run: it reads", "containerd does not run: it reads"),
        ("crio", False, "crio does not run: it reads", "crio does not run: it reads"),
        ("podman", False, "podman reads its files at each command", "podman reads its files at each command"),
    ],
)
def test_what_is_to_be_restarted(
    cli: Cli, called: Callable[..., tuple[int, str]], engine: str, runs: bool, dry: str, wet: str
) -> None:
    """A dry run says it too. A program is told that podman has nothing to restart, and a daemon that does not run."""
    words = (engine, "--config", cli.file(engine))
    assert called("configure", *words, "--dry-run", runs=runs)[1].splitlines()[-1].startswith(dry)
    found = json.loads(called("configure", *words, "--json", runs=runs)[1])
    assert (found["changed"], found["restart"]["needed"]) == (True, runs)
    assert found["restart"]["sentence"].startswith(wet.removeprefix("next: "))
    assert called("unconfigure", engine, "--dry-run", runs=runs)[1].splitlines()[-1].startswith(dry)
    assert called("unconfigure", engine, runs=runs)[1].splitlines()[-1].startswith(wet)


def test_what_was_not_to_be_restarted_when_it_was_configured_may_be_when_it_is_taken_back(
    cli: Cli, called: Callable[..., tuple[int, str]]
) -> None:
    called("configure", "crio", "--config", cli.file("crio"), runs=False)
    found = json.loads(called("unconfigure", "crio", "--json", runs=True)[1])["restart"]
    assert (found["needed"], found["command"]) == (True, ["systemctl", "restart", "crio"])


@pytest.mark.parametrize(
    ("engine", "told"), [("docker", False), ("containerd", True), ("crio", True), ("podman", False)]
)
def test_of_runtimeclasses_hear_those_whom_kubernetes_uses(cli: Cli, engine: str, told: bool) -> None:
    cli("configure", engine, "--config", cli.file(engine))
    assert ("RuntimeClasses" in cli("unconfigure", engine, "--dry-run").out) is told


@pytest.mark.parametrize(
    ("engine", "name", "noted"),
    [("crio", "A", True), ("containerd", "a.b", True), ("containerd", "a-1", False), ("docker", "A", False)],
)
def test_a_name_that_no_runtimeclass_can_have_is_noted(cli: Cli, engine: str, name: str, noted: bool) -> None:
    done = cli("configure", engine, "--config", cli.file(engine), "--runtime-name", name, "--dry-run")
    assert (done.code, f"note: no RuntimeClass can name {name} " in done.out) == (0, noted)


def test_a_name_with_a_line_end_makes_no_line_of_the_diff(cli: Cli) -> None:
    path = cli.etc / "a\n+b.json"
    path.write_text("{}")
    rows = cli("configure", "docker", "--config", path, "--dry-run").out.splitlines()
    assert [row for row in rows if "b.json" in row] == [
        *(f"{mark} {cli.etc}/a\\n+b.json" for mark in ("---", "+++")),
        f"{cli.etc}/a\\n+b.json would be changed",
    ]


def test_the_diff_is_one_that_patch_takes(cli: Cli) -> None:
    path = cli.file("containerd")
    diff = cli("configure", "containerd", "--config", path, "--dry-run").out
    subprocess.run(["git", "apply", "-p0", "--unsafe-paths", "-"], input=diff, text=True, check=True, cwd="/")
    assert cli.document("configure", "containerd", "--config", path)["changed"] is False


def test_r139_json_tells_what_changed(cli: Cli) -> None:
    path = cli.file("containerd")
    words = ("containerd", "--config", path)
    first, again = cli.document("configure", *words), cli.document("configure", *words)
    assert (first["changed"], again["changed"]) == (True, False)
    assert [item["outcome"] for item in first["files"] + again["files"]] == ["changed", "same"]
    assert first["files"][0]["diff"].startswith(f"--- {path}\n")
    assert cli.document("unconfigure", "containerd", "--dry-run")["changed"] is True
    assert cli.document("unconfigure", "containerd")["files"][0]["outcome"] == "restored"
    assert cli.document("unconfigure", "containerd")["changed"] is False


def test_options_add_up(cli: Cli) -> None:
    path = cli.file("docker")
    for more in ((), ("--default-runtime",), ("--runtime-name", "nvidia")):
        assert cli("configure", "docker", "--config", path, *more).code == 0
    document = json.loads(path.read_text())
    assert sorted(document["runtimes"]) == ["gpuhook", "nvidia"]
    assert document["default-runtime"] == "gpuhook"
    assert cli("unconfigure", "docker").code == 0
    assert path.read_text() == DAEMON


def test_r111_others_edits_survive(cli: Cli) -> None:
    path = cli.file("docker")
    cli("configure", "docker", "--config", path)
    path.write_text(path.read_text().replace("journald", "local"))
    done = cli("unconfigure", "docker")
    assert "taken out; what else changed since is kept" in done.out
    assert path.read_text() == DAEMON.replace("journald", "local")


def test_r118_a_relative_name_and_a_link(cli: Cli, folder: Path) -> None:
    path = cli.file("docker")
    (folder / "link.json").symlink_to("etc/daemon.json")
    done = subprocess.run([cli.world.cli, "configure", "docker", "--config", "link.json"], cwd=folder, text=True)
    assert done.returncode == 0
    assert (folder / "link.json").is_symlink()
    assert "runtimes" in json.loads(path.read_text())
    assert cli("unconfigure", "docker", "--config", path).code == 0
    assert path.read_text() == DAEMON


def test_unconfigure_of_one_file_leaves_the_other(cli: Cli, folder: Path) -> None:
    other = folder / "other.json"
    path = cli.file("docker")
    for name in (path, other):
        cli("configure", "docker", "--config", name)
    assert cli("unconfigure", "docker", "--config", folder / "third.json").out.startswith("docker: gpuhook has conf")
    cli("unconfigure", "docker", "--config", other)
    assert not other.exists()
    assert "runtimes" in json.loads(path.read_text())
    assert cli("unconfigure", "podman").code == 0
    assert "runtimes" in json.loads(path.read_text())


def test_only_where_a_runtime_went_unconfigure_speaks_of_what_was_made_for_it(cli: Cli, folder: Path) -> None:
    path = cli.etc / "containers.conf"
    path.write_text(f'[engine]\nhooks_dir = ["{folder}/hooks.d"]\n')
    for words, spoken in (((), True), (("--hook",), False)):
        assert cli("configure", "podman", "--config", path, *words).code == 0
        assert ("name a runtime which is gone now" in cli("unconfigure", "podman", "--config", path).out) is spoken


def still_named(done: Done) -> list[str]:
    """The warnings of entries that gpuhook has no record of."""
    return [row for row in done.out.splitlines() if row.startswith("warning: ") and "still stands here" in row]


@pytest.mark.parametrize("engine", FILES)
def test_unconfigure_without_its_store_warns_of_what_it_leaves(engine: str, cli: Cli) -> None:
    """Who removes gpuhook now has an engine that starts no container of that runtime."""
    path = cli.file(engine)
    made = cli.document("configure", engine, "--config", path)["files"]
    file = next(Path(item["path"]) for item in made if "gpuhook-runtime" in item["diff"])
    shutil.rmtree(cli.world.path / "var/lib/gpuhook")
    done = cli("unconfigure", engine, "--config", path)
    line = file.read_text()[: file.read_text().index("gpuhook-runtime")].count("\n") + 1
    assert done.code == 0
    assert [row.startswith(f"warning: {file}:{line}: ") for row in still_named(done)] == [True]


def test_unconfigure_warns_of_an_entry_that_somebody_changed(cli: Cli) -> None:
    path = cli.file("docker")
    cli("configure", "docker", "--config", path)
    document = json.loads(path.read_text())
    document["runtimes"]["gpuhook"]["runtimeArgs"] = ["--debug"]
    path.write_text(json.dumps(document))
    assert len(still_named(cli("unconfigure", "docker", "--config", path))) == 1
    assert len(still_named(cli("unconfigure", "docker", "--config", path))) == 1
    path.write_text("{}")
    assert still_named(cli("unconfigure", "docker", "--config", path)) == []


@pytest.mark.parametrize("command", ["configure", "unconfigure"])
def test_an_empty_name_of_a_file_is_not_the_engines_own_file(command: str, cli: Cli) -> None:
    """A script whose variable is empty changed /etc/docker/daemon.json."""
    done = cli(command, "docker", "--config", "", "--dry-run")
    assert (done.code, done.out) == (EXIT_CODES["usage"], "")
    assert "'--config': no file is named" in done.err


def test_without_rights_a_dry_run_shows_all_and_the_other_says_why_not(cli: Cli) -> None:
    path = cli.file("docker")

    def as_nobody(*words: str) -> Done:
        line: list[str | Path] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", cli.world.cli, *words]
        home = cli.etc.parent / "home"
        home.mkdir(exist_ok=True)
        os.chown(home, 65534, 65534)
        env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "LC_ALL": "C.UTF-8"}
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60)
        return Done(done.returncode, done.stdout, done.stderr)

    done = as_nobody("configure", "docker", "--config", str(path), "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert f"+++ {path}" in done.out
    done = as_nobody("configure", "docker", "--config", str(path))
    assert done.code == EXIT_CODES["engine-config-not-written"]
    assert "Permission denied" in done.err
    assert path.read_text() == DAEMON
    path.chmod(0o600)
    assert as_nobody("configure", "docker", "--config", str(path)).code == EXIT_CODES["engine-config-unreadable"]
    own = cli.etc.parent / "home/own.json"
    assert as_nobody("configure", "docker", "--config", str(own)).code == 0
    assert (cli.etc.parent / "home/.local/state/gpuhook/engines/lock").exists()
    assert not (cli.world.path / "var/lib").exists()
    assert as_nobody("unconfigure", "docker").code == 0
    assert not own.exists()
    assert "as this user" in as_nobody("unconfigure", "docker").out


# --- runtime.toml ---------------------------------------------------------------------------------------------------


def test_privileged_only_is_set_in_runtime_toml_and_taken_back(cli: Cli) -> None:
    path, own = cli.file("docker"), cli.world.config
    before = own.read_text()
    done = cli("configure", "docker", "--config", path, "--privileged-only")
    assert done.code == 0
    assert f"note: {own} holds for all engines of this host" in done.out
    settings = load(str(cli.world.path))
    assert (settings.accept_env_when_unprivileged, settings.accept_devices_as_volume_mounts) == (False, True)
    assert cli("config", "validate").code == 0
    comments = [line for line in before.splitlines() if line.startswith("#")]
    assert [line for line in own.read_text().splitlines() if line.startswith("#")] == comments
    cli("configure", "podman", "--config", cli.file("podman"), "--privileged-only")
    done = cli("unconfigure", "docker")
    assert f"{own} stays as it is: podman is configured with it, too" in done.out
    assert load(str(cli.world.path)).accept_env_when_unprivileged is False
    assert cli("unconfigure", "podman").code == 0
    assert own.read_text() == before
    assert load(str(cli.world.path)).accept_env_when_unprivileged is True


def test_privileged_only_alone_restarts_nothing(cli: Cli) -> None:
    path = cli.file("docker")
    cli("configure", "docker", "--config", path)
    found = cli.document("configure", "docker", "--config", path, "--privileged-only")
    assert found["changed"] is True
    assert found["restart"]["needed"] is False


def test_privileged_only_makes_a_runtime_toml_where_none_is(cli: Cli) -> None:
    cli.world.config.unlink()
    cli.world.config.parent.rmdir()
    assert cli("configure", "docker", "--config", cli.file("docker"), "--privileged-only").code == 0
    assert load(str(cli.world.path)).accept_env_when_unprivileged is False
    cli("unconfigure", "docker")
    assert not cli.world.config.parent.exists()


@pytest.mark.parametrize(
    ("text", "mode", "reference"),
    [
        ("[request\n", 0o644, "config-invalid"),
        ("[request]\nfrob = 1\n", 0o644, "config-invalid"),
        ("[request]\n", 0o666, "config-untrusted"),
    ],
    ids=["no TOML", "no such key", "others may write it"],
)
def test_a_runtime_toml_that_is_wrong_is_refused_and_nothing_changes(
    cli: Cli, text: str, mode: int, reference: str
) -> None:
    path = cli.file("docker")
    cli.world.config.write_text(text)
    cli.world.config.chmod(mode)
    done = cli("configure", "docker", "--config", path, "--privileged-only")
    assert done.code == EXIT_CODES[reference], done.err
    assert (path.read_text(), cli.world.config.read_text()) == (DAEMON, text)
    assert cli("configure", "docker", "--config", path).code == 0, "without the option it is of no concern"


# --- what is refused ------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[list[str], str, str]] = {
    "no engine": (["frob"], "usage", "frob"),
    "runc": (["docker", "--runtime-name", "runc"], "usage", "runc"),
    "crun": (["docker", "--runtime-name", "crun"], "usage", "crun"),
    "a path as a name": (["docker", "--runtime-name", "a/b"], "usage", "letters, digits"),
    "an option as a name": (["docker", "--runtime-name", "-x"], "usage", "letters, digits"),
    "no name": (["docker", "--runtime-name", ""], "usage", "letters, digits"),
    "a line in a name": (["docker", "--runtime-name", "a\n"], "usage", "letters, digits"),
    "a letter of elsewhere": (["docker", "--runtime-name", "gpü"], "usage", "letters, digits"),
    "a folder": (["docker", "--config", "{etc}"], "engine-config-unreadable", "{etc}"),
    "no JSON": (["docker", "--config", "{etc}/broken"], "engine-config-invalid", "{etc}/broken:3:3"),
    "what docker has not": (["docker", "--hook"], "engine-option-unsupported", "--hook"),
}


@pytest.mark.parametrize(("words", "reference", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_leaves_all_as_it_was(
    cli: Cli, words: list[str], reference: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (cli.etc / "broken").write_text('{\n  "a": "b"\n  "c"')
    before = snapshot(cli.etc)
    line = ["gpuhook", "configure", *[word.format(etc=cli.etc) for word in words]]
    assert main(line, str(cli.world.path)) == EXIT_CODES[reference]
    shown = capsys.readouterr()
    assert text.format(etc=cli.etc) in shown.err
    assert shown.out == ""
    assert snapshot(cli.etc) == before
    assert not (cli.world.path / "var/lib").exists()


def test_an_engine_is_told_of_no_program_that_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["gpuhook", "configure", "docker", "--config", str(folder / "daemon.json")], str(folder / "nowhere"))
    assert status == EXIT_CODES["runtime-not-found"]
    assert f"{folder}/nowhere/usr/bin/gpuhook-runtime" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


# --- how it is said -------------------------------------------------------------------------------------------------


def test_text_of_the_file_steers_no_terminal(cli: Cli) -> None:
    path = cli.etc / "daemon.json"
    path.write_text('{\n  "log-driver": "\u009b2J\u202e",\n\t"id": 1\n}\n')
    done = cli("configure", "docker", "--config", path, "--dry-run")
    assert '"log-driver": "\\x9b2J\\u202e"' in done.out
    assert '\t"id"' in done.out
    assert "\u009b" not in cli("configure", "docker", "--config", path, "--json").out


@pytest.mark.parametrize("colour", [True, False], ids=["colour", "NO_COLOR"])
def test_the_diff_on_a_terminal_is_coloured_if_wanted(cli: Cli, colour: bool) -> None:
    path = cli.file("docker")
    plain = cli("configure", "docker", "--config", path, "--dry-run").out
    master, slave = pty.openpty()
    env = {"PATH": "/usr/bin:/bin", "TERM": "xterm", **({} if colour else {"NO_COLOR": "1"})}
    words: list[str | Path] = [cli.world.cli, "configure", "docker", "--config", path, "--dry-run"]
    subprocess.run(words, env=env, stdout=slave, check=True, timeout=60)
    shown = os.read(master, 65536).decode().replace("\r\n", "\n")
    os.close(slave)
    os.close(master)
    assert re.sub(r"\x1b\[\d+m", "", shown) == plain
    added = [line for line in shown.splitlines() if '"runtimes"' in line]
    assert len(added) == 1
    assert added[0].startswith("\x1b[32m+" if colour else "+")


# --- restarting -----------------------------------------------------------------------------------------------------


@pytest.fixture
def programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Makes a program, in a PATH that has only such."""
    monkeypatch.setenv("PATH", str(folder / "bin"))
    (folder / "bin").mkdir()

    def make(name: str, text: str) -> None:
        path = folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    return make


def test_restart_without_an_init_system_says_so(cli: Cli, called: Callable[..., tuple[int, str]]) -> None:
    """crio's is `systemctl restart crio`, and no systemd runs where tests do."""
    if Path("/run/systemd/system").exists():
        pytest.skip("an init system runs here")
    code, out = called("configure", "crio", "--config", cli.file("crio"), "--restart", runs=True)
    assert code == 0
    assert "nothing was restarted: " in out.splitlines()[-1]
    assert "next: " in out.splitlines()[-1]
    assert called("unconfigure", "crio", "--restart", runs=True)[0] == 0


def test_restart_where_nothing_changed_says_that_nothing_was_restarted(cli: Cli) -> None:
    """Who configures first and asks for the restart afterwards must not think that it was done."""
    path = cli.file("docker")
    cli("configure", "docker", "--config", path)
    done = cli("configure", "docker", "--config", path, "--restart")
    assert (done.code, done.out.splitlines()[-1].partition(":")[0]) == (0, "nothing was restarted")
    found = cli.document("configure", "docker", "--config", path, "--restart")["restart"]
    assert (found["needed"], found["done"]) == (False, False)
    assert found["why_not"].startswith("nothing was restarted")
    assert cli.document("configure", "docker", "--config", path)["restart"]["why_not"] == ""


def test_unconfigure_restarts_each_containerd_that_had_been_configured(
    programs: Callable[[str, str], None], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of two fails; the other is restarted all the same, and what is told tells them apart."""
    programs("snap", f'echo "$@" >>{folder}/said; [ "$2" != one ]')
    changes = [
        Change(
            f"/{name}", f"/{name}", f"/{name}", b"a", b"", "restored", restart=Restart(("snap", "restart", name), name)
        )
        for name in ("one", "two", "two")
    ]
    with pytest.raises(GpuhookError) as caught:
        configure_text.tell(configure_text.Result("containerd", changes, (), (), "", False, True, True))
    assert caught.value.reference == "engine-restart-failed"
    assert (folder / "said").read_text() == "restart one\nrestart two\n"
    found = json.loads(capsys.readouterr().out)
    assert [found["restart"]["done"], *(item["done"] for item in found["other_restarts"])] == [False, True]
    with pytest.raises(GpuhookError):
        configure_text.tell(configure_text.Result("containerd", changes, (), (), "", False, True, False))
    assert capsys.readouterr().out.splitlines()[-2:] == ["not done: one", "done: snap restart two"]


def test_restart_runs_the_command(programs: Callable[[str, str], None], folder: Path) -> None:
    programs("snap", f'echo "$@" >{folder}/said')
    assert restarting.restarted(Restart(("snap", "restart", "docker"), "")) == (True, "")
    assert (folder / "said").read_text() == "restart docker\n"


def test_restart_that_fails_is_an_error_with_the_engines_words(programs: Callable[[str, str], None]) -> None:
    programs("snap", "echo 'error: snap \"docker\" has no services' >&2; exit 3")
    with pytest.raises(GpuhookError) as caught:
        restarting.restarted(Restart(("snap", "restart", "docker"), ""))
    assert caught.value.reference == "engine-restart-failed"
    for part in ("`snap restart docker`", "status 3", "has no services"):
        assert part in caught.value.message


def test_restart_of_a_program_that_is_not_there_and_of_nothing(programs: Callable[[str, str], None]) -> None:
    assert restarting.restarted(Restart(("snap", "restart"), "")) == (False, "nothing was restarted: snap is not there")
    assert restarting.restarted(Restart((), "podman reads its files each time")) == (False, "")


def test_restart_that_hangs_ends(programs: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    programs("snap", "exec /bin/sleep 60")
    monkeypatch.setattr(restarting, "_DEADLINE", 0.2)
    with pytest.raises(GpuhookError, match="did not end"):
        restarting.restarted(Restart(("snap",), ""))
