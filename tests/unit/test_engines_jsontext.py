"""JSON texts: what is refused and where, and edits that leave every other byte as it is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhook.engines import jsonscan, jsontext, tree
from gpuhook.engines.model import ABSENT, Add, Set, Undo
from gpuhook.errors import GpuhookError

FILE = "/etc/docker/daemon.json"
RUNTIME = Set(("runtimes", "gpuhook"), {"path": "/usr/bin/gpuhook-runtime", "runtimeArgs": []})
DEFAULT = Set(("default-runtime",), "gpuhook")

REFUSED = [
    pytest.param(
        '{"runtimes":{}}{"log-level":"debug"}',
        "1:16",
        "a second JSON document begins here",
        "one pair of braces",
        id="R113-two",
    ),
    pytest.param("{\n “runtimes”: {}}", "2:2", "U+201C", "write the plain one", id="R113-left-quote"),
    pytest.param('{"a": ”x"}', "1:7", "U+201D", "write the plain one", id="R113-right-quote"),
    pytest.param(
        '{"runtimes": {},\n"a": 1,\n"runtimes": {}}',
        "3:1",
        "'runtimes' stands here and in line 1",
        "one key",
        id="R113-key",
    ),
    pytest.param('{"a": {"b": 1,\n"b": 1}}', "2:1", "'b' stands here and in line 1", "one key", id="R113-key-inside"),
    pytest.param("\n<html>\n<body>", "2:1", "this is HTML", "page of an error that was downloaded", id="R114-html"),
    pytest.param('{"a":1,}', "1:7", "a comma before '}'", "take the comma out", id="R114-trailing-comma"),
    pytest.param('{"a":[1,\n]}', "1:8", "a comma before ']'", "take the comma out", id="trailing-comma-in-list"),
    pytest.param("\ufeff{}", "1:1", "byte order mark", "without a byte order mark", id="R114-bom"),
    pytest.param("{\n  // c\n}", "2:3", "a comment: '// c'", "take the comment out", id="R114-comment"),
    pytest.param('{"a": 1 /* c */}', "1:9", "a comment", "take the comment out", id="block-comment"),
    pytest.param('{"a": 1 # c\n}', "1:9", "a comment", "take the comment out", id="hash-comment"),
    pytest.param("[]", "1:1", "the file is a list: it must be an object", "between { and }", id="R115-list"),
    pytest.param("null", "1:1", "must be an object", "between { and }", id="R115-null"),
    pytest.param('\n"x"', "2:1", "must be an object", "between { and }", id="R115-string"),
    pytest.param(
        '{"dns": ["172.17.0.1"]\n"runtimes": {}}',
        "2:1",
        'a comma is missing before "runtimes"',
        "put a comma",
        id="R119",
    ),
    pytest.param('{"a": [1 2]}', "1:10", "a comma is missing before 2", "put a comma", id="missing-comma-in-list"),
    pytest.param("{'a': 1}", "1:2", "the quotation mark '", 'write "', id="single-quotes"),
    pytest.param('{"a": NaN}', "1:7", "NaN is no value", "write a number", id="nan"),
    pytest.param('{"a": -Infinity}', "1:8", "Infinity is no value", "write a number", id="infinity"),
    pytest.param('{"a": True}', "1:7", "'True' is no value", "write true", id="python-true"),
    pytest.param('{"a": yes}', "1:7", "'yes' is no value", "between quotation marks", id="bare-word"),
    pytest.param("{a: 1}", "1:2", "'a' stands without quotation marks", "put it between", id="bare-key"),
    pytest.param(
        '{"a": {\n"b": 1', "2:7", "the object from line 1 is still open", "close what is open", id="truncated"
    ),
    pytest.param('{"a": "b', "1:7", "not closed in its line", "quotation mark", id="truncated-in-a-text"),
    pytest.param('{"a": 1}}', "1:9", "'}' closes nothing", "take it out", id="brace-too-many"),
    pytest.param(
        '{"a": [1}', "1:9", "the list from line 1 must be closed first", "correct the bracket", id="wrong-bracket"
    ),
    pytest.param('{"a": "b\x01"}', "1:9", "U+0001", "write \\u0001", id="control-character"),
    pytest.param('{"a": "\t"}', "1:8", "U+0009", "write \\u0009", id="tab-in-a-text"),
    pytest.param('{"a": "b\n"}', "1:7", "not closed in its line", "quotation mark", id="line-end-in-a-text"),
    pytest.param('{"a": "\\x"}', "1:8", "means nothing in JSON", "backslash", id="escape"),
    pytest.param('{"a": "\\u12"}', "1:8", "means nothing in JSON", "backslash", id="short-escape"),
    pytest.param('{"a": "\\ud800"}', "1:8", "half of a surrogate pair", "whole pair", id="high-surrogate"),
    pytest.param('{"a": "\\ud800\\u0041"}', "1:8", "half of a surrogate pair", "whole pair", id="unpaired-surrogate"),
    pytest.param('{"a": "\\udc00"}', "1:8", "half of a surrogate pair", "whole pair", id="low-surrogate"),
    pytest.param('{"a": ' + "[" * 64, "1:70", "nested deeper than 64 levels", "take out", id="deep"),
    pytest.param('{"a": 01}', "1:7", "'01' is no number", "decimal", id="zero-in-front"),
    pytest.param('{"a": 1e999}', "1:7", "too large", "correct it", id="huge-float"),
    pytest.param('{"a": ' + "9" * 5000 + "}", "1:7", "too large", "correct it", id="huge-int"),
    pytest.param('{"a" 1}', "1:6", 'a colon is missing after "a"', "write", id="missing-colon"),
    pytest.param('{"a"}', "1:5", 'a colon and a value are missing after "a"', "", id="no-value"),
    pytest.param('{"a": 1,, "b": 2}', "1:9", "two commas", "take one", id="two-commas"),
    pytest.param('{"a": 1}\u00a0', "1:9", "U+00A0", "", id="no-break-space"),
    pytest.param('{"a": 1} x', "1:10", "'x'", "", id="text-after"),
]


@pytest.mark.parametrize(("text", "place", "what", "hint"), REFUSED)
def test_refused_with_place_and_hint(text: str, place: str, what: str, hint: str) -> None:
    """A text that is no JSON is refused, with line and column, what stands there and what to do, by apply too."""
    for call in (lambda: jsontext.parse(FILE, text), lambda: jsontext.apply(FILE, text, [RUNTIME])):
        with pytest.raises(GpuhookError) as caught:
            call()
        assert caught.value.reference == "engine-config-invalid"
        assert caught.value.message.startswith(f"{FILE}:{place}: ")
        assert what in caught.value.message
        assert hint in caught.value.hint
        assert caught.value.hint
        assert "\n" not in caught.value.message


WRITTEN = """{
    "runtimes": {
        "gpuhook": {
            "path": "/usr/bin/gpuhook-runtime",
            "runtimeArgs": []
        }
    },
    "default-runtime": "gpuhook"
}"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", WRITTEN + "\n", id="R114-empty"),
        pytest.param("\n", WRITTEN + "\n", id="R114-newline"),
        pytest.param("{}", WRITTEN, id="braces"),
        pytest.param("{}\r\n", WRITTEN.replace("\n", "\r\n") + "\r\n", id="R114-crlf"),
        pytest.param(
            '{\n\t"log-level" : "debug"\n}\n',
            '{\n\t"log-level" : "debug",\n\t"runtimes" : {\n\t\t"gpuhook" : {\n\t\t\t'
            '"path" : "/usr/bin/gpuhook-runtime",\n'
            '\t\t\t"runtimeArgs" : []\n\t\t}\n\t},\n\t"default-runtime" : "gpuhook"\n}\n',
            id="tabs-and-blank-before-colon",
        ),
        pytest.param(
            '{\n  "runtimes": {\n    "nvidia": {"path": "x"}\n  },\n  "n": 1.50, "big": 12345678901234567890\n}',
            '{\n  "runtimes": {\n    "nvidia": {"path": "x"},\n    "gpuhook": {\n'
            '      "path": "/usr/bin/gpuhook-runtime",\n      "runtimeArgs": []\n    }\n  },\n'
            '  "n": 1.50, "big": 12345678901234567890, "default-runtime": "gpuhook"\n}',
            id="two-blanks-and-numbers",
        ),
        pytest.param(
            '{"a":1,"runtimes":{}}',
            '{"a":1,"runtimes":{"gpuhook":{"path":"/usr/bin/gpuhook-runtime","runtimeArgs":[]}},"default-runtime":"gpuhook"}',
            id="one-line",
        ),
        pytest.param(
            '{\n    "default-runtime": "runc",\n    "runtimes": {}\n}\n',
            '{\n    "default-runtime": "gpuhook",\n    "runtimes": {\n        "gpuhook": {\n'
            '            "path": "/usr/bin/gpuhook-runtime",\n            "runtimeArgs": []\n        }\n    }\n}\n',
            id="replaced-in-place",
        ),
        pytest.param(
            '{"runtimes":null}',
            '{"runtimes":{"gpuhook":{"path":"/usr/bin/gpuhook-runtime","runtimeArgs":[]}},"default-runtime":"gpuhook"}',
            id="R115-null-is-absent",
        ),
    ],
)
def test_layout_of_an_edit_and_its_undo(before: str, after: str) -> None:
    """What is added follows the file's own layout, the rest keeps its bytes, and undoing gives the first text back."""
    text, undos = jsontext.apply(FILE, before, [RUNTIME, DEFAULT])
    assert text == after
    assert jsontext.apply(FILE, text, [RUNTIME, DEFAULT]) == (text, ())
    expected = before if before.strip() else "{}\n"
    assert jsontext.undo(FILE, text, undos) == (expected, ())


