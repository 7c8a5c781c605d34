"""Message traces: producer, consumer, time and result of each message, sent to the trace topic.

The hooks only queue records; a task packs them into messages and sends them every half second. At
most MAX_WAITING records are queued; further ones are dropped and counted. A trace that cannot be
sent is dropped and logged. So tracing cannot fail or delay the traced work (upstream:
AsyncTraceDispatcher.java, client/trace/hook/*.java).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from cometmq.client.hooks import Outcome
from cometmq.client.producer import Producer
from cometmq.client.sendrequests import SendStatus
from cometmq.core.errors import CometError
from cometmq.message import properties as props
from cometmq.message.model import Message

if TYPE_CHECKING:
    from cometmq.client.hooks import ConsumeAttempt, SendAttempt, TransactionEnd
    from cometmq.client.session import Session

log = logging.getLogger(__name__)


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
    """Text of one record, and the index keys of its trace message."""

    text: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """Message that the broker at ``address`` stored.

    ``succeeded`` is True if it was stored as safely as the broker's settings require.
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
    """Start of processing a message; ``request_id`` is the same in the record of its end."""

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
    True if the broker asked for the outcome.
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


#: Maximum number of records that are read from one trace message.
MAX_RECORDS: Final = 100_000


def decode_traces(body: bytes) -> list[Trace]:
    """Return the records of a trace message of a client of any language and version.

    Unknown and malformed records are skipped (upstream: TraceDataEncoder.java).
    """
    found: list[Trace] = []
    for text in body.decode("utf-8", "replace").split(_RECORD, MAX_RECORDS)[:MAX_RECORDS]:
        fields = ["" if each == _UNKNOWN else each for each in text.split(_FIELD)]
        reader = _READERS.get(fields[0])
        if reader is None:
            continue
        try:
            found.append(reader(fields))
        except (ValueError, IndexError):
            log.debug("trace_record_skipped kind=%s fields=%d", fields[0], len(fields))
    return found


def _read_sent(fields: list[str]) -> Sent:
    """Read a Pub record: before 4.4 without an offset id, in later releases with a client."""
    offset_id, succeeded = ("", fields[12]) if len(fields) == 13 else (fields[12], fields[13])
    ordinal = int(fields[11])
    kinds = MessageKind.__members__.values()
    kind = MessageKind(ordinal) if ordinal in kinds else MessageKind.NORMAL
    return Sent(
        fields[5], fields[4], fields[3], fields[6], props.split_keys(fields[7]), int(fields[9]),
        kind, fields[8], offset_id, fields[2], int(fields[1]), int(fields[10]), succeeded == "true",
    )  # fmt: skip


def _read_consuming(fields: list[str]) -> Consuming:
    keys = props.split_keys(fields[7]) if len(fields) > 7 else ()
    return Consuming(
        fields[5], fields[3], keys, int(fields[6]), fields[2], fields[4], int(fields[1])
    )


def _read_consumed(fields: list[str]) -> Consumed:
    """Read a SubAfter record. Older releases write no result, time and group."""
    end = ConsumeEnd.SUCCESS if fields[4] == "true" else ConsumeEnd.FAILED
    if len(fields) > 6 and fields[6].isdecimal() and int(fields[6]) < len(ConsumeEnd):
        end = ConsumeEnd(int(fields[6]))
    ended_ms = int(fields[7]) if len(fields) > 8 else 0
    group = fields[8] if len(fields) > 8 else ""
    keys = props.split_keys(fields[5]) if len(fields) > 5 else ()
    return Consumed(fields[2], group, keys, fields[1], ended_ms, int(fields[3]), end)


def _read_transaction_ended(fields: list[str]) -> TransactionEnded:
    states = {"COMMIT_MESSAGE": True, "ROLLBACK_MESSAGE": False}
    return TransactionEnded(
        fields[5], fields[4], fields[3], fields[6], props.split_keys(fields[7]), fields[8],
        fields[10], states.get(fields[11]), fields[12] == "true", fields[2], int(fields[1]),
    )  # fmt: skip


_READERS: Final[dict[str, Callable[[list[str]], Trace]]] = {
    "Pub": _read_sent,
    "SubBefore": _read_consuming,
    "SubAfter": _read_consumed,
    "EndTransaction": _read_transaction_ended,
}


@dataclass(frozen=True, slots=True)
class TraceMessage:
    """Message of the trace topic: several records, and its index keys."""

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


MAX_WAITING: Final = 2_048
#: Time limit of the last flush when the client closes.
CLOSE_TIMEOUT_MS: Final = 1_000
_GROUP: Final = "_INNER_TRACE_PRODUCER"
_PERIOD_MS: Final = 500
_SEND_TIMEOUT_MS: Final = 5_000
_MAX_BODY_BYTES: Final = 118_000
#: Limit of the keys, which are a property; all properties together may have 32 767 bytes.
_MAX_KEYS_BYTES: Final = 24_000
#: Region name of brokers without a configured region.
_DEFAULT_REGION: Final = "DefaultRegion"


