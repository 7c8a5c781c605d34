"""Ids of rows: the same row of the same micro-batch gets the same id, however often it is written.

An id is a hash of where a row comes from and of what it holds:

- a row that was read from a topic comes from that topic, broker, queue and offset;
- another row of a stream comes from query, micro-batch and task;
- another row of a batch write comes from that write and its task.

What a row holds is in it so that two different rows never share an id, whatever a job makes of one
message. Rows that are equal in all of that are counted within their task. So the order of a task's
rows does not matter, only which rows it has.

It has the form of a client's unique key, under a loopback address (127.x.y.z), so that tools that
take it for an offset id turn to nobody else, and with a time at the beginning of the month.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

DIGEST_BYTES: Final = 11
EPOCH_ROWS: Final = 200_000
"""Rows among which equal ones are counted; what is remembered of a task's rows is bound by it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the rows of a task come from: ``run`` is a query's id or one write's own."""

    run: str
    batch: int
    task: int

    def seed(self) -> bytes:
        """What the ids of rows without a place begin with."""
        return f"{self.run}|{self.batch}|{self.task}|".encode()


def place_seed(topic: str, broker: str, queue_id: int, offset: int) -> bytes:
    """What the ids of a row that was read begin with."""
    return f"{topic}|{broker}|{queue_id}|{offset}|".encode()


class Ids:
    """Makes the ids of one task's rows, in their order."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin.seed()
        self._rows = 0
        self._base = blake2b(self._origin, digest_size=DIGEST_BYTES)
        self._seen: dict[bytes, int] = {}
        self._place = b""
        self._of_place: dict[bytes, int] = {}
        self.copy: Callable[[], blake2b] = self._base.copy

    def of_row(self, content: bytes) -> str:
        """The id of a row that no topic had before."""
        if self._rows and self._rows % EPOCH_ROWS == 0:
            self._seen.clear()
            self._base.update(b"|")
        self._rows += 1
        digest = self._base.copy()
        digest.update(content)
        return _counted(digest, self._seen)

    def of_place(self, seed: bytes, content: bytes) -> str:
        """The id of a row that was read at the place in ``seed``; rows made of one message follow
        each other."""
        if seed != self._place:
            self._place = seed
            self._of_place.clear()
        digest = blake2b(seed, digest_size=DIGEST_BYTES)
        digest.update(content)
        return _counted(digest, self._of_place)


def _counted(digest: blake2b, seen: dict[bytes, int]) -> str:
    first = digest.digest()
    times = seen.get(first, 0)
    seen[first] = times + 1
    if times:
        digest.update(b"|%d" % times)
        first = digest.digest()
    text = first.hex().upper()
    return f"7F{text[:18]}00000000{text[18:]}"
