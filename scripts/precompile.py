"""precompile.py [remove]: compile the folder of a version that this file lies in, for the Python that runs it.

Also part of the installed tree, where a package calls it when it is installed and when the system gets another Python.
Without what it makes, all works from the sources, and each start takes longer. Each file that it writes is replaced by
one rename. `remove` takes away all that it ever made there.
"""

import compileall
import importlib.util
import marshal
import os
import shutil
import subprocess
import sys
from py_compile import PycInvalidationMode

ENTRIES = ("shim", "hook", "hookonly")  # started for each container
CACHE = "__pycache__"

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


def library(folder: str, place: str) -> None:
    """Compile the version's folder that lies at `folder` and will lie at `place`, which is what tracebacks name.

    Launchers run with -B and compile nothing. An unchecked hash holds wherever the tree is copied, whatever times its
    files get there; with times, a package manager's rounding would make each start compile the source anew.
    """
    for inner in ("gpuhook", "vendor"):
        compileall.compile_dir(
            f"{folder}/{inner}",
            maxlevels=20,
            quiet=2,
            force=True,
            stripdir=folder,
            prependdir=place,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )
    for entry in ENTRIES:
        put(f"{folder}/{entry}.bundle", bundle(folder, entry, place))


def bundle(folder: str, entry: str, place: str) -> bytes:
    """The compiled modules that an entry point starts with, in one file: the magic number of the Python that they are
    compiled for, then (code that makes them, modules) by marshal. To find, open and check them one by one takes as long
    as to run them. Without docstrings and asserts. A launcher that finds another Python imports the usual way."""
    command = [sys.executable, "-ISB", "-c", TRACE, folder, entry]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    modules = []
    for line in listed.splitlines():
        name, _, package = line.partition(" ")
        path = name.replace(".", "/") + ("/__init__.py" if package else ".py")
        with open(f"{folder}/{path}", "rb") as file:
            code = compile(file.read(), f"{place}/{path}", "exec", dont_inherit=True, optimize=2)
        modules.append((name, bool(package), code))
    boot = compile(BOOT, f"{place}/{entry}.bundle", "exec", dont_inherit=True, optimize=2)
    return importlib.util.MAGIC_NUMBER + marshal.dumps((boot, modules))


def put(path: str, data: bytes) -> None:
    """Write a file beside its place and rename it there."""
    new = f"{path}.new-{os.getpid()}"
    with open(new, "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), 0o644)
        os.fsync(
            file.fileno()
        )  # a launcher starts with what it finds: half a file after a power cut would fail each start
    os.rename(new, path)


def remove(folder: str, keep: str = "") -> None:
    """Take away compiled files; those whose names hold `keep` (a Python's tag) stay, and then the bundles stay too."""
    for at, folders, names in os.walk(folder):
        if os.path.basename(at) == CACHE:
            for name in names:
                if not keep or f".{keep}." not in name:
                    os.unlink(f"{at}/{name}")
        elif CACHE in folders and not keep:
            shutil.rmtree(f"{at}/{CACHE}")
            folders.remove(CACHE)
    if not keep:
        for entry in ENTRIES:
            try:
                os.unlink(f"{folder}/{entry}.bundle")
            except FileNotFoundError:
                pass


if __name__ == "__main__":
    os.umask(0o022)
    own = os.path.dirname(os.path.realpath(__file__))
    if sys.argv[1:] == ["remove"]:
        remove(own)
    else:
        library(own, own)
        remove(own, keep=sys.implementation.cache_tag)
