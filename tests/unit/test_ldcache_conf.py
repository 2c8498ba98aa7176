"""The image's loader configuration: what is read of it, what is written for it, and that no image can break that."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuhook import ldcache, ldconf
from gpuhook.model import LoaderCache
from gpuhook.rootfs import Root

Fill = Callable[[Path], object]
LIB = "/usr/lib/x86_64-linux-gnu"
STEP = LoaderCache((("libcuda.so.1", f"{LIB}/libcuda.so.1"),), (LIB,))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    (tmp_path / "etc/ld.so.conf.d").mkdir(parents=True)
    found = Root.at(str(tmp_path))
    yield found
    found.close()
    os.close(found.proc)


def write(root: Root, path: str, text: str | bytes) -> None:
    target = Path(root.name + path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(text.encode() if isinstance(text, str) else text)


FILES = {
    "/etc/ld.so.conf.d/b.conf": "/b\n",
    "/etc/ld.so.conf.d/a.conf": "/a\n",
    "/etc/ld.so.conf.d/10.conf": "/ten\n",
    "/etc/ld.so.conf.d/.hidden.conf": "/hidden\n",
    "/etc/ld.so.conf.d/a.txt": "/txt\n",
    "/opt/x/y.conf": "include z.conf\n",
    "/opt/x/z.conf": "/z\n",
    "/etc/loop.conf": "/loop\ninclude loop.conf\n",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", (), id="empty"),
        pytest.param("/one\n  /two  \n\t/three\t", ("/one", "/two", "/three"), id="blanks and no last newline"),
        pytest.param("# no\n/one # yes\n#/two\n", ("/one",), id="comments"),
        pytest.param("/one/\n/one\n/two//\n/\n", ("/one", "/two", "/"), id="trailing slashes and repeats"),
        pytest.param("relative\n./x\n=libc6\n", (), id="not absolute"),
        pytest.param("/one=libc6\n", ("/one",), id="library type"),
        pytest.param("hwcap 1 nosegneg\n/one\n", ("/one",), id="hwcap"),
        pytest.param("/with space\n", ("/with space",), id="space in a path"),
        pytest.param("/a\0b\n/one\n", ("/one",), id="NUL"),
        pytest.param("/" + "x" * 5000 + "\n/one\n", ("/one",), id="too long"),
        pytest.param("include ld.so.conf.d/*.conf\n", ("/ten", "/a", "/b"), id="relative glob, sorted, none hidden"),
        pytest.param("/first\ninclude /etc/ld.so.conf.d/[ab].conf\n", ("/first", "/a", "/b"), id="set"),
        pytest.param("include /etc/ld.so.conf.d/[!a].conf\n", ("/b",), id="negated set"),
        pytest.param("include /etc/ld.so.conf.d/?.conf\n", ("/a", "/b"), id="question mark"),
        pytest.param("include /etc/*/a.conf /opt/?/y.conf\n", ("/a", "/z"), id="two patterns, directories matched"),
        pytest.param("include\tld.so.conf.d/b.conf\n", ("/b",), id="tab and no glob"),
        pytest.param("include /no/such/*.conf\n/one\n", ("/one",), id="nothing matches"),
        pytest.param("include\n/one\n", ("/one",), id="include of nothing"),
        pytest.param("include loop.conf\n/one\n", ("/loop", "/one"), id="includes itself"),
        pytest.param("include ../../../../etc/ld.so.conf.d/a.conf\n", ("/a",), id="climbing stays inside"),
        pytest.param("includes /x\n", (), id="another word"),
    ],
)
def test_directories(root: Root, text: str, expected: tuple[str, ...]) -> None:
    """The grammar of ld.so.conf, as glibc's ldconfig has it."""
    for path, content in FILES.items():
        write(root, path, content)
    write(root, "/etc/ld.so.conf", text)
    assert ldconf.directories(root) == expected


