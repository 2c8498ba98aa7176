"""`checkpoint` and `restore` of a container that has GPUs are refused: loaded by the shim for these two verbs alone.

CRIU dumps what the spec names. The driver's files are mounts that it does not know, and the state of an open NVIDIA
device is none that it can read; it fails after it has frozen the container, with a message about mounts. So the error
comes first, and says why.
"""

from gpuhook import cmdline, config, containers, oci, request
from gpuhook.errors import GpuhookError

VERBS = ("checkpoint", "restore")


def refuse_gpus(command: cmdline.Command, settings: config.Config, state: str) -> None:
    """GpuhookError `checkpoint-unsupported` where the container to be dumped has GPUs, or the one to be restored asks.

    The container's id is looked for among all words after the verb: an engine's options differ, its id does not.
    """
    if command.verb == "checkpoint":
        for word in command.arguments:
            if containers.running(state, word):
                raise _unsupported(f"container {word} has GPUs")
        return
    spec = oci.Spec(f"{_bundle(command.arguments)}/config.json", _bundle(command.arguments))
    container = spec.container()
    if not container.sandbox and request.read(container, settings) is not None:
        raise _unsupported("the container that is to be restored asks for GPUs")


def _bundle(words: "tuple[str, ...]") -> str:
    """The value of --bundle, as runc's restore.go and crun's restore.c read it; else the working directory."""
    for word, following in zip(words, (*words[1:], ""), strict=True):
        name, equals, text = word.partition("=")
        if name in ("--bundle", "-bundle", "-b", "--b"):
            return text if equals else following
        if word.startswith("-b") and not word.startswith(("-bu", "--")):
            return word[2:]
    return "."


def _unsupported(what: str) -> GpuhookError:
    return GpuhookError(
        "checkpoint-unsupported",
        f"{what}, whose state on the device and whose driver files CRIU can't dump or restore",
        "stop the container and start it anew, and let the program keep its own checkpoints",
    )
