"""Start the NVML helper, wait for it no longer than the deadline, and check what it answers.

Off the hot path. The helper is not trusted: its answer is bounded, and every text of it is cut and cleaned.
"""

import contextlib
import errno
import fcntl
import importlib.util
import json
import os
import re
import select
import signal
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuhook.config import Config
from gpuhook.driver.tree import file_id
from gpuhook.errors import GpuhookError
from gpuhook.model import DriverFile, Gpu, Mig

_HELPER = Path(__file__).with_name("helper.py")
_PIPE = 3  # the helper's side of the pipe, as helper.py has it
_FREE = 10  # descriptors are moved from here up, so that the moves of the start cannot hit each other
_LIMIT = 1 << 20  # bytes of an answer; 64 GPUs take 16 KiB
_KILL_WAIT = 0.5  # seconds that a killed helper gets to go; one in uninterruptible sleep is abandoned
_NOBODY = 65534
_TEXT = 200  # characters of any text that NVML gives
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9/_.-]*", re.ASCII)
_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", re.ASCII)
_NODES = re.compile(r"nvidia(ctl|[0-9]+)|dxg", re.ASCII)

_NOT_LOADED, _MISMATCH, _PERMISSION = 9, 18, 4  # nvmlReturn_t
_NO_PYNVML, _NO_LIBRARY, _OTHER = -1, -2, -3  # helper.py's own


@dataclass(frozen=True)
class Answer:
    """What NVML says: the driver's version, its CUDA level (empty where NVML has no such call) and the GPUs."""

    driver: str
    cuda: tuple[int, ...]
    gpus: tuple[Gpu, ...]


def ask(config: Config, nvml: DriverFile, cuda: DriverFile | None) -> Answer:
    """Ask NVML by way of the library `nvml` of the driver root.

    A helper that was killed is started once more: any process of its user, nobody, may kill it.
    Raises nvml-timeout, nvml-crashed, nvml-failed, driver-not-loaded, driver-version-mismatch, and driver-changed where
    a library is no longer the file that was found.
    """
    try:
        data, status = _asked(config, nvml, cuda)
        if status == -signal.SIGKILL:
            data, status = _asked(config, nvml, cuda)
    except OSError as error:
        hint = (
            "raise the limit that is meant (ulimit -n of the engine, the memory of its cgroup), or see the kernel's log"
        )
        raise _failed(f"the NVML helper cannot be started: {error.strerror}", hint) from None
    return _read(nvml, data, status)


def _asked(config: Config, nvml: DriverFile, cuda: DriverFile | None) -> tuple[bytes, int | None]:
    """One helper's words and exit status."""
    descriptors: list[int] = []
    try:
        libraries = [_open(config, file) for file in (nvml, cuda) if file is not None]
        descriptors += libraries
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        descriptors.append(read_end)
        try:
            pid = _start(config, libraries, write_end)
        finally:
            os.close(write_end)
        return _wait(config, pid, read_end)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


# --- the process --------------------------------------------------------------------------------------------------


def _open(config: Config, file: DriverFile) -> int:
    """A descriptor of the very file that discovery judged."""
    path = config.driver_root.rstrip("/") + file.path
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _changed(path, error.strerror or "") from None
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FREE)
    os.close(descriptor)
    if file_id(os.fstat(moved)) != file.id:
        os.close(moved)
        raise _changed(path, "it is another file now")
    return moved


def _changed(path: str, reason: str) -> GpuhookError:
    return GpuhookError(
        "driver-changed",
        f"the driver's files changed while they were read: {path}: {reason}",
        "try again when the driver's installation has ended",
    )


def _start(config: Config, libraries: list[int], pipe: int) -> int:
    """Start the helper with an empty environment and five known descriptors; its pid."""
    python = sys.executable if sys.executable.startswith("/") else "/usr/bin/python3"
    arguments = [
        python,
        "-ISB",
        str(_HELPER),
        str(os.getpid()),
        str(_PIPE + 1),
        str(_PIPE + 2 if len(libraries) > 1 else -1),
        _pynvml_directory(),
        str(_NOBODY),
        str(_NOBODY),
        ",".join(str(gid) for gid in sorted(_node_groups(config))),
        str(config.nvml_deadline + 2),
    ]
    moved = fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, _FREE)
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_DUP2, 0, 2),
        (os.POSIX_SPAWN_DUP2, moved, _PIPE),
    ]
    for place, descriptor in enumerate([*libraries, 0][:2], start=_PIPE + 1):
        actions.append((os.POSIX_SPAWN_DUP2, descriptor, place))
    default = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    try:
        return os.posix_spawn(python, arguments, {}, file_actions=actions, setsigdef=default, setsigmask=())
    except OSError as error:
        raise _failed(f"the NVML helper cannot be started: {python}: {error.strerror}") from None
    finally:
        os.close(moved)


