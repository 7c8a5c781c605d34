"""Checks that every message from a client passes before it is stored: name, forbidden topics,
permissions, queue, system flag, sizes.

Checks by request code (upstream: AbstractSendMessageProcessor.msgCheck, SendMessageProcessor,
ReplyMessageProcessor):

    check                       10, 310    320        324, 325   36          on failure
    topic: a legal name         when made  when made  yes        the group   1 SYSTEM_ERROR
    topic: not forbidden        yes        yes        yes        retry, DLQ  16 NO_PERMISSION
    topic: exists               or made    or made    yes        or made     17 TOPIC_NOT_EXIST
    topic and broker: writable  yes        yes        yes        yes         16 NO_PERMISSION
    queue of the topic          yes        yes        yes        chosen      1 SYSTEM_ERROR
    no transaction bits         half only  yes        yes        yes         13 MESSAGE_ILLEGAL
    body and properties fit     yes        yes        yes        as stored   13 MESSAGE_ILLEGAL
    the broker takes sends      yes        yes        yes        slaves      1, 2 SYSTEM_BUSY

"when made": only when the topic is created. "slaves": while a SYNC_MASTER has too few slaves, the
request is refused with 11 SLAVE_NOT_AVAILABLE.
"half only": a prepared message becomes a half message; other transaction bits are refused.
"retry, DLQ": a message is sent back only to the topics of its group, and never from an internal
topic of the broker. Only END_TRANSACTION ends a half message.

The property text is stored without properties that have no meaning once the message is stored.

The queues of checked topics are cached (Destinations), so that one look-up replaces the checks of a
send. A send needs its topic's configuration, the topic's table of queues, and one of these queues.
With 100 000 queues, each of these look-ups causes several cache misses of the processor. So the
queues of a topic are kept in one list, by queue id, once they have been found and checked. The core
also has a table of the queues that accept plain sends, in which it finds many queues at once. A
change of any topic clears both; the deletion of a queue clears the list of its topic.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from cometmq.broker.topics.table import check_name
from cometmq.core.errors import BadRequest, MessageIllegal
from cometmq.message import properties as props
from cometmq.message.names import FORBIDDEN_TO_SEND
from cometmq.message.record import TRANSACTION_MASK
from cometmq.net.limits import Limit
from cometmq.protocol.bodies import writable
from cometmq.protocol.codes import ResponseCode
from cometmq.speedups import KnownQueues

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.topics.table import TopicTable
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.protocol.bodies import TopicConfig
    from cometmq.store.queue.consumequeue import ConsumeQueue
    from cometmq.store.queue.table import QueueTable

_WAIT_TRUE: Final = f"{props.WAIT}{props.NAME_VALUE_SEPARATOR}true"
_SEPARATOR: Final = props.PROPERTY_SEPARATOR
_ID_MARK: Final = props.UNIQ_KEY + props.NAME_VALUE_SEPARATOR
_WAIT_LAST: Final = _SEPARATOR + _WAIT_TRUE
_WAIT_BETWEEN: Final = _WAIT_LAST + _SEPARATOR


def without_wait(text: str) -> str:
    """Return the property text without WAIT=true, which has no meaning once the message is
    stored."""
    if text.endswith(_WAIT_LAST):
        return text[: -len(_WAIT_LAST)]  # as CometMQ's client and most others write it
    # As Java's client writes it: replacing takes half the time of splitting.
    text = text.replace(_WAIT_BETWEEN, _SEPARATOR)
    if _WAIT_TRUE not in text:
        return text.rstrip(_SEPARATOR)
    return _SEPARATOR.join([pair for pair in text.split(_SEPARATOR) if pair and pair != _WAIT_TRUE])


def may_wait(text: str) -> bool:
    """Return whether a send with this property text waits for its sync.

    If the text has several WAIT properties, the last one counts.
    """
    return props.decode_text(text).get(props.WAIT) != "false"


def has_own_ids(body: bytes) -> bool:
    """Return whether the messages of a batch have unique keys; only the first is examined."""
    return _ID_MARK.encode() in body[: int.from_bytes(body[:4], "big")]


def without_id(text: str) -> str:
    """Return the property text without a unique key.

    RocketMQ 5's client sets one on the batch too, which would replace each message's own.
    """
    return props.without(text, props.UNIQ_KEY)


#: Maximum number of sends that wait for a sync; further ones are refused, as each holds memory.
MAX_WAITING_SENDS: Final = 100_000
#: Waiting sends to new topics may hold the memory for connections, divided by this number.
HELD_DIVISOR: Final = 4


class Admission:
    """Checks requests that store messages against the broker's settings and its topics."""

    def __init__(self, config: BrokerConfig, topics: TopicTable, clock: Clock) -> None:
        self._config = config
        self._topics = topics
        self._clock = clock

    def check_load(self, peer: Peer, waiting_sends: int) -> None:
        """Raise BadRequest while the broker accepts no sends or is overloaded.

        It is overloaded while too many sends wait, or while the peer does not read its responses.
        """
        begin_ms = self._config.start_accept_send_request_time_stamp
        if begin_ms and self._clock.wall_ms() < begin_ms:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"broker unable to service, until {begin_ms} ms (startAcceptSendRequestTimeStamp)",
            )
        if peer.congested or (
            waiting_sends and waiting_sends > peer.memory.budget.max_waiting(MAX_WAITING_SENDS)
        ):
            problem = (
                f"{waiting_sends} sends are waiting for the disk, the answers of this connection "
                f"{'pile up' if peer.congested else 'are read'}"
            )
            peer.limits.hit(Limit.WAITING_SENDS, peer.address, problem)
            raise BadRequest(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]{problem}: send slower")

    def check_new_topic(self, peer: Peer, held_count: int, held_bytes: int) -> None:
        """Raise BadRequest for a send to a topic that name servers do not know yet while too many
        such sends wait for their response."""
        budget = peer.memory.budget
        if held_count < MAX_WAITING_SENDS and held_bytes < budget.bound_bytes // HELD_DIVISOR:
            return
        problem = f"{held_count} sends are waiting until name servers know their new topics"
        peer.limits.hit(Limit.NEW_TOPIC_SENDS, peer.address, problem)
        raise BadRequest(
            ResponseCode.SYSTEM_BUSY,
            f"[OVERLOAD]{problem}: send slower, or create topics before their first messages",
        )

    def find_topic(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic that clients may send to; None if it does not exist.

        Raises BadRequest for an illegal name, a topic that only the broker writes to, and a topic
        without write permission.
        """
        config = self._topics.get(topic)
        if config is None:
            check_name(topic)
        if topic in FORBIDDEN_TO_SEND:
            raise BadRequest(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )
        if config is not None:
            self.check_writable(config)
        return config

    def check_writable(self, config: TopicConfig) -> None:
        """Raise BadRequest if the topic is not writable, or if it is ordered and the broker is not
        writable."""
        broker_writable = writable(self._config.broker_permission)
        if not writable(config.perm) or (not broker_writable and config.order):
            raise BadRequest(
                ResponseCode.NO_PERMISSION,
                f"the topic[{config.topic_name}] sending message is forbidden",
            )

    def check_body(self, body: bytes) -> None:
        """Raise MessageIllegal if a body, or the body of a batch, exceeds maxMessageSize."""
        limit_bytes = self._config.max_message_size
        if len(body) > limit_bytes:
            raise MessageIllegal(
                f"message body is {len(body)} bytes, the limit is {limit_bytes}: "
                "send less at once, or raise maxMessageSize"
            )


def check_properties(raw: bytes) -> None:
    """Raise MessageIllegal if the encoded properties are too long for a record."""
    if len(raw) > props.MAX_SIZE_BYTES:
        raise MessageIllegal(
            f"message properties length is {len(raw)} bytes, the limit is {props.MAX_SIZE_BYTES}: "
            "move large values into the body"
        )


def check_no_transaction(sys_flag: int, what: str) -> None:
    """Raise MessageIllegal if the system flag marks ``what`` as part of a transaction.

    A record with such a flag would be hidden from its queue, or end a transaction of another
    client.
    """
    if sys_flag & TRANSACTION_MASK:
        raise MessageIllegal(
            f"{what} cannot be part of a transaction (system flag {sys_flag}): send it as a "
            "single message"
        )


def choose_queue(queue_id: int, config: TopicConfig) -> int:
    """Return the id of the queue to store in: ``queue_id``, or a random one if that is negative.

    Raises BadRequest if the topic has no such queue.
    """
    if queue_id < 0:
        return random.randrange(max(config.write_queue_nums, 1))
    if queue_id >= max(config.read_queue_nums, config.write_queue_nums):
        raise BadRequest(
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[{queue_id}] is illegal, topic {config.topic_name} has "
            f"{config.write_queue_nums} write queues",
        )
    return queue_id


class Destinations:
    """Queues that need no further check, by topic.

    ``get(topic)`` returns a topic's queues by queue id, with None for queues without a checked send
    yet; it returns None for an unknown topic. ``plain`` has those of the queues whose plain sends
    may be taken as a batch.
    """

    def __init__(self, topics: TopicTable, queues: QueueTable) -> None:
        self._by_topic: dict[str, list[ConsumeQueue | None]] = {}
        self.plain = KnownQueues()
        self.get = self._by_topic.get
        topics.on_change.append(self._clear)
        queues.on_gone.append(self._forget)

    def learn(self, config: TopicConfig, queue: ConsumeQueue, *, plain: bool) -> None:
        """Remember a queue after a send to it passed all checks.

        Ordered topics are not remembered: their check depends on the broker's permission too. Set
        ``plain`` if a plain send to the topic needs no check beyond the topic's own.
        """
        if config.order:
            return
        count = max(config.read_queue_nums, config.write_queue_nums)
        known = self._by_topic.get(queue.topic)
        if known is None:
            known = self._by_topic[queue.topic] = [None] * count
        known[queue.queue_id] = queue
        if plain:
            self.plain.add(queue)

    def _clear(self) -> None:
        self._by_topic.clear()
        self.plain.clear()

    def _forget(self, queue: ConsumeQueue) -> None:
        self._by_topic.pop(queue.topic, None)
        self.plain.forget(queue)
