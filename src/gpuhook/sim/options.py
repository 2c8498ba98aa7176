"""What a simulated driver is asked to be, and the checks of it."""

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from gpuhook.errors import GpuhookError
from gpuhook.sim.layouts import LAYOUTS

# NVML's brand numbers are the places in this list (nvml.h, nvmlBrandType_t); the words are the requirement language's.
BRANDS = (
    "unknown",
    "quadro",
    "tesla",
    "nvs",
    "grid",
    "geforce",
    "titan",
    "vapps",
    "vpc",
    "vcs",
    "vws",
    "cloudgaming",
    "quadrortx",
    "nvidiartx",
    "nvidia",
    "geforcertx",
    "titanrtx",
)

FAULTS = {
    "none": "nothing is wrong",
    "not-loaded": "the kernel module is not loaded: NVML says so, its files in proc and sys are absent",
    "version-mismatch": "the loaded kernel module has another version than the libraries",
    "gpu-lost=N": "the GPU with NVML index N has fallen off the bus",
    "hang": "NVML's initialisation never returns",
    "crash": "NVML's initialisation dies of SIGSEGV",
    "slow=MS": "NVML's initialisation takes MS milliseconds",
    "no-cuda-call": "NVML does not know its CUDA level",
}

MAX_GPUS = 64  # as many as the simulated NVML (and NVIDIA's own container stack) has room for
MAX_MINOR = 253  # 254 and 255 are nvidia-modeset and nvidiactl
MAX_SLOW_MS = 600_000
MAX_MIGS = 8  # devices of one GPU, as in NVIDIA's own container stack
MAX_GI, MAX_CI = 14, 7  # instances for which the kernel module has capabilities
_VERSION = re.compile(r"[0-9]{2,4}(\.[0-9]{1,4}){1,2}")
_LEVEL = re.compile(r"[0-9]{1,2}\.[0-9]")
_BUS_ID = re.compile(r"(?:[0-9a-fA-F]{4})?[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.0")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MODEL = re.compile(r"[!-~](?:[ -~]{0,93}[!-~])?")
_MIG = re.compile(r"([0-9]{1,2})=((?:[0-9]{1,2}/[0-9](?:\+gfx)?(?:,[0-9]{1,2}/[0-9](?:\+gfx)?)*)?)", re.ASCII)
_LIBRARY = re.compile(r"lib[A-Za-z0-9_+-]{1,60}")


@dataclass(frozen=True)
class SimGpu:
    """One GPU of a simulated driver. `bus_id` is `dddddddd:bb:dd.f` in lower case, `memory` is in MiB."""

    uuid: str
    bus_id: str
    minor: int
    brand: str
    arch: str
    memory: int
    model: str


@dataclass(frozen=True)
class SimMig:
    """One MIG device of the GPU with NVML index `gpu`: compute instance `ci` of GPU instance `gi`, `gfx`: draws."""

    gpu: int
    gi: int
    ci: int
    uuid: str
    gfx: bool = False


@dataclass(frozen=True)
class SimOptions:
    """What the simulated driver is.

    `brand`, `model` and `arch` hold for all GPUs. A tuple in `brands`, `models`, `archs`, `minors`, `bus_ids` or
    `uuids` says it for each GPU instead, in NVML's order, and has as many items as there are GPUs. `faults` are keys of
    `FAULTS` with their numbers, `extra_libraries` further names such as `libnvidia-newthing` that get the driver's
    version. `memory` is in MiB. `mig` divides GPUs: `1=1/0,2/0` says that the GPU with index 1 has the compute
    instances 0 of the GPU instances 1 and 2, `1=` that it is in MIG mode and has none, `1=1/0+gfx` that the profile has
    graphics. With `libraries32` the driver has its 32-bit libraries too, where the layout has a place for them.
    """

    gpus: int = 2
    driver: str = "580.95.05"
    cuda: str = "13.0"
    brand: str = "tesla"
    model: str = "NVIDIA H100 80GB HBM3"
    arch: str = "9.0"
    layout: str = "ubuntu"
    faults: tuple[str, ...] = ()
    memory: int = 81559
    brands: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    minors: tuple[int, ...] = ()
    bus_ids: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    extra_libraries: tuple[str, ...] = ()
    mig: tuple[str, ...] = ()
    libraries32: bool = False


def invalid(option: str, text: object, expected: str) -> GpuhookError:
    """The error for a bad option: names it, what was given and what it may be."""
    return GpuhookError("sim-invalid", f"{option} {str(text)!r}: {expected}", "see gpuhook sim create --help")


def check_faults(faults: Sequence[str], gpus: int) -> tuple[str, ...]:
    """The faults one by one (each text may be a comma list), without `none`. Raises sim-invalid."""
    found = []
    for fault in (item.strip() for text in faults for item in text.split(",")):
        name, equals, number = fault.partition("=")
        if not any(fault == known or (equals and known.startswith(name + "=")) for known in FAULTS):
            raise invalid("--fault", fault, "expected one of " + ", ".join(FAULTS))
        if equals:
            limit = gpus - 1 if name == "gpu-lost" else MAX_SLOW_MS
            if not (number.isascii() and number.isdigit() and len(number) < 9 and int(number) <= limit):
                raise invalid("--fault", fault, f"expected {name}= and a number from 0 to {limit}")
        if fault != "none" and fault not in found:
            found.append(fault)
    return tuple(found)


