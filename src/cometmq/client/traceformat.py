"""Text format of message traces, which clients write to the trace topic and mqadmin reads
(upstream: TraceDataEncoder.java). Pure.

A record is a list of fields joined by \\x01 and ended by \\x02. An unknown field is "null", because
readers drop empty fields at the end and then miss them.

    Pub             kind time region group topic id tags keys address size cost type offset-id ok
    SubBefore       kind time region group request-id id retries keys
    SubAfter        kind request-id id cost ok keys context-code time group
    EndTransaction  kind time region group topic id tags keys address type transaction state asked

Times are ms since the epoch, costs are ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

_FIELD: Final = "\x01"
_RECORD: Final = "\x02"
_UNKNOWN: Final = "null"


class MessageKind(IntEnum):
    """Kind of a sent message (upstream: MessageType.java)."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAYED = 3


class ConsumeEnd(IntEnum):
    """Result of consuming a message (upstream: ConsumeReturnType.java)."""

    SUCCESS = 0
    TIMED_OUT = 1
    RAISED = 2
    RETURNED = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """Text of one record, and the keys that index it."""

    text: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """Send that a broker at ``address`` stored; ``succeeded`` if it was stored as safely as
    demanded.
    """

    message_id: str
    topic: str
    group: str
    tag: str
    keys: tuple[str, ...]
    body_bytes: int
    kind: MessageKind
    address: str
    offset_id: str
    region: str
    started_ms: int
    cost_ms: int
    succeeded: bool

    def encode(self) -> TraceRecord:
        """Return the Pub record."""
        return _record(
            self.message_id,
            self.keys,
            "Pub", self.started_ms, self.region, self.group, self.topic, self.message_id, self.tag,
            " ".join(self.keys), self.address, self.body_bytes, self.cost_ms, self.kind,
            self.offset_id, self.succeeded,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Consuming:
    """Start of processing a message; ``request_id`` joins it with its end."""

    message_id: str
    group: str
    keys: tuple[str, ...]
    reconsume_times: int
    region: str
    request_id: str
    started_ms: int

    def encode(self) -> TraceRecord:
        """Return the SubBefore record."""
        return _record(
            self.message_id,
            self.keys,
            "SubBefore", self.started_ms, self.region, self.group, self.request_id,
            self.message_id, self.reconsume_times, " ".join(self.keys),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Consumed:
    """End of processing a message; see :class:`Consuming`."""

    message_id: str
    group: str
    keys: tuple[str, ...]
    request_id: str
    ended_ms: int
    cost_ms: int
    end: ConsumeEnd

    def encode(self) -> TraceRecord:
        """Return the SubAfter record."""
        return _record(
            self.message_id,
            self.keys,
            "SubAfter", self.request_id, self.message_id, self.cost_ms,
            self.end is ConsumeEnd.SUCCESS, " ".join(self.keys), self.end, self.ended_ms,
            self.group,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """End of a transaction, as reported by its producer.

    ``committed`` is True for committed, False for rolled back, None for not known. ``checked`` is
    set when the broker had asked.
    """

    message_id: str
    topic: str
    group: str
    tag: str
    keys: tuple[str, ...]
    address: str
    transaction_id: str
    committed: bool | None
    checked: bool
    region: str
    at_ms: int

    def encode(self) -> TraceRecord:
        """Return the EndTransaction record."""
        state = {True: "COMMIT_MESSAGE", False: "ROLLBACK_MESSAGE", None: "UNKNOW"}
        return _record(
            self.message_id,
            self.keys,
            "EndTransaction", self.at_ms, self.region, self.group, self.topic, self.message_id,
            self.tag, " ".join(self.keys), self.address, MessageKind.COMMIT, self.transaction_id,
            state[self.committed], self.checked,
        )  # fmt: skip


Trace = Sent | Consuming | Consumed | TransactionEnded


def _record(message_id: str, keys: Sequence[str], *fields: str | int | bool) -> TraceRecord:
    return TraceRecord(_FIELD.join(map(_field, fields)) + _RECORD, (message_id, *keys))


def _field(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    # A separator inside a key or a tag would split the record.
    return value.replace(_FIELD, " ").replace(_RECORD, " ") or _UNKNOWN


@dataclass(frozen=True, slots=True)
class TraceMessage:
    """Message of the trace topic: several records, and the keys that index it."""

    body: bytes
    keys: tuple[str, ...]


def gather(
    records: Iterable[TraceRecord], *, max_body_bytes: int, max_keys_bytes: int
) -> list[TraceMessage]:
    """Join records into as few messages as the limits allow, in order.

    A record that exceeds a limit by itself is sent alone.
    """
    messages: list[TraceMessage] = []
    texts: list[str] = []
    keys: dict[str, None] = {}
    body_bytes = keys_bytes = 0
    for record in records:
        size = len(record.text.encode())
        fresh = [key for key in record.keys if key not in keys]
        grown = sum(len(key.encode()) + 1 for key in fresh)
        if texts and (body_bytes + size > max_body_bytes or keys_bytes + grown > max_keys_bytes):
            messages.append(_message(texts, keys))
            texts, keys, body_bytes, keys_bytes = [], {}, 0, 0
            grown = sum(len(key.encode()) + 1 for key in record.keys)
        texts.append(record.text)
        keys.update(dict.fromkeys(record.keys))
        body_bytes += size
        keys_bytes += grown
    if texts:
        messages.append(_message(texts, keys))
    return messages


def _message(texts: Sequence[str], keys: Iterable[str]) -> TraceMessage:
    return TraceMessage("".join(texts).encode(), tuple(keys))
