"""Limits of the memory and the file descriptors that the connections of a process may use.

Memory. Three kinds of bytes count: received and not served yet, queued to be sent, and requests
that a handler holds. Of the last kind only large requests count: the protocol layer charges them,
and a charge is released when its request is freed (protocol/frame.py). A connection that holds more
than its share is not read until it holds less. When all together hold too much, those that hold
most are closed, and until then large requests are refused.

Descriptors. A process has one limit of open files. A share is reserved for the stores; the rest is
for the connections of all servers of the process, such as a name server and a broker, together.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.core.memory import limit_bytes
from cometmq.protocol.frame import Charge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

#: Upper and lower limit of the memory for all connections, a quarter of the process's memory.
MAX_BOUND_BYTES: Final = 1 << 30
MIN_BOUND_BYTES: Final = 64 << 20
#: Share of one connection.
PEER_BYTES: Final = 64 << 20
#: Maximum memory of a small waiting request: its texts and the objects around them.
WAITING_BYTES: Final = 4_096
#: Maximum memory of a small request while a task serves it.
TASK_BYTES: Final = 16_384
#: Connections measured in one turn of the loop.
MEASURED_AT_ONCE: Final = 512
#: Connections closed in one turn of the loop because they hold most.
EVICTED_AT_ONCE: Final = 64
#: Freed memory that stays with the process for later allocations.
KEPT_BYTES: Final = 4 << 20
#: Parameters of glibc's mallopt.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3

#: Limit of connections of one process, unless the machine's limit is lower.
MAX_CONNECTIONS: Final = 100_000
#: Descriptors reserved for the stores: RESERVED_FILES, or an eighth of all up to
#: RESERVED_FILES_MAX, which leaves room for connections that arrive faster than they are refused.
#: If there are few descriptors, the reserve is half of all, but at least STORE_FILES (256 queue
#: files and some more), as long as a quarter of all is left for connections.
RESERVED_FILES: Final = 1_024
RESERVED_FILES_MAX: Final = 8_192
STORE_FILES: Final = 512
#: Descriptors for which the kernel's table has room from the start; it takes 128 KiB.
DESCRIPTORS: Final = 16_384
#: Connections that may wait to be accepted, if descriptors are plentiful.
BACKLOG: Final = 1_024
_BACKLOG_MIN: Final = 16


class Closable(Protocol):
    """A connection that can be closed because it holds too much memory."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were received and not served, or not sent yet."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes of its requests that handlers hold."""
        ...

    def evict(self, size_bytes: int) -> None:
        """Close the connection, which holds ``size_bytes``, at once; its unsent bytes are lost."""
        ...


class MemoryBudget:
    """Memory of the connections of one process.

    ``bound_bytes`` is the limit. By default it depends on the memory of the process.
    """

    __slots__ = (
        "bound_bytes",
        "buffered_bytes",
        "held_bytes",
        "is_due",
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
        #: measurement. After ``look_bytes`` the next measurement is due.
        self.moved_bytes = 0
        self.look_bytes = bound_bytes // 16
        #: True from the turn before a measurement until its end.
        self.is_due = False
        #: For each server, by its identity, a function that returns its connections.
        self.servers: dict[int, Callable[[], Iterable[Closable]]] = {}
        #: Number of slow requests that are running.
        self.tasks = 0
        #: True while large requests must be refused.
        self.is_exhausted = False

    def weigh(self) -> None:
        """Update ``is_exhausted`` from the held bytes and the last measurements."""
        used_bytes = self.held_bytes + sum(self.buffered_bytes.values())
        self.is_exhausted = used_bytes > self.bound_bytes

    def moved(self, size_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        """Count bytes received or queued; if a measurement is due, start it in the next turn."""
        self.moved_bytes += size_bytes
        if self.moved_bytes > self.look_bytes and not self.is_due:
            self.is_due = True
            loop.call_soon(self.shed)

    @property
    def is_over(self) -> bool:
        """True if the bound may be exceeded: it is, if all bytes moved since the last measurement
        are still held."""
        known_bytes = self.held_bytes + sum(self.buffered_bytes.values())
        return known_bytes + self.moved_bytes > self.bound_bytes

    @property
    def shed_bytes(self) -> int:
        """Limit above which the connections that hold most are closed.

        It is below the bound, so that a client that fills the memory loses its connections before
        requests of other clients are refused.
        """
        return self.bound_bytes - self.bound_bytes // 4

    def shed_if_full(self) -> None:
        """Call :meth:`shed` if the held bytes and the last measurements exceed ``shed_bytes``."""
        if (
            self.held_bytes + sum(self.buffered_bytes.values()) > self.shed_bytes
            and not self.is_due
        ):
            self.is_due = True
            self.shed()

    def shed(self) -> None:
        """Close the connections that hold most, if all open connections together hold too much.

        Requests of closed connections that are still being served do not count, because closing
        further connections would not free them.

        Ten thousand connections take 15 ms to measure. So they are measured in several turns of the
        loop, as long as the bound cannot be exceeded meanwhile. Until the end ``is_due`` is True.
        """
        peers = [(key, list(tell())) for key, tell in self.servers.items()]
        count = sum([len(some) for _, some in peers])
        # Connections that hold less need not be closed: together they hold half the limit at most.
        least_bytes = self.shed_bytes // (2 * max(count, 1))
        steps = self._shed_in_steps(peers, least_bytes, self.moved_bytes)
        _run_on(steps, asyncio.get_running_loop())

    def _shed_in_steps(
        self, peers: list[tuple[int, list[Closable]]], least_bytes: int, moved_bytes: int
    ) -> Iterator[None]:
        total, large = 0, []
        for key, some in peers:
            buffered_bytes = 0
            for number, peer in enumerate(some, 1):
                if not number % MEASURED_AT_ONCE and not self.is_over:
                    yield
                size_bytes = peer.buffered_bytes
                buffered_bytes += size_bytes
                size_bytes += peer.held_bytes
                total += size_bytes
                if size_bytes > least_bytes:
                    large.append((size_bytes, peer))
            if key in self.servers:  # the server may have been closed meanwhile
                self.buffered_bytes[key] = buffered_bytes
        self.moved_bytes -= moved_bytes
        self.weigh()
        if total > self.shed_bytes:
            large.sort(key=_size)
        while total > self.shed_bytes and large:
            size_bytes, peer = large.pop()
            total -= size_bytes
            peer.evict(size_bytes)
            if not len(large) % EVICTED_AT_ONCE and not self.is_over:
                yield
        self.is_due = False

    @property
    def peer_bytes(self) -> int:
        """Share of one connection."""
        return min(PEER_BYTES, self.bound_bytes // 2)

    def max_waiting(self, most: int) -> int:
        """Return how many small requests may wait for one event, but not more than ``most``."""
        return min(most, self.bound_bytes // WAITING_BYTES)

    @property
    def max_tasks(self) -> int:
        """Maximum number of running slow requests of all connections."""
        return self.bound_bytes // TASK_BYTES

    @property
    def max_urgent_tasks(self) -> int:
        """Maximum number of running slow requests when an urgent one begins: a quarter more."""
        return self.max_tasks + self.max_tasks // 4


def _run_on(steps: Iterator[None], loop: asyncio.AbstractEventLoop) -> None:
    """Run an iterator to its end, one step a turn of the loop, the first one now."""
    for _ in steps:
        loop.call_soon(_run_on, steps, loop)
        return


def _size(pair: tuple[int, Closable]) -> int:
    return pair[0]


@functools.cache
def process_budget() -> MemoryBudget:
    """Return the budget that all servers of this process share."""
    return MemoryBudget()


class PeerMemory:
    """Memory account of one connection.

    ``on_full`` is called when the connection's share is used up. ``on_room`` is scheduled on
    ``loop`` when there is room again.
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
                pass  # the loop has ended and cannot change the counts, so change them here
            else:
                return
        self.held_bytes -= size_bytes
        self.budget.held_bytes -= size_bytes
        self.budget.weigh()
        if self.is_full and self.held_bytes <= self.budget.peer_bytes:
            self.is_full = False
            if self._on_room is not None and self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon(self._on_room)  # a request may be freed inside any code

    def close(self) -> None:
        """Detach the callbacks of a closed connection; bytes that are still held keep counting."""
        self._on_full = self._on_room = None


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


