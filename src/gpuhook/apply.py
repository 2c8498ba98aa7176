"""Steps in, kernel calls out: inside the container attach what was acquired on the host by handle, or undo.

Hot path. The `Mounter` works in the child that has entered the container's mount namespace (enter.py): it opens nothing
by a path of the host, imports nothing and executes nothing. Whatever fails, it undoes what it did and says which step
failed and why.
"""

import errno
import posix
from _stat import S_ISCHR

from gpuhook import driverproc, ldcache, ldconf, linux, rootfs
from gpuhook.errors import GpuhookError
from gpuhook.image import SPARE
from gpuhook.model import Bind, Image, Link, LoaderCache, Plan, Write
from gpuhook.sources import Sources, failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_TRIES = 16
_TEMPORARY = ".gpuhook"  # how our temporary names end
_SWEPT = 4096  # names of a directory that are looked at for left-over temporary ones


class Mounter:
    """Applies a plan to one root, remembers what it did, and can take it back. Lives in the child."""

    __slots__ = ("directories", "image", "root", "sources", "swept", "tmpfs", "undo", "used")

    def __init__(self, root: rootfs.Root, tmpfs: "tuple[str, ...]", sources: Sources, image: Image) -> None:
        self.root = root
        self.tmpfs = tmpfs
        self.sources = sources
        self.image = image
        self.directories: dict[str, int] = {}
        self.undo: list[Callable[[], None]] = []
        self.used: set[str] = set()
        self.swept: set[int] = set()

    def run(self, steps: Plan) -> "list[str]":
        """Do every step, or none. Returns warnings; raises the GpuhookError of the step that failed, after undoing."""
        warnings = []
        foreign: dict[str, list[str]] = {}
        try:
            for step in steps.steps:
                done = len(self.undo)
                try:
                    warning = self._do(step)
                    if warning:
                        warnings.append(warning)
                except GpuhookError as error:
                    spared = isinstance(error, rootfs.ForeignError) and not _is_library(step)
                    if isinstance(step, LoaderCache) or not (step.optional or spared):
                        raise
                    self._undo_to(done)
                    self.directories.clear()  # a directory that was made for this step is gone again
                    if spared:
                        foreign.setdefault(error.message, []).append(step.target)
                    else:
                        warnings.append(f"left out {step.target}: {error.message}")
        except BaseException:
            self._undo_to(0)
            raise
        return warnings + [_left_out(targets, reason) for reason, targets in foreign.items()]

    def _do(self, step: "Bind | Link | Write | LoaderCache") -> str:
        if isinstance(step, Bind):
            return self._bind(step)
        if isinstance(step, Link):
            return self._link(step)
        if isinstance(step, Write):
            self._write(step.target, step.text.encode("utf-8", "backslashreplace"))
            return ""
        return self._loader_cache(step)

    # --- mounts -------------------------------------------------------------------------------------------------

    def _bind(self, step: Bind) -> str:
        handle = self.sources.handles.get(step.source)
        if handle is None:
            return self.sources.left_out.get(step.source, "")  # nothing where the host just does not have it
        if step.kind == "proc":
            return driverproc.attach(self.root, self.sources, step.target, self.used, self.undo)
        if step.kind == "node" and self._has_node(step.target, posix.fstat(handle).st_rdev):
            return ""
        folder, name = self._parent(step.target)
        target = self._mountpoint(folder, name, step)
        if target is None:
            return f"left out {step.target}: the container mounts something of its own there"
        again = -1
        try:
            if step.source in self.used:
                again = handle = linux.open_tree(handle, "", linux.OPEN_TREE_CLONE | linux.AT_EMPTY_PATH)
            linux.move_mount(handle, target)
            self.used.add(step.source)
            self.undo.append(lambda: linux.unmount_at(folder, name))
            self._verify(handle, folder, name, step.target)
        except OSError as error:
            raise failed(f"mounting {step.source} at {step.target}", error) from None
        finally:
            posix.close(target)
            if again >= 0:
                posix.close(again)
        return ""

    def _has_node(self, path: str, number: int) -> bool:
        """Whether the engine gave the container this device already, or the host's whole /dev."""
        try:
            fd = self.root.open(path, linux.O_PATH | linux.O_NOFOLLOW)
        except OSError:
            return False
        found = posix.fstat(fd)
        posix.close(fd)
        return S_ISCHR(found.st_mode) and found.st_rdev == number

    def _verify(self, handle: int, folder: int, name: str, target: str) -> None:
        """What the name leads to now is what was mounted: the target was not moved away meanwhile."""
        source = posix.fstat(handle)
        found = posix.stat(name, dir_fd=folder, follow_symlinks=False)
        if (source.st_dev, source.st_ino) != (found.st_dev, found.st_ino):
            raise GpuhookError(
                "rootfs-unsafe",
                f"{target} in the container was exchanged while it was mounted",
                "let no running container share this one's root file system",
            )

    def _mountpoint(self, folder: int, name: str, step: Bind) -> int | None:
        """A handle of an object of the right type at `name`, made where it is missing.

        A link there is replaced, never followed; something mounted there by the user stays (None).
        """
        directory = step.kind == "directory"
        for _ in range(_TRIES):
            try:
                return self._make(folder, name, directory=directory)
            except FileExistsError:
                pass
            except OSError as error:
                raise rootfs.unsafe(step.target, error) from None
            try:
                fd = rootfs.entry(folder, name)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    continue  # it was removed in between
                if error.errno == errno.EXDEV:
                    return None
                raise rootfs.unsafe(step.target, error) from None
            kind = rootfs.kind_of(posix.fstat(fd).st_mode)
            if kind == ("directory" if directory else "file") or (kind, step.kind) == ("socket", "socket"):
                return fd
            posix.close(fd)
            if kind != "link":
                raise rootfs.unsafe(f"{step.target} (a {kind})", OSError(errno.EEXIST, ""))
            self._remove_link(folder, name, step.target)
        raise rootfs.unsafe(step.target, OSError(errno.ELOOP, "it keeps changing"))

    def _make(self, folder: int, name: str, *, directory: bool) -> int:
        if directory:
            posix.mkdir(name, 0o755, dir_fd=folder)
            self.undo.append(lambda: posix.rmdir(name, dir_fd=folder))
            return rootfs.entry(folder, name)
        flags = posix.O_RDONLY | posix.O_CREAT | posix.O_EXCL | linux.O_NOFOLLOW | linux.O_CLOEXEC
        fd = posix.open(name, flags, 0o644, dir_fd=folder)
        made = posix.fstat(fd)
        self.undo.append(lambda: _remove_empty(folder, name, made))
        return fd

    def _remove_link(self, folder: int, name: str, target: str) -> None:
        try:
            text = posix.readlink(name, dir_fd=folder)
            posix.unlink(name, dir_fd=folder)
        except OSError as error:
            raise rootfs.unsafe(target, error) from None
        self.undo.append(lambda: posix.symlink(text, name, dir_fd=folder))

    # --- links and files ----------------------------------------------------------------------------------------

    def _link(self, step: Link) -> str:
        folder, name = self._parent(step.target)
        for _ in range(_TRIES):
            try:
                old = posix.readlink(name, dir_fd=folder)
            except FileNotFoundError:
                old = None
            except OSError:
                return f"left out the link {step.target}: the image has something else there"
            if old == step.text:
                return ""
            try:
                if old is None:
                    posix.symlink(step.text, name, dir_fd=folder)
                    self.undo.append(lambda: posix.unlink(name, dir_fd=folder))
                else:
                    self._exchange(folder, name, None, lambda new: posix.symlink(step.text, new, dir_fd=folder))
            except FileExistsError:
                continue  # another start at the same root, or an attacker, made something there in between
            except OSError as error:
                raise rootfs.unsafe(step.target, error) from None
            return ""
        raise rootfs.unsafe(step.target, OSError(errno.ELOOP, "it keeps changing"))

    def _loader_cache(self, step: LoaderCache) -> str:
        """For musl its path file; for glibc the configuration that a later ldconfig reads, then the cache."""
        machine = self.image.machine
        if self.image.loader == "musl":
            text = ldconf.musl_path(self.root, machine, step.directories)
            return "" if text is None else self._write_over(ldconf.musl_file(machine), text, step)
        new = ldconf.updated(self.root, step, machine)
        for path, text in ((ldconf.CONF, new.include), (ldconf.OUR_CONF, new.conf)):
            try:
                if text is not None:
                    self._write(path, text)
            except rootfs.ForeignError:  # then a later ldconfig is the user's, or can't write a cache either
                break
        told = self._write_over(ldconf.CACHE, new.cache, step)
        return "; ".join([*new.warnings, told] if told else new.warnings)

    def _write_over(self, path: str, data: bytes, step: LoaderCache) -> str:
        """Replace a file; on a read-only file system cover it. A warning where it is the user's or not there."""
        try:
            self._write(path, data)
            return ""
        except rootfs.ForeignError as error:
            reason = error.message
            if error.reference != "rootfs-not-writable":
                return f"{path} stays as it is: {reason}; {_by_hand(step)}"
        try:
            folder, name = self._parent(path)
            target = rootfs.entry(folder, name)
        except (rootfs.ForeignError, OSError):
            return f"{path} is not there: {reason}; {_by_hand(step)}"
        handle = -1
        spare = f"{SPARE}/{name}"
        try:
            if rootfs.kind_of(posix.fstat(target).st_mode) != "file":
                return f"{path} stays as it is: {reason}; {_by_hand(step)}"
            self._write(spare, data)
            handle = linux.open_tree(*self._parent(spare), linux.OPEN_TREE_CLONE | linux.AT_SYMLINK_NOFOLLOW)
            linux.move_mount(handle, target)
            self.undo.append(lambda: linux.unmount_at(folder, name))
        except OSError as error:
            raise failed(f"mounting {spare} at {path}", error) from None
        finally:
            posix.close(target)
            if handle >= 0:
                posix.close(handle)
        return ""

    def _write(self, path: str, data: bytes) -> None:
        """Replace a small file of the image whole; what it held is remembered for the undoing.

        What is no regular file, or too long to be one of the loader's, is replaced too and can't be brought back.
        """
        try:
            old = self.root.read(path, ldcache.LIMIT_FILE, own=True)
        except GpuhookError:
            old = None
        if old == data:
            return
        folder, name = self._parent(path)
        try:
            self._exchange(folder, name, old, lambda new: _write_new(folder, new, data))
        except OSError as error:
            raise rootfs.unsafe(path, error) from None

    def _exchange(self, folder: int, name: str, old: bytes | None, make: "Callable[[str], None]") -> None:
        """Replace `name`, whose content is `old` where it is known. OSError as the calls."""
        back = _restorer(folder, name, old)
        self._sweep(folder)
        _replace(folder, name, make)
        if back is not None:
            self.undo.append(back)

    def _sweep(self, folder: int) -> None:
        """Remove what killed starts left in a directory under a temporary name; once for each directory."""
        if folder in self.swept:
            return
        self.swept.add(folder)
        try:
            names = self.root.some_names(folder, _SWEPT)
        except OSError:
            return
        gone = []
        for name in names:
            owner = name[: -len(_TEMPORARY)].rpartition(".")[2]
            if name.startswith(".") and name.endswith(_TEMPORARY) and owner.isascii() and owner.isdigit():
                try:
                    posix.stat(owner, dir_fd=self.root.proc)
                except FileNotFoundError:
                    gone.append(name)
        for name in gone:
            try:
                _discard(folder, name)
            except OSError:  # a directory of the image that is called so
                pass

    # --- both ---------------------------------------------------------------------------------------------------

    def _parent(self, path: str) -> "tuple[int, str]":
        """The directory that `path` lies in, made where it is missing, and the last name. Handles are kept."""
        folder, _, name = path.rpartition("/")
        fd = self.directories.get(folder)
        if fd is None:
            made: list[tuple[int, str]] = []
            try:
                fd = self._directory(folder or "/", made)
            finally:
                for parent, child in made:
                    self.undo.append(_remover(parent, child))
            self.directories[folder] = fd
        return fd, name

    def _directory(self, path: str, made: "list[tuple[int, str]]") -> int:
        """A directory of the root's own mount, or of a fresh tmpfs that the spec mounts over it (`/run`, `/tmp`)."""
        for mount in self.tmpfs:
            if path == mount or path.startswith(f"{mount}/"):
                try:
                    fd = self.root.open(mount, linux.O_PATH | posix.O_DIRECTORY)
                    fields = rootfs.mount_of(fd, self.root.proc)
                    own = rootfs.mount_of(self.root.fd, self.root.proc)
                except OSError as error:
                    raise rootfs.unsafe(mount, error) from None
                # A link of the image may lead from there to a volume: the spec's tmpfs is mounted at that very place.
                place = self.root.here() + mount.encode("utf-8", "surrogateescape")
                is_tmpfs = bool(fields) and fields[3] == b"/" and fields[fields.index(b"-") + 1] == b"tmpfs"
                # A volume that is a whole tmpfs may lie over it, by another name: the spec's lies on the root itself.
                if not is_tmpfs or fields[1:2] != own[:1] or rootfs.unescaped(fields[4]) != place:
                    raise rootfs.unsafe(mount, OSError(errno.EXDEV, ""))
                return rootfs.Root(fd, self.root.proc, mount).directory(path[len(mount) :] or "/", made)
        return self.root.directory(path, made)

    def _undo_to(self, done: int) -> None:
        while len(self.undo) > done:
            try:
                self.undo.pop()()
            except OSError:  # what can't be taken back dies with the container; go on with the rest
                pass


