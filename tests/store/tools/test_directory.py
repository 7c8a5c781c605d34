"""What lies in a store directory."""

import os
from pathlib import Path

import pytest

from cometmq.core.errors import NoStore
from cometmq.store.config import StoreConfig
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.tools.directory import (
    StoreDirectory,
    StoreInUse,
    find_queues,
    read_directory,
    size_of,
)
from tests.golden import library
from tests.store.sealed import FILE_BYTES
from tests.store.stores import fill, opened
from tests.store.tools.verifying import written

FILES = ReadOnlyFiles()


def looked(root: Path, log: str = "") -> StoreDirectory:
    config = StoreConfig(store_path_root_dir=str(root), store_path_commit_log=log)
    return read_directory(config, FILES)


def test_sizes_come_from_the_files(tmp_path: Path) -> None:
    root = library.unpack_store("clean", tmp_path)
    found = looked(root)
    assert (found.log_file_bytes, found.queue_file_bytes) == (65_536, 800)
    assert (found.log_start, found.log_stop) == (0, 3 * 65_536)
    assert found.log_bytes == 3 * 65_536
    assert len(found.index_files) == 4
    assert found.positions is None
    assert found.is_clean
    queues = find_queues(FILES, found)
    assert [(each.topic, each.queue_id) for each in queues][:3] == [
        ("%RETRY%golden-group", 0),
        ("SCHEDULE_TOPIC_XXXX", 0),
        ("SCHEDULE_TOPIC_XXXX", 17),
    ]
    assert {each.bases for each in queues} == {(0,), (0, 800), (0, 800, 1_600)}
    assert not looked(library.unpack_store("killed", tmp_path / "k")).is_clean


def test_a_damaged_file_does_not_decide_on_the_size(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=False)
    first = root / "commitlog" / f"{0:020d}"
    first.write_bytes(first.read_bytes()[:-1])
    queue = root / "consumequeue" / "t" / "0" / f"{0:020d}"
    queue.write_bytes(queue.read_bytes()[:-20])
    found = looked(root)
    assert (found.log_file_bytes, found.queue_file_bytes) == (FILE_BYTES, 20 * 500)
    assert found.log_files[0].size_bytes == FILE_BYTES - 1


def test_numbers_of_log_files_leave_a_missing_one_out(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=False)
    (root / "commitlog" / f"{FILE_BYTES:020d}").unlink()
    assert sorted(looked(root).by_number)[:2] == [0, 2]


def test_strange_names_are_passed_by(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=False)
    before = find_queues(FILES, looked(root))
    (root / "consumequeue" / "file").touch()
    (root / "consumequeue" / "t" / "x").mkdir()
    (root / "consumequeue" / "t" / "9").mkdir()
    odd = os.path.join(os.fsencode(root), b"consumequeue", b"\xff\xfe", b"0")
    for folder in (odd, os.fsencode(root / "consumequeue" / "t" / ("9" * 20))):
        os.makedirs(folder)
        with open(os.path.join(folder, b"0" * 20), "wb") as file:
            file.write(bytes(20 * 500))
    (root / "index" / "notes").touch()
    (root / "commitlog" / "notes").touch()
    found = looked(root)
    assert find_queues(FILES, found) == before
    assert found.others == (str(root / "commitlog" / "notes"),)
    assert all(path[-1].isdigit() for path in found.index_files)


def test_who_uses_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 3)
    assert looked(tmp_path).holder == -1
    assert not looked(tmp_path).is_clean
    store.close()
    assert looked(tmp_path).holder == 0
    assert "a CometMQ broker" in str(StoreInUse("x", -1))
    assert "process 77, a Java broker" in str(StoreInUse("x", 77))


def test_the_log_may_lie_elsewhere(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=False)
    (root / "commitlog").rename(tmp_path / "log")
    with pytest.raises(NoStore, match="storePathCommitLog"):
        looked(root)
    found = looked(root, str(tmp_path / "log"))
    assert len(found.log_files) >= 3
    assert size_of(FILES, found.log_files[0].path) == FILE_BYTES


def test_an_empty_directory_has_defaults(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    found = looked(tmp_path)
    assert (found.log_file_bytes, found.queue_file_bytes) == (1 << 30, 6_000_000)
    assert (found.log_start, found.log_stop) == (0, 0)


def test_a_log_file_is_found_by_its_number(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=False)
    (root / "commitlog" / f"{FILE_BYTES:020d}").unlink()
    found = looked(root)
    assert {number: found.log_file(number) for number in found.by_number} == found.by_number
