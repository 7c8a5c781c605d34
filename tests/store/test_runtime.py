"""Numbers of a running store."""

from pathlib import Path

from tests.store.stores import fill, opened


def test_numbers(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 100)
    found = store.runtime()
    assert found["commit_log_max_offset"] == store.written_offset
    assert found["flush_behind_bytes"] == store.written_offset
    assert found["dispatch_behind_bytes"] == 0
    assert (found["queues"], found["dirty_queues"]) == (3, 3)
    assert found["commit_log_files"] == len(list((tmp_path / "commitlog").iterdir()))
    assert 0 < found["disk_used_ratio"] <= 1
    store.close()
