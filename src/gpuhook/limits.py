"""`update` of a container that has GPUs, by crun: loaded by the shim for this verb alone.

containerd's CRI plugin sends the device rules of its own specification along with every change of a limit (kubelet's
CPU manager, a resize in place): those from before the GPUs were added, beginning with `deny all`. runc takes limits
from such a text and nothing else (update.go). crun sets the rules too (seen with 1.8.1), and the GPUs would be gone
from a container that runs.
"""

import posix

from gpuhook import cmdline, containers, jsonio, linux
from gpuhook.errors import GpuhookError

_LIMIT = 1 << 20  # bytes; such a text has a few hundred
_STDIN = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


def keep_devices(command: cmdline.Command, argv: list[str], state: str) -> list[str]:
    """The command line for crun, whose resources have no device rules; those are on the standard input then.

    Nothing changes for containers without GPUs and for texts without device rules. GpuhookError `usage` where the
    standard input is no text of that kind by its size.
    """
    words = command.arguments
    if not any(containers.running(state, word) for word in words):
        return argv
    position, path = _resources(words)
    if not path:
        return argv
    try:
        data = linux.read_fd(0, _LIMIT) if path in _STDIN else linux.read_file(path, _LIMIT)
    except OSError as error:
        if path in _STDIN:
            raise GpuhookError(
                "usage", f"the resources on standard input can't be read: {error.strerror}", "give them as JSON"
            ) from None
        return argv  # crun has words for what is wrong with a file
    _become_stdin(_without_rules(data))
    at = len(argv) - len(words) + position
    return [*argv[:at], "--resources=-", *argv[at:]]


def _without_rules(data: bytes) -> bytes:
    """The same bytes where there are no device rules, or where it is no JSON: crun has words for that."""
    try:
        resources = jsonio.loads(data)
    except ValueError:
        return data
    if not isinstance(resources, dict) or "devices" not in resources:
        return data
    del resources["devices"]
    return jsonio.dumps(resources)


def _resources(words: "tuple[str, ...]") -> "tuple[int, str]":
    """The last `--resources` as crun reads it (argp: any unique prefix, `-rFILE`): where it ends, and its value."""
    found = (0, "")
    position = 0
    while position < len(words) and words[position][:1] == "-" and words[position] not in ("-", "--"):
        word = words[position]
        if word.startswith("--"):
            name, equals, text = word[2:].partition("=")
            is_it = "resources".startswith(name)
        else:
            name, text = word[1], word[2:]
            equals, is_it = text, name == "r"
        position += 1
        if not equals and name not in ("help", "usage", "?"):  # all others take a value
            text = words[position] if position < len(words) else ""
            position += 1
        if is_it:
            found = (position, text)
    return found


def _become_stdin(data: bytes) -> None:
    fd = posix.memfd_create("resources", 0)
    linux.write_fd(fd, data)
    posix.lseek(fd, 0, 0)  # SEEK_SET
    posix.dup2(fd, 0)
    posix.close(fd)
