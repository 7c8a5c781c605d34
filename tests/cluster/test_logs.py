"""The comparison of logs: what it takes of a Java slave that was killed, and nothing else."""

from pathlib import Path

import pytest

from cometmq.message.record import Record, iter_sizes, pack
from tests.cluster.logs import assert_same_logs

_FILE_BYTES = 16384
_PAGE_BYTES = 4096


def _records() -> bytes:
    """Records over three pages, of which the first that crosses a page has its body before it."""
    host = bytes((127, 0, 0, 1, 0, 0, 0, 1))
    record = Record(0, 0, 2, 0, 9, 0, 0, 1, host, 2, host, 0, 0, b"body", "topic", b"p" * 650)
    return pack(record) * 12


def _store(path: Path, log: bytes) -> Path:
    (path / "commitlog").mkdir(parents=True)
    (path / "commitlog" / "00000000000000000000").write_bytes(log.ljust(_FILE_BYTES, b"\0"))
    return path


def test_a_record_without_the_end_of_its_properties(tmp_path: Path) -> None:
    log = _records()
    [(at, size)] = [(at, size) for at, size in iter_sizes(log) if at < _PAGE_BYTES < at + size]
    torn, moved, body = bytearray(log), bytearray(log), bytearray(log)
    torn[_PAGE_BYTES : at + size] = bytes(at + size - _PAGE_BYTES)
    moved[_PAGE_BYTES + 1 : at + size] = bytes(at + size - _PAGE_BYTES - 1)
    body[at + 90] ^= 1
    master = _store(tmp_path / "master", log)
    slaves = {
        name: _store(tmp_path / name, bytes(copy))
        for name, copy in {"torn": torn, "moved": moved, "body": body, "same": log}.items()
    }
    for name in ("torn", "same"):
        assert assert_same_logs(master, slaves[name], torn_records=1) == len(log)
    assert assert_same_logs(master, slaves["same"]) == len(log)
    with pytest.raises(AssertionError, match="differ at 4096"):
        assert_same_logs(master, slaves["torn"])
    for name in ("moved", "body"):
        with pytest.raises(AssertionError, match="differ at"):
            assert_same_logs(master, slaves[name], torn_records=1)
