"""The table of known queues: both cores find the same, whatever was added and removed."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import cores


def queue_of(core: SimpleNamespace, topic: bytes, queue_id: int) -> Any:
    queue = core.QueueState()
    queue.topic_tail = bytes((len(topic),)) + topic
    queue.queue_id = queue_id
    return queue


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "forget", "clear"]),
        st.sampled_from([b"t", b"topic-of-8", b"12345678", "ü漢".encode(), b"x" * 127]),
        st.integers(0, 3),
    ),
    max_size=60,
)


@given(_STEPS)
def test_both_cores_find_the_same(steps: list[tuple[str, bytes, int]]) -> None:
    found = []
    for core in cores():
        known, made, seen = core.KnownQueues(), [], []
        for step, topic, queue_id in steps:
            if step == "add":
                made.append(queue_of(core, topic, queue_id))
                known.add(made[-1])
            elif step == "clear":
                known.clear()
            elif (queue := known.get(topic, queue_id)) is not None:
                known.forget(queue)
            queue = known.get(topic, queue_id)
            seen.append((len(known), None if queue is None else made.index(queue)))
        found.append(seen)
    assert found == found[:1] * len(found)


def test_a_table_that_grows_keeps_and_releases_its_queues(core: SimpleNamespace) -> None:
    rng = random.Random(7)
    known = core.KnownQueues()
    queues = {
        (b"wide-%d" % topic, number): queue_of(core, b"wide-%d" % topic, number)
        for topic in range(1_000)
        for number in range(10)
    }
    one = queues[b"wide-0", 0]
    before = sys.getrefcount(one)
    for _ in range(3):
        for queue in queues.values():
            known.add(queue)
        assert len(known) == len(queues)
        assert all(known.get(*key) is queue for key, queue in queues.items())
        for queue in rng.sample([*queues.values()], 5_000):
            known.forget(queue)
        assert len(known) == 5_000
        assert sum(known.get(*key) is queue for key, queue in queues.items()) == 5_000
    known.clear()
    assert (len(known), known.get(b"wide-0", 0)) == (0, None)
    assert sys.getrefcount(one) == before
    known.add(one)
    del known
    assert sys.getrefcount(one) == before


def test_a_queue_that_refers_to_its_table_is_freed_with_it(core: SimpleNamespace) -> None:
    class Queue(core.QueueState):  # type: ignore[misc, name-defined]
        pass

    queue = Queue()
    queue.topic_tail, queue.queue_id = b"\x04loop", 0
    queue.known = core.KnownQueues()
    queue.known.add(queue)
    freed = weakref.ref(queue)
    del queue
    gc.collect()
    assert freed() is None


def test_a_queue_at_two_places_is_kept_until_it_leaves_both(core: SimpleNamespace) -> None:
    known = core.KnownQueues()
    queue = queue_of(core, b"t", 1)
    known.add(queue)
    queue.queue_id = 2
    known.add(queue)
    known.forget(queue)
    before = sys.getrefcount(queue)
    assert known.get(b"t", 2) is None
    queue.queue_id = 1
    assert known.get(b"t", 1) is queue
    known.forget(queue)
    assert sys.getrefcount(queue) == before - 1


def test_the_destructor_of_a_queue_does_not_meet_it_in_the_table(core: SimpleNamespace) -> None:
    known = core.KnownQueues()
    met = []

    class Queue(core.QueueState):  # type: ignore[misc, name-defined]
        def __del__(self) -> None:
            met.append(known.get(b"t", 1) is self)

    for _ in range(3):
        queue = Queue()
        queue.topic_tail, queue.queue_id = b"\x01t", 1
        known.add(queue)
        del queue
    assert met == [False, False]
    known.clear()
    assert met == [False, False, False]


def test_another_queue_of_the_same_name_replaces_one(core: SimpleNamespace) -> None:
    known = core.KnownQueues()
    old, new = (queue_of(core, b"t", 1) for _ in range(2))
    known.add(old)
    known.add(new)
    assert (len(known), known.get(b"t", 1)) == (1, new)
    known.forget(old)
    assert known.get(b"t", 1) is new
    for topic, queue_id in ((b"t", 0), (b"t", -1), (b"", 1), (b"tt", 1)):
        assert known.get(topic, queue_id) is None


def test_a_queue_needs_a_topic(core: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="without a topic"):
        core.KnownQueues().add(core.QueueState())
