"""Reading only what matches: what is given, where it goes on, what is left to plain reads."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cometmq.filter.sql92 import SqlFilter
from cometmq.message.properties import decode
from cometmq.message.record import Record, iter_decode
from cometmq.store.messagestore import MessageStore
from cometmq.store.read import coldreads, reader
from cometmq.store.read.reader import (
    MAX_SCANNED_ENTRIES,
    Query,
    ReadResult,
    ReadStatus,
    read_matching_at_once,
)
from tests.store.stores import opened, put

pytestmark = pytest.mark.core

#: Records of 1 KiB and more: a log file holds some 60.
FILE_BYTES = 1 << 16


def numbered(store: MessageStore, number: int, body: bytes = b"", topic: str = "t") -> None:
    """A message with its number and its rests by 7 and 10."""
    more = {"n": number, "seven": number % 7, "ten": number % 10}
    put(store, topic, 0, body, more={name: str(value) for name, value in more.items()})


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    made = opened(tmp_path, mapped_file_size_commit_log=FILE_BYTES)
    for number in range(100):
        numbered(made, number, bytes(900))
        put(made, "other", 0, b"between")
    made.commit()
    return made


def look(
    store: MessageStore,
    expression: str,
    offset: int = 0,
    max_count: int = 32,
    max_bytes: int = 1 << 18,
    topic: str = "t",
) -> ReadResult | None:
    query = Query(store.queue(topic, 0), offset, max_count, max_bytes, None)
    return read_matching_at_once(query, store.reads, store.limits, SqlFilter(expression))


def offsets(result: ReadResult) -> list[int]:
    found = [record.queue_offset for chunk in result.chunks for record in iter_decode(chunk)]
    assert len(found) == result.count
    assert sum(map(len, result.chunks)) == result.size_bytes
    return found


@pytest.mark.parametrize("step", [3, 256])
@pytest.mark.parametrize("recent", [True, False])
def test_what_matches_is_given_over_steps_and_files(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, step: int, recent: bool
) -> None:
    monkeypatch.setattr(reader, "_STEP_ENTRIES", step)
    if not recent:
        monkeypatch.setattr(coldreads, "RECENT_BYTES", -1)
    result = look(store, "seven = 3")
    assert result is not None
    assert (result.status, result.next_offset) == (ReadStatus.FOUND, 100)
    assert offsets(result) == list(range(3, 100, 7))
    store.close()


def test_records_that_lie_next_to_each_other(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(40):
        numbered(store, number)
    store.commit()
    result = look(store, "seven = 3 OR seven = 4")
    assert result is not None
    assert offsets(result) == [number for number in range(40) if number % 7 in (3, 4)]
    store.close()


def test_sql_looks_at_properties_alone(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_commit_log=FILE_BYTES)
    chance, wanted = random.Random(3), []
    for number in range(300):
        region = chance.choice(["eu", "us", "europe", ""])
        amount = chance.choice(["3", "30", "none", ""])
        more = {"region": region, "amount": amount, "xregion": "eu"}
        body = chance.choice([b"", b"\x02region\x01eu\x02amount\x013\x02"])
        more = {name: value for name, value in more.items() if value}
        put(store, "t", chance.randrange(2), body, more=more)
        if (region, amount) == ("eu", "3"):
            wanted.append(number)
    store.commit()
    sql = SqlFilter("region IN ('eu', 'asia') AND amount < 30")
    found = [record for queue_id in (0, 1) for record in selected(store, queue_id, sql)]
    assert len(found) == len(wanted) > 10
    for record in found:
        properties = decode(record.properties)
        assert (properties["region"], properties["amount"]) == ("eu", "3")
    store.close()


def selected(store: MessageStore, queue_id: int, sql: SqlFilter) -> list[Record]:
    offset = 0
    found: list[Record] = []
    queue = store.queue("t", queue_id)
    while offset < queue.max_offset:
        query = Query(queue, offset, 32, 1 << 18, None)
        result = read_matching_at_once(query, store.reads, store.limits, sql)
        assert result is not None
        assert result.next_offset > offset
        found += [record for chunk in result.chunks for record in iter_decode(chunk)]
        offset = result.next_offset
    return found


def test_it_goes_on_behind_the_last_that_was_given(store: MessageStore) -> None:
    first = look(store, "ten = 0", max_count=3)
    assert first is not None
    assert (offsets(first), first.next_offset) == ([0, 10, 20], 21)
    second = look(store, "ten = 0", offset=21, max_count=3)
    assert second is not None
    assert (offsets(second), second.next_offset) == ([30, 40, 50], 51)
    store.close()


@pytest.mark.parametrize("step", [1, 7, 256])
@pytest.mark.parametrize(
    ("max_count", "max_bytes"), [(32, 4_000), (32, 600), (3, 4_000), (1, 0), (32, 0)]
)
def test_each_is_given_once_whatever_an_answer_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, max_count: int, max_bytes: int
) -> None:
    monkeypatch.setattr(reader, "_STEP_ENTRIES", step)
    store = opened(
        tmp_path,
        mapped_file_size_commit_log=FILE_BYTES,
        mapped_file_size_consume_queue=20 * 60,
    )
    for number in range(200):
        numbered(store, number, bytes(5_000 if number in (70, 77) else 50))
    store.commit()
    position, seen = 0, list[int]()
    while position < 200:
        result = look(store, "seven = 0", position, max_count, max_bytes)
        assert result is not None
        assert result.next_offset > position
        assert result.count <= max_count
        assert result.size_bytes <= max_bytes or result.count == 1
        seen += offsets(result)
        position = result.next_offset
    assert seen == list(range(0, 200, 7))
    store.close()


def test_what_came_since_is_looked_at(store: MessageStore) -> None:
    assert look(store, "n >= 90", 90) is not None
    for number in range(100, 110):
        numbered(store, number)
    store.commit()
    result = look(store, "n >= 90", 90)
    assert result is not None
    assert offsets(result) == list(range(90, 110))
    store.close()


def test_nothing_matches(store: MessageStore) -> None:
    result = look(store, "n < 0")
    assert result is not None
    assert (result.status, result.next_offset, result.count) == (
        ReadStatus.NO_MATCHED_MESSAGE, 100, 0,
    )  # fmt: skip
    for number in range(MAX_SCANNED_ENTRIES):
        numbered(store, number, b"more")
    store.commit()
    bounded = look(store, "n < 0")
    assert bounded is not None
    assert bounded.next_offset == MAX_SCANNED_ENTRIES
    store.close()


def test_much_work_is_done_in_parts(store: MessageStore) -> None:
    heavy = look(store, " OR ".join(f"n = {number}" for number in range(500, 1_000)))
    assert heavy is not None
    assert 0 < heavy.next_offset < 20
    for number in range(100, 120):
        put(store, "t", 0, b"", more={"n": str(number), "long": "x" * 30_000})
    store.commit()
    long = look(store, "n < 0", offset=100)
    assert long is not None
    assert 100 < long.next_offset < 110
    store.close()


@pytest.mark.parametrize(("topic", "offset"), [("t", -1), ("t", 100), ("empty", 0)])
def test_offsets_outside_are_left_to_a_read(store: MessageStore, topic: str, offset: int) -> None:
    assert look(store, "TRUE", offset=offset, topic=topic) is None
    store.close()


def test_what_is_not_at_hand_is_left_to_a_read(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coldreads, "RECENT_BYTES", -1)
    first = store.log.segments.find(0)
    assert first is not None
    first.view  # noqa: B018 - the map that is asked for
    first._is_resident = lambda _start, _stop: False
    assert look(store, "TRUE") is None
    store.reads.hot_bytes = 0
    assert look(store, "TRUE", offset=99) is None
    store.close()


def test_holes_are_left_to_a_read(store: MessageStore) -> None:
    queue = store.queue("holes", 0)
    numbered(store, 1, b"first", "holes")
    store.commit()
    queue.fill_to(3)
    result = look(store, "TRUE", topic="holes")
    assert result is not None
    assert (offsets(result), result.next_offset) == ([0], 1)
    assert look(store, "TRUE", offset=1, topic="holes") is None
    store.close()
