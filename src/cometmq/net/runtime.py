"""Features of this machine: the fastest event loop, yielding the processor, keeping freed memory,
room for file descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from cometmq.net.descriptors import open_files

T = TypeVar("T")

#: Freed memory that stays with the process for later allocations.
KEPT_BYTES: Final = 4 << 20
#: Descriptors for which there is room from the start; 128 KiB of the kernel's memory.
DESCRIPTORS: Final = 16_384
#: Parameters of glibc's mallopt.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def _keep_processor() -> None:
    """Do nothing, on systems without sched_yield."""


#: Yields the processor to a waiting thread or process; returns at once if none waits.
yield_processor: Final[Callable[[], None]] = getattr(os, "sched_yield", _keep_processor)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a constructor of the fastest event loop available."""
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
    """Return the file descriptor of a transport that may be bypassed while its buffer is empty.

    Returns -1 for any other transport: for TLS, because its bytes must be encrypted, and for loops
    other than uvloop, because they send at once anyway.
    """
    kind = type(transport)
    if (kind.__module__, kind.__name__) != ("uvloop.loop", "TCPTransport"):
        return -1
    handle: int = transport.get_extra_info("socket").fileno()
    return handle


def keep_freed_memory() -> bool:
    """Make the allocator keep freed memory, up to KEPT_BYTES; return False if it cannot.

    By default glibc returns free memory beyond 128 KiB to the system. A process that allocates and
    frees 200 KB a hundred times a second would make the system clear these pages every time.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, KEPT_BYTES))


def reserve_descriptors(count: int = DESCRIPTORS) -> bool:
    """Make room for ``count`` file descriptors in the kernel's table; return False if it cannot.

    In a process with threads, the call that makes the table grow waits for all processors (RCU):
    9 to 13 ms for the open() or accept() that is one too many. Call it before threads start.
    """
    limit = open_files()
    last = (count if limit is None else min(count, limit)) - 1
    with contextlib.suppress(ImportError, OSError, ValueError):
        import fcntl

        os.close(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, last))
        return True
    return False
