"""What is known of CUDA levels and drivers: which branch supports which level, and the two kinds of compatibility.

Hot path and pure. Facts from NVIDIA's CUDA release notes (toolkit and driver table), the CUDA compatibility guide and
nvidia-smi headers in public bug reports. A branch's level never rises with its point releases, so the first number of
the driver version decides. Windows and WSL drivers have other branch numbers in the same order.
"""

from gpuhook import version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.model import Image

# Driver branch -> the CUDA level it supports, ascending.
BRANCHES: tuple[tuple[int, tuple[int, int]], ...] = (
    (340, (6, 5)),
    (346, (7, 0)),
    (352, (7, 5)),
    (361, (8, 0)),
    (367, (8, 0)),
    (375, (8, 0)),
    (384, (9, 0)),
    (387, (9, 1)),
    (390, (9, 1)),
    (396, (9, 2)),
    (410, (10, 0)),
    (418, (10, 1)),
    (430, (10, 1)),
    (435, (10, 1)),
    (440, (10, 2)),
    (450, (11, 0)),
    (455, (11, 1)),
    (460, (11, 2)),
    (465, (11, 3)),
    (470, (11, 4)),
    (495, (11, 5)),
    (510, (11, 6)),
    (515, (11, 7)),
    (520, (11, 8)),
    (525, (12, 0)),
    (530, (12, 1)),
    (535, (12, 2)),
    (545, (12, 3)),
    (550, (12, 4)),
    (555, (12, 5)),
    (560, (12, 6)),
    (565, (12, 7)),
    (570, (12, 8)),
    (575, (12, 9)),
    (580, (13, 0)),
    (590, (13, 1)),
    (595, (13, 2)),
    (610, (13, 3)),
    (615, (13, 4)),
)
_UNCONFIRMED = (430, 615)  # no header of these branches was seen
_BEFORE = (6, 0)  # any branch older than the table: too old for every image that states a requirement

# The minimum that NVIDIA's release notes state, where they state a point release; later levels go by the branch.
_MINIMUM = {
    (7, 0): "346.46",
    (7, 5): "352.31",
    (8, 0): "367.48",
    (9, 0): "384.81",
    (9, 1): "390.46",
    (9, 2): "396.26",
    (10, 0): "410.48",
    (10, 1): "418.39",
    (10, 2): "440.33",
    (11, 0): "450.36.06",
    (11, 1): "455.23",
    (11, 2): "460.27.03",
    (11, 3): "465.19.01",
    (11, 4): "470.42.01",
    (11, 5): "495.29.05",
    (11, 6): "510.39.01",
}

# Oldest driver on which programs of any level of a CUDA major version run (minor-version compatibility, Linux).
FLOORS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
_FLOOR_11_0 = "450.36.06"

# Brands on which CUDA accepts forward-compatibility libraries: those that NVIDIA's images name since 12.5. On GeForce
# and TITAN cards cuInit fails with error 804.
FORWARD_BRANDS = (
    *("tesla", "unknown", "nvidia", "nvidiartx", "quadro", "quadrortx"),
    *("grid", "vapps", "vpc", "vcs", "vws", "cloudgaming"),
)


def level_for_driver(driver: str) -> tuple[tuple[int, ...], bool]:
    """The CUDA level that a driver version supports by the branch table, and whether that is a guess.

    It is one for a branch that the table lacks (the next older branch's level is taken: the highest known for a newer
    driver) and for the two branches of which no report confirms the level. `((), True)` for what is no version.
    """
    parts = version.parse_loose(driver)
    if not parts:
        return (), True
    for branch, level in reversed(BRANCHES):
        if parts[0] >= branch:
            return level, parts[0] != branch or branch in _UNCONFIRMED
    return _BEFORE, True


def driver_for_level(level: tuple[int, ...]) -> str:
    """The oldest driver that supports a CUDA level, for advice: `384.81`, or a branch (`560`); `` if none is known."""
    for branch, known in BRANCHES:
        if version.compare(known, level) >= 0:
            return _MINIMUM.get(known, str(branch))
    return ""


def branch_below(level: tuple[int, ...]) -> str:
    """The newest branch whose CUDA level is below `level`, for advice; `` if none is known."""
    found = ""
    for branch, known in BRANCHES:
        if version.compare(known, level) < 0:
            found = str(branch)
    return found


def floor(level: tuple[int, ...]) -> str:
    """The oldest driver with minor-version compatibility for programs of a CUDA level, `` where there is none."""
    if version.compare(level[:2], (11, 0)) == 0:
        return _FLOOR_11_0
    return FLOORS.get(level[0], "") if level else ""


def minor_compat(needed: tuple[int, ...], driver: str) -> bool:
    """Whether programs of the CUDA level `needed` run on a driver of the same CUDA major version.

    True where the driver supports that major version and is not older than its floor. Features new in a driver and PTX
    made by a newer toolkit are not covered.
    """
    lowest = version.parse_loose(floor(needed))
    parts = version.parse_loose(driver)
    return bool(lowest) and version.compare(parts, lowest) >= 0 and level_for_driver(driver)[0][:1] == needed[:1]


def forward_compat(brand: str) -> bool:
    """Whether CUDA accepts forward-compatibility libraries on a brand; an unknown one (``) is presumed to."""
    return not brand or brand.lower() in FORWARD_BRANDS


def compat_is_newer(compat: str, driver: str) -> bool:
    """Whether forward-compatibility libraries of driver version `compat` are of a newer branch than the driver."""
    return version.parse_loose(compat)[:1] > version.parse_loose(driver)[:1]


def compat_used(image: "Image", driver: str, level: tuple[int, ...]) -> tuple[bool, str]:
    """Whether the image's forward-compatibility libraries serve this driver (of this CUDA level), and why or why not.

    CUDA's own rule, as newer libraries carry it in a note: the driver's branch must be one of those that it names, and
    the libraries newer than the driver; without a list of branches (integrated GPUs) their CUDA level must be higher
    than the driver's. Libraries without a note must be of a newer branch than the driver.
    """
    if not image.compat:
        return False, ""
    found = version.parse_loose(image.compat_version)
    own = version.parse_loose(driver)
    if image.compat_drivers:
        listed = own[:1] != () and own[0] in image.compat_drivers
        named = "their note names driver branch" + ("es " if len(image.compat_drivers) > 1 else " ")
        named += ", ".join([str(branch) for branch in image.compat_drivers])
        if not listed:
            return False, f"{named}, and the driver is {driver}"
        if version.compare(found, own) > 0:
            return True, f"{named}, and they are newer than the driver ({driver})"
        return False, f"they are not newer than the driver ({driver})"
    if image.compat_cuda:
        text = f"their note says CUDA {version.text(image.compat_cuda)}, the driver supports {version.text(level)}"
        return version.compare(image.compat_cuda, level) > 0, text
    if compat_is_newer(image.compat_version, driver):
        return True, f"they are of a newer branch than the driver ({driver})"
    return False, f"they are not newer than the driver ({driver})"
