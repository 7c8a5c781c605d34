"""The message store: one commit log, a consume queue for each topic and queue id, a key index.

A store runs on one event loop. Within a turn of the loop, ``append`` packs records into a buffer
and assigns their offsets; ``commit`` writes them together and dispatches them. With SYNC_FLUSH the
dispatch waits until the device has the records, so consumers see them only then. With a transient
pool the write is deferred as well (transientpool.py).
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from cometmq.core.errors import MessageIllegal, StoreError, fresh_copy
from cometmq.core.offsetwaiters import OffsetWaiters
from cometmq.message.record import (
    BLANK_BYTES,
    BORN_HOST_V6,
    CRC_MASK,
    FIXED_BYTES,
    HEAD,
    MAGIC_V1,
    MAX_PROPERTIES_BYTES,
    STORE_HOST_V6,
    head_of,
    host_flags,
)
from cometmq.speedups import TransactionBatch, WriteBatch, append_batch, pack_batch, place_batch
from cometmq.store.config import FlushDiskType, StoreConfig, delay_levels_ms
from cometmq.store.dispatch import Backlog, Dispatcher, Listener, take_back
from cometmq.store.log.checksums import BlockChecksums
from cometmq.store.log.flush import Flusher
from cometmq.store.maintenance.retention import Deletions
from cometmq.store.maintenance.tasks import MaintenanceTasks
from cometmq.store.parts import StoreParts, WriteState
from cometmq.store.queue.extensions import ExtendedQueueFiles
from cometmq.store.queue.journal import JOURNAL_DIRECTORY, EntryJournal
from cometmq.store.queue.table import QueueTable
from cometmq.store.read.coldreads import ColdReads, Spawner
from cometmq.store.read.lookup import (
    IndexQuery,
    offset_by_time,
    query_index,
    record_at,
    record_size,
    store_time_at,
)
from cometmq.store.read.reader import (
    Query,
    ReadResult,
    ReadStatus,
    empty,
    load,
    read,
    read_limits,
)
from cometmq.store.read.validation import EntryRepairs
from cometmq.store.transientpool import TransientPool

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.message.batch import SharedFields
    from cometmq.speedups import AccessCache, KnownQueues, OpenTransactions
    from cometmq.store.files import Files
    from cometmq.store.index import Index
    from cometmq.store.log.commitlog import CommitLog
    from cometmq.store.parts import RecoveryReport
    from cometmq.store.queue.bitmaps import BitMaps
    from cometmq.store.queue.consumequeue import ConsumeQueue, RecordGroup
    from cometmq.store.queue.queuefiles import QueueFiles

logger = logging.getLogger(__name__)

_LENGTH = Struct(">H")
_HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6
_NO_HOST = bytes(8)
#: A clock this far behind the newest store time is logged.
_CLOCK_AHEAD_MS = 1_000
#: Sends and bytes that are taken from one connection before other connections are served.
SENDS_AT_ONCE = 256
BYTES_AT_ONCE = 1 << 18
#: Limit of one batch's records. A body of 4 MiB may have 190 000 messages, and each gets
#: properties.
BATCH_BYTES_MAX = 64 << 20
#: A batch packed in a thread is split into parts of at most this many messages. Each part is
#: dispatched in its own turn of the loop, which takes a few ms.
PART_ROWS = 16_384
#: Bytes after which one call of :meth:`MessageStore.write_early` stops.
EARLY_BYTES = 4 << 20

#: Plain sends and transactions of one connection, or the messages of a batch: their write batch,
#: the first row, and the row after the last.
SentRows: TypeAlias = tuple[TransactionBatch, int, int]
#: A batch that was packed before its offsets are known: write batches with their packed records.
Packed: TypeAlias = list[tuple[WriteBatch, bytearray]]


class MessageStore:
    """The message store (see the module). Created by :func:`open_store` (recovery/opening.py)."""

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
        self.backlog = Backlog(self.dispatcher, clock.monotonic_ns)
        self.seals = BlockChecksums(files, config.store_path_root_dir)
        #: Tokens of callers that wait until the log is durable up to an offset.
        self.sync_waiters: OffsetWaiters[object] = OffsetWaiters()
        self.on_durable: list[Callable[[list[object]], None]] = []
        self.on_sync_failed: list[Callable[[list[object], StoreError], None]] = []
        self.store_host = _NO_HOST
        self.state = WriteState(log, self.dispatcher, config.store_path_root_dir)
        self.report: RecoveryReport | None = None
        self.flusher = Flusher(log, clock, files, self._synced, self._sync_failed)
        self.delays_ms = delay_levels_ms(config.message_delay_level)
        #: Called when more of the log was written or became durable.
        self.on_progress: list[Callable[[], None]] = []
        self.queues = QueueTable(pool, log.segments, self.delays_ms)
        self.lock_handle = -1
        self.executor = files.threads(2, "cometmq-store")
        self.waits_for_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        #: Appended records that are not committed yet.
        self.uncommitted: list[RecordGroup] = []
        self._now_ms = 0
        hot_ratio = config.access_message_in_memory_max_ratio
        self.reads = ColdReads(log, files.memory_bytes() * hot_ratio // 100)
        self.parts = StoreParts(
            config, clock, files, self.executor, log, pool, index, self.queues, self.dispatcher,
            self.backlog, self.seals, self.reads, self.flusher, self.state,
        )  # fmt: skip
        self.transient: TransientPool | None = None
        if config.answers_before_write:
            self.transient = TransientPool(self.parts, self.on_progress)
        self.maintenance = MaintenanceTasks(self.parts, self.transient)
        self.deletions = Deletions(
            self.parts, write_out=self.write_out, note_soon=self.maintenance.note_soon
        )
        self.repairs = EntryRepairs(log, self.delays_ms)
        self.limits = read_limits(config)

    @property
    def bit_maps(self) -> BitMaps | None:
        """The calculator of filter bit maps; None in a store without extension units."""
        return self.pool.bit_maps if isinstance(self.pool, ExtendedQueueFiles) else None

    # --- places ------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; create it in memory if needed. Raises MessageIllegal for a bad name."""
        try:
            return self.queues.by_topic[topic][queue_id]
        except KeyError:
            return self.queues.load(topic, queue_id)

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None if it never held a message."""
        return self.queue(topic, queue_id) if queue_id in self.queues.known.get(topic, ()) else None

    def topics(self) -> dict[str, list[int]]:
        """Return every topic with the ids of its queues."""
        return self.queues.topics()

    @property
    def written_offset(self) -> int:
        """End of the log as written to the operating system."""
        return self.log.written

    @property
    def committed_offset(self) -> int:
        """End of the committed log; differs from ``written_offset`` only with a transient pool."""
        return self.log.held

    @property
    def durable_offset(self) -> int:
        """End of the log as synced to the device."""
        return self.log.durable

    @property
    def dispatched_offset(self) -> int:
        """End of the log as dispatched to queues and index."""
        return self.dispatcher.position

    @property
    def listeners(self) -> list[Listener]:
        """Functions called after each dispatch with the queues that grew (see dispatch.py)."""
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
        """Append a message to the buffer of the turn; return its physical offset and queue offset.

        The queue offset is -1 for a record that takes no place in its queue. ``keys`` are its index
        keys, ``tag_code`` is the hash of its tag (in a delay queue, the delivery time replaces it).
        Raises MessageIllegal; StoreFull or StoreOffline while the store refuses writes.
        """
        if self.state.refusal is not None:
            raise fresh_copy(self.state.refusal)
        segments = self.uncommitted
        if not segments:
            self._stamp()
        now_ms = self._now_ms
        host = store_host or self.store_host
        # The usual head is for IPv4 hosts; others need a longer one.
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
        # Half messages and rollback records take no place in the queue.
        slot = -1 if sys_flag & 0x4 else queue.next_offset
        try:
            packed = head.pack(
                size, MAGIC_V1, crc32(body) & CRC_MASK, queue.queue_id, flag,
                slot if slot >= 0 else 0, phys, sys_flag, born_ms, born_host, now_ms, host,
                reconsume_times, prepared_offset, body_bytes,
            )  # fmt: skip
        except StructError as error:
            raise MessageIllegal(
                f"a number of the message is out of range for its field: {error}"
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
        self, queue: ConsumeQueue, body: bytes, shared: SharedFields
    ) -> tuple[int, SentRows]:
        """Append the messages of a batch body (message/batch.py) to the buffer of the turn.

        Returns the first queue offset, which the others follow, and their rows. All records lie in
        one log file. Raises the errors of ``append``; then nothing is appended.
        """
        if self.state.refusal is not None:
            raise fresh_copy(self.state.refusal)
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

    async def pack_batch(self, queue: ConsumeQueue, body: bytes, shared: SharedFields) -> Packed:
        """Pack a batch body for a queue, in a thread; :meth:`append_parts` stores the result.

        Raises MessageIllegal.
        """
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
        self, queue: ConsumeQueue, parts: Packed, shared: SharedFields
    ) -> tuple[int, list[WriteBatch]]:
        """Append the result of :meth:`pack_batch` for this queue, as :meth:`append_batch` does.

        Returns the first queue offset and the write batches. Raises StoreFull, StoreOffline and
        MessageIllegal.
        """
        if self.state.refusal is not None:
            raise fresh_copy(self.state.refusal)
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
        """Return the write batch for the next rows, and whether it is new.

        The caller adds a new one to the turn once it has rows.
        """
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
        known: KnownQueues,
        born_host: bytes,
        suffix: bytes,
        body_max_bytes: int,
        transactions: OpenTransactions | None = None,
        access: AccessCache | None = None,
    ) -> tuple[SentRows, int, int, int]:
        """Append the plain sends of a connection, from ``data[at]`` on, to the buffer of the turn.

        ``known`` has the queues that may be sent to. ``suffix`` is the property added to every
        message. With ``transactions``, half messages and ends of transactions are taken too; with
        ``access``, only sends that are certainly allowed. Takes nothing while the store refuses
        writes. Returns the appended rows, the number of sends, the position of the first frame not
        taken, and the number of frames from there on that must be served one by one
        (speedups/plain/sends.py).
        """
        log, segments, is_new = self.log, self.uncommitted, False
        if not segments or not isinstance(batch := segments[-1], TransactionBatch):
            batch, is_new = self._open_batch()
        first, sends_left, bytes_left = batch.count, SENDS_AT_ONCE, BYTES_AT_ONCE
        recent = self._recent() if transactions is not None and transactions.halves else None
        state = -1
        try:
            while state < 0:
                taken, at, state, packed = batch.append_all(
                    data, at, known, born_host, suffix, body_max_bytes, log.position, log.limit,
                    self._now_ms, sends_left, bytes_left, transactions, recent, access,
                )  # fmt: skip
                if taken:
                    log.parts.append(packed)
                    log.position += len(packed)
                    sends_left, bytes_left = sends_left - taken, bytes_left - len(packed)
                if state < 0:
                    # The record does not fit into this file.
                    log.roll()
        finally:
            # Also after an error: bytes of earlier rows are in the log's buffer already.
            if is_new and batch.count:
                self.uncommitted.append(batch)
        return (batch, first, batch.count), SENDS_AT_ONCE - sends_left, at, state

    def _recent(self) -> tuple[memoryview, int, int, int] | None:
        """Return the newest dispatched records of one log file that are certainly in memory.

        Half messages are looked up there. Returns the view of the file, the physical offset of its
        first byte, and the physical bounds of these records; None without a file.
        """
        end = self.dispatcher.position
        file = self.log.segments.find(end - 1)
        if file is None:
            return None
        return file.view, file.base, max(file.base, self.reads.recent_from), end

    def _stamp(self) -> None:
        """Set the store time of the turn; it is never earlier than that of the previous turn."""
        now_ms = self.clock.wall_ns() // 1_000_000
        if now_ms < self.state.last_ms:
            if self.state.last_ms - now_ms > _CLOCK_AHEAD_MS:
                logger.warning("store_time_ahead ahead_ms=%d", self.state.last_ms - now_ms)
            now_ms = self.state.last_ms
        self.state.last_ms = self._now_ms = now_ms

    def _roll(self, size_bytes: int) -> int:
        file_bytes = self.log.segments.file_bytes
        if size_bytes + BLANK_BYTES > file_bytes:
            raise MessageIllegal(
                f"the record would be {size_bytes} bytes long, a log file has {file_bytes} "
                "(mappedFileSizeCommitLog)"
            )
        return self.log.roll()

    def write_early(self) -> bool:
        """Write part of a long turn before its end; return whether more may be left to write."""
        return self.transient is None and self.log.write_early(EARLY_BYTES)

    def commit(self) -> None:
        """End the turn: write the appended records and dispatch them (SYNC_FLUSH: once durable).

        With a transient pool both happen later. Raises StoreFull or StoreOffline; then no record of
        the turn is stored, and its queue offsets are free again.
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
            self.state.put_failures += sum(map(len, segments))
            for segment in reversed(segments):
                take_back(segment)
            # The next maintenance round tries a full disk again, so that not every send does.
            self.state.refusal = fresh_copy(error)
            raise
        self.backlog.take(segments, self.log.written, self._now_ms, ready=not self.waits_for_sync)
        for call in (*self.on_progress,):
            call()

    def write_out(self) -> None:
        """End the turn and write the whole log, including what a transient pool holds.

        Raises the errors of :meth:`commit`. If there is no room, the records of the pool stay in
        it.
        """
        self.commit()
        if self.transient is not None:
            self.transient.write()

    def sync(self) -> None:
        """Start to make the written log durable.

        The functions in ``on_durable`` get the tokens of ``sync_waiters`` that waited for it, or
        those in ``on_sync_failed`` get all tokens and the error.
        """
        self.flusher.sync(self.backlog.messages)

    def _synced(self, offset: int) -> None:
        self.log.durable = max(self.log.durable, offset)
        if self.waits_for_sync:
            self.backlog.release(offset, self.state.last_ms)
        tokens = self.sync_waiters.advance(offset)
        if tokens:
            for durable in self.on_durable or (_log_unclaimed,):
                durable(tokens)
        for call in (*self.on_progress,):
            call()

    def _sync_failed(self, error: OSError) -> None:
        # The kernel may have dropped the pages it could not write, so a second try proves nothing.
        self.state.refusal = self.log.fail(f"cannot sync {error.filename}: {error.strerror}")
        tokens = self.sync_waiters.drain()
        if tokens:
            for failed in self.on_sync_failed or (_log_unclaimed,):
                failed(tokens, fresh_copy(self.state.refusal))

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
        """Read messages of a queue from ``offset`` on; ``codes`` selects entries by tag code.

        If the result is ``cold``, :meth:`load` must load its chunks.
        """
        queue = self.find_queue(topic, queue_id)
        if queue is None:
            return empty(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        return read(Query(queue, offset, max_count, max_bytes, codes), self.reads, self.limits)

    async def load(self, result: ReadResult) -> None:
        """Load the chunks of a cold result.

        Some are missing if their file was dropped in the meantime or if they follow a damaged
        block. Raises StoreCorrupt if a damaged block leaves nothing to return.
        """
        await load(result, self.reads, self.limits, self.repairs)

    def message_at(self, physical_offset: int) -> memoryview | None:
        """Return the record at a physical offset if it is in memory; see :meth:`fetch_at`."""
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
        """Return the bytes of the record that begins at a physical offset; None if there is none.

        Only the magic number and the stated offset are checked. If the offset comes from a client,
        the bytes may be part of a body: decode them with care.
        """
        return await record_at(self.reads, physical_offset, self.dispatcher.position)

    async def offset_by_time(
        self, topic: str, queue_id: int, store_ms: int, *, upper: bool = False
    ) -> int:
        """Return the first queue offset stored at or after a time; 0 if the queue does not exist.

        With ``upper``, return the last one at or before the time.
        """
        queue = self.find_queue(topic, queue_id)
        if queue is None:
            return 0
        return await offset_by_time(self.reads, queue, store_ms, upper=upper)

    async def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of the message at a queue offset, ms; -1 if there is none."""
        queue = self.find_queue(topic, queue_id)
        if queue is None:
            return -1
        return await store_time_at(self.reads, queue, offset)

    async def earliest_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of the oldest message of a queue, ms; -1 if there is none."""
        queue = self.find_queue(topic, queue_id)
        return await self.store_time_at(topic, queue_id, queue.min_offset) if queue else -1

    async def query_index(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> IndexQuery:
        """Return the newest ``max_count`` records with a key in a time range, oldest first.

        At most ``max_msgs_num_batch`` are returned. Records with another key of the same hash may
        be among them.
        """
        self.dispatcher.write_index(self.clock.wall_ms())
        count = min(max_count, self.config.max_msgs_num_batch)
        return await query_index(
            self.index, self.reads, self.dispatcher.position,
            (topic, key), count, (begin_ms, end_ms),
        )  # fmt: skip

    def runtime(self) -> dict[str, int | float]:
        """Return figures about the store, for administrators and metrics."""
        log, flusher = self.log, self.flusher
        space = log.segments.places.space()
        return {
            "commit_log_min_offset": log.segments.start,
            "commit_log_max_offset": log.written,
            "durable_offset": log.durable,
            "dispatched_offset": self.dispatcher.position,
            "dispatch_behind_bytes": log.written - self.dispatcher.position,
            "flush_behind_bytes": log.written - log.durable,
            "commit_log_files": len(log.segments.files),
            "disk_used_ratio": space.used_ratio,
            "disk_free_bytes": space.free_bytes,
            "queues": sum(map(len, self.queues.known.values())),
            "dirty_queues": self.dispatcher.dirty_count,
            "index_end_offset": self.index.end_phys,
            "put_failures": self.state.put_failures,
            "sealed_files": len(self.seals.bases),
            "damaged_blocks": sum(len(file.damaged) for file in log.segments.files),
            "inline_syncs": flusher.inline_count,
            "threaded_syncs": flusher.threaded_count,
        }

    # --- running -----------------------------------------------------------------------------

    async def start(self, tasks: Spawner) -> None:
        """Start the background work; ``tasks`` owns it and ends it before :meth:`close`."""
        await self.maintenance.expiry.check()
        self.maintenance.start(tasks)
        tasks.spawn(self.pool.removals.run(self.executor), name="store-removals")

    def close(self) -> None:
        """Stop: sync everything to the device and remove the abort marker last. Waits for threads.

        Raises OSError if that fails; the directory is unlocked in any case.
        """
        if self.state.closed:
            return
        self.state.closed = True
        self.flusher.close()
        self.executor.shutdown()
        try:
            if self.log.failure is None:
                self.commit()
                if self.transient is not None:
                    self.transient.close()
                self.backlog.close(self.state.last_ms)
                self.maintenance.stop()
        finally:
            self.state.close()
            self.log.close()
            self.dispatcher.journal.close()
            self.pool.close()
            self.index.close()
            self.files.close(self.lock_handle)


def _log_unclaimed(tokens: list[object], error: StoreError | None = None) -> None:
    what = "durable" if error is None else "failed"
    logger.warning("%s_tokens_unclaimed count=%d error=%r", what, len(tokens), str(error))


def _check_batch_bytes(size_bytes: int) -> None:
    if size_bytes > BATCH_BYTES_MAX:
        raise MessageIllegal(
            f"the records of the batch would be {size_bytes} bytes long, the limit is "
            f"{BATCH_BYTES_MAX}: send smaller batches"
        )
