"""What NVIDIA's toolkit says in its config.toml, in gpuhook's words: pure tables and functions, no files.

The keys are those that the NVIDIA Container Toolkit reads (its `internal/config`), old ones among them. Each has a
value in runtime.toml that means the same, or a reason why there is none.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from gpuhook import configfile
from gpuhook.config import CAPABILITIES
from gpuhook.configfile import Parsed
from gpuhook.configvalue import BadValueError
from gpuhook.engines import tomledit
from gpuhook.engines.model import Set

PATH = "/etc/nvidia-container-runtime/config.toml"
Outcome = Literal["carried", "same", "kept", "left", "unknown", "invalid"]
KEYS = {key.dotted: key for key in configfile.KEYS}


@dataclass(frozen=True)
class Line:
    """What becomes of one key.

    `carried`: runtime.toml is to get `wanted` for `target`. `same`: that is in force. `kept`: runtime.toml itself sets
    something else, which stays. `left`: gpuhook has no such thing, and `why` says what it has. `unknown`: no key of the
    toolkit. `invalid`: the toolkit itself would refuse the value.
    """

    key: str
    value: Any
    outcome: Outcome
    target: str = ""
    wanted: Any = None
    why: str = ""


@dataclass(frozen=True)
class _Wish:
    """A key of runtime.toml that means the same, with its value; or, without a target, why there is none."""

    target: str
    wanted: Any
    why: str = ""


_Rule = Callable[[Any], list[_Wish]]


def _to(target: str, convert: Callable[[Any], Any] = lambda item: item, why: str = "") -> _Rule:
    return lambda item: [_Wish(target, convert(item), why)]


def _no(why: str) -> _Rule:
    return lambda _: [_Wish("", None, why)]


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]


# --- keys that have a counterpart -----------------------------------------------------------------------------------


def _disable_require(item: bool) -> list[_Wish]:
    why = (
        "no requirement is checked"
        if item
        else "requirements are checked; the toolkit does so in its mode `legacy` alone"
    )
    return [_Wish("requirement.policy", "off" if item else "strict", why)]


def _capabilities(item: str) -> list[_Wish]:
    words = _words(item)
    known = [word for word in words if word in (*CAPABILITIES, "all")]
    other = ", ".join(word for word in words if word not in known)
    if not known:
        return [_Wish("", None, f"it names no capability that there is ({', '.join(CAPABILITIES)})")]
    return [_Wish("request.supported-driver-capabilities", known, f"without {other}, which is none" if other else "")]


def _runtimes(item: list[Any]) -> list[_Wish]:
    check = KEYS["runtime.low-level"].check
    taken, reasons = [], []
    for entry in item:
        try:
            if "nvidia-container-runtime" in str(entry):
                raise BadValueError(f"{entry!r} is the toolkit's own")
            taken += check([entry])
        except BadValueError as error:
            reasons.append(error.text)
    why = "; ".join(reasons)
    return [_Wish("runtime.low-level", taken, why)] if taken else [_Wish("", None, why or "it names no runtime")]


_LEVELS = {
    **dict.fromkeys(("panic", "fatal", "error"), "error"),
    **dict.fromkeys(("warn", "warning"), "warning"),
    "info": "info",
    **dict.fromkeys(("debug", "trace"), "debug"),
}


def _level(item: str) -> list[_Wish]:
    level = _LEVELS.get(item.lower())
    return [_Wish("log.level", level)] if level else [_Wish("", None, "it is none of the toolkit's levels")]


_NO_TEGRA = "it is for Tegra, whose drivers gpuhook does not give to containers"


def _mode(item: str) -> list[_Wish]:
    if item == "csv":
        return [_Wish("", None, _NO_TEGRA)]
    if item in ("auto", "legacy"):
        return [_Wish("", None, "there is one mode: variables, requirements and annotations are read in each start")]
    if item in ("cdi", "jit-cdi"):
        why = (
            "no CDI specification is read: names such as nvidia.com/gpu=0 mean GPUs in each way to ask; annotations "
            "ask if request.annotation-prefixes names their beginning"
        )
        return [_Wish("", None, why)]
    return [_Wish("", None, "it is none of the toolkit's modes")]


def _prefixes(mode: str) -> _Rule:
    if mode == "cdi":
        return _to("request.annotation-prefixes", why="who may write a container's annotations may ask")
    return _no("the toolkit reads them in its mode `cdi` alone, which is not set here")


def _root(has_nodes: bool) -> _Rule:
    """The toolkit takes device nodes of its root too, where they are there; /proc and /sys are the host's."""

    def rule(item: str) -> list[_Wish]:
        wishes = [_Wish("driver.driver-root", item or "/")]
        if item not in ("", "/") and has_nodes:
            wishes.append(_Wish("driver.dev-root", item, "the driver's nodes are there"))
        return wishes

    return rule