def open_files() -> int | None:
    """Raise this process's limit of open files as far as allowed; return the limit.

    Return None if there is none.
    """
    try:
        import resource
    except ImportError:  # Windows counts sockets separately from files
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return None if soft == resource.RLIM_INFINITY else soft


def max_connections() -> int:
    """Return the maximum number of connections of all servers of this process together."""
    files = open_files()
    if files is None:
        return MAX_CONNECTIONS
    few = max(min(files // 2, files - STORE_FILES), files // 4)
    reserved = max(RESERVED_FILES, min(files // 8, RESERVED_FILES_MAX))
    return min(max(files - reserved, few), MAX_CONNECTIONS)


def backlog() -> int:
    """Return the number of connections that may wait to be accepted.

    One turn of the loop may accept all of them, before the first is refused; they are closed a turn
    later. Meanwhile they use reserved descriptors, and several listeners may do so at once.
    """
    files = open_files()
    if files is None:
        return BACKLOG
    return min(max((files - max_connections()) // 8, _BACKLOG_MIN), BACKLOG)


def reserve_descriptors(count: int = DESCRIPTORS) -> bool:
    """Make room for ``count`` file descriptors in the kernel's table; return False if it cannot.

    In a process with threads, an open() or accept() that makes the table grow waits for all
    processors (RCU), 9 to 13 ms. Call this function before threads start.
    """
    limit = open_files()
    last = (count if limit is None else min(count, limit)) - 1
    with contextlib.suppress(ImportError, OSError, ValueError):
        import fcntl

        os.close(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, last))
        return True
    return False


class Counted(Protocol):
    """A server whose connections are counted."""

    @property
    def open_connections(self) -> int:
        """Number of its connections."""
        ...


class Connections:
    """Connections of all servers of a process, counted together.

    A server takes part from :meth:`join` to :meth:`leave`, or until it is freed. A quarter of the
    places is reserved for servers with few connections, so that clients that fill one port do not
    block the others.
    """

    def __init__(self) -> None:
        self._servers: weakref.WeakSet[Counted] = weakref.WeakSet()
        self._lock = threading.Lock()

    def join(self, server: Counted) -> None:
        """Count the connections of a server."""
        with self._lock:
            self._servers.add(server)

    def leave(self, server: Counted) -> None:
        """Stop counting the connections of a server; do nothing if they were not counted."""
        with self._lock:
            self._servers.discard(server)

    def room(self, server: Counted, most: int) -> int:
        """Return how many connections ``server`` may have; all servers may have ``most``."""
        with self._lock:
            others = [other.open_connections for other in self._servers if other is not server]
        kept = most // (4 * (len(others) + 1))
        return most - sum([max(count, kept) for count in others])


#: Connections of all servers of this process.
PROCESS: Final = Connections()
