"""State report of a running consumer, in the format of mqadmin and the dashboard (upstream:
DefaultMQPushConsumerImpl.consumerRunningInfo, ProcessQueue.fillProcessQueueInfo). Does no I/O.

It may include the stack traces of every thread and task of this process as text, like a Java
client's jstack.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.client.routes import key_of
from cometmq.protocol.bodies import ProcessQueueInfo, RunningInfo, TopicRates
from cometmq.protocol.codes import OUR_VERSION, version_name
from cometmq.protocol.fastjson import object_map

if TYPE_CHECKING:
    from types import FrameType

    from cometmq.client.config import ClientConfig
    from cometmq.client.consumer.inflight import InFlight
    from cometmq.client.consumer.options import SubscribeOptions

#: Maximum length of the text, in characters.
MAX_CHARACTERS: Final = 256 * 1024
_FRAMES: Final = 16


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


_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment on both clocks, to convert monotonic times to wall times."""

    wall_ms: int
    monotonic_ms: int

    def wall_of(self, monotonic_ms: int) -> int:
        """Return the wall time of a monotonic time; 0, which means never, stays 0."""
        return self.wall_ms - (self.monotonic_ms - monotonic_ms) if monotonic_ms else 0


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

    ``queues`` are those that are read now, each with whether its lock is held. ``started_ms`` is
    wall time.
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
