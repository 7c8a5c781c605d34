"""Shares of a topic: complete, disjoint, even, contiguous, and as Java computes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.consumer.allocate import average
from cometmq.message.model import MessageQueue

QUEUES = st.builds(
    lambda brokers, count: [
        MessageQueue("t", f"broker-{name}", at) for name in range(brokers) for at in range(count)
    ],
    st.integers(1, 3),
    st.integers(0, 20),
)
CLIENTS = st.lists(st.text("abc12@", min_size=1, max_size=4), min_size=1, max_size=9, unique=True)


@given(QUEUES, CLIENTS, st.randoms())
def test_shares_cover_everything_once_and_evenly(
    queues: list[MessageQueue], clients: list[str], random: object
) -> None:
    shares = {client: average(queues, clients, client) for client in clients}
    together = [queue for client in sorted(clients) for queue in shares[client]]
    assert together == sorted(queues)
    sizes = [len(shares[client]) for client in sorted(clients)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(QUEUES, CLIENTS)
def test_the_order_of_what_is_given_does_not_matter(
    queues: list[MessageQueue], clients: list[str]
) -> None:
    me = clients[0]
    assert average(queues[::-1], clients[::-1], me) == average(queues, clients, me)


@pytest.mark.parametrize(
    ("queues", "clients", "expected"),
    [(8, 3, [3, 3, 2]), (4, 4, [1, 1, 1, 1]), (2, 4, [1, 1, 0, 0]), (10, 4, [3, 3, 2, 2])],
)
def test_sizes(queues: int, clients: int, expected: list[int]) -> None:
    all_queues = [MessageQueue("t", "a", at) for at in range(queues)]
    ids = [f"c{at}" for at in range(clients)]
    assert [len(average(all_queues, ids, each)) for each in ids] == expected


def test_ids_sort_by_their_brokers_first_and_then_by_number() -> None:
    queues = [MessageQueue("t", "b", 0), MessageQueue("t", "a", 10), MessageQueue("t", "a", 9)]
    assert average(queues, ["x", "y"], "x") == [queues[2], queues[1]]


def test_who_is_not_a_member_gets_nothing() -> None:
    assert average([MessageQueue("t", "a", 0)], ["x"], "y") == []
