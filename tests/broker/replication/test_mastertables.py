"""A slave's tables, copied from a real master's answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.broker.acknowledgement import OutgoingRecord
from cometmq.broker.replication import roles
from cometmq.broker.replication.roles import MasterTables
from cometmq.broker.transactions.checkback import GROUP
from cometmq.core.errors import NotConnected
from cometmq.message.names import HALF_TOPIC
from cometmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import Header
from tests.broker.serving import RunningBroker, running_broker


@asynccontextmanager
async def pair(root: Path) -> AsyncIterator[tuple[RunningBroker, RunningBroker, MasterTables]]:
    """Two masters that know nothing of each other, and what copies the first's tables."""
    async with running_broker(root / "a") as master, running_broker(root / "b") as other:
        broker = other.broker
        tables = MasterTables(broker.context, broker.scheduled.delay, broker.remoting)
        tables.master = f"127.0.0.1:{master.broker.port}"
        yield master, other, tables


async def test_everything_is_copied_and_what_went_goes(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, other, tables):
        theirs, ours = master.broker, other.broker
        ours.topics.table.put(TopicConfig("gone", 1, 1))
        theirs.topics.table.put(TopicConfig("other", 1, 1))
        theirs.topics.table.put(TopicConfig("t", 3, 3))
        theirs.consumers.groups.put(SubscriptionGroupConfig("g", retry_max_times=3))
        theirs.consumers.offsets.commit("g", "t", 1, 7)
        theirs.scheduled.delay.replace(b'{"offsetTable":{3:11}}')
        await tables.copy(f"127.0.0.1:{theirs.port}")
        assert ours.topics.table.get("t") == TopicConfig("t", 3, 3)
        assert "gone" not in ours.topics.table
        assert ours.topics.table.data_version == theirs.topics.table.data_version
        config = ours.consumers.groups.get("g")
        assert config is not None
        assert config.retry_max_times == 3
        assert ours.consumers.offsets.query("g", "t", 1) == 7
        assert ours.scheduled.delay.text() == b'{"offsetTable":{3:11}}'
        theirs.topics.table.delete("t")
        theirs.consumers.offsets.delete_group("g")
        await tables.copy(f"127.0.0.1:{theirs.port}")
        assert "t" not in ours.topics.table
        assert ours.consumers.offsets.query("g", "t", 1) == -1


