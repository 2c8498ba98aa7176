"""sim/nvml.conf: what the simulated NVML answers, and from which the files of proc and sys are written again."""

from dataclasses import dataclass

from gpuhook.sim.options import BRANDS, SimGpu, SimMig, check_faults, invalid

CONF = "sim/nvml.conf"
COUNT = "sim/nvml.count"

# libnvidia-ml.so.1 takes a text for this file only if it begins so
_HEAD = """\
# gpuhook simulated driver: what libnvidia-ml.so.1 of this tree answers. It is read again at each initialisation of
# NVML; a copy of the library that lies elsewhere (in a container) answers what was compiled into it.
#
# driver, cuda   as NVML says them; cuda is 1000 * major + 10 * minor
# fault          none, or a comma list of: not-loaded version-mismatch gpu-lost=N hang crash slow=MS no-cuda-call
#                (N is an NVML index; `gpuhook sim fault DIR FAULT` also changes the files of proc and sys to match)
# gpu            one line for each GPU, in NVML's order: UUID BUS-ID MINOR BRAND-NUMBER ARCH MEMORY-MIB NAME
# mig            one line for each GPU in MIG mode: its index; and one for each MIG device:
#                GPU-INDEX GI CI GI-CAPABILITY CI-CAPABILITY UUID, and gfx where its profile has graphics
#
# Each initialisation of NVML adds one byte to nvml.count beside this file.
"""


@dataclass(frozen=True)
class State:
    """A simulated driver at one moment. `cuda` is as NVML has it (13000)."""

    driver: str
    cuda: int
    gpus: tuple[SimGpu, ...]
    faults: tuple[str, ...]
    divided: frozenset[int] = frozenset()  # indices of the GPUs in MIG mode
    migs: tuple[SimMig, ...] = ()

    @property
    def module(self) -> str:
        """The version of the loaded kernel module, or empty where none is loaded."""
        if "not-loaded" in self.faults:
            return ""
        if "version-mismatch" not in self.faults:
            return self.driver
        *head, last = self.driver.split(".")
        return ".".join([*head, str(int(last) + 1).zfill(len(last))])


def cuda_number(text: str) -> int:
    """13.0 -> 13000, as NVML has it."""
    major, minor = text.split(".")
    return int(major) * 1000 + int(minor) * 10


def capability(minor: int, gi: int, ci: int = -1) -> int:
    """The number of the capability of an instance of the GPU /dev/nvidia<minor>, as the kernel module counts them.

    1 and 2 are `config` and `monitor`; then, for each GPU, 15 GPU instances of one and its 8 compute instances each.
    """
    return 3 + (minor * 15 + gi) * 9 + (1 + ci if ci >= 0 else 0)


def text(state: State) -> str:
    """The text of nvml.conf."""
    lines = [f"driver = {state.driver}", f"cuda = {state.cuda}", "fault = " + (",".join(state.faults) or "none")]
    for gpu in state.gpus:
        brand = BRANDS.index(gpu.brand)
        lines.append(f"gpu = {gpu.uuid} {gpu.bus_id} {gpu.minor} {brand} {gpu.arch} {gpu.memory} {gpu.model}")
    lines += [f"mig = {index}" for index in sorted(state.divided)]
    for mig in state.migs:
        minors = (capability(state.gpus[mig.gpu].minor, mig.gi), capability(state.gpus[mig.gpu].minor, mig.gi, mig.ci))
        lines.append(f"mig = {mig.gpu} {mig.gi} {mig.ci} {minors[0]} {minors[1]} {mig.uuid}" + " gfx" * mig.gfx)
    return _HEAD + "\n".join(lines) + "\n"


def parse(content: str) -> State:
    """Read nvml.conf back. Raises sim-invalid naming the line."""
    driver, cuda, fault = "", 0, "none"
    gpus: list[SimGpu] = []
    divided: set[int] = set()
    migs: list[SimMig] = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        key, _, rest = (part.strip() for part in line.partition("="))
        try:
            if key == "driver":
                driver = rest
            elif key == "cuda":
                cuda = int(rest)
            elif key == "fault":
                fault = rest
            elif key == "gpu":
                uuid, bus_id, minor, brand, arch, memory, model = rest.split(" ", 6)
                gpus.append(SimGpu(uuid, bus_id, int(minor), BRANDS[int(brand)], arch, int(memory), model))
            elif key == "mig":
                words = rest.split(" ")
                if int(words[0]) >= len(gpus) or len(words) not in (1, 6, 7) or words[6:] not in ([], ["gfx"]):
                    raise ValueError
                divided.add(int(words[0]))
                if len(words) > 1:
                    migs.append(SimMig(int(words[0]), int(words[1]), int(words[2]), words[5], len(words) == 7))
            else:
                raise ValueError
        except (ValueError, IndexError):
            raise invalid(f"{CONF} line {number}", line, "not understood; the head of the file explains it") from None
    if not driver or not cuda:
        raise invalid(CONF, content[:40], "driver and cuda are missing")
    faults = check_faults([fault], len(gpus))
    return State(driver, cuda, tuple(gpus), faults, frozenset(divided), tuple(migs))
