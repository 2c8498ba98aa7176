"""gpuhook-runtime, where sh could not decide alone: edit the spec of a container that asks for GPUs, exec the runtime.

Hot path: started by src/launchers/gpuhook-runtime for every create that may be asking for a GPU. The process becomes
the low-level runtime: same pid, descriptors, working directory, arguments, environment.
"""

import posix
import time
from _stat import S_ISREG

from gpuhook import cmdline, config, grant, jsonio, linux, oci, request
from gpuhook.driver import nodes
from gpuhook.errors import GpuhookError
from gpuhook.log import Log
from gpuhook.model import Container, Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRON_LIMIT = 64 << 20
_TIMEOUT_MARGIN = 10  # seconds that the runtime waits for the hook beyond the hook's own deadline


def main(argv: list[str], prefix: str) -> int:
    """Understand the command line, edit the spec where a GPU is asked for, become the low-level runtime."""
    if prefix.startswith("."):  # called by a relative path: the hook's must not be one
        prefix = f"{posix.getcwd()}/{prefix}"
    log = Log(config.paths(prefix).log)
    command = cmdline.Command("", (), ())
    try:
        settings, distrust = _settings(prefix)
        log = Log(config.log_path(settings, prefix), settings.log_level)
        try:
            runtime = low_level(settings.low_level, argv[0])
        except GpuhookError:
            command = cmdline.before(dialect(settings.low_level[0]), argv[1:])  # where an error is to be written
            raise
        command = cmdline.before(dialect(runtime), argv[1:])  # the same
        command = cmdline.parse(dialect(runtime), argv[1:])
        if command.verb in cmdline.CREATING and not command.asks_help:
            edit(command, settings, distrust, prefix, log)
        elif command.verb in ("checkpoint", "restore"):
            from gpuhook import checkpoint  # noqa: PLC0415 - nobody else pays for it

            checkpoint.refuse_gpus(command, settings, config.paths(prefix).state)
        elif command.verb == "update" and dialect(runtime) == "crun":
            from gpuhook import limits  # noqa: PLC0415 - nobody else pays for it

            argv = limits.keep_devices(command, argv, config.paths(prefix).state)
        _become(runtime, argv)
    except GpuhookError as error:
        return report(error, command, log)
    except Exception as error:  # a person gets one line, the log the place
        return report(_defect(error), command, log)


def _settings(prefix: str) -> tuple[config.Config, GpuhookError | None]:
    """The configuration; where it can't be trusted, the defaults and the error that every GPU request will meet."""
    try:
        return config.load(prefix), None
    except GpuhookError as error:
        return config.defaults(), error


def edit(
    command: cmdline.Command, settings: config.Config, distrust: GpuhookError | None, prefix: str, log: Log
) -> None:
    """Write the grant into the bundle's spec; a container that asks for nothing keeps its file to the byte."""
    spec = oci.Spec(*_spec_path(command))
    container = spec.container()
    name = command.arguments[0] if command.arguments else ""
    had = spec.revoke()
    if distrust is not None and request.read(container, settings) is not None:
        raise distrust
    granted = grant.decide(container, settings, prefix) if distrust is None else None
    if granted is None:
        if had:  # the bundle of an earlier start, which asked for GPUs
            spec.remove_hook()
            spec.save()
        ignored = request.ignored(container, settings)
        if ignored:
            log.write("warning", name, ignored)
        return
    replaced = write(spec, container, granted, settings, prefix)
    for path in nodes.make(settings, granted.nodes):
        log.write("info", name, f"made the device node {path}, which was missing")
    for node in granted.nodes:
        link_number(node, settings.dev_root)
    for path in replaced:
        log.write("info", name, f"took the place of the hook {path}")
    spec.save()
    for warning in granted.warnings:
        log.write("warning", name, warning)
    log.write("info", name, f"granted {_names(granted)} of driver {granted.record.driver}")


def write(
    spec: oci.Spec, container: Container, granted: grant.Grant, settings: config.Config, prefix: str
) -> "tuple[str, ...]":
    """Put nodes, rules and the hook into the spec in memory; `explain` shows what this does to it.

    Returns the paths of foreign hooks replaced. GpuhookError `dev-not-mounted`.
    """
    grant.check_dev(container)
    spec.grant(granted.nodes, settings.dev_root, rootless=not config.is_host_root(), apart=granted.apart)
    orders = grant.orders(granted, container) + spec.orders()
    own = posix.environ.get(config.RUNTIME_DIR)  # where who is not root keeps the record
    kept = f"XDG_RUNTIME_DIR={own.decode('utf-8', 'surrogateescape')}" if own and not config.is_host_root() else ""
    path, timeout = f"{prefix}/usr/bin/{oci.HOOK}", settings.deadline + _TIMEOUT_MARGIN
    return spec.add_hook(settings.stage, path, orders, timeout, (kept,) if kept else ())


def _names(granted: grant.Grant) -> str:
    return ", ".join([f"GPU {gpu.index} ({gpu.uuid})" for gpu in granted.gpus]) or "no GPU, the driver's files"


