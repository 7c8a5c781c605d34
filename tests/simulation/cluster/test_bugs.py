"""Bugs put in on purpose: each violates the right invariant within SEEDS seeds."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from cometmq.broker.acknowledgement import Appender, OutgoingRecord, PutResult, Turn
from cometmq.broker.consumers.queuelocks import QueueLockHandler
from cometmq.broker.consumers.queuelocks import QueueLocks as Leases
from cometmq.broker.scheduled.delaylevels import DelayLevels
from cometmq.broker.transactions.checkback import CheckBack
from cometmq.client import transactions
from cometmq.client.consumer.acknowledgements import ConsumerSettler
from cometmq.client.consumer.inflight import InFlight
from cometmq.client.consumer.rebalance import QueueLocks
from cometmq.message.record import TransactionType
from cometmq.protocol.bodies import QueueKey
from cometmq.protocol.codes import ResponseCode
from tests.simulation.cluster.invariants import Violated
from tests.simulation.cluster.run import run

#: Minutes of simulated clusters: more than the unit tests have.
pytestmark = pytest.mark.operation

#: Number of seeds within which each of these bugs is found.
SEEDS = 100

Patch = pytest.MonkeyPatch


def offset_before_work(patch: Patch) -> None:
    """A consumer commits the messages that it has read, before they are processed."""
    patch.setattr(InFlight, "committable", property(lambda self: self.next_offset))


def acknowledged_before_append(patch: Patch) -> None:
    """The answer leaves before the write."""
    commit = Appender._commit

    def answer_first(self: Appender) -> None:
        sends, self._turn.sends = self._turn.sends, []
        if sends:
            self.answer_sends(sends, ResponseCode.SUCCESS, None)
        commit(self)

    patch.setattr(Appender, "_commit", answer_first)


def acknowledged_before_flush(patch: Patch) -> None:
    """With SYNC_FLUSH, the answer leaves after the write, before the device has it."""

    def park(self: Appender, turn: Turn) -> None:
        self._answer(turn, ResponseCode.SUCCESS, None)
        self._loop.call_later(0.5, self._store.sync)

    patch.setattr(Appender, "_park", park)


def retry_without_delay(patch: Patch) -> None:
    """A failed message waits for the shortest delay level."""
    park = DelayLevels.place_for

    def park_shortly(
        self: DelayLevels, topic: str, queue_id: int, properties: Mapping[str, str], _level: int
    ) -> tuple[str, int, dict[str, str]]:
        return park(self, topic, queue_id, properties, 3)

    patch.setattr(DelayLevels, "place_for", park_shortly)


def locks_for_everybody(patch: Patch) -> None:
    """The broker grants every lock."""

    def lock(
        self: Leases, group: str, client_id: str, queues: Iterable[QueueKey], now_ms: int
    ) -> list[QueueKey]:
        return list(queues)

    patch.setattr(Leases, "lock", lock)


def locks_not_looked_at(patch: Patch) -> None:
    """An ordered consumer reads and works without a lock."""

    async def acquire(self: QueueLocks, queues: Iterable[Any]) -> set[Any]:
        return set(queues)

    patch.setattr(QueueLocks, "held", lambda self, queue: True)
    patch.setattr(QueueLocks, "acquire", acquire)


def locks_forgotten(patch: Patch) -> None:
    """A restart of the broker forgets the queue locks."""
    patch.setattr(QueueLockHandler, "load", lambda self: None)


def failure_settled(patch: Patch) -> None:
    """A message that could not be sent back counts as processed."""
    sent_away = ConsumerSettler._sent_away

    async def always(self: ConsumerSettler, *what: Any) -> bool:
        await sent_away(self, *what)
        return True

    patch.setattr(ConsumerSettler, "_sent_away", always)


def rolled_back_is_committed(patch: Patch) -> None:
    """A client answers "committed" for a transaction that was rolled back."""
    patch.setitem(transactions._END_OF, False, TransactionType.COMMIT)


def nobody_is_asked(patch: Patch) -> None:
    """The broker never checks open transactions."""
    patch.setattr(CheckBack, "_ask", lambda *_: None)


def dead_twice(patch: Patch) -> None:
    """A dead letter is stored twice."""
    put = Appender.put

    async def put_twice(self: Appender, record: OutgoingRecord) -> PutResult:
        if record.topic.startswith("%DLQ%"):
            await put(self, record)
        return await put(self, record)

    patch.setattr(Appender, "put", put_twice)


def failed_in_order_is_skipped(patch: Patch) -> None:
    """An ordered consumer continues after a failed message, which is then no dead letter either."""

    async def skip(self: ConsumerSettler, inflight: InFlight, message: Any, *_: Any) -> None:
        inflight.settle(message)
        self._dispatch.offer(inflight)

    patch.setattr(ConsumerSettler, "_retry_here", skip)


BUGS: list[tuple[Callable[[Patch], None], set[str]]] = [
    (offset_before_work, {"consumed", "order"}),
    (acknowledged_before_append, {"consumed", "place", "kept"}),
    (acknowledged_before_flush, {"consumed", "place", "kept"}),
    (retry_without_delay, {"retry delay"}),
    (locks_for_everybody, {"alone"}),
    (locks_not_looked_at, {"alone"}),
    (locks_forgotten, {"alone"}),
    (failure_settled, {"consumed", "dead letters"}),
    (rolled_back_is_committed, {"transaction"}),
    (nobody_is_asked, {"consumed", "settled"}),
    (dead_twice, {"dead letters"}),
    (failed_in_order_is_skipped, {"order", "dead letters"}),
]


def first_violation() -> Iterator[Violated]:
    """Yield the violation of each seed that fails."""
    for seed in range(SEEDS):
        try:
            run(seed)
        except Violated as error:
            yield error


@pytest.mark.parametrize(("bug", "names"), BUGS, ids=[bug.__name__ for bug, _ in BUGS])
def test_a_bug_is_found(bug: Callable[[Patch], None], names: set[str], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    found = next(first_violation(), None)
    assert found is not None, f"{SEEDS} seeds did not find it"
    assert found.name in names