def _compat_mode(item: str) -> list[_Wish]:
    if item not in ("disabled", "hook", "ldconfig", "mount"):
        return [_Wish("", None, "it is none of the toolkit's ways")]
    if item == "disabled":
        return [_Wish("requirement.cuda-compat", "off")]
    return [_Wish("requirement.cuda-compat", "path", "the image's libraries stay where they are, and are found first")]


# --- the tables -----------------------------------------------------------------------------------------------------

_NO_CLI = "nvidia-container-cli is not called: the hook mounts by itself"
_NO_LDCONFIG = "no ldconfig runs, neither the host's nor the container's: the hook writes the loader's cache"
_OWN_LOG = "gpuhook has one log of its own (log.file), 4 MiB at most"
_NO_CDI = "no CDI specification is read or made"
_NO_HOOKS = "no program of the toolkit is called"
_OLD = "the toolkit itself does not read it any more"

# key -> type that the toolkit wants, rule
_TABLE: dict[str, tuple[type, _Rule]] = {
    "disable-require": (bool, _disable_require),
    "swarm-resource": (str, _to("request.swarm-resources", _words)),
    "accept-nvidia-visible-devices-envvar-when-unprivileged": (bool, _to("request.accept-env-when-unprivileged")),
    "accept-nvidia-visible-devices-as-volume-mounts": (bool, _to("request.accept-devices-as-volume-mounts")),
    "supported-driver-capabilities": (str, _capabilities),
    "nvidia-container-cli.path": (str, _no(_NO_CLI)),
    "nvidia-container-cli.environment": (
        list,
        _no(f"{_NO_CLI}; folders of an LD_LIBRARY_PATH belong into driver.library-dirs"),
    ),
    "nvidia-container-cli.debug": (str, _no(_OWN_LOG)),
    "nvidia-container-cli.ldcache": (
        str,
        _no("the cache of driver.driver-root is read, and driver.library-dirs are searched besides"),
    ),
    "nvidia-container-cli.load-kmods": (
        bool,
        lambda item: [
            _Wish(
                "driver.make-nodes", item, "kernel modules are never loaded" if item else "no node is made on the host"
            )
        ],
    ),
    "nvidia-container-cli.no-pivot": (bool, _no("the hook changes the root of no process")),
    "nvidia-container-cli.no-cgroups": (
        bool,
        _no("device rules stand in the container's spec; a runtime that is not root leaves them out by itself"),
    ),
    "nvidia-container-cli.user": (
        str,
        _no("the hook runs as the user that the low-level runtime runs as"),
    ),
    "nvidia-container-cli.ldconfig": (str, _no(_NO_LDCONFIG)),
    "nvidia-container-cli.cuda-compat-mode": (str, _no(_OLD)),
    "nvidia-container-runtime.debug": (str, _no(_OWN_LOG)),
    "nvidia-container-runtime.log-level": (str, _level),
    "nvidia-container-runtime.runtimes": (list, _runtimes),
    "nvidia-container-runtime.mode": (str, _mode),
    "nvidia-container-runtime.discover-mode": (str, _no(_OLD)),
    "nvidia-container-runtime.modes.cdi.default-kind": (
        str,
        _no("devices are nvidia.com/gpu; those of other kinds are left to the engine"),
    ),
    "nvidia-container-runtime.modes.cdi.spec-dirs": (list, _no(_NO_CDI)),
    "nvidia-container-runtime.modes.csv.mount-spec-path": (str, _no(_NO_TEGRA)),
    "nvidia-container-runtime.modes.csv.compat-container-root": (str, _no(_NO_TEGRA)),
    "nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags": (list, _no(_NO_CDI)),
    "nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks": (list, _no(_NO_CDI)),
    "nvidia-container-runtime.modes.legacy.cuda-compat-mode": (str, _compat_mode),
    "nvidia-container-runtime-hook.path": (str, _no(_NO_HOOKS)),
    "nvidia-container-runtime-hook.skip-mode-detection": (bool, _no("the hook works in every mode")),
    "nvidia-ctk.path": (str, _no(_NO_HOOKS)),
    "features.allow-cuda-compat-libs-from-container": (
        bool,
        _no("requirement.cuda-compat decides: with `path` an image's newer libraries are found first"),
    ),
    "features.allow-ldconfig-from-container": (bool, _no(_NO_LDCONFIG)),
    "features.allow-unknown-oci-spec-fields": (bool, _no("what gpuhook does not know in a spec is always kept")),
    "features.disable-cuda-compat-lib-hook": (
        bool,
        lambda item: [_Wish("requirement.cuda-compat", "off" if item else "path", "it has no hook of its own")],
    ),
    "features.disable-imex-channel-creation": (
        bool,
        _no("a channel's node is made for a container that is granted it, by driver.make-nodes, like any other node"),
    ),
    "features.ignore-imex-channel-requests": (
        bool,
        _no("there is no such switch: a container that asks for channels gets them, or is refused"),
    ),
    "features.no-additional-gids-for-device-nodes": (
        bool,
        _no("a group is added only for a node that is closed to others"),
    ),
}
_IN_MODES: dict[str, type] = {
    "nvidia-container-cli.root": str,
    "nvidia-container-runtime.modes.cdi.annotation-prefixes": list,
}
NAMES = (*_TABLE, *_IN_MODES)
_SHAPES = {bool: "true or false", str: "text", list: "a list of texts"}


