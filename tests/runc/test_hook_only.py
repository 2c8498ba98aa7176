"""The hook without the shim: plain runtimes with gpuhook-hook in config.json, as hooks.d and docker's --gpus put it.

And the device filters of cgroup version 2 by themselves: several, above the container, unreadable, replaced meanwhile.
"""

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuhook import cgroup, devicefilter, linux
from gpuhook.devicefilter import Rule, extended, of_rules
from gpuhook.errors import GpuhookError
from gpuhook.model import Node
from tests import bundles
from tests.conftest import RUNTIMES, World
from tests.images import CHECKOUT
from tests.runc.test_userns import mapped

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]
ALL = "NVIDIA_VISIBLE_DEVICES=all"
LIBCUDA = "dlopen:libcuda.so.1"
SEES = ["opendev", LIBCUDA, "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/null"]


@pytest.fixture(autouse=True)
def gpu_world(world: World, sim_driver: Path) -> World:
    """The driver of each test is the simulated one."""
    world.use_driver(sim_driver)
    return world


@pytest.fixture(params=RUNTIMES, ids=" ".join)
def plain(request: pytest.FixtureRequest, folder: Path) -> bundles.Runtime:
    """Each low-level runtime and cgroup version that this machine can run together, without the shim."""
    name, layout = request.param
    return bundles.within(bundles.Runtime(bundles.tool(name), folder / "plain"), layout)


def entry(world: World, *words: str) -> dict[str, Any]:
    """The hook as hooks.d has it: a PATH and nothing else."""
    return {"path": str(world.hook), "args": ["gpuhook-hook", *words], "env": ["PATH=/usr/bin:/bin"], "timeout": 60}


@pytest.fixture
def hooked(world: World, new_bundle: NewBundle) -> NewBundle:
    """Makes bundles with that hook."""

    def make(tree: str = "glibc", *, words: tuple[str, ...] = ("prestart",), **options: Any) -> bundles.Bundle:
        return new_bundle(tree, hooks={"prestart": [entry(world, *words)]}, **options)

    return make


def written(world: World) -> list[dict[str, Any]]:
    """What is written down of containers."""
    return [json.loads(path.read_text()) for path in (world.state / "containers").glob("*.json")]


@pytest.mark.parametrize("overlay", [False, True], ids=["plain", "overlay"])
@pytest.mark.parametrize("readonly", [False, True], ids=["writable", "readonly"])
@pytest.mark.parametrize("words", [("prestart",), ()], ids=["prestart", "no word"])
def test_all(
    plain: bundles.Runtime, world: World, hooked: NewBundle, words: tuple[str, ...], readonly: bool, overlay: bool
) -> None:
    """The driver by soname, every GPU's node, nvidia-smi; the spec stays as the engine wrote it."""
    args = ["sh", "-c", " ".join(SEES) + " && nvidia-smi"]
    bundle = hooked(words=words, overlay=overlay, readonly=readonly, env=[ALL], args=args)
    before = (bundle.path / "config.json").read_bytes()

    done = plain.run(bundle)

    assert (done.code, done.out.count(": ok"), done.err) == (0, len(SEES) - 1, "")
    assert done.out.count("NVIDIA H100 80GB HBM3") == 2
    assert (bundle.path / "config.json").read_bytes() == before
    assert [item["mode"] for item in written(world)] == ["hook-only"]
    assert "warning" not in world.log


