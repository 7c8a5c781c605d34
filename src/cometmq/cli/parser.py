"""Parses command lines: turns the signature of a function into an argparse parser.

A parameter is an argument or an option. Its annotation says which, and how it is read:

    def create(
        topic: Annotated[str, Argument("TOPIC")],
        queues: Annotated[int, Option(min=1, help="Number of queues.")] = 8,
    ) -> None: ...

argparse is the only parser of this program, because it imports in 10 ms: servers have to respond
within 600 ms of their start (docs/decisions/0057-one-parser.md).
"""

from __future__ import annotations

import argparse
import inspect
import math
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    NoReturn,
    Union,
    get_args,
    get_origin,
)

from cometmq.core.errors import SettingsError

if TYPE_CHECKING:
    from cometmq.admin.messages import Position

HELP_WIDTH_MAX: Final = 100
REFUSED: Final = 2


@dataclass(frozen=True, slots=True)
class Argument:
    """A positional argument. ``read`` parses its text; it raises ValueError for an invalid one."""

    metavar: str = ""
    help: str = ""
    read: Callable[[str], Any] | None = None


class Option:
    """An option. The name ``--a/--no-a`` makes a switch that can be turned on and off.

    ``env`` names the environment variable that has its default. ``min`` and ``max`` limit a number.
    ``read`` parses the value, and raises ValueError for an invalid one. ``default`` is the text
    that the help shows as the default. ``alone`` is the value of an option given without one.
    """

    def __init__(
        self,
        *names: str,
        help: str = "",
        metavar: str = "",
        env: str = "",
        min: float | None = None,
        max: float | None = None,
        read: Callable[[str], Any] | None = None,
        default: str = "",
        alone: Any = None,
    ) -> None:
        self.alone = alone
        self.names = names
        self.help = help
        self.metavar = metavar
        self.env = env
        self.least = min
        self.most = max
        self.read = read
        self.default = default


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a command. ``kind`` is its type, or that of its items if ``several``."""

    name: str
    kind: Any
    note: Argument | Option
    default: Any
    needed: bool
    several: bool


_NEGATIVE: Final = re.compile(r"-(\d+(\.\d+)?(ms|s|m|h|d)?|\.\d+)\Z")


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors take one line, and whose examples keep their lines."""

    def __init__(
        self,
        prog: str,
        description: str = "",
        examples: Sequence[str] = (),
        color: bool = False,
    ) -> None:
        shown = "\n".join(f"  {line}" for line in examples)
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"examples:\n{shown}" if examples else None,
            formatter_class=_Formatter,
            allow_abbrev=False,
            add_help=False,
        )
        # From Python 3.14 on, help is in colours unless this says otherwise.
        self.color = color
        self.usage = f"{prog} [OPTION...]"
        self._positionals.title = "arguments"
        # The value of an option may be a time before now, such as -1h.
        self._negative_number_matcher = _NEGATIVE
        self.add_argument("-h", "--help", action="help", help="Print this help and exit.")

    def error(self, message: str) -> NoReturn:
        """Print one line that names the problem, and exit with code 2."""
        unknown = re.match(r"unrecognized arguments: (\S+)", message)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            message = f"there is no option {unknown[1]}" + nearest(unknown[1], known)
            if not unknown[1].startswith("-"):
                message = f"unexpected argument {unknown[1]!r}"
        line = " ".join(message.split())
        print(f"{self.prog}: {line}; see {self.prog} -h", file=sys.stderr)
        raise SystemExit(REFUSED)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Formats help for the width of the terminal, at most HELP_WIDTH_MAX."""

    def __init__(self, prog: str) -> None:
        width = min(HELP_WIDTH_MAX, terminal_width())
        super().__init__(prog, max_help_position=30, width=width)

    def add_usage(self, *given: Any, **named: Any) -> None:
        """Add the usage line, which begins with a capital letter."""
        super().add_usage(*given, **{"prefix": "Usage: ", **named})


def terminal_width() -> int:
    """Return the width of the terminal in columns; 80 if there is none."""
    try:
        return int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        try:
            return os.get_terminal_size(sys.stdout.fileno()).columns or 80
        except (OSError, ValueError):
            return 80


def nearest(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean ...?)" with the known word most like ``word``; "" if none is."""
    import difflib

    by_name = {each.lstrip("-"): each for each in known}
    found = difflib.get_close_matches(word.lstrip("-"), list(by_name), n=1, cutoff=0.6)
    return f" (did you mean {by_name[found[0]]!r}?)" if found else ""


# ------------------------------------------------------------------------------- signatures


def parameters(function: Callable[..., Any], *, skip: int = 0) -> list[Parameter]:
    """Return the parameters of a function, without the first ``skip``."""
    signature = inspect.signature(function, eval_str=True)
    return [_parameter(each) for each in list(signature.parameters.values())[skip:]]


def _parameter(each: inspect.Parameter) -> Parameter:
    kind = each.annotation
    note: Argument | Option | None = None
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        note = next((n for n in notes if isinstance(n, Argument | Option)), None)
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    several = get_origin(kind) in (list, tuple)
    if several:
        kind = get_args(kind)[0]
    needed = each.default is inspect.Parameter.empty
    if note is None:
        note = Argument() if needed else Option()
    default = None if needed else each.default
    return Parameter(each.name, kind, note, default, needed, several)


def add_parameters(parser: argparse.ArgumentParser, found: Iterable[Parameter]) -> None:
    """Add the arguments and options of these parameters to a parser."""
    for each in found:
        if isinstance(each.note, Argument):
            _add_argument(parser, each, each.note)
        else:
            _add_option(parser, each, each.note)


def values(options: argparse.Namespace, found: Iterable[Parameter]) -> dict[str, Any]:
    """Return the parsed values of these parameters, by name."""
    return {each.name: getattr(options, each.name) for each in found}


