"""The shim understands a command line as runc and crun do: by table, and proven against the real programs."""

import json
import subprocess
from pathlib import Path

import pytest

from gpuhook import cmdline
from gpuhook.errors import GpuhookError
from tests.bundles import tool

# dialect, words after argv[0], verb, bundle, arguments
READ = [
    ("runc", "create --bundle DIR x", "create", "DIR", ("x",)),
    ("runc", "create -bundle DIR x", "create", "DIR", ("x",)),
    ("runc", "create -b DIR x", "create", "DIR", ("x",)),
    ("runc", "create --b DIR x", "create", "DIR", ("x",)),
    ("runc", "create --bundle=DIR x", "create", "DIR", ("x",)),
    ("runc", "create -b=DIR x", "create", "DIR", ("x",)),
    ("runc", "create x --bundle DIR", "create", "DIR", ("x",)),
    ("runc", "create x --bundle=DIR", "create", "DIR", ("x",)),
    ("runc", "create --bundle DIR -- x", "create", "DIR", ("x",)),
    ("runc", "create --no-pivot=false --bundle DIR x", "create", "DIR", ("x",)),
    ("runc", "create --no-pivot --bundle DIR x", "create", "DIR", ("x",)),
    ("runc", "create --help=false --bundle DIR x", "create", "DIR", ("x",)),
    ("runc", "create --bundle=OTHER --bundle=DIR x", "create", "DIR", ("x",)),
    ("runc", "create --pid-file --bundle -b DIR x", "create", "DIR", ("x",)),
    ("runc", "create --preserve-fds 0 --bundle DIR x", "create", "DIR", ("x",)),
    ("runc", "--root ROOT create --bundle DIR x", "create", "DIR", ("x",)),
    ("runc", "-root=ROOT --debug=true create --bundle DIR x", "create", "DIR", ("x",)),
    ("runc", "--log LOG --log-format json create --bundle DIR x", "create", "DIR", ("x",)),
    ("runc", "--systemd-cgroup=false --root ROOT create --bundle DIR x", "create", "DIR", ("x",)),
    ("runc", "-- create --bundle DIR x", "create", "DIR", ("x",)),
    ("runc", "run --bundle DIR x", "run", "DIR", ("x",)),
    ("runc", "run -d --keep --no-subreaper --bundle DIR x", "run", "DIR", ("x",)),
    ("runc", "create --bundle DIR create", "create", "DIR", ("create",)),
    ("crun", "create --bundle DIR x", "create", "DIR", ("x",)),
    ("crun", "create --bundle=DIR x", "create", "DIR", ("x",)),
    ("crun", "create --bund DIR x", "create", "DIR", ("x",)),
    ("crun", "create --bu=DIR x", "create", "DIR", ("x",)),
    ("crun", "create -b DIR x", "create", "DIR", ("x",)),
    ("crun", "create -bDIR x", "create", "DIR", ("x",)),
    ("crun", "create -b DIR -- x", "create", "DIR", ("x",)),
    ("crun", "create -bOTHER --bundle DIR x", "create", "DIR", ("x",)),
    ("crun", "create --no-p --no-n --no-s -b DIR x", "create", "DIR", ("x",)),
    ("crun", "run -db DIR x", "run", "DIR", ("x",)),
    ("crun", "run -dbDIR x", "run", "DIR", ("x",)),
    ("crun", "run --det -b DIR x", "run", "DIR", ("x",)),
    ("crun", "--debug --root ROOT create -b DIR x", "create", "DIR", ("x",)),
    ("crun", "--root=ROOT create -b DIR x", "create", "DIR", ("x",)),
    ("crun", "--cgroup-m cgroupfs create -b DIR x", "create", "DIR", ("x",)),
    ("crun", "--roo ROOT create -b DIR x", "create", "DIR", ("x",)),  # not ambiguous to the real one
    ("crun", "-- create -b DIR x", "create", "DIR", ("x",)),
    ("crun", "create -b DIR create", "create", "DIR", ("create",)),
]
READ_IDS = [f"{row[0]} {row[1]}" for row in READ]


@pytest.mark.parametrize(("dialect", "words", "verb", "bundle", "arguments"), READ, ids=READ_IDS)
def test_a_create_is_understood(dialect: str, words: str, verb: str, bundle: str, arguments: tuple[str, ...]) -> None:
    """R131: what the shim looks for is found wherever the command line has it."""
    command = cmdline.parse(dialect, words.split())
    assert (command.verb, command.get("bundle"), command.arguments) == (verb, bundle, arguments)
    assert not command.asks_help


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    """DIR holds a spec that runtimes read and refuse for its root or terminal, others one that is no JSON."""
    spec = {
        "ociVersion": "1.0.2",
        "process": {"args": ["x"], "cwd": "/", "terminal": True, "user": {"uid": 0, "gid": 0}},
        "root": {"path": "/nowhere"},
        "mounts": [],
        "linux": {"namespaces": [{"type": "mount"}]},
    }
    for name, text in (("DIR", json.dumps(spec)), ("OTHER", "no JSON"), (".", "no JSON")):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "config.json").write_text(text)
    (tmp_path / "good.json").write_text(json.dumps(spec))
    (tmp_path / "bad.json").write_text("no JSON")
    return tmp_path


READ_BY = {  # what the real runtime says of the spec in DIR, and of one that is no JSON
    "runc": ("/nowhere", "invalid character"),
    "crun": ("when a terminal is used", "error loading config.json"),
}


