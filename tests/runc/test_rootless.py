"""Runtimes that are not root: by hand as some user, and as root of a user namespace, as rootless podman has it.

No cgroup is theirs, so no device rule holds: the nodes that are mounted are what can be opened.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import bundles
from tests.conftest import World
from tests.images import CHECKOUT

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]
ALL = "NVIDIA_VISIBLE_DEVICES=all"
SEES = "opendev dlopen:libcuda.so.1 /dev/nvidia0 /dev/nvidia1 && nvidia-smi -L"
USER = 1001
AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
AS_ITS_ROOT = ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private")


@pytest.fixture
def own(folder: Path) -> Path:
    """The user's XDG_RUNTIME_DIR."""
    path = folder / "own"
    path.mkdir(mode=0o700)
    os.chown(path, USER, USER)
    return path


@pytest.fixture
def rootless(shim: bundles.Runtime, world: World, sim_driver: Path, own: Path) -> bundles.Runtime:
    """The shim as a user, who has no right to write to the installation's own folders."""
    world.use_driver(sim_driver)
    os.chown(shim.state, USER, USER)
    shim.within = [*AS_USER, "env", f"XDG_RUNTIME_DIR={own}"]
    return shim


def given(bundle: bundles.Bundle, *, mapped: bool) -> bundles.Bundle:
    """Give the bundle to the user; `mapped`: the container has a user namespace, in which root is that user."""
    spec = bundle.spec
    if mapped:
        spec["linux"]["namespaces"].append({"type": "user"})
        for key in ("uidMappings", "gidMappings"):
            spec["linux"][key] = [{"containerID": 0, "hostID": USER, "size": 1}]
    (bundle.path / "config.json").write_text(json.dumps(spec))
    for path in [bundle.path, *bundle.path.rglob("*")]:
        os.lchown(path, USER, USER)
    return bundle


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_by_hand(
    rootless: bundles.Runtime, world: World, sim_driver: Path, own: Path, new_bundle: NewBundle, stage: str
) -> None:
    """Nothing was there before: the record is the user's own, and so are log and what is written down."""
    world.use_driver(sim_driver, f'[hook]\nstage = "{stage}"\n')
    bundle = given(new_bundle(env=[ALL], args=["sh", "-c", SEES]), mapped=True)

    done = rootless.run(bundle)

    assert (done.code, done.out.count(": ok"), done.out.count("GPU-")) == (0, 3, 2), done.err
    assert "libcuda.so 580.95.05" in done.out
    assert (own / "gpuhook/driver.json").stat().st_uid == USER
    assert [path.suffix for path in (own / "gpuhook/containers").iterdir()] == [".json"]
    log = (own / "gpuhook/gpuhook.log").read_text()
    assert " info " in log
    assert "warning" not in log
    assert "error" not in log
    assert {path.lstat().st_uid for path in bundle.rootfs.rglob("*")} == {USER}
    assert not world.state.exists()


def test_again_and_refused(rootless: bundles.Runtime, own: Path, new_bundle: NewBundle) -> None:
    """A second start of the bundle is as the first; a requirement counts."""
    bundle = given(new_bundle(env=[ALL], args=["sh", "-c", SEES]), mapped=True)
    assert rootless.run(bundle).code == 0
    before = (bundle.path / "config.json").read_bytes()
    assert rootless.run(bundle).code == 0
    assert (bundle.path / "config.json").read_bytes() == before

    refused = rootless.run(given(new_bundle(env=[ALL, "NVIDIA_REQUIRE_CUDA=cuda>=14.0"]), mapped=True))

    assert (refused.code, "[requirement-not-met]" in refused.err) == (41, True)


def test_one_gpu(rootless: bundles.Runtime, new_bundle: NewBundle) -> None:
    args = ["sh", "-c", "opendev /dev/nvidia1; nvidia-smi -L; ls /dev; mknod /dev/x c 10 229"]
    bundle = given(new_bundle(env=["NVIDIA_VISIBLE_DEVICES=1"], args=args), mapped=True)

    done = rootless.run(bundle)

    assert "/dev/nvidia1: ok" in done.out
    assert "nvidia0" not in done.out
    assert "Operation not permitted" in done.err


def test_a_failure_is_told(rootless: bundles.Runtime, own: Path, new_bundle: NewBundle) -> None:
    bundle = new_bundle(env=[ALL])
    (bundle.rootfs / "usr/bin/nvidia-smi").mkdir()

    done = rootless.run(given(bundle, mapped=True))

    assert done.code == 1
    assert "[rootfs-unsafe]" in done.err
    assert "[rootfs-unsafe]" in (own / "gpuhook/gpuhook.log").read_text()


