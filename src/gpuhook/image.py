"""Look at a container's root file system: which loader it has, where its libraries go, which driver files it brings.

All of it is hostile data, looked at by handle (`Root`), a few system calls a question, nothing run and nothing followed
out of the root. The answer is a value; what to do about it is the plan's.

Hot path.
"""

import errno
import posix

from gpuhook import elf, jsonio, linux, version
from gpuhook.errors import GpuhookError
from gpuhook.model import DriverFile, Image, replace
from gpuhook.rootfs import IN_ROOT

COMPAT = "/usr/local/cuda/compat"  # where CUDA images have their forward-compatibility libraries
_NOTE = (b".note.cuda.fwd_compatibility", b"NVIDIA Corporation")  # section and owner of what their libcuda says

# Where libraries go when nothing can be made in the image's own directory: below the tmpfs that every spec mounts.
SPARE = "/dev/.gpuhook"

LIMIT_NAMES = 65536  # in a library directory of the image; Arch has 10 000 in one
LIMIT_COVER = 256  # files of the image that one container may have covered
LIMIT_LEVEL = 16  # characters of a CUDA level
LIMIT_BRANCHES = 64  # that a forward-compatibility library names; CUDA 13.1's names six
LIMIT_HWCAPS = 64  # directories below glibc-hwcaps

