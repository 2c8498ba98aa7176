"""docker: which file is meant, what goes into it, what makes dockerd read it, and what doctor says of it."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gpuhook.engines import docker, jsontext
from gpuhook.engines.host import Host
from gpuhook.engines.model import Finding, Options, Proposal, Restart, Set
from gpuhook.errors import GpuhookError

SYSTEM = "/etc/docker/daemon.json"
SNAP = "/var/snap/docker/current/config/daemon.json"
ROOTLESS = "/home/ann/.config/docker/daemon.json"
RUNTIME = "/usr/bin/gpuhook-runtime"
OURS = {"path": RUNTIME}
UNIT = "# /lib/systemd/system/docker.service\n[Service]\nExecStart=/usr/bin/dockerd -H fd:// {}\n"


class World:
    """A host below a folder, with stand-ins for the programs that are asked."""

    def __init__(self, path: Path, uid: int = 0, **environ: str) -> None:
        self.path, self.uid = path, uid
        self.environ = {"PATH": str(path / "bin"), "HOME": "/home/ann" if uid else "/root", **environ}
        (path / "bin").mkdir()

    @property
    def host(self) -> Host:
        return Host(str(self.path), self.uid, self.environ)

    def file(self, path: str, text: str = "", mode: int = 0o644) -> Path:
        file = self.path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    def program(self, name: str, *cases: tuple[str, str], code: int = 1) -> None:
        """A stand-in: prints the second text of a case where the arguments match its first, a pattern of sh."""
        lines = [f"{pattern}) cat <<'END'\n{text}\nEND\nexit;;" for pattern, text in cases]
        script = f'#!/bin/sh\nPATH=/usr/bin:/bin\ncase "$*" in\n{"".join(lines)}\nesac\nexit {code}\n'
        self.file(f"bin/{name}", script, 0o755)

    def dockerd(self, pid: int, *flags: str, uid: int = 0, program: str = "dockerd", nspid: str = "") -> None:
        """A process."""
        self.file(f"proc/{pid}/cmdline", "".join(f"{word}\0" for word in (program, *flags)))
        self.file(f"proc/{pid}/status", f"Name:\tdockerd\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{nspid or pid}\n")

    def systemd(self, unit: str = UNIT.format("")) -> None:
        """systemd is init and knows a docker.service."""
        self.file("run/systemd/system/.here")
        self.program("systemctl", ("*cat*docker.service", unit))

    def installed(self) -> None:
        """gpuhook's own program."""
        self.file(RUNTIME, "#!/bin/sh\n", 0o755)

    def answers(self, context: str = "default", **info: Any) -> None:
        """A docker command, and a daemon that answers with `info`."""
        answer = {"ServerVersion": "20.10.24+dfsg1", "DefaultRuntime": "runc", "CgroupDriver": "cgroupfs"} | info
        self.program("docker", ("context*show", context), ("*info*", json.dumps(answer)))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Root's view of a host with an empty /etc/docker."""
    world = World(tmp_path)
    (tmp_path / "etc/docker").mkdir(parents=True)
    return world


@pytest.fixture
def user(tmp_path: Path) -> World:
    """A user's view of a host without docker."""
    return World(tmp_path, 1000)


def proposed(world: World, **options: Any) -> Proposal:
    return docker.propose(world.host, Options(**options))


def path_of(world: World, **options: Any) -> str:
    return proposed(world, **options).files[0].path


def edited(world: World, **options: Any) -> Any:
    """The document after what is proposed."""
    (edit,) = proposed(world, **options).files
    text, _ = jsontext.apply(edit.path, world.host.read(edit.path) or "", edit.steps)
    return json.loads(text)


def refusal(world: World, **options: Any) -> GpuhookError:
    with pytest.raises(GpuhookError) as raised:
        proposed(world, **options)
    return raised.value


# --- what goes in ---------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_gets_the_runtime_alone(world: World) -> None:
    """The default proposal: one entry, no default runtime, no CDI."""
    (edit,) = proposed(world).files
    assert (edit.path, edit.form, edit.mode) == (SYSTEM, "json", 0o644)
    assert edit.steps == (Set(("runtimes", "gpuhook"), OURS),)


def test_default_runtime_and_cdi_are_asked_for(world: World) -> None:
    """Each option sets its own key, and nothing else."""
    assert edited(world, default_runtime=True, cdi=True) == {
        "runtimes": {"gpuhook": OURS},
        "default-runtime": "gpuhook",
        "features": {"cdi": True},
    }


