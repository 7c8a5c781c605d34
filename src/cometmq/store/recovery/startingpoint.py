"""The position at which a start begins to read the log, from the notes of the last run.

The log is the only authority. ``starting_point`` decides from which offset on derived files are not
trusted, and up to which offset the log was durable. From there rebuild.py reads every record,
checks it and dispatches it again (upstream: CommitLog.recoverNormally, recoverAbnormally).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.store.log.scan import first_record
from cometmq.store.recovery.damage import Proof

if TYPE_CHECKING:
    from cometmq.store.checkpoint import Checkpoint, Positions
    from cometmq.store.log.segments import Segments

#: Margin of 3 s. A Java broker records times of messages; messages from shortly before such a time
#: may have been stored after the flush.
_LOG_MARGIN_MS = 3_000
#: Margin of 10 min. A Java broker's time for the queues may be up to one flush interval, a minute,
#: ahead of their flush.
_QUEUES_MARGIN_MS = 600_000


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """The offset below which queue and index files are trusted, with the state of the files.

    If ``dispatch_from`` is lower than ``offset``, some files may lack entries: records from there
    on are dispatched to all that lack them. ``slots_valid`` says that the index slots on disk are
    right and that no file has entries for records after ``offset``. ``stale_entries`` says that
    queue files may have entries for lost records, so each file must be checked. ``proof`` is the
    part of the log that was durable, ``likely_end`` its probable end. ``by_queues`` says that the
    log counts as dispatched up to the last queue entry.
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
    positions are used unless another broker has written to the store since. Otherwise the state
    that a Java broker left decides: the queues after a clean stop, else its checkpoint.
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
        reason, stale = f"{reason} while entries were being made again", True
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