TRIPLETS = {"x86-64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}

# machine, libc, where the loader is: the first by the ABI (PT_INTERP), the others by what distributions do without it
_LOADERS = (
    ("x86-64", "glibc", "/lib64/ld-linux-x86-64.so.2"),
    ("x86-64", "glibc", "/lib/ld-linux-x86-64.so.2"),
    ("x86-64", "glibc", "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
    ("x86-64", "musl", "/lib/ld-musl-x86_64.so.1"),
    ("aarch64", "glibc", "/lib/ld-linux-aarch64.so.1"),
    ("aarch64", "glibc", "/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1"),
    ("aarch64", "musl", "/lib/ld-musl-aarch64.so.1"),
)
# machine -> that of its 32-bit programs, and Debian's name for that
_NARROW = {"x86-64": ("i386", "i386-linux-gnu"), "aarch64": ("arm", "arm-linux-gnueabihf")}
NATIVE = {"x86_64": "x86-64", "aarch64": "aarch64"}  # by uname(2)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.rootfs import Root


def look(root: "Root", libraries: tuple[DriverFile, ...], compat: bool) -> Image:
    """What the image is, for the driver's `libraries` that it shall get; `compat`: look for its own newer ones too.

    GpuhookError `rootfs-unsafe` where the library directory can't be listed within bounds.
    """
    loader, machine = _loader(root)
    libdir, has_libc = _library_directory(root, machine or _native())
    if loader == "glibc" and not has_libc and _machine(root, _musl(machine)):
        loader = "musl"  # gcompat: a stand-in at the path of glibc's loader
    if loader == "musl":
        libdir = "/usr/lib"
    found = _compat(root, machine) if compat and loader == "glibc" else ("", "", ())
    level, branches = compat_note(root, f"{found[0]}/libcuda.so.{found[1]}") if found[0] else ((), ())
    narrow = _narrow_directory(root, machine, libdir) if any(item.bits == 32 for item in libraries) else ""
    if not _can_make(root, libdir) or (narrow and not _can_make(root, narrow)):
        return spared(Image(loader, machine, libdir, *found, (), narrow, level, branches))
    cover = _cover(root, libdir, tuple([item for item in libraries if item.bits != 32]))
    if narrow:
        cover += _cover(root, narrow, tuple([item for item in libraries if item.bits == 32]))
    return Image(loader, machine, libdir, *found, cover, narrow, level, branches)


def spared(found: Image) -> Image:
    """The image where its library directory is a volume, or its file system read-only: libraries go elsewhere."""
    return replace(found, libdir=f"{SPARE}/lib", libdir32=f"{SPARE}/lib32" if found.libdir32 else "", cover=())


def _can_make(root: "Root", directory: str) -> bool:
    """Whether something can be made in a directory: it, or the nearest one above, is the root's own and writable."""
    if posix.fstatvfs(root.fd).f_flag & posix.ST_RDONLY:
        return False
    while True:
        try:
            posix.close(root.open(directory or "/", linux.O_PATH, IN_ROOT | linux.RESOLVE_NO_XDEV))
        except OSError as error:
            if error.errno == errno.ENOENT and directory:
                directory = directory.rpartition("/")[0]
                continue
            return error.errno != errno.EXDEV  # what else is the matter shows when something is made
        return True


def _native() -> str:
    return NATIVE.get(posix.uname().machine, "x86-64")


def _musl(machine: str) -> str:
    return f"/lib/ld-musl-{'x86_64' if machine == 'x86-64' else machine}.so.1"


def _loader(root: "Root") -> tuple[str, str]:
    """The libc and the machine of the loader; this host's machine is looked for first, in case an image has two."""
    native = _native()
    for wanted in (native, ""):
        for machine, libc, path in _LOADERS:
            if (machine == native) == bool(wanted):
                found = _machine(root, path)
                if found:
                    return libc, found
    return "", ""


def _machine(root: "Root", path: str) -> str:
    """The machine in the ELF header of a regular file of the image, or `` where there is none."""
    try:
        fd = root.open_regular(path)
    except GpuhookError:
        return ""
    if fd is None:
        return ""
    try:
        head = posix.read(fd, 20)
    except OSError:
        return ""
    finally:
        posix.close(fd)
    if len(head) < 20 or not head.startswith(b"\x7fELF"):
        return ""
    number = int.from_bytes(head[18:20], "big" if head[5] == 2 else "little")
    return elf.MACHINES.get(number, f"unknown-{number}")


def _library_directory(root: "Root", machine: str) -> tuple[str, bool]:
    """Where the image keeps its libraries, free of links, and whether glibc's own was found there.

    The directory goes by what the image has, not by the host: Debian, Fedora and Arch each have their own.
    """
    multiarch = TRIPLETS.get(machine, TRIPLETS["x86-64"])
    for usr, bare in ((f"/usr/lib/{multiarch}", f"/lib/{multiarch}"), ("/usr/lib64", "/lib64"), ("/usr/lib", "/lib")):
        for directory in (usr, bare):
            path = directory + "/libc.so.6"
            # libc6-compat of Alpine links the name to musl's
            if root.kind(path) == "file" and "musl" not in (root.readlink(path) or ""):
                return _plain_directory(root, usr), True
    debian = root.kind("/etc/debian_version") is not None
    return _plain_directory(root, f"/usr/lib/{multiarch}" if debian else "/usr/lib64"), False


def _narrow_directory(root: "Root", machine: str, libdir: str) -> str:
    """Where the image keeps libraries of 32-bit programs, free of links: with its 32-bit C library, which looks there
    by itself. Empty where it has none, and so no program that could use one of the driver's.

    /usr/lib/i386-linux-gnu (Debian), /usr/lib32 (Arch, Debian's libc6-i386), /usr/lib (Fedora, SUSE).
    """
    narrow, multiarch = _NARROW.get(machine, ("", ""))
    for usr, bare in ((f"/usr/lib/{multiarch}", f"/lib/{multiarch}"), ("/usr/lib32", "/lib32"), ("/usr/lib", "/lib")):
        for directory in (usr, bare):
            if narrow and _machine(root, f"{directory}/libc.so.6") == narrow:
                path = _plain_directory(root, usr)
                return path if path != libdir else ""
    return ""


def _plain_directory(root: "Root", path: str) -> str:
    real = root.real(path)
    return real if real and is_plain_path(real) else path


def is_plain_path(path: str) -> bool:
    """Whether a path of the image may stand in a configuration file: absolute, of plain ASCII letters and signs."""
    return path.startswith("/") and is_plain(path.replace("/", ""))


def is_plain(name: str) -> bool:
    """Whether a name of the image is made of ASCII letters, digits and `._+-` only, and at most 255 of them."""
    rest = name.replace(".", "").replace("_", "").replace("+", "").replace("-", "")
    return 0 < len(name) <= 255 and rest.isascii() and (rest.isalnum() or not rest)


def is_version(text: str) -> bool:
    """Whether a text is a driver version as it stands in a file name: two to four numbers with dots between."""
    parts = text.split(".")
    return 2 <= len(parts) <= 4 and all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts)


def _compat(root: "Root", machine: str) -> tuple[str, str, tuple[str, ...]]:
    """Directory, version and sonames of the image's forward-compatibility libraries; empty unless there is just one.

    They are never mounted or opened by the host: their directory goes into the container's loader cache at most.
    """
    nothing: tuple[str, str, tuple[str, ...]] = ("", "", ())
    directory = root.real(COMPAT)
    if not directory or not is_plain_path(directory):
        return nothing
    try:
        names = set(root.names(directory, LIMIT_NAMES) or ())
    except GpuhookError:
        return nothing
    versions = [
        version
        for version in [name[len("libcuda.so.") :] for name in names if name.startswith("libcuda.so.")]
        if is_version(version)
        and root.lkind(f"{directory}/libcuda.so.{version}") == "file"
        and _machine(root, f"{directory}/libcuda.so.{version}") == machine
    ]
    if len(versions) != 1:
        return nothing
    end = ".so." + versions[0]
    stems = {name[: -len(end)] for name in names if name.startswith("lib") and name.endswith(end)}
    sonames = []
    for name in sorted(names):
        stem, _, number = name.rpartition(".so.")
        if stem in stems and is_plain(name) and number.isascii() and number.isdigit() and len(number) < 3:
            sonames.append(name)
    return (directory, versions[0], tuple(sonames)) if "libcuda.so.1" in sonames else nothing


def compat_note(root: "Root", path: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The CUDA level and the driver branches that a forward-compatibility libcuda names; empty where it names none.

    CUDA's libraries have them in an ELF note, as JSON: `{"CUDA Version": "13.1", "Driver": [535, 550]}`; those for
    integrated GPUs name no branches. Its other words (`Format`, `Device`) are not documented and not looked at.
    """
    nothing: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    try:
        fd = root.open_regular(path)
    except GpuhookError:
        return nothing
    if fd is None:
        return nothing
    try:
        text = elf.note_fd(fd, *_NOTE)
    finally:
        posix.close(fd)
    try:
        said = jsonio.loads(text) if text else None
    except (ValueError, ImportError):  # what is no JSON is looked at by the json package, which a container can't load
        return nothing
    if not isinstance(said, dict):
        return nothing
    level, branches = said.get("CUDA Version"), said.get("Driver")
    parts = version.parse(level) if isinstance(level, str) and len(level) <= LIMIT_LEVEL else None
    found = branches if isinstance(branches, list) and len(branches) <= LIMIT_BRANCHES else []
    return parts or (), tuple([item for item in found if type(item) is int and 0 < item < 10000])


def _cover(root: "Root", libdir: str, libraries: tuple[DriverFile, ...]) -> tuple[tuple[str, str], ...]:
    """The image's own regular files that a loader or a later ldconfig could take for one of our libraries.

    In the directory that ours go to: other versions, copies where our links go, and what is left of an earlier start
    that an image was made from. In its `glibc-hwcaps` directories, which a loader prefers: our own file names too.
    """
    stems: dict[str, str] = {}
    links: dict[str, str] = {}
    mounted = set()
    for library in libraries:
        if library.kind == "library":
            mounted.add(library.name)
            stems.setdefault(library.name.partition(".so")[0], library.name)
            for link in library.links:
                links.setdefault(link, library.name)

    def ours(name: str) -> str:
        stem, _, version = name.partition(".so")
        is_library = not version or (version[0] == "." and not version.strip("0123456789."))
        return links.get(name) or (stems[stem] if is_library and name != stem else "")

    found = []
    names = root.names(libdir, LIMIT_NAMES) or ()
    for name in names:
        if name in links or name.partition(".so")[0] in stems:
            found.append((f"{libdir}/{name}", "" if name in mounted else ours(name)))
    if "glibc-hwcaps" in names:
        special = f"{libdir}/glibc-hwcaps"
        for directory in sorted(root.names(special, LIMIT_HWCAPS) or ()):
            for name in root.names(f"{special}/{directory}", LIMIT_NAMES) or ():
                if name in links or name.partition(".so")[0] in stems:
                    found.append((f"{special}/{directory}/{name}", ours(name)))
    files = tuple(sorted([item for item in found if item[1] and root.lkind(item[0]) == "file"]))
    if len(files) > LIMIT_COVER:
        raise GpuhookError(
            "rootfs-unsafe",
            f"{libdir} in {root.name} has {len(files)} files with names of driver libraries, more than {LIMIT_COVER}",
            "remove the driver libraries from the image",
        )
    return files
