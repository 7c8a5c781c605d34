"""Sends with an id that is stored already, to a whole broker over a socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.app import Broker
from cometmq.message import batch
from cometmq.message.record import Record, iter_decode
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Head
from cometmq.store.read.reader import ReadStatus
from tests.broker.serving import (
    BATCH,
    NO_SPACE,
    BrokerClient,
    FailingFiles,
    running_broker,
    send_fields,
)
from tests.store.faults import ForgetfulFiles

ON: dict[str, Any] = {"dropRepeatedIdsTopics": "t, other"}


def named(unique: str, more: str = "") -> str:
    return f"UNIQ_KEY\x01{unique}{more}"


async def put(client: BrokerClient, unique: str, queue: str = "1", **changes: Any) -> Head:
    return await client.send(f"body of {unique}".encode(), i=named(unique), e=queue, **changes)


async def put_batch(client: BrokerClient, *ids: str, queue: str = "1", **changes: Any) -> Head:
    body = batch.pack((0, f"body of {each}".encode(), named(each).encode()) for each in ids)
    return await client.send(body, code=BATCH, e=queue, i="", m="true", **changes)


def stored(broker: Broker, topic: str = "t", queue_id: int = 1) -> list[Record]:
    found: list[Record] = []
    while True:
        result = broker.store.read(topic, queue_id, len(found), 32)
        if result.status is not ReadStatus.FOUND:
            return found
        for chunk in result.chunks:
            found += iter_decode(chunk)


def bodies(broker: Broker, **place: Any) -> list[str]:
    return [record.body.decode().removeprefix("body of ") for record in stored(broker, **place)]


async def test_a_repeat_is_answered_as_the_first_was_and_not_stored(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **ON) as running:
        client = await running.connect()
        first = await put(client, "a")
        await put(client, "b")
        again = await put(client, "a", queue="2")
        assert (again.code, again.ext) == (0, first.ext)
        assert bodies(running.broker) == ["a", "b"]
        assert stored(running.broker, queue_id=2) == []
        runtime = running.broker.deduplicator
        assert runtime is not None
        assert runtime.facts()["repeatedMessagesDropped"] == "1"


async def test_without_the_setting_every_send_is_stored(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        for _ in range(2):
            await put(client, "a")
        assert bodies(running.broker) == ["a", "a"]


async def test_only_the_topics_named_are_covered_and_ids_belong_to_their_topic(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, **ON) as running:
        client = await running.connect()
        for topic in ("t", "other", "free", "free"):
            await put(client, "a", b=topic)
        for topic, count in (("t", 1), ("other", 1), ("free", 2)):
            assert len(stored(running.broker, topic)) == count


async def test_all_topics_of_users_and_no_retry_topics(tmp_path: Path) -> None:
    async with running_broker(tmp_path, dropRepeatedIdsTopics="*") as running:
        client = await running.connect()
        await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"g"}')
        for _ in range(2):
            await put(client, "a")
            head = await put(client, "a", b="%RETRY%g", queue="0")
            assert head.code == 0
        assert len(stored(running.broker)) == 1
        assert len(stored(running.broker, "%RETRY%g", 0)) == 2


async def test_repeats_in_flight_are_answered_with_the_first(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **ON) as running:
        one, other = await running.connect(), await running.connect()
        for _ in range(20):
            for client in (one, other):
                client.post(310, b"body of a", **send_fields(i=named("a")))
        heads = [(await client.frame())[0] for _ in range(20) for client in (one, other)]
        assert {(head.code, head.ext["queueOffset"]) for head in heads} == {(0, "0")}
        assert bodies(running.broker) == ["a"]


async def test_a_batch_of_which_some_is_stored_stores_the_rest(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **ON) as running:
        client = await running.connect()
        first = await put(client, "b", queue="2")
        await put(client, "x")
        head = await put_batch(client, "a", "b", "c", "a")
        assert head.code == 0
        ids = head.ext["msgId"].split(",")
        assert ids[1] == first.ext["msgId"]
        assert ids[0] == ids[3]
        assert (head.ext["queueId"], head.ext["queueOffset"]) == ("1", "1")
        assert head.ext["queueOffsets"] == "1,0,2,1"
        assert bodies(running.broker) == ["x", "a", "c"]
        whole = await put_batch(client, "a", "b", "c", "a", queue="3")
        assert whole.ext["msgId"] == head.ext["msgId"]
        assert whole.ext["queueOffsets"] == "1,0,2,1"
        assert stored(running.broker, queue_id=3) == []
        assert (await put(client, "c")).ext["msgId"] == ids[2]


async def test_a_batch_of_new_messages_is_answered_as_ever(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **ON) as running:
        client = await running.connect()
        head = await put_batch(client, "a", "b")
        assert "queueOffsets" not in head.ext
        assert len(head.ext["msgId"].split(",")) == 2


async def test_a_batch_of_thousands_is_refused_with_its_limit(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **ON) as running:
        client = await running.connect()
        head = await put_batch(client, *map(str, range(1_025)))
        assert (head.code, "1024" in (head.remark or "")) == (13, True)
        assert stored(running.broker) == []


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_ids_are_known_after_a_restart_also_where_the_log_is_cold(
    tmp_path: Path, flush: str
) -> None:
    settings = ON | {"flushDiskType": flush}
    async with running_broker(tmp_path, **settings) as running:
        client = await running.connect()
        first = await put(client, "a")
        await put_batch(client, "b", "c")
        await put(client, "free", b="free")
    files = ForgetfulFiles()
    async with running_broker(tmp_path, files, **settings) as running:
        deduplicator = running.broker.deduplicator
        assert deduplicator is not None
        assert len(deduplicator.window) == 3
        client = await running.connect()
        client.post(310, b"body of a", **send_fields(i=named("a")))
        client.post(310, b"body of a", **send_fields(i=named("a")))
        heads = [(await client.frame())[0] for _ in range(2)]
        assert [head.ext["queueOffset"] for head in heads] == [first.ext["queueOffset"]] * 2
        head = await put_batch(client, "c", "d", "b")
        assert head.ext["queueOffsets"] == "2,3,1"
        files.cold = False
        assert bodies(running.broker) == ["a", "b", "c", "d"]


async def test_a_repeat_is_as_safe_as_its_first(tmp_path: Path) -> None:
    """A master without slaves says of a repeat what it said of the first, and syncs neither
    twice."""
    settings = ON | {"flushDiskType": "SYNC_FLUSH", "brokerRole": "SYNC_MASTER"}
    async with running_broker(tmp_path, **settings) as running:
        client = await running.connect()
        async with asyncio.timeout(4):
            heads = [await put(client, "a"), await put(client, "a")]
            heads.append(await put_batch(client, "a", "b"))
            heads.append(await put_batch(client, "a", "b"))
            unsafe = named("a", "\x02WAIT\x01false")
            heads.append(await client.send(b"body of a", i=unsafe))
        assert [head.code for head in heads] == [11, 11, 11, 11, 0]
        assert bodies(running.broker) == ["a", "b"]


async def test_a_damaged_message_is_no_proof_and_hides_none_behind_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path, **ON) as running:
        client = await running.connect()
        for unique in ("one", "two", "three"):
            await put(client, unique)
    damage(tmp_path)
    async with running_broker(tmp_path, **ON) as running:
        assert "repeated_ids_log_damaged" in caplog.text
        client = await running.connect()
        heads = [await put(client, unique) for unique in ("one", "two", "three")]
        assert [head.ext["queueOffset"] for head in heads] == ["0", "3", "2"]


def damage(root: Path) -> None:
    """Flip a bit in the body of the second message."""
    log = root / "commitlog" / f"{0:020d}"
    raw = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(raw.index(b"body of two"))
        file.write(b"B")


async def test_what_was_not_written_is_not_taken_for_stored(tmp_path: Path) -> None:
    files = FailingFiles()
    async with running_broker(tmp_path, files, **ON) as running:
        client = await running.connect()
        await put(client, "first")
        files.write_errno = NO_SPACE
        assert (await put(client, "a")).code != 0
        files.write_errno = 0
        async with asyncio.timeout(10):
            while (head := await put(client, "b")).code:
                await asyncio.sleep(0.05)
        again = await put(client, "a")
        assert (again.code, again.ext["queueOffset"]) == (0, "2")
        assert head.ext["queueOffset"] == "1"
        assert bodies(running.broker) == ["first", "b", "a"]


async def test_a_topic_made_anew_knows_nothing_of_its_former_life(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **ON) as running:
        client = await running.connect()
        await put(client, "a")
        head, _ = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")
        assert head.code == 0
        await put(client, "a")
        await put(client, "a")
        assert bodies(running.broker) == ["a"]
    async with running_broker(tmp_path, **ON) as running:
        await put(await running.connect(), "a")
        assert bodies(running.broker) == ["a"]


async def test_delayed_messages_are_known_once_they_are_in_their_topic(tmp_path: Path) -> None:
    async with running_broker(tmp_path, messageDelayLevel="1s 2s", **ON) as running:
        client = await running.connect()
        late = named("a", "\x02DELAY\x011")
        for _ in range(2):
            head = await client.send(b"body of a", i=late)
            assert head.code == 0
        async with asyncio.timeout(10):
            while len(stored(running.broker)) < 2:
                await asyncio.sleep(0.02)
        assert (await put(client, "a")).ext["queueOffset"] == "0"
        assert len(stored(running.broker)) == 2
