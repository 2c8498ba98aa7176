"""`gpuhook explain`: what it says of a container is what shim and hook would do, and it does nothing itself."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuhook import driverproc, sources
from gpuhook.cli import main
from tests import bundles
from tests.conftest import World
from tests.images import MULTIARCH, image
from tests.unit.driver_support import copy_of
from tests.unit.test_cli import on_terminal

ALL = "NVIDIA_VISIBLE_DEVICES=all"
Explain = Callable[..., dict[str, Any]]


@pytest.fixture
def prefix(place: Path, sim_driver: Path) -> Path:
    """An installation's configuration, made once: the simulated driver with two H100."""
    path = place / "explain"
    if not path.exists():
        configure(path, sim_driver)
    return path


def configure(prefix: Path, driver: Path, more: str = "") -> None:
    """Write runtime.toml below `prefix`."""
    roots = "".join(f'{key} = "{driver}"\n' for key in ("driver-root", "dev-root", "proc-root", "sys-root"))
    (prefix / "etc/gpuhook").mkdir(parents=True, exist_ok=True)
    (prefix / "etc/gpuhook/runtime.toml").write_text(f"[driver]\n{roots}{more}")


@pytest.fixture
def explain(prefix: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    """Runs the command with --json and returns its document, with `status` and `stderr` added."""

    def run(*words: str, where: Path = prefix) -> dict[str, Any]:
        status = main(["gpuhook", "explain", "--json", *words], str(where))
        shown = capsys.readouterr()
        document: dict[str, Any] = json.loads(shown.out) if shown.out else {}
        return document | {"status": status, "stderr": shown.err}

    return run


def env(*items: str) -> list[str]:
    return [word for item in items for word in ("--env", item)]


def bundle(folder: Path, *items: str, root: Path | str = "rootfs", **options: Any) -> Path:
    """A bundle with the environment `items`."""
    spec = bundles.config(env=items, **options)
    spec["root"]["path"] = str(root)
    (folder / "config.json").write_text(json.dumps(spec))
    return folder


# --- bad input ----------------------------------------------------------------------------------------------------

BAD = {
    "nothing": ([], 2, "usage"),
    "no such path": (["/nowhere"], 20, "bundle-unreadable"),
    "empty path": ([""], 20, "bundle-unreadable"),
    "folder without config.json": (["{folder}"], 20, "bundle-unreadable"),
    "no JSON": (["{folder}/broken.json"], 21, "spec-invalid"),
    "no object": (["{folder}/list.json"], 21, "spec-invalid"),
    "env is no list": (["{folder}/env.json"], 21, "spec-invalid"),
    "empty file": (["{folder}/empty.json"], 21, "spec-invalid"),
    "env without =": (["--env", "FOO"], 2, "usage"),
    "env without name": (["--env", "=x"], 2, "usage"),
    "env with a line": (["--env", "FOO\nBAR"], 2, "usage"),
    "annotation without =": (["--annotation", "foo"], 2, "usage"),
    "two bundles": (["a", "b"], 2, "usage"),
}


@pytest.mark.parametrize(("words", "status", "reference"), BAD.values(), ids=BAD)
def test_bad_input_is_an_error_that_names_it(
    words: list[str], status: int, reference: str, folder: Path, explain: Explain
) -> None:
    (folder / "broken.json").write_text('{"process": ')
    (folder / "list.json").write_text("[]")
    (folder / "env.json").write_text('{"process": {"env": "NVIDIA_VISIBLE_DEVICES=all"}}')
    (folder / "empty.json").write_text("")
    found = explain(*[word.format(folder=folder) for word in words])
    assert found["status"] == status
    assert f"[{reference}]" in found["stderr"].splitlines()[0]
    assert set(found) == {"status", "stderr", "error"}, "more than the error in spite of bad input"
    assert found["error"]["reference"] == reference


# --- what is asked for --------------------------------------------------------------------------------------------

NOTHING = {
    "unset": (["A=b"], "NVIDIA_VISIBLE_DEVICES is not set"),
    "void": (["NVIDIA_VISIBLE_DEVICES=void"], "says void"),
    "empty": (["NVIDIA_VISIBLE_DEVICES="], "is empty"),
    "no legacy image": (["CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"], "no legacy CUDA image"),
    "last wins": ([ALL, "NVIDIA_VISIBLE_DEVICES=void"], "says void"),
}


@pytest.mark.parametrize(("items", "why"), NOTHING.values(), ids=NOTHING)
def test_a_container_that_asks_for_nothing_is_told_why(items: list[str], why: str, explain: Explain) -> None:
    found = explain(*env(*items))
    assert (found["outcome"], found["status"], found["stderr"]) == ("nothing", 0, "")
    assert why in found["why_not"]


def test_a_pods_sandbox_gets_nothing(folder: Path, explain: Explain) -> None:
    place = bundle(folder, ALL, annotations={"io.kubernetes.cri.container-type": "sandbox"})
    found = explain(str(place))
    assert found["outcome"] == "nothing"
    assert "sandbox" in found["why_not"]


@pytest.mark.parametrize(
    ("items", "gpus", "capabilities"),
    [
        ([ALL], [0, 1], ["compute", "utility"]),
        (["NVIDIA_VISIBLE_DEVICES=1"], [1], ["compute", "utility"]),
        (["NVIDIA_VISIBLE_DEVICES=none"], [], ["compute", "utility"]),
        (["NVIDIA_VISIBLE_DEVICES=1,0", "NVIDIA_DRIVER_CAPABILITIES=Video"], [1, 0], ["video"]),
    ],
    ids=["all", "index", "none", "order and capability"],
)
def test_a_granted_request(items: list[str], gpus: list[int], capabilities: list[str], explain: Explain) -> None:
    found = explain(*env(*items))
    assert (found["outcome"], found["status"], found["error"]) == ("granted", 0, None)
    assert [gpu["index"] for gpu in found["gpus"]] == gpus
    assert found["request"]["capabilities"] == capabilities
    assert found["request"]["by"] == "NVIDIA_VISIBLE_DEVICES"
    paths = [node["path"] for node in found["nodes"]]
    assert [path for path in paths if path[len("/dev/nvidia") :].isdigit()] == [f"/dev/nvidia{index}" for index in gpus]
    assert all(node["major"] > 0 for node in found["nodes"])


def test_a_models_name_is_one_word(
    new_driver: Callable[..., Path], folder: Path, explain: Explain, capsys: pytest.CaptureFixture[str]
) -> None:
    """R75: blanks and a slash in it name no file and split nothing."""
    model = "NVIDIA GeForce GTX 1080 Ti / X"
    configure(folder, new_driver(model=model, brand="geforce"))
    assert [gpu["name"] for gpu in explain(*env(ALL), where=folder)["gpus"]] == [model, model]
    main(["gpuhook", "explain", *env(ALL)], str(folder))
    assert f"0  {model}  GPU-" in capsys.readouterr().out


def test_a_legacy_cuda_image_asks_by_its_version(explain: Explain) -> None:
    found = explain(*env("CUDA_VERSION=11.8.0"))
    assert found["request"]["by"] == "CUDA_VERSION"
    assert found["verdicts"][0]["alternative"] == "cuda>=11.8"


# --- what is refused ----------------------------------------------------------------------------------------------

REFUSED = {
    "unknown GPU": ([ALL.replace("all", "7")], 31, "device-unknown", ["request", "driver"]),
    "bad token": ([ALL.replace("all", "gpu0")], 30, "device-invalid", ["request", "driver"]),
    "keyword among ids": ([ALL.replace("all", "all,0")], 30, "device-invalid", []),
    "capability": ([ALL, "NVIDIA_DRIVER_CAPABILITIES=frob"], 34, "capability-unsupported", []),
    "requirement syntax": ([ALL, "NVIDIA_REQUIRE_CUDA=cuda>>1"], 40, "requirement-syntax", ["request", "driver"]),
    "requirement": ([ALL, "NVIDIA_REQUIRE_CUDA=cuda>=13.1"], 41, "requirement-not-met", ["verdicts", "gpus"]),
    "docker's form": ([ALL.replace("all", '"device=0,2"')], 30, "device-invalid", []),  # field report R34
}


@pytest.mark.parametrize(("items", "status", "reference", "parts"), REFUSED.values(), ids=REFUSED)
def test_a_refused_container_is_shown_as_far_as_it_got(
    items: list[str], status: int, reference: str, parts: list[str], explain: Explain
) -> None:
    found = explain(*env(*items))
    assert (found["outcome"], found["status"]) == ("refused", status)
    assert found["error"]["reference"] == reference
    assert found["error"]["exit_code"] == status
    assert found["stderr"].startswith(f"gpuhook: {found['error']['message']}")
    assert [part for part in parts if part not in found] == []
    assert "mounts" not in found


def test_a_lost_gpu(sim_driver: Path, folder: Path, explain: Explain) -> None:
    """`all` leaves it out with a warning; by name it is refused, and the other one is still to be had."""
    configure(folder, copy_of(sim_driver, folder / "driver", "gpu-lost=1"))
    assert [gpu["index"] for gpu in explain(*env(ALL), where=folder)["gpus"]] == [0]
    assert any("left out" in text for text in explain(*env(ALL), where=folder)["warnings"])
    assert explain(*env("NVIDIA_VISIBLE_DEVICES=1"), where=folder)["status"] == 33


def test_no_driver(folder: Path, explain: Explain) -> None:
    (folder / "empty").mkdir()
    configure(folder, folder / "empty")
    found = explain(*env(ALL), where=folder)
    assert (found["status"], found["outcome"]) == (50, "refused")
    assert found["request"]["devices"] == ["all"]


def test_a_spec_without_dev(folder: Path, explain: Explain) -> None:
    """What the shim refuses, explain refuses."""
    place = bundle(folder, ALL)
    spec = json.loads((place / "config.json").read_text())
    spec["mounts"] = [item for item in spec["mounts"] if item["destination"] != "/dev"]
    (place / "config.json").write_text(json.dumps(spec))
    assert explain(str(place))["status"] == 24


@pytest.mark.parametrize("more", ["\n[frob]\n", "\n[requirement]\npolicy = 1\n"], ids=["section", "value"])
def test_a_broken_configuration(more: str, sim_driver: Path, folder: Path, explain: Explain) -> None:
    configure(folder, sim_driver, more)
    assert explain(*env(ALL), where=folder)["status"] == 11


# --- policy and requirements --------------------------------------------------------------------------------------


def test_the_policy_for_unprivileged_containers(sim_driver: Path, folder: Path, explain: Explain) -> None:
    configure(folder, sim_driver, "[request]\naccept-env-when-unprivileged = false\n")
    found = explain(*env(ALL), where=folder)
    assert (found["outcome"], found["status"]) == ("nothing", 0)
    assert "accept-env-when-unprivileged" in found["why_not"]
    assert explain("--privileged", *env(ALL), where=folder)["outcome"] == "granted"


def test_requirements_come_out_one_by_one(explain: Explain) -> None:
    found = explain(*env(ALL, "NVIDIA_REQUIRE_CUDA=cuda>=12.4 cuda>=99", "NVIDIA_REQUIRE_X=arch>=10.0"))
    verdicts = {item["origin"]: item for item in found["verdicts"]}
    assert verdicts["NVIDIA_REQUIRE_CUDA"]["met"] is True
    assert verdicts["NVIDIA_REQUIRE_CUDA"]["alternative"] == "cuda>=12.4"
    assert verdicts["NVIDIA_REQUIRE_X"]["met"] is False
    assert [item["failed"] for item in verdicts["NVIDIA_REQUIRE_X"]["outcomes"]] == [["arch>=10.0"]] * 2
    assert found["error"]["reference"] == "requirement-not-met"


def test_the_annotation_is_a_requirement(explain: Explain) -> None:
    found = explain(*env(ALL), "--annotation", "com.nvidia.cuda.version=13.1")
    assert found["status"] == 41
    assert found["verdicts"][0]["origin"] == "annotation com.nvidia.cuda.version"


def test_a_check_that_is_switched_off_says_by_what(explain: Explain) -> None:
    found = explain(*env(ALL, "NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_DISABLE_REQUIRE=1"))
    assert found["outcome"] == "granted"
    assert found["verdict"]["looked"] is False
    assert found["request"]["disabled_by"] == "NVIDIA_DISABLE_REQUIRE"


FORWARD = "NVIDIA_REQUIRE_CUDA=cuda>=14.0 brand=tesla,driver>=580,driver<581"


def test_without_an_image_its_compatibility_libraries_are_presumed_and_that_is_said(explain: Explain) -> None:
    found = explain(*env(ALL, FORWARD))
    assert found["outcome"] == "granted"
    assert found["verdicts"][0]["outcomes"][0]["way"] == "presumed"
    assert any("presumes" in text for text in found["notes"])


def test_with_an_image_its_compatibility_libraries_are_looked_for(folder: Path, explain: Explain) -> None:
    found = explain(str(bundle(folder, ALL, FORWARD, root=image("glibc"))))
    assert found["status"] == 41
    assert found["verdicts"][0]["outcomes"][0]["lacking"] == "libraries"


# --- image, hook, plan --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "libdir"), [("glibc", "/usr/lib/"), ("lib64", "/usr/lib64")], ids=["multiarch", "lib64"]
)
def test_the_image_decides_where_libraries_go(tree: str, libdir: str, folder: Path, explain: Explain) -> None:
    found = explain(str(bundle(folder, ALL, root=image(tree))))
    assert found["container"]["image_looked_at"] is True
    assert found["image"]["libdir"].startswith(libdir)
    targets = [item["target"] for item in found["mounts"] if item["kind"] == "library"]
    assert targets
    assert all(target.startswith(found["image"]["libdir"] + "/lib") for target in targets)
    assert {"name": "libcuda.so.1", "path": f"{found['image']['libdir']}/libcuda.so.1"} in found["loader_cache"][
        "entries"
    ]


