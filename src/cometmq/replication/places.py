"""Who of those that connect to a master keeps a connection. Pure.

The port asks nobody who they are, so places are limited, and strangers must not hold those that
slaves need. A connection is silent until it reports an offset; silent ones have places of their
own. A newcomer always gets a place: when all are taken somebody else goes, of the machine that has
most connections; of a machine that had no slave before rather than of one that had; who was never
seen to keep what was sent to it rather than who was; and the oldest first.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Generic, Protocol, TypeVar

#: Connections that have reported nothing: a Java slave does so 5 to 6 s after it connects.
SILENT_MAX: Final = 64
#: More slaves than this is a mistake, or something that connects again and again.
SLAVES_MAX: Final = 64
#: Machines that had slaves and are remembered, the latest ones.
_HOSTS_MAX: Final = 64


class Connected(Protocol):
    """A connection, as far as it matters here."""

    @property
    def host(self) -> str:
        """The machine that it comes from."""
        ...

    @property
    def has_copied(self) -> bool:
        """Whether it acknowledged something that was sent to it."""
        ...


C = TypeVar("C", bound=Connected)


class Places(Generic[C]):
    """The connections of one master, ``slaves`` those that reported an offset."""

    def __init__(self, silent_max: int = SILENT_MAX, slaves_max: int = SLAVES_MAX) -> None:
        self._silent_max = silent_max
        self._slaves_max = slaves_max
        self._hosts: dict[str, None] = {}
        self.silent: dict[C, None] = {}
        self.slaves: dict[C, None] = {}

    def connected(self, newcomer: C) -> C | None:
        """Take a connection; gives who has to go for it."""
        return self._enter(newcomer, self.silent, self._silent_max)

    def reported(self, newcomer: C) -> C | None:
        """A connection said what it has, and is a slave from now on; gives who has to go for it."""
        self.silent.pop(newcomer, None)
        return self._enter(newcomer, self.slaves, self._slaves_max)

    def copied(self, slave: C) -> None:
        """A slave acknowledged what was sent to it: its machine is remembered."""
        self._hosts.pop(slave.host, None)
        self._hosts[slave.host] = None
        if len(self._hosts) > _HOSTS_MAX:
            del self._hosts[next(iter(self._hosts))]

    def left(self, connection: C) -> None:
        """A connection is gone."""
        self.silent.pop(connection, None)
        self.slaves.pop(connection, None)

    def _enter(self, newcomer: C, places: dict[C, None], most: int) -> C | None:
        leaving = None
        if len(places) >= most:
            hosts = Counter([one.host for one in places])
            hosts[newcomer.host] += 1
            # The first of equals is the oldest.
            leaving = min(
                places,
                key=lambda one: (-hosts[one.host], one.host in self._hosts, one.has_copied),
            )
            del places[leaving]
        places[newcomer] = None
        return leaving
