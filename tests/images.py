"""Small root file systems for real containers, built of this machine's own files, kept under build/images.

`glibc` has Debian's multiarch folders, `lib64` those of Fedora, `busybox` one static binary and no loader. Each has
busybox-static with its applets; the first two have a loader with its cache, `/sbin/ldconfig` (Debian's real one) and
`opendev`, which says what a program finds.
"""

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
BUILD = CHECKOUT / "build"
NAMES = ("glibc", "lib64", "busybox")
MULTIARCH: str = sysconfig.get_config_var("MULTIARCH")
LOADERS = {"x86_64-linux-gnu": "/lib64/ld-linux-x86-64.so.2", "aarch64-linux-gnu": "/lib/ld-linux-aarch64.so.1"}
LIBRARIES = ("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")

# Prints one line for each argument: `dlopen:NAME` loads a library (with `:SYMBOL` looks that up too) and says `ok`,
# with the version that a simulated library states, or the loader's own words; a path is opened for reading and writing.
OPENDEV = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int load(const char *argument) {
  char name[4096];
  snprintf(name, sizeof name, "%s", argument + strlen("dlopen:"));
  char *symbol = strchr(name, ':');
  if (symbol) *symbol++ = 0;
  void *library = dlopen(name, RTLD_NOW);
  if (!library || (symbol && !dlsym(library, symbol))) {
    printf("%s: %s\n", argument, dlerror());
    return 1;
  }
  const char *(*version)(void) = (const char *(*)(void))dlsym(library, "gpuhook_sim_version");
  printf(version ? "%s: ok %s\n" : "%s: ok\n", argument, version ? version() : "");
  return 0;
}

static int device(const char *path) {
  int fd = open(path, O_RDWR | O_CLOEXEC);
  printf("%s: %s\n", path, fd < 0 ? strerror(errno) : "ok");
  if (fd < 0) return 1;
  close(fd);
  return 0;
}

int main(int argc, char **argv) {
  int bad = 0;
  for (int i = 1; i < argc; i++) bad |= strncmp(argv[i], "dlopen:", 7) ? device(argv[i]) : load(argv[i]);
  return bad;
}
"""


def image(name: str) -> Path:
    """The tree of one image, built when it is not there or this file changed; never to be written into."""
    key = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    place = BUILD / "images" / f"{name}-{key}"
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=place.parent))
    try:
        tree = work / "tree"
        _base(tree)
        if name != "busybox":
            _glibc(tree, "usr/lib64" if name == "lib64" else f"usr/lib/{MULTIARCH}")
        try:
            tree.rename(place)
        except OSError:
            if not place.is_dir():  # another process was faster: its tree is as good
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return place


def _base(tree: Path) -> None:
    """Folders as on a merged-/usr system, users, and busybox with a link for each applet."""
    for folder in (
        "usr/bin",
        "usr/sbin",
        "usr/lib",
        "usr/lib64",
        "etc",
        "dev",
        "proc",
        "sys",
        "run",
        "root",
        "var/lib",
    ):
        (tree / folder).mkdir(parents=True)
    for folder in ("bin", "sbin", "lib", "lib64"):
        (tree / folder).symlink_to(f"usr/{folder}")
    (tree / "tmp").mkdir()
    for folder, mode in (("tmp", 0o1777), ("root", 0o700), ("", 0o755)):
        (tree / folder).chmod(mode)
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    (tree / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    busybox = tree / "usr/bin/busybox"
    shutil.copy(_tool("busybox"), busybox)
    for applet in _run(str(busybox), "--list").split():
        if applet not in ("busybox", "init", "linuxrc", "ldconfig"):
            (tree / "usr/bin" / applet).symlink_to("busybox")


def _glibc(tree: Path, libdir: str) -> None:
    """A glibc with its loader in `libdir`, ldconfig, opendev, and a loader cache that ldconfig made."""
    (tree / libdir).mkdir(parents=True, exist_ok=True)
    for library in LIBRARIES:
        shutil.copy(f"/lib/{MULTIARCH}/{library}", tree / libdir / library)
    loader = LOADERS[MULTIARCH]
    place = tree / libdir / Path(loader).name
    shutil.copy(os.path.realpath(loader), place)
    place.chmod(0o755)
    if not (tree / loader[1:]).exists():  # Debian's loader lies in the multiarch folder, with a link to it
        (tree / loader[1:]).symlink_to(f"/{libdir}/{place.name}")
    shutil.copy(_tool("ldconfig"), tree / "usr/sbin/ldconfig")
    (tree / "etc/ld.so.conf.d").mkdir()
    (tree / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    # Debian's loader has no /usr/lib64 built in, as Fedora's has: there the cache alone leads to it.
    folders = (f"/usr/local/lib/{MULTIARCH}", f"/lib/{MULTIARCH}", f"/usr/lib/{MULTIARCH}")
    lines = ("/usr/lib64",) if libdir == "usr/lib64" else folders
    (tree / "etc/ld.so.conf.d" / f"{MULTIARCH}.conf").write_text("".join(f"{line}\n" for line in lines))
    _run("gcc", "-Os", "-s", "-x", "c", "-", "-o", str(tree / "usr/bin/opendev"), text=OPENDEV)
    _run(_tool("ldconfig"), "-r", str(tree))


def _tool(name: str) -> str:
    """Where a program of this machine is. Raises FileNotFoundError with the package that has it."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/bin")
    if not found:
        raise FileNotFoundError(f"{name} is not there; scripts/test installs what the tests need")
    return found


def _run(*command: str, text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout
