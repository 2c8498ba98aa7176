"""The configuration of an image: from a file, or from the docker or podman that has it.

Known forms: an OCI image configuration (image-spec, config.md: `config.Env`), docker's image JSON, which has the same,
and what `docker image inspect` and `podman image inspect` print: a list with one object that has `Config.Env`.
"""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from gpuhook.errors import GpuhookError, shown

ENGINES = ("docker", "podman")
_LIMIT = 4 << 20  # bytes of a configuration; real ones take some KiB
_SECONDS = 20  # that an engine gets
# A name, with or without registry, tag and digest, or an id. It cannot begin with a dash, so it is never an option.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@-]{0,511}", re.ASCII)
_MACHINES = {"amd64": "x86-64", "arm64": "aarch64"}  # Go's names, which images use; ours
_HINT = "give a file with an image's configuration, or the name of an image that docker or podman has (pull it first)"


@dataclass(frozen=True)
class ImageConfig:
    """What an image's configuration says. `source` is the file, or engine and name. `machine` is `` where unknown."""

    source: str
    env: tuple[tuple[str, str], ...]
    labels: tuple[str, ...]
    machine: str


def read(name: str) -> ImageConfig:
    """The configuration of an image, from a file or by name. GpuhookError `image-unreadable`."""
    if os.path.exists(name) or name.startswith(("/", "./", "../")):
        return _parse(_file(name), f"{name}")
    if not is_name(name):
        raise _error(f"{shown(name)} is no file, and no name that an image can have")
    return _from_engine(name)


def is_name(text: str) -> bool:
    """Whether an image can have this name or id; then it is no option of an engine's command."""
    return _NAME.fullmatch(text) is not None


def _file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(_LIMIT + 1)
    except OSError as error:
        raise _error(f"{shown(path)} can't be read: {error.strerror}") from None
    return data


def _from_engine(name: str) -> ImageConfig:
    """Ask the engines that are there, one after the other."""
    found = [(engine, path) for engine in ENGINES if (path := shutil.which(engine))]
    if not found:
        raise _error(f"neither docker nor podman is there to ask for the image {shown(name)}, and it is no file")
    said = []
    for engine, path in found:
        try:
            done = subprocess.run(  # noqa: S603 - no shell; the name cannot be an option
                [path, "image", "inspect", "--", name],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            said.append(f"{engine} gave no answer within {_SECONDS} s")
            continue
        except OSError as error:
            said.append(f"{engine} can't be started: {error.strerror}")
            continue
        if done.returncode == 0:
            return _parse(done.stdout, f"{engine} image {name}")
        words = " ".join(done.stderr.decode("utf-8", "replace").split())
        said.append(f"{engine} says {shown(words or f'nothing (status {done.returncode})', 300)}")
    raise _error(f"the image {shown(name)} can't be read, and there is no file of that name: {'; '.join(said)}")


def _parse(data: bytes, source: str) -> ImageConfig:
    """GpuhookError `image-unreadable` for what has none of the known forms."""
    if len(data) > _LIMIT:
        raise _error(f"{shown(source, 200)} is longer than {_LIMIT} bytes")
    try:
        item: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _error(f"{shown(source, 200)} is no JSON: {error}") from None
    return of(item[0] if isinstance(item, list) and len(item) == 1 else item, source)


def of(item: Any, source: str) -> ImageConfig:
    """The configuration in an object of one of the known forms. GpuhookError `image-unreadable`."""
    if not isinstance(item, dict):
        raise _error(f"{shown(source, 200)} is no image configuration: an object is expected")
    config = None if "schemaVersion" in item else item.get("config", item.get("Config"))
    if config is None and ("rootfs" in item or "RootFS" in item):
        config = {}  # an image without any settings
    if not isinstance(config, dict):
        what = (
            "a manifest or index"
            if "schemaVersion" in item
            else "a container's config.json"
            if "process" in item
            else ""
        )
        raise _error(
            f"{shown(source, 200)} is no image configuration: it has no object `config`"
            + (f"; it looks like {what}" * bool(what))
        )
    env = config.get("Env") or []
    labels = config.get("Labels") or {}
    if not isinstance(env, list) or not all(isinstance(entry, str) for entry in env):
        raise _error(f"{shown(source, 200)}: config.Env is no list of strings")
    if not isinstance(labels, dict):
        raise _error(f"{shown(source, 200)}: config.Labels is no object")
    pairs = [entry.partition("=") for entry in env]
    machine = item.get("architecture", item.get("Architecture"))
    return ImageConfig(
        source=source,
        env=tuple((name, text) for name, equals, text in pairs if equals),
        labels=tuple(labels),
        machine=_MACHINES.get(machine, "") if isinstance(machine, str) else "",
    )


def notes(config: ImageConfig, machine: str) -> list[str]:
    """What a person should know of the explanation of an image's configuration; `machine` is the driver's."""
    ours = [name for name in config.labels if "nvidia" in name.lower()]
    named = f" ({', '.join(shown(name) for name in ours[:4])})" if ours else ""
    found = [
        f"labels of an image do not reach a runtime{named}; an annotation counts where the engine gives it to the"
        " container (--annotation here)"
    ]
    if config.machine and machine and config.machine != machine:
        found.append(f"the image is for {config.machine}, the driver's libraries of this host are for {machine}")
    return found


def _error(message: str) -> GpuhookError:
    return GpuhookError("image-unreadable", message, _HINT)