async def test_what_is_delivered_counts_once_the_log_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave that is promoted before would deliver none of it: not from the log that it lacks, and
    not again."""
    monkeypatch.setattr(roles, "REACH_MS", 0)
    async with pair(tmp_path) as (master, other, tables):
        theirs, ours = master.broker, other.broker
        await (await master.connect()).send()
        theirs.consumers.offsets.commit("g", "t", 1, 1)
        theirs.consumers.offsets.commit(GROUP, HALF_TOPIC, 0, 5)
        theirs.scheduled.delay.replace(b'{"offsetTable":{3:11}}')
        await tables.copy(f"127.0.0.1:{theirs.port}")
        offsets = ours.consumers.offsets
        assert offsets.query("g", "t", 1) == 1
        assert offsets.query(GROUP, HALF_TOPIC, 0) == -1
        assert ours.scheduled.delay.text() == b'{"offsetTable":{}}'
        client = await other.connect()
        while ours.store.written_offset < theirs.store.written_offset:
            await client.send()
        await tables.copy(f"127.0.0.1:{theirs.port}")
        assert offsets.query(GROUP, HALF_TOPIC, 0) == 5
        assert ours.scheduled.delay.text() == b'{"offsetTable":{3:11}}'
        await (await master.connect()).send(bytes(1_000))
        theirs.consumers.offsets.commit(GROUP, HALF_TOPIC, 0, 6)
        await tables.copy(f"127.0.0.1:{theirs.port}")
        assert offsets.query(GROUP, HALF_TOPIC, 0) == 5, "what was copied stays"


async def test_copies_survive_a_restart(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, other, tables):
        master.broker.topics.table.put(TopicConfig("t", 3, 3))
        master.broker.consumers.offsets.commit("g", "t", 1, 7)
        await tables.copy(f"127.0.0.1:{master.broker.port}")
        version = other.broker.topics.table.data_version
    async with running_broker(tmp_path / "b") as again:
        assert "t" in again.broker.topics.table
        assert again.broker.topics.table.data_version == version
        # Beyond its queue's end, for this one copied no log.
        assert again.broker.consumers.offsets.query("g", "t", 1) >= 0


def say_nothing_of_deletions(master: RunningBroker, patch: pytest.MonkeyPatch) -> None:
    """Have a master answer as a Java broker does."""
    patch.setattr(master.broker.topics.table, "former_ends", lambda: None)


async def test_a_deleted_topic_is_remembered_while_the_log_has_it_and_leaves_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (master, other, tables):
        say_nothing_of_deletions(master, monkeypatch)
        client = await other.connect()
        await client.send()
        store = other.broker.store
        store.dispatcher.write(0)
        queues = tmp_path / "b" / "consumequeue" / "t"
        assert list(queues.glob("*/*"))
        await tables.copy(f"127.0.0.1:{master.broker.port}")
        assert other.broker.topics.table.deleted() == {"t"}
        assert not list(queues.glob("*/*"))
        assert "t" not in store.queues.known


async def test_what_came_while_the_master_answered_is_of_no_former_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (master, other, tables):
        say_nothing_of_deletions(master, monkeypatch)
        client = await other.connect()
        await client.send()
        before = other.broker.store.written_offset
        ask = tables._ask

        async def ask_slowly(
            address: str, code: RequestCode, header: Header | None = None
        ) -> bytes:
            answer = await ask(address, code, header)
            if code == RequestCode.GET_ALL_TOPIC_CONFIG:
                await client.send()
            return answer

        monkeypatch.setattr(tables, "_ask", ask_slowly)
        await tables.copy(f"127.0.0.1:{master.broker.port}")
        assert other.broker.topics.table.former_ends() == {"t": before}
        assert "t" in other.broker.store.queues.known


async def test_messages_of_a_topic_that_a_promoted_master_never_heard_of_stay(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as (master, other, tables):
        client = await other.connect()
        await client.send()
        await tables.copy(f"127.0.0.1:{master.broker.port}")
        assert other.broker.topics.table.deleted() == set()
        assert "t" in other.broker.store.queues.known


async def test_what_the_broker_itself_keeps_is_not_deleted(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, other, tables):
        other.broker.topics.table.put(TopicConfig("RMQ_SYS_TRANS_HALF_TOPIC", 1, 1))
        record = OutgoingRecord("RMQ_SYS_TRANS_HALF_TOPIC", 0, b"body", {}, 1, bytes(8))
        await other.broker.appender.put(record)
        store = other.broker.store
        assert "RMQ_SYS_TRANS_HALF_TOPIC" in store.queues.known
        await tables.copy(f"127.0.0.1:{master.broker.port}")
        assert "RMQ_SYS_TRANS_HALF_TOPIC" in store.queues.known
        assert other.broker.topics.table.deleted() == set()


async def test_a_master_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, other, tables):
        other.broker.topics.table.put(TopicConfig("t", 3, 3))
        with pytest.raises(NotConnected):
            await tables.copy("127.0.0.1:1")
        assert "t" in other.broker.topics.table


async def test_it_is_asked_again_when_it_is_there(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, other, tables):
        copied: list[str] = []
        follows = False
        copy = tables.copy

        async def note(address: str) -> None:
            copied.append(address)
            await copy(address)

        tables.copy = note  # type: ignore[method-assign]
        running = asyncio.create_task(tables.run_forever(lambda: follows))
        master.broker.topics.table.put(TopicConfig("t", 3, 3))
        for _ in range(3):
            tables.soon()
            await asyncio.sleep(0.01)
        assert not copied  # there may be another broker by now
        follows = True
        tables.soon()
        async with asyncio.timeout(60):
            while "t" not in other.broker.topics.table:
                await asyncio.sleep(0.005)
        running.cancel()
