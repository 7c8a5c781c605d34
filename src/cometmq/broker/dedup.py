"""Detection of repeated sends. A message that is stored already is not stored again: its send is
answered with the place of the first copy. In a batch, messages that are stored already or that
occur twice are left out.

The unique key ("id") of a message identifies it within its topic. Ids of stored messages are kept
as 64-bit hashes with log offsets, in little memory (:class:`IdWindow`). A hash is only a hint: two
ids may share one. A message is a repeat only if the record at that offset has the same topic and
id, was stored within the window, and is newer than the last deletion of the topic. Every other
message is stored.

Hashes are put into tables of a fixed size, and are removed with their table: once the table's
youngest hash is older than the window, or earlier if there are too many hashes. A cell has 8 bytes:
24 bits of the hash, and the offset relative to the table's base. A table is full when half of its
cells are used, so an id takes 16 bytes. Tables grow with the send rate, so that a window has about
five.

Records that are appended but not dispatched yet cannot be read, so their topics and ids are kept in
memory until then. A repeat of such a record is answered once the flush policy is met for the first
copy.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.broker.acknowledgement import Scattered
from cometmq.broker.lookup import bounds, find_entry
from cometmq.core.clock import Slices
from cometmq.core.errors import BadRequest, CometError, MessageIllegal
from cometmq.message import batch
from cometmq.message import properties as props
from cometmq.message.batch import has_more_than
from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX
from cometmq.message.record import BadRecord, decode_one
from cometmq.net.router import begin_task, end_task
from cometmq.protocol.codes import ResponseCode
from cometmq.store.log.scan import Scan, resumption

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cometmq.broker.acknowledgement import Appender, Fail
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.topics.table import TopicTable
    from cometmq.core.clock import Clock
    from cometmq.message.batch import SharedFields
    from cometmq.message.record import Record
    from cometmq.net.peer import Peer
    from cometmq.net.tasks import Tasks
    from cometmq.protocol.frame import Request
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)

ALL: Final = "*"
#: Number of records read from the device that are cached until their sends are served again.
READ_MAX: Final = 4_096
#: Limit of messages in a batch, because the lookup of each id takes some microseconds.
MESSAGES_MAX: Final = 1_024
_MASK: Final = (1 << 64) - 1
_UNIQ_KEY: Final = props.UNIQ_KEY.encode()

#: Limits of a table's cells. The largest table is allocated in one piece, in 3 ms.
MIN_CELLS: Final = 1 << 12
MAX_CELLS: Final = 1 << 20
TABLES_A_WINDOW: Final = 4
_GROWTH: Final = 4
_PLACE_BITS: Final = 40
_PLACE_MASK: Final = (1 << _PLACE_BITS) - 1
#: Distance by which places may decrease: the offsets of a failed turn are assigned again.
_BACK_BYTES: Final = 1 << 34

#: Serves a request once more.
Again = Callable[["Peer", "Request[Any]"], None]


class IdTable:
    """Hash table with open addressing. Cells are never removed, so an empty cell ends every
    search."""

    __slots__ = ("base", "cells", "count", "mask", "newest_ms", "opened_ms", "room")

    def __init__(self, cells: int, first_place: int, opened_ms: int) -> None:
        self.cells = array("Q", bytes(8 * cells))
        self.mask = cells - 1
        #: Subtracted from each place; the difference is at least 1, because an empty cell is 0.
        self.base = max(first_place - _BACK_BYTES, 0) - 1
        self.room = cells // 2
        self.count = 0
        self.opened_ms = self.newest_ms = opened_ms

    def takes(self, place: int) -> bool:
        """Decide whether one more id with this place fits."""
        return self.count < self.room and 0 < place - self.base <= _PLACE_MASK

    def add(self, digest: int, place: int) -> None:
        """Add an id that fits."""
        cells, mask = self.cells, self.mask
        at = digest & mask
        while cells[at]:
            at = (at + 1) & mask
        # The upper 24 bits of the hash and the place share a cell, so that it is one machine word.
        cells[at] = (digest >> _PLACE_BITS) << _PLACE_BITS | place - self.base
        self.count += 1


class IdWindow:
    """Ids of the last ``window_ms``, at most ``ids_max`` of them. Hashes have 64 bits.

    ``left_early`` counts the ids that were removed before the end of the window.
    """

    def __init__(self, window_ms: int, ids_max: int) -> None:
        self.window_ms = window_ms
        self.ids_max = ids_max
        self.left_early = 0
        self._cells_max = MIN_CELLS
        while self._cells_max < MAX_CELLS and self._cells_max * 4 <= ids_max:
            self._cells_max *= 2
        self._tables: deque[IdTable] = deque()

    def __len__(self) -> int:
        return sum(table.count for table in self._tables)

    @property
    def size_bytes(self) -> int:
        """Memory of the tables, in bytes."""
        return sum(8 * len(table.cells) for table in self._tables)

    def find(self, digest: int) -> list[int]:
        """Return the places where the id with this hash may be stored, youngest table first."""
        found: list[int] = []
        mark = digest >> _PLACE_BITS
        for table in self._tables:
            cells, mask = table.cells, table.mask
            at = digest & mask
            while cell := cells[at]:
                if cell >> _PLACE_BITS == mark:
                    found.append((cell & _PLACE_MASK) + table.base)
                at = (at + 1) & mask
        return found

    def add(self, digest: int, place: int, now_ms: int) -> None:
        """Add the place of an id. ``now_ms`` may be only slightly less than at earlier calls."""
        tables = self._tables
        if (
            not tables
            or not tables[0].takes(place)
            or now_ms - tables[0].opened_ms > self.window_ms // TABLES_A_WINDOW
        ):
            self._open(place, now_ms)
        table = tables[0]
        table.add(digest, place)
        if now_ms > table.newest_ms:
            table.newest_ms = now_ms

    def expire(self, now_ms: int) -> None:
        """Remove tables whose ids are all older than the window."""
        tables = self._tables
        while tables and tables[-1].newest_ms < now_ms - self.window_ms:
            tables.pop()

    def clear(self) -> None:
        """Remove all ids."""
        self._tables.clear()

    def _open(self, first_place: int, now_ms: int) -> None:
        """Begin a new table; remove the oldest ones if there would be too many ids."""
        self.expire(now_ms)
        cells = MIN_CELLS
        if self._tables:
            last = self._tables[0]
            cells = len(last.cells)
            if now_ms - last.opened_ms <= self.window_ms // TABLES_A_WINDOW:
                cells *= _GROWTH  # it became full too early
            elif last.count < last.room // _GROWTH:
                cells //= 2
        cells = min(max(cells, MIN_CELLS), self._cells_max)
        table = IdTable(cells, first_place, now_ms)
        while self._tables and len(self) + table.room > max(self.ids_max, table.room):
            oldest = self._tables.pop()
            self.left_early += oldest.count
            log.warning(
                "repeated_ids_evicted_early ids=%d age_ms=%d window_ms=%d ids_max=%d",
                oldest.count, now_ms - oldest.newest_ms, self.window_ms, self.ids_max,
            )  # fmt: skip
        self._tables.appendleft(table)


class Stored(NamedTuple):
    """Queue id, queue offset and log offset (``place``) of a stored message."""

    queue_id: int
    queue_offset: int
    place: int


class Cold(NamedTuple):
    """A record that must first be read from the device, with :meth:`Deduplicator.read`."""

    place: int


class _Known(NamedTuple):
    topic: str
    unique: str
    stored_ms: int
    stored: Stored


class Deduplicator:
    """Finds messages that are stored already. A broker has one if ``dropRepeatedIdsTopics`` is set.

    ``dropped`` counts the repeated messages that were not stored again.
    """

    def __init__(
        self, *, config: BrokerConfig, store: MessageStore, topics: TopicTable, clock: Clock
    ) -> None:
        self._names = frozenset(config.drop_repeated_ids_topics.replace(",", " ").split())
        self._all = ALL in self._names
        self._store = store
        self._topics = topics
        self._clock = clock
        window_ms = config.drop_repeated_ids_window_minutes * 60_000
        self.window = IdWindow(window_ms, config.drop_repeated_ids_max)
        #: Recently appended messages by place, in two generations. They include all messages that
        #: are not dispatched yet.
        self._young: dict[int, _Known] = {}
        self._old: dict[int, _Known] = {}
        self._old_end = 0
        self._read: dict[int, _Known | None] = {}
        self.dropped = 0

    def covers(self, topic: str) -> bool:
        """Return whether repeats of messages to ``topic`` are dropped."""
        if not self._all and topic not in self._names:
            return False
        return not (topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or self._topics.is_system(topic))

    def first(self, topic: str, unique: str) -> Stored | Cold | None:
        """Return the place where a message with this id is stored; None if there is none, and the
        message must be stored.

        Return Cold if a record must be read before that is known.
        """
        places = self.window.find(hash((topic, unique)) & _MASK)
        if not places:
            return None
        oldest_ms = self._clock.wall_ms() - self.window.window_ms
        life_begin = max(self._topics.life_begin(topic), self._store.log.segments.start)
        for place in places:
            if place < life_begin:
                continue
            known = self._young.get(place) or self._old.get(place)
            if known is None and place < self._store.dispatched_offset:
                if place in self._read:
                    known = self._read[place]
                else:
                    raw = self._store.message_at(place)
                    if raw is None:
                        return Cold(place)
                    known = _known_of(raw)
            if known is None or known.topic != topic or known.unique != unique:
                continue
            if known.stored_ms >= oldest_ms:
                return known.stored
        return None

    async def read(self, place: int) -> None:
        """Read the record at a place and cache it for a send that will be compared with it.
        Raise StoreError if it cannot be read."""
        raw = await self._store.fetch_at(place)
        if len(self._read) >= READ_MAX:
            self._read.clear()
        self._read[place] = None if raw is None else _known_of(raw)

    def remember(self, topic: str, unique: str, stored: Stored) -> None:
        """Remember a message that was appended in this turn of the event loop."""
        now_ms = self._store.state.last_ms
        end = self._store.dispatched_offset
        # The older generation is dropped once all of its records can be read from the log.
        if self._young and self._old_end <= end:
            self._old, self._young = self._young, {}
            self._old_end = next(reversed(self._old)) + 1
        self._young[stored.place] = _Known(topic, unique, now_ms, stored)
        self.window.add(hash((topic, unique)) & _MASK, stored.place, now_ms)

    def appended(
        self, topic: str, properties: Mapping[str, str], queue_id: int, place: int, offset: int
    ) -> None:
        """Remember a message that the broker itself appended: a delayed or a committed one."""
        unique = properties.get(props.UNIQ_KEY)
        if unique and self.covers(topic):
            self.remember(topic, unique, Stored(queue_id, offset, place))

    def turn_failed(self) -> None:
        """Forget messages that were appended but not written; their offsets will be assigned
        again."""
        end = self._store.written_offset
        for recent in (self._young, self._old):
            for place in [place for place in recent if place >= end]:
                del recent[place]

    def facts(self) -> dict[str, str]:
        """Return entries for the broker's runtime information."""
        return {
            "repeatedIdsKept": str(len(self.window)),
            "repeatedIdsBytes": str(self.window.size_bytes),
            "repeatedIdsLeftEarly": str(self.window.left_early),
            "repeatedMessagesDropped": str(self.dropped),
        }

    # ------------------------------------------------------------------------------- at a start

    async def recover(self) -> None:
        """Read the ids of the window from the log. Nothing may be appended meanwhile."""
        begun_ms = self._clock.monotonic_ms()
        start = await self._start()
        slices = Slices(self._clock)
        if start is not None:
            for record in self._records(start):
                self._take(record)
                await slices.pause()
        log.info(
            "repeated_ids_read ids=%d bytes=%d took_ms=%d",
            len(self.window), self.window.size_bytes, self._clock.monotonic_ms() - begun_ms,
        )  # fmt: skip

    async def _start(self) -> int | None:
        """Return the log offset of the first message in the window; None if there is none."""
        since_ms = self._clock.wall_ms() - self.window.window_ms
        store, found = self._store, None
        for topic, queue_ids in store.topics().items():
            if not self.covers(topic):
                continue
            for queue_id in queue_ids:
                offset = await store.offset_by_time(topic, queue_id, since_ms)
                if offset >= bounds(store, topic, queue_id)[1]:
                    continue
                entry = find_entry(store, topic, queue_id, offset)
                place = store.log.segments.start if entry is None else entry[0]
                found = place if found is None else min(found, place)
        return found

    def _records(self, start: int) -> Iterator[Record]:
        segments, end = self._store.log.segments, self._store.dispatched_offset
        scan = Scan(segments, max(start, segments.start), end)
        while True:
            yield from scan
            further = resumption(segments, scan.position) if scan.position < end else None
            if further is None or further.offset >= end:
                return
            log.error("repeated_ids_log_damaged from=%d to=%d", scan.position, further.offset)
            scan.position = further.offset

    def _take(self, record: Record) -> None:
        if not self.covers(record.topic):
            return
        unique = props.find(record.properties, _UNIQ_KEY)
        if unique:
            digest = hash((record.topic, str(unique, "utf-8", "replace"))) & _MASK
            self.window.add(digest, record.physical_offset, record.store_ms)


