"""containerd with gpuhook, by `ctr` and by the CRI plugin as kubelet calls it, configured by `gpuhook configure
containerd`; real containers with the simulated driver.

tests/long/engines.py runs these tests with newer systems, by a fixture `system` of its own.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import World
from tests.engines import cases
from tests.engines.archive import GPU, NEWER, PLAIN
from tests.engines.cases import FOUND, LIBCUDA, SEEN, SEES
from tests.engines.configure import configure, unconfigure
from tests.engines.containerd import SPIED, Containerd
from tests.engines.cri import Container, CriError
from tests.engines.machine import Machine
from tests.engines.results import Results

pytestmark = pytest.mark.runc

KINDS = (("runc", "v1"), ("runc", "v2"), ("crun", "v1"))
HYBRID = ("runc", "host")
FIRST = (("runc", "v1"),)


@pytest.fixture
def containerd(
    request: pytest.FixtureRequest, engine: Callable[..., Any], system: Path, sim_driver: Path
) -> Iterator[Containerd]:
    """The containerd of a low-level runtime and a cgroup layout, configured, without containers."""
    low_level, layout = request.param
    new: Containerd = engine(Containerd, layout, system)
    new.world.low_level = low_level
    new.world.use_driver(sim_driver)
    if "runtimes.gpuhook" not in new.config.read_text():
        configure(new)
        new.restart()
    yield new
    new.remove_all()


def each(kinds: tuple[tuple[str, str], ...]) -> pytest.MarkDecorator:
    """The test runs with each of these low-level runtimes and cgroup layouts."""
    return pytest.mark.parametrize("containerd", kinds, ids=" ".join, indirect=True)


@each((*KINDS, HYBRID))
def test_a_gpu_by_ctr(containerd: Containerd, results: Results, sim_driver: Path) -> None:
    """The image says `all`: both GPUs. The command line says `1`: that one's node, and no way to the other's."""
    every = containerd.run(GPU, *SEES)
    assert (every.code, every.out) == (0, SEEN), every

    script = f"opendev {LIBCUDA} /dev/nvidia1; ls -d /dev/nvidia0; {cases.forge(sim_driver / 'dev/nvidia0')}"
    one = containerd.run(GPU, "sh", "-c", script, options=["--env=NVIDIA_VISIBLE_DEVICES=1"])
    assert one.out == f"{FOUND}/dev/nvidia1: ok\n/dev/forged: Operation not permitted\n", one
    assert "/dev/nvidia0: No such file" in one.err

    results.works(containerd, "GPU container by ctr")


@each((*KINDS, HYBRID))
def test_a_gpu_by_the_cri(containerd: Containerd, results: Results, sim_driver: Path) -> None:
    """A pod with the runtime handler that `configure` made; two containers in it, one of them asks for one GPU."""
    containerd.need_pods(results)
    script = f"exec 2>&1; opendev {LIBCUDA} /dev/nvidia1; ls -d /dev/nvidia0; {cases.forge(sim_driver / 'dev/nvidia0')}"
    with containerd.cri.pod("gpuhook") as pod:
        assert pod.run(Container(GPU, SEES)) == (0, SEEN.rstrip())
        _, one = pod.run(Container(GPU, ("sh", "-c", script), {"NVIDIA_VISIBLE_DEVICES": "1"}))

    assert one.splitlines() == [
        FOUND.rstrip(),
        "/dev/nvidia1: ok",
        "ls: /dev/nvidia0: No such file or directory",
        "/dev/forged: Operation not permitted",
    ]
    results.works(containerd, "GPU container by the CRI")


@each(KINDS)
def test_refused(containerd: Containerd, results: Results, golden: Callable[[str, str, Machine], None]) -> None:
    """A requirement that is not met, as ctr shows it and as kubelet puts it into the pod's events."""
    version = ".".join(containerd.version.split(".")[:2])
    done = containerd.run(NEWER, "true")
    assert done.code == 1
    golden(f"containerd-{version}-ctr-refused", done.err, containerd.machine)

    containerd.need_pods(results)
    with containerd.cri.pod("gpuhook") as pod:
        made = pod.create(Container(NEWER, ("true",)))
        with pytest.raises(CriError) as error:
            containerd.cri.start(made)
        status = containerd.cri.call("ContainerStatus", container_id=made).status
    golden(f"containerd-{version}-cri-refused", f"{error.value}\n", containerd.machine)
    assert (status.reason, status.exit_code) == ("StartError", 128)  # what `kubectl describe pod` has
    results.works(containerd, "refused requirement shown")


