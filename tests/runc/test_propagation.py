"""What is mounted in a container's root stays there, whatever `rootfsPropagation` and the host's own mounts say.

runc and crun make the mount that the root lies on private before they bind the root, so no word of the spec makes it
shared (watched here); the hook looks at the root itself and refuses one that is.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import bundles
from tests.conftest import World

pytestmark = pytest.mark.runc

NewBundle = Callable[..., bundles.Bundle]
ALL = "NVIDIA_VISIBLE_DEVICES=all"
SEES = ["opendev", "dlopen:libcuda.so.1", "/dev/nvidia0"]

# Stands for a host whose file systems are shared, as systemd makes them: in a mount namespace of its own the root of
# the container is a mount, and it or all mounts are shared. Writes down the mounts before and after.
HOST = """#!/bin/sh
set -e
mount --bind {rootfs} {rootfs}
mount --make-rshared {where}
cat /proc/self/mountinfo > {bundle}/before
"$@" || code=$?
cat /proc/self/mountinfo > {bundle}/after
exit ${{code-0}}
"""

# Stands for a runtime that leaves the root shared: a hook before ours makes it so.
SHARES = """#!/bin/sh
pid=$(grep -o '"pid":[0-9]*' | grep -o '[0-9]*')
exec nsenter -t $pid -m mount --make-shared {rootfs}
"""


def started(runtime: bundles.Runtime, bundle: bundles.Bundle, where: Path | str) -> tuple[bundles.Result, bool]:
    """Run the container on such a host; says also whether the host's mounts are as before."""
    host = bundle.path / "host"
    host.write_text(HOST.format(rootfs=bundle.rootfs, where=where, bundle=bundle.path))
    host.chmod(0o755)
    runtime.within = [*runtime.within, str(host)]
    done = runtime.run(bundle)
    assert "shared:" in (bundle.path / "before").read_text()
    return done, (bundle.path / "before").read_bytes() == (bundle.path / "after").read_bytes()


@pytest.mark.parametrize("everything", [False, True], ids=["root shared", "all shared"])
@pytest.mark.parametrize("word", ["", "shared", "rshared", "private", "rprivate", "slave", "rslave"])
def test_nothing_appears_on_the_host(
    any_shim: bundles.Runtime, new_bundle: NewBundle, word: str, everything: bool
) -> None:
    """NVIDIA's toolkit had 2^n-1 mounts on the host after n such containers (its issue 697)."""
    bundle = new_bundle(env=[ALL], args=SEES)
    spec = bundle.spec
    if word:
        spec["linux"]["rootfsPropagation"] = word
    (bundle.path / "config.json").write_text(json.dumps(spec))

    done, is_same = started(any_shim, bundle, "/" if everything else bundle.rootfs)

    assert (done.code, done.out.count(": ok"), is_same) == (0, 2, True), done.err


def test_a_root_that_is_shared_is_refused(any_shim: bundles.Runtime, world: World, new_bundle: NewBundle) -> None:
    bundle = new_bundle(env=[ALL])
    hook = bundle.path / "shares"
    hook.write_text(SHARES.format(rootfs=bundle.rootfs))
    hook.chmod(0o755)
    spec = bundle.spec
    spec["hooks"] = {"prestart": [{"path": str(hook), "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}]}
    (bundle.path / "config.json").write_text(json.dumps(spec))
    before = sorted(path.name for path in bundle.rootfs.rglob("*"))

    done, is_same = started(any_shim, bundle, "/")

    assert done.code != 0
    assert is_same
    assert "is a shared mount: what is mounted in it would appear on the host [rootfs-shared]" in world.log
    assert sorted(path.name for path in bundle.rootfs.rglob("*")) == before
