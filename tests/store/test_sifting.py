"""Reading only what matches: what is given, where it goes on, what is left to plain reads."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from cometmq.filter.sql92 import SqlFilter
from cometmq.message.properties import decode
from cometmq.message.record import Record, iter_decode
from cometmq.store import resident, sifting
from cometmq.store.consumequeue import ConsumeQueue
from cometmq.store.engine import MessageStore
from cometmq.store.gathered import Gathered, Run
from cometmq.store.reader import MAX_SCANNED_ENTRIES, Query, ReadResult, ReadStatus
from cometmq.store.sifting import Matcher, Sifter
from cometmq.store.verdicts import Verdicts
from tests.store.stores import opened, put

#: Records of 1 KiB and more: a log file holds some 60.
FILE_BYTES = 1 << 16


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    made = opened(tmp_path, mapped_file_size_commit_log=FILE_BYTES)
    for number in range(100):
        put(made, "t", 0, bytes(900), tag=str(number))
        put(made, "other", 0, b"between")
    made.commit()
    return made


class Tagged:
    """Matches by the number in a message's tag."""

    def __init__(self, wanted: Callable[[int], bool]) -> None:
        self._wanted = wanted
        self.expression, self.weight = "", 1
        self.looked_at: list[int] = []

    def select(self, texts: Sequence[str]) -> list[int]:
        tags = [int(text.partition("TAGS\x01")[2].partition("\x02")[0]) for text in texts]
        self.looked_at += tags
        return [number for number, tag in enumerate(tags) if self._wanted(tag)]


def look(
    store: MessageStore,
    wanted: Callable[[int], bool] | Tagged,
    offset: int = 0,
    max_count: int = 32,
    max_bytes: int = 1 << 18,
    topic: str = "t",
    sifter: Sifter | None = None,
) -> ReadResult | None:
    query = Query(store.queue(topic, 0), offset, max_count, max_bytes, None)
    matcher = wanted if isinstance(wanted, Tagged) else Tagged(wanted)
    return (sifter or Sifter()).read(query, store.log, store.limits, matcher)


def offsets(result: ReadResult) -> list[int]:
    found = [record.queue_offset for chunk in result.chunks for record in iter_decode(chunk)]
    assert len(found) == result.count
    assert sum(map(len, result.chunks)) == result.size_bytes
    return found


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("recent", [True, False])
def test_what_matches_is_given_over_blocks_and_files(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, copies: bool, recent: bool
) -> None:
    if not copies:
        monkeypatch.setattr(sifting, "_MAX_COPY_BYTES", 0)
    if not recent:
        monkeypatch.setattr(resident, "RECENT_BYTES", -1)
    result = look(store, lambda number: number % 7 == 3)
    assert result is not None
    assert (result.status, result.next_offset) == (ReadStatus.FOUND, 100)
    assert offsets(result) == list(range(3, 100, 7))
    store.close()


