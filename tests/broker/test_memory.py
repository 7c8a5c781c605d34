"""Whatever waits in a broker is bounded, and is given back when connections close."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.admin import clients as relays
from cometmq.broker.app import Broker
from cometmq.broker.consumers import members
from cometmq.core.errors import StoreFull
from cometmq.net import server as servers
from cometmq.net.resources import MemoryBudget
from cometmq.protocol.bodies import ConsumerData, Heartbeat, ProducerData, SubscriptionData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json
from cometmq.protocol.frame import FLAG_RESPONSE, Head, encode_head
from tests.broker.serving import (
    PULL,
    SEND,
    BrokerClient,
    FailingFiles,
    RunningBroker,
    pull_fields,
    running_broker,
    send_fields,
)
from tests.net.serving import until, until_still

MIB = 1 << 20
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
ASKED_STATUS = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
BEAT = RequestCode.HEART_BEAT


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> MemoryBudget:
    """A small one, for the brokers of a test alone."""
    found = MemoryBudget(16 * MIB)
    monkeypatch.setattr(servers, "process_budget", lambda: found)
    return found


def held_pull(**changes: str) -> dict[str, Any]:
    return pull_fields(1, sysFlag="6", suspendTimeoutMillis="30000", **changes)


async def test_refused_sends_give_their_memory_back(tmp_path: Path, budget: MemoryBudget) -> None:
    """The store keeps its refusal and raises it for each send: it must not keep the sends."""
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        running.broker.store.state.refusal = StoreFull("no room")
        for _ in range(20):
            assert (await client.send(bytes(MIB // 2))).code == ResponseCode.SERVICE_NOT_AVAILABLE
        await until(lambda: budget.held_bytes < MIB)


async def joined(running: RunningBroker, group: str = "g", client_id: str = "c") -> BrokerClient:
    """A consumer that is online."""
    client = await running.connect()
    head = await beat(client, client_id, [group])
    assert head.code == 0
    return client


async def beat(
    client: BrokerClient,
    client_id: str,
    consumers: list[str],
    producers: list[str] | None = None,
    expression: str = "*",
) -> Head:
    body = Heartbeat(
        client_id,
        tuple(ProducerData(name) for name in producers or ()),
        tuple(
            ConsumerData(
                name, subscription_data_set=(SubscriptionData("t", sub_string=expression),)
            )
            for name in consumers
        ),
    )
    client.post(BEAT, encode_json(body))
    return await next_frame(client, lambda head: head.flag & FLAG_RESPONSE)


async def next_frame(client: BrokerClient, wanted: Callable[[Head], object]) -> Head:
    """The next frame that is wanted: consumers are also told that their groups changed."""
    while True:
        head, _ = await client.frame()
        if wanted(head):
            return head


async def closed_again(broker: Broker, clients: list[BrokerClient], left: int = 0) -> None:
    for client in clients:
        client.writer.transport.abort()
    await until(lambda: len(broker.server.peers) == left)


async def test_pulls_with_bodies_are_refused(tmp_path: Path, budget: MemoryBudget) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await client.send()
        for _ in range(10):
            head, _ = await client.ask(PULL, bytes(8 * MIB), **held_pull())
            assert head.code == ResponseCode.SYSTEM_ERROR
            assert "PULL_MESSAGE request must have no body" in str(head.remark)
        assert running.broker.pull.handler.longpoll.count == 0
        await until(lambda: budget.held_bytes == 0)
        head, records = await client.pull()
        assert (head.code, len(records)) == (0, 1)


async def test_held_pulls_with_long_texts_are_bounded(tmp_path: Path, budget: MemoryBudget) -> None:
    async with running_broker(tmp_path) as running:
        longpoll = running.broker.pull.handler.longpoll
        sender = await running.connect()
        await sender.send()
        client = await running.connect()
        text_bytes = 100_000
        for number in range(200):
            client.post(PULL, **held_pull(subscription=f"{number}" + "x" * text_bytes))
        await until(lambda: longpoll.count > 5)
        await until_still(lambda: longpoll.count)
        assert longpoll.count * text_bytes <= budget.peer_bytes
        assert budget.held_bytes <= budget.peer_bytes + MIB
        assert (await sender.send()).code == 0  # others do not notice
        for other in [await running.connect() for _ in range(4)]:
            for number in range(60):
                other.post(PULL, **held_pull(subscription=f"{number}" + "y" * text_bytes))
        await until_still(lambda: longpoll.count)
        assert longpoll.count * text_bytes <= budget.bound_bytes
        for peer in list(running.broker.server.peers):
            if peer.memory.held_bytes:
                peer.abort()
        await until(lambda: longpoll.count == 0)
        await until(lambda: budget.held_bytes == 0)
        assert (await sender.send()).code == 0


async def test_messages_for_a_consumer_that_does_not_answer_are_bounded(
    tmp_path: Path, budget: MemoryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "MAX_WAITING_BYTES", MIB)
    async with running_broker(tmp_path) as running:
        asker = await running.connect()
        sent = await asker.send(bytes(400_000))
        consumer = await joined(running)
        message_id = sent.ext["msgId"]
        for _ in range(40):
            asker.post(DIRECTLY, consumerGroup="g", clientId="c", msgId=message_id)
        heads = [(await asker.frame())[0] for _ in range(38)]
        assert {head.code for head in heads} == {ResponseCode.SYSTEM_BUSY}
        for _ in range(2):
            head = await next_frame(consumer, lambda head: head.code == DIRECTLY)
            answer = encode_head(code=0, opaque=head.opaque, flag=FLAG_RESPONSE, ext={})
            consumer.writer.write(answer)
            assert (await asker.frame())[0].code == 0
        asker.post(DIRECTLY, consumerGroup="g", clientId="c", msgId=message_id)
        await next_frame(consumer, lambda head: head.code == DIRECTLY)  # there is room again
        await closed_again(running.broker, [asker, consumer])
        await until(lambda: budget.tasks == 0)
        assert budget.held_bytes == 0


async def test_answers_of_consumers_that_wait_for_others_are_bounded(
    tmp_path: Path, budget: MemoryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "MAX_WAITING_BYTES", 70_000)
    async with running_broker(tmp_path) as running:
        asker = await running.connect()
        consumers = [await joined(running, client_id=f"c{number}") for number in range(3)]
        asker.post(STATUS, topic="t", group="g")
        table = ",".join(
            f'{{"brokerName":"b{number}","queueId":0,"topic":"t"}}:{number}'
            for number in range(1_000)
        )
        body = f'{{"messageQueueTable":{{{table}}}}}'.encode()
        assert 40_000 < len(body) < 64_000
        for consumer in consumers:
            head = await next_frame(consumer, lambda head: head.code == ASKED_STATUS)
            answer = encode_head(
                code=0, opaque=head.opaque, flag=FLAG_RESPONSE, ext={}, body_bytes=len(body)
            )
            consumer.writer.write(answer + body)
        head, found = await asker.frame()
        assert head.code == 0
        assert 30_000 < len(found) < 70_000


async def test_subscriptions_of_one_connection_are_bounded(
    tmp_path: Path, budget: MemoryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "MAX_KEPT_CHARS", 520_000)
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        codes = []
        for number in range(10):
            head = await beat(client, "c", [f"g{number}"], expression="x" * 100_000)
            codes.append(head.code)
        assert codes == [0] * 5 + [ResponseCode.SYSTEM_ERROR] * 5
        assert 5 * 400_000 < budget.held_bytes < 2 * MIB
        for _ in range(3):  # the same again replaces what was kept
            head = await beat(client, "c", ["g1"], expression="z" * 100_000)
            assert head.code == 0
        await closed_again(running.broker, [client])
        await until(lambda: budget.held_bytes == 0)


async def test_groups_and_client_ids_of_one_connection_are_bounded(
    tmp_path: Path, budget: MemoryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "MAX_GROUPS", 20)
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        codes = []
        for number in range(30):
            head = await beat(client, f"id{number}", [], [f"p{number}"])
            codes.append(head.code)
        assert codes == [0] * 20 + [ResponseCode.SYSTEM_ERROR] * 10
        for number in range(200):
            head = await beat(client, f"other{number}", [], ["p1"])
            assert head.code == 0
        table = running.broker.consumers.members.table
        assert len(table._producers_by_id) == 20
        assert table.producer("other199") is not None
        await closed_again(running.broker, [client])
        await until(lambda: not table._producers_by_id and not table._uses_of_id)


class StoppedFiles(FailingFiles):
    """Files whose syncs wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def datasync(self, handle: int) -> None:
        self.go.wait(20)
        super().datasync(handle)


