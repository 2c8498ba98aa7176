"""The Debian packages: what they hold, and that a clean Debian with them starts containers that have GPUs.

tests/long/package.py runs these tests with Debian 13, by a fixture `suite` of its own.
"""

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuhook import __version__
from gpuhook.cli import COMMANDS
from gpuhook.errors import EXIT_CODES
from tests.images import CHECKOUT
from tests.package.conftest import NEWER, Built, Host, NewDeb, build

pytestmark = pytest.mark.runc

SEEN = (0, "dlopen:libcuda.so.1: ok libcuda.so 580.95.05\n/dev/nvidia0: ok\n", "")
LIBRARY = f"/usr/lib/gpuhook/{__version__}"
HOOK = "/usr/bin/nvidia-container-runtime-hook"


# --- what is in them ------------------------------------------------------------------------------------------------


def contents(deb: Path) -> list[str]:
    """Each file with its mode and owner, in the archive's order."""
    listed = subprocess.run(["dpkg-deb", "--contents", deb], capture_output=True, text=True, check=True).stdout
    found = []
    for line in listed.splitlines():
        mode, owner, _, _, _, path = line.split(maxsplit=5)
        if not mode.startswith("d"):
            found.append(f"{mode} {owner} {path.removeprefix('.')}")
    return found


def test_two_builds_are_equal(packages: Built, folder: Path) -> None:
    """In another folder, under another umask: packages, and the source they are built from."""
    again = build(folder / "again", source=packages.dist.parent, umask=0o077)
    names = sorted(path.name for path in packages.dist.iterdir() if path.suffix in (".deb", ".dsc", ".xz"))
    assert len(names) == 4
    for name in names:
        assert (again.dist / name).read_bytes() == (packages.dist / name).read_bytes(), name


