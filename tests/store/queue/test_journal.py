"""Entries of many queues in one file: what is read again after a kill, and what is refused."""

from pathlib import Path

import pytest

from cometmq.message import batch
from cometmq.speedups import WriteBatch, append_batch
from cometmq.store.files import PosixFiles
from cometmq.store.layout import QUEUE_ENTRY
from cometmq.store.queue import journal as entryjournal
from cometmq.store.queue.consumequeue import ConsumeQueue, Dispatched
from cometmq.store.queue.journal import EntryJournal, Tail, read_journal
from cometmq.store.queue.queuefiles import QueueFiles

FILES = PosixFiles()
POOL = QueueFiles(FILES, "nowhere", 400)


def two_queues() -> tuple[ConsumeQueue, ConsumeQueue]:
    return ConsumeQueue(POOL, "one", 3), ConsumeQueue(POOL, "\u00fc", 0)


def entry(number: int) -> bytes:
    return QUEUE_ENTRY.pack(number, 10, -number)


def row(queue: ConsumeQueue, offset: int, number: int) -> Dispatched:
    return (queue, offset, number, 10, -number, 1, ())


def journal_at(root: Path, start: int = 0) -> EntryJournal:
    journal = EntryJournal(FILES, str(root))
    journal.begin(start)
    return journal


def read(root: Path, start: int, end: int) -> dict[tuple[str, int], tuple[int, bytes]] | None:
    found = read_journal(FILES, str(root), start, end)
    if found is None:
        return None
    return {key: (tail.first, bytes(tail.entries)) for key, tail in found.items()}


def test_entries_come_back_by_queue(tmp_path: Path) -> None:
    one, two = two_queues()
    journal = journal_at(tmp_path, 5)
    journal.add([row(one, 7, 5), row(two, 0, 15), row(one, -1, 25)], 35)
    journal.write(35)
    journal.add([row(one, 8, 35)], 45)
    journal.write(45)
    journal.write(55)
    journal.close()
    whole = {("one", 3): (7, entry(5) + entry(35)), ("\u00fc", 0): (0, entry(15))}
    assert read(tmp_path, 5, 55) == read(tmp_path, 40, 45) == whole
    assert read(tmp_path, 5, 35) == whole | {("one", 3): (7, entry(5))}
    # Behind its end, before its start, within a block: all of that the log has to tell.
    assert read(tmp_path, 5, 56) is None
    assert read(tmp_path, 4, 55) is None
    assert read(tmp_path, 5, 40) is None


def test_batches_stand_there_like_single_messages(tmp_path: Path) -> None:
    one, two = two_queues()
    one.next_offset = 5
    journal = journal_at(tmp_path)
    journal.add([row(one, 4, 0)], 10)
    rows = WriteBatch()
    for queue, count in ((one, 2), (two, 1)):
        append_batch(rows, batch.pack([(0, b"", b"")] * count), queue, b"", b"", rows.end, 1_000, 1)
    journal.add(rows, rows.end)
    assert journal.end == 0
    journal.write(rows.end)
    journal.close()
    packed = [QUEUE_ENTRY.pack(*row[2:5]) for row in rows.rows_from(0)]
    assert read(tmp_path, 0, rows.end) == {
        ("one", 3): (4, entry(0) + packed[0] + packed[1]), ("\u00fc", 0): (0, packed[2]),
    }  # fmt: skip


def test_entries_of_a_deleted_topic_are_void(tmp_path: Path) -> None:
    one, two = two_queues()
    journal = journal_at(tmp_path)
    journal.add([row(one, 0, 0), row(two, 0, 10)], 20)
    journal.forget([one])
    journal.write(20)
    assert read(tmp_path, 0, 20) == {("\u00fc", 0): (0, entry(10))}
    anew = ConsumeQueue(POOL, "one", 3)
    journal.add([row(anew, 0, 20)], 30)
    journal.write(30)
    journal.close()
    assert read(tmp_path, 0, 30) == {("\u00fc", 0): (0, entry(10)), ("one", 3): (0, entry(20))}


def test_files_roll_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entryjournal, "FILE_BYTES", 2_000)
    monkeypatch.setattr(entryjournal, "_BLOCK_BYTES", 300)
    one, two = two_queues()
    journal = journal_at(tmp_path)
    for number in range(0, 2_000, 10):
        journal.add([row(one, number // 10, number)], number + 10)
    journal.write(2_000)
    names = [int(path.name) for path in sorted(tmp_path.iterdir())]
    assert len(names) > 3
    assert journal.covers(0)
    journal.drop_before(names[2] + 1)
    assert [int(path.name) for path in sorted(tmp_path.iterdir())] == names[2:]
    assert not journal.covers(names[2] - 1)
    assert journal.covers(names[2])
    first = names[2] // 10
    expected = b"".join(map(entry, range(names[2], 2_000, 10)))
    assert read(tmp_path, names[2], 2_000) == {("one", 3): (first, expected)}
    journal.close()

    again = EntryJournal(FILES, str(tmp_path))
    again.continue_at(names[2], names[3])
    assert again.covers(names[2])
    again.add([row(two, 4, 1)], names[3] + 10)
    again.write(names[3] + 10)
    found = read(tmp_path, names[2], names[3] + 10)
    assert found is not None
    assert found["\u00fc", 0] == (4, entry(1))
    assert len(found["one", 3][1]) == (names[3] - names[2]) * 2
    again.remove()
    assert list(tmp_path.iterdir()) == []
    assert not again.covers(0)
    again.close()


@pytest.mark.parametrize("place", [1, 6, 9, 14, 20, 30, 40, 69])
def test_a_flipped_bit_ends_what_is_believed(tmp_path: Path, place: int) -> None:
    one, _ = two_queues()
    journal = journal_at(tmp_path)
    journal.add([row(one, 0, 0)], 10)
    journal.write(10)
    journal.close()
    path = next(tmp_path.iterdir())
    raw = bytearray(path.read_bytes())
    raw[place] ^= 0x40
    path.write_bytes(raw)
    assert read(tmp_path, 0, 10) is None


def test_a_missing_entry_makes_all_of_it_doubtful(tmp_path: Path) -> None:
    one, _ = two_queues()
    journal = journal_at(tmp_path)
    journal.add([row(one, 0, 0), row(one, 2, 10)], 20)
    journal.write(20)
    journal.close()
    assert read(tmp_path, 0, 20) is None


def test_nothing_there(tmp_path: Path) -> None:
    assert read(tmp_path / "missing", 0, 10) is None
    assert read(tmp_path / "missing", 10, 10) == {}


def test_a_tail_follows_what_its_queue_did() -> None:
    tail = Tail()
    for offset in (5, 6, 7, 6):
        tail.put(offset, entry(offset))
    assert (tail.first, bytes(tail.entries)) == (5, entry(5) + entry(6))
    with pytest.raises(ValueError, match="entry 8 follows 6"):
        tail.put(8, entry(8))
    tail.put(2, entry(2))
    assert (tail.first, bytes(tail.entries)) == (2, entry(2))
    tail.clear()
    tail.put(7, entry(7))
    assert (tail.first, bytes(tail.entries)) == (7, entry(7))
