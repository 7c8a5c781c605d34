"""Logs of two brokers, of either kind, compared as files."""

from __future__ import annotations

from pathlib import Path

from cometmq.message.record import BLANK, MAGIC_BLANK
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


def assert_same_logs(one: Path, other: Path) -> int:
    """Both logs have the same bytes up to the same end, wherever both have the file; gives the
    bytes that were compared."""
    end = log_end(one)
    assert log_end(other) == end
    ours, theirs = log_files(one), log_files(other)
    compared = 0
    for base in sorted(ours.keys() & theirs.keys()):
        first, second = (_content(base, files[base].read_bytes(), end) for files in (ours, theirs))
        assert len(first) == len(second)
        at = first_difference(first, second)
        assert at < 0, f"the log files {base} differ at {at} of {len(first)}"
        compared += len(first)
    return compared
