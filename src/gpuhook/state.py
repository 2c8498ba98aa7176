"""What a low-level runtime hands to a hook: the container's state on standard input, and a process to begin and end.

Hot path.
"""

import posix

from gpuhook import config, jsonio, linux
from gpuhook.errors import GpuhookError
from gpuhook.log import Log
from gpuhook.model import value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import SIG_SETMASK, pthread_sigmask
else:
    from _signal import SIG_SETMASK, pthread_sigmask

LIMIT = 16 << 20  # bytes, as of a spec: it has all annotations
_ENVIRONMENT = {b"PATH": b"/usr/sbin:/usr/bin:/sbin:/bin"}


@value
class State:
    """What a runtime tells a hook on stdin (OCI runtime-spec, runtime.md#state)."""

    id: str
    pid: int
    bundle: str


def parse(text: bytes) -> State:
    """Parse the state. GpuhookError `state-invalid` for what is no state of a container that is being made."""
    try:
        data = jsonio.loads(text)
    except ValueError as error:
        raise _bad_state(f"is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise _bad_state("is no JSON object")
    pid, bundle, name = data.get("pid"), data.get("bundle"), data.get("id")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 1:
        raise _bad_state(f"has the pid {pid!r}, which is no container's process seen from the host")
    if not isinstance(bundle, str) or not bundle.startswith("/"):
        raise _bad_state(f"has the bundle {bundle!r}, which is no absolute path")
    if not isinstance(name, str) or not name or "/" in name:
        raise _bad_state(f"has the id {name!r}")
    return State(name, pid, bundle)


def read(fd: int) -> State:
    """Read and parse the state from a descriptor. GpuhookError `state-invalid`."""
    try:
        return parse(linux.read_fd(fd, LIMIT))
    except OSError as error:
        raise _bad_state(f"can't be read: {error.strerror}") from None


def _bad_state(what: str) -> GpuhookError:
    return GpuhookError(
        "state-invalid",
        f"the container state on standard input {what}",
        "gpuhook-hook is called by a low-level runtime as a prestart or createRuntime hook, not by hand",
    )


def harden() -> None:
    """Undo what the runtime may have left: blocked signals (crun), open descriptors, an environment, a umask."""
    pthread_sigmask(SIG_SETMASK, ())
    posix.umask(0)
    linux.close_range(3)
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    own = posix.environ.get(config.RUNTIME_DIR)
    posix.environ.clear()
    posix.environ.update(_ENVIRONMENT)
    if own:  # the shim hands it on to who is not root of the host
        posix.environ[config.RUNTIME_DIR] = own
    posix.chdir("/")


def report(error: Exception, name: str, log: Log) -> int:
    """Say it on stderr, which runc passes on whole and crun hides, and in the log; returns the exit code.

    What nobody expected is one line too, without a traceback.
    """
    if not isinstance(error, GpuhookError):
        error = GpuhookError("internal", f"{type(error).__name__}: {error}", "this is a defect of gpuhook: report it")
    text = str(error)
    log.write("error", name, text)
    try:
        linux.write_fd(2, (text + "\n").encode("utf-8", "backslashreplace"))
    except OSError:
        pass
    return error.exit_code


def leave(code: int) -> int:
    """End without the interpreter's own farewell, which takes 1.5 ms; nothing is written by way of sys.stdout."""
    posix._exit(code)
