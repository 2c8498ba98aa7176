"""The command line of the runtime that the shim stands for, understood as that runtime understands it.

Hot path, pure. Two dialects: `runc` (urfave/cli: `-flag`, `--flag`, `=` or the next argument, options also after the
container's id) and `crun` (argp: long options by unique prefix, short ones in clusters with the value attached, none
after the container's id).
A form that is not understood is an error on `create` and `run` and nobody's business elsewhere.
"""

from gpuhook.errors import GpuhookError
from gpuhook.model import value

CREATING = ("create", "run")

# option -> whether it takes a value. runc 1.0 to 1.3, main.go, create.go, run.go.
_RUNC = {
    "": {
        **dict.fromkeys(("debug", "systemd-cgroup", "help", "h", "version", "v"), False),
        **dict.fromkeys(("log", "log-format", "root", "criu", "rootless"), True),
    },
    "create": {
        **dict.fromkeys(("no-pivot", "no-new-keyring", "help", "h"), False),
        **dict.fromkeys(("bundle", "b", "console-socket", "pid-file", "preserve-fds", "pidfd-socket"), True),
    },
}
_RUNC["run"] = {**_RUNC["create"], **dict.fromkeys(("detach", "d", "keep", "no-subreaper"), False)}

# crun 1.8 to 1.29: src/crun.c, create.c, run.c.
_CRUN = {
    "": {
        **dict.fromkeys(("debug", "systemd-cgroup", "help", "?", "usage", "version", "v", "V"), False),
        **dict.fromkeys(("cgroup-manager", "log", "log-format", "log-level", "root", "rootless"), True),
    },
    "create": {
        **dict.fromkeys(("no-new-keyring", "no-pivot", "no-subreaper", "help", "?", "usage"), False),
        **dict.fromkeys(("bundle", "b", "config", "f", "console-socket", "pid-file", "preserve-fds"), True),
    },
}
_CRUN["run"] = {**_CRUN["create"], **dict.fromkeys(("detach", "d", "keep"), False)}

_LONG = {"b": "bundle", "f": "config", "d": "detach", "h": "help", "?": "help", "v": "version", "V": "version"}

_TEXTS = ("help", "version", "usage")
_FALSE = ("0", "f", "F", "false", "False", "FALSE")  # what Go's strconv.ParseBool takes for `--help=false`


@value
class Command:
    """What a command line says. `verb` is `` where there is none (`--version`); `options` by long name, the last wins.

    `asks_help`: the runtime will print a text and create nothing.
    """

    verb: str
    options: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]

    def get(self, name: str, default: str = "") -> str:
        """The value of an option, the last one given."""
        for option, text in reversed(self.options):
            if option == name:
                return text
        return default

    @property
    def asks_help(self) -> bool:
        """Whether the runtime will print a text and create nothing."""
        return any(option in _TEXTS and text not in _FALSE for option, text in self.options)


def parse(dialect: str, argv: "list[str]") -> Command:
    """Understand the arguments after argv[0]. GpuhookError `usage` on `create` and `run` for a form not understood.

    For every other verb the options after it are left alone: the runtime reads them, not the shim.
    """
    crun = dialect == "crun"
    tables = _CRUN if crun else _RUNC
    options: list[tuple[str, str]] = []
    try:
        rest = _read_crun(tables[""], argv, options) if crun else _read_runc(tables[""], argv, options, stop=True)
    except GpuhookError:
        if any(verb in argv for verb in CREATING):
            raise
        rest = []  # an option that is not known here, of a command line that creates nothing
    if not rest:
        return Command("", tuple(options), ())
    verb = rest[0]
    if verb not in CREATING:
        return Command(verb, tuple(options), tuple(rest[1:]))
    table, words = tables[verb], rest[1:]
    arguments = _read_crun(table, words, options) if crun else _read_runc(table, words, options, stop=False)
    return Command(verb, tuple(options), tuple(arguments))


def before(dialect: str, argv: list[str]) -> Command:
    """The options before the verb, as far as they are understood; for saying what is wrong with the rest."""
    options: list[tuple[str, str]] = []
    try:
        if dialect == "crun":
            _read_crun(_CRUN[""], argv, options)
        else:
            _read_runc(_RUNC[""], argv, options, stop=True)
    except GpuhookError:
        pass
    return Command("", tuple(options), ())


def _read_runc(table: dict[str, bool], argv: list[str], options: list[tuple[str, str]], *, stop: bool) -> list[str]:
    """urfave/cli over Go's flag package: one or two dashes, `=` or the next word; `--` ends the options.

    Returns the other words; with `stop` the first of them ends the options too.
    """
    words = list(argv)
    arguments: list[str] = []
    while words:
        word = words[0]
        if word == "--":
            return arguments + words[1:]
        if len(word) < 2 or word[0] != "-":
            if stop:
                return words
            arguments.append(words.pop(0))
            continue
        words.pop(0)
        name, equals, text = word[2 if word[1] == "-" else 1 :].partition("=")
        if name not in table:
            raise _unknown(word)
        if table[name] and not equals:
            if not words:
                raise _without_value(word)
            text = words.pop(0)
        options.append((_LONG.get(name, name), text))
    return arguments


def _read_crun(table: dict[str, bool], argv: list[str], options: list[tuple[str, str]]) -> list[str]:
    """argp over getopt_long, in order: `--name` by any unique prefix, `-x` in clusters; `--` or a word ends them.

    Returns the other words.
    """
    words = list(argv)
    while words:
        word = words[0]
        if word == "--":
            return words[1:]
        if len(word) < 2 or word[0] != "-":
            return words
        words.pop(0)
        if word[1] == "-":
            given, equals, text = word[2:].partition("=")
            name = _by_prefix(table, given, word)
            if table[name] and not equals:
                if not words:
                    raise _without_value(word)
                text = words.pop(0)
            elif equals and not table[name]:
                raise GpuhookError("usage", f"option {word!r} takes no value", _HELP)
            options.append((name, text))
            continue
        cluster = word[1:]
        while cluster:
            name, cluster = cluster[0], cluster[1:]
            if name not in table:
                raise _unknown(word)
            text = ""
            if table[name]:
                if not cluster and not words:
                    raise _without_value(word)
                text, cluster = cluster or words.pop(0), ""
            options.append((_LONG.get(name, name), text))
    return []


def _by_prefix(table: dict[str, bool], given: str, word: str) -> str:
    if given in table and len(given) > 1:
        return given
    found = [name for name in table if len(name) > 1 and name.startswith(given)]
    if len(found) == 1 or found == [
        "root",
        "rootless",
    ]:  # crun 1.8 takes `--roo`; either has a value, and none is read here
        return found[0]
    raise _unknown(word)


_HELP = "call it as the low-level runtime is called: gpuhook-runtime [options] create --bundle DIR ID"


def _unknown(word: str) -> GpuhookError:
    return GpuhookError("usage", f"option {word!r} is not one that the low-level runtime is known to take", _HELP)


def _without_value(word: str) -> GpuhookError:
    return GpuhookError("usage", f"option {word!r} stands last and lacks its value", _HELP)
