"""What a container asks for: devices, capabilities and requirements, read of its environment and annotations.

Pure and on the hot path. Everything read here is the image's or the user's word: bounded and never trusted. The meaning
of variables and values is that of NVIDIA's stack (docs/compatibility.md names the differences).
"""

from gpuhook.channels import (
    BY_MOUNT,
    DEVICES,
    IMEX,
    cuda_version,
    first,
    heard,
    legacy,
    may_use_env,
    mounted,
    plain_index,
    plain_name,
    switches,
)
from gpuhook.errors import GpuhookError, shown
from gpuhook.model import Demand, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.config import Config
    from gpuhook.model import Container

CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
DISABLE = "NVIDIA_DISABLE_REQUIRE"
REQUIRE = "NVIDIA_REQUIRE_"
CUDA_ANNOTATION = "com.nvidia.cuda.version"
MOST_BYTES = 1 << 16  # of one value
MOST_ITEMS = 1024  # devices after ranges are expanded
MOST_DEMANDS = 32  # NVIDIA's own limit
FORMS = (
    "all, none, void, or a list of indices (0,1 or 0-3), UUIDs (GPU-...), PCI bus ids (0000:0b:00.0) and MIG devices"
    " (0:1 or MIG-...)"
)
MIG = (("NVIDIA_MIG_CONFIG_DEVICES", "config"), ("NVIDIA_MIG_MONITOR_DEVICES", "monitor"))
CHANNELS = "NVIDIA_IMEX_CHANNELS"
MOST_CHANNEL = 2047  # the last IMEX channel
_KNOWN = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
_DEFAULT = ("compute", "utility")
_KEYWORDS = ("all", "none", "void")
_YES = ("1", "t", "true", "yes")
_NO = ("", "0", "f", "false", "no")
_NOT_CONSTRAINTS = "NVIDIA_REQUIRE_JETPACK"  # prefix of variables that are no constraints
_PRIVILEGED = (
    "the container is privileged (CAP_SYS_ADMIN): the choice of GPUs holds only if the engine's device rules do"
)


def read(container: "Container", config: "Config") -> "Request | None":
    """What the container asks for, or None where it asks for nothing (`why_not` says why).

    Device tokens come cleaned, with ranges expanded, but unproven: `devices.select` judges them, because its errors
    name what the host has. Raises device-invalid, privilege-missing, capability-unsupported and requirement-syntax.
    """
    env = dict(container.env)
    asked, origin = heard(container, config, env)
    if not origin:
        return None
    warnings: list[str] = []
    devices = _devices(asked, origin, warnings)
    if devices is None:
        return None
    if container.privileged and devices != ("all",):
        warnings.append(_PRIVILEGED)
    capabilities = _capabilities(env, config, warnings)
    disabled = _disabled_by(env, config, warnings)
    demands = _demands(container, env, config, disabled, warnings)
    channels = _channels(container, config, env, warnings)
    beside = switches(container, config, env, warnings)
    return Request(
        devices=devices,
        origin=origin,
        capabilities=capabilities,
        demands=demands,
        disabled_by=disabled,
        warnings=tuple(warnings),
        near_misses=_near_misses(env),
        mig=_mig(env, container.privileged),
        channels=channels,
        switches=beside,
        cuda_visible=env.get("CUDA_VISIBLE_DEVICES", "")[:MOST_BYTES],
    )


def why_not(container: "Container", config: "Config") -> str:
    """Why `read` gives None: one sentence for `explain` and the log; empty where it does not."""
    if container.sandbox:
        return "this is a pod's sandbox, which runs nothing of its own"
    env = dict(container.env)
    asked, origin = heard(container, config, env)
    if not origin:
        asked, origin = first(container, config, env, allowed=False)
    if not origin:
        unread = ignored(container, config)
        if unread:
            return unread
        if "CUDA_VERSION" in env:
            rule = "CUDA_VERSION is a version and NVIDIA_REQUIRE_CUDA is not set"
            return f"{DEVICES} is not set, and this is no legacy CUDA image ({rule})"
        return f"{DEVICES} is not set"
    words = _device_words(_unquoted(asked))
    if not words:
        return f"{origin} is empty"
    if list(words) == ["void"]:
        return f"{origin} says void"
    return ignored(container, config)


