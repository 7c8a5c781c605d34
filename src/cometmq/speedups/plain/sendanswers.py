"""The answers of plain sends and transactions, to whoever waits for them.

An :class:`Outlet` is where the bytes of a connection leave. What has no outlet, or does not fit
into its socket now, the caller writes: plain Python leaves all of it to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from cometmq.speedups.plain.writebatch import WriteBatch


class Outlet:
    """The socket of a connection, by its number; -1 when it may be written to by nobody but its
    transport. ``queued`` holds what leaves before all else, ``unsent_bytes`` asks the transport
    how much it keeps; it raises when the socket is closed."""

    __slots__ = ("handle", "queued", "unsent_bytes")

    def __init__(
        self, handle: int, queued: list[bytes | memoryview], unsent_bytes: Callable[[], int]
    ) -> None:
        self.handle = handle
        self.queued = queued
        self.unsent_bytes = unsent_bytes


class HasOutlet(Protocol):
    """A connection; without an outlet everything is left to its caller."""

    @property
    def outlet(self) -> Outlet | None: ...


C = TypeVar("C", bound=HasOutlet)


def send_answers(
    rows: Sequence[tuple[C, WriteBatch, int, int]], pieces: tuple[bytes, ...]
) -> list[tuple[C, bytes]]:
    """Send the answers of rows that were stored: of each its connection, its batch, the first one
    and the one behind the last. ``pieces`` are what :meth:`WriteBatch.answers` takes.

    Gives what is left to be written, once for each connection; what was sent of it is before that.
    """
    found: dict[C, bytes] = {}
    for owner, batch, first, stop in rows:
        found[owner] = found.get(owner, b"") + batch.answers(first, stop, pieces)
    return [(owner, data) for owner, data in found.items() if data]
