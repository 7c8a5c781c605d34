"""The programs of docs/how-to/faststream.md run as they stand there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from faststream import TestApp

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.testing.cluster import Cluster
from tests.client.scripted import eventually
from tests.client.test_pages import ADDRESS, blocks, run


async def test_the_page(
    cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = [
        each.replace(ADDRESS, cometmq_cluster.namesrv) for each in blocks("how-to/faststream.md")
    ]
    application, reading, publishing, tests, settings, web = found
    async with Client(cometmq_cluster.namesrv) as client:
        for topic in ("orders", "invoices", "reminders", "prices"):
            await Admin(client.session).create_topic(topic, queues=1)
        names: dict[str, Any] = {"__name__": "shop"}
        await run(application, names)
        async with (
            client.pull_consumer("invoices", group="test", start="first") as invoices,
            TestApp(names["app"]),
        ):
            (invoice,) = await invoices.poll(timeout_ms=60_000)
        assert (invoice.tag, invoice.body) == ("new", b'{"order":17.0,"due":12.0}')
        # The broker in memory reads the file that it is used in.
        path = tmp_path / "test_shop.py"
        path.write_text(tests)
        exec(compile(tests, str(path), "exec"), names)
        await names["test_bill"]()
        await run(reading, {})
        assert "got {'id': 17, 'total': 10.0}" in capsys.readouterr().out
        others: dict[str, Any] = {}
        await run(publishing, others)
        async with (
            client.pull_consumer("reminders", group="test", start="first") as reminders,
            others["broker"] as broker,
            asyncio.timeout(60),
        ):
            await broker.start()
            (reminder,) = await reminders.poll(timeout_ms=60_000)
            assert reminder.store_ms - invoice.store_ms >= 1_000
            assert await (await broker.request("tea", "prices", timeout=60)).decode() == 9.5
    await run(settings, others)
    assert others["secured"].client_config.credentials.access_key == "access key"
    assert others["tuned"].client_config.consume_timeout_ms == 60_000
    await run(web, others)
    label = {"app_name": "faststream", "broker": "rocketmq", "handler": "orders"}
    count, registry = "faststream_received_messages_total", others["registry"]
    async with others["router"].lifespan_context(others["web"]):
        await eventually(lambda: registry.get_sample_value(count, label) == 1, deadline_s=60)
    assert "order {" in capsys.readouterr().out
