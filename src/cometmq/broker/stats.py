"""Statistics of the broker: totals, rates over 10, 60 and 600 s, pulls by group and topic
(upstream: StoreStatsService.java, BrokerStatsManager.java).

Counting adds almost nothing to a request: the store's dispatcher counts stored messages, and each
pull is counted once. A sample of the totals is taken each second, and rates are differences between
two samples. Messages of a topic are not counted here, because the maximum offsets of its queues
show their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.speedups import PullCounter, PullTotals

if TYPE_CHECKING:
    from cometmq.core.clock import Clock

SAMPLE_INTERVAL_MS: Final = 1_000
WINDOWS_S: Final = (10, 60, 600)
#: A group's rate is that of its last minute, in steps of this length.
_STEP_MS: Final = 10_000
_STEPS: Final = 6


class Counter(PullCounter):
    """Messages and bytes, with the message count at the beginning of the last few steps of time."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        super().__init__()
        self._marks: tuple[tuple[int, int], ...] = ()

    def begin(self, step: int) -> None:
        """Begin the step of time number ``step``."""
        self.step = step
        self._marks = (*self._marks[-_STEPS:], (step, self.count))

    def per_second(self, now_ms: int) -> float:
        """Return the messages a second over the last minute."""
        oldest = now_ms // _STEP_MS - _STEPS
        for step, before in self._marks:
            if step >= oldest:
                duration_ms = now_ms - step * _STEP_MS
                return (self.count - before) * 1000 / max(duration_ms, 1_000)
        return 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Everything counted up to a moment (monotonic ms)."""

    at_ms: int
    puts: int = 0
    put_bytes: int = 0
    found: int = 0
    missed: int = 0
    transferred: int = 0


@dataclass(frozen=True, slots=True)
class DayTotals:
    """Messages stored and delivered since the start, at the last two midnights."""

    puts_yesterday: int = 0
    puts_today: int = 0
    gets_yesterday: int = 0
    gets_today: int = 0


class Dispatched(Protocol):
    """Counter of the messages that were dispatched to their queues, and of their bytes."""

    messages: int
    size_bytes: int


class BrokerStats:
    """All counters of one broker since its start."""

    def __init__(self, clock: Clock, dispatched: Dispatched) -> None:
        self._clock = clock
        self._dispatched = dispatched
        self._before = dispatched.messages, dispatched.size_bytes
        #: Totals of pulls; the code that answers a pull counts it.
        self.pulled = PullTotals()
        self.pulled.step = clock.monotonic_ms() // _STEP_MS
        self._samples: deque[Totals] = deque(maxlen=WINDOWS_S[-1] + 1)
        self._day = datetime.fromtimestamp(clock.wall_ms() / 1000).date()
        self.started_ms = clock.wall_ms()
        self.days = DayTotals()
        self.pulls: dict[tuple[str, str], Counter] = {}
        self.send_backs: dict[tuple[str, str], Counter] = {}
        self._samples.append(self.totals())

    # ------------------------------------------------------------------------------------- counting

    @property
    def puts(self) -> int:
        """Number of messages stored and dispatched."""
        return self._dispatched.messages - self._before[0]

    @property
    def put_bytes(self) -> int:
        """Bytes of these messages."""
        return self._dispatched.size_bytes - self._before[1]

    def on_pull(self, group: str, topic: str, count: int, size_bytes: int) -> None:
        """Count a pull that found messages."""
        self.pulled.found += 1
        self.pulled.transferred += count
        self.counter(group, topic).add(count, size_bytes, self.pulled.step)

    def counter(self, group: str, topic: str) -> Counter:
        """Return the counter of the messages that a group gets of a topic.

        It is valid until one of them is deleted.
        """
        counter = self.pulls.get((group, topic))
        if counter is None:
            counter = self.pulls[group, topic] = Counter()
        return counter

    def on_pull_missed(self) -> None:
        """Count a pull that found none."""
        self.pulled.missed += 1

    def on_send_back(self, group: str, topic: str) -> None:
        """Count a message that a consumer sent back."""
        counter = self.send_backs.get((group, topic))
        if counter is None:
            counter = self.send_backs[group, topic] = Counter()
        counter.add(1, 0, self.pulled.step)

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic."""
        for table in (self.pulls, self.send_backs):
            for key in [key for key in table if key[1] == topic]:
                del table[key]

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted group."""
        for table in (self.pulls, self.send_backs):
            for key in [key for key in table if key[0] == group]:
                del table[key]

    # -------------------------------------------------------------------------------------- reading

    def totals(self) -> Totals:
        """Return everything counted up to now."""
        return Totals(
            self._clock.monotonic_ms(),
            self.puts,
            self.put_bytes,
            self.pulled.found,
            self.pulled.missed,
            self.pulled.transferred,
        )

    def rates(self, *names: str) -> str:
        """Return the sum of some totals a second, over 10, 60 and 600 s: "1.5 0.2 0.1".

        A window that is longer than the broker has run covers the time since its start.
        """
        now = self.totals()
        return " ".join(self._rate(now, names, window_s) for window_s in WINDOWS_S)

    def consume_tps(self, group: str, topic: str) -> float:
        """Return the messages a second that a group pulled from a topic over the last minute."""
        counter = self.pulls.get((group, topic))
        return 0.0 if counter is None else counter.per_second(self._clock.monotonic_ms())

    async def sample_forever(self) -> None:
        """Take a sample each second, until cancelled."""
        while True:
            await self._clock.sleep_ms(SAMPLE_INTERVAL_MS)
            self.sample()

    def sample(self) -> None:
        """Take one sample, and the day's totals if a new day began."""
        self.pulled.step = self._clock.monotonic_ms() // _STEP_MS
        self._samples.append(self.totals())
        today = datetime.fromtimestamp(self._clock.wall_ms() / 1000).date()
        if today != self._day:
            self._day = today
            self.days = DayTotals(
                self.days.puts_today, self.puts, self.days.gets_today, self.pulled.transferred
            )

    def _rate(self, now: Totals, names: Sequence[str], window_s: int) -> str:
        since_ms = now.at_ms - window_s * 1000
        before = next(
            (sample for sample in self._samples if sample.at_ms >= since_ms), self._samples[-1]
        )
        duration_ms = max(now.at_ms - before.at_ms, 1_000)
        grown = sum(getattr(now, name) - getattr(before, name) for name in names)
        return f"{grown * 1000 / duration_ms:.6g}"
