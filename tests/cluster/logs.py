"""Logs of two brokers, of either kind, compared as files."""

from __future__ import annotations

from pathlib import Path

from cometmq.message.record import BLANK, MAGIC_BLANK, iter_sizes, properties_of
from cometmq.replication.slave import first_difference


def log_files(store: Path) -> dict[int, Path]:
    """The files of a log by the offset at which they begin."""
    files = (store / "commitlog").iterdir()
    return {int(path.name): path for path in files if path.name.isdigit()}


def log_end(store: Path) -> int:
    """Where the records of a log end; bytes behind them are zeros."""
    files = log_files(store)
    for base in sorted(files, reverse=True):
        data = files[base].read_bytes().rstrip(b"\0")
        if data:
            return _records_end(base, files[base].read_bytes())
    return 0


def _records_end(base: int, data: bytes) -> int:
    at = 0
    while at + BLANK.size <= len(data):
        size, magic = BLANK.unpack_from(data, at)
        if not size or magic == MAGIC_BLANK:
            break
        at += size
    return base + at


def _content(base: int, data: bytes, end: int) -> bytes:
    """The records of a file before a log's end, and the blank behind them: what follows a blank is
    no part of the log."""
    return data[: min(_records_end(base, data) + BLANK.size, end) - base]


_PAGE_BYTES = 4096


def _with_torn_ends(right: bytes, copy: bytes) -> tuple[bytes, int]:
    """A copy with the properties that a kill of a Java slave cut off written again, and the number
    of records that lacked them.

    It was killed in the middle of a copy, which stops at a page boundary. If only properties are
    behind the boundary, Java's recovery takes the record: its CRC covers the body alone.
    """
    mended, count = bytearray(copy), 0
    for at, size in iter_sizes(right):
        end = at + size
        if right[at:end] == copy[at:end]:
            continue
        cut = -(-(end - len(properties_of(memoryview(right), at, size))) // _PAGE_BYTES)
        cut *= _PAGE_BYTES
        if cut < end and copy[at:cut] == right[at:cut] and not any(copy[cut:end]):
            mended[cut:end] = right[cut:end]
            count += 1
    return bytes(mended), count


def assert_same_logs(one: Path, other: Path, *, torn_records: int = 0) -> int:
    """Both logs have the same bytes up to the same end, wherever both have the file; gives the
    bytes that were compared. Up to ``torn_records`` of a Java slave that was killed may lack the
    end of their properties."""
    end = log_end(one)
    assert log_end(other) == end
    ours, theirs = log_files(one), log_files(other)
    compared = 0
    for base in sorted(ours.keys() & theirs.keys()):
        first, second = (_content(base, files[base].read_bytes(), end) for files in (ours, theirs))
        assert len(first) == len(second)
        if torn_records:
            second, torn = _with_torn_ends(first, second)
            torn_records -= torn
            assert torn_records >= 0, f"too many records of {other} lack properties"
        at = first_difference(first, second)
        assert at < 0, (
            f"the log files {base} differ at {at} of {len(first)}: "
            f"{first[at : at + 400]!r} and {second[at : at + 400]!r}"
        )
        compared += len(first)
    return compared
