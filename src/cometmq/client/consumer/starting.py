"""Start of a consumer: has brokers check its filters (upstream:
MQClientInstance.checkClientInBroker), and finds the start offset of its group in a queue: the
committed offset, otherwise the position in its options.

``last`` means the time at which this member joined. In a queue that existed then, the start is the
queue's end. In a queue that appears later, because its topic grew or its broker was away, the start
is the first message stored after that time. Brokers of the 4.x line let a new group begin at 0 on a
queue that still has its first message, whatever the group requested; other brokers are asked not to
(upstream: RebalancePushImpl.computePullFromWhere).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.client.consumer.options import Sql
from cometmq.core.errors import CometError, RouteNotFound
from cometmq.protocol.bodies import ClientConfigCheck
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json

if TYPE_CHECKING:
    from cometmq.client.consumer.offsets import OffsetStore
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.pull import Puller
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue

log = logging.getLogger(__name__)


async def check_filters(session: Session, options: SubscribeOptions) -> None:
    """Have one broker of each topic check its SQL92 filter; skip topics that do not exist yet.

    Raises BrokerRefused with the broker's reason, NotConnected or RequestTimedOut.
    """
    for topic, wanted in options.filters.items():
        if not isinstance(wanted, Sql):
            continue
        try:
            queues = await session.subscribe_queues(topic)
        except RouteNotFound:
            continue
        for queue in queues[:1]:
            body = ClientConfigCheck(
                subscription_data=options.subscription(topic),
                client_id=session.client_id,
                group=options.group,
            )
            await session.remoting.call(
                await session.master_of(queue),
                RequestCode.CHECK_CLIENT_CONFIG,
                None,
                encode_json(body),
                timeout_ms=session.config.request_timeout_ms,
            )


class StartPositions:
    """Start offsets for one consumer."""

    def __init__(
        self, session: Session, options: SubscribeOptions, offsets: OffsetStore, puller: Puller
    ) -> None:
        self._session = session
        self._options = options
        self._offsets = offsets
        self.puller = puller
        self._joined_ms = 0
        self._at_join: dict[str, frozenset[MessageQueue]] = {}

    async def joining(self) -> None:
        """Record the time of joining and the queues that exist at that time."""
        self._joined_ms = self._session.clock.wall_ms()
        for topic in self._options.filters:
            await self._session.refresh(topic)
            try:
                self._at_join[topic] = frozenset(await self._session.subscribe_queues(topic))
            except RouteNotFound:
                self._at_join[topic] = frozenset()
            except CometError as error:
                log.warning("queues_unavailable_at_join topic=%s error=%s", topic, error)

    async def of(self, queue: MessageQueue) -> int:
        """Return the offset to start at. Raises ClientError when the broker cannot be asked."""
        stored = await self._offsets.load(queue)
        if stored is not None:
            return stored
        options = self._options
        if queue.topic == options.retry_topic or options.start == "first":
            return 0
        start_ms = options.start_ms()
        if start_ms is None and self._is_new(queue):
            start_ms = self._joined_ms
        if start_ms is None:
            return await self.puller.max_offset(queue)
        return await self.puller.offset_at(queue, start_ms)

    def _is_new(self, queue: MessageQueue) -> bool:
        return queue not in self._at_join.get(queue.topic, (queue,))
