"""The requirement language of CUDA images: parse it, judge it against a host, refuse what is not met.

Hot path and pure: no file, clock or environment is read here; what is known of host and image comes in as values. The
language is NVIDIA's (`NVIDIA_REQUIRE_*`), stated at `parse`. On top of it stands the forward-compatibility rule: an
alternative without a `cuda` condition (`brand=tesla,driver>=535,driver<536`) names a driver that is older than the
image's CUDA level needs, so it presumes something that bridges the gap; see `_covered`.
"""

from gpuhook import cuda, version
from gpuhook.errors import GpuhookError
from gpuhook.model import value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuhook.model import Demand, Gpu

OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
NAMES = ("cuda", "driver", "arch", "brand")
POLICIES = ("strict", "minor-compat", "warn", "off")
MAX_TEXT = 65536  # characters of one requirement; the longest real one has 2,165
MAX_REQUIREMENTS = 32  # as NVIDIA's CLI

_BLANKS = "\t\n\r\v\f"
_NAME_CHARS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
LOWER_BOUNDS = ("=", ">", ">=")


@value
class Condition:
    """`name operator text`, the name in lower case. `version` is `()` where the text is no version (brands)."""

    name: str
    operator: str
    text: str
    version: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.name + self.operator + self.text


@value
class Requirement:
    """One parsed requirement: alternatives of conditions. No alternatives: nothing is required.

    `origin` is the variable or annotation that states it (as given: escape it before it is shown). `unknown` are the
    conditions whose name the language does not have: they never hold. `str()` is the requirement in the language again.
    """

    origin: str
    alternatives: tuple[tuple[Condition, ...], ...]
    unknown: tuple[Condition, ...] = ()

    def __str__(self) -> str:
        return " ".join([",".join([str(condition) for condition in item]) for item in self.alternatives])


@value
class Host:
    """The driver that a container would get: its version, its CUDA level, and whether that level is assumed from the
    driver branch. An empty version or level is unknown, and then conditions on it hold, as in NVIDIA's stack."""

    driver: str
    cuda: tuple[int, ...]
    cuda_assumed: bool = False


@value
class Outcome:
    """One requirement on one GPU (`None`: no GPU is visible).

    `way` says what met it: `stated` (the words themselves), `minor` (minor-version compatibility bridges the gap),
    `forward` (the image's forward-compatibility libraries do), `presumed` (no image is at hand to look for them),
    `policy` (minor-compat accepts it), or `` where it is not met. `index` is the alternative that is met, or the
    closest one. `failed` are the closest alternative's conditions that do not hold; where all hold and it is still not
    met, `lacking` says why the gap to the image's CUDA level can't be bridged (`libraries` or `brand`).
    """

    gpu: "Gpu | None"
    way: str
    index: int
    failed: tuple[Condition, ...] = ()
    lacking: str = ""


@value
class Result:
    """One requirement and how it came out on each visible GPU."""

    requirement: Requirement
    outcomes: tuple[Outcome, ...]

    @property
    def met(self) -> bool:
        """Whether every visible GPU meets it."""
        return all(outcome.way for outcome in self.outcomes)

    @property
    def closest(self) -> str:
        """The alternative that counts: the closest one of the first GPU that fails, else the one that is met."""
        chosen = self.outcomes[0]
        for outcome in reversed(self.outcomes):
            if not outcome.way:
                chosen = outcome
        return ",".join([str(condition) for condition in self.requirement.alternatives[chosen.index]])


