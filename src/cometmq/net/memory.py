"""What connections hold in memory, each of them and all together.

Three kinds of bytes count: those that came in and are not served yet, those that wait to be sent,
and the requests that a handler holds on to. The last are charged by the protocol layer when they
are large, and give themselves back (core/budget.py). A connection that holds more than its share is
not read until it holds less. When all together hold too much, those that hold most are closed, and
until then large requests are refused.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import TYPE_CHECKING, Final

from cometmq.core.budget import Charge
from cometmq.core.memory import limit_bytes

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from cometmq.net.peer import Peer

log = logging.getLogger(__name__)

#: What all connections of a process may hold: a quarter of its memory, within these.
MAX_BOUND_BYTES: Final = 1 << 30
MIN_BOUND_BYTES: Final = 64 << 20
#: The share of one connection.
PEER_BYTES: Final = 64 << 20
#: What a small request costs at the most while it waits: its texts and the objects round them.
WAITING_BYTES: Final = 4_096
#: The same while a task serves it.
TASK_BYTES: Final = 16_384


class MemoryBudget:
    """Of one process. ``bound_bytes`` is for tests; else the memory of the process sets it."""

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
        #: Of the requests that wait.
        self.held_bytes = 0
        #: Of each server, by its identity, when its connections were looked at last.
        self.buffered_bytes: dict[int, int] = {}
        #: Bytes that came in, or could not be sent at once, since that look; and after how many of
        #: them the next is due, whatever the time.
        self.moved_bytes = 0
        self.look_bytes = bound_bytes // 16
        #: Of each server, what tells how much each of its connections holds.
        self.servers: list[Callable[[], list[tuple[int, Peer]]]] = []
        #: Slow requests that are running.
        self.tasks = 0
        #: Whether large requests must be refused.
        self.is_exhausted = False

    def weigh(self) -> None:
        """What connections hold has changed, as far as that is known."""
        used_bytes = self.held_bytes + sum(self.buffered_bytes.values())
        self.is_exhausted = used_bytes > self.bound_bytes

    @property
    def shed_bytes(self) -> int:
        """Beyond this the connections that hold most are closed. It is below the bound: whoever
        fills the memory loses his connections before others' requests are refused."""
        return self.bound_bytes - self.bound_bytes // 4

    def shed(self) -> None:
        """Close the connections that hold most, when all that are open hold too much. Requests of
        closed ones that are still worked on are nobody's who could be closed for them."""
        self.moved_bytes = 0
        sizes = [pair for tell in self.servers for pair in tell()]
        total = sum([size for size, _ in sizes])
        if total <= self.shed_bytes:
            return
        sizes.sort(key=_size)
        while total > self.shed_bytes:
            size, peer = sizes.pop()
            total -= size
            log.warning("connection closed peer=%s reason=holds %d bytes", peer.address, size)
            peer.abort()

    @property
    def peer_bytes(self) -> int:
        """The share of one connection."""
        return min(PEER_BYTES, self.bound_bytes // 2)

    def max_waiting(self, most: int) -> int:
        """How many small requests may wait for one thing, of which ``most`` are sensible."""
        return min(most, self.bound_bytes // WAITING_BYTES)

    @property
    def max_tasks(self) -> int:
        """How many slow requests of all connections may run."""
        return self.bound_bytes // TASK_BYTES


def _size(pair: tuple[int, Peer]) -> int:
    return pair[0]


@functools.cache
def process_budget() -> MemoryBudget:
    """The one that all servers of this process share."""
    return MemoryBudget()


class PeerMemory:
    """The account of one connection. ``on_full`` and ``on_room`` are called when its share is used
    up, and when there is room again; ``loop`` is where that may be done."""

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
        """Whether the whole process holds all that it may."""
        return self.budget.is_exhausted

    def charge(self, size_bytes: int) -> Charge:
        """Count bytes until the charge is given back, or dies."""
        self.held_bytes += size_bytes
        self.budget.held_bytes += size_bytes
        self.budget.weigh()
        if not self.is_full and self.held_bytes > self.budget.peer_bytes:
            self.is_full = True
            if self._on_full is not None:
                self._on_full()
        return Charge(self, size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Bytes of a charge are held no more. Requests may die in any thread."""
        if self._loop is not None and threading.get_ident() != self._thread_id:
            try:
                self._loop.call_soon_threadsafe(self.give_back, size_bytes)
            except RuntimeError:
                pass  # the loop has ended: nothing else counts either
            else:
                return
        self.held_bytes -= size_bytes
        self.budget.held_bytes -= size_bytes
        self.budget.weigh()
        if self.is_full and self.held_bytes <= self.budget.peer_bytes:
            self.is_full = False
            if self._on_room is not None and self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon(self._on_room)  # a request dies anywhere: not in its midst

    def close(self) -> None:
        """The connection is gone; what is still held of it keeps counting."""
        self._on_full = self._on_room = None
