"""OCI hooks directories (oci-hooks(5)), which podman and CRI-O read: gpuhook's file there, and a check of all files.

What engines do with a file was tried with podman 4.3.1: one that is no JSON, has an unknown version or stage lets no
container start; one whose hook is not there is skipped without a word; a timeout of 0 fails at once; unknown keys are
ignored; of two files with one name, that of the later directory counts.
"""

import json
import os
from collections.abc import Iterator, Sequence
from importlib import resources

from gpuhook.engines import installation
from gpuhook.engines.host import Host
from gpuhook.engines.model import FileEdit, Finding, Options, Value
from gpuhook.errors import GpuhookError, bare, shown

DEFAULT = "/usr/share/containers/oci/hooks.d"  # what both engines read where nothing is configured
NAME = "99-gpuhook.json"

_MARGIN = 10  # seconds that the runtime waits beyond the hook's own deadline, so that the hook's error comes first
_ENVIRONMENT = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
_NVIDIA = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")


def file(host: Host, options: Options, folders: Sequence[str]) -> tuple[FileEdit, str]:
    """Our file, and the directory that the engine has to be told of (empty: it reads that already).

    `folders` are the directories that the engine reads, in order. The administrator's, below /etc, comes before the
    packages'; of several, the last. `options.drop_in` names another file. GpuhookError `engine-option-unsupported`.
    """
    if options.default_runtime:
        raise GpuhookError(
            "engine-option-unsupported",
            "--hook names no runtime, so none can be the default one",
            "leave out --default-runtime: the hook works for every container that asks for GPUs",
        )
    if options.drop_in:
        path = options.drop_in
        if not path.endswith(".json"):
            raise GpuhookError(
                "engine-option-unsupported",
                f"--drop-in {shown(path)} can be no file of a hooks directory: engines read those that end in .json",
                f"name it for example {os.path.dirname(path)}/{NAME}",
            )
    else:
        own = [folder for folder in folders if folder.startswith(("/etc/", f"{host.home}/"))]
        path = f"{(own or [*folders] or [DEFAULT])[-1]}/{NAME}"
    folder = os.path.dirname(path)
    return FileEdit(path, "whole", text=text(host, options)), "" if folder in folders else folder


def text(host: Host, options: Options) -> str:
    """The file. It holds for every container, since no condition of the schema knows the environment; the hook leaves
    at once where no GPU is asked for. With no expression there is none that could match too much."""
    settings = installation.settings(host, options)
    hook = {
        "path": options.hook,
        "args": [os.path.basename(options.hook), "prestart"],
        "env": [_ENVIRONMENT, *_own(host)],
        "timeout": settings.deadline + _MARGIN,
    }
    document = {"version": "1.0.0", "hook": hook, "when": {"always": True}, "stages": [settings.stage]}
    return json.dumps(document, indent=2) + "\n"


def _own(host: Host) -> tuple[str, ...]:
    """Where a user's hook finds its state and puts its log: an engine gives hooks nothing of its own environment."""
    if host.uid == 0:
        return ()
    folder = host.environ.get("XDG_RUNTIME_DIR", "")
    return (f"XDG_RUNTIME_DIR={folder if folder.startswith('/') else f'/run/user/{host.uid}'}",)


def notes(host: Host, folders: Sequence[str]) -> tuple[str, ...]:
    """What a person is to know of hooks that others put there."""
    why = "remove that file, or GPUs are set up twice in containers that gpuhook's runtime does not start"
    paths = (path for path, document in _documents(host, folders) if _program(document) in _NVIDIA)
    return tuple(f"{path} calls NVIDIA's hook as well: {why}" for path in paths)


def check(host: Host, options: Options, folders: Sequence[str], *, registered: bool) -> Iterator[Finding]:
    """Findings for every file; `registered` says whether gpuhook's runtime is configured besides."""
    for path, document in _documents(host, folders):
        name = os.path.basename(_path(document))
        if isinstance(document, GpuhookError):
            hint = f"no container starts as long as it is there; {document.hint}"
            yield Finding("problem", "hook-file", document.message, hint)
        elif name == os.path.basename(options.hook):
            yield from _ours(host, options, path, document)
            if registered:
                text = f"{path} and the runtime are both configured: the runtime puts its own hook in the place of this"
                yield Finding("note", "hook-file", text)
        elif name in _NVIDIA:
            what = "" if registered else ", and so does gpuhook where it has its hook"
            text = f"{path} calls NVIDIA's hook for each container it matches{what}"
            hint = "remove it, unless containers without gpuhook's runtime need it"
            yield Finding("note" if registered else "warning", "toolkit-hook", text, hint)
        elif not host.exists(_path(document)):
            text = f"{path} calls {shown(_path(document))}, which is not there: engines skip the file"
            yield Finding("note", "hook-file", text, "remove the file")


