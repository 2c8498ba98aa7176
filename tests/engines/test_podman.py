"""podman with gpuhook, rootful and rootless: configured by `gpuhook configure podman`, run by the user whose it is.

Containers get GPUs by gpuhook's runtime, or by its hook in hooks.d, with any runtime.
tests/long/engines.py runs these tests with newer systems, by a fixture `system` of its own.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import World
from tests.engines import cases
from tests.engines.archive import GPU, NEWER, PLAIN
from tests.engines.cases import FOUND, LIBCUDA, SEEN, SEES
from tests.engines.machine import Machine, Result
from tests.engines.podman import Podman, RootlessPodman
from tests.engines.results import Results

pytestmark = pytest.mark.runc

Kind = tuple[type[Podman], str, str]
ROOTFUL: tuple[Kind, ...] = (
    (Podman, "runc", "v1"),
    (Podman, "runc", "v2"),
    (Podman, "runc", "host"),
    (Podman, "crun", "v1"),
)
ROOTLESS: tuple[Kind, ...] = (
    (RootlessPodman, "runc", "v1"),
    (RootlessPodman, "runc", "v2"),
    (RootlessPodman, "crun", "v1"),
    (RootlessPodman, "crun", "v2"),
)
KINDS = ROOTFUL + ROOTLESS
BUT_HOST = tuple(kind for kind in KINDS if kind[2] != "host")
DOCTOR_PROBLEM = 98  # errors.py
LASTING = ("--detach", "--stop-signal=KILL")
UPDATE = ("update", "--cpu-shares=200", "--memory=100m")


def _get(request: pytest.FixtureRequest, engine: Callable[..., Any], system: Path, driver: Path) -> Podman:
    kind, low_level, layout = request.param
    new: Podman = engine(kind, layout, system)
    new.world.low_level = low_level
    new.world.use_driver(driver)
    return new


@pytest.fixture
def podman(
    request: pytest.FixtureRequest, engine: Callable[..., Any], system: Path, sim_driver: Path
) -> Iterator[Podman]:
    """The podman of a user, a low-level runtime and a cgroup layout, with gpuhook's runtime, without containers."""
    new = _get(request, engine, system, sim_driver)
    new.configure()
    yield new
    new.remove_all()


@pytest.fixture
def hooked(
    request: pytest.FixtureRequest, engine: Callable[..., Any], system: Path, sim_driver: Path
) -> Iterator[Podman]:
    """The same with gpuhook's hook alone."""
    new = _get(request, engine, system, sim_driver)
    new.configure("--hook")
    yield new
    new.remove_all()


def each(fixture: str, kinds: tuple[Kind, ...]) -> pytest.MarkDecorator:
    """The test runs with each of these users, low-level runtimes and cgroup layouts."""
    return pytest.mark.parametrize(fixture, kinds, ids=_id, indirect=True)


def _id(kind: object) -> str:
    assert isinstance(kind, tuple)
    return f"{kind[0].name} {kind[1]} {kind[2]}"


def _only_one(podman: Podman, driver: Path, runtime: str) -> None:
    """The second GPU's node is there, and no way to the first's, not even by a new node."""
    forge = cases.forge(driver / "dev/nvidia0")
    done = podman.run(
        *("--rm", "--env=NVIDIA_VISIBLE_DEVICES=1", "--cap-add=MKNOD"),
        *(GPU, "sh", "-c", f"opendev {LIBCUDA} /dev/nvidia1; ls -d /dev/nvidia0; {forge}"),
        runtime=runtime,
    )
    # a user namespace has no right to make nodes; outside, the cgroup has no rule for it
    made = "" if podman.user else "/dev/forged: Operation not permitted\n"
    assert done.out == f"{FOUND}/dev/nvidia1: ok\n{made}", done
    assert "/dev/nvidia0: No such file" in done.err
    assert ("mknod: /dev/forged: Operation not permitted" in done.err) == bool(podman.user), done


@each("podman", KINDS)
def test_a_gpu(podman: Podman, results: Results, sim_driver: Path) -> None:
    """The image says `all`: both GPUs. The command line says `1`: that one's node, and no way to the other's."""
    every = podman.run("--rm", GPU, *SEES)
    assert (every.code, every.out) == (0, SEEN), every

    _only_one(podman, sim_driver, "gpuhook")

    results.works(podman, "GPU container")