def test_r111_other_keys_stay_byte_for_byte_and_undo_gives_the_file_back(world: World) -> None:
    """The steps that are proposed can be applied and undone by jsontext without touching another byte."""
    text = '{\n\t"log-driver": "journald",\n\t"log-opts": {"tag": "x"}\n}\n'
    world.file(SYSTEM, text)
    (edit,) = proposed(world, default_runtime=True, cdi=True).files
    new, undos = jsontext.apply(SYSTEM, text, edit.steps)
    assert new.startswith('{\n\t"log-driver": "journald",\n\t"log-opts": {"tag": "x"},')
    assert jsontext.undo(SYSTEM, new, undos) == (text, ())


NVIDIA = {"path": "/usr/bin/nvidia-container-runtime", "runtimeArgs": ["--debug"]}


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(NVIDIA, id="path-and-arguments"),
        pytest.param({"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "/x"}}, id="shim"),
        pytest.param({"path": RUNTIME, "runtimeType": "io.containerd.runc.v2"}, id="ours-with-a-shim"),
        pytest.param({"path": RUNTIME, "options": {"BinaryName": "/x"}}, id="ours-with-shim-options"),
        pytest.param({}, id="empty"),
        pytest.param(None, id="null"),
    ],
)
def test_a_name_is_taken_over_as_a_whole_and_given_back(world: World, entry: dict[str, Any] | None) -> None:
    """Another program's arguments and shim options are not kept, since they'd be given to gpuhook."""
    text = json.dumps({"runtimes": {"nvidia": entry}})
    world.file(SYSTEM, text)
    (edit,) = proposed(world, runtime_name="nvidia").files
    new, undos = jsontext.apply(SYSTEM, text, edit.steps)
    assert json.loads(new) == {"runtimes": {"nvidia": OURS}}
    assert json.loads(jsontext.undo(SYSTEM, new, undos)[0]) == json.loads(text)


def test_a_taken_over_name_is_told(world: World) -> None:
    """A person is told whose name that was."""
    world.file(SYSTEM, json.dumps({"runtimes": {"nvidia": NVIDIA}}))
    assert any("'/usr/bin/nvidia-container-runtime'" in note for note in proposed(world, runtime_name="nvidia").notes)


def test_what_a_person_added_to_our_entry_stays(world: World) -> None:
    """An entry that is gpuhook's already is fulfilled, so a second configure changes nothing."""
    text = json.dumps({"runtimes": {"gpuhook": {"path": RUNTIME, "runtimeArgs": ["--x"]}}})
    world.file(SYSTEM, text)
    (edit,) = proposed(world).files
    assert jsontext.apply(SYSTEM, text, edit.steps) == (text, ())


def test_cdi_that_was_off_is_turned_on(world: World) -> None:
    """--cdi is meant, whatever the file says."""
    world.file(SYSTEM, '{"features": {"cdi": false, "buildkit": true}}')
    assert edited(world, cdi=True)["features"] == {"cdi": True, "buildkit": True}


@pytest.mark.parametrize("text", ["", "\n", '{"runtimes":null}'], ids=["R114-empty", "R114-newline", "R115-null"])
def test_nothing_is_as_good_as_no_file(world: World, text: str) -> None:
    """R114, R115: an empty file is {} and null is no runtimes."""
    world.file(SYSTEM, text)
    assert edited(world) == {"runtimes": {"gpuhook": OURS}}


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where"),
    [
        pytest.param('{"runtimes":{}}{"log-level":"debug"}', f"{SYSTEM}:1:16", id="R113-two-objects"),
        pytest.param('{\n"runtimes": \u201cx\u201d}', f"{SYSTEM}:2:13", id="R113-smart-quotes"),
        pytest.param('{"runtimes":{},\n"runtimes":{}}', f"{SYSTEM}:2:1", id="R113-twice"),
        pytest.param("<html>", f"{SYSTEM}:1:1", id="R114-html"),
        pytest.param('{"a":1,}', f"{SYSTEM}:1:7", id="R114-comma"),
        pytest.param('{"a":1 // x\n}', f"{SYSTEM}:1:8", id="R114-comment"),
        pytest.param('{\n"runtimes":[]}', f"{SYSTEM}:2: `runtimes` must be an object", id="R115-list"),
        pytest.param("[]", SYSTEM, id="R115-root-list"),
        pytest.param("null", SYSTEM, id="R115-root-null"),
        pytest.param('"x"', SYSTEM, id="R115-root-string"),
        pytest.param(
            '{"runtimes":{\n"nvidia":"str"}}', f"{SYSTEM}:2: `runtimes.nvidia` must be an object", id="R115-entry"
        ),
        pytest.param('{"dns": ["172.17.0.1"]\n "runtimes": {}}', f"{SYSTEM}:2:2", id="R119-comma"),
        pytest.param('{"runtimes":{"a":{\n"path":5}}}', f"{SYSTEM}:2: `runtimes.a.path` must be a string", id="path"),
        pytest.param('{"runtimes":{"a":{"runtimeArgs":\n["x",1]}}}', "`runtimes.a.runtimeArgs.1` must be", id="args"),
        pytest.param('{\n\n"default-runtime": ["x"]}', f"{SYSTEM}:3: `default-runtime` must be", id="default"),
        pytest.param('{"features":{"cdi":"true"}}', "`features.cdi` must be true or false", id="feature"),
    ],
)
def test_a_file_that_dockerd_can_not_read_is_refused_with_its_line(world: World, text: str, where: str) -> None:
    """R113, R114, R115, R119: the error names file and line, and doctor says the same."""
    file = world.file(SYSTEM, text)
    error = refusal(world)
    assert error.reference == "engine-config-invalid"
    assert where in error.message
    found = docker.check(world.host, Options())
    assert [item.message for item in found if item.check == "configuration"] == [error.message]
    assert file.read_text() == text


