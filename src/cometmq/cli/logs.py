"""Logging of the command line: one line per event, to standard error or a file.

    2026-03-04T05:06:07.089 INFO cometmq.broker.app ready port=10911

Modules log ``event key=value key=value`` by a template: its words before the first ``key=`` are the
event, and each value extends to the next key. Values are written as in logfmt: as they are, or in
double quotes if they have spaces, quotes or control characters, which are escaped (``\\n``,
``\\x1b``). So one event stays one line; only a traceback adds lines, each indented. The format
``json`` writes one object per line, with numbers as numbers and the time in UTC. The format
``journal`` writes a priority for journald instead of the time.

The output about one peer or of one kind of event is limited, because a peer that sends garbage
decides how often a server logs, and what. Each kind of event (a logger and a message before
formatting) has an allowance of lines. Each peer has a smaller one for each kind. Each level has an
allowance of bytes. Events beyond an allowance are counted, and a line reports how many were left
out:

    2026-03-04T05:06:07.089 INFO cometmq.net.peer left_out=5312 of="connection closed peer=%s"

A peer is the host that a message names as ``peer=%s`` or ``address=%s``, without the port, because
that changes with each connection.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import sys
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import TextIO, TypeVar

import msgspec

from cometmq.core.allowance import Allowance
from cometmq.core.clock import Clock, SystemClock

log = logging.getLogger(__name__)

Key = TypeVar("Key")
Entry = TypeVar("Entry")

LINE_CHARACTERS = 2_000
TRACEBACK_CHARACTERS = 8_000
TRACEBACK_PAUSE_MS = 60_000
SUMMARY_PAUSE_MS = 10_000
#: Limit of remembered kinds, and of pairs of kind and peer; the oldest are dropped first.
TABLE_SIZE = 1_000
SUMMARIES_AT_ONCE = 20
SUMMARY_CHARACTERS = 200
LEFT_OUT = "left_out=%d of=%s"

_CONVERSION = re.compile(r"(peer=|address=)?%[-+ #0-9.]*+([a-zA-Z%])")
#: Characters that a logfmt value may contain only within quotes.
_QUOTED = ' "='
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Kind(msgspec.Struct):
    """State of one kind of event."""

    logger: str
    level: int
    template: str
    allowance: Allowance
    left_out: int = 0
    #: Monotonic time from which the next traceback may be written.
    traceback_from_ms: int | None = None


class LogLimiter:
    """Decides for each event whether it is written, and reports the omitted ones at intervals.

    It has no lock of its own: the handler holds its lock when it calls.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kinds: dict[tuple[str, str], Kind] = {}
        self._peers: dict[tuple[str, str, str], Allowance] = {}
        self._levels: dict[int, Allowance] = {}
        self._summary_from_ms = clock.monotonic_ms() + SUMMARY_PAUSE_MS

    def admit(self, record: logging.LogRecord) -> list[logging.LogRecord]:
        """Return the records to write now: summaries that are due, and ``record`` if it is allowed.

        If its traceback is left out, a copy of the record is returned, because other handlers see
        the original too.
        """
        now_ms = self._clock.monotonic_ms()
        admitted = self._summaries(now_ms) if now_ms >= self._summary_from_ms else []
        template = str(record.msg)[:LINE_CHARACTERS]
        kind = self._kind(record, template, now_ms)
        if not self._lines_allowed(kind, record, now_ms):
            kind.left_out += 1
            return admitted
        if record.exc_info and not self._traceback_allowed(kind, now_ms):
            record = copy.copy(record)
            record.exc_info = record.exc_text = None
        if self._level(record.levelno, now_ms).take(_size(record), now_ms):
            admitted.append(record)
        else:
            kind.left_out += 1
        return admitted

    def rest(self) -> list[logging.LogRecord]:
        """Return summaries of all omitted events not reported yet, for the end of a process."""
        return self._summaries(self._clock.monotonic_ms())

    def _lines_allowed(self, kind: Kind, record: logging.LogRecord, now_ms: int) -> bool:
        host = _host(kind.template, record.args)
        if host is not None:
            key = (kind.logger, kind.template, host)
            peer = self._peers.get(key)
            if peer is None:
                _make_room(self._peers)
                # 10 lines at once, then one a second.
                peer = self._peers[key] = Allowance(10, 1, now_ms)
            if not peer.take(1, now_ms):
                return False
        return kind.allowance.take(1, now_ms)

    @staticmethod
    def _traceback_allowed(kind: Kind, now_ms: int) -> bool:
        if kind.traceback_from_ms is not None and now_ms < kind.traceback_from_ms:
            return False
        kind.traceback_from_ms = now_ms + TRACEBACK_PAUSE_MS
        return True

    def _kind(self, record: logging.LogRecord, template: str, now_ms: int) -> Kind:
        key = (record.name, template)
        kind = self._kinds.get(key)
        if kind is None:
            _make_room(self._kinds)
            # 50 lines at once, then 5 a second.
            allowance = Allowance(50, 5, now_ms)
            kind = self._kinds[key] = Kind(record.name, record.levelno, template, allowance)
        return kind

    def _level(self, level: int, now_ms: int) -> Allowance:
        allowance = self._levels.get(level)
        if allowance is None:
            # 64 KiB at once, then 4 KiB a second.
            allowance = self._levels[level] = Allowance(64 * 1024, 4 * 1024, now_ms)
        return allowance

    def _summaries(self, now_ms: int) -> list[logging.LogRecord]:
        self._summary_from_ms = now_ms + SUMMARY_PAUSE_MS
        silenced = [kind for kind in self._kinds.values() if kind.left_out]
        silenced.sort(key=lambda kind: kind.left_out, reverse=True)
        records = []
        for kind in silenced[:SUMMARIES_AT_ONCE]:
            said = (kind.left_out, kind.template[:SUMMARY_CHARACTERS])
            kind.left_out = 0
            records.append(
                logging.LogRecord(kind.logger, kind.level, "", 0, LEFT_OUT, said, exc_info=None)
            )
        return records


