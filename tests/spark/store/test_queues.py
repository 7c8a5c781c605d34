"""The files of a queue."""

from pathlib import Path

import pytest

from cometmq.spark.store.files import ConsumeQueueReader, StoredEntry, first_entry
from cometmq.spark.store.urls import PAGE_BYTES
from cometmq.store.layout import HOLE, QUEUE_ENTRY, file_name

PER_FILE = 10


def written(root: Path, first: int, count: int, holes: int = 0) -> ConsumeQueueReader:
    """Entries ``first`` to ``first + count`` over files of ten; the first ones never held any."""
    folder = root / "consumequeue" / "t" / "3"
    folder.mkdir(parents=True)
    (folder / "junk").touch()
    entries = {at: QUEUE_ENTRY.pack(at * 100, 50, at) for at in range(first, first + count)}
    entries |= dict.fromkeys(range(first, first + holes), HOLE)
    for base in range(first // PER_FILE * PER_FILE, first + count + 1, PER_FILE):
        raw = b"".join(entries.get(at, bytes(20)) for at in range(base, base + PER_FILE))
        (folder / file_name(base * 20)).write_bytes(raw)
    return ConsumeQueueReader(str(root), "t", 3)


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 35])
def test_where_a_queue_ends(tmp_path: Path, count: int) -> None:
    assert written(tmp_path, 0, count).stop() == count


def test_where_a_queue_begins(tmp_path: Path) -> None:
    files = written(tmp_path, 20, 25, holes=4)
    assert files.stop() == 45
    assert files.start(0, 45) == 24
    assert files.start(3_000, 45) == 30
    assert files.start(10_000, 45) == 45
    assert not ConsumeQueueReader(str(tmp_path), "t", 4).exists
    assert ConsumeQueueReader(str(tmp_path), "t", 4).stop() == 0
    assert ConsumeQueueReader(str(tmp_path), "t", 4).start(0, 0) == 0


def test_entries(tmp_path: Path) -> None:
    files = written(tmp_path, 0, 25)
    assert files.entry(12) == StoredEntry(1_200, 50, 12)
    assert files.entry(12).is_record
    assert not files.entry(26).is_record
    assert not files.entry(99).is_record
    found = files.entries(8, 28)
    assert found["physical"].tolist() == [at * 100 for at in range(8, 25)] + [0] * 3
    assert found["size"].tolist() == [50] * 17 + [0] * 3


def test_what_was_listed_is_enough_for_another_reader(tmp_path: Path) -> None:
    files = written(tmp_path, 0, 35)
    assert files.listed(12, 25) == ((200, 200), (400, 200))
    other = ConsumeQueueReader(str(tmp_path), "t", 3, files.listed(12, 25))
    assert other.entries(12, 25).tolist() == files.entries(12, 25).tolist()
    (tmp_path / "consumequeue" / "t" / "3" / file_name(200)).unlink()
    assert other.entries(12, 25)["size"].tolist() == [0] * 8 + [50] * 5


def pages_of(count: int, near: int, answer: int) -> int:
    """The number of pages that a search looks at."""
    seen: set[int] = set()

    def holds(number: int) -> bool:
        seen.update((number * 20 // PAGE_BYTES, (number * 20 + 19) // PAGE_BYTES))
        return number >= answer

    assert first_entry(count, near, holds) == answer
    return len(seen)


@pytest.mark.parametrize("near", [-5, 0, 6_553, 150_000, 299_999, 1 << 40])
@pytest.mark.parametrize(
    "answer", [0, 1, 6_552, 6_553, 6_554, 13_106, 13_107, 150_000, 299_999, 300_000]
)
def test_a_search_finds_the_first_entry_in_few_pages(near: int, answer: int) -> None:
    assert pages_of(300_000, near, answer) <= 12
    assert pages_of(answer, near, answer) <= 12


def test_a_search_near_the_answer_looks_at_a_page_or_two() -> None:
    assert pages_of(100, 0, 3) == 1
    for answer in (20_000, 150_000, 290_000):
        for away in (-300, 0, 300):
            assert pages_of(300_000, answer + away, answer) <= 3
    assert first_entry(0, 0, lambda _: True) == 0
