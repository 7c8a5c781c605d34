"""Pulls over a socket from a whole broker: found, filtered, held, moved, refused."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.core.errors import BadRequest
from cometmq.message.record import iter_decode
from cometmq.net import peer as peers
from cometmq.net.peer import Peer
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import BINARY, JSON, Request, encode_head
from cometmq.store.files import PosixFiles
from cometmq.store.log.checksums import BlockChecksums
from tests.broker.serving import PULL, BrokerClient, pull_fields, running_broker
from tests.store.sealed import seal_of

HELD: dict[str, Any] = {"sysFlag": "6", "suspendTimeoutMillis": "10000"}
#: Time that a pull waits for messages, far longer than it takes to answer one.
WAITED_S = 1.0


async def fill(client: BrokerClient, count: int, tags: tuple[str, ...] = ("red",)) -> None:
    for number in range(count):
        text = f"UNIQ_KEY\x01U{number}\x02TAGS\x01{tags[number % len(tags)]}"
        assert (await client.send(str(number).encode(), i=text)).code == 0


async def until_held(broker: Any, count: int = 1) -> None:
    async with asyncio.timeout(60):
        while broker.pull.handler.longpoll.count != count:
            await asyncio.sleep(0.001)


async def test_found_messages_come_with_the_queue_s_bounds(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 5)
        head, records = await client.pull(1, maxMsgNums="3")
        assert (head.code, head.remark) == (0, "FOUND")
        assert head.ext == {
            "suggestWhichBrokerId": "0", "nextBeginOffset": "4", "minOffset": "0", "maxOffset": "5",
        }  # fmt: skip
        assert [record.body for record in records] == [b"1", b"2", b"3"]
        assert [record.queue_offset for record in records] == [1, 2, 3]


async def test_a_group_of_the_system_gets_as_many_as_it_asks_for(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 80)
        for group, count in (("CID_RMQ_SYS_COMETMQ_SPARK", 70), ("g", 32)):
            head, records = await client.pull(5, maxMsgNums="70", consumerGroup=group)
            assert head.ext["nextBeginOffset"] == str(5 + count)
            assert [record.queue_offset for record in records] == list(range(5, 5 + count))


@pytest.mark.parametrize(
    ("offset", "code", "remark", "next_offset"),
    [(3, 19, "OFFSET_OVERFLOW_ONE", "3"), (4, 21, "OFFSET_OVERFLOW_BADLY", "3"),
     (-1, 21, "OFFSET_TOO_SMALL", "0")],
)  # fmt: skip
async def test_offsets_outside_the_queue(
    tmp_path: Path, offset: int, code: int, remark: str, next_offset: str
) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 3)
        head, records = await client.pull(offset)
    assert (head.code, head.remark, head.ext["nextBeginOffset"]) == (code, remark, next_offset)
    assert records == []


async def test_an_empty_queue(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 1)
        at_start, _ = await client.pull(0, queueId="2")
        beyond, _ = await client.pull(7, queueId="2")
    assert (at_start.code, beyond.code) == (19, 21)
    assert beyond.ext["nextBeginOffset"] == "0"


async def test_tags_are_filtered_and_the_offset_moves_on(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 6, ("red", "blue", "green"))
        head, records = await client.pull(subscription="red || green")
        assert [record.body for record in records] == [b"0", b"2", b"3", b"5"]
        assert head.ext["nextBeginOffset"] == "6"
        none, _ = await client.pull(subscription="black")
        assert (none.code, none.ext["nextBeginOffset"]) == (20, "6")


async def test_a_subscription_known_from_the_heartbeat(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 2, ("red", "blue"))
        missing, _ = await client.pull(sysFlag="0")
        assert missing.code == 24
        subscription = {
            "topic": "t", "subString": "blue", "subVersion": 5, "tagsSet": ["blue"],
            "codeSet": [3027034], "expressionType": "TAG", "classFilterMode": False,
        }  # fmt: skip
        beat = {
            "clientID": "c1", "producerDataSet": [],
            "consumerDataSet": [{
                "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "unitMode": False,
                "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [subscription],
            }],
        }  # fmt: skip
        answer, _ = await client.ask(RequestCode.HEART_BEAT, msgspec.json.encode(beat))
        while answer.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            answer, _ = await client.frame()
        assert answer.code == 0
        _, records = await client.pull(sysFlag="0", subVersion="5")
        assert [record.body for record in records] == [b"1"]
        newer, _ = await client.pull(sysFlag="0", subVersion="6")
        assert newer.code == 25


async def test_a_held_pull_is_woken_by_the_next_message(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        puller, sender = await running.connect(), await running.connect()
        await fill(sender, 1)
        puller.post(PULL, **pull_fields(1, **HELD))
        await until_held(running.broker)
        await sender.send(b"wake")
        head, body = await puller.frame()
    assert (head.code, head.ext["nextBeginOffset"]) == (0, "2")
    assert [record.body for record in iter_decode(body)] == [b"wake"]


async def test_a_first_message_wakes_a_pull_of_an_empty_queue(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        puller, sender = await running.connect(), await running.connect()
        await sender.send(e="0")
        puller.post(PULL, **pull_fields(0, **HELD))
        await until_held(running.broker)
        await sender.send(b"first")
        head, _ = await puller.frame()
    assert (head.code, head.ext["nextBeginOffset"]) == (0, "1")


async def test_what_does_not_match_leaves_a_pull_held_further_on(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        puller, sender = await running.connect(), await running.connect()
        await fill(sender, 1, ("blue",))
        puller.post(PULL, **pull_fields(1, subscription="red", **HELD))
        await until_held(running.broker)
        await fill(sender, 3, ("blue",))
        assert running.broker.pull.handler.longpoll.count == 1
        await fill(sender, 1, ("red",))
        head, body = await puller.frame()
    assert (head.code, head.ext["nextBeginOffset"]) == (0, "5")
    assert [record.queue_offset for record in iter_decode(body)] == [4]


@pytest.mark.parametrize(
    ("settings", "changes"),
    [({}, {"suspendTimeoutMillis": "60"}),
     ({"longPollingEnable": "false", "shortPollingTimeMills": "60"}, {})],
)  # fmt: skip
async def test_a_held_pull_is_answered_when_its_time_is_up(
    tmp_path: Path, settings: dict[str, Any], changes: dict[str, Any]
) -> None:
    async with running_broker(tmp_path, **settings) as running:
        client = await running.connect()
        await fill(client, 2)
        head, _ = await client.pull(2, **(HELD | changes))
    assert (head.code, head.ext["nextBeginOffset"]) == (19, "2")


async def test_who_does_not_read_its_answers_gets_no_further_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told to pull again, and gets them once it has read."""
    monkeypatch.setattr(peers, "STALL_LIMIT_MS", 20)
    monkeypatch.setattr(peers, "STALL_MAX_MS", 20)
    async with running_broker(tmp_path) as running:
        sender, puller = await running.connect(), await running.connect()
        for _ in range(32):
            assert (await sender.send(bytes(7_000))).code == 0
        small = puller.writer.get_extra_info("socket")
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        puller.reader._transport.pause_reading()  # type: ignore[attr-defined]
        peer = list(running.broker.server.peers)[-1]
        puller.post(PULL, **pull_fields(32, **HELD))
        await until_held(running.broker)
        asked = b"".join(
            encode_head(code=PULL, opaque=number, flag=0, ext=pull_fields(0))
            for number in range(2, 202)
        )
        end = peer._received_bytes + len(asked)
        puller.writer.write(asked)
        async with asyncio.timeout(60):
            while peer._received_bytes < end or peer.is_receiving or peer._backlog:
                await asyncio.sleep(0.001)
            await sender.send(b"wake")
            await until_held(running.broker, 0)
        puller.reader._transport.resume_reading()  # type: ignore[attr-defined]
        heads = {head.opaque: head for head, _ in [await puller.frame() for _ in range(201)]}
        held = heads.pop(1)
        assert (held.code, held.ext["nextBeginOffset"]) == (20, "32")
        found = sum(head.code == 0 for head in heads.values())
        assert 0 < found < 50
        others = [head for head in heads.values() if head.code]
        assert {(head.code, head.ext["nextBeginOffset"]) for head in others} == {(20, "0")}
        head, records = await puller.pull(0)
        assert (head.code, len(records)) == (0, 32)


