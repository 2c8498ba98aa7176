"""The bundle: gpuhook with a Python of its own, on hosts that have none."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuhook import __version__
from tests import bundles
from tests.conftest import ROOTS
from tests.engines.archive import ALL
from tests.engines.machine import Machine, Result
from tests.images import CHECKOUT, image
from tests.package.conftest import build_kind

PREFIX = "/opt/gpu hook"  # a blank, as a test of the launchers
PYTHON = "usr/lib/gpuhook/python"
LIMIT = 40_000_000  # bytes, unpacked
SEEN = "dlopen:libcuda.so.1: ok libcuda.so 580.95.05\n/dev/nvidia0: ok\n"


def build(checkout: Path, dist: Path, umask: int = 0o022) -> Path:
    """Build the archive into a folder."""
    build_kind("bundle", checkout, dist, umask)
    (archive,) = dist.iterdir()
    return archive


@pytest.fixture(scope="module")
def archive(place: Path, installed: Path) -> Path:
    """The archive of this checkout (`installed` has fetched what it carries)."""
    return build(CHECKOUT, place / "bundle")


@pytest.fixture(scope="module")
def unpacked(archive: Path, place: Path) -> Path:
    """What is in it."""
    tree = place / "unpacked"
    tree.mkdir()
    subprocess.run(["tar", "--extract", "--file", archive, "--directory", tree], check=True)
    return tree


def test_two_builds_are_equal(archive: Path, folder: Path) -> None:
    """In another folder, under another umask."""
    for name in ("config", "packaging", "scripts", "src", "build/vendor", "build/bundle/debs"):
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(CHECKOUT / name, folder / "again" / name, ignore=ignore)
    shutil.copy(CHECKOUT / "LICENSE", folder / "again")
    again = build(folder / "again", folder / "dist", 0o077)
    assert again.name == archive.name
    assert again.read_bytes() == archive.read_bytes()


def test_what_is_in_it(archive: Path, unpacked: Path) -> None:
    """All files are root's and nobody else's to write, none is a link; the essentials; the size; each licence."""
    listed = subprocess.run(["tar", "-tvf", archive, "--numeric-owner"], capture_output=True, text=True, check=True)
    kinds = {tuple(line.split()[:2]) for line in listed.stdout.splitlines()}
    assert kinds == {(mode, "0/0") for mode in ("drwxr-xr-x", "-rwxr-xr-x", "-rw-r--r--")}

    files = {str(path.relative_to(unpacked)): path for path in unpacked.rglob("*") if path.is_file()}
    assert sum(path.stat().st_size for path in files.values()) < LIMIT
    programs = {name for name, path in files.items() if path.stat().st_mode & 0o100}
    launchers = {f"usr/bin/{name}" for name in ("gpuhook", "gpuhook-hook", "gpuhook-runtime")}
    (loader,) = (path.name for path in (unpacked / PYTHON / "lib").glob("ld-linux-*"))
    (interpreter,) = (path.name for path in (unpacked / PYTHON / "bin").glob("python3.*"))
    home = {f"{PYTHON}/bin/{name}" for name in ("python3", interpreter, "busybox")}
    assert programs == launchers | home | {f"{PYTHON}/lib/{loader}"}
    for name in launchers | home - {f"{PYTHON}/bin/{interpreter}"}:  # no interpreter of the host's, no library
        said = subprocess.run(["readelf", "-lW", files[name]], capture_output=True, text=True, check=True).stdout
        assert "Elf file type" in said
        assert "INTERP" not in said
    library = f"usr/lib/gpuhook/{__version__}"
    compiled = {f"{library}/{name}.bundle" for name in ("shim", "hook", "hookonly")}
    assert compiled | {"etc/gpuhook/runtime.toml", f"{library}/whole", f"{library}/gpuhook-shim"} < files.keys()
    assert not any(name.startswith("etc/") and name != "etc/gpuhook/runtime.toml" for name in files)

    licences = unpacked / "usr/share/doc/gpuhook/licences"
    said = (licences / "README").read_text()
    for package in ("busybox-static", "libc6", "libexpat1", "libffi8", "zlib1g", f"{interpreter}-minimal"):
        assert f"\n{package} " in said
        assert "opyright" in (licences / package).read_text()
    assert "\nlinked with musl-dev " in said
    assert "Permission is hereby granted" in (licences / "musl").read_text()
    assert "GNU LESSER GENERAL PUBLIC LICENSE" in (licences / "common-licenses/LGPL-2.1").read_text()


def test_all_that_it_is_linked_with_is_in_it(unpacked: Path) -> None:
    """Each library that a program or a module of its Python needs."""
    there = {path.name for path in (unpacked / PYTHON / "lib").iterdir()}
    elves = [*(unpacked / PYTHON).rglob("*.so*"), *(unpacked / PYTHON / "bin").glob("python3.*")]
    assert len(elves) > 15
    for path in elves:
        said = subprocess.run(["readelf", "--dynamic", path], capture_output=True, text=True, check=True).stdout
        needed = {line.partition("[")[2].rstrip("]") for line in said.splitlines() if "(NEEDED)" in line}
        assert needed <= there, path


# --- on a host without a Python -------------------------------------------------------------------------------------


ENV = """#!/bin/sh
# what machine.sh wants of coreutils' env and busybox has not
trap '' CHLD
shift
exec "$@"
"""


@pytest.fixture(scope="module")
def bare(place: Path) -> Path:
    """A root file system of busybox alone: no Python, no loader, no libraries."""
    tree = place / "bare"
    shutil.copytree(image("busybox"), tree, symlinks=True)
    (tree / "usr/bin/env").unlink()
    (tree / "usr/bin/env").write_text(ENV)
    (tree / "usr/bin/env").chmod(0o755)
    return tree


@pytest.fixture(scope="module")
def with_runc(bare: Path, place: Path) -> Path:
    """The same with runc, and the libraries that runc is linked with."""
    tree = place / "with-runc"
    shutil.copytree(bare, tree, symlinks=True)
    runc = bundles.tool("runc")
    linked = subprocess.run(["ldd", runc], capture_output=True, text=True, check=True).stdout
    for file in (runc, *(word for word in linked.split() if word.startswith("/"))):
        at = tree / file.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, at)
    return tree


class Host(Machine):
    """A machine with the bundle unpacked, a simulated driver beside it."""

    driver: Path

    def unpack(self, unpacked: Path, driver: Path) -> None:
        """Put the bundle in its place, and point it at the driver."""
        self.driver = driver
        self.check("mkdir", "-p", PREFIX)
        self.check("cp", "-a", f"{unpacked}/.", PREFIX)
        text = "[driver]\n" + "".join(f'{key} = "{driver}"\n' for key in ROOTS)
        self.write(f"{PREFIX}/etc/gpuhook/runtime.toml", text)


@pytest.fixture
def host(place: Path, bare: Path, unpacked: Path, sim_driver: Path, folder: Path) -> Iterator[Host]:
    """A host with nothing but busybox."""
    with Host(folder / "m", "v1", system=bare, see=[place]) as machine:
        machine.unpack(unpacked, sim_driver)
        yield machine


@pytest.fixture
def runc_host(place: Path, with_runc: Path, unpacked: Path, sim_driver: Path, folder: Path) -> Iterator[Host]:
    """A host with runc too."""
    with Host(folder / "m", "v1", system=with_runc, see=[place]) as machine:
        machine.unpack(unpacked, sim_driver)
        yield machine


@pytest.mark.runc
def test_the_command_on_a_bare_host(host: Host) -> None:
    """Without a loader and without a Python, by a link too; NVML is asked by a helper that starts that Python."""
    assert host.run("ls", "/lib64/ld-linux-x86-64.so.2", "/usr/bin/python3", "/lib/ld-linux-aarch64.so.1").out == ""
    command = f"{PREFIX}/usr/bin/gpuhook"
    assert host.check(command, "--version") == f"gpuhook {__version__}\n"
    host.check("ln", "-s", command, "/usr/bin/gpuhook")
    said = host.run("gpuhook", "info")
    assert said.out.count("\tNVIDIA H100 80GB HBM3\ttesla\t9.0\tok\n") == 2
    assert "[runtime-not-found]" in said.err  # only that is wrong: there is no runc
    assert f"{PREFIX}/etc/gpuhook/runtime.toml" in host.check("gpuhook", "config", "path")
    assert "verdict:" in host.check("gpuhook", "check", "cuda>=12.6")
    assert "requirement-not-met" in host.run("gpuhook", "check", "cuda>=99.0").err
    maps = host.check(f"{PREFIX}/{PYTHON}/bin/python3", "-ISc", "import ctypes; print(open('/proc/self/maps').read())")
    assert {
        line.partition("/")[2] for line in maps.splitlines() if ".so" in line and f" {PREFIX}/" not in line
    } == set()


@pytest.mark.runc
def test_a_container_on_a_host_without_python(runc_host: Host) -> None:
    """Real runc: a GPU's node and CUDA's library by its name; what doctor says; a refusal with its reason."""
    host = runc_host
    runtime = f"{PREFIX}/usr/bin/gpuhook-runtime"

    def start(name: str, *env: str) -> tuple[int, str, str]:
        args = ["opendev", "dlopen:libcuda.so.1", "/dev/nvidia0"]
        bundle = bundles.make(host.folder / name, "lib64", env=env, args=args).path
        spec = (bundle / "config.json").read_text()
        group = f'"cgroupsPath": "/{host.cgroup}/{name}", "namespaces"'
        (bundle / "config.json").write_text(spec.replace('"namespaces"', group, 1))
        done = host.run(runtime, "run", "--bundle", bundle, name)
        return done.code, done.out, done.err

    assert start("first", ALL) == (0, SEEN, "")
    assert start("second", ALL) == (0, SEEN, "")  # by the record and the compiled configuration
    code, out, err = start("newer", ALL, "NVIDIA_REQUIRE_CUDA=cuda>=99.0")
    assert (code != 0, out) == (True, "")
    assert "this container needs CUDA 99.0 or newer" in err
    assert "driver 580.95.05 supports CUDA up to 13.0 [requirement-not-met]" in err
    code, out, err = start("quiet")
    assert "No such file" in out  # asks for nothing, gets nothing

    said = host.check(f"{PREFIX}/usr/bin/gpuhook", "doctor")
    assert f"{PREFIX}/{PYTHON}/bin/python3 is Python 3." in said
    assert "a GPU container would work" in said

    host.check("ln", "-s", f"{PREFIX}/usr/bin/gpuhook-hook", "/usr/bin/nvidia-container-runtime-hook")
    assert "[state-invalid]" in host.run("nvidia-container-runtime-hook", "prestart", text="{}").err

    host.check("rm", f"{PREFIX}/{PYTHON}/bin/python3")
    code, out, err = start("none", ALL)
    assert (code, out) == (14, "")
    assert f"{PREFIX}/{PYTHON}/bin/python3 is not there" in err
    assert "runc version" in host.check(runtime, "--version")


# --- on a host without a shell ----------------------------------------------------------------------------------------


PLACE = "/usr/local/gpuhook"  # where a system extension of Talos can put it
QUIET = (0, "/dev/null: ok\n", "", True)


class Shellless(Machine):
    """A machine with runc and no other program, and the bundle at a place that is read-only, as on Talos: `run` and
    `var` there are links to those of the host. The tests' own tools lie where nothing looks for them."""

    _tools = "/run/tools/busybox"

    def unpack(self, unpacked: Path, driver: Path) -> None:
        """Put the bundle in its place, and take away all that such a host has not."""
        self.check("mkdir", "-p", PLACE, "/run/tools", "/var")
        self.check("cp", "/bin/busybox", self._tools)
        self.check("cp", "-a", f"{unpacked}/.", PLACE)
        self.check("ln", "-s", "/run", "/var", PLACE)
        text = "[driver]\n" + "".join(f'{key} = "{driver}"\n' for key in ROOTS)
        self.write(f"{PLACE}/etc/gpuhook/runtime.toml", text)
        self.check("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/var")
        self.check("mount", "--bind", "/usr/local", "/usr/local")
        self.check("mount", "-o", "remount,ro,bind", "/usr/local")
        self.tool("rm", "-rf", "/bin", "/sbin", "/usr/bin")

    def tool(self, *command: str | Path) -> str:
        """What one of the tests' own tools says."""
        return self.check(self._tools, *command)

    def change(self, *command: str | Path) -> None:
        """Change something at the place that is read-only."""
        self.tool("mount", "-o", "remount,rw,bind", "/usr/local")
        self.tool(*command)
        self.tool("mount", "-o", "remount,ro,bind", "/usr/local")

    def program(self, name: str, *arguments: str | Path, path: str = "/usr/sbin:/usr/bin") -> Result:
        """A program of the bundle; `path` is PATH (nsenter, which enters the host, is found by it too)."""
        return self.run(f"{PLACE}/usr/bin/{name}", *arguments, env={"PATH": path})

    def container(self, name: str, *env: str, path: str = "/usr/sbin:/usr/bin") -> tuple[int, str, str, bool]:
        """A container, which with `env` uses the first GPU, and without names nothing of NVIDIA's: its status, what it
        said, and whether its config.json is untouched."""
        args = ["opendev", *(("dlopen:libcuda.so.1", "/dev/nvidia0") if env else ("/dev/null",))]
        spec = bundles.make(self.folder / name, "lib64", env=env, args=args).path / "config.json"
        if env:  # else its name would be a reason to look closer
            group = f'"cgroupsPath": "/{self.cgroup}/{name}", "namespaces"'
            spec.write_text(spec.read_text().replace('"namespaces"', group, 1))
        before = spec.read_bytes()
        done = self.program("gpuhook-runtime", "run", "--bundle", spec.parent, name, path=path)
        return done.code, done.out, done.err, spec.read_bytes() == before


