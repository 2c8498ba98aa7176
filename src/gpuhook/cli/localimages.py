"""The images that docker and podman have here, and which of them gpuhook would refuse on this host.

Bounded: so many images, so many seconds. Engines that are not there, or do not answer, are named and passed over.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpuhook import devices, grant, request, requirement
from gpuhook.cli import imageconfig
from gpuhook.cli.imageconfig import ImageConfig
from gpuhook.config import Config
from gpuhook.errors import GpuhookError, shown
from gpuhook.model import Container, Record

MOST = 1000  # images of an engine that are looked at
_TOGETHER = 50  # that an engine is asked of at once
_SECONDS = 60.0  # for an engine's images altogether


@dataclass
class Images:
    """What was found: images as engine, name and configuration, and sentences on what was not looked at."""

    found: list[tuple[str, str, ImageConfig]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Refused:
    """An image that would not start with a GPU here."""

    engine: str
    image: str
    error: GpuhookError


def find() -> Images:
    """Every image of the engines that are here."""
    images = Images()
    there = [(engine, path) for engine in imageconfig.ENGINES if (path := shutil.which(engine))]
    if not there:
        images.notes.append("neither docker nor podman is here: no images were looked at")
    for engine, path in there:
        try:
            for name, config in _of_engine(engine, path, time.monotonic() + _SECONDS, images.notes):
                images.found.append((engine, name, config))
        except _NoAnswerError as error:
            images.notes.append(f"{engine} {error}: not all of its images were looked at")
    return images


class _NoAnswerError(Exception):
    """An engine that can't be asked, with what it says."""


def _of_engine(engine: str, path: str, end: float, notes: list[str]) -> Iterator[tuple[str, ImageConfig]]:
    """Name and configuration of each image."""
    listed = _ask(path, end, "image", "ls", "--quiet", "--no-trunc").decode("utf-8", "replace").split()
    ids = [item for item in dict.fromkeys(listed) if imageconfig.is_name(item)]
    if len(ids) > MOST:
        notes.append(f"{engine} has {len(ids)} images: the first {MOST} were looked at")
    for at in range(0, min(len(ids), MOST), _TOGETHER):
        data = _ask(path, end, "image", "inspect", "--", *ids[at : at + _TOGETHER][: MOST - at])
        try:
            items: Any = json.loads(data)
        except (ValueError, RecursionError):
            raise _NoAnswerError("does not describe its images in JSON") from None
        for item in items if isinstance(items, list) else []:
            name = _name(item)
            try:
                yield name, imageconfig.of(item, f"{engine} image {name}")
            except GpuhookError as error:
                notes.append(error.message)


def _name(item: Any) -> str:
    """The first tag, else the id."""
    if not isinstance(item, dict):
        return ""
    tags = item.get("RepoTags") or item.get("RepoDigests") or [item.get("Id", "")]
    return str(tags[0]) if isinstance(tags, list) else ""


def _ask(path: str, end: float, *words: str) -> bytes:
    """What an engine prints. _NoAnswerError."""
    try:
        done = subprocess.run(  # noqa: S603 - no shell; ids cannot be options
            [path, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(end - time.monotonic(), 0.1),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _NoAnswerError(f"gave no answer within {_SECONDS:.0f} s") from None
    except OSError as error:
        raise _NoAnswerError(f"can't be started: {error.strerror}") from None
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())
        raise _NoAnswerError(f"says {shown(said or f'nothing (status {done.returncode})', 300)}")
    return done.stdout


def asks(config: ImageConfig) -> bool:
    """Whether an image is made for GPUs: it asks for them, or has a requirement."""
    names = [name for name, _ in config.env]
    return any(
        name.startswith(("NVIDIA_REQUIRE_", "NVIDIA_VISIBLE_DEVICES")) or name == "CUDA_VERSION" for name in names
    )


def refused(images: Images, settings: Config, known: Record) -> list[Refused]:
    """Those that would be refused with all GPUs of this host, for what their own environment says.

    No image is unpacked: forward-compatibility libraries in it are presumed where a requirement counts on them.
    """
    found = []
    for engine, name, config in images.found:
        if asks(config):
            try:
                _judge(config, settings, known)
            except GpuhookError as error:
                found.append(Refused(engine, name, error))
    return found


def _judge(config: ImageConfig, settings: Config, known: Record) -> None:
    """As `grant.decide` does for a container that is given all GPUs, up to where the host's nodes come in.

    Privileged: an image must not pass because it may not ask by itself; volume mounts would ask for it.
    """
    container = Container(env=(*config.env, ("NVIDIA_VISIBLE_DEVICES", "all")), privileged=True)
    asked = request.read(container, settings)
    if asked is None:
        return
    devices.check(asked)
    demands, _ = requirement.parse_all(asked.demands, grant.policy(asked, settings))
    gpus = devices.select(asked, known.gpus)
    matter = grant.circumstances(container, asked, settings, known, gpus)
    requirement.check(demands, *matter, asked.near_misses, settings.allow_disable_require)