def _is_library(step: "Bind | Link | Write | LoaderCache") -> bool:
    return isinstance(step, Bind) and step.kind == "library" and not step.optional


def _left_out(targets: "list[str]", reason: str) -> str:
    """One sentence for all that could not be put into a place of the user's."""
    more = f" and {len(targets) - 8} more" if len(targets) > 8 else ""
    return f"left out {', '.join(targets[:8])}{more}: {reason}"


def _by_hand(step: LoaderCache) -> str:
    return f"for programs that do not find the driver's libraries set LD_LIBRARY_PATH={':'.join(step.directories)}"


def _remover(parent: int, name: str) -> "Callable[[], None]":
    return lambda: posix.rmdir(name, dir_fd=parent)


def _remove_empty(folder: int, name: str, made: posix.stat_result) -> None:
    found = posix.stat(name, dir_fd=folder, follow_symlinks=False)
    if (found.st_dev, found.st_ino, found.st_size) == (made.st_dev, made.st_ino, 0):
        posix.unlink(name, dir_fd=folder)


def _replace(folder: int, name: str, make: "Callable[[str], None]") -> None:
    """Make a new object under a temporary name and rename it over `name`. OSError as the calls.

    The name has the process in it, for another start may be at the same root; one that a killed start left is swept
    away by the next that writes there (`Mounter._sweep`).
    """
    temporary = f".{name}.{posix.getpid()}{_TEMPORARY}"
    _discard(folder, temporary)
    try:
        make(temporary)
        posix.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        _discard(folder, temporary)
        raise


def _restorer(folder: int, name: str, content: bytes | None) -> "Callable[[], None] | None":
    """What brings back `name` as it is now: absent, a link, or a file of this content; None where nothing can."""
    try:
        found = posix.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return lambda: posix.unlink(name, dir_fd=folder)
    kind = rootfs.kind_of(found.st_mode)
    if kind == "link":
        text = posix.readlink(name, dir_fd=folder)
        return lambda: _replace(folder, name, lambda new: posix.symlink(text, new, dir_fd=folder))
    if kind != "file" or content is None:
        return None
    known = content
    return lambda: _replace(folder, name, lambda new: _write_new(folder, new, known, found.st_mode & 0o777))


def _discard(folder: int, name: str) -> None:
    try:
        posix.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def _write_new(folder: int, name: str, data: bytes, mode: int = 0o644) -> None:
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | linux.O_NOFOLLOW | linux.O_CLOEXEC
    fd = posix.open(name, flags, mode, dir_fd=folder)
    try:
        linux.write_fd(fd, data)
    finally:
        posix.close(fd)
