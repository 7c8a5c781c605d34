"""A copy of another broker's log: bytes that come in pieces become records, written as they are.

A record is part of the log, and reported, once it is known to stand where it says that it stands,
to be whole, and to have its body's CRC: what is copied wrongly would otherwise be acknowledged and
served. In the usual case all of that happens in the turn in which it came: only whole records, and
whole blanks up to a file's end, are written, what is left waits for the rest, and queues and index
follow at once. While a long history floods in, what is not copied may be lost with its master, and
comes first:

    start of the log                 written                      received
    |  records, in queues  |  records  |  bytes as they came, unseen  |
                           dispatched  checked, reported              |

Bytes go behind the end of the log as they come, and nobody sees them. :meth:`Replica.follow_up`
reads them again and checks them, and with that they belong to the log; when there are none left, it
dispatches what lags. Whatever was not checked is taken away before anything else is written there,
and a crash leaves it to the next start, which checks all behind the last note.

Nothing else may append to a store that is a copy.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import MessageIllegal, StoreError, anew
from cometmq.message.record import MAGIC_BLANK, PREFIX, BadRecord, iter_spans
from cometmq.speedups import WriteBatch, check_records, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.consumequeue import ConsumeQueue
    from cometmq.store.engine import MessageStore

logger = logging.getLogger(__name__)

#: So much at once comes from a master that has more of it.
FLOOD_BYTES: Final = 96 << 10
#: More than that is not taken unchecked: a stop waits for the check, about a second a GiB.
UNCHECKED_MAX_BYTES: Final = 1 << 30
#: What is checked at a time, what is dispatched, and what is fetched ahead of either when it may
#: have left memory.
_CHECK_BYTES: Final = 1 << 20
_DISPATCH_BYTES: Final = 64 << 10
_AHEAD_BYTES: Final = 1 << 20


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
    """Takes the log of a master into a store. ``received`` is the end of what was taken, whether
    its last record is whole or not.

    Who takes what floods in calls :meth:`follow_up` for as long as it ``lags``; ``floods`` says
    that much came since it was last set to False.
    """

    __slots__ = ("_behind", "_buffer", "_end", "_followed", "_rest", "_store", "floods")

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._rest = b""
        #: The end of what stands in the files behind the log's end, when it is more than that.
        self._end = 0
        #: The first record of it is not there as a whole before this offset.
        self._behind = 0
        self._buffer = bytearray()
        #: Up to where the log was given to dispatch, while that lags; else -1.
        self._followed = -1
        self.floods = False
        store.upkeep.on_stop.append(self.finish)

    @property
    def received(self) -> int:
        """Where the next bytes go."""
        return max(self._store.log.written + len(self._rest), self._end)

    @property
    def unchecked_bytes(self) -> int:
        """What stands in the files and is no part of the log yet."""
        return max(self._end - self._store.log.written, 0)

    @property
    def may_check(self) -> bool:
        """Whether some of that may be whole records."""
        return self._store.log.written < self._end >= self._behind

    @property
    def lags(self) -> bool:
        """Whether there is something for :meth:`follow_up`."""
        return self._followed >= 0 or self._store.log.written < self._end >= self._behind

    def begin(self, offset: int) -> None:
        """Let a store without a record begin at a physical offset.

        Raises BadCopy when it has records, or files of the log cannot begin there.
        """
        log = self._store.log
        if offset == self.received:
            return
        if log.written or self._end > offset:
            raise BadCopy(offset, f"this log ends at {self.received}")
        if offset % log.segments.file_bytes:
            raise BadCopy(
                offset,
                f"no file of {log.segments.file_bytes} bytes begins there: set "
                "mappedFileSizeCommitLog to the master's",
            )
        log.restart_at(offset)

    def take(self, data: bytes | memoryview, *, floods: bool = False) -> None:
        """Write what came for ``received``; with ``floods`` it is part of much that comes.

        Raises BadCopy for what can be no log, StoreFull, StoreOffline; then the connection has to
        begin again at the log's end, and what is unchecked is to be cleared first.
        """
        store, log = self._store, self._store.log
        if log.failure is not None:
            raise anew(log.failure)
        self.floods = self.floods or floods
        if floods or self._end > log.written:
            self._take_unchecked(memoryview(data))
            return
        lags = self._followed >= 0
        batch = None if lags else WriteBatch(store.store_host, log.segments.file_bytes)
        begin = log.written
        view = memoryview(data)
        head = memoryview(b"")
        if self._rest:
            taken = self._complete(view)
            view = view[taken:]
            if self._walk(self._rest, begin, batch, trusted=False):
                head = memoryview(self._rest)
                self._rest = b""
        middle = begin + len(head)
        # Without a whole record in front of it there is nothing behind it.
        end = self._walk(view, middle, batch, trusted=False)
        if head or end:
            if head:
                log.extend(head)
            log.extend(view[:end])
            log.commit()
        self._rest += bytes(view[end:])
        if not head and not end:
            return
        if batch is not None:
            self._dispatch(batch, log.written)
        for call in store.on_progress:
            call()

    def _take_unchecked(self, data: memoryview) -> None:
        log = self._store.log
        end = self.received
        if self._rest:
            log.write_behind(log.written, memoryview(self._rest))
            self._end, self._rest = end, b""
        log.write_behind(end, data)
        self._end = end + len(data)
        if not self.floods:
            self.check()

    def _complete(self, view: memoryview) -> int:
        """Add to the rest what its record lacks, or all there is; gives how much that was."""
        segments = self._store.log.segments
        base = self._store.log.written - segments.start
        room = segments.file_bytes - base % segments.file_bytes
        taken = 0
        wanted = min(PREFIX.size, room)
        if len(self._rest) < wanted:
            taken = min(wanted - len(self._rest), len(view))
            self._rest += bytes(view[:taken])
        if len(self._rest) >= PREFIX.size:
            size, _ = PREFIX.unpack_from(self._rest)
            more = min(max(size - len(self._rest), 0), len(view) - taken, room)
            self._rest += bytes(view[taken : taken + more])
            taken += more
        return taken

    def _dispatch(self, batch: WriteBatch, end: int) -> None:
        store = self._store
        store.last_ms = max(store.last_ms, batch.last_ms)
        # Without rows too: behind the last record there may be the blank that closed its file.
        is_kept = not store.waits_for_sync or end <= store.durable_offset
        store.backlog.take([batch], end, store.last_ms, ready=is_kept)

    def follow_up(self) -> None:
        """Check some of what came, or else dispatch some of what lags: about a millisecond.

        Raises BadCopy, StoreError, OSError.
        """
        if not self.check() and self._followed >= 0:
            self._dispatch_some()

    def check(self) -> bool:
        """Make records of some of what came; False when there is nothing to check.

        Raises BadCopy: what begins there is to be dropped; OSError.
        """
        if not self.may_check:
            return False
        store, log = self._store, self._store.log
        begin = log.written
        data, size = memoryview(b""), _CHECK_BYTES
        end = 0
        while not end and begin + len(data) < self._end:
            data = self._read(begin, size, self._end)
            try:
                end = self._walk(data, begin, None, trusted=False)
            except BadCopy as problem:
                if problem.offset == begin:
                    raise
                end = problem.offset - begin
            size *= 4
        if not end:
            whole = PREFIX.unpack_from(data)[0] if len(data) >= PREFIX.size else PREFIX.size
            self._behind = begin + int(whole)
            return False
        log.adopt(begin + end)
        if self._followed < 0:
            self._followed = begin
        for call in store.on_progress:
            call()
        return True

    def _read(self, begin: int, size: int, end: int) -> memoryview:
        """``size`` bytes of the log from ``begin`` on, fewer at ``end`` or that of the file."""
        log = self._store.log
        file = log.segments.find(begin)
        assert file is not None
        limit = min(file.end, end)
        if begin < self._store.reads.recent_from:
            file.will_need(begin, min(begin + _AHEAD_BYTES, limit))
        size = min(size, limit - begin)
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        file.read_into(view, begin)
        return view

    def _dispatch_some(self) -> None:
        log = self._store.log
        begin = max(self._followed, log.segments.start)
        if begin >= log.written:
            # All of it was dropped for its age.
            self._followed = -1
            return
        size, end = _DISPATCH_BYTES, 0
        batch = WriteBatch(self._store.store_host, log.segments.file_bytes)
        while not end:
            end = self._walk(self._read(begin, size, log.written), begin, batch, trusted=True)
            size *= 4
        self._followed = begin + end
        self._dispatch(batch, self._followed)
        if self._followed == log.written:
            self._followed = -1

    def drop_rest(self) -> None:
        """The connection is gone: the rest of the last record comes again."""
        self._rest = b""

    def clear(self, reason: str = "the rest of its last record did not come") -> Iterator[None]:
        """Take away, step by step, what was not checked; until the end of it, and until the last
        file was synced, nothing may be taken. Raises OSError."""
        log = self._store.log
        file = log.segments.find(log.written)
        logger.warning(
            "copy_cut file=%s offset=%d bytes=%d reason=%r",
            "" if file is None else file.path, log.written, self.unchecked_bytes, reason,
        )  # fmt: skip
        yield from log.clear_behind(self._end)
        self._end = self._behind = 0

    def finish(self) -> None:
        """The store stops: check all that came, and drop the rest of the last record. Raises
        OSError."""
        self.drop_rest()
        reason = "the broker stops"
        try:
            while self.check():
                pass
        except BadCopy as problem:
            reason = problem.problem
        if self.unchecked_bytes:
            for _ in self.clear(reason):
                pass
            file = self._store.log.segments.find(self._store.log.written)
            if file is not None:
                file.sync()

    def end(self) -> None:
        """The copy becomes a master, all of it dispatched: offsets go on behind what is there."""
        store = self._store
        assert store.dispatched_offset == store.written_offset
        self.drop_rest()
        for queue in store.queues.values():
            queue.settle()

    def _walk(
        self,
        data: bytes | bytearray | memoryview,
        base: int,
        batch: WriteBatch | None,
        *,
        trusted: bool,
    ) -> int:
        """Where the whole records in ``data``, which is for ``base``, end; their rows are added to
        ``batch``. What is ``trusted`` was checked before. Raises BadCopy."""
        view = memoryview(data)
        segments = self._store.log.segments
        file_bytes = segments.file_bytes
        at, end = 0, len(data)
        while at < end:
            room = file_bytes - (base + at - segments.start) % file_bytes
            stop = min(at + room, end)
            if batch is None:
                at = check_records(view, at, stop, base)
            else:
                at = self._take_records(view, at, stop, base, batch, trusted=trusted)
            if at < stop:
                size = self._blank_bytes(view, at, base, _problem(view, at, stop, base))
                if not size:
                    return at
                at += size
        return at

    def _take_records(
        self, view: memoryview, at: int, stop: int, base: int, batch: WriteBatch, *, trusted: bool
    ) -> int:
        """The same for a part of ``view`` that lies in one file: where what is no whole record
        begins."""
        is_open = True
        while is_open:
            rows, hashes, names, at, is_open = walk(
                view, at, stop, base, self._store.delays_ms, check_crc=not trusted
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
