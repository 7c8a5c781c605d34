"""State report and statistics of a running consumer, in the format of mqadmin and the dashboard
(upstream: DefaultMQPushConsumerImpl.consumerRunningInfo, ProcessQueue.fillProcessQueueInfo,
ConsumerStatsManager.java). Does no I/O.

The report may include the stack traces of all threads and tasks of this process as text, like the
jstack output of a Java client.

Statistics are durations and rates of pulls and of processing by topic. Each message only increments
counters. Rates are differences between samples of the counters that the consumer takes
periodically. Processing time is measured for a part of the messages.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.client.routes import key_of
from cometmq.client.status import QueueProgress
from cometmq.protocol.bodies import ProcessQueueInfo, RunningInfo, TopicRates
from cometmq.protocol.codes import OUR_VERSION, version_name
from cometmq.protocol.fastjson import object_map

if TYPE_CHECKING:
    from types import FrameType

    from cometmq.client.config import ClientConfig
    from cometmq.client.consumer.inflight import InFlight
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.message.names import Namespace

#: Maximum length of the text of stack traces, in characters.
MAX_CHARACTERS: Final = 256 * 1024
_FRAMES: Final = 16
_MIB: Final = 1024 * 1024
#: Time that the samples of the statistics cover: one minute for rates, one hour for failures.
RATE_WINDOW_MS: Final = 60_000
FAILURE_WINDOW_MS: Final = 3_600_000
#: The processing time is measured for every sixteenth message that is settled singly, and for all
#: messages of runs.
MEASURED: Final = 16


@dataclass(frozen=True, slots=True)
class Moment:
    """One time on both clocks, to convert monotonic times to wall times."""

    wall_ms: int
    monotonic_ms: int

    def wall_of(self, monotonic_ms: int) -> int:
        """Return the wall time of a monotonic time; 0, which means never, stays 0."""
        return self.wall_ms - (self.monotonic_ms - monotonic_ms) if monotonic_ms else 0


def queue_progress(inflight: InFlight, namespace: Namespace, committed: int) -> QueueProgress:
    """Return the progress in a queue; messages before offset ``committed`` are processed."""
    return QueueProgress(
        namespace.unwrap_queue(inflight.queue),
        committed,
        inflight.next_offset,
        inflight.end,
        inflight.ready_count,
        inflight.taken_count + inflight.committable - committed,
    )


def running_info(
    options: SubscribeOptions,
    config: ClientConfig,
    queues: Iterable[tuple[InFlight, bool]],
    rates: Mapping[str, TopicRates],
    *,
    started_ms: int,
    now: Moment,
    stacks: str | None = None,
) -> RunningInfo:
    """Return the response body of request 307 (GET_CONSUMER_RUNNING_INFO).

    ``queues`` are the queues that are read, with True if the lock is held. ``started_ms`` is wall
    time.
    """
    described = options.describe()
    return RunningInfo(
        _properties(options, config, started_ms),
        described.subscription_data_set,
        object_map(
            (key_of(inflight.queue), _describe(inflight, locked, now))
            for inflight, locked in sorted(queues, key=lambda each: each[0].queue)
        ),
        dict(rates),
        stacks,
    )


def _properties(options: SubscribeOptions, config: ClientConfig, started_ms: int) -> dict[str, str]:
    described = options.describe()
    concurrency = str(options.concurrency)
    return {
        "PROP_NAMESERVER_ADDR": ";".join(config.name_servers) + ";",
        "PROP_CONSUME_TYPE": described.consume_type,
        "PROP_CLIENT_VERSION": version_name(OUR_VERSION),
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        "PROP_CONSUMEORDERLY": "true" if options.ordered else "false",
        "PROP_THREADPOOL_CORE_SIZE": concurrency,
        "consumerGroup": options.group,
        "messageModel": described.message_model,
        "consumeFromWhere": described.consume_from_where,
        "consumeThreadMin": concurrency,
        "consumeThreadMax": concurrency,
        "consumeTimeout": str(config.consume_timeout_ms // 60_000),
        "maxReconsumeTimes": str(options.max_reconsume_times),
        "pullBatchSize": str(config.pull_batch_messages),
        "pullThresholdForQueue": str(config.max_queue_messages),
        "pullThresholdSizeForQueue": str(config.max_queue_bytes // _MIB),
        "consumeConcurrentlyMaxSpan": str(config.max_queue_span),
        "clientLanguage": "PYTHON",
    }


def _describe(inflight: InFlight, locked: bool, now: Moment) -> ProcessQueueInfo:
    first = inflight.committable
    return ProcessQueueInfo(
        commit_offset=max(first, 0),
        cached_msg_min_offset=first if inflight.count else 0,
        cached_msg_max_offset=first + inflight.span if inflight.count else 0,
        cached_msg_count=inflight.count,
        cached_msg_size_in_mi_b=inflight.size_bytes // _MIB,
        transaction_msg_count=inflight.taken_count if locked else 0,
        locked=locked,
        dropped=inflight.dropped,
        last_pull_timestamp=now.wall_of(inflight.pulled_ms),
        last_consume_timestamp=now.wall_of(inflight.taken_ms),
    )


def stacks() -> str:
    """Return the stacks of all threads, then of the running loop's tasks, innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        _titled(f"thread {names.get(ident, ident)}", traceback.format_stack(frame, _FRAMES))
        for ident, frame in sys._current_frames().items()
    ]
    parts += [
        _titled(f"task {task.get_name()}", _lines(task.get_stack(limit=_FRAMES)))
        for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    ]
    text = "\n".join(parts)
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "\n...\n"


def _lines(frames: list[FrameType]) -> list[str]:
    places = [(frame, frame.f_lineno) for frame in frames]
    return traceback.StackSummary.extract(places).format()


def _titled(title: str, lines: list[str]) -> str:
    return f"{title}\n{''.join(lines)}"


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
        """Store a sample of the counters, from which later rates are computed."""
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
