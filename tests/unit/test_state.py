"""What a runtime tells a hook on stdin: read with a bound, checked by table."""

import json
from pathlib import Path

import pytest

from gpuhook import state
from gpuhook.errors import GpuhookError

GOOD_STATE = {"ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": 4242, "bundle": "/b"}


def test_state() -> None:
    """What it does not know, such as crun's `root`, is no error."""
    wanted = state.State("c1", 4242, "/b")
    assert state.parse(json.dumps(GOOD_STATE).encode()) == wanted
    assert state.parse(json.dumps({**GOOD_STATE, "root": "/r", "new": 1}).encode()) == wanted


BAD_STATES: dict[str, object] = {
    "empty": b"",
    "no JSON": b"x",
    "list": [],
    "null": None,
    **{
        f"without {name}": {key: item for key, item in GOOD_STATE.items() if key != name}
        for name in ("id", "pid", "bundle")
    },
    **{f"pid {pid!r}": {**GOOD_STATE, "pid": pid} for pid in (0, 1, -5, True, "4242", 1.5, None)},
    **{f"bundle {bundle!r}": {**GOOD_STATE, "bundle": bundle} for bundle in ("", "b", 1, None)},
    **{f"id {name!r}": {**GOOD_STATE, "id": name} for name in ("", "a/b", 1, None)},
}


@pytest.mark.parametrize("data", BAD_STATES.values(), ids=BAD_STATES)
def test_bad_states(data: object) -> None:
    with pytest.raises(GpuhookError) as caught:
        state.parse(data if isinstance(data, bytes) else json.dumps(data).encode())
    assert caught.value.reference == "state-invalid"
    assert "\n" not in caught.value.message


def test_read_state_from_a_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text(json.dumps(GOOD_STATE))
    with path.open() as file:
        assert state.read(file.fileno()).pid == 4242
    with pytest.raises(GpuhookError) as caught:
        state.read(-1)
    assert caught.value.reference == "state-invalid"


def test_a_state_has_all_annotations_of_a_spec(tmp_path: Path) -> None:
    """Runtimes copy them into the state; a spec may have 16 MiB."""
    path = tmp_path / "state"
    annotations = {f"name{number}": "x" * 100 for number in range(20000)}
    path.write_text(json.dumps({"id": "box", "pid": 7, "bundle": "/b", "annotations": annotations}))
    with path.open("rb") as file:
        assert state.read(file.fileno()) == state.State("box", 7, "/b")


def test_an_endless_state_ends() -> None:
    with Path("/dev/zero").open("rb") as file, pytest.raises(GpuhookError) as caught:
        state.read(file.fileno())
    assert caught.value.reference == "state-invalid"
