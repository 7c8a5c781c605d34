"""Output of commands: tables and lines for people; JSON, YAML and NDJSON for programs.

Programs get one form from all commands:

    json, yaml   one document: {"command": "topic list", "items": [...]}
    ndjson       the items, one a line

An item is an object. Numbers are numbers, times are ISO 8601 in UTC with T and Z, an address is
{"host": ..., "port": ...}, and an unknown value is null. :func:`schema` returns the JSON schema.

On a terminal, a table is fitted to its width: long cells are cut, and if that is not enough, each
row is printed as several lines. A table that is piped is never cut or folded.
"""

from __future__ import annotations

import json
import math
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from cometmq.cli.parser import terminal_width
from cometmq.core.errors import CometError
from cometmq.core.plural import plural

if TYPE_CHECKING:
    from rich.console import Console


T = TypeVar("T")

#: Blanks between two columns of a table, and the least width to which a column is cut.
GAP: Final = "  "
CUT_MIN: Final = 12
_PLAIN: Final = re.compile(r"[^\s\"=]+")


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """Result of a command: its rows, and ``notes``, which people see as lines below them.

    ``problem`` is the error message of a command that failed although it has rows. ``shown`` is
    printed for people in place of the rows: a text, or one value. ``exit_code`` ends the command
    with that code and no message. ``does`` replaces the command's own (see Command).
    """

    items: Sequence[T]
    notes: tuple[str, ...] = ()
    problem: str = ""
    shown: Any = None
    exit_code: int = 0
    does: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Address of a server or client."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address | None:
        """Return the address in ``host:port``, with brackets around IPv6; None for other text."""
        host, colon, port = text.strip().lstrip("/").rpartition(":")
        if not colon or not port.isdecimal():
            return None
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def when(ms: int) -> datetime | None:
    """Return the time of milliseconds since the epoch; None for 0 or less.

    Also None if it is out of range: some clients send uninitialized memory.
    """
    if ms <= 0:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def time_text(time: datetime) -> str:
    """Format a time as ISO 8601 in UTC, with T, milliseconds and Z."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ------------------------------------------------------------------------------- for programs


def plain(value: Any) -> Any:
    """Convert a value to what JSON can represent: objects, lists, text, numbers, null."""
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, Enum):
        return value.value if isinstance(value.value, str) else value.name
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no such number
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Path):
        return str(value)
    names = field_names(value)
    if names:
        return {name: plain(getattr(value, name)) for name in names}
    return [plain(each) for each in value]


def field_names(value: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass or struct; none for other values."""
    if is_dataclass(value):
        return tuple(each.name for each in fields(value))
    return tuple(getattr(value, "__struct_fields__", ()))


def show(
    command: str, result: Result[Any], form: str, *, does: str = "", one: bool = False
) -> None:
    """Print the result of a command in the format of --output.

    ``does`` is the word before each item of a command that changed something. ``one`` is True for a
    command that always returns one item.
    """
    if form == "ndjson":
        for item in result.items:
            print(to_json(item), flush=True)
    elif form in ("json", "yaml"):
        items = [plain(item) for item in result.items]
        document = {"command": command, "items": items}
        if result.problem:
            document["problem"] = result.problem
        print(to_yaml(document) if form == "yaml" else _json(document, indent=2))
    else:
        _show_people(result, does=does, one=one, wide=form == "wide")
        for note in result.notes:
            print(_lines(note))
    sys.stdout.flush()


def _show_people(result: Result[Any], *, does: str, one: bool, wide: bool) -> None:
    if isinstance(result.shown, str):
        print(_lines(result.shown))
    elif result.shown is not None:
        print_one(result.shown, wide=wide)
    elif does:
        for item in result.items:
            refused = "not " if getattr(item, "problem", None) else ""
            hidden = () if wide else _wide_only(item)
            print(f"{refused}{does} {line_of(item, hidden)}")
    elif one:
        for item in result.items:
            print_one(item, wide=wide)
    else:
        print_rows(result.items, wide=wide)


def to_json(value: Any) -> str:
    """Return a value as JSON on one line."""
    return _json(plain(value), separators=(",", ":"))


def to_yaml(value: Any) -> str:
    """Return a value as YAML."""
    import yaml

    form: Final = {"sort_keys": False, "default_flow_style": False}
    text: str = yaml.safe_dump(value, allow_unicode=True, **form)
    if not _is_encodable(text):
        text = yaml.safe_dump(value, allow_unicode=False, **form)
    return text.rstrip("\n")


def _json(value: Any, **form: Any) -> str:
    """Return JSON; in ASCII if standard output cannot encode its characters."""
    text = json.dumps(value, ensure_ascii=False, **form)
    return text if _is_encodable(text) else json.dumps(value, **form)