def fifo(path: Path) -> None:
    os.mkfifo(path)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def link(text: str) -> Fill:
    return lambda path: path.symlink_to(text)


def content(data: bytes) -> Fill:
    return lambda path: path.write_bytes(data)


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("making a device node needs root")


HOSTILE: dict[str, Fill] = {
    "fifo": fifo,
    "/dev/zero": device,
    "link to /dev/zero": link("/dev/zero"),
    "sparse 1 TiB": sparse,
    "link to a host file": link("../../../../../../../../../etc/passwd"),
    "absolute link out": link("/etc/shadow"),
    "magic link": link("/proc/self/root/etc/passwd"),
    "loop of links": lambda path: path.symlink_to(path.name),
    "dangling link": link("/nowhere"),
    "directory": lambda path: path.mkdir(),
    "socket": lambda path: os.mknod(path, 0o666 | 0o140000),
    "a million lines": content(b"/x\n" * 1000000),
    "20001 directories": content(b"".join(b"/%d\n" % number for number in range(20001))),
    "includes itself 1000 times": content(b"include /etc/ld.so.conf /etc/ld.so.conf.d/*\n" * 1000),
    "pattern that backtracks": content(b"include /etc/" + b"*a" * 120 + b"b\n" + b"include /*/*/*/*/*\n" * 20000),
    "pattern of sets": content((b"include /*/" + b"[a-zA-Z0-9]" * 300 + b"*\n") * 300),
    "noise": content(bytes(range(256)) * 100),
    "no newline": content(b"/" * (1 << 20)),
    "garbage cache": content(b"glibc-ld.so.cache1.1" + b"\xff" * 1000),
}


@pytest.mark.parametrize(
    "place", ["ld.so.conf", "ld.so.conf.d/evil.conf", "ld.so.conf.d/00-gpuhook.conf", "ld.so.cache"]
)
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile(root: Root, tmp_path: Path, place: str, what: str) -> None:
    """L30 to L39: whatever stands at the paths that are read, an answer comes soon and nothing of the host is in it."""
    etc = tmp_path / "etc"
    (etc / ("a" * 200)).write_bytes(b"")
    if place != "ld.so.conf":
        write(root, "/etc/ld.so.conf", "include ld.so.conf.d/*.conf\n/last\n")
    HOSTILE[what](etc / place)
    begin = time.process_time()
    update = ldconf.updated(root, STEP, "x86-64")
    assert time.process_time() - begin < 5
    assert [entry.name for entry in ldcache.parse(update.cache)] == ["libcuda.so.1"]
    assert update.conf.endswith(b"\n/usr/lib/x86_64-linux-gnu\n")
    assert b"root:" not in (update.include or b"")
    directories = ldconf.directories(root)
    assert len(directories) <= ldconf.LIMIT_DIRECTORIES
    if place != "ld.so.conf" and "includes" not in what and "pattern" not in what:
        assert "/last" in directories or len(directories) == ldconf.LIMIT_DIRECTORIES


