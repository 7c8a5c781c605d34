"""Held pulls: woken by growth, ended by time, forgotten with their connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.pull import longpoll
from cometmq.broker.pull.filtering import PullFilter
from cometmq.broker.pull.longpoll import HeldPull, LongPoll
from cometmq.core.clock import VirtualClock
from cometmq.net.eventloop import Watchdog
from cometmq.net.peer import Peer
from cometmq.net.router import Router, begin_task
from cometmq.net.tasks import Tasks
from cometmq.protocol.frame import Request
from cometmq.protocol.registry import Side
from cometmq.store.dispatch import Listener

REQUEST: Request[Any] = Request(code=11, header=None, opaque=0)


class Held:
    """A LongPoll whose served pulls are collected."""

    def __init__(self) -> None:
        self.clock = VirtualClock(monotonic_ms=10_000)
        self.served: list[tuple[HeldPull, bool]] = []
        self.turns: list[Callable[[], None]] = []
        self.listeners: list[Listener] = []
        self.longpoll = LongPoll(
            self.clock,
            lambda pull, final: self.served.append((pull, final)),
            lambda pulls: pulls,
            self.turns.append,
            self.listeners,
        )
        self._peers: dict[Peer, None] = {}

    def wake(self, grown: list[tuple[tuple[str, int], int]]) -> None:
        self.longpoll.wake(grown)
        self.run()

    def expire(self) -> None:
        self.longpoll.expire(self.clock.monotonic_ms())
        self.run()

    def run(self) -> None:
        """The turns of the loop that follow."""
        while self.turns:
            self.turns.pop(0)()

    def peer(self) -> Peer:
        router = Router(Side.BROKER, {}, tasks=Tasks())
        return Peer(router, clock=self.clock, watchdog=Watchdog(), peers=self._peers)

    def hold(self, peer: Peer, offset: int, wait_ms: int = 1000, topic: str = "t") -> HeldPull:
        deadline_ms = self.clock.monotonic_ms() + wait_ms
        pull = HeldPull(peer, REQUEST, (topic, 0), offset, PullFilter(), deadline_ms)
        assert self.longpoll.hold(pull)
        return pull


async def test_growth_wakes_only_pulls_of_that_queue_and_offset() -> None:
    held = Held()
    peer = held.peer()
    at_5, at_7, other = held.hold(peer, 5), held.hold(peer, 7), held.hold(peer, 5, topic="u")
    held.wake([(("t", 0), 5)])
    assert held.served == [], "offset 5 is not there while the queue ends at 5"
    held.wake([(("t", 0), 6)])
    assert held.served == [(at_5, False)]
    held.wake([(("t", 0), 8), (("v", 3), 1)])
    assert held.served[1:] == [(at_7, False)]
    assert held.longpoll.count == 1
    held.wake([(("u", 0), 6)])
    assert held.served[2:] == [(other, False)]
    assert held.longpoll.count == 0


async def test_time_ends_a_pull_once() -> None:
    held = Held()
    pull = held.hold(held.peer(), 5, wait_ms=1000)
    held.clock.advance(999)
    held.expire()
    assert held.served == []
    held.clock.advance(1 + longpoll.TICK_MS)
    held.expire()
    held.expire()
    assert held.served == [(pull, True)]
    held.wake([(("t", 0), 99)])
    assert len(held.served) == 1


async def test_the_expiry_task_follows_the_clock() -> None:
    held = Held()
    held.hold(held.peer(), 5, wait_ms=150)
    task = asyncio.ensure_future(held.longpoll.expire_forever())
    for _ in range(4):
        await asyncio.sleep(0)
        held.clock.advance(longpoll.TICK_MS)
    await asyncio.sleep(0)
    held.run()
    task.cancel()
    assert [final for _, final in held.served] == [True]


async def test_a_closed_connection_takes_its_pulls_along() -> None:
    held = Held()
    leaving, staying = held.peer(), held.peer()
    for offset in range(3):
        held.hold(leaving, offset)
    kept = held.hold(staying, 1)
    leaving.connection_lost(None)
    assert held.longpoll.count == 1
    held.wake([(("t", 0), 10)])
    assert held.served == [(kept, False)]
    assert not held.longpoll.hold(HeldPull(leaving, REQUEST, ("t", 0), 1, PullFilter(), 99_999))


async def test_a_served_pull_may_be_held_again() -> None:
    held = Held()
    pull = held.hold(held.peer(), 5)
    held.wake([(("t", 0), 6)])
    pull.offset = 6
    assert held.longpoll.hold(pull)
    held.wake([(("t", 0), 7)])
    assert held.served == [(pull, False), (pull, False)]


async def test_many_pulls_are_served_in_turns_after_the_one_that_woke_them() -> None:
    held = Held()
    peer = held.peer()
    for _ in range(longpoll.SERVED_PER_TURN + 1):
        held.hold(peer, 0)
    held.longpoll.wake([(("t", 0), 1)])
    assert held.served == [], "the answer to the message that woke them goes first"
    held.turns.pop(0)()
    assert len(held.served) == longpoll.SERVED_PER_TURN
    held.run()
    assert len(held.served) == longpoll.SERVED_PER_TURN + 1


def turn_by_turn(held: Held) -> None:
    """Run the turns that follow; each releases as many pulls as it may serve, or a few more."""
    while held.turns:
        before = held.longpoll.count
        held.turns.pop(0)()
        assert before - held.longpoll.count <= 2 * longpoll.SERVED_PER_TURN


async def test_a_turn_releases_few_of_very_many_pulls_and_queues_take_turns() -> None:
    held = Held()
    peer = held.peer()
    pulls = [held.hold(peer, number % 3) for number in range(3_000)]
    other = held.hold(held.peer(), 0, topic="u")
    held.longpoll.wake([(("t", 0), 3), (("u", 0), 1)])
    assert held.longpoll.count == 3_001, "nothing is released in the turn of the send"
    turn_by_turn(held)
    served = [pull for pull, _ in held.served]
    assert served.index(other) <= 2 * longpoll.SERVED_PER_TURN
    served.remove(other)
    assert served == sorted(pulls, key=lambda pull: pull.offset)
    assert held.longpoll.count == 0


async def test_a_turn_ends_few_of_very_many_overdue_pulls() -> None:
    held = Held()
    peer = held.peer()
    pulls = [held.hold(peer, 7, wait_ms=900 + number % 50) for number in range(2_000)]
    many = [held.hold(peer, 7, wait_ms=900, topic=f"t{number}") for number in range(1_000)]
    held.clock.advance(2_000)
    held.longpoll.expire(held.clock.monotonic_ms())
    turn_by_turn(held)
    assert {pull for pull, final in held.served if final} == {*pulls, *many}
    assert len(held.served) == 3_000
    of_one = [pull for pull, _ in held.served if pull.queue == ("t", 0)]
    assert of_one == sorted(pulls, key=lambda pull: pull.deadline_ms)


async def test_a_pull_that_closes_or_ends_while_it_waits_for_its_release_is_served_once() -> None:
    held = Held()
    leaving, staying = held.peer(), held.peer()
    for _ in range(100):
        held.hold(leaving, 0, wait_ms=500)
        held.hold(staying, 0, wait_ms=500)
    held.longpoll.wake([(("t", 0), 1)])
    held.turns.pop(0)()
    leaving.connection_lost(None)
    held.clock.advance(1_000)
    held.longpoll.expire(held.clock.monotonic_ms())
    turn_by_turn(held)
    served = [pull for pull, _ in held.served if pull.peer is staying]
    assert len(served) == len(set(served)) == 100
    assert held.longpoll.count == 0


async def test_who_looks_on_is_served_in_a_later_turn_and_in_time() -> None:
    held = Held()
    pull = held.hold(held.peer(), 5)
    held.wake([(("t", 0), 6)])
    held.longpoll.look_on(pull)
    assert len(held.served) == 1
    held.run()
    assert held.served[1:] == [(pull, False)]
    held.clock.advance(2_000)
    held.longpoll.look_on(pull)
    held.run()
    assert held.served[2:] == [(pull, True)], "its time is up"


async def test_a_long_look_ends_a_turn() -> None:
    held = Held()
    serve = held.served.append

    def long(pull: HeldPull, final: bool) -> None:
        serve((pull, final))
        held.longpoll.rest()

    held.longpoll._serve = long
    for _ in range(3):
        held.hold(held.peer(), 0)
    held.longpoll.wake([(("t", 0), 1)])
    for count in (1, 2, 3):
        held.turns.pop(0)()
        assert len(held.served) == count
        assert held.longpoll.rests
    held.turns.pop(0)()
    assert not held.longpoll.rests
    assert not held.turns


async def test_serving_stops_after_a_while() -> None:
    held = Held()
    serve = held.served.append

    def slow(pull: HeldPull, final: bool) -> None:
        serve((pull, final))
        held.clock.advance(3)

    held.longpoll._serve = slow
    for _ in range(5):
        held.hold(held.peer(), 0)
    held.longpoll.wake([(("t", 0), 1)])
    held.turns.pop(0)()
    assert len(held.served) == 2
    held.run()
    assert len(held.served) == 5


async def test_one_connection_cannot_take_all_places(monkeypatch: Any) -> None:
    monkeypatch.setattr(longpoll, "MAX_HELD_BY_PEER", 2)
    held = Held()
    greedy, modest = held.peer(), held.peer()
    held.hold(greedy, 1)
    held.hold(greedy, 1)
    assert not held.longpoll.hold(HeldPull(greedy, REQUEST, ("t", 0), 1, PullFilter(), 99_999))
    held.hold(modest, 1)


async def test_the_bound_refuses_to_hold(monkeypatch: Any) -> None:
    monkeypatch.setattr(longpoll, "MAX_HELD", 2)
    held = Held()
    peer = held.peer()
    held.hold(peer, 1)
    held.hold(peer, 1)
    assert not held.longpoll.hold(HeldPull(peer, REQUEST, ("t", 0), 1, PullFilter(), 99_999))


async def test_released_pulls_keep_their_places_until_they_are_served(monkeypatch: Any) -> None:
    monkeypatch.setattr(longpoll, "MAX_HELD", 2)
    held = Held()
    peer = held.peer()
    held.hold(peer, 1)
    held.hold(peer, 1)
    held.longpoll.wake([(("t", 0), 2)])
    assert not held.longpoll.hold(HeldPull(peer, REQUEST, ("t", 0), 2, PullFilter(), 99_999))
    held.run()
    held.hold(peer, 2)


async def test_pulls_that_were_released_early_leave_no_ticks(monkeypatch: Any) -> None:
    monkeypatch.setattr(longpoll, "_SPARE_SCHEDULED", 10)
    held = Held()
    patient = held.hold(held.peer(), 1_000, wait_ms=900)
    peer = held.peer()
    for number in range(500):
        held.hold(peer, 0, wait_ms=1_000 + number * longpoll.TICK_MS, topic=f"t{number % 7}")
        held.wake([((f"t{number % 7}", 0), 1)])
    assert sum(map(len, held.longpoll._due.values())) <= 14
    assert len(held.longpoll._ticks) <= 14
    assert len(held.served) == 500
    held.clock.advance(1_000)
    held.expire()
    assert held.served[500:] == [(patient, True)]


async def test_a_pull_that_fails_does_not_take_others_along() -> None:
    held = Held()
    peer = held.peer()
    pulls = [held.hold(peer, 1) for _ in range(3)]
    served: list[HeldPull] = []

    def serve(pull: HeldPull, final: bool) -> None:
        served.append(pull)
        if len(served) == 1:
            raise ValueError("bug")

    held.longpoll._serve = serve
    held.longpoll.wake([(("t", 0), 2)])
    with pytest.raises(ValueError, match="bug"):
        held.run()
    held.run()
    assert served == pulls


async def test_a_pull_that_looks_on_as_a_slow_request_ends_as_one() -> None:
    """Served or not, the count of the process does not grow for good."""
    held = Held()
    for closes in (False, True):
        peer = held.peer()
        budget = peer.memory.budget
        before = budget.tasks
        pull = HeldPull(peer, REQUEST, ("t", 0), 1, PullFilter(), 0)
        begin_task(peer)
        pull.is_task = True
        held.longpoll.look_on(pull)
        assert budget.tasks == before + 1
        if closes:
            peer.connection_lost(None)
        held.run()
        assert (peer.running_tasks, budget.tasks) == (0, before)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("hold"), st.integers(0, 3), st.integers(0, 20), st.integers(1, 500)),
            st.tuples(st.just("wake"), st.integers(0, 3), st.integers(0, 20), st.just(0)),
            st.tuples(st.just("pass"), st.just(0), st.integers(1, 300), st.just(0)),
            st.tuples(st.just("close"), st.integers(0, 2), st.just(0), st.just(0)),
        ),
        max_size=40,
    )
)
def test_every_pull_is_served_once_or_goes_with_its_peer(
    steps: list[tuple[str, int, int, int]],
) -> None:
    async def scenario() -> None:
        held = Held()
        peers = [held.peer() for _ in range(3)]
        expected: list[HeldPull] = []
        for number, (step, which, value, wait_ms) in enumerate(steps):
            if step == "hold" and not peers[number % 3].closed:
                expected.append(held.hold(peers[number % 3], value, wait_ms, topic=f"t{which}"))
            elif step == "wake":
                held.wake([((f"t{which}", 0), value)])
            elif step == "pass":
                held.clock.advance(value)
                held.expire()
            elif step == "close":
                peers[which].connection_lost(None)
        held.clock.advance(2_000)
        held.expire()
        served = [pull for pull, _ in held.served]
        assert len(served) == len(set(served))
        assert held.longpoll.count == 0
        gone = {pull for pull in expected if pull.peer.closed}
        assert set(expected) - gone <= set(served) <= set(expected)

    asyncio.run(scenario())
