"""Which of the host's GPUs and MIG devices a request names. Pure and on the hot path.

A GPU in MIG mode is given by its MIG devices: each is a Gpu value with the parent's data, the device's UUID, and that
device alone in `migs`. Only who has a right over all MIG devices may get such a GPU itself. The tokens are the
container's word.
"""

from gpuhook.channels import DIGITS, plain_index
from gpuhook.errors import GpuhookError, shown
from gpuhook.model import Gpu, replace
from gpuhook.request import FORMS, MIG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.model import Mig, Request

MOST_LISTED = 16  # GPUs that an error describes
_HEX = frozenset("0123456789abcdef")
_MOUNTS = "/var/run/nvidia-container-devices"  # as in channels.py
_BOOLEANS = ("false", "no", "null", "off", "true", "yes", "on", "nil", "~")


def select(request: "Request", gpus: "tuple[Gpu, ...]") -> "tuple[Gpu, ...]":
    """The GPUs that the request names, each once: in the driver's order for `all`, else in the request's order.

    `all` leaves out a GPU that does not answer (`left_out` tells of it). Raises device-invalid for a malformed token,
    and for a right over all MIG devices beside the choice of some; device-unknown, device-ambiguous, and device-lost
    for a GPU that does not answer and was named, or is the only one.
    """
    if request.devices == ("all",):
        healthy = tuple(sorted([gpu for gpu in gpus if not gpu.error], key=_index))
        if gpus and not healthy:
            raise _lost(request, "all", min(gpus, key=_index))
        return tuple([one for gpu in healthy for one in _offered(request, gpu)])
    _check_count(request, gpus)
    found: dict[tuple[int, int], Gpu] = {}
    for token in request.devices:
        gpu = _one(request, token, gpus)
        if gpu.error:
            raise _lost(request, token, gpu)
        found[gpu.index, gpu.migs[0].index if gpu.migs else -1] = gpu
    return tuple(found.values())


def healthy(gpus: "tuple[Gpu, ...]") -> "tuple[Gpu, ...]":
    """Those that answer."""
    return tuple([gpu for gpu in gpus if not gpu.error])


def _offered(request: "Request", gpu: Gpu) -> "list[Gpu]":
    """What `all` gives of a GPU: itself, or its MIG devices."""
    if not gpu.mig or (request.mig and not gpu.migs):
        return [gpu]
    return [_part(gpu, mig) for mig in gpu.migs]


def _part(gpu: Gpu, mig: "Mig") -> Gpu:
    return replace(gpu, uuid=mig.uuid, migs=(mig,))


def check(request: "Request") -> None:
    """Raise device-invalid for a malformed token, on a host whose GPUs are not known."""
    for token in () if request.devices == ("all",) else request.devices:
        _shape(request, token, ())


def left_out(request: "Request", gpus: "tuple[Gpu, ...]") -> "tuple[str, ...]":
    """A warning for each GPU that `all` does not give because it does not answer, and one where there is no GPU."""
    if request.devices != ("all",):
        return ()
    if not gpus:
        return (f"{request.origin} asks for all GPUs, and this host has none",)
    told = [f"{_described(gpu)} was left out: it does not answer ({gpu.error})" for gpu in gpus if gpu.error]
    told += [
        f"{_described(gpu)} was left out: it is in MIG mode and has no MIG device"
        for gpu in gpus
        if _bare(request, gpu)
    ]
    return tuple(told)


def _bare(request: "Request", gpu: Gpu) -> bool:
    return gpu.mig and not gpu.error and not _offered(request, gpu)


def renumbered(request: "Request", chosen: "tuple[Gpu, ...]") -> "tuple[str, ...]":
    """A warning where CUDA_VISIBLE_DEVICES counts the host's GPUs: a container's begin at 0."""
    for item in request.cuda_visible.split(",")[:MOST_LISTED]:
        word = item.strip()
        if plain_index(word) and int(word) >= len(chosen):
            return (
                f"CUDA_VISIBLE_DEVICES={shown(request.cuda_visible)} names GPU {word}, and the container has "
                f"{len(chosen) or 'none'}: its GPUs are counted from 0, whatever they are on the host",
            )
    return ()