@pytest.mark.parametrize(("granted", "other"), [(0, 1), (1, 0)])
def test_the_other_gpu_is_out_of_reach(
    plain: bundles.Runtime, hooked: NewBundle, sim_driver: Path, granted: int, other: int
) -> None:
    """Its node is not there; made, or mounted by the engine, it can't be opened: the rules open the granted alone."""
    host = sim_driver / f"dev/nvidia{other}"
    number = host.stat().st_rdev
    forge = f"mknod /dev/forged c {os.major(number)} {os.minor(number)}; opendev /dev/forged; opendev /dev/mounted"
    bundle = hooked(
        env=[f"NVIDIA_VISIBLE_DEVICES={granted}"],
        mounts=[bundles.mount("/dev/mounted", "bind", str(host), "bind", "rw")],
        args=["sh", "-c", f"opendev /dev/nvidia{granted}; ls /dev; grep /dev/nvidia /proc/self/mountinfo; {forge}"],
    )

    done = plain.run(bundle)

    assert f"/dev/nvidia{granted}: ok" in done.out
    assert f"\nnvidia{other}\n" not in done.out
    assert done.out.count(": Operation not permitted") == 2, done.out + done.err
    lines = [line for line in done.out.splitlines() if f" /dev/nvidia{granted} " in line]
    assert [{"ro", "nosuid", "noexec"} <= set(line.split()[5].split(",")) for line in lines] == [True]
    assert "nodev" not in lines[0].split()[5]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
        {"env": ["NVIDIA_VISIBLE_DEVICES="]},
        {"env": [ALL], "annotations": {"io.kubernetes.cri-o.ContainerType": "sandbox"}},
        {"env": [ALL], "annotations": {"io.kubernetes.cri.container-type": "sandbox"}},
    ],
    ids=["unset", "void", "empty", "CRI-O's sandbox", "containerd's sandbox"],
)
def test_nothing(plain: bundles.Runtime, world: World, hooked: NewBundle, options: dict[str, Any]) -> None:
    """A container that asks for nothing, or a pod's sandbox: nothing is done, said, or written down."""
    done = plain.run(hooked(args=["sh", "-c", "ls /dev /usr/bin"], **options))

    assert (done.code, "nvidia" in done.out, done.err) == (0, False, "")
    assert world.log == ""
    assert not (world.state / "containers").exists()


def test_none(plain: bundles.Runtime, hooked: NewBundle) -> None:
    """`none`: the driver's files and the control nodes, no GPU."""
    args = ["sh", "-c", f"opendev {LIBCUDA} /dev/nvidiactl; ls /dev | grep nvidia"]
    done = plain.run(hooked(env=["NVIDIA_VISIBLE_DEVICES=none"], args=args))

    assert done.out.count(": ok") == 2, done.out + done.err
    assert done.out.splitlines()[2:] == ["nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"]


def test_a_requirement_is_refused(plain: bundles.Runtime, world: World, hooked: NewBundle) -> None:
    """In each mode: the container does not start, and the words are where this runtime shows them."""
    done = plain.run(hooked(env=[ALL, "NVIDIA_REQUIRE_CUDA=cuda>=14.0"], args=["echo", "started"]))

    assert done.code != 0
    assert "started" not in done.out
    assert "CUDA 14.0" in world.log
    assert "[requirement-not-met]" in world.log
    assert ("[requirement-not-met]" if "runc" in str(plain.binary) else "exit code: 41") in done.err


@pytest.mark.parametrize("config", ["[driver\n", '[requirement]\npolicy = "strct"\n'])
def test_a_broken_configuration_refuses_who_asks_and_no_other(
    world: World, runc: bundles.Runtime, hooked: NewBundle, config: str
) -> None:
    world.configure(config)
    assert runc.run(hooked()).code == 0
    refused = runc.run(hooked(env=[ALL]))
    assert refused.code == 1
    assert "[config-invalid]" in refused.err


def test_another_driver_at_the_next_start(
    runc: bundles.Runtime, world: World, hooked: NewBundle, new_driver: Callable[..., Path]
) -> None:
    """Nothing of a decision is kept in the bundle: the next start gets the driver of then."""
    bundle = hooked(env=[ALL], args=["opendev", LIBCUDA, "/dev/nvidia0"])
    for version in ("580.95.05", "535.161.08"):
        world.use_driver(new_driver(driver=version))
        done = runc.run(bundle)
        assert (done.code, f"{LIBCUDA}: ok libcuda.so {version}" in done.out) == (0, True), done.out + done.err


def test_a_driver_that_changes_underneath(
    world: World, runc: bundles.Runtime, hooked: NewBundle, new_driver: Callable[..., Path]
) -> None:
    """A library touched since the record was made: the record is made again, and holds."""
    driver = new_driver()
    world.use_driver(driver)
    bundle = hooked(env=[ALL], args=["opendev", LIBCUDA])
    assert runc.run(bundle).code == 0
    first = written(world)[0]["record"]
    next(driver.rglob("libcuda.so.580.95.05")).touch()
    assert runc.run(bundle).code == 0
    assert {item["record"] for item in written(world)} != {first}


