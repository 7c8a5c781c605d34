"""Durability after recovery: syncs all that consumers may see, and clears the log's rest."""

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
    """Make the log durable up to ``end``, and remove everything after it, durably.

    No later crash of the machine may take records that recovery has shown, and no record after the
    end may come back. The log was read from ``first`` on. ``cut`` says that there was something
    after the end. Raises OSError.
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
    # The names too: the run that created the last file may have ended before it synced its name.
    store.files.sync_directory(segments.directory)


def proven_end(segments: Segments, positions: Positions | None) -> int:
    """Return the offset up to which the log is known to be durable."""
    if positions is None:
        return segments.start
    return max(segments.start, positions.durable or positions.synced)


def _write_again(segments: Segments, at: int, end: int) -> None:
    """Write again the bytes that were never proven durable, from ``at`` on.

    After a failed sync, the kernel may mark pages as clean that never reached the device. Another
    sync of them succeeds and does nothing, until a power cut loses what recovery has shown. After a
    restart of the machine all bytes were read from the device, but a restart cannot be detected for
    certain: the last process may have ended before it wrote a note.
    """
    while at < end:
        file = segments.find(at)
        if file is None:
            return
        chunk = bytearray(min(_COPY_BYTES, file.end - at, end - at))
        file.read_into(chunk, at)
        file.write(at, chunk)
        at += len(chunk)
