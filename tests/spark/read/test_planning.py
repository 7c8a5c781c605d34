"""Ranges, caps and tasks."""

from hypothesis import given
from hypothesis import strategies as st

from cometmq.message.model import MessageQueue
from cometmq.spark.read.planning import (
    Range,
    advance,
    backward,
    cap,
    interleave,
    join,
    ranges,
    split,
    tasks,
)

QUEUES = [MessageQueue("T", f"broker-{name}", at) for name in "ab" for at in range(3)]
A, B, C = QUEUES[:3]
VECTORS = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 10_000))


def test_ranges_are_sorted_and_not_empty() -> None:
    found = ranges({A: 5, B: 7}, {C: 3, B: 7, A: 9})
    assert found == [Range(A, 5, 9), Range(C, 0, 3)]


def test_a_queue_that_lost_its_end_is_named_and_gives_nothing() -> None:
    assert backward({A: 5, B: 7}, {A: 4, B: 7}) == [A]
    assert ranges({A: 5}, {A: 4}) == []


def test_a_queue_whose_broker_is_away_stays_where_it_was() -> None:
    assert advance({A: 5, B: 7}, {B: 9}) == {A: 5, B: 9}


@given(VECTORS, VECTORS, st.integers(1, 5_000))
def test_a_cap_takes_from_every_queue_and_adds_up(
    start: dict[MessageQueue, int], end: dict[MessageQueue, int], rows_max: int
) -> None:
    whole, capped = ranges(start, end), cap(start, end, rows_max)
    taken = ranges(start, capped)
    total = sum(map(len, whole))
    assert [part.queue for part in taken] == [part.queue for part in whole]
    assert sum(map(len, taken)) == min(total, max(rows_max, len(whole)))
    assert all(0 < len(some) <= len(part) for some, part in zip(taken, whole, strict=True))
    assert {queue: capped[queue] for queue in capped if queue not in {p.queue for p in whole}} == {
        queue: end[queue] for queue in end if queue not in {p.queue for p in whole}
    }


def test_a_cap_is_shared_in_proportion() -> None:
    assert cap({A: 0, B: 0}, {A: 900, B: 100}, 100) == {A: 89, B: 11}
    assert cap({}, {A: 1_000_000, B: 1, C: 1}, 100) == {A: 98, B: 1, C: 1}


@given(VECTORS, VECTORS, st.integers(1, 9), st.integers(1, 3_000), st.integers(1, 3_000))
def test_tasks_hold_every_message_once(
    start: dict[MessageQueue, int],
    end: dict[MessageQueue, int],
    tasks_min: int,
    rows_max: int,
    rows_min: int,
) -> None:
    todo = ranges(start, end)
    found = tasks(todo, tasks_min=tasks_min, rows_max=rows_max, rows_min=rows_min)
    pieces = [piece for task in found for piece in task]
    places = [(piece.queue, at) for piece in pieces for at in range(piece.start, piece.stop)]
    by_queue = sorted(places, key=lambda place: place[0])  # in a queue they stay in order
    assert by_queue == [(part.queue, at) for part in todo for at in range(part.start, part.stop)]
    assert all(task for task in found)
    assert all(sum(map(len, task)) <= max(rows_max, rows_min) for task in found)
    assert len(found) >= min(tasks_min, len(places)) or not places


def test_small_queues_share_a_task_and_long_ones_are_cut() -> None:
    small = [Range(queue, 0, 100) for queue in QUEUES]
    assert tasks(small) == [tuple(small)]
    found = tasks([Range(A, 0, 1_000_000)])
    assert [len(task[0]) for task in found] == [250_000] * 4
    assert len(tasks(small, tasks_min=6)) == 6


def test_pieces_are_even() -> None:
    pieces = split(Range(A, 0, 10), 4)
    assert [(piece.start, piece.stop) for piece in pieces] == [(0, 3), (3, 6), (6, 10)]
    assert join([], 10) == []


def test_a_thousand_almost_empty_queues_are_a_few_tasks() -> None:
    todo = [Range(MessageQueue("T", "broker-a", at), 7, 8) for at in range(1_000)]
    assert [len(task) for task in tasks(todo)] == [256, 256, 256, 232]


def test_brokers_take_turns() -> None:
    """Spark starts tasks in order: otherwise the first thousand would all go to one broker."""
    many = [MessageQueue("T", f"broker-{at:02}", queue) for at in range(10) for queue in range(4)]
    found = tasks([Range(queue, 0, 500_000) for queue in many])
    assert len(found) == 80
    for turn in range(8):
        assert len({task[0].queue.broker_name for task in found[turn * 10 : turn * 10 + 10]}) == 10
    uneven = [(Range(A, 0, 1),), (Range(A, 1, 2),), (Range(QUEUES[3], 0, 1),)]
    assert interleave(uneven, {}) == [uneven[0], uneven[2], uneven[1]]
    assert interleave([], {}) == []


def test_a_broker_with_more_tasks_has_more_turns() -> None:
    """Otherwise the end of a batch would be read from the fullest broker alone."""
    names = ["a"] * 6 + ["b"] * 2
    planned = [(Range(MessageQueue("T", name, at), 0, 1),) for at, name in enumerate(names)]
    found = interleave(planned, {})
    assert "".join(task[0].queue.broker_name for task in found) == "aabaaaba"
    assert sorted(found) == sorted(planned)


def test_racks_take_turns_among_the_brokers() -> None:
    many = [MessageQueue("T", f"broker-{at}", queue) for at in range(6) for queue in range(2)]
    racks = {"broker-0": "x", "broker-1": "x", "broker-2": "x", "broker-3": "y", "broker-4": "y"}
    found = tasks([Range(queue, 0, 250_000) for queue in many], racks=racks)
    names = [task[0].queue.broker_name[-1] for task in found]
    # Broker 5 is in no rack.
    assert "".join(names) == "035142" * 2
