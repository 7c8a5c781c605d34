"""Sends of one message: a fast path for plain sends, and the requests of all others.

Most sends are plain: one message without special options, to the next queue in turn. A compiled
function builds the frame of the first attempt, and the result is created where responses are read
(speedups/plain/requests.py). Any other outcome is passed to delivery.py. So is every send that is
not plain: one with hooks, fault scores, a namespace, a delay, a body to compress, or a connection
that must be opened or waited for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from cometmq.client.arguments import checked_body, refuse
from cometmq.client.delivery import Begun, Delivery
from cometmq.client.limits import check_message, check_property_size, check_target
from cometmq.client.sendrequests import INLINE_COMPRESS_BYTES, SendResult, SendStatus
from cometmq.message import properties as props
from cometmq.message.names import AUTO_CREATE_TOPIC
from cometmq.net.client import CutHead, Link, Outcome
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import SendMessageV2

if TYPE_CHECKING:
    from cometmq.client.outages import Outages
    from cometmq.client.routes import Brokers
    from cometmq.client.sendrequests import Packed, Packer
    from cometmq.client.session import Session
    from cometmq.message.model import Message, MessageQueue

_WAIT: Final = f"{props.WAIT}\x01true\x02{props.UNIQ_KEY}\x01"
#: Header fields that differ from send to send: the queue id, the birth time and the properties.
_VALUES: Final = ("e", "g", "i")
#: Number of topics whose prepared sends are kept.
_MANY_LANES: Final = 4_096


class _Way(NamedTuple):
    """Prepared send to one queue through ``address``.

    ``pieces`` are the header bytes around the fields that differ from send to send; ``place`` has
    the common parts of the results.
    """

    address: str
    pieces: CutHead
    place: tuple[type[SendResult], SendStatus, MessageQueue, int]


class _Lane:
    """Prepared sends to the queues of one topic, valid as long as its route does not change."""

    __slots__ = ("brokers", "queues", "ways")

    def __init__(
        self, queues: tuple[MessageQueue, ...], brokers: Brokers, ways: list[_Way]
    ) -> None:
        self.queues = queues
        self.brokers = brokers
        self.ways = ways


class Posted(msgspec.Struct, frozen=True):
    """First attempt that was sent.

    ``waiter`` receives a SendResult, or an outcome with which delivery.py continues.
    """

    waiter: asyncio.Future[Any]
    link: Link
    opaque: int
    way: _Way
    key: str
    born_ms: int
    begun_ms: int
    timeout_ms: int

    def note_success(self, outages: Outages) -> None:
        """Report to ``outages`` that the broker served the send."""
        topic = self.way.place[2].topic
        outages.answered(self.way.address, RequestCode.SEND_MESSAGE_V2, topic)

    def begun(self, outcome: Any) -> Begun:
        """Return the attempt with its outcome, for Delivery.send to continue."""
        queue, address = self.way.place[2], self.way.address
        return Begun(queue, address, outcome, self.begun_ms, self.timeout_ms)


class PlainSends:
    """First attempts of the plain sends of one producer."""

    def __init__(self, session: Session, delivery: Delivery, packer: Packer, group: str) -> None:
        config = session.config
        self._session = session
        self._packer = packer
        self._remoting = session.remoting
        self._delivery = delivery
        self._turns = delivery.turns
        self._group = group
        self._clock = session.clock
        self._topic_queues = config.default_topic_queues
        self._is_wanted = not (config.send_latency_fault or session.namespace)
        self._body_bytes = min(
            config.compress_over_bytes, config.max_message_bytes + 1, INLINE_COMPRESS_BYTES
        )
        self._max_message_bytes = config.max_message_bytes
        self._send_timeout_ms = config.send_timeout_ms
        self._attempt_timeout_ms = config.send_attempt_timeout_ms if config.send_retries else 0
        self._lanes: dict[str, _Lane] = {}

    def post(self, message: Message, timeout_ms: int) -> Posted | None:
        """Send a message if it is plain and its connection accepts a request.

        Returns None otherwise; nothing was sent then. ``timeout_ms`` 0 means that of the settings.
        Raises MessageIllegal.
        """
        delivery, body = self._delivery, message.body
        if delivery.hooks or delivery.forbidden_hooks or not self._is_wanted:
            return None
        if type(body) is not bytes or len(body) >= self._body_bytes or timeout_ms < 0:
            return None
        now_ms = self._clock.monotonic_ms()
        lane = self._lane(message.topic, now_ms)
        if lane is None:
            return None
        key = message.message_id
        born_ms = self._clock.wall_ms()
        if not key:
            key = self._session.unique_keys.next(born_ms)
        text = self._properties(message, key)
        if text is None:
            return None
        ways = lane.ways
        way = ways[self._turns.turn_of(message.topic, len(ways))]
        link = self._remoting.open_link(way.address)
        if link is None:
            return None
        timeout_ms = timeout_ms or self._send_timeout_ms
        deadline_ms = now_ms + timeout_ms
        if 0 < self._attempt_timeout_ms < timeout_ms:
            deadline_ms = now_ms + self._attempt_timeout_ms
        opaque, waiter = link.post(way.pieces, way.place, born_ms, text, body, key, deadline_ms)
        return Posted(waiter, link, opaque, way, key, born_ms, now_ms, timeout_ms)

    async def go_on(self, message: Message, posted: Posted, outcome: Outcome) -> SendResult:
        """Continue to send a message whose first attempt had another outcome than a result.

        Raises the errors of Producer.send.
        """
        packed = self._packer.single(message, posted.key, posted.born_ms)
        begun = posted.begun(outcome)
        sent = await self._delivery.send(packed, None, None, begun.timeout_ms, begun=begun)
        return sent[0]

    async def pack(self, message: Message) -> Packed:
        """Return the request for one message of any kind. Raises MessageIllegal."""
        now_ms = self._clock.wall_ms()
        key = message.message_id or self._session.unique_keys.next(now_ms)
        checked_body(message.body)
        if len(message.body) > INLINE_COMPRESS_BYTES:
            return await asyncio.to_thread(self._packer.single, message, key, now_ms)
        return self._packer.single(message, key, now_ms)

    def _properties(self, message: Message, key: str) -> str | None:
        """Return the property text of a message; None if the message is not plain.

        Raises MessageIllegal.
        """
        if message.is_delayed or message.born_ms or not message.wait_store or message.flag != 0:
            return None
        if message.tag or message.keys or message.properties or message.message_id:
            check_message(message, self._max_message_bytes)
            pairs = message.to_properties()
            pairs[props.UNIQ_KEY] = key
            return check_property_size(props.encode_text(pairs))
        return _WAIT + key

    def _lane(self, topic: str, now_ms: int) -> _Lane | None:
        """Return the prepared sends of a topic; None if its route or a master is not known."""
        try:
            lane = self._lanes.get(topic)
        except TypeError:  # not hashable, so not a text
            refuse("topic", "str", topic)
        queues, brokers = self._session.publish_route(topic, now_ms)
        # Both objects are replaced when the route changes, so identity is a sufficient check.
        if lane is not None and lane.queues is queues and lane.brokers is brokers:
            return lane
        self._lanes.pop(topic, None)
        check_target(topic)
        ways: list[_Way] = []
        for queue in queues:
            address = self._session.master_address(queue.broker_name)
            if address is None:
                return None
            place = SendResult, SendStatus.OK, queue, queue.queue_id
            ways.append(_Way(address, self._pieces(queue), place))
        if not ways:
            return None
        self._session.add_producer(self._group)
        if len(self._lanes) >= _MANY_LANES:
            # Lanes in use are created again.
            self._lanes.clear()
        lane = self._lanes[topic] = _Lane(queues, brokers, ways)
        return lane

    def _pieces(self, queue: MessageQueue) -> CutHead:
        header = SendMessageV2(
            producer_group=self._group,
            topic=queue.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=self._topic_queues,
            queue_id=0,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            properties="",
            reconsume_times=0,
            unit_mode=False,
            batch=False,
            broker_name=queue.broker_name,
        )
        return self._remoting.cut_head(RequestCode.SEND_MESSAGE_V2, header, _VALUES)
