"""The options of the sink, parsed and checked once. An error names the option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.client.limits import check_producer_group, check_target
from cometmq.core.errors import MessageIllegal
from cometmq.spark import kafka
from cometmq.spark.brokers import access
from cometmq.spark.options import BadOption, by_name, duration_ms, get, positive, some_text

if TYPE_CHECKING:
    from cometmq.spark.brokers.access import Access

OWN: Final = (
    *("topic", "producerGroup", "maxBatchMessages", "maxBatchBytes", "maxMessageBytes"),
    *("retryFor", "queryId", "batchId"),
)
KNOWN: Final = (*access.OPTIONS, *OWN, *kafka.ACCEPTED)

GROUP: Final = "COMETMQ_SPARK"
BATCH_MESSAGES: Final = 512
BATCH_BYTES: Final = 256 << 10
MESSAGE_BYTES: Final = 4 << 20
RETRY_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """All options of a write.

    If ``topic`` is None, each row names its topic. ``query`` and ``batch`` are set if
    ``foreachBatch`` writes a micro-batch with a batch write: message ids are then derived from
    them, as in a stream.
    """

    access: Access
    topic: str | None
    group: str
    batch_messages: int
    batch_bytes: int
    message_bytes: int
    retry_ms: int
    query: str | None
    batch: int | None


def parse(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of ``df.write`` or ``writeStream``. Raises BadOption."""
    given = by_name(options, KNOWN, access.ALIASES, kafka.hint)
    kafka.check_accepted(given)
    return WriteOptions(
        access=access.parse(given),
        topic=get(given, "topic", _topic, None),
        group=get(given, "producerGroup", _group, GROUP),
        batch_messages=get(given, "maxBatchMessages", positive, BATCH_MESSAGES),
        batch_bytes=get(given, "maxBatchBytes", positive, BATCH_BYTES),
        message_bytes=get(given, "maxMessageBytes", positive, MESSAGE_BYTES),
        retry_ms=get(given, "retryFor", duration_ms, RETRY_MS),
        query=get(given, "queryId", some_text, None),
        batch=get(given, "batchId", _number, None),
    )


def appending(options: Mapping[str, str], *, overwrite: bool) -> WriteOptions:
    """Parse the options of a write. Raises BadOption, also for an overwrite."""
    if overwrite:
        raise BadOption("mode", "a topic cannot be overwritten: use append")
    return parse(options)


def _topic(text: str) -> str:
    try:
        check_target(text)
    except MessageIllegal as error:
        raise ValueError(str(error)) from None
    return text


def _group(text: str) -> str:
    try:
        check_producer_group(text)
    except MessageIllegal as error:
        raise ValueError(str(error)) from None
    return text


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not a number")
    return int(text)
