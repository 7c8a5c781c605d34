"""The reader of temporary queues' topic: its start fails whole, and happens once."""

from __future__ import annotations

import asyncio
import logging
import uuid

import pytest

from cometmq.client.client import Client
from cometmq.core.errors import RouteNotFound
from cometmq.kombu import transient
from cometmq.kombu.transient import Kept, TransientReader, addressed
from cometmq.message.model import MessageQueue
from cometmq.net.tasks import Tasks
from cometmq.testing.cluster import Cluster
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_topic


async def test_a_start_that_failed_is_tried_again_and_two_read_once(
    cometmq_session_cluster: Cluster,
) -> None:
    tasks = Tasks()
    async with Client(cometmq_session_cluster.namesrv) as client:
        missing = TransientReader(client, f"missing-{uuid.uuid4().hex}", lambda: None)
        with pytest.raises(RouteNotFound):
            await missing.start(tasks)
        assert not missing.is_reading
        topic = await fresh_topic(client)
        reader = TransientReader(client, topic, lambda: None)
        await asyncio.gather(reader.start(tasks), reader.start(tasks))
        reader.declare("q")
        for body in (b"1", b"2", b"3", b"4", b"last"):
            await client.send(addressed(topic, body, "", "q"))
        await eventually(lambda: reader.size("q") >= 5)
        await tasks.close()
        assert reader.size("q") == 5


def test_a_queue_that_nobody_reads_keeps_a_bounded_number_of_bytes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept("q")
    body = bytes(1 << 20)
    for at in range(100):
        kept.append(body, at)
    assert len(kept) == 64
    assert [each.getMessage() for each in caplog.records] == ["transient_messages_dropped queue=q"]
    assert kept.take() == (body, 36)
    assert kept.clear() == 63
    assert kept.take() is None
    kept.append(bytes(100 << 20), 0)
    assert len(kept) == 1


async def test_an_outage_is_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transient, "_PAUSE_MS", 1)
    tasks = Tasks()
    with caplog.at_level(logging.DEBUG, "cometmq.kombu"):
        async with Client("127.0.0.1:1") as client:
            reader = TransientReader(client, "t", lambda: None)
            tasks.spawn(reader._read(MessageQueue("t", "b", 0), 0), name="reader")
            await eventually(lambda: len(failures(caplog)) >= 5)
            await tasks.close()
    assert failures(caplog).count(logging.WARNING) == 1


def failures(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The levels of the lines about pulls that failed."""
    return [each.levelno for each in caplog.records if "transient_pull_failed" in each.getMessage()]
