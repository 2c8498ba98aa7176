"""The record of this host's driver: read from the state directory while its key still matches, else made again.

The stored form is one JSON object. A file that is not whole, not of this format, or that others than root (or the
caller) could have written is never used: it is made again. Errors are recorded too, for a short time, so that fifty
starts on a broken host do not each wait for NVML.

Hot path: `gpuhook.driver.refresh` is imported only when a record must be made.
"""

import time

from gpuhook import jsonio
from gpuhook.config import paths, read_own
from gpuhook.driver import key
from gpuhook.errors import EXIT_CODES, GpuhookError
from gpuhook.model import DriverFile, FileId, Gpu, Mig, Record, value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuhook.config import Config
    from gpuhook.model import JSON

FORMAT = 4
NAME = "driver.json"
LIMIT = 4 << 20  # bytes; eight GPUs and sixty files take 20 KiB
ERROR_LIFE = 10.0  # seconds that an error is believed
LOST_GPU_LIFE = 60.0  # seconds that a record is believed in which a GPU did not answer: it may come back unannounced


@value
class Stored:
    """What the file holds: a record or an error (reference, message, hint); both where the driver does not answer.

    That record has no GPUs; a container that asks for none can do with it. `made` is when, in seconds since boot,
    `life` for how many seconds it is believed (None: while the key matches). `watch` are the paths below the driver
    root whose state is in the key, `left_out` the driver's files that no container gets, each with the reason.
    """

    made: float
    life: float | None
    key: "JSON"
    watch: "list[str]"
    left_out: "list[tuple[str, str]]"
    error: "tuple[str, str, str] | None"
    record: Record | None


def load(config: "Config", prefix: str, *, gpus: bool = True) -> Record:
    """The record of this host's driver; with `gpus` false also that of a driver that does not answer, without GPUs.

    Raises what is wrong with the driver: driver-not-found, driver-not-loaded, driver-version-mismatch, driver-changed,
    library-missing, library-untrusted, nvml-failed, nvml-timeout, nvml-crashed; or record-unavailable where another
    process has been at it for longer than NVML's deadline.
    """
    state = paths(prefix).state
    stored = read(state)
    if stored is not None and fits(config, stored):
        return result(stored, gpus=gpus)
    from gpuhook.driver import refresh  # noqa: PLC0415  # cold: ctypes, json, a process

    return refresh.renew(config, state, gpus=gpus)


def left_out(prefix: str) -> tuple[tuple[str, str], ...]:
    """The files of the driver that the stored record leaves out, each with the reason."""
    stored = read(paths(prefix).state)
    return () if stored is None else tuple(stored.left_out)


def read(state: str) -> Stored | None:
    """The stored form, if it is there, whole, of this format, and nobody else could have written it."""
    try:
        return _decoded(read_own(state, NAME, LIMIT))
    except (ValueError, TypeError, KeyError):
        return None


def fits(config: "Config", stored: Stored) -> bool:
    """Whether a stored form still describes this host."""
    if stored.life is not None and not 0 <= now() - stored.made <= stored.life:
        return False
    return key.take(config, stored.watch) == stored.key


def doubt(prefix: str) -> str:
    """Why the stored record has no GPUs: NVML's error, or an empty text."""
    stored = read(paths(prefix).state)
    return "" if stored is None or stored.error is None else f"{stored.error[1]} [{stored.error[0]}]"


def result(stored: Stored, *, gpus: bool = True) -> Record:
    """The record of a stored form; raises the error that it holds instead, or beside it where GPUs are wanted."""
    if stored.record is None or (gpus and stored.error is not None):
        raise GpuhookError(*(stored.error or ("internal", "an empty driver record", "")))
    return stored.record


