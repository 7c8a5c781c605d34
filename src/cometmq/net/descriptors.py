"""Shares the file descriptors of a process between connections and stores.

A process has one limit of open files. After the share of the stores, all servers together use the
rest for connections: a name server and a broker in one process have one common limit.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Final, Protocol

#: Limit of connections of one process, unless the machine's limit is lower.
MAX_CONNECTIONS: Final = 100_000
#: Descriptors reserved for the stores: RESERVED_FILES, or an eighth of all up to
#: RESERVED_FILES_MAX, which leaves room for connections that arrive faster than they are refused.
#: If there are few descriptors, the reserve is half of all, but at least STORE_FILES (256 queue
#: files and some more), as long as a quarter of all is left for connections.
RESERVED_FILES: Final = 1_024
RESERVED_FILES_MAX: Final = 8_192
STORE_FILES: Final = 512
#: Connections that may wait to be accepted, if descriptors are plentiful.
BACKLOG: Final = 1_024
_BACKLOG_MIN: Final = 16


def open_files() -> int | None:
    """Raise this process's limit of open files as far as allowed; return it, None for no limit."""
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

    One turn of the loop accepts all of them before the first is refused, and closes them a turn
    later. Meanwhile they take descriptors from the reserve. Several listeners may do so at once.
    """
    files = open_files()
    if files is None:
        return BACKLOG
    return min(max((files - max_connections()) // 8, _BACKLOG_MIN), BACKLOG)


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
        """Return the number of connections that ``server`` may have if all may have ``most``."""
        with self._lock:
            others = [other.open_connections for other in self._servers if other is not server]
        kept = most // (4 * (len(others) + 1))
        return most - sum([max(count, kept) for count in others])


#: Connections of all servers of this process.
PROCESS: Final = Connections()
