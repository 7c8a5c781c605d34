"""Files of many queues: few handles, and what has to be synced."""

import errno
from pathlib import Path
from random import Random

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.store.files import PosixFiles
from cometmq.store.queue.queuefiles import QueueFiles
from tests.simulation.faults.disk import Disk
from tests.simulation.faults.files import Fault, MemoryFiles


def test_handles_are_few_and_queues_many(tmp_path: Path) -> None:
    pool = QueueFiles(PosixFiles(), str(tmp_path / "consumequeue"), 200, limit=3)
    directories = [str(tmp_path / "consumequeue" / "t" / str(number)) for number in range(20)]
    for turn in range(3):
        for number, directory in enumerate(directories):
            pool.write(directory, turn * 80, bytes([number]) * 80)
    assert len(pool._handles) == 3
    assert pool.queue_count == 20
    for number, directory in enumerate(directories):
        assert pool.read(directory, 0, 400) == bytes([number]) * 200
        assert pool.read(directory, 200, 40) == bytes([number]) * 40
    paths, new_directories = pool.take_unsynced()
    assert len(paths) == 40
    assert not pool.unsynced
    pool.give_back(paths[:1], new_directories)
    assert pool.unsynced == set(paths[:1])
    pool.set_aside("t")
    pool.sync_paths(paths, new_directories)
    assert (pool.queue_count, pool.unsynced) == (0, set())
    assert pool.read(directories[0], 0, 20) == b""
    pool.close()


def in_memory(seed: int) -> tuple[MemoryFiles, QueueFiles]:
    files = MemoryFiles(Disk(), VirtualClock(), Random(seed))
    files.make_directory("/s")
    files.sync_directory("/")
    return files, QueueFiles(files, "/s/consumequeue", 200)


def test_a_synced_file_keeps_all_its_names() -> None:
    for seed in range(30):
        files, pool = in_memory(seed)
        pool.write("/s/consumequeue/t/0", 0, b"x" * 20)
        pool.sync_paths(*pool.take_unsynced())
        pool.write("/s/consumequeue/t/0", 200, b"y" * 20)
        pool.sync_paths(*pool.take_unsynced())
        files.disk.lose_power(Random(seed))
        again = QueueFiles(files, "/s/consumequeue", 200)
        assert again.read("/s/consumequeue/t/0", 0, 20) == b"x" * 20
        assert again.read("/s/consumequeue/t/0", 200, 20) == b"y" * 20


