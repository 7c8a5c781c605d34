"""A copy of another broker's log: bytes that come in pieces become records, written as they are.

Only whole records, and whole blanks up to a file's end, are written and dispatched; what is left of
the bytes waits for the rest. A record must stand where it says that it stands, be whole, and have
its body's CRC: what is copied wrongly would otherwise be acknowledged and served.

Nothing else may append to a store that is a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.core.errors import MessageIllegal, StoreError
from cometmq.message.flags import takes_queue_slot
from cometmq.message.record import MAGIC_BLANK, PREFIX, BadRecord, fields_at
from cometmq.store.dispatch import code_and_keys

if TYPE_CHECKING:
    from cometmq.store.dispatch import Dispatched
    from cometmq.store.engine import MessageStore


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
    its last record is whole or not."""

    __slots__ = ("_rest", "_store")

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._rest = b""

    @property
    def received(self) -> int:
        """Where the next bytes go."""
        return self._store.log.written + len(self._rest)

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
        """Write and dispatch what ``data`` completes.

        Raises BadCopy, with nothing of it taken, or what the log's commit raises; then everything
        behind ``written`` has to come again.
        """
        store, log = self._store, self._store.log
        if store.log.failure is not None:
            raise store.log.failure
        if self._rest:
            data = b"".join((self._rest, data))
            self._rest = b""
        rows, end = self._rows(data, log.written)
        view = memoryview(data)
        if not end:
            self._rest = bytes(data)
            return
        log.extend(view[:end])
        log.commit()
        self._rest = bytes(view[end:])
        if rows:
            now_ms = rows[-1][5]
            store.last_ms = max(store.last_ms, now_ms)
            store.backlog.take([rows], log.written, store.last_ms, ready=not store.waits_for_sync)
        for call in store.on_progress:
            call()

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

    def _rows(self, data: bytes | memoryview, base: int) -> tuple[list[Dispatched], int]:
        """The rows of the whole records in ``data``, which is for ``base``, and where they end."""
        segments = self._store.log.segments
        file_bytes, first = segments.file_bytes, segments.start
        rows: list[Dispatched] = []
        at, end = 0, len(data)
        while at < end:
            room = file_bytes - (base + at - first) % file_bytes
            if room < PREFIX.size:
                # Not even a blank fits in what is left of the file.
                size, magic = room, MAGIC_BLANK
            elif end - at < PREFIX.size:
                break
            else:
                size, magic = PREFIX.unpack_from(data, at)
                if not 0 < size <= room or (magic == MAGIC_BLANK and size != room):
                    problem = f"a record of {size} bytes, the file has room for {room}"
                    raise BadCopy(base + at, problem)
            if end - at < size:
                break
            if magic != MAGIC_BLANK:
                self._add(rows, data, at, at + size, base + at)
            at += size
        return rows, at

    def _add(
        self, rows: list[Dispatched], data: bytes | memoryview, start: int, stop: int, offset: int
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
        store = self._store
        try:
            queue = store.queue(topic, queue_id)
        except MessageIllegal:
            # A topic that only a 5.x broker can have, for its length: kept, and in no queue.
            return
        code, keys = code_and_keys(topic, sys_flag, store_ms, properties, store.delays_ms)
        slot = queue_offset if takes_queue_slot(sys_flag) else -1
        rows.append((queue, slot, physical_offset, size, code, store_ms, keys))
