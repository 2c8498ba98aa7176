"""capabilities_doc.py: put what each capability brings into docs/capabilities.md, from the tables of the code.

The tables there stand between `<!-- NAME -->` and `<!-- end -->`; a test compares them with the code
(tests/unit/test_capabilities_doc.py), so that neither changes alone.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from gpuhook import plan  # noqa: E402 - the checkout's, not an installed one
from gpuhook.config import CAPABILITIES  # noqa: E402
from gpuhook.driver import capabilities  # noqa: E402

PAGE = ROOT / "docs/capabilities.md"
_MARKED = re.compile(r"<!-- (words|files) -->\n.*?<!-- end -->", re.DOTALL)

# What the nodes' code does for a word; the test asks that code.
NODES = {
    "compute": ("nvidia-uvm", "nvidia-uvm-tools"),
    "video": ("nvidia-uvm", "nvidia-uvm-tools"),
    "graphics": ("nvidia-modeset", "dri/cardN", "dri/renderDN"),
    "display": ("nvidia-modeset", "dri/cardN", "dri/renderDN"),
}


def words() -> list[str]:
    """A row for each word of NVIDIA_DRIVER_CAPABILITIES: libraries, programs, nodes, and what else it brings."""
    tables = capabilities.libraries()
    rows = ["| word | libraries | programs | device nodes | brings as well |", "|---|---|---|---|---|"]
    for word in sorted(CAPABILITIES):
        own = [name for key, names in tables.items() if word in key.split("+") for name in names]
        programs = [name for name, of in capabilities.BINARIES.items() if of == word]
        also = [f"what `{other}` brings" for other in plan.BRINGS.get(word, ()) if "+" not in other]
        if word == plan.NARROW:
            also = ["the 32-bit builds of the libraries that the other words bring"]
        cells = (_code(own), _code(programs), _code(NODES.get(word, ())), ", ".join(also) or "-")
        rows.append(f"| `{word}` | {' | '.join(cells)} |")
    return rows


def files() -> list[str]:
    """A row for each kind of file that is no library or program: whose it is, its place, where it is looked for."""
    rows = ["| what | word | names | looked for in | place in the container |", "|---|---|---|---|---|"]
    for data in capabilities.DATA:
        places = _code([f"{base}/{data.folder}" for base in data.bases])
        rows.append(f"| {data.what} | `{data.capability}` | {_code(data.names)} | {places} | `{data.place}` |")
    for kind, name in capabilities.X_FILES:
        places = f"`nvidia/xorg` and `xorg/modules/{kind}` beside the libraries, X's own `{kind}`"
        word, place = capabilities.X_CAPABILITY, f"{capabilities.X_MODULES}/{kind}"
        rows.append(f"| module of an X server | `{word}` | `{name}` | {places} | `{place}` |")
    return rows


def _code(names: "tuple[str, ...] | list[str]") -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"


def written(page: str) -> str:
    """The page with its tables made anew."""
    tables = {"words": words, "files": files}
    return _MARKED.sub(lambda found: "\n".join([f"<!-- {found[1]} -->", *tables[found[1]](), "<!-- end -->"]), page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
