"""What this machine offers to run on: the fastest event loop, a way to offer the processor, memory
that stays at hand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: As much freed memory stays with the process, for what it asks for next.
KEPT_BYTES: Final = 4 << 20
#: Parameters of glibc's mallopt.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


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


def direct_handle(transport: asyncio.BaseTransport) -> int:
    """The socket's number of a transport beside which one may write while it keeps nothing itself;
    -1 for any other: TLS, and transports that send at once in any case."""
    kind = type(transport)
    if (kind.__module__, kind.__name__) != ("uvloop.loop", "TCPTransport"):
        return -1
    handle: int = transport.get_extra_info("socket").fileno()
    return handle


def keep_freed_memory() -> bool:
    """Have the allocator keep what is freed, up to KEPT_BYTES; False where it cannot be told to.

    glibc gives back what is free beyond 128 KiB, and who takes and leaves 200 KB a hundred times a
    second has the system clear these pages anew each time.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, KEPT_BYTES))