@each("podman", BUT_HOST)
def test_refused(podman: Podman, results: Results, golden: Callable[[str, str, Machine], None]) -> None:
    """A requirement that is not met, as podman shows it."""
    done = podman.run("--name=refused", NEWER, "true")

    assert (done.code, podman.inspect("refused")["State"]["Status"]) == (126, "created")
    golden(f"podman-{_series(podman)}-refused", cases.said(done), podman.machine)
    results.works(podman, "refused requirement shown")


def _series(podman: Podman) -> str:
    return ".".join(podman.version.split(".")[:2])


@each("podman", KINDS)
def test_a_life(podman: Podman, results: Results) -> None:
    """The GPUs are still there for exec, and after update, pause and restart."""
    for what, done in _live(podman, "gpuhook"):
        assert (done.code, done.out) == (0, SEEN), f"after {what}: {done}"
        results.works(podman, what)


def _live(podman: Podman, runtime: str, *, update: bool = True) -> Iterator[tuple[str, Result]]:
    """What a container with GPUs goes through; each step with what the container sees after it."""
    podman.check(*podman.run_words(runtime), *LASTING, "--name=life", GPU, "sleep", "600")

    steps: dict[str, list[tuple[str, ...]]] = {"exec": []}
    if not podman.user:
        if podman.machine.layout != "v2" and update:
            steps["update"] = [UPDATE]
        steps["pause"] = [("pause",), ("unpause",)]
    steps["restart"] = [("restart", "--time=1")]
    for what, commands in steps.items():
        for command in commands:
            podman.check(*command, "life")
        yield what, podman("exec", "life", *SEES)


@each("podman", BUT_HOST)
def test_two_at_once(podman: Podman, results: Results) -> None:
    """With nothing compiled or recorded before, so that both come upon it."""
    done = cases.two_at_once(podman.state, lambda env, argv: podman.begin_run("--rm", env, GPU, *argv))

    assert [(one.code, one.out) for one in done] == cases.ONE_EACH, done
    assert list(podman.state.glob("*.json")), "these files are elsewhere"
    results.works(podman, "two at once")


@each("podman", BUT_HOST)
def test_asking_for_nothing(podman: Podman, results: Results) -> None:
    """The low-level runtime gets the very file that podman wrote: bytes, inode, time of change."""
    low_level = podman.world.low_level
    spied = podman.folder / "spy-before"
    before = cases.spy(spied, podman.world.runtime)
    after = cases.spy(podman.folder / "spy-after", low_level)
    podman.world.low_level = str(podman.folder / "spy-after")
    podman.world.use_driver(Path("/nowhere"))

    done = podman.run("--rm", PLAIN, "sh", "-c", "echo started; ls -d /dev/nv*", runtime=str(spied))

    podman.world.low_level = low_level
    assert done.out == "started\n", done
    assert before.read_text().count("config.json") == 1
    assert before.read_text() == after.read_text()
    results.works(podman, "untouched without a request")


@each("podman", (ROOTFUL[1], ROOTLESS[0]))
def test_default_runtime_and_back(podman: Podman, results: Results) -> None:
    """As the default runtime, for containers that name none; then the file is what it was, and so is podman."""
    podman.unconfigure()
    mine = '# mine\n[containers]\ntz = "UTC"\n[engine]  # no newline at the end\nruntime = "runc"'
    podman.write(podman.config, mine)
    podman.configure("--default-runtime")

    asked = podman.run("--rm", GPU, *SEES, runtime="")
    plain = podman.run("--rm", PLAIN, "ls", "/dev", runtime="")

    assert (asked.code, asked.out) == (0, SEEN), asked
    assert (plain.code, "nvidia" in plain.out) == (0, False), plain
    podman.unconfigure()
    assert podman.machine.read(str(podman.config)) == mine
    podman.machine.check("rm", podman.config)
    assert f"{LIBCUDA}: ok" not in podman.run("--rm", GPU, "opendev", LIBCUDA, runtime="runc").out
    gone = podman.run("--rm", GPU, "true")
    assert gone.code == 125
    assert "gpuhook" in gone.err
    results.works(podman, "default runtime")


