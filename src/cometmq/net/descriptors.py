"""File descriptors that the servers of one process share with its stores.

A process may open so many files, whoever opens them. Servers take their connections from what is
left when the stores have their part, all together: a name server and a broker in one process have
one bound, not one each.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Final, Protocol

#: Connections of one process when the machine sets no lower bound.
MAX_CONNECTIONS: Final = 100_000
#: File descriptors that connections leave to the stores: so many, or an eighth of all up to
#: RESERVED_FILES_MAX, which is room for connections that come faster than they are refused. Where
#: there are few it is half of all, and at least STORE_FILES (256 queue files and some more), as
#: long as a quarter of all is left to connections.
RESERVED_FILES: Final = 1_024
RESERVED_FILES_MAX: Final = 8_192
STORE_FILES: Final = 512
#: Connections that wait to be accepted, when descriptors are plentiful.
BACKLOG: Final = 1_024
_BACKLOG_MIN: Final = 16


def open_files() -> int | None:
    """How many files this process may open, after asking for all it may; None for any number."""
    try:
        import resource
    except ImportError:  # Windows counts sockets apart from files
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return None if soft == resource.RLIM_INFINITY else soft


def max_connections() -> int:
    """How many connections all servers of this process may have together."""
    files = open_files()
    if files is None:
        return MAX_CONNECTIONS
    few = max(min(files // 2, files - STORE_FILES), files // 4)
    reserved = max(RESERVED_FILES, min(files // 8, RESERVED_FILES_MAX))
    return min(max(files - reserved, few), MAX_CONNECTIONS)


def backlog() -> int:
    """How many connections may wait to be accepted.

    One turn of the loop accepts all of them before the first is refused, and closes them a turn
    later: meanwhile they take descriptors from the reserve. Several listeners may do so at once.
    """
    files = open_files()
    if files is None:
        return BACKLOG
    return min(max((files - max_connections()) // 8, _BACKLOG_MIN), BACKLOG)


class Counted(Protocol):
    """A server whose connections count."""

    @property
    def open_connections(self) -> int:
        """How many it has."""
        ...


class Connections:
    """The connections of all servers of a process, counted together.

    A server takes part from :meth:`join` to :meth:`leave`, or as long as it is there. A quarter of
    the places is kept for servers that have few connections: who fills one port leaves room at the
    others.
    """

    def __init__(self) -> None:
        self._servers: weakref.WeakSet[Counted] = weakref.WeakSet()
        self._lock = threading.Lock()

    def join(self, server: Counted) -> None:
        """Count the connections of a server."""
        with self._lock:
            self._servers.add(server)

    def leave(self, server: Counted) -> None:
        """Count them no more; nothing happens when they were not counted."""
        with self._lock:
            self._servers.discard(server)

    def room(self, server: Counted, most: int) -> int:
        """How many connections ``server`` may have by now when all may have ``most``."""
        with self._lock:
            others = [other.open_connections for other in self._servers if other is not server]
        kept = most // (4 * (len(others) + 1))
        return most - sum([max(count, kept) for count in others])


#: All servers of this process.
PROCESS: Final = Connections()
