"""A client of the Container Runtime Interface, as kubelet is one: no crictl is packaged for Debian.

The messages are made of the table below, which has the fields that the tests use, with their numbers of
kubernetes/cri-api pkg/apis/runtime/v1/api.proto; what a message has beyond them is skipped by protobuf.
"""

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # else every child that a test forks has threads, and may enter nothing

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# message -> field -> (number, type); a type is one of protobuf's own, `map` (string to string), an enum as `int32`, or
# one of these messages; `*` before it makes it repeated.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "VersionRequest": {"version": (1, "string")},
    "VersionResponse": {"runtime_name": (2, "string"), "runtime_version": (3, "string")},
    "NamespaceOption": {"network": (1, "int32"), "pid": (2, "int32"), "ipc": (3, "int32")},
    "LinuxSandboxSecurityContext": {"namespace_options": (1, "NamespaceOption"), "privileged": (6, "bool")},
    "LinuxPodSandboxConfig": {
        "cgroup_parent": (1, "string"),
        "security_context": (2, "LinuxSandboxSecurityContext"),
    },
    "PodSandboxMetadata": {"name": (1, "string"), "uid": (2, "string"), "namespace": (3, "string")},
    "PodSandboxConfig": {
        "metadata": (1, "PodSandboxMetadata"),
        "log_directory": (3, "string"),
        "labels": (6, "map"),
        "annotations": (7, "map"),
        "linux": (8, "LinuxPodSandboxConfig"),
    },
    "RunPodSandboxRequest": {"config": (1, "PodSandboxConfig"), "runtime_handler": (2, "string")},
    "RunPodSandboxResponse": {"pod_sandbox_id": (1, "string")},
    "ListPodSandboxRequest": {},
    "PodSandbox": {"id": (1, "string")},
    "ListPodSandboxResponse": {"items": (1, "*PodSandbox")},
    "StopPodSandboxRequest": {"pod_sandbox_id": (1, "string")},
    "RemovePodSandboxRequest": {"pod_sandbox_id": (1, "string")},
    "ImageSpec": {"image": (1, "string")},
    "KeyValue": {"key": (1, "string"), "value": (2, "string")},
    "Mount": {"container_path": (1, "string"), "host_path": (2, "string"), "readonly": (3, "bool")},
    "Device": {"container_path": (1, "string"), "host_path": (2, "string"), "permissions": (3, "string")},
    "LinuxContainerSecurityContext": {"privileged": (2, "bool"), "namespace_options": (3, "NamespaceOption")},
    "LinuxContainerResources": {"cpu_shares": (3, "int64"), "memory_limit_in_bytes": (4, "int64")},
    "LinuxContainerConfig": {
        "resources": (1, "LinuxContainerResources"),
        "security_context": (2, "LinuxContainerSecurityContext"),
    },
    "ContainerMetadata": {"name": (1, "string"), "attempt": (2, "uint32")},
    "ContainerConfig": {
        "metadata": (1, "ContainerMetadata"),
        "image": (2, "ImageSpec"),
        "command": (3, "*string"),
        "envs": (6, "*KeyValue"),
        "mounts": (7, "*Mount"),
        "devices": (8, "*Device"),
        "labels": (9, "map"),
        "annotations": (10, "map"),
        "log_path": (11, "string"),
        "linux": (15, "LinuxContainerConfig"),
    },
    "CreateContainerRequest": {
        "pod_sandbox_id": (1, "string"),
        "config": (2, "ContainerConfig"),
        "sandbox_config": (3, "PodSandboxConfig"),
    },
    "CreateContainerResponse": {"container_id": (1, "string")},
    "StartContainerRequest": {"container_id": (1, "string")},
    "StopContainerRequest": {"container_id": (1, "string"), "timeout": (2, "int64")},
    "RemoveContainerRequest": {"container_id": (1, "string")},
    "ContainerStatusRequest": {"container_id": (1, "string")},
    "ContainerStatus": {"state": (3, "int32"), "exit_code": (7, "int32"), "reason": (10, "string")},
    "ContainerStatusResponse": {"status": (1, "ContainerStatus")},
    "UpdateContainerResourcesRequest": {"container_id": (1, "string"), "linux": (2, "LinuxContainerResources")},
    "ExecSyncRequest": {"container_id": (1, "string"), "cmd": (2, "*string"), "timeout": (3, "int64")},
    "ExecSyncResponse": {"stdout": (1, "bytes"), "stderr": (2, "bytes"), "exit_code": (3, "int32")},
    "CheckpointContainerRequest": {"container_id": (1, "string"), "location": (2, "string"), "timeout": (3, "int64")},
    "Empty": {},
}
_NODE = 2  # of NamespaceMode: the node's own
_EXITED = 2  # of ContainerState


def _classes() -> dict[str, Any]:
    """The message classes by name."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="cri.proto", package="runtime.v1", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for key, (number, word) in fields.items():
            repeated, kind = word.startswith("*") or word == "map", word.lstrip("*")
            added = message.field.add(
                name=key, number=number, label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            )
            if kind == "map":
                entry = message.nested_type.add(name="".join(part.title() for part in key.split("_")) + "Entry")
                entry.options.map_entry = True
                for place, part in enumerate(("key", "value"), 1):
                    entry.field.add(name=part, number=place, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_STRING)
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".runtime.v1.{name}.{entry.name}"
            elif kind in _MESSAGES:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".runtime.v1.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"runtime.v1.{name}")) for name in _MESSAGES
    }


_CLASS = _classes()


class CriError(Exception):
    """A call that the runtime refused; the text is what kubelet would put into the pod's events."""