def _pynvml_directory() -> str:
    """Where pynvml lies: beside the installed package, or wherever this interpreter finds it."""
    vendor = Path(__file__).resolve().parents[2] / "vendor"
    if (vendor / "pynvml.py").is_file():
        return str(vendor)
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise _failed("pynvml is missing from gpuhook's installation", "install gpuhook again")
    origin = Path(spec.origin)
    return str(origin.parents[1] if origin.name == "__init__.py" else origin.parent)


def _node_groups(config: Config) -> set[int]:
    """The groups without which nobody cannot open the driver's nodes: none where the nodes are open to all."""
    groups: set[int] = set()
    directory = Path(config.dev_root) / "dev"
    try:
        names = [name for name in os.listdir(directory) if _NODES.fullmatch(name)]
    except OSError:
        return groups
    for name in names:
        try:
            status = os.lstat(directory / name)
        except OSError:
            continue
        open_to_all = status.st_mode & 0o006 == 0o006
        if stat.S_ISCHR(status.st_mode) and not open_to_all and status.st_mode & 0o060 == 0o060:
            groups.add(status.st_gid)
    return groups


def _wait(config: Config, pid: int, pipe: int) -> tuple[bytes, int | None]:
    """The helper's answer and its wait status (None: unknown), by the deadline at the latest. Raises nvml-timeout."""
    end = time.monotonic() + config.nvml_deadline
    process = os.pidfd_open(pid)
    data = b""
    try:
        os.set_blocking(pipe, False)
        poller = select.poll()
        poller.register(pipe, select.POLLIN)
        poller.register(process, select.POLLIN)
        while (left := end - time.monotonic()) > 0 and len(data) <= _LIMIT:
            ready = {descriptor for descriptor, _ in poller.poll(left * 1000)}
            if pipe in ready:
                chunk = _drain(pipe)
                data += chunk
                if not chunk:
                    poller.unregister(pipe)
            if process in ready:
                return data + _drain(pipe), _reap(process)
        _kill(pid, process)
        if len(data) > _LIMIT:
            raise _failed(f"NVML's answer is longer than {_LIMIT} bytes")
        raise GpuhookError(
            "nvml-timeout",
            f"NVML did not answer within {config.nvml_deadline} s (nvml-deadline); its process was killed",
            "does nvidia-smi answer on the host? Look for NVRM and Xid lines in dmesg: a GPU that hangs needs a reset"
            " or a reboot\nwhere NVML is only slow, start nvidia-persistenced or raise nvml-deadline in runtime.toml",
        )
    finally:
        os.close(process)


def _drain(pipe: int) -> bytes:
    try:
        return os.read(pipe, 65536)
    except BlockingIOError:
        return b""


def _kill(pid: int, process: int) -> None:
    """Kill the helper and what it started, and take it off the process table if it goes at once."""
    with contextlib.suppress(ProcessLookupError):  # until it has made its own session, the helper has no such group
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGKILL)
    poller = select.poll()
    poller.register(process, select.POLLIN)
    if poller.poll(_KILL_WAIT * 1000):
        _reap(process)


def _reap(process: int) -> int | None:
    """The exit status, negative for a signal; None where the caller ignores SIGCHLD and the kernel kept none."""
    try:
        result = os.waitid(os.P_PIDFD, process, os.WEXITED | os.WNOHANG)
    except OSError as error:
        if error.errno != errno.ECHILD:
            raise
        return None
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


# --- the answer ---------------------------------------------------------------------------------------------------


