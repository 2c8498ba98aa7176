"""Make the driver's record: find the files, ask NVML, put both under the key, store them for all later starts.

Off the hot path. One process refreshes, under a lock that the kernel frees if it dies; the others wait for its result.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import time

from gpuhook import cuda, jsonio, linux
from gpuhook.config import Config, trusted
from gpuhook.driver import key, making, nvml, record, wsl
from gpuhook.driver.discover import Found, discover
from gpuhook.driver.record import Stored
from gpuhook.errors import GpuhookError
from gpuhook.model import Gpu, Record, astuple, replace

LOCK = "driver.lock"
_MOST_LEFT_OUT = 256  # files that are said to be left out: each start reads them
_TRIES = 3  # refreshes in a row during which the driver may change under us
_EXTRA_WAIT = 5.0  # seconds that another process gets beyond NVML's deadline
# What the files alone say. An installer at work can make it look so for a moment: it counts where it is seen twice.
_OF_FILES = ("driver-not-found", "driver-architecture", "driver-version-mismatch", "library-missing")
# What NVML may say of a loaded driver that leaves its files to be of use to who wants no GPU.
_NVML_ALONE = ("driver-not-loaded", "nvml-failed", "nvml-timeout", "nvml-crashed")
_VERSION = re.compile(r"\b\d{2,4}\.\d{1,4}(?:\.\d{1,4})?\b", re.ASCII)


def renew(config: Config, state: str, *, gpus: bool = True) -> Record:
    """Make the record and store it in the directory `state`, or take the one that another process stores meanwhile.

    `gpus` is as in `record.load`. Raises what that raises. Where nothing can be stored (a read-only /run, a directory
    that is not ours), the record is made for this start alone.
    """
    lock = _open_lock(state)
    if lock is None:
        return record.result(make(config), gpus=gpus)
    try:
        stored = _wait_for_lock(config, state, lock)
        if stored is None:
            stored = make(config)
            with contextlib.suppress(OSError):
                linux.write_beside(f"{state}/{record.NAME}", record.encode(stored), 0o644)
        return record.result(stored, gpus=gpus)
    finally:
        os.close(lock)


def _open_lock(state: str) -> int | None:
    """The lock file's descriptor; None where the state directory cannot be written or is not to be trusted."""
    try:
        made = _make_directory(state)
        directory = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if made:
            os.fchmod(directory, 0o755)  # all may read it, whatever the caller's umask
        if not trusted(os.fstat(directory)):
            return None
        # closed to others: whoever can open it could hold the lock for ever
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(LOCK, flags, 0o600, dir_fd=directory)
    except OSError:
        return None
    finally:
        os.close(directory)


def _make_directory(path: str) -> bool:
    """Make a directory and those above it; whether it was not there before."""
    if os.path.isdir(path):
        return False
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        return False
    return True


def _wait_for_lock(config: Config, state: str, lock: int) -> Stored | None:
    """Take the lock (None), or wait until whoever holds it has stored a fitting record.

    Raises record-unavailable where neither happens in time.
    """
    end = time.monotonic() + config.nvml_deadline + _EXTRA_WAIT
    seen: object = None
    pause = 0.002
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except BlockingIOError:
            locked = False
        now = _stamp(state)
        if now is not None and now != seen:
            seen = now
            stored = record.read(state)
            if stored is not None and record.fits(config, stored):
                return stored
        if locked:
            return None
        if time.monotonic() > end:
            raise GpuhookError(
                "record-unavailable",
                f"another process has been reading the driver's state for more than {config.nvml_deadline} s"
                f" (lock {state}/{LOCK})",
                "look for a hanging gpuhook process with `fuser` on the lock file, and for Xid lines in dmesg",
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def _stamp(state: str) -> tuple[int, ...] | None:
    """What changes when the record is replaced."""
    try:
        status = os.lstat(f"{state}/{record.NAME}")
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size)


# --- making -------------------------------------------------------------------------------------------------------


def make(config: Config) -> Stored:
    """A fresh record, or the error in its place or beside it; read again when the driver changed meanwhile."""
    seen: object = None
    for _ in range(_TRIES):
        before = key.head(config)
        found = Found("")
        error: tuple[str, str, str] | None = None
        made: Record | None = None
        first: object = None
        try:
            version = _loaded(config)
            windows = not version and wsl.is_here(config)
            found = wsl.discover(config) if windows else _files(config, version)
            first = key.take(config, sorted(found.watch))
            made, error = (_of_windows(config, found), None) if windows else _record(config, version, found)
        except GpuhookError as problem:
            error = (problem.reference, problem.message, problem.hint)
        watch = sorted(found.watch)
        taken = key.take(config, watch)
        settled = error is None or error[0] not in _OF_FILES or (error, taken) == seen
        seen = (error, taken)
        if settled and taken[0] == before and first in (None, taken):
            break
    else:
        made = None
        error = (
            "driver-changed",
            "the driver's files or its kernel module changed each of three times while they were read",
            "try again when the driver's installation has ended",
        )
    if made is not None:
        # without the directories' state: a package installed beside the driver makes a new record, not another driver;
        # without gpuhook's version, which comes first: a hook may be newer than the shim that called it
        made = replace(made, id=_short_hash([before[1:], _plain(made)]))
    life = record.ERROR_LIFE if error is not None else None
    if error is not None and error[0] == "driver-changed":
        life = 0.0  # who comes next may find it at rest
    if error is None and made is not None and any(gpu.error for gpu in made.gpus):
        life = record.LOST_GPU_LIFE
    return Stored(record.now(), life, taken, watch, _few(found.left_out), error, made)


