"""Messages that should be read and are gone: an error, or a line in a report.

A report is a folder that the driver and all executors share. Every process appends to a file of its
own there, ``losses-HOST-PID.jsonl``, one line a loss:

    {"at_ms": 1772600767089, "topic": "orders", "broker": "broker-a", "queue": 3,
     "first": 120, "last": 457, "messages": 338}

A task that Spark runs twice reports twice. What cannot be written fails the query: a loss that
nobody is told of is worse than one that stops.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError
from cometmq.spark.options import BadOption
from cometmq.spark.read.offsets import key_of

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue

log = logging.getLogger(__name__)

_clock: Final = SystemClock()


class LossRule(Protocol):
    """What a user said of losses: to fail, or to go on and write them down in a folder."""

    @property
    def fail_on_data_loss(self) -> bool: ...

    @property
    def data_loss_report(self) -> str | None: ...


class DataLoss(CometError):
    """Messages ``start <= offset < stop`` of ``queue`` should be read and are gone."""

    def __init__(self, queue: MessageQueue, start: int, stop: int) -> None:
        self.queue = queue
        self.start = start
        self.stop = stop
        super().__init__(
            f"offsets {start} to {stop - 1} of queue {queue.queue_id} of topic {queue.topic!r} on "
            f"broker {queue.broker_name!r} are gone (deleted after the broker's retention time, or "
            "the topic was made anew); set option failOnDataLoss to false to go on without them"
        )


def report_loss(queue: MessageQueue, start: int, stop: int, rule: LossRule) -> None:
    """Raise DataLoss; or log it, and write it down, where the user chose to go on.

    Raises OSError when the report cannot be written.
    """
    if rule.fail_on_data_loss:
        raise DataLoss(queue, start, stop)
    log.warning("data_loss queue=%s start=%d stop=%d", queue, start, stop)
    if rule.data_loss_report is not None:
        _append(Path(rule.data_loss_report), line(queue, start, stop, _clock.wall_ms()))


def report_beyond(option: str, queue: MessageQueue, end: int, named: int, rule: LossRule) -> None:
    """Raise BadOption where an ``option`` names an offset beyond the ``end`` of a queue; or report
    what lies between as lost, where the user chose to go on."""
    if rule.fail_on_data_loss:
        raise BadOption(
            option,
            f"queue {key_of(queue)} (broker|topic|queue) ends at {end}, before {named}: it has no "
            f"messages {end} to {named - 1} (not yet, or its topic was made anew); set option "
            "failOnDataLoss to false to read to its end",
        )
    report_loss(queue, end, named, rule)


def line(queue: MessageQueue, start: int, stop: int, at_ms: int) -> str:
    """A loss as the report has it."""
    return json.dumps(
        {
            "at_ms": at_ms,
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "first": start,
            "last": stop - 1,
            "messages": stop - start,
        }
    )


def _append(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"losses-{socket.gethostname()}-{os.getpid()}.jsonl"
    with path.open("a", encoding="utf-8") as opened:
        opened.write(text + "\n")
