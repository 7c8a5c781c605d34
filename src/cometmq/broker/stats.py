"""Statistics of the broker: totals, rates over 10, 60 and 600 s, the times of puts, and the last
minute, hour and day of each topic and group (upstream: StoreStatsService.java,
BrokerStatsManager.java, StatsItem.java).

Counting adds almost nothing to a request. The store's dispatch counts messages by queue, each pull
is counted once, and puts are timed by turns of the loop. Everything else happens when samples are
taken: of the totals each second, of the topics and groups that had messages each 10 s.

A :class:`Counter` only grows. A few samples of it are kept as its past. The figures of a window are
the difference between two samples:

    window   a sample each   samples between the two
    minute   10 s            6
    hour     10 minutes      6
    day      hour            24

So the figures of a key appear up to 10 s after its first message, with the same values as
upstream's. A sample is kept only if the counter changed.

Clients choose the names of groups, so the number of group counters is bounded. When there are
MAX_COUNTERS, those without a message for a minute are dropped in the next step. Until then,
messages of further groups are counted for the broker only.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

from cometmq.core.clock import Slices
from cometmq.core.histogram import Histogram
from cometmq.message.names import OP_HALF_TOPIC, SCHEDULE_TOPIC
from cometmq.net.limits import Limit, ServerLimits
from cometmq.speedups import PullCounter, PullPosition, PullTotals

if TYPE_CHECKING:
    from cometmq.core.clock import Clock

log = logging.getLogger(__name__)

SAMPLE_INTERVAL_MS: Final = 1_000
WINDOWS_S: Final = (10, 60, 600)
#: Time between two samples of topics and groups.
STEP_MS: Final = 10_000
#: The windows minute, hour and day: steps between two samples, and samples that the window spans.
_SPANS: Final = ((1, 6), (60, 6), (360, 24))
_STEPS_A_MINUTE: Final = 6
#: Figures of topics and groups by upstream's names: the table of their counters (topic puts, pulls,
#: send-backs), and the number of "@" in a key.
_KEYS: Final = {
    "TOPIC_PUT_NUMS": (0, 0), "TOPIC_PUT_SIZE": (0, 0),
    "QUEUE_PUT_NUMS": (0, 1), "QUEUE_PUT_SIZE": (0, 1),
    "GROUP_GET_NUMS": (1, 1), "GROUP_GET_SIZE": (1, 1),
    "QUEUE_GET_NUMS": (1, 2), "QUEUE_GET_SIZE": (1, 2),
    "SNDBCK_PUT_NUMS": (2, 1),
}  # fmt: skip
#: Upper ends of the ranges by which pulls are counted, in seconds.
PULL_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip
#: Puts that take longer are logged and counted.
SLOW_PUT_MS: Final = 500
#: Maximum number of topics of a :class:`TopicCounts`.
MAX_TOPICS: Final = 10_000
#: Maximum number of pairs of a group and a topic that have counters of pulls, counters of
#: send-backs, or positions.
MAX_COUNTERS: Final = 50_000
#: The consumer of the delay queues in statistics (upstream: MixAll.SCHEDULE_CONSUMER_GROUP).
SCHEDULE_CONSUMER: Final = "SCHEDULE_CONSUMER"


class Figure(NamedTuple):
    """Figures of one window: the sum, the sum a second, and the average per send or pull."""

    sum: int = 0
    tps: float = 0.0
    average: float = 0.0


class Counter(PullCounter):
    """Messages, bytes, and sends or pulls of one key; ``past`` has their samples by window.

    A sample is four integers: its number in the window, and the three counts. The counter appends
    itself to ``changed`` at its first change in each step. ``key`` is None once the topic or the
    group was deleted.
    """

    __slots__ = ("__weakref__", "_changed", "key", "past")

    def __init__(self, changed: list[Counter], key: tuple[str, str]) -> None:
        super().__init__()
        self._changed = changed
        self.key: tuple[str, str] | None = key
        self.past = array("q"), array("q"), array("q")

    def begin(self, step: int) -> None:
        """Begin step number ``step``: note that the counter changes in it."""
        self.step = step
        self._changed.append(self)

    def put(self, count: int, size_bytes: int, times: int, step: int) -> None:
        """Count messages of ``times`` sends in step number ``step``."""
        if self.step != step:
            self.begin(step)
        self.count += count
        self.size_bytes += size_bytes
        self.times += times


class Samples:
    """One window of all counters: the times of its samples, and the figures of a counter's past.

    ``number`` is the number of the last sample; the first one is 1.
    """

    def __init__(self, interval_ms: int, span: int) -> None:
        self._interval_ms = interval_ms
        self._span = span
        self._times: deque[int] = deque(maxlen=span + 1)
        self.number = 0

    def note(self, counter: Counter, past: array[int]) -> None:
        """Add the next sample to the past of a counter; :meth:`end` ends the sample of all."""
        number = self.number + 1
        # Keep one sample from before the window: the value with which the window begins.
        while len(past) >= 8 and past[4] < number - self._span:
            del past[:4]
        past.extend((number, counter.count, counter.size_bytes, counter.times))

    def end(self, now_ms: int) -> None:
        """End a sample that was taken at ``now_ms``."""
        self.number += 1
        self._times.append(now_ms)

    def is_idle(self, past: array[int]) -> bool:
        """Return whether a counter has samples, and none within the window."""
        return len(past) > 0 and past[-4] <= self.number - self._span

    def read(self, past: array[int], field: int) -> Figure:
        """Return the window's figures of a counter; ``field`` is 1 for messages, 2 for bytes.

        A counter is taken as 0 one interval before its first sample.
        """
        numbers = past[::4]
        last = bisect_right(numbers, self.number) - 1
        if last < 0:
            return Figure()
        begin = self.number - self._span
        first = bisect_right(numbers, begin) - 1
        if first >= 0:
            value, times, since_ms = past[first * 4 + field], past[first * 4 + 3], self._time(begin)
        else:
            value = times = 0
            since_ms = self._time(numbers[0]) - self._interval_ms
        total = past[last * 4 + field] - value
        times = past[last * 4 + 3] - times
        duration_ms = max(self._times[-1] - since_ms, 1)
        return Figure(total, total * 1000 / duration_ms, total / times if times > 0 else 0.0)

    def _time(self, number: int) -> int:
        return self._times[number - self.number - 1]


@dataclass(frozen=True, slots=True)
class Totals:
    """Everything counted up to ``at_ms`` (monotonic): messages stored and their bytes, pulls that
    found messages and pulls that found none, messages delivered."""

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


class PutQueue(Protocol):
    """A queue that counts the messages that it got, their bytes and their sends."""

    topic: str
    queue_id: int
    put_count: int
    put_bytes: int
    put_times: int
    #: Single sends with a sharding key that were appended, and their bytes.
    fifo_count: int
    fifo_bytes: int


class Dispatched(Protocol):
    """Counter of the messages that were dispatched to their queues, and of their bytes."""

    messages: int
    size_bytes: int

    def take_grown(self) -> Sequence[PutQueue]:
        """Return the queues that may have got messages since the last call."""
        ...


class TopicCounts:
    """Messages and their bytes by topic, of at most MAX_TOPICS topics."""

    __slots__ = ("by_topic",)

    def __init__(self) -> None:
        self.by_topic: dict[str, tuple[int, int]] = {}

    def add(self, topic: str, size_bytes: int = 0, count: int = 1) -> None:
        """Count messages, one by default."""
        if topic in self.by_topic or len(self.by_topic) < MAX_TOPICS:
            known, total = self.by_topic.get(topic, (0, 0))
            self.by_topic[topic] = known + count, total + size_bytes


class PutTimes:
    """How long puts took, from their append to their answer, in ms.

    ``by_ms`` has the number of this minute's puts by their time. It stays small, because no put
    waits longer than the timeouts of syncs and slaves. Callers may add puts that are not slow to it
    directly. Counts by range and percentiles are those of the last whole minute, as upstream's.
    """

    #: Upper ends, exclusive, of the ranges that the runtime information shows.
    BOUNDS: Final = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)

    def __init__(self) -> None:
        self.by_ms: defaultdict[int, int] = defaultdict(int)
        self.slow_count = 0
        self._longest_ms = 0
        self._ended = Histogram([bound / 1_000 for bound in self.BOUNDS])
        self._last: list[tuple[int, int]] = []

    def add(self, took_ms: int, count: int) -> None:
        """Count puts that were answered together; log them if they were slow."""
        self.by_ms[took_ms] += count
        if took_ms > SLOW_PUT_MS and count:
            self.slow_count += count
            log.warning("slow puts count=%d took_ms=%d", count, took_ms)

    @property
    def longest_ms(self) -> int:
        """The longest time since the start."""
        return max(self._longest_ms, *self.by_ms, 0)

    def end_minute(self) -> None:
        """Begin the next minute."""
        self._longest_ms = self.longest_ms
        self._last = sorted(self.by_ms.items())
        _add_all(self._ended, self.by_ms)
        self.by_ms.clear()

    def since_start(self) -> Histogram:
        """Return the times of all puts since the start, in seconds.

        A put of 0 ms took up to 1 ms, and counts as half of it.
        """
        found = Histogram(self._ended.bounds)
        found.counts, found.total = [*self._ended.counts], self._ended.total
        _add_all(found, self.by_ms)
        return found

    def last_counts(self) -> list[int]:
        """Return the number of the last minute's puts in each range; the last range is open."""
        counts = [0] * (len(self.BOUNDS) + 1)
        for took_ms, count in self._last:
            counts[bisect_right(self.BOUNDS, took_ms)] += count
        return counts

    def percentile(self, share: float) -> float:
        """Return the time, in ms, within which this share (0 to 1) of the last minute's puts was
        answered."""
        rank = share * sum([count for _, count in self._last])
        for took_ms, count in self._last:
            if count and rank <= count:
                return took_ms + max(rank, 0.0) / count  # a put of 0 ms took up to 1 ms
            rank -= count
        return 0.0


