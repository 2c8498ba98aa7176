"""What runs inside a container's namespace opens nothing by a path of its own, imports nothing, executes nothing.

Read from the source, and seen by the interpreter's audit hook while a real container gets a plan.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gpuhook import config, enter, hook, linux, sources
from gpuhook.model import DriverFile, Record, replace
from tests import container as containers
from tests import sandbox
from tests.images import CHECKOUT, image

SOURCE = CHECKOUT / "src/gpuhook"
INSIDE = (
    "apply",
    "driverproc",
    "enter",
    "image",
    "ldcache",
    "ldconf",
    "rootfs",
    "elf",
    "plan",
)  # what the child runs
BASE = ("linux", "jsonio")  # what those stand on

VALUES = ("errors", "model", "version", "cuda")  # no calls at all
# Done with before the child is made, or in the parent after it.
OUTSIDE = ("config", "containers", "driver", "driver.key", "driver.record", "hook", "log", "sources", "state")

FORBIDDEN_CALLS = {"open", "exec", "eval", "compile", "__import__", "input", "breakpoint"}
FORBIDDEN_NAMES = {
    *("realpath", "abspath", "exists", "isfile", "isdir", "islink", "makedirs", "mknod", "chroot", "link", "truncate"),
    *("system", "popen", "execv", "execve", "execvp", "posix_spawn", "posix_spawnp", "spawnv", "fork_exec", "chmod"),
    *("find_library", "CDLL", "dlopen", "listdir", "walk", "glob", "chown", "lchown", "utime", "setxattr", "listxattr"),
}
FORBIDDEN_MODULES = {
    *("os", "io", "subprocess", "glob", "shutil", "pathlib", "ctypes", "_ctypes", "importlib", "tempfile", "socket"),
    *("pickle", "marshal", "runpy", "multiprocessing", "codecs", "logging", "traceback", "linecache"),
}
# Calls that take a path: by which keyword they take the directory that it is of.
BY_HANDLE = {
    **dict.fromkeys(("open", "stat", "lstat", "mkdir", "rmdir", "unlink", "readlink", "symlink", "access"), "dir_fd"),
    "rename": "src_dir_fd",
    "replace": "src_dir_fd",
}
# Opened by a path of the host, before the container is entered: (module, function).
ON_THE_HOST = {("rootfs", "open_proc"), ("rootfs", "at"), ("driverproc", "acquire")}
# open_root calls Root.at with the engine's path of the root: the one path of the host that is opened inside.


def functions(module: str) -> Iterator[tuple[str, ast.AST]]:
    """Each node of a module with the name of the function that it stands in."""

    def walk(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, ast.FunctionDef) else name
            yield inner, child
            yield from walk(child, inner)

    yield from walk(ast.parse((SOURCE / f"{module}.py").read_text()), "")


def findings(module: str, nodes: Iterable[tuple[str, ast.AST]]) -> list[str]:
    """What is forbidden in a module, as sentences."""
    found = []
    for name, node in nodes:
        where = f"{module}.{name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += _imports(node, name, where)
        elif isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_NAMES:
            found.append(f"{where}: {node.attr}")
        elif isinstance(node, ast.Call):
            found += _call(node, (module, name), where)
    return found


def _imports(node: ast.Import | ast.ImportFrom, name: str, where: str) -> list[str]:
    modules = [item.name for item in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    found = [f"{where}: imports {item}" for item in modules if item.partition(".")[0] in FORBIDDEN_MODULES]
    if name:
        found.append(f"{where}: an import in a function, where the container's files are in sight")
    return found


def _call(node: ast.Call, place: tuple[str, str], where: str) -> list[str]:
    called = node.func
    if isinstance(called, ast.Name) and called.id in FORBIDDEN_CALLS:
        return [f"{where}: {called.id}()"]
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
        return []
    keywords = {item.arg for item in node.keywords}
    if called.value.id == "posix" and called.attr in BY_HANDLE and place not in ON_THE_HOST:
        if BY_HANDLE[called.attr] not in keywords:
            return [f"{where}: posix.{called.attr} without {BY_HANDLE[called.attr]}"]
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value.startswith("/"):
            return [f"{where}: posix.{called.attr} of {first.value}"]
    if called.value.id == "linux" and called.attr == "read_file" and len(node.args) + len(keywords) < 3:
        return [f"{where}: linux.read_file without a directory"]
    if called.value.id == "posix" and called.attr in ("chdir", "scandir") and not isinstance(node.args[0], ast.Name):
        return [f"{where}: posix.{called.attr} by a path"]
    return []


@pytest.mark.parametrize("module", INSIDE)
def test_nothing_is_opened_by_path_or_imported_inside(module: str) -> None:
    assert findings(module, functions(module)) == []


@pytest.mark.parametrize("module", VALUES)
def test_values_call_nothing(module: str) -> None:
    assert findings(module, functions(module)) == []
    assert "posix" not in {node.id for _, node in functions(module) if isinstance(node, ast.Name)}


def test_each_module_of_the_hook_is_sorted() -> None:
    """A new module that the hook loads must be put into one of the lists above, so that somebody thinks of it."""
    code = "import sys, gpuhook.hook; print(*[name[8:] for name in sys.modules if name.startswith('gpuhook.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {*INSIDE, *BASE, *VALUES, *OUTSIDE}


@pytest.mark.parametrize("module", BASE)
def test_imports_of_the_base_are_cold(module: str) -> None:
    """Bound at their first use, which enter.mount brings about on the host (the audit test below proves it)."""
    imports = {
        (name, ast.unparse(node))
        for name, node in functions(module)
        if name and isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imports <= {
        ("_bind", "import _ctypes as c"),
        ("_bind", "from ctypes import CDLL, c_long, get_errno"),
        ("__init__", "import _ctypes as c"),  # linux.Memory, for cgroups, which no container's namespace is needed for
        ("__init__", "import ctypes as c"),
        ("loads", "from _json import make_scanner"),
        ("dumps", "from _json import encode_basestring_ascii, make_encoder"),
        ("dumps", "import json"),
        ("_loads_slowly", "import json"),
    }


CAUGHT = {
    "open": "def f(): open('x')",
    "posix.open": "def f(): posix.open('/etc/passwd', 0)",
    "absolute with a handle": "def f(): posix.open('/etc/passwd', 0, dir_fd=3)",
    "rename": "def f(): posix.rename('a', 'b')",
    "an import in a function": "def f():\n    import sys",
    "subprocess": "import subprocess",
    "os.path": "from os import path",
    "realpath": "def f(): path.realpath('x')",
    "read_file": "def f(): linux.read_file('/proc/self/mountinfo', 10)",
    "exec": "def f(): exec('x')",
    "scandir": "def f(): posix.scandir('/etc')",
}


@pytest.mark.parametrize("source", CAUGHT.values(), ids=CAUGHT)
def test_the_guard_catches(source: str) -> None:
    """Self-check: each of these is found."""
    assert findings("m", [("f", node) for node in ast.walk(ast.parse(source))])


# --- seen -------------------------------------------------------------------------------------------------------

FORBIDDEN_EVENTS = {
    *("import", "compile", "exec", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "ctypes.dlopen"),
    *(
        "subprocess.Popen",
        "socket.__new__",
        "os.link",
        "os.truncate",
        "os.chmod",
        "os.chown",
        "os.putenv",
        "code.__new__",
    ),
    *("marshal.loads", "pickle.find_class", "os.mknod", "os.chroot", "os.walk", "glob.glob", "shutil.copyfile"),
}
BY_FD = {"os.mkdir": 2, "os.remove": 1, "os.rmdir": 1, "os.symlink": 2, "os.rename": 2}  # event -> place of the handle


def judged(event: str, args: tuple[object, ...]) -> str:
    """Why an event must not be inside; empty for one that may."""
    if event == "ctypes.get_errno":
        return ""
    if event in FORBIDDEN_EVENTS or event.startswith(("ctypes.", "subprocess.", "socket.", "urllib.")):
        return f"{event} {args}"
    if event == "open" and str(args[0]).startswith("/"):
        return f"opens {args[0]}"
    if event in ("os.listdir", "os.scandir", "os.chdir") and not isinstance(args[0], int):
        return f"{event} by a path: {args[0]!r}"
    if event in BY_FD and args[BY_FD[event]] == -1:
        return f"{event} without a handle: {args}"
    return ""


@pytest.mark.runc
@pytest.mark.parametrize("image_name", ["glibc", "lib64", "busybox"])
def test_the_audit_hook_sees_nothing_forbidden_after_entry(tmp_path: Path, image_name: str) -> None:
    """The whole of the hook's work on a real image, from setns to the answer, in an interpreter that reports all."""
    root = tmp_path / "rootfs"
    shutil.copytree(image(image_name), root, symlinks=True)
    top = tmp_path / "host"
    names = ("libcuda.so.535.1", "libnvidia-ml.so.535.1")
    (top / "usr/lib").mkdir(parents=True)
    for name in names:
        (top / "usr/lib" / name).write_text("host's")
    files = tuple(
        replace(containers.driver_file(top, f"/usr/lib/{name}"), soname=f"{name[:-6]}.1", links=(f"{name[:-6]}.1",))
        for name in names
    )
    log = tmp_path / "events"
    box = containers.start(root)
    try:
        sandbox.apart(lambda: _watched(box, top, files, log))
        events = [json.loads(line) for line in log.read_text().splitlines()]
        assert len(box.mounts()) == 2
    finally:
        box.close()
    opened = [event for event in events if event["bad"] == f"opens {root}"]
    assert len(opened) == 1, "the root itself, by the path that the engine gave"
    assert [event["bad"] for event in events if event["bad"] and event not in opened] == []
    assert len(events) > 10, "the hook saw nothing: it proves nothing"


