"""Refusals for lack of permission: whether a consumer may read anything at all.

A consumer that was never allowed to read would wait for ever, so it raises an error instead. One
that could read before keeps trying, because the change of the access rules may be temporary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeGuard

from cometmq.core.errors import BrokerRefused, CometError

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue


class Refusals:
    """Refusals of the topics and queues of one consumer.

    The consumer is refused if it has never read anything and each of ``topics``, the retry topic
    left out, is refused. A topic is refused if all its brokers refuse to list the group's members,
    or if this consumer has queues on all its brokers and each of these queues is refused.

    Only errors about this client's account count. A group, topic or broker that is closed to
    everybody may be opened again.
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self._of_topic: dict[str, BrokerRefused | None] = dict.fromkeys(topics)
        self._of_queue: dict[MessageQueue, BrokerRefused] = {}
        self._expected: dict[str, frozenset[MessageQueue]] = {}
        self._brokers: dict[str, frozenset[str]] = {}
        self._has_read = False
        self._refused = asyncio.Event()

    @property
    def error(self) -> BrokerRefused | None:
        """A new copy of one of the errors, if the consumer is refused."""
        if not self._is_refused():
            return None
        refusals = (*self._of_topic.values(), *self._of_queue.values())
        first = next(each for each in refusals if each is not None)
        return BrokerRefused(first.address, first.request_code, first.code, first.broker_remark)

    async def wait(self) -> None:
        """Wait until the consumer is refused."""
        while not self._is_refused():
            self._refused.clear()
            await self._refused.wait()

    def expect(
        self, topic: str, queues: Iterable[MessageQueue], whole: Iterable[MessageQueue]
    ) -> None:
        """Note that this member's share of a topic is known.

        ``queues`` are those of this consumer, ``whole`` all queues of the topic.
        """
        if topic in self._of_topic and not self._has_read:
            self._of_topic[topic] = None
            self._expected[topic] = frozenset(queues)
            self._brokers[topic] = frozenset(queue.broker_name for queue in whole)
            gone = [each for each in self._of_queue if each.topic == topic]
            for queue in gone:
                if queue not in self._expected[topic]:
                    del self._of_queue[queue]

    def topic_failed(self, topic: str, error: CometError) -> None:
        """Note that this member's share of a topic could not be computed; only a lack of permission
        counts."""
        if topic in self._of_topic and not self._has_read and _is_denial(error):
            self._of_topic[topic] = error
            self._check()

    def queue_failed(self, queue: MessageQueue, error: CometError) -> None:
        """Note that a queue could not be read; only a lack of permission counts."""
        if queue.topic not in self._of_topic or self._has_read:
            return
        if _is_denial(error):
            self._of_queue[queue] = error
            self._check()
        else:
            self._of_queue.pop(queue, None)

    def queue_read(self, queue: MessageQueue) -> None:
        """Note that a queue was read, even if there was no message in it."""
        if not self._has_read and queue.topic in self._of_topic:
            self._has_read = True
            self._of_queue.clear()
            self._expected.clear()
            self._refused.clear()

    def _check(self) -> None:
        if self._is_refused():
            self._refused.set()

    def _is_refused(self) -> bool:
        topics = self._of_topic
        return not self._has_read and bool(topics) and all(map(self._is_topic_refused, topics))

    def _is_topic_refused(self, topic: str) -> bool:
        if self._of_topic[topic] is not None:
            return True
        queues = self._expected.get(topic, frozenset())
        brokers = {queue.broker_name for queue in queues if queue in self._of_queue}
        # A broker on which this member has no queues may permit reading.
        are_denied = all(queue in self._of_queue for queue in queues)
        return bool(queues) and are_denied and brokers == self._brokers[topic]


def _is_denial(error: CometError) -> TypeGuard[BrokerRefused]:
    return isinstance(error, BrokerRefused) and error.is_about_account
