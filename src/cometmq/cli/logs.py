"""Logging of the command line: one line an event, to standard error.

    2026-03-04T05:06:07.089 INFO cometmq.broker.app ready port=10911

Modules log ``event key=value key=value``; nothing here changes what they say. Line breaks in a
message are written as ``\\n``, so that a line stays one event; only a traceback adds lines.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

LEVELS = ("debug", "info", "warning", "error")


class LineFormatter(logging.Formatter):
    """One event as one line: time with milliseconds, level, module, message."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without a traceback."""
        record.message = record.message.replace("\r", "\\r").replace("\n", "\\n")
        return super().formatMessage(record)


def configure(level: str, stream: TextIO | None = None) -> None:
    """Send every event of ``level`` and above to ``stream``, standard error when not given."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
