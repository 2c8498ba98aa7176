"""What the sh launcher needs to decide without Python: the low-level runtimes, and what betrays a request for a GPU.

Hot path: imports nothing but errors; loaded when runtime.toml changed. Design, section 5.
"""

from gpuhook.errors import GpuhookError, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.config import Config

FORMAT = 1  # of the fragment; the launcher takes no other
NAME = "[A-Za-z0-9._+/][A-Za-z0-9._+/-]*"  # what a low-level runtime may be called: safe in an unquoted sh word
VARIABLE = "[A-Za-z0-9_][A-Za-z0-9_.-]*"  # what a swarm resource's variable may be called
PREFIX = "[A-Za-z0-9][A-Za-z0-9._/-]*/[A-Za-z0-9._/-]*"  # how an annotation that asks for devices may begin
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._+/-")

# Basic regular expressions: a config.json in which none of them is found asks for no GPU, in no encoding of JSON.
# JSON can write a letter of a variable's name as \uXXXX and in no other way, so each such escape is a hit, but those
# that Go's encoder writes for < > & and the two line separators: \u003c \u003e \u0026 \u2028 \u2029.
PATTERNS = (
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VERSION",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "gpuhook",
    r"\\u[^02]",
    r"\\u0[^0]",
    r"\\u00[^23]",
    r"\\u002[^6]",
    r"\\u003[^cCeE]",
    r"\\u2[^0]",
    r"\\u20[^2]",
    r"\\u202[^89]",
)


def patterns(config: "Config") -> "tuple[str, ...]":
    """The patterns that hold for a configuration: those above, and one for each further way to ask that it allows.

    In JSON a slash may have a backslash before it; a mount's destination may have detours, its last folder has not.
    """
    more = [*config.swarm_resources, *config.annotation_prefixes]
    if config.accept_devices_as_volume_mounts:
        more.append("nvidia-container-devices")
    if config.accept_label_annotations:
        more.append("com.nvidia.volumes.needed")
    for word in more:
        if not word or not _PLAIN.issuperset(word.replace("_", "-")):
            raise GpuhookError("internal", f"{shown(word)} cannot be looked for by sh")
    return PATTERNS + tuple([word.replace(".", "\\.").replace("/", "\\\\*/") for word in more])


def render(config: "Config") -> bytes:
    """The sh fragment for a configuration: assignments only, every value in single quotes.

    `gpuhook_patterns` has one pattern a line, for `LC_ALL=C grep -qa -e "$gpuhook_patterns" -- config.json`.
    Raises internal for a name that a checked configuration cannot have.
    """
    for name in config.low_level:
        if not name or name[0] == "-" or not _PLAIN.issuperset(name):
            raise GpuhookError("internal", f"the low-level runtime {shown(name)} cannot be named to sh")
    lines = (
        f"gpuhook_low_level='{' '.join(config.low_level)}'",
        "gpuhook_patterns='" + "\n".join(patterns(config)) + "'",
        f"gpuhook_format={FORMAT}",
    )
    return ("\n".join(lines) + "\n").encode("ascii")