def _spec_path(command: cmdline.Command) -> tuple[str, str]:
    """The spec and the bundle. crun's --config is of the working directory, but for the name `config.json` itself."""
    bundle = command.get("bundle") or "."
    config = command.get("config", "config.json")
    return (f"{bundle}/{config}" if config == "config.json" else config), bundle


def link_number(node: Node, dev_root: str) -> None:
    """Make /dev/char/MAJ:MIN where it is missing or leads nowhere: runc 1.1.3 to 1.1.6 drop a device rule without it,
    and so does systemd before 240. Where it can't be made (rootless, read-only /dev) a runtime that needs none goes on.
    """
    link = f"/dev/char/{node.major}:{node.minor}"
    try:
        posix.stat(link)
        return
    except OSError:
        pass
    text = f"..{node.path[4:]}" if dev_root == "/" else f"{dev_root}{node.path}"
    new = f"{link}.{posix.getpid()}.gpuhook"
    try:
        try:
            posix.mkdir("/dev/char")
        except FileExistsError:
            pass
        try:
            posix.symlink(text, link)
        except FileExistsError:  # it leads nowhere: replaced in one step, because another start may be at it
            posix.symlink(text, new)
            try:
                posix.rename(new, link)
            except OSError:
                posix.unlink(new)
    except OSError:
        pass


# --- the low-level runtime --------------------------------------------------------------------------------------


def low_level(candidates: tuple[str, ...], own: str) -> str:
    """The first candidate that is there: absolute, or found in PATH and the usual places; never gpuhook itself.

    GpuhookError `runtime-not-found`.
    """
    try:
        self = posix.stat(own)
    except OSError:
        self = None
    path = posix.environ.get(b"PATH", b"").decode("utf-8", "surrogateescape")
    folders = [folder for folder in f"{path}:{_PLACES}".split(":") if folder.startswith("/")]
    for candidate in candidates:
        for found in [candidate] if "/" in candidate else [f"{folder}/{candidate}" for folder in folders]:
            try:
                status = posix.stat(found)
            except OSError:
                continue
            is_self = self is not None and (status.st_dev, status.st_ino) == (self.st_dev, self.st_ino)
            if S_ISREG(status.st_mode) and posix.access(found, posix.X_OK) and not is_self:
                return found
    raise GpuhookError(
        "runtime-not-found",
        f"no low-level runtime was found: {', '.join(candidates)} in {':'.join(dict.fromkeys(folders))}",
        "install runc or crun, or give its absolute path as low-level in runtime.toml",
    )


def dialect(runtime: str) -> str:
    """Which command line the runtime takes, by its file name: `crun`, else `runc`."""
    return "crun" if runtime.rpartition("/")[2].startswith("crun") else "runc"


def _become(runtime: str, argv: list[str]) -> "NoReturn":
    """Exec with argv[0] the runtime's path; the environment is read from the kernel, as sh handed it over, because
    CPython adds LC_CTYPE to its own where the locale is C (PEP 538)."""
    try:
        entries = linux.read_file("/proc/self/environ", _ENVIRON_LIMIT).split(b"\0")
        environ = dict([entry.split(b"=", 1) for entry in entries if b"=" in entry])
    except OSError:
        environ = posix.environ
    try:
        posix.execve(runtime, [runtime, *argv[1:]], environ)
    except OSError as error:
        hint = "see that the file is a program for this machine"
        raise GpuhookError("runtime-not-found", f"{runtime} can't be run: {error.strerror}", hint) from None


# --- failing ----------------------------------------------------------------------------------------------------


def report(error: GpuhookError, command: cmdline.Command, log: Log) -> int:
    """Say it on stderr, in the file where the engine looks, and in gpuhook's log; returns the exit code."""
    text = str(error)
    name = command.arguments[0] if command.arguments else ""
    log.write("error", name, text)
    try:
        linux.write_fd(2, (text + "\n").encode("utf-8", "backslashreplace"))
    except OSError:
        pass
    path = command.get("log")
    if path.startswith("file:"):  # crun's form
        path = path[5:]
    elif path.startswith(("syslog:", "journald:")):  # crun's too, and no file
        path = ""
    if path:
        try:
            _append(path, _log_line(text, command.get("log-format")))
        except OSError as failure:
            log.write("error", name, f"the runtime's log {path} can't be written: {failure.strerror}")
    return error.exit_code


def _log_line(text: str, form: str) -> bytes:
    """One line as runc writes it (logrus): engines read `msg` of the last one at level error."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if form == "json":
        return jsonio.dumps({"level": "error", "msg": text, "time": now}) + b"\n"
    quoted = jsonio.dumps(text).decode()
    return f'time="{now}" level=error msg={quoted}\n'.encode()


def _append(path: str, line: bytes) -> None:
    flags = posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | linux.O_CLOEXEC | posix.O_NONBLOCK
    fd = posix.open(path, flags, 0o644)
    try:
        linux.write_fd(fd, line)
    finally:
        posix.close(fd)


def _defect(error: Exception) -> GpuhookError:
    """An exception that nobody expected, as one line with the place that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    detail = posix.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return GpuhookError(
        "internal", f"{type(error).__name__}: {detail}{where}", "this is a defect of gpuhook: report it"
    )