async def test_a_pull_may_commit_an_offset(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 3)
        await client.pull(2, sysFlag="5", commitOffset="2")
        head, _ = await client.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", topic="t", queueId="1"
        )
    assert (head.code, head.ext["offset"]) == (0, "2")


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"topic": "unknown"}, 17, "unknown"),
        ({"queueId": "9"}, 1, "readQueueNums:[4]"),
        ({"queueId": "-1"}, 1, "illegal"),
        ({"subscription": " || "}, 23, "no tag"),
        ({"expressionType": "LUA", "subscription": "a > 1"}, 1, "use TAG"),
        ({"consumerGroup": "unknown"}, 26, "autoCreateSubscriptionGroup"),
    ],
)
async def test_pulls_that_are_refused(
    tmp_path: Path, changes: dict[str, Any], code: int, says: str
) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 1)
        await client.pull()
    async with running_broker(tmp_path, autoCreateSubscriptionGroup="false") as running:
        client = await running.connect()
        head, _ = await client.pull(**changes)
        assert head.code == code
        assert says in (head.remark or "")
        found, _ = await client.pull()
        assert found.code == 0


async def test_permissions_of_group_topic_and_broker(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 1)
        group = {"groupName": "g", "consumeEnable": False}
        body = msgspec.json.encode(group)
        answer, _ = await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        assert answer.code == 0
        head, _ = await client.pull()
        assert head.code == 16
    async with running_broker(tmp_path, brokerPermission="2") as running:
        head, _ = await (await running.connect()).pull(consumerGroup="other")
        assert head.code == 16


