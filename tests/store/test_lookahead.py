"""What the looker is asked for: how far ahead, of which consumers, and which answers count."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from cometmq.store import gathered
from cometmq.store.consumequeue import ConsumeQueue
from cometmq.store.engine import MessageStore
from cometmq.store.gathered import Gathered, Piece
from cometmq.store.layout import QUEUE_ENTRY_BYTES
from cometmq.store.lookahead import (
    MAX_ASKED,
    MAX_EXPRESSION,
    MIN_LEFT,
    STEADY_READS,
    WINDOW,
    Asked,
    LookAhead,
    Wanted,
)
from cometmq.store.verdicts import PAGE_ENTRIES, Verdicts
from tests.store.stores import opened, put

FILE_BYTES = 1 << 20
LENGTH = 30_000


@dataclass(frozen=True)
class Words:
    """A filter by its expression alone."""

    expression: str = "a = 1"


WORDS = Words()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MessageStore:
    made = opened(
        tmp_path_factory.mktemp("store"),
        mapped_file_size_commit_log=FILE_BYTES,
        mapped_file_size_consume_queue=6_000_000,
    )
    for number in range(LENGTH):
        put(made, "t", 0, b"")
        if not number % 10:
            put(made, "short", 0, b"")
        if not number % 500:
            made.commit()
    made.commit()
    return made


class Readers:
    """Consumers that read on, and what is asked for them."""

    def __init__(self, store: MessageStore, topic: str = "t") -> None:
        self.verdicts = Verdicts()
        self.known: set[tuple[ConsumeQueue, Wanted]] = set()
        self.gathered = Gathered()
        self.ahead = LookAhead(store.log, self.verdicts, self.gathered)
        self.queue: ConsumeQueue = store.queue(topic, 0)

    def read(self, *positions: int, wanted: Wanted = WORDS) -> bool:
        """Go on from each position to the next; gives whether something is to be asked for."""
        due = False
        if (self.queue, wanted) not in self.known:
            self.known.add((self.queue, wanted))
            due = self.ahead.read_on(self.queue, wanted, positions[0], positions[0])
        for start, position in pairwise(positions):
            due = self.ahead.read_on(self.queue, wanted, start, position)
        return due

    def steady(self, wanted: Wanted = WORDS) -> int:
        """One who read on for so long that records are gathered for it; gives where it is."""
        self.read(*range(STEADY_READS + 1), wanted=wanted)
        return STEADY_READS

    def asked(self) -> Asked:
        found = self.ahead.next()
        assert found is not None
        return found

    def answered(
        self,
        asked: Asked,
        numbers: list[int] | None,
        ends: list[int] | None = None,
        records: bytes = b"",
    ) -> bool:
        return self.ahead.answered(asked, numbers, ends or [], records)


def test_only_who_reads_on_is_looked_ahead_for(store: MessageStore) -> None:
    readers = Readers(store)
    assert not readers.read(0)
    assert readers.ahead.next() is None
    assert not readers.ahead.read_on(readers.queue, Words(), 500, 532)
    assert readers.ahead.next() is None
    assert readers.ahead.read_on(readers.queue, Words(), 532, 564)
    assert readers.asked().offset > 564


def test_a_request_names_whole_pages_in_one_file(store: MessageStore) -> None:
    readers = Readers(store)
    position, seen = 0, set()
    readers.read(0)
    while readers.read(position, position + 100):
        asked = readers.asked()
        assert asked.offset % PAGE_ENTRIES == 0
        assert asked.size == len(asked.entries) // QUEUE_ENTRY_BYTES <= MAX_ASKED
        places = readers.queue.read(asked.offset, asked.size)
        assert places == asked.entries
        seen.add(asked.file.base)
        first = int.from_bytes(asked.entries[:8], "big")
        last = int.from_bytes(asked.entries[-QUEUE_ENTRY_BYTES : 8 - QUEUE_ENTRY_BYTES], "big")
        assert asked.file.base <= first < last < asked.file.end
        assert readers.ahead.next() is None  # one request a consumer
        readers.answered(asked, [])
        position += 100
        readers.read(position, asked.offset)
        position = asked.offset
    assert len(seen) > 2
    assert position > LENGTH - MAX_ASKED - MIN_LEFT - 2 * PAGE_ENTRIES


def test_it_begins_where_the_consumer_will_be_when_the_answer_comes(store: MessageStore) -> None:
    readers = Readers(store)
    readers.read(0, 32)
    first = readers.asked()
    readers.read(32, 3_032)
    assert readers.answered(first, [])
    second = readers.asked()
    assert 3_032 + 3_000 < second.offset < 3_032 + 3_000 * 1.5
    readers.read(3_032, 3_132)
    readers.answered(second, [])
    assert readers.asked().offset == second.offset + second.size


def test_no_further_than_the_window_and_not_for_who_stands_still(store: MessageStore) -> None:
    readers = Readers(store)
    position = 0
    while readers.read(position, position + 1):
        position += 1
        asked = readers.asked()
        readers.answered(asked, [])
        assert readers.ahead.next() is None
    assert WINDOW <= asked.offset + asked.size < WINDOW + MAX_ASKED + PAGE_ENTRIES


def test_of_what_is_known_the_records_are_asked_for(store: MessageStore) -> None:
    readers = Readers(store)
    third = [*range(0, 5_000, 3)]
    readers.verdicts.put(readers.queue, WORDS, 0, 5_000, third)
    at = readers.steady()
    first = readers.asked()
    inside = range(first.offset, first.offset + first.size)
    assert first.known == [each - first.offset for each in third if each in inside]
    assert readers.answered(first, first.known, [2], b"aa")
    assert readers.gathered.find(readers.queue, WORDS, first.offset) is not None
    readers.read(at, at + 1)
    second = readers.asked()
    assert second.offset == first.offset + first.size
    assert second.known is None  # not of all of them
    short = Readers(store, "short")
    short.verdicts.put(short.queue, WORDS, 0, short.queue.max_offset, third)
    short.read(*range(0, 1_000, 100))
    rest = short.asked()
    assert rest.size % PAGE_ENTRIES
    inside = range(rest.offset, rest.offset + rest.size)
    assert rest.known == [each - rest.offset for each in third if each in inside]


def test_what_is_known_is_not_asked_for_again(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathered, "MAX_HELD_BYTES_EACH", 0)
    readers = Readers(store)
    readers.verdicts.put(readers.queue, Words(), 0, 8_192, [])
    readers.read(0, 1)
    assert readers.asked().offset == 8_192
    others = Readers(store)
    others.verdicts.put(others.queue, Words(), 0, LENGTH, [])
    for position in range(0, 2_000, 100):
        others.read(position, position + 100)
        assert others.ahead.next() is None


def test_whoever_has_least_ahead_comes_first(store: MessageStore) -> None:
    readers = Readers(store)
    one, other = Words("a = 1"), Words("a = 2")
    for wanted in (one, other):
        readers.read(0, 1, wanted=wanted)
    first = readers.asked()
    second = readers.asked()
    assert {first.reader.wanted, second.reader.wanted} == {one, other}
    readers.answered(first, [])
    readers.read(1, 2, wanted=first.reader.wanted)
    readers.answered(second, [])
    readers.read(1, 1_500, wanted=second.reader.wanted)
    assert readers.asked().reader is second.reader


def test_a_jump_begins_anew(store: MessageStore) -> None:
    readers = Readers(store)
    readers.read(20_000, 20_001)
    readers.answered(readers.asked(), [])
    assert not readers.ahead.read_on(readers.queue, Words(), 0, 32)
    assert readers.ahead.read_on(readers.queue, Words(), 32, 64)
    assert readers.asked().offset < 4_000


def test_a_short_rest_of_a_queue_and_long_expressions_are_left(store: MessageStore) -> None:
    readers = Readers(store, "short")
    length = readers.queue.max_offset
    assert not readers.read(length - 700, length - 600)
    assert not readers.read(0, 32, wanted=Words("a" * (MAX_EXPRESSION + 1)))
    assert readers.ahead.next() is None


def test_an_answer_counts_once(store: MessageStore) -> None:
    readers = Readers(store)
    readers.read(0, 32)
    asked = readers.asked()
    assert readers.verdicts.find(readers.queue, Words(), asked.offset) is None
    assert readers.answered(asked, [0, 255, 256])
    found = readers.verdicts.find(readers.queue, Words(), asked.offset)
    assert found == (PAGE_ENTRIES, [0, 255])
    assert readers.verdicts.find(readers.queue, Words(), asked.offset + 256) == (256, [0])


def test_an_answer_about_what_is_no_more_does_not(tmp_path: Path) -> None:
    made = opened(
        tmp_path, mapped_file_size_commit_log=FILE_BYTES, mapped_file_size_consume_queue=600_000
    )
    for _ in range(12_000):
        put(made, "t", 0, b"")
    made.commit()
    readers = Readers(made)

    def asked_anew(position: int) -> Asked:
        readers.read(position, position + 1)
        return readers.asked()

    unseen = asked_anew(0)
    assert not readers.answered(unseen, None)
    begun_again = asked_anew(1)
    readers.queue.restart_at(11_000)
    assert not readers.answered(begun_again, [0])
    dropped = asked_anew(2)
    dropped.file.closed = True
    assert not readers.answered(dropped, [0])
    dropped.file.closed = False
    readers.ahead.forget()
    readers.read(3, 4)
    asked_anew(4)
    assert readers.verdicts.find(readers.queue, Words(), begun_again.offset) is None
    made.close()


def test_records_that_came_along_are_held(store: MessageStore) -> None:
    readers = Readers(store)
    readers.steady()
    asked = readers.asked()
    assert asked.gathers
    assert readers.answered(asked, [5, 7, 300], [2, 5], b"aabbb")
    start = asked.offset
    run = readers.gathered.find(readers.queue, WORDS, start)
    assert run is not None
    # The third one was not gathered: it is only known to match.
    assert run.piece(start, 32, 100) == Piece(memoryview(b"aabbb"), 2, start + 300)
    assert readers.gathered.find(readers.queue, WORDS, start + 300) is None
    assert readers.verdicts.find(readers.queue, WORDS, start + 256) == (256, [44])


def test_all_that_match_came_along(store: MessageStore) -> None:
    readers = Readers(store)
    readers.steady()
    asked = readers.asked()
    assert readers.answered(asked, [5], [2], b"aa")
    run = readers.gathered.find(readers.queue, WORDS, asked.offset)
    assert run is not None
    stop = asked.offset + asked.size
    assert run.piece(asked.offset, 32, 100) == Piece(memoryview(b"aa"), 1, stop)


def test_who_has_much_before_it_gets_verdicts_alone(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathered, "MAX_HELD_BYTES_EACH", 2)
    readers = Readers(store)
    at = readers.steady()
    first = readers.asked()
    assert readers.answered(first, [5], [2], b"aa")
    readers.read(at, at + 32)
    second = readers.asked()
    assert (first.gathers, second.gathers) == (True, False)


def test_records_are_held_for_who_reads_on(store: MessageStore) -> None:
    readers = Readers(store)
    readers.steady()
    assert readers.answered(readers.asked(), [5], [2], b"aa")
    assert readers.gathered.held_bytes == 2
    assert not readers.ahead.read_on(readers.queue, WORDS, 25_000, 25_000)
    assert readers.gathered.held_bytes == 0
    readers.read(*range(25_000, 25_000 + STEADY_READS + 1))
    asked = readers.asked()
    assert asked.gathers
    readers.ahead.forget()
    assert readers.answered(asked, [5], [2], b"aa")
    assert readers.gathered.held_bytes == 0


def test_an_answer_that_comes_after_a_jump_is_not_in_the_way(store: MessageStore) -> None:
    readers = Readers(store)
    readers.read(*range(20_000, 20_000 + STEADY_READS + 1))
    before = readers.asked()
    assert not readers.ahead.read_on(readers.queue, WORDS, 0, 0)
    assert readers.answered(before, [5], [2], b"aa")
    assert readers.gathered.held_bytes == 0
    readers.read(*range(STEADY_READS + 1))
    asked = readers.asked()
    assert readers.answered(asked, [5], [2], b"aa")
    assert readers.gathered.find(readers.queue, WORDS, asked.offset) is not None


def test_one_that_follows_another_is_no_jump(store: MessageStore) -> None:
    readers = Readers(store)
    at = readers.steady()
    asked = readers.asked()
    for follower in range(0, at, 64):
        assert not readers.ahead.read_on(readers.queue, WORDS, follower, follower + 64)
    assert readers.answered(asked, [5, 7], [2, 4], b"aabb")
    run = readers.gathered.find(readers.queue, WORDS, asked.offset)
    assert run is not None
    readers.read(at, at + 64)
    second = readers.asked()
    assert second.offset == asked.offset + asked.size
    # It overtakes: from there on it is the one who reads on.
    assert not readers.ahead.read_on(readers.queue, WORDS, at, at + 128)
    assert not readers.ahead.read_on(readers.queue, WORDS, at + 128, at + 192)
    assert readers.ahead.next() is None


def test_two_that_are_far_from_each_other_get_verdicts_alone(store: MessageStore) -> None:
    readers = Readers(store)
    one, other = 0, 25_000
    asked_of = 0
    for _ in range(20):
        for _ in range(3):
            readers.ahead.read_on(readers.queue, WORDS, one, one + 64)
            one += 64
        while (asked := readers.ahead.next()) is not None:
            assert not asked.gathers
            asked_of += asked.size
            readers.answered(asked, [])
        readers.ahead.read_on(readers.queue, WORDS, other, other + 64)
        other += 64
    assert 0 < asked_of < LENGTH


def test_where_nothing_matches_nobody_is_asked(store: MessageStore) -> None:
    readers = Readers(store)
    readers.verdicts.put(readers.queue, WORDS, 0, LENGTH, [20_000])
    readers.read(*range(STEADY_READS + 1))
    assert readers.ahead.next() is None
    assert not readers.read(STEADY_READS, 100)  # nor is there anything to be asked for soon
    assert readers.read(100, 10_000)
    asked = readers.asked()
    assert asked.known is not None
    assert [asked.offset + each for each in asked.known] == [20_000]


def test_a_queue_that_is_gone_is_forgotten(store: MessageStore) -> None:
    readers = Readers(store)
    at = readers.steady()
    assert readers.answered(readers.asked(), [5], [2], b"aa")
    readers.ahead.forget_queue(store.queue("short", 0))
    assert readers.gathered.held_bytes == 2
    readers.ahead.forget_queue(readers.queue)
    assert readers.gathered.held_bytes == 0
    assert not readers.ahead.read_on(readers.queue, WORDS, at, at + 1)


def test_who_did_not_come_for_long_is_forgotten(store: MessageStore) -> None:
    readers = Readers(store)
    readers.steady()
    assert readers.answered(readers.asked(), [5], [2], b"aa")
    for number in range(64):
        readers.read(0, 1, wanted=Words(f"b = {number}"))
    assert readers.gathered.held_bytes == 0


def test_bytes_that_are_not_proven_and_far_ones_are_left(store: MessageStore) -> None:
    readers = Readers(store)
    readers.read(0, 32)
    file = store.log.segments.files[0]
    file.unproven = bytearray(b"\1" * 100)
    assert readers.ahead.next() is None
    file.unproven = None
    readers.read(32, 64)
    hot_bytes, store.log.hot_bytes = store.log.hot_bytes, 0
    assert readers.ahead.next() is None
    store.log.hot_bytes = hot_bytes
    readers.read(64, 96)
    assert readers.ahead.next() is not None