@pytest.mark.parametrize(
    ("text", "step", "message"),
    [
        pytest.param(
            '{\n"runtimes": []}',
            RUNTIME,
            "/etc/docker/daemon.json:2: runtimes must be an object, and is a list",
            id="R115-list",
        ),
        pytest.param(
            '{"runtimes": "x"}', RUNTIME, ":1: runtimes must be an object, and is the text 'x'", id="R115-text"
        ),
        pytest.param(
            '{"runtimes": {"nvidia": "str"}}',
            Set(("runtimes", "nvidia", "path"), "x"),
            ":1: runtimes.nvidia must be an object, and is the text 'str'",
            id="R115-runtime",
        ),
        pytest.param('{"a": {}}', Add(("a",), "x"), ":1: a must be a list, and is an object", id="add-to-object"),
        pytest.param('{"a": 1}', Add(("a",), "x"), ":1: a must be a list, and is the value '1'", id="add-to-number"),
    ],
)
def test_wrong_type_on_the_way(text: str, step: Set | Add, message: str) -> None:
    """A value where an object or list is needed is named with file, line, key and what was found."""
    with pytest.raises(GpuhookError) as caught:
        jsontext.apply(FILE, text, [step])
    assert caught.value.reference == "engine-config-invalid"
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param('{"l": ["a", "b"]}', '{"l": ["a", "b", "x"]}', id="one-line"),
        pytest.param('{"l": []}', '{"l": ["x"]}', id="empty"),
        pytest.param('{"l": [ ]}', '{"l": [ "x" ]}', id="blank"),
        pytest.param('{\n  "l": [\n    "a"\n  ]\n}', '{\n  "l": [\n    "a",\n    "x"\n  ]\n}', id="lines"),
        pytest.param('{\n  "l": [\n  ]\n}', '{\n  "l": [\n    "x"\n  ]\n}', id="empty-lines"),
        pytest.param('{"l": null}', '{"l": ["x"]}', id="null"),
        pytest.param('{"l": ["x", "a"]}', '{"l": ["x", "a"]}', id="there"),
        pytest.param('{"a": 1}', '{"a": 1, "l": ["x"]}', id="absent"),
    ],
)
def test_add_and_its_undo(before: str, after: str) -> None:
    """An element is added once, in the list's own layout, and goes again with the list that was made for it."""
    text, undos = jsontext.apply(FILE, before, [Add(("l",), "x")])
    assert text == after
    assert len(undos) == (before != after)
    assert jsontext.undo(FILE, text, undos) == (before, ())


