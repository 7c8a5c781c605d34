"""Batches: whole, answered as any other, and nobody waits for long, however many they hold."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.broker.send import handler as send
from cometmq.message import batch
from cometmq.message.record import Record, iter_decode
from cometmq.net import eventloop
from cometmq.protocol.frame import BINARY, JSON, encode_head
from cometmq.speedups import CORE
from cometmq.store import messagestore as engine
from cometmq.store.read.reader import ReadStatus
from tests.broker.serving import (
    BATCH,
    NO_SPACE,
    SEND,
    BrokerClient,
    FailingFiles,
    running_broker,
    send_fields,
)
from tests.broker.test_acknowledgement import SlowFiles
from tests.store.stores import assert_consistent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cometmq.broker.app import Broker

#: What a slow machine may take (docs/decisions/0008-large-batches.md).
TURN_MS_MAX = 50
#: The same for the largest batch beside other tests. Plain Python gives each part its place in one
#: go.
LARGEST_MS_MAX = TURN_MS_MAX if CORE == "compiled" else 10_000
SHORT: dict[str, Any] = {"mappedFileSizeCommitLog": str(1 << 20)}
LONG: dict[str, Any] = {"mappedFileSizeCommitLog": str(1 << 26)}
COUNT = 1_100


@pytest.fixture(params=["at once", "in parts"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How batches are stored; large ones come in parts anyway."""
    if request.param == "in parts":
        monkeypatch.setattr(send, "LARGE_BYTES", 0)
        # The core would take small ones at once.
        monkeypatch.setattr(send.SendHandler, "bulk_handlers", lambda self: {})
        monkeypatch.setattr(engine, "PART_ROWS", 300)
        monkeypatch.setattr(engine, "EARLY_BYTES", 50_000)
    found: str = request.param
    return found


def body_of(count: int, size_bytes: int = 0) -> bytes:
    """Messages of different lengths, each with a key."""
    return batch.pack(
        (0, b"%d" % number + bytes(size_bytes), b"UNIQ_KEY\x01U%d" % number)
        for number in range(count)
    )


def largest_body() -> bytes:
    """As many messages as the largest body holds, of different lengths."""
    return batch.pack((0, b"xyz"[: 1 + number % 3], b"") for number in range(174_000))


def read_all(broker: Broker) -> list[Record]:
    """Every visible message of the queue that batches go to."""
    found: list[Record] = []
    while True:
        result = broker.store.read("t", 1, len(found), 32)
        if result.status is not ReadStatus.FOUND:
            return found
        for chunk in result.chunks:
            found += iter_decode(chunk)


class Turns:
    """The longest turn of the loop, in processor time: work of other processes does not count."""

    def __init__(self) -> None:
        self.longest_ms = 0.0

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._watch())
        yield
        watching.cancel()

    async def _watch(self) -> None:
        before_ns = time.thread_time_ns()
        while True:
            await asyncio.sleep(0)
            now_ns = time.thread_time_ns()
            self.longest_ms = max(self.longest_ms, (now_ns - before_ns) / 1e6)
            before_ns = now_ns


async def post_slowly(client: BrokerClient, body: bytes) -> None:
    """Send a batch in pieces, so that the client's own work is no long turn."""
    fields = send_fields(m="true")
    head = encode_head(code=BATCH, opaque=7, flag=0, ext=fields, codec=JSON, body_bytes=len(body))
    frame = head + body
    for at in range(0, len(frame), 1 << 16):
        client.writer.write(frame[at : at + (1 << 16)])
        await client.writer.drain()


@pytest.mark.parametrize("way", ["at once"], indirect=True)
def test_nobody_waits_for_the_largest_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longest_ms = eventloop.run(store_the_largest_batch(tmp_path))
    with capsys.disabled():
        print(f" longest turn {longest_ms:.1f} ms ", end="")
    assert longest_ms < LARGEST_MS_MAX


