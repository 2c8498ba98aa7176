"""`gpuhook config import`: every key of the toolkit has its answer, runtime.toml gets what means the same, images are
judged by what they say themselves."""

import json
import os
import re
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuhook import configfile
from gpuhook.cli import localimages, main, toolkitconfig
from gpuhook.cli.toolkitconfig import Line
from gpuhook.config import CAPABILITIES
from tests.unit.test_cli_explain import configure

ROOT = Path(__file__).resolve().parents[2]
EMPTY = configfile.parse(b"")
Import = Callable[..., tuple[int, dict[str, Any]]]


def lines(text: str, own: str = "", nodes: bool = False) -> list[Line]:
    import tomllib

    return toolkitconfig.lines(tomllib.loads(text), configfile.parse(own.encode()), lambda _: nodes)


def one(text: str, own: str = "") -> tuple[str, str, Any]:
    (line,) = lines(text, own)
    return line.outcome, line.target, line.wanted


CLI, RUN = "[nvidia-container-cli]\n", "[nvidia-container-runtime]\n"
LEGACY, CDI = "[nvidia-container-runtime.modes.legacy]\n", "[nvidia-container-runtime.modes.cdi]\n"
OPEN, MOUNTS = (
    "accept-nvidia-visible-devices-envvar-when-unprivileged",
    "accept-nvidia-visible-devices-as-volume-mounts",
)
ENV = "request.accept-env-when-unprivileged"
COMPAT = "requirement.cuda-compat"

# text -> outcome, key of runtime.toml, value
CARRIED: dict[str, tuple[str, tuple[str, str, Any]]] = {
    "no requirement": ("disable-require = true", ("carried", "requirement.policy", "off")),
    "requirements": ("disable-require = false", ("same", "requirement.policy", "strict")),
    "swarm": ('swarm-resource = "A_B, C"', ("carried", "request.swarm-resources", ["A_B", "C"])),
    "no swarm": ('swarm-resource = ""', ("same", "request.swarm-resources", [])),
    "swarm with a bad name": ('swarm-resource = "A$(B)"', ("left", "", None)),
    "privileged alone": (f"{OPEN} = false", ("carried", ENV, False)),
    "everybody": (f"{OPEN} = true", ("same", ENV, True)),
    "mounts": (f"{MOUNTS} = true", ("carried", "request.accept-devices-as-volume-mounts", True)),
    "capabilities": (
        'supported-driver-capabilities = "utility, compute,frob"',
        ("carried", "request.supported-driver-capabilities", ["compute", "utility"]),
    ),
    "all capabilities": (
        'supported-driver-capabilities = "all"',
        ("same", "request.supported-driver-capabilities", sorted(CAPABILITIES)),
    ),
    "capabilities that are none": ('supported-driver-capabilities = "frob"', ("left", "", None)),
    "a root": (f'{CLI}root = "/run/nvidia/driver/"', ("carried", "driver.driver-root", "/run/nvidia/driver")),
    "no root": (f'{CLI}root = ""', ("same", "driver.driver-root", "/")),
    "a root with dots": (f'{CLI}root = "/run/../x"', ("left", "", None)),
    "nothing is loaded": (f"{CLI}load-kmods = false", ("carried", "driver.make-nodes", False)),
    "loaded": (f"{CLI}load-kmods = true", ("same", "driver.make-nodes", True)),
    "runtimes": (f'{RUN}runtimes = ["crun", "runc"]', ("carried", "runtime.low-level", ["crun", "runc"])),
    "runtimes in another place": (
        f'{RUN}runtimes = ["/opt/x/runc"]',
        ("carried", "runtime.low-level", ["/opt/x/runc"]),
    ),
    "runtimes, and the toolkit's own": (
        f'{RUN}runtimes = ["/usr/bin/nvidia-container-runtime", "bin/runc", "crun"]',
        ("carried", "runtime.low-level", ["crun"]),
    ),
    "no runtimes": (f"{RUN}runtimes = []", ("left", "", None)),
    "a level": (f'{RUN}log-level = "trace"', ("carried", "log.level", "debug")),
    "the same level": (f'{RUN}log-level = "INFO"', ("same", "log.level", "info")),
    "no level": (f'{RUN}log-level = "loud"', ("left", "", None)),
    "no compatibility": (f'{LEGACY}cuda-compat-mode = "disabled"', ("carried", COMPAT, "off")),
    "compatibility by mounts": (f'{LEGACY}cuda-compat-mode = "mount"', ("same", COMPAT, "path")),
    "compatibility of another kind": (f'{LEGACY}cuda-compat-mode = "frob"', ("left", "", None)),
    "no hook for it": ("[features]\ndisable-cuda-compat-lib-hook = true", ("carried", COMPAT, "off")),
    "Tegra": (f'{RUN}mode = "csv"', ("left", "", None)),
    "prefixes in another mode": (f'{CDI}annotation-prefixes = ["cdi.k8s.io/"]', ("left", "", None)),
    "no key": ("frob = 1", ("unknown", "", None)),
    "no table": ("[frob]\nx = 1", ("unknown", "", None)),
    "a value": ("nvidia-container-cli = 1", ("unknown", "", None)),
    "another type": ('disable-require = "true"', ("invalid", "", None)),
    "a list of others": (f"{RUN}runtimes = [1]", ("invalid", "", None)),
}


