"""Reads: status, next offset, limits, filter, ranges."""

from pathlib import Path

import pytest
from msgspec import structs

from cometmq.core.errors import StoreCorrupt
from cometmq.filter.tags import parse, tag_code
from cometmq.message.record import iter_decode
from cometmq.store.messagestore import MessageStore
from cometmq.store.read.reader import MAX_SCANNED_ENTRIES, Query, ReadResult, ReadStatus, read
from tests.store.stores import fill, opened, put


def offsets(result: ReadResult) -> list[int]:
    return [record.queue_offset for chunk in result.chunks for record in iter_decode(chunk)]


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    made = opened(tmp_path, mapped_file_size_commit_log=1 << 20)
    for number in range(100):
        put(made, "t", 0, bytes(100), tag=f"g{number % 4}")
        if number % 3 == 0:
            put(made, "u", 0, bytes(50))
    made.commit()
    return made


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (-1, ReadStatus.OFFSET_TOO_SMALL, 0),
        (100, ReadStatus.OFFSET_OVERFLOW_ONE, 100),
        (101, ReadStatus.OFFSET_OVERFLOW_BADLY, 100),
        (1 << 40, ReadStatus.OFFSET_OVERFLOW_BADLY, 100),
        (99, ReadStatus.FOUND, 100),
        (0, ReadStatus.FOUND, 32),
    ],
)
def test_status(store: MessageStore, offset: int, status: ReadStatus, following: int) -> None:
    result = store.read("t", 0, offset, 32)
    assert (result.status, result.next_offset) == (status, following)
    assert (result.min_offset, result.max_offset) == (0, 100)
    store.close()


def test_queues_that_hold_nothing(store: MessageStore) -> None:
    assert store.read("t", 1, 0, 32).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
    store.queue("t", 1)
    result = store.read("t", 1, 7, 32)
    assert (result.status, result.next_offset) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0)
    store.close()


def test_limits(store: MessageStore) -> None:
    size = store.read("t", 0, 0, 1).size_bytes
    assert offsets(store.read("t", 0, 5, 3)) == [5, 6, 7]
    assert store.read("t", 0, 0, 1_000).count == 32
    assert store.read("t", 0, 0, 32, max_bytes=size * 4).count == 4
    assert store.read("t", 0, 0, 32, max_bytes=size * 4 - 1).count == 3
    assert store.read("t", 0, 0, 32, max_bytes=1).count == 1
    result = store.read("t", 0, 0, 32)
    assert result.size_bytes == sum(map(len, result.chunks))
    store.close()


def test_many_at_once(store: MessageStore) -> None:
    limits = structs.replace(store.limits, hot_max_count=1_000)
    size = store.read("t", 0, 0, 1).size_bytes

    def many(count: int, bytes_max: int, codes: frozenset[int] | None = None) -> ReadResult:
        found = store.find_queue("t", 0)
        assert found is not None
        return read(Query(found, 0, count, bytes_max, codes), store.reads, limits)

    assert offsets(many(1_000, 1 << 18)) == list(range(100))
    assert offsets(many(70, 1 << 18)) == list(range(70))
    some = many(1_000, size * 50)
    assert (offsets(some), some.next_offset) == (list(range(50)), 50)
    assert some.size_bytes == sum(map(len, some.chunks))
    assert offsets(many(1_000, 1)) == [0]
    every = frozenset(tag_code(f"g{n}") for n in range(10)) | {0}
    assert offsets(many(1_000, 1 << 18, every)) == list(range(100))
    store.close()


def test_what_is_in_memory_comes_as_one_chunk(store: MessageStore) -> None:
    """Every third record is followed by one of another topic."""
    apart = store.read("t", 0, 0, 10)
    assert len(apart.chunks) == 1
    assert offsets(apart) == list(range(10))
    every = frozenset(tag_code(f"g{n}") for n in range(10)) | {0}
    assert store.read("t", 0, 0, 10, codes=every).chunks == apart.chunks
    store.close()


def test_filter_counts_what_it_looked_at(store: MessageStore) -> None:
    result = store.read("t", 0, 1, 5, codes=parse("g2").codes)
    assert offsets(result) == [2, 6, 10, 14, 18]
    assert result.next_offset == 22
    both = store.read("t", 0, 90, 32, codes=parse("g1 || g2").codes)
    assert offsets(both) == [90, 93, 94, 97, 98]
    assert both.next_offset == 100
    none = store.read("t", 0, 40, 5, codes=frozenset({tag_code("other")}))
    assert (none.status, none.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 100)
    store.close()


def test_at_most_800_entries_are_scanned(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_consume_queue=20 * 5_000)
    for _ in range(1_000):
        put(store)
    store.commit()
    store.dispatcher.write(0)
    result = store.read("t", 0, 0, 32, codes=frozenset({1}))
    assert (result.status, result.next_offset) == (
        ReadStatus.NO_MATCHED_MESSAGE, MAX_SCANNED_ENTRIES,
    )  # fmt: skip
    store.close()


def test_messages_of_dropped_files_are_passed_over(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 200, queues=1)
    dropped = store.log.segments.drop_first()
    queue = store.queue("t", 0)
    result = store.read("t", 0, 0, 5)
    assert (result.status, result.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVING, 5)
    queue.correct_min(dropped.end)
    assert store.read("t", 0, 0, 5).status is ReadStatus.OFFSET_TOO_SMALL
    assert offsets(store.read("t", 0, queue.min_offset, 1)) == [queue.min_offset]
    store.close()


def test_ranges_over_the_end_of_a_file(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 200, queues=1)
    offset = 0
    seen: list[int] = []
    while (result := store.read("t", 0, offset, 32)).status is ReadStatus.FOUND:
        seen += offsets(result)
        offset = result.next_offset
    assert seen == list(range(200))
    store.close()


def test_entries_that_cannot_be_read(store: MessageStore, tmp_path: Path) -> None:
    """The queue's file is gone: upstream's answer is 'nothing here', and a consumer waits for ever;
    ours is an error."""
    store.dispatcher.write(0)
    queue = store.queue("t", 0)
    assert queue.tail_offset >= 0
    queue.tail.clear()
    queue.tail_offset = queue.max_offset
    store.pool.set_aside("t")
    with pytest.raises(StoreCorrupt, match="No such file"):
        store.read("t", 0, 0, 5)
    with pytest.raises(StoreCorrupt, match="No such file"):
        store.read("t", 0, 0, 5, codes=frozenset({1}))
    store.close()
