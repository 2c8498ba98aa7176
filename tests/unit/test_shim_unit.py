"""The shim's parts: finding the low-level runtime, becoming it, saying an error where an engine looks for it."""

import json
import os
import posix
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuhook import cmdline, config, grant, oci, shim
from gpuhook.errors import EXIT_CODES, GpuhookError
from gpuhook.log import Log
from gpuhook.model import Gpu, Node, Record, Request
from tests import bundles, sandbox
from tests.images import CHECKOUT

ASKS = ["NVIDIA_VISIBLE_DEVICES=all"]
SILENT = Log("")


def program(path: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


# --- finding ----------------------------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PATH is a and b below the result; the usual places are empty."""
    monkeypatch.setattr(shim, "_PLACES", str(tmp_path / "usual"))
    monkeypatch.setitem(posix.environ, b"PATH", f"{tmp_path}/a:{tmp_path}/b".encode())
    return tmp_path


FOUND: dict[str, tuple[list[str], tuple[str, ...], str]] = {
    "first in PATH": (["a/runc", "b/runc"], ("runc",), "a/runc"),
    "second in PATH": (["b/runc"], ("runc",), "b/runc"),
    "the first candidate wins over the first place": (["a/crun", "b/runc"], ("runc", "crun"), "b/runc"),
    "the second candidate": (["a/crun"], ("runc", "crun"), "a/crun"),
    "the usual places": (["usual/runc"], ("runc",), "usual/runc"),
    "absolute": (["c/my-runc"], ("@/c/my-runc",), "c/my-runc"),
    "absolute and missing, then a name": (["a/crun"], ("@/c/none", "crun"), "a/crun"),
}


@pytest.mark.parametrize(("made", "candidates", "expected"), FOUND.values(), ids=FOUND)
def test_the_low_level_runtime_is_found(
    places: Path, made: list[str], candidates: tuple[str, ...], expected: str
) -> None:
    for name in made:
        program(places / name)
    found = shim.low_level(tuple(item.replace("@", str(places)) for item in candidates), "/none")
    assert found == str(places / expected)


@pytest.mark.parametrize("what", ["directory", "no program", "dangling link", "fifo"])
def test_what_is_no_program_is_passed_over(places: Path, what: str) -> None:
    place = places / "a/runc"
    place.parent.mkdir()
    if what == "directory":
        place.mkdir()
    elif what == "no program":
        program(place, mode=0o644)
    elif what == "fifo":
        os.mkfifo(place, 0o755)
    else:
        place.symlink_to("none")
    program(places / "b/runc")
    assert shim.low_level(("runc",), "/none") == str(places / "b/runc")


def test_gpuhook_does_not_call_itself(places: Path) -> None:
    """Installed as runc, by a link or a hard link: the next one is taken."""
    own = program(places / "own/gpuhook-runtime")
    (places / "a").mkdir()
    (places / "a/runc").symlink_to(own)
    program(places / "b/runc")
    assert shim.low_level(("runc",), str(own)) == str(places / "b/runc")


def test_relative_folders_of_path_are_not_searched(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(places / "runc")
    monkeypatch.chdir(places)
    monkeypatch.setitem(posix.environ, b"PATH", b"::.:bin")
    with pytest.raises(GpuhookError) as caught:
        shim.low_level(("runc", "crun"), "/none")
    assert caught.value.reference == "runtime-not-found"
    assert "runc, crun" in caught.value.message


def test_that_none_is_found_is_said_where_the_engine_looks(places: Path) -> None:
    """docker shows what is in the file of --log, and says else that it is not there."""
    program(places / "bin/gpuhook-runtime")
    log = places / "log.json"
    words = ["--log", str(log), "--log-format", "json", "create", "--bundle", str(places), "x"]
    assert shim.main([str(places / "bin/gpuhook-runtime"), *words], str(places)) == EXIT_CODES["runtime-not-found"]
    assert "[runtime-not-found]" in json.loads(log.read_text())["msg"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/usr/bin/runc", "runc"), ("/usr/bin/crun", "crun"), ("/x/crun-1.14", "crun"), ("/x/crun/runc", "runc")],
)
def test_dialect(path: str, expected: str) -> None:
    assert shim.dialect(path) == expected


SPEC_PATHS = [
    ("runc", "create x", ("./config.json", ".")),
    ("runc", "create --bundle /b x", ("/b/config.json", "/b")),
    ("runc", "create --bundle= x", ("./config.json", ".")),
    ("crun", "create -f other.json -b /b x", ("other.json", "/b")),
    ("crun", "create -f /c.json x", ("/c.json", ".")),
    ("crun", "create -f config.json -b /b x", ("/b/config.json", "/b")),
]


@pytest.mark.parametrize(("dialect", "words", "expected"), SPEC_PATHS, ids=[row[1] for row in SPEC_PATHS])
def test_spec_path(dialect: str, words: str, expected: tuple[str, str]) -> None:
    """test_cmdline.py proves the same of the real crun."""
    assert shim._spec_path(cmdline.parse(dialect, words.split())) == expected


def test_the_root_is_relative_to_the_bundle_wherever_the_spec_lies(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"root": {"path": "rootfs"}}))
    assert oci.Spec(f"{tmp_path}/other.json", "/b").container().root == "/b/rootfs"


