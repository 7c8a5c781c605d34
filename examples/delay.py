"""A message that is delivered later: here a reminder, one second after it is sent."""

import asyncio
import sys
import time

import cometmq


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with cometmq.Client(name_server) as client:
        reminders = client.subscribe("reminders", group="desk", start="first")
        started = time.monotonic()
        await client.send("reminders", b"tea is ready", delay_level=1)
        await client.send("reminders", b"tea is on")
        async for reminder in reminders:
            async with reminder.processing():
                print(f"after {time.monotonic() - started:.0f} s: {reminder.body.decode()}")
            if reminder.body == b"tea is ready":
                break


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