def one_line(text: str) -> str:
    """Return ``text`` on one line: without control characters, at most ``LINE_CHARACTERS`` long.

    Control characters are written as in Python, an escape as ``\\x1b``.
    """
    shown = text[:LINE_CHARACTERS]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else _spelled(c) for c in shown)
    if max(len(text), len(shown)) > LINE_CHARACTERS:
        return f"{shown[:LINE_CHARACTERS]}... ({len(text)} characters)"
    return shown


def indented_traceback(text: str) -> str:
    """Return a traceback with each line indented, so that no line looks like an event.

    The middle of a long traceback is cut out.
    """
    if len(text) > TRACEBACK_CHARACTERS:
        head, tail = text[: TRACEBACK_CHARACTERS // 4], text[-TRACEBACK_CHARACTERS * 3 // 4 :]
        cut = len(text) - TRACEBACK_CHARACTERS
        text = f"{head}\n... ({cut} characters left out)\n{tail}"
    return "\n".join("    " + one_line(line) for line in text.splitlines())


def _spelled(character: str) -> str:
    short = _SHORT_ESCAPES.get(character)
    return short if short else character.encode("unicode_escape").decode("ascii")


def _host(template: str, args: object) -> str | None:
    """Return the host of the peer that an event names; None if it names none."""
    if not isinstance(args, tuple) or ("peer=%" not in template and "address=%" not in template):
        return None
    place = 0
    for found in _CONVERSION.finditer(template):
        if found[2] == "%":
            continue
        if found[1]:
            address = str(args[place])[:SUMMARY_CHARACTERS] if place < len(args) else ""
            return address.rpartition(":")[0] or address
        place += 1
    return None


def _size(record: logging.LogRecord) -> int:
    """Return the maximum size of ``record`` in a log; time, level and name count as 100 bytes."""
    try:
        message = record.getMessage()
    except Exception:  # wrong number of arguments: the handler reports it
        message = str(record.msg)
    size = 100 + min(len(one_line(message).encode(errors="replace")), 4 * LINE_CHARACTERS)
    if record.exc_info and record.exc_info[0] is not None:
        lines = traceback.format_exception(*record.exc_info)
        size += min(TRACEBACK_CHARACTERS, sum(map(len, lines)))
    return size


def _make_room(table: dict[Key, Entry]) -> None:
    if len(table) >= TABLE_SIZE:
        del table[next(iter(table))]


# ------------------------------------------------------------------------------------------ fields


@dataclass(frozen=True, slots=True)
class Template:
    """A message before formatting: the event, and the keys with their values.

    Each part has its text and the number of arguments that it takes.
    """

    event: tuple[str, int]
    fields: tuple[tuple[str, str, int], ...]


def parse_template(text: str) -> Template:
    """Split a message before formatting into its event and its fields."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    for word in text.split(" "):
        key, equals, rest = word.partition("=")
        if equals and key.replace("_", "").isalnum() and key.isascii():
            parts.append((key, [rest]))
        else:
            parts[-1][1].append(word)
    (_, event), *fields = [(key, " ".join(words)) for key, words in parts]
    return Template(
        (_as_text(event), _count(event)),
        tuple((key, _as_text(value), _count(value)) for key, value in fields),
    )


def _as_text(text: str) -> str:
    """Return the template with ``%s`` in place of ``%r`` and ``%a``."""
    return _CONVERSION.sub(
        lambda found: found[0][:-1] + "s" if found[2] in "ra" else found[0], text
    )


def _count(text: str) -> int:
    return sum(found[2] != "%" for found in _CONVERSION.finditer(text))


def plain(value: object) -> object:
    """Return a value as a log shows it: a number as it is, all others as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and not isinstance(value, Enum):
        return value
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}" if str(value) else type(value).__name__
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(str(plain(each)) for each in value)
    return "none" if value is None else str(value)


