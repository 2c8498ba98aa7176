"""Make an image's loader find the driver's libraries: the new loader cache and the configuration for a later ldconfig.

No ldconfig is run: the image's could be anything, the host's knows other directories. The image's `ld.so.conf` tree,
cache and libraries are hostile data, read by handle and within bounds. Nothing is written here.

Hot path.
"""

import posix

from gpuhook import elf, ldcache
from gpuhook.errors import GpuhookError
from gpuhook.model import LoaderCache, value
from gpuhook.rootfs import ForeignError

CACHE = "/etc/ld.so.cache"
CONF = "/etc/ld.so.conf"
OUR_CONF = "/etc/ld.so.conf.d/00-gpuhook.conf"  # sorts before all others, so that a later ldconfig agrees

LIMIT_FILES = 128  # read of the configuration tree, a file included twice counted twice
LIMIT_BYTES = 1 << 20  # of one file of it
LIMIT_LINES = 20000  # of the tree
LIMIT_DEPTH = 8
LIMIT_EFFORT = 1 << 22  # of matching names against patterns, in pairs of characters: a second or two
LIMIT_DIRECTORIES = 256
LIMIT_NAMES = 16384  # in one directory of the image
LIMIT_SCAN = 4096  # libraries looked into, of all directories

# (machine, bits) of a library -> its ABI flags
_ABI = {("x86-64", 64): 0x0303, ("x86-64", 32): 0x0803, ("i386", 32): 0x0003, ("aarch64", 64): 0x0A03}
_INCLUDE = b"include /etc/ld.so.conf.d/*.conf\n"
_MUSL_DEFAULT = ("/lib", "/usr/local/lib", "/usr/lib")  # musl, ldso/dynlink.c

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuhook.rootfs import Root


@value
class Update:
    """New contents: of the cache, of `OUR_CONF`, and of `CONF` (None: it stays). `warnings` are sentences."""

    cache: bytes
    conf: bytes
    include: "bytes | None"
    warnings: tuple[str, ...] = ()


def updated(root: "Root", step: LoaderCache, machine: str) -> Update:
    """What to write so that the image's glibc loader finds `step.entries` first, now and after a later ldconfig.

    Directories that the image's configuration names and its cache does not know are looked through. Never raises for
    what the image holds: what is broken is left out, with a warning.
    """
    tree = _Tree(root)
    tree.read(CONF, 0)
    warnings = tree.warnings
    rows, hwcaps = _cached(root, warnings)
    extra: list[ldcache.Entry] = []
    left = LIMIT_SCAN
    for directory in _uncached(root, rows, tree.directories):
        found, looked_at = scan(root, directory, left)
        extra += found
        left -= looked_at
    cache = ldcache.merge_rows(rows, hwcaps, step.entries, machine, extra, step.entries32)
    conf = "# Written by gpuhook: the libraries of the host's GPU driver come first\n" + "".join(
        [directory + "\n" for directory in step.directories]
    )
    include = None
    if not tree.covered:
        if tree.text is not None or root.lkind(CONF) is None:
            include = _INCLUDE + (tree.text or b"")
        else:
            warnings.append(f"{CONF} of the image can't be read and stays: a later ldconfig in there loses the driver")
    return Update(cache, ldcache.raw(conf), include, tuple(warnings))


def directories(root: "Root") -> tuple[str, ...]:
    """The directories that the image's `/etc/ld.so.conf` tree names, in order, as far as it can be read."""
    tree = _Tree(root)
    tree.read(CONF, 0)
    return tuple(tree.directories)


def _cached(root: "Root", warnings: list[str]) -> "tuple[list[ldcache.Raw], tuple[bytes, ...]]":
    """The entries of the image's cache; none where there is no usable one."""
    try:
        data = root.read(CACHE, ldcache.LIMIT_FILE)
        if data is not None:
            return ldcache.decode(data)
        if root.lkind(CACHE) is not None:
            warnings.append(f"{CACHE} of the image is no regular file; made anew")
    except ValueError as problem:
        warnings.append(f"{CACHE} of the image is broken: {problem}; made anew")
    except GpuhookError as problem:
        warnings.append(f"{problem.message}; made anew")
    return [], ()