def test_many_at_once(plain: bundles.Runtime, world: World, hooked: NewBundle, folder: Path) -> None:
    """The first start ever, eight times at once: one driver record, and each container has its devices."""
    made = [
        hooked(env=[f"NVIDIA_VISIBLE_DEVICES={at % 2}"], args=["opendev", LIBCUDA, f"/dev/nvidia{at % 2}"])
        for at in range(8)
    ]
    runtimes = [bundles.Runtime(plain.binary, folder / f"state{at}", within=plain.within) for at in range(len(made))]
    results: dict[int, bundles.Result] = {}
    threads = [
        threading.Thread(target=lambda at=at: results.update({at: runtimes[at].run(made[at])}))
        for at in range(len(made))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(results[at].code, results[at].out.count(": ok")) for at in range(len(made))] == [(0, 2)] * len(made)


def test_a_nested_group_and_a_cgroup_namespace(plain: bundles.Runtime, hooked: NewBundle) -> None:
    """As docker has it with version 2 and Kubernetes with both: that group's rules, whatever the container sees."""
    top = f"gpuhook-test-{os.getpid()}"
    bundle = hooked(env=["NVIDIA_VISIBLE_DEVICES=0"], args=SEES)
    spec = bundle.spec
    spec["linux"]["namespaces"].append({"type": "cgroup"})
    spec["linux"]["cgroupsPath"] = f"/{top}/pod/container"
    (bundle.path / "config.json").write_text(json.dumps(spec))

    try:
        done = plain.run(bundle)
    finally:
        base = Path("/sys/fs/cgroup")
        for folder in [*base.glob(top), *base.glob(f"*/{top}")]:
            for path in (folder / "pod", folder):
                path.rmdir()

    assert done.out.count(": ok") == len(SEES) - 2, done.out + done.err


def test_after_the_start(plain: bundles.Runtime, hooked: NewBundle) -> None:
    """The devices stay for `exec`, and after `update`, which runtimes do with limits as with a changed CPU share."""
    bundle = hooked(env=[ALL], args=["sleep", "100"])
    name = plain.new_id()
    created = plain.create(bundle, name)
    assert created.code == 0, created.err
    try:
        assert plain.call("start", name).code == 0
        assert plain.call("exec", name, *SEES).out.count(": ok") == len(SEES) - 1
        if plain.within[1] == "v1":  # the version 2 tree of a hybrid machine has no controller to update
            assert plain.call("update", "--cpu-share", "512", name).code == 0
        assert plain.call("exec", name, *SEES).out.count(": ok") == len(SEES) - 1
    finally:
        plain.delete(name)


def test_a_device_that_the_engine_gives_too(
    plain: bundles.Runtime, hooked: NewBundle, sim_driver: Path, world: World
) -> None:
    """One node is in the spec already, with its rule: it is left as it is."""
    number = (sim_driver / "dev/nvidia0").stat().st_rdev
    bundle = hooked(env=[ALL], args=["sh", "-c", " ".join(SEES) + "; grep -c /dev/nvidia0 /proc/self/mountinfo"])
    spec = bundle.spec
    device = {"type": "c", "major": os.major(number), "minor": os.minor(number)}
    spec["linux"]["devices"] = [{"path": "/dev/nvidia0", "fileMode": 0o666, "uid": 0, "gid": 0, **device}]
    spec["linux"]["resources"]["devices"].append({"allow": True, "access": "rwm", **device})
    (bundle.path / "config.json").write_text(json.dumps(spec))

    done = plain.run(bundle)

    assert done.out.count(": ok") == len(SEES) - 1, done.out + done.err
    assert done.out.splitlines()[-1] == "0"
    assert "warning" not in world.log


def test_everything_is_allowed_already(plain: bundles.Runtime, hooked: NewBundle) -> None:
    """A container whose rules allow all: nothing is taken away."""
    bundle = hooked(env=[ALL], args=SEES)
    spec = bundle.spec
    spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    (bundle.path / "config.json").write_text(json.dumps(spec))

    done = plain.run(bundle)

    assert (done.code, done.out.count(": ok")) == (0, len(SEES) - 1), done.out + done.err


def test_no_dev(runc: bundles.Runtime, hooked: NewBundle) -> None:
    """A spec that mounts nothing at /dev is refused, as by the shim."""
    bundle = hooked(env=[ALL])
    spec = bundle.spec
    spec["mounts"] = [item for item in spec["mounts"] if not item["destination"].startswith("/dev")]
    (bundle.path / "config.json").write_text(json.dumps(spec))
    done = runc.run(bundle)
    assert "[dev-not-mounted]" in done.err