def present(host: Host, options: Options, folders: Sequence[str]) -> bool:
    """Whether a file of these directories calls gpuhook's hook."""
    return any(_program(document) == os.path.basename(options.hook) for _, document in _documents(host, folders))


def _ours(host: Host, options: Options, path: str, document: Value) -> Iterator[Finding]:
    hook = document["hook"] if isinstance(document["hook"], dict) else {"path": document["hook"]}
    again = "write it anew: gpuhook configure, with --hook"
    settings = installation.settings(host, options)
    if not host.runnable(hook["path"]):
        text = f"{path} calls {hook['path']}, which is no program: engines skip the file, and no container gets a GPU"
        yield Finding("problem", "hook-program", text, "install gpuhook, or remove the file")
    elif not hook.get("env"):
        text = f"{path} states no env: the hook may get the image's environment"
        yield Finding("problem", "hook-file", text, again)
    elif hook.get("timeout", settings.deadline + 1) <= settings.deadline:
        text = f"{path} has timeout {hook['timeout']}, and gpuhook's own deadline is {settings.deadline} seconds"
        yield Finding("warning", "hook-file", text, again)
    elif not {"prestart", "createRuntime"} & {*document.get("stages", ()), *document.get("stage", ())}:
        text = f"{path} calls the hook at another stage than prestart or createRuntime"
        yield Finding("problem", "hook-file", text, again)
    elif document.get("when") != {"always": True}:
        when = shown(document.get("when", "of version 0.1.0"))
        yield Finding("note", "hook-file", f"{path} calls the hook for some containers only: when is {when}")
    else:
        yield Finding("ok", "hook-file", f"{path} calls {hook['path']} for every container")


# --- reading ------------------------------------------------------------------------------------------------------


def _documents(host: Host, folders: Sequence[str]) -> Iterator[tuple[str, Value]]:
    """Each file as the engine names it, with its document or with the error that the engine would meet."""
    paths = {os.path.basename(path): path for folder in folders for path in host.glob(f"{folder}/*.json")}
    for _, path in sorted(paths.items()):
        try:
            content = host.read(path)
            if content is not None:
                yield path, parse(path, content)
        except GpuhookError as error:
            yield path, error


def parse(path: str, content: str) -> dict[str, Value]:
    """The document of a hooks file. GpuhookError `engine-config-invalid` where an engine would refuse it."""
    import jsonschema  # noqa: PLC0415 - only where there is a file to check: it takes 0.1 s to import

    hint = "correct or remove the file"
    try:
        document = json.loads(content)
    except ValueError as error:
        raise GpuhookError("engine-config-invalid", f"{path} is no JSON: {error}", hint) from None
    except RecursionError:
        raise GpuhookError("engine-config-invalid", f"{path} is nested too deeply", hint) from None
    if not isinstance(document, dict):
        raise GpuhookError("engine-config-invalid", f"{path} is no JSON object", hint)
    schema = json.loads(resources.files("gpuhook.engines").joinpath("hooks-schema.json").read_bytes())
    version = document.get("version", "0.1.0")
    if version not in ("1.0.0", "0.1.0"):
        text = f"{path} has version {shown(version)}, and there are 1.0.0 and 0.1.0"
        raise GpuhookError("engine-config-invalid", text, hint)
    schema = {"definitions": schema["definitions"], "$ref": f"#/definitions/{version}"}
    wrong = next(iter(jsonschema.Draft7Validator(schema).iter_errors(document)), None)
    if wrong is not None:
        place = ".".join(str(part) for part in wrong.absolute_path)
        what = bare(wrong.message, 200)
        raise GpuhookError("engine-config-invalid", f"{path}: {place + ': ' if place else ''}{what}", hint)
    return document


def _path(document: Value) -> str:
    """What a document calls; empty for an error."""
    hook = document.get("hook") if isinstance(document, dict) else None
    return str(hook["path"] if isinstance(hook, dict) else hook or "")


def _program(document: Value) -> str:
    return os.path.basename(_path(document))