def check_mig(texts: Sequence[str], gpus: Sequence[SimGpu], driver: str) -> "tuple[frozenset[int], tuple[SimMig, ...]]":
    """The indices of the GPUs in MIG mode and the MIG devices, in NVML's order. Raises sim-invalid.

    A driver before 470 makes their ids of those of the GPU and the instances, a newer one has UUIDs for them.
    """
    divided: set[int] = set()
    devices: list[SimMig] = []
    for text in texts:
        found = _MIG.fullmatch(text)
        if not found or int(found[1]) >= len(gpus) or int(found[1]) in divided:
            raise invalid(
                "--mig", text, f"expected a GPU from 0 to {len(gpus) - 1}, each once, and GI/CI as in 1=1/0,2/0"
            )
        gpu = int(found[1])
        divided.add(gpu)
        if int(gpus[gpu].arch.partition(".")[0]) < 8:
            raise invalid("--mig", text, "only GPUs of compute capability 8.0 and newer can be divided")
        words = [pair.partition("+") for pair in found[2].split(",") if pair]
        drawing = {tuple(map(int, pair.split("/"))) for pair, plus, _ in words if plus}
        pairs = sorted(tuple(map(int, pair.split("/"))) for pair, _, _ in words)
        if len(set(pairs)) != len(pairs) or len(pairs) > MAX_MIGS:
            raise invalid("--mig", text, f"expected at most {MAX_MIGS} different devices")
        for gi, ci in pairs:
            if gi > MAX_GI or ci > MAX_CI:
                raise invalid("--mig", text, f"expected GI from 0 to {MAX_GI} and CI from 0 to {MAX_CI}")
            name = f"MIG-{gpus[gpu].uuid}/{gi}/{ci}"
            if int(driver.partition(".")[0]) >= 470:
                name = "MIG-" + str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.sim.gpuhook"))
            devices.append(SimMig(gpu, gi, ci, name, (gi, ci) in drawing))
    return frozenset(divided), tuple(sorted(devices, key=lambda device: (device.gpu, device.gi, device.ci)))


def check(options: SimOptions) -> tuple[SimGpu, ...]:
    """The GPUs that the options describe. Raises sim-invalid for the first bad option."""
    if not 0 <= options.gpus <= MAX_GPUS:
        raise invalid("--gpus", options.gpus, f"expected 0 to {MAX_GPUS}")
    _match("--driver", options.driver, _VERSION, "expected a version such as 580.95.05")
    _match("--cuda", options.cuda, _LEVEL, "expected a level such as 13.0")
    if options.layout not in LAYOUTS:
        raise invalid("--layout", options.layout, "expected one of " + ", ".join(LAYOUTS))
    check_faults(options.faults, options.gpus)
    for name in options.extra_libraries:
        _match("extra_libraries", name, _LIBRARY, "expected a name such as libnvidia-newthing")
    if not 1 <= options.memory <= 10_000_000:
        raise invalid("memory", options.memory, "expected 1 to 10000000 MiB")
    # one GPU's words are checked even where there is no GPU
    brands = _each("--brand", options.brands, options.brand, options.gpus)
    models = _each("--model", options.models, options.model, options.gpus)
    archs = _each("--arch", options.archs, options.arch, options.gpus)
    for brand in (options.brand, *brands):
        if brand not in BRANDS:
            raise invalid("--brand", brand, "expected one of " + ", ".join(BRANDS))
    for model in (options.model, *models):
        _match("--model", model, _MODEL, "expected 1 to 95 printable ASCII characters")
    for arch in (options.arch, *archs):
        _match("--arch", arch, _LEVEL, "expected a compute capability such as 9.0")
    minors = options.minors or tuple(range(options.gpus))
    bus_ids = options.bus_ids or tuple(f"00000000:{11 + index:02x}:00.0" for index in range(options.gpus))
    for bus_id in bus_ids:
        _match("bus_ids", bus_id, _BUS_ID, "expected a PCI address such as 0000:0b:00.0")
    bus_ids = tuple(bus_id.lower().rjust(16, "0") for bus_id in bus_ids)
    uuids = options.uuids or tuple(gpu_uuid(index) for index in range(options.gpus))
    for name, items in (("minors", minors), ("bus_ids", bus_ids), ("uuids", uuids)):
        if len(items) != options.gpus or len(set(items)) != len(items):
            raise invalid(name, items, f"expected {options.gpus} different items, one for each GPU")
    for minor in minors:
        if not 0 <= minor <= MAX_MINOR:
            raise invalid("minors", minor, f"expected 0 to {MAX_MINOR}")
    for text in uuids:
        _match("uuids", text, _UUID, "expected GPU- and a UUID in lower case")
    return tuple(
        SimGpu(uuids[i], bus_ids[i], minors[i], brands[i], archs[i], options.memory, models[i])
        for i in range(options.gpus)
    )


def gpu_uuid(index: int) -> str:
    """The UUID of the GPU with this NVML index: always the same."""
    return "GPU-" + str(uuid.uuid5(uuid.NAMESPACE_DNS, f"gpu{index}.sim.gpuhook"))


def _match(option: str, text: str, pattern: "re.Pattern[str]", expected: str) -> None:
    if not pattern.fullmatch(text):
        raise invalid(option, text, expected)


def _each(option: str, items: tuple[str, ...], default: str, count: int) -> tuple[str, ...]:
    if items and len(items) != count:
        raise invalid(option, items, f"expected {count} items, one for each GPU")
    return items or (default,) * count
