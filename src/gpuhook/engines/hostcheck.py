"""What `gpuhook doctor` looks at on the host: kernel, gpuhook's installation, low-level runtime, cgroups, policy.

Off the hot path. Nothing is changed but what each start changes too: the compiled runtime.toml, the driver's record.
Every check is the code that a start goes through, or reads what that code wrote. A check that can't be made gives a
finding, never an exception.
"""

import errno
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from gpuhook import __version__, config, linux, shim, version
from gpuhook.config import Config
from gpuhook.engines import drivercheck, neighbours
from gpuhook.engines.host import Host
from gpuhook.engines.model import Finding
from gpuhook.errors import GpuhookError, bare

LAUNCHERS = ("gpuhook-runtime", "gpuhook-hook", "gpuhook")
_LIBRARY = ("gpuhook-shim", "shim.bundle", "hook.bundle")  # what the launchers open, in the folder of the version
_NAMES_VERSION = re.compile(rb"/usr/lib/gpuhook/([0-9][0-9a-z.+~]*)")
_PYTHON = "/usr/bin/python3"  # what all launchers start, where there is not this one below the prefix:
_BUNDLED_PYTHON = "usr/lib/gpuhook/python/bin/python3"
_OLDEST_PYTHON = (3, 11)
_AT_FDCWD = -100
# runc 1.1.3 took device rules to systemd by /dev/char alone and dropped those without a link there; 1.1.7 looks at the
# numbers (runc's change log, issues 3671 and 3708)
_LINKS_NEEDED = ((1, 1, 3), (1, 1, 7))


def findings(host: Host, prefix: str, engine: str = "") -> tuple[Finding, ...]:
    """All of the host's findings, in the order in which a start meets them. `prefix` is gpuhook's installation;
    `engine`: without what is about other engines alone."""
    found = [*_kernel(), *_installation(prefix), *_python(host, prefix)]
    settings, broken = _settings(prefix)
    found += [broken, *_runtime(host, settings, prefix)]
    if broken.level != "problem":  # whose roots would be looked at is not known
        found += [*drivercheck.findings(host, settings, prefix), *policy(settings)]
    return (*found, *_cgroups(host), *_security(host), *neighbours.findings(host, settings, prefix, engine))


# --- the kernel ---------------------------------------------------------------------------------------------------


def _kernel() -> Iterator[Finding]:
    """Each system call is made with arguments that do nothing."""
    release = os.uname().release
    refused, missing = [], []
    for name, call in _CALLS:
        try:
            call()
        except GpuhookError as error:
            missing.append((name, error))
        except OSError as error:
            if error.errno == errno.EPERM and (config.is_host_root() or name == "openat2"):
                refused.append(name)
    fatal = [error for name, error in missing if name != "mount_setattr"]
    if fatal:
        yield Finding("problem", "kernel", fatal[0].message, fatal[0].hint)
    elif refused:
        text = f"Linux {release} refuses {', '.join(refused)} with EPERM, as a seccomp filter does"
        yield Finding("problem", "kernel", text, "let the sandbox around gpuhook and the engine permit these calls")
    elif missing:
        text = f"Linux {release} has no mount_setattr (5.12): mounts get their flags by the older way, which works"
        yield Finding("note", "kernel", text)
    else:
        yield Finding("ok", "kernel", f"Linux {release} has every system call that gpuhook uses")


_CALLS: tuple[tuple[str, Callable[[], None]], ...] = (
    ("openat2", lambda: os.close(linux.openat2(_AT_FDCWD, "/", linux.O_PATH, linux.RESOLVE_IN_ROOT))),
    ("open_tree", lambda: os.close(linux.open_tree(_AT_FDCWD, "/", 0))),
    ("move_mount", lambda: linux.move_mount(-1, -1)),
    ("fsopen", lambda: os.close(linux.fsopen("tmpfs"))),
    ("mount_setattr", lambda: linux.mount_setattr(-1, 0, 0)),
)


# --- gpuhook's own ------------------------------------------------------------------------------------------------