def ignored(container: "Container", config: "Config") -> str:
    """The warning that a request was left out because of the administrator's policy; empty where none was."""
    env = dict(container.env)
    if container.sandbox or heard(container, config, env)[1]:
        return ""
    asked, origin = first(container, config, env, allowed=False)
    reason = "the container is not privileged (no CAP_SYS_ADMIN), and request.accept-env-when-unprivileged is false"
    if not origin:
        names = [name for name in mounted(container) if not name.startswith(IMEX)]
        asked, origin = ",".join(names), BY_MOUNT if names else ""
        reason = "request.accept-devices-as-volume-mounts is false"
    words = _device_words(_unquoted(asked))
    if not origin or not words or list(words) == ["void"]:
        return ""
    return f"the devices that {origin} asks for ({shown(asked)}) are ignored: {reason}"


# --- devices ------------------------------------------------------------------------------------------------------


def _devices(asked: str, origin: str, warnings: "list[str]") -> "tuple[str, ...] | None":
    """The cleaned tokens, () for `none`, or None for no request."""
    if len(asked) > MOST_BYTES:
        raise GpuhookError(
            "device-invalid",
            f"{origin} has {len(asked)} characters, and at most {MOST_BYTES} are read",
            f"{origin} takes {FORMS}",
        )
    plain = _unquoted(asked)
    if plain is not asked:
        warnings.append(f"{origin}: the quotes around {shown(asked)} are part of the value and were left out")
    words = _device_words(plain)
    if not words:
        return None
    _refuse_flag_syntax(plain, origin)
    for keyword in _KEYWORDS:
        if keyword in words:
            if len(words) > 1:
                raise GpuhookError(
                    "device-invalid",
                    f"{_said(origin, asked)} mixes {keyword} with other devices",
                    f"write {keyword} alone, or the devices without it",
                )
            return {"all": ("all",), "none": (), "void": None}[keyword]
    tokens: dict[str, None] = {}
    for token in words.values():
        tokens.update(dict.fromkeys(_expanded(token)))
        if len(tokens) > MOST_ITEMS:
            raise GpuhookError(
                "device-invalid",
                f"{_said(origin, asked)} names more than {MOST_ITEMS} devices",
                "use all for every GPU of the host",
            )
    return tuple(tokens)


def _said(origin: str, text: str) -> str:
    """What was said and where, for the beginning of an error: `VARIABLE='0'`."""
    return f"{origin} ({shown(text)})" if " " in origin else f"{origin}={shown(text)}"


def _device_words(plain: str) -> "dict[str, str]":
    """As `_words`, of devices: one that is written as a name of CDI counts by its last part."""
    return {plain_name(lower): plain_name(word) for lower, word in _words(plain).items()}


def _words(plain: str) -> "dict[str, str]":
    """The items of a comma list, no blanks or empties, by their lower case: the last spelling of each, in order."""
    words = {}
    for item in plain[: MOST_BYTES + 1].split(","):
        word = item.strip(" \t\r\n\v\f")
        if word:
            words[word.lower()] = word
    return words


def _unquoted(text: str) -> str:
    """The text without one pair of quotes around all of it; the very same object where there is none."""
    bare = text.strip(" \t\r\n\v\f")
    if len(bare) >= 2 and bare[0] == bare[-1] and bare[0] in "\"'":
        return bare[1:-1]
    return text


def _refuse_flag_syntax(plain: str, origin: str) -> None:
    """`"device=0,2"` belongs to docker's --gpus, whose quoting many people meet first."""
    bare = plain.strip().lower()
    for start in ("device=", "count=", "capabilities=", "driver="):
        if bare.startswith(start):
            devices = plain.strip()[len(start) :] if start == "device=" and len(plain) < 80 else "0,2"
            raise GpuhookError(
                "device-invalid",
                f"{_said(origin, plain)} is written as for the --gpus option of docker",
                f"write the devices alone: {DEVICES}={devices if devices.isprintable() else '0,2'}",
            )