@each("podman", (ROOTFUL[0], ROOTLESS[0]))
def test_unconfigured(podman: Podman, results: Results) -> None:
    """What configure made is removed, with its directories: podman's files are those that were there. The doctor sees
    it all as podman does."""
    podman.unconfigure()
    folder, hooks = podman.config.parent, Path("/usr/share/containers")
    files = ("find", folder, hooks, "-newer", podman.config.with_name("storage.conf"), "-o", "-type", "d")
    before = podman.machine.check(*files)

    assert _doctor(podman).code == DOCTOR_PROBLEM
    podman.configure()
    assert _doctor(podman).code == 0
    podman.configure_also("--hook")
    assert _doctor(podman).code == 0
    assert podman.machine.check(*files) != before
    podman.unconfigure()

    assert podman.machine.check(*files) == before
    results.works(podman, "unconfigure")


def _doctor(podman: Podman) -> Result:
    """`gpuhook doctor` of this podman: whether a GPU container would work."""
    return podman.machine.run(podman.world.cli, "doctor", "--engine", "podman", user=podman.user, env=podman.env)


@each("podman", ROOTFUL[:2])
def test_a_container_in_a_container(
    podman: Podman, results: Results, new_world: Callable[[str], World], folder: Path, sim_driver: Path
) -> None:
    """The inner gpuhook's driver is what the outer container was given. All rights but CAP_SYS_RESOURCE, which a test
    machine may lack, so not --privileged; Python and runc are the machine's."""
    inner = cases.inner(podman.machine, new_world("inner"), folder, sim_driver)
    done = podman.run(
        *("--rm", "--cap-add=SYS_ADMIN", "--cap-add=SYS_PTRACE", "--cap-add=NET_ADMIN", "--cap-add=MKNOD"),
        *("--cap-add=DAC_READ_SEARCH", "--cap-add=NET_RAW", "--cap-add=AUDIT_WRITE"),
        *("--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined", "--security-opt=unmask=ALL"),
        *("--device-cgroup-rule=a *:* rwm", *(f"--volume={file}:{file}:ro" for file in cases.tools(podman.machine))),
        *(f"--volume={folder}:{folder}", f"--volume={podman.machine.folder.parent}:{podman.machine.folder.parent}"),
        *("--volume=/sys/fs/cgroup:/sys/fs/cgroup", "--cgroupns=host", GPU),
        *inner,
    )

    assert (done.code, done.out) == (0, SEEN), done
    results.works(podman, "GPU container in a GPU container")


@each("hooked", KINDS)
def test_the_hook_alone(hooked: Podman, results: Results, sim_driver: Path) -> None:
    """The low-level runtime itself with gpuhook's hook: GPUs for who asks, and for who does not, nothing."""
    low_level = hooked.world.low_level
    every = hooked.run("--rm", GPU, *SEES, runtime=low_level)
    assert (every.code, every.out) == (0, SEEN), every
    _only_one(hooked, sim_driver, low_level)
    granted = hooked.log.count("granted")

    plain = hooked.run("--rm", PLAIN, "sh", "-c", f"ls -d /dev/nv*; opendev {LIBCUDA}", runtime=low_level)

    assert f"{LIBCUDA}: ok" not in plain.out
    assert "/dev/nv*: No such file" in plain.err, plain
    assert (granted > 0, hooked.log.count("granted")) == (True, granted)
    results.works(hooked, "GPU container by hooks.d")


@each("hooked", BUT_HOST)
def test_the_hook_alone_refuses(hooked: Podman, results: Results, golden: Callable[[str, str, Machine], None]) -> None:
    """runc shows what the hook said; crun only that it failed: gpuhook's log has the words."""
    low_level = hooked.world.low_level
    done = hooked.run("--name=refused", NEWER, "true", runtime=low_level)

    assert (done.code, hooked.inspect("refused")["State"]["Status"]) == (126, "created"), done
    golden(f"podman-{_series(hooked)}-{low_level}-hook-refused", cases.said(done), hooked.machine)
    assert "[requirement-not-met]" in hooked.log.splitlines()[-1]
    results.works(hooked, "refused requirement shown by hooks.d")


