"""A failed message is retried, with growing delays; after the last retry it is a dead letter."""

import asyncio
import sys

import cometmq

TOPIC = "mails"
GROUP = "mailer"


class Unreachable(Exception):
    """Raised if the mail server does not answer."""


def send_mail(address: str, attempt: int) -> None:
    """Pretend to send. One server is away for a moment, another one permanently."""
    if (address == "bob@example.org" and attempt == 0) or address == "nobody@example.org":
        raise Unreachable


async def work(client: cometmq.Client) -> None:
    """The mailer. Each mail is tried twice."""
    mails = client.subscribe(TOPIC, group=GROUP, start="first", max_reconsume_times=1)
    async with mails:
        async for mail in mails:
            address = mail.body.decode()
            try:
                send_mail(address, mail.reconsume_times)
            except Unreachable:
                print(f"{address}: attempt {mail.reconsume_times + 1} failed")
                await mail.retry(delay_level=1)  # in a second; without a level in 10 s, 30 s, ...
                if mail.reconsume_times == 1:
                    return
            else:
                print(f"{address}: sent")
                mail.ack()


async def bury(client: cometmq.Client) -> None:
    """Read the mailer's dead letters, ordinary messages in their own topic."""
    letters = client.subscribe(f"%DLQ%{GROUP}", group="undertaker", start="first")
    async with letters:
        async for letter in letters:
            async with letter.processing():
                print(f"dead letter: {letter.body.decode()}")
            return


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with cometmq.Client(name_server) as client:
        for address in ("alice@example.org", "bob@example.org", "nobody@example.org"):
            await client.send(TOPIC, address.encode(), order_key="all")
        await work(client)
        await bury(client)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
