"""Say which engines' files still name gpuhook, while the package is being removed, and how that is undone."""

import json
import os
import sys

STORE = "/var/lib/gpuhook/engines"
# where engines have their configuration; what configure did elsewhere is in the store
PLACES = (
    "/etc/docker/daemon.json",
    "/etc/containerd",
    "/etc/crio",
    "/etc/containers",
    "/usr/share/containers/oci/hooks.d",
    "/var/lib/rancher/k3s/agent/etc/containerd",
    "/var/lib/rancher/rke2/agent/etc/containerd",
)
WORDS = (b"gpuhook-runtime", b"gpuhook-hook")
LIMIT = 4 << 20  # bytes: gpuhook edits no larger file


def main() -> None:
    """Print nothing where nothing names gpuhook."""
    kept = dict(stored())
    loose = [path for path in found() if path not in kept]
    if not kept and not loose:
        return
    print("gpuhook: these files still name it; a container that gets it by one of them will not start:")
    for path, engines in sorted(kept.items()):
        commands = " and ".join(f"`gpuhook unconfigure {engine} --restart`" for engine in engines)
        print(f"  {path}: taken back by {commands}, before gpuhook is removed or after it is installed again;")
        print("    a purge forgets how")
    for path in loose:
        print(f"  {path}: not written by `gpuhook configure`: take the entries out by hand, then restart the engine")
    if kept:
        print(f"  the files as they were lie in {STORE} until gpuhook is purged")


def stored() -> "list[tuple[str, list[str]]]":
    """Each file that `gpuhook configure` changed and that is there, with its engines. Damaged records are passed over:
    what they are of is found by its words."""
    rows = []
    for name in listed(STORE):
        if not name.endswith(".json") or name.startswith("."):
            continue
        try:
            with open(f"{STORE}/{name}", "rb") as file:
                record = json.loads(file.read(LIMIT))
            path, engines = record["real"], sorted({owner["engine"] for owner in record["owners"]})
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if os.path.lexists(path) and path != "/etc/gpuhook/runtime.toml":
            rows.append((path, engines))
    return rows


def found() -> "list[str]":
    """The files in the usual places that name a program of gpuhook's."""
    paths = []
    for place in PLACES:
        if os.path.isfile(place):
            paths.append(place)
        for folder, _, names in os.walk(place):
            paths += [f"{folder}/{name}" for name in names]
    return [path for path in sorted(paths) if names_us(path)]


def names_us(path: str) -> bool:
    """Whether a regular file has the name of a program of ours."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            data = file.read(LIMIT)
    except OSError:
        return False
    return any(word in data for word in WORDS)


def listed(folder: str) -> "list[str]":
    """The names in a folder that may not be there."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


if __name__ == "__main__":
    main()
    sys.stdout.flush()