def _is_encodable(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


class Stream:
    """Prints rows one by one in the format of --output; leaving its block ends the document."""

    def __init__(self, command: str, form: str, *, does: str = "") -> None:
        self._command = command
        self._form = form
        self._does = does
        self._count = 0

    def __enter__(self) -> Self:
        if self._form == "json":
            print(f'{{\n  "command": {json.dumps(self._command)},\n  "items": [', end="")
        elif self._form == "yaml":
            print(f"command: {self._command}")
        return self

    def add(self, row: Any) -> None:
        """Print one row."""
        if self._form == "ndjson":
            print(to_json(row), flush=True)
        elif self._form == "json":
            print("," if self._count else "", f"\n    {to_json(row)}", sep="", end="", flush=True)
        elif self._form == "yaml":
            print("" if self._count else "items:\n", to_yaml([plain(row)]), sep="", flush=True)
        else:
            print(f"{self._does} {line_of(row)}".lstrip(), flush=True)
        self._count += 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        problem = str(error) if isinstance(error, CometError) else ""
        if self._form == "json":
            end = f',\n  "problem": {_json(problem)}' if problem else ""
            print(f"\n  ]{end}\n}}", flush=True)
        elif self._form == "yaml":
            end = "" if self._count else "items: []\n"
            end += to_yaml({"problem": problem}) + "\n" if problem else ""
            print(end, end="", flush=True)


def begin_watch(seconds: float, now_ms: int, form: str) -> None:
    """Clear the terminal before a repetition, and print the time above a table."""
    if form in ("table", "wide"):
        clear = "\x1b[H\x1b[2J\x1b[3J" if sys.stdout.isatty() else ""
        now = when(now_ms)
        print(f"{clear}every {seconds:g} s  {time_text(now) if now else ''}")


# ------------------------------------------------------------------------------- for people


def cell(value: Any) -> str:
    """Format a value for people; control characters are escaped."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, int | Address | Path):
        return escaped(str(value))
    if isinstance(value, Enum):
        return str(plain(value))
    if isinstance(value, Mapping):
        return " ".join(f"{escaped(str(key))}={cell(each)}" for key, each in value.items()) or "-"
    if field_names(value):
        return line_of(value)
    separator = "; " if value and field_names(value[0]) and not _is_leaf(value[0]) else ","
    return separator.join(cell(each) for each in value) or "-"


def escaped(text: str) -> str:
    """Return text with its control characters escaped, so that it cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def one_line(text: str) -> str:
    """Return a text on one line, with control characters escaped: servers may have sent it."""
    return escaped(" ".join(text.split()))


def _lines(text: str) -> str:
    """Return a text of several lines with its other control characters escaped."""
    return "\n".join(map(escaped, text.split("\n")))


def line_of(value: Any, hidden: Sequence[str] = ()) -> str:
    """Return a row as ``key=value`` words; texts with blanks, quotes or ``=`` are quoted.

    Unknown values and the ``hidden`` fields are left out. A row with a method ``line`` formats
    itself.
    """
    if isinstance(value, Mapping):
        pairs = dict(value)
    else:
        names = field_names(value)
        if not names:
            return cell(value)
        own = getattr(value, "line", None)
        if callable(own):
            return str(own())
        pairs = {name: getattr(value, name) for name in names}
    words = []
    for name, each in pairs.items():
        if each is None or name in hidden:
            continue
        text = cell(each)
        quoted = (
            text
            if _PLAIN.fullmatch(text) or not isinstance(each, str)
            else json.dumps(text, ensure_ascii=False)
        )
        words.append(f"{name}={quoted}")
    return " ".join(words)


def print_one(row: Any, *, wide: bool = False) -> None:
    """Print one value: all its fields as lines, then each list of rows as a table."""
    found = {name: _get(row, name) for name in _names(row)}
    tables = {name: each for name, each in found.items() if _is_table(each)}
    lines = {_title(name): cell(each) or "-" for name, each in found.items() if name not in tables}
    width = max(map(len, lines), default=0) + 1
    for name, text in lines.items():
        print(f"{name + ':':{width}}{GAP}{text}".rstrip())
    for name, rows in tables.items():
        print(f"\n{_title(name)}:")
        print_rows(rows, wide=wide)


def print_rows(rows: Sequence[Any], *, wide: bool = False) -> None:
    """Print a table of values of one type, a column for each field."""
    if not rows:
        print("none", file=sys.stderr)
        return
    hidden = () if wide else _wide_only(rows[0])
    names = [name for name in _names(rows[0]) if name not in hidden]
    if not names:
        for row in rows:
            print(cell(row))
        return
    headings = [name.replace("_", "-").upper() for name in names]
    right = [
        all(isinstance(_get(row, name), int | float | None) for row in rows)
        and not all(isinstance(_get(row, name), bool | None) for row in rows)
        for name in names
    ]
    cells = [[cell(_get(row, name)) for name in names] for row in rows]
    print_table(headings, cells, right)


def print_table(
    headings: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]
) -> None:
    """Print headings and rows in columns; ``right`` says which columns are aligned right."""
    widths = [
        max([text_width(heading), *(text_width(row[at]) for row in cells)])
        for at, heading in enumerate(headings)
    ]
    if sys.stdout.isatty():
        room = terminal_width() - len(GAP) * (len(widths) - 1)
        if not fit(
            widths, [CUT_MIN if not r else w for r, w in zip(right, widths, strict=True)], room
        ):
            _print_blocks(headings, cells)
            return
    for row in (headings, *cells):
        parts = [_padded(text, widths[at], right[at]) for at, text in enumerate(row)]
        print(GAP.join(parts).rstrip())