def _read(nvml: DriverFile, data: bytes, status: int | None) -> Answer:
    if status is not None and status < 0:
        name = signal.Signals(-status).name if -status in signal.valid_signals() else str(-status)
        raise GpuhookError(
            "nvml-crashed",
            f"NVML ({nvml.path}) ended its process with signal {name}",
            "does nvidia-smi run on the host? Look for NVRM and Xid lines in dmesg; install the driver again if it"
            " crashes too",
        )
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        raise _failed(f"the NVML helper ended with status {status} and no answer") from None
    if not isinstance(answer, dict):
        raise _failed("the NVML helper's answer has another form than expected")
    try:
        if "error" in answer:
            raise _refused(nvml, answer["error"])
        cuda = _number(answer["cuda"], 0, 1_000_000)
        gpus = tuple(_gpu(row) for row in answer["gpus"])
        level = (cuda // 1000, cuda % 1000 // 10) if cuda >= 1000 else ()
        return Answer(_clean(answer["driver"]), level, gpus)
    except (KeyError, TypeError, ValueError) as error:
        raise _failed(f"the NVML helper's answer has another form than expected: {error}") from None


def _refused(nvml: DriverFile, error: object) -> GpuhookError:
    """The error for what NVML refused, by its number, in its words."""
    code = error.get("code") if isinstance(error, dict) else None
    text = _clean(error.get("text", "")) if isinstance(error, dict) else ""
    if code == _NOT_LOADED:
        return GpuhookError(
            "driver-not-loaded",
            f"NVML says that the kernel module is not loaded: {text}",
            "run `modprobe nvidia` and look into dmesg for NVRM lines if it fails",
        )
    if code == _MISMATCH:
        version = nvml.name.partition(".so.")[2]
        return GpuhookError(
            "driver-version-mismatch",
            f"the loaded kernel module and the libraries ({version}) are of different versions, says NVML: {text}",
            "reboot, or unload and load the nvidia modules, so that the kernel runs the installed driver",
        )
    if code == _PERMISSION:
        return _failed(f"NVML may not open the driver's nodes: {text}", "look at owner and mode of /dev/nvidiactl")
    if code == _NO_PYNVML:
        return _failed(text, "install gpuhook again")
    if code == _NO_LIBRARY:
        hint = "install the driver's libraries again"
        if "failed to map segment" in text:  # what the loader says where the kernel lets no program be mapped
            hint = "mount the file system that it lies on without noexec (findmnt -T names it)"
        return _failed(f"{nvml.path} cannot be loaded: {text}", hint)
    return _failed(f"NVML failed: {text or 'no reason given'}")


def _failed(message: str, hint: str = "does nvidia-smi run on the host? Look for NVRM lines in dmesg") -> GpuhookError:
    return GpuhookError("nvml-failed", message, hint)


def _gpu(row: dict[str, Any]) -> Gpu:
    return Gpu(
        _number(row["index"], 0, 4095),
        _formed(_UUID, row["uuid"]),
        _number(row["minor"], -1, 1 << 20),
        _formed(_BUS_ID, row["bus_id"]).lower(),
        _clean(row["name"]),
        _clean(row["brand"]).lower(),
        tuple(_number(part, 0, 999) for part in row["arch"][:2]),
        _clean(row["error"]),
        row["mig"] is True,
        tuple(_mig(*item) for item in row["migs"][:64]),
    )


def _mig(index: object, uuid: object, gi: object, ci: object, gfx: object) -> Mig:
    ids = _number(index, 0, 63), _formed(_UUID, uuid), _number(gi, 0, 4095), _number(ci, 0, 4095)
    return Mig(*ids, gfx=gfx is True)


def _number(item: object, low: int, high: int) -> int:
    if type(item) is not int or not low <= item <= high:
        raise ValueError(f"no number from {low} to {high}: {item!r:.50}")
    return item


def _formed(form: re.Pattern[str], item: object) -> str:
    """A word that becomes part of a path or of an argument; empty where NVML did not tell."""
    text = _clean(item)
    if text and not form.fullmatch(text):
        raise ValueError(f"{text!r:.50} is not of the form {form.pattern}")
    return text


def _clean(item: object) -> str:
    """A text without what a terminal or a log would take for control, cut to a bearable length."""
    if not isinstance(item, str):
        raise TypeError(f"no text: {item!r:.50}")
    return "".join(letter for letter in item[:_TEXT] if letter.isprintable()).strip()
