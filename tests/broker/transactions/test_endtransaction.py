"""Transactions over sockets: prepare, commit, roll back, and what is refused."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.send.handler import SendHandler
from cometmq.broker.transactions import endtransaction as transactions
from cometmq.message import properties as props
from cometmq.message.record import Record, decode_one
from cometmq.net.peer import Peer
from cometmq.net.router import Router
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Head, Request
from cometmq.protocol.headers import EndTransaction
from cometmq.store.messagestore import MessageStore
from cometmq.store.queue.consumequeue import ConsumeQueue
from tests.broker.serving import (
    NO_SPACE,
    BrokerClient,
    FailingFiles,
    RunningBroker,
    running_broker,
)
from tests.broker.transactions.world import open_world
from tests.broker.world import answer, connect, request
from tests.replication.pairs import until

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
END = RequestCode.END_TRANSACTION
COMMIT, ROLLBACK = "8", "12"
PREPARED = (
    "UNIQ_KEY\x01U1\x02WAIT\x01true\x02TAGS\x01red\x02KEYS\x01k1\x02TRAN_MSG\x01true\x02"
    "PGROUP\x01producers\x02DELAY\x013"
)


async def prepare(client: BrokerClient, body: bytes = b"half") -> Head:
    head = await client.send(body, f="4", i=PREPARED)
    assert head.code == 0, head.remark
    return head


def end_fields(half: Head, kind: str, **changes: str) -> dict[str, Any]:
    return {
        "producerGroup": "producers",
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": str(int(half.ext["msgId"][16:], 16)),
        "commitOrRollback": kind,
        "fromTransactionCheck": "false",
        "msgId": "U1",
        "transactionId": "U1",
    } | changes


async def end(client: BrokerClient, half: Head, kind: str, **changes: str) -> Head:
    head, _ = await client.ask(END, **end_fields(half, kind, **changes))
    return head


async def read(client: BrokerClient, topic: str, queue: str = "0") -> list[Record]:
    _, records = await client.pull(topic=topic, queueId=queue)
    return records


async def facts(client: BrokerClient) -> dict[str, str]:
    _, body = await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = msgspec.json.decode(body)["table"]
    return {name: value for name, value in table.items() if name.startswith("transaction")}


async def test_a_committed_message_is_delivered_once(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        half = await prepare(client)
        assert (half.ext["queueId"], half.ext["queueOffset"]) == ("1", "0")
        assert await read(client, "t", "1") == []
        (waiting,) = await read(client, HALF)
        assert (waiting.sys_flag, waiting.prepared_offset) == (0, 0)
        stored = props.decode(waiting.properties)
        assert stored == {
            "UNIQ_KEY": "U1", "TAGS": "red", "KEYS": "k1", "TRAN_MSG": "true",
            "PGROUP": "producers", "REAL_TOPIC": "t", "REAL_QID": "1", "CLUSTER": "DefaultCluster",
        }  # fmt: skip
        assert (await facts(client))["transactionHalfMessages"] == "1"
        assert (await end(client, half, COMMIT)).code == 0
        (record,) = await read(client, "t", "1")
        assert (record.body, record.sys_flag, record.flag) == (b"half", 8, 7)
        assert record.prepared_offset == waiting.physical_offset
        assert (record.born_ms, record.born_host) == (waiting.born_ms, waiting.born_host)
        assert props.decode(record.properties) == stored
        (op,) = await read(client, OP)
        assert (op.body, props.decode(op.properties)) == (b"0", {"TAGS": "d"})
        again = await end(client, half, COMMIT)
        assert (again.code, "has ended" in (again.remark or "")) == (1, True)
        assert len(await read(client, "t", "1")) == 1
        assert await facts(client) == {
            "transactionHalfMessages": "0",
            "transactionOldestHalfAgeMs": "0",
            "transactionChecksTotal": "0",
        }


async def test_what_many_half_messages_wait_for_is_as_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a queue is known, sends to it need fewer checks; and none of them makes a queue."""
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        store = running.broker.store
        first = await prepare(client)
        assert "t" not in store.topics()
        assert (await end(client, first, COMMIT)).code == 0
        rest = [await prepare(client)]
        checks: list[str] = []
        monkeypatch.setattr(SendHandler, "_check_topic", lambda *_: checks.append("checked"))
        rest += [await prepare(client) for _ in range(2)]
        assert checks == []
        assert [half.ext["queueId"] for half in rest] == ["1"] * 3
        assert len({half.properties for half in await read(client, HALF)}) == 1
        for half in rest[::-1]:
            assert (await end(client, half, COMMIT)).code == 0
        assert len({record.properties for record in await read(client, "t", "1")}) == 1
        assert [op.body for op in await read(client, OP)] == [b"0", b"3", b"2", b"1"]


