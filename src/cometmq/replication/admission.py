"""Admission of connections to a master: decides which ones to keep, without I/O.

The port has no authentication, so connections are limited, and strangers must not displace slaves.
A connection is silent until it reports an offset; silent connections have a limit of their own. A
new connection is always admitted. At the limit another one is closed, one of the host with the most
connections; among these one of a host that never had a slave, then one that never acknowledged
bytes sent to it, then the oldest.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Generic, Protocol, TypeVar

#: Limit of silent connections: a Java slave reports 5 to 6 s after it connects.
SILENT_MAX: Final = 64
#: Limit of slaves: more are a mistake, or a program that reconnects over and over.
SLAVES_MAX: Final = 64
#: Limit of remembered hosts that had slaves; the latest are kept.
_HOSTS_MAX: Final = 64


class Connected(Protocol):
    """The properties of a connection that the choice depends on."""

    @property
    def host(self) -> str:
        """The host that it comes from."""
        ...

    @property
    def has_copied(self) -> bool:
        """True once it acknowledged bytes that were sent to it."""
        ...


C = TypeVar("C", bound=Connected)


class SlaveAdmission(Generic[C]):
    """The connections of one master; those in ``slaves`` have reported an offset."""

    def __init__(self, silent_max: int = SILENT_MAX, slaves_max: int = SLAVES_MAX) -> None:
        self._silent_max = silent_max
        self._slaves_max = slaves_max
        self._hosts: dict[str, None] = {}
        self.silent: dict[C, None] = {}
        self.slaves: dict[C, None] = {}

    def connected(self, newcomer: C) -> C | None:
        """Add a connection; return the one to close for it, if any."""
        return self._enter(newcomer, self.silent, self._silent_max)

    def reported(self, newcomer: C) -> C | None:
        """Make a connection a slave's after its first report; return the one to close, if any."""
        self.silent.pop(newcomer, None)
        return self._enter(newcomer, self.slaves, self._slaves_max)

    def copied(self, slave: C) -> None:
        """Remember the host of a slave that acknowledged bytes sent to it."""
        self._hosts.pop(slave.host, None)
        self._hosts[slave.host] = None
        if len(self._hosts) > _HOSTS_MAX:
            del self._hosts[next(iter(self._hosts))]

    def left(self, connection: C) -> None:
        """Remove a closed connection."""
        self.silent.pop(connection, None)
        self.slaves.pop(connection, None)

    def _enter(self, newcomer: C, places: dict[C, None], most: int) -> C | None:
        leaving = None
        if len(places) >= most:
            hosts = Counter([one.host for one in places])
            hosts[newcomer.host] += 1
            # ``min`` returns the first of equals, which is the oldest.
            leaving = min(
                places,
                key=lambda one: (-hosts[one.host], one.host in self._hosts, one.has_copied),
            )
            del places[leaving]
        places[newcomer] = None
        return leaving
