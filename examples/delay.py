"""Delayed messages: reminders for tea makers."""

import asyncio
import sys
import time

import cometmq

TOPIC = "reminders"


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with cometmq.Client(name_server) as client:
        reminders = client.subscribe(TOPIC, group="kitchen", start="first")
        started = time.monotonic()
        await client.send(TOPIC, b"tea is ready", delay_s=2)
        await client.send(TOPIC, b"the kettle sings", delay_level=1)
        await client.send(TOPIC, b"the kettle is on")
        cake = await client.send(TOPIC, b"cake is ready", delay_s=3_600)
        await client.recall(cake)  # there is no cake

        async for reminder in reminders:
            async with reminder.processing():
                print(f"after {time.monotonic() - started:.0f} s: {reminder.body.decode()}")
            if reminder.body == b"tea is ready":
                break


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