def known(gpus: "tuple[Gpu, ...]") -> str:
    """What a person can ask for here, one GPU a line, for errors: index, UUID and bus id."""
    if not gpus:
        return "this host has no GPU"
    lines = []
    for gpu in gpus[:MOST_LISTED]:
        lines.append(_described(gpu) + (f" (does not answer: {gpu.error})" if gpu.error else ""))
        if gpu.mig:
            lines[-1] += " (in MIG mode, given by its MIG devices)"
            lines += [
                f"  MIG {gpu.index}:{mig.index}  {mig.uuid}  MIG-{gpu.uuid}/{mig.gi}/{mig.ci}" for mig in gpu.migs
            ]
    if len(gpus) > MOST_LISTED:
        lines.append(f"and {len(gpus) - MOST_LISTED} more")
    return "this host has:\n" + "\n".join(lines)


def _one(request: "Request", token: str, gpus: "tuple[Gpu, ...]") -> "Gpu":
    """The one GPU that a token names, or the one MIG device as a Gpu."""
    kind, key = _shape(request, token, gpus)
    if kind == "place":
        first, _, second = key.partition(":")
        found = [_part(gpu, mig) for gpu, mig in _migs(gpus) if (gpu.index, mig.index) == (int(first), int(second))]
    elif kind == "mig":
        found = _migs_by_id(key, gpus)
    elif kind == "index":
        found = [gpu for gpu in gpus if gpu.index == int(key)]
    elif kind == "bus":
        found = [gpu for gpu in gpus if gpu.bus_id == key]
    else:
        found = [gpu for gpu in gpus if gpu.uuid.lower() == key] or [
            gpu for gpu in gpus if gpu.uuid.lower().startswith(key)
        ]
    if not found:
        raise GpuhookError(
            "device-unknown", f"{request.origin} asks for {shown(token)}, which does not exist", known(gpus)
        )
    if len(found) > 1:
        both = ", ".join([gpu.uuid for gpu in found[:MOST_LISTED]])
        raise GpuhookError(
            "device-ambiguous",
            f"{request.origin} asks for {shown(token)}, which is the beginning of {len(found)} UUIDs: {both}",
            "write more of the UUID",
        )
    if kind in ("place", "mig"):
        _refuse_rights(request, token)
        return found[0]
    if found[0].mig and not request.mig and not found[0].error:
        raise GpuhookError(
            "device-unknown",
            f"{request.origin} asks for {shown(token)}, and {_described(found[0])} is in MIG mode, where only its MIG "
            "devices are given",
            known(gpus),
        )
    return replace(found[0], migs=())


def _migs(gpus: "tuple[Gpu, ...]") -> "list[tuple[Gpu, Mig]]":
    return [(gpu, mig) for gpu in gpus for mig in gpu.migs]


def _migs_by_id(key: str, gpus: "tuple[Gpu, ...]") -> "list[Gpu]":
    """The MIG devices with this id, new or old (`mig-gpu-<uuid>/<gi>/<ci>`), in lower case; else those where it begins.

    An id with slashes is whole: `/1` begins `/10` too.
    """
    ids = [
        (_part(gpu, mig), (mig.uuid.lower(), f"mig-{gpu.uuid.lower()}/{mig.gi}/{mig.ci}")) for gpu, mig in _migs(gpus)
    ]
    found = [part for part, names in ids if key in names]
    if found or "/" in key:
        return found
    return [part for part, names in ids if names[0].startswith(key) or names[1].startswith(key)]


def _refuse_rights(request: "Request", token: str) -> None:
    """A right over all MIG devices does not go with a choice of some, as in NVIDIA's stack."""
    for name, right in MIG:
        if right in request.mig:
            raise GpuhookError(
                "device-invalid",
                f"{name} asks for all MIG devices, and {request.origin} for {shown(token)}",
                f"choose whole GPUs or all, or leave {name} out",
            )


