"""Make a simulated driver, change its fault, ask how often its NVML was initialised."""

import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpuhook.errors import GpuhookError
from gpuhook.sim import build, cache, data, kernel, state, wsl
from gpuhook.sim.layouts import LAYOUTS, Layout, Link
from gpuhook.sim.libraries import LIBRARIES, PROGRAMS, Library
from gpuhook.sim.options import SimOptions, check, check_faults, check_mig
from gpuhook.sim.state import State


def create(directory: Path, options: SimOptions | None = None) -> None:
    """Make `directory` the root of a host with a simulated driver.

    It must not exist or be empty; its parent must exist. On failure nothing is left. Raises sim-invalid,
    sim-compiler-missing and sim-failed.
    """
    options = options or SimOptions()
    gpus = check(options)
    faults = check_faults(options.faults, options.gpus)
    directory = Path(os.path.abspath(directory))
    _check_target(directory)
    divided, migs = check_mig(options.mig, gpus, options.driver)
    now = State(options.driver, state.cuda_number(options.cuda), gpus, faults, divided, migs)
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            _fill(temporary, options, now)
            temporary.rename(directory)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        raise _failed(f"making the simulated driver in {directory}", directory.parent, error) from None


def set_fault(directory: Path, fault: str) -> None:
    """Make a simulated driver fail in this way from now on: `none`, or a comma list of faults. Raises sim-invalid."""
    directory = Path(directory)
    old = _load(directory)
    _change(directory, replace(old, faults=check_faults([fault], len(old.gpus))), nodes=False)


def set_mig(directory: Path, mig: Sequence[str]) -> None:
    """Divide the GPUs of a simulated driver anew: each text as in SimOptions; those that none names are whole again.

    Raises sim-invalid. A container's copy of NVML keeps what was compiled into it.
    """
    directory = Path(directory)
    old = _load(directory)
    divided, migs = check_mig(mig, old.gpus, old.driver)
    _change(directory, replace(old, divided=divided, migs=migs), nodes=True)


def _change(directory: Path, new: State, *, nodes: bool) -> None:
    try:
        if nodes:
            kernel.divide(directory, new)
        major = kernel.major(directory)
        kernel.write_module(directory, new, major)
        _settle(directory / "proc")
        _settle(directory / "sys")
        # by rename: NVML reads either the old text or the new one
        temporary = directory / (state.CONF + ".new")
        temporary.write_text(state.text(new))
        temporary.chmod(0o644)
        temporary.rename(directory / state.CONF)
        # as an installation does: what was known of this driver counts no longer (times of the libraries are in the
        # key of gpuhook's record), so the next start asks NVML anew
        for file in directory.rglob("libnvidia-ml.so.*"):
            os.utime(file, follow_symlinks=False)
    except OSError as error:
        raise _failed(f"changing the simulated driver in {directory}", directory, error) from None


def init_count(directory: Path) -> int:
    """How often NVML was initialised from this tree's library (not from a copy in a container)."""
    return (Path(directory) / state.COUNT).stat().st_size


def _load(directory: Path) -> State:
    try:
        text = (directory / state.CONF).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise GpuhookError(
            "sim-invalid",
            f"{directory} is no simulated driver: {state.CONF} in it can't be read: {reason}",
            "name a directory that gpuhook sim create has made",
        ) from None
    return state.parse(text)


def _failed(what: str, place: Path, error: OSError) -> GpuhookError:
    if os.geteuid() != 0:
        hint = "run it as root, who alone can make device nodes"
    else:
        hint = (
            f"choose a directory on a file system for ordinary files and device nodes; {place} is on one that is not, "
        )
        hint += "or that is full, read-only or mounted nodev"
    return GpuhookError("sim-failed", f"{what} failed: {error.strerror or error}", hint)


def _check_target(directory: Path) -> None:
    if not directory.parent.is_dir():
        raise GpuhookError(
            "sim-invalid",
            f"DIR {str(directory)!r}: there is no directory {directory.parent}",
            f"mkdir -p {directory.parent}",
        )
    hint = "name a directory that does not exist yet, or an empty one"
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        raise GpuhookError("sim-invalid", f"DIR {str(directory)!r}: exists and is no directory", hint)
    if directory.is_dir() and any(directory.iterdir()):
        raise GpuhookError("sim-invalid", f"DIR {str(directory)!r}: is not empty", hint)


