"""The values that everything passes around behave as frozen dataclasses do."""

import pytest

from gpuhook import model
from gpuhook.model import Bind, Container, FileId, Gpu, value


@value
class Point:
    """A value with a default."""

    x: int
    y: int = 7


def test_fields_by_place_and_name() -> None:
    assert (Point(1).x, Point(1).y, Point(1, 2).y, Point(y=3, x=1).y) == (1, 7, 2, 3)


@pytest.mark.parametrize(
    ("args", "named", "words"),
    [
        ((), {}, "Point lacks x"),
        ((1, 2, 3), {}, "takes 2 values, not 3"),
        ((1,), {"z": 1}, "has no z"),
        ((1,), {"x": 2}, "has no x"),
    ],
    ids=["missing", "too many", "unknown", "twice"],
)
def test_wrong_calls_are_refused(args: tuple[int, ...], named: dict[str, int], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Point(*args, **named)


def test_frozen() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match="frozen: x"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen: new"):
        point.new = 2  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="frozen: x"):
        del point.x


def test_compared_and_hashed_by_content() -> None:
    assert Point(1) == Point(1, 7)
    assert Point(1) != Point(2)
    assert not Point(1).__eq__((1, 7))
    assert len({Point(1), Point(1, 7), Point(2)}) == 2
    assert FileId(1, 2, 3, 4, 5) == FileId(1, 2, 3, 4, 5)


def test_shown_with_names() -> None:
    assert repr(Point(1)) == "Point(x=1, y=7)"


def test_replace_and_astuple() -> None:
    gpu = Gpu(0, "GPU-1", 0, "00000000:01:00.0", "T4", "tesla", (7, 5))
    lost = model.replace(gpu, error="lost")
    assert (lost.error, lost.uuid, gpu.error) == ("lost", "GPU-1", "")
    assert model.astuple(Point(1)) == (1, 7)
    with pytest.raises(TypeError):
        model.replace(gpu, nothing=1)


def test_methods_and_docstrings_of_the_class_stay() -> None:
    assert Point.__doc__ == "A value with a default."
    assert Point.__module__ == __name__
    assert Container(env=()).tmpfs == ()
    assert Bind("/a", "/b", "library").optional is False
