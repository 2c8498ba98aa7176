"""No variable of an image reaches a process of ours, whatever the runtime, the hook's stage and the form of its `env`.

Each variable carries a real payload (a shared object, Python modules, shell files) that leaves a mark on the host when
it is loaded, or the name of a file that a loader or interpreter writes by itself. CVE-2025-23266 is the pattern.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import bundles
from tests.images import CHECKOUT
from tests.security.arena import ALL, Arena

pytestmark = pytest.mark.runc

PAYLOAD = r"""
#include <fcntl.h>
#include <unistd.h>
static void mark(const char *path) { close(open(path, O_CREAT | O_WRONLY, 0666)); }
__attribute__((constructor)) static void loaded(void) { mark(MARKS "/object"); }
unsigned int la_version(unsigned int version) { mark(MARKS "/audit"); return version; }
int gconv_init(void *step) { mark(MARKS "/gconv"); return 1; }
"""
# {evil}: a directory of the image, as the host names it; {marks}: where a mark on the host goes
VARIABLES = {
    "LD_PRELOAD": "{evil}/evil.so",
    "LD_AUDIT": "{evil}/evil.so",
    "LD_LIBRARY_PATH": "{evil}",
    "LD_DEBUG": "all",
    "LD_DEBUG_OUTPUT": "{marks}/debug",
    "LD_PROFILE": "libc.so.6",
    "LD_PROFILE_OUTPUT": "{marks}",
    "LD_ORIGIN_PATH": "{evil}",
    "GLIBC_TUNABLES": "glibc.malloc.check=3",
    "GCONV_PATH": "{evil}",
    "LOCPATH": "{evil}",
    "NLSPATH": "{evil}/%N",
    "LC_ALL": "evil",
    "MALLOC_TRACE": "{marks}/trace",
    "PYTHONPATH": "{evil}",
    "PYTHONHOME": "{evil}",
    "PYTHONSTARTUP": "{evil}/evil.py",
    "PYTHONINSPECT": "1",
    "PYTHONBREAKPOINT": "evil.mark",
    "PYTHONWARNINGS": "error::evil.Mark",
    "PYTHONPLATLIBDIR": "{evil}",
    "PYTHONUSERBASE": "{evil}",
    "PYTHONPYCACHEPREFIX": "{marks}",
    "PYTHONSAFEPATH": "",
    "PYTHONDUMPREFSFILE": "{marks}/refs",
    "PATH": "{evil}/bin",
    "IFS": "/",
    "CDPATH": "{evil}",
    "ENV": "{evil}/evil.sh",
    "BASH_ENV": "{evil}/evil.sh",
    "BASH_FUNC_readlink%%": "() {{ : >{marks}/function; }}",
    "TMPDIR": "{marks}",
    "HOME": "{evil}",
    "XDG_CONFIG_HOME": "{evil}",
    "OPENSSL_CONF": "{evil}/evil.sh",
}
FORMS: dict[str, Callable[[dict[str, Any]], object]] = {
    "as the shim writes it": lambda hook: None,
    "no env": lambda hook: hook.pop("env"),
    "an empty env": lambda hook: hook.update(env=[]),
}
STAGES = ("prestart", "createRuntime")


@dataclass
class Attack:
    """A bundle with the payloads in its image, and the place on the host where a mark appears."""

    arena: Arena
    bundle: bundles.Bundle
    marks: Path

    def value(self, name: str) -> str:
        """The variable's value."""
        return VARIABLES[name].format(evil=self.bundle.rootfs / "evil", marks=self.marks)

    def configure(self, names: tuple[str, ...]) -> None:
        """Write config.json anew with these variables in the image's environment, behind its own."""
        env = [ALL, *[f"{name}={self.value(name)}" for name in names]]
        spec = bundles.config(env=env, args=["/keep/busybox", "ls", "/dev/nvidia0", "/dev/nvidia1"])
        (self.bundle.path / "config.json").write_text(json.dumps(spec))

    def plain(self) -> bundles.Runtime:
        """The low-level runtime without the shim."""
        return bundles.Runtime(
            bundles.tool(self.arena.runtime), self.arena.place / "plain", within=self.arena.within, timeout=30
        )

    def start(self, names: tuple[str, ...], stage: str, form: str) -> bundles.Result:
        """Start with the shim; for another form of `env`, once more without it after the hook's entry was changed."""
        self.arena.world.use_driver(self.arena.driver, f'[hook]\nstage = "{stage}"\n')
        self.configure(names)
        done = self.arena.shim.run(self.bundle)
        if form == next(iter(FORMS)) or done.code != 0:
            return done
        spec = self.bundle.spec
        FORMS[form](spec["hooks"][stage][0])
        (self.bundle.path / "config.json").write_text(json.dumps(spec))
        return self.plain().run(self.bundle)

    def left(self) -> list[str]:
        """The marks, which are taken away."""
        found = sorted(path.name for path in self.marks.iterdir())
        for path in self.marks.iterdir():
            path.unlink() if not path.is_dir() else shutil.rmtree(path)
        return found

    def check(self, names: tuple[str, ...], stage: str, form: str) -> None:
        """The container has its GPUs, and no mark is left."""
        done = self.start(names, stage, form)
        assert (done.code, done.out) == (0, "/dev/nvidia0\n/dev/nvidia1\n"), done.err + self.arena.world.log
        assert self.left() == []


