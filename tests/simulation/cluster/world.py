"""A cluster with one group, which tests control."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

from cometmq.broker.app import Broker
from cometmq.store.config import delay_levels_ms
from tests.simulation.cluster import settings
from tests.simulation.cluster.cluster import Cluster
from tests.simulation.cluster.history import Group, History, Sent
from tests.simulation.cluster.holdings import bodies
from tests.simulation.cluster.invariants import Watch
from tests.simulation.cluster.loop import SimLoop
from tests.simulation.cluster.machines import until
from tests.simulation.cluster.operator import Operator
from tests.simulation.cluster.trace import Trace
from tests.simulation.cluster.workload import WORKERS

#: Longest wait for a condition.
LONG_MS = 200_000


class World:
    """A cluster with a group. ``store`` are settings of the master's store."""

    def __init__(self, group: Group = WORKERS, *, slaves: int = 0, **store: Any) -> None:
        self.loop = SimLoop()
        self.history = History(groups={group.name: group})
        trace = Trace(self.loop)
        self.watch = Watch(self.history, trace, delay_levels_ms(settings.DELAY_LEVELS))
        chance = Random(5)
        choices = (settings.choose(Random(number)) for number in count(5))
        chosen = next(each for each in choices if len(each.slaves) == slaves)
        chosen = replace(chosen, store=replace(chosen.store, **store))
        self.cluster = Cluster(self.loop, chance, chosen, self.watch)
        self.operator = Operator(self.loop, self.cluster, self.watch)
        self.group = group
        self.loop.run_until_complete(self.cluster.start())
        self.outbox: list[Sent] = []

    def produce(self, *messages: Sent) -> None:
        """Send messages by a new producer, which ends afterwards."""
        left = list(messages)
        self.cluster.add_producer().start(lambda: (left.pop(0), None) if left else None, (1,))

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Let time pass until a condition holds."""
        assert self.loop.run_until_complete(until(self.cluster.clock, is_done, LONG_MS))

    def sleep(self, duration_ms: int) -> None:
        """Let time pass."""
        self.loop.run_until_complete(self.cluster.clock.sleep_ms(duration_ms))

    def dead(self) -> list[str]:
        """Return the bodies of the dead letters."""
        return self.loop.run_until_complete(bodies(self.master, self.group.dead_topic))

    @property
    def master(self) -> Broker:
        """The broker of the master."""
        assert self.cluster.broker.broker is not None
        return self.cluster.broker.broker

    def is_through(self) -> bool:
        """Return whether all messages are acknowledged and processed."""
        everything = all(sent.is_acknowledged for sent in self.history.sent.values())
        return everything and not any(self.history.owed())


def events(count: int, **fields: Any) -> list[Sent]:
    return [Sent(f"e{number}", "events", **fields) for number in range(count)]