@pytest.fixture
def shellless(place: Path, with_runc: Path, unpacked: Path, sim_driver: Path, folder: Path) -> Iterator[Shellless]:
    """A host with runc alone."""
    with Shellless(folder / "m", "v1", system=with_runc, see=[place]) as machine:
        machine.unpack(unpacked, sim_driver)
        yield machine


def test_how_a_program_finds_itself(unpacked: Path, folder: Path) -> None:
    """By no argv[0], by links, and when its file was replaced since it was started; nowhere else than at its place."""
    tree = folder / "a tree"
    shutil.copytree(unpacked, tree)
    program = tree / "usr/bin/gpuhook"
    (folder / "one").symlink_to(folder / "two")
    (folder / "two").symlink_to(program)
    for name in ("", "sh", "gpuhook-runtime"):
        done = subprocess.run(
            [name, "--version"], executable=folder / "one", capture_output=True, text=True, check=True
        )
        assert done.stdout == f"gpuhook {__version__}\n"
    with program.open("rb") as old:
        shutil.copy(program, folder / "newer")
        (folder / "newer").rename(program)
        started = f"/proc/self/fd/{old.fileno()}"
        done = subprocess.run(
            [started, "--version"], pass_fds=[old.fileno()], capture_output=True, text=True, check=True
        )
    assert done.stdout == f"gpuhook {__version__}\n"

    copy = shutil.copy(program, folder / "gpuhook")
    done = subprocess.run([copy], capture_output=True, text=True, check=False)
    error = f"gpuhook: {copy} can't be run: Invalid argument; unpack the bundle again [installation-damaged]\n"
    assert (done.returncode, done.stdout, done.stderr) == (15, "", error)


