"""Dead letters: messages that a consumer group gave up, in its topic ``%DLQ%group``.

A dead letter can be sent again to its original topic, where all groups get it, or to the retry
topic of its group, which alone gets it:

    original topic   the copy gets a new message id, because brokers that drop repeated messages
                     would drop the old one; the id is derived from the letter's place in the
                     dead-letter queue, as in the Spark job for dead letters
    retry topic      the copy keeps its message id, as RocketMQ's own retries do

Both copies keep tags, keys, flag and own properties; ORIGIN_MESSAGE_ID has the first message's id.

Before a letter is sent, the brokers are asked whether it was sent already, so that a repeated
command sends only the remaining letters. The brokers' indexes are milliseconds late: a letter that
was sent within that time may be sent twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from cometmq.admin.messages import EARLIEST, EVERYTHING, LATEST, Messages, Position
from cometmq.core.errors import CometError, RouteNotFound
from cometmq.message import properties as props
from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX
from cometmq.protocol.bodies import readable

if TYPE_CHECKING:
    from cometmq.admin.api import Admin, Unread
    from cometmq.message.model import StoredMessage

#: Properties that are not copied: they describe deliveries of the original, or where it waited.
_LEFT_OUT: Final = frozenset(
    {
        *(props.DELAY, props.REAL_TOPIC, props.REAL_QID, props.RETRY_TOPIC, props.WAIT),
        *(props.RECONSUME_TIME, props.MAX_RECONSUME_TIMES, props.DLQ_ORIGIN_TOPIC),
        *(props.DLQ_ORIGIN_MESSAGE_ID, props.MIN_OFFSET, props.MAX_OFFSET),
        *(props.CONSUME_START_TIME, props.TRAN_MSG, props.PRODUCER_GROUP, props.CLUSTER),
        *(props.TRAN_PREPARED_QUEUE_OFFSET, props.TRANSACTION_CHECK_TIMES, props.TRANSACTION_ID),
        *(props.TIMER_DELAY_SEC, props.TIMER_DELAY_MS, props.TIMER_DELIVER_MS, props.TIMER_OUT_MS),
    }
)


class Destination(Enum):
    """Topic that a dead letter is sent to: its original one, or the retry topic of its group."""

    ORIGIN = "origin"
    RETRY = "retry"


class ResendStatus(Enum):
    """Result of sending a dead letter again.

    PLANNED: a dry run would send it. REPEATED: it was sent before. NO_ORIGIN: no broker recorded
    its original topic. FAILED: a request failed.
    """

    SENT = "sent"
    PLANNED = "planned"
    REPEATED = "repeated"
    NO_ORIGIN = "no-origin"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Group with a dead-letter topic: the number of letters, and the newest's time in ms."""

    group: str
    letters: int
    newest_ms: int
    is_readable: bool


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter.

    ``origin`` is the topic that it was first sent to, "" if it is not known. ``died_ms`` is the
    time at which its group gave it up, in ms since the epoch.
    """

    group: str
    message: StoredMessage
    origin: str
    origin_message_id: str
    retries: int
    died_ms: int


@dataclass(frozen=True, slots=True)
class Resent:
    """Outcome of one letter; ``topic`` and ``message_id`` are those of the copy."""

    letter: DeadLetter
    outcome: ResendStatus
    topic: str
    message_id: str
    problem: str = ""


class DeadLetters:
    """Operations on dead letters: ``DeadLetters(admin)``.

    All methods raise NotConnected or RequestTimedOut when a server cannot be reached, BrokerRefused
    when it refuses, and NotFound for a group that no broker knows.
    """

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._messages = Messages(admin)

    async def groups(self, *, unread: list[Unread] | None = None) -> list[DeadGroup]:
        """Return the groups that have a dead-letter topic, sorted by name.

        For ``unread`` see :class:`Admin`.
        """
        found: list[DeadGroup] = []
        for topic in await self._admin.list_topics():
            if not topic.startswith(DLQ_PREFIX):
                continue
            try:
                route = await self._admin.topic_route(topic)
                stats = await self._admin.topic_stats(topic, unread=unread)
            except RouteNotFound:
                continue  # deleted since the topics were listed
            letters = sum(each.max_offset - each.min_offset for each in stats.values())
            newest_ms = max((each.last_update_timestamp for each in stats.values()), default=0)
            may_read = all(readable(data.perm) for data in route.queue_datas)
            group = topic.removeprefix(DLQ_PREFIX)
            found.append(DeadGroup(group, letters, newest_ms if letters else 0, may_read))
        return found

    async def browse(
        self, group: str, start: Position = EARLIEST, end: Position = LATEST
    ) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters of a group, in the order in which they were given up.

        Yields nothing for a group without dead letters. Raises CometError if the topic may not be
        read.
        """
        topic = DLQ_PREFIX + group
        try:
            route = await self._admin.topic_route(topic)
        except RouteNotFound:
            await self._admin.require_group(group)
            return
        hidden = sorted(d.broker_name for d in route.queue_datas if not readable(d.perm))
        if hidden:
            raise CometError(
                f"topic {topic!r} is write-only on {', '.join(hidden)}, as old brokers create it: "
                "give it permission 6"
            )
        async for message in self._messages.browse(topic, start, end, EVERYTHING):
            yield dead_letter(group, message)

    async def resend(
        self,
        letter: DeadLetter,
        destination: Destination = Destination.ORIGIN,
        *,
        dry_run: bool = False,
        again: bool = False,
    ) -> Resent:
        """Send a dead letter again unless it was sent to this destination before.

        ``again`` sends it in any case; ``dry_run`` sends nothing. The letter stays in the
        dead-letter queue. An error is returned as an outcome with its text, so that a caller can go
        on with the next letter.
        """
        topic, properties = plan_resend(letter, destination)
        message_id = properties[props.UNIQ_KEY]
        if not topic:
            problem = "no broker recorded the topic that it was first sent to"
            return Resent(letter, ResendStatus.NO_ORIGIN, topic, message_id, problem)
        try:
            if not again and await self._was_sent(letter, topic, message_id):
                return Resent(letter, ResendStatus.REPEATED, topic, message_id)
            if dry_run:
                return Resent(letter, ResendStatus.PLANNED, topic, message_id)
            await self._messages.store(letter.message, properties, topic)
        except CometError as error:
            return Resent(letter, ResendStatus.FAILED, topic, message_id, str(error))
        return Resent(letter, ResendStatus.SENT, topic, message_id)

    async def _was_sent(self, letter: DeadLetter, topic: str, message_id: str) -> bool:
        # Earlier deliveries in the retry topic have the same id, but were stored before the letter.
        try:
            copies = await self._messages.by_unique_key(topic, message_id, since_ms=letter.died_ms)
        except RouteNotFound:
            return False  # the send creates the topic, or its error says why not
        return bool(copies)