def test_an_image_without_a_loader(folder: Path, explain: Explain) -> None:
    found = explain(str(bundle(folder, ALL, root=image("busybox"))))
    assert found["loader_cache"] is None
    assert any("no dynamic loader" in text for text in found["warnings"])


def test_a_bundle_whose_root_is_away_says_that_no_image_was_looked_at(folder: Path, explain: Explain) -> None:
    found = explain(str(bundle(folder, ALL)))
    assert (found["outcome"], found["container"]["image_looked_at"]) == ("granted", False)
    assert f"--root {folder}/rootfs" in " ".join(found["hook"]["entry"]["args"])
    assert f"'{folder}/rootfs' is not there: a runtime refuses this container" in found["warnings"]


@pytest.mark.parametrize(
    ("words", "mounted", "devices", "policy"),
    [
        ([], True, "0  (a mount below /var/run/nvidia-container-devices)", ""),
        ([*env(ALL), "--privileged"], False, f"all  ({ALL})", ", and this one is"),
    ],
    ids=["by a mount", "privileged"],
)
def test_the_policy_that_is_shown_is_of_this_container(
    words: list[str],
    mounted: bool,
    devices: str,
    policy: str,
    folder: Path,
    sim_driver: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It called a container privileged that had asked by a mount."""
    more = "[request]\naccept-env-when-unprivileged = false\naccept-devices-as-volume-mounts = true\n"
    configure(folder / "installed", sim_driver, more)
    spec = bundles.config()
    if mounted:
        target = "/var/run/nvidia-container-devices/0"
        spec["mounts"].append({"destination": target, "source": "/dev/null", "type": "bind", "options": ["bind"]})
    (folder / "config.json").write_text(json.dumps(spec))
    assert main(["gpuhook", "explain", str(folder), *words], str(folder / "installed")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"  devices       {devices}" in lines
    assert f"  policy        only privileged containers may ask by their environment{policy}" in lines


def test_the_hook_on_a_terminal_is_narrow_and_whole(
    folder: Path, prefix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was one line of 450 characters, which a terminal breaks within a word."""
    words = ["gpuhook", "explain", str(bundle(folder, ALL))]
    main(words, str(prefix))
    piped = capsys.readouterr().out.splitlines()
    (whole,) = [line.strip() for line in piped if line.startswith(f"  {prefix}/usr/bin/gpuhook-hook")]
    call = f"import sys; from gpuhook.cli import main; sys.exit(main({words!r}, {str(prefix)!r}))"
    lines = on_terminal(call, TERM="dumb").split("\n\nhook (")[1].split("\n\n")[0].splitlines()[1:]
    assert len(lines) > 1
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert all(line.startswith("    --") for line in lines[1:])
    assert max(len(line) for line in lines if "--gpus" not in line and "--root" not in line) <= 98
    assert " ".join(line.strip().removesuffix(" \\") for line in lines) == whole


def test_the_text_of_a_bundle_whose_root_is_away_does_not_say_that_it_starts(
    folder: Path, prefix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gpuhook", "explain", str(bundle(folder, ALL))], str(prefix)) == 0
    assert capsys.readouterr().out.endswith("but no runtime starts it without its root.\n")


THERE, BELOW = "the container mounts something of its own there", "lib/firmware, which the container mounts"
OWN = {
    "over a file": ("/usr/bin/nvidia-smi", {"nvidia-smi": THERE}),
    "above an optional one": ("/usr/lib/firmware", {"gsp_ga10x.bin": BELOW, "gsp_tu10x.bin": BELOW}),
    "elsewhere": ("/usr/bin/nvidia", {}),
}


@pytest.mark.parametrize(("destination", "left_out"), OWN.values(), ids=OWN)
def test_what_the_containers_own_mounts_leave_out_is_marked(
    destination: str,
    left_out: dict[str, str],
    folder: Path,
    prefix: Path,
    explain: Explain,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = [bundles.mount(destination, "bind", "/usr", "rbind")]
    place = bundle(folder, ALL, root=image("glibc"), mounts=own)
    found = explain(str(place))
    assert found["outcome"] == "granted"
    told = {os.path.basename(item["target"]): item["left_out"] for item in found["mounts"] if item["left_out"]}
    assert told.keys() == left_out.keys()
    assert all(told[name].endswith(reason) for name, reason in left_out.items())
    main(["gpuhook", "explain", str(place)], str(prefix))
    text = capsys.readouterr().out
    assert all(f"left out: {reason}:" in text for reason in told.values())


@pytest.mark.parametrize("destination", ["/usr", f"/lib/{MULTIARCH}"])
def test_a_volume_over_the_libraries_moves_them(destination: str, folder: Path, explain: Explain) -> None:
    """R79: nothing is put into it; the tmpfs at /dev takes the libraries."""
    own = [bundles.mount(destination, "bind", "/srv", "rbind")]
    found = explain(str(bundle(folder, ALL, root=image("glibc"), mounts=own)))
    assert (found["outcome"], found["image"]["libdir"]) == ("granted", "/dev/.gpuhook/lib")
    assert found["libcuda"]["path"] == "/dev/.gpuhook/lib/libcuda.so.1"
    left = {item["target"] for item in found["mounts"] if item["left_out"]}
    assert ("/usr/bin/nvidia-smi" in left) is (destination == "/usr")


@pytest.mark.parametrize("destination", ["/etc", "/etc/ld.so.cache"])
def test_a_volume_over_the_cache_is_told(destination: str, folder: Path, explain: Explain) -> None:
    own = [bundles.mount(destination, "bind", "/srv", "rbind")]
    found = explain(str(bundle(folder, ALL, root=image("glibc"), mounts=own)))
    assert found["outcome"] == "granted"
    assert any("/etc/ld.so.cache" in text and "stays as it is" in text for text in found["warnings"])


def test_nowhere_to_put_the_libraries_is_a_refusal(folder: Path, explain: Explain) -> None:
    """A volume over the library directory, and none of the spec's own tmpfs at /dev."""
    own = [bundles.mount("/usr", "bind", "/srv", "rbind"), bundles.mount("/dev", "bind", "/dev", "rbind")]
    found = explain(str(bundle(folder, ALL, root=image("glibc"), mounts=own)))
    assert (found["outcome"], found["status"]) == ("refused", 70)
    assert "it lies on another mount, a volume of the container" in found["error"]["message"]


def test_the_drivers_words_in_proc_are_told_as_the_hook_mounts_them(
    sim_driver: Path, folder: Path, explain: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the granted GPU alone. This kernel has no such directory; another one of procfs stands in for it."""
    monkeypatch.setattr(driverproc, "FOLDER", "tty")
    monkeypatch.setattr(driverproc, "NAME", "driver")
    found = explain(str(bundle(folder, "NVIDIA_VISIBLE_DEVICES=1", root=image("glibc"))))
    taken = sources.Sources()
    names = driverproc.gpu_names(found["gpus"][0]["bus_id"])
    try:
        expected = driverproc.acquire(str(sim_driver), (names,), "", taken)
    finally:
        taken.close()
    assert len(expected) == 2
    assert tuple(item["target"] for item in found["mounts"] if item["kind"] == "proc") == expected


@pytest.mark.parametrize("name", ["nvidia-container-runtime-hook", "nvidia-container-toolkit"])
def test_the_hook_and_whose_place_it_takes(name: str, folder: Path, prefix: Path, explain: Explain) -> None:
    foreign = {"prestart": [{"path": f"/usr/bin/{name}", "args": [name, "prestart"]}]}
    found = explain(str(bundle(folder, ALL, hooks=foreign)))
    assert found["hook"]["replaces"] == [f"/usr/bin/{name}"]
    assert found["hook"]["stage"] == "prestart"
    assert found["hook"]["entry"]["path"] == f"{prefix}/usr/bin/gpuhook-hook"
    assert found["hook"]["entry"]["env"] == ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    assert found["driver"]["record"] in found["hook"]["entry"]["args"]


def test_what_the_host_lacks_is_marked(explain: Explain) -> None:
    sockets = {item["source"]: item["present"] for item in explain(*env(ALL))["mounts"] if item["kind"] == "socket"}
    assert sockets == {"/run/nvidia-persistenced/socket": True, "/run/nvidia-fabricmanager/socket": False}


def test_the_command_line_goes_over_the_bundle(folder: Path, explain: Explain) -> None:
    place = bundle(folder, "NVIDIA_VISIBLE_DEVICES=0")
    assert [gpu["index"] for gpu in explain(str(place), *env("NVIDIA_VISIBLE_DEVICES=1"))["gpus"]] == [1]


def test_a_config_json_may_be_named_itself(folder: Path, explain: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle(folder, ALL).joinpath("config.json").rename(folder / "other.json")
    monkeypatch.chdir(folder)
    assert explain("other.json")["container"]["config"] == f"{folder}/other.json"


# --- hints --------------------------------------------------------------------------------------------------------

HINTS = {
    "R39 beyond": (["NVIDIA_VISIBLE_DEVICES=1", "CUDA_VISIBLE_DEVICES=1"], "CUDA_VISIBLE_DEVICES='1'"),
    "R39 one of a list": ([ALL, "CUDA_VISIBLE_DEVICES=0, 2"], "names GPU 2, and the container has 2"),
    "R39 within": ([ALL, "CUDA_VISIBLE_DEVICES=0,1"], ""),
    "R39 a UUID": ([ALL, "CUDA_VISIBLE_DEVICES=GPU-1"], ""),
    "R39 huge": ([ALL, "CUDA_VISIBLE_DEVICES=999999999"], "the container has 2"),
    "R87 stubs": ([ALL, "LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs:/x"], "cuda/lib64/stubs"),
    "R87 compat": ([ALL, "LD_LIBRARY_PATH=/x:/usr/local/cuda/compat/"], "cuda/compat/"),
    "R87 others": ([ALL, "LD_LIBRARY_PATH=/usr/local/cuda/lib64:/stubs/x"], ""),
    "R43 graphics": ([ALL, "NVIDIA_DRIVER_CAPABILITIES=graphics"], "no nvidia-smi"),
    "R43 with utility": ([ALL, "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics"], ""),
    "R171 PATH": ([ALL, "PATH=/opt/bin"], "PATH='/opt/bin' lacks /usr/bin"),
    "R171 PATH in order": ([ALL, "PATH=/opt/bin:/usr/bin/"], ""),
}


@pytest.mark.parametrize(("items", "text"), HINTS.values(), ids=HINTS)
def test_hints(items: list[str], text: str, explain: Explain) -> None:
    warnings = explain(*env(*items))["warnings"]
    assert [text in warning for warning in warnings] == ([True] if text else [])


# --- for people ---------------------------------------------------------------------------------------------------


def test_the_text_has_every_part(folder: Path, prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = {"prestart": [{"path": "/usr/bin/nvidia-container-toolkit"}]}
    place = bundle(
        folder, ALL, "NVIDIA_REQUIRE_CUDA=cuda>=12.4", "PATH=/x", root=image("glibc"), hooks=foreign, annotations={}
    )
    assert main(["gpuhook", "explain", str(place)], str(prefix)) == 0
    shown = capsys.readouterr().out
    headings = [line for line in shown.splitlines() if line and not line.startswith(" ")]
    assert [heading.partition(" (")[0] for heading in headings] == [
        "container",
        "asked for",
        "driver",
        "requirements",
        "GPUs",
        "device nodes",
        "hook",
        "image",
        "libraries, mounted read-only",
        "programs, mounted read-only",
        "firmware, mounted read-only",
        "descriptions and data, mounted read-only",
        "sockets",
        "directories",
        "links",
        "loader cache",
        "the libcuda that programs load",
        "warnings",
        "The container starts with this.",
    ]
    for text in (
        "all  (NVIDIA_VISIBLE_DEVICES=all)",
        "580.95.05, CUDA up to 13.0",
        "GPU 0, GPU 1: met",
        "takes the place of /usr/bin/nvidia-container-toolkit",
        "libcuda.so.1 -> libcuda.so.580.95.05  (soname)",
        "left out: this host does not have it",
    ):
        assert text in shown


def test_the_text_of_a_refusal_ends_with_the_error(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpuhook", "explain", *env(ALL, "NVIDIA_REQUIRE_CUDA=cuda>=13.1")], str(prefix)) == 41
    shown = capsys.readouterr()
    assert "GPU 0, GPU 1: not met: cuda>=13.1" in shown.out
    assert shown.err.startswith("gpuhook: this container needs CUDA 13.1 or newer;")
    assert shown.out.endswith(f"The container is refused:\n{shown.err}"), "a pager does not get stderr"


HOSTILE = {
    "device": ["NVIDIA_VISIBLE_DEVICES=\x1b[2J\u202e0"],
    "capability": [ALL, "NVIDIA_DRIVER_CAPABILITIES=\x1b[2J"],
    "requirement": [ALL, "NVIDIA_REQUIRE_CUDA=brand=\x1b[2J\u202e"],
    "name of a variable": [ALL, "NVIDIA_REQUIRE_\x1b[2J=cuda>=99"],
    "hints": [ALL, "LD_LIBRARY_PATH=/\x1b[2J/stubs", "PATH=\x1b[2J"],
    "a long value": [ALL, "NVIDIA_REQUIRE_CUDA=" + "cuda>=1 " * 8000],
    "no text": ["NVIDIA_VISIBLE_DEVICES=\ud800"],
}


@pytest.mark.parametrize("items", HOSTILE.values(), ids=HOSTILE)
def test_the_images_words_steer_no_terminal(
    items: list[str], folder: Path, prefix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["gpuhook", "explain", str(bundle(folder, *items))], str(prefix))
    shown = capsys.readouterr()
    for line in (shown.out + shown.err).splitlines():
        assert line.isprintable()
        assert len(line) < 1200


def test_a_folder_of_the_image_with_an_evil_name(
    folder: Path, prefix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = folder / "tree"
    shutil.copytree(image("lib64"), tree, symlinks=True)
    evil = tree / "usr/lib64/glibc-hwcaps/\x1b[2J"
    evil.mkdir(parents=True)
    (evil / "libcuda.so.1").touch()
    main(["gpuhook", "explain", str(bundle(folder, ALL, root=tree))], str(prefix))
    shown = capsys.readouterr().out
    assert "glibc-hwcaps/\\x1b[2J/libcuda.so.1" in shown
    assert "\x1b" not in shown


# --- it changes nothing -------------------------------------------------------------------------------------------


def listing(folder: Path) -> list[tuple[object, ...]]:
    found = []
    for place, names, files in os.walk(folder):
        for name in [*names, *files]:
            path = Path(place, name)
            status = path.lstat()
            found.append((str(path), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return sorted(found)


@pytest.mark.runc
@pytest.mark.parametrize(
    ("destination", "status"), [("/usr/bin/nvidia-smi", 0), (f"/usr/lib/{MULTIARCH}", 70)], ids=["left out", "refused"]
)
def test_own_mounts_are_judged_as_by_the_hook(
    destination: str,
    status: int,
    folder: Path,
    world: World,
    sim_driver: Path,
    new_bundle: Callable[..., bundles.Bundle],
    shim: bundles.Runtime,
) -> None:
    world.use_driver(sim_driver)
    source = folder / "own"
    source.touch() if status == 0 else shutil.copytree(f"{image('glibc')}{destination}", source)
    dev = [bundles.mount("/dev", "bind", "/dev", "rbind")] if status else []
    made = new_bundle(env=[ALL], mounts=[bundles.mount(destination, "bind", str(source), "rbind"), *dev])
    command = [str(world.cli), "explain", str(made.path)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == status
    done = shim.run(made)
    assert (done.code == 0) is (status == 0)
    if status:
        assert "a volume of the container [rootfs-unsafe]" in told.stderr
        assert "a volume of the container [rootfs-unsafe]" in done.err
    else:
        assert "left out: the container mounts something of its own there:" in told.stdout


def test_it_changes_nothing_in_the_bundle_or_the_driver(sim_driver: Path, folder: Path, explain: Explain) -> None:
    driver = copy_of(sim_driver, folder / "driver")
    configure(folder / "prefix", driver)
    place = folder / "bundle"
    place.mkdir()
    shutil.copytree(image("glibc"), place / "rootfs", symlinks=True)
    bundle(place, ALL)
    explain(str(place), where=folder / "prefix")
    before = listing(place), listing(driver)
    assert explain(str(place), where=folder / "prefix")["outcome"] == "granted"
    assert (listing(place), listing(driver)) == before


@pytest.mark.runc
def test_what_explain_says_is_what_the_shim_writes(
    world: World, sim_driver: Path, new_bundle: Callable[..., bundles.Bundle], shim: bundles.Runtime
) -> None:
    """The installed programs: nodes and hook of the explanation stand in the spec that the real shim leaves."""
    world.use_driver(sim_driver)
    made = new_bundle(env=[ALL])
    command = [str(world.cli), "explain", str(made.path), "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    done = shim.run(made)
    assert done.code == 0, done.err
    spec = made.spec
    assert spec["hooks"]["prestart"] == [told["hook"]["entry"]]
    written = {(item["path"], item["major"], item["minor"]) for item in spec["linux"]["devices"]}
    assert written == {(item["path"], item["major"], item["minor"]) for item in told["nodes"]}
