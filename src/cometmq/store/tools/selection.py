"""Selection of the records to erase (erasure.py), while the log is read once from start to end.

Records are found by the hashes of their keys, as in the index, and then compared by the keys
themselves. The number of keys hardly matters for that. A search for the text of keys
(:class:`Mentions`) goes over all bytes of the log once for each key.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec
import numpy as np

from cometmq.message import properties as props
from cometmq.message.compression import decompress
from cometmq.message.record import (
    COMPRESSED,
    TRANSACTION_MASK,
    BadRecord,
    TransactionType,
    decode_one,
    properties_of,
)
from cometmq.message.tombstone import COMPACTED, ERASED, REDACTED, entomb, is_tombstone
from cometmq.speedups import index_hashes
from cometmq.store.layout import topic_prefix

if TYPE_CHECKING:
    from cometmq.message.walk import Ints
    from cometmq.store.tools.logfile import Chunk

_MARK: Final = f"{ERASED}\x01".encode()


class Mentions(StrEnum):
    """The handling of records that contain the text of a key but have another one.

    Message traces are an example.
    """

    ignore = "ignore"
    report = "report"
    erase = "erase"


class TopicTotals(msgspec.Struct):
    """The selected records of a topic, and the number of records that still mention a key.

    ``size_bytes`` counts whole records. Times are store times, ms; 0 without records.
    """

    topic: str
    records: int = 0
    size_bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0
    mentions: int = 0


class Unread(NamedTuple):
    """Selected records of a topic that a group has not read yet: it will read tombstones."""

    topic: str
    group: str
    records: int


#: For each queue, the groups that read its topic, with the offset that each reads next.
GroupOffsets = dict[tuple[str, int], list[tuple[str, int]]]


class Tallies:
    """The selected records: their positions in the log, and totals for the report."""

    def __init__(self, offsets: GroupOffsets) -> None:
        self._offsets = offsets
        self._places = array("q")
        self._topics: dict[str, TopicTotals] = {}
        self._unread: Counter[tuple[str, str]] = Counter()
        #: Number of tombstones of earlier runs.
        self.earlier = 0

    def _topic(self, topic: str) -> TopicTotals:
        return self._topics.setdefault(topic, TopicTotals(topic))

    def add(self, found: Found) -> None:
        """Add a selected record."""
        self._places.append(found.place)
        totals = self._topic(found.topic)
        totals.first_ms = min(totals.first_ms, found.store_ms) if totals.records else found.store_ms
        totals.last_ms = max(totals.last_ms, found.store_ms)
        totals.records += 1
        totals.size_bytes += found.size_bytes
        for group, offset in self._offsets.get((found.topic, found.queue_id), ()):
            if found.queue_offset >= offset:
                self._unread[found.topic, group] += 1

    def mention(self, topic: str) -> None:
        """Count a record that still mentions a key: it was not selected, or its tombstone does."""
        self._topic(topic).mentions += 1

    def count_earlier(self, chunk: Chunk) -> None:
        """Count the tombstones of earlier runs."""
        self.earlier += _bytes_of(chunk).count(_MARK)

    @property
    def places(self) -> Ints:
        """The physical offsets of the selected records, in order."""
        return np.sort(np.array(self._places, np.int64))

    @property
    def topics(self) -> tuple[TopicTotals, ...]:
        """The totals, by topic."""
        return tuple(totals for _, totals in sorted(self._topics.items()))

    @property
    def unread(self) -> tuple[Unread, ...]:
        """The groups that have not read all selected records."""
        return tuple(Unread(*place, count) for place, count in sorted(self._unread.items()))


class Found(NamedTuple):
    """One record of the log."""

    place: int
    topic: str
    queue_id: int
    queue_offset: int
    size_bytes: int
    store_ms: int


class RecordSelection(Protocol):
    """Selects records while the log is read."""

    tallies: Tallies

    @property
    def cause(self) -> str:
        """The reason that tombstones give."""

    @property
    def keys(self) -> frozenset[str]:
        """The keys whose text must not stay in any tombstone."""

    def take(self, chunk: Chunk) -> None:
        """Examine the next records, in the order of the log."""


class ByKeys:
    """Selects the messages of some keys: those with the key among their keys or as unique key.

    ``topics`` limits this to messages that were sent to one of them, also where a retry, a dead
    letter or a delay put them into another topic. ``counts`` has the number of messages of each
    key, in the order of the keys.
    """

    cause = REDACTED

    def __init__(
        self,
        keys: Sequence[str],
        tallies: Tallies,
        *,
        topics: Collection[str] = (),
        mentions: Mentions = Mentions.report,
    ) -> None:
        self.tallies = tallies
        self.keys = frozenset(keys)
        self.counts = [0] * len(keys)
        self._numbers = {key: number for number, key in enumerate(keys)}
        self._texts = [key.encode() for key in keys]
        self._topics = frozenset(topics)
        self._mentions = mentions
        self._hashes: dict[str, Ints] = {}

    def take(self, chunk: Chunk) -> None:
        self.tallies.count_earlier(chunk)
        taken = set()
        for row in self._candidates(chunk):
            if self._is_wanted(chunk, row):
                taken.add(row)
                self._select(chunk, row)
        if self._mentions is Mentions.ignore:
            return
        for row in self._mentioning(chunk, taken):
            if self._mentions is Mentions.erase:
                self._select(chunk, row)
            else:
                self.tallies.mention(_topic_of(chunk, row))

    def _candidates(self, chunk: Chunk) -> list[int]:
        """Return the rows with the hash of a wanted key, and rollback records, which have none."""
        topics = {topic for topic, _ in chunk.queues}
        wanted = np.concatenate([self._hashes_in(topic) for topic in topics])
        found = chunk.key_rows[np.isin(chunk.key_hashes, wanted)]
        rolled_back = (chunk.sys_flags & TRANSACTION_MASK) == TransactionType.ROLLBACK
        rows: list[int] = np.union1d(found, np.flatnonzero(rolled_back)).tolist()
        return rows

    def _hashes_in(self, topic: str) -> Ints:
        known = self._hashes.get(topic)
        if known is None:
            prefixes = [topic_prefix(topic)] * len(self._numbers)
            known = np.array(index_hashes(prefixes, [*self._numbers]), np.int64)
            self._hashes[topic] = known
        return known

    def _is_wanted(self, chunk: Chunk, row: int) -> bool:
        found = props.decode(_held(chunk, row))
        own = self.keys.intersection(props.index_keys(found))
        if not own or not self._is_sent_to(_topic_of(chunk, row), found):
            return False
        for key in own:
            self.counts[self._numbers[key]] += 1
        return True

    def _is_sent_to(self, topic: str, found: dict[str, str]) -> bool:
        if not self._topics or topic in self._topics:
            return True
        return any(found.get(name) in self._topics for name in props.ORIGIN_TOPICS)

    def _select(self, chunk: Chunk, row: int) -> None:
        self.tallies.add(_found(chunk, row))
        left = entomb(_raw(chunk, row), self.keys, self.cause)
        if any(text in left for text in self._texts):
            self.tallies.mention(_topic_of(chunk, row))

    def _mentioning(self, chunk: Chunk, taken: Collection[int]) -> list[int]:
        """Return the rows outside of ``taken`` that contain the text of a key."""
        rows = set(_rows_with(chunk, self._texts))
        for row in np.flatnonzero(chunk.sys_flags & COMPRESSED).tolist():
            if row not in taken and row not in rows:
                body = _plain_body(chunk, row)
                if any(text in body for text in self._texts):
                    rows.add(row)
        return sorted(rows.difference(taken))


def _rows_with(chunk: Chunk, texts: Iterable[bytes]) -> Iterator[int]:
    """Yield the rows whose bytes contain one of the texts."""
    data, starts = _bytes_of(chunk), chunk.starts - chunk.starts[0]
    for text in texts:
        at = data.find(text)
        while at >= 0:
            row = int(np.searchsorted(starts, at, "right")) - 1
            end = int(starts[row] + chunk.sizes[row])
            if at < end:
                yield row
            at = data.find(text, max(end, at + 1))


def _plain_body(chunk: Chunk, row: int) -> bytes:
    """Return a body as it was sent; empty if it cannot be decompressed."""
    record = decode_one(_raw(chunk, row), check_crc=False)
    try:
        return decompress(record.body, record.sys_flag)
    except BadRecord:
        return b""


class Superseded:
    """Selects the messages of a topic for whose key a later message exists.

    The key is the whole value of KEYS; messages without one stay. ``newest`` has the latest message
    of each key.
    """

    cause = COMPACTED

    def __init__(self, topic: str, tallies: Tallies) -> None:
        self.tallies = tallies
        self.keys: frozenset[str] = frozenset()
        self.newest: dict[bytes, Found] = {}
        self._topic = topic

    def take(self, chunk: Chunk) -> None:
        self.tallies.count_earlier(chunk)
        is_own = chunk.of_queues(topic == self._topic for topic, _ in chunk.queues) > 0
        for row in np.flatnonzero(is_own & chunk.takes_place).tolist():
            held = _held(chunk, row)
            key = props.find(held, props.KEYS.encode())
            if key is None or is_tombstone(held):
                continue
            earlier = self.newest.get(key)
            if earlier is not None:
                self.tallies.add(earlier)
            self.newest[key] = _found(chunk, row)


def _topic_of(chunk: Chunk, row: int) -> str:
    return chunk.queues[int(chunk.queue_numbers[row])][0]


def _found(chunk: Chunk, row: int) -> Found:
    topic, queue_id = chunk.queues[int(chunk.queue_numbers[row])]
    return Found(
        int(chunk.places[row]), topic, queue_id, int(chunk.queue_offsets[row]),
        int(chunk.sizes[row]), int(chunk.store_ms[row]),
    )  # fmt: skip


def _bytes_of(chunk: Chunk) -> bytes:
    """Return all bytes from the first record to the last."""
    return bytes(chunk.raw[int(chunk.starts[0]) : int(chunk.starts[-1] + chunk.sizes[-1])])


def _raw(chunk: Chunk, row: int) -> bytes:
    start = int(chunk.starts[row])
    return bytes(chunk.raw[start : start + int(chunk.sizes[row])])


def _held(chunk: Chunk, row: int) -> bytes:
    """Return the properties of a record as they are stored."""
    view = chunk.raw.data
    return bytes(properties_of(view, int(chunk.starts[row]), int(chunk.sizes[row])))
