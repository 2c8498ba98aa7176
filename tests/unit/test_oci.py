"""The spec keeps what gpuhook does not know, is edited once however often, and is replaced whole or not at all."""

import copy
import errno
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from gpuhook import linux, oci
from gpuhook.errors import GpuhookError
from gpuhook.hook import parse as parse_orders
from gpuhook.model import Node
from tests import bundles, sandbox

CTL = Node("/dev/nvidiactl", 195, 255, 0o666, 0, 0)
GPU = Node("/dev/nvidia0", 195, 0, 0o666, 0, 0)
UVM = Node("/dev/nvidia-uvm", 510, 0, 0o666, 0, 0)
ALL = (CTL, UVM, GPU)
HOOK = ("prestart", "/usr/bin/gpuhook-hook", ["--record", "r1", "--bundle", "/b"], 30)


def docker() -> dict[str, Any]:
    """A spec as docker writes it, with fields that gpuhook does not read and values that are easily changed."""
    spec = bundles.config(env=["NVIDIA_VISIBLE_DEVICES=all"], annotations={"a.b/c": "d"})
    spec["process"]["oomScoreAdj"] = -999
    spec["process"]["rlimits"] = [{"type": "RLIMIT_NOFILE", "hard": 2**63 - 1, "soft": 2**64 - 1}]
    spec["process"]["apparmorProfile"] = None
    spec["linux"]["seccomp"] = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"args": [{"value": 2114060288}]}]}
    spec["ociVersion"] = "1.2.0"
    spec["linux"]["resources"]["memory"] = {"limit": 9223372036854771712}
    spec["linux"]["resources"]["cpu"] = {"shares": 0, "quota": -1, "realtimePeriod": 0}
    spec["linux"]["resources"]["devices"].append({"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"})
    spec["linux"]["sysctl"] = {"net.ipv4.ping_group_range": "0 0"}
    spec["x-new"] = {
        "deep": [[[{"a": [1, 2.5, None, True, False, "", {}]}]]],
        "empty": [],
        "text": "\xe9\u2028\U0001f600",
    }
    return spec


def write(folder: Path, spec: object) -> Path:
    """config.json in a folder: bytes as they are, else as JSON."""
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    path.write_bytes(spec if isinstance(spec, bytes) else json.dumps(spec).encode())
    return path


def edited(path: Path, nodes: tuple[Node, ...] = ALL, stage: str = "prestart") -> tuple[str, ...]:
    """Grant, add the hook, save."""
    spec = oci.Spec(str(path))
    spec.grant(nodes)
    replaced = spec.add_hook(stage, *HOOK[1:])
    spec.save()
    return replaced


def load(path: Path) -> Any:
    return json.loads(path.read_bytes())


# --- editing ----------------------------------------------------------------------------------------------------


def test_what_gpuhook_does_not_know_survives(tmp_path: Path) -> None:
    """R130: after the edit, taking our additions away gives the spec that was."""
    before = docker()
    path = write(tmp_path, before)
    edited(path)
    after = load(path)
    assert after.pop("hooks") == {
        "prestart": [
            {
                "path": "/usr/bin/gpuhook-hook",
                "args": ["gpuhook-hook", "--record", "r1", "--bundle", "/b"],
                "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
                "timeout": 30,
            }
        ]
    }
    assert after["linux"].pop("devices") == [
        {"path": node.path, "type": "c", "major": node.major, "minor": node.minor, "fileMode": 438, "uid": 0, "gid": 0}
        for node in ALL
    ]
    rules = after["linux"]["resources"]["devices"]
    assert rules[2:] == [
        {"allow": True, "type": "c", "major": node.major, "minor": node.minor, "access": "rw"} for node in ALL
    ]
    del rules[2:]
    assert after == before


def test_no_rule_lets_a_container_make_nodes(tmp_path: Path) -> None:
    """CVE-2021-1056: `m` would let it make the node of another minor."""
    path = write(tmp_path, docker())
    edited(path)
    ours = [rule for rule in load(path)["linux"]["resources"]["devices"] if rule.get("major") in (195, 510)]
    assert [rule["access"] for rule in ours] == ["rw"] * 3
    assert all("minor" in rule for rule in ours)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_editing_again_changes_no_byte(tmp_path: Path, times: int, stage: str) -> None:
    path = write(tmp_path, docker())
    edited(path, stage=stage)
    once = path.read_bytes()
    for _ in range(times):
        edited(path, stage=stage)
    assert path.read_bytes() == once


