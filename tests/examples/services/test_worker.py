"""SIGTERM while messages are in progress: nothing is lost, and nothing is done twice. After a kill
nothing is lost."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from cometmq.client.client import Client
from cometmq.message.model import Message
from cometmq.testing.cluster import Cluster
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_topic
from tests.examples.services.conftest import service, terminate

COUNT = 400


def done(ledger: Path) -> Counter[str]:
    """How often each message was worked on."""
    with closing(sqlite3.connect(ledger, timeout=30)) as connection:
        return Counter(number for (number,) in connection.execute("SELECT number FROM ledger"))


def new_ledger(folder: Path) -> Path:
    """Return a ledger without entries."""
    path = folder / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE ledger (number TEXT)")
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return new_ledger(tmp_path)


async def fill(client: Client, topic: str, begin: int = 0) -> int:
    """Send messages numbered from ``begin`` on; return the number after the last."""
    end = begin + COUNT
    await client.send_many([Message(topic, b"%d" % number) for number in range(begin, end)])
    return end


async def test_sigterm_finishes_what_was_begun(
    cometmq_session_cluster: Cluster, ledger: Path
) -> None:
    await stop_twice(cometmq_session_cluster.namesrv, ledger)


async def stop_twice(namesrv: str, ledger: Path) -> None:
    """Stop a worker in the middle of its work, and another one; count what they and a third did."""
    stops = sent = 0
    async with Client(namesrv, send_timeout_ms=10_000) as client:
        topic = await fresh_topic(client)
        words = ("examples.services.worker", namesrv, topic, str(ledger))
        while stops < 2:
            sent = await fill(client, topic, sent)
            part = done(ledger).total() + COUNT // 8
            with service(*words) as worker:
                await eventually(lambda part=part: done(ledger).total() >= part)  # type: ignore[misc]
                assert terminate(worker) == (0, "")
            # On a busy machine it may have been at its end before the signal.
            stops += done(ledger).total() < sent
            assert sent < 10 * COUNT, "no stop comes in the middle"
        # One that nobody but the last can do: it handles SIGTERM by then.
        await client.send(topic, b"%d" % sent)
        sent += 1
    with service(*words) as worker:
        await eventually(lambda: len(done(ledger)) == sent)
        assert terminate(worker) == (0, "")
    assert set(done(ledger).values()) == {1}


async def test_sigkill_loses_nothing(cometmq_session_cluster: Cluster, ledger: Path) -> None:
    namesrv = cometmq_session_cluster.namesrv
    async with Client(namesrv, send_timeout_ms=10_000) as client:
        topic = await fresh_topic(client)
        sent = await fill(client, topic)
        words = ("examples.services.worker", namesrv, topic, str(ledger))
        with service(*words) as worker:
            await eventually(lambda: done(ledger).total() >= COUNT // 4)
            worker.kill()
            worker.wait()
        # One that nobody but the last can do: it handles SIGTERM by then.
        await client.send(topic, b"%d" % sent)
    with service(*words) as worker:
        await eventually(lambda: len(done(ledger)) == sent + 1)
        assert terminate(worker) == (0, "")