async def test_binary_headers_and_hooks_get_the_same_answer(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    class Hook:
        def before(self, peer: Peer, request: Request[Any]) -> None:
            if request.header.queue_offset == 1:
                raise BadRequest(16, "not from here")

        def after(
            self, peer: Peer, request: Request[Any], code: int, count: int, size_bytes: int
        ) -> None:
            seen.append((code, count))

    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 2)
        binary, body = await client.ask(PULL, b"", BINARY, **pull_fields(0))
        running.broker.consume_hooks.add(Hook())
        hooked, same = await client.ask(PULL, **pull_fields(0))
        await client.pull(2)
        refused, _ = await client.ask(PULL, **pull_fields(1))
        assert refused.code == 16
        bad, _ = await client.ask(PULL, **pull_fields(0, subscription="||"))
        assert bad.code == 23
        assert (running.broker.stats.pulled.found, running.broker.stats.pulled.missed) == (2, 1)
    assert binary.ext == hooked.ext
    assert body == same
    assert seen == [(0, 2), (19, 0), (23, 0)]


async def test_cold_messages_are_read_off_the_loop(tmp_path: Path) -> None:
    async with running_broker(tmp_path, accessMessageInMemoryMaxRatio="0") as running:
        client = await running.connect()
        await fill(client, 12)
        head, records = await client.pull()
        assert head.code == 0
        assert [record.body for record in records] == [str(n).encode() for n in range(8)]
        assert sum(running.broker.stats.pull_seconds.counts) == 1