@each(KINDS)
def test_a_life_by_ctr(containerd: Containerd, results: Results) -> None:
    """The GPUs are there for exec, after a pause, and when the container has a new task."""
    containerd.detach("life", GPU, "sleep", "600")

    steps: dict[str, list[tuple[str, ...]]] = {
        "exec": [],
        "pause": [("pause",), ("resume",)],
        "restart": [("delete", "--force"), ("start", "--detach")],
    }
    for what, commands in steps.items():
        for command in commands:
            containerd.check("tasks", *command, "life")
        done = containerd("tasks", "exec", "--exec-id=x", "life", *SEES)
        assert (done.code, done.out) == (0, SEEN), f"after {what}: {done}"
        results.works(containerd, f"{what} by ctr")


@each(KINDS)
def test_a_life_by_the_cri(containerd: Containerd, results: Results) -> None:
    """The same as kubelet does it: an update of limits in place, and the next attempt in the pod's sandbox."""
    containerd.need_pods(results)
    cri, wanted = containerd.cri, Container(GPU, ("sleep", "600"))

    def sees(container: str, what: str) -> None:
        assert cri.execute(container, *SEES) == (0, SEEN), f"after {what}"
        results.works(containerd, f"{what} by the CRI")

    with cri.pod("gpuhook") as pod:
        first = pod.create(wanted, "life")
        cri.start(first)
        sees(first, "exec")
        if containerd.machine.layout != "v2":
            limits = {"cpu_shares": 200, "memory_limit_in_bytes": 100 << 20}
            cri.call("UpdateContainerResources", container_id=first, linux=limits)
            sees(first, "update")
        cri.stop(first)
        second = pod.create(wanted, "life", 1)
        cri.start(second)
        sees(second, "restart")


@each(FIRST)
def test_the_daemon_starts_again(containerd: Containerd, results: Results) -> None:
    """A pod outlives its containerd, and what it gets later comes from gpuhook too."""
    cri = containerd.cri
    with cri.pod("gpuhook") as pod:
        made = pod.create(Container(GPU, ("sleep", "600")))
        cri.start(made)

        containerd.restart()

        assert cri.execute(made, *SEES) == (0, SEEN)
        assert pod.run(Container(GPU, SEES)) == (0, SEEN.rstrip())
    results.works(containerd, "restart of the daemon")


@each(KINDS)
def test_two_at_once(containerd: Containerd, results: Results) -> None:
    """With nothing compiled or recorded before, so that both come upon it."""
    done = cases.two_at_once(containerd.world.state, lambda env, argv: containerd.begin_run(GPU, *argv, options=[env]))

    assert [(one.code, one.out) for one in done] == cases.ONE_EACH, done
    results.works(containerd, "two at once")


@each(KINDS)
def test_asking_for_nothing(containerd: Containerd, results: Results) -> None:
    """The low-level runtime gets the very files that containerd wrote (bytes, inode, time of change) for a pod's
    container and its sandbox, whose image says `all`; nothing of a driver is needed for that."""
    containerd.need_pods(results)
    low_level = containerd.world.low_level
    before = cases.spy(containerd.folder / SPIED, containerd.world.runtime)
    after = cases.spy(containerd.folder / "after", low_level)
    containerd.world.low_level = str(containerd.folder / "after")
    containerd.world.use_driver(Path("/nowhere"))

    try:
        with containerd.cri.pod(SPIED) as pod:
            found = pod.run(Container(PLAIN, ("sh", "-c", "echo started; ls /dev | grep nvidia")))
    finally:
        containerd.world.low_level = low_level

    assert found == (1, "started")
    assert before.read_text().count("config.json") == 2
    assert before.read_text() == after.read_text()
    results.works(containerd, "untouched without a request")


@each(FIRST)
def test_default_runtime_and_back(containerd: Containerd, results: Results) -> None:
    """As the default runtime, for pods that name none; then the file is what it was, and so is containerd."""
    unconfigure(containerd)
    mine = containerd.config.read_text()
    assert mine == containerd.own()
    configure(containerd, "--default-runtime")
    containerd.restart()

    with containerd.cri.pod() as pod:
        assert pod.run(Container(GPU, SEES)) == (0, SEEN.rstrip())
        _, plain = pod.run(Container(PLAIN, ("ls", "/dev")))

    assert "nvidia" not in plain
    results.works(containerd, "default runtime")
    unconfigure(containerd)
    assert containerd.config.read_text() == mine
    containerd.restart()
    with containerd.cri.pod() as pod:
        code, out = pod.run(Container(GPU, ("opendev", LIBCUDA)))
    assert (code, LIBCUDA in out, "580" in out) == (1, True, False)
    with pytest.raises(CriError, match='no runtime for "gpuhook" is configured'), containerd.cri.pod("gpuhook"):
        pass
    results.works(containerd, "unconfigure")


