"""A copy of another broker's log: bytes that come in pieces become records, written as they are.

Only whole records, and whole blanks up to a file's end, are written; what is left of the bytes
waits for the rest. A record must stand where it says that it stands, be whole, and have its body's
CRC: what is copied wrongly would otherwise be acknowledged and served.

Queues and index follow in the same turn, or, while a long history comes in, later: to check a
record takes a tenth of the time that its entries take, and what is not written yet may be lost with
its master. ``lag_bytes`` says how much is in the log and in no queue; :meth:`Replica.follow_up`
reads some of it again and dispatches it.

Nothing else may append to a store that is a copy.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

from cometmq.core.errors import MessageIllegal, StoreError
from cometmq.message.flags import BORN_HOST_V6, STORE_HOST_V6, takes_queue_slot
from cometmq.message.record import (
    CRC_MASK,
    FIXED_BYTES,
    HEAD,
    MAGIC_BLANK,
    MAGIC_V1,
    PREFIX,
    BadRecord,
    fields_at,
)
from cometmq.store.dispatch import code_and_keys
from cometmq.store.resident import is_recent

if TYPE_CHECKING:
    from cometmq.store.dispatch import Dispatched
    from cometmq.store.engine import MessageStore

#: Of a record with IPv4 hosts: size, magic, CRC, queue id, queue offset, physical offset, sysFlag,
#: store time, body length.
_HEAD: Final = Struct(">IIIi4xqqi16xq20xI")
_BODY_AT: Final = HEAD.size
_HOST_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6
#: So much at once comes from a master that has more of it: entries follow later.
FLOOD_BYTES: Final = 96 << 10
#: What is read again at a time, and fetched ahead when it may have left memory.
_READ_BYTES: Final = 64 << 10
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

    With ``may_lag`` somebody calls :meth:`follow_up` for as long as there are ``lag_bytes``;
    ``floods`` says that much came since it was last set to False.
    """

    __slots__ = ("_followed", "_rest", "_store", "floods", "may_lag")

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._rest = b""
        #: Up to where the log was given to dispatch, while that lags; else -1.
        self._followed = -1
        self.may_lag = False
        self.floods = False

    @property
    def received(self) -> int:
        """Where the next bytes go."""
        return self._store.log.written + len(self._rest)

    @property
    def lag_bytes(self) -> int:
        """What is in the log and was not given to dispatch."""
        return self._store.log.written - self._followed if self._followed >= 0 else 0

    def begin(self, offset: int) -> None:
        """Let a store without a record begin at a physical offset.

        Raises BadCopy when it has records, or files of the log cannot begin there.
        """
        log = self._store.log
        if offset == log.written and not self._rest:
            return
        if log.written:
            raise BadCopy(offset, f"this log ends at {log.written}")
        if offset % log.segments.file_bytes:
            raise BadCopy(
                offset,
                f"no file of {log.segments.file_bytes} bytes begins there: set "
                "mappedFileSizeCommitLog to the master's",
            )
        log.restart_at(offset)
        self._store.dispatcher.begin(offset)

    def take(self, data: bytes | memoryview) -> None:
        """Write what ``data`` completes, and dispatch it, or let that wait.

        Raises BadCopy, with nothing of it taken, or what the log's commit raises; then everything
        behind ``written`` has to come again.
        """
        store, log = self._store, self._store.log
        if store.log.failure is not None:
            raise store.log.failure
        if len(data) >= FLOOD_BYTES:
            self.floods = True
        lags = self._followed >= 0 or (self.floods and self.may_lag)
        rows: list[Dispatched] = []
        found = None if lags else rows
        begin = log.written
        view = memoryview(data)
        head = memoryview(b"")
        if self._rest:
            taken = self._complete(view)
            view = view[taken:]
            if self._walk(self._rest, begin, found, trusted=False):
                head = memoryview(self._rest)
                self._rest = b""
        middle = begin + len(head)
        # Without a whole record in front of it there is nothing behind it.
        end = self._walk(view, middle, found, trusted=False)
        if head or end:
            log.extend(head)
            log.extend(view[:end])
            log.commit()
        self._rest += bytes(view[end:])
        if not head and not end:
            return
        if not lags:
            self._dispatch(rows, log.written)
        elif self._followed < 0:
            self._followed = begin
        for call in store.on_progress:
            call()

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

    def _dispatch(self, rows: list[Dispatched], end: int) -> None:
        store = self._store
        if rows:
            store.last_ms = max(store.last_ms, rows[-1][5])
        # Without rows too: behind the last record there may be the blank that closed its file.
        is_kept = not store.waits_for_sync or end <= store.durable_offset
        store.backlog.take([rows], end, store.last_ms, ready=is_kept)

    def follow_up(self) -> None:
        """Dispatch some of what lags, about a millisecond of it. Raises StoreError, OSError."""
        log = self._store.log
        begin = self._followed
        file = None if begin < 0 else log.segments.find(max(begin, log.segments.start))
        if file is None:
            # All of it was dropped for its age, or there is nothing.
            self._followed = -1
            return
        begin = max(begin, file.base)
        limit = min(file.end, log.written)
        if not is_recent(log, begin):
            file.will_need(begin, min(begin + _AHEAD_BYTES, limit))
        size, end = _READ_BYTES, 0
        rows: list[Dispatched] = []
        while not end:
            data = bytearray(min(size, limit - begin))
            file.read_into(data, begin)
            end = self._walk(data, begin, rows, trusted=True)
            size *= 4
        self._followed = begin + end
        self._dispatch(rows, self._followed)
        if self._followed == log.written:
            self._followed = -1

    def drop_rest(self) -> None:
        """The connection is gone: the rest of the last record comes again."""
        self._rest = b""

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
        rows: list[Dispatched] | None,
        *,
        trusted: bool,
    ) -> int:
        """Where the whole records in ``data``, which is for ``base``, end; their rows are added to
        ``rows``. What is ``trusted`` was checked before. Raises BadCopy."""
        view = memoryview(data)
        segments = self._store.log.segments
        file_bytes, first = segments.file_bytes, segments.start
        file_end = file_bytes - (base - first) % file_bytes
        unpack, crc_of = _HEAD.unpack_from, crc32
        at, end = 0, len(data)
        last = end - FIXED_BYTES
        while at <= last:
            (
                size, magic, crc, queue_id, queue_offset, phys, sys_flag, store_ms, body_bytes,
            ) = unpack(data, at)  # fmt: skip
            stop, topic_at = at + size, at + _BODY_AT + body_bytes
            if stop > end and stop <= file_end and magic == MAGIC_V1:
                return at
            is_plain = (
                magic == MAGIC_V1
                and phys == base + at
                and not sys_flag & _HOST_BITS
                and stop <= file_end
                and topic_at + 3 <= stop
            )
            if is_plain:
                length_at = topic_at + 1 + data[topic_at]
                is_plain = (
                    length_at + 2 <= stop
                    and length_at + 2 + (data[length_at] << 8 | data[length_at + 1]) == stop
                )
            if not is_plain or (
                not trusted and crc and crc_of(view[at + _BODY_AT : topic_at]) & CRC_MASK != crc
            ):
                size = self._unusual(data, at, base, rows)
                if not size:
                    return at
                at += size
                if at == file_end:
                    file_end += file_bytes
                continue
            if rows is not None:
                topic = str(view[topic_at + 1 : length_at], "utf-8", "replace")
                slot = queue_offset if takes_queue_slot(sys_flag) else -1
                place = (topic, queue_id, slot, phys, size)
                self._add(rows, place, sys_flag, store_ms, bytes(view[length_at + 2 : stop]))
            at = stop
            if at == file_end:
                file_end += file_bytes
        while at < end and (size := self._unusual(data, at, base, rows)):
            at += size
        return at

    def _unusual(
        self,
        data: bytes | bytearray | memoryview,
        at: int,
        base: int,
        rows: list[Dispatched] | None,
    ) -> int:
        """The size of a blank, or of a record that is not plain; 0 when it is not there as a
        whole. Raises BadCopy."""
        segments = self._store.log.segments
        room = segments.file_bytes - (base + at - segments.start) % segments.file_bytes
        left = len(data) - at
        if room < PREFIX.size:
            # Not even a blank fits in what is left of the file.
            return room if left >= room else 0
        if left < PREFIX.size:
            return 0
        size, magic = PREFIX.unpack_from(data, at)
        if not 0 < size <= room or (magic == MAGIC_BLANK and size != room):
            problem = f"a record of {size} bytes, the file has room for {room}"
            raise BadCopy(base + at, problem)
        if left < size:
            return 0
        if magic != MAGIC_BLANK:
            self._take_record(data, at, at + size, base + at, rows)
        return int(size)

    def _take_record(
        self,
        data: bytes | bytearray | memoryview,
        start: int,
        stop: int,
        offset: int,
        rows: list[Dispatched] | None,
    ) -> None:
        try:
            (
                size, _, queue_id, _, queue_offset, physical_offset, sys_flag, _, _, store_ms, _, _,
                _, _, topic, properties,
            ) = fields_at(data, start, stop)  # fmt: skip
        except BadRecord as error:
            raise BadCopy(offset, error.problem) from None
        if physical_offset != offset:
            raise BadCopy(offset, f"its record is of physical offset {physical_offset}")
        if rows is not None:
            slot = queue_offset if takes_queue_slot(sys_flag) else -1
            place = (topic, queue_id, slot, offset, size)
            self._add(rows, place, sys_flag, store_ms, properties)

    def _add(
        self,
        rows: list[Dispatched],
        place: tuple[str, int, int, int, int],
        sys_flag: int,
        store_ms: int,
        properties: bytes,
    ) -> None:
        topic, queue_id, slot, phys, size = place
        store = self._store
        try:
            queue = store.queue(topic, queue_id)
        except MessageIllegal:
            # A topic that only a 5.x broker can have, for its length: kept, and in no queue.
            return
        code, keys = code_and_keys(topic, sys_flag, store_ms, properties, store.delays_ms)
        rows.append((queue, slot, phys, size, code, store_ms, keys))
