"""A GPU node of Kubernetes without Kubernetes: pods as kubelet has containerd make them, with what NVIDIA's device
plugin hands over by each of its strategies, and images that say `all`.

The node has two whole GPUs and one that is divided; `gpuhook configure containerd` sets it up, with and without
`--privileged-only`. A container gets what it was given, and no way to anything else.

tests/long/engines.py runs these tests with newer systems, by a fixture `system` of its own.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuhook import sim
from gpuhook.sim import state
from gpuhook.sim.options import gpu_uuid
from tests.engines.archive import GPU, PLAIN
from tests.engines.configure import configure
from tests.engines.containerd import Containerd
from tests.engines.cri import Container, CriError, Pod
from tests.engines.results import Results

pytestmark = pytest.mark.runc

ENV, MOUNTS = "NVIDIA_VISIBLE_DEVICES", "/var/run/nvidia-container-devices"  # of the device plugin
FIRST, SECOND = gpu_uuid(0), gpu_uuid(1)
# the capabilities of both GPU instances of the divided GPU, each followed by that of its compute instance
CAPS = [f"nvidia-caps/nvidia-cap{state.capability(2, gi, ci)}" for gi in (1, 2) for ci in (-1, 0)]
NODES = ("nvidia0", "nvidia1", "nvidia2", *CAPS)
MIG = ("nvidia2", *CAPS[:2])  # the first MIG device
SHIPPED, PRIVILEGED_ONLY = "as shipped", "privileged only"
# Which nodes are there, what comes of opening a node that is made by hand for each number, and libcuda.
SCRIPT = """exec 2>&1
cd /dev
for node in nvidia[0-9]* nvidia-caps/*; do [ ! -e $node ] || echo there $node; done
for number in $NUMBERS; do
  mknod forged c ${number%%:*} ${number#*:}
  echo $number $(opendev forged)
  rm forged
done
opendev dlopen:libcuda.so.1
"""
DENIED = "Operation not permitted"
ANSWERS = ("ok", "No such device", DENIED)  # behind the number of a simulated GPU there may be nothing


class Node(Containerd):
    """A containerd of its own for these tests, since the policy is the node's."""

    policies: dict[str, str]  # runtime.toml as `gpuhook configure` leaves it
    driver: Path

    def use(self, policy: str) -> None:
        """Have a policy."""
        self.world.configure(self.policies[policy])

    def numbers(self, names: Iterable[str]) -> frozenset[str]:
        """The numbers of nodes, as mknod takes them."""
        devices = [(self.driver / "dev" / name).stat().st_rdev for name in names]
        return frozenset(f"{os.major(device)}:{os.minor(device)}" for device in devices)

    def only(self, *names: str) -> "Seen":
        """What a container sees that has these nodes and no others; without any it has no driver either."""
        return Seen(names, self.numbers(names), bool(names))


@dataclass(frozen=True)
class Seen:
    """The nodes that are there, the numbers whose nodes can be opened, and whether libcuda can be loaded."""

    there: tuple[str, ...]
    opened: frozenset[str]
    driver: bool


@dataclass(frozen=True)
class Given:
    """What kubelet adds to a container for the device plugin, and what the pod's author wrote."""

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


def by_env(*ids: str, devices: tuple[str, ...] = ()) -> Given:
    """Strategy `envvar`."""
    return Given({ENV: ",".join(ids)}, devices=devices)


def by_mounts(*ids: str, env: str = MOUNTS, devices: tuple[str, ...] = ()) -> Given:
    """Strategy `volume-mounts`; a variable that the pod has itself takes the place of the plugin's."""
    return Given({ENV: env}, {f"{MOUNTS}/{each}": "/dev/null" for each in ids}, devices)


def by_annotation(*ids: str) -> Given:
    """Strategy `cdi-annotations`."""
    names = ",".join(f"k8s.device-plugin.nvidia.com/gpu={each}" for each in ids)
    return Given(annotations={"cdi.k8s.io/nvidia-device-plugin_0123": names})


NOTHING = Given()
# the plugin's option pass-device-specs adds nodes that the engine itself makes
SPECS = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia1")


def look(node: Node, pod: Pod, given: Given, image: str = GPU, *, privileged: bool = False) -> Seen:
    """Run a container in a pod, and what it sees."""
    env = {**given.env, "NUMBERS": " ".join(sorted(node.numbers(NODES)))}
    devices = {f"/dev/{name}": f"{node.driver}/dev/{name}" for name in given.devices}
    wanted = Container(image, ("sh", "-c", SCRIPT), env, given.mounts, devices, given.annotations, privileged)
    _, out = pod.run(wanted)
    there, answers = [], {}
    for line in out.splitlines():
        word, _, rest = line.partition(" ")
        if word == "there":
            there.append(rest)
        else:
            answers[word] = rest.removeprefix("forged: ")
    libcuda = answers.pop("dlopen:libcuda.so.1:")
    assert answers.keys() == node.numbers(NODES), out
    assert set(answers.values()) <= set(ANSWERS), out
    assert libcuda.startswith(("ok", "libcuda.so.1: cannot open")), out
    opened = frozenset(number for number, answer in answers.items() if answer != DENIED)
    return Seen(tuple(there), opened, libcuda.startswith("ok"))


@pytest.fixture(scope="session")
def gpus(place: Path) -> Path:
    """The node's driver."""
    sim.create(place / "node", sim.SimOptions(gpus=3, mig=("2=1/0,2/0",)))
    return place / "node"


@pytest.fixture(scope="session")
def mig(gpus: Path) -> str:
    """The UUID of the node's first MIG device."""
    lines = (gpus / "sim/nvml.conf").read_text().splitlines()
    return next(line.split()[-1] for line in lines if line.startswith("mig = ") and "MIG-" in line)


@pytest.fixture
def node(
    request: pytest.FixtureRequest, engine: Callable[..., Any], system: Path, gpus: Path, results: Results
) -> Iterator[Node]:
    """A configured node with one cgroup version, without pods."""
    new: Node = engine(Node, request.param, system)
    if not hasattr(new, "policies"):
        new.driver = gpus
        new.world.use_driver(gpus)
        configure(new)
        new.policies = {SHIPPED: new.world.config.read_text()}
        configure(new, "--privileged-only")
        new.policies[PRIVILEGED_ONLY] = new.world.config.read_text()
        new.restart()
    new.need_pods(results)
    yield new
    new.remove_all()


def each(*layouts: str) -> pytest.MarkDecorator:
    """The test runs with each of these cgroup layouts."""
    return pytest.mark.parametrize("node", layouts, indirect=True)


@each("v1", "v2")
def test_volume_mounts_and_privileged_only(node: Node, results: Results, mig: str) -> None:
    """What was allocated and nothing else, whatever image and author say; containers of one pod have different GPUs."""
    node.use(PRIVILEGED_ONLY)
    cases: list[tuple[Given, str, tuple[str, ...]]] = [
        (by_mounts(FIRST), GPU, ("nvidia0",)),
        (by_mounts(SECOND), PLAIN, ("nvidia1",)),
        (by_mounts(FIRST, SECOND), GPU, ("nvidia0", "nvidia1")),
        (by_mounts(mig), GPU, MIG),
        (by_mounts(SECOND, env="all"), GPU, ("nvidia1",)),  # the author's own
        (by_mounts(SECOND, devices=SPECS), GPU, ("nvidia1",)),
        (NOTHING, GPU, ()),
        (NOTHING, PLAIN, ()),
        (by_env("all"), PLAIN, ()),  # the author's own
        (by_env(FIRST), GPU, ()),  # also: a plugin with the other strategy
    ]
    if node.major < 2:  # which itself refuses what it can't find
        cases.append((by_annotation(FIRST), GPU, ()))
    with node.cri.pod("gpuhook") as pod:
        for given, image, names in cases:
            assert look(node, pod, given, image) == node.only(*names), given

    assert f"the devices that {ENV} asks for ('{FIRST}') are ignored: the container is not privileged" in node.world.log
    results.works(node, "device plugin: volume-mounts, privileged-only")


@each("v1", "v2")
def test_envvar_as_shipped(node: Node, results: Results, mig: str) -> None:
    """What was allocated takes the place of the image's `all`; an image that was allocated nothing takes everything,
    which is why there is a policy."""
    node.use(SHIPPED)
    cases: list[tuple[Given, str, tuple[str, ...]]] = [
        (by_env(SECOND), GPU, ("nvidia1",)),
        (by_env(FIRST, SECOND), PLAIN, ("nvidia0", "nvidia1")),
        (by_env(mig), GPU, MIG),
        (by_env(SECOND, devices=SPECS), GPU, ("nvidia1",)),
        (by_env("void"), GPU, ()),
        (NOTHING, PLAIN, ()),
        (NOTHING, GPU, NODES),
    ]
    with node.cri.pod("gpuhook") as pod:
        for given, image, names in cases:
            assert look(node, pod, given, image) == node.only(*names), given

    results.works(node, "device plugin: envvar")


@each("v1")
def test_volume_mounts_as_shipped(node: Node) -> None:
    """The two sides do not agree: the container is refused, and the sentence names the setting."""
    node.use(SHIPPED)
    with node.cri.pod("gpuhook") as pod, pytest.raises(CriError) as error:
        look(node, pod, by_mounts(FIRST))

    assert "request.accept-devices-as-volume-mounts" in str(error.value)
    assert "[device-invalid]" in str(error.value)


@each("v1", "v2")
def test_privileged(node: Node, results: Results) -> None:
    """The device plugin's own pod asks by its environment. The engine keeps no device from a privileged container."""
    node.use(PRIVILEGED_ONLY)
    with node.cri.pod("gpuhook", privileged=True) as pod:
        every = look(node, pod, NOTHING, privileged=True)
        plain = look(node, pod, NOTHING, PLAIN, privileged=True)
        other = look(node, pod, NOTHING)

    assert every == node.only(*NODES)
    assert plain == Seen((), node.numbers(NODES), driver=False)
    assert other == node.only()
    results.works(node, "privileged pod, privileged-only")


@each("v1", "v2")
@pytest.mark.parametrize("policy", [SHIPPED, PRIVILEGED_ONLY])
def test_the_sandbox(node: Node, results: Results, policy: str) -> None:
    """A pod's sandbox gets nothing, though its image says `all`, nor does its specification change."""
    node.use(policy)
    with node.cri.pod("gpuhook") as pod:
        root = Path("/proc") / str(node.pid(pod.id))
        files = node.machine.check("ls", root / "root/dev")
        mounts = node.machine.check("cat", root / "mountinfo")
        bundle = node.folder / "state/io.containerd.runtime.v2.task/k8s.io" / pod.id / "config.json"
        spec = bundle.read_text()

    assert f"{ENV}=all" in spec
    assert "nvidia" not in files + mounts + spec.replace(f"{ENV}=all", "").replace("gpuhook.test", "").lower()
    assert not (node.world.state / f"containers/{pod.id}.json").exists()
    results.works(node, "pod's sandbox gets nothing")


@each("v1")
def test_annotations_of_the_plugin(node: Node, results: Results, mig: str) -> None:
    """Strategy `cdi-annotations`, where gpuhook is told to read them. containerd passes them on for containers, whose
    annotations are kubelet's and the plugin's; those of a pod are its author's, and are kept from the runtime."""
    node.world.configure(node.policies[PRIVILEGED_ONLY] + 'annotation-prefixes = ["cdi.k8s.io/"]\n')
    own = by_annotation(FIRST, SECOND).annotations
    if node.major >= 2:
        with node.cri.pod("gpuhook") as pod, pytest.raises(CriError, match="unresolvable CDI devices k8s"):
            look(node, pod, by_annotation(SECOND))
        why = "containerd 2 reads them first, and refuses what no CDI specification describes"
        results.fails(node, "device plugin: cdi-annotations read by gpuhook", why)
        return
    with node.cri.pod("gpuhook", own) as pod:
        assert look(node, pod, by_annotation(SECOND)) == node.only("nvidia1")
        assert look(node, pod, by_annotation(mig), PLAIN) == node.only(*MIG)
        assert look(node, pod, NOTHING) == node.only()

    results.works(node, "device plugin: cdi-annotations read by gpuhook")


@each("v1")
def test_annotations_of_a_pod(node: Node, results: Results) -> None:
    """The label of old images as a pod's annotation, where the policy takes it."""
    asked = {"com.nvidia.volumes.needed": "nvidia_driver"}
    node.use(SHIPPED)
    with node.cri.pod("gpuhook", asked) as pod:
        assert look(node, pod, NOTHING, PLAIN) == node.only()
        node.world.configure(node.policies[PRIVILEGED_ONLY] + "accept-label-annotations = true\n")
        assert look(node, pod, NOTHING, PLAIN) == node.only(*NODES)

    results.works(node, "annotations of pods")


@each("v1", "v2")
def test_two_containers_at_once(node: Node, results: Results) -> None:
    """They run side by side in one pod; each keeps to its own GPU."""
    node.use(PRIVILEGED_ONLY)
    with node.cri.pod("gpuhook") as pod:
        made = {}
        for uuid, name in ((FIRST, "nvidia0"), (SECOND, "nvidia1")):
            given = by_mounts(uuid)
            made[name] = pod.create(Container(GPU, ("sleep", "600"), given.env, given.mounts))
            node.cri.start(made[name])

        for name, container in made.items():
            code, out = node.cri.execute(container, "sh", "-c", f"ls -d /dev/nvidia[0-9]; opendev /dev/{name}")
            assert (code, out) == (0, f"/dev/{name}\n/dev/{name}: ok\n")
    results.works(node, "containers of one pod with different GPUs")