def test_what_a_failed_sync_lost_is_written_again() -> None:
    for seed in range(30):
        files, pool = in_memory(seed)
        pool.write("/s/consumequeue/t/0", 0, b"x" * 20)
        taken = pool.take_unsynced()
        files.faults.append(Fault("datasync", errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            pool.sync_paths(*taken)
        pool.give_back(*taken)
        pool.sync_paths(*pool.take_unsynced())
        files.disk.lose_power(Random(seed))
        assert QueueFiles(files, "/s/consumequeue", 200).read("/s/consumequeue/t/0", 0, 20)


def test_of_what_another_process_left_nothing_counts_as_synced() -> None:
    for seed in range(30):
        files, pool = in_memory(seed)
        for number in range(3):
            pool.write("/s/consumequeue/t/0", number * 200, b"x" * 20)
        again = QueueFiles(files, "/s/consumequeue", 200)
        again.mark_unsynced({"t": [0]})
        again.sync_paths(*again.take_unsynced())
        files.disk.lose_power(Random(seed))
        after = QueueFiles(files, "/s/consumequeue", 200)
        found = [after.read("/s/consumequeue/t/0", number * 200, 20) for number in range(3)]
        assert found == [b"x" * 20] * 3


class CountedSyncs(PosixFiles):
    """Counts how often files, and how often all of them, are synced."""

    __slots__ = ("files", "whole")

    def __init__(self) -> None:
        self.files = self.whole = 0

    def datasync(self, handle: int) -> None:
        super().datasync(handle)
        self.files += 1

    def sync_filesystem(self, path: str) -> None:
        super().sync_filesystem(path)
        self.whole += 1


def test_very_many_files_are_synced_at_once(tmp_path: Path) -> None:
    files = CountedSyncs()
    pool = QueueFiles(files, str(tmp_path), 200)
    pool.sync_limit = 4
    for number in range(4):
        pool.write(str(tmp_path / "t" / str(number)), 0, bytes(20))
    pool.sync_paths(*pool.take_unsynced())
    assert (files.files, files.whole) == (4, 0)
    for number in range(5):
        pool.write(str(tmp_path / "t" / str(number)), 0, bytes(20))
    pool.sync_paths(*pool.take_unsynced())
    assert (files.files, files.whole) == (4, 1)
    pool.close()


def test_what_was_lost_of_very_many_files_is_written_again() -> None:
    for seed in range(30):
        files, pool = in_memory(seed)
        pool.sync_limit = 2
        for number in range(3):
            pool.write(f"/s/consumequeue/t/{number}", 0, b"x" * 20)
        taken = pool.take_unsynced()
        files.faults.append(Fault("sync_filesystem", errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            pool.sync_paths(*taken)
        pool.give_back(*taken)
        pool.sync_paths(*pool.take_unsynced())
        files.disk.lose_power(Random(seed))
        again = QueueFiles(files, "/s/consumequeue", 200)
        for number in range(3):
            assert again.read(f"/s/consumequeue/t/{number}", 0, 20) == b"x" * 20


def test_what_another_process_left_of_very_many_queues_is_synced_at_once() -> None:
    for seed in range(30):
        files, pool = in_memory(seed)
        for number in range(3):
            pool.write(f"/s/consumequeue/t/{number}", 0, b"x" * 20)
        again = QueueFiles(files, "/s/consumequeue", 200)
        again.sync_limit = 2
        again.mark_unsynced({"t": [0, 1, 2]})
        assert again.take_unsynced() == ([], [])
        again.sync_paths([], [])
        files.disk.lose_power(Random(seed))
        after = QueueFiles(files, "/s/consumequeue", 200)
        for number in range(3):
            assert after.read(f"/s/consumequeue/t/{number}", 0, 20) == b"x" * 20


def test_many_queues_share_the_memory() -> None:
    pool = QueueFiles(PosixFiles(), "nowhere", 200)
    pool.share_memory(8)
    assert (pool.kept_bytes, pool.long_bytes) == (1_280, 20_000)
    pool.share_memory(100_000)
    assert (pool.kept_bytes, pool.long_bytes) == (320, 2_684)


def test_a_cut_before_the_first_file_leaves_nothing(tmp_path: Path) -> None:
    """The queue begins anew, and what a former life left would look like its entries."""
    directory = str(tmp_path / "consumequeue" / "t" / "0")
    pool = QueueFiles(PosixFiles(), str(tmp_path / "consumequeue"), 200)
    pool.write(directory, 200, b"x" * 400)
    pool.cut(directory, 0, pool.bases(directory))
    assert pool.bases(directory) == []
    pool.close()


@pytest.mark.parametrize("kept", [False, True])
def test_a_file_that_did_not_get_its_length_gets_it_later(*, kept: bool) -> None:
    files, pool = in_memory(0)
    files.faults.append(Fault("resize", errno.EIO, 1, "consumequeue"))
    if kept:
        files.faults.append(Fault("unlink", errno.EIO, 1, "consumequeue"))
    with pytest.raises(OSError, match="Input/output"):
        pool.write("/s/consumequeue/t/0", 0, b"x" * 20)
    pool.write("/s/consumequeue/t/0", 0, b"x" * 20)
    handle = files.open("/s/consumequeue/t/0/" + "0" * 20)
    assert files.size(handle) == 200
    assert pool.read("/s/consumequeue/t/0", 0, 200) == b"x" * 20 + bytes(180)