@pytest.mark.parametrize(("text", "expected"), CARRIED.values(), ids=CARRIED)
def test_a_key_becomes_what_means_the_same(text: str, expected: tuple[str, str, Any]) -> None:
    assert one(text) == expected


def test_prefixes_of_annotations_count_in_the_mode_that_reads_them() -> None:
    found = lines(f'{RUN}mode = "cdi"\n{CDI}annotation-prefixes = ["cdi.k8s.io/"]')
    assert [(line.outcome, line.target, line.wanted) for line in found] == [
        ("left", "", None),
        ("carried", "request.annotation-prefixes", ["cdi.k8s.io/"]),
    ]


def test_nodes_of_a_driver_in_a_container_are_taken_where_they_are_there() -> None:
    text = f'{CLI}root = "/run/nvidia/driver"'
    assert [line.target for line in lines(text, nodes=True)] == ["driver.driver-root", "driver.dev-root"]
    assert [line.target for line in lines(text)] == ["driver.driver-root"]
    assert [line.target for line in lines(f'{CLI}root = "/"', nodes=True)] == ["driver.driver-root"]


def test_what_runtime_toml_sets_itself_is_kept() -> None:
    """A policy that the administrator made is never loosened by another program's file."""
    assert one(f"{OPEN} = true", "[request]\naccept-env-when-unprivileged = false")[0] == "kept"
    assert one("disable-require = true", '[requirement]\npolicy = "strict"')[0] == "kept"
    assert one("disable-require = true", '[requirement]\npolicy = "off"')[0] == "same"


def test_two_keys_with_one_counterpart_are_written_once() -> None:
    text = f'{LEGACY}cuda-compat-mode = "disabled"\n[features]\ndisable-cuda-compat-lib-hook = true'
    found = lines(text)
    assert [line.outcome for line in found] == ["carried", "same"]
    assert found[1].why == "nvidia-container-runtime.modes.legacy.cuda-compat-mode brings it"
    assert len(toolkitconfig.steps(found)) == 1


def test_two_keys_that_ask_for_different_things() -> None:
    """What is not written is not called the same."""
    found = lines(f'{LEGACY}cuda-compat-mode = "ldconfig"\n[features]\ndisable-cuda-compat-lib-hook = true')
    assert [line.outcome for line in found] == ["left", "carried"]
    assert found[0].why == "features.disable-cuda-compat-lib-hook is set too, and asks for 'off'"


SAMPLES: dict[type, Any] = {bool: True, str: "x", list: ["x"]}


@pytest.mark.parametrize("key", toolkitconfig.NAMES)
def test_each_key_of_the_toolkit_has_an_answer(key: str) -> None:
    """A value of its type, and of each other type: never unknown, and what does not carry over has its reason."""
    for kind, sample in SAMPLES.items():
        tree: dict[str, Any] = {}
        here = tree
        *above, name = key.split(".")
        for part in above:
            here = here.setdefault(part, {})
        here[name] = sample
        for line in toolkitconfig.lines(tree, EMPTY, lambda _: False):
            assert line.key == key
            assert line.outcome != "unknown"
            assert line.outcome in ("carried", "same") or line.why, (key, kind)
            assert not line.why.endswith(".")


