"""Opening a store directory: lock, files, recovery, and only then a store to write to."""

from __future__ import annotations

import logging
import os.path
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreFull, StoreLocked
from cometmq.store.checkpoint import (
    Positions,
    abort_path,
    lock_path,
    read_checkpoint,
    read_positions,
)
from cometmq.store.commitlog import NO_ROOM, CommitLog
from cometmq.store.dispatch import Dispatched, row_of
from cometmq.store.engine import MessageStore
from cometmq.store.files import make_durable_directory
from cometmq.store.index import Index
from cometmq.store.queuefiles import QueueFiles
from cometmq.store.recovery import RecoveryReport, Scan, StartingPoint, starting_point
from cometmq.store.segments import Segments

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import Files

logger = logging.getLogger(__name__)

_BATCH_ROWS = 2048
_COPY_BYTES = 1 << 20


def open_store(config: StoreConfig, clock: Clock, files: Files) -> MessageStore:
    """Open or make the store that ``config`` names. Raises what ``MessageStore.open`` says."""
    root = config.store_path_root_dir
    make_durable_directory(files, root)
    make_durable_directory(files, config.commit_log_directory)
    try:
        lock = files.lock(lock_path(root))
    except OSError as error:
        raise StoreLocked(root) from error
    try:
        store = _open_locked(config, clock, files)
    except BaseException:
        files.close(lock)
        raise
    store.lock_handle = lock
    return store


def _open_locked(config: StoreConfig, clock: Clock, files: Files) -> MessageStore:
    begin_ns = clock.monotonic_ns()
    root = config.store_path_root_dir
    crashed = files.exists(abort_path(root))
    segments = Segments(files, config.commit_log_directory, config.mapped_file_size_commit_log)
    segments.load()
    if not segments.files:
        _create_first(segments)
    pool = QueueFiles(files, os.path.join(root, "consumequeue"), config.queue_file_bytes)
    store = MessageStore(config, clock, files, CommitLog(segments), pool, Index(files, config))
    _find_queues(store)
    positions = read_positions(files, root)
    if positions is None:
        store.seals.doubt()
    store.seals.attach(segments.files)
    start = starting_point(
        segments,
        positions,
        files.boot_id(),
        crashed,
        read_checkpoint(files, root),
        pool.queue_count,
        lambda: _queues_end(store),
    )
    scan = _recover(store, start)
    store.seals.keep(segments, scan.position)
    if crashed:
        _write_again(store, positions, scan.position)
    if crashed or scan.torn:
        _clear_tail(store, scan.position)
    _sync_recovered(store, start.offset)
    store.log.resume(scan.position)
    store.durable.position = scan.position
    duration_ms = (clock.monotonic_ns() - begin_ns) // 1_000_000
    store.report = RecoveryReport(
        crashed, start.reason, start.offset, scan.position, scan.records, scan.torn, duration_ms
    )
    logger.info(
        "store_opened path=%s crashed=%s reason=%r start=%d end=%d records=%d duration_ms=%d",
        root, crashed, start.reason, start.offset, scan.position, scan.records, duration_ms,
    )  # fmt: skip
    files.close(files.open(abort_path(root), create=True))
    files.sync_directory(root)
    return store


def _create_first(segments: Segments) -> None:
    try:
        segments.add(segments.create_file(0))
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise StoreFull(
            f"the first log file needs {segments.file_bytes} bytes in {segments.directory}, "
            f"{segments.free_bytes()} are free: free space there, choose another directory, or "
            "set a smaller mappedFileSizeCommitLog"
        ) from error


def _find_queues(store: MessageStore) -> None:
    for topic in store.files.names(store.pool.directory):
        ids = store.files.names(os.path.join(store.pool.directory, topic))
        numbers = {int(name) for name in ids if name.isascii() and name.isdigit()}
        if numbers:
            store.known[topic] = numbers
            store.pool.queue_count += len(numbers)


def _queues_end(store: MessageStore) -> int:
    """Load every queue as its files have it; the end of the last record that one knows."""
    store.load_below = store.log.segments.end
    end = store.log.segments.start
    for topic, ids in store.topics().items():
        for queue_id in ids:
            end = max(end, store.queue(topic, queue_id).last_record_end())
    return end


def _recover(store: MessageStore, start: StartingPoint) -> Scan:
    store.load_below = start.offset
    store.index.load(start.offset, clean=start.slots_valid)
    store.dispatcher.begin(start.offset)
    if start.stale_entries:
        store.queues.clear()
        for topic, ids in store.topics().items():
            for queue_id in ids:
                store.queue(topic, queue_id)
    scan = Scan(store.log.segments, start.offset)
    rows: list[Dispatched] = []
    for record in scan:
        store.last_ms = max(store.last_ms, record.store_ms)
        queue = store.queue(record.topic, record.queue_id)
        rows.append(row_of(record, queue, store.delays_ms))
        if len(rows) >= _BATCH_ROWS:
            store.dispatcher.dispatch(rows, scan.position, record.store_ms)
            rows = []
    store.dispatcher.dispatch(rows, scan.position, store.clock.wall_ms())
    for queue in store.queues.values():
        queue.settle()
    store.load_below = scan.position
    store.recovering = False
    if not scan.records:
        store.last_ms = read_checkpoint(store.files, store.config.store_path_root_dir).log_ms
    return scan


def _write_again(store: MessageStore, positions: Positions | None, end: int) -> None:
    """Write once more what was never proven durable.

    After a sync that failed, the kernel may take pages for clean that never reached the device:
    syncing them again succeeds and does nothing, until a power cut takes what recovery has shown.
    A machine that was restarted since has read all of it from the device.
    """
    if positions is None or positions.boot_id != store.files.boot_id():
        return
    segments = store.log.segments
    at = max(segments.start, positions.durable or positions.synced)
    while at < end:
        file = segments.find(at)
        if file is None:
            return
        chunk = bytearray(min(_COPY_BYTES, file.end - at, end - at))
        file.read_into(chunk, at)
        file.write(at, chunk)
        at += len(chunk)


def _clear_tail(store: MessageStore, end: int) -> None:
    """Zero the log behind its end, so that no record from before the crash can come back."""
    segments = store.log.segments
    segments.drop_after(end)
    file = segments.find(end)
    if file is not None:
        file.clear_from(end)


def _sync_recovered(store: MessageStore, start: int) -> None:
    """What recovery shows to consumers must not be lost by a later crash of the machine."""
    for file in store.log.segments.files:
        if file.end > start:
            file.sync()