class Tracer:
    """Traces the messages of one session to ``topic``.

    Its hooks are added to the client's lists.
    """

    def __init__(self, session: Session, topic: str) -> None:
        self.topic = topic
        #: Number of records dropped because they arrived faster than they could be sent.
        self.dropped = 0
        self._session = session
        self._clock = session.clock
        # This producer has no hooks, so that traces are not traced.
        self._producer = Producer(session, f"{_GROUP}-{session.config.producer_group}")
        self._waiting: deque[Trace] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self.on_send = SendTrace(self)
        self.on_consume = ConsumeTrace(self)

    def note(self, trace: Trace) -> None:
        """Queue a record to be sent soon; drop it if MAX_WAITING are queued. Never raises."""
        if len(self._waiting) >= MAX_WAITING:
            if not self.dropped:
                log.warning(
                    "traces_dropped waiting=%d: more are created than can be sent", MAX_WAITING
                )
            self.dropped += 1
            return
        self._waiting.append(trace)
        if self._sending is None:
            self._sending = self._session.tasks.spawn(self._send_soon(), name="traces")

    def is_trace(self, topic: str) -> bool:
        """Return whether a topic holds traces. Traces are not traced themselves."""
        return topic.startswith(self.topic)

    def next_id(self) -> str:
        """Return a unique id."""
        return self._session.unique_keys.next(self._clock.wall_ms())

    def now_ms(self) -> int:
        """Return the wall time in ms."""
        return self._clock.wall_ms()

    def on_transaction_end(self, end: TransactionEnd) -> None:
        """Trace the end of a transaction that a producer reported to its broker."""
        if self.is_trace(end.topic):
            return
        self.note(
            TransactionEnded(
                end.message_id, end.topic, end.group, end.tag, end.keys, end.address,
                end.transaction_id, end.committed, end.checked, _DEFAULT_REGION, end.at_ms,
            )
        )  # fmt: skip

    async def close(self) -> None:
        """Send the queued records, for at most CLOSE_TIMEOUT_MS."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_MS / 1000):
                self._hurry.set()
                if self._sending is not None:
                    await asyncio.wait((self._sending,))
        except TimeoutError:
            log.warning("traces_lost count=%d reason=the client closes", len(self._waiting))

    async def flush(self) -> None:
        """Send the records queued so far. Failures are logged."""
        notes, self._waiting = self._waiting, deque()
        messages = gather(
            (trace.encode() for trace in notes),
            max_body_bytes=_MAX_BODY_BYTES,
            max_keys_bytes=_MAX_KEYS_BYTES,
        )
        for each in messages:
            message = Message(self.topic, each.body, keys=each.keys)
            try:
                await self._producer.send(message, timeout_ms=_SEND_TIMEOUT_MS)
            except CometError as error:
                log.warning("trace_not_sent topic=%s error=%s", self.topic, error)

    async def _send_soon(self) -> None:
        try:
            while self._waiting:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PERIOD_MS / 1000):
                        await self._hurry.wait()
                await self.flush()
        finally:
            self._sending = None


class SendTrace:
    """Traces sends; see hooks.SendHook."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def before(self, attempt: SendAttempt) -> None:
        """Do nothing: only messages that a broker stored are traced."""

    def after(self, attempt: SendAttempt) -> None:
        """Trace the messages that a broker stored."""
        cost_ms = attempt.ended_ms - attempt.started_ms
        for message, result in zip(attempt.messages, attempt.results, strict=False):
            if not result.region or self._tracer.is_trace(message.topic):
                continue  # the broker wants no traces, or the message is a trace
            self._tracer.note(
                Sent(
                    result.message_id,
                    message.topic,
                    attempt.group,
                    message.tag,
                    message.keys,
                    len(message.body),
                    _kind(attempt, message),
                    attempt.address,
                    result.offset_id,
                    result.region,
                    attempt.started_ms,
                    cost_ms,
                    result.status is SendStatus.OK,
                )
            )


class ConsumeTrace:
    """Traces the processing of messages; see hooks.ConsumeHook."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def before(self, attempt: ConsumeAttempt) -> None:
        """Trace the start of processing a message."""
        message = attempt.message
        properties = message.properties
        if properties.get(props.TRACE_ON) == "false" or self._tracer.is_trace(message.topic):
            return
        attempt.trace_id = self._tracer.next_id()
        self._tracer.note(
            Consuming(
                message.message_id,
                attempt.group,
                message.keys,
                message.reconsume_times,
                properties.get(props.MSG_REGION, ""),
                attempt.trace_id,
                attempt.started_ms,
            )
        )

    def after(self, attempt: ConsumeAttempt) -> None:
        """Trace the end of processing a message."""
        if not attempt.trace_id:
            return
        message = attempt.message
        self._tracer.note(
            Consumed(
                message.message_id,
                attempt.group,
                message.keys,
                attempt.trace_id,
                attempt.ended_ms,
                attempt.ended_ms - attempt.started_ms,
                _end(attempt),
            )
        )


def _kind(attempt: SendAttempt, message: Message) -> MessageKind:
    if attempt.is_half:
        return MessageKind.HALF
    return MessageKind.DELAYED if message.is_delayed else MessageKind.NORMAL


def _end(attempt: ConsumeAttempt) -> ConsumeEnd:
    if isinstance(attempt.error, Exception):
        return ConsumeEnd.RAISED
    if attempt.outcome is Outcome.ACKNOWLEDGED:
        return ConsumeEnd.SUCCESS
    return ConsumeEnd.FAILED if attempt.outcome is Outcome.RETRIED else ConsumeEnd.RETURNED
