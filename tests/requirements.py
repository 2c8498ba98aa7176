"""Real requirement strings, and short ways to judge and to refuse, for the tests of the requirement language."""

from pathlib import Path

from gpuhook import cuda, requirement
from gpuhook.errors import GpuhookError
from gpuhook.model import Demand, Gpu
from gpuhook.requirement import Host, Verdict

VARIABLE = "NVIDIA_REQUIRE_CUDA"
DATA = Path(__file__).parent / "data" / "require-strings.tsv"
TEN = ("nvidiartx", "geforce", "geforcertx", "quadro", "quadrortx", "titan", "titanrtx")
TWELVE: tuple[str, ...] = ("unknown", "grid", "tesla", "nvidia", "quadro", "quadrortx", "nvidiartx")
TWELVE += ("vapps", "vpc", "vcs", "vws", "cloudgaming")
BRANDS = sorted({*TWELVE, *TEN, "nvs"})


def rows() -> list[list[str]]:
    """Image version, operating system, which ENV line, length and value of each real string in the data file."""
    lines = DATA.read_text().split("\n")
    return [line.split("\t") for line in lines[1:] if line]


def generated(level: str, *branches: int) -> str:
    """A string as NVIDIA's generator makes it since 12.5: all brands for each branch."""
    pairs = [f"brand={brand},driver>={branch},driver<{branch + 1}" for branch in branches for brand in TWELVE]
    return " ".join([f"cuda>={level}", *pairs])


CUDA_11_8_OLD = "cuda>=11.8 brand=tesla,driver>=450,driver<451 " + " ".join(
    f"brand={brand},driver>={branch},driver<{branch + 1}"
    for branch in (470, 510, 515)
    for brand in ("tesla", "unknown", "nvidia", *TEN)
)
CUDA_11_8 = "cuda>=11.8 " + " ".join(
    f"brand={brand},driver>=470,driver<471" for brand in ("tesla", "unknown", "nvidia", *TEN)
)
CUDA_12_6 = generated("12.6", 470, 535, 550)
CUDA_12_8 = generated("12.8", 470, 535, 550, 560, 565)
CUDA_12_9 = generated("12.9", 535, 550, 560, 565, 570)
CUDA_13_0 = generated("13.0", 535, 550, 565, 570, 575)


def gpu(brand: str = "", arch: tuple[int, ...] = (), name: str = "NVIDIA Model", index: int = 0) -> Gpu:
    """A GPU of which only what a requirement asks is told."""
    return Gpu(index, f"GPU-{index}", index, f"00000000:{index:02x}:00.0", name, brand, arch)


def host(driver: str) -> Host:
    """A host with a driver and the level of its branch."""
    return Host(driver, *cuda.level_for_driver(driver))


def judge(
    text: str, driver: str, *gpus: Gpu, policy: str = "strict", compat: str | None = "", origin: str = VARIABLE
) -> Verdict:
    """The verdict on one requirement."""
    parsed = requirement.parse(Demand(origin, text))
    return requirement.judge((parsed,), host(driver), gpus, policy, lambda: compat)


def met(text: str, driver: str, brand: str = "", **options: str | None) -> bool:
    """Whether a GPU of a brand meets a requirement."""
    policy = options.pop("policy", None) or "strict"
    return judge(text, driver, gpu(brand), policy=policy, compat=options.get("compat", "")).met


def refusal(
    text: str,
    driver: str,
    *gpus: Gpu,
    policy: str = "strict",
    compat: str | None = "",
    near_misses: tuple[str, ...] = (),
    disable_allowed: bool = True,
) -> GpuhookError | None:
    """The error that refuses a container; None where it is started."""
    parsed = requirement.parse(Demand(VARIABLE, text))
    try:
        requirement.check((parsed,), host(driver), gpus, policy, lambda: compat, near_misses, disable_allowed)
    except GpuhookError as error:
        return error
    return None


def refused(text: str, driver: str, *gpus: Gpu, compat: str | None = "") -> GpuhookError:
    """The error that refuses a container that must be refused."""
    error = refusal(text, driver, *gpus, compat=compat)
    assert error is not None
    return error


def syntax(text: str) -> GpuhookError | None:
    """The syntax error of a text; None where it parses."""
    try:
        requirement.parse(Demand(VARIABLE, text))
    except GpuhookError as error:
        assert error.reference == "requirement-syntax"
        return error
    return None
