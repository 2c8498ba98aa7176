"""The container's state, as a low-level runtime hands it to a hook on standard input.

Hot path.
"""

from gpuhook import jsonio, linux
from gpuhook.errors import GpuhookError
from gpuhook.model import value

_LIMIT = 1 << 20


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
        return parse(linux.read_fd(fd, _LIMIT))
    except OSError as error:
        raise _bad_state(f"can't be read: {error.strerror}") from None


def _bad_state(what: str) -> GpuhookError:
    return GpuhookError(
        "state-invalid",
        f"the container state on standard input {what}",
        "gpuhook-hook is called by a low-level runtime as a prestart or createRuntime hook, not by hand",
    )
