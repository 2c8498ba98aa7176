"""An OCI bundle's config.json: load, look, edit, save.

Hot path. The spec stays the dictionary that JSON gave, so that fields unknown here survive. The engine wrote the file
and is trusted; the values in `process.env` and `annotations` are the image's and the user's and are not.
"""

import posix

from gpuhook import jsonio, linux
from gpuhook.errors import GpuhookError
from gpuhook.model import Container, Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.model import JSON

_SPEC_LIMIT = 16 << 20

# How CRI engines mark a pod's sandbox, which gets no GPU whatever its image says (the pause image).
_SANDBOX = (("io.kubernetes.cri.container-type", "sandbox"), ("io.kubernetes.cri-o.ContainerType", "sandbox"))

# The hooks of NVIDIA's stack, by the name of their file; ours takes the place of one found in a spec.
FOREIGN_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
HOOK = "gpuhook-hook"
_STAGES = ("prestart", "createRuntime")  # where ours may stand
_HOOK_ENV = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"


class Spec:
    """One config.json: where it lies, what it says. `path` is absolute."""

    __slots__ = ("data", "folder", "mode", "owner", "path")

    def __init__(self, path: str, bundle: str = "") -> None:
        """Read it; `bundle` is another directory than its own. GpuhookError `bundle-unreadable`, `spec-invalid`."""
        self.path = _absolute(path)
        self.folder = _absolute(bundle) if bundle else self.path.rpartition("/")[0]
        try:
            fd = posix.open(self.path, posix.O_RDONLY | posix.O_NONBLOCK | linux.O_CLOEXEC)
            try:
                found = posix.fstat(fd)
                text = linux.read_fd(fd, _SPEC_LIMIT)
            finally:
                posix.close(fd)
        except OSError as error:
            raise GpuhookError(
                "bundle-unreadable",
                f"the bundle's {self.path} can't be read: {error.strerror}",
                "give --bundle a directory with the config.json that the engine wrote",
            ) from None
        self.mode = found.st_mode & 0o7777
        self.owner = (found.st_uid, found.st_gid)
        try:
            data = jsonio.loads(text)
        except ValueError as error:
            raise _invalid(self.path, f"is no JSON: {error}") from None
        if not isinstance(data, dict):
            raise _invalid(self.path, "is no JSON object")
        self.data = data

    def container(self) -> Container:
        """What decisions need of the spec. GpuhookError `spec-invalid` where a field has another type than OCI's."""
        process = self._object(self.data, "process")
        mounts = []
        types: dict[str, str] = {}
        for item in self._list(self.data, "mounts"):
            if not isinstance(item, dict):
                raise _invalid(self.path, "has a mount that is no object")
            destination = clean(self._string(item, "destination"))
            mounts.append((self._string(item, "source"), destination))
            bound = {"bind", "rbind"} & {str(option) for option in self._list(item, "options")}
            types[destination] = "bind" if bound else self._string(item, "type")  # runc goes by the options
        annotations = []
        for name, text in self._object(self.data, "annotations").items():
            if not isinstance(text, str):
                raise _invalid(self.path, f"has an annotation {name!r} that is no string")
            annotations.append((name, text))
        root = self._object(self.data, "root")
        path = self._string(root, "path")
        return Container(
            env=tuple(self._env(process)),
            annotations=tuple(annotations),
            mounts=tuple(mounts),
            privileged="CAP_SYS_ADMIN" in self._bounding(process),
            sandbox=any(mark in annotations for mark in _SANDBOX),
            root=path if path.startswith("/") else f"{self.folder}/{path}",
            tmpfs=tuple([destination for destination, kind in types.items() if kind == "tmpfs"]),
        )

    def orders(self) -> list[str]:
        """What the hook has to know of the spec itself, as its arguments.

        A container without `maskedPaths` gets nothing at /proc/driver/nvidia: it may make containers of its own, and
        the kernel lets no procfs be mounted in a user namespace while one in sight is partly covered.
        """
        linux_part = self._object(self.data, "linux")
        label = self._string(linux_part, "mountLabel")
        words = ["--proc"] if self._list(linux_part, "maskedPaths") else []
        return [*words, "--label", label] if label else words

    def _env(self, process: "dict[str, JSON]") -> "list[tuple[str, str]]":
        """`process.env` as (name, value), repeats kept; an entry without `=` says nothing and is skipped."""
        pairs = []
        for item in self._list(process, "env"):
            if not isinstance(item, str):
                raise _invalid(self.path, "has an entry in process.env that is no string")
            name, equals, text = item.partition("=")
            if equals:
                pairs.append((name, text))
        return pairs

    def _bounding(self, process: "dict[str, JSON]") -> "list[JSON]":
        """The bounding capabilities; before 1.0.0-rc5 `capabilities` was a plain list."""
        capabilities = process.get("capabilities")
        if isinstance(capabilities, list):
            return capabilities
        return self._list(self._object(process, "capabilities"), "bounding")

    def _object(self, parent: "dict[str, JSON]", name: str) -> "dict[str, JSON]":
        item = parent.get(name)
        if item is None:
            return {}
        if not isinstance(item, dict):
            raise _invalid(self.path, f"has a {name} that is no object")
        return item

    def _list(self, parent: "dict[str, JSON]", name: str) -> "list[JSON]":
        item = parent.get(name)
        if item is None:
            return []
        if not isinstance(item, list):
            raise _invalid(self.path, f"has a {name} that is no list")
        return item

    def _string(self, parent: "dict[str, JSON]", name: str) -> str:
        item = parent.get(name)
        if item is None:
            return ""
        if not isinstance(item, str):
            raise _invalid(self.path, f"has a {name} that is no string")
        return item

    # --- editing ------------------------------------------------------------------------------------------------

    def revoke(self) -> bool:
        """Take back the nodes and rules of an earlier grant, which our hook's arguments name; whether there was one.

        A bundle may be started again after its request, the configuration or the driver changed: what it got then must
        not stay. The hook itself stays for `add_hook` to replace, or `remove_hook` to remove.
        """
        names: set[str] = set()
        hooks = self._object(self.data, "hooks")
        found = False
        for stage in _STAGES:
            for item in self._list(hooks, stage):
                if isinstance(item, dict) and carries_orders(item):
                    found = True
                    words = self._list(item, "args")
                    names |= {str(words[at + 1]) for at, flag in enumerate(words[:-1]) if flag == "--node"}
        if not names:
            return found
        numbers = [tuple(name.rsplit(":", 2)) for name in names]
        paths = {number[0] for number in numbers}
        linux_part = self._object(self.data, "linux")
        for parent, key in ((linux_part, "devices"), (self.data, "mounts")):
            items = self._list(parent, key)
            place = "path" if key == "devices" else "destination"
            items[:] = [item for item in items if not (isinstance(item, dict) and item.get(place) in paths)]
        rules = self._list(self._object(linux_part, "resources"), "devices")
        ours = {number[1:] for number in numbers}
        rules[:] = [rule for rule in rules if not (isinstance(rule, dict) and _number(rule) in ours)]
        return True

    def remove_hook(self) -> None:
        """Remove our hook with its orders from every stage; one of an engine, which decides by itself, stays."""
        hooks = self._object(self.data, "hooks")
        for stage in _STAGES:
            items = self._list(hooks, stage)
            items[:] = [item for item in items if not carries_orders(item)]

    def has_orders(self) -> bool:
        """Whether the shim's hook is in it, which does the work."""
        hooks = self._object(self.data, "hooks")
        return any(carries_orders(item) for stage in _STAGES for item in self._list(hooks, stage))

    def device_rules(self) -> "tuple[tuple[bool, str, int, int, str], ...]":
        """`linux.resources.devices` as (allow, type, major, minor, access); -1 for any number. GpuhookError
        `spec-invalid`."""
        found = []
        for item in self._list(self._object(self._object(self.data, "linux"), "resources"), "devices"):
            if not isinstance(item, dict):
                raise _invalid(self.path, "has a device rule that is no object")
            numbers = []
            for name in ("major", "minor"):
                number = item.get(name)
                number = -1 if number is None else number
                if not isinstance(number, int) or number < -1:
                    raise _invalid(self.path, f"has a device rule whose {name} is {number!r}")
                numbers.append(number)
            kind, access = self._string(item, "type") or "a", self._string(item, "access")
            if kind not in ("a", "b", "c", "u") or access.strip("rwm"):
                raise _invalid(self.path, f"has a device rule of type {kind!r} with access {access!r}")
            found.append((item.get("allow") is True, kind, *numbers, access))
        return tuple(found)  # type: ignore[arg-type]

    def grant(
        self, nodes: "tuple[Node, ...]", dev_root: str = "/", *, rootless: bool = False, apart: tuple[str, ...] = ()
    ) -> None:
        """Add the device nodes, the cgroup rules that open just them, and their groups. Twice is once.

        In the spec, and not behind the runtime's back, so that runc, crun and systemd know them and `daemon-reload`
        does not take them away. Access is `rw` without `m`: no other minor can be made and opened (CVE-2021-1056).
        In a user namespace, the container's own or (`rootless`) the runtime's, no node can be made: the host's are
        mounted. Of the paths `apart`, which lie in volumes, there are the rules alone: the runtime would make the nodes
        in the volume.
        """
        linux_part = self._child(self.data, "linux")
        devices = self._own_list(linux_part, "devices")
        rules = self._own_list(self._child(linux_part, "resources"), "devices")
        paths = {node.path for node in nodes}
        devices[:] = [item for item in devices if not (isinstance(item, dict) and item.get("path") in paths)]
        is_mapped = rootless or self._has_user_namespace(linux_part)
        for node in nodes:
            number: dict[str, JSON] = {"type": "c", "major": node.major, "minor": node.minor}
            if not is_mapped and node.path not in apart:
                devices.append(
                    {"path": node.path, **number, "fileMode": node.mode & 0o777, "uid": node.uid, "gid": node.gid}
                )
            rule: dict[str, JSON] = {"allow": True, **number, "access": "rw"}
            if rule in rules:
                rules.remove(rule)
            rules.append(rule)
        if is_mapped:
            self._mount_nodes(tuple([node for node in nodes if node.path not in apart]), dev_root)
        elif self.data.get("process") is not None:
            self._add_groups(nodes)

    def _has_user_namespace(self, linux_part: "dict[str, JSON]") -> bool:
        spaces = [item.get("type") for item in self._list(linux_part, "namespaces") if isinstance(item, dict)]
        return bool(linux_part.get("uidMappings")) or "user" in spaces

    def _mount_nodes(self, nodes: "tuple[Node, ...]", dev_root: str) -> None:
        """The host's nodes as mounts. Runtimes would do the same with an entry of `linux.devices`, but with the node of
        that name in the host's /dev, whatever dev-root is; and crun 1.8.1 then gives hooks a wrong bundle."""
        mounts = self._own_list(self.data, "mounts")
        paths = {node.path for node in nodes}
        mounts[:] = [item for item in mounts if not (isinstance(item, dict) and item.get("destination") in paths)]
        base = "" if dev_root == "/" else dev_root
        for node in nodes:
            options: list[JSON] = ["bind", "ro", "nosuid", "noexec", "rprivate"]
            mounts.append({"destination": node.path, "type": "bind", "source": base + node.path, "options": options})

    def _add_groups(self, nodes: "tuple[Node, ...]") -> None:
        """The group of a node that others may not open; only without a user namespace, where a gid means itself."""
        groups = [node.gid for node in nodes if node.gid and node.mode & 0o060 == 0o060 and node.mode & 0o006 != 0o006]
        if not groups:
            return
        had = self._own_list(self._child(self._child(self.data, "process"), "user"), "additionalGids")
        had += [gid for gid in dict.fromkeys(groups) if gid not in had]

    def add_hook(
        self, stage: str, path: str, arguments: "list[str]", timeout: int, environment: tuple[str, ...] = ()
    ) -> "tuple[str, ...]":
        """Put our hook in, in the place of an earlier one or of NVIDIA's. Returns the paths of foreign hooks replaced.

        The environment is always explicit: a hook without one may get the image's (CVE-2025-23266).
        """
        entry: dict[str, JSON] = {
            "path": path,
            "args": [HOOK, *arguments],
            "env": [_HOOK_ENV, *environment],
            "timeout": timeout,
        }
        hooks = self._child(self.data, "hooks")
        replaced = []
        placed = False
        for name in _STAGES:
            if name not in hooks and name != stage:
                continue
            kept: list[JSON] = []
            for item in self._own_list(hooks, name):
                file_name = _hook_name(item)
                if file_name in FOREIGN_HOOKS and isinstance(item, dict):
                    replaced.append(str(item.get("path")))
                elif file_name != HOOK:
                    kept.append(item)
                    continue
                if name == stage and not placed:
                    kept.append(entry)
                    placed = True
            if name == stage and not placed:
                kept.append(entry)
            hooks[name] = kept
        return tuple(replaced)

    def _child(self, parent: "dict[str, JSON]", name: str) -> "dict[str, JSON]":
        if parent.get(name) is None:
            parent[name] = {}
        return self._object(parent, name)

    def _own_list(self, parent: "dict[str, JSON]", name: str) -> "list[JSON]":
        if parent.get(name) is None:
            parent[name] = []
        return self._list(parent, name)

    def save(self) -> None:
        """Replace the file whole, with its mode and owner. GpuhookError `spec-not-written`."""
        try:
            linux.write_beside(self.path, jsonio.dumps(self.data), self.mode, owner=self.owner)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise GpuhookError(
                "spec-not-written",
                f"{self.path} can't be replaced: {reason}",
                "see that the bundle's directory is writable and its disk not full",
            ) from None


