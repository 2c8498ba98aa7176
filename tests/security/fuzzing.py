"""Mutated inputs for every parser of what an attacker wrote; a parser answers or refuses by its declared exception.

No coverage is measured: an input that is refused in words not seen before, or accepted, joins the corpus, so that later
mutations start further inside. Each parser runs in a process of its own, whose growth in memory is measured.
"""

import os
import random
import re
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from zlib import crc32

from gpuhook import cmdline, config, devices, elf, hook, jsonio, ldcache, ldconf, oci, request, requirement, state
from gpuhook.driver import nvml
from gpuhook.errors import GpuhookError
from gpuhook.model import Container, Demand, DriverFile, FileId, Gpu, Mig, Node, replace
from gpuhook.rootfs import Root
from tests import bundles, sandbox

CORPUS = Path(__file__).parent.parent / "corpus"
SLOWEST = 0.05  # seconds of CPU for one input
GROWTH = 64  # MiB
LONGEST = 32 << 10  # bytes of an input
TEXT = 4096  # characters of a refusal
Run = Callable[[bytes], object]

GPUS = tuple(
    Gpu(
        number,
        f"GPU-7af7a99b-276c-c9cb-b366-c6fa6559570{number}",
        number,
        f"00000000:{number:02x}:00.0",
        "H",
        "tesla",
        (9, 0),
    )
    for number in range(4)
)
GPUS += (replace(GPUS[0], index=4, uuid="GPU-00", mig=True, migs=(Mig(0, "MIG-1", 1, 0), Mig(1, "MIG-2", 2, 0))),)


@dataclass
class Parser:
    """One parser: what to start from, words that it knows, and what it may raise."""

    seeds: list[bytes]
    words: list[bytes]
    prepare: Callable[[Path], Run]
    allowed: tuple[type[Exception], ...] = (GpuhookError,)
    trusted: bool = False  # the engine's or the shim's words: a refusal may repeat them whole


@dataclass
class Outcome:
    """What a run came to; `findings` are violations, each with the input that shows it."""

    parser: str
    seed: int
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    corpus: int = 0
    slowest_ms: float = 0
    grown_mib: float = 0
    seconds: float = 0
    findings: list[str] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, object]:
        """As a line of a report."""
        return asdict(self)


# --- the parsers --------------------------------------------------------------------------------------------------


def text_of(data: bytes) -> str:
    """As JSON hands it over: any code point, also half of a pair."""
    return data.decode("utf-8", "surrogateescape")


def _devices(place: Path) -> Run:
    settings = config.Config()
    names = (
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "CUDA_VISIBLE_DEVICES",
    )

    def run(data: bytes) -> object:
        values = text_of(data).split("\0")
        env = tuple(zip(names, values, strict=False))
        asked = request.read(Container(env, privileged=len(values) > 3), settings)
        return asked and (devices.select(asked, GPUS), devices.renumbered(asked, GPUS))

    return run


def _annotations(place: Path) -> Run:
    settings = config.Config(
        accept_devices_as_volume_mounts=True,
        accept_label_annotations=True,
        annotation_prefixes=("cdi.k8s.io/",),
        swarm_resources=("DOCKER_RESOURCE_GPU",),
    )

    def run(data: bytes) -> object:
        words = [text_of(word) for word in data.split(b"\0")]
        pairs = tuple(zip(words[::2], words[1::2], strict=False))
        container = Container(pairs, pairs, tuple((source, oci.clean(name)) for name, source in pairs))
        request.why_not(container, settings)
        request.ignored(container, settings)
        return request.read(container, settings)

    return run


def _requirement(place: Path) -> Run:
    host = requirement.Host("535.161.08", (12, 2), False)

    def run(data: bytes) -> object:
        parsed = requirement.parse(Demand("NVIDIA_REQUIRE_CUDA", text_of(data)))
        for gpus in ((), GPUS):
            requirement.judge((parsed,), host, gpus, "minor-compat", lambda: "")
        return requirement.check((parsed,), host, GPUS, "strict", lambda: "")

    return run