def test_r114_html_is_named(world: World) -> None:
    """Who saved an error page is told so."""
    world.file(SYSTEM, "<html><body>404</body></html>")
    assert "HTML" in str(refusal(world))


def test_a_directory_is_no_configuration(world: World) -> None:
    """Propose raises, and doctor finds a problem, both of the same words."""
    (world.path / "etc/docker/daemon.json").mkdir()
    assert refusal(world).reference == "engine-config-unreadable"
    assert ("problem", "configuration") in {(item.level, item.check) for item in docker.check(world.host, Options())}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"drop_in": ""}, id="drop-in"),
        pytest.param({"drop_in": "/etc/docker/x.json"}, id="drop-in-named"),
        pytest.param({"hook_only": True}, id="hook-only"),
        pytest.param({"runtime_name": "runc"}, id="runc"),
        pytest.param({"runtime_name": "io.containerd.runc.v2"}, id="containerd"),
    ],
)
def test_what_dockerd_has_not_is_refused(world: World, options: dict[str, Any]) -> None:
    """Drop-ins, hook folders, and names that dockerd keeps for itself or can't have."""
    assert refusal(world, **options).reference == "engine-option-unsupported"


# --- which file -----------------------------------------------------------------------------------------------------


def test_no_docker(user: World, tmp_path: Path) -> None:
    """Neither root nor a user gets a file made for an engine that is not there."""
    assert refusal(user).reference == "engine-not-found"
    user.uid = 0
    assert refusal(user).reference == "engine-not-found"
    assert "--config FILE" in refusal(user).hint
    assert path_of(user, config="/opt/d.json") == "/opt/d.json"


def test_a_user_is_told_that_the_system_has_a_docker(user: World) -> None:
    """Without a rootless docker, the file of one is not written for the system's."""
    user.file("usr/bin/dockerd", mode=0o755)
    assert "as root" in refusal(user).hint


def test_root_is_told_of_a_rootless_docker(user: World) -> None:
    """`sudo gpuhook configure docker` on a host where a user runs the only dockerd."""
    user.dockerd(40, uid=1000)
    user.uid = 0
    assert "1000" in refusal(user).hint


@pytest.mark.parametrize(
    ("environ", "path"),
    [({}, ROOTLESS), ({"XDG_CONFIG_HOME": "/cfg"}, "/cfg/docker/daemon.json")],
    ids=["home", "xdg"],
)
def test_the_rootless_file(tmp_path: Path, environ: dict[str, str], path: str) -> None:
    """Where a rootless dockerd reads, and that it gets the signal itself: rootlesskit stands before it."""
    world = World(tmp_path, 1000, **environ)
    world.dockerd(41, uid=1000)
    world.dockerd(42, "--config-file=/etc/other.json", uid=0)
    proposal = proposed(world)
    assert proposal.files[0].path == path
    assert proposal.restart.command == ("kill", "-HUP", "41")


def test_a_rootless_file_that_nobody_reads_is_told(user: World) -> None:
    """R118: the system's dockerd runs, and the user has the program of rootless docker alone."""
    user.program("dockerd-rootless.sh")
    user.dockerd(42)
    proposal = proposed(user)
    assert proposal.files[0].path == ROOTLESS
    assert any("run this as root" in note for note in proposal.notes)