def test_every_target_is_a_key_of_runtime_toml() -> None:
    source = (ROOT / "src/gpuhook/cli/toolkitconfig.py").read_text()
    sections = "|".join(configfile.SECTIONS)
    named = set(re.findall(rf'"((?:{sections})\.[a-z-]+)"', source))
    assert named <= set(toolkitconfig.KEYS)
    assert len(named) >= 10


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def imported(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Import:
    """Runs `config import --json` on a text, with no engine but those of the test; status and document."""
    (folder / "bin").mkdir(exist_ok=True)
    monkeypatch.setenv("PATH", str(folder / "bin"))

    def call(text: str, *words: str) -> tuple[int, dict[str, Any]]:
        (folder / "config.toml").write_text(text)
        status = main(["gpuhook", "config", "import", str(folder / "config.toml"), "--json", *words], str(folder))
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return status, document

    return call


def own(folder: Path) -> Path:
    return folder / "etc/gpuhook/runtime.toml"


def test_nothing_is_written_without_write(folder: Path, imported: Import) -> None:
    status, document = imported("disable-require = true")
    assert (status, document["changed"], document["dry_run"]) == (0, True, True)
    assert '+policy = "off"' in document["diff"]
    assert not own(folder).parent.exists()
    assert imported("disable-require = true", "--dry-run")[1] == document


def test_write_makes_a_file_that_gpuhook_takes(folder: Path, imported: Import) -> None:
    assert imported("disable-require = true", "--write")[0] == 0
    assert own(folder).read_text() == '[requirement]\npolicy = "off"\n'
    assert stat.S_IMODE(own(folder).stat().st_mode) == 0o644
    assert configfile.load(str(own(folder)))[0].policy == "off"


def test_write_keeps_all_that_was_there(folder: Path, imported: Import) -> None:
    """The shipped file with its comments, a key of the administrator's, the mode and a link."""
    shipped = (ROOT / "config/runtime.toml").read_text().replace("#deadline = 20", "deadline = 7")
    own(folder).parent.mkdir(parents=True)
    real = folder / "etc/real.toml"
    real.write_text(shipped)
    real.chmod(0o600)
    own(folder).symlink_to(real)
    text = f"{OPEN} = false\n{MOUNTS} = true\n[nvidia-container-runtime]\nruntimes = ['crun']\n"
    _, document = imported(text, "--write")
    after = real.read_text()
    assert own(folder).is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    removed = [line for line in document["diff"].splitlines() if re.match("-[^-]", line)]
    assert removed == []
    added = [line for line in document["diff"].splitlines() if re.match(r"\+[^+]", line)]
    assert len(added) == len(after.splitlines()) - len(shipped.splitlines()) == 3
    settings = configfile.parse(after.encode()).config
    assert (settings.deadline, settings.low_level) == (7, ("crun",))
    assert (settings.accept_env_when_unprivileged, settings.accept_devices_as_volume_mounts) == (False, True)
    assert not list(own(folder).parent.glob(".*")), "nothing is left beside it"


def test_the_second_time_nothing_is_written(folder: Path, imported: Import) -> None:
    imported("disable-require = true", "--write")
    before = own(folder).stat()
    status, document = imported("disable-require = true", "--write")
    assert (status, document["changed"], document["diff"]) == (0, False, "")
    assert own(folder).stat().st_ino == before.st_ino


def test_a_broken_runtime_toml_is_not_edited(folder: Path, imported: Import) -> None:
    own(folder).parent.mkdir(parents=True)
    own(folder).write_text("[hook]\ndeadline = 0\n")
    status, document = imported("disable-require = true", "--write")
    assert (status, document["error"]["reference"]) == (11, "config-invalid")
    assert own(folder).read_text() == "[hook]\ndeadline = 0\n"


def test_one_that_others_may_write_is_not_edited(folder: Path, imported: Import) -> None:
    own(folder).parent.mkdir(parents=True)
    own(folder).write_text("")
    own(folder).chmod(0o666)
    assert imported("disable-require = true", "--write")[0] == 12
    assert own(folder).read_text() == ""


def test_what_cannot_be_written_is_an_error_and_leaves_nothing(folder: Path, imported: Import) -> None:
    own(folder).parent.mkdir(parents=True)
    own(folder).write_text("")
    os.mkdir(own(folder).parent / ".runtime.toml.gpuhook-tmp")  # where the new text is written first
    status, document = imported("disable-require = true", "--write")
    assert (status, document["error"]["reference"]) == (94, "engine-config-not-written")
    assert own(folder).read_text() == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [("a = = 1", ":1:5: "), ("\n[a\n", ":2:3: "), ("a = “x”", "plain quotation marks")],
    ids=["no value", "no header", "quotation marks of a word processor"],
)
def test_a_file_that_is_no_toml_is_named_with_the_place(text: str, words: str, imported: Import) -> None:
    status, document = imported(text)
    assert (status, document["error"]["reference"]) == (92, "engine-config-invalid")
    assert words in document["error"]["message"] + document["error"]["hint"]