def _cache(place: Path) -> Run:
    ours = (("libcuda.so.1", "/usr/lib/libcuda.so.1"),)

    def run(data: bytes) -> object:
        ldcache.decode(data)  # what this refuses, nobody merges
        new = ldcache.merge(data, ours, "x86-64")
        assert ldcache.merge(new, ours, "x86-64") == new, "a merged cache merges into another one"
        entries = ldcache.parse(new)
        assert any(entry.name == "libcuda.so.1" for entry in entries)
        return len(entries), len(new)

    return run


def _elf(place: Path) -> Run:
    return elf.read


def _note(place: Path) -> Run:
    file = os.memfd_create("library")

    def run(data: bytes) -> object:
        os.ftruncate(file, 0)
        os.pwrite(file, data, 0)
        return elf.note_fd(file, b".note.cuda.fwd_compatibility", b"NVIDIA Corporation")

    return run


def _conf(place: Path) -> Run:
    (place / "etc/ld.so.conf.d").mkdir(parents=True)
    (place / "etc/ld.so.conf.d/a.conf").write_text("/a\ninclude /etc/ld.so.conf\n")
    (place / "usr/lib").mkdir(parents=True)
    root = Root.at(str(place))

    def run(data: bytes) -> object:
        (place / "etc/ld.so.conf").write_bytes(data)
        return ldconf.directories(root), ldconf.musl_path(root, "x86-64", ("/usr/lib",))

    return run


def _state(place: Path) -> Run:
    return state.parse


def _spec(place: Path) -> Run:
    path = place / "config.json"
    nodes = (Node("/dev/nvidia0", 195, 0, 0o020666, 0, 0), Node("/dev/nvidiactl", 195, 255, 0o020660, 0, 44))

    def run(data: bytes) -> object:
        path.write_bytes(data)
        spec = oci.Spec(str(path))
        spec.container()
        spec.revoke()
        spec.grant(nodes)
        spec.add_hook("prestart", "/usr/bin/gpuhook-hook", ["--record", "x"], 30)
        try:
            once = jsonio.dumps(spec.data)
        except ValueError:  # 1e999, which `save` refuses too
            return None
        spec.revoke()
        spec.grant(nodes)
        spec.add_hook("prestart", "/usr/bin/gpuhook-hook", ["--record", "x"], 30)
        assert jsonio.dumps(spec.data) == once, "a second grant is another one"
        return len(once)

    return run


def _hook_words(place: Path) -> Run:
    return lambda data: hook.parse([text_of(word) for word in data.split(b"\0")])


def _command_line(place: Path) -> Run:
    def run(data: bytes) -> object:
        words = [text_of(word) for word in data.split(b"\0")]
        return cmdline.parse("crun" if len(data) % 2 else "runc", words)

    return run


def _nvml(place: Path) -> Run:
    file = DriverFile("/usr/lib/libnvidia-ml.so.1", "library", "utility", "libnvidia-ml.so.1", FileId(0, 0, 0, 0, 0))
    return lambda data: nvml._read(file, data, 0)


def _tiny_elf() -> bytes:
    """The dynamic part of a small shared object, without the code under test."""
    from tests.unit.test_elf import build

    return build()


