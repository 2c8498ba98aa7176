"""man.py: make the man pages in docs/man of the command line's own words and of config/runtime.toml.

`scripts/man/PAGE.txt` has what is said nowhere else. A line in capitals is a heading, `= TERM` begins an entry of a
list, indented lines are shown as they are, and `@NAME@` alone on a line stands for what is gathered here: click's
commands, the keys of runtime.toml, the exit statuses. A test compares the result with what is committed
(tests/unit/test_man.py).
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import click  # noqa: E402

from gpuhook import cli, configfile, errors  # noqa: E402 - the checkout's, not an installed one

SOURCES = ROOT / "scripts/man"
PAGES = ROOT / "docs/man"
CONFIG = ROOT / "config/runtime.toml"

_CHARACTERS = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"}
_COMMENT = re.compile(r"# ?(.*)")
_KEY = re.compile(r"#([a-z-]+) = (.*)")


# --- roff -----------------------------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """Text that troff prints as it stands, each sign by itself, so that it can be copied from a terminal."""
    return "".join(_CHARACTERS.get(char, char) for char in text)


def inline(text: str) -> str:
    """A line of running text; what stands in code marks is bold. Nothing in it begins a request."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        raise ValueError(f"a code mark is open in {text!r}")
    line = "".join(f"\\fB{escaped(part)}\\fR" if number % 2 else escaped(part) for number, part in enumerate(parts))
    return f"\\&{line}" if line.startswith((".", "'")) else line


def paragraph(lines: list[str]) -> list[str]:
    """Running text, one sentence a line as troff likes it; a code mark may span lines."""
    return [inline(part) for part in re.split(r"(?<=[a-z0-9)`\]][.:]) (?=[A-Z`])", " ".join(lines))]


def shown(lines: list[str]) -> list[str]:
    """Lines as they are: examples and small tables."""
    spare = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    cut = [line[spare:] for line in lines]
    return [
        ".RS 4",
        ".nf",
        *(f"\\&{escaped(line)}" if line[:1] in ".'" else escaped(line) for line in cut),
        ".fi",
        ".RE",
    ]


def body(text: str, own: dict[str, Callable[[], list[str]]] | None = None, start: str = ".PP") -> Iterator[str]:
    """The requests of a text in the form that this file's docstring says. `start` is for its first paragraph."""
    begin = start
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.split("\n")
        if found := re.fullmatch(r"@([a-z-]+)@", block):
            yield from (own or {})[found[1]]()
        elif re.fullmatch(r"[A-Z][A-Z ]+", block):
            yield f".SH {block}"
            begin = ""
            continue
        elif lines[0].startswith("= "):
            yield ".TP"
            yield inline(lines[0][2:])
            yield from paragraph(lines[1:])
        elif lines[0].startswith("  "):
            yield from shown(lines)
        else:
            rest = next((number for number, line in enumerate(lines) if line.startswith("  ")), len(lines))
            yield from [begin] if begin else []
            yield from paragraph(lines[:rest])
            yield from shown(lines[rest:]) if lines[rest:] else []
        begin = ".PP"


# --- what is gathered -----------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """A part for each command, and for each command of a group."""
    lines = []
    for words, command in walk():
        lines.append(f'.SS "gpuhook {escaped(" ".join(words))}"')
        lines.append(synopsis(words, command))
        lines += of_command(command)
    return lines


def walk() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with its words, in the order of `gpuhook --help`."""
    context = click.Context(cli.gpuhook)
    for name in cli.COMMANDS:
        command = cli.gpuhook.get_command(context, name)
        assert command is not None
        yield (name,), command
        if isinstance(command, click.Group):
            yield from (((name, child), command.commands[child]) for child in command.list_commands(context))


def synopsis(words: tuple[str, ...], command: click.Command) -> str:
    """The command with what it takes."""
    context = click.Context(command)
    return f"\\fBgpuhook {escaped(' '.join(words))}\\fR {escaped(' '.join(command.collect_usage_pieces(context)))}"


def of_command(command: click.Command) -> list[str]:
    """What `--help` says, in its order: text, options, the epilog."""
    lines = list(help_text(command.help or ""))
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            lines += [".TP", heading(option, click.Context(command)), *paragraph([explained(option)])]
    return lines + list(help_text(command.epilog or ""))


def help_text(text: str) -> Iterator[str]:
    """Text for click: a paragraph that begins with \\b is a heading and lines as they are."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if not block.startswith("\b\n"):
            yield from body(block)
            continue
        first, *rest = block.removeprefix("\b\n").split("\n")
        yield from [".PP", inline(first), *(shown(rest) if rest else [])]