async def store_the_largest_batch(directory: Path) -> float:
    body, turns = largest_body(), Turns()
    async with running_broker(directory, **LONG) as running:
        client, other = await running.connect(), await running.connect()
        await client.send()
        store = running.broker.store
        async with turns.watched():
            await post_slowly(client, body)
            answered = asyncio.create_task(client.reader.readexactly(4))
            others = 0
            while not answered.done():
                assert (await other.send(e="2")).code == 0
                others += 1
            async with asyncio.timeout(20):
                while store.dispatched_offset < store.written_offset:
                    await asyncio.sleep(0)
        rest = await client.reader.readexactly(int.from_bytes(answered.result(), "big"))
        queue = store.queue("t", 1)
        first, last = (store.read("t", 1, at, 1).chunks[0] for at in (1, 174_000))
    assert others
    assert queue.max_offset == 174_001
    assert b'"code":0' in rest[:40]
    assert b'"queueOffset":"1"' in rest
    ids = rest.partition(b'"msgId":"')[2].partition(b'"')[0].split(b",")
    for record, message_id in ((first, ids[0]), (last, ids[-1])):
        (found,) = iter_decode(record)
        assert message_id.endswith(b"%016X" % found.physical_offset)
    assert len(ids) == len(set(ids)) == 174_000
    return turns.longest_ms


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_batches_and_sends_of_one_turn_keep_their_order(tmp_path: Path, flush: str) -> None:
    async with running_broker(tmp_path, flushDiskType=flush, **SHORT) as running:
        client = await running.connect()
        await client.send(b"before")
        for number in range(3):
            client.post(BATCH, body_of(2), **send_fields(m="true", i="WAIT\x01true"))
            client.post(SEND, b"behind %d" % number, **send_fields())
            client.post(SEND, b"not waiting %d" % number, **send_fields(i="WAIT\x01false"))
        client.post(BATCH, body_of(COUNT), **send_fields(m="true"))
        answers = [(await client.frame())[0] for _ in range(10)]
        assert [answer.code for answer in answers] == [0] * 10
        async with asyncio.timeout(10):
            while len(records := read_all(running.broker)) < COUNT + 13:
                await asyncio.sleep(0.001)
        bodies = [record.body for record in records]
        between = [
            [b"0", b"1", b"behind %d" % number, b"not waiting %d" % number] for number in range(3)
        ]
        numbered = [b"%d" % number for number in range(COUNT)]
        assert bodies == [b"before", *between[0], *between[1], *between[2], *numbered]
        ids = {
            each[-16:]: int(answer.ext["queueOffset"]) + at
            for answer in answers
            for at, each in enumerate(answer.ext["msgId"].split(","))
        }
        assert len(ids) == COUNT + 12
        for record in records[1:]:
            assert ids[f"{record.physical_offset:016X}"] == record.queue_offset
        assert_consistent(running.broker.store)
        assert running.broker.appender.waiting_sends == 0


async def test_one_that_cannot_be_stored_stores_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **SHORT) as running:
        client = await running.connect()
        cut = await client.send(body_of(COUNT)[:-1], code=BATCH, m="true")
        too_large = await client.send(body_of(COUNT, 1_000), code=BATCH, m="true")
        assert (cut.code, too_large.code) == (13, 13)
        assert "batch body" in (cut.remark or "")
        assert "mappedFileSizeCommitLog" in (too_large.remark or "")
        assert (await client.send(body_of(COUNT), code=BATCH, m="true")).code == 0
        assert len(read_all(running.broker)) == COUNT
        assert {peer.running_tasks for peer in running.broker.server.peers} == {0}