@pytest.mark.parametrize(
    "flags",
    [
        ("--config-file", "/srv/d.json"),
        ("--config-file=/srv/d.json",),
        ("--config-file=/x", "--config-file=/srv/d.json"),
    ],
    ids=["word", "equals", "last"],
)
def test_r118_the_running_daemon_names_its_file(world: World, flags: tuple[str, ...]) -> None:
    """R118: not /etc/docker/daemon.json, but what the process was started with."""
    world.dockerd(7, "-H", "fd://", *flags)
    assert path_of(world) == "/srv/d.json"


def test_r118_a_relative_file_is_relative_to_the_daemon(world: World) -> None:
    """A path without a leading / is looked up where the process is."""
    world.dockerd(7, "--config-file=conf/d.json")
    (world.path / "proc/7/cwd").symlink_to("/srv/docker")
    assert path_of(world) == "/srv/docker/conf/d.json"


@pytest.mark.parametrize(
    ("unit", "path"),
    [
        pytest.param(UNIT.format("--config-file /srv/d.json"), "/srv/d.json", id="flag"),
        pytest.param(UNIT.format("\\\n  --config-file /srv/d.json"), "/srv/d.json", id="two-lines"),
        pytest.param(UNIT.format("$OPTS").replace("Exec", "EnvironmentFile=-/etc/d\nExec"), "/srv/e.json", id="file"),
        pytest.param(
            UNIT.format("--config-file=${F}").replace("Exec", 'Environment="F=/srv/f.json"\nExec'),
            "/srv/f.json",
            id="env",
        ),
        pytest.param(
            UNIT.format("--config-file /x") + "# /etc/x.conf\nExecStart=\nExecStart=/usr/bin/dockerd\n",
            SYSTEM,
            id="drop-in",
        ),
    ],
)
def test_r118_the_unit_names_the_file(world: World, unit: str, path: str) -> None:
    """R118: a dockerd that does not run now reads what its unit says, variables and overrides included."""
    world.file("etc/d", "# comment\nOPTS='--config-file /srv/e.json'\n")
    world.systemd(unit)
    assert path_of(world) == path


def test_other_processes_are_no_daemons(world: World) -> None:
    """A container's own dockerd, another program, and a process that is gone are not asked."""
    world.dockerd(8, "--config-file=/in/a/container", nspid="8\t1")
    world.dockerd(9, "--config-file=/not/dockerd", program="vim")
    world.file("proc/10/cmdline", "dockerd\0--config-file=/no/status\0")
    world.file("proc/11/cmdline")
    assert path_of(world) == SYSTEM


def test_several_daemons_are_told(world: World) -> None:
    """The second dockerd's file is named with the option that is for it."""
    world.dockerd(7, "--config-file=/srv/one.json")
    world.dockerd(8, "--config-file=/srv/two.json")
    proposal = proposed(world)
    assert proposal.files[0].path == "/srv/one.json"
    assert any("--config /srv/two.json" in note for note in proposal.notes)


def test_r118_a_config_that_the_running_daemon_does_not_read_is_told(world: World) -> None:
    """R118: --config names a file that has no reader, and says who reads what."""
    world.dockerd(7)
    assert any("pid 7" in note and SYSTEM in note for note in proposed(world, config="/srv/x.json").notes)
    assert not any("pid 7" in note for note in proposed(world, config=SYSTEM).notes)


def test_r118_a_link_is_the_same_file(world: World) -> None:
    """R118: daemon.json is a link; who names its target means the same dockerd."""
    world.file("etc/shared/daemon.json", "{}")
    (world.path / "etc/docker/daemon.json").symlink_to("../shared/daemon.json")
    world.dockerd(7)
    assert proposed(world, config="/etc/shared/daemon.json").restart.command == ("kill", "-HUP", "7")
    assert path_of(world) == SYSTEM


@pytest.mark.parametrize("clue", ["snap/docker/current/meta", SNAP], ids=["snap", "data"])
def test_r117_the_snap_reads_its_own_file(user: World, clue: str) -> None:
    """R117: the snap's file, with what its confinement means, and that nothing reads the usual one."""
    user.uid = 0
    user.file(clue, "{}")
    user.file(SYSTEM, "{}")
    proposal = proposed(user)
    assert proposal.files[0].path == SNAP
    assert proposal.restart.command == ("snap", "restart", "docker")
    assert any("confinement" in note for note in proposal.notes)
    assert any(f"nothing reads {SYSTEM}" in note for note in proposal.notes)
    assert ("problem", "snap") in levels(docker.check(user.host, Options()))