def make_deduplicator(
    config: BrokerConfig, store: MessageStore, topics: TopicTable, clock: Clock
) -> Deduplicator | None:
    """Return a deduplicator if ``dropRepeatedIdsTopics`` names topics; None otherwise."""
    if not config.drop_repeated_ids_topics:
        return None
    return Deduplicator(config=config, store=store, topics=topics, clock=clock)


def _known_of(raw: memoryview) -> _Known | None:
    try:
        record = decode_one(raw)
    except BadRecord:
        return None
    unique = props.find(record.properties, _UNIQ_KEY) or b""
    stored = Stored(record.queue_id, record.queue_offset, record.physical_offset)
    return _Known(record.topic, str(unique, "utf-8", "replace"), record.store_ms, stored)


class DeduplicatedBatch(NamedTuple):
    """The messages of a batch, divided into new and repeated ones.

    ``ids`` are the unique keys of the new messages, whose entries form ``body``. ``places`` has an
    item for each message: its stored place, or an index into ``ids``, of the message itself or of
    the one that it repeats. ``cold`` are records that must be read before the batch can be divided.
    """

    body: bytes
    ids: list[str | None]
    places: list[Stored | int]
    cold: list[Cold]


def deduplicate(body: bytes, first: Callable[[str], Stored | Cold | None]) -> DeduplicatedBatch:
    """Divide a batch body into new and repeated messages.

    ``first`` returns the place where an id is stored already. A message is identified by the unique
    key among its own properties, never by a property of the whole batch. Raise MessageIllegal if
    the body is no valid batch.
    """
    try:
        spans = batch.walk(body)
    except BadRecord as error:
        raise MessageIllegal(f"batch body: {error}") from None
    if not spans:
        raise MessageIllegal("the batch contains no messages")
    new: list[bytes] = []
    ids: list[str | None] = []
    inside: dict[str, int] = {}
    places: list[Stored | int] = []
    cold: list[Cold] = []
    start = 0
    for _, _, body_end, stop in spans:
        raw = props.find(body[body_end + 2 : stop], _UNIQ_KEY)
        unique = None if raw is None else str(raw, "utf-8", "replace")
        if unique is not None:
            known = inside.get(unique)
            found = first(unique) if known is None else known
            if isinstance(found, Cold):
                cold.append(found)
            elif found is not None:
                places.append(found)
                start = stop
                continue
            inside[unique] = len(ids)
        places.append(len(ids))
        ids.append(unique)
        new.append(body[start:stop])
        start = stop
    return DeduplicatedBatch(body if len(new) == len(spans) else b"".join(new), ids, places, cold)