def event_of(record: logging.LogRecord) -> tuple[str, list[tuple[str, object]]]:
    """Return the event of a record, and its fields in order.

    If a field consists of one argument that is a number, its value is that number, not a text.
    """
    template = _template(str(record.msg))
    args = record.args or ()
    if not isinstance(args, tuple):
        return record.getMessage(), []
    if not args:
        # Nothing is formatted then: a percent sign stands for itself.
        template = parse_template(str(record.msg).replace("%", "%%"))
    values = [plain(each) for each in args]
    try:
        taken, text = template.event[1], template.event[0]
        event = text % tuple(values[:taken])
        fields: list[tuple[str, object]] = []
        for key, text, count in template.fields:
            here = values[taken : taken + count]
            taken += count
            is_alone = text in ("%s", "%d") and count == 1
            fields.append((key, here[0] if is_alone and here else text % tuple(here)))
    except (TypeError, ValueError):
        return record.getMessage(), []
    if taken != len(values):
        return record.getMessage(), []
    return event, fields


@lru_cache(maxsize=TABLE_SIZE)
def _template(text: str) -> Template:
    return parse_template(text)


def logfmt(value: object) -> str:
    """Return a value as it is, or in double quotes if a parser could not tell where it ends."""
    text = str(value)
    if text and text.isprintable() and not any(mark in text for mark in _QUOTED):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{one_line(escaped)}"'


# ----------------------------------------------------------------------------------------- handlers

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json", "journal")
#: Priorities of journald and syslog.
_PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}


