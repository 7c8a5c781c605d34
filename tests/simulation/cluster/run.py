"""Runs from seeds: a seed determines the settings, all actions and their times, every delay and
fault."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from cometmq.net import server
from cometmq.net.resources import Connections, process_budget
from cometmq.store.config import delay_levels_ms
from cometmq.store.maintenance import checksumming
from tests.simulation.cluster import settings
from tests.simulation.cluster.adversary import Adversary
from tests.simulation.cluster.cluster import Cluster
from tests.simulation.cluster.copies import differences
from tests.simulation.cluster.history import History
from tests.simulation.cluster.holdings import behind, bodies, open_transactions
from tests.simulation.cluster.invariants import Watch
from tests.simulation.cluster.loop import Idle, Livelock, SimLoop
from tests.simulation.cluster.machines import until
from tests.simulation.cluster.operator import Operator
from tests.simulation.cluster.surprises import Surprises, quiet
from tests.simulation.cluster.trace import Trace
from tests.simulation.cluster.workload import CASTS, Workload, no_message

if TYPE_CHECKING:
    from cometmq.broker.app import Broker
    from tests.simulation.cluster.history import Group

#: Least number of operations before faults end, with a crash after an acknowledged message. Three
#: of four runs reach 200 and more before all messages are consumed.
OPERATIONS: Final = 150
#: Longest wait for the topics before slaves start.
_TOPICS_MS: Final = 2_000
#: Longest duration of faults.
_STRUCK_MS: Final = 120_000
#: Longest time for the cluster to process everything after all repairs: the lock of a silent member
#: lasts 60 s, its place in the group 120 s.
_SETTLE_MS: Final = 400_000
_PAUSES_MS: Final = (100, 300, 1_000, 2_500)
_LOOK_MS: Final = 1_000
#: Number of trace lines that a violation shows.
_LINES: Final = 80


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a run. ``digest`` is the hash of its trace, ``lines`` its readable part."""

    seed: int
    digest: str
    operations: int
    acknowledged: int
    crashes: int
    callbacks: int
    slaves: int
    simulated_ms: int
    lines: tuple[str, ...]


