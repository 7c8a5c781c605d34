"""A copy of another broker's log: bytes that come in pieces become records, written as they are.

A record is part of the log, and reported, once it is known to stand where it says that it stands,
to be whole, and to have its body's CRC: what is copied wrongly would otherwise be acknowledged and
served. Only whole records, and whole blanks up to a file's end, are written; what is left waits for
the rest. Queues and index follow at once.

Nothing else may append to a store that is a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.core.errors import MessageIllegal, StoreError, anew
from cometmq.message.record import MAGIC_BLANK, PREFIX, BadRecord, iter_spans
from cometmq.speedups import WriteBatch, walk

if TYPE_CHECKING:
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.queue.consumequeue import ConsumeQueue


class BadCopy(StoreError):
    """The bytes for physical offset ``offset`` are no part of a log; ``problem`` says why."""

    def __init__(self, offset: int, problem: str) -> None:
        self.offset = offset
        self.problem = problem
        super().__init__(f"what came for offset {offset} is no log: {problem}")


def kept_offset(store: MessageStore) -> int:
    """The end of what is as safe as the flush policy promises: on the device, or written."""
    return store.durable_offset if store.waits_for_sync else store.written_offset


class Replica:
    """Takes the log of a master into a store."""

    __slots__ = ("_rest", "_store")

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._rest = bytearray()

    @property
    def received(self) -> int:
        """Where the next bytes go: the end of what was taken, whether its last record is whole or
        not."""
        return self._store.log.written + len(self._rest)

    def begin(self, offset: int) -> None:
        """Let a store without a record begin at a physical offset.

        Raises BadCopy when it has records, or files of the log cannot begin there.
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
        """Write what came for :attr:`received`.

        Raises BadCopy for what can be no log, when what is right before it was taken; StoreFull,
        StoreOffline. Then the connection has to begin again at the log's end.
        """
        store, log = self._store, self._store.log
        if log.failure is not None:
            raise anew(log.failure)
        batch = WriteBatch()
        begin = log.written
        view = memoryview(data)
        head = memoryview(b"")
        if self._rest:
            taken = self._complete(view)
            view = view[taken:]
            if self._walk(self._rest, begin, batch):
                head = memoryview(self._rest)
                self._rest = bytearray()
        middle = begin + len(head)
        bad: BadCopy | None = None
        try:
            # Without a whole record in front of it there is nothing behind it.
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
        """Add to the rest what its record lacks, or all there is; gives how much that was."""
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
        store.last_ms = max(store.last_ms, batch.last_ms)
        # Without rows too: behind the last record there may be the blank that closed its file.
        is_kept = not store.waits_for_sync or end <= store.durable_offset
        store.backlog.take([batch], end, store.last_ms, ready=is_kept)

    def drop_rest(self) -> None:
        """The connection is gone: the rest of the last record comes again."""
        self._rest = bytearray()

    def end(self) -> None:
        """The copy becomes a master, all of it dispatched: offsets go on behind what is there."""
        store = self._store
        assert store.dispatched_offset == store.written_offset
        self.drop_rest()
        for queue in store.queues.values():
            queue.settle()

    def _walk(self, data: bytearray | memoryview, base: int, batch: WriteBatch) -> int:
        """Where the whole records in ``data``, which is for ``base``, end; their rows are added to
        ``batch``. Raises BadCopy."""
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
        """The same for a part of ``view`` that lies in one file: where what is no whole record
        begins."""
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
            # A topic that only a 5.x broker can have, for its length: kept, and in no queue.
            return None

    def _blank_bytes(self, view: memoryview, at: int, base: int, problem: str) -> int:
        """The size of the blank at a place that has no whole record, for a ``problem``; 0 when more
        has to come first. Raises BadCopy."""
        segments = self._store.log.segments
        room = segments.file_bytes - (base + at - segments.start) % segments.file_bytes
        left = len(view) - at
        if room < PREFIX.size:
            # Not even a blank fits in what is left of the file.
            return room if left >= room else 0
        if left < PREFIX.size:
            return 0
        size, magic = PREFIX.unpack_from(view, at)
        if not 0 < size <= room or (magic == MAGIC_BLANK and size != room):
            problem = f"a record of {size} bytes, the file has room for {room}"
            raise BadCopy(base + at, problem)
        if left < size:
            return 0
        if magic != MAGIC_BLANK:
            raise BadCopy(base + at, problem)
        return int(size)


def _problem(view: memoryview, at: int, stop: int, base: int) -> str:
    """Why no whole and right record begins at a place."""
    try:
        next(iter_spans(view, at, stop, base=base))
    except BadRecord as error:
        return error.problem
    raise AssertionError(f"a record begins at offset {base + at}")