def _uncached(root: "Root", rows: "list[ldcache.Raw]", named: list[str]) -> list[str]:
    """Those of the directories `named` from which the cache has nothing, whatever path it has them under."""
    cached = {path.rpartition(b"/")[0] for _, _, path, _, _ in rows}
    rest = [directory for directory in named if ldcache.raw(directory) not in cached]
    if not rest:
        return []
    known = {_identity(root, ldcache.text(directory)) for directory in sorted(cached)[:LIMIT_DIRECTORIES]}
    known.add(None)
    found = []
    for directory in rest:
        identity = _identity(root, directory)
        if identity not in known:
            known.add(identity)
            found.append(directory)
    return found


def _identity(root: "Root", path: str) -> "tuple[int, int] | None":
    try:
        fd = root.open(path or "/")
    except (OSError, ValueError):
        return None
    try:
        status = posix.fstat(fd)
        return status.st_dev, status.st_ino
    finally:
        posix.close(fd)


def scan(root: "Root", directory: str, limit: int = LIMIT_SCAN) -> tuple[tuple[ldcache.Entry, ...], int]:
    """The libraries in one directory of the image, as entries by file name and by soname, and how many were looked at.

    At most `limit` are: a link that leads nowhere costs as much as a library.
    A soname leads to the file of that name or, without one, to the file whose name sorts highest, as with ldconfig.
    Directories below `glibc-hwcaps` are not looked into: the loader does well without those variants.
    """
    try:
        names = root.names(directory, LIMIT_NAMES)
    except (GpuhookError, OSError):
        names = None
    files = [ldcache.raw(name) for name in names or () if _is_library(name)]
    found: dict[tuple[bytes, int], bytes] = {}
    for _, name in sorted(zip(ldcache.order_keys(files), files, strict=True), reverse=True)[: max(0, limit)]:
        path = directory + "/" + ldcache.text(name)
        what = _elf(root, path)
        flags = _ABI.get((what.machine, what.bits)) if what else None
        if what and flags is not None:
            found[name, flags] = name
            found.setdefault((ldcache.raw(what.soname), flags), name)
    prefix = directory + "/"
    entries = [
        ldcache.Entry(ldcache.text(key[0]), prefix + ldcache.text(name), key[1])
        for key, name in found.items()
        if key[0]
    ]
    return tuple(entries), min(len(files), limit)


def _elf(root: "Root", path: str) -> "elf.Elf | None":
    try:
        fd = root.open_regular(path)
    except GpuhookError:
        return None
    if fd is None:
        return None
    try:
        return elf.read_fd(fd)
    finally:
        posix.close(fd)


def _is_library(name: str) -> bool:
    """Whether ldconfig would look into a file of this name, and the loader's order can place it."""
    return (
        name.startswith(("lib", "ld-"))
        and ".so" in name
        and not name.endswith(".py")
        and name.isascii()
        and name.isprintable()
        and b"0" * 10 not in name.encode().translate(ldcache.COLLAPSE)
    )


