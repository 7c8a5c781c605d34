"""Opening of a store directory: takes the lock, loads files, runs recovery, returns the store.

Loading repairs missing and short log files, if the damage policy permits it, and creates the first
file. Before the store is returned, all records that consumers may see are synced, and the bytes
after the log's end are cleared.
"""

from __future__ import annotations

import logging
import os.path
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec.structs import replace as changed

from cometmq.core.errors import StoreCorrupt, StoreFull, StoreLocked
from cometmq.store.checkpoint import (
    Positions,
    abort_path,
    are_outdated,
    forget_positions,
    lock_path,
    read_checkpoint,
    read_positions,
    write_positions,
)
from cometmq.store.config import DamagePolicy, delay_levels_ms
from cometmq.store.dispatch import LogFacts
from cometmq.store.files import PosixFiles, make_durable_directory
from cometmq.store.index import Index
from cometmq.store.layout import EXTENSIONS
from cometmq.store.log.commitlog import CommitLog
from cometmq.store.log.directories import NO_ROOM, LogDirectories
from cometmq.store.log.scan import log_store_ms
from cometmq.store.log.segments import Segments
from cometmq.store.messagestore import MessageStore
from cometmq.store.parts import RecoveryReport
from cometmq.store.queue.extensions import ExtendedQueueFiles, find_file_bytes
from cometmq.store.queue.journal import JOURNAL_DIRECTORY, read_journal
from cometmq.store.queue.queuefiles import QueueFiles
from cometmq.store.recovery.damage import LogRepair, Proof, repair_file, ways_out
from cometmq.store.recovery.filechecks import QueueRecovery, check_index
from cometmq.store.recovery.mounts import warn_of_mounts
from cometmq.store.recovery.quarantine import Quarantine
from cometmq.store.recovery.rebuild import (
    LogReplay,
    Progress,
    StartingPoint,
    by_checkpoint,
    starting_point,
)

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import Files
    from cometmq.store.log.scan import Scan
    from cometmq.store.log.segments import FileFault

logger = logging.getLogger(__name__)


_COPY_BYTES = 1 << 20


def cut_and_sync_log_end(
    store: MessageStore,
    positions: Positions | None,
    end: int,
    first: int,
    *,
    crashed: bool,
    cut: bool,
) -> None:
    """Make the log durable up to ``end``, and remove everything after it, durably.

    After that, a crash of the machine cannot lose records that recovery has dispatched, and no
    record after the end can come back. The log was read from ``first`` on. ``cut`` says that there
    were bytes after the end. Raises SettingsError if a read-only directory has the end, OSError.
    """
    segments = store.log.segments
    segments.check_changeable(end)
    proven = min(first, proven_end(segments, positions))
    if crashed:
        _write_again(segments, first if positions is None else proven_end(segments, positions), end)
    segments.keep_seals(store.seals, end)
    if crashed or cut:
        segments.drop_after(end)
        file = segments.find(end)
        if file is not None:
            file.clear_from(end)
    for file in segments.files:
        if file.end > proven:
            file.sync()
    # The names are synced too: the run that created the last file may have ended before it synced
    # its name.
    segments.places.sync_names()
    segments.leave_read_only(end)


def proven_end(segments: Segments, positions: Positions | None) -> int:
    """Return the offset up to which the log is known to be durable."""
    if positions is None:
        return segments.start
    return max(segments.start, positions.durable or positions.synced)


def _write_again(segments: Segments, at: int, end: int) -> None:
    """Write again the bytes that were never proven durable, from ``at`` on.

    After a failed sync, the kernel may mark pages as clean that never reached the device. Another
    sync of them succeeds and does nothing, and a later power cut loses records that recovery has
    dispatched. After a restart of the machine this is not needed, because all bytes were read from
    the device. But a restart cannot be detected for certain: the last process may have ended before
    it recorded the boot id. Files in read-only directories are written too: their bytes stay the
    same.
    """
    while at < end:
        file = segments.find(at)
        if file is None:
            return
        chunk = bytearray(min(_COPY_BYTES, file.end - at, end - at))
        file.read_into(chunk, at)
        file.write(at, chunk)
        at += len(chunk)


