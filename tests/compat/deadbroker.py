"""A broker that name servers know and nobody reaches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cometmq.core.clock import SystemClock
from cometmq.net.client import Remoting
from cometmq.net.tasks import Tasks
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import DataVersion, TopicConfig, TopicConfigTable
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.registerbody import body_crc32
from tests.compat.anchor import free_port, route_code
from tests.protocol.registering import encode


@asynccontextmanager
async def dead_broker(namesrv: str, topic: str, queues: int = 4) -> AsyncIterator[str]:
    """As long as the block runs, half of the queues of a topic that exists lie on a broker that is
    not there; gives that broker's name."""
    while await asyncio.to_thread(route_code, namesrv, topic):
        await asyncio.sleep(0.05)
    place = h.BrokerIdentity("broker-dead", f"127.0.0.1:{free_port()}", "DefaultCluster", 0)
    # A Java 5 name server takes a broker that it does not know only with several topics.
    topics = {name: TopicConfig(name, queues, queues) for name in (topic, "broker-dead")}
    table = TopicConfigTable(DataVersion(1, 1), topics)
    body = encode(table, compressed=False)
    header = h.RegisterBroker(
        *(place.broker_name, place.broker_addr, place.cluster_name, "127.0.0.1:9", 0),
        body_crc32=body_crc32(body),
    )
    tasks = Tasks()
    # Name servers forget a broker with its connection.
    remoting = Remoting(clock=SystemClock(), tasks=tasks)
    try:
        asked = await remoting.request(
            namesrv, RequestCode.REGISTER_BROKER, header, body, timeout_ms=10_000
        )
        assert asked.code == 0
        yield place.broker_name
        await remoting.request(namesrv, RequestCode.UNREGISTER_BROKER, place, timeout_ms=10_000)
    finally:
        await remoting.close()
        await tasks.close()