@each(FIRST)
def test_a_drop_in(containerd: Containerd, results: Results) -> None:
    """containerd 1.x takes the CRI plugin's whole table from the last file that has it, so the drop-in repeats it: the
    runtimes of the main file still work. Then both files are as they were: the one without it, the other gone."""
    unconfigure(containerd)
    mine = containerd.config.read_text()
    file = containerd.folder / "conf.d/10-gpus.toml"
    configure(containerd, f"--drop-in={file}")
    containerd.restart()

    with containerd.cri.pod("gpuhook") as pod:
        assert pod.run(Container(GPU, SEES)) == (0, SEEN.rstrip())
    with containerd.cri.pod("runc") as pod:
        assert pod.run(Container(PLAIN, ("echo", "runc"))) == (0, "runc")

    assert "gpuhook" not in containerd.config.read_text().replace(str(file.parent), "").replace("gpuhook.test", "")
    unconfigure(containerd)
    assert containerd.config.read_text() == mine
    assert not file.exists()
    results.works(containerd, "drop-in")


@each((("runc", "v1"), ("runc", "v2")))
def test_a_container_in_a_container(
    containerd: Containerd, results: Results, new_world: Callable[[str], World], folder: Path, sim_driver: Path
) -> None:
    """The inner gpuhook's driver is what the outer container was given; Python and runc are the machine's."""
    inside = cases.inner(containerd.machine, new_world("inner"), folder, sim_driver)
    shared = [folder.parent, "/sys/fs/cgroup", *cases.tools(containerd.machine)]
    mounts = [f"--mount=type=bind,src={path},dst={path},options=rbind:rw" for path in shared]

    done = containerd.run(GPU, *inside, options=["--privileged", *mounts])

    assert (done.code, done.out) == (0, SEEN), done
    results.works(containerd, "GPU container in a GPU container")


@each(FIRST)
def test_ctr_reads_no_configuration(containerd: Containerd, results: Results) -> None:
    """`ctr --runtime` takes the name of a shim; a runtime of the CRI plugin's table is none."""
    done = containerd("run", "--rm", "--runtime=gpuhook", GPU, "named", *SEES)

    assert done.code == 1
    assert "invalid runtime name gpuhook, correct runtime name should be either format like" in done.err
    why = "ctr reads no table of runtimes: --runc-binary names gpuhook's instead"
    results.fails(containerd, "ctr run --runtime gpuhook", why)


# What crun can't do on a machine without CAP_SYS_RESOURCE, with all controllers in cgroup version 1.
MEMLOCK = "setrlimit (RLIM_MEMLOCK): Operation not permitted"
MIXED = "cgroups in hybrid mode not supported, drop all controllers from cgroupv2"
REFUSED = {
    "v2": (MEMLOCK, "crun 1.8.1 raises RLIMIT_MEMLOCK on cgroup v2, for which root needs CAP_SYS_RESOURCE"),
    "host": (MIXED, "crun refuses a machine with controllers in both cgroup versions"),
}


@each((("crun", "v2"), ("crun", "host")))
def test_what_crun_refuses(containerd: Containerd, results: Results) -> None:
    """In the same words as without gpuhook; a newer crun does run on cgroup version 2."""
    layout = containerd.machine.layout
    done = containerd.run(GPU, *SEES)
    if layout == "v2" and containerd.machine.check("crun", "--version").split()[2] != "1.8.1":
        assert (done.code, done.out) == (0, SEEN), done
        results.works(containerd, "GPU container by ctr")
        return
    words, why = REFUSED[layout]
    plain = containerd.run(PLAIN, "true", options=["--runc-binary=crun"])

    assert (done.code, plain.code) == (1, 1), f"{done}\n{plain}"
    assert words in done.err
    assert done.err == plain.err
    results.fails(containerd, "GPU container by ctr", why)
    with pytest.raises(CriError, match=re.escape(words)), containerd.cri.pod("gpuhook"):
        pass
    results.fails(containerd, "GPU container by the CRI", why)
