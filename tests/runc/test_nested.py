"""gpuhook inside a container that gpuhook made: what the outer container was given is the driver of the inner one.

The outer container is privileged and keeps a bare /proc (its `maskedPaths` are empty). Its root is this machine's own,
in memory on top, so that Python, runc and crun are in it. Stood in for: /proc and /sys of the driver, which a container
has from the kernel and this kernel does not show, come from the simulated driver's folder.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import bundles
from tests.conftest import World

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]
ALL = "NVIDIA_VISIBLE_DEVICES=all"
RIGHTS = ["CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_ADMIN", "CAP_DAC_READ_SEARCH"]
SEES = ["opendev", "dlopen:libcuda.so.1", "/dev/nvidia0", "/dev/nvidiactl"]


@pytest.fixture
def outer(folder: Path) -> Iterator[bundles.Bundle]:
    """A privileged container on a copy of this machine's root."""
    path = folder / "outer"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", path], check=True)
    try:
        for name in ("upper", "work", "rootfs"):
            (path / name).mkdir()
        layers = f"lowerdir=/,upperdir={path}/upper,workdir={path}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, path / "rootfs"], check=True)
        bundle = bundles.Bundle(path, mounted=True)
        yield bundle
        bundle.close()
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.parametrize("inner", ["runc", "crun"])
def test_a_container_in_a_container(
    any_shim: bundles.Runtime,
    outer: bundles.Bundle,
    new_world: Callable[[str], World],
    new_bundle: NewBundle,
    sim_driver: Path,
    inner: str,
) -> None:
    """The inner gpuhook finds its driver in the outer container's own files: libraries and nodes mounted there."""
    world = new_world("inner")
    proc = f'[driver]\nproc-root = "{sim_driver}"\nsys-root = "{sim_driver}"\n'
    world.configure(f'[runtime]\nlow-level = ["{inner}"]\n{proc}')
    bundle = new_bundle(env=[ALL], args=SEES)
    state = outer.path.parent / "state"
    spec: dict[str, Any] = bundles.config(
        args=[str(world.runtime), "--root", str(state), "run", "--bundle", str(bundle.path), "inner"],
        env=[ALL],
        capabilities=RIGHTS,
        mounts=[bundles.mount("/sys/fs/cgroup", "cgroup", "cgroup", "rw")],
    )
    spec["linux"] |= {"maskedPaths": [], "readonlyPaths": []}
    spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    spec["process"]["noNewPrivileges"] = False
    (outer.path / "config.json").write_text(json.dumps(spec))

    done = any_shim.run(outer)

    if inner == "crun" and "v2" in any_shim.within:
        assert done.code != 0
        assert "setrlimit" in done.err
        pytest.xfail("crun 1.8.1 on cgroup v2 raises RLIMIT_MEMLOCK, which takes CAP_SYS_RESOURCE")
    assert (done.code, done.out.count(": ok")) == (0, 3), done.err
    assert "dlopen:libcuda.so.1: ok libcuda.so 580.95.05" in done.out