async def test_sends_that_wait_for_a_sync_keep_no_bodies(
    tmp_path: Path, budget: MemoryBudget
) -> None:
    files = StoppedFiles()
    settings: dict[str, Any] = {
        "flushDiskType": "SYNC_FLUSH",
        "mappedFileSizeCommitLog": str(64 * MIB),
    }
    async with running_broker(tmp_path, files, **settings) as running:
        client = await running.connect()
        assert (await client.send()).code == 0
        files.go.clear()
        try:
            for number in range(100):
                client.post(SEND, bytes(200_000), **send_fields(i=f"UNIQ_KEY\x01V{number}"))
            appender = running.broker.appender
            await until(lambda: appender.waiting_sends >= 90)
            assert budget.held_bytes < MIB
        finally:
            files.go.set()
        codes = {(await client.frame())[0].code for _ in range(100)}
        assert codes == {0}
        await until(lambda: budget.held_bytes == 0)


async def test_slow_readers_of_pulls_together_stay_under_the_bound(
    tmp_path: Path, budget: MemoryBudget
) -> None:
    async with running_broker(tmp_path) as running:
        sender = await running.connect()
        for _ in range(4):
            assert (await sender.send(bytes(250_000))).code == 0
        clients = [await running.connect() for _ in range(16)]
        for client in clients:
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(40):
                client.post(PULL, **pull_fields(0))

        def buffered() -> int:
            return sum(peer.buffered_bytes for peer in running.broker.server.peers)

        await until(lambda: len(running.broker.server.peers) < 17)
        await until_still(buffered)
        assert buffered() <= budget.bound_bytes
        assert (await sender.send()).code == 0
        await closed_again(running.broker, clients, left=1)
        assert buffered() == 0
