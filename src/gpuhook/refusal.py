"""The words of a requirement that can't be parsed, is not met, or met by something other than its plain reading.

Cold and pure: loaded only when a container is refused or warned about. Each function makes sentences of a Verdict; what
comes from the image or from a GPU's name is escaped and shortened, so that the first two lines stay below 400
characters.
"""

from gpuhook import cuda, version
from gpuhook.errors import GpuhookError
from gpuhook.requirement import (
    LOWER_BOUNDS,
    BadError,
    Condition,
    Judge,
    Outcome,
    Requirement,
    Result,
    Verdict,
    escaped,
    judge,
    level,
    presumes,
    visible,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.model import Demand, Gpu
    from gpuhook.requirement import Host

_WORDS = {">=": "{} or newer", ">": "newer than {}", "<": "older than {}", "<=": "{} or older", "!=": "other than {}"}
_KINDS = {"cuda": "CUDA", "driver": "driver", "arch": "compute capability", "brand": "GPU brand"}
_GROUPS = 3  # conditions on different things that one sentence names


def error(verdict: Verdict, near_misses: tuple[str, ...], disable_allowed: bool) -> GpuhookError:
    """The refusal: the first requirement that is not met, on the first GPU that does not meet it."""
    result = next(item for item in verdict.results if not item.met)
    outcome = next(item for item in result.outcomes if not item.way)
    lines = [
        _advice(verdict, result, outcome),
        _list_remark(verdict, result, outcome),
        _also(result, outcome),
        _way_out(verdict, result, outcome, disable_allowed),
    ]
    for name in near_misses[:1]:
        lines.append(f"{visible(name, 40)} has no effect: did you mean NVIDIA_DISABLE_REQUIRE")
    return GpuhookError(
        "requirement-not-met",
        f"this container needs {_needed(verdict.host, result, outcome)}; {_found(verdict.host, result, outcome)}",
        ";\n".join([line for line in lines if line]),
    )


def syntax_error(demand: "Demand", token: str, position: int, bad: BadError) -> GpuhookError:
    """The error for a bad token at `position` of the text, with the source shortened around the place and a caret."""
    place = position + bad.start
    first = max(0, place - 30)
    before = ("..." if first else "") + "".join([escaped(char) for char in demand.text[first:place]])
    end = min(position + bad.end, place + 40)
    marked = "".join([escaped(char) for char in demand.text[place:end]])
    after = "".join([escaped(char) for char in demand.text[end : place + 40]])
    more = "..." if len(demand.text) > place + 40 else ""
    return GpuhookError(
        "requirement-syntax",
        f"{visible(demand.origin)}: can't parse '{visible(token, 40)}' ({bad.reason})",
        "write name, operator and version without blanks or quotes, for example cuda>=12.4,driver>=550\n"
        f"{before}{marked}{after}{more}\n{' ' * len(before)}{'^' * min(max(len(marked), 1), 12)}",
    )


def annotated(verdict: Verdict) -> Verdict:
    """The verdict with its notes and warnings: at most one warning for each requirement."""
    notes = []
    warnings = []
    for result in verdict.results:
        origin = visible(result.requirement.origin)
        for item in result.requirement.unknown[:8]:
            notes.append(f"{origin}: '{visible(str(item), 40)}' has a name that is not known, so it never holds")
        first = next((item for item in result.outcomes if not item.way), None)
        if first:
            if verdict.policy == "warn":
                wanted = _needed(verdict.host, result, first)
                found = _found(verdict.host, result, first)
                warnings.append(f"this container needs {wanted}; {found} ({origin}; started all the same: policy warn)")
            continue
        ways = [item.way for item in result.outcomes]
        asked = level(result.requirement)
        wanted = f"CUDA {asked.text[:24]}" if asked else "its CUDA level"
        if "policy" in ways:
            warnings.append(
                f"this container needs {wanted}, {_driver(verdict.host)}: accepted by minor-version compatibility "
                f"({origin}; policy minor-compat); new driver features and PTX of a newer toolkit may fail in it"
            )
        if "minor" in ways:
            notes.append(f"{origin}: minor-version compatibility covers {wanted}; {_driver(verdict.host)}")
        if "forward" in ways:
            notes.append(f"{origin}: the image's forward-compatibility libraries bring {wanted} to this driver")
        if "presumed" in ways:
            notes.append(_presumption(origin, wanted, result))
    return Verdict(
        verdict.met, verdict.policy, verdict.host, verdict.results, tuple(notes), tuple(warnings), verdict.compat
    )


def closest(judge: Judge, requirement: Requirement, gpu: "Gpu | None") -> int:
    """The alternative with the nearest driver that meets it, of those whose brand and arch hold; else the first.

    Nearest is the oldest driver that is newer than this host's; where only older drivers would do, the newest of them.
    An alternative that presumes forward compatibility counts only where that can be had.
    """
    newer: list[tuple[tuple[int, ...], int]] = []
    older: list[tuple[tuple[int, ...], int]] = []
    asked = level(requirement)
    for index, alternative in enumerate(requirement.alternatives):
        if any(item.name not in ("cuda", "driver") for item in judge.failing(alternative, gpu)):
            continue
        reached = _reach(judge, asked, alternative, gpu)
        if reached is not None:
            kind = newer if version.compare(reached, judge.driver) > 0 else older
            kind.append((version.trimmed(reached), index))
    if newer:
        return min(newer)[1]
    best = max(older)[0] if older else ()
    return next((index for reached, index in older if reached == best), 0)


def _reach(
    judge: Judge, asked: Condition | None, alternative: tuple[Condition, ...], gpu: "Gpu | None"
) -> tuple[int, ...] | None:
    """The oldest driver that meets an alternative's lower bounds; None where none does as far as is known."""
    lowest: tuple[int, ...] = ()
    for item in alternative:
        if item.name in ("cuda", "driver") and item.operator in LOWER_BOUNDS:
            bound = item.version
            if item.name == "cuda":
                bound = version.parse(cuda.driver_for_level(item.version)) or (1 << 30,)
            if version.compare(bound, lowest) > 0:
                lowest = bound
    if asked is None or not lowest or not presumes(alternative):
        return lowest
    floor = version.parse_loose(cuda.floor(asked.version))
    if floor[:1] == lowest[:1] and version.compare(floor, lowest) > 0:
        lowest = floor  # the same branch, from the point release on that has minor-version compatibility
    then = version.text(lowest)
    if version.compare(cuda.level_for_driver(then)[0], asked.version) >= 0 or cuda.minor_compat(asked.version, then):
        return lowest
    found = judge.compat()
    usable = found is None or (cuda.forward_compat(gpu.brand if gpu else "") and cuda.compat_is_newer(found, then))
    return lowest if usable else None


# --- the message ------------------------------------------------------------------------------------------------


def _needed(host: "Host", result: Result, outcome: Outcome) -> str:
    """What was wanted: the image's CUDA level where that is the matter, else the closest alternative's conditions."""
    asked = _short_of(host, result, outcome)
    whole = result.requirement.alternatives[outcome.index]
    if asked and presumes(whole):
        return _phrase((asked,))
    parts = []
    groups = _groups(outcome.failed)
    for group in groups[:_GROUPS]:
        bounds = tuple([item for item in whole if item.name == group[0].name])
        parts.append(_phrase(bounds if _branch(bounds) else group))
    if len(groups) > _GROUPS:
        parts.append(f"{len(groups) - _GROUPS} conditions more")
    return " and ".join(parts)


def _found(host: "Host", result: Result, outcome: Outcome) -> str:
    """What there is: the GPU, where one is visible, and the value that falls short."""
    who = _gpu(result, outcome)
    if outcome.lacking == "brand" and outcome.gpu:
        why = f", and forward compatibility does not work on brand {visible(outcome.gpu.brand, 24)}"
    elif outcome.lacking:
        why = ", and the image has no forward-compatibility libraries that are for it"
    else:
        why = ""
    names = ["cuda"] if _short_of(host, result, outcome) else [group[0].name for group in _groups(outcome.failed)]
    gpu = outcome.gpu
    parts = []
    if "brand" in names and gpu:
        parts.append(f"is of brand {visible(gpu.brand, 24)}")
    if "arch" in names and gpu:
        parts.append(f"has compute capability {version.text(gpu.arch)}")
    if "cuda" in names:
        if not parts:
            return f"{who}, {_driver(host)}{why}" if who else f"{_driver(host)}{why}"
        parts.append(f"its {_driver(host)}")
    elif "driver" in names:
        parts.append(f"has driver {visible(host.driver, 40)}")
    if not parts:
        return f"{who or 'this host'} can't meet that"
    return f"{who or 'this host'} {' and '.join(parts)}"


def _short_of(host: "Host", result: Result, outcome: Outcome) -> Condition | None:
    """The image's CUDA level, if the driver falls short of it and a driver could meet it on this GPU."""
    asked = level(result.requirement)
    if asked is None or not host.cuda or version.compare(host.cuda, asked.version) >= 0:
        return None
    alternative = result.requirement.alternatives[outcome.index]
    if not presumes(alternative) and not any(item.name == "cuda" for item in outcome.failed):
        return None
    if any(item.name not in ("cuda", "driver") for item in outcome.failed):
        return None
    if not presumes(alternative):
        return next((item for item in outcome.failed if item.name == "cuda" and item.operator in LOWER_BOUNDS), None)
    return asked


def _groups(failed: tuple[Condition, ...]) -> list[tuple[Condition, ...]]:
    """Failed conditions by name, what only other hardware could meet first."""
    groups: list[tuple[Condition, ...]] = [(item,) for item in failed if item.name not in _KINDS]
    for name in ("brand", "arch", "cuda", "driver"):
        group = tuple([item for item in failed if item.name == name])
        if group:
            groups.append(group)
    return groups


def _phrase(group: tuple[Condition, ...]) -> str:
    """Conditions on one name, in words."""
    first = group[0]
    kind = _KINDS.get(first.name)
    if kind is None:
        return f"'{visible(str(first), 40)}', which gpuhook does not know"
    words = []
    if _branch(group):
        return f"a driver of branch {_branch(group)}"
    for item in group[:2]:
        words.append(_WORDS.get(item.operator, "{}").format(visible(item.text, 24)))
    return f"{kind} {' and '.join(words)}"


def _driver(host: "Host") -> str:
    assumed = " (assumed from the branch)" if host.cuda_assumed else ""
    return f"driver {visible(host.driver, 40) or 'unknown'} supports CUDA up to {version.text(host.cuda)}{assumed}"


def _gpu(result: Result, outcome: Outcome) -> str:
    """The GPU by its model; with its index where the visible GPUs differ."""
    if outcome.gpu is None:
        return ""
    name = visible(outcome.gpu.name, 48)
    index = f"GPU {outcome.gpu.index}"
    if not name:
        return index
    differ = len({(item.gpu.name, item.way) for item in result.outcomes if item.gpu}) > 1
    return f"{index} ({name})" if differ else name


# --- the advice -------------------------------------------------------------------------------------------------


def _advice(verdict: Verdict, result: Result, outcome: Outcome) -> str:
    """The first line of the hint: which driver, or which image; and where the demand stands."""
    host = verdict.host
    ways = []
    if not any(item.name not in ("cuda", "driver") for item in outcome.failed):
        install = _install(result, outcome)
        if install:
            ways.append(f"install {install}")
    asked = _short_of(host, result, outcome)
    if outcome.lacking == "libraries" and asked:
        ways.append("use an image with its cuda-compat package")
    names = [item.name for item in outcome.failed]
    if asked:
        ways.append(f"use an image for CUDA {version.text(host.cuda)} or older")
    elif "arch" in names or "brand" in names:
        ways += ["choose another GPU (NVIDIA_VISIBLE_DEVICES)", "use an image for this one"]
    elif "cuda" in names and not any(item.operator == "!=" for item in outcome.failed):
        ways.append(f"use an image for CUDA {version.text(host.cuda)}")
    else:
        ways.append("use another image")
    count = len(result.requirement.alternatives)
    place = visible(result.requirement.origin, 48) + (f", closest of {count} alternatives" if count > 1 else "")
    text = ", ".join(ways[:-1]) + (", or " if len(ways) > 1 else "") + ways[-1]
    return f"{text} ({place})"


def _install(result: Result, outcome: Outcome) -> str:
    """Which driver meets the closest alternative, and which meets the image's CUDA level without help; `` for none."""
    alternative = result.requirement.alternatives[outcome.index]
    asked = level(result.requirement)
    if presumes(alternative):
        drivers = tuple([item for item in alternative if item.name == "driver"])
        plain = cuda.driver_for_level(asked.version) if asked else ""
        if outcome.lacking or not drivers:
            return f"driver {plain} or newer" if plain else ""
        floor = cuda.floor(asked.version) if asked else ""
        if len(drivers) == 1 and drivers[0].operator == ">=" and floor.startswith(f"{drivers[0].text}."):
            return f"driver {floor} or newer"  # the same branch, from where minor-version compatibility begins
        words = _phrase(drivers)
        return f"{words}, or {plain} or newer" if plain and _branch(drivers) else words
    lowest: tuple[int, ...] = ()
    text = ""
    for item in alternative:
        if item.name in ("cuda", "driver") and item.operator in LOWER_BOUNDS:
            oldest = cuda.driver_for_level(item.version) if item.name == "cuda" else item.text
            if not oldest:
                return f"a driver that supports CUDA {visible(item.text, 24)}"
            if version.compare(version.parse_loose(oldest), lowest) > 0:
                lowest, text = version.parse_loose(oldest), visible(oldest, 24)
    for item in outcome.failed:
        if item.name == "cuda" and item.operator in ("<", "<="):
            bound = item.version if item.operator == "<" else (*item.version, 1)
            found = cuda.branch_below(bound)
            return f"a driver of branch {found} or older" if found else ""
        if item.name == "cuda" and item.operator == "=":
            return f"a driver of branch {lowest[0]}" if lowest else ""
    return f"driver {text} or newer" if text else ""


def _branch(drivers: tuple[Condition, ...]) -> str:
    """The branch that `driver>=N,driver<N+1` names; `` for any other bounds."""
    if len(drivers) == 2 and (drivers[0].operator, drivers[1].operator) == (">=", "<"):
        first, after = version.trimmed(drivers[0].version), version.trimmed(drivers[1].version)
        if len(first) == len(after) == 1 and after[0] == first[0] + 1:
            return str(first[0])
    return ""


def _list_remark(verdict: Verdict, result: Result, outcome: Outcome) -> str:
    """Why other GPUs or other drivers would do: the image lists driver branches, and brands, one by one."""
    gpu = outcome.gpu
    if not _short_of(verdict.host, result, outcome) or outcome.lacking:
        return ""
    driver = version.parse_loose(verdict.host.driver)
    branches: list[str] = []
    for alternative in result.requirement.alternatives:
        failed = _failing(alternative, verdict.host, gpu)
        names = [item.name for item in failed]
        if names == ["brand"] and gpu:
            return f"brand {visible(gpu.brand, 24)} is not on the image's forward-compatibility list for this driver"
        if presumes(alternative) and names and set(names) == {"driver"}:
            branch = _branch(tuple([item for item in alternative if item.name == "driver"]))
            if branch and branch not in branches:
                branches.append(branch)
    if not branches or not driver:
        return ""
    listed = ", ".join(branches[:6]) + (" ..." if len(branches) > 6 else "")
    return f"driver branch {driver[0]} is not on the image's list for this GPU: {listed}"


def _failing(alternative: tuple[Condition, ...], host: "Host", gpu: "Gpu | None") -> tuple[Condition, ...]:
    return Judge(host, "strict", lambda: "").failing(alternative, gpu)


def _also(result: Result, outcome: Outcome) -> str:
    """The other visible GPUs that fail, where they are told apart by model or outcome."""
    others = [item.gpu for item in result.outcomes if not item.way and item.gpu and item is not outcome]
    if not others or _gpu(result, outcome) == visible(outcome.gpu.name if outcome.gpu else "", 48):
        return ""
    named = ", ".join([f"GPU {gpu.index} ({visible(gpu.name, 48)})" for gpu in others[:4]])
    return f"not met either on {named}" + (f" and {len(others) - 4} more" if len(others) > 4 else "")


def _way_out(verdict: Verdict, result: Result, outcome: Outcome, disable_allowed: bool) -> str:
    """The line that says how to run it all the same."""
    disable = "NVIDIA_DISABLE_REQUIRE=1" if disable_allowed else ""
    asked = _short_of(verdict.host, result, outcome)
    if asked and verdict.policy == "strict" and _minor_compat_helps(verdict):
        way = 'policy "minor-compat"' + (f", or {disable}" if disable else "")
        return f"CUDA {asked.version[0]} programs often run here by minor-version compatibility: {way}"
    parts = []
    if asked:
        parts.append("a CUDA toolkit on the host does not count, only its driver")
    if disable:
        parts.append(f"{disable} starts the container unchecked")
    return "; ".join(parts)


def _minor_compat_helps(verdict: Verdict) -> bool:
    """Whether the policy minor-compat would start this container."""
    requirements = tuple([item.requirement for item in verdict.results])
    gpus = tuple([item.gpu for item in verdict.results[0].outcomes if item.gpu])
    return judge(requirements, verdict.host, gpus, "minor-compat", lambda: verdict.compat).met


def _presumption(origin: str, wanted: str, result: Result) -> str:
    text = f"{origin}: presumes that the image brings forward-compatibility libraries for {wanted}"
    for outcome in result.outcomes:
        if outcome.gpu and not cuda.forward_compat(outcome.gpu.brand):
            return f"{text}, but CUDA does not accept them on brand {visible(outcome.gpu.brand, 24)}"
    return text
