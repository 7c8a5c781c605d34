"""The index as a whole: hashes, batches, files in a row."""

import errno
import gc
import os
from pathlib import Path
from random import Random

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.store.files import PosixFiles
from cometmq.store.index import Index
from cometmq.store.layout import index_hash, topic_prefix
from cometmq.store.queue.consumequeue import ConsumeQueue, Dispatched
from cometmq.store.queue.queuefiles import QueueFiles
from tests.simulation.faults.disk import Disk
from tests.simulation.faults.files import Fault, MemoryFiles
from tests.store.faults import FailingFiles
from tests.store.full import FullFiles
from tests.store.stores import config

pytestmark = pytest.mark.core

NOW_MS = 1_700_000_000_000


def made(root: Path, **changes: object) -> Index:
    return Index(PosixFiles(), config(root, **changes))


QUEUE = ConsumeQueue(QueueFiles(PosixFiles(), "nowhere", 400), "t", 0)


def row(keys: tuple[str, ...], phys: int, store_ms: int) -> Dispatched:
    return (QUEUE, 0, phys, 100, 0, store_ms, keys)


@pytest.mark.parametrize("rows", [1, 8, 9, 50, 250])
def test_what_was_gathered_is_found(tmp_path: Path, rows: int) -> None:
    index = made(tmp_path)
    for number in range(rows):
        found = (f"k{number}", "标签") if number % 3 else (f"k{number}",)
        index.gather([row(found, number * 100, NOW_MS + number), row((), 1, NOW_MS)])
    for pending in (True, False):
        assert bool(index.pending) == pending
        for number in range(rows):
            assert index.query("t", f"k{number}", 9, 0, 1 << 60) == [number * 100]
        index.flush_pending(NOW_MS)
    tagged = [number * 100 for number in range(rows) if number % 3]
    assert index.query("t", "标签", 1000, 0, 1 << 60) == tagged[::-1]
    assert index.query("u", "k0", 9, 0, 1 << 60) == []
    assert (index.end_phys, index.end_ms) == ((rows - 1) * 100, NOW_MS + rows - 1)
    index.close()


def test_full_files_follow_each_other_even_when_the_clock_goes_back(tmp_path: Path) -> None:
    index = made(tmp_path)
    for number in range(350):
        index.gather([row(("same",), number, NOW_MS + number)])
        if number % 50 == 49:
            index.flush_pending(NOW_MS - number * 86_400_000)
    names = sorted(path.name for path in (tmp_path / "index").iterdir())
    assert len(names) == 4
    assert [Path(file.path).name for file in index.files] == names
    assert [len(name) for name in names] == [17] * 4
    assert index.query("t", "same", 1000, 0, 1 << 60) == list(range(350))[::-1]
    assert len(index.full_files()) == 3
    for file in index.full_files():
        file.write_slots()
        file.release_slots()
    assert index.query("t", "same", 120, 0, 1 << 60) == list(range(230, 350))[::-1]
    index.close()
    again = made(tmp_path)
    again.load(180, clean=False)
    assert again.query("t", "same", 1000, 0, 1 << 60) == list(range(180))[::-1]
    assert again.end_phys == 179
    again.drop_before(150)
    assert again.query("t", "same", 1000, 0, 1 << 60) == list(range(99, 180))[::-1]
    again.close()


def test_slots_without_room_wait_in_memory(tmp_path: Path) -> None:
    """A power cut took the last header of a file that others follow; then the disk is full."""
    index = made(tmp_path)
    index.gather([row(("same",), number, NOW_MS + number) for number in range(250)])
    index.flush_pending(NOW_MS)
    index.close()
    first = min((tmp_path / "index").iterdir())
    raw = bytearray(first.read_bytes())
    raw[36:40] = (91).to_bytes(4, "big")
    first.write_bytes(raw)
    files = FullFiles()
    again = Index(files, config(tmp_path))
    again.load(250, clean=False)
    newest_first = list(range(90))[::-1]
    (waiting,) = again.full_files()
    assert waiting.path == str(first)
    assert waiting.query(index_hash(topic_prefix("t"), "same"), 99, 0, 1 << 60) == newest_first
    files.full = False
    waiting.write_slots()
    waiting.release_slots()
    assert again.full_files() == []
    assert waiting.query(index_hash(topic_prefix("t"), "same"), 99, 0, 1 << 60) == newest_first
    again.close()


