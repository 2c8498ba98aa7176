"""Running what makes an engine read its configuration."""

import os
import shutil
import subprocess

from gpuhook.engines.model import Restart
from gpuhook.errors import GpuhookError, shown

_DEADLINE = 300  # seconds for an engine's restart; systemd itself gives up earlier


def restarted(means: Restart) -> tuple[bool, str]:
    """Run the command that makes the engine read its configuration: whether it was run, and why not.

    GpuhookError `engine-restart-failed`.
    """
    if not means.command:
        return False, ""
    program = shutil.which(means.command[0])
    if program is None:
        return False, f"nothing was restarted: {means.command[0]} is not there"
    if means.command[0] == "systemctl" and not os.path.isdir("/run/systemd/system"):  # sd_booted(3)
        return False, "nothing was restarted: no init system runs here"
    line = " ".join(means.command)
    hint = "the configuration is written; look at the engine's log, or take it back with `gpuhook unconfigure`"
    try:
        ended = subprocess.run(  # noqa: S603 - the engine's module gave it
            [program, *means.command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DEADLINE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        text = f"`{line}` did not end within {_DEADLINE} seconds"
        raise GpuhookError("engine-restart-failed", text, hint) from None
    except OSError as error:
        raise GpuhookError("engine-restart-failed", f"`{line}` can't be run: {error.strerror}", hint) from None
    if ended.returncode:
        said = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
        why = f": {shown(said[0], 200)}" if said else ""
        raise GpuhookError("engine-restart-failed", f"`{line}` ended with status {ended.returncode}{why}", hint)
    return True, ""
