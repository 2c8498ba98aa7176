"""runtime.toml: what it may say, whom it may come from, and the compiled forms made of it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhook import config, configfile, configtrust, fastpath
from gpuhook.config import Config
from gpuhook.errors import GpuhookError
from gpuhook.model import replace
from tests import sandbox

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "src/gpuhook/runtime-schema.json").read_text())


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    (tmp_path / "etc/gpuhook").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    return str(tmp_path)


def put(prefix: str, text: str, mode: int = 0o644) -> Path:
    path = Path(config.paths(prefix).config)
    path.write_text(text)
    path.chmod(mode)
    return path


def refused(prefix: str) -> GpuhookError:
    with pytest.raises(GpuhookError) as caught:
        config.load(prefix)
    return caught.value


# --- values and defaults ------------------------------------------------------------------------------------------


def test_without_a_file_the_defaults_hold_and_nothing_is_written(prefix: str) -> None:
    assert config.load(prefix) == Config() == config.defaults()
    assert os.listdir(f"{prefix}/run") == []


def test_paths_lie_below_the_prefix() -> None:
    assert config.paths("") == config.Paths("/etc/gpuhook/runtime.toml", "/run/gpuhook", "/var/log/gpuhook/gpuhook.log")
    assert config.paths("/x").state == "/x/run/gpuhook"


@pytest.mark.parametrize(
    ("log_file", "path"), [("", "/p/var/log/gpuhook/gpuhook.log"), ("none", ""), ("/var/log/x", "/var/log/x")]
)
def test_log_path(log_file: str, path: str) -> None:
    assert config.log_path(replace(Config(), log_file=log_file), "/p") == path


def test_file_schema_page_and_fields_have_the_same_keys_and_defaults() -> None:
    """The shipped file with every # taken off has every key and means the defaults; as shipped, it sets none."""
    shipped = (ROOT / "config/runtime.toml").read_text()
    assert configfile.parse(shipped.encode()) == configfile.Parsed(Config(), frozenset(), ())
    active = re.sub(r"^#(?=[a-z-]+ = |  \"|\])", "", shipped, flags=re.MULTILINE)
    parsed = configfile.parse(active.encode())
    keys = {key.dotted for key in configfile.KEYS}
    assert (parsed.problems, parsed.config) == ((), Config())
    assert parsed.given == keys
    jsonschema.validate(tomllib.loads(active), SCHEMA)
    assert {f"{s}.{k}" for s, t in SCHEMA["properties"].items() for k in t["properties"]} == keys
    assert sorted(key.field for key in configfile.KEYS) == sorted(config.FIELDS)
    page = (ROOT / "docs/configuration.md").read_text().partition("\n## Keys\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE) == [key.dotted for key in configfile.KEYS]
    for key, default in re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", page, re.MULTILINE):
        assert f"\n#{key.split('.')[1]} = {default}\n" in shipped, key


@pytest.mark.parametrize(
    ("text", "field", "expected"),
    [
        ('[runtime]\nlow-level = ["/usr/sbin/runc", "youki"]', "low_level", ("/usr/sbin/runc", "youki")),
        ('[hook]\nstage = "createRuntime"', "stage", "createRuntime"),
        ("[hook]\ndeadline = 1", "deadline", 1),
        ('[driver]\ndriver-root = "/run/nvidia//driver/"', "driver_root", "/run/nvidia/driver"),
        ('driver.dev-root = "/"', "dev_root", "/"),
        ('[driver]\nlibrary-dirs = ["/a", "/a/", "/b"]', "library_dirs", ("/a", "/b")),
        ("[driver]\nsockets = []", "sockets", ()),
        ('[driver]\nextra-libraries = ["libfoo.so.*"]', "extra_libraries", ("libfoo.so.*",)),
        (
            '[request]\nsupported-driver-capabilities = ["utility", "compute"]',
            "supported_capabilities",
            ("compute", "utility"),
        ),
        ('[request]\nsupported-driver-capabilities = ["all"]', "supported_capabilities", config.CAPABILITIES),
        ("[request]\nsupported-driver-capabilities = []", "supported_capabilities", ()),
        ("[request]\naccept-env-when-unprivileged = false", "accept_env_when_unprivileged", False),
        (
            "[request]\naccept-devices-as-volume-mounts = true",
            "accept_devices_as_volume_mounts",
            True,
        ),
        ("[request]\naccept-label-annotations = true", "accept_label_annotations", True),
        ('[request]\nannotation-prefixes = ["cdi.k8s.io/", "x.y/z"]', "annotation_prefixes", ("cdi.k8s.io/", "x.y/z")),
        (
            '[request]\nswarm-resources = ["DOCKER_RESOURCE_NVIDIA-GPU", "B"]',
            "swarm_resources",
            ("DOCKER_RESOURCE_NVIDIA-GPU", "B"),
        ),
        ('[requirement]\npolicy = "minor-compat"', "policy", "minor-compat"),
        ('[log]\nfile = "none"', "log_file", "none"),
        ('[log]\nfile = "/var/log/g.log"', "log_file", "/var/log/g.log"),
    ],
)
def test_a_value_is_taken_from_the_file(prefix: str, text: str, field: str, expected: object) -> None:
    """Once from TOML, once from the compiled form; the schema agrees; every other field keeps its default."""
    put(prefix, text)
    for _ in range(2):
        assert config.load(prefix) == replace(Config(), **{field: expected})
    jsonschema.validate(tomllib.loads(text), SCHEMA)


BAD = {  # text -> line, part of the sentence, part of the hint, whether the schema refuses it too
    '[hook]\nstge = "prestart"': (2, "hook.stge: no such key", "did you mean stage", True),
    '[hook]\n\npolicy = "strict"': (3, "hook.policy: no such key", "policy belongs below [requirement]", True),
    '[hook]\npolcy = "strict"': (2, "no such key", "did you mean requirement.policy (below [requirement])", True),
    '[hook]\nsupported-capabilities = "x"': (
        2,
        "hook.supported-capabilities: no such key",
        "did you mean request.supported-driver-capabilities (below [request])",
        True,
    ),
    '[request]\nswarm-resources = "A,B"': (2, "must be a list, is text", "write a list", True),
    '[request]\nswarm-resources = ["A=B"]': (2, "'A=B' is no name of a variable", "DOCKER_RESOURCE_GPU", True),
    '[request]\nannotation-prefixes = ["cdi.k8s.io"]': (2, "no beginning of an annotation's name", "its slash", True),
    '[request]\nannotation-prefixes = [""]': (2, "no beginning of an annotation's name", "its slash", True),
    '[request]\naccept-label-annotations = "yes"': (2, "must be true or false", "without quotes", True),
    "[log]\nzzz = 1": (2, "log.zzz: no such key", "there are file, level", True),
    "[hok]\n": (1, "hok: no such section", "did you mean hook", True),
    "\n[nvidia-container-cli]\nroot = '/'": (2, "nvidia-container-cli: no such section", "there are [runtime]", True),
    'policy = "strict"': (1, "policy: stands outside of its section", "write it below [requirement]", True),
    "hook = 3": (1, "hook: must be a section, is a whole number", "[hook]", True),
    "[[hook]]\ndeadline = 3": (0, "hook: must be a section, is a list", "[hook]", True),
    '[requirement]\npolicy = "lenient"': (2, "'lenient', and must be one of: strict, minor-compat", "", True),
    '[requirement]\npolicy = "minor_compat"': (2, "'minor_compat'", "did you mean minor-compat", True),
    '[hook]\nstage = "createContainer"': (
        2,
        "'createContainer', and must be one of: prestart, createRuntime",
        "",
        True,
    ),
    "[hook]\nstage = 3": (2, "must be text in quotes, is a whole number ('3')", 'write "3"', True),
    '[hook]\ndeadline = "20"': (2, "must be whole seconds, is text ('20')", "1 to 600", True),
    "[hook]\ndeadline = true": (2, "must be whole seconds, is true or false", "", True),
    "[hook]\ndeadline = 1.5": (2, "must be whole seconds, is a number", "", True),
    "[hook]\ndeadline = 0": (2, "is 0, and must be 1 to 600 seconds", "", True),
    "[driver]\nnvml-deadline = 121": (2, "is 121", "1 to 120", True),
    '[driver]\n# c\ndriver-root = "run/x"': (3, "'run/x' is no absolute path", "starts with /", True),
    '[driver]\nproc-root = "/a/../b"': (2, "'/a/../b' has a .. in it", "", False),
    '[driver]\nlibrary-dirs = [\n "/a",\n "b",\n]': (4, "'b' is no absolute path", "", True),
    '[driver]\nlibrary-dirs = "/a"': (2, "must be a list, is text", '["one", "two"]', True),
    '[driver]\ndirectories = ["/tmp"]': (2, "'/tmp' is too wide", "below it", True),
    '[driver]\nextra-libraries = ["lib/x.so"]': (2, "'lib/x.so' is no file name", "", True),
    '[driver]\nextra-libraries = ["*.so"]': (2, "'*.so' would match nearly every file", "", True),
    '[driver]\nexcluded-libraries = ["lib[a].so"]': (2, "do not know", "", True),
    "[runtime]\nlow-level = []": (2, "is an empty list", "at least 1", True),
    '[runtime]\nlow-level = ["runc", "bin/crun"]': (2, "'bin/crun' is a relative path", "bare name", True),
    '[runtime]\nlow-level = ["runc; rm -rf /"]': (2, "is no program name", "", True),
    '[runtime]\nlow-level = ["-x"]': (2, "is no program name", "", True),
    '[runtime]\nlow-level = ["/usr/bin/"]': (2, "is no program name", "", True),
    '[runtime]\nlow-level = ["/usr/bin/gpuhook-runtime"]': (2, "is gpuhook itself", "runc or crun", False),
    '[request]\nsupported-driver-capabilities = ["compute", "grafics"]': (
        2,
        "'grafics' is no capability",
        "did you mean graphics",
        True,
    ),
    '[request]\nlegacy-images = "no"': (2, "must be true or false, is text", "without quotes", True),
    '[log]\nfile = "gpuhook.log"': (2, "'gpuhook.log' is no absolute path", "", True),
    '[log]\nfile = "/a\\u001bb"': (2, "unprintable characters: '/a\\x1bb'", "", False),
    '[log]\nlevel = "trace"': (2, "'trace', and must be one of: error, warning, info, debug", "", True),
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_is_refused_with_file_line_key_and_text(prefix: str, text: str) -> None:
    line, sentence, hint, by_schema = BAD[text]
    path = put(prefix, text)
    error = refused(prefix)
    assert error.reference == "config-invalid"
    assert error.message.startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert sentence in error.message
    assert hint in error.hint
    assert "\n" not in error.message
    assert not os.path.exists(f"{prefix}/run/gpuhook"), "nothing may be compiled of a bad file"
    assert by_schema == (not jsonschema.Draft202012Validator(SCHEMA).is_valid(tomllib.loads(text)))


@pytest.mark.parametrize(
    ("data", "line", "sentence"),
    [
        (b"[hook]\nstage = prestart\n", 2, "in 'stage = prestart'"),
        (b"[hook\n", 1, "no TOML"),
        (b"[hook]\nstage = 'a'\nstage = 'b'\n", 3, "no TOML: the key hook.stage is at line 2 already, in"),
        (b"[driver]\n\n[log]\n[driver]\n", 4, "no TOML: the table [driver] is at line 1 already, in '[driver]'"),
        (b"\n\n[log]\nfile = '\xff'\n", 4, "no UTF-8 text"),
        (b"a = " + b"[" * 100000, 1, "no TOML: nested too deeply"),
        (b'a = """x\n', 1, "no TOML"),
        (b"[hook]\n" + b"a." * 30000 + b"a = 1", 2, "a key of more than 100 parts"),
        (b"[" + b'"a" . ' * 30000 + b"a]", 1, "a key of more than 100 parts"),
        (b"[hook]\ndeadline = " + b"1" * 5000, 2, "a number of too many digits"),
    ],
    ids=[
        "no quotes",
        "open header",
        "key twice",
        "table twice",
        "latin-1",
        "deep",
        "open text",
        "a deep key",
        "a deep header",
        "digits",
    ],
)
def test_what_is_no_toml_is_refused_with_its_line(data: bytes, line: int, sentence: str) -> None:
    (problem,) = configfile.parse(data).problems
    assert (problem.line, problem.key) == (line, "")
    assert sentence in problem.text


DIGITS = "0x" + "f" * 5000


@pytest.mark.parametrize(
    "text",
    [
        f"[hook]\ndeadline = {DIGITS}",
        f"[driver]\nmake-nodes = {DIGITS}",
        f"[driver]\nlibrary-dirs = [{DIGITS}]",
        f"[log]\nlevel = {DIGITS}",
        f"[driver]\nsockets = {DIGITS}",
    ],
    ids=["seconds", "boolean", "in a list", "word", "list"],
)
def test_a_number_that_cannot_be_shown_is_refused(text: str) -> None:
    """Python writes no number of more than 4300 digits, and reads hexadecimal ones of any length."""
    (problem,) = configfile.parse(text.encode()).problems
    assert problem.line == 2
    assert problem.text == "a number of too many digits"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    ["".join(f"[a{number}]\n" for number in range(50000)), "[hook]\n" + "".join(f"a{n}=1\n" for n in range(50000))],
    ids=["sections", "keys"],
)
def test_a_file_full_of_mistakes_is_refused_soon(text: str) -> None:
    assert len(configfile.parse(text.encode()).problems) == 64


@pytest.mark.parametrize(
    "text",
    [
        "[driver]\nlibrary-dirs = [" + ", ".join(f'"/a.b.c/{number}.d"' for number in range(60)) + "]",
        "[hook]\n# " + "." * 500 + "\ndeadline = 3",
        "[driver]\nlibrary-dirs = ['/" + "a." * 1000 + "b']",
    ],
    ids=["a list of names", "a comment", "a long name"],
)
def test_dots_that_are_no_key_are_taken(text: str) -> None:
    assert configfile.parse(text.encode()).problems == ()


def test_load_tells_the_first_of_several_errors_and_how_many_more(prefix: str) -> None:
    put(prefix, "[log]\nlevel = 1\n[hook]\nstage = 2\ndeadline = 'x'\n")
    error = refused(prefix)
    assert ":2: log.level" in error.message
    assert "hook." not in error.message
    assert "2 more: run gpuhook config validate" in error.hint


@pytest.mark.parametrize(
    ("text", "section", "key", "part", "line"),
    [
        ("[a]\nx = 1\n[b]\nx = 2\n", "b", "x", "", 4),
        ("a.x = 1\n", "a", "x", "", 1),
        ('[ "a" ] # c\n  "x"=1\n', "a", "x", "", 2),
        ("a = { x = 1 }\n", "a", "x", "", 1),
        ("[z]\nt = '''\n[a]\nx = 1\n'''\n[a]\nx = 2\n", "a", "x", "", 7),
        ("[a]\nx = [\n 'p',\n 'q']\ny = 'q'\n", "a", "x", "q", 4),
        ("[a]\nx = [\n 'p']\ny = 'q'\n", "a", "x", "q", 2),
        ("[a]\n", "a", "y", "", 1),
        ("", "a", "y", "", 0),
    ],
)
def test_find_gives_the_line_of_a_key(text: str, section: str, key: str, part: str, line: int) -> None:
    assert configfile.find(text.splitlines(), section, key, part) == line


@given(st.one_of(st.binary(max_size=200), st.text(alphabet="[]=\"'.ahok \n#{}1,", max_size=60).map(str.encode)))
def test_parse_never_raises(data: bytes) -> None:
    parsed = configfile.parse(data)
    assert parsed.problems or parsed.given <= {key.dotted for key in configfile.KEYS}


# --- files that cannot be read or trusted -------------------------------------------------------------------------


def _as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _as_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def _as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _as_link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _below_a_file(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("")


def _too_long(path: Path) -> None:
    path.write_bytes(b"#" * (config.LIMIT + 1))


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (_as_directory, "is no regular file"),
        (_as_pipe, "is no regular file"),
        (_as_dangling_link, "link that leads nowhere"),
        (_as_link_to_itself, "cannot be read"),
        (_below_a_file, "cannot be read"),
        (_too_long, "is longer than"),
    ],
)
def test_what_cannot_be_read_is_an_error_and_never_the_defaults(
    prefix: str, break_it: Callable[[Path], None], text: str
) -> None:
    path = put(prefix, "")
    break_it(path)
    error = refused(prefix)
    assert error.reference == "config-invalid"
    assert str(path) in error.message
    assert text in error.message


