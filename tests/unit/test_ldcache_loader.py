"""The real judge of a loader cache: glibc's own loader and ldconfig, in small roots made for it (chroot)."""

import os
import platform
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuhook import ldcache, ldconf
from gpuhook.ldcache import Entry
from gpuhook.model import LoaderCache
from gpuhook.rootfs import Root

LIB = "/usr/lib/x86_64-linux-gnu"
LOADER = "/lib64/ld-linux-x86-64.so.2"
CHROOT = "/usr/sbin/chroot"
PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        void *handle = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        const char *(*who)(void) = handle ? (const char *(*)(void))dlsym(handle, "who") : 0;
        puts(who ? who() : "-");
    }
    return 0;
}
"""


def missing(what: str) -> None:
    """A tool that is not there is a failure in CI, and said everywhere else."""
    if os.environ.get("CI"):
        pytest.fail(f"needs {what}")
    pytest.skip(f"needs {what}")


class Box:
    """A root with glibc's loader and a program that says which library it got for a name."""

    def __init__(self, path: Path, build: Path) -> None:
        self.path = path
        self.build = build
        for directory in (LIB, "/etc/ld.so.conf.d", "/lib64"):
            (path / directory[1:]).mkdir(parents=True, exist_ok=True)
        (path / "lib").symlink_to("usr/lib")
        shutil.copy(Path(LOADER).resolve(), path / LOADER[1:])
        shutil.copy(f"/lib/{LIB.rpartition('/')[2]}/libc.so.6", path / LIB[1:])
        shutil.copy(build / "program", path / "program")

    def library(self, path: str, who: str, soname: str = "libdrv.so.1", *links: str) -> None:
        """A library that answers `who`."""
        target = self.path / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        made = self.build / f"{soname}-{who}.so"
        if not made.exists():
            source = self.build / "who.c"
            source.write_text(f'const char *who(void) {{ return "{who}"; }}\n')
            subprocess.run(
                ["gcc", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{soname}", "-o", made, source], check=True
            )
        shutil.copy(made, target)
        for link in links:
            (target.parent / link).symlink_to(target.name)

    def ldconfig(self, *arguments: str) -> str:
        """Run the host's ldconfig on this root, as one in the container would run."""
        command = ["/sbin/ldconfig", "-r", str(self.path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def who(self, *names: str, **env: str) -> list[str]:
        """What the real loader finds for each name."""
        command = [CHROOT, str(self.path), "/program", *names]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.split()

    def tried(self, *names: str) -> dict[str, list[str]]:
        """The paths that the real loader takes from its cache for each name, existing or not."""
        command = [CHROOT, str(self.path), "/program", *names]
        env = {"LD_DEBUG": "libs"}
        debug = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stderr
        found: dict[str, list[str]] = {name: [] for name in names}
        name, cached = "", False
        for line in debug.splitlines():
            words = line.split("\t")
            text = words[-1].strip()
            if text.startswith("find library="):
                name, cached = text[13:].partition(" ")[0], False
            elif "search cache=" in text:
                cached = True
            elif "search path=" in text:
                cached = False
            elif "trying file=" in text and cached and name in found:
                found[name].append(text.partition("trying file=")[2])
        return found

    def apply(self, ours: dict[str, str], *directories: str, narrow: dict[str, str] | None = None) -> ldconf.Update:
        """What the hook writes, written."""
        root = Root.at(str(self.path))
        try:
            step = LoaderCache(tuple(ours.items()), directories or (LIB,), entries32=tuple((narrow or {}).items()))
            update = ldconf.updated(root, step, "x86-64")
        finally:
            root.close()
        etc = self.path / "etc"
        (etc / "ld.so.cache").unlink(missing_ok=True)
        (etc / "ld.so.cache").write_bytes(update.cache)
        (etc / "ld.so.conf.d/00-gpuhook.conf").write_bytes(update.conf)
        if update.include is not None:
            (etc / "ld.so.conf").write_bytes(update.include)
        return update


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if platform.machine() != "x86_64":
        pytest.skip("the roots are made of this host's x86-64 glibc")
    for tool in ("gcc", CHROOT, "/sbin/ldconfig"):
        if shutil.which(tool) is None:
            missing(tool)
    if os.geteuid() != 0:
        missing("root, for chroot")
    path = tmp_path_factory.mktemp("build")
    (path / "program.c").write_text(PROGRAM)
    subprocess.run(["gcc", "-o", path / "program", path / "program.c"], check=True)
    return path


@pytest.fixture
def box(tmp_path: Path, build: Path) -> Iterator[Box]:
    yield Box(tmp_path / "root", build)


OURS = {"libdrv.so.1": f"{LIB}/libdrv.so.1"}


def test_duplicate(box: Box) -> None:
    """The image has the soname in a directory that its cache prefers: the host's library is found, then and later."""
    box.library(f"{LIB}/libdrv.so.535.54.03", "host", "libdrv.so.1", "libdrv.so.1")
    box.library("/opt/lib/libdrv.so.1", "image")
    (box.path / "etc/ld.so.conf").write_text(f"/opt/lib\n{LIB}\n")
    box.ldconfig()
    assert box.who("libdrv.so.1") == ["image"]
    box.apply(OURS)
    assert box.who("libdrv.so.1") == ["host"]
    box.ldconfig()
    assert box.who("libdrv.so.1") == ["host"]


def test_hwcaps_variant(box: Box) -> None:
    """A variant for newer processors beats every plain library, so the image's must leave the cache."""
    box.library(f"{LIB}/libdrv.so.535.54.03", "host", "libdrv.so.1", "libdrv.so.1")
    box.library("/opt/lib/libdrv.so.1", "plain")
    box.library("/opt/lib/glibc-hwcaps/x86-64-v2/libdrv.so.1", "variant")
    box.library("/opt/lib/libx.so.1", "x-plain", "libx.so.1")
    box.library("/opt/lib/glibc-hwcaps/x86-64-v2/libx.so.1", "x-variant", "libx.so.1")
    (box.path / "etc/ld.so.conf").write_text("/opt/lib\n")
    box.ldconfig()
    if box.who("libdrv.so.1") != ["variant"]:
        pytest.skip("this processor is older than x86-64-v2")
    box.apply(OURS)
    assert box.who("libdrv.so.1", "libx.so.1") == ["host", "x-variant"]


def test_named_but_never_cached(box: Box) -> None:
    """A directory in ld.so.conf that no ldconfig ever saw: once there is a new cache, its libraries are found."""
    box.library(f"{LIB}/libdrv.so.535.54.03", "host", "libdrv.so.1", "libdrv.so.1")
    box.library("/opt/a/liba.so.1.2", "a", "liba.so.1", "liba.so.1", "liba.so")
    box.library("/opt/b/libb.so.1.9", "b9", "libb.so.1")
    box.library("/opt/b/libb.so.1.10", "b10", "libb.so.1")
    box.library("/opt/b/libdrv.so.1", "image")
    (box.path / "etc/ld.so.conf").write_text("include ld.so.conf.d/*.conf\n")
    (box.path / "etc/ld.so.conf.d/a.conf").write_text("/opt/a\n")
    box.ldconfig()
    (box.path / "etc/ld.so.conf.d/b.conf").write_text("/opt/b\n")
    assert box.who("liba.so.1", "libb.so.1") == ["a", "-"]
    box.apply(OURS)
    assert box.who("liba.so.1", "liba.so", "libb.so.1", "libdrv.so.1") == ["a", "a", "b10", "host"]


@pytest.mark.parametrize("cache", [None, b"", b"junk" * 100, b"glibc-ld.so.cache1.1" + b"\xff" * 200])
def test_no_cache(box: Box, cache: bytes | None) -> None:
    """Without a usable cache, libraries of the default directories and of the configured ones are found as well."""
    box.library(f"{LIB}/libdrv.so.535.54.03", "host", "libdrv.so.1", "libdrv.so.1")
    box.library(f"{LIB}/libd.so.1", "default", "libd.so.1")
    box.library("/opt/lib/libx.so.1", "x", "libx.so.1")
    (box.path / "etc/ld.so.conf").write_text("/opt/lib\n")
    if cache is not None:
        (box.path / "etc/ld.so.cache").write_bytes(cache)
    update = box.apply(OURS)
    assert box.who("libdrv.so.1", "libd.so.1", "libx.so.1") == ["host", "default", "x"]
    assert ("broken" in "".join(update.warnings)) is (cache is not None)


def test_compat_directory_first(box: Box) -> None:
    """The image's forward-compatibility library wins where its directory is named first, then and later."""
    box.library(f"{LIB}/libdrv.so.535.54.03", "host", "libdrv.so.1", "libdrv.so.1")
    box.library("/usr/local/cuda-12.6/compat/libdrv.so.560.35.05", "compat", "libdrv.so.1", "libdrv.so.1")
    compat = "/usr/local/cuda-12.6/compat"
    box.apply({"libdrv.so.1": f"{compat}/libdrv.so.1"}, compat, LIB)
    assert box.who("libdrv.so.1") == ["compat"]
    box.ldconfig()
    assert box.who("libdrv.so.1") == ["compat"]


@pytest.mark.parametrize("format_", ["new", "compat"])
def test_ldconfig_formats(box: Box, format_: str) -> None:
    """Both formats that an ldconfig writes are taken over whole: every name is found where it was before."""
    box.library(f"{LIB}/libdrv.so.535.54.03", "host", "libdrv.so.1", "libdrv.so.1")
    for number in (1, 2, 10, 11, 100):
        box.library(f"/opt/lib/libn-{number}z.so.{number}", f"n{number}", f"libn-{number}z.so.{number}")
    (box.path / "etc/ld.so.conf").write_text("/opt/lib\n")
    box.ldconfig("-c", format_)
    names = [f"libn-{number}z.so.{number}" for number in (1, 2, 10, 11, 100)]
    box.apply(OURS)
    assert box.who(*names, "libdrv.so.1") == ["n1", "n2", "n10", "n11", "n100", "host"]


def assemble(target: Path, *options: str | Path) -> None:
    """A 32-bit object that needs no C library."""
    source = ".globl _start\n_start: hlt\n"
    command = ["gcc", "-m32", "-nostdlib", "-x", "assembler", "-", "-x", "none", "-Wl,--no-as-needed", *options]
    subprocess.run([*command, "-o", target], input=source, text=True, check=True)


def test_the_32_bit_loader_finds_the_32_bit_library(box: Box) -> None:
    """By the same cache: each loader takes the entry of its own kind, though the image has both elsewhere."""
    if not Path("/lib32/ld-linux.so.2").exists():
        missing("libc6-i386, for the 32-bit loader")
    shutil.copy("/lib32/ld-linux.so.2", box.path / "usr/lib/ld-linux.so.2")
    narrow = "/usr/lib/i386-linux-gnu"
    box.library(f"{LIB}/libdrv.so.535.54.03", "host", "libdrv.so.1", "libdrv.so.1")
    box.library("/opt/lib/libdrv.so.1", "image")
    for folder in ("/opt/lib32", narrow):
        (box.path / folder[1:]).mkdir(parents=True)
        assemble(box.path / folder[1:] / "libdrv.so.1", "-shared", "-Wl,-soname,libdrv.so.1")
    assemble(
        box.path / "program32", "-pie", "-Wl,--dynamic-linker=/lib/ld-linux.so.2", box.path / "opt/lib32/libdrv.so.1"
    )
    (box.path / "etc/ld.so.conf").write_text("/opt/lib\n/opt/lib32\n")
    box.ldconfig()

    def listed() -> str:
        command = [CHROOT, str(box.path), "/lib/ld-linux.so.2", "--list", "/program32"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "libdrv.so.1 => /opt/lib32/libdrv.so.1" in listed()
    update = box.apply(OURS, LIB, narrow, narrow={"libdrv.so.1": f"{narrow}/libdrv.so.1"})
    assert update.warnings == ()
    assert f"libdrv.so.1 => {narrow}/libdrv.so.1" in listed()
    assert box.who("libdrv.so.1") == ["host"]
    box.ldconfig()
    assert f"libdrv.so.1 => {narrow}/libdrv.so.1" in listed()
    assert box.who("libdrv.so.1") == ["host"]


def generated(chance: random.Random) -> tuple[list[Entry], dict[str, str]]:
    """Entries with names that are hard to order, some under several machines, and a few names to replace."""
    names: set[str] = set()
    while len(names) < 60:
        stem = "".join(chance.choices("ab.+-_Z~", k=chance.randrange(3)))
        number = chance.choice(("", "1", "9", "10", "12", "100", "20240101"))
        end = chance.choice(("", ".1", ".2", ".10", ".1.2.3", ".535.54.03"))
        names.add(f"lib{stem}{number}{chance.choice(('', 'x', '-2', '9z'))}.so{end}")
    ordered = sorted(names)
    chance.shuffle(ordered)
    entries = []
    for name in ordered:
        entries.append(Entry(name, f"/image/{name}", 0x0303))
        if chance.random() < 0.3:
            entries.append(Entry(name, f"/i386/{name}", 0x0003))
    ours = {name: f"/host/{name}" for name in chance.sample(ordered, 8)}
    ours.update({f"libnew{index}.so.1": f"/host/libnew{index}.so.1" for index in range(4)})
    return entries, ours


@pytest.mark.parametrize("seed", range(60))
def test_loader_finds_every_entry(box: Box, seed: int) -> None:
    """The loader's binary search reaches each name of a generated cache; ldconfig lists the same entries."""
    entries, ours = generated(random.Random(seed))
    image = ldcache.merge(None, (), "x86-64", entries)
    merged = ldcache.merge(image, tuple(ours.items()), "x86-64")
    (box.path / "etc/ld.so.cache").write_bytes(merged)
    wanted = {entry.name: entry.path for entry in entries if entry.flags == 0x0303} | ours
    found = box.tried(*wanted)
    assert {name: paths[:1] for name, paths in found.items()} == {name: [path] for name, path in wanted.items()}
    listed = box.ldconfig("-p").splitlines()
    shown = {(line.split()[0], line.split()[-1]) for line in listed if "=>" in line}
    assert shown == set(wanted.items()) | {(entry.name, entry.path) for entry in entries if entry.flags == 0x0003}
