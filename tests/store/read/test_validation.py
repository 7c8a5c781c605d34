"""Wrong queue entries: consumers get the records of their queue, all of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.core.errors import StoreCorrupt
from cometmq.filter.sql92 import SqlFilter
from cometmq.filter.tags import tag_code
from cometmq.message.record import iter_decode
from cometmq.store.files import PosixFiles
from cometmq.store.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from cometmq.store.messagestore import MessageStore
from cometmq.store.read.reader import Query, ReadStatus, read_matching_at_once
from tests.store.stores import opened, put

COUNT = 12
#: A record of either topic has 128 bytes, so that one bit leads from one to another.
BODY = bytes(128 - 91 - 1 - 13)


def made(root: Path, order: str) -> MessageStore:
    """Topics a and b, records in turns or one topic behind the other, all entries in files."""
    store = opened(root, mapped_file_size_commit_log=1 << 20)
    names = "ab" * COUNT if order == "in turns" else "a" * COUNT + "b" * COUNT
    for name in names:
        put(store, name, 1, BODY, tag="red", more={"x": "12"})
    store.commit()
    store.close()
    return opened(root, mapped_file_size_commit_log=1 << 20)


def queue_file(store: MessageStore, topic: str) -> Path:
    return Path(store.pool.directory, topic, "1", "0" * 20)


def overwrite(path: Path, position: int, data: bytes | bytearray) -> None:
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), data, position)


def served(
    store: MessageStore, topic: str, codes: frozenset[int] | None = None, count: int = 32
) -> list[int]:
    """The queue offsets that a consumer is given from 0 on; each answer has the size it says."""
    found: list[int] = []
    offset = 0
    while True:
        result = store.read(topic, 1, offset, count, codes=codes)
        if result.cold:
            asyncio.run(store.load(result))
        if result.status is not ReadStatus.FOUND:
            return found
        assert result.size_bytes == sum(map(len, result.chunks))
        records = [record for chunk in result.chunks for record in iter_decode(chunk)]
        assert len(records) == result.count > 0
        assert all(record.topic == topic for record in records)
        assert result.next_offset > offset
        found += [record.queue_offset for record in records]
        offset = result.next_offset


@pytest.fixture(params=["in turns", "one behind the other"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStore]:
    store = made(tmp_path, request.param)
    store.limits = store.limits.__class__(1 << 20, 32, 1 << 20, 32)
    yield store
    store.close()


ALL = list(range(COUNT))


@pytest.mark.parametrize("number", [0, 1, 5, COUNT - 2, COUNT - 1])
@pytest.mark.parametrize("codes", [None, frozenset({tag_code("red")})])
def test_any_wrong_bit_of_a_place_or_size_changes_nothing(
    store: MessageStore, number: int, codes: frozenset[int] | None
) -> None:
    path = queue_file(store, "a")
    at = number * QUEUE_ENTRY_BYTES
    right = path.read_bytes()[at : at + QUEUE_ENTRY_BYTES]
    for bit in range(12 * 8):
        wrong = bytearray(right)
        wrong[bit // 8] ^= 1 << bit % 8
        overwrite(path, at, wrong)
        assert served(store, "a", codes) == ALL
        overwrite(path, at, wrong)
        assert served(store, "a", codes, count=1) == ALL
        assert path.read_bytes()[at : at + QUEUE_ENTRY_BYTES] == right, "mended"


def test_entries_of_another_topic_serve_nothing_of_it(store: MessageStore) -> None:
    path = queue_file(store, "a")
    right = path.read_bytes()
    overwrite(path, 0, queue_file(store, "b").read_bytes())
    assert served(store, "a") == ALL
    assert path.read_bytes() == right
    # Two of them, side by side.
    other = queue_file(store, "b").read_bytes()
    overwrite(path, 5 * QUEUE_ENTRY_BYTES, other[5 * QUEUE_ENTRY_BYTES : 7 * QUEUE_ENTRY_BYTES])
    assert served(store, "a") == ALL
    assert served(store, "a", count=1) == ALL
    assert path.read_bytes() == right


def test_entries_of_the_same_queue_that_changed_places(store: MessageStore) -> None:
    path = queue_file(store, "a")
    right = path.read_bytes()
    one, two = (right[n * QUEUE_ENTRY_BYTES :][:QUEUE_ENTRY_BYTES] for n in (3, 4))
    overwrite(path, 3 * QUEUE_ENTRY_BYTES, two + one)
    assert served(store, "a") == ALL
    assert served(store, "a", count=1) == ALL
    assert path.read_bytes() == right


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\x7f"])
def test_a_destroyed_file_is_made_again(store: MessageStore, fill: bytes) -> None:
    path = queue_file(store, "a")
    right = path.read_bytes()
    overwrite(path, 0, fill * QUEUE_ENTRY_BYTES * COUNT)
    assert served(store, "a") == ALL
    assert path.read_bytes() == right


@pytest.mark.parametrize("number", [0, 5, COUNT - 1])
@pytest.mark.parametrize("size", [1, 3, 4, 20, 90])
@pytest.mark.parametrize("count", [1, 32])
def test_a_size_that_no_record_has_changes_nothing(
    store: MessageStore, number: int, size: int, count: int
) -> None:
    path = queue_file(store, "a")
    at = number * QUEUE_ENTRY_BYTES
    right = path.read_bytes()[at : at + QUEUE_ENTRY_BYTES]
    place, _, code = QUEUE_ENTRY.unpack(right)
    overwrite(path, at, QUEUE_ENTRY.pack(place, size, code))
    assert served(store, "a", count=count) == ALL
    assert path.read_bytes()[at : at + QUEUE_ENTRY_BYTES] == right


def test_an_entry_whose_record_the_log_does_not_have_is_an_error(store: MessageStore) -> None:
    """Nothing is skipped in silence."""
    place, size, _ = QUEUE_ENTRY.unpack(queue_file(store, "a").read_bytes()[:QUEUE_ENTRY_BYTES])
    segment = store.log.segments.find(place)
    assert segment is not None
    # Another queue offset in the record itself.
    overwrite(Path(segment.path), place + 20, (77).to_bytes(8, "big"))
    result = store.read("a", 1, 0, 32)
    assert result.cold
    with pytest.raises(StoreCorrupt, match="entry 0 of queue a/1"):
        asyncio.run(store.load(result))
    assert size == 128


@pytest.mark.parametrize("number", [0, 5, COUNT - 1])
def test_who_filters_gets_no_wrong_record_and_misses_none(store: MessageStore, number: int) -> None:
    """A look gives nothing of another queue, and all up to where it says that it looked; what it
    cannot read is made right."""
    path = queue_file(store, "a")
    at = number * QUEUE_ENTRY_BYTES
    right = path.read_bytes()[at : at + QUEUE_ENTRY_BYTES]
    wanted = SqlFilter("x = '12'")
    query = Query(store.queue("a", 1), 0, 32, 1 << 20, None)
    for bit in range(12 * 8):
        wrong = bytearray(right)
        wrong[bit // 8] ^= 1 << bit % 8
        overwrite(path, at, wrong)
        found = read_matching_at_once(query, store.reads, store.limits, wanted)
        if found is None:
            assert number == 0
            assert served(store, "a") == ALL
            overwrite(path, at, right)
            continue
        assert found.size_bytes == sum(map(len, found.chunks))
        records = [record for chunk in found.chunks for record in iter_decode(chunk)]
        assert all(record.topic == "a" for record in records)
        offsets = [record.queue_offset for record in records]
        assert offsets == ALL[: found.next_offset] == ALL[:number]
        overwrite(path, at, right)


class CountedFiles(PosixFiles):
    """Counts the bytes that are read from the log."""

    def __init__(self) -> None:
        self.given = 0

    def read_into(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        self.given += len(buffer)
        return super().read_into(handle, buffer, offset)


@pytest.mark.parametrize("count", [1, 32])
def test_a_lost_page_does_not_cost_a_read_of_the_log_for_each_entry(
    tmp_path: Path, count: int
) -> None:
    """A page has 204 entries: those in its middle have no right neighbour near them."""
    sizes: dict[str, Any] = {
        "mapped_file_size_commit_log": 1 << 20,
        "mapped_file_size_consume_queue": 20 * 1_000,
    }
    store = opened(tmp_path, **sizes)
    for name, amount in (("b", 2_000), ("a", 700), ("b", 2_000)):
        for _ in range(amount):
            put(store, name, 1, BODY)
        store.commit()
    store.close()
    files = CountedFiles()
    store = opened(tmp_path, files=files, **sizes)
    path = queue_file(store, "a")
    right = path.read_bytes()
    overwrite(path, 4_096, bytes(4_096))
    files.given = 0
    assert served(store, "a", count=count) == list(range(700))
    assert path.read_bytes() == right, "mended"
    assert files.given < 4 << 20
    store.close()


def test_a_mended_entry_is_for_the_topic_of_today(tmp_path: Path) -> None:
    """The log still has the records of a deleted topic of the same name."""
    store = opened(tmp_path, mapped_file_size_commit_log=1 << 20)
    put(store, "a", 1, b"old")
    store.commit()
    asyncio.run(store.deletions.settle(store.deletions.delete("a")))
    put(store, "a", 1, b"new")
    store.commit()
    store.close()
    store = opened(tmp_path, mapped_file_size_commit_log=1 << 20)
    overwrite(queue_file(store, "a"), 0, bytes(QUEUE_ENTRY_BYTES))
    result = store.read("a", 1, 0, 32)
    assert result.cold
    asyncio.run(store.load(result))
    assert [record.body for chunk in result.chunks for record in iter_decode(chunk)] == [b"new"]
    store.close()
