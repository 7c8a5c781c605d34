"""Failures of messages: logs exceptions of user code that processes messages, records them for
tests, and decides how a consumer handles the messages.

The exception of a handler is not raised to the caller, because the message is retried. A test with
assertions in a handler would therefore pass whether or not they hold, so test fixtures record the
failures.

Concurrent consumers send failed messages back to the broker, which stores them in the group's retry
topic, delayed, or makes them dead letters. If the broker cannot be reached, the message stays with
this consumer and is delivered again after a pause. A send-back names the message by its physical
offset; a broker that does not have the message there receives the whole message (upstream:
ConsumeMessageConcurrentlyService.java, DefaultMQPushConsumerImpl.sendMessageBack).

Ordered consumers deliver a message again in place, after a pause, until it succeeds or becomes a
dead letter (upstream: ConsumeMessageOrderlyService.java).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import BrokerRefused
from cometmq.message import properties as props
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import ConsumerSendMsgBack

if TYPE_CHECKING:
    from cometmq.client.consumer.messageview import MessageView
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.producer import Producer
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue, StoredMessage

log = logging.getLogger(__name__)

#: Errors of the program, not of the message or the moment: a retry does not help.
PROGRAMMING_ERRORS: Final = (
    AssertionError,
    AttributeError,
    ImportError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
)


@dataclass(slots=True)
class Failure:
    """Exception that was not raised to the caller.

    Recorders set ``is_reported`` when they have reported it.
    """

    error: Exception
    is_reported: bool = False


_recorders: list[list[Failure]] = []


@contextmanager
def recorded() -> Iterator[list[Failure]]:
    """Record the failures of all clients and threads of this process inside the block."""
    failures: list[Failure] = []
    _recorders.append(failures)
    try:
        yield failures
    finally:
        # By identity: two lists that hold the same failures are equal.
        _recorders[:] = [each for each in _recorders if each is not failures]


def note(error: Exception) -> None:
    """Record an exception that is not raised to the caller."""
    if _recorders:
        failure = Failure(error)
        for failures in _recorders:
            failures.append(failure)


def log_failure(message: MessageView, error: Exception) -> None:
    """Log an exception from processing a message, with its traceback.

    A programming error is logged as an error, any other exception as a warning.
    """
    level = logging.ERROR if isinstance(error, PROGRAMMING_ERRORS) else logging.WARNING
    log.log(
        level,
        "processing_failed topic=%s message=%s attempt=%d error=%r",
        message.topic,
        message.message_id,
        message.reconsume_times + 1,
        error,
        exc_info=error,
    )


DEFAULT_MAX_RECONSUME_TIMES: Final = 16
#: Delay level of a first retry, unless the application asks for another.
_FIRST_LEVEL: Final = 3


class SendBack:
    """Failure policy of one consumer; see settling.FailurePolicy."""

    def __init__(self, session: Session, options: SubscribeOptions, producer: Producer) -> None:
        self.pause_ms = session.config.local_retry_pause_ms
        self._session = session
        self._options = options
        self._producer = producer

    def is_final(self, message: StoredMessage, delay_level: int) -> bool:
        return True

    async def send_away(
        self, queue: MessageQueue, message: StoredMessage, delay_level: int
    ) -> None:
        most = self._options.max_reconsume_times
        most = DEFAULT_MAX_RECONSUME_TIMES if most < 0 else most
        try:
            await self._name(queue, message, delay_level, most)
        except BrokerRefused as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            await self._send_whole(message, delay_level, most)

    async def _name(
        self, queue: MessageQueue, message: StoredMessage, delay_level: int, most: int
    ) -> None:
        origin = message.properties.get(props.RETRY_TOPIC) or message.topic
        header = ConsumerSendMsgBack(
            offset=message.physical_offset,
            group=self._options.group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=self._session.namespace.wrap(origin),
            unit_mode=False,
            max_reconsume_times=most,
        )
        await self._session.remoting.call(
            await self._session.master_of(queue),
            RequestCode.CONSUMER_SEND_MSG_BACK,
            header,
            timeout_ms=self._session.config.request_timeout_ms,
        )

    async def _send_whole(self, message: StoredMessage, delay_level: int, most: int) -> None:
        # For a named message the broker increments the attempts itself; a whole message carries the
        # incremented count.
        times = message.reconsume_times + 1 if delay_level >= 0 else most + 1
        await self._producer.send_to_retry(
            message,
            self._options.retry_topic,
            reconsume_times=times,
            max_reconsume_times=most + 1,
            delay_level=max(delay_level, 0) or _FIRST_LEVEL + message.reconsume_times,
        )


_FIRST_RETRY_LEVEL: Final = 3


class RetryInPlace:
    """Failure policy of one ordered consumer; see settling.FailurePolicy."""

    def __init__(self, session: Session, options: SubscribeOptions, producer: Producer) -> None:
        self.pause_ms = session.config.ordered_retry_pause_ms
        self._options = options
        self._producer = producer

    def is_final(self, message: StoredMessage, delay_level: int) -> bool:
        most = self._options.max_reconsume_times
        return delay_level < 0 or 0 <= most <= message.reconsume_times

    async def send_away(
        self, queue: MessageQueue, message: StoredMessage, delay_level: int
    ) -> None:
        await self._producer.send_to_retry(
            message,
            self._options.retry_topic,
            reconsume_times=message.reconsume_times + 1,
            max_reconsume_times=max(self._options.max_reconsume_times, 0),
            delay_level=_FIRST_RETRY_LEVEL + message.reconsume_times,
        )
