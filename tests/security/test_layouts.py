# mypy: disable-error-code="func-returns-value"
"""Hostile root file systems, run through the installed shim and hook over runc and crun, all judged by one oracle
(arena.py). The two large matrices are run in part here and whole by `scripts/test --long layouts`.
"""

import dataclasses
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import bundles
from tests.security.arena import LIBDIR, Arena, Verdict, judge, own_sources, replace, run
from tests.security.corpus import (
    COMPAT,
    COMPATS,
    CONFS,
    DIRECTORIES,
    FILES,
    KERNEL,
    LEFTOVERS,
    LINKS,
    OWN_LINKS,
    ROOTS,
    STRANGE,
    deep,
    libraries,
    secret,
)

pytestmark = pytest.mark.runc

# --- L01-L19: directories that we use, as links ------------------------------------------------------------------


# each directory with three kinds of link, each kind with two directories
SOME_LINKS = [(place, link) for i, place in enumerate(DIRECTORIES) for j, link in enumerate(LINKS) if (i + j) % 6 == 0]
# each file as a third of the strange things
SOME_FILES = [(file, what) for i, file in enumerate(FILES) for j, what in enumerate(STRANGE) if (i + j) % 3 == 0]


@pytest.mark.parametrize(("directory", "link"), SOME_LINKS)
def test_directories(arena: Arena, directory: str, link: str) -> None:
    """L01-L19 and L50-L55: each directory that we look into or make things in, as a link."""
    check_directory(arena, directory, link)


def check_directory(arena: Arena, directory: str, link: str) -> Verdict:
    """One directory as one kind of link."""

    def change(root: Path, victim: Path) -> None:
        replace(root / directory, lambda place: LINKS[link](place, root, victim))

    verdict = run(arena, change, path="/")
    assert verdict.violations == []
    return verdict


def test_most_of_these_run_and_some_are_refused(arena: Arena) -> None:
    """The oracle would be content with a shim that refuses everything: a good root and a harmless link run."""
    good = run(arena, lambda root, victim: None)
    assert good.outcome == "runs"
    assert len(own_sources(arena, good.result.out)) > 20, "the oracle sees no mount of the driver"
    moved = run(arena, lambda root, victim: ((root / "run").rmdir(), (root / "run").symlink_to("/tmp")))
    assert moved.outcome == "runs"
    loop = run(arena, lambda root, victim: replace(root / "usr/bin", lambda place: place.symlink_to("/usr/bin")))
    assert loop.outcome == "refused"
    assert "/usr/bin" in loop.said


# --- L20-L39: files that we read or replace ----------------------------------------------------------------------


@pytest.mark.parametrize(("file", "what"), SOME_FILES)
def test_files_that_we_read(arena: Arena, file: str, what: str) -> None:
    """L30-L39."""
    check_file(arena, file, what)


def check_file(arena: Arena, file: str, what: str) -> Verdict:
    """One file as one strange thing."""
    verdict = run(arena, lambda root, victim: replace(root / file, STRANGE[what]), path=f"/{file}")
    assert verdict.violations == []
    return verdict


@pytest.mark.parametrize("file", FILES[:3])
def test_the_hosts_files_behind_links_are_not_written(arena: Arena, file: str) -> None:
    """A cache that is a link to the host's: replaced, not written through."""
    verdict = run(arena, lambda root, victim: replace(root / file, secret(victim / file)))
    assert verdict.violations == []


@pytest.mark.parametrize("text", CONFS.values(), ids=CONFS)
def test_loader_configurations(arena: Arena, text: str) -> None:
    """L30: the configuration tree of the image."""
    verdict = run(arena, lambda root, victim: (root / "etc/ld.so.conf").write_text(text))
    assert verdict.violations == []
    assert verdict.outcome == "runs"


# --- L20-L27: compatibility libraries ----------------------------------------------------------------------------


