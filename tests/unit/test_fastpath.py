"""What the sh launcher gets: never a fragment that does more than assign, never a request that grep overlooks."""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhook import fastpath, oci, request
from gpuhook.config import Config
from gpuhook.errors import GpuhookError
from gpuhook.model import replace

# What containerd writes for a container that asks for nothing, with the escapes of Go's encoder.
PLAIN = {
    "ociVersion": "1.2.0",
    "process": {
        "args": ["sh", "-c", "a <b> && c \u2028\u2029 \\t é \U0001f600 \t\n\"'"],
        "env": ["PATH=/usr/local/sbin:/usr/bin", "HOSTNAME=0a1b2c3d4e5f", "CUDA_HOME=/usr/local/cuda", "nvidia=x"],
        "capabilities": {"bounding": ["CAP_CHOWN"]},
    },
    "root": {"path": "/var/lib/docker/overlay2/abc/merged"},
    "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
    "hooks": {"prestart": [{"path": "/proc/1/exe", "args": ["libnetwork-setkey", "-exec-root=/var/run/docker"]}]},
    "linux": {"seccomp": {"syscalls": [{"names": ["clone3"], "action": "SCMP_ACT_ERRNO"}]}},
}


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("fastpath") / "shim.sh"
    path.write_bytes(fastpath.render(Config()))
    yield path


def sh(shim: Path, script: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-uc", f'. "$0"; {script}', str(shim), *args]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})


def hit(shim: Path, data: bytes) -> bool:
    """Whether the launcher's own grep finds a pattern in a config.json."""
    spec = shim.with_name("config.json")
    spec.write_bytes(data)
    done = sh(shim, 'LC_ALL=C grep -qa -e "$gpuhook_patterns" -- "$1"', str(spec))
    assert done.returncode in (0, 1), done.stderr
    return done.returncode == 0


def go(item: object) -> bytes:
    """JSON as Go's encoder writes it: UTF-8, and escapes for < > & and the two line separators."""
    text = json.dumps(item, ensure_ascii=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text.encode()


def test_the_fragment_assigns_and_does_nothing_else(shim: Path) -> None:
    done = sh(shim, 'printf "%s|" "$gpuhook_low_level" "$gpuhook_format" "$gpuhook_patterns"')
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "runc crun|1|" + "\n".join(fastpath.PATTERNS) + "|"
    lines = fastpath.render(Config()).decode().splitlines()
    assert [line.split("=")[0] for line in lines if "=" in line] == [
        "gpuhook_low_level",
        "gpuhook_patterns",
        "gpuhook_format",
    ]


def test_a_change_of_the_patterns_is_a_new_format() -> None:
    """An older gpuhook's fragment may still lie in /run: raise FORMAT, here and in the launcher."""
    digest = hashlib.sha256("\n".join(fastpath.PATTERNS).encode()).hexdigest()
    assert (fastpath.FORMAT, digest[:16]) == (1, "62a5e96b35677074")
    launcher = Path(fastpath.__file__).parents[1] / "launchers/gpuhook-runtime"
    assert f'"${{gpuhook_format-}}" = {fastpath.FORMAT} ]' in launcher.read_text()


def test_low_level_names_reach_sh_as_they_are(shim: Path) -> None:
    shim.with_name("other.sh").write_bytes(
        fastpath.render(replace(Config(), low_level=("/usr/sbin/runc-1.1+x_y", "crun")))
    )
    done = sh(shim.with_name("other.sh"), 'for name in $gpuhook_low_level; do echo "$name"; done')
    assert done.stdout == "/usr/sbin/runc-1.1+x_y\ncrun\n"


@pytest.mark.parametrize("name", ["", "-x", "a b", "a'b", "$(id)", "a\nb", "*", "\u00e9", "a;b"])
def test_a_name_that_sh_could_take_for_more_is_never_rendered(name: str) -> None:
    with pytest.raises(GpuhookError):
        fastpath.render(replace(Config(), low_level=("runc", name)))


def test_a_container_that_asks_for_nothing_is_passed_over(shim: Path) -> None:
    assert not hit(shim, go(PLAIN))
    assert not hit(shim, json.dumps(PLAIN, ensure_ascii=False, indent=2).encode())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *[(f"\\u{code}", False) for code in ("003c", "003C", "003e", "003E", "0026", "2028", "2029")],
        *[(f"\\u{code}", True) for code in ("0041", "0056", "004e", "005f", "0030", "002f", "003d", "003f", "0027")],
        *[(f"\\u{code}", True) for code in ("2030", "2128", "202a", "3000", "1000", "ffff", "d83d", "0126", "00e9")],
        ("NVIDIA_VISIBLE_DEVICES", True),
        ("CUDA_VERSION", True),
        ("/usr/bin/nvidia-container-runtime-hook", True),
        ("nvidia-container-toolkit", True),
        ("/usr/bin/gpuhook-hook", True),
        (r"\\u12", True),  # an escaped backslash before u: a false alarm, which Python then settles
        ("\udcff\udcfe", False),
    ],
)
def test_what_each_pattern_finds(shim: Path, text: str, found: bool) -> None:
    assert hit(shim, f'{{"a": "{text}"}}'.encode("utf-8", "surrogateescape")) == found