def test_a_node_and_rule_that_are_there_are_not_doubled(tmp_path: Path) -> None:
    """R91, R92: docker --device gave one GPU, and some tool all of a major: one device, one rule, ours last; what
    others wrote stays."""
    spec = docker()
    wide = {"allow": True, "type": "c", "major": 195, "access": "rwm"}
    spec["linux"]["resources"]["devices"].append(wide)
    spec["linux"]["devices"] = [
        {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229},
        {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 9, "fileMode": 384},
    ]
    rule = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}
    spec["linux"]["resources"]["devices"].append(rule)
    path = write(tmp_path, spec)
    edited(path)
    part = load(path)["linux"]
    assert [item["path"] for item in part["devices"]] == [
        "/dev/fuse",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia0",
    ]
    assert part["devices"][-1]["minor"] == 0
    assert part["resources"]["devices"].count(rule) == 1
    assert part["resources"]["devices"].count(wide) == 1


def test_a_later_denial_does_not_take_ours_away(tmp_path: Path) -> None:
    """Rules are applied in order: ours stand after the `deny all` of every engine."""
    spec = docker()
    spec["linux"]["resources"]["devices"] = [
        {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"},
        {"allow": False, "access": "rwm"},
    ]
    path = write(tmp_path, spec)
    edited(path, (GPU,))
    rules = load(path)["linux"]["resources"]["devices"]
    assert rules[-1]["minor"] == 0
    assert len(rules) == 2


@pytest.mark.parametrize("missing", ["linux", "resources", "hooks", "null"])
def test_parts_that_are_missing_are_made(tmp_path: Path, missing: str) -> None:
    spec = docker()
    if missing == "linux":
        del spec["linux"]
    elif missing == "resources":
        del spec["linux"]["resources"]
    elif missing == "hooks":
        spec.pop("hooks", None)
    else:
        spec["hooks"] = None
        spec["linux"] = {"resources": None, "devices": None}
    path = write(tmp_path, spec)
    edited(path, (GPU,))
    after = load(path)
    assert after["linux"]["devices"][0]["path"] == "/dev/nvidia0"
    assert after["linux"]["resources"]["devices"][-1]["major"] == 195
    assert len(after["hooks"]["prestart"]) == 1


def hook(name: str) -> dict[str, Any]:
    return {"path": f"/usr/bin/{name}", "args": [name]}


NVIDIA, TOOLKIT, OLD, OTHER = (
    hook(name) for name in ("nvidia-container-runtime-hook", "nvidia-container-toolkit", "gpuhook-hook", "other")
)
LAST = hook("last")

HOOKS: dict[str, tuple[str, dict[str, Any], dict[str, Any], list[str]]] = {
    "none": ("prestart", {}, {"prestart": ["gpuhook-hook"]}, []),
    "other hooks first": ("prestart", {"prestart": [OTHER]}, {"prestart": ["other", "gpuhook-hook"]}, []),
    "in NVIDIA's place": (
        "prestart",
        {"prestart": [OTHER, NVIDIA, LAST]},
        {"prestart": ["other", "gpuhook-hook", "last"]},
        ["/usr/bin/nvidia-container-runtime-hook"],
    ),
    "in the place of our own": (
        "prestart",
        {"prestart": [OTHER, OLD, LAST]},
        {"prestart": ["other", "gpuhook-hook", "last"]},
        [],
    ),
    "twice there": (
        "prestart",
        {"prestart": [TOOLKIT, OTHER, NVIDIA, OLD]},
        {"prestart": ["gpuhook-hook", "other"]},
        ["/usr/bin/nvidia-container-toolkit", "/usr/bin/nvidia-container-runtime-hook"],
    ),
    "NVIDIA's at another stage": (
        "createRuntime",
        {"prestart": [NVIDIA, OTHER], "createRuntime": [LAST]},
        {"prestart": ["other"], "createRuntime": ["last", "gpuhook-hook"]},
        ["/usr/bin/nvidia-container-runtime-hook"],
    ),
    "our own at another stage": (
        "prestart",
        {"createRuntime": [OLD, OTHER]},
        {"prestart": ["gpuhook-hook"], "createRuntime": ["other"]},
        [],
    ),
    "other stages stay": (
        "prestart",
        {"poststop": [OTHER], "createContainer": [LAST]},
        {"poststop": ["other"], "createContainer": ["last"], "prestart": ["gpuhook-hook"]},
        [],
    ),
    "a hook that is no object stays": (
        "prestart",
        {"prestart": ["text", {"path": 5}]},
        {"prestart": ["text", 5, "gpuhook-hook"]},
        [],
    ),
}


@pytest.mark.parametrize(("stage", "before", "after", "replaced"), HOOKS.values(), ids=HOOKS)
def test_hooks(tmp_path: Path, stage: str, before: dict[str, Any], after: dict[str, Any], replaced: list[str]) -> None:
    spec = docker()
    spec["hooks"] = copy.deepcopy(before)
    path = write(tmp_path, spec)
    assert list(edited(path, stage=stage)) == replaced

    def name(item: Any) -> Any:
        found = item["path"] if isinstance(item, dict) else item
        return found.rpartition("/")[2] if isinstance(found, str) else found

    assert {key: [name(item) for item in items] for key, items in load(path)["hooks"].items()} == after
    ours = [item for item in load(path)["hooks"][stage] if name(item) == "gpuhook-hook"]
    assert ours[0]["timeout"] == 30
    assert ours[0]["env"]


def node(mode: int, gid: int) -> Node:
    return Node("/dev/nvidia0", 195, 0, mode, 0, gid)


VIDEO = {
    "for all": ((node(0o666, 44),), {}, None),
    "group only": ((node(0o660, 44),), {}, [44]),
    "group may only read": ((node(0o640, 44),), {}, None),
    "others may only read": ((node(0o664, 44),), {}, [44]),
    "group root": ((node(0o660, 0),), {}, None),
    "twice the same group": ((node(0o660, 44), Node("/dev/nvidiactl", 195, 255, 0o660, 0, 44)), {}, [44]),
    "kept and not doubled": ((node(0o660, 44),), {"additionalGids": [1, 44]}, [1, 44]),
    "added to others": ((node(0o660, 44),), {"additionalGids": [1]}, [1, 44]),
}


@pytest.mark.parametrize(("nodes", "user", "expected"), VIDEO.values(), ids=VIDEO)
def test_additional_gids(
    tmp_path: Path, nodes: tuple[Node, ...], user: dict[str, Any], expected: list[int] | None
) -> None:
    spec = docker()
    spec["process"]["user"].update(user)
    path = write(tmp_path, spec)
    edited(path, nodes)
    assert load(path)["process"]["user"].get("additionalGids") == expected


@pytest.mark.parametrize("how", ["mappings", "namespace", "namespace by path"])
def test_no_group_is_added_in_a_user_namespace(tmp_path: Path, how: str) -> None:
    """A gid of the host means another group there, or none: runc would fail on it."""
    spec = docker()
    if how == "mappings":
        spec["linux"]["uidMappings"] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    else:
        entry = {"type": "user", "path": "/proc/1/ns/user"} if how == "namespace by path" else {"type": "user"}
        spec["linux"]["namespaces"].append(entry)
    path = write(tmp_path, spec)
    edited(path, (node(0o660, 44),))
    assert "additionalGids" not in load(path)["process"]["user"]


ORDERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "masked": ({"maskedPaths": ["/proc/kcore"]}, ["--proc"]),
    "nothing masked": ({"maskedPaths": []}, []),
    "absent": ({"maskedPaths": None}, []),
    "a label": ({"maskedPaths": [], "mountLabel": "u:object_r:t:s0:c1,c2"}, ["--label", "u:object_r:t:s0:c1,c2"]),
    "both": ({"maskedPaths": ["/x"], "mountLabel": "l"}, ["--proc", "--label", "l"]),
    "an empty label": ({"maskedPaths": ["/x"], "mountLabel": ""}, ["--proc"]),
}


