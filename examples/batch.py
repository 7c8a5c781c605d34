"""Sends many messages in few requests."""

import asyncio
import sys

import cometmq

TOPIC = "measurements"


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with cometmq.Client(name_server) as client:
        # One batch is stored completely, as consecutive messages of one queue, or not at all.
        messages = [cometmq.Message(TOPIC, str(celsius).encode()) for celsius in (19, 20, 21)]
        first, *others = await client.send_batch(messages)
        together = all(each.queue == first.queue for each in others)
        distances = [each.queue_offset - first.queue_offset for each in others]
        print(f"3 messages in one queue: {together}, behind each other: {distances}")

        # Any number of messages, in as few batches as the limits allow. The order key is a function
        # of the message here, so that the readings of one sensor stay in order.
        readings = [
            cometmq.Message(TOPIC, b"21", keys=(f"sensor-{number % 3}",)) for number in range(3_000)
        ]
        results = await client.send_many(readings, order_key=lambda message: message.keys[0])
        stored = sum(each.status is cometmq.SendStatus.OK for each in results)
        print(f"{stored} more are stored")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
