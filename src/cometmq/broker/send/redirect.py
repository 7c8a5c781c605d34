"""Redirection of messages that do not go to their topic at once: where each is stored first.

    prepared by a transaction      the half topic, until the transaction ends
    with a delay level             the schedule topic, in the queue of the level
    with a delivery time           the timer topic, unless the time has passed
    sent to %RETRY% by a consumer  the schedule topic, by its delay level; the dead-letter queue
                                   after the maximum number of retries

The rules are upstream's (SendMessageProcessor.java handleRetryAndDLQ, HookUtils.java).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.scheduled.timers.rules import drop_wishes, wants_timer
from cometmq.broker.transactions.halfindex import prepared
from cometmq.core.errors import BadRequest, MessageIllegal
from cometmq.message import properties as props
from cometmq.message.names import DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX, TIMER_TOPIC
from cometmq.message.record import TRANSACTION_MASK
from cometmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.broker.context import BrokerContext
    from cometmq.broker.scheduled.delaylevels import DelayLevels
    from cometmq.broker.scheduled.timers.rules import TimerRules
    from cometmq.broker.transactions.endtransaction import Transactions
    from cometmq.protocol.bodies import SubscriptionGroupConfig
    from cometmq.protocol.headers import SendMessage


def is_delayed(properties: Mapping[str, str]) -> bool:
    """Return whether a message asks to be delivered later."""
    return props.DELAY in properties or wants_timer(properties)


class SendRedirect:
    """Decides where prepared, delayed and sent-back messages are stored first."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        levels: DelayLevels,
        timers: TimerRules,
        transactions: Transactions,
    ) -> None:
        self._config = context.config
        self._clock = context.clock
        self._topics = context.tables.topics
        self._groups = context.tables.groups
        self._delay = levels
        self._timers = timers
        self._transactions = transactions

    def place_for(
        self, header: SendMessage, queue_id: int, properties: dict[str, str], text: str
    ) -> tuple[str, int, dict[str, str], str]:
        """Return topic, queue id, properties and property text with which to store a message that
        is prepared, delayed or sent back."""
        if self._is_prepared(header, properties):
            self._ensure_half_topic()
            return HALF_TOPIC, 0, properties, prepared(text, header.topic, queue_id)
        topic, queue_id, properties = self._redirected(header, queue_id, properties)
        return topic, queue_id, properties, props.encode_text(properties)

    def recall_handle(self, properties: Mapping[str, str]) -> str | None:
        """Return the handle by which a client may recall a message that waits for its time."""
        return self._timers.recall_handle(properties)

    def _redirected(
        self, header: SendMessage, queue_id: int, properties: dict[str, str]
    ) -> tuple[str, int, dict[str, str]]:
        """Return topic, queue id and properties with which to store a message that is delayed or
        sent back; if it was sent back too often, those of the dead-letter queue."""
        topic = header.topic
        level = self._delay.level_of(properties) if props.DELAY in properties else 0
        if header.sys_flag & TRANSACTION_MASK:
            raise MessageIllegal(
                f"system flag {header.sys_flag} marks the message as part of a transaction, but "
                "its property TRAN_MSG does not"
            )
        if topic.startswith(RETRY_PREFIX):
            topic, queue_id = self._retry_or_dead_letter(header, queue_id, properties)
            level = self._delay.level_of(properties)
        if level > 0:
            drop_wishes(properties)
            return self._delay.place_for(topic, queue_id, properties, level)
        if wants_timer(properties):
            now_ms = self._clock.wall_ms()
            place = self._timers.place_for(topic, queue_id, properties, now_ms)
            if place is not None:
                self._transactions.ensure_topic(TIMER_TOPIC)
                return place
        return topic, queue_id, properties

    def group(self, name: str) -> SubscriptionGroupConfig:
        """Return the group whose retry topic gets a message; create it if that is allowed.

        Raises BadRequest if there is none.
        """
        group = self._groups.find(name)
        if group is None:
            raise BadRequest(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name}: {self._groups.advice(name)}",
            )
        return group

    def _is_prepared(self, header: SendMessage, properties: Mapping[str, str]) -> bool:
        if properties.get(props.TRAN_MSG, "").lower() != "true":
            return False
        # A message that a consumer sends back was committed before and keeps its property TRAN_MSG.
        is_sent_back = (header.reconsume_times or 0) > 0 and props.DELAY in properties
        return not is_sent_back or self._delay.level_of(properties) <= 0

    def _ensure_half_topic(self) -> None:
        """Create the topic of half messages. Raises BadRequest if rejectTransactionMessage is
        set."""
        if self._config.reject_transaction_message:
            raise BadRequest(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_name}] sending transaction message is forbidden "
                "(rejectTransactionMessage)",
            )
        self._transactions.ensure_topic(HALF_TOPIC)

    def _retry_or_dead_letter(
        self, header: SendMessage, queue_id: int, properties: dict[str, str]
    ) -> tuple[str, int]:
        """Return topic and queue id for a message to a retry topic: these, or after too many
        retries those of the dead-letter queue."""
        name = header.topic.removeprefix(RETRY_PREFIX)
        group = self.group(name)
        allowed = header.max_reconsume_times
        if allowed is None:
            allowed = group.retry_max_times
        if (header.reconsume_times or 0) < allowed:
            return header.topic, queue_id
        dead = self._topics.create_dead_letter(DLQ_PREFIX + name)
        properties.pop(props.DELAY, None)
        return dead.topic_name, 0