@pytest.mark.parametrize(("change", "expected"), ORDERS.values(), ids=ORDERS)
def test_orders_of_the_spec(tmp_path: Path, change: dict[str, Any], expected: list[str]) -> None:
    """What the hook has to know; it understands each."""
    spec = docker()
    spec["linux"].update(change)
    words = oci.Spec(str(write(tmp_path, spec))).orders()
    assert words == expected
    orders = parse_orders(["--record", "r", "--root", "/", *words])
    assert (orders.proc, orders.label) == ("--proc" in words, words[-1] if "--label" in words else "")


@pytest.mark.parametrize("change", [{"maskedPaths": "x"}, {"mountLabel": 1}], ids=str)
def test_orders_of_a_spec_that_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    spec = docker()
    spec["linux"].update(change)
    with pytest.raises(GpuhookError) as caught:
        oci.Spec(str(write(tmp_path, spec))).orders()
    assert caught.value.reference == "spec-invalid"


def test_nodes_in_a_user_namespace_are_mounts(tmp_path: Path) -> None:
    """Of the dev root, restricted, after all others, once; the rules are the same, and no node is asked for."""
    spec = docker()
    spec["linux"]["uidMappings"] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    spec["linux"]["devices"] = [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]
    mounts = list(spec["mounts"])
    path = write(tmp_path, spec)
    for _ in range(2):
        loaded = oci.Spec(str(path))
        loaded.grant((node(0o666, 0),), "/driver")
        loaded.save()
    found = load(path)
    options = ["bind", "ro", "nosuid", "noexec", "rprivate"]
    new = {"destination": "/dev/nvidia0", "type": "bind", "source": "/driver/dev/nvidia0", "options": options}
    assert found["mounts"] == [*mounts, new]
    assert found["linux"]["devices"] == []
    rule = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}
    assert found["linux"]["resources"]["devices"][-1] == rule


