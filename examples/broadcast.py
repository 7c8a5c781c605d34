"""Broadcasting: every member of a group gets every message. Here two servers clear their caches."""

import asyncio
import sys
import tempfile

import cometmq

TOPIC = "cache-news"
NEWS = (b"prices", b"images", b"stop")


async def serve(name: str, name_server: str, offsets: str, ready: asyncio.Semaphore) -> None:
    # Each member stores its offsets in its own file, so the instances need different names.
    async with cometmq.Client(name_server, instance_name=name, offsets_dir=offsets) as client:
        news = client.subscribe(TOPIC, group="servers", mode="broadcasting", start="first")
        async with news:
            ready.release()
            async for message in news:
                async with message.processing():
                    if message.body == b"stop":
                        return
                    print(f"{name}: forget {message.body.decode()}")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    ready = asyncio.Semaphore(0)
    with tempfile.TemporaryDirectory() as offsets:
        async with cometmq.Client(name_server) as client, asyncio.TaskGroup() as group:
            await cometmq.Admin(client.session).create_topic(TOPIC)
            for name in ("north", "south"):
                group.create_task(serve(name, name_server, offsets, ready))
            for _ in range(2):
                await ready.acquire()
            for each in NEWS:
                await client.send(TOPIC, each, order_key="news")  # one queue: "stop" is last


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