class Run:
    """One seed's run; call :meth:`run` once, and :meth:`close` afterwards."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = chance = Random(seed)
        chosen = settings.choose(chance)
        self.loop = SimLoop()
        self.trace = Trace(self.loop)
        self.history = History()
        self.watch = Watch(self.history, self.trace, delay_levels_ms(settings.DELAY_LEVELS))
        self.watch.stop = self.loop.stop
        self.surprises = Surprises(self.watch)
        self.loop.uncaught = self.surprises.uncaught
        self.cluster = Cluster(self.loop, chance, chosen, self.watch)
        self.operator = Operator(self.loop, self.cluster, self.watch)
        self.groups: tuple[Group, ...] = chance.choice(CASTS)
        self.history.groups = {group.name: group for group in self.groups}
        self.workload = Workload(chance, self.groups)
        self.adversary = Adversary(
            self.loop, chance, self.cluster, self.operator, self.groups, self.workload
        )

    def run(self) -> Report:
        """Run everything. Raise Violated if an invariant does not hold."""
        begin_us = self.loop.now_us
        random.seed(self.seed)
        try:
            with self.surprises:
                self.loop.run_until_complete(self._live())
        except (Idle, Livelock) as error:
            self.watch.violate("no surprise", repr(error))
        except RuntimeError:
            if self.watch.violation is None:  # else the loop was stopped because of it
                raise
        if self.watch.violation is not None:
            raise self.watch.violation
        return Report(
            self.seed,
            self.trace.digest,
            self.history.operations,
            self.history.acknowledged,
            self.cluster.crashes,
            self.loop.callbacks,
            len(self.cluster.slaves),
            (self.loop.now_us - begin_us) // 1_000,
            tuple(self.trace.lines),
        )

    def close(self) -> None:
        """Close the loop."""
        self.loop.dispose()

    async def _live(self) -> None:
        cluster = self.cluster
        await cluster.start_master()
        for _ in range(self.chance.choice((1, 2, 2))):
            self.adversary.start_producer()
        for group in self.groups:
            for _ in range(self.chance.choice((1, 2, 2, 3))):
                cluster.add_member(group)
        # Slaves that start when the topics exist copy them at once, others only with their next
        # poll.
        await until(cluster.clock, self._has_topics, _TOPICS_MS)
        cluster.start_slaves()
        await self._be_struck()
        self.adversary.rest()
        self.workload.ended = True
        await self.operator.heal()
        for machine in cluster.brokers:
            if not machine.is_serving:
                failures = [repr(error) for error in machine.failures]
                self.watch.violate("no surprise", f"{machine.name} does not serve: {failures}")
                return
        for group in self.groups:
            if not cluster.alive(group.name):
                cluster.add_member(group)
        # One producer has to answer checks of open transactions.
        cluster.add_producer().start(no_message, (1,), stays=True)
        await self._settle()

    def _has_topics(self) -> bool:
        broker = self.cluster.broker.broker
        assert broker is not None
        return all(topic in broker.topics.table for group in self.groups for topic in group.topics)

    async def _be_struck(self) -> None:
        """Cause faults until enough has happened."""
        clock, history = self.cluster.clock, self.history
        faults_left = self.chance.randrange(3, 6)
        deadline_ms = clock.monotonic_ms() + _STRUCK_MS
        while clock.monotonic_ms() < deadline_ms:
            await clock.sleep_ms(self.chance.choice(_PAUSES_MS))
            self.cluster.losses.compare_all()
            if history.acknowledged and (faults_left > 0 or not self.cluster.crashes):
                faults_left -= 1
                self.adversary.strike()
            elif (
                history.acknowledged
                and history.operations >= OPERATIONS
                and not self.adversary.brokers.plans_loss
            ):
                return

    async def _settle(self) -> None:
        """Wait until the cluster has processed everything; check that it has."""
        cluster, watch = self.cluster, self.watch
        master = cluster.broker.broker
        assert master is not None
        deadline_ms = cluster.clock.monotonic_ms() + _SETTLE_MS
        looked_at = 0
        while cluster.clock.monotonic_ms() < deadline_ms:
            await cluster.clock.sleep_ms(_LOOK_MS)
            self.cluster.losses.compare_all()
            if watch.has_losses:
                watch.passed_over(cluster.broker.stored(looked_at))
                looked_at = cluster.broker.log_end
            if any(self.history.owed()) or open_transactions(master) or behind(master, self.groups):
                continue
            if not await self._dead_letters_missing(master):
                break
        watch.check_consumed()
        for group in self.groups:
            if group.max_times >= 0:
                watch.check_dead(group, await bodies(master, group.dead_topic))
        watch.check_settled(open_transactions(master), behind(master, self.groups))
        await self._be_copied(master, deadline_ms)

    async def _be_copied(self, master: Broker, deadline_ms: int) -> None:
        """Wait until every slave has copied its master, whose tables it requests every 10 s.

        Clients have nothing left to do, and are killed before.
        """
        clock = self.cluster.clock
        if self.cluster.slaves:
            for client in self.cluster.clients():
                client.kill()
        while (problems := await self._unlike(master)) and clock.monotonic_ms() < deadline_ms:
            await clock.sleep_ms(_LOOK_MS)
            self.cluster.losses.compare_all()
        for problem in problems:
            self.watch.violate("copied", problem)

    async def _dead_letters_missing(self, master: Broker) -> bool:
        for group in self.groups:
            poisonous = self.history.poisonous(group)
            dead = await bodies(master, group.dead_topic) if poisonous else []
            if any(sent.name not in dead for sent in poisonous):
                return True
        return False

    async def _unlike(self, master: Broker) -> list[str]:
        """Return the differences between slaves and the master."""
        found = []
        for slave in self.cluster.slaves:
            assert slave.broker is not None
            problems = await differences(master, slave.broker)
            found += [f"{slave.name}: {problem}" for problem in problems]
        return found


async def _no_child(module: str, words: list[str]) -> bytes:
    # A real process could not see the simulated files, and real time passes until it says so.
    raise checksumming.SumsFailed(f"{module} {words}")


@contextmanager
def new_process() -> Iterator[None]:
    """Replace what all servers of a process share, as far as a run could notice earlier runs."""
    process_budget.cache_clear()
    try:
        with (
            patch.object(server, "PROCESS", Connections()),
            patch.object(checksumming, "run_child", _no_child),
        ):
            yield
    finally:
        process_budget.cache_clear()


def run(seed: int) -> Report:
    """Run one seed.

    Raise Violated, with the last lines of the trace and the command to run the seed again.
    """
    with quiet(), new_process():
        made = Run(seed)
        try:
            return made.run()
        except BaseException as error:
            error.add_note("\n".join(made.trace.lines[-_LINES:]))
            error.add_note(f"seed {seed}: python -m tests.simulation {seed}")
            raise
        finally:
            made.close()