def test_r117_the_running_snap_is_found_by_its_revision(world: World) -> None:
    """R117: the snap's dockerd names a folder that the next refresh leaves behind; `current` stays right."""
    world.dockerd(7, "--config-file=/var/snap/docker/2893/config/daemon.json", "--data-root=/var/snap/docker/common")
    assert path_of(world) == SNAP


@pytest.mark.parametrize("runs", [SYSTEM, SNAP, ""], ids=["system-runs", "snap-runs", "none-runs"])
def test_r117_two_dockers(world: World, runs: str) -> None:
    """R117: what runs is chosen, else the one that can run a host's program; the other is named."""
    world.file(SNAP, "{}")
    world.file("usr/bin/dockerd", mode=0o755)
    if runs:
        world.dockerd(7, f"--config-file={runs}")
    chosen = runs or SYSTEM
    proposal = proposed(world)
    assert proposal.files[0].path == chosen
    assert any(f"--config {SNAP if chosen == SYSTEM else SYSTEM}" in note for note in proposal.notes)


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "options", "key"),
    [
        (("--default-runtime=runc",), {"default_runtime": True}, "default-runtime"),
        (("--default-runtime", "x"), {"default_runtime": True}, "default-runtime"),
        (("--feature=cdi=true",), {"cdi": True}, "features"),
    ],
    ids=["default-runtime", "as-words", "feature"],
)
def test_a_key_that_the_command_line_sets_too_is_a_conflict(
    world: World, flags: tuple[str, ...], options: dict[str, Any], key: str
) -> None:
    """dockerd does not start with a key in both places, so it is never written."""
    world.dockerd(7, *flags)
    error = refusal(world, **options)
    assert error.reference == "engine-config-conflict"
    assert f"`{key}`" in error.message
    assert SYSTEM in error.message
    assert "pid 7" in error.message
    assert edited(world) == {"runtimes": {"gpuhook": OURS}}, "what is not asked for does not conflict"


def test_a_conflict_with_the_unit_names_its_file_and_line(world: World) -> None:
    """The unit's line is where a person takes the flag out."""
    world.systemd(UNIT.format("--default-runtime runc"))
    assert "(/lib/systemd/system/docker.service:2)" in refusal(world, default_runtime=True).message


def test_runtimes_of_the_command_line_add_up(world: World) -> None:
    """dockerd takes --add-runtime and `runtimes` together, but a reload forgets the former: it takes a start."""
    world.systemd()
    world.dockerd(7, "--add-runtime", "kata=/usr/bin/kata")
    assert proposed(world).restart.command == ("systemctl", "restart", "docker")


# --- what makes dockerd read it -------------------------------------------------------------------------------------


def test_a_reload_does_where_systemd_is(world: World) -> None:
    """Running containers are left alone; CDI takes a start, and so does undoing."""
    world.systemd()
    world.dockerd(7)
    proposal = proposed(world)
    assert proposal.restart.command == ("systemctl", "reload", "docker")
    assert "running containers go on" in proposal.restart.sentence
    assert proposal.undo_restart is not None
    assert proposal.undo_restart.command == ("systemctl", "try-restart", "docker")
    with_cdi = proposed(world, cdi=True).restart
    assert with_cdi.command == ("systemctl", "restart", "docker")
    assert "stops running containers" in with_cdi.sentence


def test_live_restore_is_taken_into_account(world: World) -> None:
    """With live-restore a start does not stop containers, and the sentence says so."""
    world.systemd()
    world.dockerd(7)
    world.file(SYSTEM, '{"live-restore": true}')
    assert "live-restore" in proposed(world, cdi=True).restart.sentence


def test_without_an_init_the_process_gets_the_signal(world: World) -> None:
    """SIGHUP is what a reload is; a process id is in no command for later."""
    world.dockerd(7)
    proposal = proposed(world)
    assert proposal.restart.command == ("kill", "-HUP", "7")
    assert proposal.undo_restart is not None
    assert proposal.undo_restart.command == ()
    assert "7" not in proposal.undo_restart.sentence
    assert proposed(world, cdi=True).restart.command == ()


def test_a_sysv_init(world: World) -> None:
    """A start by the init script where there is no systemd."""
    world.dockerd(7)
    world.file("etc/init.d/docker")
    world.program("service")
    assert proposed(world, cdi=True).restart.command == ("service", "docker", "restart")


