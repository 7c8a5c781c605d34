"""Rules of timed messages: delivery times that clients ask for, and recalls of waiting messages
(upstream: HookUtils.java, TimerMessageStore.java, RecallMessageProcessor.java).

    TIMER_DELAY_SEC, TIMER_DELAY_MS   delay after the send, or after the transaction's commit
    TIMER_DELIVER_MS                  wall clock, ms
    TIMER_OUT_MS                      set here: the second before the due time; the message is due
                                      after it, by at most 1 000 ms
    TIMER_DEL_UNIQKEY                 marks a recall of "topic+uniqueKey" in that second

A delay level overrides all of these. A message whose time has passed is stored as a plain message.

A recall handle identifies a message and the second in which it waits. A recall is a message itself:
it waits in the same second, and suppresses the delivery of the message it names. The broker does
not check whether that message exists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Final

from cometmq.broker.acknowledgement import OutgoingRecord
from cometmq.core.errors import BadRequest, MessageIllegal
from cometmq.message import properties as props
from cometmq.message.ids import RecallHandle, decode_recall
from cometmq.message.names import RETRY_PREFIX, TIMER_TOPIC
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Reply
from cometmq.protocol.headers import RecallMessageResponse

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.context import BrokerContext
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import RecallMessage

#: Upstream's precision: recalls and other brokers identify a message's due time by its second.
SECOND_MS: Final = 1_000
_LONG: Final = re.compile(r"[+-]?[0-9]{1,18}")
#: Properties with which a client asks for a delivery time.
_WISHES: Final = (props.TIMER_DELAY_SEC, props.TIMER_DELAY_MS, props.TIMER_DELIVER_MS)
_ANY_WISH: Final = frozenset(_WISHES)
#: Properties with relative times, and the length of their unit in ms.
_RELATIVE: Final = {props.TIMER_DELAY_SEC: SECOND_MS, props.TIMER_DELAY_MS: 1}
#: Characters of a recall that an error repeats.
_SHOWN: Final = 200
_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"


def wants_timer(properties: Mapping[str, str]) -> bool:
    """Decide whether a message asks for a delivery time; one that has waited already does not."""
    return not _ANY_WISH.isdisjoint(properties) and props.TIMER_OUT_MS not in properties


def drop_wishes(properties: MutableMapping[str, str]) -> None:
    """Remove the delivery times from a message that has a delay level."""
    for name in _WISHES:
        properties.pop(name, None)


def out_ms(properties: Mapping[str, str]) -> int | None:
    """Return the second in which a stored message waits or waited; None if it never did."""
    text = properties.get(props.TIMER_OUT_MS, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def due_ms(properties: Mapping[str, str], store_ms: int) -> int | None:
    """Return the due time of a message in the timer topic; None if it has none.

    A recall is due before any message it may name. For a rolled message, the moment from which a
    relative delay counts is unknown, so it is due at the end of its second.
    """
    slot_ms = out_ms(properties)
    if slot_ms is None or props.TIMER_DEL_UNIQKEY in properties:
        return slot_ms
    last_ms = slot_ms + SECOND_MS
    name, wish = _wish(properties)
    if wish is None:
        return last_ms
    if name in _RELATIVE:
        if props.TIMER_ROLL_TIMES in properties:
            return last_ms
        wish = store_ms + wish * _RELATIVE[name]
    return min(max(wish, slot_ms + 1), last_ms)


def rolled(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a waiting message that is stored once more, to wait further."""
    text = properties.get(props.TIMER_ROLL_TIMES, "")
    times = int(text[:9]) if text.isascii() and text.isdigit() else 0
    return {**properties, props.TIMER_ROLL_TIMES: str(times + 1)}


def recall_key(topic: str, unique_key: str) -> str:
    """Return the key by which a recall names its message."""
    return f"{topic}+{unique_key}"


def is_recalled(properties: Mapping[str, str], recalled: Mapping[str, int]) -> bool:
    """Decide whether a due message is recalled. The first releases of the 5.x line write the
    unique key alone."""
    key = properties.get(props.UNIQ_KEY)
    if key is None:
        return False
    return key in recalled or recall_key(properties.get(props.REAL_TOPIC, ""), key) in recalled


