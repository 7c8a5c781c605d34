"""Answers to plain sends and transactions, written directly to their sockets if possible.

An :class:`Outlet` is the socket of a connection. The caller writes the answers of a connection
without an outlet, and the bytes that a socket does not accept at once. Plain Python leaves all
writes to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from cometmq.speedups.plain.writebatch import WriteBatch


class Outlet:
    """The socket of a connection.

    ``handle`` is the file descriptor, or -1 if only the transport may write to the socket.
    ``queued`` holds data that must be sent first. ``unsent_bytes`` returns the size of the
    transport's write buffer; it raises RuntimeError if the socket is closed.
    """

    __slots__ = ("handle", "queued", "unsent_bytes")

    def __init__(
        self, handle: int, queued: list[bytes | memoryview], unsent_bytes: Callable[[], int]
    ) -> None:
        self.handle = handle
        self.queued = queued
        self.unsent_bytes = unsent_bytes


class HasOutlet(Protocol):
    """A connection. Without an outlet, the caller writes all of its answers."""

    @property
    def outlet(self) -> Outlet | None: ...


C = TypeVar("C", bound=HasOutlet)


def send_answers(
    rows: Sequence[tuple[C, WriteBatch, int, int]], pieces: tuple[bytes, ...]
) -> list[tuple[C, bytes]]:
    """Send the answers of stored rows, as far as their sockets accept them at once.

    Each item of ``rows`` holds a connection, its write batch, the first row, and the row after the
    last. ``pieces`` are the pieces of :meth:`WriteBatch.answers`.

    Returns the bytes that the caller still has to write, at most one item for each connection. This
    implementation sends nothing and returns all bytes.
    """
    found: dict[C, bytes] = {}
    # The answers of a connection are joined, so that it is written to once.
    for owner, batch, first, stop in rows:
        found[owner] = found.get(owner, b"") + batch.answers(first, stop, pieces)
    return [(owner, data) for owner, data in found.items() if data]
