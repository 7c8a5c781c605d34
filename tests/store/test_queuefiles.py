"""Files of many queues: few handles, and what has to be synced."""

from pathlib import Path

from cometmq.store.files import PosixFiles
from cometmq.store.queuefiles import QueueFiles


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
