"""Bytes of the log that are in memory: given at once, without a wait for the device.

A page fault in a map holds the whole process until the device answers, and so does a read. So

- what this run of the broker wrote last, which is in memory for certain, is given as views of the
  files' maps;
- other bytes near the end are given so too when the system says that it has them (pagecache.py):
  after a restart, or when memory is short, it may not;
- far behind the end there are only the windows: what was read lately (windows.py).

Whatever is not given here is read in a thread (loading.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.store.commitlog import CommitLog
    from cometmq.store.mapped import LogFile

RECENT_BYTES = 64 << 20
#: Ranges so near to each other are read in one go.
_GAP_BYTES = 16 << 10
_SPAN_BYTES = 512 << 10


def is_recent(log: CommitLog, offset: int) -> bool:
    """Whether this run wrote what is at ``offset``, and so lately that it is still in memory."""
    return offset >= log.opened_at and log.written - offset <= RECENT_BYTES


def recent_from(log: CommitLog) -> int:
    """Return the physical offset from which on records were written lately, by this run."""
    return max(log.opened_at, log.written - RECENT_BYTES)


def bytes_at_once(log: CommitLog, file: LogFile, start: int, stop: int) -> memoryview | None:
    """The bytes of a file between two physical offsets, when that takes no wait; else None.

    Far behind the end the system may have read them again since they were compared with a seal.
    """
    if start >= log.opened_at and log.written - start <= RECENT_BYTES:
        return file.view[start - file.base : stop - file.base]
    if file.seals is not None and (log.is_far(start) or not file.is_proven(start, stop)):
        return None
    return file.resident(start, stop)


def ranges_at_once(log: CommitLog, ranges: list[tuple[int, int]]) -> list[memoryview] | None:
    """The bytes of ranges (offset, size) that go up, near the end; None when one takes a wait.

    Fewer than ranges when the files of the last ones are gone.
    """
    first = log.segments.find(ranges[0][0])
    if first is not None and sum(ranges[-1]) <= first.end and is_recent(log, ranges[0][0]):
        base, whole = first.base, first.view
        return [whole[start - base : start - base + size] for start, size in ranges]
    found: list[memoryview] = []
    for file, span in _spans(log, ranges):
        start, stop = span[0][0], sum(span[-1])
        whole_span = bytes_at_once(log, file, start, stop)
        if whole_span is None:
            return None
        found += [whole_span[at - start : at - start + size] for at, size in span]
    return found


def _spans(
    log: CommitLog, ranges: list[tuple[int, int]]
) -> list[tuple[LogFile, list[tuple[int, int]]]]:
    """Neighbouring ranges together, by file; a range without a file ends them."""
    spans: list[tuple[LogFile, list[tuple[int, int]]]] = []
    for start, size in ranges:
        file = log.segments.find(start)
        if file is None or start + size > file.end:
            break
        if spans and spans[-1][0] is file:
            near = spans[-1][1]
            if start - sum(near[-1]) <= _GAP_BYTES and start + size - near[0][0] <= _SPAN_BYTES:
                near.append((start, size))
                continue
        spans.append((file, [(start, size)]))
    return spans