def fit(widths: list[int], least: Sequence[int], room: int) -> bool:
    """Reduce ``widths`` in place, the widest first, until their sum is at most ``room``.

    Returns False, with ``widths`` unchanged, if even the ``least`` widths do not fit.
    """
    if sum(min(w, m) for w, m in zip(widths, least, strict=True)) > room:
        return False
    while sum(widths) > room:
        widest = max(
            (at for at in range(len(widths)) if widths[at] > least[at]), key=widths.__getitem__
        )
        others = sorted((w for at, w in enumerate(widths) if at != widest), reverse=True)
        below = others[0] if others else 0
        to = max(
            min(below, widths[widest] - 1), least[widest], widths[widest] - (sum(widths) - room)
        )
        widths[widest] = to
    return True


def _print_blocks(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    width = max(map(len, headings)) + 1
    for number, row in enumerate(cells):
        if number:
            print()
        for heading, text in zip(headings, row, strict=True):
            print(f"{heading.lower() + ':':{width}} {text}".rstrip())


def text_width(text: str) -> int:
    """Return the number of columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )


def _padded(text: str, width: int, right: bool) -> str:
    size = text_width(text)
    if size > width:
        while text and text_width(text) >= width:
            text = text[:-1]
        text += "…"
        size = text_width(text)
    blank = " " * (width - size)
    return blank + text if right else text + blank


def _names(row: Any) -> tuple[str, ...]:
    return tuple(row) if isinstance(row, Mapping) else field_names(row)


def _get(row: Any, name: str) -> Any:
    return row.get(name) if isinstance(row, Mapping) else getattr(row, name)


def _wide_only(row: Any) -> tuple[str, ...]:
    return tuple(getattr(type(row), "WIDE", ()))


def _title(name: str) -> str:
    return name.replace("_", " ")


def _is_leaf(value: Any) -> bool:
    return isinstance(value, Address)


def _is_table(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and bool(_names(value[0]))
        and not _is_leaf(value[0])
    )


def body_text(body: bytes, limit: int = 200) -> str:
    """Return a body as text, shortened to ``limit`` characters, or its size if it is not text."""
    size = plural(len(body), "byte")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"<{size}>"
    if not text.isprintable() and not text.replace("\n", " ").isprintable():
        return f"<{size}>"
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def progress_console() -> Console | None:
    """Return a console on standard error for progress bars.

    Returns None if that is not a terminal, or without the extra ``cli``: nothing is drawn then.
    """
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(highlight=False, markup=False, stderr=True)
    return console if console.is_terminal else None


# ------------------------------------------------------------------------------- schema


def schema(item_types: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of all output; ``item_types`` has the row type of each command."""
    import msgspec

    ids: Final = "#/$defs/{name}"
    types = list(item_types.values())
    items, defs = msgspec.json.schema_components(types, ref_template=ids)
    for each in defs.values():
        for name, field in each.get("properties", {}).items():
            if name == "at" or name.endswith("_at"):
                _mark_time(field)
    documents = [
        {
            "properties": {
                "command": {"const": command},
                "items": {"type": "array", "items": item},
            }
        }
        for command, item in zip(item_types, items, strict=True)
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Output of cometmq with --output json",
        "type": "object",
        "required": ["command", "items"],
        "properties": {
            "command": {"type": "string"},
            "items": {"type": "array", "items": {"type": "object"}},
            "problem": {"type": "string"},
        },
        "oneOf": documents,
        "$defs": {name: defs[name] for name in sorted(defs)},
    }


def _mark_time(field: dict[str, Any]) -> None:
    """Mark a text field as a time; msgspec does that only for types with a time zone."""
    for kind in field.get("anyOf", [field]):
        if kind.get("type") == "string":
            kind["format"] = "date-time"
