"""Which of the host's GPUs a request names. Pure and on the hot path; the tokens are the container's word."""

from gpuhook.channels import DIGITS, plain_index
from gpuhook.errors import GpuhookError, shown
from gpuhook.request import FORMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.model import Gpu, Request

MOST_LISTED = 16  # GPUs that an error describes
_HEX = frozenset("0123456789abcdef")
_BOOLEANS = ("false", "no", "null", "off", "true", "yes", "on", "nil", "~")


def select(request: "Request", gpus: "tuple[Gpu, ...]") -> "tuple[Gpu, ...]":
    """The GPUs that the request names, each once: in the driver's order for `all`, else in the request's order.

    `all` leaves out a GPU that does not answer (`left_out` tells of it). Raises device-invalid for a malformed token,
    device-unknown, device-ambiguous, and device-lost for a GPU that does not answer and was named, or is the only one.
    """
    if request.devices == ("all",):
        healthy = tuple(sorted([gpu for gpu in gpus if not gpu.error], key=_index))
        if gpus and not healthy:
            raise _lost(request, "all", min(gpus, key=_index))
        return healthy
    _check_count(request, gpus)
    found: dict[int, Gpu] = {}
    for token in request.devices:
        gpu = _one(request, token, gpus)
        if gpu.error:
            raise _lost(request, token, gpu)
        found[gpu.index] = gpu
    return tuple(found.values())


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
    return tuple([f"{_described(gpu)} was left out: it does not answer ({gpu.error})" for gpu in gpus if gpu.error])


def known(gpus: "tuple[Gpu, ...]") -> str:
    """What a person can ask for here, one GPU a line, for errors: index, UUID and bus id."""
    if not gpus:
        return "this host has no GPU"
    lines = [_described(gpu) + (f" (does not answer: {gpu.error})" if gpu.error else "") for gpu in gpus[:MOST_LISTED]]
    if len(gpus) > MOST_LISTED:
        lines.append(f"and {len(gpus) - MOST_LISTED} more")
    return "this host has:\n" + "\n".join(lines)


def _one(request: "Request", token: str, gpus: "tuple[Gpu, ...]") -> "Gpu":
    """The one GPU that a token names."""
    kind, key = _shape(request, token, gpus)
    if kind == "index":
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
    return found[0]


def _shape(request: "Request", token: str, gpus: "tuple[Gpu, ...]") -> "tuple[str, str]":
    """The kind of a token (index, uuid, bus) and what to compare: lower case, a bus id with eight digits of domain."""
    lower = token.lower()
    if plain_index(lower):
        return "index", lower
    if lower.startswith("gpu-") and len(lower) > 4 and _HEX.issuperset(lower[4:].replace("-", "")):
        return "uuid", lower
    bus = _bus_id(lower)
    if bus:
        return "bus", bus
    first, _, second = lower.partition(":")
    if lower.startswith("mig-") or (plain_index(first) and plain_index(second)):
        raise GpuhookError(
            "device-unknown",
            f"{request.origin} asks for the MIG device {shown(token)}, and this gpuhook gives whole GPUs only",
            known(gpus),
        )
    raise GpuhookError(
        "device-invalid",
        f"{request.origin} asks for {shown(token)}, {_malformed(lower)}",
        f"{request.origin} takes {FORMS}" + (f"\n{known(gpus)}" if gpus else ""),
    )


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
    """docker's `--gpus 2` arrives as `0,1`: say that the host has fewer, not that 1 is unknown (field report R33)."""
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