def _refusal(runtime: str, words: str, cwd: Path) -> str:
    done = subprocess.run([tool(runtime), *words.split()], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode != 0, "the bundle was meant to be refused"
    log = cwd / "LOG"
    return done.stdout + done.stderr + (log.read_text() if log.exists() else "")


@pytest.mark.runc
@pytest.mark.parametrize(("dialect", "words"), [row[:2] for row in READ], ids=READ_IDS)
def test_the_real_runtime_reads_the_same_bundle(dialect: str, words: str, bundles: Path) -> None:
    """The table above is proven: only the spec in DIR is good, so the real parser went where the table says."""
    assert READ_BY[dialect][0] in _refusal(dialect, words, bundles)


@pytest.mark.runc
@pytest.mark.parametrize("dialect", ["runc", "crun"])
def test_the_real_runtime_tells_another_bundle(dialect: str, bundles: Path) -> None:
    """Self-check of the proof: a wrong bundle gives another text."""
    said = _refusal(dialect, "create --bundle OTHER x", bundles)
    assert READ_BY[dialect][1] in said
    assert READ_BY[dialect][0] not in said


CONFIGS = [  # crun's own option: relative to the working directory, but for the name config.json itself
    ("create -f good.json -b OTHER x", "good.json", 0),
    ("create --config=good.json -b OTHER x", "good.json", 0),
    ("create -fgood.json -bOTHER x", "good.json", 0),
    ("create -f config.json -b DIR x", "config.json", 0),
    ("create -f bad.json -b DIR x", "bad.json", 1),
    ("create -f ./config.json -b DIR x", "./config.json", 1),
]


@pytest.mark.runc
@pytest.mark.parametrize(("words", "config", "which"), CONFIGS, ids=[row[0] for row in CONFIGS])
def test_crun_config(words: str, config: str, which: int, bundles: Path) -> None:
    """`--config` is read as crun reads it."""
    assert cmdline.parse("crun", words.split()).get("config") == config
    assert READ_BY["crun"][which] in _refusal("crun", words, bundles)


REFUSED = [
    ("runc", "create --bogus --bundle DIR x"),
    ("runc", "create -bDIR x"),
    ("runc", "create --bund DIR x"),
    ("runc", "create ---bundle DIR x"),
    ("runc", "create -f good.json x"),
    ("runc", "create x --bundle"),
    ("runc", "--bogus create x"),
    ("runc", "run --bogus x"),
    ("crun", "create --bogus -b DIR x"),
    ("crun", "create -z -b DIR x"),
    ("crun", "create --no -b DIR x"),
    ("crun", "create --p 1 -b DIR x"),
    ("crun", "create --no-pivot=true -b DIR x"),
    ("crun", "create -b"),
    ("crun", "create -db DIR x"),
    ("crun", "--bogus create x"),
]


@pytest.mark.parametrize(("dialect", "words"), REFUSED, ids=[f"{row[0]} {row[1]}" for row in REFUSED])
def test_what_is_not_understood_is_a_usage_error(dialect: str, words: str) -> None:
    with pytest.raises(GpuhookError) as caught:
        cmdline.parse(dialect, words.split())
    assert caught.value.reference == "usage"
    assert caught.value.exit_code == 2


@pytest.mark.runc
@pytest.mark.parametrize(("dialect", "words"), REFUSED, ids=[f"{row[0]} {row[1]}" for row in REFUSED])
def test_what_is_not_understood_the_real_runtime_refuses_too(dialect: str, words: str, bundles: Path) -> None:
    """The shim refuses nothing that the real runtime would have started."""
    said = _refusal(dialect, words, bundles)
    assert READ_BY[dialect][0] not in said


CREATES_NOTHING = [
    ("runc", "", ""),
    ("runc", "--version", ""),
    ("runc", "-v create", "create"),
    ("runc", "features", "features"),
    ("runc", "--root create delete x", "delete"),
    ("runc", "--root=create state create", "state"),
    ("runc", "exec --bogus -t create sh", "exec"),
    ("runc", "restore --bundle DIR --image-path run x", "restore"),
    ("runc", "--bogus value state x", ""),
    ("runc", "start create", "start"),
    ("runc", "create --help", "create"),
    ("runc", "create -h=true x", "create"),
    ("runc", "create --help --bundle DIR x", "create"),
    ("crun", "", ""),
    ("crun", "--version", ""),
    ("crun", "-V", ""),
    ("crun", "-v", ""),
    ("crun", "--vers create", "create"),
    ("crun", "--root create delete x", "delete"),
    ("crun", "exec --bogus create sh", "exec"),
    ("crun", "--bogus state x", ""),
    ("crun", "create --usage", "create"),
    ("crun", "create -? x", "create"),
    ("crun", "run --h", "run"),
]


@pytest.mark.parametrize(
    ("dialect", "words", "verb"), CREATES_NOTHING, ids=[f"{row[0]} {row[1]}" for row in CREATES_NOTHING]
)
def test_what_creates_nothing_is_passed_on(dialect: str, words: str, verb: str) -> None:
    command = cmdline.parse(dialect, words.split())
    assert command.verb == verb
    assert command.verb not in cmdline.CREATING or command.asks_help


def test_log_and_format_come_from_the_global_options() -> None:
    """What the error report needs is there whatever the verb is."""
    command = cmdline.parse("runc", ["--log", "/a", "--log=/b", "-log-format=json", "create", "-b", "/c", "x"])
    assert (command.get("log"), command.get("log-format"), command.get("bundle")) == ("/b", "json", "/c")
    assert command.get("root", "none") == "none"


def test_the_arguments_given_are_left_as_they_are() -> None:
    """The shim hands the same list to the runtime."""
    for dialect in ("runc", "crun"):
        argv = ["--debug", "create", "--bundle", "DIR", "x"]
        cmdline.parse(dialect, argv)
        assert argv == ["--debug", "create", "--bundle", "DIR", "x"]
