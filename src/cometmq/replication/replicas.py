"""How many slaves have how much: what a master's acknowledgements wait for. Pure.

``copies`` is in how many logs a message has to be, the master's own among them (upstream:
inSyncReplicas). A slave counts for what it acknowledged on the connection that it has; one that
went away counts for nothing, so what was reached is never taken back but goes on no further.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import attrgetter
from typing import Final, Protocol

_ACKED: Final = attrgetter("acked")
FALL_BEHIND_MAX_BYTES: Final = 256 << 20
"""A slave further behind is no help to a sender (upstream: haSlaveFallbehindMax)."""


class Acked(Protocol):
    """A slave, as far as it matters here."""

    @property
    def acked(self) -> int:
        """The end of what it has; -1 when that is not known."""
        ...


def reached(slaves: Collection[Acked], copies: int, end: int) -> int:
    """Up to where ``copies`` logs hold the log whose master's ends at ``end``; 0 for nowhere."""
    needed = copies - 1
    if needed <= 0:
        return end
    offsets = sorted(map(_ACKED, slaves), reverse=True)
    return max(offsets[needed - 1], 0) if len(offsets) >= needed else 0


def are_enough(
    slaves: Collection[Acked], copies: int, end: int, fall_behind_max_bytes: int
) -> bool:
    """Whether enough slaves are connected, and near enough, to wait for them."""
    near = 0
    for slave in slaves:
        near += slave.acked >= 0 and end - slave.acked < fall_behind_max_bytes
    return near >= copies - 1