def _parsers() -> dict[str, Parser]:
    from tests.unit.test_elf_note import with_note

    spec = bundles.config(
        env=["NVIDIA_VISIBLE_DEVICES=all", "A=b"], annotations={"com.nvidia.cdi": "x"}, hooks={"prestart": []}
    )
    dots = b"all\0none\0void\0gpu:mig\x000,1\0GPU-7af7a99b\0MIG-GPU-7af7a99b-276c-c9cb-b366-c6fa65595700/1/0"
    dots += b"\x000:1\x0001:00.0"
    device_words = [*dots.split(b"\0"), b",", b":", b"-", b"/", b"0x", b"compute,utility", "１".encode(), b"1_0", b"\0"]
    versions = [
        b"cuda>=12.2",
        b"brand=tesla",
        b"driver<536",
        b"arch>=9.0",
        b"!=",
        b">=",
        b"<",
        b"=",
        b",",
        b" ",
        b"12.",
        b"..",
    ]
    conf = [
        b"include ",
        b"/etc/ld.so.conf.d/*.conf",
        b"*",
        b"[!a-",
        b"]",
        b"?",
        b"#",
        b"\n",
        b"\0",
        b"../",
        b"/usr/lib",
        b"=libc6",
    ]
    marks = [
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b":",
        b",",
        b"null",
        b"1e999",
        b"NaN",
        b"-1",
        b"true",
        b"[" * 500,
        b'"\\ud800"',
        b"{}",
    ]
    flags = [
        b"--record",
        b"--root",
        b"--tmpfs",
        b"--node",
        b"--compat",
        b"--capabilities",
        b"/",
        b"\0",
        b"/dev/nvidia0:195:0",
    ]
    options = [
        b"--bundle",
        b"--log=",
        b"create",
        b"run",
        b"--",
        b"-b",
        b"--bun",
        b"--log-format",
        b"json",
        b"\0",
        b"=",
        b"--root",
    ]
    caches = [path.read_bytes() for path in sorted((CORPUS / "ldcache").iterdir())]
    numbers = [
        number.to_bytes(size, "little")
        for size in (2, 4, 8)
        for number in (0, 1, 0x7F, 0x7FFF, (1 << 8 * size) - 1, 1 << 8 * size - 1)
    ]
    annotation = (
        b"com.nvidia.volumes.needed\0nvidia_driver\0cdi.k8s.io/x\0nvidia.com/gpu=0,nvidia.com/gpu=all\0"
        b"/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/0\0/dev/null\0DOCKER_RESOURCE_GPU\0GPU-1"
    )
    gpu = {
        "index": 0,
        "uuid": "GPU-1",
        "minor": 0,
        "bus_id": "00000000:01:00.0",
        "name": "x",
        "brand": "tesla",
        "arch": [9, 0],
    }
    answer = {
        "driver": "535.1",
        "cuda": 12020,
        "gpus": [{**gpu, "error": "", "mig": True, "migs": [[0, "MIG-1", 1, 0, True]]}],
    }
    return {
        "device strings": Parser([dots, b"0,1,2", b"all\0all"], device_words, _devices),
        "annotations": Parser(
            [annotation],
            [*annotation.split(b"\0"), b"\0", b",", b"nvidia.com/gpu", b"DOCKER_RESOURCE_GPU"],
            _annotations,
        ),
        "requirement": Parser([b"cuda>=12.6 brand=tesla,driver>=470,driver<471", b"cuda>=9"], versions, _requirement),
        "ld.so.cache": Parser(caches, numbers, _cache, (ValueError,)),
        "ELF": Parser([_tiny_elf()], numbers, _elf, ()),
        "note of CUDA's libraries": Parser([with_note()], numbers, _note, ()),
        "ld.so.conf": Parser([b"include /etc/ld.so.conf.d/*.conf\n/usr/lib\n", b"/a:/b\n"], conf, _conf, ()),
        "state": Parser(
            [b'{"ociVersion":"1","id":"a","pid":77,"bundle":"/b","root":"/r"}'], marks, _state, trusted=True
        ),
        "config.json": Parser([jsonio.dumps(spec), b'{"process":{"env":["A=b"]}}'], marks, _spec, trusted=True),
        "hook arguments": Parser(
            [b"--record\0ab\0--root\0/r\0--compat\0--node\0/dev/a:1:2"], flags, _hook_words, trusted=True
        ),
        "command line": Parser(
            [b"--root\0/r\0create\0--bundle\0/b\0id", b"run\0-b/b\0id"], options, _command_line, trusted=True
        ),
        "NVML's answer": Parser([jsonio.dumps(answer), b'{"error":{"code":9,"text":"x"}}'], marks, _nvml),
    }


PARSERS = _parsers()

# --- the fuzzer ---------------------------------------------------------------------------------------------------