def _few(left_out: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What was left out, up to a number that a person reads."""
    if len(left_out) <= _MOST_LEFT_OUT:
        return left_out
    last, reason = left_out[_MOST_LEFT_OUT - 1]
    more = len(left_out) - _MOST_LEFT_OUT
    return [*left_out[: _MOST_LEFT_OUT - 1], (last, f"{reason}; {more} more files are not named here")]


def _files(config: Config, version: str) -> Found:
    """The files of the loaded driver; where none is loaded, of the one that is installed, if it is one."""
    found = discover(config, version)
    return discover(config, *found.versions) if not version and len(found.versions) == 1 else found


def _of_windows(config: Config, found: Found) -> Record:
    """The record of Windows' driver on WSL2, of whose version only NVML tells. Raises what stands in the way.

    There a GPU has no node of its own, so its minor says nothing, and NVML may have none.
    """
    wsl.check(config)
    named = {name: file for file in found.files if file.kind == "library" for name in file.links}
    library = named.get("libnvidia-ml.so.1")
    if library is None:
        raise GpuhookError(
            "library-missing",
            f"Windows' driver store has no libnvidia-ml.so.1: {_where(config, found)}",
            "install NVIDIA's driver on Windows again, then run `wsl --shutdown` there",
        )
    try:
        answer = nvml.ask(config, library, named.get("libcuda.so.1"))
    except GpuhookError as problem:
        if problem.reference != "driver-not-loaded":
            raise
        hint = "look at the GPU in Windows' device manager, update NVIDIA's driver there, then run `wsl --shutdown`"
        raise GpuhookError(problem.reference, problem.message, hint) from None
    level = answer.cuda or cuda.level_for_driver(answer.driver)[0]
    gpus = tuple(
        replace(gpu, minor=-1, error="" if gpu.uuid and gpu.bus_id else gpu.error, mig=False, migs=())
        for gpu in answer.gpus
    )
    return Record("", answer.driver, level, not answer.cuda, found.machine, gpus, tuple(found.files), wsl=True)


def _record(config: Config, version: str, found: Found) -> tuple[Record, tuple[str, str, str] | None]:
    """The record of a driver whose module says `version`; one without GPUs, and the error, where it does not answer.

    Raises what stands in the way.
    """
    if not version:
        problem = _not_loaded(config, found)
        if len(found.versions) != 1 or not found.library("libnvidia-ml"):
            raise problem
        (version,) = found.versions
        return _silent(version, found, problem)
    library, computing = found.library("libnvidia-ml"), found.library("libcuda")
    if library is None:
        raise _no_library(config, version, found, computing is not None)
    making.before_nvml(config)
    try:
        answer = nvml.ask(config, library, computing)
    except GpuhookError as problem:
        if problem.reference not in _NVML_ALONE:
            raise
        return _silent(version, found, problem)
    if answer.driver != version:
        raise _mismatch(version, answer.driver)
    level = answer.cuda or cuda.level_for_driver(version)[0]
    gpus = _with_capabilities(_with_lost_addresses(answer.gpus, key.gpu_names(config)), key.cap_minors(config))
    return Record("", version, level, not answer.cuda, found.machine, gpus, tuple(found.files)), None


def _silent(version: str, found: Found, problem: GpuhookError) -> tuple[Record, tuple[str, str, str]]:
    """What is known of a driver that does not answer, and why it does not."""
    level = cuda.level_for_driver(version)[0]
    made = Record("", version, level, True, found.machine, (), tuple(found.files))
    return made, (problem.reference, problem.message, problem.hint)


def _loaded(config: Config) -> str:
    """The version of the loaded kernel module; empty where none is loaded.

    /proc/driver/nvidia/version names it behind the word `Module`: `NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat
    ...` or, of the open module, `... Open Kernel Module for x86_64  580.95.05  Release Build ...`.
    """
    proc, module = key.loaded_version(config)
    for text in (proc.partition("\n")[0].partition("Module")[2], module):
        match = _VERSION.search(text)
        if match:
            return match.group()
    return ""


def _with_lost_addresses(gpus: tuple[Gpu, ...], names: tuple[str, ...]) -> tuple[Gpu, ...]:
    """Give the GPUs that did not answer the PCI addresses that are left over, so that a person finds the card.

    NVML numbers GPUs by PCI address, so the order of what is left is theirs. Where the numbers differ, none is given.
    """
    known = {gpu.bus_id for gpu in gpus}
    left = sorted(address for address in map(_long_address, names) if address not in known)
    lost = [gpu for gpu in gpus if not gpu.bus_id]
    if len(left) != len(lost):
        return gpus
    given = dict(zip((gpu.index for gpu in lost), left, strict=True))
    return tuple(replace(gpu, bus_id=given.get(gpu.index, gpu.bus_id)) for gpu in gpus)


def _with_capabilities(gpus: tuple[Gpu, ...], table: str) -> tuple[Gpu, ...]:
    """Give the MIG devices the minors of their capabilities, which the kernel module's table has by the GPU's minor."""
    return tuple(
        replace(
            gpu,
            migs=tuple(
                replace(
                    mig,
                    gi_minor=key.cap_minor(table, f"gpu{gpu.minor}/gi{mig.gi}/access"),
                    ci_minor=key.cap_minor(table, f"gpu{gpu.minor}/gi{mig.gi}/ci{mig.ci}/access"),
                )
                for mig in gpu.migs
            ),
        )
        for gpu in gpus
    )


def _long_address(name: str) -> str:
    """`0000:0B:00.0` as this project writes it: lower case, eight digits of domain."""
    domain, _, rest = name.lower().partition(":")
    return f"{domain.zfill(8)}:{rest}"


def _plain(made: Record) -> object:
    """A record as JSON can say it."""
    return [list(map(_plain_field, astuple(made)))]


def _plain_field(item: object) -> object:
    if isinstance(item, tuple):
        return [_plain_field(part) for part in item]
    return [_plain_field(part) for part in astuple(item)] if hasattr(item, "__match_args__") else item


def _short_hash(item: object) -> str:
    return hashlib.sha256(jsonio.dumps(item)).hexdigest()[:16]


# --- what can be wrong --------------------------------------------------------------------------------------------


def _not_loaded(config: Config, found: Found) -> GpuhookError:
    proc, module = config.proc_root.rstrip("/"), config.sys_root.rstrip("/")
    files = f"neither {proc}/proc/driver/nvidia/version nor {module}/sys/module/nvidia/version is there"
    if not found.versions:
        return GpuhookError(
            "driver-not-found",
            f"this host has no NVIDIA driver: {files}, and no libcuda or libnvidia-ml in {_where(config, found)}",
            "install the driver of this host's distribution; if it lies elsewhere, name its place in runtime.toml:"
            " driver-root or library-dirs",
        )
    return GpuhookError(
        "driver-not-loaded",
        f"the NVIDIA kernel module is not loaded: {files}; libraries of driver {_list(found.versions)} are installed",
        "run `modprobe nvidia`; if that fails, install or build the module for the running kernel (dkms status)",
    )


def _no_library(config: Config, version: str, found: Found, has_cuda: bool) -> GpuhookError:
    if found.foreign and not has_cuda:
        return GpuhookError(
            "driver-architecture",
            f"driver {version} is loaded, but its libraries are for {_list(found.foreign)}, and this host is"
            f" {found.machine}: {_where(config, found)}",
            f"install the driver for {found.machine}; if it lies elsewhere, name its place in runtime.toml:"
            " driver-root or library-dirs",
        )
    if has_cuda or version in found.versions:
        return GpuhookError(
            "library-missing",
            f"driver {version} is loaded, but its libnvidia-ml.so.{version} is not in {_where(config, found)}",
            "install the package with NVML of the same driver version (libnvidia-ml1, nvidia-driver-cuda-libs, ...)",
        )
    if found.versions:
        return _mismatch(version, _list(found.versions))
    return GpuhookError(
        "driver-not-found",
        f"driver {version} is loaded, but no library of it is in {_where(config, found)}",
        "install the driver's libraries of the same version; if they lie elsewhere, name the directory in runtime.toml:"
        " driver-root or library-dirs",
    )


def _mismatch(module: str, libraries: str) -> GpuhookError:
    return GpuhookError(
        "driver-version-mismatch",
        f"the loaded kernel module is version {module}, the libraries are {libraries}",
        "reboot, so that the kernel loads the installed driver, or install the libraries of the loaded version again",
    )


def _list(versions: set[str]) -> str:
    return ", ".join(sorted(versions))


def _where(config: Config, found: Found) -> str:
    """The directories that were looked in, as a person finds them on the host."""
    root = config.driver_root.rstrip("/")
    if not os.path.isdir(root or "/"):
        return f"driver-root {root}, which is no directory (a driver container that is not up yet?)"
    paths = [root + path for path in (found.directories or config.library_dirs)]
    more = f" and {len(paths) - 12} more" if len(paths) > 12 else ""
    return ", ".join(paths[:12]) + more
