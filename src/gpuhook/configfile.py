"""runtime.toml itself: whom it may come from, what it may say, and the compiled forms made of it.

Cold: imported when runtime.toml changed, and by the CLI. `gpuhook.config` is what a start loads.
"""

import contextlib
import difflib
import os
import posix
import re
import tomllib
from typing import Any, NamedTuple, NoReturn

from gpuhook import config as hot
from gpuhook import configtrust, fastpath, jsonio, linux, log, requirement, tomlerror
from gpuhook.config import LIMIT, Config
from gpuhook.configvalue import (
    BadValueError,
    Check,
    absolute_path,
    annotation_prefix,
    boolean,
    capabilities,
    deep_path,
    file_pattern,
    list_of,
    log_file,
    nearest,
    one_of,
    program,
    seconds,
    shape,
    variable,
)
from gpuhook.errors import GpuhookError, shown

_MOST_PROBLEMS = 64  # that are looked for
_MOST_PARTS = 100  # of a dotted key; the keys that there are have two
_QUOTED = re.compile(r""""[^"]*"|'[^']*'""")
_DIGITS = "a number of too many digits"
_NO_DATE = 86_400 * 10**9  # ns; a file of the first day of 1970 carries no date (Nix, ostree)


class Key(NamedTuple):
    """One key of runtime.toml: its section and name, the field of Config it sets, and the check that converts it."""

    section: str
    name: str
    field: str
    check: Check

    @property
    def dotted(self) -> str:
        """The key as people write it: `section.name`."""
        return f"{self.section}.{self.name}"


class Problem(NamedTuple):
    """One thing that is wrong with a runtime.toml; `line` counts from 1, 0 where there is none to point at."""

    line: int
    key: str
    text: str
    hint: str = ""

    def sentence(self, path: str) -> str:
        """`PATH:LINE: KEY: what is wrong`, without the parts that are empty."""
        place = f"{path}:{self.line}" if self.line else path
        return f"{place}: {self.key}: {self.text}" if self.key else f"{place}: {self.text}"


KEYS = (
    Key("runtime", "low-level", "low_level", list_of(program, least=1, most=16)),
    Key("hook", "stage", "stage", one_of("prestart", "createRuntime")),
    Key("hook", "deadline", "deadline", seconds(600)),
    Key("driver", "driver-root", "driver_root", absolute_path),
    Key("driver", "dev-root", "dev_root", absolute_path),
    Key("driver", "proc-root", "proc_root", absolute_path),
    Key("driver", "sys-root", "sys_root", absolute_path),
    Key("driver", "library-dirs", "library_dirs", list_of(absolute_path)),
    Key("driver", "extra-libraries", "extra_libraries", list_of(file_pattern)),
    Key("driver", "excluded-libraries", "excluded_libraries", list_of(file_pattern)),
    Key("driver", "sockets", "sockets", list_of(deep_path)),
    Key("driver", "directories", "directories", list_of(deep_path)),
    Key("driver", "nvml-deadline", "nvml_deadline", seconds(120)),
    Key("driver", "make-nodes", "make_nodes", boolean),
    Key("request", "accept-env-when-unprivileged", "accept_env_when_unprivileged", boolean),
    Key("request", "accept-devices-as-volume-mounts", "accept_devices_as_volume_mounts", boolean),
    Key("request", "accept-label-annotations", "accept_label_annotations", boolean),
    Key("request", "annotation-prefixes", "annotation_prefixes", list_of(annotation_prefix, most=16)),
    Key("request", "swarm-resources", "swarm_resources", list_of(variable, most=16)),
    Key("request", "legacy-images", "legacy_images", boolean),
    Key("request", "supported-driver-capabilities", "supported_capabilities", capabilities),
    Key("requirement", "policy", "policy", one_of(*requirement.POLICIES)),
    Key("requirement", "allow-disable-require", "allow_disable_require", boolean),
    Key("requirement", "cuda-compat", "cuda_compat", one_of("path", "off")),
    Key("log", "file", "log_file", log_file),
    Key("log", "level", "log_level", one_of(*log.LEVELS)),
)
SECTIONS = tuple(dict.fromkeys(key.section for key in KEYS))


# --- a whole file -------------------------------------------------------------------------------------------------


class Parsed(NamedTuple):
    """What a runtime.toml says: the configuration, the dotted keys that it sets itself, and all that is wrong."""

    config: Config
    given: frozenset[str]
    problems: tuple[Problem, ...]


