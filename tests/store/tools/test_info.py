"""A store at a glance."""

from pathlib import Path

import pytest

from cometmq.store.config import StoreConfig
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.tools.directory import StoreInUse
from cometmq.store.tools.inspection import StoreInfo, TopicRow, inspect_store
from tests.golden import library
from tests.store.sealed import FILE_BYTES
from tests.store.stores import fill, opened, put
from tests.store.tools.verifying import contents, flip_byte, written


def looked(root: Path, *, while_running: bool = False) -> StoreInfo:
    before = contents(root)
    config = StoreConfig(store_path_root_dir=str(root))
    found = inspect_store(config, ReadOnlyFiles(), while_running=while_running)
    assert contents(root) == before
    return found


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_store_of_ours(tmp_path: Path, is_sealed: bool) -> None:
    root = written(tmp_path / "s", sealed=is_sealed)
    found = looked(root)
    assert (found.state, found.last_writer) == ("stopped", "CometMQ")
    assert found.file_system
    assert found.topics == [TopicRow("t", 3, 2_500)]
    assert sum(row.entries for row in found.index) == 5_000
    assert found.positions is not None
    assert found.log_end == found.positions.written
    assert (found.log_file_bytes, found.queue_file_bytes) == (FILE_BYTES, 20 * 500)
    assert [row.seal for row in found.log][:2] == (["yes", "yes"] if is_sealed else ["no", "no"])
    full = [row for row in found.log if row.used_bytes == FILE_BYTES]
    assert len(full) == 2
    assert sum(row.used_bytes for row in found.log) == found.log_end
    times = [(row.first_stored_ms, row.last_stored_ms) for row in found.log if row.used_bytes]
    assert times == sorted(times)
    assert all(first > 0 and last > 0 for first, last in times)
    if is_sealed:
        assert sum(row.records for row in found.log) == 2_500
    else:
        assert [row.records for row in full] == [-1, -1]
    assert all(row.records > 0 for row in found.log if 0 < row.used_bytes < FILE_BYTES)
    assert all(row.records == 0 for row in found.log if not row.used_bytes)
    assert found.warnings == []


def test_java_stores(tmp_path: Path) -> None:
    clean = looked(library.unpack_store("clean", tmp_path / "c"))
    assert (clean.state, clean.last_writer) == ("stopped", "a Java broker")
    facts = library.stores()["clean"]["topics"]
    messages = {row.topic: row.messages for row in clean.topics}
    for topic, fact in facts.items():
        limits = fact["queues"].values()
        assert messages[topic] == sum(int(each["max"]) - int(each["min"]) for each in limits)
    killed = looked(library.unpack_store("killed", tmp_path / "k"))
    assert killed.state == "crashed: the next start recovers it"
    assert killed.log_end > 0


def test_a_running_store_only_on_demand(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 30)
    with pytest.raises(StoreInUse):
        looked(tmp_path)
    found = looked(tmp_path, while_running=True)
    assert found.state == "in use by a CometMQ broker"
    assert found.log_end == store.written_offset
    store.close()


def test_java_came_after_us(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=True)
    flip_byte(root / "checkpoint", 7, 1)
    found = looked(root)
    assert found.last_writer.startswith("a Java broker, or")
    assert found.positions is None


def test_what_is_wrong_at_a_glance(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=True)
    flip_byte(root / "cometmq-seals" / f"{0:020d}", 100)
    (root / "cometmq-seals" / "doubted").mkdir()
    second = f"{FILE_BYTES:020d}"
    (root / "cometmq-seals" / second).rename(root / "cometmq-seals" / "doubted" / second)
    index = sorted((root / "index").iterdir())[0]
    index.write_bytes(index.read_bytes()[:10])
    found = looked(root)
    assert [row.seal for row in found.log][:2] == ["unreadable", "doubted"]
    assert len(found.warnings) == 2


def test_an_empty_store_and_long_first_records(tmp_path: Path) -> None:
    (tmp_path / "e" / "commitlog").mkdir(parents=True)
    found = looked(tmp_path / "e")
    assert (found.log, found.topics, found.index, found.log_end) == ([], [], [], 0)
    store = opened(tmp_path / "l", mapped_file_size_commit_log=1 << 20)
    put(store, body=bytes(200_000))
    store.close()
    found = looked(tmp_path / "l")
    assert found.log[0].first_stored_ms > 0
    assert found.topics == [TopicRow("t", 1, 1)]


def test_queues_that_lost_their_first_records(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=False)
    (root / "commitlog" / f"{0:020d}").unlink()
    (row,) = looked(root).topics
    assert 0 < row.messages < 2_500
    for path in (root / "consumequeue" / "t" / "0").iterdir():
        path.write_bytes(bytes(20 * 500))
    (fewer,) = looked(root).topics
    assert fewer.queues == 3
    assert 0 < fewer.messages < row.messages