def test_a_spec_without_a_process_gets_devices_and_hook(tmp_path: Path) -> None:
    """`process` is optional for create (runtime-spec, config.md#process)."""
    spec = docker()
    del spec["process"]
    path = write(tmp_path, spec)
    assert oci.Spec(str(path)).container().env == ()
    edited(path)
    assert "process" not in load(path)
    assert len(load(path)["linux"]["devices"]) == 3


# --- bytes and files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (rb'"A=\ud800"', rb'"A=\ud800"'),
        (b'"A=\xc3\xa9"', rb'"A=\u00e9"'),
        (b'"A=\xff\xfe"', rb'"A=\udcff\udcfe"'),
        (rb'"A=\u0000\u001f\\\/\""', rb'"A=\u0000\u001f\\/\""'),
        ('"A=\u2028\U0001f600"'.encode(), rb'"A=\u2028\ud83d\ude00"'),
        (b'"A=\x7f"', rb'"A=\u007f"'),
    ],
    ids=["lone surrogate", "accent", "no UTF-8", "escapes", "beyond the BMP", "DEL"],
)
def test_strange_text_survives(tmp_path: Path, env: bytes, expected: bytes) -> None:
    path = write(tmp_path, b'{"process":{"env":[' + env + b"]}}")
    edited(path)
    assert b'{"process":{"env":[' + expected + b"]}" in path.read_bytes()


@pytest.mark.runc
def test_mode_and_owner_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path, docker())
    os.chown(path, 1000, 1001)
    path.chmod(0o640)
    edited(path)
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (1000, 1001, 0o640)


def test_a_relative_path_is_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, docker())
    monkeypatch.chdir(tmp_path)
    spec = oci.Spec("config.json")
    assert spec.path == f"{tmp_path}/config.json"
    assert spec.container().root == f"{tmp_path}/rootfs"


def test_a_link_shows_the_edited_spec(tmp_path: Path) -> None:
    """A bundle whose config.json is a link: the runtime reads the edit, what the link led to stays."""
    write(tmp_path / "real", docker())
    before = (tmp_path / "real/config.json").read_bytes()
    (tmp_path / "config.json").symlink_to("real/config.json")
    edited(tmp_path / "config.json")
    assert load(tmp_path / "config.json")["hooks"]
    assert (tmp_path / "real/config.json").read_bytes() == before


@pytest.mark.runc
def test_a_full_disk_leaves_the_spec_and_nothing_beside_it(tmp_path: Path) -> None:
    def child() -> tuple[str, str, bool, list[str]]:
        sandbox.mount("tmpfs", tmp_path, "tmpfs", 0, "size=64k")
        path = write(tmp_path, {**docker(), "annotations": {"a": "x" * 30_000}})
        before = path.read_bytes()
        (tmp_path / "filler").write_bytes(b"x" * (20 << 10))
        try:
            edited(path)
        except GpuhookError as error:
            return error.reference, error.message, path.read_bytes() == before, sorted(os.listdir(tmp_path))
        return "", "", False, []

    reference, message, same, names = sandbox.apart(child, mounts=True)
    assert (reference, same, names) == ("spec-not-written", True, ["config.json", "filler"])
    assert os.strerror(errno.ENOSPC) in message