def load(path: str) -> tuple[Config, os.stat_result | None]:
    """The configuration in `path` and the status of the file it was read from; defaults and None if it is not there.

    Raises config-invalid for the first thing that is wrong with it, and config-untrusted.
    """
    if not os.path.lexists(path):
        return Config(), None
    data, status = configtrust.read(path, LIMIT)
    parsed = parse(data)
    if parsed.problems:
        refuse(path, parsed.problems[:1], len(parsed.problems) - 1)
    return parsed.config, status


def refuse(path: str, problems: tuple[Problem, ...], more: int = 0) -> NoReturn:
    """Raise config-invalid with each of the problems; `more` says how many others there are.

    Of several problems each has its hint with it.
    """
    if len(problems) > 1:
        lines = [problem.sentence(path) + (f" ({problem.hint})" if problem.hint else "") for problem in problems]
        raise GpuhookError("config-invalid", "\n  ".join(lines), f"correct these {len(lines)} places")
    hints = [problem.hint for problem in problems if problem.hint]
    if more > 0:
        hints.append(f"{more} more: run gpuhook config validate")
    raise GpuhookError("config-invalid", problems[0].sentence(path), "\n".join(hints))


def parse(data: bytes) -> Parsed:
    """Read the text of a runtime.toml. Never raises: what is wrong is in `problems`, in the order of the file."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Parsed(Config(), frozenset(), (Problem(line, "", "no UTF-8 text", "save it as UTF-8"),))
    deep = _deep_key(text)
    if deep:
        return Parsed(
            Config(), frozenset(), (Problem(deep, "", f"a key of more than {_MOST_PARTS} parts", _TOML_FORM),)
        )
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return Parsed(Config(), frozenset(), (_no_toml(text, error),))
    except ValueError:  # the interpreter's own
        return Parsed(Config(), frozenset(), (Problem(_long_number(text), "", _DIGITS),))
    lines = text.splitlines()
    problems: list[Problem] = []
    given: dict[str, Any] = {}
    for section, table in tree.items():
        if len(problems) >= _MOST_PROBLEMS:  # each takes a search
            break
        if section not in SECTIONS:
            problems.append(_unknown_section(lines, section))
        elif not isinstance(table, dict):
            text = f"must be a section, is {shape(table)}"
            problems.append(Problem(find(lines, "", section), section, text, f"write [{section}] and its keys below"))
        else:
            problems += _read_section(lines, section, table, given)
    problems.sort(key=lambda problem: problem.line)
    fields = {key.field: given[key.dotted] for key in KEYS if key.dotted in given}
    return Parsed(Config(**fields), frozenset(given), tuple(problems))


def _read_section(lines: list[str], section: str, table: dict[str, Any], given: dict[str, Any]) -> list[Problem]:
    """Put the checked values of one section into `given`; what is wrong with the others."""
    known = {key.name: key for key in KEYS if key.section == section}
    problems: list[Problem] = []
    for name, item in table.items():
        if len(problems) >= _MOST_PROBLEMS:
            break
        if name not in known:
            problems.append(_unknown_key(lines, section, name))
            continue
        try:
            given[known[name].dotted] = known[name].check(item)
        except BadValueError as bad:
            line = find(lines, section, name, bad.part)
            problems.append(Problem(line, f"{section}.{name}", bad.text, bad.hint))
        except ValueError:  # what a message can't say: a hexadecimal number without an end
            problems.append(Problem(find(lines, section, name), f"{section}.{name}", _DIGITS))
    return problems


def _deep_key(text: str) -> int:
    """The line with a key of too many parts, or 0: tomllib takes minutes and gigabytes for one of thousands."""
    if text.count(".") <= _MOST_PARTS:
        return 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > _MOST_PARTS and _QUOTED.sub("", line).partition("#")[0].count(".") > _MOST_PARTS:
            return number
    return 0


def _long_number(text: str) -> int:
    """The line with a number that the interpreter refuses to read."""
    found = re.search(r"[0-9][0-9_]{4000}", text)
    return text.count("\n", 0, found.start()) + 1 if found else 0


_TOML_FORM = "below a [section] write lines of the form key = value; text values need double quotes"
# words of tomllib -> what to do
_TOML_HINTS = {
    "table declaration": "write the section's name between [ and ]",
    "unclosed array": 'close the list with ]: ["one", "two"]',
    "invalid value": "text values need double quotes",
    "illegal character '\\n'": "close the text with a double quote",
    "unterminated string": "close the text with a double quote",
}


def _no_toml(text: str, error: Exception) -> Problem:
    """A Problem for what tomllib refused."""
    text = text.rstrip("\n")
    wrong = tomlerror.of(text, str(error) if not isinstance(error, RecursionError) else "nested too deeply")
    lines = text.split("\n")
    quoted = lines[wrong.line - 1].strip() if 0 < wrong.line <= len(lines) else ""
    hint = wrong.hint or next((hint for words, hint in _TOML_HINTS.items() if words in wrong.text), _TOML_FORM)
    return Problem(wrong.line, "", f"no TOML: {wrong.text}" + (f", in {shown(quoted)}" if quoted else ""), hint)


def _unknown_section(lines: list[str], section: str) -> Problem:
    line = find(lines, section, "") or find(lines, "", section)
    home = [key.dotted for key in KEYS if key.name == section]
    if home:
        return Problem(line, section, "stands outside of its section", f"write it below [{home[0].split('.')[0]}]")
    known = "there are " + ", ".join(f"[{name}]" for name in SECTIONS)
    return Problem(line, shown(section)[1:-1], "no such section", nearest(section, SECTIONS, known))


def _unknown_key(lines: list[str], section: str, name: str) -> Problem:
    home = [key.section for key in KEYS if key.name == name]
    if home:
        hint = f"{name} belongs below [{home[0]}]"
    else:
        here = tuple(key.name for key in KEYS if key.section == section)
        hint = nearest(name, here) or _elsewhere(name) or f"there are {', '.join(here)}"
    return Problem(find(lines, section, name), f"{section}.{shown(name)[1:-1]}", "no such key", hint)


def _elsewhere(name: str) -> str:
    """`did you mean` a key of another section, with that section; empty where none is near."""
    near = difflib.get_close_matches(name.lower().replace("_", "-"), [key.name for key in KEYS], 1)
    key = next((key for key in KEYS if key.name in near), None)
    return f"did you mean {key.dotted} (below [{key.section}])" if key else ""


def find(lines: list[str], section: str, key: str, part: str = "") -> int:
    """The line of a key (of the section's header where `key` is empty); with `part`, of that part of its value.

    TOML parsers keep no places, so this searches: headers, bare and quoted keys, dotted keys. 0 where there is none.
    """
    now, inside, at_section = "", "", 0
    for number, line in enumerate(lines, 1):
        if inside:
            inside = "" if line.count(inside) % 2 else inside
            continue
        header = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line)
        if header:
            now = _bare(header[1])
            at_section = number if now == section else at_section
        elif found := re.match(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=""", line):
            dotted = f"{now}.{_bare(found[1])}".strip(".")
            if key and dotted == f"{section}.{key}".strip("."):
                return _line_of_part(lines, number, part)
            if dotted == section and (not key or re.search(rf"\b{re.escape(key)}\b", line)):
                return number
        inside = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")
    return at_section


