"""`checkpoint` and `restore` of containers with GPUs: refused, and why; of others: the runtime's business."""

from collections.abc import Callable

import pytest

from gpuhook.errors import EXIT_CODES
from tests.bundles import Bundle, Runtime

pytestmark = pytest.mark.runc
NewBundle = Callable[..., Bundle]
GPU = {"env": ["NVIDIA_VISIBLE_DEVICES=all"], "args": ["sleep", "100"]}
REFUSED = EXIT_CODES["checkpoint-unsupported"]
HINT = "\n  fix: stop the container and start it anew, and let the program keep its own checkpoints\n"


def test_a_container_with_gpus_is_not_frozen(any_shim: Runtime, new_bundle: NewBundle) -> None:
    """The refusal comes before CRIU has touched it: the container goes on."""
    name = any_shim.new_id()
    assert any_shim.create(new_bundle(**GPU), name).code == 0
    try:
        assert any_shim.call("start", name).code == 0
        done = any_shim.call("checkpoint", "--image-path", any_shim.state / "image", "--leave-running", name)
        expected = (
            f"gpuhook: container {name} has GPUs, whose state on the device and whose driver files CRIU can't dump or "
            f"restore [checkpoint-unsupported]{HINT}"
        )
        assert (done.code, done.err) == (REFUSED, expected)
        assert "checkpoint-unsupported" in done.logged[-1]["msg"]
        assert '"running"' in any_shim.call("state", name).out
    finally:
        any_shim.delete(name)


@pytest.mark.parametrize("form", ["--bundle DIR", "--bundle=DIR", "-b DIR", "-bDIR", ""])
def test_a_restore_that_asks_is_refused(any_shim: Runtime, new_bundle: NewBundle, form: str) -> None:
    bundle = new_bundle(**GPU)
    words = form.replace("DIR", str(bundle.path)).split()
    done = any_shim.call("restore", "--image-path", any_shim.state / "image", *words, "-d", "box", cwd=bundle.path)
    assert (done.code, done.err.split(",")[0]) == (
        REFUSED,
        "gpuhook: the container that is to be restored asks for GPUs",
    )


def test_without_gpus_it_is_the_runtimes_own_business(any_shim: Runtime, runc: Runtime, new_bundle: NewBundle) -> None:
    """The same words as those of the runtime alone, whether it has a CRIU that works or none."""
    bundle = new_bundle(args=["sleep", "100"])
    plain = Runtime(_low_level(any_shim), runc.state / "plain", within=any_shim.within)
    seen = []
    for runtime in (any_shim, plain):
        assert runtime.create(bundle, "box").code == 0
        try:
            dumped = runtime.call("checkpoint", "--image-path", str(bundle.path / "image"), "box")
            restored = runtime.call("restore", "--image-path", bundle.path / "none", "--bundle", bundle.path, "other")
            seen.append([(each.code, each.err.replace(str(runtime.state), "STATE")) for each in (dumped, restored)])
        finally:
            runtime.delete("box")
    assert seen[0] == seen[1]
    assert all(code != REFUSED for code, _ in seen[0])


def _low_level(shim: Runtime) -> str:
    """Which runtime the shim is configured for, by what it says of itself."""
    return shim.call("--version").out.split()[0]