@pytest.mark.parametrize(
    ("what", "mode", "owner", "text", "cure"),
    [
        ("etc/gpuhook/runtime.toml", 0o664, 0, "may be written by group", "chmod go-w {}"),
        ("etc/gpuhook/runtime.toml", 0o646, 0, "may be written by everyone (mode 0646)", "chmod go-w {}"),
        ("etc/gpuhook/runtime.toml", 0o644, 1234, "belongs to user 1234, not to root", "chown root:root {}"),
        ("etc/gpuhook", 0o775, 0, "may be written by group", "chmod go-w {}"),
        ("etc", 0o777, 0, "may be written by everyone", "chmod go-w {}"),
        ("etc", 0o755, 1234, "belongs to user 1234", "chown root:root {}"),
        # a home, a checkout: not to be given to root
        ("", 0o755, 1234, "belongs to user 1234", "put the configuration below directories that root owns"),
        ("", 0o777, 0, "may be written by everyone", "put the configuration below directories that root owns"),
    ],
)
def test_what_others_may_change_is_not_used(
    prefix: str, what: str, mode: int, owner: int, text: str, cure: str
) -> None:
    """Each of the file and its directories, by mode and by owner; the hint is the command that cures it, but for a
    directory above the prefix, which is not gpuhook's."""
    put(prefix, '[requirement]\npolicy = "off"')
    path = f"{prefix}/{what}".rstrip("/")
    os.chown(path, owner, 0)
    os.chmod(path, mode)
    error = refused(prefix)
    assert error.reference == "config-untrusted"
    assert path in error.message
    assert text in error.message
    assert error.hint.startswith(cure.format(path))


