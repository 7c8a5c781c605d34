"""Rows by due time: written, cut back to a note, read again, dropped."""

from pathlib import Path

import pytest

from cometmq.core.clock import Slices, VirtualClock
from cometmq.core.errors import StoreCorrupt
from cometmq.store.files import PosixFiles
from cometmq.store.timerfiles import BUCKET_MS, ROW, ROW_BYTES, TimerFiles, bucket_of


def row(number: int) -> bytes:
    return ROW.pack(number, number, number, number)


def make(tmp_path: Path) -> TimerFiles:
    return TimerFiles(PosixFiles(), str(tmp_path))


def stored(files: TimerFiles) -> list[Path]:
    return list(Path(files.directory).iterdir())


async def write(files: TimerFiles) -> None:
    await files.write(Slices(VirtualClock()))


def test_buckets_are_ten_minutes() -> None:
    assert bucket_of(BUCKET_MS - 1) == 0
    assert bucket_of(BUCKET_MS) == 1
    assert BUCKET_MS == 600_000


async def test_rows_come_back_in_their_order(tmp_path: Path) -> None:
    files = make(tmp_path)
    for number in range(10):
        files.add(number % 2, row(number))
    assert files.buffered_bytes == 10 * ROW_BYTES
    assert files.fetch(*files.begin_read(1)) == b"".join(row(n) for n in range(1, 10, 2))
    assert files.buffered_bytes == 5 * ROW_BYTES
    await write(files)
    assert files.buffered_bytes == 0
    assert files.buckets() == [0, 1]
    assert (files.first_from(1), files.first_from(2)) == (1, None)
    assert files.fetch(*files.begin_read(7)) == b""


async def test_what_came_after_the_note_is_cut_off(tmp_path: Path) -> None:
    files = make(tmp_path)
    files.add(0, row(1))
    note = files.note()
    files.add(0, row(2))
    files.add(5, row(3))
    await write(files)
    files.sync(files.take_unsynced())
    again = make(tmp_path)
    assert again.resume(note)
    assert again.fetch(*again.begin_read(0)) == row(1)
    assert again.buckets() == [0]
    again.add(0, row(9))
    assert again.fetch(*again.begin_read(0)) == row(1) + row(9)


async def test_files_that_lack_what_was_noted_do_not_count(tmp_path: Path) -> None:
    files = make(tmp_path)
    files.add(0, row(1))
    await write(files)
    assert not make(tmp_path).resume({0: (2 * ROW_BYTES, 0)})
    assert not make(tmp_path).resume({0: files.note()[0], 1: (ROW_BYTES, 0)})


async def test_a_changed_byte_is_found_when_it_is_read(tmp_path: Path) -> None:
    files = make(tmp_path)
    files.add(0, row(1))
    await write(files)
    (path,) = stored(files)
    raw = bytearray(path.read_bytes())
    raw[3] ^= 1
    path.write_bytes(raw)
    with pytest.raises(StoreCorrupt, match="changed"):
        files.fetch(*files.begin_read(0))
    path.unlink()
    with pytest.raises(StoreCorrupt, match="is missing"):
        files.fetch(*files.begin_read(0))


async def test_the_past_is_dropped(tmp_path: Path) -> None:
    files = make(tmp_path)
    for bucket in range(3):
        files.add(bucket, row(bucket))
    await write(files)
    files.add(0, row(4))
    files.drop_before(2)
    assert files.buckets() == [2]
    assert files.buffered_bytes == 0
    assert len(stored(files)) == 1
    files.sync([0, 2])
    files.give_back([0, 2])
    assert files.take_unsynced() == [2]
    files.clear()
    assert stored(files) == []