def _add_argument(parser: argparse.ArgumentParser, each: Parameter, note: Argument) -> None:
    count = ("+" if each.needed else "*") if each.several else (None if each.needed else "?")
    more: dict[str, Any] = {} if each.needed else {"default": each.default}
    choices = _choices(each.kind)
    shown = note.metavar or ("|".join(choices) if choices else each.name.upper())
    more_of_it = "..." if each.several else ""
    word = f"{shown}{more_of_it}" if each.needed else f"[{shown}{more_of_it}]"
    parser.usage = f"{parser.usage or parser.prog} {word}"
    parser.add_argument(
        each.name,
        metavar=shown,
        help=note.help.replace("%", "%%"),
        nargs=count,
        type=_reader(each.kind, note.read),
        **more,
    )


def _add_option(parser: argparse.ArgumentParser, each: Parameter, note: Option) -> None:
    names = list(note.names) or [f"--{each.name.rstrip('_').replace('_', '-')}"]
    help_text = note.help.replace("%", "%%") + _default_text(each, note)
    if each.kind is bool:
        negative = [name for name in names if "/" in name]
        if negative or each.default is True:
            long = next(name for name in names if name.startswith("--")).partition("/")[0]
            parser.add_argument(
                long,
                dest=each.name,
                action=argparse.BooleanOptionalAction,
                default=each.default,
                help=help_text,
            )
        else:
            parser.add_argument(*names, dest=each.name, action="store_true", help=help_text)
        return
    read = _reader(each.kind, note.read, note.least, note.most)
    default, needed = each.default, each.needed
    text = os.environ.get(note.env, "") if note.env else ""
    if text:
        default, needed = text, False  # argparse parses a default that is text
    choices = _choices(each.kind)
    shown = note.metavar or ("|".join(choices) if choices else _metavar(each.kind))
    if needed:
        parser.usage = f"{parser.usage or parser.prog} {names[0]} {shown}"
    more = {} if note.alone is None else {"nargs": "?", "const": note.alone}
    parser.add_argument(
        *names,
        **more,
        dest=each.name,
        metavar=shown,
        help=help_text,
        default=default,
        required=needed,
        action="append" if each.several else "store",
        type=read,
    )


def _default_text(each: Parameter, note: Option) -> str:
    shown = note.default
    if not shown and each.default not in (None, "", False, True) and not each.several:
        default = each.default.value if isinstance(each.default, Enum) else each.default
        shown = str(default)
    parts = [f"default: {shown}"] if shown else []
    parts += [f"environment: {note.env}"] if note.env else []
    parts += ["several times"] if each.several else []
    return f" ({'; '.join(parts)})".replace("%", "%%") if parts else ""


def _metavar(kind: Any) -> str:
    return {int: "N", float: "N", Path: "PATH"}.get(kind, "TEXT")


def _choices(kind: Any) -> list[str]:
    """Return the words that a Literal or an Enum accepts; [] for other types."""
    if get_origin(kind) is Literal:
        return [str(each) for each in get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(each.value) for each in kind]
    return []


def _reader(
    kind: Any,
    read: Callable[[str], Any] | None,
    least: float | None = None,
    most: float | None = None,
) -> Callable[[str], Any]:
    """Return a function that parses a word to ``kind``; it raises ArgumentTypeError."""
    choices = {choice.lower(): choice for choice in _choices(kind)}

    def parse(text: str) -> Any:
        try:
            if read is not None:
                return read(text)
            if choices:
                return _chosen(kind, choices, text)
            return (
                _bounded(_number(kind, text), least, most) if kind in (int, float) else kind(text)
            )
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _chosen(kind: Any, choices: Mapping[str, str], text: str) -> Any:
    found = choices.get(text.lower())
    if found is None:
        raise ValueError(f"{text!r} is not one of {', '.join(choices.values())}")
    return found if get_origin(kind) is Literal else kind(found)


def _number(kind: type[int] | type[float], text: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{text!r} is not a number")
    return value


def _bounded(value: float, least: float | None, most: float | None) -> float:
    if least is not None and value < least:
        raise ValueError(f"{value} is less than {least}")
    if most is not None and value > most:
        raise ValueError(f"{value} is more than {most}")
    return value


# ------------------------------------------------------------------------------- positions


def position_of(text: str, now_ms: int, *, offsets: bool = False) -> Position:
    """Parse a position: first, last, or a time as :func:`moment_of` reads it.

    A time may follow ``@``. With ``offsets``, digits are an offset; only after ``@`` are they a
    time in ms. Raises SettingsError.
    """
    from cometmq.admin import messages

    if text in ("first", "last"):
        return messages.EARLIEST if text == "first" else messages.LATEST
    if offsets and text.isascii() and text.isdigit() and len(text) < _DIGITS_MAX:
        return messages.at_offset(int(text))
    return messages.at_time(moment_of(text.removeprefix("@"), now_ms))


_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
#: Number of digits of 2**63: a time or an offset has fewer.
_DIGITS_MAX: Final = 19


def moment_of(text: str, now_ms: int) -> int:
    """Parse a time to ms since the epoch: ISO 8601 (UTC without a zone), ms, or -1h (an hour ago).

    Raises SettingsError.
    """
    if text.isascii() and text.isdigit() and len(text) < _DIGITS_MAX:
        return int(text)
    if before := re.fullmatch(r"-(\d{1,18}(?:\.\d{1,18})?)(ms|s|m|h|d)", text):
        return max(0, int(now_ms - float(before[1]) * _UNITS_MS[before[2]]))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            "position",
            f"{text!r} is not first, last, an offset, a time such as 2026-01-31T08:00, or @-1h",
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)