@pytest.mark.parametrize(
    ("text", "undo", "after", "warnings"),
    [
        pytest.param(
            '{"runtimes": {"gpuhook": {"path": "other"}}}',
            Undo(RUNTIME, ABSENT, 0),
            None,
            (f"{FILE}:1: runtimes.gpuhook was changed since and is left as it is",),
            id="changed-since",
        ),
        pytest.param('{"default-runtime": "runc"}', Undo(DEFAULT, "runc", 1), None, (), id="back-by-hand"),
        pytest.param('{"a": 1}', Undo(DEFAULT, "runc", 1), None, (), id="gone"),
        pytest.param(
            '{"a": 1, "runtimes": {}}', Undo(RUNTIME, ABSENT, 0), '{"a": 1}', (), id="gone-but-for-our-object"
        ),
        pytest.param('{"a": 1, "runtimes": {}}', Undo(RUNTIME, ABSENT, 1), None, (), id="gone-and-object-was-there"),
        pytest.param('{"runtimes": "x"}', Undo(RUNTIME, ABSENT, 0), None, (), id="gone-with-the-object"),
        pytest.param(
            '{"l": ["x", "y"]}', Undo(Add(("l",), "x"), ABSENT, 0), '{"l": ["y"]}', (), id="others-element-stays"
        ),
        pytest.param(
            '{"l": "x"}',
            Undo(Add(("l",), "x"), ABSENT, 0),
            None,
            (f"{FILE}:1: l is no list any more and is left as it is",),
            id="no-list-any-more",
        ),
        pytest.param('{"l": []}', Undo(Add(("l",), "x"), [], 1), None, (), id="empty-list-was-there"),
        pytest.param(
            '{"r": {"nvidia": 1}}', Undo(Set(("r",), {}), None, 1), None, (), id="object-for-null-has-others-keys"
        ),
    ],
)
def test_undo_after_changes_by_others(text: str, undo: Undo, after: str | None, warnings: tuple[str, ...]) -> None:
    """Only what is still ours is taken back; what someone changed stays, with a warning; what is gone needs none."""
    assert jsontext.undo(FILE, text, [undo]) == (text if after is None else after, warnings)


