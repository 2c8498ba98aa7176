"""gpuhook-hook: the OCI hook that gives a container its driver. main() is the table of contents.

Hot path: called by the low-level runtime with the container's namespaces made and its root mounted but not entered.
The shim decided who gets what and wrote the record's id into the arguments; the verdict holds for that record, so it is
not reached again here. Another record now means that the driver changed in between, and the start is refused.
"""

import posix
import sys

from gpuhook import apply, config, enter, image, linux, oci, plan, request
from gpuhook.driver import record
from gpuhook.errors import GpuhookError
from gpuhook.log import Log
from gpuhook.model import DriverFile, Image, Plan, Record
from gpuhook.rootfs import Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import SIG_SETMASK, pthread_sigmask
else:
    from _signal import SIG_SETMASK, pthread_sigmask

_ENVIRONMENT = {b"PATH": b"/usr/sbin:/usr/bin:/sbin:/bin"}
_USAGE = "gpuhook-hook is written into the spec by gpuhook-runtime: use that as the runtime"


def main(argv: list[str], prefix: str) -> int:
    """Read what the runtime says, plan for this record, enter the container and do it. Ends the process (`_leave`)."""
    harden()
    name = "-"
    log = Log(config.paths(prefix).log)
    try:
        options = arguments(argv[1:])
        state = oci.read_state(0)
        name = state.id
        settings = config.load(prefix)
        log = Log(config.log_path(settings, prefix), settings.log_level)
        container = oci.Spec(f"{options['bundle'] or state.bundle}/config.json").container()
        asked = request.read(container, settings)
        if asked is None:
            return _leave(0)
        known = same_record(settings, prefix, options["record"])
        files = plan.select(known, asked.capabilities)
        extras = settings.sockets + settings.directories
        sources = apply.acquire(settings.driver_root, files, extras)
        compat = bool(options["compat"])
        warnings = enter.mount(
            enter.Target(state.pid, container.root, container.tmpfs),
            sources,
            lambda root: steps(root, known, files, settings, compat=compat),
            settings.deadline,
        )
        for warning in warnings:
            log.write("warning", name, warning)
        return _leave(0)
    except GpuhookError as error:
        return _leave(report(error, name, log))
    except Exception as error:  # one line for the person, no traceback
        defect = GpuhookError("internal", f"{type(error).__name__}: {error}", "this is a defect of gpuhook: report it")
        return _leave(report(defect, name, log))


def harden() -> None:
    """Undo what the runtime may have left: blocked signals (crun), open descriptors, an environment, a umask."""
    pthread_sigmask(SIG_SETMASK, ())
    posix.umask(0)
    linux.close_range(3)
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    posix.environ.clear()
    posix.environ.update(_ENVIRONMENT)
    posix.chdir("/")


def arguments(words: list[str]) -> dict[str, str]:
    """`--record ID --bundle DIR [--compat]`, as the shim wrote them. GpuhookError `usage`."""
    found = {"record": "", "bundle": "", "compat": ""}
    words = list(words)
    while words:
        word = words.pop(0)
        if word == "--compat":
            found["compat"] = "yes"
        elif word in ("--record", "--bundle") and words:
            found[word[2:]] = words.pop(0)
        else:
            raise GpuhookError("usage", f"gpuhook-hook does not take {word!r}", _USAGE)
    if not found["record"]:
        raise GpuhookError("usage", "gpuhook-hook was called without --record", _USAGE)
    return found


def same_record(settings: config.Config, prefix: str, identity: str) -> Record:
    """The driver's record that the shim decided by. GpuhookError `driver-changed` where there is another by now."""
    known = record.load(settings, prefix)
    if known.id != identity:
        raise GpuhookError(
            "driver-changed",
            f"the driver changed while the container was started: it is {known.driver} now",
            "start the container again",
        )
    return known


def steps(
    root: Root, known: Record, files: "tuple[DriverFile, ...]", settings: config.Config, *, compat: bool
) -> tuple[Plan, Image]:
    """The plan for the image that `root` shows; called inside the container's mount namespace, and by `explain`."""
    found = image.look(root, files, compat=compat)
    return plan.make(known, files, found, settings.sockets, settings.directories), found


def report(error: GpuhookError, name: str, log: Log) -> int:
    """Say it on stderr, which runc passes on whole and crun hides, and in the log; returns the exit code."""
    text = str(error)
    log.write("error", name, text)
    try:
        linux.write_fd(2, (text + "\n").encode("utf-8", "backslashreplace"))
    except OSError:
        pass
    return error.exit_code


def _leave(code: int) -> int:
    """End without the interpreter's own farewell, which takes 1.5 ms."""
    sys.stdout.flush()
    posix._exit(code)