@value
class Verdict:
    """What the requirements come to on this host. `met` is by the policy, so always true for `warn` and `off`.

    `notes` are sentences for `explain` and the debug log, `warnings` for the log of every start. Texts of the image in
    them are escaped.
    """

    met: bool
    policy: str
    host: Host
    results: tuple[Result, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    compat: str | None = ""  # what `compat` answered, where it was asked


class BadError(Exception):
    """A condition that is none: why, and where in it."""

    def __init__(self, reason: str, start: int, end: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.start = start
        self.end = end


def parse(demand: "Demand") -> Requirement:
    """Parse one requirement.

        requirement = alternatives separated by white space (blank, tab, newline ...); one of them must hold
        alternative = conditions separated by commas; all of them must hold
        condition   = name operator value, without blanks
        name        = cuda | driver | arch | brand, in any case; another name never holds
        operator    = "=" | "!=" | "<" | "<=" | ">" | ">="     ("!" is taken as "!="; brand has only = and !=)
        value       = ASCII digits and dots; any text for a brand (case does not count)

    Empty conditions and alternatives are ignored, and a blank text requires nothing.
    Raises `requirement-syntax` with the bad token, the reason and a caret under the place.
    """
    text = demand.text
    if len(text) > MAX_TEXT:
        raise GpuhookError(
            "requirement-syntax",
            f"{visible(demand.origin)}: at most {MAX_TEXT} characters were expected, this has {len(text)}",
            "shorten it: the longest one of NVIDIA's own images has 2165",
        )
    for blank in _BLANKS:
        if blank in text:
            text = text.replace(blank, " ")
    known: dict[str, Condition] = {}  # the same few conditions come again and again
    alternatives = []
    position = 0
    for alternative in text.split(" "):
        conditions = []
        for token in alternative.split(","):
            if token:
                condition = known.get(token)
                if condition is None:
                    try:
                        condition = known[token] = _condition(token)
                    except BadError as bad:
                        raise _syntax_error(demand, token, position, bad) from None
                conditions.append(condition)
            position += len(token) + 1
        if conditions:
            alternatives.append(tuple(conditions))
    if not alternatives and text.strip(" "):
        start = text.index(",")
        raise _syntax_error(demand, ",", start, BadError("no condition beside it", 0, 1))
    return Requirement(
        demand.origin, tuple(alternatives), tuple([item for item in known.values() if item.name not in NAMES])
    )


def parse_all(demands: "tuple[Demand, ...]", policy: str = "strict") -> tuple[tuple[Requirement, ...], tuple[str, ...]]:
    """All requirements of a container that require something, and warnings.

    `off` parses nothing; `warn` turns what can't be parsed into a warning. Raises `requirement-syntax`, also for more
    than 32 requirements.
    """
    if policy == "off":
        return (), ()
    parsed = []
    warnings = []
    try:
        _check_count(len(demands))
        for demand in demands:
            try:
                requirement = parse(demand)
            except GpuhookError as error:
                if policy != "warn":
                    raise
                warnings.append(f"{error.message}: not checked (requirement policy warn)")
            else:
                if requirement.alternatives:
                    parsed.append(requirement)
    except GpuhookError as error:
        if policy != "warn":
            raise
        return (), (f"{error.message}: none is checked (requirement policy warn)",)
    return tuple(parsed), tuple(warnings)


def check(  # noqa: PLR0917 - a contract between modules, called once
    requirements: tuple[Requirement, ...],
    host: Host,
    gpus: "tuple[Gpu, ...]",
    policy: str,
    compat: "Callable[[], str | None]",
    near_misses: tuple[str, ...] = (),
    disable_allowed: bool = True,
) -> tuple[str, ...]:
    """Refuse a container whose requirements this host does not meet; the warnings otherwise.

    Parameters as for `judge`; `near_misses` are variables of the container that look like NVIDIA_DISABLE_REQUIRE,
    `disable_allowed` is false where the configuration ignores that variable (then it is not advised).
    Raises `requirement-not-met` with what is needed, what was found and what to do, and `requirement-syntax` for more
    than 32 requirements.
    """
    verdict = _judged(requirements, host, gpus, policy, compat)
    ways = [outcome.way for result in verdict.results for outcome in result.outcomes]
    if all(way and way != "policy" for way in ways):
        return ()
    from gpuhook import refusal  # noqa: PLC0415 - cold: only a container that is refused or warned about pays for words

    if not verdict.met:
        raise refusal.error(verdict, near_misses, disable_allowed)
    return refusal.annotated(verdict).warnings


def judge(
    requirements: tuple[Requirement, ...],
    host: Host,
    gpus: "tuple[Gpu, ...]",
    policy: str,
    compat: "Callable[[], str | None]",
) -> Verdict:
    """How the requirements come out; all must be met, each by every one of the visible GPUs.

    `gpus` are the visible GPUs (none: judged once without device data, where `brand` and `arch` hold). `policy`:
    `strict` as the language says; `minor-compat` also accepts a driver with minor-version compatibility for the CUDA
    level that an alternative asks, with a warning; `warn` refuses nothing and warns; `off` does not look. `compat`
    gives the driver version of the image's forward-compatibility libraries that would be used, `` for none, or None
    where no image is at hand (then they are presumed and a note says so); it is called at most once, and only when the
    verdict or the advice hangs on it.
    """
    from gpuhook import refusal  # noqa: PLC0415 - cold: `check` needs no notes

    return refusal.annotated(_judged(requirements, host, gpus, policy, compat))


def _judged(
    requirements: tuple[Requirement, ...],
    host: Host,
    gpus: "tuple[Gpu, ...]",
    policy: str,
    compat: "Callable[[], str | None]",
) -> Verdict:
    """`judge` without words."""
    if policy == "off" or not requirements:
        return Verdict(True, policy, host)
    if policy != "warn":
        _check_count(len(requirements))
    judged = Judge(host, policy, compat)
    results = tuple([judged.result(item, gpus or (None,)) for item in requirements if item.alternatives])
    met = policy == "warn" or all(result.met for result in results)
    return Verdict(met, policy, host, results, compat=judged.known[0] if judged.known else "")


def level(requirement: Requirement) -> Condition | None:
    """The condition that states the image's CUDA level: the largest that any alternative asks; None if none does."""
    found: Condition | None = None
    for alternative in requirement.alternatives:
        for item in alternative:
            if (
                item.name == "cuda"
                and item.operator in LOWER_BOUNDS
                and (found is None or version.compare(item.version, found.version) > 0)
            ):
                found = item
    return found


def presumes(alternative: tuple[Condition, ...]) -> bool:
    """Whether an alternative states no CUDA level of its own, so that it presumes forward compatibility."""
    return not any(item.name == "cuda" for item in alternative)


def visible(text: str, limit: int = 80) -> str:
    """Text of the image as it may be shown: no control, escape or non-ASCII character survives, length bounded."""
    plain = "".join([escaped(char) for char in text[:limit]])
    return plain if len(plain) <= limit and len(text) <= limit else plain[: limit - 3] + "..."


class Judge:
    """One judgement: the host, the policy, and what `compat` answered once it was asked."""

    def __init__(self, host: Host, policy: str, compat: "Callable[[], str | None]") -> None:
        self.host = host
        self.policy = policy
        self._ask = compat
        self.known: list[str | None] = []
        self.driver = version.parse_loose(host.driver)

    def compat(self) -> str | None:
        """What the image has, asked once."""
        if not self.known:
            self.known.append(self._ask())
        return self.known[0]

    def result(self, requirement: Requirement, gpus: "tuple[Gpu | None, ...]") -> Result:
        """Judge each GPU; GPUs of the same brand and compute capability come out alike."""
        seen: dict[tuple[str, tuple[int, ...]], Outcome] = {}
        outcomes = []
        for gpu in gpus:
            key = (gpu.brand, gpu.arch) if gpu else ("", ())
            if key not in seen:
                seen[key] = self._outcome(requirement, gpu)
            alike = seen[key]
            outcomes.append(Outcome(gpu, alike.way, alike.index, alike.failed, alike.lacking))
        return Result(requirement, tuple(outcomes))

    def _outcome(self, requirement: Requirement, gpu: "Gpu | None") -> Outcome:
        needed = level(requirement)
        pending = -1  # the first alternative that holds if the gap to the image's CUDA level is bridged
        for index, alternative in enumerate(requirement.alternatives):
            if self.failing(alternative, gpu):
                continue
            way = self._covered(alternative, needed)
            if way:
                return Outcome(gpu, way, index)
            if pending < 0:
                pending = index
        lacking = ""
        if pending >= 0:
            way, lacking = self._forward(gpu)
            if way:
                return Outcome(gpu, way, pending)
        if self.policy == "minor-compat":
            for index, alternative in enumerate(requirement.alternatives):
                if not presumes(alternative) and all(self._relaxed(item) for item in self.failing(alternative, gpu)):
                    return Outcome(gpu, "policy", index)
        if pending >= 0:
            return Outcome(gpu, "", pending, (), lacking)
        from gpuhook import refusal  # noqa: PLC0415 - cold

        index = refusal.closest(self, requirement, gpu)
        return Outcome(gpu, "", index, self.failing(requirement.alternatives[index], gpu))

    def failing(self, alternative: tuple[Condition, ...], gpu: "Gpu | None") -> tuple[Condition, ...]:
        """The conditions of an alternative that do not hold."""
        return tuple([item for item in alternative if not self._holds(item, gpu)])

    def _holds(self, item: Condition, gpu: "Gpu | None") -> bool:
        if item.name == "brand":
            brand = gpu.brand if gpu else ""
            return not brand or (brand.lower() == item.text.lower()) is (item.operator == "=")
        if item.name == "cuda":
            found = self.host.cuda
        elif item.name == "driver":
            found = self.driver
        elif item.name == "arch":
            found = gpu.arch if gpu else ()
        else:
            return False  # a name that the language does not have
        return not found or _ordered(version.compare(found, item.version), item.operator)

    def _relaxed(self, item: Condition) -> bool:
        """Whether minor-version compatibility makes up for a condition that does not hold."""
        return (
            item.name == "cuda"
            and item.operator in LOWER_BOUNDS
            and self.host.cuda[:1] == item.version[:1]
            and version.compare(self.host.cuda, item.version) <= 0
            and cuda.minor_compat(item.version, self.host.driver)
        )

    def _covered(self, alternative: tuple[Condition, ...], needed: Condition | None) -> str:
        """What lets an alternative count whose conditions hold: `stated`, `minor`, or `` where libraries must.

        With a `cuda` condition, or where no alternative states a CUDA level, it is what it says. Else it presumes
        forward compatibility, unless the driver reaches the level, or minor-version compatibility covers the gap.
        """
        if needed is None or not presumes(alternative) or not self.host.cuda:
            return "stated"
        if version.compare(self.host.cuda, needed.version) >= 0:
            return "stated"
        return "minor" if cuda.minor_compat(needed.version, self.host.driver) else ""

    def _forward(self, gpu: "Gpu | None") -> tuple[str, str]:
        """Whether the image's forward-compatibility libraries bridge the gap on this GPU: (way, what is lacking)."""
        accepted = cuda.forward_compat(gpu.brand if gpu else "")
        found = self.compat()
        if found is None:
            return "presumed", ""
        if not accepted:
            return "", "brand"
        return ("forward", "") if cuda.compat_is_newer(found, self.host.driver) else ("", "libraries")


def _ordered(order: int, operator: str) -> bool:
    if order == 0:
        return operator in ("=", "<=", ">=")
    return operator == "!=" or operator[0] == ("<" if order < 0 else ">")


def _check_count(count: int) -> None:
    if count > MAX_REQUIREMENTS:
        raise GpuhookError(
            "requirement-syntax",
            f"at most {MAX_REQUIREMENTS} NVIDIA_REQUIRE_* requirements were expected, the container states {count}",
            "join them: conditions with a comma, alternatives with a blank",
        )


def _condition(token: str) -> Condition:
    """Parse one condition; raises BadError."""
    start = 0
    while start < len(token) and token[start] not in "<>=!":
        start += 1
    end = start
    while end < len(token) and token[end] in "<>=!":
        end += 1
    name, operator, text = token[:start], token[start:end], token[end:]
    strange = name.lstrip(_NAME_CHARS)
    if strange:
        at = start - len(strange)
        raise BadError(f"stray character '{escaped(strange[0])}'", at, at + 1)
    if not operator:
        raise BadError("no operator", start, start + 1)
    if not name:
        raise BadError("no name before the operator", 0, 1)
    if operator == "!":
        operator = "!="
    if operator not in OPERATORS:
        raise BadError(f"no such operator: {visible(operator, 12)}", start, end)
    name = name.lower()
    if name == "brand" and operator not in ("=", "!="):
        raise BadError("a brand has only = and !=", start, end)
    if not text:
        raise BadError("no version" if name in NAMES[:3] else "no value", end, end + 1)
    if name not in NAMES[:3]:
        return Condition(name, operator, text)
    number = version.parse(text)
    if number is None:
        wrong = len(text) - len(text.lstrip("0123456789."))
        at = end + (wrong if wrong < len(text) else 0)
        raise BadError(f"no version: '{visible(text, 24)}'", at, at + 1)
    return Condition(name, operator, text, number)


def escaped(char: str) -> str:
    """A character as it may be shown: itself if it is printable ASCII, else its Python escape."""
    return char if " " <= char <= "~" else ascii(char)[1:-1]


def _syntax_error(demand: "Demand", token: str, position: int, bad: BadError) -> GpuhookError:
    from gpuhook import refusal  # noqa: PLC0415 - cold

    return refusal.syntax_error(demand, token, position, bad)
