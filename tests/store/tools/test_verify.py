"""Whole stores verified: sound ones, and those of a Java broker."""

import os
from pathlib import Path

import pytest

from cometmq.message.record import iter_decode
from cometmq.store.config import StoreConfig
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.tools.verify import verify
from tests.golden import library
from tests.store.sealed import FILE_BYTES
from tests.store.stores import fill, opened
from tests.store.tools.verifying import (
    damage,
    field_bytes,
    flip_byte,
    kinds,
    verified,
    written,
)

#: Fields that the record's CRC, its queue entry and its index entries say nothing of; of the store
#: time the index knows the second.
UNTOLD = {
    "flag", "system flag", "born time", "born host", "store time", "store host", "reconsume times",
    "prepared offset",
}  # fmt: skip


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("full", [True, False])
def test_a_sound_store(tmp_path: Path, is_sealed: bool, full: bool) -> None:
    found = verified(written(tmp_path / "s", sealed=is_sealed), full=full)
    assert found.findings == []
    assert found.is_sound
    assert (found.records, found.queues, found.entries) == (2_500, 3, 2_500)
    assert found.index_entries == 5_000
    assert found.sealed_files == (2 if is_sealed else 0)


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_a_java_broker_s_store(tmp_path: Path, name: str) -> None:
    found = verified(library.unpack_store(name, tmp_path))
    assert damage(found) == []
    assert kinds(found) == ({"crashed"} if name == "killed" else set())
    assert (found.records, found.entries, found.index_entries) == (459, 459, 918)


def test_flips_in_a_java_broker_s_store(tmp_path: Path) -> None:
    """Without a seal, what contradicts the CRC, a queue or the index is found."""
    root = library.unpack_store("clean", tmp_path)
    path = root / "commitlog" / f"{0:020d}"
    record = next(each for each in iter_decode(path.read_bytes()) if b"tagged-" in each.body)
    missed: set[str] = set()
    for name, at in field_bytes(record):
        flip_byte(path, record.physical_offset + at)
        if not damage(verified(root)):
            missed.add(name)
        flip_byte(path, record.physical_offset + at)
    assert verified(root).is_sound
    assert missed <= UNTOLD


class CountedFiles(ReadOnlyFiles):
    """Counts the listings of directories."""

    def __init__(self) -> None:
        self.listings = 0

    def names(self, path: str) -> list[str]:
        self.listings += 1
        return super().names(path)


def test_a_check_of_many_log_files_lists_no_directory_for_each(tmp_path: Path) -> None:
    """A store of 1 TiB may have 32 768 log files, and as many seals."""
    store = opened(tmp_path, mapped_file_size_commit_log=4_096)
    fill(store, 600)
    store.close()
    files = CountedFiles()
    found = verify(StoreConfig(store_path_root_dir=str(tmp_path)), files, processes=1)
    assert found.is_sound
    assert len(found.directory.log_files) > 30
    assert files.listings < 40


@pytest.mark.parametrize("left", [0, 1_000, FILE_BYTES // 2])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_log_file_that_lost_its_end(tmp_path: Path, left: int, number: int) -> None:
    root = written(tmp_path / "s", sealed=True)
    os.truncate(root / "commitlog" / f"{number * FILE_BYTES:020d}", left)
    found = verified(root)
    assert "log-file-size" in {each.kind for each in damage(found)}


def test_a_log_file_of_zeros_before_others_is_a_gap(tmp_path: Path) -> None:
    root = written(tmp_path / "s", sealed=False)
    (root / "commitlog" / f"{FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    found = damage(verified(root))
    assert [each.offset for each in found if each.kind == "gap"] == [FILE_BYTES]
