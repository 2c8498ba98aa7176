"""scripts/demo does gpuhook's main job from start to end, and shows nothing but commands and what they said."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.images import CHECKOUT

pytestmark = pytest.mark.runc
RUN = "gpuhook-runtime --root containers run --bundle {} gpuhook-demo"


def demo(*command: str | Path, before: str = ":") -> subprocess.CompletedProcess[str]:
    """Run scripts/demo in a mount namespace of its own, in which a shell does `before`."""
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f'{before}; exec "$@"', "sh", *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


def blocks(text: str) -> dict[str, str]:
    """Each command with what it said."""
    return dict(block.split("\n", 1) for block in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:])


def test_the_demo_shows_the_main_job() -> None:
    done = demo(CHECKOUT / "scripts/demo")
    assert (done.returncode, done.stderr) == (0, "")
    said = blocks(done.stdout)
    every, first, by_uuid, none, newer = (said[RUN.format(name)] for name in ("all", "first", "uuid", "none", "newer"))
    assert "NVIDIA-SMI 580.95.05" in every
    assert "dlopen:libcuda.so.1: ok libcuda.so 580.95.05" in every
    assert re.findall(r"^/dev/nvidia\d: (.*)$", every, re.MULTILINE) == ["ok", "ok"]
    assert re.findall(r"^/dev/nvidia\d$", first, re.MULTILINE) == ["/dev/nvidia0"]
    assert re.findall(r"^/dev/nvidia\d$", by_uuid, re.MULTILINE) == ["/dev/nvidia1"]
    assert re.findall(r"^/dev/nvidia\d$", none, re.MULTILINE) == []
    assert newer.startswith("gpuhook: this container needs CUDA 13.1 or newer; ")
    assert "[requirement-not-met]\n  fix: " in newer
    assert "never reached" not in newer
    assert "libcuda.so.580.95.05" in said["gpuhook explain all"]
    # the refusal is the last thing shown
    assert list(said)[-2:] == [RUN.format("newer"), "echo $?"]
    assert said["echo $?"].startswith("41\n\nNext:\n")


def test_the_commands_that_the_demo_shows_can_be_typed(folder: Path) -> None:
    """From a checkout of a user's, with a blank in its path: root's demo lies elsewhere, since gpuhook would not trust
    a configuration there; the transcript, given to a shell, says the same once more, and once more."""
    checkout = folder / "a b"
    checkout.mkdir()
    for name in ("scripts", "src", "config", "tests", "README.md"):
        copy = shutil.copytree if (CHECKOUT / name).is_dir() else shutil.copyfile
        copy(CHECKOUT / name, checkout / name)
    shutil.copytree(CHECKOUT / "build/vendor", checkout / "build/vendor")
    for path in (checkout, *checkout.rglob("*")):
        os.chown(path, 1234, 1234, follow_symlinks=False)
    # the simulated driver is there already, and is made in an empty place only
    script = (
        f"mount -t tmpfs -o mode=1777 tmpfs /var/tmp; {shlex.quote(str(checkout))}/scripts/demo >{folder}/first;"
        f"sed -n 's/^\\$ //p' {folder}/first | grep -v 'sim create' >{folder}/typed; set +e;"
        f". {folder}/typed >{folder}/1; . {folder}/typed >{folder}/2 2>&1; true"
    )
    done = demo("true", before=script)
    assert done.returncode == 0, done.stderr
    first = (folder / "first").read_text()
    assert first.startswith("$ cd /var/tmp/gpuhook-demo\n")
    for again in ("1", "2"):
        text = (folder / again).read_text()
        for name in ("all", "first", "uuid", "none"):
            assert blocks(first)[RUN.format(name)].strip() in text, name
    assert "this container needs CUDA 13.1 or newer" in (folder / "2").read_text()


@pytest.mark.parametrize("what", ["link", "another's directory", "file"])
def test_root_makes_no_demo_in_what_another_put_there(folder: Path, what: str) -> None:
    """Everybody may make things in /var/tmp."""
    checkout = folder / "user"
    shutil.copytree(CHECKOUT / "scripts", checkout / "scripts")
    os.chown(checkout, 1234, 1234)
    place = "/var/tmp/gpuhook-demo"
    put = {
        "link": f"mkdir {folder}/victim; touch {folder}/victim/kept; ln -s {folder}/victim {place}",
        "another's directory": f"mkdir {place}; chown 1234 {place}",
        "file": f"touch {place}",
    }[what]
    done = demo(checkout / "scripts/demo", before=f"mount -t tmpfs -o mode=1777 tmpfs /var/tmp; {put}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"demo: {place} is not root's own directory; remove it\n"
    if what == "link":
        assert (folder / "victim/kept").exists()


def test_without_a_driver_host_stops_first(folder: Path) -> None:
    """An earlier demo is still there."""
    shutil.copytree(CHECKOUT / "scripts", folder / "scripts")
    (folder / "build/demo").mkdir(parents=True)
    done = demo(folder / "scripts/demo", "--host", before="[ ! -d /proc/driver ] || mount -t tmpfs tmpfs /proc/driver")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("demo: no NVIDIA driver is loaded here ")
    assert (folder / "build/demo").is_dir()