def test_undo_restores_null() -> None:
    """R115: a null that had to give way to an object comes back."""
    text, undos = jsontext.apply(FILE, '{"a": {"b": null}}', [Set(("a", "b", "c", "d"), 1), Set(("a", "b", "e"), 2)])
    assert json.loads(text) == {"a": {"b": {"c": {"d": 1}, "e": 2}}}
    assert jsontext.undo(FILE, text, undos) == ('{"a": {"b": null}}', ())


def test_object_over_object_changes_only_what_differs() -> None:
    """What the new object shares with the old keeps its text."""
    text = '{"r": {"path":   "old", "args": [ 1.0 ,2 ], "gone": 1}}'
    new, undos = jsontext.apply(FILE, text, [Set(("r",), {"path": "new", "args": [1.0, 2]})])
    assert new == '{"r": {"path":   "new", "args": [ 1.0 ,2 ]}}'
    assert jsontext.undo(FILE, new, undos) == (text, ())


def test_types_are_told_apart() -> None:
    """True, 1 and 1.0 are three values, so a step that asks for one is not fulfilled by another."""
    assert jsontext.apply(FILE, '{"a": 1}', [Set(("a",), True)])[0] == '{"a": true}'
    assert jsontext.apply(FILE, '{"a": 1.0}', [Set(("a",), 1)])[0] == '{"a": 1}'


@pytest.mark.parametrize(
    ("keypath", "expected"),
    [((), 2), (("a",), 3), (("a", "b"), 4), (("a", "x"), None), (("x",), None), (("a", "b", "c"), None)],
)
def test_line_of(keypath: tuple[str, ...], expected: int | None) -> None:
    """The line where a key stands; none where it doesn't."""
    assert jsontext.line_of('\n{\n"a": {\n "b": 1}}', keypath) == expected


def test_line_of_no_json() -> None:
    """A text that is no JSON has no lines of keys."""
    assert jsontext.line_of("{", ("a",)) is None