async def test_a_write_that_fails_is_told_to_all_of_the_turn(tmp_path: Path) -> None:
    files = FailingFiles()
    async with running_broker(tmp_path, files, **SHORT) as running:
        client = await running.connect()
        files.write_errno = NO_SPACE
        client.post(BATCH, body_of(COUNT), **send_fields(m="true"))
        client.post(SEND, b"behind", **send_fields())
        answers = [(await client.frame())[0] for _ in range(2)]
        assert [answer.code for answer in answers] == [14, 14]
        files.write_errno = 0
        async with asyncio.timeout(20):  # the store looks by itself whether there is room again
            while running.broker.store.state.refusal is not None:
                await asyncio.sleep(0.02)
        assert (await client.send(b"after")).ext["queueOffset"] == "0"


async def test_one_way_batches_are_stored(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **SHORT) as running:
        client = await running.connect()
        body = body_of(3)
        fields = send_fields(m="true")
        client.writer.write(
            encode_head(code=BATCH, opaque=1, flag=2, ext=fields, codec=JSON, body_bytes=len(body))
            + body
        )
        assert (await client.send(b"behind")).ext["queueOffset"] == "3"


class Watcher:
    """A send hook that notes how many messages a send stored, and with which code."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def before(self, peer: object, request: object) -> None:
        pass

    def after(self, peer: object, request: object, code: int, count: int) -> None:
        self.seen.append((code, count))


async def test_hooks_and_other_codecs_see_it_as_any_batch(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **SHORT) as running:
        client, watcher = await running.connect(), Watcher()
        binary, _ = await client.ask(BATCH, body_of(COUNT), codec=BINARY, **send_fields(m="true"))
        running.broker.send_hooks.add(watcher)
        hooked = await client.send(body_of(COUNT), code=BATCH, m="true")
        await client.send(body_of(COUNT)[:-1], code=BATCH, m="true")
        assert watcher.seen == [(0, COUNT), (13, 0)]
        for answer in (binary, hooked):
            assert answer.code == 0
            assert answer.ext["msgId"].count(",") == COUNT - 1


@pytest.mark.parametrize("way", ["at once"], indirect=True)
@pytest.mark.skipif(CORE == "plain", reason="plain Python serves batches one by one")
async def test_the_core_takes_batches_to_a_queue_that_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = 0
    serve = send.SendHandler.send_batch

    def counted(self: send.SendHandler, peer: Any, request: Any) -> Any:
        nonlocal served
        served += 1
        return serve(self, peer, request)

    monkeypatch.setattr(send.SendHandler, "send_batch", counted)
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        # The topic is new: the first one creates it, and name servers have to hear of it.
        heads = [await client.send(body_of(5), code=BATCH, m="true") for _ in range(2)]
        served = 0
        heads.append(await client.send(body_of(5), code=BATCH, m="true"))
        single = await client.send(b"single")
        refused = await client.send(body_of(5)[:-1], code=BATCH, m="true")
        assert [head.code for head in heads] == [0, 0, 0]
        assert [head.ext["queueOffset"] for head in heads] == ["0", "5", "10"]
        assert single.ext["queueOffset"] == "15"
        assert refused.code == 13
        assert served == 1  # the one that is invalid
        records = read_all(running.broker)
        ids = [each for head in heads for each in head.ext["msgId"].split(",")]
        assert len(ids) == 15
        places = [int(each[16:], 16) for each in (*ids, single.ext["msgId"])]
        assert [record.physical_offset for record in records] == places
        assert [record.body for record in records[5:10]] == [b"%d" % n for n in range(5)]


@pytest.mark.parametrize("way", ["at once"], indirect=True)
async def test_a_batch_that_was_not_synced_in_time_names_its_messages(tmp_path: Path) -> None:
    files = SlowFiles()
    settings: dict[str, Any] = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": "50"}
    async with running_broker(tmp_path, files, **settings) as running:
        client = await running.connect()
        assert (await client.send(body_of(3), code=BATCH, m="true")).code == 0
        files.blocked = True
        late = await client.send(body_of(3), code=BATCH, m="true")
        files.blocked = False
        assert (late.code, late.ext["queueOffset"]) == (10, "3")
        assert late.ext["msgId"].count(",") == 2
        assert running.broker.appender.waiting_sends == 0