class LogLoading:
    """Loads the log files of one store; ``positions`` are those of its last run (checkpoint.py)."""

    def __init__(
        self,
        store: MessageStore,
        quarantine: Quarantine,
        queues: QueueRecovery,
        positions: Positions | None,
    ) -> None:
        self._store = store
        self._config = store.config
        self._segments = store.log.segments
        self._quarantine = quarantine
        self._queues = queues
        self._positions = positions
        self._short: list[FileFault] = []

    def load(self) -> None:
        """Open all files, or create the first one.

        Raises StoreCorrupt for files that are missing or have a wrong size, unless they can be
        repaired and the damage policy permits it. Raises StoreFull if there is no room for the
        first file.
        """
        store, segments = self._store, self._segments
        positions = self._positions
        size = positions.file_bytes if positions is not None else 0
        if size not in (0, segments.file_bytes):
            raise StoreCorrupt(
                segments.directory, -1,
                f"mappedFileSizeCommitLog is {segments.file_bytes}, the store was written with "
                f"{size}: start with that value",
            )  # fmt: skip
        segments.load(self._repair_file, size_is_sure=size > 0)
        segments.attach(store.seals)
        if not segments.files:
            self._create_first(self._first_base())

    def _repair_file(self, fault: FileFault) -> None:
        self._store.seals.forget([fault.base])
        repair_file(
            fault,
            self._segments,
            self._store.files,
            self._config,
            self._quarantine,
            self._queues.punch,
        )
        if 0 <= fault.size_bytes < self._segments.file_bytes:
            self._short.append(fault)

    def _first_base(self) -> int:
        """Return the first offset of a store without log files: 0 for a new one.

        Raises StoreCorrupt if there must have been files, unless the damage policy gives them up.
        """
        positions = self._positions
        end = (
            max(positions.written, positions.durable)
            if positions is not None
            else self._queues.log_end()
        )
        if not end:
            return 0
        directory, size = self._segments.directory, self._segments.file_bytes
        if self._config.damage_policy is not DamagePolicy.TRUNCATE:
            ways = ways_out(self._config, "changes nothing here", "begins with an empty log")
            raise StoreCorrupt(
                directory, -1,
                f"there is no log file, but the log reached {end}: is this the right "
                "directory (storePathCommitLog), and is its device mounted?",
                ways_out=(ways[0], ways[2]),
            )  # fmt: skip
        logger.error("log_lost directory=%s reached=%d", directory, end)
        return -(-end // size) * size

    def _create_first(self, base: int) -> None:
        segments = self._segments
        try:
            segments.add(segments.create_file(base))
        except OSError as error:
            if error.errno not in NO_ROOM or error.filename == segments.places.note_path:
                raise
            raise StoreFull(
                f"the first log file needs {segments.file_bytes} bytes in {segments.directory}, "
                f"{segments.free_bytes()} are free: free space there, choose another directory, or "
                "set a smaller mappedFileSizeCommitLog"
            ) from error

    @property
    def unread(self) -> list[int]:
        """Base offsets of files that were too short: they must be read to find the lost part."""
        return [fault.base for fault in self._short]

    def prove_short_files(self, start: StartingPoint) -> StartingPoint:
        """Extend the durable part of the log to the end of short files that have a successor.

        The log went on in the next file, so the short file had been full.
        """
        ends = [f.base + self._segments.file_bytes for f in self._short if f.next_base >= 0]
        proof = replace(start.proof, offset=max([start.proof.offset, *ends]))
        return replace(start, proof=proof)


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A request to rebuild queues, or the whole index, from the log even if they look valid.

    The log is read from ``log_from`` on at the latest.
    """

    queues: frozenset[tuple[str, int]] = frozenset()
    index: bool = False
    log_from: int = 1 << 62


def open_store(
    config: StoreConfig,
    clock: Clock,
    files: Files | None = None,
    rebuild: Rebuild | None = None,
    progress: Progress = lambda position, end: None,
) -> MessageStore:
    """Open the store directory that ``config`` names, or create it; recover from a crash.

    ``progress`` is called from time to time with the physical offset that was reached and the
    expected end of the log. Raises StoreLocked if the directory is in use, StoreFull if there is no
    room for the first file or for repairs, StoreCorrupt if files contradict each other or have
    other sizes than configured, SettingsError if a read-only directory of the log would have to be
    written to.
    """
    files = files or PosixFiles()
    root = config.store_path_root_dir
    make_durable_directory(files, root)
    places = LogDirectories.of(files, config)
    if not places.is_spread:
        make_durable_directory(files, places.text)
    try:
        lock = files.lock(lock_path(root))
    except BlockingIOError as error:
        raise StoreLocked(root) from error
    warn_of_mounts(files, root, *places.all)
    try:
        places.prepare()
        store = _Opening(config, clock, files, rebuild or Rebuild(), places).open(progress)
    except OSError as error:
        files.close(lock)
        if error.errno in NO_ROOM:
            raise StoreFull(
                f"no room in {root} for the repairs of a start ({error}): free some MiB"
            ) from error
        raise
    except BaseException:
        files.close(lock)
        raise
    store.lock_handle = lock
    return store


def _queue_files(config: StoreConfig, clock: Clock, files: Files, segments: Segments) -> QueueFiles:
    """Return the files of the queues, with extension units if the store has or will have some."""
    root = config.store_path_root_dir
    directory, file_bytes = os.path.join(root, "consumequeue"), config.queue_file_bytes
    is_asked = config.enable_consume_queue_ext
    if not is_asked and not files.exists(os.path.join(root, EXTENSIONS)):
        return QueueFiles(files, directory, file_bytes)
    unit_file_bytes = config.mapped_file_size_consume_queue_ext
    found = find_file_bytes(files, root)
    if is_asked and found not in (0, unit_file_bytes):
        logger.warning(
            "extension_files_have_another_size setting=%d files=%d", unit_file_bytes, found
        )
    facts = LogFacts(segments, delay_levels_ms(config.message_delay_level))
    return ExtendedQueueFiles(
        files, directory, file_bytes, facts, found or unit_file_bytes, clock=clock,
        writes_units=is_asked,
    )  # fmt: skip


class _Opening:
    """One opening of a store, step by step; the caller holds the lock."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        files: Files,
        rebuild: Rebuild,
        places: LogDirectories,
    ) -> None:
        root = config.store_path_root_dir
        self._config = config
        self._clock = clock
        self._files = files
        self._rebuild = rebuild
        self._begin_ns = clock.monotonic_ns()
        self._positions = read_positions(files, root)
        self._checkpoint = read_checkpoint(files, root)
        positions = self._positions
        self._crashed = files.exists(abort_path(root)) or (
            positions is not None and not positions.clean
        )
        self._quarantine = Quarantine(files, root, clock)
        self._segments = Segments(files, places, config.mapped_file_size_commit_log)
        pool = _queue_files(config, clock, files, self._segments)
        index = Index(files, config)
        self._store = MessageStore(config, clock, files, CommitLog(self._segments), pool, index)
        self._queues = QueueRecovery(self._store, self._quarantine)
        if positions is not None:
            self._queues.begins = frozenset(positions.begins)
        self._unfinished = pool.removals.unfinished
        self._proof = 0
        #: True if another broker wrote last; that leaves no valid positions. A store without
        #: positions but with a note of its log directories may be CometMQ's own, if a power cut
        #: came before the positions were durable.
        self._is_of_another_broker = positions is None and (
            not places.is_noted or are_outdated(files, root)
        )

    def open(self, progress: Progress) -> MessageStore:
        """Run all steps."""
        store = self._store
        if self._positions is None:
            if self._is_of_another_broker:
                self._segments.places.check_all_used()
            store.seals.doubt()
        self._queues.find()
        loading = LogLoading(store, self._quarantine, self._queues, self._positions)
        loading.load()
        start = loading.prove_short_files(self._starting_point())
        if self._positions is None:
            # Not earlier: until here a start may be refused, and the next one must be refused too.
            forget_positions(self._files, self._root)
        self._proof = start.proof.offset
        index_from = self._load_derived(start)
        repair = self._log_repair(start)
        replay = LogReplay(store, start, self._queues, index_from, repair, progress)
        if self._crashed:
            store.pool.mark_unsynced(store.topics())
        lows = [self._rebuild.log_from, start.offset, *loading.unread]
        if self._crashed and self._positions is not None:
            # Pages that a failed sync dropped must be read again, even if they are recorded
            # as written.
            lows.append(proven_end(self._segments, self._positions))
        first = replay.begin(min(lows))
        scan = replay.run(first)
        self._drop_lost(repair, scan.position if scan.position < start.offset else None)
        self._forget_keys(repair, replay, index_from, scan.position)
        for queue in store.queues.values():
            queue.finish_recovery()
            queue.correct_min(self._segments.start)
        self._queues.record_begins()
        store.queues.load_below = scan.position
        store.queues.recovering = False
        self._queues.check_on_first_use(
            start.offset, exact=start.slots_valid, torn=start.stale_entries
        )
        recorded_ms = self._positions.last_ms if self._positions is not None else 0
        store.state.last_ms = max(replay.last_ms() or self._last_recorded_ms(), recorded_ms)
        cut_and_sync_log_end(
            store,
            self._positions,
            scan.position,
            first,
            crashed=self._crashed,
            cut=scan.torn or bool(self._quarantine.kept),
        )
        store.log.resume(scan.position)
        store.sync_waiters.position = scan.position
        number = self._positions.number if self._positions is not None else 0
        store.maintenance.resume(min(first, self._synced(start)), number)
        store.maintenance.scrub.resume()
        self._report(start, first, scan, repair, replay)
        store.maintenance.mark_running()
        store.state.update()
        # The whole log was dispatched again, so pending files of deleted topics are not needed.
        if self._unfinished and store.maintenance.note_now():
            store.pool.removals.settle_all()
        return store

    @property
    def _root(self) -> str:
        return self._config.store_path_root_dir

    # --- what can be trusted -----------------------------------------------------------------

    def _starting_point(self) -> StartingPoint:
        """Return where recovery begins; check the queues and load valid ones on the way."""
        queues, segments = self._queues, self._segments
        segments.places.note(file.path for file in segments.files)
        start = starting_point(
            segments, self._positions, self._files.boot_id(), self._crashed, self._checkpoint,
            -1 if self._unfinished else self._store.pool.queue_count,
        )  # fmt: skip
        start = self._proven_by_queues(start)
        queues.check_all(start.offset, exact=start.slots_valid, torn=start.stale_entries)
        start = self._resume_queues(start)
        if start.by_queues:
            queues.load_valid()
            end = queues.records_end()
            if not segments.start <= end <= segments.end:
                return by_checkpoint(segments, self._checkpoint)
            return replace(start, offset=end, dispatch_from=end, likely_end=end, proof=Proof(end))
        positions = self._positions
        if queues.checked or start.stale_entries:
            queues.load_valid()
        trusted = start.dispatch_from == start.offset and not start.stale_entries
        if trusted and positions is not None and not queues.faults:
            missing = queues.missing_entries(positions.entries, exact=start.slots_valid)
            if missing:
                reason = f"{start.reason}, {missing} queue entries are missing"
                logger.error("queue_entries_missing count=%d", missing)
                return replace(start, dispatch_from=segments.start, reason=reason)
        return start

    def _proven_by_queues(self, start: StartingPoint) -> StartingPoint:
        """Extend the proof if queues of another broker have entries beyond the last log file.

        A broker writes an entry after its record. So the last log files are gone, perhaps because a
        device is not mounted or a directory is not named. Only after a power cut may an entry have
        outlived its log file. Raises StoreCorrupt, before anything changes, unless the damage
        policy gives the files up.
        """
        segments = self._segments
        is_certain = not self._crashed or segments.places.is_spread
        if not (self._is_of_another_broker and is_certain):
            return start
        end = self._queues.log_end()
        if end <= segments.end:
            return start
        if self._config.damage_policy is DamagePolicy.REFUSE:
            ways = ways_out(self._config, "gives them up", "gives them up")
            raise StoreCorrupt(
                segments.directory, segments.end,
                f"the log files end here, and queues have entries for records up to {end}: the "
                "last files are missing (are all directories of the log named, and their devices "
                "mounted?)",
                ways_out=ways,
            )  # fmt: skip
        start = by_checkpoint(segments, self._checkpoint)
        return replace(start, proof=replace(start.proof, offset=end))

    def _resume_queues(self, start: StartingPoint) -> StartingPoint:
        """Take entries that the queue files lack from the journal.

        Returns the starting point. Without a usable journal, its ``dispatch_from`` is the offset
        up to which the queue files are complete.
        """
        positions, journal = self._positions, self._store.dispatcher.journal
        if positions is None or positions.complete < 0:
            journal.remove()
            return start
        usual = start.offset == start.dispatch_from == positions.written and not start.stale_entries
        if usual and not self._queues.faults and self._rebuild == Rebuild():
            directory = os.path.join(self._root, JOURNAL_DIRECTORY)
            tails = read_journal(self._files, directory, positions.complete, positions.written)
            if tails is not None:
                since = positions.complete, self._checkpoint.queues_ms
                for queue in self._store.queues.resume(tails):
                    self._store.dispatcher.resume(queue, since)
                journal.continue_at(positions.complete, positions.written)
                return start
        journal.remove()
        low = self._segments.start
        return replace(start, dispatch_from=max(min(start.dispatch_from, positions.complete), low))

    def _load_derived(self, start: StartingPoint) -> int:
        """Set aside bad queue and index files, and load the valid ones.

        Returns the offset from which the index must be rebuilt.
        """
        store, config = self._store, self._config
        names = self._positions.index if self._positions is not None else None
        state = check_index(self._files, config, self._segments, start.offset, names)
        if self._positions is not None and self._positions.rebuild >= 0:
            state.start = min(state.start, max(self._positions.rebuild, self._segments.start))
        if self._rebuild.index:
            state.forget_all(self._files, config, self._segments.start)
        self._queues.request_rebuild(self._rebuild.queues)
        index_from = state.start if config.message_index_enable else start.offset
        if self._queues.faults or min(index_from, start.dispatch_from) < start.offset:
            self._record(rebuild=self._segments.start)
        self._queues.set_aside_invalid()
        for path in state.unneeded:
            self._files.unlink(path)
        for path, problem in reversed(state.bad):
            self._quarantine.move(path, f"index-{os.path.basename(path)}", problem)
        store.queues.load_below = start.offset
        store.index.load(state.start, clean=start.slots_valid and state.start == start.offset)
        return index_from

    def _log_repair(self, start: StartingPoint) -> LogRepair:
        positions, boot_id = self._positions, self._files.boot_id()
        same_boot = bool(boot_id) and positions is not None and positions.boot_id == boot_id
        return LogRepair(
            self._segments,
            self._config,
            self._quarantine,
            start.proof,
            looks_behind=self._crashed and not same_boot,
            punch=self._queues.punch,
            record_cut=self._record_cut,
        )

    # --- positions ---------------------------------------------------------------------------

    def _record(self, **changes: int | bool | str) -> None:
        """Record, before any change, what the next start must know if this one is interrupted."""
        positions = self._positions
        if positions is None:
            low = self._segments.start
            positions = Positions(
                "", False, low, low, self._store.pool.queue_count, self._checkpoint, self._proof,
                file_bytes=self._segments.file_bytes,
            )  # fmt: skip
        self._positions = changed(positions, clean=False, number=positions.number + 1, **changes)
        write_positions(self._files, self._root, self._positions, durable=True)

    def _record_cut(self, offset: int) -> None:
        positions = self._positions
        written = min(positions.written, offset) if positions is not None else 0
        synced = min(positions.synced, offset) if positions is not None else 0
        # As after a crash of the machine: every queue must be checked.
        self._record(boot_id="", written=written, synced=synced, durable=offset, shrunk=True)

    def _synced(self, start: StartingPoint) -> int:
        """Return the log offset up to which queue and index files are durable."""
        return start.offset if self._positions is None else self._positions.synced

    def _last_recorded_ms(self) -> int:
        """Return the store time of the last record, ms, if no record was read."""
        if self._positions is not None:
            return self._checkpoint.log_ms
        last = self._queues.last_record()
        return 0 if last < 0 else max(log_store_ms(self._segments, last), 0)

    # --- after the log was read --------------------------------------------------------------

    def _drop_lost(self, repair: LogRepair, end: int | None) -> None:
        """Drop entries whose records were given up or lie after ``end``."""
        cut = end if repair.cut is None else repair.cut
        if cut is not None:
            self._queues.cut(cut)
            self._cut_index(cut)
        if repair.damages:
            self._queues.trim()

    def _cut_index(self, offset: int) -> None:
        """Drop index entries for records from a physical offset on."""
        index = self._store.index
        self._store.dispatcher.write_index(self._clock.wall_ms())
        for file in index.full_files():
            file.write_slots()
        index.close()
        index.load(offset, clean=False)

    def _forget_keys(self, repair: LogRepair, replay: LogReplay, index_from: int, end: int) -> None:
        """Rebuild the index from the first skipped damage on.

        It may have entries for the lost records there.
        """
        first = min((d.offset for d in repair.damages if d.offset != repair.cut), default=end)
        if first < min(index_from, end) and self._config.message_index_enable:
            self._record(rebuild=first)
            self._cut_index(first)
            replay.index_again(first, end)

    def _report(
        self, start: StartingPoint, first: int, scan: Scan, repair: LogRepair, replay: LogReplay
    ) -> None:
        store, remade = self._store, tuple(replay.remade)
        cut = -1 if repair.cut is None else repair.cut
        was_shrunk = self._positions is not None and self._positions.shrunk
        lost = bool(repair.damages or self._quarantine.kept or remade)
        report = store.report = RecoveryReport(
            self._crashed,
            start.reason,
            first,
            scan.position,
            scan.records,
            scan.torn,
            (self._clock.monotonic_ns() - self._begin_ns) // 1_000_000,
            shrunk=self._crashed or scan.torn or lost or was_shrunk,
            damages=tuple(repair.damages),
            cut=cut,
            remade=remade,
            kept=tuple(self._quarantine.kept),
        )
        logger.info(
            "store_opened path=%s crashed=%s reason=%r start=%d end=%d records=%d duration_ms=%d",
            self._root, report.crashed, report.reason, report.start, report.end, report.records,
            report.duration_ms,
        )  # fmt: skip