class LineFormatter(logging.Formatter):
    """Formats one event as one line: time with milliseconds, level, logger, message.

    For journald, a priority takes the place of time and level.
    """

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03d"

    def __init__(self, *, journal: bool = False) -> None:
        head = "" if journal else "%(asctime)s %(levelname)s "
        super().__init__(f"{head}%(name)s %(message)s")
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the lines of a traceback."""
        text = super().format(record)
        if not self._journal:
            return text
        priority = f"<{_PRIORITIES.get(record.levelname, 5)}>"
        return "\n".join(priority + line for line in text.splitlines())

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without a traceback."""
        event, fields = event_of(record)
        shown = [event] * bool(event) + [f"{key}={logfmt(value)}" for key, value in fields]
        record.message = one_line(" ".join(shown))
        return super().formatMessage(record)

    def formatException(self, ei: tuple[object, ...]) -> str:
        """Return the traceback, indented."""
        return indented_traceback(super().formatException(ei))  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:
        """Return the stack, indented."""
        return indented_traceback(super().formatStack(stack_info))


class JsonFormatter(logging.Formatter):
    """Formats one event as one JSON object: time, level, logger, event, and the fields.

    A traceback is in ``exception``. A field with one of these names gets an underscore at its end.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the object."""
        event, fields = event_of(record)
        seconds, ms = divmod(int(record.created * 1_000), 1_000)
        found: dict[str, object] = {
            "time": f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "event": event[:LINE_CHARACTERS],
        }
        if record.exc_info and record.exc_info[0] is not None:
            lines = "".join(traceback.format_exception(*record.exc_info))
            found["exception"] = lines[-TRACEBACK_CHARACTERS:]
        for key, value in fields:
            shown = value[:LINE_CHARACTERS] if isinstance(value, str) else value
            found[f"{key}_" if key in found else key] = shown
        # ASCII only, so that every viewer shows it; all other characters are escaped.
        return json.dumps(found, default=str)


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Writes the records that its limiter admits, to a stream or to the file at ``path``."""

    def __init__(self, stream: TextIO, clock: Clock, *, path: Path | None = None) -> None:
        super().__init__(stream)
        self._limiter = LogLimiter(clock)
        self._path = path
        self.setFormatter(LineFormatter())

    def handle(self, record: logging.LogRecord) -> bool:
        """Write ``record`` if it is admitted, after summaries that are due."""
        self.acquire()
        try:
            admitted = self._limiter.admit(record)
            for each in admitted:
                self.emit(each)
        finally:
            self.release()
        return record in admitted

    def reopen(self) -> None:
        """Open the file again, after it was renamed. If that fails, go on with the old one."""
        if self._path is None:
            return
        try:
            opened = _open(self._path)
        except OSError as error:
            log.error("log_not_reopened path=%s error=%s", self._path, error)
            return
        previous = self.setStream(opened)
        if previous is not None:
            previous.close()

    def close(self) -> None:
        """Write the remaining summaries of omitted events, then close."""
        self.acquire()
        try:
            for each in self._limiter.rest():
                self.emit(each)
            if self._path is not None:
                self.stream.close()
        finally:
            self.release()
        super().close()


def _open(path: Path) -> TextIO:
    """Open a log for appending, so that it may also be truncated while it is written."""
    return path.open("a", encoding="utf-8", errors="backslashreplace")


def configure(
    level: str,
    stream: TextIO | None = None,
    clock: Clock | None = None,
    *,
    form: str = "text",
    path: Path | None = None,
) -> None:
    """Write every event of ``level`` and above in ``form``, one of FORMATS.

    Events go to the file at ``path``, else to ``stream``, else to standard error. Raises OSError if
    the file cannot be opened.
    """
    stream = _open(path) if path is not None else sys.stderr if stream is None else stream
    handler = BoundedHandler(stream, clock or SystemClock(), path=path)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    elif form == "journal":
        handler.setFormatter(LineFormatter(journal=True))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def reopen() -> None:
    """Open the log file again, if there is one, after a rotation renamed it."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, BoundedHandler):
            handler.reopen()