def dead_letter(group: str, message: StoredMessage) -> DeadLetter:
    """Return a message of a dead-letter topic as a dead letter."""
    found = message.properties
    return DeadLetter(
        group,
        message,
        found.get(props.DLQ_ORIGIN_TOPIC) or found.get(props.RETRY_TOPIC, ""),
        found.get(props.DLQ_ORIGIN_MESSAGE_ID) or found.get(props.ORIGIN_MESSAGE_ID, ""),
        message.reconsume_times,
        message.store_ms,
    )


def plan_resend(letter: DeadLetter, destination: Destination) -> tuple[str, dict[str, str]]:
    """Return the topic and the properties of the copy; the topic is "" if it is not known."""
    message = letter.message
    properties = {
        name: value for name, value in message.properties.items() if name not in _LEFT_OUT
    }
    properties[props.ORIGIN_MESSAGE_ID] = letter.origin_message_id or message.message_id
    if destination is Destination.ORIGIN:
        properties[props.UNIQ_KEY] = resend_id(message)
        return letter.origin, properties
    properties.setdefault(props.UNIQ_KEY, resend_id(message))
    if not letter.origin:
        return "", properties
    properties[props.RETRY_TOPIC] = letter.origin
    return RETRY_PREFIX + letter.group, properties


def resend_id(message: StoredMessage) -> str:
    """Return the message id of a letter that is sent to its original topic.

    It has the form of a client's id with a loopback address, and is derived from the letter's
    place; spark/jobs/dlq.py derives the same.
    """
    place = f"{message.topic}|{message.broker_name}|{message.queue_id}|{message.queue_offset}"
    digest = hashlib.sha256(place.encode()).hexdigest().upper()
    return f"7F{digest[:18]}00000000{digest[18:22]}"
