"""`gpuhook config`: what a person sees of runtime.toml."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuhook import configfile
from gpuhook.cli.config import config
from gpuhook.errors import GpuhookError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    (tmp_path / "etc/gpuhook").mkdir(parents=True)
    return str(tmp_path)


def run(prefix: str, *args: str) -> Result:
    return CliRunner().invoke(config, args, obj=prefix)


def put(prefix: str, text: str) -> Path:
    path = Path(prefix, "etc/gpuhook/runtime.toml")
    path.write_text(text)
    return path


def test_path(prefix: str) -> None:
    assert run(prefix, "path").output == f"{prefix}/etc/gpuhook/runtime.toml\n"


def test_show_prints_every_key_with_its_value_and_source_as_toml(prefix: str) -> None:
    put(prefix, '[requirement]\npolicy = "warn"\n')
    shown = run(prefix, "show").output
    assert 'policy = "warn"  # file\n' in shown
    assert "deadline = 20  # default\n" in shown
    parsed = configfile.parse(shown.encode())
    assert (parsed.problems, len(parsed.given)) == ((), len(configfile.KEYS))
    assert parsed.config.policy == "warn"


def test_show_without_a_file_says_so(prefix: str) -> None:
    result = run(prefix, "show")
    assert "(not there: defaults)" in result.output
    assert tomllib.loads(result.output)["hook"]["stage"] == "prestart"
    assert not Path(prefix, "run").exists(), "looking changes nothing"


def test_show_as_json(prefix: str) -> None:
    put(prefix, "[driver]\nsockets = []\n")
    item = json.loads(run(prefix, "show", "--json").output)
    assert item["keys"]["driver.sockets"] == {"value": [], "source": "file"}
    assert item["keys"]["log.level"] == {"value": "info", "source": "default"}
    assert len(item["keys"]) == len(configfile.KEYS)


def test_show_of_a_file_that_is_not_trusted_is_refused(prefix: str) -> None:
    put(prefix, "").chmod(0o666)
    error = run(prefix, "show").exception
    assert isinstance(error, GpuhookError)
    assert error.reference == "config-untrusted"


def test_validate_tells_every_error_with_its_line(prefix: str) -> None:
    path = put(prefix, '[log]\nlevel = "x"\nfle = ""\n[hook]\ndeadline = 0\n[hok]\n')
    error = run(prefix, "validate").exception
    assert isinstance(error, GpuhookError)
    assert error.reference == "config-invalid"
    lines = error.message.splitlines()
    assert [line.strip().split(": ")[:2] for line in lines] == [  # each with its hint
        [f"{path}:2", "log.level"],
        [f"{path}:3", "log.fle"],
        [f"{path}:5", "hook.deadline"],
        [f"{path}:6", "hok"],
    ]
    assert lines[1].endswith("no such key (did you mean file)")
    assert error.hint == "correct these 4 places"


def test_validate_of_a_right_file_and_of_none(prefix: str) -> None:
    result = run(prefix, "validate")
    assert (result.exit_code, "the defaults hold" in result.output) == (0, True)
    put(prefix, "[hook]\ndeadline = 3\n")
    result = run(prefix, "validate")
    assert (result.exit_code, result.output) == (0, f"{prefix}/etc/gpuhook/runtime.toml is right\n")
    result = run(prefix, "validate", str(ROOT / "config/runtime.toml"))
    assert result.exit_code == 0


def test_a_draft_need_not_be_trusted_and_the_file_in_force_must_be(prefix: str) -> None:
    draft = put(prefix, "")
    draft.chmod(0o666)
    assert run(prefix, "validate", str(draft)).exit_code == 0
    error = run(prefix, "validate").exception
    assert isinstance(error, GpuhookError)
    assert error.reference == "config-untrusted"


@pytest.mark.parametrize("name", ["nowhere", "", "etc"])
def test_a_draft_that_cannot_be_read(prefix: str, name: str) -> None:
    error = run(prefix, "validate", f"{prefix}/{name}").exception
    assert isinstance(error, GpuhookError)
    assert error.reference == "config-invalid"
    assert error.hint.startswith("name a runtime.toml")


NO_TOML = {
    "section": ("[driver\n", "write the section's name between [ and ]"),
    "list": ('[driver]\nsockets = ["/a"\n', "close the list with ]"),
    "text without quotes": ("[log]\nlevel = info\n", "text values need double quotes"),
    "text without its end": ('[log]\nlevel = "info\n', "close the text"),
    "twice": ('[log]\nlevel = "info"\nlevel = "info"\n', "leave only one"),
    "a table twice": ('[driver]\n[log]\n[driver]\ndev-root = "/"\n', "put its keys there"),
}


@pytest.mark.parametrize(("text", "hint"), NO_TOML.values(), ids=NO_TOML)
def test_what_is_no_toml_has_a_fitting_hint(prefix: str, text: str, hint: str) -> None:
    put(prefix, text)
    error = run(prefix, "validate").exception
    assert isinstance(error, GpuhookError)
    assert hint in error.hint


def test_what_only_the_schema_refuses_is_told_too(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema is a second opinion: with our own checks out of the way it names line, key and text itself."""
    path = put(prefix, "\n[hook]\ndeadline = 0\n")
    nothing = configfile.Parsed(configfile.parse(b"").config, frozenset(), ())
    monkeypatch.setattr(configfile, "parse", lambda data: nothing)
    error = run(prefix, "validate").exception
    assert isinstance(error, GpuhookError)
    assert error.message.startswith(f"{path}:3: hook.deadline: 0 is less than the minimum")
