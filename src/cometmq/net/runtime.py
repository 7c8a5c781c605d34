"""What this machine offers to run on: the fastest event loop, a way to offer the processor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")


def _keep_processor() -> None:
    """What is done where the processor cannot be offered: nothing."""


#: Let whoever waits for this processor have it; returns at once when nobody does.
yield_processor: Final[Callable[[], None]] = getattr(os, "sched_yield", _keep_processor)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """A constructor for the fastest loop that this machine has."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end on a new loop, as asyncio.run does."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)