@pytest.mark.parametrize("what", COMPATS)
def test_compatibility_libraries(arena: Arena, what: str) -> None:
    """L20-L27: they are looked at and never mounted or opened for the host."""

    def change(root: Path, victim: Path) -> None:
        (root / COMPAT).parent.mkdir(parents=True)
        COMPATS[what](root / COMPAT, victim)

    verdict = run(arena, change)
    assert verdict.violations == []
    assert verdict.outcome == "runs"


# --- L40-L49: /dev, /proc, /sys ----------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", ["dev", "proc", "sys"])
@pytest.mark.parametrize("what", KERNEL)
def test_kernel_directories(arena: Arena, directory: str, what: str) -> None:
    """L40-L49."""

    def change(root: Path, victim: Path) -> None:
        replace(root / directory, lambda place: KERNEL[what](place, victim))

    verdict = run(arena, change)
    if directory == "dev" and what in ("a link out", "a climbing link"):
        made = list((arena.victim / "dev").iterdir())
        assert {path.name for path in made} <= (OWN_LINKS if arena.runtime == "runc" else set())
        for path in made:
            path.unlink()
        if made:
            verdict.violations.remove("the victim tree changed")
    assert verdict.violations == []


@pytest.mark.parametrize("what", KERNEL)
def test_a_spec_without_a_mount_at_dev_is_refused(arena: Arena, what: str) -> None:
    """runc 1.1.5 would follow the image's /dev link and make nodes on the host."""

    def change(root: Path, victim: Path) -> None:
        replace(root / "dev", lambda place: KERNEL[what](place, victim))
        spec = root.parent / "config.json"
        data = bundles.Bundle(root.parent).spec
        data["mounts"] = [item for item in data["mounts"] if not item["destination"].startswith("/dev")]
        spec.write_text(json.dumps(data))

    verdict = run(arena, change, path="/dev")
    assert verdict.violations == []
    assert verdict.outcome == "refused"
    assert "[dev-not-mounted]" in verdict.result.err
    assert verdict.result.code == 24
    assert "dev-not-mounted" in verdict.result.log


# --- L56-L64 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", LEFTOVERS)
def test_leftovers(arena: Arena, what: str) -> None:
    """L56-L60: what stands where our mounts and links go."""
    passwd: list[bytes] = []

    def change(root: Path, victim: Path) -> None:
        passwd.append((root / "etc/passwd").read_bytes())
        for place in libraries(root):
            LEFTOVERS[what](place, victim)

    verdict = run(arena, change, path=f"/{LIBDIR}/lib")
    assert verdict.violations == []
    assert (arena.place / "bundle/rootfs/etc/passwd").read_bytes() == passwd[0]
    expected = "refused" if what in ("sockets", "directories", "fifos", "devices") else "runs"
    assert verdict.outcome == expected


def test_temporary_names_of_ours_are_taken(arena: Arena) -> None:
    """Links out at the temporary names of all processes that the hook may be: none is written through."""

    def change(root: Path, victim: Path) -> None:
        newest = int(Path("/proc/loadavg").read_text().split()[-1])
        for number in range(newest, newest + 400):
            (root / f"etc/.ld.so.cache.{number}.gpuhook").symlink_to(victim / "file")
            (root / LIBDIR / f".libcuda.so.1.{number}.gpuhook").symlink_to(victim)

    verdict = run(arena, change)
    assert verdict.violations == []
    assert verdict.outcome == "runs"


def test_directories_that_are_called_as_our_temporary_files(arena: Arena) -> None:
    """They are not swept away, and do not stand in the way."""

    def change(root: Path, victim: Path) -> None:
        (root / "etc/.x.999999999.gpuhook/y").mkdir(parents=True)
        (root / LIBDIR / ".libcuda.so.1.999999999.gpuhook/y").mkdir(parents=True)

    verdict = run(arena, change)
    assert (verdict.outcome, verdict.violations) == ("runs", [])


