"""JSON by the C scanner and encoder that the json package itself stands on.

Hot path: `import json` costs 8.6 ms because of `re`; `_json` costs 0.1. Where `_json` is missing or has another
signature, and to explain a text that is no JSON, the json package is used: slower, with the same result.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from gpuhook.model import JSON


class _Context:
    """What `_json.make_scanner` reads its settings from (CPython: Modules/_json.c, scanner_new)."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = None  # NaN and Infinity are no JSON: calling None raises
    memo: dict[str, str] = {}  # noqa: RUF012


def loads(data: bytes) -> "JSON":
    """Parse one JSON text. Bytes that are no UTF-8 survive a round trip as lone surrogates. Raises ValueError."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        from _json import make_scanner  # noqa: PLC0415

        item, end = make_scanner(_Context)(  # type: ignore[arg-type]
            text, len(text) - len(text.lstrip(" \t\n\r"))
        )
    except (ImportError, StopIteration, SystemError, TypeError, RecursionError, ValueError):
        # SystemError: the C code looks for json.decoder.JSONDecodeError, which nobody imported
        return _loads_slowly(text)
    if text[end:].strip(" \t\n\r"):
        return _loads_slowly(text)
    return item  # type: ignore[no-any-return]


def dumps(item: object) -> bytes:
    """One JSON text in ASCII without blanks. Raises ValueError for what JSON cannot say."""
    try:
        from _json import encode_basestring_ascii, make_encoder  # noqa: PLC0415

        encode = make_encoder({}, _refuse, encode_basestring_ascii, None, ":", ",", False, False, False)
    except (ImportError, TypeError):
        import json  # noqa: PLC0415

        return json.dumps(item, separators=(",", ":"), allow_nan=False).encode()
    return "".join(encode(item, 0)).encode("ascii")


def _loads_slowly(text: str) -> "JSON":
    import json  # noqa: PLC0415

    try:
        item: JSON = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return item


def _refuse(item: object) -> "NoReturn":
    raise ValueError(f"no JSON value: {item}")