@dataclass(frozen=True)
class Container:
    """What kubelet would ask for: see api.proto's ContainerConfig. `mounts`, `devices`: host path by container path."""

    image: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    privileged: bool = False


@dataclass
class Pod:
    """A sandbox that runs."""

    client: "Client"
    id: str
    config: dict[str, Any]
    log: Path

    def create(self, wanted: Container, name: str = "", attempt: int = 0) -> str:
        """Make a container, not started; its id. kubelet restarts one by a further attempt of the same name."""
        name = name or "c" + uuid.uuid4().hex[:8]
        config = {
            "metadata": {"name": name, "attempt": attempt},
            "image": {"image": wanted.image},
            "command": list(wanted.command),
            "envs": [{"key": key, "value": value} for key, value in wanted.env.items()],
            "mounts": [{"container_path": to, "host_path": source} for to, source in wanted.mounts.items()],
            "devices": [
                {"container_path": to, "host_path": source, "permissions": "rw"}
                for to, source in wanted.devices.items()
            ],
            "annotations": dict(wanted.annotations),
            "log_path": f"{name}-{attempt}.log",
            "linux": {
                "security_context": {"privileged": wanted.privileged, "namespace_options": {"network": _NODE}},
            },
        }
        answer = self.client.call("CreateContainer", pod_sandbox_id=self.id, config=config, sandbox_config=self.config)
        made = str(answer.container_id)
        self.client.names[made] = self.log / f"{name}-{attempt}.log"
        return made

    def run(self, wanted: Container) -> tuple[int, str]:
        """Make, start and wait: its exit status and what it printed."""
        made = self.create(wanted)
        self.client.start(made)
        return self.client.wait(made), self.client.output(made)


class Client:
    """The calls of one runtime at a unix socket. Pods are put below `cgroup`."""

    def __init__(self, socket: Path, logs: Path, deadline: float = 60, *, cgroup: str = "/gpuhook-cri") -> None:
        # a daemon that is started again is looked for often
        options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100)]
        self.channel = grpc.insecure_channel(f"unix://{socket}", options)
        self.logs = logs
        self.deadline = deadline
        self.cgroup = cgroup
        self.names: dict[str, Path] = {}

    def close(self) -> None:
        """Leave the socket alone."""
        self.channel.close()

    def call(self, method: str, **fields: Any) -> Any:
        """One call; the fields are those of its request. CriError where it is refused."""
        answer = _CLASS.get(f"{method}Response", _CLASS["Empty"])
        stub: Any = self.channel.unary_unary(
            f"/runtime.v1.RuntimeService/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        try:
            return stub(_CLASS[f"{method}Request"](**fields), timeout=self.deadline)
        except grpc.RpcError as error:
            raise CriError(f"{error.code().name}: {error.details()}") from None

    def ready(self) -> bool:
        """Whether somebody answers."""
        try:
            self.call("Version")
        except CriError:
            return False
        return True

    def version(self) -> str:
        """Name and version of the runtime."""
        answer = self.call("Version")
        return f"{answer.runtime_name} {answer.runtime_version}"

    @contextmanager
    def pod(
        self, handler: str = "", annotations: Mapping[str, str] | None = None, *, privileged: bool = False
    ) -> Iterator[Pod]:
        """A sandbox of a runtime handler, on the host's network; taken down at the end with its containers."""
        name = "p" + uuid.uuid4().hex[:8]
        log = self.logs / name
        log.mkdir(parents=True)
        config = {
            "metadata": {"name": name, "uid": name, "namespace": "default"},
            "log_directory": str(log),
            "annotations": dict(annotations or {}),
            "linux": {
                "cgroup_parent": f"{self.cgroup}/{name}",
                "security_context": {"namespace_options": {"network": _NODE}, "privileged": privileged},
            },
        }
        made = self.call("RunPodSandbox", config=config, runtime_handler=handler).pod_sandbox_id
        try:
            yield Pod(self, made, config, log)
        finally:
            self.call("StopPodSandbox", pod_sandbox_id=made)
            self.call("RemovePodSandbox", pod_sandbox_id=made)

    def remove_all(self) -> None:
        """Take down what pods are left."""
        for each in self.call("ListPodSandbox").items:
            self.call("StopPodSandbox", pod_sandbox_id=each.id)
            self.call("RemovePodSandbox", pod_sandbox_id=each.id)

    def stop(self, container: str) -> None:
        """Kill what runs."""
        self.call("StopContainer", container_id=container, timeout=0)

    def start(self, container: str) -> None:
        """Start what was made."""
        self.call("StartContainer", container_id=container)

    def wait(self, container: str) -> int:
        """The exit status, once it has ended."""
        end = time.monotonic() + self.deadline
        while time.monotonic() < end:
            status = self.call("ContainerStatus", container_id=container).status
            if status.state == _EXITED:
                return int(status.exit_code)
            time.sleep(0.05)
        raise CriError(f"container {container} has not ended after {self.deadline} s")

    def execute(self, container: str, *argv: str) -> tuple[int, str]:
        """Run a program in a container that runs: its exit status, and its stdout and stderr."""
        answer = self.call("ExecSync", container_id=container, cmd=list(argv), timeout=20)
        return int(answer.exit_code), (answer.stdout + answer.stderr).decode()

    def output(self, container: str) -> str:
        """What a container printed. Each line of the log is: time, stream, F or P, text."""
        lines = self.names[container].read_text().splitlines()
        return "\n".join(line.split(" ", 3)[3] for line in lines)
