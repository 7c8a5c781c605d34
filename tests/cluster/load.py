"""A producer and a check that whatever it was told is stored is there, at any broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from cometmq.client.client import Client
from cometmq.core.errors import CometError

WAIT_S = 60.0


async def until(condition: Callable[[], bool], what: str) -> None:
    """Returns once the condition holds. Raises AssertionError when it takes a minute."""
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {WAIT_S} s: {what}") from None


def patient_client(name_servers: str) -> Client:
    """A client whose sends outlast a master that waits for its slave."""
    return Client(name_servers, send_timeout_ms=20_000, request_timeout_ms=10_000)


@dataclass
class Load:
    """Sends numbered messages, and remembers those that were acknowledged."""

    topic: str
    acked: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    number: int = 0

    def has_acked(self, count: int) -> bool:
        """Whether so many were acknowledged by now."""
        return len(self.acked) >= count

    async def send(self, client: Client, count: int, *, size_bytes: int = 200) -> None:
        """Send so many, thirty-two at a time; a send that fails is remembered as such."""
        todo = iter(range(self.number, self.number + count))
        self.number += count

        async def sender() -> None:
            for number in todo:
                name = f"m{number:08d}"
                try:
                    result = await client.send(self.topic, name.encode().ljust(size_bytes, b"."))
                except CometError as error:
                    self.failures.append(str(error))
                    continue
                status = result.status.name
                self.statuses[status] = self.statuses.get(status, 0) + 1
                self.acked.add(name)

        await asyncio.gather(*(sender() for _ in range(32)))


async def names(client: Client, topic: str) -> list[str]:
    """The names of all messages of a topic that can be read, from whoever serves its queues."""
    found: list[str] = []
    for queue in await client.queues(topic):
        offset = await client.puller.min_offset(queue)
        while True:
            result = await client.puller.pull(queue, offset, max_messages=32)
            if not result.messages:
                break
            found += [message.body[:9].decode() for message in result.messages]
            offset = result.next_offset
    return found