def test_a_daemon_that_is_started_by_hand_is_not_the_inits(world: World) -> None:
    """Neither init restarts its own dockerd in place of the one that reads the file."""
    world.systemd()
    world.file("etc/init.d/docker")
    world.program("service")
    world.dockerd(7, "--config-file=/srv/d.json")
    proposal = proposed(world, config="/srv/d.json")
    assert proposal.restart.command == ("kill", "-HUP", "7")
    assert proposal.undo_restart is not None
    assert proposal.undo_restart.command == ()


def test_a_daemon_that_does_not_run_needs_nothing(world: World) -> None:
    """Nothing to reload: it reads the file when it starts."""
    world.systemd()
    restart = proposed(world).restart
    text = "dockerd does not run: it is read when dockerd starts (`systemctl start docker`)"
    assert restart == Restart((), text, needed=False)


def test_a_daemon_that_reads_another_file_is_not_said_to_rest(world: World) -> None:
    world.dockerd(7)
    restart = proposed(world, config="/srv/d.json").restart
    assert restart == Restart((), "no dockerd that runs reads this file: it is read when dockerd starts", needed=False)


def test_a_rootless_start_is_of_the_users_systemd(user: World) -> None:
    """CDI takes a start, by the user's own systemd."""
    user.systemd()
    user.dockerd(7, uid=1000)
    assert proposed(user, cdi=True).restart.command == ("systemctl", "--user", "restart", "docker")


# --- notes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "text"),
    [("20.10.24+dfsg1", "has no CDI"), ("24.0.7", "has no CDI"), ("28.3.0", "on without"), ("x", "can't be told")],
)
def test_what_the_version_means_for_cdi(world: World, version: str, text: str) -> None:
    """CDI came with 25.0, and is on by itself since 28.3."""
    world.program("dockerd", ("--version", f"Docker version {version}, build 1"))
    assert any(text in note for note in proposed(world, cdi=True).notes)


def test_a_version_that_has_cdi_needs_no_note(world: World) -> None:
    """From 25.0 to 28.2 `features.cdi` does what it says."""
    world.program("dockerd", ("--version", "Docker version 26.1.5, build 1"))
    assert not any("CDI" in note for note in proposed(world, cdi=True).notes)


@pytest.mark.parametrize(
    ("context", "environ", "text"),
    [
        pytest.param("desktop-linux", {}, "Docker Desktop", id="R118-desktop"),
        pytest.param("farm", {}, "'farm'", id="R118-context"),
        pytest.param("default", {"DOCKER_HOST": "ssh://far"}, "'ssh://far'", id="R118-remote"),
        pytest.param("default", {"DOCKER_CONTEXT": "farm"}, "'farm'", id="R118-environment"),
    ],
)
def test_r118_the_docker_command_talks_to_another_daemon(
    world: World, context: str, environ: dict[str, str], text: str
) -> None:
    """R118: configure says so, and for doctor it is a problem."""
    world.environ |= environ
    world.answers(context, Runtimes={})
    assert any(text in note for note in proposed(world).notes)
    assert ("problem", "context") in levels(docker.check(world.host, Options()))


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        ((), {}),
        ((), {"DOCKER_HOST": "unix:///var/run/docker.sock"}),
        (("-H", "unix:///srv/d.sock"), {"DOCKER_HOST": "unix:///srv/d.sock"}),
        (("--host=unix:///srv/d.sock",), {"DOCKER_HOST": "unix:///srv/d.sock"}),
    ],
    ids=["default", "usual", "own-socket", "long"],
)
def test_the_docker_command_talks_to_this_daemon(world: World, flags: tuple[str, ...], environ: dict[str, str]) -> None:
    """An address that is the daemon's own is no other daemon."""
    world.environ |= environ
    world.dockerd(7, *flags)
    world.answers(Runtimes={})
    assert not any("talks to" in note for note in proposed(world).notes)


def test_a_context_of_the_daemons_own_socket(world: World) -> None:
    """A context by another name may lead to the same socket."""
    where = ("context*inspect*here*", "unix:///var/run/docker.sock")
    world.program("docker", ("context*show", "here"), where)
    assert not any("talks to" in note for note in proposed(world).notes)


# --- doctor ---------------------------------------------------------------------------------------------------------


def levels(findings: tuple[Finding, ...]) -> set[tuple[str, str]]:
    return {(item.level, item.check) for item in findings}


def checked(world: World, document: dict[str, Any], **info: Any) -> tuple[Finding, ...]:
    """What doctor finds with this file, and a daemon that answers with `info`."""
    world.file(SYSTEM, json.dumps(document, indent=2))
    world.answers(**info)
    return docker.check(world.host, Options())


