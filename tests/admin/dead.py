"""Makes dead letters, as a consumer that gives messages up does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.client.sendrequests import SendResult
from cometmq.core.errors import BrokerRefused, RouteNotFound
from cometmq.message.ids import decode_offset_id
from cometmq.message.model import Message
from cometmq.protocol.bodies import SubscriptionGroupConfig
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import ConsumerSendMsgBack


async def die(client: Client, topic: str, group: str, bodies: Sequence[bytes]) -> list[SendResult]:
    """Sends messages and gives each up at once in the name of a group; waits for the topic."""
    admin = Admin(client.session)
    await admin.update_group(SubscriptionGroupConfig(group))
    sent = []
    for body in bodies:
        message = Message(topic, body, "t", ("k",), properties={"p": "v"})
        result = await client.send(message)
        place = decode_offset_id(result.offset_id)
        header = ConsumerSendMsgBack(place.physical_offset, group, -1, result.message_id, topic)
        address = await client.session.master_of(result.queue)
        await admin.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)
        sent.append(result)
    async with asyncio.timeout(60):
        while not await _arrived(admin, f"%DLQ%{group}", len(bodies)):
            pass
    return sent


async def _arrived(admin: Admin, topic: str, count: int) -> bool:
    try:
        stats = await admin.topic_stats(topic)
    except (RouteNotFound, BrokerRefused):
        return False
    return sum(each.max_offset for each in stats.values()) >= count
