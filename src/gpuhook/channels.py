"""Who may ask for GPUs, and by what: annotations, volume mounts, variables of the environment, old images.

Pure and on the hot path. Each way to ask is one function, and `_CHANNELS` has them by their rank: the first
that speaks and may decides alone. What a value means is the business of `gpuhook.request`.
"""

from gpuhook.errors import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.config import Config
    from gpuhook.model import Container

DEVICES = "NVIDIA_VISIBLE_DEVICES"
LABEL = "com.nvidia.volumes.needed"
BY_MOUNT = "a mount below /var/run/nvidia-container-devices"
IMEX = "imex/"  # below the folder of mounts, an IMEX channel, which is no device
SWITCHES = (
    ("NVIDIA_GDS", "gds"),
    ("NVIDIA_MOFED", "mofed"),
    ("NVIDIA_GDRCOPY", "gdrcopy"),
    ("NVIDIA_NVSWITCH", "nvswitch"),
)
_OFF = ("", "disabled")  # values of these that need no remark
DIGITS = frozenset("0123456789")
_MOUNTS = "/var/run/nvidia-container-devices/"  # where NVIDIA's device plugin mounts /dev/null
_KINDS = ("nvidia.com/gpu", "nvidia.com/mig", "k8s.device-plugin.nvidia.com/gpu")  # of CDI, for what is chosen here


def heard(container: "Container", config: "Config", env: "dict[str, str]") -> "tuple[str, str]":
    """The value of the first channel that speaks and may, and which it is; two empty texts where nothing asks."""
    return ("", "") if container.sandbox else first(container, config, env, allowed=True)


def first(container: "Container", config: "Config", env: "dict[str, str]", *, allowed: bool) -> "tuple[str, str]":
    """The first channel that speaks, among those that the policy allows or among those of it that it forbids."""
    of_env = may_use_env(container, config) is allowed
    for channel, is_env in _CHANNELS:
        found = channel(container, config, env) if (of_env if is_env else allowed) else None
        if found is not None:
            return found
    return "", ""


def _by_annotations(
    container: "Container",
    config: "Config",
    env: "dict[str, str]",  # noqa: ARG001
) -> "tuple[str, str] | None":
    """Annotations as device plugins write them for CRI-O and containerd: names of CDI devices, by commas.

    Devices of other kinds are their owners' business, and the engine's.
    """
    prefixes = config.annotation_prefixes
    if not prefixes:
        return None
    keys, items = [], []
    for key, text in sorted(container.annotations):
        names = [name.strip() for name in text.split(",")] if key.startswith(prefixes) else []
        ours = [name for name in names if name and ("=" not in name or plain_name(name) != name)]
        if ours:
            keys.append(key)
            items += ours
    return (",".join(items), f"annotation {shown(keys[0])[1:-1]}") if keys else None


def _by_mounts(
    container: "Container",
    config: "Config",
    env: "dict[str, str]",  # noqa: ARG001
) -> "tuple[str, str] | None":
    if not config.accept_devices_as_volume_mounts:
        return None
    names = [name for name in mounted(container) if not name.startswith(IMEX)]
    return (",".join(names), BY_MOUNT) if names else None


def mounted(container: "Container") -> "tuple[str, ...]":
    """What /dev/null is mounted to below the agreed folder, as device names, each once.

    The rest of the path is the name; `cdi/VENDOR/CLASS/NAME` and `cdi/VENDOR/CLASS=NAME` are CDI's VENDOR/CLASS=NAME.
    """
    names: dict[str, None] = {}
    for source, destination in container.mounts:
        if not destination.startswith(_MOUNTS) or [part for part in source.split("/") if part] != ["dev", "null"]:
            continue
        name = destination[len(_MOUNTS) :]
        parts = name.split("/", 3)
        if parts[0] == "cdi" and len(parts) == 4:
            name = f"{parts[1]}/{parts[2]}={parts[3]}"
        elif parts[0] == "cdi":
            name = name[4:]
        names[name] = None
    return tuple(names)


