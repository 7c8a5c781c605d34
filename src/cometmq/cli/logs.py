"""Logging of the command line: one line an event, to standard error.

    2026-03-04T05:06:07.089 INFO cometmq.broker.app ready port=10911

Modules log ``event key=value key=value``; nothing here changes what they say. Line breaks and other
control characters are spelled out (``\\n``, ``\\x1b``), so that a line stays one event; only a
traceback adds lines, each indented. What one peer or one kind of event may write is bounded
(core/loglimits.py).
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from cometmq.core.clock import Clock, SystemClock
from cometmq.core.loglimits import LogLimiter, indented_traceback, one_line

LEVELS = ("debug", "info", "warning", "error")


class LineFormatter(logging.Formatter):
    """One event as one line: time with milliseconds, level, module, message."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without a traceback."""
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: tuple[object, ...]) -> str:
        """The traceback, indented."""
        return indented_traceback(super().formatException(ei))  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:
        """The stack that a caller asked for, indented."""
        return indented_traceback(super().formatStack(stack_info))


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Writes what its limiter admits."""

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        super().__init__(stream)
        self._limiter = LogLimiter(clock)
        self.setFormatter(LineFormatter())

    def handle(self, record: logging.LogRecord) -> bool:
        """Write ``record`` if it is allowed, after summaries that are due."""
        self.acquire()
        try:
            admitted = self._limiter.admit(record)
            for each in admitted:
                self.emit(each)
        finally:
            self.release()
        return record in admitted

    def close(self) -> None:
        """Say what was left out and not told yet."""
        self.acquire()
        try:
            for each in self._limiter.rest():
                self.emit(each)
        finally:
            self.release()
        super().close()


def configure(level: str, stream: TextIO | None = None, clock: Clock | None = None) -> None:
    """Send every event of ``level`` and above to ``stream``, standard error when not given."""
    handler = BoundedHandler(sys.stderr if stream is None else stream, clock or SystemClock())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
