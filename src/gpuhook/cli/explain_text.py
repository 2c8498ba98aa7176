"""An explanation for people: the document of `gpuhook explain --json`, part by part. What an image says is escaped."""

import sys
from typing import Any

from gpuhook.cli import gpus, render
from gpuhook.errors import GpuhookError

WAYS = {
    "stated": "met",
    "minor": "met by minor-version compatibility",
    "forward": "met by the image's forward-compatibility libraries",
    "presumed": "met if the image brings forward-compatibility libraries",
    "policy": "met by the policy minor-compat",
    "": "not met",
}
_KINDS = (
    ("library", "libraries"),
    ("binary", "programs"),
    ("firmware", "firmware"),
    ("data", "descriptions and data"),
    ("socket", "sockets"),
    ("directory", "directories"),
    ("proc", "the driver's words in /proc"),
)
_MOST_TEXT = 200
_MOST_LINE = 94  # of a command line, on a terminal


def lines(document: dict[str, Any]) -> list[str]:
    """All lines. The error itself goes to stderr, as that of a start does, and is last here where that is elsewhere."""
    parts = [
        _container(document),
        _request(document),
        _driver(document),
        _requirements(document),
        _gpus(document),
        _nodes(document),
        _hook(document),
        _image(document),
        *_mounts(document),
        _links(document),
        _files(document),
        _cache(document),
        _libcuda(document),
        _remarks("notes", document["notes"]),
        _remarks("warnings", document["warnings"]),
        _outcome(document),
    ]
    return _joined(parts)


def replay_lines(document: dict[str, Any]) -> list[str]:
    """All lines of `gpuhook hook --dry-run`."""
    told, orders = document["state"], document["orders"]
    rows = [f"{_cut(told['id'])}, process {told['pid']}", f"bundle {_cut(document['bundle'])}"]
    if orders is not None:
        rows.append(f"root {_cut(orders['root'])}")
    parts = [_part("container", rows)]
    if orders is not None:
        found = "decided now: the bundle's config.json has none" if orders["from"] == "decided now" else orders["from"]
        rows = [
            f"from          {found}",
            f"record        {_cut(orders['record'])}",
            f"capabilities  {', '.join(orders['capabilities']) or 'none'}",
        ]
        rows += [f"tmpfs         {_cut(item)}" for item in orders["tmpfs"]]
        rows += [f"node          {_cut(item)}" for item in orders["nodes"]]
        if orders["rights"]:
            rows.append(f"MIG rights    {_cut(', '.join(orders['rights']))}")
        if orders["label"]:
            rows.append(f"mount label   {_cut(orders['label'])}")
        if orders["compat"]:
            rows.append("the image's forward-compatibility libraries may be used")
        parts.append(_part("orders", rows))
    parts += [_driver(document), _image_part(document), *_mounts(document), _links(document), _files(document)]
    parts += [_cache(document)]
    parts += [_remarks("warnings", document["warnings"])]
    match document["outcome"]:
        case "nothing":
            parts.append(_outcome(document))
        case "granted":
            parts.append(["The hook would do this."])
        case _:
            parts.append(_refusal("The hook would fail:", document["error"]))
    return _joined(parts)


def _joined(parts: list[list[str]]) -> list[str]:
    """Parts with an empty line between."""
    text: list[str] = []
    for part in parts:
        if part:
            text += [*([""] if text else []), *part]
    return text


def _part(name: str, rows: list[str]) -> list[str]:
    return [render.strong(name), *(f"  {row}" for row in rows)] if rows else []


def _cut(text: str) -> str:
    """Foreign text, escaped and not endless."""
    text = render.plain(text)
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 3] + "..."


def _container(document: dict[str, Any]) -> list[str]:
    container = document["container"]
    if container["image_config"]:
        rows = [_cut(container["image_config"]), "only its configuration was read: paths are those of a Debian image"]
        return _part("container of the image", rows)
    if not container["config"]:
        return _part("container", ["none: no image was looked at, paths in the container are those of a Debian image"])
    rows = [_cut(container["config"])]
    if container["image_looked_at"]:
        rows.append(f"image at {_cut(container['root'])}")
    else:
        rows.append(
            f"no image was looked at: {_cut(container['root'])} is not there; paths are those of a Debian image"
        )
    if container["privileged"]:
        rows.append("privileged (CAP_SYS_ADMIN)")
    return _part("container", rows)


