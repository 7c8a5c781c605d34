"""The Django project: orders by its views, messages by its outbox, invoices by its command."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import httpx

from cometmq.admin.node import lasting_port
from cometmq.client.client import Client
from cometmq.testing.cluster import Cluster
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_topic
from tests.examples.services.conftest import service, terminate
from tests.outbox.boxes import stored

COUNT = 40
SHOP = "examples.services.shop"


def numbers(database: Path, table: str) -> list[int]:
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        return sorted(n for (n,) in connection.execute(f"SELECT number FROM shop_{table}"))


async def until_it_answers(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await http.get("/")
            except httpx.TransportError:
                await asyncio.sleep(0.05)
            else:
                return


async def test_orders_become_invoices(cometmq_session_cluster: Cluster, tmp_path: Path) -> None:
    namesrv, database, port = (
        cometmq_session_cluster.namesrv,
        tmp_path / "shop.sqlite",
        lasting_port(),
    )
    async with Client(namesrv) as client:
        topic = await fresh_topic(client)
        environment = {"NAME_SERVER": namesrv, "TOPIC": topic, "SHOP_DATABASE": str(database)}
        with service(SHOP, "migrate", **environment) as migrating:
            output, _ = await asyncio.to_thread(migrating.communicate, timeout=60)
            assert migrating.returncode == 0, output
        serving = (SHOP, "runserver", "--noreload", f"127.0.0.1:{port}")
        relaying = ("cometmq.cli", "outbox", "relay", str(database), "-n", namesrv)
        with (
            service(*serving, **environment),
            service(*relaying),
            service(SHOP, "consume", **environment) as consumer,
        ):
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                await until_it_answers(http)
                for number in range(COUNT):
                    undone = "?fail=1" if number % 4 == 3 else ""
                    view = "prompt" if number % 2 else "orders"
                    assert (await http.post(f"/{view}/{number}{undone}")).status_code == 202
                    if number == COUNT // 2:
                        # A signal before the first invoice could come before its handler.
                        await eventually(lambda: numbers(database, "invoice"))
                        assert await asyncio.to_thread(terminate, consumer) == (0, "")
            wanted = [number for number in range(COUNT) if number % 4 != 3]
            assert numbers(database, "order") == wanted
            with service(SHOP, "consume", **environment) as second:
                await eventually(lambda: numbers(database, "invoice") == wanted)
                assert await asyncio.to_thread(terminate, second) == (0, "")
        sent = Counter(int(message.body) for message in await stored(client, topic))
    assert sent == Counter(wanted)
