"""Programs that use the cluster, without faults."""

from collections.abc import Iterator

import pytest

from tests.simulation.cluster.history import POISON, History, Local, Sent
from tests.simulation.cluster.holdings import behind, open_transactions
from tests.simulation.cluster.workload import WORKERS
from tests.simulation.cluster.world import World, events


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    assert made.watch.violation is None
    made.loop.dispose()


def test_messages_come_from_a_producer_to_a_member(world: World) -> None:
    member = world.cluster.add_member(WORKERS)
    world.produce(
        *events(20), Sent("late", "events", delay_level=2), Sent("again", "events", fails=2)
    )
    world.wait(lambda: len(world.history.sent) == 22 and world.is_through())
    world.wait(lambda: not behind(world.master, [WORKERS]))
    attempts = world.history.attempts[WORKERS.name, "again"]
    assert [attempt.stored_times for attempt in attempts] == [0, 1, 2]
    world.cluster.leave(member)
    world.wait(lambda: not member.is_up)
    assert world.cluster.alive(WORKERS.name) == []


def test_what_fails_for_ever_is_a_dead_letter(world: World) -> None:
    world.cluster.add_member(WORKERS)
    world.produce(Sent("bad", "events", fails=POISON))
    world.wait(lambda: len(world.history.attempts.get((WORKERS.name, "bad"), ())) == 3)
    world.sleep(1_000)
    assert world.dead() == ["bad"]


def test_transactions_end_as_their_sender_says(world: World) -> None:
    world.cluster.add_member(WORKERS)
    sent = events(20)
    for each in sent:
        each.local = Local.OPEN
    world.produce(*sent)
    world.cluster.add_producer().start(lambda: None, (1,), stays=True)
    world.wait(lambda: {each.local for each in sent} == {Local.COMMITTED, Local.ROLLED_BACK})
    world.wait(lambda: world.is_through() and not open_transactions(world.master))
    done = [each for each in sent if world.history.is_done(WORKERS.name, each)]
    assert done == [each for each in sent if each.local is Local.COMMITTED]


def test_a_transaction_whose_sender_ended_is_rolled_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledge = History.acknowledge

    def and_end(self: History, sent: Sent, now_ms: int) -> None:
        acknowledge(self, sent, now_ms)
        world.cluster.kill(world.cluster.producers[0], silently=False)

    monkeypatch.setattr(History, "acknowledge", and_end)
    world.cluster.add_member(WORKERS)
    sent = Sent("cut", "events", local=Local.OPEN)
    world.produce(sent)
    world.wait(lambda: sent.is_acknowledged)
    assert sent.local is Local.OPEN
    world.cluster.add_producer().start(lambda: None, (1,), stays=True)
    world.wait(lambda: sent.local is Local.ROLLED_BACK)
    world.wait(lambda: not open_transactions(world.master))
