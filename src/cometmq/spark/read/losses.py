"""Handles lost messages: those that a read should return and no broker has any more. A loss is an
error, or a line in a report.

A report is a folder that the driver and all executors share. Every process appends to its own file,
``losses-HOST-PID.jsonl``, one line per loss:

    {"at_ms": 1772600767089, "topic": "orders", "broker": "broker-a", "queue": 3,
     "first": 120, "last": 457, "messages": 338}

A task that Spark runs twice reports twice. If the report cannot be written, the query fails,
because an unreported loss is worse than a stopped query.
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
from cometmq.spark.read.checkpoint import key_of

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue

log = logging.getLogger(__name__)

_clock: Final = SystemClock()


class LossRule(Protocol):
    """The user's choice about losses: fail, or continue and report them to a folder."""

    @property
    def fail_on_data_loss(self) -> bool: ...

    @property
    def data_loss_report(self) -> str | None: ...


class DataLoss(CometError):
    """Raised if messages to read, ``start <= offset < stop`` of ``queue``, are lost."""

    def __init__(self, queue: MessageQueue, start: int, stop: int) -> None:
        self.queue = queue
        self.start = start
        self.stop = stop
        super().__init__(
            f"offsets {start} to {stop - 1} of queue {queue.queue_id} of topic "
            f"{queue.topic!r} on broker {queue.broker_name!r} are gone (deleted after the "
            "broker's retention time, or the topic was created again); set option "
            "failOnDataLoss to false to continue without them"
        )


def report_loss(queue: MessageQueue, start: int, stop: int, rule: LossRule) -> None:
    """Raise DataLoss, or log and report the loss if the user chose to continue.

    Raises OSError if the report cannot be written.
    """
    if rule.fail_on_data_loss:
        raise DataLoss(queue, start, stop)
    log.warning("data_loss queue=%s start=%d stop=%d", queue, start, stop)
    if rule.data_loss_report is not None:
        _append(Path(rule.data_loss_report), line(queue, start, stop, _clock.wall_ms()))


def report_beyond(option: str, queue: MessageQueue, end: int, named: int, rule: LossRule) -> None:
    """Handle an ``option`` that names the offset ``named`` beyond the ``end`` of a queue.

    Raises BadOption, or reports the offsets between as lost if the user chose to continue.
    """
    if rule.fail_on_data_loss:
        raise BadOption(
            option,
            f"queue {key_of(queue)} (broker|topic|queue) ends at {end}, before {named}: it "
            f"has no messages {end} to {named - 1} (they are not stored yet, or its topic was "
            "created again); set option failOnDataLoss to false to read to its end",
        )
    report_loss(queue, end, named, rule)


def line(queue: MessageQueue, start: int, stop: int, at_ms: int) -> str:
    """Return a loss as a line of the report."""
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
