"""Which messages wait for a time of their own, until when, and as what they are stored meanwhile
(upstream: HookUtils.java, TimerMessageStore.java). Times come as arguments; no I/O.

    TIMER_DELAY_SEC, TIMER_DELAY_MS   from the send on, or from the commit of the transaction
    TIMER_DELIVER_MS                  wall clock, ms
    TIMER_OUT_MS                      set here: the second before the due time; due is after it, and
                                      at most 1 000 ms after it
    TIMER_DEL_UNIQKEY                 the message is a recall: of "topic+uniqueKey", in that second

A delay level wins over all of them. A time that has passed makes a plain message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import BadRequest, MessageIllegal
from cometmq.message import properties as props
from cometmq.message.names import RETRY_PREFIX, TIMER_TOPIC
from cometmq.message.recall import RecallHandle
from cometmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig

#: Upstream's precision: recalls and other brokers find a message by the second it is due in.
SECOND_MS: Final = 1_000

_LONG: Final = re.compile(r"[+-]?[0-9]{1,18}")
_WISHES: Final = (props.TIMER_DELAY_SEC, props.TIMER_DELAY_MS, props.TIMER_DELIVER_MS)
_ANY_WISH: Final = frozenset(_WISHES)
#: The two that count from a moment, and how many ms their unit has.
_RELATIVE: Final = {props.TIMER_DELAY_SEC: SECOND_MS, props.TIMER_DELAY_MS: 1}


def wants_timer(properties: Mapping[str, str]) -> bool:
    """Whether a message asks for a time of its own; one that has waited already does not."""
    return not _ANY_WISH.isdisjoint(properties) and props.TIMER_OUT_MS not in properties


def drop_wishes(properties: MutableMapping[str, str]) -> None:
    """Take the wishes out of a message that a delay level delays."""
    for name in _WISHES:
        properties.pop(name, None)


def out_ms(properties: Mapping[str, str]) -> int | None:
    """The second in which a stored message waits, or waited; None when it never did."""
    text = properties.get(props.TIMER_OUT_MS, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def due_ms(properties: Mapping[str, str], store_ms: int) -> int | None:
    """When a message that was stored to wait is due; None when it does not say.

    A recall is due before whatever it may be for. A message that was rolled counts from no moment
    that is still known, so its second has to do.
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
    """The properties of a waiting message that is stored once more, to go on waiting."""
    text = properties.get(props.TIMER_ROLL_TIMES, "")
    times = int(text[:9]) if text.isascii() and text.isdigit() else 0
    return {**properties, props.TIMER_ROLL_TIMES: str(times + 1)}


def recall_key(topic: str, unique_key: str) -> str:
    """What a recall calls the message it is for."""
    return f"{topic}+{unique_key}"


def is_recalled(properties: Mapping[str, str], recalled: Mapping[str, int]) -> bool:
    """Whether a due message is among those taken back, given by key; the first releases of the 5.x
    line name the unique key alone."""
    key = properties.get(props.UNIQ_KEY)
    if key is None:
        return False
    return key in recalled or recall_key(properties.get(props.REAL_TOPIC, ""), key) in recalled


class TimerRules:
    """The rules with a broker's settings, which may change while it runs."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    def park(
        self, topic: str, queue_id: int, properties: Mapping[str, str], now_ms: int
    ) -> tuple[str, int, dict[str, str]] | None:
        """Where a message that wants a timer waits, and with which properties; None when its time
        has come already.

        Raises MessageIllegal for a time that cannot be, BadRequest while timers are off.
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
                f"timer message illegal, {name}={properties[name]!r} is no number of "
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
            props.TIMER_OUT_MS: str((deliver_ms - 1) // SECOND_MS * SECOND_MS),
            props.REAL_TOPIC: topic,
            props.REAL_QID: str(queue_id),
        }
        return TIMER_TOPIC, 0, waiting

    def recall_handle(self, properties: Mapping[str, str]) -> str | None:
        """By what a parked message can be taken back; None when it cannot."""
        topic, key = properties.get(props.REAL_TOPIC, ""), properties.get(props.UNIQ_KEY)
        slot_ms = out_ms(properties)
        if slot_ms is None or key is None or topic.startswith(RETRY_PREFIX):
            return None
        if props.TIMER_DEL_UNIQKEY in properties:
            return None
        return RecallHandle(topic, self._config.broker_name, slot_ms + 1, key).encode()


def _wish(properties: Mapping[str, str]) -> tuple[str, int | None]:
    """The property that decides, and its number; None for one that is no number."""
    for name in _WISHES:
        text = properties.get(name)
        if text is not None:
            return name, int(text) if _LONG.fullmatch(text) else None
    return props.TIMER_DELIVER_MS, None
