"""Queue entries against records: claims, records without entry, entries without record."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cometmq.message.record import TransactionType
from cometmq.store.config import StoreConfig
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.layout import HOLE, QUEUE_ENTRY
from cometmq.store.messagestore import MessageStore
from cometmq.store.tools import queues
from cometmq.store.tools.directory import find_queues, read_directory
from cometmq.store.tools.findings import Finding, Findings
from cometmq.store.tools.logfile import Gap, LogWalk
from cometmq.store.tools.queues import (
    EntryCheck,
    MissingEntries,
    MissingReason,
    join_missing,
    survey_queue,
)
from cometmq.store.tools.sums import hashes_of
from tests.store.sealed import FILE_BYTES
from tests.store.stores import opened, put

FILES = ReadOnlyFiles()
DELAYS_MS = (1_000,)


def made(root: Path, write: Callable[[MessageStore], None]) -> Path:
    """A stopped store with one log file; gives its first queue file of t/0."""
    store = opened(root, mapped_file_size_commit_log=FILE_BYTES)
    write(store)
    store.commit()
    store.close()
    return root / "consumequeue" / "t" / "0" / f"{0:020d}"


def some(store: MessageStore) -> None:
    for number in range(6):
        put(store, "t", 0, b"%d" % number, tag="a")
    put(store, "u", 2, b"u")


def checked(
    root: Path, gaps: list[Gap] | None = None, end: int | None = None, *, is_clean: bool = True
) -> tuple[list[MissingEntries], list[Finding]]:
    directory = read_directory(StoreConfig(store_path_root_dir=str(root)), FILES)
    found = find_queues(FILES, directory)
    findings = Findings()
    runs = [
        run
        for number, queue in enumerate(found)
        for run in survey_queue(FILES, directory, number, queue, Findings()).runs
        if run.file == 0
    ]
    file = directory.log_files[0]
    check = EntryCheck(FILES, file, found, directory.queue_file_bytes, runs, DELAYS_MS)
    walk = LogWalk(FILES, file.path, file.base, file.size_bytes, DELAYS_MS)
    for chunk in walk:
        check.take(chunk, hashes_of(chunk)[0])
    limit = walk.end if end is None else end
    check.finish(limit, walk.gaps if gaps is None else gaps, findings, is_clean=is_clean)
    return list(check.missing.values()), findings.all()


def change(path: Path, offset: int, entry: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset * 20 : offset * 20 + 20] = entry
    path.write_bytes(raw)


def entry_at(path: Path, offset: int) -> tuple[int, int, int]:
    found: tuple[int, int, int] = QUEUE_ENTRY.unpack(path.read_bytes()[offset * 20 :][:20])
    return found


def test_every_record_has_its_entry(tmp_path: Path) -> None:
    made(tmp_path, some)
    assert checked(tmp_path) == ([], [])


def test_records_that_take_no_place_need_none(tmp_path: Path) -> None:
    def write(store: MessageStore) -> None:
        put(store, "t", 0, b"half", sys_flag=TransactionType.PREPARED)
        put(store, "t", 0, b"whole", sys_flag=TransactionType.COMMIT)

    path = made(tmp_path, write)
    assert checked(tmp_path) == ([], [])
    change(path, 1, QUEUE_ENTRY.pack(0, entry_at(path, 0)[1] - 1, 0))
    _, (found,) = checked(tmp_path)
    assert "has no queue entry" in found.text


@pytest.mark.parametrize(
    ("field", "text"),
    [(1, "size"), (2, "tag code")],
)
def test_an_entry_that_differs(tmp_path: Path, field: int, text: str) -> None:
    path = made(tmp_path, some)
    values = list(entry_at(path, 3))
    values[field] += 1
    change(path, 3, QUEUE_ENTRY.pack(*values))
    missing, (found,) = checked(tmp_path)
    assert missing == []
    assert found.kind == "queue-entry-wrong"
    assert found.text.startswith("entry 3 for the record at")
    assert text in found.text


def test_an_entry_that_points_between_records_or_to_another_queue_s(tmp_path: Path) -> None:
    path = made(tmp_path, some)
    phys, size, code = entry_at(path, 3)
    change(path, 3, QUEUE_ENTRY.pack(phys + 1, size, code))
    (missing,), (found,) = checked(tmp_path)
    assert "where no record begins" in found.text
    assert (missing.reason, missing.amount, missing.first_offset) == (MissingReason.OTHER, 1, 3)
    other = tmp_path / "consumequeue" / "u" / "2" / f"{0:020d}"
    change(path, 3, QUEUE_ENTRY.pack(*entry_at(other, 0)))
    _, findings = checked(tmp_path)
    assert any("topic t not u, queue 0 not 2" in each.text for each in findings)


def test_an_entry_that_stands_twice(tmp_path: Path) -> None:
    path = made(tmp_path, some)
    other = tmp_path / "consumequeue" / "t" / "1"
    other.mkdir()
    (other / path.name).write_bytes(path.read_bytes())
    _, findings = checked(tmp_path)
    twice = [each for each in findings if "it is there twice" in each.text]
    wrong = [each for each in findings if "queue 1 not 0" in each.text]
    assert (len(twice), len(wrong), len(findings)) == (6, 6, 12)


def test_records_without_entry_are_grouped(tmp_path: Path) -> None:
    path = made(tmp_path, some)
    change(path, 5, bytes(20))
    change(path, 4, bytes(20))
    (tmp_path / "consumequeue" / "u" / "2" / f"{0:020d}").unlink()
    missing, findings = checked(tmp_path)
    assert findings == []
    by_topic = {each.topic: each for each in missing}
    assert by_topic["t"][2:6] == (MissingReason.NO_ENTRY, 2, 4, 5)
    assert by_topic["u"][1:4] == (2, MissingReason.NO_QUEUE, 1)
    change(path, 4, HOLE)
    assert {each.reason for each in checked(tmp_path)[0]} == {
        MissingReason.NO_ENTRY,
        MissingReason.NO_QUEUE,
    }


def test_a_younger_life_of_the_queue(tmp_path: Path) -> None:
    path = made(tmp_path, some)
    entries = [entry_at(path, offset) for offset in range(6)]
    for offset in range(6):
        # The queue begins with what was its fourth record.
        young = entries[offset + 3] if offset < 3 else None
        change(path, offset, bytes(20) if young is None else QUEUE_ENTRY.pack(*young))
    (missing,) = [each for each in checked(tmp_path)[0] if each.reason is MissingReason.NEWER]
    assert (missing.amount, missing.first_offset, missing.last_offset) == (3, 0, 2)


def test_only_some_of_many_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "_EXAMINED", 2)
    monkeypatch.setattr(queues, "_EXPLAINED", 2)
    path = made(tmp_path, some)
    for offset in range(1, 6):
        phys, size, code = entry_at(path, offset)
        change(path, offset, QUEUE_ENTRY.pack(phys + 1, size, code))
    missing, findings = checked(tmp_path)
    assert {each.reason: each.amount for each in missing} == {
        MissingReason.OTHER: 2,
        MissingReason.UNKNOWN: 3,
    }
    assert sorted(each.count for each in findings) == [1, 1, 3]
    for offset in range(1, 6):
        change(path, offset, bytes(20))
    assert {each.reason for each in checked(tmp_path)[0]} == {
        MissingReason.NO_ENTRY,
        MissingReason.UNKNOWN,
    }


def test_entries_behind_the_end_and_in_gaps(tmp_path: Path) -> None:
    path = made(tmp_path, some)
    raw = bytearray((tmp_path / "commitlog" / path.name).read_bytes())
    first, second = entry_at(path, 1)[0], entry_at(path, 5)[0]
    raw[first : first + 8] = bytes(8)
    raw[second:] = bytes(len(raw) - second)
    (tmp_path / "commitlog" / path.name).write_bytes(raw)
    _, findings = checked(tmp_path)
    assert {(each.kind, each.severity.value) for each in findings} == {
        ("queue-entry-beyond", "damage"),
        ("queue-entry-lost", "note"),
    }
    _, findings = checked(tmp_path, is_clean=False)
    assert {each.severity.value for each in findings} == {"note"}


def test_groups_are_joined() -> None:
    one = MissingEntries("t", 0, MissingReason.OTHER, 2, 5, 9, 100)
    assert join_missing(
        one, MissingEntries("t", 0, MissingReason.OTHER, 3, 1, 7, 200)
    ) == MissingEntries("t", 0, MissingReason.OTHER, 5, 1, 9, 100)


def test_a_queue_without_one_record_has_no_beginning(tmp_path: Path) -> None:
    path = made(tmp_path, some)
    path.write_bytes(bytes(len(path.read_bytes())))
    (missing,) = checked(tmp_path)[0]
    assert (missing.reason, missing.amount) == (MissingReason.NO_ENTRY, 6)
    assert np.all(np.frombuffer(path.read_bytes(), np.uint8) == 0)