def test_a_read_only_bundle_is_told(tmp_path: Path) -> None:
    def child() -> tuple[str, str]:
        path = write(tmp_path, docker())
        sandbox.bind(tmp_path, tmp_path)
        sandbox.mount("none", tmp_path, "", 0x1000 | 0x20 | 1)
        try:
            edited(path)
        except GpuhookError as error:
            return error.reference, error.message
        return "", ""

    reference, message = sandbox.apart(child, mounts=True)
    assert reference == "spec-not-written"
    assert f"{tmp_path}/config.json" in message


def test_a_kill_leaves_one_whole_spec(tmp_path: Path) -> None:
    """A process that edits without pause is killed at any time: what is there parses, and is before or after."""
    path = write(tmp_path, docker())
    before, original = load(path), path.read_bytes()
    edited(path)
    after = load(path)

    def work() -> None:
        while True:
            linux.write_beside(str(path), original, 0o644)
            edited(path)

    for pause in range(12):
        child, reading = sandbox.start(work)
        end = time.monotonic() + 0.02 + pause * 0.003
        while time.monotonic() < end:
            assert load(path) in (before, after)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        assert load(path) in (before, after)


def test_a_value_that_json_cannot_say_is_not_half_written(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"x": 1e999}')
    before = path.read_bytes()
    with pytest.raises(GpuhookError) as caught:
        edited(path)
    assert caught.value.reference == "spec-not-written"
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["config.json"]


# --- looking ----------------------------------------------------------------------------------------------------


def test_container(tmp_path: Path) -> None:
    spec = docker()
    spec["process"]["env"] = ["A=1", "B=", "A=2=3", "NOTHING", "=x", ""]
    spec["mounts"].append(bundles.mount("/data/../vol//x/", "bind", "/srv/x", "rbind"))
    spec["root"] = {"path": "rootfs"}
    found = oci.Spec(str(write(tmp_path, spec))).container()
    assert found.env == (("A", "1"), ("B", ""), ("A", "2=3"), ("", "x"))
    assert found.annotations == (("a.b/c", "d"),)
    assert ("/srv/x", "/vol/x") in found.mounts
    assert found.root == f"{tmp_path}/rootfs"
    assert "/dev/shm" in found.tmpfs
    assert not found.privileged
    assert not found.sandbox


@pytest.mark.parametrize(
    ("path", "expected"), [("/abs/root", "/abs/root"), ("rootfs", "BUNDLE/rootfs")], ids=["absolute", "relative"]
)
def test_root(tmp_path: Path, path: str, expected: str) -> None:
    found = oci.Spec(str(write(tmp_path, {"root": {"path": path}}))).container()
    assert found.root == expected.replace("BUNDLE", str(tmp_path))


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        (None, False),
        ({}, False),
        ({"bounding": ["CAP_SYS_ADMIN"]}, True),
        ({"effective": ["CAP_SYS_ADMIN"]}, False),
        ({"bounding": None}, False),
        (["CAP_CHOWN", "CAP_SYS_ADMIN"], True),
    ],
    ids=["null", "empty", "bounding", "effective only", "null list", "plain list of old specs"],
)
def test_privileged(tmp_path: Path, capabilities: object, expected: bool) -> None:
    spec = {"process": {"capabilities": capabilities}}
    assert oci.Spec(str(write(tmp_path, spec))).container().privileged is expected


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"io.kubernetes.cri.container-type": "sandbox"}, True),
        ({"io.kubernetes.cri.container-type": "container"}, False),
        ({"io.kubernetes.cri-o.ContainerType": "sandbox"}, True),
        (None, False),
    ],
    ids=["containerd", "a container", "CRI-O", "null"],
)
def test_sandbox(tmp_path: Path, annotations: object, expected: bool) -> None:
    assert oci.Spec(str(write(tmp_path, {"annotations": annotations}))).container().sandbox is expected


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ([("/run", "tmpfs")], ("/run",)),
        ([("/run/", "tmpfs")], ("/run",)),
        ([("/run", "tmpfs"), ("/run", "bind")], ()),
        ([("/run", "bind"), ("/run", "tmpfs")], ("/run",)),
        ([("/run", "bind")], ()),
    ],
    ids=["tmpfs", "cleaned", "covered", "covers", "volume"],
)
def test_tmpfs(tmp_path: Path, mounts: list[tuple[str, str]], expected: tuple[str, ...]) -> None:
    spec = {"mounts": [{"destination": place, "type": kind, "source": "x"} for place, kind in mounts]}
    assert oci.Spec(str(write(tmp_path, spec))).container().tmpfs == expected