def test_the_driver_of_a_user_that_changes(
    rootless: bundles.Runtime, world: World, new_driver: Callable[..., Path], new_bundle: NewBundle
) -> None:
    """The sources are taken inside, and proven there as everywhere."""
    driver = new_driver()
    world.use_driver(driver)
    bundle = given(new_bundle(env=[ALL]), mapped=True)
    assert rootless.run(bundle).code == 0
    library = next(driver.rglob("libcuda.so.580.95.05"))
    library.touch()
    plain = bundles.Runtime(bundles.tool("runc"), rootless.state.parent / "plain", within=rootless.within)
    os.chown(plain.state, USER, USER)

    done = plain.run(bundle)

    assert bundle.spec["hooks"]["prestart"][0]["env"][-1].startswith("XDG_RUNTIME_DIR=")
    assert done.code == 1
    assert "[driver-changed]" in done.err


@pytest.mark.parametrize("kind", [("runc", "v1"), ("runc", "v2"), ("crun", "v1"), ("crun", "v2")], ids=" ".join)
def test_runtimes_and_cgroups(
    rootless: bundles.Runtime, world: World, sim_driver: Path, own: Path, new_bundle: NewBundle, kind: tuple[str, str]
) -> None:
    """By hand with runc; a process of crun's can't be reached by the user that it belongs to, and that is said."""
    world.low_level, layout = kind
    world.use_driver(sim_driver)
    rootless.within = [str(CHECKOUT / "tests/in-cgroup.sh"), layout, *rootless.within]

    done = rootless.run(given(new_bundle(env=[ALL], args=["sh", "-c", SEES]), mapped=True))

    if world.low_level == "crun":
        assert done.code == 255
        log = (own / "gpuhook/gpuhook.log").read_text()
        assert "can't be reached: Permission denied [container-gone]\\n  fix: as a user that is not root" in log
        pytest.xfail("the process of a container of crun's is closed to its user: /proc/PID/ns is unreadable")
    assert (done.code, done.out.count(": ok"), done.out.count("GPU-")) == (0, 3, 2), done.err


@pytest.mark.parametrize("within", [(), AS_ITS_ROOT], ids=["by hand", "as root of a user namespace"])
def test_flags_that_the_host_has_locked(
    rootless: bundles.Runtime,
    world: World,
    new_driver: Callable[..., Path],
    new_bundle: NewBundle,
    within: tuple[str, ...],
) -> None:
    """A user may not take flags off a mount of the host's: the copies keep them and get the rest."""
    driver = new_driver()
    world.use_driver(driver)
    rootless.within = [*rootless.within, *within]
    script = "opendev dlopen:libcuda.so.1 && grep libcuda /proc/self/mountinfo"
    bundle = given(new_bundle(env=[ALL], args=["sh", "-c", script]), mapped=not within)
    for path, flags in ((driver / "usr", "nosuid,nodev,noatime"), (driver / "tmp/nvidia-mps", "ro,noexec")):
        subprocess.run(["mount", "--bind", path, path], check=True)
        subprocess.run(["mount", "-o", f"remount,bind,{flags}", path], check=True)
    try:
        done = rootless.run(bundle)
    finally:
        for path in (driver / "usr", driver / "tmp/nvidia-mps"):
            subprocess.run(["umount", path], check=True)

    assert (done.code, done.out.count(": ok")) == (0, 1), done.err
    assert {"ro", "nosuid", "nodev", "noatime"} <= set(done.out.splitlines()[1].split()[5].split(","))


@pytest.mark.parametrize("mapped", [False, True], ids=["same user namespace", "one more user namespace"])
@pytest.mark.parametrize("kind", [("runc", "host"), ("runc", "v1"), ("crun", "v1"), ("crun", "v2")], ids=" ".join)
def test_as_root_of_a_user_namespace(
    rootless: bundles.Runtime,
    world: World,
    sim_driver: Path,
    own: Path,
    new_bundle: NewBundle,
    kind: tuple[str, str],
    mapped: bool,
) -> None:
    """Rootless podman's setting: the shim and the hook are root there, host root's files show another owner."""
    world.low_level, layout = kind
    world.use_driver(sim_driver)
    rootless.within = [str(CHECKOUT / "tests/in-cgroup.sh"), layout, *rootless.within, *AS_ITS_ROOT]
    bundle = new_bundle(env=[ALL], args=["sh", "-c", SEES])
    spec = bundle.spec
    if mapped:
        spec["linux"]["namespaces"].append({"type": "user"})
        for key in ("uidMappings", "gidMappings"):
            spec["linux"][key] = [{"containerID": 0, "hostID": 0, "size": 1}]
        (bundle.path / "config.json").write_text(json.dumps(spec))

    done = rootless.run(given(bundle, mapped=False))

    assert (done.code, done.out.count(": ok"), done.out.count("GPU-")) == (0, 3, 2), done.err
    assert (own / "gpuhook/driver.json").stat().st_uid == USER
