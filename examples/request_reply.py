"""A request and its reply, through the broker."""

import asyncio
import sys

import cometmq

TOPIC = "prices"
PRICES = {"tea": b"4.20", "kettle": b"39.00"}


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with cometmq.Client(name_server) as shop, cometmq.Client(name_server) as guest:
        await cometmq.Admin(shop.session).create_topic(TOPIC)

        @shop.replier(TOPIC, group="pricing")
        async def price(question: cometmq.ReceivedMessage) -> bytes | None:
            return PRICES.get(question.body.decode())  # None: no answer

        for item in ("tea", "kettle"):
            answer = await guest.request(TOPIC, item.encode())
            print(f"{item}: {answer.body.decode()}")
        try:
            await guest.request(TOPIC, b"unicorn", timeout_ms=500)
        except cometmq.RequestTimedOut:
            print("unicorn: no answer")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
