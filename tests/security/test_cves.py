"""A test named after each published hole of GPU container stacks, low-level runtimes and engines that bears on a hook
which mounts into an untrusted root: its input through the real line, or (COVERED) the tests that give it.

Each holds by class, not by payload: what is asserted is the oracle of arena.py and what the input aimed at.
"""

import ast
import json
import os
import threading
from pathlib import Path

import pytest

from tests import bundles
from tests.conftest import World
from tests.images import CHECKOUT
from tests.security.arena import ALL, LIBDIR, SHOW, Arena, digest, judge, own_sources, replace, run
from tests.security.corpus import COMPAT
from tests.security.racing import swapping
from tests.security.starts import GPUS, SEEN, processes

pytestmark = pytest.mark.runc

# --- NVIDIA -------------------------------------------------------------------------------------------------------


def compat_links(root: Path, victim: Path) -> None:
    """Compatibility libraries that are links to a host's directory, to its file, and to `/`."""
    folder = root / COMPAT
    folder.mkdir(parents=True)
    (folder / "libcuda.so.999.1").symlink_to("../" * 20 + str(victim / "file")[1:])
    (folder / "libnvidia-ptxjitcompiler.so.999.1").symlink_to(victim)
    (folder / "libdxcore.so.1").symlink_to("/")


def test_cve_2024_0132_compat_library_is_a_link_to_the_host(arena: Arena) -> None:
    """The hook took a link below the image's compat folder for a library and mounted what it leads to.

    Here no source of a mount is ever taken from the image: the container's mounts are the driver's files alone.
    """
    verdict = run(arena, compat_links)
    assert (verdict.outcome, verdict.violations) == ("runs", [])
    assert len(own_sources(arena, verdict.result.out)) > 20


def test_cve_2024_0133_mountpoints_are_made_on_the_host(arena: Arena) -> None:
    """A library folder and the names in it lead to the host, where empty files appeared."""

    def change(root: Path, victim: Path) -> None:
        for name in ("libcuda.so.580.95.05", "libnvidia-ml.so.580.95.05"):
            (root / LIBDIR / name).symlink_to(victim / f"new-{name}")
        replace(root / "usr/bin", lambda place: place.symlink_to(victim / "usr/bin"))

    assert run(arena, change).violations == []


def test_cve_2024_0134_parent_of_a_link_leads_out(arena: Arena) -> None:
    """Links (libcuda.so.1) were made in the folder that a link of the image names, on the host."""

    def change(root: Path, victim: Path) -> None:
        replace(root / LIBDIR, lambda place: place.symlink_to("../" * 20 + str(victim / LIBDIR)[1:]))

    assert run(arena, change).violations == []


OVERWRITE = """
for exe in /proc/[0-9]*/exe; do
  /keep/busybox readlink $exe
  (echo overwritten >$exe) 2>/dev/null
done
exit 0
"""


def test_cve_2024_0135_cve_2019_5736_a_program_of_the_host_is_in_the_containers_reach(arena: Arena) -> None:
    """A host's binary that runs in the container can be opened by /proc/PID/exe and overwritten.

    Nothing of ours runs there: the container sees its own program alone, and the host's programs stay as they are.
    """
    ours = [arena.world.runtime.resolve(), arena.world.hook.resolve(), Path("/usr/bin/python3").resolve()]
    before = [path.read_bytes() for path in ours]
    verdict = run(arena, lambda root, victim: None, args=["/keep/busybox", "sh", "-c", OVERWRITE])
    assert (verdict.outcome, verdict.violations) == ("runs", [])
    assert set(verdict.result.out.split()) == {"/keep/busybox"}
    assert [path.read_bytes() for path in ours] == before


def test_cve_2024_0136_cve_2024_0137_the_images_ldconfig_runs(arena: Arena) -> None:
    """A setting made the hook run the image's ldconfig before the container was closed. Nothing of an image runs."""

    def change(root: Path, victim: Path) -> None:
        for name in ("usr/sbin/ldconfig", "usr/sbin/ldconfig.real", "usr/bin/nvidia-modprobe"):
            (root / name).unlink(missing_ok=True)
            (root / name).write_text("#!/keep/busybox sh\n/keep/busybox touch /ran\n")
            (root / name).chmod(0o755)

    verdict = run(arena, change)
    assert (verdict.outcome, verdict.violations) == ("runs", [])
    assert not (arena.place / "bundle/rootfs/ran").exists()


@pytest.mark.parametrize("line", ['ldconfig = "/sbin/ldconfig"', 'ldconfig = "@/sbin/ldconfig"'])
def test_cve_2024_0136_no_setting_names_a_program_to_run(world: World, folder: Path, line: str) -> None:
    """A configuration with such a key is refused, not read over."""
    world.configure(f"[hook]\n{line}\n")
    done = bundles.Runtime(world.runtime, folder / "state").run(bundles.make(folder / "b", "busybox", env=[ALL]))
    assert done.code == 11
    assert "ldconfig" in done.err


