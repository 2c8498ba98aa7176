"""What real containerds make of what is configured: `containerd config dump` reads a file and starts no daemon.

The installed one is asked always. `GPUHOOK_CONTAINERDS=/path/containerd:/other/containerd` adds others; these tests
have passed with 1.6.20, 1.7.24 and 2.1.9.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuhook.engines import containerd, containerdconfig
from gpuhook.engines.containerdconfig import Loaded
from gpuhook.engines.host import Host
from gpuhook.engines.model import Options
from gpuhook.errors import GpuhookError
from tests.unit.containerd_support import OURS, REAL, V2, V3, Machine, dump
from tests.unit.engine_support import carry_out

RUNC = f'runtime_type = "{containerdconfig.RUNC_V2}"\n'
TOP = f'version = 2\n[plugins."{V2}"]\nenable_selinux = true\n'
AT = f'plugins."{V2}".containerd.runtimes'
SYSTEMD = f"[{AT}.runc]\n{RUNC}[{AT}.runc.options]\nSystemdCgroup = true\n"

pytestmark = pytest.mark.skipif(not REAL, reason="no containerd is installed")


class Real:
    """A real containerd, and files of its own in a directory."""

    def __init__(self, program: str, path: Path) -> None:
        self.program, self.path, self.config = program, path, path / "config.toml"
        programs = path / "programs"
        programs.mkdir()
        (programs / "containerd").symlink_to(program)
        self.host = Host(uid=0, environ={"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(path)})
        self.machine = Machine(path)
        self.engine = self.host.version("containerd")

    def write(self, name: str, text: str) -> None:
        """A file of the configuration."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def configure(self, **options: Any) -> dict[str, Any]:
        """Configure, and what containerd makes of it."""
        wanted = Options(config=str(self.config), **options)
        carry_out(self.host, containerd.propose(self.host, wanted))
        return dump(self.program, self.config)

    def loaded(self) -> Loaded:
        """The files as we read them."""
        return containerdconfig.load(self.host, str(self.config), self.engine)


@pytest.fixture(params=REAL, ids=[f"containerd{number}" for number in range(len(REAL))])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Real:
    return Real(request.param, tmp_path)


def runtimes(cri: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = cri["containerd"]["runtimes"]
    return found


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="no-file"),
        pytest.param("", id="empty"),
        pytest.param("# nothing yet\n", id="comment"),
        pytest.param('oom_score = 0\n[plugins.cri]\nsandbox_image = "a/b"\n', id="version-1"),
        pytest.param('version = 2\n[plugins."io.containerd.internal.v1.opt"]\npath = "/opt/x"\n', id="2-without-cri"),
        pytest.param(TOP, id="2-without-runtimes"),
        pytest.param(TOP + SYSTEMD, id="2-with-runc"),
        pytest.param(f"version = 2\n{SYSTEMD}imports = []\n".replace("imports", "Unheard"), id="2-unknown-option"),
    ],
)
@pytest.mark.parametrize("drop_in", [None, ""], ids=["main", "drop-in"])
def test_containerd_sees_our_runtime_and_still_its_own(real: Real, text: str | None, drop_in: str | None) -> None:
    if text is not None:
        real.write("config.toml", text)
    before = dump(real.program, real.config) if text is not None else {}
    after = real.configure(drop_in=drop_in, default_runtime=True)
    assert runtimes(after)["gpuhook"]["options"]["BinaryName"] == OURS
    assert runtimes(after)["runc"]["runtime_type"] == containerdconfig.RUNC_V2
    assert after["containerd"]["default_runtime_name"] == "gpuhook"
    if before:
        cgroup = runtimes(before)["runc"]["options"]["SystemdCgroup"]
        assert runtimes(after)["gpuhook"]["options"].get("SystemdCgroup", False) is cgroup
        assert {key: value for key, value in after.items() if key != "containerd"} == {
            key: value for key, value in before.items() if key != "containerd"
        }, "settings of others have changed"
        assert runtimes(before)["runc"]["options"]["SystemdCgroup"] is runtimes(after)["runc"].get("options", {}).get(
            "SystemdCgroup", False
        )


def test_version_3(real: Real) -> None:
    real.write("config.toml", f'version = 3\n[plugins."{V3}"]\nenable_selinux = true\n')
    if real.engine < (2,):
        with pytest.raises(GpuhookError, match=r"version 3 is for containerd 2\.0 and newer"):
            real.configure()
        return
    for drop_in in (None, ""):
        after = real.configure(drop_in=drop_in)
        assert runtimes(after)["gpuhook"]["options"]["BinaryName"] == OURS
        assert after["enable_selinux"] is True


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('version = "2"\n', id="R122-text"),
        pytest.param("version = 2.0\n", id="R122-float"),
        pytest.param("version = 2\n[plugins.cri]\nenable_selinux = true\n", id="R121"),
    ],
)
def test_what_we_refuse_containerd_refuses(real: Real, text: str) -> None:
    """But for plugins.cri in version 2: containerd 2.x takes no account of it, and we say so."""
    real.write("config.toml", text)
    done = subprocess.run([real.program, "-c", str(real.config), "config", "dump"], capture_output=True, timeout=20)
    told = "cri" in text and real.engine >= (2,)
    assert (done.returncode == 0) is told
    if told:
        assert any("takes no account" in problem for problem in real.loaded().problems)
    else:
        with pytest.raises(GpuhookError):
            real.loaded()


