"""Configuration that an engine reads from several TOML files, the later ones over the earlier: what is in force, and
which file says so."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuhook.engines import tomltext
from gpuhook.engines.host import Host
from gpuhook.engines.model import ABSENT, Finding, Value
from gpuhook.errors import GpuhookError, shown


@dataclass(frozen=True)
class Layer:
    """One file that is there: its path as the engine names it, its text, and that parsed."""

    path: str
    text: str
    tree: dict[str, Value]

    def get(self, *path: str) -> Value:
        """What the file says at `path`, or ABSENT. GpuhookError `engine-config-invalid` for a table that is none."""
        found: Value = self.tree
        for depth, key in enumerate(path):
            if not isinstance(found, dict):
                hint = f"write [{'.'.join(path[:depth])}] and its keys below"
                raise self._wrong(path[:depth], "a table", found, hint)
            if key not in found:
                return ABSENT
            found = found[key]
        return found

    def strings(self, *path: str) -> tuple[str, ...] | None:
        """The strings of the list at `path`, None where there is none. GpuhookError `engine-config-invalid`."""
        found = self.get(*path)
        if found is ABSENT:
            return None
        items = [item for item in found if not isinstance(item, dict)] if isinstance(found, list) else [None]
        if not all(isinstance(item, str) for item in items):
            raise self._wrong(path, "a list of strings", found, 'write it as ["...", "..."]')
        return tuple(str(item) for item in items)

    def text_at(self, *path: str) -> str:
        """The string at `path`, empty where there is none. GpuhookError `engine-config-invalid` for another type."""
        found = self.get(*path)
        if found is ABSENT:
            return ""
        if not isinstance(found, str):
            raise self._wrong(path, "a string", found, 'write it in quotes: "..."')
        return found

    def _wrong(self, path: tuple[str, ...], wanted: str, found: Value, hint: str) -> GpuhookError:
        text = f"{self.place(*path)}: {'.'.join(path)} must be {wanted}, is {shown(found)}"
        return GpuhookError("engine-config-invalid", text, hint)

    def place(self, *path: str) -> str:
        """`FILE:LINE` of what stands at `path`, or the file where its line is not known."""
        line = tomltext.line_of(self.text, path) if path else None
        return f"{self.path}:{line}" if line else self.path


def read(host: Host, paths: Sequence[str]) -> tuple[Layer, ...]:
    """The files of `paths` that are there, in that order. GpuhookError `engine-config-...`."""
    layers = []
    for path in dict.fromkeys(paths):
        text = host.read(path)
        if text is not None:
            layers.append(Layer(path, text, tomltext.parse(path, text)))
    return tuple(layers)


def after(layers: Sequence[Layer], paths: Sequence[str], target: str) -> tuple[Layer, ...]:
    """The layers that the engine reads after `target`; `paths` is the order, with `target` in it."""
    later = paths[paths.index(target) + 1 :]
    return tuple(layer for layer in layers if layer.path in later)


def entries(layers: Sequence[Layer], *path: str) -> Iterator[tuple[Layer, str]]:
    """Each entry of the tables at `path`, with its file. GpuhookError `engine-config-invalid`."""
    for layer in layers:
        table = layer.get(*path)
        layer.get(*path, "")
        for name in () if table is ABSENT else table:
            yield layer, name


def replaced(layers: Sequence[Layer], layer: Layer, *path: str) -> Finding:
    """What stands at `path` is gpuhook's, and a file that is read later has something else there."""
    last = [other for other in layers if other.get(*path) is not ABSENT][-1]
    text = f"{layer.place(*path)} is replaced by {last.place(*path)}, read after it"
    return Finding("problem", "conflict", text, "remove what stands there, or configure again")


def conflict(engine: str, target: str, layer: Layer, path: tuple[str, ...], hint: str) -> GpuhookError:
    """`engine-config-conflict`: a later file says otherwise of what would go into `target`."""
    name = ".".join(path)
    said = layer.get(*path)
    said = ", ".join(str(item) for item in said) if isinstance(said, list) else said
    return GpuhookError(
        "engine-config-conflict",
        f"{name} would be set in {target}, and {layer.place(*path)}, which {engine} reads after it, "
        f"sets it to {'another table' if isinstance(said, dict) else shown(said)}",
        hint,
    )