def mutated(pick: random.Random, corpus: list[bytes], words: list[bytes]) -> bytes:
    """One input: a few changes to one of the corpus."""
    data = bytearray(pick.choice(corpus))
    for _ in range(pick.choice((1, 1, 1, 2, 2, 3, 5, 9))):
        kind = pick.randrange(9)
        at = pick.randrange(len(data) + 1)
        end = min(len(data), at + pick.choice((1, 1, 2, 4, 8, 24, 100)))
        if kind == 0 and at < len(data):
            data[at] ^= 1 << pick.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = pick.choice(b"\0\x01\x7f\x80\xff\n /,=0:")
        elif kind == 2:
            del data[at:end]
        elif kind in (3, 4):
            data[at:at] = pick.choice(words)
        elif kind == 5:
            word = pick.choice(words)
            data[at : at + len(word)] = word
        elif kind == 6:
            data[at:at] = data[at:end] * pick.choice((1, 2, 7, 300))
        elif kind == 7:
            other = pick.choice(corpus)
            start = pick.randrange(len(other) + 1)
            data[at:end] = other[start : start + pick.choice((4, 16, 64))]
        else:
            del data[at + pick.randrange(64) :]
    return bytes(data[:LONGEST])


_UNSAFE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202e]")


def run(name: str, inputs: int, seed: int = 1, seconds: float = 1e9) -> Outcome:
    """Feed one parser, in a process of its own, until `inputs` or `seconds` are used up."""
    return sandbox.apart(lambda: _run(name, PARSERS[name], inputs, seed, seconds))


def _peak() -> int:
    """The most memory that this process has had resident, in KiB."""
    return int(re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)[0])


def _run(name: str, parser: Parser, inputs: int, seed: int, seconds: float) -> Outcome:
    outcome = Outcome(name, seed)
    pick = random.Random(f"{name} {seed}")
    place = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    try:
        one = parser.prepare(place)
        corpus, seen = list(parser.seeds), set[str]()
        for data in corpus:
            _one(parser, one, data, outcome)
        Path("/proc/self/clear_refs").write_text("5")  # the peak of what this process did before (proc(5))
        before = _peak()
        begun = time.monotonic()
        while outcome.inputs < inputs and len(outcome.findings) < 10:
            data = mutated(pick, corpus, parser.words)
            said = _one(parser, one, data, outcome)
            if said not in seen and len(data) < 4096 and len(corpus) < 400:
                seen.add(said)
                corpus.append(data)
            if outcome.inputs % 256 == 0 and time.monotonic() - begun > seconds:
                break
        outcome.seconds = round(time.monotonic() - begun, 1)
        outcome.grown_mib = round((_peak() - before) / 1024, 1)
        outcome.corpus = len(corpus)
        if outcome.grown_mib > GROWTH:
            outcome.findings.append(f"grew by {outcome.grown_mib} MiB")
    finally:
        shutil.rmtree(place)
    outcome.slowest_ms = round(outcome.slowest_ms, 1)
    return outcome


def _timed(parser: Parser, one: Run, data: bytes) -> float:
    begun = time.thread_time()
    try:
        one(data)
    except parser.allowed:
        pass
    return time.thread_time() - begun


def _one(parser: Parser, one: Run, data: bytes, outcome: Outcome) -> str:
    """Feed one input; says what came of it, roughly."""
    outcome.inputs += 1
    begun = time.thread_time()
    said = "accepted"
    try:
        result = one(data)
        outcome.accepted += result is not None
        outcome.refused += result is None
        said = f"accepted {crc32(repr(result).encode()) % 200}"
    except parser.allowed as error:
        outcome.refused += 1
        words = str(error)
        said = re.sub(r"'[^']*'|[0-9]+", "", words)[:60]
        if isinstance(error, GpuhookError) and (_UNSAFE.search(words) or (len(words) > TEXT and not parser.trusted)):
            outcome.findings.append(f"{data[:2000]!r}: words of {len(words)} characters: {words[:400]!r}")
    except Exception:
        outcome.findings.append(f"{data[:2000]!r}: {traceback.format_exc(limit=-3)}")
        said = "defect"
    spent = (time.thread_time() - begun) * 1000
    for _ in range(5):  # a busy machine's caches are no property of the parser; one that is slow is slow each time
        if spent > SLOWEST * 1000:
            spent = min(spent, _timed(parser, one, data) * 1000)
    outcome.slowest_ms = max(outcome.slowest_ms, spent)
    if spent > SLOWEST * 1000:
        outcome.findings.append(f"{spent:.0f} ms for {len(data)} bytes: {data[:2000]!r}")
    return said