def test_without_a_file_the_usual_one_is_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if os.path.exists(toolkitconfig.PATH):
        pytest.skip("this host has the toolkit")
    assert main(["gpuhook", "config", "import"], str(folder)) == 91
    assert f"'{toolkitconfig.PATH}' is not there" in capsys.readouterr().err


def test_write_and_dry_run_contradict_each_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpuhook", "config", "import", "x", "--write", "--dry-run"], str(folder)) == 2
    assert "give one of them" in capsys.readouterr().err


def test_the_command_that_is_named_next_writes_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It named no file, and so another one than was read."""
    (folder / "my config.toml").write_text("disable-require = true\n")
    assert main(["gpuhook", "config", "import", "--no-images", str(folder / "my config.toml")], str(folder)) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    command = shlex.split(last.removeprefix("nothing is written; next: "))
    assert main([*command, "--no-images"], str(folder)) == 0
    assert own(folder).read_text() == '[requirement]\npolicy = "off"\n'


def test_for_a_pipe_each_key_is_a_row(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.toml").write_text('disable-require = true\nfrob = 2026-01-01\nswarm-resource = "\\u001b"\n')
    assert main(["gpuhook", "config", "import", "--no-images", str(folder / "config.toml")], str(folder)) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines() if "\t" in line]
    assert rows[0][:3] == ["carries over", "disable-require = true", 'requirement.policy = "off"']
    assert rows[1][:3] == ["is unknown", "frob = 2026-01-01", "-"]
    assert rows[2][0] == "does not carry over"
    assert "\x1b" not in "".join(rows[2])


# --- images ---------------------------------------------------------------------------------------------------------


def engine(folder: Path, name: str, images: list[dict[str, Any]]) -> None:
    """A docker or podman of this test; it writes down its arguments."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    ids = "\n".join(item["Id"] for item in images)
    for part, text in (("ids", ids), ("inspected", json.dumps(images))):
        (folder / f"{name}.{part}").write_text(text)
    program = bin_folder / name
    program.write_text(
        f'#!/bin/sh\necho "$@" >>"{folder}/{name}.called"\n'
        f'case $2 in ls) /bin/cat "{folder}/{name}.ids" ;; *) /bin/cat "{folder}/{name}.inspected" ;; esac\n'
    )
    program.chmod(0o755)


def image(name: str, *env: str, **more: Any) -> dict[str, Any]:
    return {"Id": f"sha256:{name}", "RepoTags": [f"{name}:latest"], "Config": {"Env": list(env)}, **more}


NEW, OLD = "NVIDIA_REQUIRE_CUDA=cuda>=99.0", "NVIDIA_REQUIRE_CUDA=cuda>=11.0"


def test_images_that_need_a_newer_driver_are_named(sim_driver: Path, folder: Path, imported: Import) -> None:
    configure(folder, sim_driver)
    broken = image("broken") | {"Config": {"Env": "x"}}
    engine(folder, "docker", [image("new", NEW), image("old", OLD), image("plain", "PATH=/bin"), broken])
    engine(
        folder,
        "podman",
        [image("words", "NVIDIA_REQUIRE_X=cuda>>1"), image("more", "NVIDIA_DRIVER_CAPABILITIES=x", OLD)],
    )
    _, document = imported("")
    found = document["images"]
    assert found["looked_at"] == 5
    assert [(item["engine"], item["image"], item["reference"]) for item in found["refused"]] == [
        ("docker", "new:latest", "requirement-not-met"),
        ("podman", "words:latest", "requirement-syntax"),
        ("podman", "more:latest", "capability-unsupported"),
    ]
    assert any("Env is no list" in note for note in found["notes"])
    assert not (folder / "run").exists(), "looking changes nothing"
    assert (folder / "docker.called").read_text().splitlines()[1].startswith("image inspect -- sha256:new sha256:old")