async def test_times_of_pulls_leave_out_the_wait_for_messages(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        seconds = running.broker.stats.pull_seconds
        await fill(client, 3)
        head, _ = await client.pull()
        assert (head.code, sum(seconds.counts)) == (0, 1)
        other = await running.connect()
        waiting = asyncio.create_task(client.pull(3, **HELD))
        await until_held(running.broker)
        until = time.monotonic() + WAITED_S
        while time.monotonic() < until:
            await asyncio.sleep(0.05)
        assert sum(seconds.counts) == 1  # one that has found nothing has no time
        await fill(other, 1)
        head, records = await waiting
        assert (head.code, len(records)) == (0, 1)
        assert sum(seconds.counts) == 2
        assert 0 < seconds.total < WAITED_S


def seal_and_damage(root: Path, at: int) -> Path:
    """Seal the first log file, as upkeep does some time after it is full; then a bit flips."""
    path = root / "commitlog" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    BlockChecksums(PosixFiles(), str(root)).add(seal_of(0, bytes(raw)))
    raw[at] ^= 1
    path.write_bytes(raw)
    return path


async def test_damage_in_a_sealed_file_is_answered_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        for number in range(14):
            assert (await client.send(b"%d" % number + bytes(100_000))).code == 0
    path = seal_and_damage(tmp_path, 200_000)
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        async with asyncio.timeout(60):
            while not running.broker.store.runtime()["damaged_blocks"]:
                await asyncio.sleep(0.01)
        head, records = await client.pull(0)
        # What lies before the damage is served.
        assert (head.code, [record.queue_offset for record in records]) == (0, [0])
        assert head.ext["nextBeginOffset"] == "1"
        for _ in range(2):
            head, _ = await client.pull(1)
            assert head.code == 1
            assert f"{path} at offset 196608" in str(head.remark)
        head, records = await client.pull(3)
        assert head.code == 0
        assert records[0].queue_offset == 3
    assert caplog.text.count("log_block_damaged") == 1
    assert "pull failed" not in caplog.text


async def test_who_replays_gets_from_windows_what_was_read_for_others(tmp_path: Path) -> None:
    async with running_broker(tmp_path, accessMessageInMemoryMaxRatio="0") as running:
        clients = [await running.connect() for _ in range(6)]
        await fill(clients[0], 40)
        await clients[0].pull()
        *others, leaving = clients
        pulls = [asyncio.create_task(client.pull(at)) for at, client in enumerate(others)]
        gone = asyncio.create_task(leaving.pull(7))
        await asyncio.sleep(0)
        leaving.writer.close()
        answers = await asyncio.gather(*pulls)
        assert [head.code for head, _ in answers] == [0] * 5
        # It is in memory by now, so as many come as from near the end.
        assert [[record.queue_offset for record in records] for _, records in answers] == [
            list(range(at, at + 32)) for at in range(5)
        ]
        gone.cancel()
        assert all(not peer.running_tasks for peer in running.broker.server.peers)


@pytest.mark.parametrize(
    "first",
    [b"\x7f\xff\xff\xff\0\0\0\x10" + bytes(16), b"\0\x20\0\0\0\x10\0\1", b"\0\0\0\4\0\0\0\0"],
)
async def test_lengths_that_cannot_be_right_end_the_connection(
    tmp_path: Path, first: bytes
) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        client.writer.write(first)
        async with asyncio.timeout(60):
            assert await client.reader.read() == b""


@pytest.mark.compiled
async def test_pulls_off_the_connection_are_answered_as_those_one_by_one(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 40, ("red", "blue", "green"))
        router, taken = running.broker.router, 0
        take = router.bulk_handlers[b"11"]

        def counting(peer: Peer, data: bytes, at: int) -> tuple[int, int]:
            nonlocal taken
            stop, odd = take(peer, data, at)
            taken += stop > at
            return stop, odd

        asked: list[dict[str, str]] = [
            {"queueOffset": str(offset), "maxMsgNums": count, "subscription": tags}
            for offset in (-1, 0, 5, 39, 40, 41)
            for count in ("0", "1", "32", "100")
            for tags in ("*", "red || green", "other")
        ]
        asked += [
            {"topic": "unknown"}, {"queueId": "9"}, {"queueId": "2"}, {"sysFlag": "0"},
            {"expressionType": "SQL92", "subscription": "a = 1"}, {"expressionType": "x"},
            {"consumerGroup": "CID_RMQ_SYS_COMETMQ", "maxMsgNums": "100"}, {"consumerGroup": "?"},
            {"sysFlag": "5", "commitOffset": "3"},
        ]  # fmt: skip
        answers = []
        for bulk_handlers in ({b"11": counting}, {}):
            router.bulk_handlers = dict(bulk_handlers)
            first = client.opaque = 1_000
            for fields in asked:
                client.post(PULL, **(pull_fields(0) | fields))
            found = [await client.frame() for _ in asked]
            answers.append(sorted((head.opaque, head, body) for head, body in found))
            assert [opaque for opaque, *_ in answers[-1]] == [*range(first + 1, client.opaque + 1)]
        assert [str(each) for each in answers[0]] == [str(each) for each in answers[1]]
        assert taken > 5
        assert running.broker.consumers.offsets.query("g", "t", 1) == 3


async def test_the_position_of_a_group_follows_its_pulls(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 5)
        position = running.broker.stats.position("g", "t", 1)
        assert position.offset == -1
        await client.pull(1, maxMsgNums="3")
        assert position.offset == 4
        await client.ask(PULL, b"", BINARY, **pull_fields(1, maxMsgNums="1"))
        assert position.offset == 2, "served one by one"
        await client.pull(9)
        assert position.offset == 5, "set back to the end"
        await client.pull(0, subscription="black")
        assert position.offset == 5, "nothing matched"
        sender = await running.connect()
        for end, codec in ((5, JSON), (6, BINARY)):
            await client.pull(0, maxMsgNums="1")
            assert position.offset == 1
            client.post(PULL, b"", codec, **pull_fields(end, **HELD))
            await until_held(running.broker)
            assert position.offset == end, "a pull that waits has all before"
            await sender.send(b"wake")
            head, _ = await client.frame()
            assert head.ext["nextBeginOffset"] == str(end + 1)
            assert position.offset == end + 1