def _fill(root: Path, options: SimOptions, now: State) -> None:
    layout = LAYOUTS[options.layout]
    libraries = (*LIBRARIES, *(Library(name, "1") for name in options.extra_libraries))
    for name in ("run", "tmp", "var", "sim"):
        (root / name).mkdir()
    (root / "var/run").symlink_to("../run")
    major = kernel.make_nodes(root, now, windows=layout.windows)  # first: it fails soonest
    driver = root / layout.root
    _skeleton(driver, layout.usr)
    if layout.windows:
        wsl.write(root, layout, now)
    else:
        _install(root, layout, libraries, options, now)
    kernel.write_module(root, now, major)
    kernel.write_boot(root)
    if layout.kernel_path:
        kernel.write_firmware_path(root, layout.kernel_path)
    (root / state.CONF).write_text(state.text(now))
    (root / state.COUNT).touch()
    cache.write(driver, layout, libraries, now.driver)
    _settle(root)
    for place in {root, driver}:
        (place / "tmp").chmod(0o1777)
    if (driver / "nix/store").is_dir():
        (driver / "nix/store").chmod(0o1775)  # its builders add to it, and cannot touch what is root's
    # NVML's callers count here as whoever they are: the helper is nobody
    (root / state.COUNT).chmod(0o666)
    for socket in driver.glob("run/*/socket"):
        socket.chmod(0o666)


def _install(root: Path, layout: Layout, libraries: tuple[Library, ...], options: SimOptions, now: State) -> None:
    """What the driver's packages put into the file system, and what its daemons make."""
    driver = root / layout.root
    for version in (layout.second, now.driver):
        if version:
            places = (layout.libraries.format(driver=version), layout.binaries.format(driver=version))
            build.build(driver, *places, libraries, replace(now, driver=version))
    firmware = driver / layout.firmware.format(driver=now.driver) / "nvidia" / now.driver
    firmware.mkdir(parents=True)
    for name in ("gsp_ga10x.bin", "gsp_tu10x.bin"):
        (firmware / name).write_text(f"{name} {now.driver}, simulated by gpuhook\n")
    data.write(driver, layout, now.driver)
    data.write_drm(root, now)
    if options.libraries32 and layout.libraries32:
        data.write_narrow(driver, layout.libraries32.format(driver=now.driver), libraries, now.driver)
    for link in layout.links:
        _link(driver, layout, link, now.driver)
    socket = driver / "run/nvidia-persistenced/socket"
    socket.parent.mkdir(parents=True)
    os.mknod(socket, stat.S_IFSOCK | 0o666)
    (driver / "tmp/nvidia-mps").mkdir(parents=True)


def _skeleton(root: Path, usr: str) -> None:
    """The directories of any host, and how / and /usr go together: see Layout.usr."""
    for name in ("usr/bin", "etc", "var"):
        (root / name).mkdir(parents=True, exist_ok=True)
    if usr == "none":
        return
    (root / "usr/lib").mkdir()
    for name, same in (("sbin", "bin"), ("lib64", "lib")):
        if usr == "arch":
            (root / "usr" / name).symlink_to(same)
        else:
            (root / "usr" / name).mkdir()
    for name in ("bin", "sbin", "lib", "lib64"):
        if usr == "split":
            (root / name).mkdir()
        else:
            (root / name).symlink_to(f"usr/{name}")


def _link(root: Path, layout: Layout, link: Link, driver: str) -> None:
    at, to = (text.format(driver=driver) for text in (link.at, link.to))
    folder = root / layout.libraries.format(driver=driver)
    names = {
        "": [""],
        "links": [path.name for path in folder.iterdir() if path.is_symlink()],
        "names": [path.name for path in folder.iterdir()],
        "programs": ["nvidia-smi", *PROGRAMS],
    }
    for name in names[link.each]:
        place = root / at.replace("*", name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(to.replace("*", name))


def _settle(root: Path) -> None:
    """Modes as on a host, whatever the umask."""
    for path, _, files in os.walk(root):
        Path(path).chmod(0o755)
        for item in (Path(path) / name for name in files):
            if item.is_file() and not item.is_symlink():
                item.chmod(0o755 if item.name in ("nvidia-smi", *PROGRAMS) else 0o644)