def _add_all(histogram: Histogram, by_ms: Mapping[int, int]) -> None:
    for took_ms, count in by_ms.items():
        histogram.add((took_ms + 0.5) / 1_000, count)


class BrokerStats:
    """All counters of one broker since its start.

    With ``counts_puts`` false, as on a slave, there are no figures of the messages that topics got.
    """

    def __init__(
        self,
        clock: Clock,
        dispatched: Dispatched,
        *,
        counts_puts: bool = True,
        limits: ServerLimits | None = None,
    ) -> None:
        self._clock = clock
        #: Limits of the broker's clients, with the number of times that each was reached.
        self.limits = limits or ServerLimits(clock=clock)
        self._dispatched = dispatched
        self._before = dispatched.messages, dispatched.size_bytes
        self._counts_puts = counts_puts
        #: Totals of pulls; the code that answers a pull counts it.
        self.pulled = PullTotals()
        self.put_times = PutTimes()
        #: Times of the pulls that found messages, from the moment at which they could be answered.
        self.pull_seconds = Histogram(PULL_BOUNDS_S)
        self._samples: deque[Totals] = deque(maxlen=WINDOWS_S[-1] + 1)
        self._day = datetime.fromtimestamp(clock.wall_ms() / 1000).date()
        self.started_ms = clock.wall_ms()
        self.days = DayTotals()
        #: Counters that changed in this step, and since the last sample of each window.
        self._changed: list[Counter] = []
        self._changed_since: tuple[dict[Counter, None], ...] = ({}, {}, {})
        self._windows = tuple(Samples(steps * STEP_MS, span) for steps, span in _SPANS)
        self._next_step_ms = clock.monotonic_ms()
        self.pulls: dict[tuple[str, str], Counter] = {}
        self.send_backs: dict[tuple[str, str], Counter] = {}
        #: Positions of groups in topics, by queue id, until one of them is deleted.
        self.positions: dict[tuple[str, str], dict[int, PullPosition]] = {}
        #: Delayed messages (by level or timer) that were delivered to their topics.
        self.delayed = TopicCounts()
        #: Messages with a sharding key.
        self.fifo = TopicCounts()
        #: Stored messages by topic, and by "topic@queue id" for the delay queues. The keys are
        #: pairs with an empty group.
        self.topic_puts: dict[tuple[str, str], Counter] = {}
        #: Counters dropped from ``pulls`` that the plan of a pull still refers to.
        self._idle_pulls: WeakValueDictionary[tuple[str, str], Counter] = WeakValueDictionary()
        self._broker_puts, self._broker_gets = (Counter(self._changed, ("", "")) for _ in "pg")
        #: Counts messages of keys that have no counter of their own.
        self._uncounted = Counter(self._changed, ("", ""))
        #: Messages sent back that :meth:`take_puts` has not subtracted from the broker's puts yet.
        self._sent_back = 0
        for queue in dispatched.take_grown():  # dispatched by recovery: stored before this start
            queue.put_count = queue.put_bytes = queue.put_times = 0
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
        """Return the counter of the messages that a group pulls from a topic.

        It is valid until the group or the topic is deleted.
        """
        return self._counter(self.pulls, group, topic)

    def _counter(self, table: dict[tuple[str, str], Counter], group: str, topic: str) -> Counter:
        key = group, topic
        counter = table.get(key)
        if counter is not None:
            return counter
        if table is self.pulls:
            counter = self._idle_pulls.pop(key, None)
        if counter is None:
            if len(table) >= MAX_COUNTERS:
                reason = f"{len(table)} counters exist, group {group} in {topic} has none"
                self.limits.hit(Limit.STATISTICS, "-", reason)
                return self._uncounted
            counter = Counter(self._changed, key)
        table[key] = counter
        return counter

    def position(self, group: str, topic: str, queue_id: int) -> PullPosition:
        """Return the position of a group in a queue, which the code that answers a pull moves.

        Metrics show it until the group or the topic is deleted. If MAX_COUNTERS pairs have
        positions already, the position is not kept.
        """
        queues = self.positions.get((group, topic))
        if queues is None:
            if len(self.positions) >= MAX_COUNTERS:
                return PullPosition()
            queues = self.positions[group, topic] = {}
        position = queues.get(queue_id)
        if position is None:
            position = queues[queue_id] = PullPosition()
        return position

    def on_pull_missed(self) -> None:
        """Count a pull that found no messages."""
        self.pulled.missed += 1

    def on_delayed_delivery(self, queue_id: int, count: int, size_bytes: int) -> None:
        """Count messages of a delay queue that were delivered together."""
        for topic in (SCHEDULE_TOPIC, f"{SCHEDULE_TOPIC}@{queue_id}"):
            counter = self.counter(SCHEDULE_CONSUMER, topic)
            counter.put(count, size_bytes, count, self.pulled.step)

    def on_send_back(self, group: str, topic: str) -> None:
        """Count a message that a consumer sent back."""
        self._sent_back += 1
        self._counter(self.send_backs, group, topic).add(1, 0, self.pulled.step)

    def take_puts(self, queues: Iterable[PutQueue]) -> None:
        """Count, under their topics, the messages that queues got since the last call."""
        step = self.pulled.step
        for queue in queues:
            count, size_bytes, times = queue.put_count, queue.put_bytes, queue.put_times
            if not count:
                continue
            queue.put_count = queue.put_bytes = queue.put_times = 0
            topic = queue.topic
            if not self._counts_puts or topic == OP_HALF_TOPIC:
                continue
            self._put_counter(topic).put(count, size_bytes, times, step)
            if 0 < queue.fifo_count <= count:  # if it is more, some are not dispatched yet
                self.fifo.add(topic, queue.fifo_bytes, queue.fifo_count)
                queue.fifo_count = queue.fifo_bytes = 0
            if topic == SCHEDULE_TOPIC:
                key = f"{topic}@{queue.queue_id}"
                self._put_counter(key).put(count, size_bytes, times, step)
            # Upstream counts a message that is sent back for its topic, but not for the broker.
            back = min(self._sent_back, count)
            self._sent_back -= back
            self._broker_puts.put(count - back, 0, 0, step)

    def _put_counter(self, topic: str) -> Counter:
        key = "", topic
        counter = self.topic_puts.get(key)
        if counter is None:
            counter = self.topic_puts[key] = Counter(self._changed, key)
        return counter

    def _tables(self) -> tuple[dict[tuple[str, str], Counter], ...]:
        return self.topic_puts, self.pulls, self.send_backs

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic."""
        if counter := self.topic_puts.pop(("", topic), None):
            counter.key = None
        self.delayed.by_topic.pop(topic, None)
        self.fifo.by_topic.pop(topic, None)
        self._forget(1, topic)

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted group."""
        self._forget(0, group)

    def _forget(self, part: int, name: str) -> None:
        for table in (self.pulls, self.send_backs):
            for key in [key for key in table if key[part] == name]:
                table.pop(key).key = None
        for key in [key for key in self._idle_pulls if key[part] == name]:
            self._idle_pulls.pop(key).key = None
        for key in [key for key in self.positions if key[part] == name]:
            del self.positions[key]

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
        return 0.0 if counter is None else self._windows[0].read(counter.past[0], 1).tps

    def last_minute(self, counter: Counter) -> tuple[Figure, Figure]:
        """Return the messages and the bytes that a counter got in the last minute."""
        minute, past = self._windows[0], counter.past[0]
        return minute.read(past, 1), minute.read(past, 2)

    def figures(self, name: str, key: str) -> tuple[Figure, ...] | None:
        """Return minute, hour and day of a figure by upstream's name and key; None if the name has
        no such key. A topic is known once :meth:`take_puts` has counted one of its queues."""
        field = 2 if name.endswith("_SIZE") else 1
        found: Counter | None = None
        if (of_key := _KEYS.get(name)) is not None:
            number, signs = of_key
            topic, _, group = key.rpartition("@") if number else (key, "", "")
            if key.count("@") == signs:
                found = self._tables()[number].get((group, topic))
        elif name == "BROKER_PUT_NUMS" and self._counts_puts and self.puts:
            found = self._broker_puts
        elif name == "BROKER_GET_NUMS" and self.pulled.transferred:
            found = self._broker_gets
        if found is None:
            return None
        pairs = zip(self._windows, found.past, strict=True)
        return tuple(window.read(past, field) for window, past in pairs)

    # ------------------------------------------------------------------------------------- sampling

    async def sample_forever(self) -> None:
        """Sample the totals each second, topics and groups each 10 s, until cancelled."""
        while True:
            if self._clock.monotonic_ms() >= self._next_step_ms:
                await self.sample_step()
            await self._clock.sleep_ms(SAMPLE_INTERVAL_MS)
            self.sample()

    def sample(self) -> None:
        """Sample the totals, and note them as the day's if a new day began."""
        self._samples.append(self.totals())
        today = datetime.fromtimestamp(self._clock.wall_ms() / 1000).date()
        if today != self._day:
            self._day = today
            self.days = DayTotals(
                self.days.puts_today, self.puts, self.days.gets_today, self.pulled.transferred
            )

    async def sample_step(self) -> None:
        """Sample the counters of topics and groups that changed; pause between slices."""
        slices = Slices(self._clock)
        for queue in self._dispatched.take_grown():
            self.take_puts((queue,))
            await slices.pause()
        now_ms, step = self._clock.monotonic_ms(), self.pulled.step
        if delivered := self.pulled.transferred - self._broker_gets.count:
            self._broker_gets.put(delivered, 0, 0, step)
        changed = self._changed[:]
        self._changed.clear()
        self.pulled.step = step + 1
        self._next_step_ms = max(self._next_step_ms + STEP_MS, now_ms - STEP_MS)
        for counter in changed:
            for table in self._changed_since:
                table[counter] = None
            if counter.key is not None and counter.key in self._idle_pulls:
                self.pulls[counter.key] = self._idle_pulls.pop(counter.key)
            await slices.pause()
        for number, (steps, _) in enumerate(_SPANS):
            if step % steps == 0:
                await self._sample_window(number, slices)
                self._windows[number].end(now_ms)
        if step % _STEPS_A_MINUTE == 0:
            self.put_times.end_minute()
        if step % _SPANS[-1][0] == 0:
            await self._forget_idle(slices)
        await self._make_room(slices)

    async def _sample_window(self, number: int, slices: Slices) -> None:
        window, changed = self._windows[number], self._changed_since[number]
        for counter in changed:
            window.note(counter, counter.past[number])
            await slices.pause()
        changed.clear()

    async def _forget_idle(self, slices: Slices) -> None:
        """Drop the counters without a message for a day."""
        day = self._windows[-1]
        for table in self._tables():
            for key, counter in list(table.items()):
                is_idle = day.is_idle(counter.past[-1]) and counter not in self._changed_since[-1]
                if is_idle and table.get(key) is counter:
                    self._drop(table, key, counter)
                await slices.pause()

    async def _make_room(self, slices: Slices) -> None:
        """Drop the counters without a message for a minute from the tables that are full."""
        begin = self.pulled.step - _STEPS_A_MINUTE
        for table in (self.pulls, self.send_backs):
            if len(table) < MAX_COUNTERS:
                continue
            for key, counter in list(table.items()):
                if counter.step < begin and table.get(key) is counter:
                    self._drop(table, key, counter)
                await slices.pause()

    def _drop(
        self, table: dict[tuple[str, str], Counter], key: tuple[str, str], counter: Counter
    ) -> None:
        del table[key]
        for changed in self._changed_since:
            changed.pop(counter, None)
        if table is self.pulls:
            self._idle_pulls[key] = counter

    def _rate(self, now: Totals, names: Sequence[str], window_s: int) -> str:
        since_ms = now.at_ms - window_s * 1000
        before = next(
            (sample for sample in self._samples if sample.at_ms >= since_ms), self._samples[-1]
        )
        duration_ms = max(now.at_ms - before.at_ms, 1_000)
        grown = sum(getattr(now, name) - getattr(before, name) for name in names)
        return str(grown * 1000 / duration_ms)