@pytest.mark.parametrize("devices", [False, True], ids=["no devices", "with devices"])
def test_user_namespace(plain: bundles.Runtime, hooked: NewBundle, devices: bool) -> None:
    """The nodes are the host's, mounted; crun says a wrong bundle where the spec has a device, and it is found."""
    bundle = mapped(hooked(env=[ALL], args=SEES))
    spec = bundle.spec
    if devices:  # runc takes the host's node of that name
        device = {"type": "c", "major": 1, "minor": 7, "fileMode": 0o666, "uid": 0, "gid": 0}
        spec["linux"]["devices"] = [{"path": "/dev/full", **device}]
    (bundle.path / "config.json").write_text(json.dumps(spec))

    done = plain.run(bundle)

    assert (done.code, done.out.count(": ok")) == (0, len(SEES) - 1), done.out + done.err


def test_rootless(runc: bundles.Runtime, world: World, hooked: NewBundle, folder: Path) -> None:
    """A runtime of a user, who has no device cgroup: the nodes are mounted, and nothing else is tried."""
    own = folder / "own"
    own.mkdir(mode=0o700)
    bundle = hooked(env=[ALL], args=SEES)
    spec = bundle.spec
    spec["hooks"]["prestart"][0]["env"].append(f"XDG_RUNTIME_DIR={own}")
    spec["linux"]["namespaces"].append({"type": "user"})
    for key in ("uidMappings", "gidMappings"):
        spec["linux"][key] = [{"containerID": 0, "hostID": 1001, "size": 1}]
    (bundle.path / "config.json").write_text(json.dumps(spec))
    for path in [own, runc.state, bundle.path, *bundle.path.rglob("*")]:
        os.lchown(path, 1001, 1001)
    runc.within = ["setpriv", "--reuid=1001", "--regid=1001", "--clear-groups", "env", f"XDG_RUNTIME_DIR={own}"]

    done = runc.run(bundle)

    assert (done.code, done.out.count(": ok")) == (0, len(SEES) - 1), done.out + done.err
    assert [json.loads(path.read_text())["mode"] for path in (own / "gpuhook/containers").iterdir()] == ["hook-only"]


# --- with the shim ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_the_shim_takes_the_place(
    any_shim: bundles.Runtime, world: World, sim_driver: Path, hooked: NewBundle, stage: str
) -> None:
    """Both are configured: an engine put the hook into the spec before the shim saw it. One is left, with orders."""
    world.use_driver(sim_driver, f'[hook]\nstage = "{stage}"\n')
    bundle = hooked(env=[ALL], args=SEES)

    done = any_shim.run(bundle)

    assert (done.code, done.out.count(": ok")) == (0, len(SEES) - 1), done.out + done.err
    found = [hook["args"] for entries in bundle.spec["hooks"].values() for hook in entries]
    assert [words[1] for words in found] == ["--record"]
    assert [item["mode"] for item in written(world)] == ["shim"]


@pytest.mark.parametrize("first", [True, False], ids=["before it", "after it"])
def test_beside_the_shims_hook(
    any_shim: bundles.Runtime, world: World, new_bundle: NewBundle, folder: Path, first: bool
) -> None:
    """The hook of hooks.d in a spec that has the shim's: it leaves the work to that, in whatever order they come."""
    bundle = new_bundle(env=[ALL], args=SEES)
    assert any_shim.run(bundle).code == 0
    spec = bundle.spec
    spec["hooks"]["prestart"].insert(0 if first else 1, entry(world, "prestart"))
    (bundle.path / "config.json").write_text(json.dumps(spec))
    shutil.rmtree(world.state / "containers")
    before = world.log
    binary = bundles.tool(world.low_level)

    done = bundles.Runtime(binary, folder / "plain", within=any_shim.within).run(bundle)

    assert (done.code, done.out.count(": ok")) == (0, len(SEES) - 1), done.out + done.err
    assert [item["mode"] for item in written(world)] == ["shim"]
    assert world.log == before, "a second one at work would say so"


def test_a_spec_that_asks_for_nothing_keeps_the_engines_hook(
    world: World, shim: bundles.Runtime, hooked: NewBundle
) -> None:
    """To the byte, though the hook in it bears our name."""
    bundle = hooked(args=["ls", "/dev"])
    before = (bundle.path / "config.json").read_bytes()
    done = shim.run(bundle)
    assert (done.code, "nvidia" in done.out) == (0, False)
    assert (bundle.path / "config.json").read_bytes() == before