def test_cve_2025_23359_compat_folder_changes_while_the_hook_works(arena: Arena) -> None:
    """The fix of CVE-2024-0132 checked the destination only. The source is nothing of the image at any moment."""
    for _ in range(5):
        bundle = bundles.make(arena.bundle("bundle"), arena.tree, env=[ALL], args=SHOW)
        compat = bundle.rootfs / COMPAT
        compat.mkdir(parents=True)
        (compat / "libcuda.so.999.1").write_bytes((bundle.rootfs / LIBDIR / "libc.so.6").read_bytes())
        twin = bundle.rootfs / "twin"
        twin.symlink_to(arena.victim)
        with swapping(compat, twin, burst=10, pause=500):
            verdict = judge(arena, lambda: arena.shim.run(bundle))  # noqa: B023
        assert verdict.violations == []


def test_cve_2025_23267_the_caches_folders_lead_out_or_hang(arena: Arena) -> None:
    """The hook that updates the cache wrote through the image's links, or hung on a FIFO."""

    def links(root: Path, victim: Path) -> None:
        replace(root / "etc/ld.so.cache", lambda place: place.symlink_to(victim / "etc/ld.so.cache"))
        replace(root / "etc/ld.so.conf", lambda place: place.symlink_to(victim / "etc/ld.so.conf"))
        replace(root / "etc/ld.so.conf.d", lambda place: place.symlink_to(victim / "etc/ld.so.conf.d"))

    def fifos(root: Path, victim: Path) -> None:
        for name in ("etc/ld.so.cache", "etc/ld.so.conf"):
            replace(root / name, os.mkfifo)

    assert run(arena, links).violations == []
    assert run(arena, fifos).violations == []


# --- runc, crun ---------------------------------------------------------------------------------------------------


def test_cve_2022_29162_capabilities_are_inherited(arena: Arena) -> None:
    """The container has no inheritable capability after our edit of its spec, as it had none before."""
    args = ["/keep/busybox", "grep", "CapInh", "/proc/self/status"]
    verdict = run(arena, lambda root, victim: None, args=args)
    assert verdict.result.out.split() == ["CapInh:", "0000000000000000"]


def test_cve_2024_21626_descriptors_of_the_host_reach_the_container(arena: Arena) -> None:
    """A descriptor of a host's folder was inherited. The shim and the hook hand none on."""
    verdict = run(arena, lambda root, victim: None, args=["/keep/busybox", "ls", "/proc/self/fd"])
    assert verdict.result.out.split() == ["0", "1", "2", "3"]  # the last is ls's own


def test_cve_2025_31133_cve_2025_52565_device_files_of_the_image_are_taken_for_devices(arena: Arena) -> None:
    """The image's own /dev/null or terminal was used as the source of a mount. Nothing in its /dev is one of ours."""

    def change(root: Path, victim: Path) -> None:
        replace(root / "dev/null", lambda place: place.symlink_to(victim / "file"))
        replace(root / "dev/nvidia0", lambda place: place.symlink_to(victim / "file"))
        replace(root / "dev/nvidiactl", lambda place: place.write_text("x"))

    verdict = run(arena, change, args=["/keep/busybox", "ls", "-l", "/dev/nvidia0", "/dev/nvidiactl"])
    assert (verdict.outcome, verdict.violations) == ("runs", [])
    assert [line[0] for line in verdict.result.out.splitlines()] == ["c", "c"]


# --- engines ------------------------------------------------------------------------------------------------------


def test_cve_2019_14271_modules_of_the_image_are_loaded(arena: Arena) -> None:
    """docker cp loaded the image's libnss. A root that is full of modules and libraries which would run as root."""

    def change(root: Path, victim: Path) -> None:
        code = f"import posix\nposix.close(posix.open({str(arena.place / 'ran')!r}, 65))\n"
        for folder in ("", "usr/lib/python3.11", "usr/lib/python3/dist-packages", "usr/lib/gpuhook/0.1.0/gpuhook"):
            (root / folder).mkdir(parents=True, exist_ok=True)
            for name in (
                "encodings",
                "codecs",
                "traceback",
                "re",
                "json",
                "gpuhook",
                "errors",
                "refusal",
                "os",
                "locale",
            ):
                (root / folder / f"{name}.py").write_text(code)
        replace(root / "usr/bin/nvidia-smi", lambda place: place.mkdir())  # an error's way is walked too

    verdict = run(arena, change)
    assert (verdict.outcome, verdict.violations) == ("refused", [])
    assert not (arena.place / "ran").exists()