def test_lintian_is_silent(packages: Built) -> None:
    """But for what is overridden, each with its reason; and each override is needed."""
    changes = next(packages.dist.glob("*.changes"))
    command: list[str | Path] = ["lintian", "--allow-root", "--profile=debian", "--display-info", "--pedantic", changes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done


def test_the_files_of_gpuhook(packages: Built) -> None:
    """Exactly: files.txt, the modules, the pages. The last of the library that is put in its place is `whole`."""
    listed = contents(packages.deb("gpuhook"))
    modules = sorted(
        f"-rw-r--r-- root/root {LIBRARY}/{path.relative_to(CHECKOUT / 'src')}"
        for path in (CHECKOUT / "src/gpuhook").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )
    documents = [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md"), *(CHECKOUT / "docs").rglob("*.json")]
    pages = [f"-rw-r--r-- root/root /usr/share/doc/gpuhook/{path.relative_to(CHECKOUT)}" for path in documents]
    pages += [
        f"-rw-r--r-- root/root /usr/share/man/man{path.suffix[1:]}/{path.name}.gz"
        for path in (CHECKOUT / "docs/man").iterdir()
    ]
    pinned = (Path(__file__).with_name("files.txt")).read_text().replace("VERSION", __version__).splitlines()
    assert sorted(listed) == sorted([*pinned, *modules, *pages])
    library = [line for line in listed if line.startswith("-") and LIBRARY in line]
    assert library[-1].endswith("/whole")


def test_links_of_its_pages_lead_to_its_pages(packages: Built, folder: Path) -> None:
    """Each relative link of an installed page, where the package has put that."""
    subprocess.run(["dpkg-deb", "--extract", packages.deb("gpuhook"), folder], check=True)
    documents = folder / "usr/share/doc/gpuhook"
    links = [
        (page, link)
        for page in documents.rglob("*.md")
        for link in re.findall(r"\]\(([^)#]+)", page.read_text())
        if not link.startswith("http")
    ]
    assert len(links) > 40
    assert [(page.name, link) for page, link in links if not os.path.lexists(page.parent / link)] == []
    assert os.readlink(documents / "LICENSE") == "../../common-licenses/Apache-2.0"


def test_the_files_of_docker_gpus(packages: Built) -> None:
    """The name that dockerd looks for, and its page."""
    documents = "-rw-r--r-- root/root /usr/share/doc/gpuhook-docker-gpus/"
    assert contents(packages.deb("gpuhook-docker-gpus")) == [
        f"{documents}changelog.gz",
        f"{documents}copyright",
        f"lrwxrwxrwx root/root {HOOK} -> gpuhook-hook",
        "lrwxrwxrwx root/root /usr/share/man/man8/nvidia-container-runtime-hook.8.gz -> gpuhook-hook.8.gz",
    ]


@pytest.mark.parametrize("name", ["gpuhook", "gpuhook-docker-gpus"])
def test_one_version(packages: Built, newer: Built, name: str) -> None:
    """What src/gpuhook/__init__.py says is the packages' version."""
    for built in (packages, newer):
        command: list[str | Path] = ["dpkg-deb", "--field", built.deb(name), "Version"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{built.version}\n"


# --- on a clean Debian ----------------------------------------------------------------------------------------------


def test_a_life(host: Host, packages: Built, newer: Built) -> None:
    """Installed offline, upgraded, removed, purged; a container with a GPU each time, and nothing left at the end."""
    before = host.files()
    host.dpkg("--install", packages.deb("gpuhook"))
    host.use_driver()
    assert host.start(host.bundle("first"), "first") == SEEN
    compiled = host.machine.check("sh", "-c", f"ls {LIBRARY}/*.bundle {LIBRARY}/gpuhook/__pycache__ | wc -l")
    assert int(compiled) > 30

    said = host.dpkg("--install", newer.deb("gpuhook"))
    assert host.machine.check("gpuhook", "--version") == f"gpuhook {NEWER}\n"
    assert host.machine.check("ls", "/usr/lib/gpuhook") == f"{NEWER}\n", said
    assert host.start(host.bundle("second"), "second") == SEEN
    assert "warning" not in said

    said = host.dpkg("--remove", "gpuhook")
    assert "warning" not in said
    assert "name it" not in said
    assert host.machine.run("ls", "/usr/lib/gpuhook").code != 0
    assert "sim" not in host.machine.read("/etc/gpuhook/runtime.toml").partition("[driver]")[0]

    host.dpkg("--install", packages.deb("gpuhook"))
    assert host.start(host.bundle("third"), "third") == SEEN  # by the configuration that was kept
    host.dpkg("--purge", "gpuhook")
    assert host.files() ^ before == {"/run/runc"}


def test_it_takes_the_place_of_what_scripts_install_left(
    host: Host, packages: Built, newer: Built, installed: Path
) -> None:
    """All of it goes, though dpkg knows nothing of it: with the package's first configuration, and with its removal."""
    before = host.files()
    host.machine.check("cp", "-R", f"{installed}/usr", "/")
    said = host.dpkg("--install", packages.deb("gpuhook"))
    assert host.machine.check("ls", f"{LIBRARY}/vendor").split() == ["__pycache__", "pynvml.py"]
    host.dpkg("--install", newer.deb("gpuhook"))
    host.machine.check("cp", "-R", f"{installed}/usr", "/")  # again, over the package
    said += host.dpkg("--purge", "gpuhook")
    assert "warning" not in said
    assert host.files() == before


def test_it_takes_back_what_others_own(host: Host, packages: Built) -> None:
    """Whoever owned the modules' folder could exchange what root runs; dpkg leaves folders as they are."""
    host.dpkg("--install", packages.deb("gpuhook"))
    host.machine.check("chown", "-R", "1000:1000", "/usr/lib/gpuhook")
    host.machine.check("chmod", "777", "/usr/lib/gpuhook", LIBRARY)
    host.machine.write(f"{LIBRARY}/click.py", "")
    host.dpkg("--install", packages.deb("gpuhook"))
    found = host.machine.check(
        "find", "/usr/lib/gpuhook", "!", "-type", "l", "(", "!", "-user", "0", "-o", "-perm", "/022", ")"
    )
    assert found == ""
    assert host.machine.run("ls", f"{LIBRARY}/click.py").code != 0


def test_what_was_being_compiled_goes_too(host: Host, packages: Built, newer: Built) -> None:
    """dpkg was killed while a bundle was written: the version's folder is removed with the upgrade all the same."""
    host.dpkg("--install", packages.deb("gpuhook"))
    host.machine.write(f"{LIBRARY}/shim.bundle.new-77", "half")
    said = host.dpkg("--install", newer.deb("gpuhook"))
    assert "warning" not in said
    assert host.machine.check("ls", "/usr/lib/gpuhook") == f"{NEWER}\n"


def test_into_another_root(host: Host, packages: Built, newer: Built) -> None:
    """Where nothing can run (another architecture): what is installed here is left alone, whatever is done there."""
    host.dpkg("--install", packages.deb("gpuhook"))
    root = host.machine.folder / "root-of-another"
    (root / "var/lib/dpkg/info").mkdir(parents=True)
    (root / "var/lib/dpkg/updates").mkdir()
    (root / "var/lib/dpkg/status").touch()
    into = [f"--root={root}", "--force-script-chrootless", "--force-depends"]
    host.dpkg(*into, "--install", packages.deb("gpuhook"))
    (root / "usr/lib/gpuhook/0.0.1").mkdir()
    host.dpkg(*into, "--install", newer.deb("gpuhook"))
    assert [path.name for path in (root / "usr/lib/gpuhook").iterdir()] == [NEWER]
    host.dpkg(*into, "--purge", "gpuhook")
    assert not (root / "usr/lib/gpuhook").exists()
    assert not (root / "etc/gpuhook").exists()
    assert host.machine.check("dpkg", "--verify", "gpuhook") == ""
    assert host.machine.check("gpuhook", "--version") == f"gpuhook {__version__}\n"
    assert host.machine.run("ls", f"{LIBRARY}/shim.bundle").code == 0


def test_without_its_python_modules(host: Host, packages: Built) -> None:
    """Forced to: the command says what is missing, and containers start; without python3 it is removed all the same."""
    host.dpkg("--purge", "--force-depends", "python3-click")
    host.dpkg("--install", "--force-depends", packages.deb("gpuhook"))
    host.use_driver()
    assert host.start(host.bundle("clickless"), "clickless") == SEEN
    done = host.machine.run("gpuhook", "info")
    assert (done.code, done.out) == (EXIT_CODES["installation-damaged"], "")
    assert done.err.startswith("gpuhook: the Python module click is not there [installation-damaged]\n")
    host.machine.check("rm", "/usr/bin/python3")
    host.dpkg("--purge", "gpuhook")
    assert host.machine.run("ls", "/usr/lib/gpuhook").code != 0


def test_installing_tells_no_engine(host: Host, packages: Built) -> None:
    """What docker and containerd read stays as it is: no file of theirs is made or changed."""
    host.machine.write("/etc/docker/daemon.json", "{}")
    host.machine.write("/etc/containerd/config.toml", "version = 2\n")
    before = host.machine.check("sh", "-c", "find /etc -type f ! -path '/etc/gpuhook/*' | sort | xargs sha256sum")
    host.dpkg("--install", packages.deb("gpuhook"), packages.deb("gpuhook-docker-gpus"))
    after = host.machine.check("sh", "-c", "find /etc -type f ! -path '/etc/gpuhook/*' | sort | xargs sha256sum")
    assert sorted({*after.splitlines()} ^ {*before.splitlines()}) == [
        f"{host.machine.check('sha256sum', '/etc/logrotate.d/gpuhook').strip()}"
    ]


def test_removal_names_what_points_at_it(host: Host, packages: Built) -> None:
    """What configure wrote, with the command that takes it back, and what somebody wrote by hand."""
    host.dpkg("--install", packages.deb("gpuhook"))
    host.machine.write("/etc/docker/daemon.json", '{"debug": false}\n')
    host.machine.check("gpuhook", "configure", "docker", "--config=/etc/docker/daemon.json")
    host.machine.write("/etc/containerd/config.toml", '# BinaryName = "/usr/bin/gpuhook-runtime"\n')

    said = host.dpkg("--remove", "gpuhook")

    assert "/etc/docker/daemon.json: taken back by `gpuhook unconfigure docker --restart`" in said
    assert "/etc/containerd/config.toml: not written by `gpuhook configure`" in said
    assert "gpuhook-runtime" in host.machine.read("/etc/docker/daemon.json")
    host.dpkg("--install", packages.deb("gpuhook"))
    host.machine.check("gpuhook", "unconfigure", "docker")
    assert host.machine.read("/etc/docker/daemon.json") == '{"debug": false}\n'


STARTS = """
cd "$1"
count=0
while [ ! -e "$2" ]; do
  count=$((count + 1))
  cp spec.json config.json
  said=$(/usr/bin/gpuhook-runtime run --bundle "$1" "$3-$count" 2>&1) || true
  [ "${said##*ok}" = "" ] && [ "${said#*/dev/nvidia0: ok}" != "$said" ] || echo "start $count: $said"
  echo "$count" >count
done
"""


@contextlib.contextmanager
def starts(host: Host) -> Iterator[list[str]]:
    """Two loops of starts. What is wrong with them stands in the list once they have ended: nothing is to be there."""
    wrong: list[str] = []
    stop = host.machine.folder / "stop"
    bundles, loops = [], []
    for name in ("a", "b"):
        bundle = host.bundle(name)
        assert host.start(bundle, name) == SEEN
        spec = json.loads((bundle / "config.json").read_text())
        spec["hooks"] = {}
        spec["linux"].pop("devices", None)
        (bundle / "spec.json").write_text(json.dumps(spec))
        bundles.append(bundle)
        loops.append(host.machine.start("sh", "-c", STARTS, "sh", bundle, stop, name))
    yield wrong
    stop.touch()
    for bundle, loop in zip(bundles, loops, strict=True):
        with loop:
            said = str(loop.result(60))
        count = int((bundle / "count").read_text())
        if said != "exit status 0\n--- stdout\n--- stderr\n" or count < 6:
            wrong.append(f"{count} starts: {said}")


def test_no_start_fails_while_it_is_upgraded(host: Host, packages: Built, newer: Built) -> None:
    """Upgrade, reinstallation, downgrade, and upgrade again."""
    host.dpkg("--install", packages.deb("gpuhook"))
    host.use_driver()
    with starts(host) as wrong:
        for built in (newer, newer, packages, newer):
            host.dpkg("--install", built.deb("gpuhook"))
    assert wrong == []


def test_no_start_fails_while_python_is_upgraded(host: Host, packages: Built) -> None:
    """All of Python's packages are unpacked and configured again, as an update within a release does."""
    host.dpkg("--install", packages.deb("gpuhook"))
    host.use_driver()
    debs = host.machine.check("sh", "-c", "ls /var/cache/apt/archives/*python3*.deb").split()
    with starts(host) as wrong:
        host.dpkg("--install", *debs)
    assert wrong == []


def test_another_python(host: Host, packages: Built) -> None:
    """What python3 calls when it is another: all is compiled anew. Before that, the sources do."""
    host.dpkg("--install", packages.deb("gpuhook"))
    host.use_driver()
    host.machine.check("sh", "-c", f"for file in {LIBRARY}/*.bundle; do printf old >$file; done")
    rename = f"cd {LIBRARY}/gpuhook/__pycache__ && for file in *; do mv $file ${{file%%.*}}.cpython-310.pyc; done"
    host.machine.check("sh", "-c", rename)
    assert host.start(host.bundle("uncompiled"), "uncompiled") == SEEN

    host.machine.check("/usr/share/python3/runtime.d/gpuhook.rtupdate", "rtupdate", "3.10", "3.11")

    names = host.machine.check("ls", f"{LIBRARY}/gpuhook/__pycache__")
    assert "cpython-310" not in names
    assert "shim.cpython-3" in names
    assert host.machine.read(f"{LIBRARY}/whole") == f"{__version__}\n"
    assert host.machine.check("sh", "-c", f"stat -c %s {LIBRARY}/shim.bundle") != "3\n"
    assert host.start(host.bundle("compiled"), "compiled") == SEEN


def test_commands_with_debians_libraries(host: Host, packages: Built) -> None:
    """Each command's module loads with the click, yaml, jsonschema, packaging and tomlkit of that Debian; shells get
    their completions of it."""
    host.dpkg("--install", packages.deb("gpuhook"))
    for command in COMMANDS:
        assert host.machine.check("gpuhook", command, "--help").startswith(f"Usage: gpuhook {command}")
    script = host.machine.read("/usr/share/bash-completion/completions/gpuhook")
    assert host.machine.check("gpuhook", "completion", "bash") == script
    # the others differ between versions of click: the installed one prints them
    assert "gpuhook completion zsh" in host.machine.read("/usr/share/zsh/vendor-completions/_gpuhook")
    assert "gpuhook completion fish" in host.machine.read("/usr/share/fish/vendor_completions.d/gpuhook.fish")
    words = host.machine.check(
        "gpuhook", env={"_GPUHOOK_COMPLETE": "bash_complete", "COMP_WORDS": "gpuhook con", "COMP_CWORD": "1"}
    )
    assert words.split() == ["plain,configure", "plain,config"]


def test_the_hook_for_docker_stays_when_gpuhook_alone_is_upgraded(packages: Built) -> None:
    """It is a link and fits the next version; wanting one, apt would remove it, and `docker run --gpus` with it."""
    command: list[str | Path] = ["dpkg-deb", "--field", packages.deb("gpuhook-docker-gpus"), "Depends"]
    depends = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert depends == f"gpuhook (>= {packages.version})\n"


HOOKED = """
import json, sys
folder, hook, group = sys.argv[1:]
with open(f"{folder}/config.json") as file:
    spec = json.load(file)
spec["linux"]["cgroupsPath"] = group
spec["hooks"] = {"prestart": [{"path": hook, "args": ["nvidia-container-runtime-hook", "prestart"]}]}
with open(f"{folder}/config.json", "w") as file:
    json.dump(spec, file)
"""


def test_dockers_hook_in_a_container(host: Host, packages: Built) -> None:
    """Called as docker calls it, by the link, under plain runc."""
    host.dpkg("--install", packages.deb("gpuhook"), packages.deb("gpuhook-docker-gpus"))
    host.use_driver()
    bundle = host.bundle("hooked")
    host.machine.check("python3", "-c", HOOKED, bundle, HOOK, f"/{host.machine.cgroup}/hooked")
    done = host.machine.run("runc", "run", "--bundle", bundle, "hooked")
    assert (done.code, done.out, done.err) == SEEN


def test_its_own_tests(host: Host, packages: Built) -> None:
    """debian/tests, as autopkgtest runs them, on the simulated driver that is there."""
    host.dpkg("--install", packages.deb("gpuhook"))
    script = host.machine.folder / "container"
    script.write_text((CHECKOUT / "packaging/deb/tests/container").read_text())
    script.chmod(0o755)
    busybox = host.machine.folder / "busybox"
    subprocess.run(["cp", "/bin/busybox", busybox], check=True)
    host.machine.check("cp", busybox, "/usr/bin/busybox")
    env = {"DRIVER": str(host.driver), "CGROUPS": f"/{host.machine.cgroup}/own"}
    said = host.machine.check(script, env=env)
    assert re.search(r"^crw.* /dev/nvidia0$", said, re.MULTILINE), said
    assert "requirement-not-met" in said


def test_units(host: Host, packages: Built) -> None:
    """systemd and udev have nothing to say of them; without a driver nothing runs."""
    host.dpkg("--install", packages.deb("gpuhook"))
    unit = "/usr/lib/systemd/system/gpuhook-record.service"
    done = host.machine.run("systemd-analyze", "verify", "--man=no", unit)
    assert (done.code, done.out, done.err) == (0, "", ""), done
    rules = "/usr/lib/udev/rules.d/60-gpuhook.rules"
    if "verify" in host.machine.run("udevadm", "--help").out:
        done = host.machine.run("udevadm", "verify", rules)
        assert (done.code, done.err) == (0, ""), done
    assert "ConditionPathExists=/proc/driver/nvidia/version\n" in host.machine.read(unit)


def test_logrotate(host: Host, packages: Built) -> None:
    """The log is kept by date beside the one that gpuhook keeps itself."""
    host.dpkg("--install", packages.deb("gpuhook"))
    host.machine.write("/var/log/gpuhook/gpuhook.log", "a line\n")
    host.machine.write("/var/log/gpuhook/gpuhook.log.1", "an older line\n")
    host.machine.check("logrotate", "--force", "/etc/logrotate.d/gpuhook")
    names = host.machine.check("ls", "/var/log/gpuhook").split()
    assert [re.sub(r"\d{8}", "DATE", name) for name in names] == ["gpuhook.log-DATE.gz", "gpuhook.log.1"]


# --- beside NVIDIA's ------------------------------------------------------------------------------------------------


def nvidia(new_deb: NewDeb) -> list[Path]:
    """Stand-ins for NVIDIA's packages, with the programs that theirs have."""
    base = new_deb("nvidia-container-toolkit-base", "usr/bin/nvidia-container-runtime", "usr/bin/nvidia-ctk")
    depends = "Depends: nvidia-container-toolkit-base (= 1.17.8-1)\n"
    return [base, new_deb("nvidia-container-toolkit", HOOK.lstrip("/"), more=depends)]


def status(host: Host, name: str) -> str:
    """What dpkg knows of a package."""
    return host.machine.check("dpkg-query", "-W", "-f=${db:Status-Status}", name)


def test_r161_beside_nvidias_packages(host: Host, packages: Built, new_deb: NewDeb) -> None:
    """gpuhook shares no file with them and conflicts with none."""
    host.dpkg("--install", *nvidia(new_deb))
    host.dpkg("--install", packages.deb("gpuhook"))
    for name in ("nvidia-container-toolkit-base", "nvidia-container-toolkit", "gpuhook"):
        assert status(host, name) == "installed"


def test_docker_gpus_takes_the_place_of_nvidias_hook(host: Host, packages: Built, new_deb: NewDeb) -> None:
    """That package is removed, its base stays; it does not come back over ours; and ours goes without a trace."""
    theirs = nvidia(new_deb)
    host.dpkg("--install", *theirs)

    said = host.dpkg("--install", packages.deb("gpuhook"), packages.deb("gpuhook-docker-gpus"))

    assert "restart it once" in said
    assert host.machine.check("readlink", HOOK) == "gpuhook-hook\n"
    assert status(host, "nvidia-container-toolkit-base") == "installed"
    assert status(host, "nvidia-container-toolkit") != "installed"
    refused = host.machine.run("dpkg", "--install", theirs[1])
    assert refused.code != 0
    assert "conflicting" in refused.err
    assert host.machine.check("readlink", HOOK) == "gpuhook-hook\n"
    host.dpkg("--purge", "gpuhook-docker-gpus", "nvidia-container-toolkit")
    assert host.machine.run("ls", HOOK).code != 0
