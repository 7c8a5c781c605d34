"""Where a start begins to read the log: what the notes of the last run are worth.

The log alone is the truth. ``starting_point`` says from where on nothing may be believed, and up to
where the log was safely on the device. From there catchup.py reads every record, checks it and
dispatches it again (upstream: CommitLog.recoverNormally, recoverAbnormally).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.store.log.scan import first_record
from cometmq.store.recovery.damage import Proof

if TYPE_CHECKING:
    from cometmq.store.checkpoint import Checkpoint, Positions
    from cometmq.store.log.segments import Segments

#: A Java broker notes times of messages; those shortly before may have come after the flush.
_LOG_MARGIN_MS = 3_000
#: Its time for the queues runs ahead of their flush by up to a round of it, which is a minute.
_QUEUES_MARGIN_MS = 600_000


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Queue and index files are believed for the log below ``offset``.

    ``dispatch_from`` is lower when some may lack entries: from there on records are dispatched to
    whatever lacks them. ``slots_valid``: the index slots on disk are right, and no file holds
    entries for records behind ``offset``. ``stale_entries``: queue files may hold entries for
    records that are gone, so each has to be looked at. ``proof`` is how much of the log was safely
    on the device, ``likely_end`` where it probably ends. ``by_queues`` says that the log is
    dispatched as far as the queues know it.
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
    """Decide where recovery starts; ``queue_count`` is how many queues have files, -1 when some may
    be missing.

    Our own positions are used unless another broker wrote to the store since; then what a Java
    broker left decides: the queues after a clean stop, else its checkpoint.
    """
    if positions is not None:
        return _by_positions(segments, positions, boot_id, crashed, queue_count)
    if crashed:
        return by_checkpoint(segments, checkpoint)
    end = segments.end
    is_new = all(first_record(file) is None for file in segments.files)
    reason = "new store" if is_new else "clean stop of another broker"
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
        reason, stale = f"{reason} while entries were made again", True
        dispatch_from = positions.rebuild
        if not same_boot:
            offset = min(offset, dispatch_from)
    elif queue_count < positions.queues:
        reason, dispatch_from = f"{reason}, queue files are missing", low
    if offset > high:
        # The last files are gone: the end is in what is the last one now.
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
    """After a crash of another broker."""
    proof = Proof(0, checkpoint.log_ms - _LOG_MARGIN_MS)
    sure_ms = min(proof.store_ms, checkpoint.queues_ms - _QUEUES_MARGIN_MS)
    offset = segments.start
    for file in reversed(segments.files):
        first = first_record(file)
        if first is not None and 0 < first.store_ms <= sure_ms:
            offset = file.base
            break
    return StartingPoint(offset, False, True, "checkpoint", proof, offset, segments.end)