# --- becoming it ------------------------------------------------------------------------------------------------

FAKE = r"""#!/usr/bin/python3 -IS
import os, sys
print(repr((sys.argv, os.getpid(), os.getcwd(), open("/proc/self/environ", "rb").read(), sys.stdin.read())))
"""
START = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from gpuhook import shim
sys.exit(shim.main(sys.argv[2:], sys.argv[1]))
"""


def start(
    prefix: Path, *arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """shim.main in a Python as bare as the launcher's."""
    return subprocess.run(
        ["/usr/bin/python3", "-ISB", "-c", START, CHECKOUT / "src", prefix, "gpuhook-runtime", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=env,
        input=text,
    )


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """An installation with a fake runtime."""
    place = tmp_path / "prefix"
    low = program(place / "low/runc", FAKE)
    (place / "etc/gpuhook").mkdir(parents=True)
    (place / "etc/gpuhook/runtime.toml").write_text(f'[runtime]\nlow-level = ["{low}"]\n')
    return place


def test_the_process_becomes_the_runtime(prefix: Path, tmp_path: Path) -> None:
    """Same arguments, working directory, environment to the byte (no LC_CTYPE of Python's own), standard input."""
    env = {"PATH": "/usr/bin", "A": "b=c", "EMPTY": "", "LC_ALL": "C", "B": "\udcff\n"}
    done = start(prefix, "--root", "create", "state", "x y", "", "--weird=\udcfe", cwd=tmp_path, env=env, text="in")
    assert done.returncode == 0, done.stderr
    argv, _, cwd, environ, stdin = eval(done.stdout)
    assert argv == [f"{prefix}/low/runc", "--root", "create", "state", "x y", "", "--weird=\udcfe"]
    assert (cwd, stdin) == (str(tmp_path), "in")
    assert sorted(environ.rstrip(b"\0").split(b"\0")) == sorted(
        f"{name}={text}".encode("utf-8", "surrogateescape") for name, text in env.items()
    )


def test_a_container_that_asks_for_nothing_keeps_its_file(prefix: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "b"
    bundle.mkdir()
    (bundle / "config.json").write_text('{ "root" : {"path":"rootfs"} ,\n "x": 1.0}')
    before = (bundle / "config.json").stat()
    done = start(prefix, "create", "--bundle", bundle, "x")
    assert done.returncode == 0, done.stderr
    after = (bundle / "config.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_help_of_create_needs_no_bundle(prefix: Path) -> None:
    assert start(prefix, "create", "--help").returncode == 0


FAILS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "usage": (("create", "--bogus", "x"), 2, "[usage]"),
    "no bundle": (("create", "--bundle", "/none", "x"), 20, "/none/config.json"),
    "spec": (("create", "--bundle", "BAD", "x"), 21, "BAD/config.json"),
}


@pytest.mark.parametrize(("words", "code", "text"), FAILS.values(), ids=FAILS)
def test_a_failure_has_its_exit_code_and_no_traceback(
    prefix: Path, tmp_path: Path, words: tuple[str, ...], code: int, text: str
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "config.json").write_text("{")
    done = start(prefix, *[word.replace("BAD", str(bad)) for word in words])
    assert done.returncode == code
    assert text.replace("BAD", str(bad)) in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert text.replace("BAD", str(bad)) in (prefix / "var/log/gpuhook/gpuhook.log").read_text()


def test_no_runtime_is_told(prefix: Path) -> None:
    (prefix / "etc/gpuhook/runtime.toml").write_text('[runtime]\nlow-level = ["/none/runc"]\n')
    done = start(prefix, "state", "x")
    assert done.returncode == 13
    assert "/none/runc" in done.stderr


def test_a_runtime_that_is_no_program_of_this_machine_is_told(prefix: Path) -> None:
    program(prefix / "low/runc", "\x7fELF garbage")
    done = start(prefix, "state", "x")
    assert done.returncode == 13
    assert "low/runc can't be run" in done.stderr


BROKEN = {"invalid": "nonsense = 1\n", "no TOML": "[", "untrusted": None}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize(("env", "asks"), [((), False), (ASKS, True)], ids=["asks nothing", "asks"])
@pytest.mark.runc
def test_a_broken_configuration_stops_only_who_asks(
    prefix: Path, tmp_path: Path, text: str | None, env: list[str], asks: bool
) -> None:
    """Design, decision 7. The runtime of the defaults is the real runc, which refuses the bundle without a root."""
    file = prefix / "etc/gpuhook/runtime.toml"
    if text is None:
        file.chmod(0o666)
    else:
        file.write_text(text)
    bundle = tmp_path / "b"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps(bundles.config(env=env)))
    before = (bundle / "config.json").read_bytes()
    done = start(
        prefix, "--root", tmp_path / "state", "create", "--bundle", bundle, "x", env={"PATH": os.environ["PATH"]}
    )
    assert (bundle / "config.json").read_bytes() == before
    if asks:
        assert done.returncode in (11, 12)
        assert "runtime.toml" in done.stderr
    else:
        assert "invalid rootfs" in done.stderr or "rootfs" in done.stderr
        assert "gpuhook" not in done.stderr


# --- the engine's log -------------------------------------------------------------------------------------------

ERROR = GpuhookError("requirement-not-met", 'needs "CUDA" 12.6', "install\nor not")


def report(*words: str | Path) -> int:
    return shim.report(ERROR, cmdline.parse("runc", [*map(str, words), "create", "-b", "/b", "x"]), SILENT)


def test_the_error_is_in_the_log_as_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text('{"level":"info","msg":"before"}\n')
    assert report("--log", log, "--log-format", "json") == 41
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[0]["msg"] == "before"
    assert (lines[1]["level"], lines[1]["msg"]) == ("error", str(ERROR))
    assert lines[1]["time"].endswith("Z")
    assert capfd.readouterr().err == f"{ERROR}\n"


def test_the_error_is_in_the_log_as_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    report("--log", log)
    line = log.read_text()
    assert line.count("\n") == 1
    assert line.startswith('time="')
    assert 'level=error msg="gpuhook: needs \\"CUDA\\" 12.6 [requirement-not-met]\\n' in line


@pytest.mark.parametrize(
    ("given", "file"),
    [("file:LOG", True), ("LOG", True), ("syslog:x", False), ("journald:x", False)],
)
def test_crun_says_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, file: bool) -> None:
    monkeypatch.chdir(tmp_path)
    command = cmdline.parse("crun", ["--log", given, "create", "-b", "/b", "x"])
    assert shim.report(ERROR, command, SILENT) == 41
    assert os.listdir(tmp_path) == (["LOG"] if file else [])