GOOD = {"runtimes": {"gpuhook": OURS}}


def problems(findings: tuple[Finding, ...]) -> list[str]:
    return [item.message for item in findings if item.level in ("problem", "warning")]


def test_a_host_that_works(world: World) -> None:
    """Configured and read by the daemon: no problem, and a note that --runtime is needed."""
    world.installed()
    found = checked(world, GOOD, Runtimes={"runc": {"path": "runc"}, "gpuhook": OURS})
    assert problems(found) == []
    assert {("ok", "configuration"), ("ok", "runtime"), ("ok", "running"), ("note", "default-runtime")} <= levels(found)


def test_another_name_is_found_without_being_named(world: World) -> None:
    """`configure --runtime-name nvidia` and a plain `doctor`."""
    world.installed()
    document = {"runtimes": {"nvidia": OURS}, "default-runtime": "nvidia"}
    found = checked(world, document, Runtimes={"nvidia": OURS}, DefaultRuntime="nvidia")
    assert problems(found) == []
    assert ("ok", "default-runtime") in levels(found)


@pytest.mark.parametrize(
    ("document", "info", "text"),
    [
        pytest.param({}, {}, f"{SYSTEM} has no runtime that is gpuhook's", id="none"),
        pytest.param({"runtimes": {"gpuhook": {"path": "/x"}}}, {}, ":3: the runtime 'gpuhook' is '/x'", id="not-ours"),
        pytest.param(GOOD, {"Runtimes": {}}, "does not know the runtime 'gpuhook'", id="R118-not-read"),
        pytest.param(GOOD, {"Runtimes": {"gpuhook": {"path": "/old"}}}, "does not know the runtime", id="old-path"),
        pytest.param(GOOD, {"Runtimes": None}, "does not know the runtime", id="no-runtimes"),
        pytest.param(
            GOOD | {"default-runtime": "gpuhook"},
            {"Runtimes": {"gpuhook": OURS}},
            "default runtime is 'runc', and is 'gpuhook' after its next start",
            id="default-not-read",
        ),
        pytest.param(
            GOOD | {"default-runtime": "zz"},
            {},
            ":7: dockerd does not start: the default runtime 'zz'",
            id="default-unknown",
        ),
        pytest.param({"runtimes": {"runc": {"path": "/x"}, "gpuhook": OURS}}, {}, "`runc` is its own name", id="runc"),
        pytest.param(GOOD, {"OperatingSystem": "Docker Desktop"}, "is Docker Desktop's", id="R118-desktop"),
    ],
)
def test_doctor_finds(world: World, document: dict[str, Any], info: dict[str, Any], text: str) -> None:
    """Each of these keeps a GPU container from working."""
    world.installed()
    found = checked(world, document, **info)
    assert any(item.level == "problem" and text in item.message and item.hint for item in found), found


@pytest.mark.parametrize(
    ("systemd", "pid", "info", "fix"),
    [
        (True, 0, {"ServerVersion": ""}, "start docker (`systemctl start docker`)"),
        (False, 0, {"ServerVersion": ""}, "start docker"),
        (True, 7, {"Runtimes": {}}, "systemctl reload docker (running containers go on)"),
        (
            False,
            7,
            {"ServerVersion": "25.0.1"},
            "end process 7 and start dockerd as before; it stops running containers",
        ),
    ],
    ids=["down", "down-without-systemd", "reload", "by-hand"],
)
def test_the_fix_of_a_daemon_is_something_to_do(
    world: World, systemd: bool, pid: int, info: dict[str, Any], fix: str
) -> None:
    """What dockerd does by itself is no advice."""
    world.installed()
    if systemd:
        world.systemd()
    if pid:
        world.dockerd(pid)
    found = checked(world, GOOD | {"features": {"cdi": True}}, **info)
    assert fix in [item.hint for item in found if item.level in ("problem", "warning")]


@pytest.mark.parametrize("mode", [None, 0o644], ids=["absent", "no-program"])
def test_the_program_of_the_runtime_must_be_one(world: World, mode: int | None) -> None:
    """A runtime that can't be started, with the line that names it."""
    if mode is not None:
        world.file(RUNTIME, mode=mode)
    found = checked(world, GOOD, Runtimes={"gpuhook": OURS})
    (message,) = problems(found)
    assert f"{SYSTEM}:3: the runtime 'gpuhook' is {RUNTIME}, which is no" in message