def _installation(prefix: str) -> Iterator[Finding]:
    wrong = [text for name in LAUNCHERS for text in _launcher(f"{prefix}/usr/bin/{name}")]
    library = f"{prefix}/usr/lib/gpuhook/{__version__}"
    for path in (library, *(f"{library}/{name}" for name in _LIBRARY)):
        wrong += _not_ours(path)
    if wrong:
        yield Finding("problem", "installation", wrong[0], "install gpuhook again, from its package or scripts/install")
        return
    text = f"gpuhook {__version__}: programs in {prefix}/usr/bin, which nobody else may write"
    yield Finding("ok", "installation", text)
    old = [name for name in _LIBRARY[1:] if not Path(library, name).read_bytes().startswith(MAGIC_NUMBER)]
    if old and os.path.realpath(sys.executable) == os.path.realpath(_started(prefix)):
        text = f"{', '.join(old)} were made for another version of Python: each start takes longer"
        yield Finding("note", "bundles", text, "install gpuhook again, which makes them for this Python")


def _launcher(path: str) -> list[str]:
    """What is wrong with a program of gpuhook's."""
    wrong = _not_ours(path)
    if wrong:
        return wrong
    if not os.access(path, os.X_OK):
        return [f"{path} is not executable"]
    with open(path, "rb") as file:
        named = {item.decode() for item in _NAMES_VERSION.findall(file.read(1 << 16))}
    if named != {__version__}:
        return [f"{path} is of version {', '.join(sorted(named)) or 'unknown'}, this command of {__version__}"]
    return []


def _not_ours(path: str) -> list[str]:
    """What is wrong with who owns a file and the way to it, and who may write there: the rule of runtime.toml."""
    try:
        real = os.path.realpath(path, strict=True)
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    while True:
        found = os.lstat(real)
        sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if not config.is_own(found.st_uid):
            return [f"{path}: {real} belongs to user {found.st_uid}, who could exchange what root runs"]
        if not config.trusted(found) and not sticky:
            mode = stat.S_IMODE(found.st_mode)
            return [f"{path}: {real} may be written by others (mode {mode:04o}), who could exchange what root runs"]
        if real == "/":
            return []
        real = os.path.dirname(real)


def _started(prefix: str) -> str:
    """The Python that the launchers of an installation start."""
    bundled = f"{prefix}/{_BUNDLED_PYTHON}"
    return bundled if os.path.lexists(bundled) else _PYTHON


def _python(host: Host, prefix: str) -> Iterator[Finding]:
    python = _started(prefix)
    said = host.ask(python, "-ISc", "import sys; print(*sys.version_info[:3], sep='.')")
    found = version.parse((said or "").strip())
    if found is None:
        hint = "install python3: without it a container that may ask for a GPU does not start"
        if python != _PYTHON:
            hint = "unpack gpuhook again: without its Python a container that may ask for a GPU does not start"
        yield Finding("problem", "python", f"{python} is not there, or does not run", hint)
    elif found < _OLDEST_PYTHON:
        wanted = version.text(_OLDEST_PYTHON)
        text = f"{python} is Python {version.text(found)}, and gpuhook needs {wanted} or newer"
        yield Finding("problem", "python", text, f"make {python} a Python of version {wanted} or newer")
    else:
        yield Finding("ok", "python", f"{python} is Python {version.text(found)}")


def _settings(prefix: str) -> tuple[Config, Finding]:
    """The configuration in force, or the defaults, and what is to be said of the file."""
    path = config.paths(prefix).config
    try:
        settings = config.load(prefix)
    except GpuhookError as error:
        return config.defaults(), Finding("problem", "configuration", error.message, error.hint)
    there = os.path.lexists(path)
    text = f"{path} is valid, and nobody else may write it" if there else f"{path} is not there: the defaults hold"
    return settings, Finding("ok", "configuration", text)


def _runtime(host: Host, settings: Config, prefix: str) -> Iterator[Finding]:
    """The low-level runtime, found as the shim finds it."""
    own = f"{prefix}/usr/bin/gpuhook-runtime"
    folders = [folder for folder in host.environ.get("PATH", "").split(":") if folder.startswith("/")]
    paths = [
        path for name in settings.low_level for path in ([name] if "/" in name else [f"{at}/{name}" for at in folders])
    ]
    itself = [path for path in dict.fromkeys(paths) if host.same(path, own)]
    passed = f"{', '.join(itself)} is gpuhook itself and is passed over" if itself else ""
    try:
        found = shim.low_level(settings.low_level, own)
    except GpuhookError as error:
        text = f"{error.message}; {passed}" if passed else error.message
        yield Finding("problem", "runtime", text, error.hint)
        return
    said = host.ask(found, "--version")
    first = (said or "").partition("\n")[0].strip()
    if not first:
        hint = "see what it says to --version; another can be named as low-level in runtime.toml"
        yield Finding("problem", "runtime", f"{found} does not say its version: it does not run here", hint)
        return
    yield Finding("ok", "runtime", f"{found}: {bare(first)}")
    if passed:
        yield Finding("note", "runtime-itself", f"{passed}: {found} is run")
    numbers = version.parse_loose(first.rpartition(" ")[2])
    low, high = _LINKS_NEEDED
    if shim.dialect(found) == "runc" and low <= numbers[:3] < high:
        text = f"runc {version.text(numbers)} drops the rule of a device without a link in /dev/char: gpuhook makes it"
        yield Finding("note", "runtime-bug", text, "update runc to 1.1.7 or newer, which has no need of them")


