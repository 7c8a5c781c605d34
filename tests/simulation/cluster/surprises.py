"""Unexpected errors: exceptions that nothing catches, and errors logged with a traceback."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.simulation.cluster.loop import current_process

if TYPE_CHECKING:
    from tests.simulation.cluster.invariants import Watch

_LOGGERS: Final = ("cometmq", "asyncio")


class Surprises(logging.Handler):
    """While this is entered, every unexpected error in a living process violates an invariant."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(logging.ERROR)
        self._watch = watch

    def __enter__(self) -> Surprises:
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        if record.exc_info is None or process is None or not process.alive:
            return
        error = record.exc_info[1]
        self._watch.violate("no surprise", f"{process.name}: {record.getMessage()}: {error!r}")

    def uncaught(self, problem: str) -> None:
        """Report an exception that reached the event loop."""
        self._watch.violate("no surprise", problem)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log except for errors, which reach the loggers' own handlers only; afterwards
    restore the state of the global random numbers."""
    disabled, state = logging.root.manager.disable, random.getstate()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    propagates = [logger.propagate for logger in loggers]
    logging.disable(logging.WARNING)
    for logger in loggers:
        logger.propagate = False
    try:
        yield
    finally:
        logging.disable(disabled)
        for logger, before in zip(loggers, propagates, strict=True):
            logger.propagate = before
        random.setstate(state)
