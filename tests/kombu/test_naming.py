"""Queues as topics."""

from __future__ import annotations

import pytest

from cometmq.kombu.delays import level_within_ms
from cometmq.kombu.naming import queue_of, topic_of
from cometmq.message.names import has_legal_characters


@pytest.mark.parametrize("queue", ["celery", "a.b@c", "a|2eb", "50%", "här", "x|p3", "", "a b\n"])
def test_names_are_legal_and_come_back(queue: str) -> None:
    for priority in (0, 3):
        topic = topic_of(queue, priority)
        assert has_legal_characters(topic) or not topic
        assert queue_of(topic) == queue


def test_names_differ() -> None:
    queues = ["a.b", "a|2eb", "a|p3", "a"]
    topics = {topic_of(queue, priority) for queue in queues for priority in (0, 3)}
    assert len(topics) == 2 * len(queues)


@pytest.mark.parametrize(
    ("left_ms", "level"),
    [(0, 0), (999, 0), (1_000, 1), (9_999, 2), (59_000, 4), (3_600_000, 17), (10**9, 18)],
)
def test_the_level_ends_in_time(left_ms: int, level: int) -> None:
    assert level_within_ms(left_ms) == level