def test_another_installation_is_told(world: World) -> None:
    """A gpuhook of another place works, but is not the one that examines it."""
    world.installed()
    world.file("opt/gpuhook-runtime", mode=0o755)
    entry = {"path": "/opt/gpuhook-runtime"}
    found = checked(world, {"runtimes": {"gpuhook": entry}}, Runtimes={"gpuhook": entry})
    assert [item.level for item in found if "another installation" in item.message] == ["warning"]
    assert not any(item.level == "problem" for item in found)


def test_a_daemon_with_its_command_line_alone(world: World) -> None:
    """R118: a dockerd without a file, whose flags name gpuhook."""
    world.installed()
    world.dockerd(7, f"--add-runtime=gpuhook={RUNTIME}", "--default-runtime", "gpuhook")
    world.answers(Runtimes={"gpuhook": OURS}, DefaultRuntime="gpuhook")
    found = docker.check(world.host, Options())
    assert problems(found) == []
    assert ("ok", "default-runtime") in levels(found)


def test_a_key_that_is_set_twice_is_a_problem(world: World) -> None:
    """The dockerd that runs will not start again."""
    world.installed()
    world.dockerd(7, "--default-runtime=runc")
    found = checked(world, GOOD | {"default-runtime": "gpuhook"}, Runtimes={"gpuhook": OURS})
    assert ("problem", "conflict") in levels(found)


def test_a_daemon_that_does_not_answer_is_a_warning(world: World) -> None:
    """It may just not run now; what it would read is examined all the same."""
    world.installed()
    world.file(SYSTEM, json.dumps(GOOD))
    world.program("docker", ("context*show", "default"))
    found = docker.check(world.host, Options())
    assert ("warning", "running") in levels(found)
    assert ("ok", "runtime") in levels(found)


@pytest.mark.parametrize("answer", ["[]", "no json", '{"ServerErrors": ["x"]}'])
def test_an_answer_that_is_none(world: World, answer: str) -> None:
    """Whatever the docker command prints, doctor goes on."""
    world.file(SYSTEM, json.dumps(GOOD))
    world.program("docker", ("context*show", "default"), ("*info*", answer))
    assert ("warning", "running") in levels(docker.check(world.host, Options()))


def test_what_else_bears_on_gpus(world: World) -> None:
    """User namespaces, systemd's cgroups, and CDI in a docker that has none."""
    world.installed()
    document = {"runtimes": {"gpuhook": OURS, "nvidia": NVIDIA}, "features": {"cdi": True}}
    info = {"Runtimes": document["runtimes"], "SecurityOptions": ["name=userns"], "CgroupDriver": "systemd"}
    found = levels(checked(world, document, **info))
    assert {("note", "userns-remap"), ("ok", "cgroup-driver"), ("warning", "cdi")} <= found


@pytest.mark.parametrize(
    "entry",
    [{}, None, {"path": "/x", "options": {"a": 1}}, {"path": "/x", "runtimeType": "y"}],
    ids=["empty", "null", "options", "two"],
)
def test_an_entry_that_newer_dockers_refuse(world: World, entry: dict[str, Any] | None) -> None:
    """Somebody else's entry that dockerd 20.10 takes and 23.0 does not start with."""
    world.installed()
    document = {"runtimes": {"gpuhook": OURS, "other": entry}}
    found = checked(world, document, Runtimes={"gpuhook": OURS})
    assert [item.level for item in found if f"{SYSTEM}:6: " in item.message] == ["warning"]


def test_cdi_that_is_not_read_yet(world: World) -> None:
    """A daemon with CDI names its folders; one that names none was not started since."""
    world.installed()
    document = GOOD | {"features": {"cdi": True}}
    late = checked(world, document, Runtimes=GOOD["runtimes"], ServerVersion="26.1.5")
    assert ("warning", "cdi") in levels(late)
    read = checked(world, document, Runtimes=GOOD["runtimes"], ServerVersion="26.1.5", CDISpecDirs=["/etc/cdi"])
    assert problems(read) == []


def test_check_writes_nothing(world: World) -> None:
    """doctor and propose only read."""
    world.file(SYSTEM, json.dumps(GOOD))
    before = {path: os.lstat(path) for path in world.path.rglob("*") if stat.S_ISREG(os.lstat(path).st_mode)}
    docker.check(world.host, Options())
    proposed(world, default_runtime=True)
    assert {path: os.lstat(path).st_mtime_ns for path in before} == {k: v.st_mtime_ns for k, v in before.items()}
    assert {path for path in world.path.rglob("*") if path.is_file()} == set(before)
