"""`gpuhook completion`: the script that lets a shell complete gpuhook's command lines. It is click's own."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_GPUHOOK_COMPLETE"  # click's name for it, by which the script calls gpuhook


@click.command(
    epilog="""\b
Examples:
  source <(gpuhook completion bash)                                              # this shell
  gpuhook completion bash >/usr/share/bash-completion/completions/gpuhook        # every bash of this host
  gpuhook completion zsh >/usr/share/zsh/site-functions/_gpuhook                 # zsh
  gpuhook completion fish >~/.config/fish/completions/gpuhook.fish               # fish

The script calls gpuhook for the words, so it need not be written again after an upgrade.
"""
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes gpuhook's commands and options in SHELL.

    bash needs version 4.4 or newer.
    """
    root = click.get_current_context().find_root().command
    found = get_completion_class(shell)
    assert found is not None  # click has had all of SHELLS since 8.0
    maker = found(root, {}, "gpuhook", VARIABLE)
    # not maker.source(): for bash that runs bash, to see its version
    click.echo(maker.source_template % maker.source_vars())