def _shape(request: "Request", token: str, gpus: "tuple[Gpu, ...]") -> "tuple[str, str]":
    """The kind of a token (index, uuid, bus, place, mig) and what to compare: lower case, a bus id with eight digits of
    domain."""
    lower = token.lower()
    if plain_index(lower):
        return "index", lower
    if lower.startswith("gpu-") and len(lower) > 4 and _HEX.issuperset(lower[4:].replace("-", "")):
        return "uuid", lower
    bus = _bus_id(lower)
    if bus:
        return "bus", bus
    first, _, second = lower.partition(":")
    if plain_index(first) and plain_index(second):
        return "place", lower
    if lower.startswith("mig-") and _is_mig(lower[4:]):
        return "mig", lower
    hint = f"{request.origin} takes {FORMS}" + (f"\n{known(gpus)}" if gpus else "")
    if lower.startswith(_MOUNTS):  # what NVIDIA's device plugin writes, for a host that takes mounts
        hint = (
            "set request.accept-devices-as-volume-mounts = true in runtime.toml, or run"
            " `gpuhook configure ENGINE --privileged-only`, which sets it\nwhere it is set: the container has no mount"
            " below that path"
        )
    raise GpuhookError("device-invalid", f"{request.origin} asks for {shown(token)}, {_malformed(lower)}", hint)


def _is_mig(rest: str) -> bool:
    """Whether this can follow `mig-`: a UUID or its beginning, or the old id of GPU, GPU instance, compute instance."""
    name, slash, instances = rest.partition("/")
    gi, _, ci = instances.partition("/")
    uuid = name.removeprefix("gpu-")
    if slash and (uuid == name or not plain_index(gi) or not plain_index(ci)):
        return False
    return bool(uuid) and _HEX.issuperset(uuid.replace("-", ""))


def _malformed(lower: str) -> str:
    """What is wrong with a token of no known form, for people; a clause that follows the token."""
    first, dash, last = lower.partition("-")
    if lower in _BOOLEANS:
        return "which names no device; for no GPU write none, to leave the container alone void"
    if lower and DIGITS.issuperset(lower):
        return "an index with a leading zero" if lower[0] == "0" else "an index with too many digits"
    if dash and not first and last and DIGITS.issuperset(last):
        return "a negative index"
    if dash and plain_index(first) and plain_index(last):
        return "a range that runs backwards or is too long"
    if lower == "gpu-":
        return "a UUID of which nothing is written"
    if lower.startswith("mig-"):
        return "which is no MIG device: MIG- and a UUID, or MIG-GPU-, a UUID and /GI/CI"
    if lower.startswith(_MOUNTS):
        return "which is the place of volume mounts: request.accept-devices-as-volume-mounts reads them"
    return "which is no index, UUID or PCI bus id"


def _bus_id(lower: str) -> str:
    """`dddddddd:bb:dd.f` of `[[dddd]dddd:]bb:dd.f` in lower case, or an empty text for anything else."""
    place, dot, function = lower.rpartition(".")
    parts = place.split(":")
    if not dot or len(parts) not in (2, 3) or len(function) != 1 or function not in "01234567":
        return ""
    domain = parts[0] if len(parts) == 3 else "0000"
    if len(domain) not in (4, 8) or len(parts[-2]) != 2 or len(parts[-1]) != 2:
        return ""
    if not _HEX.issuperset(domain + parts[-2] + parts[-1]):
        return ""
    return f"{domain.rjust(8, '0')}:{parts[-2]}:{parts[-1]}.{function}"


def _check_count(request: "Request", gpus: "tuple[Gpu, ...]") -> None:
    """docker's `--gpus 2` arrives as `0,1`: say that the host has fewer, not that 1 is unknown."""
    asked = request.devices
    if len(asked) > len(gpus) and all(plain_index(token) for token in asked):
        some = ",".join(asked[:MOST_LISTED]) + (",..." if len(asked) > MOST_LISTED else "")
        what = f"{len(asked)} GPUs ({some})" if len(asked) > 1 else f"GPU {some}"
        raise GpuhookError(
            "device-unknown", f"{request.origin} asked for {what}, host has {len(gpus) or 'none'}", known(gpus)
        )


def _lost(request: "Request", token: str, gpu: "Gpu") -> GpuhookError:
    return GpuhookError(
        "device-lost",
        f"{request.origin} asks for {shown(token)}, and {_described(gpu)} does not answer: {gpu.error}",
        "look for Xid messages in the kernel log; reset or reboot the host, or ask for other GPUs",
    )


def _described(gpu: "Gpu") -> str:
    return "GPU " + "  ".join([part for part in (str(gpu.index), gpu.uuid, gpu.bus_id, gpu.name) if part])


def _index(gpu: "Gpu") -> int:
    return gpu.index
