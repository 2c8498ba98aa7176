"""layout.py CHECKOUT VENDOR DESTDIR [sources|bundle]: lay out the installed tree (called by scripts/install, which
prepares VENDOR); with `sources` without what precompile.py makes of it, for a package that compiles where it is
installed; with `bundle` with the launchers in the folder of the version, for the programs in usr/bin that
packaging/bundle/build puts there.

A start in flight keeps its files: the folder of a version is made beside its place and exchanged with what stands
there, and each launcher, which names the version, is replaced by one rename after it.
"""

import ctypes
import os
import re
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import precompile

LAUNCHERS = ("gpuhook-runtime", "gpuhook-hook", "gpuhook")
PLACEHOLDER = b"@VERSION@"
SHEBANG = b"#!/usr/bin/python3 -ISB\n"
PROGRAM = b"/usr/bin/gpuhook-runtime"
# What a bundle's launchers say in place of what is in src/launchers. They lie in the folder of the version, where its
# programs start them by their paths without links. The one in sh must not take that program for a low-level runtime.
BUNDLED = "bin"
BUNDLED_PLACE = b"/usr/lib/gpuhook/" + PLACEHOLDER + b"/" + BUNDLED.encode() + b"/"
BUNDLED_HOME = b"$gpuhook_prefix/usr/lib/gpuhook/python/bin/"
AGAIN = (b"install it again (apt reinstall gpuhook)", b"unpack the bundle again")
PYTHON_CHANGES = ((SHEBANG, b""), (b"/usr/bin/", BUNDLED_PLACE), AGAIN)
SH_CHANGES = (
    AGAIN,
    (PROGRAM, BUNDLED_PLACE + b"gpuhook-runtime"),
    (b"/usr/bin/*}", BUNDLED_PLACE + b"*}"),
    (b"\ngpuhook_find_prefix\n", b"\ngpuhook_find_prefix\ngpuhook_self=$gpuhook_prefix" + PROGRAM + b"\n"),
    (b"gpuhook_python=/usr/bin/", b"gpuhook_python=" + BUNDLED_HOME),
    (b"  set -- /bin/grep\n", b'  set -- /bin/grep\n  [ -x "$1" ] || set -- "' + BUNDLED_HOME + b'busybox" grep\n'),
)
WHOLE = "whole"  # the last name in the folder of a version: a launcher that finds it finds all
AT_FDCWD = -100
RENAME_EXCHANGE = 2


def main(checkout: str, vendor: str, destdir: str, what: str = "") -> None:
    """Lay out the tree below `destdir` ("" for the system's root)."""
    os.umask(0o022)
    version = version_of(checkout)
    home = f"{destdir}/usr/lib/gpuhook"
    os.makedirs(home, exist_ok=True)
    new = f"{home}/.new-{os.getpid()}"
    try:
        make_library(new, checkout, vendor, version)
        if what == "bundle":
            os.mkdir(f"{new}/{BUNDLED}")
            for name in LAUNCHERS:
                put_file(launcher(checkout, name, version, bundled=True), f"{new}/{BUNDLED}/{name}", 0o644)
        if what != "sources":
            precompile.library(new, f"/usr/lib/gpuhook/{version}")
        normalise(new)
        put_folder(new, f"{home}/{version}")
    finally:
        shutil.rmtree(new, ignore_errors=True)
    os.makedirs(f"{destdir}/usr/bin", exist_ok=True)
    for name in () if what == "bundle" else LAUNCHERS:
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


def launcher(checkout: str, name: str, version: str, bundled: bool = False) -> bytes:
    """The text of a launcher with the version filled in; `bundled`: as it is in a bundle."""
    with open(f"{checkout}/src/launchers/{name}", "rb") as file:
        text = file.read()
    if PLACEHOLDER not in text:
        raise SystemExit(f"layout.py: src/launchers/{name} names no version")
    changes = PYTHON_CHANGES if text.startswith(SHEBANG) else SH_CHANGES
    for old, new in changes if bundled else ():
        if old not in text:
            raise SystemExit(f"layout.py: src/launchers/{name} has no {old.decode()!r}, which a bundle's has otherwise")
        text = text.replace(old, new)
    return text.replace(PLACEHOLDER, version.encode())


def make_library(new: str, checkout: str, vendor: str, version: str) -> None:
    """Make one version's folder: the package, what it vendors, the shim's second half, what compiles them."""
    os.mkdir(new)
    leave_out = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(f"{checkout}/src/gpuhook", f"{new}/gpuhook", ignore=leave_out)
    shutil.copytree(vendor, f"{new}/vendor", ignore=leave_out)
    put_file(launcher(checkout, "gpuhook-shim", version), f"{new}/gpuhook-shim", 0o644)
    shutil.copyfile(precompile.__file__, f"{new}/precompile.py")
    put_file(f"{version}\n".encode(), f"{new}/{WHOLE}", 0o644)


def normalise(new: str) -> None:
    """Modes and owners as they are installed, whatever the checkout has."""
    own = os.geteuid() == 0
    for folder, _, files in os.walk(new):
        for path, mode in ((folder, 0o755), *((os.path.join(folder, name), 0o644) for name in files)):
            os.chmod(path, mode)
            if own:
                os.chown(path, 0, 0)


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