@pytest.mark.parametrize("what", ["fifo", "directory", "no folder", "full"])
def test_a_log_that_cannot_be_written_changes_nothing(tmp_path: Path, what: str) -> None:
    """A FIFO without a reader is not waited for; gpuhook's own log says what happened."""
    log = Path("/dev/full") if what == "full" else tmp_path / "x/log"
    if what != "no folder":
        (tmp_path / "x").mkdir()
    if what == "fifo":
        os.mkfifo(log)
    elif what == "directory":
        log.mkdir()
    own = tmp_path / "own"
    command = cmdline.parse("runc", ["--log", str(log), "create", "x"])
    assert shim.report(ERROR, command, Log(str(own))) == 41
    assert f"the runtime's log {log} can't be written" in own.read_text()


def test_text_that_is_no_unicode_is_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    error = GpuhookError("device-unknown", "no device \udcff\ud800")
    log = tmp_path / "log"
    command = cmdline.parse("runc", ["--log", str(log), "--log-format", "json", "create", "x"])
    assert shim.report(error, command, Log(str(tmp_path / "own"))) == 31
    assert json.loads(log.read_text())["msg"] == str(error)
    assert "\\udcff" in capfd.readouterr().err


def test_a_defect_is_one_line_with_its_place(tmp_path: Path) -> None:
    try:
        [].pop()
    except IndexError as error:
        found = shim._defect(error)
    assert found.reference == "internal"
    assert "IndexError: pop from empty list at " in found.message
    assert "test_shim_unit.py:" in found.message


