"""FastStream's broker on Java brokers 4.9.7 and 5.5.0, and on ours."""

from __future__ import annotations

from typing import Any

from faststream.exceptions import NackMessage

from cometmq.admin.api import Admin
from cometmq.client.config import ClientConfig
from cometmq.faststream import RocketMQBroker, RocketMQMessage
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_name
from tests.compat.conftest import Target

DEADLINE_S = 60


async def test_handlers_batches_retries_and_requests(target: Target) -> None:
    # A test machine may be busy, and a fresh JVM is slow.
    config = ClientConfig.recommended(
        target.namesrv, send_timeout_ms=10_000, send_attempt_timeout_ms=0
    )
    broker, topic, results = RocketMQBroker(config=config), fresh_name(), fresh_name()
    seen: list[Any] = []

    @broker.subscriber(topic, group=fresh_name(), filter="sum", start="first")
    @broker.publisher(results, tag="result", headers={"unit": "m"})
    async def add(numbers: list[int], message: RocketMQMessage) -> int:
        if not message.raw_message.reconsume_times and len(numbers) == 3:
            raise NackMessage(delay_level=1)
        return sum(numbers)

    @broker.subscriber(
        results, group=fresh_name(), batch=True, max_records=2, batch_timeout_s=5, start="first"
    )
    async def collect(sums: list[int], message: RocketMQMessage) -> None:
        seen.extend(zip(sums, (each["unit"] for each in message.batch_headers), strict=True))

    async with broker:
        assert broker._connection is not None
        for each in (topic, results):
            await Admin(broker._connection.session).create_topic(each, queues=1)
        await broker.start()
        assert await broker.ping(timeout=DEADLINE_S)
        await broker.publish_batch([1, 2, 3], [4, 5], topic=topic, tag="sum", keys=("k",))
        await eventually(lambda: len(seen) == 2, deadline_s=DEADLINE_S)
        assert sorted(seen) == [(6, "m"), (9, "m")]
        reply = await broker.request([7, 8], topic, tag="sum", timeout=DEADLINE_S)
        assert await reply.decode() == 15