class TimerRules:
    """The rules that depend on a broker's settings, which may change while it runs."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    def place_for(
        self, topic: str, queue_id: int, properties: Mapping[str, str], now_ms: int
    ) -> tuple[str, int, dict[str, str]] | None:
        """Return topic, queue id and properties under which a message with a delivery time waits;
        None if that time has passed.

        Raise MessageIllegal for an impossible time and for a recall of another topic's message,
        BadRequest while timers are disabled.
        """
        config = self._config
        if not config.timer_wheel_enable:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false",
            )
        name, wish = _wish(properties)
        if wish is None:
            raise MessageIllegal(
                f"timer message illegal, {name}={properties[name]!r} is not a number of "
                f"{'seconds' if name == props.TIMER_DELAY_SEC else 'milliseconds'}"
            )
        deliver_ms = now_ms + wish * _RELATIVE[name] if name in _RELATIVE else wish
        limit_ms = config.timer_max_delay_sec * SECOND_MS
        is_past = deliver_ms <= now_ms
        if deliver_ms - now_ms > limit_ms or (is_past and props.TIMER_DEL_UNIQKEY in properties):
            raise MessageIllegal(
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{limit_ms}ms; or if set del msg, the delay time should be bigger than the "
                f"current time: {name}={properties[name]} is {deliver_ms - now_ms} ms from now "
                "(timerMaxDelaySec)"
            )
        if is_past:
            return None
        waiting = {
            **properties,
            **_own_recall(topic, properties),
            props.TIMER_OUT_MS: str((deliver_ms - 1) // SECOND_MS * SECOND_MS),
            props.REAL_TOPIC: topic,
            props.REAL_QID: str(queue_id),
        }
        return TIMER_TOPIC, 0, waiting

    def recall_handle(self, properties: Mapping[str, str]) -> str | None:
        """Return the handle by which a waiting message can be recalled; None if it cannot."""
        topic, key = properties.get(props.REAL_TOPIC, ""), properties.get(props.UNIQ_KEY)
        slot_ms = out_ms(properties)
        if slot_ms is None or key is None or topic.startswith(RETRY_PREFIX):
            return None
        if props.TIMER_DEL_UNIQKEY in properties:
            return None
        return RecallHandle(topic, self._config.broker_name, slot_ms + 1, key).encode()


def _own_recall(topic: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the property by which a recall, sent to ``topic``, names its message; none for other
    messages. Raise MessageIllegal if it names a message of another topic.
    """
    named = properties.get(props.TIMER_DEL_UNIQKEY)
    if named is None:
        return {}
    of_topic, plus, _ = named.partition("+")
    if plus and of_topic != topic:
        raise MessageIllegal(
            f"a message to topic {topic} cannot recall {named[:_SHOWN]!r}: send it to that topic"
        )
    return {props.TIMER_DEL_UNIQKEY: named if plus else recall_key(topic, named)}


def _wish(properties: Mapping[str, str]) -> tuple[str, int | None]:
    """Return the property that sets the delivery time, and its number; None instead of a malformed
    number."""
    for name in _WISHES:
        text = properties.get(name)
        if text is not None:
            return name, int(text) if _LONG.fullmatch(text) else None
    return props.TIMER_DELIVER_MS, None


class RecallHandler:
    """Serves RECALL_MESSAGE."""

    def __init__(self, context: BrokerContext, rules: TimerRules) -> None:
        self._config = context.config
        self._rules = rules
        self._topics = context.tables.topics
        self._appender = context.appender
        self._clock = context.clock

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.RECALL_MESSAGE: self.recall}

    async def recall(self, peer: Peer, request: Request[RecallMessage]) -> Reply:
        """Store a recall. Once it is answered, the message it names will not be delivered."""
        header, config = request.header, self._config
        if not config.recall_message_enable:
            raise BadRequest(
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden (recallMessageEnable)",
            )
        if self._topics.get(header.topic) is None:
            raise BadRequest(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist"
            )
        try:
            handle = decode_recall(header.recall_handle)
        except ValueError as error:
            raise BadRequest(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
        if handle.topic != header.topic:
            raise BadRequest(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != config.broker_name:
            raise BadRequest(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, broker service not available: the message is on broker "
                f"{handle.broker_name}, this is {config.broker_name}",
            )
        now_ms = self._clock.wall_ms()
        left_ms = handle.deliver_ms - now_ms
        if not SECOND_MS < left_ms + SECOND_MS < (config.timer_max_delay_sec + 1) * SECOND_MS:
            raise BadRequest(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, timestamp invalid: it is due {left_ms} ms from now",
            )
        properties = {
            props.TAGS: _TAG,
            props.TIMER_DEL_UNIQKEY: recall_key(handle.topic, handle.unique_key),
            props.UNIQ_KEY: handle.unique_key,
            props.TIMER_DELIVER_MS: str(handle.deliver_ms),
        }
        if header.producer_group:
            properties[props.PRODUCER_GROUP] = header.producer_group
        parked = self._rules.place_for(handle.topic, 0, properties, now_ms)
        assert parked is not None, "the delivery time is in the future"
        topic, queue_id, waiting = parked
        stored = await self._appender.put(
            OutgoingRecord(topic, queue_id, _BODY, waiting, now_ms, peer.host_bytes)
        )
        if stored.code != ResponseCode.SUCCESS:
            return Reply(
                stored.code, remark="recalled, but not as safe as asked for so far: try again"
            )
        return Reply(header=RecallMessageResponse(msg_id=handle.unique_key))
