"""Statistics of a consumer by topic: durations and rates of pulls and of processing (upstream:
ConsumerStatsManager.java).

Counting happens for every message, so it is only an addition. Rates are differences between samples
that the consumer takes periodically. Processing time is measured for a part of the messages.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from cometmq.protocol.bodies import TopicRates

#: Age of the oldest samples kept: one minute for rates, one hour for failures.
RATE_WINDOW_MS: Final = 60_000
FAILURE_WINDOW_MS: Final = 3_600_000
#: Of the messages that are settled one by one, one in this many is measured. Runs are measured as a
#: whole.
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
    """Counters of one topic since the start."""

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
        """Store a sample of the counters, as the base of later rates."""
        now = self._take(now_ms)
        _push(self._minutes, now, RATE_WINDOW_MS)
        if now_ms - self._hours[-1].at_ms >= RATE_WINDOW_MS:
            _push(self._hours, now, FAILURE_WINDOW_MS)

    def rates(self, now_ms: int) -> TopicRates:
        """Return the rates of the last minute and the number of failures in the last hour."""
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
    """Counters of one consumer by topic (broker names). Times are monotonic ms."""

    def __init__(self, now_ms: int) -> None:
        self._started_ms = now_ms
        self._topics: dict[str, TopicCounters] = {}

    def of(self, topic: str) -> TopicCounters:
        """Return the counters of one topic."""
        counters = self._topics.get(topic)
        if counters is None:
            counters = self._topics[topic] = TopicCounters(self._started_ms)
        return counters

    def pulled(self, topic: str, count: int, took_ms: int) -> None:
        """Count a pull that returned ``count`` messages."""
        counters = self.of(topic)
        counters.pulls += 1
        counters.pull_ms += took_ms
        counters.pulled += count

    def sample(self, now_ms: int) -> None:
        """Store a sample of all counters; call it every few seconds."""
        for counters in self._topics.values():
            counters.sample(now_ms)


def _push(samples: deque[_Sample], now: _Sample, window_ms: int) -> None:
    samples.append(now)
    # Keep the newest sample older than the window, so that rates cover the whole window.
    while len(samples) > 1 and samples[1].at_ms <= now.at_ms - window_ms:
        samples.popleft()


def _share(total: int, count: int) -> float:
    return total / count if count else 0.0