NULLS = {
    "everything null": {
        "process": None,
        "mounts": None,
        "annotations": None,
        "root": None,
        "linux": None,
        "hooks": None,
    },
    "nothing": {},
    "nulls within": {"process": {"env": None, "capabilities": None}, "root": {"path": None}, "mounts": []},
}


@pytest.mark.parametrize("spec", NULLS.values(), ids=NULLS)
def test_null_is_absent(tmp_path: Path, spec: object) -> None:
    found = oci.Spec(str(write(tmp_path, spec))).container()
    assert (found.env, found.mounts, found.annotations) == ((), (), ())


WRONG: dict[str, tuple[Any, str]] = {
    "process": ({"process": []}, "process"),
    "env": ({"process": {"env": {}}}, "env"),
    "env entry": ({"process": {"env": [1]}}, "process.env"),
    "capabilities": ({"process": {"capabilities": 1}}, "capabilities"),
    "bounding": ({"process": {"capabilities": {"bounding": "x"}}}, "bounding"),
    "mounts": ({"mounts": {}}, "mounts"),
    "mount": ({"mounts": ["x"]}, "mount"),
    "destination": ({"mounts": [{"destination": 1}]}, "destination"),
    "source": ({"mounts": [{"destination": "/x", "source": []}]}, "source"),
    "annotations": ({"annotations": []}, "annotations"),
    "annotation": ({"annotations": {"a": 1}}, "'a'"),
    "root": ({"root": "x"}, "root"),
    "root path": ({"root": {"path": 1}}, "path"),
    "a list": ([], "object"),
    "a string": ("x", "object"),
    "no JSON": (b"{", "JSON"),
    "empty": (b"", "JSON"),
    "deep": (b"[" * 100_000, "JSON"),
}


@pytest.mark.parametrize(("spec", "word"), WRONG.values(), ids=WRONG)
def test_wrong_types_are_named(tmp_path: Path, spec: object, word: str) -> None:
    path = write(tmp_path, spec)
    with pytest.raises(GpuhookError) as caught:
        oci.Spec(str(path)).container()
    assert caught.value.reference == "spec-invalid"
    assert word in caught.value.message
    assert str(path) in caught.value.message


WRONG_TO_EDIT: dict[str, tuple[Any, str]] = {
    "linux": ({"linux": []}, "linux"),
    "devices": ({"linux": {"devices": {}}}, "devices"),
    "resources": ({"linux": {"resources": 1}}, "resources"),
    "rules": ({"linux": {"resources": {"devices": "x"}}}, "devices"),
    "hooks": ({"hooks": []}, "hooks"),
    "prestart": ({"hooks": {"prestart": {}}}, "prestart"),
}


@pytest.mark.parametrize(("spec", "word"), WRONG_TO_EDIT.values(), ids=WRONG_TO_EDIT)
def test_wrong_types_stop_the_edit(tmp_path: Path, spec: object, word: str) -> None:
    path = write(tmp_path, spec)
    before = path.read_bytes()
    with pytest.raises(GpuhookError) as caught:
        edited(path)
    assert caught.value.reference == "spec-invalid"
    assert word in caught.value.message
    assert path.read_bytes() == before


@pytest.mark.parametrize("what", ["absent", "directory", "too long", "no bundle"])
def test_what_cannot_be_read_is_named(tmp_path: Path, what: str) -> None:
    path = tmp_path / "config.json"
    if what == "directory":
        path.mkdir()
    elif what == "too long":
        with path.open("wb") as file:
            file.truncate((16 << 20) + 1)
    elif what == "no bundle":
        path = tmp_path / "none/config.json"
    with pytest.raises(GpuhookError) as caught:
        oci.Spec(str(path))
    assert caught.value.reference == "bundle-unreadable"
    assert str(path) in caught.value.message


@pytest.mark.timeout(60)
def test_a_pipe_is_no_spec(tmp_path: Path) -> None:
    """Nobody writes to it, and nobody waits."""
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(GpuhookError) as caught:
        oci.Spec(str(tmp_path / "config.json"))
    assert caught.value.reference == "spec-invalid"


CLEAN = {
    "/": "/",
    "": "/",
    "/a/b": "/a/b",
    "/a//b/": "/a/b",
    "/a/./b": "/a/b",
    "/a/../b": "/b",
    "/../../b": "/b",
    "a": "/a",
    "/a/b/..": "/a",
}


@pytest.mark.parametrize(("path", "expected"), CLEAN.items(), ids=[repr(path) for path in CLEAN])
def test_clean(path: str, expected: str) -> None:
    assert oci.clean(path) == expected
