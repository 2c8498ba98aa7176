"""What each start loads, and which way imports point."""

import ast
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuhook import __version__
from tests.bundles import Bundle, Runtime
from tests.conftest import World
from tests.images import CHECKOUT

PACKAGE = CHECKOUT / "src/gpuhook"

# Each module costs 0.1 to 0.2 ms at every start of a container. The lists are what an interpreter that ran the entry
# point has beyond a bare one; a name that comes in here is a decision, and scripts/bench says what it costs.
SHARED = "_json config cuda driver driver.key driver.record errors jsonio linux log model version"
LISTS = {
    "shim": "channels cmdline devices driver.nodes grant oci request requirement shim",
    "hook": "_ctypes _struct select apply containers driverproc elf enter hook image ldcache ldconf plan rootfs "
    "sources state",
}
# Without the shim, loaded one by one and not from a bundle but for what a container that asks for nothing loads.
NOTHING = "_json channels config errors hookonly jsonio linux log model oci request state"
LISTS["hookonly"] = f"{LISTS['hook']} {NOTHING} cgroup devicefilter devices driver.nodes grant requirement"
# built into the interpreter, and needed by the launchers and by all that the lists name
BUILT_IN = {"_stat", "errno", "gc", "gpuhook"}

# Runs a launcher and writes down what it loaded when it comes to its end: exec for the shim, exit for the hook.
SPY = """#!/usr/bin/python3 -ISB
import posix, sys
bare = set(sys.modules)
own = posix.getpid()
def end(*_):
    if posix.getpid() == own:
        with open({answer!r}, "w") as file:
            file.write(" ".join(set(sys.modules) - bare))
    leave(0)
leave = posix._exit
posix.execve = posix._exit = end
__file__ = {launcher!r}
if {prefix!r}:
    sys.argv = [__file__, {prefix!r}, *sys.argv[1:]]
with open(__file__) as file:
    exec(file.read())
"""


@pytest.fixture
def gpu_world(world: World, sim_driver: Path) -> World:
    """A world with a simulated driver."""
    world.use_driver(sim_driver)
    return world


def spy(world: World, entry: str) -> tuple[Path, Path]:
    """A program that runs an entry point's launcher, and the file where it writes what that loaded."""
    program, answer = world.path / f"spy-{entry}", world.path / f"loaded-{entry}"
    library = world.path / f"usr/lib/gpuhook/{__version__}"
    launcher = str(library / "gpuhook-shim") if entry == "shim" else str(world.hook)
    prefix = str(world.path) if entry == "shim" else ""
    program.write_text(SPY.format(answer=str(answer), launcher=launcher, prefix=prefix))
    program.chmod(0o755)
    return program, answer


def loaded(answer: Path, entry: str) -> tuple[set[str], set[str]]:
    """What was loaded and what may be."""
    names = {name.removeprefix("gpuhook.") for name in answer.read_text().split()}
    return names - BUILT_IN, set(SHARED.split()) | set(LISTS[entry].split())


@pytest.mark.runc
def test_what_a_start_with_gpus_loads(gpu_world: World, shim: Runtime, new_bundle: Callable[..., Bundle]) -> None:
    """With the record cached: the shim to its exec, then the hook that the shim wrote into the spec, under runc."""
    options = {"args": ["opendev", "dlopen:libcuda.so.1"], "env": ["NVIDIA_VISIBLE_DEVICES=all"]}
    assert shim.run(new_bundle(**options)).code == 0

    bundle = new_bundle(**options)
    program, answer = spy(gpu_world, "shim")
    subprocess.run([program, "create", "--bundle", bundle.path, "box"], check=True)
    found, expected = loaded(answer, "shim")
    assert found == expected

    program, answer = spy(gpu_world, "hook")
    spec = bundle.spec
    spec["hooks"]["prestart"][0]["path"] = str(program)
    (bundle.path / "config.json").write_text(json.dumps(spec))
    plain = Runtime("runc", shim.state)
    result = plain.run(bundle)
    assert "libcuda.so.1: ok" in result.out, result
    found, expected = loaded(answer, "hook")
    assert found == expected


@pytest.mark.runc
@pytest.mark.parametrize("asks", [False, True], ids=["nothing", "GPUs"])
def test_what_a_start_without_the_shim_loads(
    gpu_world: World, runc: Runtime, new_bundle: Callable[..., Bundle], asks: bool
) -> None:
    """The hook as hooks.d calls it: next to nothing for a container that asks for nothing."""
    env = ["NVIDIA_VISIBLE_DEVICES=all"] if asks else []
    for path in (gpu_world.hook, spy(gpu_world, "hook")[0]):  # the first makes the driver's record
        hook = {"path": str(path), "args": ["gpuhook-hook", "prestart"], "env": ["PATH=/usr/bin:/bin"]}
        bundle = new_bundle(args=["opendev", "dlopen:libcuda.so.1"], env=env, hooks={"prestart": [hook]})
        assert ("libcuda.so.1: ok" in runc.run(bundle).out) == asks
    found, expected = loaded(gpu_world.path / "loaded-hook", "hookonly")
    assert found == (expected if asks else set(NOTHING.split()))


