"""Logging of the command line: one line per event, to standard error.

    2026-03-04T05:06:07.089 INFO cometmq.broker.app ready port=10911

Modules log ``event key=value key=value``; this module does not change that text. Line breaks and
other control characters are escaped (``\\n``, ``\\x1b``), so that one event stays one line; only a
traceback adds lines, each indented. The output of one peer or of one kind of event is limited
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
    """Formats one event as one line: time with milliseconds, level, module, message."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without a traceback."""
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: tuple[object, ...]) -> str:
        """Return the traceback, indented."""
        return indented_traceback(super().formatException(ei))  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:
        """Return the stack, indented."""
        return indented_traceback(super().formatStack(stack_info))


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Writes the records that its limiter admits."""

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        super().__init__(stream)
        self._limiter = LogLimiter(clock)
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

    def close(self) -> None:
        """Write the remaining summaries of suppressed records, then close."""
        self.acquire()
        try:
            for each in self._limiter.rest():
                self.emit(each)
        finally:
            self.release()
        super().close()


def configure(level: str, stream: TextIO | None = None, clock: Clock | None = None) -> None:
    """Send every event of ``level`` and above to ``stream``, or to standard error."""
    handler = BoundedHandler(sys.stderr if stream is None else stream, clock or SystemClock())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