def test_records_that_lie_next_to_each_other(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(40):
        put(store, "t", 0, b"body", tag=str(number))
    store.commit()
    result = look(store, lambda number: number % 7 == 3)
    assert result is not None
    assert offsets(result) == list(range(3, 40, 7))
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
    sifter, offset = Sifter(), 0
    found: list[Record] = []
    queue = store.queue("t", queue_id)
    while offset < queue.max_offset:
        query = Query(queue, offset, 32, 1 << 18, None)
        result = sifter.read(query, store.log, store.limits, sql)
        assert result is not None
        found += [record for chunk in result.chunks for record in iter_decode(chunk)]
        offset = result.next_offset
    return found


def test_it_goes_on_behind_what_was_looked_at(store: MessageStore) -> None:
    first = look(store, lambda number: number % 10 == 0, max_count=3)
    assert first is not None
    # Nothing matches before offset 30, so there is no need to look there again.
    assert (offsets(first), first.next_offset) == ([0, 10, 20], 30)
    second = look(store, lambda number: number % 10 == 0, offset=30, max_count=3)
    assert second is not None
    assert offsets(second) == [30, 40, 50]
    assert 50 < second.next_offset <= 60  # the block ended with a file
    store.close()


@pytest.mark.parametrize("copies", [True, False])
def test_what_was_looked_at_is_not_looked_at_again(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, copies: bool
) -> None:
    if not copies:
        monkeypatch.setattr(sifting, "_MAX_COPY_BYTES", 0)
    sifter, every_third = Sifter(), Tagged(lambda number: number % 3 == 0)
    seen: list[int] = []
    offset = 0
    while offset < 100:
        result = look(store, every_third, offset, max_count=4, sifter=sifter)
        assert result is not None
        seen += offsets(result)
        offset = result.next_offset
    assert seen == list(range(0, 100, 3))
    assert sorted(set(every_third.looked_at)) == list(range(100))
    assert len(every_third.looked_at) == 100
    store.close()


def test_what_somebody_looked_at_is_known_to_others_who_want_the_same(store: MessageStore) -> None:
    sifter, every_seventh = Sifter(), Tagged(lambda number: number % 7 == 5)
    for offset, max_count, max_bytes in ((0, 32, 1 << 18), (0, 3, 1 << 18), (13, 32, 5_000)):
        seen: list[int] = []
        at = offset
        while at < 100:
            result = look(store, every_seventh, at, max_count, max_bytes, sifter=sifter)
            assert result is not None
            assert result.next_offset > at
            assert result.count <= max_count
            seen += offsets(result)
            at = result.next_offset
        assert seen == [number for number in range(offset, 100) if number % 7 == 5]
    assert len(every_seventh.looked_at) == 100
    store.close()


class Seer:
    """Has looked at the second page of a queue already, and maybe gathered a part of it; hears who
    reads on."""

    def __init__(self, store: MessageStore, wanted: Tagged, gathers: bool) -> None:
        self.verdicts = Verdicts()
        self.gathered = Gathered()
        queue = store.queue("t", 0)
        seen = [number - 256 for number in range(256, 512) if number % 3 == 0]
        self.verdicts.put(queue, wanted, 256, 256, seen)
        if gathers:
            self.gather(store, wanted, 256, [256 + each for each in seen[:60]], 256 + seen[60])
        self.heard: list[tuple[int, int]] = []

    def gather(
        self, store: MessageStore, wanted: Tagged, first: int, offsets: Sequence[int], stop: int
    ) -> None:
        queue = store.queue("t", 0)
        reads = [store.read("t", 0, each, 1, 1 << 20, None) for each in offsets]
        records = [chunk for each in reads for chunk in each.chunks]
        bounds = [*accumulate(map(len, records), initial=0)]
        numbers = [each - first for each in offsets]
        run = Run(queue.restarts, first, stop, numbers, bounds, b"".join(records))
        self.gathered.put(queue, wanted, run)

    def read_on(self, queue: ConsumeQueue, wanted: Matcher, start: int, position: int) -> None:
        self.heard.append((start, position))


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize(
    ("max_count", "max_bytes"), [(32, 4_000), (32, 600), (3, 4_000), (1, 0), (32, 0)]
)
def test_what_another_has_seen_ahead_is_not_looked_at(
    tmp_path: Path, max_count: int, max_bytes: int, gathers: bool
) -> None:
    store = opened(
        tmp_path,
        mapped_file_size_commit_log=FILE_BYTES,
        mapped_file_size_consume_queue=20 * 300,
    )
    for number in range(700):
        put(store, "t", 0, b"", tag=str(number))
    store.commit()
    every_third = Tagged(lambda number: number % 3 == 0)
    seer = Seer(store, every_third, gathers)
    sifter, position = Sifter(seer), 0
    seen: list[int] = []
    while position < 700:
        result = look(store, every_third, position, max_count, max_bytes, sifter=sifter)
        assert result is not None
        assert result.count <= max_count
        assert result.size_bytes <= max_bytes or result.count == 1
        assert seer.heard.pop() == (position, result.next_offset)
        seen += offsets(result)
        position = result.next_offset
    assert seen == list(range(0, 700, 3))
    assert every_third.looked_at == [*range(256), *range(512, 700)]
    assert seer.gathered.held_bytes == 0
    store.close()


def test_a_record_larger_than_an_answer_comes_alone(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_commit_log=1 << 20)
    for number in range(20):
        put(store, "t", 0, bytes(5_000 if number in (7, 12) else 50), tag=str(number))
    store.commit()
    everything = Tagged(lambda _: True)
    for stops in ([20], [8, 20], [7, 8, 20], [8, 12, 13, 20]):
        seer = Seer(store, everything, gathers=False)
        for first, stop in pairwise([0, *stops]):
            seer.gather(store, everything, first, range(first, stop), stop)
        sifter, position, seen = Sifter(seer), 0, list[int]()
        while position < 20:
            result = look(store, everything, position, 32, 1_000, sifter=sifter)
            assert result is not None
            assert result.status is ReadStatus.FOUND
            assert result.size_bytes <= 1_000 or result.count == 1
            seen += offsets(result)
            position = result.next_offset
        assert seen == list(range(20))
    store.close()


def test_what_came_since_is_looked_at(store: MessageStore) -> None:
    sifter, even = Sifter(), Tagged(lambda number: number % 2 == 0)
    assert look(store, even, 90, sifter=sifter) is not None
    for number in range(100, 110):
        put(store, "t", 0, b"", tag=str(number))
    store.commit()
    result = look(store, even, 90, sifter=sifter)
    assert result is not None
    assert offsets(result) == list(range(90, 110, 2))
    assert len(even.looked_at) == 20
    store.close()


def test_what_waited_of_a_queue_that_begins_again_is_not_given(store: MessageStore) -> None:
    sifter, every = Sifter(), Tagged(lambda _: True)
    assert look(store, every, 80, max_count=4, sifter=sifter) is not None
    queue = store.queue("t", 0)
    queue.restart_at(82)
    queue.next_offset = queue.max_offset
    for number in range(18):
        put(store, "t", 0, b"", tag=str(number))
    store.commit()
    result = look(store, every, 84, sifter=sifter)
    assert result is not None
    assert offsets(result) == list(range(84, 100))
    found = [record for chunk in result.chunks for record in iter_decode(chunk)]
    assert [decode(record.properties)["TAGS"] for record in found] == [
        str(number) for number in range(2, 18)
    ]
    store.close()


def test_a_queue_that_begins_again_is_looked_at_again(store: MessageStore) -> None:
    sifter, even = Sifter(), Tagged(lambda number: number % 2 == 0)
    assert look(store, even, 80, sifter=sifter) is not None
    queue = store.queue("t", 0)
    queue.restart_at(90)
    queue.next_offset = queue.max_offset
    for number in range(10):
        put(store, "t", 0, b"", tag=str(number * 2 + 1))
    store.commit()
    result = look(store, even, 80, sifter=sifter)
    assert result is not None
    assert offsets(result) == list(range(80, 90, 2))
    store.close()


def test_a_read_elsewhere_looks_again(store: MessageStore) -> None:
    sifter, even = Sifter(), Tagged(lambda number: number % 2 == 0)
    for offset in (0, 40, 8, 8):
        result = look(store, even, offset, max_count=2, sifter=sifter)
        assert result is not None
        assert offsets(result) == [offset, offset + 2]
    store.close()


def test_few_looks_wait(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sifting, "_MAX_WAITING", 1)
    monkeypatch.setattr(sifting, "Verdicts", partial(Verdicts, 0))
    sifter, first, second = Sifter(), Tagged(lambda _: True), Tagged(lambda _: True)
    for offset in (0, 2, 4):
        for each in (first, second):
            result = look(store, each, offset, max_count=2, sifter=sifter)
            assert result is not None
            assert offsets(result) == [offset, offset + 1]
    assert first.looked_at.count(4) > 1
    store.close()


def test_an_answer_stays_below_its_size_and_is_never_empty(store: MessageStore) -> None:
    whole = look(store, lambda number: number < 4)
    assert whole is not None
    for max_bytes, count in ((whole.size_bytes, 4), (whole.size_bytes - 1, 3), (1, 1)):
        result = look(store, lambda number: number < 4, max_bytes=max_bytes)
        assert result is not None
        assert offsets(result) == list(range(count))
        assert result.next_offset == (100 if count == 4 else count)
    store.close()


def test_nothing_matches(store: MessageStore) -> None:
    result = look(store, lambda _: False)
    assert result is not None
    assert (result.status, result.next_offset, result.count) == (
        ReadStatus.NO_MATCHED_MESSAGE, 100, 0,
    )  # fmt: skip
    for _ in range(MAX_SCANNED_ENTRIES):
        put(store, "t", 0, b"more", tag="0")
    store.commit()
    bounded = look(store, lambda _: False)
    assert bounded is not None
    assert bounded.next_offset == MAX_SCANNED_ENTRIES
    store.close()


@pytest.mark.parametrize(("topic", "offset"), [("t", -1), ("t", 100), ("empty", 0)])
def test_offsets_outside_are_left_to_a_read(store: MessageStore, topic: str, offset: int) -> None:
    assert look(store, lambda _: True, offset=offset, topic=topic) is None
    store.close()


def test_what_is_not_at_hand_is_left_to_a_read(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "RECENT_BYTES", -1)
    first = store.log.segments.find(0)
    assert first is not None
    first.view  # noqa: B018 - the map that is asked for
    first._is_resident = lambda _start, _stop: False
    assert look(store, lambda _: True) is None
    store.log.hot_bytes = 0
    assert look(store, lambda _: True, offset=99) is None
    store.close()


def test_holes_are_left_to_a_read(store: MessageStore) -> None:
    queue = store.queue("holes", 0)
    put(store, "holes", 0, b"first", tag="1")
    store.commit()
    queue.fill_to(3)
    assert look(store, lambda _: True, topic="holes") is None
    store.close()