@pytest.mark.parametrize("word", ["poststart", "poststop"])
def test_later_stages(runc: bundles.Runtime, world: World, new_bundle: NewBundle, word: str) -> None:
    """NVIDIA's hook takes these words and does nothing; so does ours."""
    done = runc.run(new_bundle(env=[ALL], args=["ls", "/dev"], hooks={word: [entry(world, word)]}))
    assert (done.code, "nvidia" in done.out, done.err, world.log) == (0, False, "", "")


def test_an_unknown_word(runc: bundles.Runtime, hooked: NewBundle) -> None:
    done = runc.run(hooked(words=("frobnicate",), env=[ALL]))
    assert "gpuhook-hook does not take 'frobnicate' [usage]" in done.err


def test_under_nvidias_name(
    plain: bundles.Runtime, installed: Path, sim_driver: Path, new_bundle: NewBundle, folder: Path
) -> None:
    """docker's --gpus calls what has this name in the daemon's PATH, with the daemon's whole environment."""
    world = World(folder / "own")
    shutil.copytree(installed, world.path)  # a link is followed to where the installation really lies
    world.use_driver(sim_driver)
    link = folder / "nvidia-container-runtime-hook"
    link.symlink_to(world.hook)
    env = ["PATH=/nowhere", "LD_LIBRARY_PATH=/opt/lib:", "PYTHONPATH=/tmp", "NVIDIA_VISIBLE_DEVICES=void"]
    hook = {"path": str(link), "args": [link.name, "prestart"], "env": env}
    args = ["sh", "-c", "opendev /dev/nvidia1; ls /dev"]
    # the engine appends what --gpus says to what the image says
    asked = [ALL, "NVIDIA_VISIBLE_DEVICES=1"]
    done = plain.run(new_bundle(env=asked, args=args, hooks={"prestart": [hook]}))
    assert ("/dev/nvidia1: ok" in done.out, "nvidia0" in done.out) == (True, False), done.out + done.err


# --- the filters of version 2 -------------------------------------------------------------------------------------

DENY = of_rules((Rule(False, "a", -1, -1, 7), *devicefilter.DEFAULTS))
# r6 = r1, bpf_ktime_get_ns(), r1 = r6: a program with a call is not read
CALL = bytes.fromhex("bf16000000000000 8500000005000000 bf61000000000000")
OPENS = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDWR))
        print("ok")
    except PermissionError:
        print("denied")
