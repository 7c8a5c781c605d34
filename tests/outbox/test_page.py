"""The programs of docs/outbox.md run as they stand there, with SQLite."""

import asyncio
import re
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

import cometmq
from cometmq.testing.cluster import Cluster
from tests.architecture.rules import ROOT
from tests.client.test_pages import ADDRESS, blocks, run

LIMIT_S = 60


async def received(namesrv: str, count: int, group: str) -> list[tuple[str, tuple[str, ...]]]:
    """Tags and keys of the first messages of the topic."""
    found: list[tuple[str, tuple[str, ...]]] = []
    async with asyncio.timeout(LIMIT_S), cometmq.Client(namesrv) as client:
        async for message in client.subscribe("orders", group=group, start="first"):
            async with message.processing():
                found.append((message.tag, tuple(message.keys)))
            if len(found) == count:
                break
    return found


async def test_its_programs(
    cometmq_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("shop.sqlite") as connection:
        connection.execute("CREATE TABLE orders (number TEXT, state TEXT)")
        connection.execute("INSERT INTO orders VALUES ('A17', 'new')")
    connection.close()
    add, relay = blocks("outbox.md")
    names: dict[str, Any] = {}
    exec(add, names)
    rows = names["connection"].execute("SELECT state FROM orders").fetchall()
    assert rows == [("paid",)]
    sent = "await asyncio.wait_for(received(namesrv, 1, 'seen'), 60)"
    names |= {"asyncio": asyncio, "received": received, "namesrv": cometmq_cluster.namesrv}
    await run(relay.replace(ADDRESS, cometmq_cluster.namesrv).replace("...", sent), names)

    text = (ROOT / "docs" / "outbox.md").read_text(encoding="utf-8")
    [insert] = re.findall(r"^```sql\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    [command] = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    with names["connection"] as connection:
        connection.execute(insert)
    names["connection"].close()
    words = command.replace(ADDRESS, cometmq_cluster.namesrv).split()
    program = Path(sys.executable).parent / words[0]
    process = await asyncio.create_subprocess_exec(program, *words[1:])
    try:
        assert await received(cometmq_cluster.namesrv, 2, "relayed") == [("paid", ("A17",))] * 2
        process.terminate()
        assert await asyncio.wait_for(process.wait(), LIMIT_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