def _request(document: dict[str, Any]) -> list[str]:
    asked = document.get("request")
    if asked is None:
        return []
    devices = ", ".join(asked["devices"]) or "no GPU, the driver's files only"
    if asked["capabilities_by"]:
        words = f"{asked['capabilities_by']}={_cut(asked['capabilities_value'])}"
    elif asked["by"] == "CUDA_VERSION":
        words = "all that this host allows, as for every legacy CUDA image"
    else:
        words = "the default"
    value = f"={_cut(asked['value'])}" if asked["value"] else ""  # a mount has none
    rows = [
        f"devices       {_cut(devices)}  ({asked['by']}{value})",
        f"capabilities  {', '.join(asked['capabilities']) or 'none'}  ({words})",
    ]
    if asked["switches"]:
        rows.append(f"beside GPUs   {', '.join(asked['switches'])}")
    if asked["channels"]:
        rows.append(f"IMEX channel  {_cut(', '.join(map(str, asked['channels'])))}")
    rows += [f"requirement   {_cut(item['text'])}  ({_cut(item['origin'])})" for item in asked["requirements"]]
    policy = asked["policy"]
    if not policy["request.accept-env-when-unprivileged"]:
        this = ", and this one is" if document["container"]["privileged"] else ""
        rows.append(f"policy        only privileged containers may ask by their environment{this}")
    return _part("asked for", rows)


def _driver(document: dict[str, Any]) -> list[str]:
    driver = document.get("driver")
    if driver is None:
        return []
    assumed = " (assumed from the branch)" if driver["cuda_assumed"] else ""
    return _part("driver", [f"{driver['version']}, CUDA up to {driver['cuda']}{assumed}  (record {driver['record']})"])


def _requirements(document: dict[str, Any]) -> list[str]:
    verdict = document.get("verdict")
    if verdict is None:
        return []
    if not verdict["looked"]:
        return _part("requirements", [f"not checked: {document['request']['disabled_by'] or 'the policy is off'}"])
    rows = []
    for result in document["verdicts"]:
        count = result["alternatives"]
        which = "" if count == 1 else f", the {'one met' if result['met'] else 'closest'} of {count} alternatives"
        rows.append(f"{_cut(result['origin'])}: {_cut(result['alternative'])}{which}")
        ways: dict[str, list[str]] = {}
        for outcome in result["outcomes"]:
            ways.setdefault(_way(outcome), []).append("no GPU" if outcome["gpu"] is None else f"GPU {outcome['gpu']}")
        rows += [f"  {', '.join(gpus)}: {way}" for way, gpus in ways.items()]
    return _part(f"requirements (policy {verdict['policy']})", rows or ["none"])


def _way(outcome: dict[str, Any]) -> str:
    if outcome["way"]:
        return render.good(WAYS[outcome["way"]])
    why = ", ".join(_cut(item) for item in outcome["failed"])
    if outcome["lacking"] == "libraries":
        why = "the image has no forward-compatibility libraries that are for this driver"
    elif outcome["lacking"] == "brand":
        why = "forward compatibility does not work on this brand"
    return render.bad("not met") + (f": {why}" if why else "")


def _gpus(document: dict[str, Any]) -> list[str]:
    if "gpus" not in document:
        return []
    rows = [
        f"{gpu['index']}  {render.plain(gpu['name'])}  {gpu['uuid']}  {gpu['bus_id']}  "
        f"{gpu['brand']}, compute capability {gpu['arch']}{_migs(gpu)}"
        for gpu in document["gpus"]
    ]
    return _part("GPUs", rows or ["none"])


def _migs(gpu: dict[str, Any]) -> str:
    found = [f"{name} ({instances})" for name, _, instances in gpus.names(gpu)]
    return f", MIG {', '.join(found)}" if found else ""


def _nodes(document: dict[str, Any]) -> list[str]:
    nodes = document.get("nodes", ())
    width = max((len(node["path"]) for node in nodes), default=0)
    rows = [
        f"{node['path'].ljust(width)}  {node['major']}:{node['minor']}"
        f"{', missing, made at the start' if node['missing'] else ''}"
        for node in nodes
    ]
    return _part("device nodes (read and write; all others of the driver stay closed)", rows)


