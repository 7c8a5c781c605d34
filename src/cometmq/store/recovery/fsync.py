"""What recovery shows to consumers is brought to the device, and what is behind the end is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.store.checkpoint import Positions
    from cometmq.store.log.segments import Segments
    from cometmq.store.messagestore import MessageStore

_COPY_BYTES = 1 << 20


def secure_log(
    store: MessageStore,
    positions: Positions | None,
    end: int,
    first: int,
    *,
    crashed: bool,
    cut: bool,
) -> None:
    """No later crash of the machine may take what recovery has shown up to ``end``, and no record
    behind that may come back. It was read from ``first`` on. Raises OSError.

    ``cut`` says that something was behind the end.
    """
    segments = store.log.segments
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
    # Their names too: who made the last one may have ended before that.
    store.files.sync_directory(segments.directory)


def proven_end(segments: Segments, positions: Positions | None) -> int:
    """Up to where the log is on the device, as far as that is known."""
    if positions is None:
        return segments.start
    return max(segments.start, positions.durable or positions.synced)


def _write_again(segments: Segments, at: int, end: int) -> None:
    """Write once more what was never proven durable, from ``at`` on.

    After a sync that failed, the kernel may take pages for clean that never reached the device:
    syncing them again succeeds and does nothing, until a power cut takes what recovery has shown.
    A machine that was restarted since has read all of it from the device; but whether it was is not
    known for sure, for the last process may have come to note nothing.
    """
    while at < end:
        file = segments.find(at)
        if file is None:
            return
        chunk = bytearray(min(_COPY_BYTES, file.end - at, end - at))
        file.read_into(chunk, at)
        file.write(at, chunk)
        at += len(chunk)
