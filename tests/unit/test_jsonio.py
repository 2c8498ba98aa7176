"""The fast JSON gives what the json package gives, and nothing but ValueError for what is no JSON."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhook import jsonio


@pytest.fixture(params=["_json", "json"])
def scanner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways: with `_json`, and without it by the json package."""
    if request.param == "json":
        monkeypatch.setitem(sys.modules, "_json", None)


FAST_AND_SLOW = pytest.mark.usefixtures("scanner")

GOOD = {
    "object": (b'{"a":[1,-2.5,null,true,false,"x"]}', {"a": [1, -2.5, None, True, False, "x"]}),
    "blanks": (b' \t\r\n{ "a" : 1 }\r\n', {"a": 1}),
    "scalar": (b"1", 1),
    "a name twice": (b'{"a":1,"a":2}', {"a": 2}),
    "the largest numbers of Go": (b"[18446744073709551615,-9223372036854775808]", [2**64 - 1, -(2**63)]),
    "lone surrogate": (rb'["\ud800"]', ["\ud800"]),
    "pair": (rb'["\ud83d\ude00"]', ["\U0001f600"]),
    "no UTF-8": (b'["\xff\xc3\xa9"]', ["\udcff\xe9"]),
    "control characters escaped": (rb'["\u0000\u001b"]', ["\0\x1b"]),
}


@FAST_AND_SLOW
@pytest.mark.parametrize(("text", "expected"), GOOD.values(), ids=GOOD)
def test_loads(text: bytes, expected: object) -> None:
    assert jsonio.loads(text) == expected


BAD = {
    "empty": b"",
    "blank": b" \n",
    "half": b'{"a":',
    "more behind": b"{} x",
    "two texts": b"{}{}",
    "a comma too many": b"[1,]",
    "NaN": b"[NaN]",
    "Infinity": b"[-Infinity]",
    "line end in a string": b'["a\nb"]',
    "byte order mark": b"\xef\xbb\xbf{}",
    "other blanks": b"\xc2\xa0{}",
    "bad escape": rb'["\x41"]',
    "a number beyond int()": b"[" + b"9" * 5000 + b"]",
    "nested too deeply": b"[" * 100_000,
    "nested too deeply and closed": b"[" * 100_000 + b"]" * 100_000,
    "objects nested too deeply": b'{"a":' * 100_000,
}


@FAST_AND_SLOW
@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        jsonio.loads(text)


@FAST_AND_SLOW
def test_dumps_has_no_blanks_and_no_bytes_beyond_ascii() -> None:
    item = {"a": [1, "\xe9\udcff\ud800\n", 2.5, None, True], "b": {}}
    assert jsonio.dumps(item) == rb'{"a":[1,"\u00e9\udcff\ud800\n",2.5,null,true],"b":{}}'


@FAST_AND_SLOW
@pytest.mark.parametrize(
    "item", [float("nan"), float("inf"), {1, 2}, b"x", object()], ids=["nan", "inf", "set", "bytes", "object"]
)
def test_dumps_refuses_what_json_cannot_say(item: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        jsonio.dumps([item])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    # every code point, lone surrogates too, but those that stand for bytes that are no UTF-8
    | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_round_trip_and_agreement_with_the_json_package(item: object) -> None:
    data = jsonio.dumps(item)
    assert jsonio.loads(data) == item
    assert json.loads(data) == item
    assert data == json.dumps(item, separators=(",", ":")).encode()


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_value_error(data: bytes) -> None:
    try:
        found = jsonio.loads(data)
    except ValueError:
        return
    assert found == json.loads(data.decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("depth", [200, 900])
def test_what_was_loaded_can_be_dumped(depth: int) -> None:
    """A spec that is deep is either refused when read or written whole."""
    text = b"[" * depth + b"]" * depth
    try:
        found = jsonio.loads(text)
    except ValueError:
        assert depth > 500
        return
    assert jsonio.dumps(found) == text
