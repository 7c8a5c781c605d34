"""Whole stores verified: sound ones, and those of a Java broker."""

from pathlib import Path

import pytest

from cometmq.message.record import iter_decode
from tests.golden import library
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