async def test_a_rolled_back_message_is_never_seen(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        first, second = await prepare(client), await prepare(client)
        assert (await end(client, second, ROLLBACK)).code == 0
        assert [op.body for op in await read(client, OP)] == [b"1"]
        assert await read(client, "t", "1") == []
        assert (await end(client, first, COMMIT)).code == 0
        assert len(await read(client, "t", "1")) == 1


async def test_unknown_leaves_a_transaction_open_and_junk_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        half = await prepare(client)
        assert (await end(client, half, "0")).code == 0
        junk = await end(client, half, "4")
        assert (junk.code, "commitOrRollback" in (junk.remark or "")) == (1, True)
        assert (await end(client, half, COMMIT)).code == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"producerGroup": "others"}, "group wrong"),
        ({"commitLogOffset": "1"}, "commit log offset wrong"),
        ({"tranStateTableOffset": "9"}, "never existed"),
    ],
)
async def test_ends_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        half = await prepare(client)
        refused = await end(client, half, COMMIT, **changes)
        assert (refused.code, words in (refused.remark or "")) == (1, True)
        assert (await end(client, half, ROLLBACK)).code == 0


@pytest.mark.parametrize("on_disk", [False, True])
async def test_a_half_message_that_is_no_longer_remembered_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: bool
) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        monkeypatch.setattr(transactions, "MAX_REMEMBERED", 1)
        older, newer = await prepare(client), await prepare(client)
        with monkeypatch.context() as patch:
            if on_disk:
                patch.setattr(running.broker.store, "message_at", lambda _: None)
            assert (await end(client, older, COMMIT)).code == 0
        assert (await end(client, newer, COMMIT)).code == 0
        was_read, was_remembered = await read(client, "t", "1")
        assert delivered(was_read) == delivered(was_remembered)
        assert was_read.body == b"half"


def delivered(record: Record) -> Record:
    """A record without what says where it lies, and when it was stored."""
    return msgspec.structs.replace(
        record, queue_offset=0, physical_offset=0, store_ms=0, prepared_offset=0
    )


async def test_a_half_message_that_was_not_stored_cannot_be_committed(tmp_path: Path) -> None:
    files = FailingFiles()
    async with running_broker(tmp_path, files) as running:
        client = await running.connect()
        files.write_errno = NO_SPACE
        assert (await client.send(b"half", f="4", i=PREPARED)).code == 14
        files.write_errno = 0
        running.broker.store.state.update()
        half = Head(0, ext={"queueOffset": "0", "msgId": "0" * 32})
        refused = await end(client, half, COMMIT)
        assert (refused.code, "the half message is lost" in (refused.remark or "")) == (1, True)
        assert (await client.send(b"behind")).code == 0
        assert [record.body for record in await read(client, "t", "1")] == [b"behind"]


async def test_a_commit_that_finds_no_room_leaves_the_transaction_open(tmp_path: Path) -> None:
    files = FailingFiles()
    async with running_broker(tmp_path, files) as running:
        client = await running.connect()
        half = await prepare(client)
        files.write_errno = NO_SPACE
        for _ in range(2):  # once at the write, then at the door
            refused = await end(client, half, COMMIT)
            assert (refused.code, bool(refused.remark)) == (14, True)
        assert (await facts(client))["transactionHalfMessages"] == "1"
        files.write_errno = 0
        running.broker.store.state.update()
        assert (await end(client, half, COMMIT)).code == 0
        assert len(await read(client, "t", "1")) == 1
        assert [op.body for op in await read(client, OP)] == [b"0"]


async def test_an_answer_that_cannot_be_written_keeps_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([RuntimeError("cannot be written")])
    acknowledge = Router.acknowledge

    def fail_once(router: Router, peer: Peer, request: Request[Any]) -> None:
        for error in failures:
            raise error
        acknowledge(router, peer, request)

    monkeypatch.setattr(Router, "acknowledge", fail_once)
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        halves = [await prepare(client) for _ in range(3)]
        for half in halves:  # in one turn
            client.post(END, **end_fields(half, ROLLBACK))
        assert [(await client.frame())[0].code for _ in range(2)] == [0, 0]
        assert (await facts(client))["transactionHalfMessages"] == "0"