def test_a_sticky_directory_passes_if_the_entry_is_ours(prefix: str) -> None:
    put(prefix, "")
    os.chmod(f"{prefix}/etc", 0o1777)
    assert config.load(prefix) == Config()
    os.chown(f"{prefix}/etc/gpuhook", 1234, 0)
    os.chmod(f"{prefix}/etc/gpuhook", 0o700)
    os.unlink(f"{prefix}/run/gpuhook/config.json")
    assert refused(prefix).reference == "config-untrusted"


def test_a_link_into_a_store_is_followed_and_its_way_is_checked_too(prefix: str) -> None:
    """NixOS links /etc/gpuhook/runtime.toml through two links into its store, a sticky directory."""
    path = put(prefix, "")
    store = Path(prefix, "store")
    (store / "hash").mkdir(parents=True)
    store.chmod(0o1775)
    (store / "hash/runtime.toml").write_text("[hook]\ndeadline = 7\n")
    (store / "static").symlink_to("hash")
    path.unlink()
    path.symlink_to("../../store/static/../static/runtime.toml")
    assert config.load(prefix).deadline == 7
    os.chown(store / "static", 1234, 0, follow_symlinks=False)
    Path(prefix, "run/gpuhook/config.json").unlink()
    error = refused(prefix)
    assert (error.reference, error.hint) == ("config-untrusted", f"chown -h root:root {store}/static")


