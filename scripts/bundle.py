"""bundle.py CHECKOUT NAME COMMAND [VARIABLE=VALUE...]: make the bundle NAME as engines write one, for scripts/demo.

Its root is a small Debian, whose sh runs COMMAND. A bundle that is there already is made anew.
"""

import shutil
import sys
from pathlib import Path


def main(checkout: str, name: str, command: str, *env: str) -> None:
    """Make the bundle. Raises SystemExit for a folder that is something else."""
    sys.path.insert(0, checkout)
    from tests import bundles  # noqa: PLC0415 - it lies in the checkout

    folder = Path(name)
    if folder.exists() and not (folder / "config.json").is_file():
        raise SystemExit(f"bundle: {name} is there, and is no bundle")
    shutil.rmtree(folder, ignore_errors=True)
    bundles.make(folder, "glibc", args=["/bin/sh", "-c", command], env=env)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit("usage: bundle NAME COMMAND [VARIABLE=VALUE...]")
    main(*sys.argv[1:])
