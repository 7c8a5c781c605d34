"""Shares of a topic: complete and disjoint whatever the strategy, and each as Java computes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.consumer.allocate import (
    NAMED,
    ByConfig,
    ConsistentHash,
    Group,
    MachineRoom,
    MachineRoomNearby,
    Strategy,
    average,
    circle,
    ring_hash,
    share,
)
from cometmq.message.model import MessageQueue
from cometmq.message.names import Namespace

QUEUES = st.builds(
    lambda brokers, count: [
        MessageQueue("t", f"broker-{name}", at) for name in range(brokers) for at in range(count)
    ],
    st.integers(1, 3),
    st.integers(0, 20),
)
CLIENTS = st.lists(st.text("abc12@", min_size=1, max_size=4), min_size=1, max_size=9, unique=True)
STRATEGIES = st.sampled_from(
    [
        *NAMED.values(),
        ConsistentHash(3),
        MachineRoomNearby(lambda broker: broker[-1], lambda member: member[0], circle),
    ]
)


def shares(
    strategy: Strategy, queues: list[MessageQueue], clients: list[str]
) -> list[list[MessageQueue]]:
    """What each client gets, in the order of their ids."""
    return [share(strategy, "g", "t", queues, clients, each) for each in sorted(clients)]


def lettered(count: int) -> list[MessageQueue]:
    return [MessageQueue("t", "a", at) for at in range(count)]


@given(STRATEGIES, QUEUES, CLIENTS)
def test_shares_cover_everything_once(
    strategy: Strategy, queues: list[MessageQueue], clients: list[str]
) -> None:
    together = [queue for each in shares(strategy, queues, clients) for queue in each]
    assert sorted(together) == sorted(queues)


@given(st.sampled_from([average, circle]), QUEUES, CLIENTS)
def test_shares_are_even_and_earlier_members_get_the_larger_ones(
    strategy: Strategy, queues: list[MessageQueue], clients: list[str]
) -> None:
    sizes = [len(each) for each in shares(strategy, queues, clients)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(STRATEGIES, QUEUES, CLIENTS)
def test_the_order_of_what_is_given_does_not_matter(
    strategy: Strategy, queues: list[MessageQueue], clients: list[str]
) -> None:
    assert shares(strategy, queues[::-1], clients[::-1]) == shares(strategy, queues, clients)


@pytest.mark.parametrize(
    ("queues", "clients", "expected"),
    [(8, 3, [3, 3, 2]), (4, 4, [1, 1, 1, 1]), (2, 4, [1, 1, 0, 0]), (10, 4, [3, 3, 2, 2])],
)
def test_sizes(queues: int, clients: int, expected: list[int]) -> None:
    ids = [f"c{at}" for at in range(clients)]
    assert [len(each) for each in shares(average, lettered(queues), ids)] == expected


def test_average_shares_are_contiguous_and_circles_deal_out() -> None:
    queues = lettered(5)
    assert shares(average, queues, ["x", "y"]) == [queues[:3], queues[3:]]
    assert shares(circle, queues, ["x", "y"]) == [queues[::2], queues[1::2]]


def test_queues_sort_by_their_brokers_first_and_then_by_number() -> None:
    queues = [MessageQueue("t", "b", 0), MessageQueue("t", "a", 10), MessageQueue("t", "a", 9)]
    assert share(average, "g", "t", queues, ["x", "y"], "x") == [queues[2], queues[1]]


def test_members_sort_as_java_compares_them() -> None:
    # In UTF-16 the second is the smaller one.
    ids = ["\uffff", "\U00010000"]
    assert shares(average, lettered(1), ids) == [[], lettered(1)]


def test_who_is_not_a_member_gets_nothing_and_nobody_what_is_not_there() -> None:
    queues = lettered(2)
    assert share(average, "g", "t", queues, ["x"], "y") == []
    assert share(average, "g", "t", [], ["x"], "x") == []
    stranger = MessageQueue("u", "a", 0)
    assert share(lambda group: [stranger, *group.queues], "g", "t", queues, ["x"], "x") == queues


def test_by_config_the_named_queues_are_read_and_other_topics_shared() -> None:
    queues = lettered(3)
    mine = ByConfig([queues[2]])
    assert shares(mine, queues, ["x", "y"]) == [[queues[2]], [queues[2]]]
    other = [MessageQueue("u", "a", at) for at in range(2)]
    assert share(mine, "g", "u", other, ["x", "y"], "y") == other[1:]
    assert mine.wrapped(Namespace("ns")).queues == {MessageQueue("ns%t", "a", 2)}


def test_a_member_that_goes_leaves_the_others_what_they_had() -> None:
    queues = lettered(64)
    before = dict(zip("xyz", shares(ConsistentHash(), queues, ["x", "y", "z"]), strict=True))
    after = dict(zip("xz", shares(ConsistentHash(), queues, ["x", "z"]), strict=True))
    assert all(set(before[each]) <= set(after[each]) for each in "xz")


def test_the_ring_s_hash() -> None:
    assert ring_hash("") == 0xD41D8CD9


def test_rooms_that_are_not_named_are_read_by_nobody() -> None:
    queues = [MessageQueue("t", name, at) for name in ("b", "r@a", "s@a") for at in range(3)]
    near = [queue for queue in queues if queue.broker_name == "r@a"]
    found = shares(MachineRoom(["r"]), queues, ["x", "y"])
    assert found == [[near[0], near[2]], [near[1]]]


def test_who_is_near_reads_and_a_room_without_members_is_everybody_s() -> None:
    queues = [MessageQueue("t", room, at) for room in ("r", "s", "u") for at in range(2)]
    nearby = MachineRoomNearby(lambda broker: broker, lambda member: member[0])
    found = shares(nearby, queues, ["r1", "r2", "s1"])
    assert found == [
        [MessageQueue("t", "r", 0), MessageQueue("t", "u", 0)],
        [MessageQueue("t", "r", 1), MessageQueue("t", "u", 1)],
        [MessageQueue("t", "s", 0), MessageQueue("t", "s", 1)],
    ]


def test_a_group_knows_a_member_s_place() -> None:
    assert Group("g", "t", (), ("x", "y"), "y").index == 1
