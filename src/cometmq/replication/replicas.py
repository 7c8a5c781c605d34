"""Replica counts: the offset that enough logs hold, for a master's acknowledgements. No I/O.

``copies`` is the number of logs that must hold a message, the master's included (upstream:
inSyncReplicas). A slave counts with the offset that it acknowledged on its current connection; a
disconnected one does not count. The reached offset is never taken back, but it stops growing.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import attrgetter
from typing import Final, Protocol

_ACKED: Final = attrgetter("acked")
FALL_BEHIND_MAX_BYTES: Final = 256 << 20
"""Lag, in bytes, from which on a slave does not count as near enough to wait for (upstream:
haSlaveFallbehindMax)."""


class Acked(Protocol):
    """A slave with the end of its log."""

    @property
    def acked(self) -> int:
        """End of the slave's log as acknowledged; -1 if unknown."""
        ...


def reached(slaves: Collection[Acked], copies: int, end: int) -> int:
    """Return the offset up to which ``copies`` logs hold the master's log, which ends at ``end``.

    Returns 0 if there are too few slaves.
    """
    needed = copies - 1
    if needed <= 0:
        return end
    offsets = sorted(map(_ACKED, slaves), reverse=True)
    return max(offsets[needed - 1], 0) if len(offsets) >= needed else 0


def are_enough(
    slaves: Collection[Acked], copies: int, end: int, fall_behind_max_bytes: int
) -> bool:
    """Return whether enough slaves are connected, with a lag below the limit, to wait for them."""
    near = 0
    for slave in slaves:
        near += slave.acked >= 0 and end - slave.acked < fall_behind_max_bytes
    return near >= copies - 1