def test_cve_2024_11218_two_starts_at_one_root(arena: Arena) -> None:
    """Builds at the same time exchanged each other's files. Six containers start from one root at once."""
    bundle = bundles.make(arena.bundle("bundle"), arena.tree, env=[ALL], args=GPUS)
    spec = (bundle.path / "config.json").read_bytes()
    places = [bundle.path / f"b{number}" for number in range(6)]
    results: list[bundles.Result] = []

    def start(place: Path) -> None:
        runtime = bundles.Runtime(arena.world.runtime, place / "state", within=arena.within[:2])
        results.append(runtime.call("run", "--bundle", place, runtime.new_id()))

    for place in places:
        place.mkdir()
        data = json.loads(spec)
        data["root"]["path"] = str(bundle.rootfs)
        (place / "config.json").write_text(json.dumps(data))
    threads = [threading.Thread(target=start, args=(place,)) for place in places]
    before = digest(arena.victim)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(result.code, result.out) for result in results] == [(0, SEEN)] * 6, [result.err for result in results]
    assert digest(arena.victim) == before
    assert processes(bundle.path) == []
    assert not list(bundle.rootfs.rglob(".*.gpuhook"))


def test_cve_2025_9566_the_second_start_finds_links_where_the_first_made_files(arena: Arena) -> None:
    """podman wrote through links that the first container had planted. Every path that a start makes is planted."""
    bundle = bundles.make(arena.bundle("bundle"), arena.tree, env=[ALL], args=SHOW)
    spec = (bundle.path / "config.json").read_bytes()
    known = {path: path.lstat().st_ctime_ns for path in bundle.rootfs.rglob("*")}
    assert judge(arena, lambda: arena.shim.run(bundle)).outcome == "runs"
    made = [path for path in bundle.rootfs.rglob("*") if known.get(path) != path.lstat().st_ctime_ns]
    files = [path for path in made if path.is_symlink() or not path.is_dir()]
    assert len(files) > 20
    for number, path in enumerate(files):
        path.unlink()
        path.symlink_to(arena.victim / ("file" if number % 2 else f"new{number}"))
    (bundle.path / "config.json").write_bytes(spec)
    again = judge(arena, lambda: arena.shim.run(bundle))
    assert (again.outcome, again.violations) == ("runs", [])


def test_cve_2024_5154_etc_climbs_out(arena: Arena) -> None:
    """CRI-O made a link on the host by way of the image's /etc."""
    assert run(arena, etc_climbs).violations == []


def etc_climbs(root: Path, victim: Path) -> None:
    replace(root / "etc", lambda place: place.symlink_to("../" * 20 + str(victim / "etc")[1:]))


WORDS = (
    "x\n--root=/",
    "--tmpfs /",
    "'; touch /ran; '",
    "binary:///bin/sh?-c=touch",
    "+sysctl.kernel.core_pattern=|/bin/sh",
    "../../../../etc",
)
KEYS = (
    "io.kubernetes.cri-o.TrySkipVolumeSELinuxLabel",
    "org.systemd.property.ExecStartPre",
    "com.nvidia.volumes.needed",
    "cdi.k8s.io/x",
    "com.nvidia.cuda.requirements.cuda",
    "com.docker.swarm.service.name",
)


@pytest.mark.parametrize("word", WORDS)
def test_cve_2022_0811_cve_2024_3154_cve_2026_53488_words_of_an_image_become_options(arena: Arena, word: str) -> None:
    """Annotations and labels became sysctls, properties and commands. None of a spec's words is in our hook's entry."""
    annotations = dict.fromkeys(KEYS[:4], word)
    bundle = bundles.make(
        arena.bundle("bundle"), arena.tree, env=[ALL, f"X={word}"], annotations=annotations, args=GPUS
    )
    verdict = judge(arena, lambda: arena.shim.run(bundle))
    assert (verdict.outcome, verdict.violations) == ("runs", [])
    hook = bundle.spec["hooks"]["prestart"][0]
    assert word not in json.dumps(hook)
    assert [
        text for text in (*hook["args"], *hook["env"]) if word in text or "touch" in text or "property" in text
    ] == []
    assert bundle.spec["annotations"] == annotations


# --- covered elsewhere --------------------------------------------------------------------------------------------