def _expanded(token: str, most: int = MOST_ITEMS - 1) -> "list[str]":
    """The indices of a range `0-3`, in order; any other token, and a range that is none, as it stands."""
    first, dash, last = token.partition("-")
    if not dash or not plain_index(first) or not plain_index(last):
        return [token]
    low, high = int(first), int(last)
    if low > high or high - low > most:
        return [token]
    return [str(index) for index in range(low, high + 1)]


# --- beside the devices -------------------------------------------------------------------------------------------


def _mig(env: "dict[str, str]", privileged: bool) -> "tuple[str, ...]":
    """The rights over all MIG devices that a container asks for: `config`, `monitor`.

    They are for privileged ones only, because they reach beyond the devices that it was given.
    """
    found = []
    for name, right in MIG:
        words = _words(_unquoted(env.get(name, "")[:MOST_BYTES]))
        if not words or list(words) in (["none"], ["void"]):
            continue
        if list(words) != ["all"]:
            raise GpuhookError(
                "device-invalid",
                f"{name}={shown(env[name])}: this is a right over all GPUs or none",
                "write all or none; MIG devices themselves are chosen by NVIDIA_VISIBLE_DEVICES",
            )
        if not privileged:
            raise GpuhookError(
                "privilege-missing",
                f"{name}={shown(env[name])} asks to {'change' if right == 'config' else 'watch'} the MIG devices "
                "of the host, and the container is not privileged (no CAP_SYS_ADMIN)",
                f"run it privileged, or leave {name} out",
            )
        found.append(right)
    return tuple(found)


def _channels(
    container: "Container", config: "Config", env: "dict[str, str]", warnings: "list[str]"
) -> "tuple[int, ...]":
    """The IMEX channels that a container asks for, by volume mounts or else by its environment."""
    origin, texts = BY_MOUNT, []
    if config.accept_devices_as_volume_mounts:
        texts = [name[len(IMEX) :] for name in mounted(container) if name.startswith(IMEX)]
    if not texts and may_use_env(container, config):
        origin, texts = CHANNELS, list(_words(_unquoted(env.get(CHANNELS, "")[:MOST_BYTES])))
        if texts == ["all"]:
            warnings.append(f"{CHANNELS}=all gives no channel: name each")
            return ()
    found: dict[int, None] = {}
    for text in texts:
        for item in _expanded(text, MOST_CHANNEL):
            if not plain_index(item) or int(item) > MOST_CHANNEL:
                raise GpuhookError(
                    "device-invalid",
                    f"{origin} asks for the IMEX channel {shown(text)}, which is no number from 0 to {MOST_CHANNEL}",
                    "write numbers with commas between them, or ranges: 0,1 or 0-3",
                )
            found[int(item)] = None
    return tuple(found)


# --- capabilities -------------------------------------------------------------------------------------------------


def _capabilities(env: "dict[str, str]", config: "Config", warnings: "list[str]") -> "tuple[str, ...]":
    """What NVIDIA_DRIVER_CAPABILITIES means here, sorted. Words are taken in any case."""
    supported = config.supported_capabilities
    text = env.get(CAPABILITIES)
    if text is None and legacy(env, config):
        return tuple(sorted(supported))
    plain = _unquoted(text or "")
    if text and plain is not text:
        warnings.append(f"{CAPABILITIES}: the quotes around {shown(text)} are part of the value and were left out")
    words = _words(plain)
    if not words:
        return tuple([word for word in _DEFAULT if word in supported])
    bad = [word for lower, word in words.items() if lower != "all" and lower not in supported]
    if bad or len(plain) > MOST_BYTES:
        raise _unsupported(bad or [plain], supported)
    return tuple(sorted(supported if "all" in words else words))