@pytest.fixture(scope="module")
def attack(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> Attack:
    """Made once for a runtime."""
    marks = tmp_path_factory.mktemp("marks")
    marks.chmod(0o777)
    bundle = bundles.make(arena.bundle("environment"), arena.tree)
    evil = bundle.rootfs / "evil"
    (evil / "bin").mkdir(parents=True)
    command = ["gcc", "-shared", "-fPIC", f'-DMARKS="{marks}"', "-x", "c", "-", "-o", str(evil / "evil.so")]
    subprocess.run(command, input=PAYLOAD.encode(), check=True)
    for name in ("libexpat.so.1", "libz.so.1", "libm.so.6", "libselinux.so.1", "libtinfo.so.6", "libpcre2-8.so.0"):
        shutil.copy(evil / "evil.so", evil / name)
    (evil / "gconv-modules").write_text("module INTERNAL EVIL// evil 1\nmodule EVIL// INTERNAL evil 1\n")
    python = f'import posix\nposix.close(posix.open("{marks}/python", 65, 0o666))\n'
    python += "def mark(): pass\nclass Mark(Warning): pass\n"
    for name in ("sitecustomize", "usercustomize", "evil", "posix", "gpuhook", "encodings", "marshal", "site", "os"):
        (evil / f"{name}.py").write_text(python)
    (evil / "evil.sh").write_text(f": >{marks}/shell\n")
    for name in ("python3", "sh", "grep", "readlink", "date", "runc", "crun", "ldconfig", "env", "nvidia-smi"):
        (evil / "bin" / name).write_text(f"#!/bin/sh\n: >{marks}/program\n")
        (evil / "bin" / name).chmod(0o755)
    return Attack(arena, bundle, marks)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stage", STAGES)
def test_all_variables_at_once(attack: Attack, stage: str, form: str) -> None:
    """On a machine whose driver is not known yet: NVML's helper is started too."""
    shutil.rmtree(attack.arena.world.state, ignore_errors=True)
    attack.check(tuple(VARIABLES), stage, form)


@pytest.mark.parametrize("name", VARIABLES)
def test_each_variable_of_an_image(attack: Attack, name: str) -> None:
    """One by one, since one may hide another. All stages and forms in tests/long/environment.py."""
    attack.check((name,), "prestart", next(iter(FORMS)))


# What an engine's environment may hold without being meant for us. LD_* of the engine are the engine's own decision.
HARMLESS = (
    *[name for name in VARIABLES if name.startswith(("PYTHON", "XDG_", "BASH_FUNC_", "OPENSSL"))],
    *("ENV", "BASH_ENV", "IFS", "CDPATH", "TMPDIR", "HOME", "LC_ALL", "LOCPATH", "NLSPATH"),
)
OURS = {
    **dict.fromkeys(("gpuhook_patterns", "gpuhook_text", "gpuhook_name"), "no such word"),
    **dict.fromkeys(("gpuhook_low_level", "gpuhook_path", "gpuhook_self", "gpuhook_folders"), "{evil}/bin/runc"),
    "gpuhook_python": "{evil}/bin/runc",
    **dict.fromkeys(("gpuhook_prefix", "gpuhook_state", "gpuhook_file", "gpuhook_bundle", "gpuhook_library"), "{evil}"),
    **dict.fromkeys(
        ("gpuhook_known", "gpuhook_format", "gpuhook_word", "gpuhook_arg", "gpuhook_newline", "gpuhook_count"), "1"
    ),
    **dict.fromkeys(("gpuhook_status", "gpuhook_time"), "0"),
    **dict.fromkeys(("gpuhook_log", "gpuhook_log_format"), "{marks}/log"),
}


@pytest.mark.parametrize("state", ["known driver", "nothing known"])
def test_the_engines_environment_does_not_alter_the_shim(attack: Attack, state: str) -> None:
    """Python's, the shell's and names of our own: the shim does the same, cold and warm."""
    env = {name: attack.value(name) for name in HARMLESS}
    env |= {name: text.format(evil=attack.bundle.rootfs / "evil", marks=attack.marks) for name, text in OURS.items()}
    attack.arena.world.use_driver(attack.arena.driver)
    attack.configure(())
    if state == "nothing known":
        shutil.rmtree(attack.arena.world.state, ignore_errors=True)
    # the test's own tools around the shim are shell scripts: they get a clean environment
    shim = attack.arena.shim
    shim.within = [*shim.within, "env", "-i", f"PATH={os.environ['PATH']}", *[f"{k}={v}" for k, v in env.items()]]
    done = shim.run(attack.bundle)
    assert (done.code, done.out) == (0, "/dev/nvidia0\n/dev/nvidia1\n"), done.err
    assert attack.left() == []


# --- self-checks --------------------------------------------------------------------------------------------------

LIVE = {
    "LD_PRELOAD": ["/bin/true"],
    "LD_AUDIT": ["/bin/true"],
    "LD_DEBUG_OUTPUT": ["/bin/true"],
    "LD_PROFILE": ["/bin/true"],
    "LD_LIBRARY_PATH": ["/bin/ls"],
    "PYTHONPATH": ["/usr/bin/python3", "-c", "0"],
    "PYTHONWARNINGS": ["/usr/bin/python3", "-c", "0"],
    "PATH": ["/usr/bin/env", "python3"],
    "BASH_ENV": ["/bin/bash", "-c", ":"],
    "BASH_FUNC_readlink%%": ["/bin/bash", "-c", "readlink x"],
}


@pytest.mark.parametrize("name", LIVE)
def test_a_payload_works_where_nobody_guards(attack: Attack, name: str) -> None:
    """A program that takes the variable leaves a mark: without that the matrix would show nothing."""
    pairs = {"LD_DEBUG_OUTPUT": ("LD_DEBUG",), "LD_PROFILE": ("LD_PROFILE_OUTPUT",), "PYTHONWARNINGS": ("PYTHONPATH",)}
    env = {one: attack.value(one) for one in (name, *pairs.get(name, ()))}
    subprocess.run(LIVE[name], env=env, capture_output=True, timeout=30, check=False)
    assert attack.left() != []


def test_the_published_attack_works_on_a_careless_hook(attack: Attack) -> None:
    """runc 1.1 hands a createContainer hook without `env` the image's environment: root of the host loads the object.

    crun 1.8 does not.
    """
    attack.configure(("LD_PRELOAD",))
    spec = attack.bundle.spec
    spec["hooks"] = {"createContainer": [{"path": "/bin/true", "args": ["true"]}]}
    (attack.bundle.path / "config.json").write_text(json.dumps(spec))
    attack.plain().run(attack.bundle)
    assert attack.left() == (["object"] if attack.arena.runtime == "runc" else [])


def test_there_are_enough_variables() -> None:
    assert len(VARIABLES) >= 24
    assert sys.version_info >= (3, 11)
    assert (CHECKOUT / "src/launchers/gpuhook-runtime").read_text().count("unset gpuhook_") == 1
    names = (CHECKOUT / "src/launchers/gpuhook-runtime").read_text().split("unset ", 1)[1].split("\n\n")[0]
    unset = names.split("gpuhook_newline='")[0].replace("\\", " ").split()
    assert set(unset) == set(OURS), "the table of our names and the launcher's list differ"