def _bare(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _line_of_part(lines: list[str], number: int, part: str) -> int:
    """The line from `number` on that has `part` in quotes, as long as the value can reach; else `number`."""
    for ahead, line in enumerate(lines[number - 1 : number + 99], number):
        if ahead > number and re.match(r"\s*(\[[^\]\"']*\]\s*(#.*)?$|[A-Za-z0-9_-]+\s*=)", line):
            break
        if part and (f'"{part}"' in line or f"'{part}'" in line):
            return ahead
    return number


# --- the compiled forms -------------------------------------------------------------------------------------------


def store(state: str, config: Config, key: list[str | int], times: tuple[int, int]) -> None:
    """Write config.json for Python and shim.sh for the sh launcher into the state directory, silently if at all.

    shim.sh gets the times of runtime.toml: the launcher takes it only while neither file is newer than the other, so
    that a runtime.toml put in place with an old date (packages do that) counts as a change too. Where every file has
    the same date (the Nix store: 1, ostree: 0) dates tell nothing, and sh gets no file: Python decides each time.
    A state directory that others may write is closed to them first.
    """
    fields = {name: getattr(config, name) for name in hot.FIELDS}
    fields = {name: list(item) if isinstance(item, tuple) else item for name, item in fields.items()}
    with contextlib.suppress(OSError):
        os.makedirs(state, 0o755, exist_ok=True)
        status = posix.stat(state)
        if status.st_uid == posix.geteuid() and not hot.trusted(status):
            posix.chmod(state, status.st_mode & 0o7755)
            status = posix.stat(state)
        if not hot.trusted(status):
            return
        if times[1] > _NO_DATE:
            linux.write_beside(f"{state}/shim.sh", fastpath.render(config), 0o644, times=times)
        else:
            with contextlib.suppress(FileNotFoundError):
                posix.unlink(f"{state}/shim.sh")
        linux.write_beside(f"{state}/config.json", jsonio.dumps({"key": key, "fields": fields}), 0o644)