def _by_swarm(
    container: "Container",  # noqa: ARG001
    config: "Config",
    env: "dict[str, str]",
) -> "tuple[str, str] | None":
    """The variables in which docker's swarm says what generic resources it gave, instead of NVIDIA_VISIBLE_DEVICES."""
    names = [name for name in config.swarm_resources if name in env]
    return (",".join([env[name] for name in names]), " + ".join(names)) if names else None


def _by_env(
    container: "Container",  # noqa: ARG001
    config: "Config",  # noqa: ARG001
    env: "dict[str, str]",
) -> "tuple[str, str] | None":
    return (env[DEVICES], DEVICES) if DEVICES in env else None


def _by_label(
    container: "Container",
    config: "Config",
    env: "dict[str, str]",  # noqa: ARG001
) -> "tuple[str, str] | None":
    """The label of nvidia-docker 1 on images that need the driver, where an engine makes an annotation of it."""
    if not config.accept_label_annotations:
        return None
    volumes = dict(container.annotations).get(LABEL, "").split()
    return ("all", f"annotation {LABEL}") if "nvidia_driver" in volumes else None


def _by_legacy_image(
    container: "Container",  # noqa: ARG001
    config: "Config",
    env: "dict[str, str]",
) -> "tuple[str, str] | None":
    return ("all", "CUDA_VERSION") if DEVICES not in env and legacy(env, config) else None


# In the order of their rank; whether the policy for the environment of unprivileged containers is about them.
_CHANNELS = (
    (_by_annotations, False),
    (_by_mounts, False),
    (_by_swarm, True),
    (_by_env, True),
    (_by_label, False),
    (_by_legacy_image, True),
)


def may_use_env(container: "Container", config: "Config") -> bool:
    """Whether the policy lets this container ask by its environment."""
    return container.privileged or config.accept_env_when_unprivileged


def switches(
    container: "Container", config: "Config", env: "dict[str, str]", warnings: "list[str]"
) -> "tuple[str, ...]":
    """The devices beside the GPUs that a container asks for: each by a variable that says `enabled`, nothing else."""
    found = []
    for name, word in SWITCHES:
        text = env.get(name, "")
        if text in _OFF:
            continue
        if text != "enabled":
            warnings.append(f"{name}={shown(text)} has no effect: it takes the one value enabled")
        elif not may_use_env(container, config):
            warnings.append(f"{name}=enabled is ignored: request.accept-env-when-unprivileged is false")
        else:
            found.append(word)
    return tuple(found)


def legacy(env: "dict[str, str]", config: "Config") -> "tuple[int, int] | None":
    """The CUDA version of a legacy CUDA image: CUDA_VERSION is a version and NVIDIA_REQUIRE_CUDA unset or empty."""
    if not config.legacy_images or env.get("NVIDIA_REQUIRE_CUDA"):
        return None
    return cuda_version(env.get("CUDA_VERSION", ""))


def cuda_version(text: str) -> "tuple[int, int] | None":
    """Major and minor of a CUDA_VERSION (`v` before it is allowed), or None for what is no version."""
    parts = text.removeprefix("v").split(".")
    if len(parts) > 3:
        return None
    numbers = [number(part) for part in parts]
    if None in numbers:
        return None
    return numbers[0] or 0, (numbers[1] or 0) if len(numbers) > 1 else 0


def number(text: str) -> "int | None":
    """A number of ASCII digits below 2**32, or None. `int` would take signs, blanks, `_` and digits of any script."""
    if not text or len(text) > 10 or not DIGITS.issuperset(text):
        return None
    found = int(text)
    return found if found < 1 << 32 else None


def plain_name(word: str) -> str:
    """`0` of `nvidia.com/gpu=0`; what is no name of CDI for a GPU comes back as it is."""
    kind, _, name = word.partition("=")
    return name if name and kind.lower() in _KINDS else word


def plain_index(text: str) -> bool:
    """Whether a text is a GPU's index: ASCII digits without a leading zero."""
    return 0 < len(text) < 10 and DIGITS.issuperset(text) and (text[0] != "0" or text == "0")
