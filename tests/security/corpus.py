# mypy: disable-error-code="func-returns-value"
"""The corpus of hostile layouts, as tables: what stands where gpuhook looks and where it makes things. The numbers are
those of the malicious corpus that the threat model names (L01 to L64)."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from tests.images import LOADERS, MULTIARCH
from tests.security.arena import LIBDIR, climb, replace

# --- L01-L19, L50-L55: directories that we use, as links ------------------------------------------------------------

DIRECTORIES = (
    LIBDIR,
    "usr/lib",
    "usr",
    "usr/bin",
    "etc",
    "etc/ld.so.conf.d",
    "lib64",
    "lib",
    "run",
    "tmp",
    "opt",
    "var",
)


def chain(count: int) -> Callable[[Path, Path, Path], None]:
    def make(place: Path, root: Path, victim: Path) -> None:
        folder = root / f"chain{count}"
        folder.mkdir()
        (folder / "end").mkdir()
        for number in range(count - 1):
            (folder / str(number)).symlink_to(
                f"/chain{count}/{number + 1}" if number < count - 2 else f"/chain{count}/end"
            )
        place.symlink_to(f"/chain{count}/0")

    return make


def two_steps(place: Path, root: Path, victim: Path) -> None:
    place.symlink_to("/other-link")
    (root / "other-link").symlink_to("/" + str(place.relative_to(root)))


LINKS: dict[str, Callable[[Path, Path, Path], object]] = {
    "absolute out": lambda place, root, victim: place.symlink_to(victim / place.relative_to(root)),
    "climbing out": lambda place, root, victim: place.symlink_to(climb(victim / place.relative_to(root))),
    "to the root": lambda place, root, victim: place.symlink_to("/"),
    "to a sibling": lambda place, root, victim: (place.symlink_to("/sibling"), (root / "sibling").mkdir()),
    "to itself": lambda place, root, victim: place.symlink_to("/" + str(place.relative_to(root))),
    "two-step loop": two_steps,
    "dangling": lambda place, root, victim: place.symlink_to("/no/such/place"),
    "to a file": lambda place, root, victim: place.symlink_to("/etc/passwd"),
    "a file": lambda place, root, victim: place.write_text("x"),
    "a fifo": lambda place, root, victim: os.mkfifo(place),
    "chain of 39": chain(39),
    "chain of 41": chain(41),
    "magic root": lambda place, root, victim: place.symlink_to("/proc/self/root" + str(victim)),
    "magic root of init": lambda place, root, victim: place.symlink_to("/proc/1/root" + str(victim)),
    "magic cwd": lambda place, root, victim: place.symlink_to("/proc/self/cwd"),
    "magic fd": lambda place, root, victim: place.symlink_to("/proc/self/fd/3"),
    "magic thread": lambda place, root, victim: place.symlink_to("/proc/thread-self/root/etc"),
    "dev fd": lambda place, root, victim: place.symlink_to("/dev/fd/0"),
}


# --- L30-L39: files that we read or replace ----


def unix_socket(place: Path) -> None:
    """A socket; its path may be longer than sun_path takes."""
    here = Path.cwd()
    os.chdir(place.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(place.name)
    finally:
        os.chdir(here)


def sparse(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(1 << 40)


def device(major: int, minor: int) -> Callable[[Path], None]:
    return lambda place: os.mknod(place, 0o020666, os.makedev(major, minor))


def secret(place: Path) -> Callable[[Path], None]:
    return lambda at: at.symlink_to(place)


STRANGE: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": unix_socket,
    "zero": device(1, 5),
    "tty": device(5, 0),
    "sparse": sparse,
    "directory": lambda place: place.mkdir(),
    "full directory": lambda place: (place / "x/y").mkdir(parents=True),
    "empty": lambda place: place.touch(),
    "garbage": lambda place: place.write_bytes(bytes(range(256)) * 100),
    "a million lines": lambda place: place.write_text("/usr/lib/x\n" * 1_000_000),
    "one long line": lambda place: place.write_text("/" + "x" * 900_000),
    "unreadable": lambda place: (place.write_text("x"), place.chmod(0)),
    "link to a secret": lambda place: place.symlink_to("/proc/self/root/etc/shadow"),
    "link to itself": lambda place: place.symlink_to(place.name),
    "dangling": lambda place: place.symlink_to("/no/such/file"),
}
FILES = (
    "etc/ld.so.cache",
    "etc/ld.so.conf",
    "etc/ld.so.conf.d/00-gpuhook.conf",
    "etc/debian_version",
    f"{LIBDIR}/libc.so.6",
)


CONFS: dict[str, str] = {
    "includes itself": "include /etc/ld.so.conf\n",
    "includes all": "include /*\ninclude /*/*\ninclude /*/*/*\n",
    "includes upwards": "include ../../../../../etc/*\n",
    "includes the kernel": "include /proc/*/environ\ninclude /sys/*\n",
    "stars": "include /usr/lib/" + "*" * 3000 + "x\n",
    "binary": "\0\1\2\n/usr/lib\0/etc\n",
    "names of nothing": "".join(f"/d{number}\n" for number in range(20_000)),
    "relative": "usr/lib\n../etc\n",
    "origin": "/usr/lib/$ORIGIN\n/usr/lib/%s%n\n",
}


# --- L20-L27: compatibility libraries ----

COMPAT = "usr/local/cuda/compat"
COMPATS: dict[str, Callable[[Path, Path], object]] = {
    "a link out": lambda place, victim: place.symlink_to(victim / "compat"),
    "a file": lambda place, victim: place.write_text("x"),
    "a fifo": lambda place, victim: os.mkfifo(place),
    "its library a link out": lambda place, victim: (
        place.mkdir(),
        (place / "libcuda.so.999.1").symlink_to(victim / "file"),
    ),
    "its library a fifo": lambda place, victim: (place.mkdir(), os.mkfifo(place / "libcuda.so.999.1")),
    "its library a device": lambda place, victim: (place.mkdir(), device(1, 5)(place / "libcuda.so.999.1")),
    "its library empty": lambda place, victim: (place.mkdir(), (place / "libcuda.so.999.1").touch()),
    "names that steer": lambda place, victim: (
        place.mkdir(),
        [
            (place / name).touch()
            for name in ("libcuda.so.999.1\nx", "libcuda.so.%s", "libcuda.so.$ORIGIN", "libcuda.so.1")
        ],
    ),
    "ten thousand names": lambda place, victim: (
        place.mkdir(),
        [(place / f"libcuda.so.999.{number}").touch() for number in range(10_000)],
    ),
}


# --- L40-L49: /dev, /proc, /sys ----

KERNEL: dict[str, Callable[[Path, Path], object]] = {
    "absent": lambda place, victim: None,
    "a file": lambda place, victim: place.touch(),
    "a link out": lambda place, victim: place.symlink_to(victim / place.name),
    "a climbing link": lambda place, victim: place.symlink_to("../" * 20 + str(victim / "dev")[1:]),
    "a link to a link": lambda place, victim: (place.symlink_to("/l2"), (place.parent / "l2").symlink_to("/tmp")),
    "a false self": lambda place, victim: (
        place.mkdir(),
        (place / "self/fd").mkdir(parents=True),
        (place / "self/mountinfo").touch(),
    ),
    "nodes of ours": lambda place, victim: (
        place.mkdir(),
        (place / "nvidia0").symlink_to(victim / "file"),
        (place / "nvidiactl").touch(),
        os.mkfifo(place / "nvidia-uvm"),
        device(1, 5)(place / "nvidia1"),
    ),
}


OWN_LINKS = {"fd", "ptmx", "stdin", "stdout", "stderr"}  # runc 1.1 makes these by path, with and without gpuhook

# --- L56-L64 ----


def libraries(root: Path) -> list[Path]:
    """Where driver libraries go."""
    return [
        root / LIBDIR / name for name in ("libcuda.so.580.95.05", "libcuda.so.1", "libnvidia-ml.so.1", "libcuda.so")
    ]


LEFTOVERS: dict[str, Callable[[Path, Path], object]] = {
    "links out": lambda place, victim: place.symlink_to(victim / "file"),
    "links to the root": lambda place, victim: place.symlink_to("/"),
    "sockets": lambda place, victim: unix_socket(place),
    "directories": lambda place, victim: place.mkdir(),
    "fifos": lambda place, victim: os.mkfifo(place),
    "devices": lambda place, victim: device(1, 5)(place),
    "hard links": lambda place, victim: os.link(place.parents[3] / "etc/passwd", place),
    "unreadable": lambda place, victim: (place.touch(), place.chmod(0)),
    "set-id": lambda place, victim: (place.touch(), place.chmod(0o6755)),
    "empty": lambda place, victim: place.touch(),
}


def long_names(root: Path, victim: Path) -> None:
    for number in range(50):
        (root / LIBDIR / f"libcuda.so.{number}{'9' * 240}"[:255]).touch()


def deep(root: Path, victim: Path) -> None:
    here = os.open(root / "opt", os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


ROOTS: dict[str, Callable[[Path, Path], object]] = {
    "empty": lambda root, victim: [
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for path in root.iterdir()
        if path.name != "keep"
    ],
    "long names": long_names,
    "many names": lambda root, victim: [(root / LIBDIR / f"n{number}").touch() for number in range(20_000)],
    "no write permission": lambda root, victim: [
        (root / name).chmod(0o555) for name in (LIBDIR, "etc", "usr/bin", ".")
    ],
    "no loader": lambda root, victim: (root / LOADERS[MULTIARCH][1:]).unlink(),
    "loader a link out": lambda root, victim: replace(
        root / LOADERS[MULTIARCH][1:], lambda place: place.symlink_to(victim / "file")
    ),
    "loader of another machine": lambda root, victim: replace(
        root / LOADERS[MULTIARCH][1:],
        lambda place: place.write_bytes(b"\x7fELF\2\1\1" + b"\0" * 9 + b"\3\0\xf3\0" + b"\0" * 100),
    ),
    "loader a stub": lambda root, victim: replace(
        root / LOADERS[MULTIARCH][1:], lambda place: place.write_bytes(b"\x7fELF")
    ),
}