@pytest.mark.parametrize("what", ROOTS)
def test_whole_roots(arena: Arena, what: str) -> None:
    """L61 and others."""
    verdict = run(arena, ROOTS[what])
    assert verdict.violations == []


def test_a_deep_root(arena: Arena) -> None:
    try:
        assert run(arena, lambda root, victim: ((root / "opt").mkdir(), deep(root, victim))).violations == []
    finally:
        subprocess.run(["rm", "-rf", arena.place / "bundle"], check=True)


def test_a_root_that_is_a_link(arena: Arena) -> None:
    """L63."""

    def change(root: Path, victim: Path) -> None:
        root.rename(root.parent / "real")
        root.symlink_to("real")

    verdict = run(arena, change)
    assert verdict.violations == []
    assert verdict.outcome != "runs" or (arena.place / "bundle/rootfs").is_symlink()


def test_a_read_only_root(arena: Arena) -> None:
    """L62: the flag of the spec is no obstacle, since hooks run before it is set."""
    assert run(arena, lambda root, victim: None, readonly=True).outcome == "runs"


@pytest.mark.parametrize("propagation", ["rprivate", "rslave", "rshared"])
@pytest.mark.parametrize("directory", [LIBDIR, "usr/bin", "etc", "run", "usr"])
def test_a_volume_over_a_directory_of_ours(arena: Arena, directory: str, propagation: str) -> None:
    """L64: a directory of the host is mounted where we would make files. Nothing is made in it."""
    volume = bundles.mount(f"/{directory}", "bind", str(arena.victim / directory), "rbind", propagation)
    (arena.victim / directory).mkdir(parents=True, exist_ok=True)
    verdict = run(arena, lambda root, victim: None, path=f"/{directory}", volumes=(arena.victim,), mounts=[volume])
    assert verdict.violations == []


@pytest.mark.parametrize("propagation", ["shared", "rshared"])
def test_a_shared_root_is_refused(arena: Arena, propagation: str) -> None:
    """Our mounts would appear on the host and outlive the container."""

    def change(root: Path, victim: Path) -> None:
        data = bundles.Bundle(root.parent).spec
        data["linux"]["rootfsPropagation"] = propagation
        (root.parent / "config.json").write_text(json.dumps(data))

    verdict = run(arena, change)
    assert verdict.violations == []
    assert verdict.outcome in ("refused", "runs")
    if verdict.outcome == "refused":
        assert "[rootfs-shared]" in verdict.said


# --- self-checks -------------------------------------------------------------------------------------------------


@pytest.fixture
def victim_back(arena: Arena) -> Iterator[None]:
    yield
    (arena.victim / "new").unlink(missing_ok=True)


@pytest.mark.usefixtures("victim_back")
def test_the_oracle_sees_a_change(arena: Arena) -> None:
    """A start that makes a file in the victim, is slow, crashes or reads it is told."""

    def bad() -> bundles.Result:
        (arena.victim / "new").touch()
        return bundles.Result(1, "the host's file", "gpuhook: no [internal]", "")

    said = " ".join(judge(arena, bad, "/etc").violations)
    for words in ("victim tree changed", "defect", "does not name /etc", "read a file of the host"):
        assert words in said


def test_a_hook_that_follows_links_would_be_caught(arena: Arena) -> None:
    """A hook as it must not be (paths joined, opened by name) writes into the victim: the layouts are live."""

    def wrong(root: Path) -> bundles.Result:
        with open(f"{root}/etc/ld.so.cache", "w") as file:
            file.write("cache")
        return bundles.Result(0, "", "", "")

    place = arena.bundle("bundle")
    bundle = bundles.make(place, "glibc")
    target = arena.place / "victim2"
    target.mkdir(exist_ok=True)
    twin = dataclasses.replace(arena, victim=target)
    replace(bundle.rootfs / "etc", lambda at: at.symlink_to(target))
    assert judge(twin, lambda: wrong(bundle.rootfs)).violations == ["the victim tree changed"]