def test_images_are_judged_by_the_configuration_that_is_to_be(sim_driver: Path, folder: Path, imported: Import) -> None:
    configure(folder, sim_driver)
    engine(folder, "docker", [image("new", NEW)])
    assert len(imported("disable-require = false")[1]["images"]["refused"]) == 1
    assert imported("disable-require = true")[1]["images"]["refused"] == []
    assert len(imported(f"{OPEN} = false")[1]["images"]["refused"]) == 1, "volume mounts may ask for it"


def test_legacy_cuda_images_count(sim_driver: Path, folder: Path, imported: Import) -> None:
    configure(folder, sim_driver)
    engine(folder, "docker", [image("old", "CUDA_VERSION=99.0")])
    assert imported("")[1]["images"]["refused"][0]["reference"] == "requirement-not-met"


def test_without_engines_or_driver_that_is_said(folder: Path, imported: Import) -> None:
    assert imported("")[1]["images"]["notes"] == ["neither docker nor podman is here: no images were looked at"]
    engine(folder, "docker", [image("new", NEW)])
    configure(folder, folder / "nowhere")
    status, document = imported("")
    assert (status, document["images"]["refused"]) == (0, [])
    assert "images were not judged" in document["images"]["notes"][0]
    assert imported("", "--no-images")[1]["images"] is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo no daemon >&2; exit 1", "docker says 'no daemon'"),
        ("exit 3", "docker says 'nothing (status 3)'"),
        ("case $2 in ls) echo sha256:1 ;; *) echo x ;; esac", "does not describe its images"),
        ("echo --privileged -x", ""),
    ],
    ids=["an error", "a status", "no JSON", "options for ids"],
)
def test_an_engine_that_gives_no_answer_is_named(body: str, words: str, folder: Path, imported: Import) -> None:
    (folder / "bin/docker").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "bin/docker").chmod(0o755)
    status, document = imported("")
    assert (status, document["images"]["looked_at"]) == (0, 0)
    assert words in "".join(document["images"]["notes"])


def test_an_engine_that_hangs_and_one_with_many_images(
    folder: Path, imported: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(localimages, "_SECONDS", 0.5)
    (folder / "bin/docker").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (folder / "bin/docker").chmod(0o755)
    assert "gave no answer within" in imported("")[1]["images"]["notes"][0]
    monkeypatch.setattr(localimages, "_SECONDS", 60.0)
    monkeypatch.setattr(localimages, "MOST", 70)
    engine(folder, "docker", [image(f"x{number}") for number in range(100)])
    notes = imported("")[1]["images"]["notes"]
    assert notes == ["docker has 100 images: the first 70 were looked at"]
    asked = [line.count("sha256:") for line in (folder / "docker.called").read_text().splitlines()]
    assert asked == [0, 50, 20]


def test_the_page_has_each_key_that_carries_over() -> None:
    page = (ROOT / "docs/configuration.md").read_text().partition("## Taking over")[2].partition("\n## ")[0]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    said = {
        name: set(re.findall(r"`((?:[a-z]+)\.[a-z-]+)", row.split(" | ")[1])) for row in rows for name in named(row)
    }
    code = {key: targets for key in toolkitconfig.NAMES if (targets := reached(key))}
    assert said == code


def named(row: str) -> list[str]:
    return [name.partition(" =")[0] for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def reached(key: str) -> set[str]:
    """The keys of runtime.toml that some value of the toolkit's key sets."""
    found = set()
    for sample in (True, False, "info", "disabled", "compute", "/x", ["runc"], ["cdi.k8s.io/"]):
        tree: dict[str, Any] = {"nvidia-container-runtime": {"mode": "cdi"}}
        here = tree
        *above, name = key.split(".")
        for part in above:
            here = here.setdefault(part, {})
        here[name] = sample
        found |= {line.target for line in toolkitconfig.lines(tree, EMPTY, lambda _: True) if line.key == key}
    return found - {""}
