"""What an engine's files still say of gpuhook's programs after `unconfigure`: entries that gpuhook has no record of.

Somebody wrote them, changed one of gpuhook's, or removed the store. While they are there and gpuhook is not, the engine
starts no container of that runtime, so the person who is about to remove gpuhook must hear of them.
"""

from collections.abc import Sequence

from gpuhook import engines
from gpuhook.engines.commit import Change
from gpuhook.engines.host import Host
from gpuhook.engines.model import Options
from gpuhook.errors import GpuhookError


def warnings(host: Host, engine: str, options: Options, changes: Sequence[Change]) -> tuple[str, ...]:
    """A sentence for each file that still names a program of gpuhook's once `changes` are made: theirs, and where the
    engine has its files. What can't be found or read is passed over: nothing of it bears on what was taken back.
    """
    texts = {
        change.path: (change.after or b"").decode("utf-8", "replace") for change in changes if change.outcome != "kept"
    }
    try:
        paths = [edit.path for edit in engines.load(engine).propose(host, options).files]
    except GpuhookError:
        paths = []
    texts |= {path: host.text(path) for path in paths if path not in texts}
    return tuple(
        f"{path}:{text.count(chr(10), 0, text.index(program)) + 1}: {program} still stands here, and gpuhook has no "
        "record of putting it there: take it out before gpuhook is removed"
        for path, text in texts.items()
        for program in (options.runtime, options.hook)
        if f'"{program}"' in text
    )