"""


class Tree:
    """Groups of this test's own in the machine's version 2 tree, with a process in the lowest one."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.scope = top / "scope"
        self.low = self.scope / "container"
        self.low.mkdir(parents=True)
        self.process = subprocess.Popen(["sleep", "600"])
        (self.low / "cgroup.procs").write_text(str(self.process.pid))

    def close(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for folder in sorted((path for path in self.top.rglob("*") if path.is_dir()), reverse=True):
            folder.rmdir()
        self.top.rmdir()

    def permit(self, nodes: tuple[Node, ...], rules: tuple[Rule, ...] = ()) -> tuple[str, ...]:
        return cgroup.permit(cgroup.find(self.process.pid), nodes, rules)

    def opens(self, *paths: Path) -> list[str]:
        """What a process in the lowest group can open."""
        script = f'echo $$ > {self.low}/cgroup.procs && exec python3 -c "$0" "$@"'
        done = subprocess.run(["sh", "-c", script, OPENS, *paths], capture_output=True, text=True, check=True)
        return done.stdout.split()


def attach(folder: Path, program: bytes, flags: int = linux.BPF_F_ALLOW_MULTI) -> None:
    """Load and attach a device program, as a runtime does."""
    code, text = linux.Memory(program), linux.Memory(b"GPL\0")

    def command(number: int, *words: int | bytes) -> int:
        parts = [word if isinstance(word, bytes) else word.to_bytes(4, "little") for word in words]
        return linux.bpf(number, linux.Memory(b"".join(parts).ljust(128, b"\0")))

    addresses = [memory.address.to_bytes(8, "little") for memory in (code, text)]
    loaded = command(linux.BPF_PROG_LOAD, linux.BPF_PROG_TYPE_CGROUP_DEVICE, len(program) // 8, *addresses)
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        command(linux.BPF_PROG_ATTACH, at, loaded, linux.BPF_CGROUP_DEVICE, flags)
    finally:
        os.close(at)
        os.close(loaded)


@pytest.fixture
def tree(folder: Path) -> Iterator[Tree]:
    kinds = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if " cgroup2 " in line]
    made = Tree(Path(kinds[-1]) / f"gpuhook-test-{folder.name}")
    yield made
    made.close()


@pytest.fixture
def nodes(sim_driver: Path) -> tuple[Node, ...]:
    """The nodes of GPU 0, as granted."""
    found = []
    for name in ("nvidia0", "nvidiactl"):
        number = (sim_driver / "dev" / name).stat().st_rdev
        found.append(Node(f"/dev/{name}", os.major(number), os.minor(number), 0o666, 0, 0))
    return tuple(found)


@pytest.fixture
def seen(tree: Tree, sim_driver: Path) -> Callable[[], list[str]]:
    """What can be opened: the granted GPU, the control node, another GPU, and what everybody has."""
    dev = sim_driver / "dev"
    return lambda: tree.opens(dev / "nvidia0", dev / "nvidiactl", dev / "nvidia1", Path("/dev/null"))


GRANTED = ["ok", "ok", "denied", "ok"]
NOTHING = ["denied", "denied", "denied", "ok"]


def test_no_filter_gets_none(tree: Tree, nodes: tuple[Node, ...], seen: Callable[[], list[str]]) -> None:
    """Everything is allowed already; a filter of ours would only take away."""
    assert tree.permit(nodes) == ()
    assert seen() == ["ok"] * 4


@pytest.mark.parametrize("flags", [linux.BPF_F_ALLOW_MULTI, 1, 0], ids=["multi", "override", "alone"])
def test_one_filter(tree: Tree, nodes: tuple[Node, ...], seen: Callable[[], list[str]], flags: int) -> None:
    """By whichever way it was attached; the second time nothing is left to do."""
    attach(tree.low, DENY, flags)
    assert seen() == NOTHING, "the filter filters nothing: the test shows nothing"
    assert tree.permit(nodes) == ()
    assert seen() == GRANTED
    assert tree.permit(nodes) == ()
    assert seen() == GRANTED


def test_several_filters(tree: Tree, nodes: tuple[Node, ...], seen: Callable[[], list[str]]) -> None:
    """Each that denies is extended; the verdict is that of all."""
    for program in (DENY, extended(DENY, ((10, 1),)), of_rules((Rule(True, "a", -1, -1, 7),))):
        attach(tree.low, program)
    assert tree.permit(nodes) == ()
    assert seen() == GRANTED


def test_a_filter_above_of_the_container_alone(
    tree: Tree, nodes: tuple[Node, ...], seen: Callable[[], list[str]]
) -> None:
    """crun with systemd: one on the scope, one on its `container`."""
    attach(tree.scope, DENY)
    attach(tree.low, DENY)
    assert tree.permit(nodes) == ()
    assert seen() == GRANTED


@pytest.mark.parametrize("other", ["group", "process"])
def test_a_filter_above_that_others_are_under(
    tree: Tree, nodes: tuple[Node, ...], seen: Callable[[], list[str]], other: str
) -> None:
    """What is not the container's alone is not changed; the error says what to do."""
    attach(tree.top if other == "group" else tree.scope, DENY)
    attach(tree.low, DENY)
    sleeper = subprocess.Popen(["sleep", "600"])
    if other == "group":
        (tree.top / "other").mkdir()
    else:
        (tree.scope / "cgroup.procs").write_text(str(sleeper.pid))
    try:
        with pytest.raises(GpuhookError) as caught:
            tree.permit(nodes)
    finally:
        sleeper.kill()
        sleeper.wait()
    assert caught.value.reference == "cgroup-failed"
    assert "others are in too" in caught.value.message
    assert "DeviceAllow" in caught.value.hint
    assert seen() == NOTHING


def test_a_filter_that_can_not_be_read(tree: Tree, nodes: tuple[Node, ...], seen: Callable[[], list[str]]) -> None:
    """It is made anew of the spec's rules and what every runtime allows."""
    attach(tree.low, CALL + DENY)
    rules = (Rule(False, "a", -1, -1, 7), Rule(True, "c", nodes[0].major, nodes[1].minor, 7))
    assert tree.permit(nodes[:1], rules) == ()
    assert seen() == GRANTED


def test_one_of_several_that_can_not_be_read(tree: Tree, nodes: tuple[Node, ...]) -> None:
    """It may be somebody else's, whose rules nobody here knows: refused."""
    for program in (DENY, CALL + DENY):
        attach(tree.low, program)
    with pytest.raises(GpuhookError) as caught:
        tree.permit(nodes)
    assert caught.value.reference == "cgroup-failed"
    assert "can't be read" in caught.value.message


def test_one_above_that_can_not_be_read(tree: Tree, nodes: tuple[Node, ...]) -> None:
    """It may deny, or not: a warning."""
    attach(tree.scope, CALL + DENY)
    attach(tree.low, DENY)
    (warning,) = tree.permit(nodes)
    assert "can't be read: it may deny devices" in warning


def test_never_a_moment_without_a_filter(tree: Tree, nodes: tuple[Node, ...], sim_driver: Path) -> None:
    """While filters are replaced over and over, another GPU can't be opened once, and the terminal always."""
    attach(tree.low, DENY)
    script = f"""
import os, sys, time
open("{tree.low}/cgroup.procs", "w").write(str(os.getpid()))
end, bad = time.monotonic() + 1, 0
print("begin", flush=True)
while time.monotonic() < end:
    os.close(os.open("/dev/null", os.O_RDWR))
    try:
        os.close(os.open("{sim_driver}/dev/nvidia1", os.O_RDWR))
        bad += 1
    except PermissionError:
        pass
print(bad)
"""
    with subprocess.Popen(["python3", "-c", script], stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "begin\n"
        minor = 0
        while watcher.poll() is None and minor < 60:  # the program grows with each
            minor += 1
            tree.permit((Node("/dev/x", 4000, minor, 0o666, 0, 0),))
        assert watcher.stdout.read() == "0\n"
    assert minor > 3


def test_two_at_the_same_filter(tree: Tree, nodes: tuple[Node, ...], seen: Callable[[], list[str]]) -> None:
    """Each finds that the other was faster, and begins again: both sets are allowed in the end."""
    attach(tree.low, DENY)
    failed: list[object] = []

    def work(first: int) -> None:
        try:
            for minor in range(first, first + 8):
                tree.permit((Node("/dev/x", 4000, minor, 0o666, 0, 0), nodes[first % 2]))
        except GpuhookError as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 101)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert seen() == GRANTED


def test_without_the_rights(tree: Tree, seen: Callable[[], list[str]]) -> None:
    """A root who may not change filters is told which right is missing, and nothing is half done."""
    attach(tree.low, DENY)
    script = f"""
import sys
sys.path.insert(0, "{CHECKOUT}/src")
from gpuhook import cgroup
from gpuhook.model import Node
cgroup.permit(cgroup.find({tree.process.pid}), (Node("/dev/x", 4000, 1, 0o666, 0, 0),), ())
"""
    lost = "--bounding-set=-sys_admin,-net_admin,-bpf,-perfmon"
    done = subprocess.run(["setpriv", lost, "python3", "-c", script], capture_output=True, text=True, check=False)
    assert "can't be changed: bpf: Operation not permitted [cgroup-failed]" in done.stderr
    assert "CAP_SYS_ADMIN" in done.stderr
    assert seen() == NOTHING


def test_version_1_never_more_than_above(sim_driver: Path, nodes: tuple[Node, ...]) -> None:
    """The kernel refuses what a group above has not; the error names rule, group and what to do."""
    top = Path(f"/sys/fs/cgroup/devices/gpuhook-test-{os.getpid()}")
    low = top / "c1"
    top.mkdir()
    (top / "devices.deny").write_text("a")  # the kernel takes that before there is a group below
    low.mkdir()
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        (low / "cgroup.procs").write_text(str(sleeper.pid))
        with pytest.raises(GpuhookError) as caught:
            cgroup.permit(cgroup.find(sleeper.pid), nodes, ())
    finally:
        sleeper.kill()
        sleeper.wait()
        low.rmdir()
        top.rmdir()
    assert caught.value.reference == "cgroup-failed"
    rule = f"c {nodes[0].major}:{nodes[0].minor} rw"
    assert f"{rule} can't be allowed in the devices cgroup /{top.name}/c1: " in caught.value.message
    assert "DeviceAllow" in caught.value.hint
