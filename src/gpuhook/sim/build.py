"""Compile the libraries and programs of a simulated driver.

Six small C files are compiled once; all libraries but two are linked from the same object, 7 ms each.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from gpuhook.errors import GpuhookError
from gpuhook.sim.libraries import PROGRAMS, Library
from gpuhook.sim.state import State, text

SOURCES = Path(__file__).parent / "csrc"
_TIMEOUT = 120  # seconds for one run of the compiler, on a machine that is very busy
_COMPILE = [
    "-std=gnu11",
    "-O1",
    "-fPIC",
    "-fvisibility=hidden",
    "-fdata-sections",
    "-ffunction-sections",
    "-fno-stack-protector",
    "-U_FORTIFY_SOURCE",
    "-Wall",
    "-Wextra",
    "-Werror=implicit-function-declaration",
]
# the linker is asked not to drop or add anything by itself: what a library needs is what the table says
_LINK = ["-nostdlib", "-Wl,--no-as-needed", "-Wl,--gc-sections", "-Wl,--build-id=none", "-Wl,-z,noexecstack"]


def compiler() -> list[str]:
    """The compiler's command: $CC, else cc, else gcc. Raises sim-compiler-missing."""
    named = shlex.split(os.environ.get("CC", ""))
    for words in [named] if named else [["cc"], ["gcc"]]:
        if path := shutil.which(words[0]):
            return [path, *words[1:]]
    wanted = f"$CC names {named[0]!r}, which is not" if named else "neither cc nor gcc is"
    raise GpuhookError(
        "sim-compiler-missing",
        f"the simulated driver is compiled when it is made, and {wanted} in PATH",
        "install the compiler and the C library's headers: apt-get install gcc libc6-dev (Fedora: dnf install gcc)",
    )


def build(root: Path, directory: str, binaries: str, libraries: Iterable[Library], state: State) -> None:
    """Write the libraries into `directory` and the programs into `binaries`, both below `root`.

    libnvidia-ml answers as `state` where no nvml.conf is near. Raises sim-compiler-missing and sim-failed.
    """
    job = _Build(compiler(), root / "build", root / directory, tuple(libraries), state.driver)
    job.work.mkdir()
    job.write_headers(state)
    (root / binaries).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        _all(pool.map(job.compile, ("library", "cuda", "nvml", "nvml_state", "smi", "program")))
        ready: set[str] = set()
        while missing := [library for library in job.libraries if library.name not in ready]:
            now = [library for library in missing if ready.issuperset(library.needed)]
            _all(pool.map(job.link, now))
            ready.update(library.name for library in now)
        _all(pool.map(job.link_program, [root / binaries / name for name in ("nvidia-smi", *PROGRAMS)]))
    shutil.rmtree(job.work)


@dataclass(frozen=True)
class _Build:
    """One run: the compiler's command, a directory for objects, where the libraries go, and what they are."""

    command: list[str]
    work: Path
    destination: Path
    libraries: tuple[Library, ...]
    driver: str

    def write_headers(self, state: State) -> None:
        answers = text(replace(state, faults=()))  # a container's copy of NVML can't be mended later
        (self.work / "answers.h").write_text(
            f"#define SIM_DRIVER {_quote(self.driver)}\n"
            f"#define SIM_CUDA {state.cuda}\n"
            f"#define SIM_ANSWERS {_quote(answers)}\n"
        )
        lines = []
        for number, library in enumerate(self.libraries):
            says = f"{library.name.rpartition('/')[2]}.so {library.version or self.driver}"
            lines.append(f'__attribute__((visibility("hidden"))) extern const char sim_text_{number}[];')
            lines.append(f"const char sim_text_{number}[] = {_quote(says)};")
        (self.work / "texts.h").write_text("\n".join(lines) + "\n")

    def compile(self, name: str) -> None:
        source = SOURCES / f"{name}.c"
        words = [*self.command, *_COMPILE, "-I", str(self.work), "-c", str(source)]
        _run([*words, "-o", str(self.work / f"{name}.o")], source.name)

    def link(self, library: Library) -> None:
        target = self.destination / library.file(self.driver)
        target.parent.mkdir(parents=True, exist_ok=True)
        soname = library.soname_text(self.driver)
        objects = [
            "library.o",
            *{"libcuda": ["cuda.o"], "libnvidia-ml": ["nvml.o", "nvml_state.o"]}.get(library.name, []),
        ]
        needed = [self.destination / item.file(self.driver) for item in self.libraries if item.name in library.needed]
        words = [*self.command, *_LINK, "-shared", f"-Wl,-soname,{soname}"]
        words += [f"-Wl,--defsym=gpuhook_sim_text=sim_text_{self.libraries.index(library)}"]
        # a dependency may need others in turn; those are of no interest to this link
        words += ["-Wl,--unresolved-symbols=ignore-in-shared-libs"]
        words += [*(str(self.work / item) for item in objects), *map(str, needed), "-lc"]
        if library.name == "libnvidia-ml":
            words.append("-l:libdl.so.2")
        _run([*words, "-o", str(target)], target.name)
        for name in {soname, *library.aliases} - {target.name}:
            (target.parent / name).symlink_to(target.name)
        if library.dev:  # leads to the soname's link, as NVIDIA's installer makes it
            (target.parent / f"{library.name.rpartition('/')[2]}.so").symlink_to(soname)

    def link_program(self, target: Path) -> None:
        source = "smi.o" if target.name == "nvidia-smi" else "program.o"
        words = [*self.command, *_LINK, "-pie", str(self.work / source), "-lc", "-l:libdl.so.2"]
        _run([*words, "-o", str(target)], target.name)


def _all(results: Iterable[None]) -> None:
    for _ in results:  # raises what the work raised
        pass


def _run(words: list[str], what: str) -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(  # noqa: S603 - the compiler that the caller chose
            words, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{words[0]} took longer than {_TIMEOUT} s"
        raise GpuhookError(
            "sim-failed",
            f"compiling {what} for the simulated driver failed: {reason}",
            f"see whether {words[0]} runs; $CC names another compiler",
        ) from None
    if done.returncode:
        said = done.stderr.strip()[-2000:] or f"exit status {done.returncode}, without a word"
        raise GpuhookError(
            "sim-failed",
            f"compiling {what} for the simulated driver failed: {words[0]} says {said.splitlines()[0]}",
            f"a C compiler with the C library's headers is needed (Debian: gcc libc6-dev); all that it said:\n{said}",
        )


def _quote(words: str) -> str:
    """A C string literal. The text is printable ASCII and newlines: checked options."""
    return '"' + words.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?").replace("\n", "\\n") + '"'
