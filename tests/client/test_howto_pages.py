"""The programs of pages about sending, receiving and administration run as they stand there."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import cometmq
from cometmq.admin.health import HealthLimits, check_health, wait_until_healthy
from cometmq.core.errors import RequestTimedOut
from cometmq.message.model import Message
from cometmq.testing.cluster import Cluster
from tests.client.test_pages import ADDRESS, blocks, run

LIMIT_S = 60


class Orders:
    """The database of the page's shop."""

    def __init__(self) -> None:
        self.ids: set[str] = set()

    async def store(self, number: str, *, message_id: str) -> None:
        self.ids.add(message_id)

    async def is_stored(self, message_id: str) -> bool:
        return message_id in self.ids


async def received(client: cometmq.Client, topic: str, count: int) -> list[bytes]:
    """The bodies of the first messages of a topic."""
    found: list[bytes] = []
    async with asyncio.timeout(LIMIT_S), client.subscribe(topic, group="r", start="first") as sub:
        async for message in sub:
            async with message.processing():
                found.append(message.body)
            if len(found) == count:
                break
    return found


async def test_sending(cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    many, timed, transaction, request, hooks = blocks("how-to/send.md")
    orders = Orders()
    names: dict[str, Any] = {
        "Client": cometmq.Client, "Message": Message, "address": cometmq_cluster.namesrv,
        "body": b"one", "bodies": [b"two", b"three"], "datetime": datetime, "UTC": UTC,
        "timedelta": timedelta, "MessageView": cometmq.MessageView, "orders": orders,
        "ReceivedMessage": cometmq.ReceivedMessage,
    }  # fmt: skip
    async with asyncio.timeout(LIMIT_S):
        await run(many, names)
    assert len(names["results"]) == 2

    async with cometmq.Client(cometmq_cluster.namesrv) as client:
        names["client"] = client
        assert sorted(await received(client, "orders", 5)) == sorted(
            [b"one", b"two", b"three", b"two", b"three"]
        )
        await run(timed, names)
        await run(transaction, names)
        assert len(orders.ids) == 1
        assert b"..." in await received(client, "orders", 1)

        answering, asking = request.split("\n\n\n")
        await run(answering, names)
        deadline = time.monotonic() + LIMIT_S
        while "answer" not in names:  # the replier may not have its queues yet
            try:
                await run(asking, names)
            except RequestTimedOut:
                assert time.monotonic() < deadline
        assert names["answer"].body == b"17.50"

        await run(hooks, names)
        capsys.readouterr()
        await client.send("orders", b"timed")
        assert "None" in capsys.readouterr().out


async def test_receiving(cometmq_cluster: Cluster) -> None:
    poll, places, ranges = blocks("how-to/receive.md")
    async with cometmq.Client(cometmq_cluster.namesrv) as client:
        for number in range(10):
            await client.send("regions", b"%d" % number)
        taken: list[bytes] = []
        names: dict[str, Any] = {"client": client, "taken": taken}
        hour_ms = 3_600_000
        names["yesterday_ms"] = int(time.time() * 1000) - 24 * hour_ms
        kept = poll.replace("...", "taken.append(message.body)")
        async with asyncio.timeout(LIMIT_S):
            await run(kept, names)
            assert len(taken) == 10
            await run(places, names)
            taken.clear()
            await run(ranges.replace("...", "taken.extend(messages)"), names)
            assert len(taken) == 10


async def test_administration(cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    browse, health = blocks("administration.md")
    async with cometmq.Client(cometmq_cluster.namesrv) as client:
        await client.send("orders", b"A17")
        names: dict[str, Any] = {}
        await run(browse.replace(ADDRESS, cometmq_cluster.namesrv), names)
        assert "b'A17'" in capsys.readouterr().out
        names = {
            "admin": cometmq.Admin(client.session), "check_health": check_health,
            "HealthLimits": HealthLimits, "wait_until_healthy": wait_until_healthy,
        }  # fmt: skip
        async with asyncio.timeout(LIMIT_S):
            await run(health, names)
        assert "slaves" in capsys.readouterr().out
