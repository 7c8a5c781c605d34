"""What a store directory holds, and where its log ends."""

import json
from pathlib import Path

import pytest

from cometmq.core.errors import NoStore
from cometmq.message.record import BLANK, MAGIC_BLANK
from cometmq.spark.store import files
from cometmq.spark.store.files import (
    LogFileStatus,
    find_record,
    has_queues,
    log_end,
    log_files,
    noted_complete,
    opened,
    queue_names,
)
from cometmq.store.layout import file_name
from tests.spark.records import plain_record

FILE_BYTES = 4_000


def record(position: int, body: bytes = b"body") -> bytes:
    raw = bytearray(plain_record(7, body=body))
    raw[28:36] = position.to_bytes(8, "big")
    return bytes(raw)


def written(root: Path, counts: list[int], base: int = 0) -> list[LogFileStatus]:
    """Log files with so many records each; all but the last are closed by a blank."""
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    for number, count in enumerate(counts):
        start = base + number * FILE_BYTES
        raw = b""
        for _ in range(count):
            raw += record(start + len(raw))
        if number < len(counts) - 1:
            raw += BLANK.pack(FILE_BYTES - len(raw), MAGIC_BLANK)
        (folder / file_name(start)).write_bytes(raw.ljust(FILE_BYTES, b"\0"))
    return log_files(str(root))


SIZE = len(record(0))


def test_log_files(tmp_path: Path) -> None:
    files = written(tmp_path, [3, 2], base=FILE_BYTES)
    (tmp_path / "commitlog" / "notes").touch()
    assert log_files(str(tmp_path)) == files
    assert [(file.base, file.stop) for file in files] == [(4_000, 8_000), (8_000, 12_000)]
    with pytest.raises(NoStore, match="commitlog cannot be listed"):
        log_files(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("counts", "end"),
    [([0], 0), ([5], 5 * SIZE), ([3, 4], 4_000 + 4 * SIZE), ([3, 0], 4_000 - 4_000 + 3 * SIZE)],
)
def test_where_the_log_ends(tmp_path: Path, counts: list[int], end: int) -> None:
    files = written(tmp_path, counts)
    assert log_end(files) == end


def test_from_a_hint(tmp_path: Path) -> None:
    files = written(tmp_path, [3, 4])
    assert log_end(files, 4_000 + 2 * SIZE) == 4_000 + 4 * SIZE
    assert log_end([]) == 0


def test_what_a_broker_is_writing_does_not_count(tmp_path: Path) -> None:
    files = written(tmp_path, [4])
    raw = bytearray(Path(files[0].path).read_bytes())
    raw[3 * SIZE + 60 : 4 * SIZE] = bytes(SIZE - 60)
    Path(files[0].path).write_bytes(raw)
    assert log_end(files) == 3 * SIZE


def test_damage_is_not_the_end(tmp_path: Path) -> None:
    files = written(tmp_path, [6])
    raw = bytearray(Path(files[0].path).read_bytes())
    raw[2 * SIZE : 2 * SIZE + 8] = bytes(8)
    Path(files[0].path).write_bytes(raw)
    assert log_end(files) == 6 * SIZE


def test_a_last_record_longer_than_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_SEARCH_BYTES", 150)
    logs = written(tmp_path, [2])
    raw = bytearray(Path(logs[0].path).read_bytes())
    long = record(2 * SIZE, bytes(1_000))
    raw[2 * SIZE : 2 * SIZE + len(long)] = long
    Path(logs[0].path).write_bytes(raw)
    assert log_end(logs) == 2 * SIZE + len(long)
    raw[2 * SIZE + 500] = 1
    Path(logs[0].path).write_bytes(raw)
    assert log_end(logs) == 2 * SIZE


def test_the_next_record_from_any_byte(tmp_path: Path) -> None:
    (file,) = written(tmp_path, [5])
    with opened(file.path) as handle:
        assert find_record(handle, file, 0, 4_000) == 0
        assert find_record(handle, file, 1, 4_000) == SIZE
        assert find_record(handle, file, SIZE, 4_000) == SIZE
        assert find_record(handle, file, 4 * SIZE + 1, 4_000) == -1
        assert find_record(handle, file, 1, SIZE) == -1


def test_behind_a_hole(tmp_path: Path) -> None:
    path = tmp_path / file_name(0)
    at = 64 << 20
    with path.open("wb") as out:
        out.seek(at)
        out.write(record(at))
        out.truncate(at * 2)
    file = LogFileStatus(str(path), 0, at * 2)
    with opened(file.path) as handle:
        assert find_record(handle, file, 0, file.stop) == at
        assert find_record(handle, file, at + 1, file.stop) == -1


def test_queues(tmp_path: Path) -> None:
    assert queue_names(str(tmp_path)) == []
    assert not has_queues(str(tmp_path))
    for name in ("t/10", "t/9", "a/0", "a/junk"):
        (tmp_path / "consumequeue" / name).mkdir(parents=True)
    (tmp_path / "consumequeue" / "file").touch()
    assert has_queues(str(tmp_path))
    assert queue_names(str(tmp_path)) == [("a", 0), ("t", 9), ("t", 10)]


def test_what_cometmq_notes(tmp_path: Path) -> None:
    assert noted_complete(str(tmp_path)) is None
    (tmp_path / "cometmq-positions.json").write_text(json.dumps({"written": 50, "number": 3}))
    assert noted_complete(str(tmp_path)) == 50
    newer = {"written": 90, "complete": 70, "number": 4}
    (tmp_path / "cometmq-progress.json").write_text(json.dumps(newer))
    assert noted_complete(str(tmp_path)) == 70
    (tmp_path / "cometmq-progress.json").write_text("torn")
    assert noted_complete(str(tmp_path)) == 50