def _unsupported(bad: "list[str]", supported: "tuple[str, ...]") -> GpuhookError:
    from difflib import get_close_matches  # noqa: PLC0415 - the text of a refusal

    known = [word for word in bad if word.lower() in _KNOWN]
    reason = "this host's configuration does not allow" if known else "does not exist"
    word = known[0] if known else bad[0]
    near = [] if known else get_close_matches(word.lower()[:40], supported, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    hint += f"separate these with commas: {', '.join((*sorted(supported), 'all'))}"
    if known:
        hint += "\nthe administrator allows more by request.supported-driver-capabilities in runtime.toml"
    return GpuhookError(
        "capability-unsupported", f"{CAPABILITIES} asks for the capability {shown(word)}, which {reason}", hint
    )


# --- requirements -------------------------------------------------------------------------------------------------


def _disabled_by(env: "dict[str, str]", config: "Config", warnings: "list[str]") -> str:
    """What switches the requirement check off, or an empty text."""
    if config.policy == "off":
        return "requirement.policy"
    said = env.get(DISABLE, "").lower()
    if said in _YES:
        if config.allow_disable_require:
            return DISABLE
        warnings.append(f"{DISABLE} has no effect: requirement.allow-disable-require is false")
    elif said not in _NO:
        warnings.append(f"{DISABLE}={shown(env[DISABLE])} is neither yes nor no, and counts as no; write 1")
    return ""


def _demands(
    container: "Container", env: "dict[str, str]", config: "Config", disabled: str, warnings: "list[str]"
) -> "tuple[Demand, ...]":
    """Every requirement of the image, by the name of its variable; the annotation's last."""
    found = []
    for name in sorted([name for name in env if name.startswith(REQUIRE)]):
        if env[name].strip() and not name.startswith(_NOT_CONSTRAINTS) and not _says_yes(name, env[name]):
            found.append(Demand(name, env[name]))
    old = legacy(env, config)
    if old:
        found.append(Demand("CUDA_VERSION", f"cuda>={old[0]}.{old[1]}"))
    try:
        for demand in found:
            _bound(demand)
        found += _annotated(container)
        if len(found) > MOST_DEMANDS:
            raise GpuhookError(
                "requirement-syntax",
                f"the image has {len(found)} requirements, and at most {MOST_DEMANDS} are read",
                f"join alternatives of one requirement with spaces, its conditions with commas; or set {DISABLE}=1",
            )
    except GpuhookError as error:
        if not disabled:
            raise
        warnings.append(f"{error.message}; not checked because of {disabled}")
        return ()
    return tuple(found)


def _bound(demand: Demand) -> None:
    if len(demand.text) > MOST_BYTES:
        raise GpuhookError(
            "requirement-syntax",
            f"{shown(demand.origin)} has {len(demand.text)} characters, and at most {MOST_BYTES} are read",
            f"shorten it, or set {DISABLE}=1",
        )


def _annotated(container: "Container") -> "list[Demand]":
    """The requirement of the annotation com.nvidia.cuda.version, the label of nvidia-docker 1: X.Y or X.Y.Z."""
    text = dict(container.annotations).get(CUDA_ANNOTATION)
    if text is None:
        return []
    found = cuda_version(text)
    if found is None or "." not in text or text[0] == "v":
        raise GpuhookError(
            "requirement-syntax",
            f"annotation {CUDA_ANNOTATION}={shown(text)} is no CUDA version",
            "write major and minor, as in 12.4, or remove the annotation",
        )
    return [Demand(f"annotation {CUDA_ANNOTATION}", f"cuda>={found[0]}.{found[1]}")]


def _near_misses(env: "dict[str, str]") -> "tuple[str, ...]":
    """Variables that were surely meant to be NVIDIA_DISABLE_REQUIRE; at most four, sorted.

    One that says `cuda>=12` is a demand and no such variable.
    """
    likely = [name for name in env if 10 < len(name) < 30 and "RE" in name.upper() and name != DISABLE]
    likely = [name for name in likely[:64] if env[name].lower() in _YES]
    if not likely:
        return ()
    from gpuhook.nearmiss import is_miss  # noqa: PLC0415  # cold: few containers have such a variable

    return tuple(sorted([name for name in likely if is_miss(name)])[:4])


def _says_yes(name: str, text: str) -> bool:
    """Whether a NVIDIA_REQUIRE_ variable is one of the wrong switches and no demand. None is near by its letters."""
    if text.lower() not in _YES:
        return False
    from gpuhook.nearmiss import MISSES  # noqa: PLC0415

    return name.upper() in MISSES
