"""What tests do with a broker they share: names of their own, whole topics read, broadcasts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.client.sendrequests import SendResult
from cometmq.core.errors import CometError, NotFound
from cometmq.message.model import MessageQueue

Found = TypeVar("Found")

DEADLINE_S: Final = 60


def fresh_name(kind: str = "topic") -> str:
    """A name that no other test has."""
    return f"{kind}-{uuid.uuid4().hex[:12]}"


async def fresh_topic(client: Client, queues: int = 4) -> str:
    """A topic that no other test uses."""
    name = fresh_name()
    await Admin(client.session).create_topic(name, queues=queues)
    return name


async def read_all(client: Client, topic: str, count: int) -> list[ReceivedMessage]:
    """Consumes ``count`` different messages as a group of its own."""
    found: dict[str, ReceivedMessage] = {}
    async with client.subscribe(topic, group=fresh_name("g"), start="first") as subscription:
        async with asyncio.timeout(DEADLINE_S):
            async for message in subscription:
                async with message.processing():
                    found[message.message_id] = message
                if len(found) == count:
                    break
    return list(found.values())


async def read_as_broadcast(
    name_servers: Sequence[str], topic: str, count: int, offsets_dir: Path
) -> None:
    """Reads ``count`` messages as each of two broadcasting members; fails when one misses some."""

    async def consume(member: str) -> None:
        async with Client(name_servers, offsets_dir=offsets_dir, instance_name=member) as client:
            left = count
            async for message in client.subscribe(
                topic, group=f"g-{topic}", mode="broadcasting", start="first"
            ):
                async with message.processing():
                    left -= 1
                if not left:
                    return

    await asyncio.wait_for(asyncio.gather(consume("a"), consume("b")), DEADLINE_S)
    files = await asyncio.to_thread(lambda: list(offsets_dir.rglob("offsets.json")))
    assert len(files) == 2


async def until_found(
    ask: Callable[[], Awaitable[Found]], *, absent: tuple[type[CometError], ...] = (NotFound,)
) -> Found:
    """Ask again and again; return the first answer that is true.

    Errors in ``absent`` mean that there is no answer yet.

    A Java broker answers a send before its queues, its index and its figures know the message.
    """
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                if found := await ask():
                    return found
            except absent:
                pass
            await asyncio.sleep(0.02)


async def until_listed(client: Client, sent: Iterable[SendResult]) -> None:
    """Wait until the queues have the messages that were sent: a Java broker answers before."""
    ends: dict[MessageQueue, int] = {}
    for each in sent:
        ends[each.queue] = max(ends.get(each.queue, 0), each.queue_offset + 1)
    async with asyncio.timeout(DEADLINE_S):
        for queue, end in ends.items():
            while await client.puller.max_offset(queue) < end:
                await asyncio.sleep(0.02)