def _watched(box: containers.Container, top: Path, files: tuple[DriverFile, ...], log: Path) -> None:
    """enter.mount with an audit hook from the moment of entry."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    real = linux.setns

    def report(event: str, args: tuple[object, ...]) -> None:
        if event.startswith(("object.", "sys.", "builtins.id", "gc.")):
            return
        line = json.dumps({"event": event, "bad": judged(event, args)})
        os.write(fd, line.encode() + b"\n")

    def setns(handle: int, kind: int) -> None:
        real(handle, kind)
        sys.addaudithook(report)

    linux.__dict__["setns"] = setns
    known = Record("r", "535.1", (12, 2), False, "x86-64", (), files)
    settings = config.Config(sockets=(), directories=())
    taken = sources.acquire(str(top), files, ())
    target = enter.Target(box.pid, str(box.root), ())
    enter.mount(target, taken, lambda root: hook.steps(root, known, files, settings, compat=True), 20)


@pytest.mark.parametrize(
    ("event", "args"),
    [
        ("import", ("re",)),
        ("open", ("/etc/passwd", None, 0)),
        ("os.mkdir", ("x", 0o755, -1)),
        ("os.rename", ("a", "b", -1, -1)),
        ("os.scandir", ("/etc",)),
        ("ctypes.dlopen", ("libc.so.6",)),
        ("exec", ("code",)),
    ],
)
def test_the_judge_catches(event: str, args: tuple[object, ...]) -> None:
    """Self-check."""
    assert judged(event, args)
    assert not judged("open", ("self/fd/3", None, 0))
