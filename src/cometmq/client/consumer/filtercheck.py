"""Checks before a consumer starts whether brokers accept its filters (upstream:
MQClientInstance.checkClientInBroker).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.client.consumer.filters import Sql
from cometmq.core.errors import RouteNotFound
from cometmq.protocol.bodies import ClientConfigCheck
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json

if TYPE_CHECKING:
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.session import Session


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
