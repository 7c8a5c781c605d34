"""What user code that works on messages raised, told to the log and to tests.

The exception of a handler goes no further, for its message is given again; so a test whose
assertions stand in a handler would pass whatever they say. Test fixtures record the failures.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.client.consumer.received import MessageView

log = logging.getLogger(__name__)

#: A retry does not mend these: the program is wrong, not the message or the moment.
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
    """An exception that went no further. ``told`` is for whoever records: it was shown."""

    error: Exception
    told: bool = False


_recorders: list[list[Failure]] = []


@contextmanager
def recorded() -> Iterator[list[Failure]]:
    """Record the failures in this process, of all clients and threads, inside the block."""
    failures: list[Failure] = []
    _recorders.append(failures)
    try:
        yield failures
    finally:
        # By identity: two lists that hold the same failures are equal.
        _recorders[:] = [each for each in _recorders if each is not failures]


def note(error: Exception) -> None:
    """Record an exception that goes no further."""
    if _recorders:
        failure = Failure(error)
        for failures in _recorders:
            failures.append(failure)


def log_failure(message: MessageView, error: Exception) -> None:
    """Log what work on a message raised, with its traceback: as an error when the program is
    wrong, as a warning otherwise."""
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