def test_a_caller_who_is_not_root_trusts_root_and_himself_only(prefix: str) -> None:
    """The rule depends on who asks: user 1234 takes his own file, and refuses that of user 1235."""
    path = put(prefix, "[hook]\ndeadline = 9\n")
    reach = Path(prefix)
    script = (
        # all is imported as root, since a checkout may lie where user 1234 may not go
        "import os, sys; sys.path.insert(0, sys.argv[2])\n"
        "from gpuhook import config, configfile, configtrust, errors, fastpath\n"
        "os.setgroups([]); os.setgid(1234); os.setuid(1234)\n"
        "try: print(config.load(sys.argv[1]).deadline)\n"
        "except errors.GpuhookError as error: print(error.reference)\n"
    )
    opened = [folder for folder in reach.parents if str(folder).startswith("/tmp/pytest")]
    modes = [(folder, folder.stat().st_mode) for folder in (reach, *opened)]
    try:
        for folder, _ in modes:
            folder.chmod(0o755)
        for owner, said in ((0, "9"), (1234, "9"), (1235, "config-untrusted")):
            os.chown(path, owner, 0)
            command = [sys.executable, "-IS", "-c", script, prefix, str(ROOT / "src")]
            assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == said
    finally:
        for folder, mode in modes:
            folder.chmod(mode & 0o7777)


