"""Our client through a broker that is killed and started again: what was acknowledged arrives."""

from __future__ import annotations

import asyncio
from pathlib import Path

import cometmq
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.testing.cluster import ProcessCluster
from tests.client.scripted import eventually

TOPIC = "restarts"


class Traffic:
    """Producers that never stop, and a consumer that writes down what it sees."""

    def __init__(self, producer: cometmq.Client) -> None:
        self.acknowledged: set[bytes] = set()
        self.seen: set[bytes] = set()
        self._producer = producer
        self._stopping = False

    async def produce(self, number: int) -> None:
        count = 0
        while not self._stopping:
            count += 1
            body = b"%d-%d" % (number, count)
            try:
                await self._producer.send(TOPIC, body)
            except cometmq.ClientError:
                await asyncio.sleep(0.02)  # the broker is away
            else:
                self.acknowledged.add(body)

    async def handle(self, message: ReceivedMessage) -> None:
        self.seen.add(message.body)

    def stop(self) -> None:
        self._stopping = True


async def test_nothing_that_was_acknowledged_is_lost(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        async with cometmq.Client(cluster.namesrv) as client:
            traffic = Traffic(client)
            producing = [asyncio.create_task(traffic.produce(at)) for at in range(4)]
            await eventually(lambda: len(traffic.acknowledged) > 100)
            subscription = client.subscribe(TOPIC, group="restarts", start="first")
            consuming = asyncio.create_task(subscription.run(traffic.handle))
            for restart in (cluster.kill, cluster.terminate):
                before = len(traffic.seen)
                await eventually(lambda: len(traffic.seen) > before + 500)  # noqa: B023
                await asyncio.to_thread(restart)
                await asyncio.to_thread(cluster.start)
            after = len(traffic.acknowledged)
            await eventually(lambda: len(traffic.acknowledged) > after + 500)
            traffic.stop()
            await asyncio.gather(*producing)
            await eventually(lambda: traffic.acknowledged <= traffic.seen)
            await subscription.close()
            await consuming