# Short names of tests that give a hole's input.
TESTS = {
    "race": "security/test_races.py::test_no_work_leaves_the_root_in_a_race",
    "start race": "security/test_starts.py::test_starts_while_names_are_exchanged",
    "folders": "security/test_layouts.py::test_directories",
    "files": "security/test_layouts.py::test_files_that_we_read",
    "leftovers": "security/test_layouts.py::test_leftovers",
    "kernel": "security/test_layouts.py::test_kernel_directories",
    "no dev": "security/test_layouts.py::test_a_spec_without_a_mount_at_dev_is_refused",
    "shared": "security/test_layouts.py::test_a_shared_root_is_refused",
    "shared host": "runc/test_propagation.py::test_a_root_that_is_shared_is_refused",
    "proc": "unit/test_rootfs.py::test_a_false_proc_is_refused",
    "environment": "security/test_environment.py::test_all_variables_at_once",
    "preload": "security/test_environment.py::test_the_published_attack_works_on_a_careless_hook",
    "fuzz": "security/test_fuzz.py::test_a_parser_answers_or_refuses",
    "mknod": "runc/test_gpu.py::test_one_gpu",
    "nvml": "unit/test_driver_nvml.py::test_helper_is_nobody_and_can_do_nothing",
    "answer": "unit/test_enter.py::test_an_endless_answer_ends",
    "undo": "unit/test_apply.py::test_a_failure_at_any_call_leaves_everything_as_it_was",
    "crowd": "security/test_starts.py::test_thirty_at_once",
    "compat": "security/test_cves.py::test_cve_2024_0132_compat_library_is_a_link_to_the_host",
    "inherited": "security/test_cves.py::test_cve_2022_29162_capabilities_are_inherited",
    "words": "security/test_cves.py::test_cve_2022_0811_cve_2024_3154_cve_2026_53488_words_of_an_image_become_options",
}
# hole: what it was, and which tests are its own
COVERED = {
    "CVE-2017-1002101": ("a link in a volume's path", "folders, leftovers"),
    "CVE-2018-15664": ("a link exchanged between check and chroot", "race, start race"),
    "CVE-2019-10152": ("the same in podman", "race, start race"),
    "CVE-2019-18466": ("the same in podman", "race, start race"),
    "CVE-2019-16884": ("a false /proc from the image", "kernel, proc"),
    "CVE-2019-19921": ("a false /proc by a volume", "kernel, proc"),
    "CVE-2021-1056": ("mknod of another GPU's minor", "mknod"),
    "CVE-2021-25741": ("a link in a volume's path, in a race", "race, start race"),
    "CVE-2021-30465": ("a mount's target exchanged with a link by another container", "race, start race"),
    "CVE-2021-34398": ("a library in a server of root's: NVML's helper has no environment and is nobody", "nvml"),
    "CVE-2021-43784": ("a length that overflows in an internal message: ours is bounded JSON", "answer, fuzz"),
    "CVE-2022-23648": ("a link in an image's volume", "folders, leftovers"),
    "CVE-2022-27650": ("inheritable capabilities in crun", "inherited"),
    "CVE-2023-0778": ("a link exchanged while files are copied out", "race, start race"),
    "CVE-2023-27561": ("as CVE-2019-19921, again", "kernel, proc"),
    "CVE-2023-28642": ("/proc as a link", "kernel, proc"),
    "CVE-2024-1753": ("the source of a mount is a link of the image", "compat"),
    "CVE-2024-9341": ("a helpful automatic mount of a folder that the image names", "compat"),
    "CVE-2024-9407": ("options smuggled into a mount's words", "words"),
    "CVE-2024-9675": ("a cache's folder by an unchecked path", "folders, leftovers"),
    "CVE-2024-9676": ("a FIFO or endless file where one is read: hangs and memory", "files"),
    "CVE-2024-45310": ("folders made on the host in a race", "race"),
    "CVE-2025-0750": ("host paths unmounted by links: what is taken back goes by handle and name", "undo, race"),
    "CVE-2025-23266": ("the image's LD_PRELOAD in a hook", "environment, preload"),
    "CVE-2025-24965": ("a file of the image opened by path", "files"),
    "CVE-2025-52881": ("writes to /proc redirected: the host's procfs is held by handle", "kernel, proc"),
    "CVE-2026-24260": ("a path looked up twice", "race, start race"),
    "CVE-2026-30892": ("numbers read leniently", "fuzz"),
    "CVE-2026-41579": ("/dev as a link, without a mount over it", "no dev, kernel"),
    "CVE-2026-47766": ("the same in crun", "no dev, kernel"),
    "CVE-2026-88264": ("/dev/console as a link, in crun", "no dev, kernel"),
    "CVE-2026-88265": ("a device known by its number alone, in crun", "no dev, kernel"),
    "NVIDIA toolkit issue 697": ("mounts that reach the host and double", "shared, shared host"),
    "NVIDIA toolkit issue 2102": ("a burst of starts", "crowd"),
}


@pytest.mark.parametrize("hole", COVERED)
def test_a_hole_is_covered_by_tests_that_are_there(hole: str) -> None:
    """The reasons stand in the table; the tests that it names exist."""
    for name in COVERED[hole][1].split(", "):
        file, _, function = TESTS[name].partition("::")
        tree = ast.parse((CHECKOUT / "tests" / file).read_text())
        assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, TESTS[name]