@pytest.mark.parametrize("entry", ["shim", "hook", "hookonly"])
def test_a_launcher_takes_the_bundle_and_does_without(installed: Path, folder: Path, entry: str) -> None:
    """The bundle of compiled modules serves only the Python that it is made for; another imports the usual way."""
    library = installed / f"usr/lib/gpuhook/{__version__}"
    launcher = library / "gpuhook-shim" if entry == "shim" else installed / "usr/bin/gpuhook-hook"
    text = launcher.read_text()
    start = text.index("try:\n    with open(library" if entry == "shim" else "entry = ")
    body = text[start : text.index("sys.exit(main")]
    prelude = text[: text.index("gc.disable")]
    for change, bundled in ((b"", True), (b"\0", False)):
        copy = folder / f"library{len(change)}"
        copy.mkdir()
        for name in ("gpuhook", "whole"):
            (copy / name).symlink_to(library / name)
        (copy / f"{entry}.bundle").write_bytes(change + (library / f"{entry}.bundle").read_bytes())
        code = f"{prelude}\nlibrary = {str(copy)!r}\nsys.path.insert(0, library)\n{body}\n"
        code += f"import gpuhook.{entry}, gpuhook.errors, gpuhook.cuda\n"
        code += f"print(gpuhook.{entry}.__spec__ is None, gpuhook.errors.__file__, gpuhook.cuda.level_for_driver)"
        command = ["/usr/bin/python3", "-ISB", "-c", code, *(["--record"] if entry == "hook" else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        assert done.stdout.startswith(f"{bundled} {copy}/gpuhook/errors.py ")


# --- the source --------------------------------------------------------------------------------------------------


def sources() -> dict[str, Path]:
    """The modules of the package by name, without the leading `gpuhook.`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path
    return found


MODULES = sources()


def imports(name: str, *, top: bool) -> set[str]:
    """What a module imports, as `gpuhook.x` or a foreign name; with `top`, only what its import runs. Never what is
    there for type checkers alone."""
    found: set[str] = set()
    for node in statements(ast.parse(MODULES[name].read_text()), top=top):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            assert node.module
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {item for item in inner if item.removeprefix("gpuhook.") in MODULES}
            found |= modules | ({node.module} if modules != inner else set())
    return found


def statements(tree: ast.AST, *, top: bool) -> Iterator[ast.AST]:
    """The nodes of a module, without those below `if TYPE_CHECKING`, and below functions only if not `top`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for other in node.orelse:
                yield other
                yield from statements(other, top=top)
            continue
        if top and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield node
        yield from statements(node, top=top)


def reached(name: str, *, top: bool) -> set[str]:
    """All that a module imports, directly or through modules of the package."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        for item in imports(waiting.pop(), top=top) - seen:
            seen.add(item)
            if item.startswith("gpuhook."):
                waiting.append(item.removeprefix("gpuhook."))
    return seen


HOT_FOREIGN = {"sys", "posix", "errno", "_stat", "time", "_struct", "fcntl", "select", "_json", "_signal"}
HOT = sorted({name for words in (SHARED, *LISTS.values()) for name in words.split() if name in MODULES})
MIDDLE = ("model", "version", "channels", "request", "devices", "devicefilter", "requirement", "cuda", "plan")
WORLD = {"posix", "os", "sys", "io", "pathlib", "fcntl", "ctypes", "_ctypes", "subprocess", "socket", "time"}


@pytest.mark.parametrize("name", HOT)
def test_a_hot_module_imports_next_to_nothing(name: str) -> None:
    foreign = {item for item in imports(name, top=True) if item != "gpuhook" and not item.startswith("gpuhook.")}
    assert foreign <= HOT_FOREIGN


@pytest.mark.parametrize("name", MIDDLE)
def test_the_middle_is_pure(name: str) -> None:
    """No file, clock, environment or process: nothing that could give them is reached, in functions neither."""
    assert not reached(name, top=False) & WORLD


# Each layer may import itself and those after it.
LAYERS = (
    ("cli",),
    ("engines",),
    ("shim", "hook", "hookonly"),
    ("checkpoint", "limits", "enter", "grant"),
    ("apply",),
    ("driverproc", "sources", "oldkernel", "containers", "cgroup"),
    (
        "image",
        "driver",
        "oci",
        "config",
        "configfile",
        "configvalue",
        "configtrust",
        "fastpath",
        "log",
        "ldconf",
        "state",
        "cmdline",
    ),
    ("plan", "devicefilter", "request", "channels", "devices", "requirement", "refusal", "cuda", "ldcache", "elf"),
    ("rootfs",),
    ("linux",),
    ("jsonio", "model", "version", "errors", "nearmiss", "tomlerror", "tomlscan", ""),
)
APART = {"sim": {"errors", ""}}  # stands alone: a driver for those who have none


def layer(name: str) -> int:
    """The number of a module's layer."""
    first = name.partition(".")[0]
    return next(number for number, names in enumerate(LAYERS) if first in names)


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_imports_point_down(name: str) -> None:
    own = name.partition(".")[0]
    for item in imports(name, top=False):
        if item == "gpuhook" or not item.startswith("gpuhook."):
            continue
        other = item.removeprefix("gpuhook.")
        if own in APART:
            assert other.partition(".")[0] in APART[own] | {own}, f"{name} imports {other}"
        elif other.partition(".")[0] in APART:
            assert own == "cli", f"{name} imports {other}"
        else:
            assert layer(name) <= layer(other), f"{name} imports {other}"


# errors has the simulator's references in its table
@pytest.mark.parametrize("name", [name for name in MODULES if name.partition(".")[0] not in ("sim", "cli", "errors")])
def test_nobody_knows_that_a_driver_is_simulated(name: str) -> None:
    text = MODULES[name].read_text()
    assert not re.search(r"simulat|\bsim\b|gpuhook_sim", text, re.IGNORECASE)
