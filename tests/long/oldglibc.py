"""`scripts/test --long oldglibc`: an image with the glibc of Debian 11 (2.31), older than what this machine has.

Its loader knows no `glibc-hwcaps` (2.33), and the libraries of threads and dlopen are files of their own (2.34).
Unpacked from Debian's packages, nothing is installed; 4 MB come from the mirror that this machine's apt uses, or
DEBIAN_MIRROR.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook.sim import SimOptions
from tests import bundles
from tests.conftest import World
from tests.images import BUILD, CHECKOUT, MULTIARCH
from tests.long.report import Report

pytestmark = [pytest.mark.runc, pytest.mark.skipif(not MULTIARCH.startswith("x86"), reason="the loader's path")]

NewBundle = Callable[..., bundles.Bundle]
V = SimOptions().driver
SUITE, PACKAGES = "bullseye", ("libc6", "libc-bin")
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


@pytest.fixture(scope="module")
def image() -> Path:
    """The image, unpacked when it is not there."""
    place = BUILD / f"glibc-{SUITE}"
    if place.is_dir():
        return place
    work = BUILD / f"glibc-{SUITE}.apt"
    shutil.rmtree(work, ignore_errors=True)
    for name in ("lists/partial", "cache/archives/partial", "debs"):
        (work / name).mkdir(parents=True)
    (work / "status").touch()
    known = ["bash", "-c", f'. "{CHECKOUT}/scripts/lib.sh"; debian_mirror']
    mirror = os.environ.get("DEBIAN_MIRROR") or subprocess.run(known, capture_output=True, text=True).stdout.strip()
    (work / "sources.list").write_text(f"deb [signed-by={KEYS}] {mirror} {SUITE} main\n")
    (work / "apt.conf").write_text(
        f'APT::Sandbox::User "root";\nDir::Etc::SourceList "{work}/sources.list";\nDir::Etc::SourceParts "/dev/null";\n'
        f'Dir::State "{work}";\nDir::State::Lists "{work}/lists";\nDir::State::Status "{work}/status";\n'
        f'Dir::Cache "{work}/cache";\n'
    )
    env = {**os.environ, "APT_CONFIG": str(work / "apt.conf")}
    for command in (["update"], ["download", *PACKAGES]):
        subprocess.run(["apt-get", "-q", *command], cwd=work / "debs", env=env, check=True)
    tree = work / "tree"
    for name in ("dev", "proc", "sys", "run", "tmp", "bin", "usr/bin"):
        (tree / name).mkdir(parents=True)
    for package in (work / "debs").iterdir():
        subprocess.run(["dpkg-deb", "--extract", package, tree], check=True)
    shutil.copy(bundles.tool("busybox"), tree / "bin/busybox")
    (tree / "bin/sh").symlink_to("busybox")
    subprocess.run(["/usr/sbin/chroot", tree, "/sbin/ldconfig"], check=True)
    tree.chmod(0o755)
    tree.rename(place)
    shutil.rmtree(work)
    return place


FORMATS = {"as it makes it": "true", "with the table for older loaders": "/sbin/ldconfig -c compat"}


@pytest.mark.parametrize("before", FORMATS.values(), ids=FORMATS)
def test_its_loader_finds_the_driver(
    world: World,
    shim: bundles.Runtime,
    new_bundle: NewBundle,
    sim_driver: Path,
    image: Path,
    before: str,
    report: Report,
) -> None:
    """In the cache that gpuhook wrote, and in the one that the image's own ldconfig makes of it later."""
    world.use_driver(sim_driver)
    folder = f"/usr/lib/{MULTIARCH}"
    needs = f"/lib64/ld-linux-x86-64.so.2 --list {folder}/libGLX_nvidia.so.0"
    script = f"nvidia-smi -L && {needs} && /sbin/ldconfig && nvidia-smi -L && {needs}"
    env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
    bundle = new_bundle(image, env=env, args=["sh", "-c", script])
    subprocess.run(["/usr/sbin/chroot", bundle.rootfs, "sh", "-c", before], check=True)

    done = shim.run(bundle)

    assert (done.code, done.err) == (0, ""), done.out
    assert done.out.count("GPU-") == 4
    assert done.out.count(f"libnvidia-glcore.so.{V} => {folder}/libnvidia-glcore.so.{V}") == 2, done.out
    assert "not found" not in done.out
    report({"glibc": SUITE, "starts": 1})