# --- policy -------------------------------------------------------------------------------------------------------


def policy(settings: Config) -> Iterator[Finding]:
    """Who may ask for GPUs, in words; and the requirement policy."""
    by_mounts = settings.accept_devices_as_volume_mounts
    ways = ["volume mounts"] * by_mounts + ["annotations"] * bool(settings.annotation_prefixes)
    if settings.accept_env_when_unprivileged:
        also = f"; also by {' and '.join(ways)}" if ways else ""
        text = f"every container may ask for every GPU by its environment, which its image can set{also}"
        hint = "where a scheduler hands out GPUs: `gpuhook configure ENGINE --privileged-only`" if by_mounts else ""
        yield Finding("note" if by_mounts else "ok", "policy", text, hint)
    elif ways:
        text = f"unprivileged containers ask by {' or '.join(ways)} alone, privileged ones by their environment too"
        yield Finding("ok", "policy", text)
    else:
        text = "only privileged containers can ask for GPUs: no way is open to others"
        hint = "set request.accept-devices-as-volume-mounts = true in runtime.toml, as a device plugin needs it"
        yield Finding("warning", "policy", text, hint)
    if settings.policy in ("warn", "off"):
        what = "only logged" if settings.policy == "warn" else "not looked at"
        text = f"requirement.policy is {settings.policy}: that an image needs a newer driver is {what}"
        yield Finding("note", "requirement-policy", text)


# --- what is around ------------------------------------------------------------------------------------------------


def _cgroups(host: Host) -> Iterator[Finding]:
    rootless = "and rootless: no device rules; the nodes that are mounted are what can be opened"
    if host.exists("/sys/fs/cgroup/cgroup.controllers"):
        text = "version 2: the runtime turns the spec's device rules into a BPF program"
        yield Finding("ok", "cgroup", f"version 2, {rootless}" if host.uid else text)
    elif host.exists("/sys/fs/cgroup/devices"):
        hybrid = " (version 2 beside it, without the controllers)" if host.exists("/sys/fs/cgroup/unified") else ""
        text = f"version 1{hybrid}: the runtime writes the spec's rules into the devices group"
        yield Finding("ok", "cgroup", f"version 1{hybrid}, {rootless}" if host.uid else text)
    else:
        text = "neither version 2 nor the devices controller of version 1 is mounted at /sys/fs/cgroup"
        yield Finding("warning", "cgroup", text, "mount cgroups as the engine needs them, or nothing guards devices")
    runs = "runs: after daemon-reload it applies the device rules that the spec has, so GPUs stay"
    none = "does not run here: nothing applies device rules anew"
    yield Finding("ok", "systemd", runs if host.exists("/run/systemd/system") else none)


def _security(host: Host) -> Iterator[Finding]:
    if host.text("/sys/fs/selinux/enforce").strip() == "1":
        hint = "setsebool -P container_use_devices on; or for one container --security-opt label=disable"
        text = "enforcing: a confined container opens the driver's nodes only where the policy lets it"
        yield Finding("note", "selinux", text, hint)
    if host.text("/sys/module/apparmor/parameters/enabled").strip() in ("Y", "y"):
        yield Finding("ok", "apparmor", "on: the engines' default profiles let containers open device nodes")
    told = [
        item[10:] for item in host.text("/proc/1/environ").split("\0") if item.startswith("container=")
    ]  # LXC's way
    inside = host.text("/run/systemd/container").strip() or "".join(told[:1])
    if inside:
        text = f"this host is itself a container ({bare(inside)}): only nodes that are here can be given"
        yield Finding("note", "nested", text)
