"""Send-back of messages that a consumer could not process (upstream: AbstractSendMessageProcessor
.consumerSendMsgBack).

A copy of the message waits in ``SCHEDULE_TOPIC_XXXX``, each time with the next longer delay level
unless the request names one; when it is due, it is delivered to ``%RETRY%group``
(scheduled/delaylevels.py). After the maximum number of retries it is stored in ``%DLQ%group``, for
an operator to look at. A client that cannot send a message back sends the whole message to
``%RETRY%group``; redirect.py then treats it in the same way.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

import msgspec

from cometmq.broker.acknowledgement import OutgoingRecord
from cometmq.broker.lookup import check_reader, find_record
from cometmq.broker.scheduled.timers.rules import drop_wishes
from cometmq.core.errors import BadRequest, CometError
from cometmq.message import properties as props
from cometmq.message.ids import decode_offset_id, encode_offset_id
from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX, WAITING_TOPICS, is_legal_name
from cometmq.protocol.bodies import writable
from cometmq.protocol.codes import VERSION_3_4_9, RequestCode, ResponseCode
from cometmq.protocol.fields import truth
from cometmq.protocol.frame import Reply

if TYPE_CHECKING:
    from cometmq.broker.context import BrokerContext
    from cometmq.broker.hooks import SendHooks
    from cometmq.broker.scheduled.delaylevels import DelayLevels
    from cometmq.message.record import Record
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.bodies import SubscriptionGroupConfig
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import ConsumerSendMsgBack


log = logging.getLogger(__name__)


class SendBackHandler:
    """Serves CONSUMER_SEND_MSG_BACK."""

    def __init__(self, context: BrokerContext, *, levels: DelayLevels, hooks: SendHooks) -> None:
        self._hooks = hooks
        self._config = context.config
        self._store = context.store
        self._appender = context.appender
        self._topics = context.tables.topics
        self._groups = context.tables.groups
        self._levels = levels
        self._stats = context.stats

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    async def send_back(self, peer: Peer, request: Request[ConsumerSendMsgBack]) -> Reply:
        """Store a message again in its group's retry topic or dead-letter queue.

        The answer waits for the broker's full durability, slaves included, because the consumer
        then continues after the message. Upstream does not wait for slaves here, and may lose a
        retry with its master.
        """
        self._hooks.before_send(peer, request)
        code: int = ResponseCode.SYSTEM_ERROR
        try:
            reply = await self._send_back(peer, request)
            code = reply.code
        except CometError as error:
            code = error.code
            raise
        finally:
            stored = 1 if code == ResponseCode.SUCCESS else 0
            self._hooks.after_send(peer, request, code, stored)
        return reply

    async def _send_back(self, peer: Peer, request: Request[ConsumerSendMsgBack]) -> Reply:
        header = request.header
        group = self._group(header.group)
        if group.retry_queue_nums <= 0:
            return Reply()
        record = await self._record(header)
        check_reader(peer, request, record)  # the sender's group will read the copy
        allowed = group.retry_max_times
        if request.version >= VERSION_3_4_9 and header.max_reconsume_times is not None:
            allowed = header.max_reconsume_times
        properties = props.decode(record.properties)
        properties.setdefault(props.RETRY_TOPIC, record.topic)
        if props.ORIGIN_MESSAGE_ID not in properties:
            origin = encode_offset_id(record.store_host, record.physical_offset)
            properties[props.ORIGIN_MESSAGE_ID] = origin
        properties.pop(props.DELAY, None)
        drop_wishes(properties)
        back = _copy_of(record, properties)
        if record.reconsume_times >= allowed or header.delay_level < 0:
            back = self._to_dead_letters(back, header.group)
        else:
            level = header.delay_level or props.FIRST_RETRY_LEVEL + record.reconsume_times
            back = self._to_retry(back, group, level, unit=truth(header.unit_mode))
        if self._appender.lacks_slaves:
            # Without this check, a consumer that retries would store one more copy each time.
            raise BadRequest(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                "the message is not sent back: too few slaves are connected; the consumer of "
                f"group {header.group} keeps it and tries again",
            )
        await self._topics.saved()
        result = await self._appender.put(back)
        # The property is text of the sender: only a topic that exists gets a counter.
        origin_topic = properties[props.RETRY_TOPIC]
        counted = origin_topic if origin_topic in self._topics else record.topic
        self._stats.on_send_back(header.group, counted)
        if result.code == ResponseCode.SUCCESS:
            return Reply()
        log.warning("send-back not durable group=%s code=%d", header.group, result.code)
        return Reply(
            result.code, remark="sent back, but stored on this broker only so far: try again"
        )

    def _group(self, name: str) -> SubscriptionGroupConfig:
        if not is_legal_name(DLQ_PREFIX + name) or not is_legal_name(RETRY_PREFIX + name):
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"group name {name[:140]!r} is illegal: with %RETRY% before it, it may have up to "
                "127 of %|a-zA-Z0-9_-",
            )
        group = self._groups.find(name)
        if group is None:
            raise BadRequest(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name}: {self._groups.advice(name)}",
            )
        if not writable(self._config.broker_permission):
            raise BadRequest(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] sending message is forbidden",
            )
        return group

    async def _record(self, header: ConsumerSendMsgBack) -> Record:
        """Return the record to send back. Raises BadRequest if it is not the client's message."""
        record = await find_record(self._store, header.offset)
        # Messages in the broker's own waiting topics, half messages included, were never delivered.
        may_be = record is not None and record.topic not in WAITING_TOPICS
        if record is None or not may_be or not _may_be(record, header.origin_msg_id or ""):
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}"
            )
        return record

    def _to_dead_letters(self, back: OutgoingRecord, group: str) -> OutgoingRecord:
        topic = self._topics.create_dead_letter(DLQ_PREFIX + group)
        log.warning(
            "dead letter group=%s topic=%s tries=%d", group, topic.topic_name, back.reconsume_times
        )
        return msgspec.structs.replace(back, topic=topic.topic_name, queue_id=0)

    def _to_retry(
        self, back: OutgoingRecord, group: SubscriptionGroupConfig, level: int, *, unit: bool
    ) -> OutgoingRecord:
        topic = self._topics.create_retry(
            RETRY_PREFIX + group.group_name, group.retry_queue_nums, unit=unit
        )
        if not writable(topic.perm):
            raise BadRequest(
                ResponseCode.NO_PERMISSION,
                f"the topic[{topic.topic_name}] sending message is forbidden",
            )
        queue_id = random.randrange(max(topic.write_queue_nums, 1))
        parked_in, parked_queue, parked = self._levels.place_for(
            topic.topic_name, queue_id, back.properties, level
        )
        return msgspec.structs.replace(
            back, topic=parked_in, queue_id=parked_queue, properties=parked
        )


def _may_be(record: Record, name: str) -> bool:
    """Decide whether a record is the message that a client calls ``name``: a unique key or an
    offset id.

    The client's message may have been lost, and another one may be stored at its offset. Of an
    offset id only the offset is compared, not the address: .NET's client writes the producer's
    address, and after a move the broker's address differs from that in old records.
    """
    found = props.decode(record.properties)
    key = found.get(props.UNIQ_KEY)
    if not name or not key:
        return True
    called = name.upper()
    if called in (key.upper(), found.get(props.ORIGIN_MESSAGE_ID, "").upper()):
        return True
    try:
        return decode_offset_id(name).physical_offset == record.physical_offset
    except ValueError:
        return False


def _copy_of(record: Record, properties: dict[str, str]) -> OutgoingRecord:
    properties[props.WAIT] = "false"
    return OutgoingRecord(
        record.topic,
        record.queue_id,
        record.body,
        properties,
        record.born_ms,
        record.born_host,
        flag=record.flag,
        sys_flag=record.sys_flag,
        reconsume_times=record.reconsume_times + 1,
    )
