"""Images as an archive that `docker load`, `podman load` and `ctr images import` take: docker's own format."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bundles import PATH
from tests.images import image

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # Go's names


@dataclass(frozen=True)
class Image:
    """An image of one layer, a tree of tests/images.py, with what its maker put into its configuration."""

    name: str
    tree: str = "glibc"
    env: Sequence[str] = ()
    labels: dict[str, str] = field(default_factory=dict)
    command: Sequence[str] = ("/bin/sh",)

    @property
    def tag(self) -> str:
        """The name by which every engine finds it."""
        return f"gpuhook.test/{self.name}:latest"


ALL = "NVIDIA_VISIBLE_DEVICES=all"
IMAGES = (
    Image("plain"),
    Image("gpu", env=[ALL], labels={"com.nvidia.volumes.needed": "nvidia_driver"}),
    Image("newer", env=[ALL, "NVIDIA_REQUIRE_CUDA=cuda>=13.3 brand=tesla,driver>=595,driver<596"]),
    # a pod's sandbox that says `all`, as NVIDIA's base images would make it
    Image("pause", "busybox", [ALL], command=("/bin/sh", "-c", "trap 'exit 0' TERM INT; sleep infinity & wait")),
)
PLAIN, GPU, NEWER, PAUSE = (each.tag for each in IMAGES)


def write(path: Path, images: Sequence[Image] = IMAGES) -> Path:
    """Write the archive of several images."""
    layers: dict[str, str] = {}  # tree -> digest
    manifest = []
    with tarfile.open(path, "w") as archive:
        for each in images:
            if each.tree not in layers:
                data = _layer(image(each.tree))
                layers[each.tree] = hashlib.sha256(data).hexdigest()
                _add(archive, f"{layers[each.tree]}/layer.tar", data)
            digest = layers[each.tree]
            config = {
                "architecture": _ARCHITECTURES[platform.machine()],
                "os": "linux",
                "created": "2020-01-01T00:00:00Z",
                "config": {"Env": [PATH, *each.env], "Cmd": list(each.command), "Labels": each.labels},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
                "history": [{"created": "2020-01-01T00:00:00Z", "created_by": "gpuhook's tests"}],
            }
            data = json.dumps(config).encode()
            name = f"{hashlib.sha256(data).hexdigest()}.json"
            _add(archive, name, data)
            manifest.append({"Config": name, "RepoTags": [each.tag], "Layers": [f"{digest}/layer.tar"]})
        _add(archive, "manifest.json", json.dumps(manifest).encode())
    return path


def _layer(tree: Path) -> bytes:
    """A tree as a tar archive, always the same for the same files."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as layer:
        for path in sorted(tree.iterdir()):
            layer.add(path, path.name, filter=plain)
    return stream.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    archive.addfile(entry, io.BytesIO(data))
