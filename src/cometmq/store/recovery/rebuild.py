"""Rebuild of queues and index from the log at a start, and the offset at which it begins.

Queues and index are derived from the log. ``starting_point`` decides two offsets from the positions
that the last run recorded (upstream: CommitLog.recoverNormally, recoverAbnormally):

    offset         queue and index files are trusted for records before it
    proof.offset   the log was durable before it

One pass over the log finds its end. It dispatches the records after the first offset to all queues
and to the index. Earlier records are dispatched only to damaged queues and, if needed, to the
index. A second pass completes queues in which the first pass finds a gap. The dispatch is the same
as for live appends (dispatch.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cometmq.core.errors import MessageIllegal
from cometmq.message.record import FIXED_BYTES, takes_queue_slot
from cometmq.speedups import WriteBatch
from cometmq.store.dispatch import row_of
from cometmq.store.log.scan import Scan, first_record
from cometmq.store.queue.consumequeue import Dispatched
from cometmq.store.recovery.damage import Proof, lost_tail

if TYPE_CHECKING:
    from cometmq.message.record import Record
    from cometmq.speedups import Walked
    from cometmq.store.checkpoint import Checkpoint, Positions
    from cometmq.store.log.segments import Segments
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.queue.consumequeue import ConsumeQueue
    from cometmq.store.recovery.damage import LogRepair
    from cometmq.store.recovery.filechecks import QueueKey, QueueRecovery

logger = logging.getLogger(__name__)

_BATCH_ROWS = 2048
#: Margin of 3 s. A Java broker's checkpoint holds the store time of a flushed message. Messages
#: with a slightly earlier time may have been stored after the flush.
_LOG_MARGIN_MS = 3_000
#: Margin of 10 min. The time that a Java broker's checkpoint holds for the queues may be ahead of
#: their flush by up to one flush interval (1 min).
_QUEUES_MARGIN_MS = 600_000
_PROGRESS_MS = 1_000
_DAY_MS = 86_400_000
_NEVER = (1 << 63) - 1

#: Called with the physical offset that was reached and the expected end of the log.
Progress = Callable[[int, int], None]
RowMaker = Callable[["Record"], Dispatched | None]


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """The offset below which queue and index files are trusted, with the state of the files.

    If ``dispatch_from`` is lower than ``offset``, some queue files may lack entries: records from
    there on are dispatched to all queues that lack them. ``slots_valid`` says that the index slots
    on disk are right and that no file has entries for records after ``offset``. ``stale_entries``
    says that queue files may have entries for lost records, so each file must be checked. ``proof``
    is the part of the log that was durable, ``likely_end`` its probable end. With ``by_queues``,
    the last queue entry decides the offset: the log counts as dispatched up to there.
    """

    offset: int
    slots_valid: bool
    stale_entries: bool
    reason: str
    proof: Proof
    dispatch_from: int
    likely_end: int
    by_queues: bool = False


def starting_point(
    segments: Segments,
    positions: Positions | None,
    boot_id: str,
    crashed: bool,
    checkpoint: Checkpoint,
    queue_count: int,
) -> StartingPoint:
    """Decide where recovery starts.

    ``queue_count`` is the number of queues with files, -1 if some may be missing. CometMQ's
    positions are used unless another broker has written to the store since. Otherwise recovery
    relies on the files of a Java broker: its queues after a clean stop, its checkpoint after a
    crash.
    """
    if positions is not None:
        return _by_positions(segments, positions, boot_id, crashed, queue_count)
    if crashed:
        return by_checkpoint(segments, checkpoint)
    end = segments.end
    is_new = all(first_record(file) is None for file in segments.files)
    reason = "new store" if is_new else "clean stop by another broker"
    return StartingPoint(end, True, False, reason, Proof(end), end, end, by_queues=True)


def _by_positions(
    segments: Segments, positions: Positions, boot_id: str, crashed: bool, queue_count: int
) -> StartingPoint:
    low, high = segments.start, segments.end
    same_boot = bool(boot_id) and positions.boot_id == boot_id
    slots_valid = stale = False
    if positions.clean and not crashed:
        offset, slots_valid, reason = positions.written, True, "clean stop"
    elif same_boot:
        offset, reason = positions.written, "crash of the process"
    else:
        offset, stale, reason = positions.synced, True, "crash of the machine"
    dispatch_from = offset
    if positions.rebuild >= 0:
        reason, stale = f"{reason} while entries were being rebuilt", True
        dispatch_from = positions.rebuild
        if not same_boot:
            offset = min(offset, dispatch_from)
    elif queue_count < positions.queues:
        reason, dispatch_from = f"{reason}, queue files are missing", low
    if offset > high:
        # The last files are gone: the log's end is in the last one that is left.
        offset, slots_valid, stale = max(high - segments.file_bytes, low), False, True
    offset = max(offset, low)
    return StartingPoint(
        offset,
        slots_valid,
        stale,
        reason,
        Proof(positions.durable or positions.synced),
        max(min(dispatch_from, offset), low),
        max(positions.written, positions.durable),
    )


def by_checkpoint(segments: Segments, checkpoint: Checkpoint) -> StartingPoint:
    """Decide where recovery starts after a crash of another broker."""
    proof = Proof(0, checkpoint.log_ms - _LOG_MARGIN_MS)
    sure_ms = min(proof.store_ms, checkpoint.queues_ms - _QUEUES_MARGIN_MS)
    offset = segments.start
    for file in reversed(segments.files):
        first = first_record(file)
        if first is not None and 0 < first.store_ms <= sure_ms:
            offset = file.base
            break
    return StartingPoint(offset, False, True, "checkpoint", proof, offset, segments.end)


class _Pass(NamedTuple):
    """The task of one pass over the log. All offsets are physical.

    ``make_row`` returns the row of a record, or None if neither its queue nor the index lacks it.
    ``lacks_from`` takes a queue and the offset of one of its records, and returns the offset from
    which the queue may lack entries. The index may lack entries from ``index_from`` on. At each
    offset in ``borders`` the results of ``lacks_from`` may change. With ``in_order``, records that
    would leave a gap in their queue are examined one by one.
    """

    make_row: RowMaker
    lacks_from: Callable[[QueueKey, int], int]
    index_from: int = _NEVER
    borders: tuple[int, ...] = ()
    in_order: bool = False


class _Lacking(NamedTuple):
    """The queues of one walk over records, and the offset from which each lacks entries.

    It is a cached result: valid for records before the physical offset ``limit``, as long as
    ``late_count`` queues wait for the second pass.
    """

    walked: Walked
    limit: int
    late_count: int
    queues: list[ConsumeQueue | None]
    begins: list[int]


class LogReplay:
    """Passes over the log that bring queues and index up to its end.

    The index lacks entries from ``index_from`` on.
    """

    def __init__(
        self,
        store: MessageStore,
        start: StartingPoint,
        queues: QueueRecovery,
        index_from: int,
        repair: LogRepair,
        progress: Progress = lambda position, end: None,
    ) -> None:
        self._store = store
        self._start = start
        self._queues = queues
        self._index_from = index_from
        self._repair = repair
        self._progress = progress
        #: Queues for the second pass, with the physical offset from which each lacks entries.
        self._late: dict[QueueKey, int] = {}
        self._record_ends: dict[QueueKey, int] = {}
        #: Store times of the last two records that were read.
        self._times_ms = (0, 0)
        self._rows: list[Dispatched] = []
        self._known: _Lacking | None = None
        self._progress_ms = store.clock.monotonic_ms()

    def begin(self, at_latest: int) -> int:
        """Return the offset at which the first pass must begin: ``at_latest`` or lower."""
        start = self._start
        lows = [start.offset, start.dispatch_from, self._index_from, at_latest]
        return max(min([*lows, *self._queues.lacking.values()]), self._store.log.segments.start)

    def run(self, first: int) -> Scan:
        """Read and dispatch from ``first`` on; return the scan that found the log's end."""
        segments = self._store.log.segments
        self._store.dispatcher.begin(first)
        start = self._start
        borders = (start.offset, start.dispatch_from, self._index_from)
        scan = self._pass(
            _Pass(
                self._row_in_first_pass, self._lacks_from, self._index_from, borders, in_order=True
            ),
            first,
        )
        self._find_short()
        if self._late:
            # The journal holds entries in log order only. Without it, the next start reads the log.
            self._store.dispatcher.journal.remove()
            begin = max(min(self._late.values()), segments.start)
            logger.warning("queues_made_whole queues=%d from=%d", len(self._late), begin)
            # The dispatcher goes back to ``begin`` for these queues, so all entries are written
            # first.
            dispatcher = self._store.dispatcher
            dispatcher.write(self._store.clock.wall_ms())
            dispatcher.begin(begin)
            self._pass(_Pass(self._row_in_second_pass, self._late_from), begin, scan.position)
        return scan

    def index_again(self, start: int, end: int) -> None:
        """Dispatch the records of a part of the log to the index only."""
        make_row = partial(self._row, in_queue=False, in_index=True)
        self._pass(_Pass(make_row, lambda _key, _place: _NEVER, index_from=0), start, end)

    @property
    def remade(self) -> list[QueueKey]:
        """The queues that were rebuilt."""
        return sorted({*self._queues.lacking, *self._late})

    def _pass(self, each: _Pass, begin: int, end: int | None = None) -> Scan:
        """Read and dispatch from ``begin`` on; return the scan, which has ended."""
        store = self._store
        scan = Scan(
            store.log.segments, begin, end, self._fault if each.in_order else None,
            take=lambda walked, base, row: self._take(each, scan, begin, (walked, base, row)),
            delays_ms=store.delays_ms,
        )  # fmt: skip
        self._progress(begin, max(self._start.likely_end, begin))
        for record in self._repair.read(scan):
            try:
                row = each.make_row(record)
            except MessageIllegal:
                # The topic name is too long for this version; only a 5.x broker allows it.
                row = None
            if row is not None:
                self._rows.append(row)
            if len(self._rows) >= _BATCH_ROWS or (row is None and not scan.records % _BATCH_ROWS):
                self._dispatch_rows(scan.position)
                self._report_progress(begin, scan.position, scan.records)
        self._dispatch_rows(scan.position)
        self._known = None
        return scan

    def _dispatch_rows(self, end: int) -> None:
        rows, self._rows = self._rows, []
        self._store.dispatcher.dispatch(rows, end, self._store.clock.wall_ms())

    def _take(self, each: _Pass, scan: Scan, begin: int, at: tuple[Walked, int, int]) -> int:
        """Dispatch records of a walk from a row on, as one batch.

        ``at`` is the walk, the physical offset of its first byte, and the row. Returns the first
        row that was not taken; the scan examines its record.
        """
        store = self._store
        walked, base, row = at
        place = base + walked.begin(row)
        known = self._lacking(each, walked, place)
        batch = WriteBatch()
        stop = batch.adopt(
            walked.rows, walked.hashes, known.queues, base, row, known.limit,
            with_keys=place >= each.index_from, begins=known.begins, in_order=each.in_order,
        )  # fmt: skip
        if stop == row:
            return row
        if self._rows:
            self._dispatch_rows(place)
        end = base + walked.end(stop - 1)
        store.dispatcher.dispatch(batch, end, store.clock.wall_ms())
        if each.in_order:
            for queue in known.queues:
                # If the topic was created again, the dispatch restarted the queue.
                if queue is not None and queue.next_offset < queue.max_offset:
                    queue.next_offset = queue.max_offset
            before_ms = walked.store_ms(stop - 2) if stop - row > 1 else self._times_ms[1]
            self._times_ms = (before_ms, walked.store_ms(stop - 1))
        self._report_progress(begin, end, scan.records + stop - row)
        return stop

    def _lacking(self, each: _Pass, walked: Walked, place: int) -> _Lacking:
        """Return what the queues of a walk lack from an offset on."""
        known, late_count = self._known, len(self._late)
        if (
            known is None
            or known.walked is not walked
            or place >= known.limit
            or known.late_count != late_count
        ):
            limit = min([border for border in each.borders if border > place], default=_NEVER)
            queues: list[ConsumeQueue | None] = []
            begins: list[int] = []
            for topic, queue_id, is_listed in walked.queues:
                queue, begin = None, _NEVER
                if is_listed:
                    queue, begin = self._queue_of(each, (topic, queue_id), place)
                queues.append(queue)
                begins.append(begin)
            known = self._known = _Lacking(walked, limit, late_count, queues, begins)
        return known

    def _queue_of(self, each: _Pass, key: QueueKey, place: int) -> tuple[ConsumeQueue | None, int]:
        store = self._store
        try:
            begin = each.lacks_from(key, place)
            if begin < _NEVER or place >= each.index_from:
                return store.queue(*key), begin
        except MessageIllegal:
            return None, _NEVER
        return store.queues.get(key), begin

    def _report_progress(self, begin: int, position: int, records: int) -> None:
        end = max(self._start.likely_end, position)
        self._progress(position, end)
        now_ms = self._store.clock.monotonic_ms()
        if now_ms - self._progress_ms < _PROGRESS_MS:
            return
        self._progress_ms = now_ms
        logger.info(
            "store_recovery position=%d end=%d percent=%d records=%d",
            position, end, 100 * (position - begin) // max(end - begin, 1), records,
        )  # fmt: skip

    def _fault(self, record: Record) -> str:
        """Return the reason why a whole record cannot have been stored; empty if it can."""
        topic = record.topic
        phys = record.physical_offset
        if phys >= self._start.proof.offset and self._lost_tail(record):
            return "the end of its properties was not written"
        if phys >= self._start.proof.offset and "\0" in topic:
            return "the end of its topic was not written"
        if not topic or topic in (".", "..") or not {"/", "\0", "�"}.isdisjoint(topic):
            return "" if not takes_queue_slot(record.sys_flag) else f"its topic is {topic!r}"
        if record.queue_id < 0 or record.queue_offset < 0:
            return f"its queue is {record.queue_id}, its queue offset {record.queue_offset}"
        key = (topic, record.queue_id)
        queue = self._store.queues.get(key)
        if queue is None or not queue.next_offset or not takes_queue_slot(record.sys_flag):
            return ""
        gap = record.queue_offset - queue.next_offset
        if gap <= 0:
            return ""
        # Records before the queue's last one belong to a deleted topic of the same name.
        behind = record.physical_offset - queue.last_record_end()
        if behind >= 0 and gap > behind // FIXED_BYTES:
            return f"its queue offset is {record.queue_offset}, expected {queue.next_offset}"
        return ""

    def _lost_tail(self, record: Record) -> bool:
        file = self._store.log.segments.find(record.physical_offset)
        return file is not None and lost_tail(record, record.physical_offset - file.base)

    def _row_in_first_pass(self, record: Record) -> Dispatched | None:
        """Return the row of a record in the first pass; None if nothing lacks it."""
        key = (record.topic, record.queue_id)
        phys = record.physical_offset
        self._times_ms = (self._times_ms[1], record.store_ms)
        in_queue = (
            takes_queue_slot(record.sys_flag)
            and phys >= self._lacks_from(key, phys)
            and not self._has_gap(key, record)
        )
        row = self._row(record, in_queue=in_queue, in_index=phys >= self._index_from)
        if in_queue and row is not None and row[1] >= row[0].next_offset:
            row[0].next_offset = row[1] + 1
        return row

    def _lacks_from(self, key: QueueKey, phys: int) -> int:
        """Return the physical offset from which a queue with a record at ``phys`` may lack entries.

        That is the end of the last record with an entry: all earlier records have entries too, or
        belong to a deleted topic of the same name.
        """
        start = self._start
        if key in self._late:
            return _NEVER
        if phys >= start.offset:
            return 0
        end = self._queues.lacking.get(key)
        if end is None:
            if phys < start.dispatch_from:
                return _NEVER
            end = self._record_ends.get(key)
            if end is None:
                end = self._record_ends[key] = self._store.queue(*key).last_record_end()
        return end

    def _has_gap(self, key: QueueKey, record: Record) -> bool:
        """Return whether a trusted queue lacks entries before the entry of a record.

        If so, mark the queue for the second pass.
        """
        start = self._start
        low = self._store.log.segments.start
        queue = self._store.queue(*key)
        if record.queue_offset <= queue.next_offset or key in self._queues.lacking:
            return False
        if start.dispatch_from <= low:
            # The whole log was read: the log does not have the missing records.
            return False
        self._late[key] = queue.last_record_end() or low
        logger.error(
            "queue_lacks_entries topic=%s queue=%d from=%d to=%d",
            *key, queue.next_offset, record.queue_offset,
        )  # fmt: skip
        return True

    def _find_short(self) -> None:
        """Mark queues for the second pass whose files had more entries than they have now.

        One of those entries was invalid, so recovery ended the queue before it.
        """
        for key, end in self._queues.filled.items():
            queue = self._store.queues.get(key)
            if queue is not None and queue.max_offset < end and key not in self._queues.lacking:
                self._late.setdefault(
                    key, queue.last_record_end() or self._store.log.segments.start
                )

    def _row_in_second_pass(self, record: Record) -> Dispatched | None:
        """Return the row of a record in the second pass."""
        phys = record.physical_offset
        lacking = phys >= self._late_from((record.topic, record.queue_id), phys)
        in_queue = takes_queue_slot(record.sys_flag) and lacking
        return self._row(record, in_queue=in_queue, in_index=False)

    def _late_from(self, key: QueueKey, _: int) -> int:
        return self._late.get(key, _NEVER)

    def _row(self, record: Record, *, in_queue: bool, in_index: bool) -> Dispatched | None:
        if not in_queue and not (in_index and record.properties):
            return None
        store = self._store
        queue = store.queue(record.topic, record.queue_id)
        queue_, slot, phys, size, code, store_ms, keys = row_of(record, queue, store.delays_ms)
        return (
            queue_, slot if in_queue else -1, phys, size, code, store_ms, keys if in_index else (),
        )  # fmt: skip

    def last_ms(self) -> int:
        """Return the store time of the last record, ms; 0 if none was read."""
        before_ms, last_ms = self._times_ms
        limit_ms = self._store.clock.wall_ms() + _DAY_MS
        # Ignore an implausible time in the future: later messages never get an earlier store time.
        return before_ms if last_ms > limit_ms > before_ms > 0 else max(last_ms, 0)