@pytest.mark.runc
def test_a_host_without_a_shell(shellless: Shellless) -> None:
    """Nothing but runc, the bundle where none can write: commands, a GPU, a refusal; state and log lie elsewhere."""
    host = shellless
    programs = host.tool("find", "/", "-xdev", "-type", "f", "-perm", "-100", "!", "-path", f"{PLACE}/*").splitlines()
    assert [path for path in programs if "/lib" not in path] == ["/usr/sbin/runc"]
    assert host.program("gpuhook", "--version").out == f"gpuhook {__version__}\n"
    assert host.container("first", ALL) == (0, SEEN, "", False)
    assert host.container("second", ALL) == (0, SEEN, "", False)  # by the record and the compiled configuration
    code, out, err, _ = host.container("newer", ALL, "NVIDIA_REQUIRE_CUDA=cuda>=99.0")
    assert (code, out) == (41, "")
    assert "driver 580.95.05 supports CUDA up to 13.0 [requirement-not-met]" in err

    said = host.program("gpuhook", "doctor").out
    assert f"programs in {PLACE}/usr/bin, which nobody else may write" in said
    assert "a GPU container would work" in said
    assert {"config.json", "driver.json", "shim.sh"} < set(host.tool("ls", "/run/gpuhook").split())
    assert " info second granted GPU 0 " in host.tool("cat", "/var/log/gpuhook/gpuhook.log")
    assert "[state-invalid]" in host.run(f"{PLACE}/usr/bin/gpuhook-hook", "prestart", text="{}").err

    host.change("mv", f"{PLACE}/etc/gpuhook", "/var/gpuhook")  # where machine configuration can write it
    host.change("ln", "-s", "/var/gpuhook", f"{PLACE}/etc/gpuhook")
    assert host.container("third", ALL) == (0, SEEN, "", False)
    host.tool("chmod", "666", "/var/gpuhook/runtime.toml")
    assert "[config-untrusted]" in host.container("fourth", ALL)[2]


