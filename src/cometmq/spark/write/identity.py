"""Ids of rows: a row of a micro-batch gets the same id however often it is written.

An id is a hash of the row's origin and content. The origin is:

- for a row that was read from a topic: the topic, broker, queue and offset;
- for another row of a stream: the query, micro-batch and task;
- for another row of a batch write: that write and its task.

The content is part of the hash so that two different rows never share an id, even if a job makes
several rows of one message. Rows equal in origin and content are numbered within their task. An id
therefore depends on the rows of a task, not on their order.

An id has the form of a client's unique key with a loopback address (127.x.y.z), so that tools that
parse it as an offset id do not contact another host, and with a time at the beginning of the month.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

DIGEST_BYTES: Final = 11
EPOCH_ROWS: Final = 200_000
"""Number of rows within which equal ones are counted. It bounds the memory for a task's rows."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of the rows of a task. ``run`` is a query's id or an id of one write."""

    run: str
    batch: int
    task: int

    def seed(self) -> bytes:
        """Return the prefix that is hashed into the ids of rows without a place."""
        return f"{self.run}|{self.batch}|{self.task}|".encode()


def place_seed(topic: str, broker: str, queue_id: int, offset: int) -> bytes:
    """Return the prefix that is hashed into the id of a row that was read from a topic."""
    return f"{topic}|{broker}|{queue_id}|{offset}|".encode()


class Ids:
    """Generates the ids of one task's rows, in their order."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin.seed()
        self._rows = 0
        self._base = blake2b(self._origin, digest_size=DIGEST_BYTES)
        self._seen: dict[bytes, int] = {}
        self._place = b""
        self._of_place: dict[bytes, int] = {}
        self.copy: Callable[[], blake2b] = self._base.copy

    def of_row(self, content: bytes) -> str:
        """Return the id of a row that was not read from a topic."""
        if self._rows and self._rows % EPOCH_ROWS == 0:
            self._seen.clear()
            self._base.update(b"|")
        self._rows += 1
        digest = self._base.copy()
        digest.update(content)
        return _counted(digest, self._seen)

    def of_place(self, seed: bytes, content: bytes) -> str:
        """Return the id of a row that was read at the place in ``seed``. Rows made of the same
        message must follow each other."""
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
