"""Text between two marker comments, in files that no parser of their own language reads (templates of TOML)."""

from gpuhook.errors import GpuhookError

BEGIN = "# BEGIN gpuhook: this block is gpuhook's, `gpuhook unconfigure` removes it"
END = "# END gpuhook"


def put(path: str, text: str, block: str) -> str:
    """`text` with `block` between the markers: in the place of the one that is there, else at the end.

    GpuhookError `engine-config-invalid` where the markers are no pair.
    """
    line_end = "\r\n" if "\r\n" in text else "\n"
    lines = [BEGIN, *block.rstrip("\n").split("\n"), END]
    new = "".join(line + line_end for line in lines)
    found = _find(path, text)
    if found is not None:
        return text[: found[0]] + new + text[found[1] :]
    gap = line_end if text and not text.endswith("\n") else ""
    return text + gap + new


def body(path: str, text: str) -> str:
    """What stands between the markers, or ``. GpuhookError `engine-config-invalid` where the markers are no pair."""
    found = _find(path, text)
    return "" if found is None else "".join(text[found[0] : found[1]].splitlines(keepends=True)[1:-1])


def cut(path: str, text: str) -> str:
    """`text` without the block. GpuhookError `engine-config-invalid` where the markers are no pair."""
    found = _find(path, text)
    return text if found is None else text[: found[0]] + text[found[1] :]


def _find(path: str, text: str) -> tuple[int, int] | None:
    """Where the block begins and ends, its markers' lines with it."""
    begins, ends, at = [], [], 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip().startswith("# BEGIN gpuhook"):
            begins.append((number, at))
        elif line.strip() == END:
            ends.append((number, min(at + len(line) + 1, len(text))))
        at += len(line) + 1
    if not begins and not ends:
        return None
    if len(begins) == len(ends) == 1 and begins[0][0] < ends[0][0]:
        return begins[0][1], ends[0][1]
    wrong = (begins[1:] or ends[1:] or begins or ends)[0][0]
    raise GpuhookError(
        "engine-config-invalid",
        f"{path}:{wrong}: the comments that mark gpuhook's block are no pair of one BEGIN and one END",
        "remove the block and both comments by hand, then run this again",
    )
