"""The message store: one log, a queue for each topic and number, an index by key.

Everything here runs on one event loop. Within a turn of the loop ``append`` packs records into a
buffer and gives each its place; ``commit`` writes them in one go and dispatches them. With
SYNC_FLUSH the dispatch, and so the sight of consumers, waits until the device has them; with a
transient pool the write waits, too (transientpool.py).
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections.abc import Callable, Set
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from cometmq.core.errors import MessageIllegal, StoreError, anew
from cometmq.core.watermark import Watermark
from cometmq.message.flags import BORN_HOST_V6, STORE_HOST_V6
from cometmq.message.record import (
    BLANK_BYTES,
    CRC_MASK,
    FIXED_BYTES,
    HEAD,
    MAGIC_V1,
    MAX_PROPERTIES_BYTES,
    head_of,
    host_flags,
)
from cometmq.speedups import TransactionBatch, WriteBatch, append_batch, pack_batch, place_batch
from cometmq.store.coldreads import ColdReads, Spawner
from cometmq.store.config import FlushDiskType, StoreConfig, delay_levels_ms
from cometmq.store.deletion import Deletions
from cometmq.store.dispatch import Backlog, Dispatcher, Listener, Segment, take_back
from cometmq.store.entryjournal import JOURNAL_DIRECTORY, EntryJournal
from cometmq.store.files import Files, PosixFiles
from cometmq.store.flush import Flusher
from cometmq.store.queries import (
    IndexQuery,
    offset_by_time,
    query_index,
    record_at,
    record_size,
    store_time_at,
)
from cometmq.store.queueloading import load_queue
from cometmq.store.queueproof import EntryRepairs
from cometmq.store.queuetable import QueueTable
from cometmq.store.reader import (
    Query,
    ReadLimits,
    ReadResult,
    ReadStatus,
    empty,
    load,
    read,
)
from cometmq.store.runtime import numbers
from cometmq.store.seals import Seals
from cometmq.store.transientpool import TransientPool
from cometmq.store.upkeep import Upkeep, closed_error, refusal_of

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.speedups import OpenTransactions
    from cometmq.store.batching import Shared
    from cometmq.store.commitlog import CommitLog
    from cometmq.store.consumequeue import ConsumeQueue
    from cometmq.store.index import Index
    from cometmq.store.queuefiles import QueueFiles
    from cometmq.store.recovery import RecoveryReport

logger = logging.getLogger(__name__)

_LENGTH = Struct(">H")
_HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6
_NO_HOST = bytes(8)
_CLOCK_AHEAD_MS = 1_000
#: What is taken of one connection before others get their turn.
ROWS_AT_ONCE = 256
BYTES_AT_ONCE = 1 << 18
#: Records of one batch. A body of 4 MiB may have 190 000 messages, and properties come to each.
BATCH_BYTES_MAX = 64 << 20
#: A batch that is packed in a thread comes in parts of so many messages: each is dispatched in a
#: turn of the loop, in some ms.
PART_ROWS = 16_384
#: Of a turn with such a batch so much is written in one turn of the loop.
EARLY_BYTES = 4 << 20

#: Plain sends and transactions of one connection, or the messages of a batch: their write batch,
#: the first row and the one behind the last.
SentRows: TypeAlias = tuple[TransactionBatch, int, int]
#: A batch that was packed without a place: rows, and their records.
Packed: TypeAlias = list[tuple[WriteBatch, bytearray]]


class MessageStore:
    """See the module. Made by :func:`cometmq.store.opening.open_store` (``MessageStore.open``)."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        files: Files,
        log: CommitLog,
        pool: QueueFiles,
        index: Index,
    ) -> None:
        self.config = config
        self.clock = clock
        self.files = files
        self.log = log
        self.pool = pool
        self.index = index
        journal = EntryJournal(files, os.path.join(config.store_path_root_dir, JOURNAL_DIRECTORY))
        self.dispatcher = Dispatcher(index, pool, journal)
        self.backlog = Backlog(self.dispatcher)
        self.seals = Seals(files, config.store_path_root_dir)
        self.durable: Watermark[object] = Watermark()
        self.on_durable: Callable[[list[object]], None] = _ignore
        self.on_sync_failed: Callable[[list[object], StoreError], None] = _ignore
        self.store_host = _NO_HOST
        self.refusal: StoreError | None = None
        self.report: RecoveryReport | None = None
        flush_thread = files.threads(1, "cometmq-flush")
        self.flusher = Flusher(log, clock, flush_thread, self._synced, self._sync_failed)
        self.delays_ms = delay_levels_ms(config.message_delay_level)
        #: Called when more of the log was written, or became durable.
        self.on_progress: list[Callable[[], None]] = []
        self.put_failures = 0
        self.last_ms = 0
        self.queues = QueueTable()
        self.resumed: dict[tuple[str, int], ConsumeQueue] = {}
        self.known: dict[str, set[int]] = {}
        self.load_below = 0
        self.check_queue: Callable[[ConsumeQueue], None] = lambda _: None
        self.begins: tuple[tuple[str, int, int], ...] = ()
        self.recovering = True
        self.lock_handle = -1
        self.disk_problem = ""
        self.executor = files.threads(2, "cometmq-store")
        self.closed = False
        self.waits_for_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        #: What was appended and is not committed yet.
        self.uncommitted: list[Segment] = []
        self._now_ms = 0
        hot_ratio = config.access_message_in_memory_max_ratio
        self.reads = ColdReads(log, files.memory_bytes() * hot_ratio // 100)
        self.transient = TransientPool(self) if config.answers_before_write else None
        self.upkeep = Upkeep(self)
        self.deletions = Deletions(self)
        self.repairs = EntryRepairs(log, self.delays_ms)
        self.limits = ReadLimits(
            config.max_transfer_bytes_on_message_in_memory,
            config.max_transfer_count_on_message_in_memory,
            config.max_transfer_bytes_on_message_in_disk,
            config.max_transfer_count_on_message_in_disk,
        )

    @staticmethod
    def open(config: StoreConfig, clock: Clock, files: Files | None = None) -> MessageStore:
        """Open a store directory, or make one; recovers what a crash left.

        Raises StoreLocked (in use), StoreFull (no room for the first file), StoreCorrupt (files
        contradict each other, or have other sizes than the settings say).
        """
        from cometmq.store.opening import open_store

        return open_store(config, clock, files or PosixFiles())

    # --- places ------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made (in memory) when there is none. Raises MessageIllegal for a bad name."""
        try:
            return self.queues.by_topic[topic][queue_id]
        except KeyError:
            return load_queue(self, topic, queue_id)

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, when messages were ever put into it."""
        return self.queue(topic, queue_id) if queue_id in self.known.get(topic, ()) else None

    def topics(self) -> dict[str, list[int]]:
        """Every topic with the ids of its queues."""
        return {topic: sorted(ids) for topic, ids in self.known.items()}

    def forget(self, gone: Set[ConsumeQueue]) -> None:
        """Drop what is still to be dispatched to queues that go away (deletion.py)."""
        self.backlog.forget(gone)
        self.dispatcher.forget(gone)

    @property
    def written_offset(self) -> int:
        """End of what the operating system has."""
        return self.log.written

    @property
    def committed_offset(self) -> int:
        """End of what turns committed; beyond ``written_offset`` with a transient pool alone."""
        return self.log.held

    @property
    def durable_offset(self) -> int:
        """End of what the device has."""
        return self.log.durable

    @property
    def dispatched_offset(self) -> int:
        """End of what queues and index have."""
        return self.dispatcher.position

    @property
    def listeners(self) -> list[Listener]:
        """Called after each dispatch with its rows (see dispatch.py)."""
        return self.dispatcher.listeners

    # --- writing -----------------------------------------------------------------------------

    def append(
        self,
        queue: ConsumeQueue,
        body: bytes | memoryview,
        properties: bytes,
        *,
        flag: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        tag_code: int = 0,
        keys: tuple[str, ...] = (),
        store_host: bytes | None = None,
    ) -> tuple[int, int]:
        """Take a message into the turn's buffer; gives its physical and its queue offset.

        ``keys`` are what it can be found by, ``tag_code`` the hash of its tag (a delayed message
        gets its time of delivery instead). Raises MessageIllegal, or StoreFull and StoreOffline
        while the store refuses writes.
        """
        if self.refusal is not None:
            raise anew(self.refusal)
        segments = self.uncommitted
        if not segments:
            self._stamp()
        now_ms = self._now_ms
        host = store_host or self.store_host
        head = HEAD
        if sys_flag & _HOST_BITS or len(born_host) != 8 or len(host) != 8:
            sys_flag = sys_flag & ~_HOST_BITS | host_flags(born_host, host)
            head = head_of(sys_flag)
        tail = queue.topic_tail
        body_bytes = len(body)
        size = head.size + body_bytes + len(tail) + 2 + len(properties)
        log = self.log
        phys = log.position
        if phys + size + BLANK_BYTES > log.limit:
            phys = self._roll(size)
        slot = -1 if sys_flag & 0x4 else queue.next_offset
        try:
            packed = head.pack(
                size, MAGIC_V1, crc32(body) & CRC_MASK, queue.queue_id, flag,
                slot if slot >= 0 else 0, phys, sys_flag, born_ms, born_host, now_ms, host,
                reconsume_times, prepared_offset, body_bytes,
            )  # fmt: skip
        except StructError as error:
            raise MessageIllegal(
                f"a number of the message does not fit its field: {error}"
            ) from None
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise MessageIllegal(
                f"properties are {len(properties)} bytes long, the limit is {MAX_PROPERTIES_BYTES}"
            )
        log.parts += (packed, body, tail, _LENGTH.pack(len(properties)), properties)
        log.position = phys + size
        if slot >= 0:
            queue.next_offset = slot + 1
            if queue.delay_ms:
                tag_code = now_ms + queue.delay_ms
        row = queue, slot, phys, size, tag_code, now_ms, keys
        if segments and isinstance(rows := segments[-1], list):
            rows.append(row)
        else:
            segments.append([row])
        return phys, slot

    def append_batch(
        self, queue: ConsumeQueue, body: bytes, shared: Shared
    ) -> tuple[int, SentRows]:
        """Take the messages of a batch body (message/batch.py) into the turn's buffer.

        Gives the first queue offset, the others follow, and their rows; all lie in one file. Raises
        what ``append`` raises, with nothing taken.
        """
        if self.refusal is not None:
            raise anew(self.refusal)
        log = self.log
        batch, is_new = self._open_batch()
        first, offset, now_ms = batch.count, queue.next_offset, self._now_ms
        middle, properties = shared.middle(now_ms), shared.properties
        try:
            limit = min(log.limit, log.position + BATCH_BYTES_MAX + BLANK_BYTES)
            size, packed = append_batch(
                batch, body, queue, middle, properties, log.position, limit, now_ms
            )
            if not packed:
                _check_batch_bytes(size)
                position = self._roll(size)
                _, packed = append_batch(
                    batch, body, queue, middle, properties, position, log.limit, now_ms
                )
        except ValueError as error:
            raise MessageIllegal(str(error)) from None
        log.append(packed)
        if is_new:
            self.uncommitted.append(batch)
        return offset, (batch, first, batch.count)

    async def pack_batch(self, queue: ConsumeQueue, body: bytes, shared: Shared) -> Packed:
        """Pack a batch body for a queue, in a thread; :meth:`append_parts` stores it. Raises
        MessageIllegal."""
        try:
            size, parts = await asyncio.get_running_loop().run_in_executor(
                None, pack_batch, body, queue, shared.middle(0), shared.properties,
                BATCH_BYTES_MAX, PART_ROWS,
            )  # fmt: skip
        except ValueError as error:
            raise MessageIllegal(str(error)) from None
        if not parts:
            _check_batch_bytes(size)
        return parts

    def append_parts(
        self, queue: ConsumeQueue, parts: Packed, shared: Shared
    ) -> tuple[int, list[WriteBatch]]:
        """:meth:`append_batch` for what :meth:`pack_batch` made for this queue."""
        if self.refusal is not None:
            raise anew(self.refusal)
        if not self.uncommitted:
            self._stamp()
        log, offset, now_ms = self.log, queue.next_offset, self._now_ms
        middle, size = shared.middle(now_ms), sum([len(packed) for _, packed in parts])
        if log.position + size + BLANK_BYTES > log.limit:
            self._roll(size)
        for rows, packed in parts:
            place_batch(rows, packed, queue, middle, log.position, now_ms)
            log.append(memoryview(packed))
            self.uncommitted.append(rows)
        return offset, [rows for rows, _ in parts]

    def _open_batch(self) -> tuple[TransactionBatch, bool]:
        """The write batch that the next rows join, and whether it is a new one, which is to be
        added to the turn once it has rows."""
        segments = self.uncommitted
        if not segments:
            self._stamp()
        elif isinstance(last := segments[-1], TransactionBatch):
            return last, False
        return TransactionBatch(self.store_host, self.log.segments.file_bytes), True

    def append_sends(
        self,
        data: bytes,
        at: int,
        known: dict[bytes, list[ConsumeQueue | None]],
        born_host: bytes,
        suffix: bytes,
        body_max_bytes: int,
        transactions: OpenTransactions | None = None,
    ) -> tuple[SentRows, int, int]:
        """Take the plain sends of a connection, from ``data[at]`` on, into the turn's buffer, and
        what begins and ends ``transactions``.

        ``known`` has the queues that may be sent to, ``suffix`` the property that every message
        gets. Gives what was taken, where the first frame begins that was not, and how many frames
        from there on have to be served one by one (speedups/plain/sends.py). Takes nothing while
        the store refuses writes.
        """
        log, segments, is_new = self.log, self.uncommitted, False
        if not segments or not isinstance(batch := segments[-1], TransactionBatch):
            batch, is_new = self._open_batch()
        first, rows, bytes_left = batch.count, ROWS_AT_ONCE, BYTES_AT_ONCE
        recent = self._recent() if transactions is not None and transactions.halves else None
        state = -1
        try:
            while state < 0:
                taken, at, state, packed = batch.append_all(
                    data, at, known, born_host, suffix, body_max_bytes, log.position, log.limit,
                    self._now_ms, rows, bytes_left, transactions, recent,
                )  # fmt: skip
                if taken:
                    log.parts.append(packed)
                    log.position += len(packed)
                    rows, bytes_left = rows - taken, bytes_left - len(packed)
                if state < 0:
                    log.roll()
        finally:
            if is_new and batch.count:
                self.uncommitted.append(batch)
        return (batch, first, batch.count), at, state

    def _recent(self) -> tuple[memoryview, int, int, int] | None:
        """What this run wrote last and dispatched, in one file: its bytes, the physical offset of
        the first, and from where up to where they are records that are in memory for certain."""
        end = self.dispatcher.position
        file = self.log.segments.find(end - 1)
        if file is None:
            return None
        return file.view, file.base, max(file.base, self.reads.recent_from), end

    def _stamp(self) -> None:
        """Fix the turn's store time: never before that of the turn before."""
        now_ms = self.clock.wall_ns() // 1_000_000
        if now_ms < self.last_ms:
            if self.last_ms - now_ms > _CLOCK_AHEAD_MS:
                logger.warning("store_time_ahead ahead_ms=%d", self.last_ms - now_ms)
            now_ms = self.last_ms
        self.last_ms = self._now_ms = now_ms

    def _roll(self, size_bytes: int) -> int:
        file_bytes = self.log.segments.file_bytes
        if size_bytes + BLANK_BYTES > file_bytes:
            raise MessageIllegal(
                f"the record would be {size_bytes} bytes long, a log file has {file_bytes} "
                "(mappedFileSizeCommitLog)"
            )
        return self.log.roll()

    def write_early(self) -> bool:
        """Write some of a long turn, before its end; gives whether much is left."""
        return self.transient is None and self.log.write_early(EARLY_BYTES)

    def commit(self) -> None:
        """End the turn: write what was appended, dispatch it (with SYNC_FLUSH: once durable). A
        transient pool does both later.

        Raises StoreFull or StoreOffline; then nothing that was appended in this turn is stored,
        and its queue offsets are given again.
        """
        segments = self.uncommitted
        if not segments:
            return
        self.uncommitted = []
        if self.transient is not None:
            self.transient.take(segments, self._now_ms)
            return
        try:
            self.log.commit()
        except StoreError as error:
            self.put_failures += sum(map(len, segments))
            for segment in reversed(segments):
                take_back(segment)
            # A full disk is tried again by the next upkeep round, not by every send.
            self.refusal = anew(error)
            raise
        self.backlog.take(segments, self.log.written, self._now_ms, ready=not self.waits_for_sync)
        for call in (*self.on_progress,):
            call()

    def write_out(self) -> None:
        """End the turn and write all of the log, with a transient pool too. Raises what
        :meth:`commit` raises; what such a pool has stays there when there is no room for it."""
        self.commit()
        if self.transient is not None:
            self.transient.write()

    def sync(self) -> None:
        """Make what is written durable; parked tokens come back through ``on_durable``."""
        self.flusher.sync(self.backlog.messages)

    def _synced(self, offset: int) -> None:
        self.log.durable = max(self.log.durable, offset)
        if self.waits_for_sync:
            self.backlog.release(offset, self.last_ms)
        tokens = self.durable.advance(offset)
        if tokens:
            self.on_durable(tokens)
        for call in (*self.on_progress,):
            call()

    def _sync_failed(self, error: OSError) -> None:
        # The kernel may have dropped the pages it could not write, so a second try proves nothing.
        self.refusal = self.log.fail(f"syncing {self.log.segments.directory} failed: {error}")
        tokens = self.durable.drain()
        if tokens:
            self.on_sync_failed(tokens, anew(self.refusal))

    # --- reading -----------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int = 1 << 30,
        codes: frozenset[int] | None = None,
    ) -> ReadResult:
        """Messages of a queue from ``offset`` on; ``codes`` keeps entries with these tag codes.

        A ``cold`` result has to be loaded with :meth:`load` before its chunks are there.
        """
        queue = self.find_queue(topic, queue_id)
        if queue is None:
            return empty(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        return read(Query(queue, offset, max_count, max_bytes, codes), self.reads, self.limits)

    async def load(self, result: ReadResult) -> None:
        """Fill the chunks of a cold result; fewer come when their file was dropped meanwhile, or
        behind a damaged block. Raises StoreCorrupt when nothing is before that."""
        await load(result, self.reads, self.limits, self.repairs)

    def message_at(self, physical_offset: int) -> memoryview | None:
        """The record at a physical offset, if that takes no wait; see :meth:`fetch_at`."""
        end = self.dispatcher.position
        if not self.log.segments.start <= physical_offset <= end - FIXED_BYTES:
            return None
        file = self.log.segments.find(physical_offset)
        if file is None or physical_offset + FIXED_BYTES > file.end:
            return None
        head = self.reads.at_once(file, physical_offset, physical_offset + FIXED_BYTES)
        size = record_size(head, physical_offset)
        if not size or physical_offset + size > file.end:
            return None
        return self.reads.at_once(file, physical_offset, physical_offset + size)

    async def fetch_at(self, physical_offset: int) -> memoryview | None:
        """The bytes of the record that begins at a physical offset; None when none does.

        For an offset that anybody may have sent: what stands there is checked, not believed.
        """
        return await record_at(self.reads, physical_offset, self.dispatcher.position)

    async def offset_by_time(
        self, topic: str, queue_id: int, store_ms: int, *, upper: bool = False
    ) -> int:
        """The first queue offset stored at or after a time; 0 when the queue does not exist.

        ``upper`` asks for the last one at or before it.
        """
        queue = self.find_queue(topic, queue_id)
        if queue is None:
            return 0
        return await offset_by_time(self.reads, queue, store_ms, upper=upper)

    async def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message at a queue offset was stored, ms; -1 when there is none."""
        queue = self.find_queue(topic, queue_id)
        if queue is None:
            return -1
        return await store_time_at(self.reads, queue, offset)

    async def earliest_time(self, topic: str, queue_id: int) -> int:
        """When the oldest message of a queue was stored, ms; -1 when there is none."""
        queue = self.find_queue(topic, queue_id)
        return await self.store_time_at(topic, queue_id, queue.min_offset) if queue else -1

    async def query_index(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> IndexQuery:
        """Records with a key, oldest first; others whose key has the same hash may be among them.

        At most ``max_msgs_num_batch`` of the newest.
        """
        self.dispatcher.write_index(self.clock.wall_ms())
        count = min(max_count, self.config.max_msgs_num_batch)
        return await query_index(
            self.index, self.reads, self.dispatcher.position,
            (topic, key), count, (begin_ms, end_ms),
        )  # fmt: skip

    def runtime(self) -> dict[str, int | float]:
        """Numbers about the store, for people and metrics."""
        return numbers(self)

    # --- running -----------------------------------------------------------------------------

    async def start(self, tasks: Spawner) -> None:
        """Begin the background work; ``tasks`` owns it and ends it before :meth:`close`."""
        await self.upkeep.expiry.check()
        self.upkeep.start(tasks)
        tasks.spawn(self.pool.removals.run(self.executor), name="store-removals")

    def update_refusal(self) -> None:
        """Refuse or allow writes by what is known of the disk now."""
        if self.log.failure is not None or self.closed:
            return
        refusal = refusal_of(self)
        if (refusal is None) != (self.refusal is None):
            if refusal is None:
                logger.warning("store_writes_resumed after=%r", str(self.refusal))
            else:
                logger.warning("store_writes_refused reason=%r", str(refusal))
        self.refusal = refusal

    def close(self) -> None:
        """Stop: everything goes to the device, the abort marker last. Waits for threads.

        Raises OSError when that fails; the directory is given back in any case.
        """
        if self.closed:
            return
        self.closed = True
        self.flusher.close()
        self.executor.shutdown()
        try:
            if self.log.failure is None:
                self.commit()
                if self.transient is not None:
                    self.transient.close()
                self.backlog.close(self.last_ms)
                self.upkeep.stop()
        finally:
            self.refusal = closed_error(self.config.store_path_root_dir)
            self.log.close()
            self.dispatcher.journal.close()
            self.pool.close()
            self.index.close()
            self.files.close(self.lock_handle)


def _ignore(tokens: list[object], error: StoreError | None = None) -> None:
    what = "durable" if error is None else "failed"
    logger.warning("%s_tokens_unclaimed count=%d error=%r", what, len(tokens), str(error))


def _check_batch_bytes(size_bytes: int) -> None:
    if size_bytes > BATCH_BYTES_MAX:
        raise MessageIllegal(
            f"the records of the batch would be {size_bytes} bytes long, the limit is "
            f"{BATCH_BYTES_MAX}: send smaller batches"
        )