def _hook(document: dict[str, Any]) -> list[str]:
    hook = document.get("hook")
    if hook is None:
        return []
    entry = hook["entry"]
    rows = [render.plain(row) for row in _command([entry["path"], *entry["args"][1:]])]
    rows += [f"takes the place of {_cut(path)}" for path in hook["replaces"]]
    return _part(f"hook ({hook['stage']}, at most {entry['timeout']} s)", rows)


def _command(words: list[str]) -> list[str]:
    """A command line; on a terminal in several lines, none of which ends between an option and its value."""
    line, rows = words[0], []
    for word, following in zip(words[1:], [*words[2:], ""], strict=True):
        option = word.startswith("--") and not following.startswith("--")
        if render.on_terminal() and len(f"{line} {word}{f' {following}' if option else ''}") > _MOST_LINE:
            rows.append(f"{line} \\")
            line = f"  {word}"
        else:
            line += f" {word}"
    return [*rows, line]


def _image(document: dict[str, Any]) -> list[str]:
    return _image_part(document) if document["container"]["image_looked_at"] else []


def _image_part(document: dict[str, Any]) -> list[str]:
    image = document.get("image")
    if image is None:
        return []
    rows = [
        f"loader {image['loader'] or 'none'}, {image['machine'] or 'no machine'}, libraries in {_cut(image['libdir'])}"
    ]
    if image["libdir32"]:
        rows.append(f"32-bit libraries in {_cut(image['libdir32'])}")
    if image["compat"]:
        rows.append(f"forward-compatibility libraries {image['compat_version']} in {_cut(image['compat'])}")
    return _part("image", rows)


def _mounts(document: dict[str, Any]) -> list[list[str]]:
    """One part for each kind; what the host lacks is named, since that is what people look for."""
    parts = []
    for kind, name in _KINDS:
        by_reason: dict[str, list[str]] = {}
        for mount in document.get("mounts", ()):
            if mount["kind"] == kind:
                without = mount["left_out"] if mount["present"] else "this host does not have it"
                reason = f"left out: {_cut(without)}" if without else mount["reason"]
                source = mount["source"]
                target = "" if mount["target"] == source else f" <- {source}"
                by_reason.setdefault(reason, []).append(_cut(mount["target"] + target))
        rows = []
        for reason, items in by_reason.items():
            rows += [f"{reason}:", *(f"  {item}" for item in items)]
        if rows:
            parts.append(
                _part(f"{name}, mounted read-only" if kind in ("library", "binary", "firmware", "data") else name, rows)
            )
    return parts


def _links(document: dict[str, Any]) -> list[str]:
    return _part(
        "links", [f"{_cut(link['target'])} -> {link['text']}  ({link['reason']})" for link in document.get("links", ())]
    )


def _files(document: dict[str, Any]) -> list[str]:
    return _part("small files", [f"{_cut(item['target'])}  ({item['reason']})" for item in document.get("files", ())])


def _cache(document: dict[str, Any]) -> list[str]:
    cache = document.get("loader_cache")
    if cache is None:
        return []
    rows = [
        f"{cache['reason']}; {len(cache['entries'])} names"
        + (f", {len(cache['entries32'])} for 32-bit programs" if cache["entries32"] else ""),
        *(f"directory {_cut(item)}" for item in cache["directories"]),
    ]
    return _part("loader cache", rows)


def _libcuda(document: dict[str, Any]) -> list[str]:
    found = document.get("libcuda")
    return _part("the libcuda that programs load", [_cut(found["path"]), _cut_long(found["why"])] if found else [])


def _remarks(name: str, texts: list[str]) -> list[str]:
    return _part(render.bad(name) if name == "warnings" and texts else name, [_cut_long(text) for text in texts])


def _cut_long(text: str) -> str:
    return render.plain(text)[:1000]


def _outcome(document: dict[str, Any]) -> list[str]:
    if document["outcome"] == "nothing":
        return [f"The container starts as if gpuhook were not there: {_cut(document['why_not'])}."]
    if document["outcome"] == "granted":
        container = document["container"]
        if container["config"] and not container["image_looked_at"]:
            return [render.bad("gpuhook gives the container this, but no runtime starts it without its root.")]
        return [render.good("The container starts with this.")]
    return _refusal("The container is refused:", document["error"])


def _refusal(words: str, error: dict[str, Any]) -> list[str]:
    """The error with them, unless the same terminal shows it next, from stderr."""
    if render.on_terminal() and sys.stderr.isatty():
        return [render.bad(words)]
    return [render.bad(words), str(GpuhookError(error["reference"], error["message"], error["hint"]))]