class _Tree:
    """One reading of an `ld.so.conf` and what it includes; the grammar is that of glibc's ldconfig (`parse_conf`)."""

    def __init__(self, root: "Root") -> None:
        self.root = root
        self.directories: list[str] = []
        self.warnings: list[str] = []
        self.text: bytes | None = None  # of the first file
        self.covered = False  # whether some include reaches OUR_CONF
        self._files = 0
        self._lines = 0
        self._effort = 0

    def read(self, path: str, depth: int) -> None:
        """Take in one file; one that is not there or can't be read is passed over."""
        self._files += 1
        if depth > LIMIT_DEPTH or self._files > LIMIT_FILES or self._lines >= LIMIT_LINES:
            self._warn(f"{CONF} of the image includes too much; the rest is left out")
            return
        own = not depth
        try:
            try:
                text = self.root.read(path, LIMIT_BYTES, own=own)
            except ForeignError:  # a volume's: it names directories, and is not copied
                own = False
                text = self.root.read(path, LIMIT_BYTES)
        except (GpuhookError, OSError) as problem:
            self._warn(f"{path} of the image can't be read: {problem.args[0]}")
            return
        if text is None:
            return
        if own:
            self.text = text
        lines = text.split(b"\n", LIMIT_LINES - self._lines)
        self._lines += len(lines)
        if self._lines > LIMIT_LINES:
            self._warn(f"{CONF} of the image has more than {LIMIT_LINES} lines; the rest is left out")
            del lines[-1]
        for line in lines:
            self._line(ldcache.text(line.partition(b"#")[0].strip()), path, depth)

    def _line(self, line: str, path: str, depth: int) -> None:
        word, _, rest = line.replace("\t", " ").partition(" ")
        if not line or word == "hwcap" or "\0" in line or len(line) > ldcache.LIMIT_NAME:
            return
        if word == "include":
            for pattern in rest.split():
                self._include(pattern if pattern[0] == "/" else path.rpartition("/")[0] + "/" + pattern, depth)
            return
        directory = line.partition("=")[0].rstrip(" /") or "/"
        if line[0] == "/" and directory not in self.directories and len(self.directories) < LIMIT_DIRECTORIES:
            self.directories.append(directory)

    def _include(self, pattern: str, depth: int) -> None:
        parts = pattern.split("/")[1:]
        ours = OUR_CONF.split("/")[1:]
        if len(parts) == len(ours) and all(_matches(*pair) for pair in zip(ours, parts, strict=True)):
            self.covered = True
        if self._files > LIMIT_FILES:
            return
        paths = [""]
        for part in parts:
            if "*" in part or "?" in part or "[" in part:
                paths = [f"{path}/{name}" for path in paths for name in self._matching(path, part)][:LIMIT_FILES]
            else:
                paths = [f"{path}/{part}" for path in paths]
        for path in paths:
            self.read(path, depth + 1)

    def _matching(self, directory: str, pattern: str) -> list[str]:
        """The names in a directory that match, sorted; none once too much has been matched."""
        if self._effort > LIMIT_EFFORT:
            self._warn(f"{CONF} of the image includes too much; the rest is left out")
            return []
        try:
            names = self.root.names(directory or "/", LIMIT_NAMES) or ()
        except (GpuhookError, OSError) as problem:
            self._warn(f"{directory} of the image can't be listed: {problem.args[0]}")
            return []
        each = len(pattern) * (len(pattern) if "[" in pattern else 1)
        found = []
        self._effort += 1024
        for name in names:
            self._effort += len(name) * each
            if self._effort > LIMIT_EFFORT:
                break
            if _matches(name, pattern):
                found.append(name)
        return sorted(found)

    def _warn(self, sentence: str) -> None:
        if sentence not in self.warnings and len(self.warnings) < 8:
            self.warnings.append(sentence)


def _matches(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern of glob(7) for one path component; time is at most their lengths' product."""
    if name.startswith(".") and not pattern.startswith("."):
        return False
    at = start = 0
    back = mark = -1  # where to go on when a later part does not match: the pattern after its last *, and the name
    while start < len(name):
        step = _one(name[start], pattern, at)
        if step:
            at += step
            start += 1
        elif pattern[at : at + 1] == "*":
            at += 1
            back, mark = at, start
        elif back >= 0:
            mark += 1
            at, start = back, mark
        else:
            return False
    return not pattern[at:].strip("*")


def _one(letter: str, pattern: str, at: int) -> int:
    """How many characters of the pattern stand for this one letter; 0 where none do."""
    sign = pattern[at : at + 1]
    if sign == "[":
        negated = pattern[at + 1 : at + 2] in ("!", "^")
        first = at + 1 + negated
        stop = pattern.find("]", first + 1)
        if stop > 0:
            inside = pattern[first:stop]
            hit = letter in inside or any(
                inside[i - 1] <= letter <= inside[i + 1] for i in range(1, len(inside) - 1) if inside[i] == "-"
            )
            return stop + 1 - at if hit != negated else 0
    if sign == "?":
        return 1
    if sign == "\\" and pattern[at + 1 : at + 2] == letter:
        return 2
    return 1 if sign == letter and sign != "*" else 0


# --- musl ---------------------------------------------------------------------------------------------------------


def musl_path(root: "Root", machine: str, ours: tuple[str, ...]) -> "bytes | None":
    """The new content of musl's `/etc/ld-musl-<arch>.path` with our directories first; None: it may stay as it is.

    The file replaces musl's own list, so that is written out where there is no file. A file that can't be read counts
    as none, as for musl itself.
    """
    try:
        text = root.read(musl_file(machine), LIMIT_BYTES, own=True)
    except (GpuhookError, OSError):
        text = None
    if text is None:
        old = list(_MUSL_DEFAULT)
        if all(directory in old for directory in ours):
            return None
    else:
        old = [line for line in ldcache.text(text).replace(":", "\n").split("\n") if line]
    new = list(dict.fromkeys([*ours, *old]))
    return None if new == old else ldcache.raw("\n".join(new) + "\n")


def musl_file(machine: str) -> str:
    """Where musl keeps its search path for a machine."""
    return f"/etc/ld-musl-{'x86_64' if machine == 'x86-64' else machine}.path"