@each("podman", (ROOTLESS[0], ROOTLESS[2]))
def test_the_systems_hook(podman: Podman, results: Results) -> None:
    """A hooks file that root configured holds for users too; the hook finds where their log is."""
    machine = podman.machine
    podman.unconfigure()
    machine.check(
        "sh", "-c", 'mkdir -p /run/user && ln -sfn "$1" "$2"', "sh", podman.state.parent, f"/run/user/{podman.user}"
    )
    machine.check(podman.world.cli, "configure", "podman", "--hook")
    low_level = podman.world.low_level

    every = podman.run("--rm", GPU, *SEES, runtime=low_level)
    refused = podman.run("--rm", NEWER, "true", runtime=low_level)

    machine.check(podman.world.cli, "unconfigure", "podman")
    assert (every.code, every.out) == (0, SEEN), every
    assert refused.code == 126, refused
    assert "[requirement-not-met]" in podman.log.splitlines()[-1]
    results.works(podman, "GPU container by root's hooks.d")


@each("hooked", (ROOTFUL[0], ROOTFUL[1], ROOTFUL[3], ROOTLESS[3]))
def test_a_life_with_the_hook_alone(hooked: Podman, results: Results) -> None:
    """The rules that the hook added behind the runtime's back last, and are added again at a restart."""
    low_level = hooked.world.low_level
    lost = low_level == "crun" and not hooked.user and int(hooked.version.split(".")[0]) >= 5
    for what, done in _live(hooked, low_level, update=not lost):
        assert (done.code, done.out) == (0, SEEN), f"after {what}: {done}"
        results.works(hooked, f"{what}, by hooks.d")
    if lost:
        hooked.check(*UPDATE, "life")
        gone = hooked("exec", "life", *SEES)
        assert gone.out == SEEN.replace(": ok\n", ": Operation not permitted\n"), gone
        why = "podman 5 sends its own device rules with each limit, and crun sets them; gpuhook-runtime keeps them out"
        results.fails(hooked, "update, by hooks.d", why)


@each("hooked", (ROOTFUL[0], ROOTFUL[3], ROOTLESS[0]))
def test_the_hook_and_the_runtime(hooked: Podman, results: Results) -> None:
    """Each container is given its GPUs once, whichever runtime it has."""
    hooked.configure_also()
    hooked.configured = ("--hook", "and the runtime")
    for runtime in ("gpuhook", hooked.world.low_level):
        before = hooked.log.count("granted")

        done = hooked.run("--rm", GPU, *SEES, runtime=runtime)

        assert (done.code, done.out) == (0, SEEN), done
        assert hooked.log.count("granted") == before + 1
    results.works(hooked, "hooks.d and the runtime")


# What crun can't do on a machine without CAP_SYS_RESOURCE, with controllers in both cgroup versions: (layout, version).
# A version that is not named, and works, is a case of its own.
REFUSED = {
    ("v2", "1.8.1"): (
        "Error: {}: setrlimit (RLIM_MEMLOCK): Operation not permitted: OCI permission denied\n",
        "crun 1.8.1 raises RLIMIT_MEMLOCK on cgroup v2, for which root needs CAP_SYS_RESOURCE",
    ),
    ("host", ""): (
        "Error: OCI runtime error: {}: cgroups in hybrid mode not supported, drop all controllers from cgroupv2\n",
        "crun refuses a machine with controllers in both cgroup versions",
    ),
}


@each("podman", ((Podman, "crun", "v2"), (Podman, "crun", "host")))
def test_what_crun_refuses(podman: Podman, results: Results) -> None:
    """With gpuhook in the same words as without it."""
    layout = podman.machine.layout
    version = podman.machine.check("crun", "--version").split()[2]
    words, why = REFUSED.get((layout, version)) or REFUSED.get((layout, "")) or ("", "")

    for runtime in ("gpuhook", "crun"):
        done = podman.run("--rm", GPU, *SEES, runtime=runtime)
        if why:
            assert (done.code, cases.said(done)) == (126, words.format(runtime))
        elif runtime == "gpuhook":
            assert (done.code, done.out) == (0, SEEN), done
    if why:
        results.fails(podman, "GPU container", why)
    else:
        results.works(podman, "GPU container")
