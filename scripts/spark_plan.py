"""Runs the plan of a batch read on paper: the tasks of `cometmq.spark.read.planning` in their
order, on a number of cores, from brokers that each answer at a limited rate.

It measures the skew of the brokers: what the busiest one sends, divided by the mean of all.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, groupby, zip_longest
from typing import Final, Literal

from cometmq.message.model import MessageQueue
from cometmq.spark.read.planning import Range, tasks

BROKERS: Final = 100
QUEUES: Final = 8
CORES: Final = 400
TASK_ROWS: Final = 1_000_000
"""Larger tasks than by default: of 10 TB in small records these would be 84 000."""
TENTHS: Final = 10


@dataclass(frozen=True, slots=True)
class Case:
    """A batch: the messages of each broker, and the order of the tasks. ``slow`` is the share of
    the usual rate at which the first broker answers."""

    messages: Sequence[int]
    order: Literal["planned", "sorted", "rounds"] = "planned"
    slow: float = 1.0
    cores: int = CORES


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a batch. For each tenth of its time: ``skew``, and in ``busy`` how many
    brokers were read."""

    tasks: int
    seconds: float
    skew: tuple[float, ...]
    busy: tuple[int, ...]


@dataclass(slots=True)
class _Broker:
    """A broker that shares its rate among the tasks that read it.

    ``work`` is what each of its tasks has got since the start, so a task is done when the work has
    grown by its messages.
    """

    rate_max: float
    work: float = 0.0
    at_s: float = 0.0
    version: int = 0
    ends: list[tuple[float, int]] = field(default_factory=list)
    sent: list[tuple[float, float, float]] = field(default_factory=list)

    def advance(self, now_s: float, core_rate: float) -> None:
        """Send until a time."""
        if self.ends and now_s > self.at_s:
            grown = (now_s - self.at_s) * self._rate(core_rate)
            self.work += grown
            self.sent.append((self.at_s, now_s, grown * len(self.ends)))
        self.at_s = now_s

    def next_end_s(self, core_rate: float) -> float:
        """Return when the next task is done, if no other task begins before."""
        return self.at_s + max(self.ends[0][0] - self.work, 0.0) / self._rate(core_rate)

    def _rate(self, core_rate: float) -> float:
        return min(core_rate, self.rate_max / len(self.ends))


def cases(per_broker: int) -> dict[str, Case]:
    """Return the batches of the page by their descriptions."""
    even = Case([per_broker] * BROKERS)
    total = per_broker * BROKERS
    unit = total / (BROKERS + 2 * BROKERS // 10)
    uneven = [round(unit * (3 if at % 10 == 0 else 1)) for at in range(BROKERS)]
    return {
        "broker after broker": replace(even, order="sorted"),
        "**as the source plans**": even,
        "one broker in ten has three times as much, equal turns": replace(
            even, messages=uneven, order="rounds"
        ),
        "the same, **as the source plans**": replace(even, messages=uneven),
        "one broker answers at a tenth of the rate": replace(even, slow=0.1),
    }


def planned(case: Case) -> list[tuple[str, int]]:
    """Return the broker and the messages of each task, in the order in which Spark starts them."""
    todo = [
        Range(MessageQueue("T", f"broker-{at:02}", queue), 0, messages // QUEUES)
        for at, messages in enumerate(case.messages)
        for queue in range(QUEUES)
    ]
    parts = tasks(todo, rows_max=TASK_ROWS, rows_min=TASK_ROWS)
    if case.order == "sorted":
        parts = sorted(parts)
    elif case.order == "rounds":
        by_broker = groupby(sorted(parts), key=lambda part: part[0].queue.broker_name)
        rounds = zip_longest(*(list(mine) for _, mine in by_broker))
        parts = [part for part in chain.from_iterable(rounds) if part is not None]
    return [(part[0].queue.broker_name, sum(map(len, part))) for part in parts]


def run(case: Case, spark_us: float, pull_us: float) -> Run:
    """Run the tasks of a batch: ``spark_us`` is a core's time for a message, ``pull_us`` a
    broker's."""
    core_rate = 1e6 / spark_us
    todo = planned(case)
    brokers = {name: _Broker(1e6 / pull_us) for name in sorted({name for name, _ in todo})}
    brokers[min(brokers)].rate_max *= case.slow
    numbers = count()
    events: list[tuple[float, int, str, int]] = []
    waiting = iter(todo)
    free, now_s = case.cores, 0.0

    def look_ahead(name: str) -> None:
        broker = brokers[name]
        broker.version += 1
        if broker.ends:
            at_s = broker.next_end_s(core_rate)
            heapq.heappush(events, (at_s, next(numbers), name, broker.version))

    def start() -> bool:
        task = next(waiting, None)
        if task is None:
            return False
        broker = brokers[task[0]]
        broker.advance(now_s, core_rate)
        heapq.heappush(broker.ends, (broker.work + task[1], next(numbers)))
        look_ahead(task[0])
        return True

    while free and start():
        free -= 1
    while events:
        at_s, _, name, version = heapq.heappop(events)
        broker = brokers[name]
        if version != broker.version:
            continue
        now_s = at_s
        broker.advance(now_s, core_rate)
        heapq.heappop(broker.ends)
        look_ahead(name)
        start()
    return _measured(len(todo), now_s, brokers.values())


def _measured(tasks_run: int, seconds: float, brokers: Iterable[_Broker]) -> Run:
    sent = [_by_tenth(broker, seconds) for broker in brokers]
    skew, busy = [], []
    for tenth in range(TENTHS):
        amounts = [each[tenth] for each in sent]
        skew.append(max(amounts) * len(amounts) / sum(amounts))
        busy.append(sum(amount > 0 for amount in amounts))
    return Run(tasks_run, seconds, tuple(skew), tuple(busy))


def _by_tenth(broker: _Broker, seconds: float) -> list[float]:
    """Return the messages that a broker sent in each tenth of the time."""
    found = [0.0] * TENTHS
    length_s = seconds / TENTHS
    for start_s, stop_s, messages in broker.sent:
        rate = messages / (stop_s - start_s)
        for tenth in range(int(start_s / length_s), TENTHS):
            low, high = max(start_s, tenth * length_s), min(stop_s, (tenth + 1) * length_s)
            if high <= low:
                break
            found[tenth] += (high - low) * rate
    return found
