"""`gpuhook`: the command line for people. Each command's module is imported only when it is called.

Off the hot path. A command finds what its installation lies below by `prefix()` and raises GpuhookError where it fails;
`main` says it and gives the exit code.
"""

import importlib
import io
import os
import sys
import traceback
from contextlib import suppress

import click
from click.shell_completion import CompletionItem

from gpuhook import __version__
from gpuhook.errors import GpuhookError

# name -> (module:attribute, what it does in a line, so that --help imports nothing)
COMMANDS = {
    "explain": (
        "gpuhook.cli.explain:explain",
        "Say what a container would get, or why it would be refused; change nothing.",
    ),
    "check": ("gpuhook.cli.check:check", "Say whether a driver meets a requirement such as 'cuda>=12.6'."),
    "info": ("gpuhook.cli.info:info", "Show this host: driver, GPUs, runtime, configuration."),
    "doctor": ("gpuhook.cli.doctor:doctor", "Say whether a GPU container would work on this host, and if not, why."),
    "configure": ("gpuhook.cli.configure:configure", "Tell a container engine of gpuhook; --dry-run shows the diff."),
    "unconfigure": ("gpuhook.cli.configure:unconfigure", "Take back what configure did, to the byte."),
    "list": ("gpuhook.cli.list_:list_", "List the driver's files that containers get, by capability."),
    "config": (
        "gpuhook.cli.config:config",
        "Show and check runtime.toml; take over what NVIDIA's toolkit is configured with.",
    ),
    "record": ("gpuhook.cli.record:record", "Show, remake or remove the record of this host's driver."),
    "hook": ("gpuhook.cli.hook:hook_", "Replay a saved state: say what the hook would do; change nothing."),
    "sim": ("gpuhook.cli.sim:sim", "Make a simulated driver for a machine without a GPU."),
    "completion": ("gpuhook.cli.completion:completion", "Print what lets bash, zsh or fish complete command lines."),
}


class Commands(click.Group):
    """The table above as a click group."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a name that is near to one gets that as a hint."""
        if args and args[0] not in COMMANDS and args[0].strip("-") and not ctx.resilient_parsing:
            import difflib  # noqa: PLC0415 - only a misspelt name pays for it

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            raise click.UsageError(f"there is no command {args[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names that begin so, with their line; of the commands themselves none is imported."""
        names = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the table into the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  gpuhook explain --image-config ubuntu --env NVIDIA_VISIBLE_DEVICES=all    # what a container of an image would get
  gpuhook explain --env NVIDIA_VISIBLE_DEVICES=all                          # without an image
  gpuhook check 'cuda>=12.6'
  gpuhook info
  gpuhook configure docker --dry-run

Each command has its own --help with examples. Every error's reference, in square brackets, has a section in
docs/errors.md. With --json a command prints one JSON document, that of its error too, as `error`.
""",
)
@click.version_option(__version__, "--version", prog_name="gpuhook", message="%(prog)s %(version)s")
def gpuhook() -> None:
    """See what gpuhook gives to containers of this host, and why."""


def prefix() -> str:
    """What this installation lies below: `` for the one at /, else a directory. For commands, while they run."""
    found = click.get_current_context().find_root().obj
    return found if isinstance(found, str) else ""


def main(argv: list[str] | None = None, prefix: str = "") -> int:
    """Run the command line; returns the exit code. Without arguments, those of the process (console script)."""
    words = (sys.argv if argv is None else argv)[1:]
    try:
        return _run(words, prefix)
    except BrokenPipeError:  # the reader went away, as `head` does
        _give_up_stdout()
        return 1
    except OSError as error:  # of stdout: _run lets no other out
        _give_up_stdout()
        return _say(_not_written(f"can't be written: {error.strerror}"))


def _run(words: list[str], prefix: str) -> int:
    """OSError where stdout takes nothing."""
    if _missing_streams():
        return _say(_not_written("is closed"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # in a locale without the letters, too
    as_json = "--json" in words
    try:
        code = gpuhook.main(args=words, prog_name="gpuhook", obj=prefix, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # of click 8.2 and newer; older ones print the help themselves
            click.echo(error.format_message())
            return 0
        return _fail(_usage(error), as_json)
    except GpuhookError as error:
        return _fail(error, as_json)
    except (KeyboardInterrupt, click.Abort):
        return 130
    except Exception as error:  # a person gets one line, the log the traceback
        if isinstance(error, OSError) and traceback.extract_tb(error.__traceback__)[-1].name in ("echo", "_run"):
            raise  # stdout's: each of our own calls of the system is in some other function
        return _fail(_defect(error, prefix), as_json)


def _missing_streams() -> bool:
    """Whether stdout is closed. Whichever of the three is closed becomes /dev/null: no file shall get its number."""
    streams: tuple[object, ...] = (sys.stdin, sys.stdout, sys.stderr)
    if None in streams:
        while os.open(os.devnull, os.O_RDWR) <= 2:
            pass
    return streams[1] is None


def _give_up_stdout() -> None:
    """What could not be written is not tried again at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _not_written(what: str) -> GpuhookError:
    return GpuhookError("output-not-written", f"standard output {what}", "give it a file with room, or /dev/null")


def _usage(error: click.ClickException) -> GpuhookError:
    """A wrong command line in the form of every other error."""
    from gpuhook.cli.render import plain  # noqa: PLC0415 - click quotes what it was given as it is

    text = plain(" ".join(error.format_message().split()).rstrip("."))
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "gpuhook"
    return GpuhookError("usage", text[:1].lower() + text[1:], f"{command} --help shows what it takes, with examples")


def _fail(error: GpuhookError, as_json: bool) -> int:
    """The error for people, on stderr, and for programs, unless a document that was printed has it."""
    from gpuhook.cli import render  # noqa: PLC0415 - nobody else pays for it

    if as_json and not isinstance(error, render.ToldError):
        click.echo(render.document({"error": render.failure(error)}))
    sys.stdout.flush()
    return _say(error)


def _say(error: GpuhookError) -> int:
    with suppress(OSError):  # then there is nowhere left to say it
        click.echo(str(error), err=True)
    return error.exit_code


def _defect(error: Exception, where: str) -> GpuhookError:
    """An exception that nobody expected: the traceback goes to the log, where that can be written."""
    from gpuhook import config, log  # noqa: PLC0415 - nobody else pays for it

    path = config.paths(where).log
    log.Log(path).write("error", "-", "".join(traceback.format_exception(error)))
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(last.filename)}:{last.lineno}"
    found = f"{type(error).__name__} at {place}: {error}".splitlines()[0]
    report = f"report it with the traceback in {path}" if os.access(path, os.R_OK) else "report it"
    return GpuhookError("internal", found, f"this is a defect of gpuhook: {report}")
