"""What each container was granted, for people: <state>/containers/ID.json.

Hot path, after all else was done: the file says what holds. It is written whole by rename, root's and for all to read.
Files of containers that have ended are collected at later starts, a few at each. Nothing here stops a start.
"""

import posix
import time
from _stat import S_ISDIR

from gpuhook import jsonio, linux
from gpuhook.config import trusted
from gpuhook.errors import GpuhookError
from gpuhook.model import Record, value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.model import JSON

FOLDER = "containers"
_FORMAT = 1
_NAME_LIMIT = 200  # characters; `.ID.json.PID.gpuhook` must be a file name, too. Engines' ids have 64
_LIMIT = 1 << 16
_LOOKS = 2  # files that one start looks at: each costs 30 us, and each start leaves one at most


@value
class Granted:
    """What a file says: the container's id and first process, what it was granted (UUIDs, capabilities), of which
    driver by which record, and when (UTC).

    `mode` is `shim` where nodes and rules are in its spec, and `hook-only` where the hook put them there behind the
    runtime's back: `systemctl daemon-reload` may take those rules away.
    """

    id: str
    pid: int
    devices: tuple[str, ...]
    capabilities: tuple[str, ...]
    record: Record
    mode: str = "shim"


def note(state: str, granted: Granted) -> str:
    """Write the file of a container and collect old ones. Returns a warning, or nothing."""
    if not is_plain(granted.id):
        return "what it was granted is not written down: its id is no plain file name"
    folder = f"{state}/{FOLDER}"
    try:
        _own(folder, state)
        born = _born(granted.pid)
        text: dict[str, JSON] = {
            "format": _FORMAT,
            "id": granted.id,
            "mode": granted.mode,
            "pid": granted.pid,
            "born": born,
            "devices": list(granted.devices),
            "capabilities": list(granted.capabilities),
            "driver": granted.record.driver,
            "record": granted.record.id,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        linux.write_beside(f"{folder}/{granted.id}.json", jsonio.dumps(text) + b"\n", 0o644)
        _collect(folder, granted.id)
    except OSError as error:
        return f"what it was granted is not written down: {folder}: {error.strerror}"
    except GpuhookError as error:
        return f"what it was granted is not written down: {error.message}"
    return ""


def is_plain(name: str) -> bool:
    """Whether a container's id may be a file name: ASCII letters, digits and `_+-.`, none of the last first."""
    rest = name.replace("_", "").replace("+", "").replace("-", "").replace(".", "")
    return 0 < len(name) <= _NAME_LIMIT and name[0] != "." and rest.isascii() and (rest.isalnum() or not rest)


def _own(folder: str, state: str) -> None:
    """See that both directories are there and nobody else's."""
    for path in (state, folder):
        try:
            posix.mkdir(path, 0o755)
        except FileExistsError:
            pass
        found = posix.lstat(path)
        if not S_ISDIR(found.st_mode) or not trusted(found):
            raise GpuhookError("config-untrusted", f"{path} is not root's alone", "")


def _born(pid: int) -> int:
    """When a process began, in ticks since boot (proc(5)): with the pid it names one process for good.

    -1 for none, and for one that has ended and waits for its parent.
    """
    try:
        fields = linux.read_file(f"/proc/{pid}/stat", 4096).rpartition(b")")[2].split()
        return -1 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return -1


def _collect(folder: str, own: str) -> None:
    """Remove a few files of containers that have ended; which are looked at goes round with the clock."""
    names = [name for name in posix.listdir(folder) if name != f"{own}.json"]
    if not names:
        return
    first = time.monotonic_ns() % len(names)
    for name in (names[first:] + names[:first])[:_LOOKS]:
        if not name.startswith(".") and name.endswith(".json") and not _is_over(f"{folder}/{name}"):
            continue
        if name.startswith(".") and _is_running(name):
            continue
        try:
            posix.unlink(f"{folder}/{name}")
        except OSError:
            pass  # another start was faster, or it is no file of ours


def running(state: str, name: str) -> bool:
    """Whether a container that runs was granted devices."""
    path = f"{state}/{FOLDER}/{name}.json"
    if not is_plain(name) or _is_over(path):
        return False
    try:
        data = jsonio.loads(linux.read_file(path, _LIMIT))
    except (OSError, ValueError):
        return False  # none of ours, or it has just ended
    return isinstance(data, dict) and bool(data.get("devices"))


def _is_over(path: str) -> bool:
    """Whether the container of a file has ended; so has that of one that can't be read."""
    try:
        data = jsonio.loads(linux.read_file(path, _LIMIT))
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    if not isinstance(data, dict):
        return True
    pid, born = data.get("pid"), data.get("born")
    return not isinstance(pid, int) or not isinstance(born, int) or born < 0 or _born(pid) != born


def _is_running(name: str) -> bool:
    """Whether the start that writes a temporary file (`.ID.json.PID.gpuhook`, linux.write_beside) still goes on."""
    pid = name.removesuffix(".gpuhook").rpartition(".")[2]
    return pid.isascii() and pid.isdigit() and _born(int(pid)) >= 0