# --- our reading of imports against containerd's --------------------------------------------------------------------

IMPORTED = f'version = 2\n[{AT}.other]\n{RUNC}pod_annotations = ["x/*"]\n'


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"config.toml": TOP + SYSTEMD}, id="alone"),
        pytest.param({"config.toml": 'imports = ["{here}/c/*.toml"]\n' + TOP, "c/a.toml": IMPORTED}, id="pattern"),
        pytest.param({"config.toml": 'imports = ["c/a.toml"]\n' + TOP, "c/a.toml": IMPORTED}, id="relative-name"),
        pytest.param({"config.toml": 'imports = ["c/*.toml"]\n' + TOP, "c/a.toml": IMPORTED}, id="relative-pattern"),
        pytest.param(
            {
                "config.toml": 'imports = ["{here}/c/*.toml"]\n' + TOP + SYSTEMD,
                "c/b.toml": f'version = 2\n[{AT}.runc]\n{RUNC}pod_annotations = ["b"]\n',
                "c/a.toml": IMPORTED,
            },
            id="two-in-their-order",
        ),
        pytest.param(
            {
                "config.toml": 'imports = ["{here}/a.toml", "{here}/b.toml"]\n' + TOP,
                "a.toml": 'version = 2\nimports = ["{here}/c/*.toml"]\n',
                "b.toml": f'version = 2\n[plugins."{V2}".containerd]\ndefault_runtime_name = "b"\n',
                "c/c.toml": f'version = 2\n[plugins."{V2}".containerd]\ndefault_runtime_name = "c"\n',
            },
            id="imports-of-imports-come-last",
        ),
        pytest.param(
            {"config.toml": 'imports = ["{here}/config.toml", "{here}/c/*.toml"]\n' + TOP, "c/a.toml": IMPORTED},
            id="itself",
        ),
        pytest.param(
            {"config.toml": 'imports = ["{here}/c/*.toml"]\n' + TOP, "c/a.toml": IMPORTED.partition("\n")[2]},
            id="an-import-without-version",
        ),
    ],
)
def test_imports_are_read_as_containerd_does(real: Real, files: dict[str, str]) -> None:
    for name, text in files.items():
        real.write(name, text.replace("{here}", str(real.path)))
    truth = dump(real.program, real.config)
    loaded = real.loaded()
    mine = loaded.cri()
    assert set(loaded.runtimes()) == set(runtimes(truth))
    assert mine.get("enable_selinux", False) is truth["enable_selinux"]
    name = mine.get("containerd", {}).get("default_runtime_name", "runc")
    assert name == truth["containerd"]["default_runtime_name"]
    for runtime, table in loaded.runtimes().items():
        theirs = runtimes(truth)[runtime]
        assert table.get("pod_annotations", []) == theirs["pod_annotations"]
        cgroup = table.get("options", {}).get("SystemdCgroup", False)
        assert cgroup is theirs.get("options", {}).get("SystemdCgroup", False)


@pytest.mark.parametrize("versions", [(3, 2), (2, 3), (1, 2)])
def test_imports_of_mixed_versions_are_read_as_containerd_does(real: Real, versions: tuple[int, int]) -> None:
    names = {1: "cri", 2: V2, 3: V3}
    main, other = versions
    real.write("a.toml", f'version = {other}\n[plugins."{names[other]}".containerd.runtimes.other]\n{RUNC}')
    real.write(
        "config.toml",
        f'version = {main}\nimports = ["{real.path}/a.toml"]\n[plugins."{names[main]}"]\nenable_selinux = true\n',
    )
    if real.engine < (2,) and (main, other) != (3, 2):
        with pytest.raises((GpuhookError, AssertionError)):
            dump(real.program, real.config)
            real.loaded()
        return
    truth = dump(real.program, real.config)
    assert set(real.loaded().runtimes()) == set(runtimes(truth))
    assert real.loaded().cri().get("enable_selinux", False) is truth["enable_selinux"]


def test_r138_doctor_asks_containerd_itself(real: Real) -> None:
    real.write("config.toml", TOP)
    real.configure()
    found = {item.check: item for item in containerd.check(real.host, Options(config=str(real.config)))}
    assert "`containerd config dump`" in found["runtime"].message
    assert found["runtime"].level == "ok"
