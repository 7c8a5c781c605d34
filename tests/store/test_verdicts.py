"""What is known of messages that somebody looked at."""

from pathlib import Path
from random import Random

import pytest

from cometmq.store.consumequeue import ConsumeQueue
from cometmq.store.files import PosixFiles
from cometmq.store.queuefiles import QueueFiles
from cometmq.store.verdicts import Verdicts


@pytest.fixture
def queue(tmp_path: Path) -> ConsumeQueue:
    return ConsumeQueue(QueueFiles(PosixFiles(), str(tmp_path), 800), "t", 0)


def test_what_is_known_is_what_was_found(queue: ConsumeQueue) -> None:
    chance = Random(1)
    truth = [chance.random() < 0.3 for _ in range(2_000)]
    verdicts, matcher, seen = Verdicts(), object(), [False] * 2_000
    for _ in range(300):
        first = chance.randrange(2_000)
        stop = min(first + chance.randrange(1, 400), 2_000)
        numbers = [n for n in range(stop - first) if truth[first + n]]
        verdicts.put(queue, matcher, first, stop - first, numbers)
        seen[first:stop] = [True] * (stop - first)
        at = chance.randrange(2_000)
        found = verdicts.find(queue, matcher, at)
        if found is not None:
            count, numbers = found
            assert count > 0
            assert all(seen[at : at + count])
            assert numbers == [n for n in range(count) if truth[at + n]]


def test_what_follows_is_added(queue: ConsumeQueue) -> None:
    verdicts, matcher = Verdicts(), object()
    for first in range(0, 256, 8):
        verdicts.put(queue, matcher, first, 8, [0])
    assert verdicts.find(queue, matcher, 0) == (256, list(range(0, 256, 8)))
    assert verdicts.find(queue, matcher, 250) == (6, [])
    assert verdicts.find(queue, matcher, 256) is None


def test_only_those_who_want_the_same_know(queue: ConsumeQueue) -> None:
    verdicts, matcher = Verdicts(), object()
    verdicts.put(queue, matcher, 10, 1, [0])
    assert verdicts.find(queue, matcher, 10) == (1, [0])
    assert verdicts.find(queue, matcher, 9) is None
    assert verdicts.find(queue, object(), 10) is None
    queue.restart_at(0)
    assert verdicts.find(queue, matcher, 10) is None


def test_so_many_matchers_are_kept(queue: ConsumeQueue) -> None:
    verdicts, matchers = Verdicts(max_matchers=3), [object() for _ in range(6)]
    for matcher in matchers:
        verdicts.put(queue, matcher, 0, 1_000, [3])
    known = [verdicts.find(queue, matcher, 0) is not None for matcher in matchers]
    assert known == [False] * 3 + [True] * 3
    for page in range(3):
        verdicts.put(queue, matchers[5], page * 256, 256, [])
    assert verdicts.find(queue, matchers[3], 0) is not None
    assert len(verdicts._pages) == 12


def test_the_pages_that_nobody_asked_for_longest_go(queue: ConsumeQueue) -> None:
    verdicts, matcher = Verdicts(max_pages=2), object()
    for page in (0, 1):
        verdicts.put(queue, matcher, page * 256, 1, [0])
    assert verdicts.find(queue, matcher, 0) is not None
    verdicts.put(queue, matcher, 512, 1, [0])
    known = [verdicts.find(queue, matcher, page * 256) is not None for page in range(3)]
    assert known == [True, False, True]