# --- the compiled forms -------------------------------------------------------------------------------------------


def compiled(prefix: str) -> Path:
    return Path(prefix, "run/gpuhook/config.json")


def tamper(prefix: str, **fields: object) -> None:
    """Change the compiled form and keep its key: what a load then gives shows whether it was used."""
    item = json.loads(compiled(prefix).read_text())
    item["fields"].update(fields)
    compiled(prefix).write_text(json.dumps(item))


def test_the_second_load_uses_the_compiled_form_and_imports_no_tomllib(prefix: str) -> None:
    put(prefix, "[hook]\ndeadline = 9\n")
    script = "import sys; from gpuhook import config; print(config.load(sys.argv[1]).deadline, *sorted(sys.modules))"
    command = [sys.executable, "-ISc", "import sys; sys.path.insert(0, sys.argv.pop(1));" + script, str(ROOT / "src")]
    said = [subprocess.run([*command, prefix], capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert said[0].startswith("9 ")
    assert said[1].startswith("9 ")
    assert "tomllib" in said[0]
    loaded = set(said[1].split()[1:])
    assert not loaded & {"tomllib", "os", "re", "json", "gpuhook.configfile", "gpuhook.configtrust", "gpuhook.fastpath"}
    tamper(prefix, deadline=11)
    assert config.load(prefix).deadline == 11, "the compiled form is what was read"


def _touch(prefix: str) -> None:
    os.utime(config.paths(prefix).config)


def _replace_with_an_old_date(prefix: str) -> None:
    path = config.paths(prefix).config
    Path(path + ".new").write_bytes(Path(path).read_bytes())
    os.utime(path + ".new", (1, 1))
    os.rename(path + ".new", path)


def _writable_by_others(prefix: str) -> None:
    compiled(prefix).chmod(0o666)


def _foreign(prefix: str) -> None:
    os.chown(compiled(prefix), 1234, 0)


def _foreign_directory(prefix: str) -> None:
    os.chown(compiled(prefix).parent, 1234, 0)


def _writable_directory(prefix: str) -> None:
    compiled(prefix).parent.chmod(0o777)


def _link(prefix: str) -> None:
    compiled(prefix).rename(compiled(prefix).with_name("other"))
    compiled(prefix).symlink_to("other")


def _half_written(prefix: str) -> None:
    compiled(prefix).write_bytes(compiled(prefix).read_bytes()[:-20])


def _not_an_object(prefix: str) -> None:
    compiled(prefix).write_text("[1]")


def _field_missing(prefix: str) -> None:
    item = json.loads(compiled(prefix).read_text())
    del item["fields"]["policy"]
    compiled(prefix).write_text(json.dumps(item))


def _field_of_another_type(prefix: str) -> None:
    tamper(prefix, policy=["off"])


def _list_of_numbers(prefix: str) -> None:
    tamper(prefix, low_level=[1])


def _unknown_field(prefix: str) -> None:
    tamper(prefix, other="x")


def _other_version(prefix: str) -> None:
    item = json.loads(compiled(prefix).read_text())
    item["key"][0] = "0.0.0"
    compiled(prefix).write_text(json.dumps(item))


def _too_much(prefix: str) -> None:
    compiled(prefix).write_bytes(compiled(prefix).read_bytes() + b" " * config.LIMIT)


@pytest.mark.parametrize(
    "spoil",
    [
        _touch,
        _replace_with_an_old_date,
        _writable_by_others,
        _foreign,
        _foreign_directory,
        _writable_directory,
        _link,
        _half_written,
        _not_an_object,
        _field_missing,
        _field_of_another_type,
        _list_of_numbers,
        _unknown_field,
        _other_version,
        _too_much,
    ],
)
def test_a_compiled_form_that_does_not_fit_is_not_used(prefix: str, spoil: Callable[[str], None]) -> None:
    put(prefix, "[hook]\ndeadline = 9\n")
    config.load(prefix)
    tamper(prefix, deadline=11)
    assert config.load(prefix).deadline == 11
    spoil(prefix)
    assert config.load(prefix).deadline == 9


def test_a_spoilt_compiled_form_is_replaced_and_nothing_else_is_left(prefix: str) -> None:
    put(prefix, "[hook]\ndeadline = 9\n")
    config.load(prefix)
    _half_written(prefix)
    config.load(prefix)
    assert json.loads(compiled(prefix).read_text())["fields"]["deadline"] == 9
    assert sorted(os.listdir(compiled(prefix).parent)) == ["config.json", "shim.sh"]
    assert compiled(prefix).stat().st_mode & 0o7777 == 0o644


def test_the_shell_fragment_carries_the_time_of_the_file_it_was_made_of(prefix: str) -> None:
    path = put(prefix, '[runtime]\nlow-level = ["/usr/sbin/runc"]\n')
    os.utime(path, ns=(1, 1_600_000_000_123_456_789))
    loaded = config.load(prefix)
    shim = Path(prefix, "run/gpuhook/shim.sh")
    assert shim.read_bytes() == fastpath.render(loaded)
    assert shim.stat().st_mtime_ns == 1_600_000_000_123_456_789
    assert shim.stat().st_mode & 0o7777 == 0o644


@pytest.mark.parametrize("umask", [0, 0o077])
def test_the_compiled_forms_have_their_mode_under_any_umask(prefix: str, umask: int) -> None:
    put(prefix, "")
    before = os.umask(umask)
    try:
        config.load(prefix)
    finally:
        os.umask(before)
    assert compiled(prefix).stat().st_mode & 0o7777 == 0o644
    assert compiled(prefix).parent.stat().st_mode & 0o022 == 0


def test_a_state_directory_that_cannot_be_made_stops_nothing(prefix: str) -> None:
    put(prefix, "[hook]\ndeadline = 9\n")
    os.rmdir(f"{prefix}/run")
    Path(prefix, "run").write_text("a file where /run should be")
    assert config.load(prefix).deadline == 9


def test_a_foreign_state_directory_is_not_written_to(prefix: str) -> None:
    put(prefix, "[hook]\ndeadline = 9\n")
    os.mkdir(f"{prefix}/run/gpuhook")
    os.chown(f"{prefix}/run/gpuhook", 1234, 0)
    assert config.load(prefix).deadline == 9
    assert os.listdir(f"{prefix}/run/gpuhook") == []


def test_refresh_writes_a_fragment_that_was_lost(prefix: str) -> None:
    put(prefix, "")
    config.load(prefix)
    Path(prefix, "run/gpuhook/shim.sh").unlink()
    config.refresh(prefix)
    assert Path(prefix, "run/gpuhook/shim.sh").exists()


def test_trust_reads_no_more_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert configtrust.read(str(path), 5)[0] == b"12345"
    with pytest.raises(GpuhookError, match="longer than 4"):
        configtrust.read(str(path), 4)


@pytest.mark.parametrize("seconds", [0, 1])
def test_a_file_without_a_date_is_read_by_python_each_time(prefix: str, seconds: int) -> None:
    """In the Nix store and under ostree every file has the same date: sh could not tell the next one from this."""
    path = put(prefix, "[hook]\ndeadline = 9\n")
    config.load(prefix)
    assert Path(prefix, "run/gpuhook/shim.sh").exists()
    os.utime(path, (seconds, seconds))

    assert config.load(prefix).deadline == 9
    assert sorted(os.listdir(compiled(prefix).parent)) == ["config.json"]


def test_a_state_directory_that_others_may_write_is_closed_to_them(prefix: str) -> None:
    put(prefix, "[hook]\ndeadline = 9\n")
    config.load(prefix)
    state = compiled(prefix).parent
    state.chmod(0o777)

    assert config.load(prefix).deadline == 9
    assert state.stat().st_mode & 0o7777 == 0o755


def test_what_the_caller_may_not_read_is_not_to_be_repaired(folder: Path) -> None:
    """A user asks `gpuhook info` where only root may read runtime.toml."""
    path = folder / "etc/gpuhook/runtime.toml"
    path.parent.mkdir(parents=True)
    path.write_text("")
    path.chmod(0o600)

    def hint() -> str:
        os.setuid(65534)
        with pytest.raises(GpuhookError) as caught:
            config.load(str(folder))
        return caught.value.hint

    assert sandbox.apart(hint) == f"run this as root, or let everybody read it: chmod a+r {path}"