async def test_without_a_queue_for_its_op_message_nothing_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as running:
        client, store = await running.connect(), running.broker.store
        half = await prepare(client)
        queue = store.queue

        def damaged(topic: str, queue_id: int) -> ConsumeQueue:
            if topic == OP:
                raise OSError("the queue cannot be read")
            return queue(topic, queue_id)

        monkeypatch.setattr(store, "queue", damaged)
        assert (await end(client, half, COMMIT)).code == 1
        assert await read(client, "t", "1") == []
        monkeypatch.undo()
        assert (await end(client, half, COMMIT)).code == 0
        assert len(await read(client, "t", "1")) == 1


async def test_an_end_whose_half_message_cannot_be_read_now_leaves_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(_store: MessageStore, _physical_offset: int) -> Record | None:
        raise OSError(errno.EIO, "not now")

    async with open_world(tmp_path) as world:
        half_offset = await world.prepare()
        half = world.transactions.index.get(half_offset)
        assert half is not None
        header = EndTransaction("g", half_offset, half.physical_offset, int(COMMIT), "half")
        monkeypatch.setattr(world.parts.store, "message_at", lambda _offset: None)
        peer = connect()
        with monkeypatch.context() as patch:
            patch.setattr(transactions, "find_record", failing)
            found = await answer(peer, world.transactions.end(peer, request(END, header)))
        assert (found.code, half.ending, peer.running_tasks) == (1, False, 0)
        assert world.transactions.end(peer, request(END, header)) is None
        assert peer.running_tasks == 1
        await until(lambda: world.transactions.index.get(half_offset) is None)
        await until(lambda: not peer.running_tasks)
        assert [record.body for record in world.parts.read("t", 1)] == [b"half"]


async def test_a_broker_may_refuse_transactions(tmp_path: Path) -> None:
    async with running_broker(tmp_path, rejectTransactionMessage="true") as running:
        client = await running.connect()
        refused = await client.send(f="4", i=PREPARED)
        assert (refused.code, "rejectTransactionMessage" in (refused.remark or "")) == (16, True)


async def test_what_was_committed_can_be_sent_back_by_its_consumer(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        consumer, client = await running.connect(), await running.connect()
        await consumer.ask(RequestCode.HEART_BEAT, msgspec.json.encode(consumer_beat()))
        head = await client.send(b="%RETRY%g", e="0", i=PREPARED, j="1")
        assert (head.code, head.ext["queueOffset"], await read(client, HALF)) == (0, "0", [])
        (delayed,) = await read(client, "SCHEDULE_TOPIC_XXXX", "2")
        assert props.decode(delayed.properties)["REAL_TOPIC"] == "%RETRY%g"


def consumer_beat() -> dict[str, Any]:
    return {
        "clientID": "c@1", "producerDataSet": [],
        "consumerDataSet": [{
            "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [],
            "unitMode": False,
        }],
    }  # fmt: skip


async def checked_producer(running: RunningBroker) -> BrokerClient:
    client = await running.connect()
    beat = {
        "clientID": "p@1", "consumerDataSet": [], "producerDataSet": [{"groupName": "producers"}],
    }  # fmt: skip
    await client.ask(RequestCode.HEART_BEAT, msgspec.json.encode(beat))
    return client


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_silent_producer_is_asked_also_after_a_restart(tmp_path: Path, flush: str) -> None:
    settings = {
        "transactionTimeOut": "1", "transactionCheckInterval": "100", "flushDiskType": flush,
    }  # fmt: skip
    async with running_broker(tmp_path, None, **settings) as running:
        client = await running.connect()
        done, half = await prepare(client, b"done"), await prepare(client)
        await end(client, done, COMMIT)
    async with running_broker(tmp_path, None, **settings) as running:
        client = await checked_producer(running)
        async with asyncio.timeout(60):
            check, body = await client.frame()
        assert check.code == RequestCode.CHECK_TRANSACTION_STATE
        assert check.ext == {
            "tranStateTableOffset": "1",
            "commitLogOffset": str(int(half.ext["msgId"][16:], 16)),
            "msgId": "U1",
            "transactionId": "U1",
            "offsetMsgId": half.ext["msgId"],
        }
        shown = decode_one(body)
        assert (shown.topic, shown.queue_id, shown.body) == ("t", 1, b"half")
        other = await running.connect()
        assert (await end(other, half, COMMIT, fromTransactionCheck="true")).code == 0
        assert [record.body for record in await read(other, "t", "1")] == [b"done", b"half"]
        assert (await facts(other))["transactionHalfMessages"] == "0"
    async with running_broker(tmp_path, None, **settings) as running:
        assert len(running.broker.transactions.open.index) == 0
