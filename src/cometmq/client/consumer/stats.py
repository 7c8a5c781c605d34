"""How a consumer does with each of its topics: how long pulls and messages take, how many a second
(upstream: ConsumerStatsManager.java).

Counting is what happens for every message, so it is an addition; rates are differences between
samples that the consumer takes now and then. How long a message takes is measured for some.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from cometmq.protocol.consumerbodies import TopicRates

#: The samples that are kept: a minute's for rates, an hour's for failures.
RATE_WINDOW_MS: Final = 60_000
FAILURE_WINDOW_MS: Final = 3_600_000
#: One message in so many is measured.
MEASURED: Final = 16


class _Sample(NamedTuple):
    at_ms: int
    pulls: int
    pull_ms: int
    pulled: int
    succeeded: int
    failed: int
    measured: int
    consume_ms: int


class TopicCounters:
    """What was counted of one topic since the start."""

    __slots__ = (
        "_hours",
        "_minutes",
        "consume_ms",
        "failed",
        "measured",
        "pull_ms",
        "pulled",
        "pulls",
        "succeeded",
    )

    def __init__(self, now_ms: int) -> None:
        self.pulls = self.pull_ms = self.pulled = 0
        self.succeeded = self.failed = 0
        self.measured = self.consume_ms = 0
        self._minutes: deque[_Sample] = deque([self._take(now_ms)])
        self._hours: deque[_Sample] = deque(self._minutes)

    def sample(self, now_ms: int) -> None:
        """Remember how things stand, for rates from here on."""
        now = self._take(now_ms)
        _push(self._minutes, now, RATE_WINDOW_MS)
        if now_ms - self._hours[-1].at_ms >= RATE_WINDOW_MS:
            _push(self._hours, now, FAILURE_WINDOW_MS)

    def rates(self, now_ms: int) -> TopicRates:
        """What became of the topic in the last minute, and how much of it failed in the last
        hour."""
        now, before = self._take(now_ms), self._minutes[0]
        seconds = max(now_ms - before.at_ms, 1_000) / 1_000
        return TopicRates(
            _share(now.pull_ms - before.pull_ms, now.pulls - before.pulls),
            (now.pulled - before.pulled) / seconds,
            _share(now.consume_ms - before.consume_ms, now.measured - before.measured),
            (now.succeeded - before.succeeded) / seconds,
            (now.failed - before.failed) / seconds,
            now.failed - self._hours[0].failed,
        )

    def _take(self, now_ms: int) -> _Sample:
        return _Sample(
            now_ms,
            self.pulls,
            self.pull_ms,
            self.pulled,
            self.succeeded,
            self.failed,
            self.measured,
            self.consume_ms,
        )


class ConsumerStats:
    """The counters of one consumer by topic, as brokers name it. Times are monotonic ms."""

    def __init__(self, now_ms: int) -> None:
        self._started_ms = now_ms
        self._topics: dict[str, TopicCounters] = {}

    def of(self, topic: str) -> TopicCounters:
        """The counters of one topic."""
        counters = self._topics.get(topic)
        if counters is None:
            counters = self._topics[topic] = TopicCounters(self._started_ms)
        return counters

    def pulled(self, topic: str, count: int, took_ms: int) -> None:
        """A pull brought ``count`` messages."""
        counters = self.of(topic)
        counters.pulls += 1
        counters.pull_ms += took_ms
        counters.pulled += count

    def sample(self, now_ms: int) -> None:
        """Remember how things stand; call it every few seconds."""
        for counters in self._topics.values():
            counters.sample(now_ms)


def _push(samples: deque[_Sample], now: _Sample, window_ms: int) -> None:
    samples.append(now)
    # The newest that is older than the window stays: rates cover the whole of it.
    while len(samples) > 1 and samples[1].at_ms <= now.at_ms - window_ms:
        samples.popleft()


def _share(total: int, count: int) -> float:
    return total / count if count else 0.0
