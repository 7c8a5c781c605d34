"""Memory held by connections, individually and together.

Three kinds of bytes count: received and not served yet, queued to be sent, and requests that a
handler holds. The protocol layer charges requests if they are large; a charge is released when its
request is freed (core/budget.py). A connection that holds more than its share is not read until it
holds less. When all together hold too much, those that hold most are closed, and until then large
requests are refused.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.core.budget import Charge
from cometmq.core.memory import limit_bytes

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

#: Limits of the memory of all connections, which is a quarter of the process's memory.
MAX_BOUND_BYTES: Final = 1 << 30
MIN_BOUND_BYTES: Final = 64 << 20
#: Share of one connection.
PEER_BYTES: Final = 64 << 20
#: Maximum memory of a small waiting request: its texts and the objects around them.
WAITING_BYTES: Final = 4_096
#: Maximum memory of a small request while a task serves it.
TASK_BYTES: Final = 16_384


class Closable(Protocol):
    """A connection that can be closed because it holds too much memory."""

    address: str

    def abort(self) -> None:
        """Close the connection at once; what it has not sent is lost."""
        ...


class MemoryBudget:
    """Memory of the connections of one process.

    ``bound_bytes`` is set in tests; by default it depends on the memory of the process.
    """

    __slots__ = (
        "bound_bytes",
        "buffered_bytes",
        "held_bytes",
        "is_exhausted",
        "look_bytes",
        "moved_bytes",
        "servers",
        "tasks",
    )

    def __init__(self, bound_bytes: int | None = None) -> None:
        if bound_bytes is None:
            bound_bytes = min(MAX_BOUND_BYTES, max(limit_bytes() // 4, MIN_BOUND_BYTES))
        self.bound_bytes = bound_bytes
        #: Bytes of requests that handlers hold.
        self.held_bytes = 0
        #: Buffered bytes of each server, by its identity, when they were last measured.
        self.buffered_bytes: dict[int, int] = {}
        #: Bytes received, or queued because they could not be sent at once, since the last
        #: measurement; and the number of bytes after which the next one is due at any time.
        self.moved_bytes = 0
        self.look_bytes = bound_bytes // 16
        #: For each server a function that returns the bytes held by each of its connections.
        self.servers: list[Callable[[], Sequence[tuple[int, Closable]]]] = []
        #: Number of slow requests that are running.
        self.tasks = 0
        #: True while large requests must be refused.
        self.is_exhausted = False

    def weigh(self) -> None:
        """Update ``is_exhausted`` from the known sizes."""
        used_bytes = self.held_bytes + sum(self.buffered_bytes.values())
        self.is_exhausted = used_bytes > self.bound_bytes

    @property
    def shed_bytes(self) -> int:
        """Limit above which the connections that hold most are closed.

        It is below the bound, so that a client that fills the memory loses its connections before
        requests of other clients are refused.
        """
        return self.bound_bytes - self.bound_bytes // 4

    def shed(self) -> None:
        """Close the connections that hold most, if all open connections together hold too much.

        Requests of closed connections that are still being served do not count, because closing
        further connections would not free them.
        """
        self.moved_bytes = 0
        sizes = [pair for tell in self.servers for pair in tell()]
        total = sum([size for size, _ in sizes])
        if total <= self.shed_bytes:
            return
        sizes.sort(key=_size)
        while total > self.shed_bytes:
            size, peer = sizes.pop()
            total -= size
            log.warning(
                "connection closed peer=%s reason=uses %d bytes of memory", peer.address, size
            )
            peer.abort()

    @property
    def peer_bytes(self) -> int:
        """Share of one connection."""
        return min(PEER_BYTES, self.bound_bytes // 2)

    def max_waiting(self, most: int) -> int:
        """Return how many small requests may wait for one event, at most ``most``."""
        return min(most, self.bound_bytes // WAITING_BYTES)

    @property
    def max_tasks(self) -> int:
        """Maximum number of running slow requests of all connections."""
        return self.bound_bytes // TASK_BYTES


def _size(pair: tuple[int, Closable]) -> int:
    return pair[0]


@functools.cache
def process_budget() -> MemoryBudget:
    """Return the budget that all servers of this process share."""
    return MemoryBudget()


class PeerMemory:
    """Memory account of one connection.

    ``on_full`` is called when its share is used up, and ``on_room`` when there is room again;
    ``on_room`` is scheduled on ``loop``.
    """

    __slots__ = ("_loop", "_on_full", "_on_room", "_thread_id", "budget", "held_bytes", "is_full")

    def __init__(
        self,
        budget: MemoryBudget,
        loop: asyncio.AbstractEventLoop | None = None,
        on_full: Callable[[], None] | None = None,
        on_room: Callable[[], None] | None = None,
    ) -> None:
        self.budget = budget
        self.held_bytes = 0
        self.is_full = False
        self._loop = loop
        self._on_full = on_full
        self._on_room = on_room
        self._thread_id = threading.get_ident()

    @property
    def is_exhausted(self) -> bool:
        """True if the limit of the whole process is exceeded."""
        return self.budget.is_exhausted

    def charge(self, size_bytes: int) -> Charge:
        """Count bytes until the returned charge is released or freed."""
        self.held_bytes += size_bytes
        self.budget.held_bytes += size_bytes
        self.budget.weigh()
        if not self.is_full and self.held_bytes > self.budget.peer_bytes:
            self.is_full = True
            if self._on_full is not None:
                self._on_full()
        return Charge(self, size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Release bytes of a charge.

        May be called in any thread, because requests are freed in any.
        """
        if self._loop is not None and threading.get_ident() != self._thread_id:
            try:
                self._loop.call_soon_threadsafe(self.give_back, size_bytes)
            except RuntimeError:
                pass  # the loop has ended, so nothing is counted further
            else:
                return
        self.held_bytes -= size_bytes
        self.budget.held_bytes -= size_bytes
        self.budget.weigh()
        if self.is_full and self.held_bytes <= self.budget.peer_bytes:
            self.is_full = False
            if self._on_room is not None and self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon(self._on_room)  # requests may be freed inside other code

    def close(self) -> None:
        """Detach the callbacks of a closed connection; bytes that are still held keep counting."""
        self._on_full = self._on_room = None
