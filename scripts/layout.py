"""layout.py CHECKOUT VENDOR DESTDIR: lay out the installed tree (called by scripts/install, which prepares VENDOR).

A start in flight keeps its files: the folder of a version is made beside its place and exchanged with what stands
there, and each launcher, which names the version, is replaced by one rename after it.
"""

import compileall
import ctypes
import importlib.util
import marshal
import os
import re
import shutil
import subprocess
import sys
from py_compile import PycInvalidationMode

LAUNCHERS = ("gpuhook-runtime", "gpuhook-hook", "gpuhook")
PLACEHOLDER = b"@VERSION@"
ENTRIES = ("shim", "hook", "hookonly")  # started for each container
AT_FDCWD = -100
RENAME_EXCHANGE = 2


def main(checkout: str, vendor: str, destdir: str) -> None:
    """Lay out the tree below `destdir` ("" for the system's root)."""
    os.umask(0o022)
    version = version_of(checkout)
    home = f"{destdir}/usr/lib/gpuhook"
    os.makedirs(home, exist_ok=True)
    new = f"{home}/.new-{os.getpid()}"
    try:
        make_library(new, checkout, vendor, version)
        put_folder(new, f"{home}/{version}")
    finally:
        shutil.rmtree(new, ignore_errors=True)
    os.makedirs(f"{destdir}/usr/bin", exist_ok=True)
    for name in LAUNCHERS:
        put_file(launcher(checkout, name, version), f"{destdir}/usr/bin/{name}", 0o755)
    os.makedirs(f"{destdir}/etc/gpuhook", exist_ok=True)
    if not os.path.lexists(f"{destdir}/etc/gpuhook/runtime.toml"):
        with open(f"{checkout}/config/runtime.toml", "rb") as file:
            put_file(file.read(), f"{destdir}/etc/gpuhook/runtime.toml", 0o644)
    print(f"gpuhook {version} is in {destdir or '/'}")


def version_of(checkout: str) -> str:
    """The version that the package states of itself."""
    with open(f"{checkout}/src/gpuhook/__init__.py", encoding="utf-8") as file:
        match = re.search(r'^__version__ = "([0-9a-z.+~]+)"$', file.read(), re.MULTILINE)
    if not match:
        raise SystemExit("layout.py: src/gpuhook/__init__.py states no version")
    return match[1]


def launcher(checkout: str, name: str, version: str) -> bytes:
    """The text of a launcher with the version filled in."""
    with open(f"{checkout}/src/launchers/{name}", "rb") as file:
        text = file.read()
    if PLACEHOLDER not in text:
        raise SystemExit(f"layout.py: src/launchers/{name} names no version")
    return text.replace(PLACEHOLDER, version.encode())


def make_library(new: str, checkout: str, vendor: str, version: str) -> None:
    """Make one version's folder: the package, what it vendors, the shim's second half; compiled."""
    os.mkdir(new)
    leave_out = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(f"{checkout}/src/gpuhook", f"{new}/gpuhook", ignore=leave_out)
    shutil.copytree(vendor, f"{new}/vendor", ignore=leave_out)
    put_file(launcher(checkout, "gpuhook-shim", version), f"{new}/gpuhook-shim", 0o644)
    # Launchers run with -B and compile nothing. An unchecked hash holds wherever the tree is copied, whatever times
    # its files get there; with times, a package manager's rounding would make each start compile the source anew.
    # The path in it is the one that tracebacks name: the place where the tree will lie.
    compileall.compile_dir(
        new,
        maxlevels=20,
        quiet=2,
        stripdir=new,
        prependdir=f"/usr/lib/gpuhook/{version}",
        invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
    )
    for entry in ENTRIES:
        put_file(bundle(new, entry, version), f"{new}/{entry}.bundle", 0o644)
    own = os.geteuid() == 0
    for folder, _, files in os.walk(new):
        for path, mode in ((folder, 0o755), *((os.path.join(folder, name), 0o644) for name in files)):
            os.chmod(path, mode)
            if own:
                os.chown(path, 0, 0)


# Prints the modules that importing one takes, each after those that it imports itself.
TRACE = """
import sys
from _frozen_importlib_external import SourceLoader

run = SourceLoader.exec_module


def exec_module(self, module):
    run(self, module)
    print(module.__name__, hasattr(module, "__path__") or "")


SourceLoader.exec_module = exec_module
sys.path.insert(0, sys.argv[1])
__import__("gpuhook." + sys.argv[2])
"""

# Runs in a launcher, which has sys, library and modules (name, is it a package, code): makes them as import would.
BOOT = """
for name, package, code in modules:
    module = type(sys)(name)
    path = library + "/" + name.replace(".", "/")
    parent, _, child = name.rpartition(".")
    module.__package__ = name if package else parent
    module.__file__ = path + ("/__init__.py" if package else ".py")
    if package:
        module.__path__ = [path]
    sys.modules[name] = module
    exec(code, module.__dict__)
    if parent:
        setattr(sys.modules[parent], child, module)
"""


def bundle(new: str, entry: str, version: str) -> bytes:
    """The compiled modules that an entry point starts with, in one file: the magic number of the Python that they are
    compiled for, then (code that makes them, modules) by marshal. To find, open and check them one by one takes as long
    as to run them. Without docstrings and asserts. A launcher that finds another Python imports the usual way."""
    command = ["/usr/bin/python3", "-ISB", "-c", TRACE, new, entry]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    modules = []
    for line in listed.splitlines():
        name, _, package = line.partition(" ")
        path = name.replace(".", "/") + ("/__init__.py" if package else ".py")
        with open(f"{new}/{path}", "rb") as file:
            code = compile(file.read(), f"/usr/lib/gpuhook/{version}/{path}", "exec", dont_inherit=True, optimize=2)
        modules.append((name, bool(package), code))
    boot = compile(BOOT, f"/usr/lib/gpuhook/{version}/{entry}.bundle", "exec", dont_inherit=True, optimize=2)
    return importlib.util.MAGIC_NUMBER + marshal.dumps((boot, modules))


def put_folder(new: str, place: str) -> None:
    """Put a finished folder in its place; what stood there ends up at `new`, for the caller to remove."""
    if not os.path.lexists(place):
        os.rename(new, place)
        return
    if same(new, place):
        return
    # An exchange leaves no moment without the folder; where the file system has none, two renames do.
    if ctypes.CDLL(None).renameat2(AT_FDCWD, os.fsencode(new), AT_FDCWD, os.fsencode(place), RENAME_EXCHANGE) != 0:
        os.rename(place, new + ".old")
        os.rename(new, place)
        os.rename(new + ".old", new)


def same(one: str, other: str) -> bool:
    """Whether two folders hold the same files with the same contents."""
    return contents(one) == contents(other)


def contents(folder: str) -> dict[str, bytes]:
    """Each file below a folder, by its path below it."""
    found = {}
    for at, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(at, name), "rb") as file:
                found[os.path.relpath(os.path.join(at, name), folder)] = file.read()
    return found


def put_file(data: bytes, path: str, mode: int) -> None:
    """Write a file beside its place and rename it there."""
    new = f"{path}.new-{os.getpid()}"
    with open(new, "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)
    os.rename(new, path)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        at = f": {error.filename}" if error.filename else ""
        reason = error.strerror or error
        raise SystemExit(f"install: can't lay out the tree below {sys.argv[3] or '/'}: {reason}{at}") from None
