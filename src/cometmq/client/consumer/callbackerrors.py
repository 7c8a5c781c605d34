"""Exceptions of callbacks, such as message handlers: log them, and record them for tests.

The exception of a handler is not raised to a caller, because the message is retried
(acknowledgements.py). A test with a failing assertion in a handler would therefore pass, so test
fixtures record the exceptions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.message.model import MessageView

log = logging.getLogger(__name__)

#: Errors in the program, for which a retry does not help.
PROGRAMMING_ERRORS: Final = (
    AssertionError,
    AttributeError,
    ImportError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
)


@dataclass(slots=True)
class Failure:
    """Exception that was not raised to the caller.

    Recorders set ``is_reported`` when they have reported it.
    """

    error: Exception
    is_reported: bool = False


_recorders: list[list[Failure]] = []


@contextmanager
def recorded() -> Iterator[list[Failure]]:
    """Record the failures of all clients and threads of this process inside the block."""
    failures: list[Failure] = []
    _recorders.append(failures)
    try:
        yield failures
    finally:
        # Compare by identity, because lists with the same failures are equal.
        _recorders[:] = [each for each in _recorders if each is not failures]


def note(error: Exception) -> None:
    """Record an exception that is not raised to the caller."""
    if _recorders:
        failure = Failure(error)
        for failures in _recorders:
            failures.append(failure)


def log_failure(message: MessageView, error: Exception) -> None:
    """Log an exception from processing a message, with its traceback.

    A programming error is logged as an error, any other exception as a warning.
    """
    level = logging.ERROR if isinstance(error, PROGRAMMING_ERRORS) else logging.WARNING
    log.log(
        level,
        "processing_failed topic=%s message=%s attempt=%d error=%r",
        message.topic,
        message.message_id,
        message.reconsume_times + 1,
        error,
        exc_info=error,
    )