def lines(tree: dict[str, Any], current: Parsed, has_nodes: Callable[[str], bool]) -> list[Line]:
    """What becomes of each key of a config.toml, in its order. `current`: the runtime.toml in force; `has_nodes` says
    whether the driver's device nodes are below a root."""
    keys = list(_leaves(tree))
    values = dict(keys)
    rules: dict[str, _Rule] = {
        "nvidia-container-cli.root": lambda item: _root(has_nodes(item))(item),
        "nvidia-container-runtime.modes.cdi.annotation-prefixes": _prefixes(
            str(values.get("nvidia-container-runtime.mode", "auto"))
        ),
    }
    found: list[Line] = []
    for key, item in keys:
        kind = _TABLE[key][0] if key in _TABLE else _IN_MODES.get(key)
        if kind is None:
            found.append(Line(key, item, "unknown", why="the toolkit has no key of this name"))
        elif not _fits(item, kind):
            found.append(Line(key, item, "invalid", why=f"the toolkit wants {_SHAPES[kind]}"))
        else:
            rule = rules[key] if key in rules else _TABLE[key][1]
            found += [_judged(key, item, wish, current) for wish in rule(item)]
    return _without_contradictions(found)


def _fits(item: Any, kind: type) -> bool:
    return isinstance(item, kind) and (not isinstance(item, list) or all(isinstance(entry, str) for entry in item))


def _leaves(tree: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each key that has a value, and tables that are no tables of the toolkit."""
    for name, item in tree.items():
        path = (*above, name)
        dotted = tomledit.dotted(path)
        if isinstance(item, dict) and any(known.startswith(f"{dotted}.") for known in NAMES):
            yield from _leaves(item, path)
        elif isinstance(item, dict) and item:
            yield from ((tomledit.dotted((*path, *rest)), value) for rest, value in _deep(item))
        else:
            yield dotted, item


def _deep(table: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The leaves of a table that nobody knows."""
    for name, item in table.items():
        if isinstance(item, dict) and item:
            yield from (((name, *rest), value) for rest, value in _deep(item))
        else:
            yield (name,), item


def _judged(key: str, item: Any, wish: _Wish, current: Parsed) -> Line:
    """A wish against what is in force."""
    if not wish.target:
        return Line(key, item, "left", why=wish.why)
    rule = KEYS[wish.target]
    try:
        wanted = rule.check(wish.wanted)
    except BadValueError as error:
        return Line(key, item, "left", why=f"{wish.target}: {error.text}" + (f" ({error.hint})" if error.hint else ""))
    plain = list(wanted) if isinstance(wanted, tuple) else wanted
    if wanted == getattr(current.config, rule.field):
        return Line(key, item, "same", wish.target, plain, wish.why)
    if wish.target in current.given:
        why = "runtime.toml sets it itself, and that stays: remove it there first if the toolkit's is to hold"
        return Line(key, item, "kept", wish.target, plain, why)
    return Line(key, item, "carried", wish.target, plain, wish.why)


def _without_contradictions(found: list[Line]) -> list[Line]:
    """Two keys may have one counterpart (forward compatibility): what is to be written is written once, and what
    asks for something else says so."""
    written: dict[str, Line] = {}
    for line in found:
        if line.outcome == "carried":
            written.setdefault(line.target, line)
    result = []
    for line in found:
        other = written.get(line.target, line)
        if other.wanted != line.wanted:
            result.append(replace(line, outcome="left", why=f"{other.key} is set too, and asks for {other.wanted!r}"))
        elif other is not line:
            result.append(replace(line, outcome="same", why=f"{other.key} brings it"))
        else:
            result.append(line)
    return result


def steps(found: list[Line]) -> tuple[Set, ...]:
    """What is to be set in runtime.toml, in its own order."""
    wanted = {line.target: line.wanted for line in found if line.outcome == "carried"}
    return tuple(Set((key.section, key.name), wanted[key.dotted]) for key in KEYS.values() if key.dotted in wanted)
