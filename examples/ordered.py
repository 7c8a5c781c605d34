"""Ordered consumption: the steps of one order in sequence, different orders in parallel."""

import asyncio
import sys
from collections import defaultdict

import cometmq

TOPIC = "order-steps"
STEPS = ("placed", "paid", "packed", "shipped")
ORDERS = ("A17", "A18", "A19")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with cometmq.Client(name_server) as client:
        for step in STEPS:
            for number in ORDERS:
                await client.send(TOPIC, step.encode(), keys=[number], order_key=number)

        seen = defaultdict(list)
        failed = False
        steps = client.subscribe(TOPIC, group="tracking", ordered=True, start="first")
        async for message in steps:
            async with message.processing():
                step, [number] = message.body.decode(), message.keys
                if (number, step) == ("A18", "paid") and not failed:
                    failed = True
                    print("A18: paid fails once, and comes again before packed does")
                    await message.retry()
                    continue
                seen[number].append(step)
            if sum(map(len, seen.values())) == len(STEPS) * len(ORDERS):
                break
        for number in ORDERS:
            print(f"{number}: {' '.join(seen[number])}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