# --- /dev/char ----------------------------------------------------------------------------------------------------

LINKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "not there": (lambda link: None, "../nvidia0"),
    "leads nowhere": (lambda link: link.symlink_to("../gone"), "../nvidia0"),
    "leads somewhere": (lambda link: link.symlink_to("/dev"), "/dev"),
    "a directory": (lambda link: link.mkdir(), ""),
}


@pytest.mark.parametrize(("made", "text"), LINKS.values(), ids=LINKS)
def test_the_link_of_a_number(made: Callable[[Path], object], text: str) -> None:
    """Made where there is none that leads anywhere, and nothing is left beside it."""

    def names() -> list[tuple[str, str]]:
        sandbox.mount("tmpfs", "/dev", "tmpfs")
        link = Path("/dev/char/195:0")
        link.parent.mkdir()
        made(link)
        shim.link_number(Node("/dev/nvidia0", 195, 0, 0o666, 0, 0), "/")
        return [(path.name, os.readlink(path) if path.is_symlink() else "") for path in link.parent.iterdir()]

    assert sandbox.apart(names, mounts=True) == [("195:0", text)]


# --- the grant in the spec --------------------------------------------------------------------------------------


def granted(compat: bool = False) -> grant.Grant:
    gpu = Gpu(0, "GPU-1", 0, "00000000:01:00.0", "T4", "tesla", (7, 5))
    return grant.Grant(
        request=Request(("all",), "NVIDIA_VISIBLE_DEVICES", ("utility", "compute")),
        record=Record("r1", "535.161.08", (12, 2), False, "x86-64", (gpu,), ()),
        gpus=(gpu,),
        nodes=(Node("/dev/nvidia0", 195, 0, 0o666, 0, 0),),
        compat=compat,
        warnings=(),
    )


def spec_of(tmp_path: Path, change: Any = None) -> oci.Spec:
    data = bundles.config(env=ASKS)
    if change:
        change(data)
    (tmp_path / "config.json").write_text(json.dumps(data))
    return oci.Spec(f"{tmp_path}/config.json")


@pytest.mark.parametrize("compat", [False, True])
def test_the_hook_gets_its_orders(tmp_path: Path, compat: bool) -> None:
    spec = spec_of(tmp_path)
    assert shim.write(spec, spec.container(), granted(compat), config.Config(deadline=7), "/p") == ()
    spec.save()
    hook = json.loads((tmp_path / "config.json").read_bytes())["hooks"]["prestart"][0]
    assert hook["path"] == "/p/usr/bin/gpuhook-hook"
    assert hook["timeout"] == 7 + shim._TIMEOUT_MARGIN
    words = hook["args"]
    assert words[:7] == [
        "gpuhook-hook",
        "--record",
        "r1",
        "--root",
        f"{tmp_path}/rootfs",
        "--capabilities",
        "utility,compute",
    ]
    assert ("--compat" in words) is compat


NO_DEV = {
    "nothing mounted at /dev": lambda data: data["mounts"].pop(1),
    "only below it": lambda data: data["mounts"].__setitem__(1, bundles.mount("/dev/x", "tmpfs", "tmpfs")),
    "no mounts": lambda data: data.pop("mounts"),
}


@pytest.mark.parametrize("change", NO_DEV.values(), ids=NO_DEV)
def test_without_a_mount_at_dev_nothing_is_granted(tmp_path: Path, change: Any) -> None:
    """runc would make the nodes in the image, and follow its /dev link out of it."""
    spec = spec_of(tmp_path, change)
    with pytest.raises(GpuhookError) as caught:
        shim.write(spec, spec.container(), granted(), config.Config(), "")
    assert caught.value.reference == "dev-not-mounted"


@pytest.mark.parametrize("destination", ["/dev", "/dev/", "//dev", "/x/../dev", "dev"])
def test_every_spelling_of_dev_counts(tmp_path: Path, destination: str) -> None:
    spec = spec_of(tmp_path, lambda data: data["mounts"][1].__setitem__("destination", destination))
    assert shim.write(spec, spec.container(), granted(), config.Config(), "") == ()
