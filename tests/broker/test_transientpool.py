"""A broker that answers before it writes: what is at once, and what waits for the write."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.transactions import endtransaction as transactions
from cometmq.core.errors import StoreOffline
from cometmq.message import batch
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.store.transientpool import TransientPool
from tests.broker.replicated import group, hurry, master_of
from tests.broker.serving import (
    BATCH,
    IO_ERROR,
    NO_SPACE,
    PULL,
    FailingFiles,
    RunningBroker,
    pull_fields,
    running_broker,
)
from tests.broker.test_acknowledgement import RECORD
from tests.broker.transactions.test_endtransaction import COMMIT, end, prepare, read
from tests.replication.pairs import until

pytestmark = pytest.mark.core
#: Nothing is written by itself before a test has it written.
HELD: dict[str, Any] = {
    "transientStorePoolEnable": "true",
    "commitIntervalCommitLog": "600000",
    "commitCommitLogLeastPages": "1000000",
}
#: The round comes often, and is always late.
PROMPT: dict[str, Any] = {
    "transientStorePoolEnable": "true",
    "commitIntervalCommitLog": "20",
    "commitCommitLogThoroughInterval": "0",
}


def pool_of(running: RunningBroker) -> TransientPool:
    pool = running.broker.store.transient
    assert pool is not None
    return pool


async def test_sends_are_answered_before_they_are_written(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **HELD) as running:
        client, reader = await running.connect(), await running.connect()
        store = running.broker.store
        waiting = pull_fields(0, suspendTimeoutMillis="15000", sysFlag="6")
        assert (await client.send(b"0")).code == 0
        pool_of(running).write()
        reader.post(PULL, **waiting | {"queueOffset": "1"})
        for number in range(1, 3):
            head = await client.send(b"%d" % number)
            assert (head.code, head.ext["queueOffset"]) == (0, str(number))
        place = int(head.ext["msgId"][16:], 16)
        assert store.written_offset <= place < store.committed_offset
        by_id, _ = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=str(place))
        assert by_id.code != ResponseCode.SUCCESS
        pool_of(running).write()
        # Whoever waited for a message hears of it now.
        head, _ = await reader.frame()
        assert head.code == ResponseCode.SUCCESS
        _, records = await client.pull()
        assert [record.body for record in records] == [b"0", b"1", b"2"]
        by_id, _ = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=str(place))
        assert by_id.code == ResponseCode.SUCCESS


async def test_batches_are_answered_early_too(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **HELD) as running:
        client = await running.connect()
        body = batch.pack([(0, b"%d" % number, b"") for number in range(4)])
        head = await client.send(body, code=BATCH, m="true")
        assert (head.code, pool_of(running).waiting_bytes > 0) == (0, True)
        assert (await client.pull())[1] == []
        pool_of(running).write()
        assert len((await client.pull())[1]) == 4


async def test_the_round_writes_by_itself(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **PROMPT) as running:
        client = await running.connect()
        for number in range(20):
            assert (await client.send(b"%d" % number)).code == 0
        async with asyncio.timeout(60):
            while len((await client.pull())[1]) < 20:
                await asyncio.sleep(0.01)
        assert pool_of(running).waiting_bytes == 0


async def test_enough_pages_are_written_after_the_answers(tmp_path: Path) -> None:
    settings = HELD | {"commitCommitLogLeastPages": "2"}
    async with running_broker(tmp_path, **settings) as running:
        client = await running.connect()
        assert (await client.send(bytes(5_000))).code == 0
        assert running.broker.store.written_offset == 0
        assert (await client.send(bytes(5_000))).code == 0
        await until(lambda: running.broker.store.written_offset > 10_000)


async def test_what_the_broker_itself_stores_waits_for_the_write(tmp_path: Path) -> None:
    """A message that is moved must not leave its first place before the second is sure."""
    async with running_broker(tmp_path, **HELD) as running:
        appender = running.broker.appender
        put = asyncio.ensure_future(appender.put(RECORD))
        watcher = asyncio.ensure_future(appender.turn_outcome())
        client = await running.connect()
        assert (await client.send()).code == 0
        assert not put.done()
        assert not watcher.done()
        pool_of(running).write()
        assert (await put).code == ResponseCode.SUCCESS
        await watcher


@pytest.mark.parametrize("remembered", [1_000, 0])
async def test_a_transaction_ends_whose_half_message_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    """From memory, and else once the half message is written: it is not lost."""
    if not remembered:
        monkeypatch.setattr(transactions, "_MAX_REMEMBERED_BYTES", -1)
    async with running_broker(tmp_path, **PROMPT | {"commitIntervalCommitLog": "300"}) as running:
        client = await running.connect()
        half = await prepare(client)
        assert int(half.ext["msgId"][16:], 16) >= running.broker.store.written_offset
        assert (await end(client, half, COMMIT)).code == 0
        assert running.broker.transactions.open.index.get(0) is None
        assert [record.body for record in await read(client, "t", "1")] == [b"half"]


async def test_a_delayed_message_is_delivered_once(tmp_path: Path) -> None:
    async with running_broker(tmp_path, messageDelayLevel="1s", **PROMPT) as running:
        client = await running.connect()
        properties = "UNIQ_KEY\x01U1\x02DELAY\x011"
        assert (await client.send(b"late", i=properties)).code == 0
        async with asyncio.timeout(60):
            while not (await client.pull())[1]:
                await asyncio.sleep(0.05)
        assert [record.body for record in (await client.pull())[1]] == [b"late"]


async def test_a_full_disk_refuses_more_and_loses_nothing(tmp_path: Path) -> None:
    files = FailingFiles()
    async with running_broker(tmp_path, files, **PROMPT) as running:
        client, store = await running.connect(), running.broker.store
        files.write_errno = NO_SPACE
        assert (await client.send(b"acknowledged")).code == 0
        await until(lambda: store.state.refusal is not None)
        refused = await client.send(b"refused")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        files.write_errno = 0
        await until(lambda: store.state.refusal is None)
        assert (await client.send(b"again")).ext["queueOffset"] == "1"
        await until(lambda: store.written_offset == store.committed_offset)
        assert [each.body for each in (await client.pull())[1]] == [b"acknowledged", b"again"]


async def test_a_device_that_fails_fails_what_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingFiles()
    settings = HELD | {"dropRepeatedIdsTopics": "t"}
    async with running_broker(tmp_path, files, **settings) as running:
        client = await running.connect()
        assert (await client.send(b"acknowledged")).code == 0
        put = asyncio.ensure_future(running.broker.appender.put(RECORD))
        await asyncio.sleep(0)
        running.broker.appender.end_turn()
        files.write_errno = IO_ERROR
        with pytest.raises(StoreOffline):
            pool_of(running).write()
        with pytest.raises(StoreOffline):
            await put
        assert (await client.send(b"refused")).code != 0
        assert "acknowledged_records_lost records=2" in caplog.text
        assert (await client.pull())[1] == []


async def test_a_stop_loses_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **HELD) as running:
        client = await running.connect()
        put = asyncio.ensure_future(running.broker.appender.put(RECORD))
        for number in range(30):
            assert (await client.send(b"%d" % number)).code == 0
    assert (await put).code == ResponseCode.SUCCESS
    async with running_broker(tmp_path, **HELD) as running:
        client = await running.connect()
        assert len((await client.pull())[1]) == 30


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
async def test_slaves_get_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """A SYNC_MASTER answers once a slave has it, which is after the write."""
    hurry(monkeypatch)
    async with group(tmp_path) as made:
        master = await made.start(0, brokerRole=role, slaveTimeout="15000", **PROMPT)
        slave = await made.start(1, transientStorePoolEnable="true")
        assert slave.broker.store.transient is None
        await until(lambda: master_of(master).has_a_near_slave())
        client = await master.connect()
        for number in range(5):
            assert (await client.send(b"%d" % number)).code == ResponseCode.SUCCESS
            if role == "SYNC_MASTER":
                assert slave.broker.store.written_offset == master.broker.store.committed_offset
        store = master.broker.store
        await until(lambda: slave.broker.store.written_offset == store.committed_offset)


async def test_administrators_see_what_waits(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **HELD) as running:
        client = await running.connect()
        assert (await client.send(bytes(60_000))).code == 0
        _, body = await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = msgspec.json.decode(body)["table"]
        assert table["remainHowManyDataToCommit"].endswith("KiB")
        assert table["remainTransientStoreBufferNumbs"] == "4"
