"""A copy of another broker's log: received bytes are checked, written unchanged and dispatched.

A record is written, and reported to the master, only after these checks: it is whole, it is at the
physical offset that it states, and the CRC of its body is right. Otherwise a wrong copy would be
acknowledged and served. Only whole records and whole blanks at the end of a file are written; an
incomplete record waits in memory for its remaining bytes. Queues and index are updated at once,
with SYNC_FLUSH once the device has the records.

Nothing else may append to a store that is a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.core.errors import MessageIllegal, StoreError, fresh_copy
from cometmq.message.record import MAGIC_BLANK, PREFIX, BadRecord, iter_spans
from cometmq.speedups import WriteBatch, walk

if TYPE_CHECKING:
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.queue.consumequeue import ConsumeQueue


class BadCopy(StoreError):
    """The bytes received for ``offset`` (physical) are not part of a log; ``problem`` says why."""

    def __init__(self, offset: int, problem: str) -> None:
        self.offset = offset
        self.problem = problem
        super().__init__(f"the bytes received for offset {offset} are not a log: {problem}")


def kept_offset(store: MessageStore) -> int:
    """Return the end of the log as safe as the flush policy requires: on the device, or written."""
    return store.durable_offset if store.waits_for_sync else store.written_offset


class Replica:
    """Appends the log of a master to a store."""

    __slots__ = ("_rest", "_store")

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._rest = bytearray()

    @property
    def received(self) -> int:
        """Offset for the next bytes: the end of the received bytes, incomplete record included."""
        return self._store.log.written + len(self._rest)

    def begin(self, offset: int) -> None:
        """Make an empty store begin at a physical offset.

        Raises BadCopy if it has records, or if no log file can begin there.
        """
        log = self._store.log
        if offset == self.received:
            return
        if log.written:
            raise BadCopy(offset, f"this log ends at {self.received}")
        if offset % log.segments.file_bytes:
            raise BadCopy(
                offset,
                f"no file of {log.segments.file_bytes} bytes begins there: set "
                "mappedFileSizeCommitLog to the master's",
            )
        log.restart_at(offset)

    def take(self, data: bytes | memoryview) -> None:
        """Write the next bytes of the master's log, which belong at :attr:`received`.

        Raises BadCopy for bytes that cannot be part of a log; the valid records before them are
        written. Raises StoreFull, StoreOffline. After an error the connection must restart at the
        end of the log.
        """
        store, log = self._store, self._store.log
        if log.failure is not None:
            raise fresh_copy(log.failure)
        batch = WriteBatch()
        begin = log.written
        view = memoryview(data)
        head = memoryview(b"")
        if self._rest:
            # Complete the incomplete record first: ``view`` then begins at a record.
            taken = self._complete(view)
            view = view[taken:]
            if self._walk(self._rest, begin, batch):
                head = memoryview(self._rest)
                self._rest = bytearray()
        middle = begin + len(head)
        bad: BadCopy | None = None
        try:
            # If the record is still incomplete, it has taken all of the data: ``view`` is empty.
            end = self._walk(view, middle, batch)
        except BadCopy as problem:
            bad, end = problem, problem.offset - middle
        if head or end:
            if head:
                log.extend(head)
            log.extend(view[:end])
            log.commit()
            self._dispatch(batch, log.written)
            for call in store.on_progress:
                call()
        if bad is not None:
            raise bad
        self._rest += view[end:]

    def _complete(self, view: memoryview) -> int:
        """Complete the incomplete record with bytes of ``view``; return their number."""
        segments = self._store.log.segments
        base = self._store.log.written - segments.start
        room = segments.file_bytes - base % segments.file_bytes
        taken = 0
        wanted = min(PREFIX.size, room)
        if len(self._rest) < wanted:
            taken = min(wanted - len(self._rest), len(view))
            self._rest += view[:taken]
        if len(self._rest) >= PREFIX.size:
            size, _ = PREFIX.unpack_from(self._rest)
            more = min(max(size - len(self._rest), 0), len(view) - taken, room)
            self._rest += view[taken : taken + more]
            taken += more
        return taken

    def _dispatch(self, batch: WriteBatch, end: int) -> None:
        store = self._store
        store.state.last_ms = max(store.state.last_ms, batch.last_ms)
        # A batch without rows counts too: the bytes may be only the blank that closes a file.
        is_kept = not store.waits_for_sync or end <= store.durable_offset
        store.backlog.take([batch], end, store.state.last_ms, ready=is_kept)

    def drop_rest(self) -> None:
        """Drop the incomplete record after a disconnect; the master sends it again."""
        self._rest = bytearray()

    def end(self) -> None:
        """Turn the copy into a master's store: new queue offsets continue after the existing ones.

        All written records must be dispatched.
        """
        store = self._store
        assert store.dispatched_offset == store.written_offset
        self.drop_rest()
        for queue in store.queues.values():
            queue.finish_recovery()

    def _walk(self, data: bytearray | memoryview, base: int, batch: WriteBatch) -> int:
        """Add the rows of whole records in ``data``, which begins at ``base``, to ``batch``.

        Returns the position where the whole records end. Raises BadCopy.
        """
        view = memoryview(data)
        segments = self._store.log.segments
        file_bytes = segments.file_bytes
        at, end = 0, len(data)
        while at < end:
            room = file_bytes - (base + at - segments.start) % file_bytes
            stop = min(at + room, end)
            at = self._take_records(view, at, stop, base, batch)
            if at < stop:
                size = self._blank_bytes(view, at, base, _problem(view, at, stop, base))
                if not size:
                    return at
                at += size
        return at

    def _take_records(
        self, view: memoryview, at: int, stop: int, base: int, batch: WriteBatch
    ) -> int:
        """Add the rows of a part of ``view`` that lies in one file; return where they end."""
        is_open = True
        while is_open:
            rows, hashes, names, at, is_open = walk(
                view, at, stop, base, self._store.delays_ms, check_crc=True
            )
            queues: list[ConsumeQueue | None] = []
            for topic, queue_id, is_listed in names:
                queues.append(self._queue(topic, queue_id) if is_listed else None)
            batch.adopt(rows, hashes, queues, base)
        return at

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        try:
            return self._store.queues.by_topic[topic][queue_id]
        except KeyError:
            pass
        try:
            return self._store.queue(topic, queue_id)
        except MessageIllegal:
            # The topic name is too long for this version (only 5.x allows it): keep the record in
            # no queue.
            return None

    def _blank_bytes(self, view: memoryview, at: int, base: int, problem: str) -> int:
        """Return the size of the blank at a position that has no valid whole record.

        Returns 0 if more bytes are needed. Raises BadCopy; ``problem`` is its reason if the record
        is whole but invalid.
        """
        segments = self._store.log.segments
        room = segments.file_bytes - (base + at - segments.start) % segments.file_bytes
        left = len(view) - at
        if room < PREFIX.size:
            # The rest of the file is too short even for a blank.
            return room if left >= room else 0
        if left < PREFIX.size:
            return 0
        size, magic = PREFIX.unpack_from(view, at)
        if not 0 < size <= room or (magic == MAGIC_BLANK and size != room):
            problem = f"a record of {size} bytes; the file has room for {room}"
            raise BadCopy(base + at, problem)
        if left < size:
            return 0
        if magic != MAGIC_BLANK:
            raise BadCopy(base + at, problem)
        return int(size)


def _problem(view: memoryview, at: int, stop: int, base: int) -> str:
    """Return the reason why no valid record begins at a position."""
    try:
        next(iter_spans(view, at, stop, base=base))
    except BadRecord as error:
        return error.problem
    raise AssertionError(f"a record begins at offset {base + at}")