def clean(path: str) -> str:
    """A mount's destination without `.`, `..`, repeated and closing slashes, as runtimes clean it."""
    done: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del done[-1:]
        elif part not in ("", "."):
            done.append(part)
    return "/" + "/".join(done)


def _absolute(path: str) -> str:
    return path if path.startswith("/") else f"{posix.getcwd()}/{path}"


def _hook_name(item: "JSON") -> str:
    path = item.get("path") if isinstance(item, dict) else None
    return path.rpartition("/")[2] if isinstance(path, str) else ""


def carries_orders(item: "JSON") -> bool:
    """Whether a hook is ours as the shim writes it (`grant.orders`), with what it decided in its arguments."""
    words = item.get("args") if isinstance(item, dict) and _hook_name(item) == HOOK else None
    return isinstance(words, list) and "--record" in words


def _number(rule: "dict[str, JSON]") -> tuple[str, ...]:
    """`(major, minor)` of a rule that `grant` writes, () for any other."""
    if rule.get("allow") is True and rule.get("type") == "c" and rule.get("access") == "rw":
        return (str(rule.get("major")), str(rule.get("minor")))
    return ()


def _invalid(path: str, what: str) -> GpuhookError:
    return GpuhookError("spec-invalid", f"{path} {what}", "the engine wrote this file; see its log")