@pytest.mark.runc
def test_no_python_for_what_asks_for_nothing(shellless: Shellless) -> None:
    """The bundle's shell and its grep decide: with no Python such a container starts, and only such a one."""
    host = shellless
    host.program("gpuhook", "config", "show")  # compiles the configuration
    assert host.container("gpu", ALL) == (0, SEEN, "", False)
    python = host.tool("readlink", "-f", f"{PLACE}/{PYTHON}/bin").strip()
    (interpreter,) = (name for name in host.tool("ls", python).split() if name.startswith("python3."))
    host.change("rm", f"{python}/{interpreter}")
    assert host.container("quiet") == QUIET
    missing = f"gpuhook: {python}/{interpreter} can't be run: No such file or directory; "
    missing += "unpack the bundle again [installation-damaged]\n"
    assert host.container("none", ALL) == (15, "", missing, True)
    for name in ("gpuhook", "gpuhook-hook", f"../../{PYTHON}/bin/python3"):
        assert host.program(name, "--version") == Result(15, "", missing)
    assert "runc version" in host.program("gpuhook-runtime", "--version").out

    host.change("rm", f"{python}/busybox")
    done = host.program("gpuhook-runtime", "--version")
    assert done == Result(15, "", missing.replace(interpreter, "busybox"))