def test_an_edit_that_would_say_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each edited text is parsed again: were the splice wrong, nothing would be written."""
    monkeypatch.setattr(jsontext._Edit, "insert", lambda self, node, key, value: '{"other": 1}')
    with pytest.raises(GpuhookError, match="can't be edited safely") as caught:
        jsontext.apply(FILE, '{"a": 1}', [DEFAULT])
    assert "--drop-in" in caught.value.hint


# Properties

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
)
KEYS = st.sampled_from(["a", "b", "runtimes", 'é"\\']) | st.text(max_size=3)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=12
)
BLANKS = st.sampled_from(["", "", " ", "\n", "\t", "\r\n  ", "\n\n"])


def _laid_out(draw: st.DrawFn, value: Any) -> str:
    """A JSON value in any layout; no blanks are put into empty brackets, as they can't be told from ours."""
    if isinstance(value, dict | list) and value:
        parts = []
        for item in value:
            key = ""
            if isinstance(value, dict):
                key = json.dumps(item, ensure_ascii=draw(st.booleans())) + draw(BLANKS) + ":" + draw(BLANKS)
            inner = _laid_out(draw, value[item] if isinstance(value, dict) else item)
            parts.append(draw(BLANKS) + key + inner + draw(BLANKS))
        return ("{%s}" if isinstance(value, dict) else "[%s]") % ",".join(parts)
    return json.dumps(value, ensure_ascii=draw(st.booleans()))


@st.composite
def documents(draw: st.DrawFn) -> str:
    """A JSON document in any layout."""
    value = draw(st.dictionaries(KEYS, VALUES, max_size=4))
    return draw(BLANKS) + _laid_out(draw, value) + draw(BLANKS)


PATHS = st.lists(KEYS, min_size=1, max_size=3).map(tuple)
STEPS = st.lists(
    st.builds(Set, PATHS, SCALARS | st.just({"path": "x", "runtimeArgs": []}))
    | st.builds(Add, PATHS, st.text(max_size=3)),
    min_size=1,
    max_size=4,
)


@given(documents())
def test_any_layout_is_read_as_json_does(text: str) -> None:
    """The scanner reads what the json module reads."""
    assert tree.same(jsontext.parse(FILE, text), json.loads(text))


@given(documents(), STEPS)
def test_apply_then_undo(text: str, steps: list[Set | Add]) -> None:
    """Each step holds afterwards and again changes nothing; undone, the first document is back, byte for byte where
    no value was replaced."""
    try:
        new, undos = jsontext.apply(FILE, text, steps)
    except GpuhookError as error:
        assert " must be " in error.message  # a wrong type on the way
        return
    last = steps[-1]
    found = tree.get(json.loads(new), last.path)
    assert tree.same(found, last.value) if isinstance(last, Set) else last.value in found
    assert jsontext.apply(FILE, new, [last]) == (new, ())
    back, warnings = jsontext.undo(FILE, new, undos)
    assert warnings == ()
    assert tree.same(json.loads(back), json.loads(text))
    if all(undo.before is ABSENT for undo in undos):
        assert back == text


@given(st.text(alphabet='{}[]",:\\ \n01-e.tfnu"ax', max_size=12))
def test_any_text_is_read_as_json_does_or_refused(text: str) -> None:
    """What the json module refuses is refused, by our error and no other; what it reads as an object is the same."""
    try:
        expected = json.loads(text)
    except ValueError:
        expected = None
    try:
        found = jsontext.parse(FILE, text)
    except GpuhookError as error:
        assert error.reference == "engine-config-invalid"
        assert not isinstance(expected, dict) or "stands here and in line" in error.message
    else:
        assert tree.same(found, expected) if text.strip() else found == {}


@given(documents(), st.data())
def test_a_cut_text_is_refused(text: str, data: st.DataObject) -> None:
    """No document that is cut before its end passes for one."""
    end = text.rstrip()
    cut = end[: data.draw(st.integers(1, len(end) - 1))]
    if cut.strip():
        with pytest.raises(GpuhookError):
            jsonscan.scan(FILE, cut)
