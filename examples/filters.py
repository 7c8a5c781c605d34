"""Filters: groups that receive some messages of a topic, by tag, and by SQL on properties."""

import asyncio
import sys

import cometmq

TOPIC = "stock"
CHANGES = (
    ("sold", "tea", 4),
    ("bought", "tea", 50),
    ("sold", "kettle", 1),
    ("broken", "cup", 2),
)


async def read(client: cometmq.Client, group: str, wanted: str | cometmq.Sql, count: int) -> None:
    async with client.subscribe(TOPIC, group=group, filter=wanted, start="first") as changes:
        async for change in changes:
            async with change.processing():
                print(f"{group}: {change.tag} {change.body.decode()}")
                count -= 1
            if not count:
                return


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with cometmq.Client(name_server) as client:
        for tag, item, pieces in CHANGES:
            properties = {"item": item, "pieces": str(pieces)}
            await client.send(TOPIC, item.encode(), tag=tag, properties=properties)

        await read(client, "cashier", "sold", 2)
        await read(client, "accountant", "sold || bought", 3)
        await read(client, "buyer", cometmq.Sql("pieces >= 4 AND item <> 'cup'"), 2)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