def now() -> float:
    """Seconds since boot, sleep included; the key's boot id makes them comparable."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def encode(stored: Stored) -> bytes:
    """The file's content: values as rows of their fields, in order."""
    record = stored.record
    row: JSON = None
    if record is not None:
        gpus: JSON = [
            [
                gpu.index,
                gpu.uuid,
                gpu.minor,
                gpu.bus_id,
                gpu.name,
                gpu.brand,
                list(gpu.arch),
                gpu.error,
                gpu.mig,
                [[mig.index, mig.uuid, mig.gi, mig.ci, mig.gi_minor, mig.ci_minor, mig.gfx] for mig in gpu.migs],
            ]
            for gpu in record.gpus
        ]
        files: JSON = [
            [
                file.path,
                file.kind,
                file.capability,
                file.name,
                _state(file.id),
                file.soname,
                list(file.links),
                file.bits,
                file.target,
                file.text,
            ]
            for file in record.files
        ]
        row = [
            record.id,
            record.driver,
            list(record.cuda),
            record.cuda_assumed,
            record.machine,
            gpus,
            files,
            record.wsl,
        ]
    return jsonio.dumps(
        {
            "format": FORMAT,
            "made": stored.made,
            "life": stored.life,
            "key": stored.key,
            "watch": stored.watch,
            "left_out": [list(pair) for pair in stored.left_out],
            "error": None if stored.error is None else list(stored.error),
            "record": row,
        }
    )


def _state(item: FileId) -> "list[JSON]":
    return [item.dev, item.ino, item.size, item.mtime, item.ctime]


def _decoded(item: "Any") -> Stored | None:
    """The stored form of a parsed file; None, TypeError, ValueError or KeyError where `encode` wrote something else."""
    if type(item) is not dict or item.get("format") != FORMAT:
        return None
    life = item["life"]
    error = item["error"]
    if type(item["made"]) is not float or (life is not None and type(life) is not float):
        return None
    watch = [_str(path) for path in item["watch"]]
    pairs = [(_str(path), _str(reason)) for path, reason in item["left_out"]]
    row = item["record"]
    if error is None:
        return Stored(item["made"], life, item["key"], watch, pairs, None, _record(row))
    reference, message, hint = error
    if reference not in EXIT_CODES or life is None:
        return None
    problem = (reference, _str(message), _str(hint))
    return Stored(item["made"], life, item["key"], watch, pairs, problem, None if row is None else _record(row))


def _record(row: "list[Any]") -> Record:
    name, driver, cuda, assumed, machine, gpus, files, wsl = row
    return Record(
        _str(name),
        _str(driver),
        _ints(cuda),
        assumed is True,
        _str(machine),
        tuple([_gpu(item) for item in gpus]),
        tuple([_file(item) for item in files]),
        wsl is True,
    )


def _gpu(row: "list[Any]") -> Gpu:
    index, uuid, minor, bus_id, name, brand, arch, error, mig, migs = row
    return Gpu(
        _int(index),
        _str(uuid),
        _int(minor),
        _str(bus_id),
        _str(name),
        _str(brand),
        _ints(arch),
        _str(error),
        mig is True,
        tuple([_mig(item) for item in migs]),
    )


def _mig(row: "list[Any]") -> Mig:
    index, uuid, gi, ci, gi_minor, ci_minor, gfx = row
    return Mig(_int(index), _str(uuid), _int(gi), _int(ci), _int(gi_minor), _int(ci_minor), gfx is True)


def _file(row: "list[Any]") -> DriverFile:
    path, kind, capability, name, state, soname, links, bits, target, text = row
    for item in (path, kind, capability, name, soname, target, text, *links):
        if type(item) is not str:
            raise TypeError
    dev, inode, size, mtime, ctime = state
    for item in (dev, inode, size, mtime, ctime, bits):
        if type(item) is not int:
            raise TypeError
    know = FileId(dev, inode, size, mtime, ctime)
    return DriverFile(path, kind, capability, name, know, soname, tuple(links), bits, target, text)


def _str(item: str) -> str:
    if type(item) is not str:
        raise TypeError
    return item


def _int(item: int) -> int:
    if type(item) is not int:
        raise TypeError
    return item


def _ints(items: "list[int]") -> tuple[int, ...]:
    return tuple([_int(item) for item in items])
