"""The files of a queue."""

from pathlib import Path

import pytest

from cometmq.spark.store.files import ConsumeQueueReader, StoredEntry
from cometmq.store.layout import HOLE, QUEUE_ENTRY, file_name

PER_FILE = 10


def written(root: Path, first: int, count: int, holes: int = 0) -> ConsumeQueueReader:
    """Entries ``first`` to ``first + count`` over files of ten; the first ones never held any."""
    folder = root / "consumequeue" / "t" / "3"
    folder.mkdir(parents=True)
    (folder / "junk").touch()
    entries = {at: QUEUE_ENTRY.pack(at * 100, 50, at) for at in range(first, first + count)}
    entries |= dict.fromkeys(range(first, first + holes), HOLE)
    for base in range(first // PER_FILE * PER_FILE, first + count + 1, PER_FILE):
        raw = b"".join(entries.get(at, bytes(20)) for at in range(base, base + PER_FILE))
        (folder / file_name(base * 20)).write_bytes(raw)
    return ConsumeQueueReader(str(root), "t", 3)


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 35])
def test_where_a_queue_ends(tmp_path: Path, count: int) -> None:
    assert written(tmp_path, 0, count).stop() == count


def test_where_a_queue_begins(tmp_path: Path) -> None:
    files = written(tmp_path, 20, 25, holes=4)
    assert files.stop() == 45
    assert files.start(0, 45) == 24
    assert files.start(3_000, 45) == 30
    assert files.start(10_000, 45) == 45
    assert not ConsumeQueueReader(str(tmp_path), "t", 4).exists
    assert ConsumeQueueReader(str(tmp_path), "t", 4).stop() == 0
    assert ConsumeQueueReader(str(tmp_path), "t", 4).start(0, 0) == 0


def test_entries(tmp_path: Path) -> None:
    files = written(tmp_path, 0, 25)
    assert files.entry(12) == StoredEntry(1_200, 50, 12)
    assert files.entry(12).is_record
    assert not files.entry(26).is_record
    assert not files.entry(99).is_record
    found = files.entries(8, 28)
    assert found["physical"].tolist() == [at * 100 for at in range(8, 25)] + [0] * 3
    assert found["size"].tolist() == [50] * 17 + [0] * 3