def heading(option: click.Option, context: click.Context) -> str:
    """`-e, --env NAME=VALUE`."""
    names = sorted([*option.opts, *option.secondary_opts], key=len)
    text = ", ".join(f"\\fB{escaped(name)}\\fR" for name in names)
    if option.is_flag or option.count:
        return text
    return f"{text} \\fI{escaped(metavar(option, context))}\\fR"


def metavar(option: click.Option, context: click.Context) -> str:
    """What an option takes; click has changed how it is asked."""
    if option.metavar is not None:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return f"{{{'|'.join(str(choice) for choice in option.type.choices)}}}"
    try:
        return option.make_metavar(context)
    except TypeError:  # click before 8.2
        return option.make_metavar()  # type: ignore[call-arg]


def explained(option: click.Option) -> str:
    """An option's help, with its default where `--help` shows that."""
    text = option.help or ""
    return f"{text} The default is `{option.default}`." if option.show_default else text


def keys() -> list[str]:
    """A part for each section of runtime.toml, an entry for each key with its default."""
    lines: list[str] = []
    told: list[str] = []
    entries: list[str] = []
    known: list[str] = []
    source = iter(CONFIG.read_text().split("\n[", 1)[1].split("\n"))
    section = next(source).strip("[]")
    lines.append(f'.SS "[{section}]"')
    for line in source:
        if line.startswith("["):
            section = line.strip("[]")
            lines.append(f'.SS "[{section}]"')
        elif found := _KEY.fullmatch(line):
            default = found[2]
            while default.startswith("[") and not default.endswith("]"):
                default += " " + next(source).removeprefix("#").strip()
            known.append(f"{section}.{found[1]}")
            entries.append(f"\\fB{escaped(found[1])}\\fR = {escaped(default.replace('[ ', '[').replace(', ]', ']'))}")
        elif found := _COMMENT.fullmatch(line):
            told.append(found[1])
        elif not line and entries:
            lines += entry(entries, told)
            entries, told = [], []
    if sorted(known) != sorted(key.dotted for key in configfile.KEYS):
        raise ValueError(f"{CONFIG} has other keys than gpuhook")
    return lines


def entry(names: list[str], told: list[str]) -> list[str]:
    """Keys that share their explanation."""
    first, *others = body("\n".join(told), start="")
    lines = [".TP", names[0]]
    for name in names[1:]:
        lines += [".TQ", name]
    return [*lines, first, *others]


def introduction() -> list[str]:
    """What runtime.toml says at its beginning."""
    head = CONFIG.read_text().split("\n\n")[0].split("\n#\n")[1:]
    return list(body("\n\n".join("\n".join(line.removeprefix("# ") for line in part.split("\n")) for part in head)))


def statuses() -> list[str]:
    """Each reference with its exit status."""
    lines = [".PP", ".nf"]
    for name, code in sorted(errors.EXIT_CODES.items(), key=lambda item: item[1]):
        lines.append(f"{code:>4}  {escaped(name)}")
    return [*lines, ".fi"]


def options() -> list[str]:
    """Those of `gpuhook` itself."""
    lines = []
    for option in cli.gpuhook.get_params(click.Context(cli.gpuhook, help_option_names=["-h", "--help"])):
        if isinstance(option, click.Option):
            lines += [".TP", heading(option, click.Context(cli.gpuhook)), *paragraph([explained(option)])]
    return lines


def overview() -> list[str]:
    """What each command does, in a line."""
    lines = []
    for name, (_, text) in cli.COMMANDS.items():
        lines += [".TP", f"\\fB{escaped(name)}\\fR", *paragraph([text])]
    return lines


GATHERED = {
    "commands": commands,
    "introduction": introduction,
    "keys": keys,
    "options": options,
    "overview": overview,
    "statuses": statuses,
}


def page(source: Path) -> str:
    """The man page of `NAME.SECTION.txt`."""
    name, _, section = source.stem.rpartition(".")
    begin = [
        f'.\\" Made by scripts/man.py of scripts/man/{source.name}, the command line and config/runtime.toml.',
        f'.TH {escaped(name).upper()} {section} "" "gpuhook" "gpuhook"',
        ".nh",
        ".ad l",
    ]
    return "\n".join([*begin, *body(source.read_text(), GATHERED, "")]) + "\n"


def written() -> dict[str, str]:
    """Each page by its file's name."""
    return {source.stem: page(source) for source in sorted(SOURCES.glob("*.txt"))}


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for file, text in written().items():
        (PAGES / file).write_text(text)