@given(
    st.lists(
        st.sampled_from(
            ["/a", "include ", "*", "[", "]", "?", "\\", "!", "-", "\n", "\t", "#", "=", ".conf", "\0", "é", ".."]
        )
    )
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text(root: Root, parts: list[str]) -> None:
    """No text makes reading raise; each directory is absolute and fit for one line."""
    write(root, "/etc/ld.so.conf", "".join(parts))
    for directory in ldconf.directories(root):
        assert directory.startswith("/")
        assert "\n" not in directory


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(None, b"include /etc/ld.so.conf.d/*.conf\n", id="no file"),
        pytest.param(b"", b"include /etc/ld.so.conf.d/*.conf\n", id="empty"),
        pytest.param(b"/x\n", b"include /etc/ld.so.conf.d/*.conf\n/x\n", id="no include: ours first, the rest kept"),
        pytest.param(b"include ld.so.conf.d/*.conf\n", None, id="relative include"),
        pytest.param(b"include /etc/ld.so.conf.d/*.conf", None, id="absolute include"),
        pytest.param(b"include /etc/ld.so.conf.d/*\n", None, id="wider pattern"),
        pytest.param(b"include more.conf\n", None, id="by way of another file"),
        pytest.param(
            b"include ld.so.conf.d/a*.conf\n",
            b"include /etc/ld.so.conf.d/*.conf\ninclude ld.so.conf.d/a*.conf\n",
            id="pattern that leaves ours out",
        ),
        pytest.param(
            b"#include ld.so.conf.d/*.conf\n",
            b"include /etc/ld.so.conf.d/*.conf\n#include ld.so.conf.d/*.conf\n",
            id="commented",
        ),
    ],
)
def test_include(root: Root, text: bytes | None, expected: bytes | None) -> None:
    """ld.so.conf is changed only where a later ldconfig would not read our file."""
    write(root, "/etc/more.conf", "include ld.so.conf.d/*.conf\n")
    if text is not None:
        write(root, "/etc/ld.so.conf", text)
    assert ldconf.updated(root, STEP, "x86-64").include == expected


@pytest.mark.parametrize("what", ["fifo", "dangling link", "directory", "sparse 1 TiB"])
def test_unreadable_conf_stays(root: Root, tmp_path: Path, what: str) -> None:
    """What can't be read can't be kept, so it is not replaced, and said."""
    HOSTILE[what](tmp_path / "etc/ld.so.conf")
    update = ldconf.updated(root, STEP, "x86-64")
    assert update.include is None
    assert any("/etc/ld.so.conf of the image can't be read" in warning for warning in update.warnings)


def test_again(root: Root) -> None:
    """A container started twice, or an image made from one, gets the same files again."""
    write(root, "/etc/ld.so.conf", "/x\n")
    first = ldconf.updated(root, STEP, "x86-64")
    assert first.include
    write(root, ldconf.CONF, first.include)
    write(root, ldconf.OUR_CONF, first.conf)
    write(root, ldconf.CACHE, first.cache)
    second = ldconf.updated(root, STEP, "x86-64")
    assert (second.cache, second.conf, second.include, second.warnings) == (first.cache, first.conf, None, ())


@pytest.mark.parametrize(
    ("old", "ours", "expected"),
    [
        pytest.param(None, ("/usr/lib",), None, id="a default directory needs nothing"),
        pytest.param(None, ("/opt/gpu",), "/opt/gpu\n/lib\n/usr/local/lib\n/usr/lib\n", id="defaults are written out"),
        pytest.param("/lib:/x", ("/opt/gpu",), "/opt/gpu\n/lib\n/x\n", id="colons"),
        pytest.param("/lib\n/x\n", ("/x",), "/x\n/lib\n", id="moved to the front"),
        pytest.param("/x\n/lib\n", ("/x",), None, id="already first"),
        pytest.param("", ("/x",), "/x\n", id="an empty list stays without defaults"),
    ],
)
def test_musl(root: Root, old: str | None, ours: tuple[str, ...], expected: str | None) -> None:
    """R85: musl reads one file, which replaces its defaults."""
    if old is not None:
        write(root, "/etc/ld-musl-x86_64.path", old)
    found = ldconf.musl_path(root, "x86-64", ours)
    assert found == (None if expected is None else expected.encode())
    assert ldconf.musl_path(root, "aarch64", ("/usr/lib",)) is None


@pytest.mark.parametrize("what", ["fifo", "directory", "sparse 1 TiB", "link to a host file"])
def test_musl_hostile(root: Root, tmp_path: Path, what: str) -> None:
    """A path file that can't be read counts as none."""
    HOSTILE[what](tmp_path / "etc/ld-musl-x86_64.path")
    assert ldconf.musl_path(root, "x86-64", ("/o",)) == b"/o\n/lib\n/usr/local/lib\n/usr/lib\n"