class DeduplicatedSends:
    """Serves sends to topics that drop repeated ids.

    ``again`` and ``fail`` belong to the send handler: they serve a request once more, and answer it
    with an error.
    """

    def __init__(
        self,
        deduplicator: Deduplicator,
        *,
        store: MessageStore,
        appender: Appender,
        tasks: Tasks,
        again: Again,
        fail: Fail,
    ) -> None:
        self.covers = deduplicator.covers
        self._deduplicator = deduplicator
        self._store = store
        self._appender = appender
        self._tasks = tasks
        self._again = again
        self._fail = fail

    def is_repeat(
        self,
        peer: Peer,
        request: Request[Any],
        message: tuple[str, str | None],
        *,
        wait_durable: bool,
    ) -> bool:
        """Decide whether a single send is handled here and must not be stored by the caller.

        True for a repeat, which is answered with the place of the first message, and for a send
        that must wait until a record is read. ``message`` is the topic in which the message would
        be stored, and its unique key.
        """
        topic, unique = message
        if not unique or topic != request.header.topic or not self.covers(topic):
            return False
        found = self._deduplicator.first(topic, unique)
        if found is None or self._store.state.refusal is not None:
            return False
        if isinstance(found, Cold):
            self._serve_later(peer, request, [found])
            return True
        self._deduplicator.dropped += 1
        request.drop_body()
        send = (peer, request, found.queue_id, found.queue_offset, found.place)
        self._appender.add_repeat(send, found.place, wait_durable=wait_durable)
        return True

    def stored(self, topic: str, unique: str | None, stored: Stored) -> None:
        """Remember a single message that was appended in this turn of the event loop."""
        if unique and self.covers(topic):
            self._deduplicator.remember(topic, unique, stored)

    def store_batch(
        self,
        peer: Peer,
        request: Request[Any],
        queue_id: int,
        shared: SharedFields,
        *,
        wait_durable: bool,
    ) -> None:
        """Store the new messages of a batch, and answer for all of them.

        Raise MessageIllegal for more than MESSAGES_MAX messages, and whatever
        ``MessageStore.append_batch`` raises.
        """
        if has_more_than(request.body, MESSAGES_MAX):
            raise MessageIllegal(
                f"a batch for a topic that drops repeated ids may contain at most {MESSAGES_MAX} "
                "messages: send smaller batches"
            )
        topic = request.header.topic
        deduplicated = deduplicate(request.body, partial(self._deduplicator.first, topic))
        if deduplicated.cold:
            self._serve_later(peer, request, deduplicated.cold)
            return
        new: list[Stored] = []
        first_offset, rows = 0, None
        if deduplicated.body:
            queue = self._store.queue(topic, queue_id)
            first_offset, rows = self._store.append_batch(queue, deduplicated.body, shared)
            batch, first, stop = rows
            new = [
                Stored(queue_id, first_offset + at, place)
                for at, place in enumerate(batch.places(first, stop))
            ]
        for unique, stored in zip(deduplicated.ids, new, strict=True):
            if unique is not None:
                self._deduplicator.remember(topic, unique, stored)
        request.drop_body()
        if rows is not None and len(new) == len(deduplicated.places):
            self._appender.add_send(
                (peer, request, queue_id, first_offset, rows), wait_durable=wait_durable
            )
            return
        all_of_it = [
            where if isinstance(where, Stored) else new[where] for where in deduplicated.places
        ]
        self._deduplicator.dropped += len(all_of_it) - len(new)
        scattered = Scattered(
            [stored.place for stored in all_of_it], [stored.queue_offset for stored in all_of_it]
        )
        # A response has one queue id only: that of the new messages, if there are any.
        answered_queue = queue_id if new else all_of_it[0].queue_id
        send = (peer, request, answered_queue, all_of_it[0].queue_offset, scattered)
        self._appender.add_repeat(send, max(scattered.places), wait_durable=wait_durable)

    def _serve_later(self, peer: Peer, request: Request[Any], cold: Sequence[Cold]) -> None:
        begin_task(peer)
        self._tasks.spawn(
            self._read_and_serve(peer, request, cold), name=f"repeated send {peer.address}"
        )

    async def _read_and_serve(
        self, peer: Peer, request: Request[Any], cold: Sequence[Cold]
    ) -> None:
        try:
            for each in cold:
                await self._deduplicator.read(each.place)
        except CometError as error:
            self._fail(peer, request, error)
        except OSError as error:
            log.exception("repeated_send_unreadable peer=%s", peer.address)
            self._fail(peer, request, BadRequest(ResponseCode.SYSTEM_ERROR, str(error)))
        else:
            self._again(peer, request)
        finally:
            end_task(peer)