@pytest.mark.runc
def test_a_library_that_is_not_whole(shellless: Shellless) -> None:
    """Each program says so, and what to do with a bundle."""
    host = shellless
    whole = f"{PLACE}/usr/lib/gpuhook/{__version__}/whole"
    host.change("rm", whole)
    said = f"gpuhook: {whole} is not there, so gpuhook is not whole"
    assert host.container("none", ALL) == (15, "", f"{said}; unpack the bundle again [installation-damaged]\n", True)
    assert host.container("quiet") == QUIET
    for name in ("gpuhook", "gpuhook-hook"):
        assert host.program(name) == Result(15, "", f"{said} [installation-damaged]\n  fix: unpack the bundle again\n")


@pytest.mark.runc
def test_where_no_state_can_be_written(shellless: Shellless) -> None:
    """No links out of the read-only place, and no runtime.toml: all starts, with Python, and nothing is left."""
    host = shellless
    host.change("rm", f"{PLACE}/run", f"{PLACE}/var")
    for name in ("first", "second"):
        assert host.container(name, ALL) == (0, SEEN, "", False)
    assert host.container("quiet") == QUIET
    host.change("rm", "-r", f"{PLACE}/etc")
    assert host.container("defaults") == QUIET
    assert "etc/gpuhook/runtime.toml is not there: the defaults hold" in host.program("gpuhook", "doctor").out
    assert host.tool("find", "/run", "/var", "-name", "*gpuhook*") == ""


@pytest.mark.runc
def test_it_never_runs_itself(shellless: Shellless) -> None:
    """Called runc, the bundle's runtime is passed over, by sh and by Python; alone it is no runtime."""
    host = shellless
    host.tool("mkdir", "/var/bin")
    host.tool("ln", "-s", f"{PLACE}/usr/bin/gpuhook-runtime", "/var/bin/runc")
    for state in ("fresh", "compiled"):
        assert host.container(state, ALL, path="/var/bin:/usr/sbin:/usr/bin") == (0, SEEN, "", False)
        assert host.container(f"quiet-{state}", path="/var/bin:/usr/sbin:/usr/bin") == QUIET
    host.tool("rm", "/usr/sbin/runc")
    assert host.container("none", path="/var/bin:/usr/bin")[0] == 13
    assert "[runtime-not-found]" in host.program("gpuhook-runtime", "list", path="/var/bin:/usr/bin").err
