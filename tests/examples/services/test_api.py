"""FastAPI under uvicorn: orders in, invoices out, and a SIGTERM while both go on."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter

import httpx
import pytest

from cometmq.admin.node import lasting_port
from cometmq.client.client import Client
from cometmq.testing.cluster import Cluster
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_topic
from tests.examples.services.conftest import GRACE_S, service

BOUND = 60


async def until_ready(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(BOUND):
        while True:
            try:
                if (await http.get("/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.05)


async def order_until_it_ends(http: httpx.AsyncClient, first: int, accepted: set[int]) -> None:
    """Send one order after the other, until the service takes no more connections."""
    number = first
    while True:
        try:
            answer = await http.post("/orders", json={"number": number})
        except httpx.TransportError:
            return
        assert answer.status_code == 202, answer.text
        accepted.add(number)
        number += 1


def invoiced(output: str) -> Counter[int]:
    return Counter(
        int(line.split()[1]) for line in output.splitlines() if line.startswith("invoiced ")
    )


@pytest.fixture
async def topic(cometmq_session_cluster: Cluster) -> str:
    async with Client(cometmq_session_cluster.namesrv) as client:
        return await fresh_topic(client)


async def test_each_accepted_order_is_invoiced_once_over_two_stops(
    cometmq_session_cluster: Cluster, topic: str
) -> None:
    accepted: set[int] = set()
    found: Counter[int] = Counter()
    for round_ in range(3):
        port = lasting_port()
        words = ["uvicorn", "examples.services.api:app", "--port", str(port)]
        words += ["--timeout-graceful-shutdown", "10"]
        with service(*words, NAME_SERVER=cometmq_session_cluster.namesrv, TOPIC=topic) as api:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                reading = asyncio.create_task(asyncio.to_thread(api.communicate))
                await until_ready(http)
                assert (await http.get("/healthz")).json() == {"alive": True}
                if round_ < 2:
                    ordering = asyncio.create_task(
                        order_until_it_ends(http, 1_000 * round_, accepted)
                    )
                    await eventually(lambda at=1_000 * round_ + 30: at in accepted)  # type: ignore[misc]
                    api.send_signal(signal.SIGTERM)
                    await ordering
                else:
                    await drained(cometmq_session_cluster.namesrv, topic)
                    api.send_signal(signal.SIGTERM)
                output, _ = await asyncio.wait_for(reading, GRACE_S)
            found += invoiced(output)
            # uvicorn ends by the signal that it got, once all is stopped.
            assert api.returncode == -signal.SIGTERM, output
            assert "Application shutdown complete" in output
            assert "Traceback" not in output
    assert len(accepted) >= 60
    assert set(found.values()) == {1}
    assert set(found) >= accepted


async def drained(namesrv: str, topic: str) -> None:
    """Wait until the group of the invoices has read all that the topic has."""
    async with Client(namesrv) as client, asyncio.timeout(BOUND):
        queues = await client.queues(topic)
        reader = client.pull_consumer(group=f"{topic}-invoices")
        await reader.assign(queues)
        while True:
            done = [await reader.committed(queue) for queue in queues]
            ends = [await client.puller.max_offset(queue) for queue in queues]
            if done == ends:
                return
            await asyncio.sleep(0.1)


async def test_a_broker_that_is_away_is_told_and_does_not_end_the_service() -> None:
    port = lasting_port()
    words = ("uvicorn", "examples.services.api:app", "--port", str(port))
    with service(*words, NAME_SERVER=f"127.0.0.1:{lasting_port()}", TOPIC="nowhere") as api:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            reading = asyncio.create_task(asyncio.to_thread(api.communicate))
            answered: list[int] = []
            async with asyncio.timeout(BOUND):
                while not answered:
                    try:
                        answered.append((await http.get("/healthz")).status_code)
                    except httpx.TransportError:
                        await asyncio.sleep(0.05)
            assert answered == [200]
            assert (await http.get("/readyz")).status_code == 503
            assert (await http.post("/orders", json={"number": 1})).status_code == 503
        api.send_signal(signal.SIGTERM)
        output, _ = await asyncio.wait_for(reading, GRACE_S)
        assert "Application shutdown complete" in output
