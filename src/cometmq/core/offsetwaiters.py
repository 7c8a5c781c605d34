"""Waiting for an offset: one mechanism for flush, replication and long polling.

A token stands for a waiting request. It is parked at an offset with a deadline. ``advance`` moves
the position and returns every token whose offset it reached; ``expire`` returns those whose
deadline passed. The caller acts on the returned tokens, so a failure with one of them cannot affect
the others here.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

Token = TypeVar("Token")

#: Stale heap entries that are tolerated, because removing them costs a pass over all entries.
_DEAD_MAX: Final = 1024
_ALL: Final = 1 << 62


class OffsetWaiters(Generic[Token]):
    """Tokens parked until ``position`` reaches their offset or their deadline passes.

    ``parked`` maps the keys of :meth:`park` to the tokens.
    """

    __slots__ = ("_by_deadline", "_by_offset", "_next_key", "parked", "position")

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self.parked: dict[int, Token] = {}
        self._by_offset: list[tuple[int, int]] = []
        self._by_deadline: list[tuple[int, int]] = []
        self._next_key = 0

    def __len__(self) -> int:
        return len(self.parked)

    def park(self, offset: int, deadline_ms: int, token: Token) -> int:
        """Park ``token`` until ``offset`` is reached; return a key for :meth:`cancel`.

        If the offset has been reached already, the next :meth:`advance` returns the token.
        """
        key = self._next_key
        self._next_key = key + 1
        self.parked[key] = token
        heappush(self._by_offset, (offset, key))
        heappush(self._by_deadline, (deadline_ms, key))
        return key

    def cancel(self, key: int) -> Token | None:
        """Remove and return a parked token, for example when its connection has closed.

        Return None if it is no longer parked.
        """
        token = self.parked.pop(key, None)
        if len(self._by_offset) > 2 * len(self.parked) + _DEAD_MAX:
            self._drop_dead()
        return token

    def advance(self, position: int, limit: int = _ALL) -> list[Token]:
        """Move to ``position``, never back; return the tokens whose offset is reached, in order.

        At most ``limit`` are returned; the next call returns the others.
        """
        self.position = max(position, self.position)
        return self._take(self._by_offset, self.position, limit)

    def expire(self, now_ms: int, limit: int = _ALL) -> list[Token]:
        """Remove and return at most ``limit`` tokens whose deadline is at or before ``now_ms``,
        earliest first."""
        return self._take(self._by_deadline, now_ms, limit)

    def drain(self) -> list[Token]:
        """Remove and return every token, for a stop or a failure."""
        tokens = list(self.parked.values())
        self.parked.clear()
        self._by_offset.clear()
        self._by_deadline.clear()
        return tokens

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline of the parked tokens; None if there is none."""
        while self._by_deadline and self._by_deadline[0][1] not in self.parked:
            heappop(self._by_deadline)
        return self._by_deadline[0][0] if self._by_deadline else None

    def _take(self, heap: list[tuple[int, int]], bound: int, limit: int) -> list[Token]:
        released: list[Token] = []
        parked = self.parked
        while heap and heap[0][0] <= bound and len(released) < limit:
            token = parked.pop(heappop(heap)[1], None)
            if token is not None:
                released.append(token)
        most = 2 * len(parked) + _DEAD_MAX
        if len(self._by_deadline) > most or len(self._by_offset) > most:
            self._drop_dead()
        return released

    def _drop_dead(self) -> None:
        """Remove the heap entries of tokens that are no longer parked.

        A released token leaves an entry in the other heap, a cancelled one in both. Without this, a
        busy SYNC_FLUSH broker would keep the entries of the last five seconds (syncFlushTimeout).
        """
        parked = self.parked
        self._by_deadline = [pair for pair in self._by_deadline if pair[1] in parked]
        heapify(self._by_deadline)
        self._by_offset = [pair for pair in self._by_offset if pair[1] in parked]
        heapify(self._by_offset)