def test_index_can_be_off(tmp_path: Path) -> None:
    index = made(tmp_path, message_index_enable=False)
    index.gather([row(("k",), 1, 1)])
    index.flush_pending(NOW_MS)
    assert index.files == []
    assert (index.end_phys, index.end_ms) == (0, 0)


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "notes.txt").write_text("mine")
    index = made(tmp_path)
    index.load(0, clean=True)
    assert index.files == []
    assert (tmp_path / "index" / "notes.txt").exists()


@pytest.mark.parametrize("rows", [3, 40])
def test_a_failed_write_loses_no_key(tmp_path: Path, rows: int) -> None:
    files = FailingFiles()
    index = Index(files, config(tmp_path))
    index.gather([row((f"a{number}", "b"), number, NOW_MS) for number in range(rows)])
    files.failing["pwrite"] = errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        index.flush_pending(NOW_MS)
    assert 0 < index.pending <= 2 * rows
    newest_first = [*range(rows)][::-1]
    assert index.query("t", "b", 1000, 0, 1 << 60) == newest_first
    assert index.query("t", "b", 2, 0, 1 << 60) == newest_first[:2]
    assert index.query("t", "a1", 1000, NOW_MS, NOW_MS) == [1]
    assert index.query("t", "a1", 1000, NOW_MS + 1, 1 << 60) == []
    files.failing.clear()
    index.flush_pending(NOW_MS)
    assert index.pending == 0
    assert set(index.query("t", "b", 1000, 0, 1 << 60)) == set(range(rows))
    index.close()


def test_rows_without_keys_do_not_pile_up(tmp_path: Path) -> None:
    index = made(tmp_path)
    index.gather([row((), number, NOW_MS) for number in range(300)])
    assert (index.pending, index._rows) == (0, [])
    index.flush_pending(NOW_MS)
    assert (index.pending, index.files) == (0, [])
    index.close()


def in_memory(seed: int) -> tuple[MemoryFiles, Index]:
    files = MemoryFiles(Disk(), VirtualClock(), Random(seed))
    files.make_directory("/s")
    files.sync_directory("/")
    return files, Index(files, config(Path("/s")))


def gather(index: Index, first: int, count: int) -> None:
    for number in range(first, first + count):
        index.gather([row((f"k{number}",), number * 100, NOW_MS)])
    index.flush_pending(NOW_MS)


def missing(files: MemoryFiles, below: int, count: int) -> list[int]:
    """The keys that a start does not find; ``below`` is how far the files are believed."""
    index = Index(files, config(Path("/s")))
    index.load(below, clean=False)
    found = [index.query("t", f"k{number}", 9, 0, 1 << 60) for number in range(count)]
    return [number for number in range(count) if found[number] != [number * 100]]


@pytest.mark.parametrize("count", [60, 99, 100, 250])
def test_what_was_synced_is_found_after_a_power_cut(count: int) -> None:
    """Also in a file that was full when it was synced and had nobody behind it yet."""
    for seed in range(20):
        files, index = in_memory(seed)
        gather(index, 0, count)
        for file in index.full_files():
            file.write_slots()
            file.release_slots()
        index.sync_files(index.take_unsynced())
        gather(index, count, 30)
        files.disk.lose_power(Random(seed))
        assert missing(files, count * 100, count) == []


def test_what_a_failed_sync_lost_is_written_again() -> None:
    for seed in range(20):
        files, index = in_memory(seed)
        gather(index, 0, 60)
        taken = index.take_unsynced()
        files.faults.append(Fault("datasync", errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            index.sync_files(taken)
        index.give_back(taken)
        index.sync_files(index.take_unsynced())
        files.disk.lose_power(Random(seed))
        assert missing(files, 6_000, 60) == []


def test_a_file_that_gets_no_length_leaves_nothing(tmp_path: Path) -> None:
    """Some file systems have no holes. Each batch of keys tries again, and none takes a handle."""

    class Full(FailingFiles):
        def resize(self, handle: int, size_bytes: int) -> None:
            self._check("resize")
            super().resize(handle, size_bytes)

    files = Full()
    index = Index(files, config(tmp_path))
    files.failing["resize"] = errno.ENOSPC
    index.gather([row(("k",), 100, NOW_MS)])
    gc.collect()  # files that earlier tests left to the collector
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        with pytest.raises(OSError, match="No space"):
            index.flush_pending(NOW_MS + number)
    assert len(os.listdir("/proc/self/fd")) == before
    assert list((tmp_path / "index").iterdir()) == []
    files.failing.clear()
    index.flush_pending(NOW_MS)
    assert index.query("t", "k", 9, 0, 1 << 60) == [100]
    index.close()