def spelt(name: str, how: list[int]) -> str:
    """A name as JSON text: each letter plain, or as an escape in lower or upper hexadecimal; a slash also as `\\/`."""
    forms = [(letter, f"\\u{ord(letter):04x}", f"\\u{ord(letter):04X}", f"\\{letter}") for letter in name]
    return "".join([form[way if form[0] == "/" else way % 3] for form, way in zip(forms, how, strict=True)])


ROOT = "/var/run/nvidia-container-devices/"
OPEN = replace(
    Config(),
    accept_devices_as_volume_mounts=True,
    accept_label_annotations=True,
    annotation_prefixes=("cdi.k8s.io/", "a.b/c_d"),
    swarm_resources=("DOCKER_RESOURCE_NVIDIA-GPU", "GPU.x"),
)


@pytest.fixture(scope="module")
def open_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fragment where every way to ask is open."""
    path = tmp_path_factory.mktemp("open") / "shim.sh"
    path.write_bytes(fastpath.render(OPEN))
    return path


def test_the_patterns_of_further_channels_come_and_go_with_their_keys(shim: Path, open_shim: Path) -> None:
    for text in ("cdi.k8s.io/x", r"cdi.k8s.io\/x", r"a.b\/c_d", "GPU.x", f"{ROOT}0", "com.nvidia.volumes.needed"):
        assert hit(open_shim, f'{{"a": "{text}"}}'.encode())
        assert not hit(shim, f'{{"a": "{text}"}}'.encode())
    assert not hit(open_shim, b'{"a": "cdixk8s.io/ a.b GPUxx nvidia-container cdi.k8s.io\\\\"}')


@pytest.mark.parametrize("word", ["", "a b", "a'b", "a*b", "[a]", "a\nb", "a\\b"])
def test_a_word_that_grep_could_take_for_more_is_never_rendered(word: str) -> None:
    with pytest.raises(GpuhookError):
        fastpath.render(replace(Config(), swarm_resources=(word,)))


def entry(way: str, text: str, how: list[int]) -> dict[str, str]:
    """The JSON text that asks for `text` by a channel, by the place where it stands."""

    def say(name: str) -> str:
        return spelt(name, [how[number % len(how)] for number in range(len(name))])

    if way == "mount":
        source, destination = say("/dev/null"), say(ROOT + "0")
        return {"mounts": f'{{"destination": "{destination}", "type": "bind", "source": "{source}"}}'}
    if way == "detour":
        return {
            "mounts": f'{{"destination": "/{say("var/./run//nvidia-container-devices/0")}", "source": "/dev/null"}}'
        }
    if way in ("cdi.k8s.io/p_0", "a.b/c_d"):
        return {"annotations": f'"{say(way)}": "{say("nvidia.com/gpu=")}{text}"'}
    if way == "com.nvidia.volumes.needed":
        return {"annotations": f'"{say(way)}": "nvidia_driver"'}
    return {"env": f'"{say(way)}={text}"'}


WAYS = ["NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", *OPEN.swarm_resources]
WAYS += ["cdi.k8s.io/p_0", "a.b/c_d", "com.nvidia.volumes.needed", "mount", "detour"]


@settings(max_examples=250, deadline=None)
@given(
    st.sampled_from(WAYS),
    st.sampled_from(["all", "none", "0", "11.8", "\\u0061ll", "<0>", "x"]),
    st.one_of(st.just([0]), st.just([0, 0, 3]), st.lists(st.integers(0, 3), min_size=22, max_size=22)),
    st.lists(st.text(max_size=10), max_size=3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_no_request_is_overlooked_in_any_encoding(
    shim: Path,
    open_shim: Path,
    way: str,
    text: str,
    how: list[int],
    others: list[str],
    spread: bool,
    ascii_only: bool,
    every: bool,
) -> None:
    """For each spec of which `request.read` makes a request, grep finds a pattern in its bytes: of the configuration's
    own channels alone, and of all."""
    config, fragment = (OPEN, open_shim) if every else (Config(), shim)
    around = json.dumps({**PLAIN, "annotations": {"y": "z", **dict.fromkeys(others, "x")}}, ensure_ascii=ascii_only)
    separator = ",\n" if spread else ","
    added = entry(way, text, how)
    for place, old in (("env", '"nvidia=x"'), ("annotations", '"y": "z"'), ("mounts", '"source": "proc"}')):
        if place in added:
            assert old in around
            around = around.replace(old, f"{old}{separator}{added[place]}", 1)
    data = around.encode("utf-8", "surrogatepass")
    spec = fragment.with_name("spec") / "config.json"
    spec.parent.mkdir(exist_ok=True)
    spec.write_bytes(data)
    try:
        asked = request.read(oci.Spec(str(spec)).container(), config) is not None
    except GpuhookError:
        asked = True
    if asked:
        assert hit(fragment, data)
    elif every and way not in ("CUDA_VERSION",):
        raise AssertionError("this spec asks, and request.read did not notice")
