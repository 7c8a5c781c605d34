"""Transactions that the compiled core takes many at a time, beside the same ones one by one."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.message.record import Record, iter_decode
from cometmq.net.peer import Peer
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import JSON, Head, encode_head
from cometmq.store.layout import QUEUE_ENTRY_BYTES
from cometmq.testing.cluster import ProcessCluster
from tests.broker.serving import (
    IO_ERROR,
    NO_SPACE,
    SEND,
    BrokerClient,
    FailingFiles,
    RunningBroker,
    make_broker,
    running_broker,
    send_fields,
)

# Plain Python serves transactions one by one.
pytestmark = pytest.mark.compiled

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
END = RequestCode.END_TRANSACTION
COMMIT, ROLLBACK = "8", "12"
LOG_FILE_BYTES = 1 << 16


def prepared_fields(number: int, queue: int = 0, **changes: str) -> dict[str, Any]:
    text = (
        f"KEYS\x01k{number} all\x02UNIQ_KEY\x01U{number}\x02WAIT\x01true\x02TAGS\x01t{number % 3}"
        "\x02TRAN_MSG\x01true\x02PGROUP\x01producers"
    )
    return send_fields(e=str(queue), f="4", i=text) | changes


def end_fields(half_offset: int, place: int, kind: str, **changes: str) -> dict[str, Any]:
    return {
        "producerGroup": "producers", "tranStateTableOffset": str(half_offset),
        "commitLogOffset": str(place), "commitOrRollback": kind, "fromTransactionCheck": "false",
        "msgId": "U", "transactionId": "U",
    } | changes  # fmt: skip


@dataclass
class Side:
    """A broker, how its sends are taken, and the transactions that it said are open."""

    running: RunningBroker
    client: BrokerClient
    taken: Counter[str] = field(default_factory=Counter)
    open: list[tuple[int, int]] = field(default_factory=list)
    answers: list[object] = field(default_factory=list)
    opaque: int = 0

    def count_rows(self) -> None:
        """Count the rows that are taken many at a time."""
        router, counter = self.running.broker.router, self.taken
        take = router.bulk_handlers[b"310"]

        def counting(peer: Peer, data: bytes, at: int) -> tuple[int, int]:
            stop, odd = take(peer, data, at)
            counter["sends"] += data.count(b'"code":310', at, stop)
            counter["ends"] += data.count(b'"code":37', at, stop)
            return stop, odd

        router.bulk_handlers = {
            code: counting if each == take else each for code, each in router.bulk_handlers.items()
        }

    async def burst(self, asked: Sequence[tuple[int, dict[str, Any], bytes]]) -> list[Head]:
        """Send requests in one write; gives their answers in the order of the requests."""
        frames, first = [], self.opaque
        for code, fields, body in asked:
            self.opaque += 1
            begin = encode_head(
                code=code, opaque=self.opaque, flag=0, ext=fields, codec=JSON,
                body_bytes=len(body),
            )  # fmt: skip
            frames.append(begin + body)
        self.client.writer.write(b"".join(frames))
        heads = [(await self.client.frame())[0] for _ in asked]
        heads.sort(key=lambda head: head.opaque)
        assert [head.opaque for head in heads] == [*range(first + 1, self.opaque + 1)]
        for head in heads:
            ext = head.ext | {"msgId": head.ext.get("msgId", "")[16:]}
            # Where a turn of the loop ends differs from run to run.
            remark = (head.remark or "").replace("is ending", "has ended or never existed")
            self.answers.append((head.opaque, head.code, remark, ext))
        return heads

    def records(self) -> list[Record]:
        """All that is in the log, without times and hosts."""
        store, found = self.running.broker.store, []
        for file in store.log.segments.files:
            at = file.base
            while at < min(file.end, store.written_offset) and file.end - at > 91:
                size = int.from_bytes(file.view[at - file.base :][:4], "big")
                if file.view[at - file.base + 4] != 0xDA:
                    break
                view = file.view[at - file.base : at - file.base + size]
                found += [
                    msgspec.structs.replace(
                        record, store_ms=0, store_host=b"", born_host=b"",
                        born_ms=0 if record.topic == OP else record.born_ms,
                    )
                    for record in iter_decode(view, at)
                ]  # fmt: skip
                at += size
        return found

    def queues(self) -> dict[tuple[str, int], bytes]:
        """The entries of all queues."""
        store = self.running.broker.store
        found = {}
        for topic, numbers in store.topics().items():
            for number in numbers:
                queue = store.queue(topic, number)
                found[topic, number] = bytes(queue.read(0, queue.max_offset))
                assert len(found[topic, number]) == queue.max_offset * QUEUE_ENTRY_BYTES
        return found

    async def keys(self, count: int) -> list[list[int]]:
        """Where the messages of some keys lie, by the index."""
        store = self.running.broker.store
        found: list[list[int]] = []
        for topic in ("t", HALF, OP):
            for key in [f"k{number}" for number in range(count)] + ["U3", "d"]:
                query = await store.query_index(topic, key, 32, 0, 1 << 60)
                found.append(
                    [record.physical_offset for view in query.records for record in [_one(view)]]
                )
        return found


def _one(view: memoryview) -> Record:
    (record,) = iter_decode(view)
    return record


async def start(
    stack: AsyncExitStack, home: Path, files: FailingFiles | None = None, **settings: str
) -> Side:
    """A broker that knows the topics and the queues."""
    values = {"mappedFileSizeCommitLog": str(LOG_FILE_BYTES)} | settings
    running = await stack.enter_async_context(running_broker(home, files, **values))
    side = Side(running, await running.connect())
    await side.burst([(SEND, send_fields(e="0"), b"first")])
    (half,) = await side.burst([(SEND, prepared_fields(0, i="TRAN_MSG\x01true"), b"first")])
    end = end_fields(*place_of(half), ROLLBACK, producerGroup="")
    assert (await side.burst([(END, end, b"")]))[0].code == 0
    # A topic that is new makes all others be looked at again.
    for queue in range(4):
        await side.burst([(SEND, send_fields(e=str(queue)), b"first")])
    return side


def place_of(answer: Head) -> tuple[int, int]:
    return int(answer.ext["queueOffset"]), int(answer.ext["msgId"][16:], 16)


def some_requests(
    rng: random.Random, number: int, opened: list[tuple[int, int]]
) -> list[tuple[int, dict[str, Any], bytes]]:
    """A burst of all kinds of requests; what it ends may be open."""
    asked: list[tuple[int, dict[str, Any], bytes]] = []
    for _ in range(rng.randrange(1, 40)):
        number += 1
        body = rng.randbytes(rng.choice((0, 10, 300, 2_000)))
        queue = rng.randrange(4)
        kind = rng.randrange(20)
        if kind < 5:
            asked.append((SEND, send_fields(e=str(queue)), body))
        elif kind < 12:
            asked.append((SEND, prepared_fields(number, queue), body))
        elif kind < 18 and opened:
            half = rng.choice(opened)
            ends = rng.choice((COMMIT, COMMIT, COMMIT, ROLLBACK))
            asked += [(END, end_fields(*half, ends), b"")] * rng.choice((1, 1, 1, 2))
        elif opened:
            changes = rng.choice((
                {"producerGroup": "others"}, {"commitLogOffset": "1"}, {"commitOrRollback": "0"},
                {"tranStateTableOffset": "999999"}, {"commitOrRollback": "4"},
            ))  # fmt: skip
            asked.append((END, end_fields(*rng.choice(opened), COMMIT) | changes, b""))
        else:
            odd = prepared_fields(number, queue)
            odd["i"] += rng.choice(("\x02DELAY\x013", "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x019"))
            asked.append((SEND, odd, body))
    return asked


@pytest.mark.parametrize("seed", range(3))
async def test_both_ways_store_and_answer_the_same(tmp_path: Path, seed: int) -> None:
    async with AsyncExitStack() as stack:
        sides = [await start(stack, tmp_path / name) for name in ("together", "alone")]
        together, alone = sides
        together.count_rows()
        alone.running.broker.router.bulk_handlers = {}
        for side in sides:
            rng = random.Random(seed)
            opened: list[tuple[int, int]] = []
            for number in range(0, 1_200, 40):
                asked = some_requests(rng, number, opened)
                heads = await side.burst(asked)
                for (code, fields, _), head in zip(asked, heads, strict=True):
                    if code == SEND and fields["f"] == "4" and head.code == 0:
                        opened.append(place_of(head))
                    elif code == END and rng.random() < 0.7:
                        ended = int(fields["tranStateTableOffset"])
                        opened = [half for half in opened if half[0] != ended]
            side.open = opened
        assert together.answers == alone.answers
        assert together.open == alone.open
        assert together.records() == alone.records()
        assert len(together.running.broker.store.log.segments.files) > 3
        assert together.queues() == alone.queues()
        assert await together.keys(200) == await alone.keys(200)
        known = [side.running.broker.transactions.open for side in sides]
        halves, others = (
            [(at, half.physical_offset) for at, half in each.index.below(1 << 60)] for each in known
        )
        assert halves == others
        assert known[0].trail.applied == known[1].trail.applied
        assert known[0].trail.known_end == known[1].trail.known_end
        # Or it would prove nothing.
        assert together.taken["sends"] > 200
        assert together.taken["ends"] > 30


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_write_that_fails_takes_all_of_its_turn_back(tmp_path: Path, flush: str) -> None:
    files = FailingFiles()
    async with AsyncExitStack() as stack:
        side = await start(stack, tmp_path, files, flushDiskType=flush)
        running = side.running
        side.count_rows()
        kept = place_of((await side.burst([(SEND, prepared_fields(2), b"kept")]))[0])
        index, store = running.broker.transactions.open.index, running.broker.store
        before = store.queue(HALF, 0).next_offset, store.queue(OP, 0).next_offset, [*index.halves]
        files.write_errno = NO_SPACE
        failed = await side.burst(
            [(SEND, prepared_fields(3), b"gone"), (END, end_fields(*kept, COMMIT), b"")]
        )
        assert [head.code for head in failed] == [14, 14]
        assert all(head.remark for head in failed)
        assert side.taken == {"sends": 2, "ends": 1}
        after = store.queue(HALF, 0).next_offset, store.queue(OP, 0).next_offset, [*index.halves]
        assert after == before
        assert not index.halves[kept[0]].ending
        files.write_errno = 0
        store.state.update()
        (again,) = await side.burst([(SEND, prepared_fields(4), b"again")])
        assert place_of(again)[0] == before[0]
        heads = await side.burst(
            [(END, end_fields(*half, kind), b"") for half, kind in (
                (kept, COMMIT), (place_of(again), ROLLBACK), (kept, COMMIT),
            )]
        )  # fmt: skip
        assert [head.code for head in heads] == [0, 0, 1]
        assert not index.halves
        assert store.queue("t", 0).max_offset == 3  # two at the start, and what was kept


async def test_a_sync_that_fails_leaves_transactions_open(tmp_path: Path) -> None:
    files = FailingFiles()
    async with AsyncExitStack() as stack:
        side = await start(stack, tmp_path, files, flushDiskType="SYNC_FLUSH")
        running = side.running
        side.count_rows()
        (half,) = await side.burst([(SEND, prepared_fields(2), b"half")])
        files.sync_errno = IO_ERROR
        (failed,) = await side.burst([(END, end_fields(*place_of(half), COMMIT), b"")])
        assert failed.code != 0
        assert side.taken == {"sends": 1, "ends": 1}
        assert not running.broker.transactions.open.index.halves[place_of(half)[0]].ending


async def test_ends_of_both_ways_in_one_turn_leave_no_hole_in_the_trail(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        side = await start(stack, tmp_path)
        side.count_rows()
        # A commit of one that waits for a timer is served by itself, the others together.
        halves = await side.burst(
            [
                (SEND, prepared_fields(n, i=prepared_fields(n)["i"] + odd), b"%d" % n)
                for n, odd in enumerate(["", "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0160", ""])
            ]
        )
        queue = side.running.broker.store.queue("t", 0)
        first = queue.max_offset
        asked = [(END, end_fields(*place_of(half), COMMIT), b"") for half in halves]
        asked[1][1]["transactionId"] = "ü"  # odd, and right
        heads = await side.burst(asked)
        assert [head.code for head in heads] == [0, 0, 0]
        assert side.taken["ends"] == 2
        broker = side.running.broker
        trail, ops = broker.transactions.open.trail, broker.store.queue(OP, 0)
        assert trail.applied == trail.known_end == ops.max_offset
        assert queue.max_offset == first + 3


async def test_what_was_taken_survives_a_restart(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        side = await start(stack, tmp_path)
        side.count_rows()
        halves = await side.burst([(SEND, prepared_fields(n), b"%d" % n) for n in range(9)])
        places = [place_of(half) for half in halves]
        await side.burst([(END, end_fields(*place, COMMIT), b"") for place in places[:4]])
        await side.burst([(END, end_fields(*place, ROLLBACK), b"") for place in places[4:7]])
        assert side.taken == {"sends": 9, "ends": 7}
    broker = make_broker(tmp_path, mappedFileSizeCommitLog=str(LOG_FILE_BYTES))
    await broker.start()
    try:
        index = broker.transactions.open.index
        assert [(at, half.physical_offset) for at, half in index.below(1 << 60)] == places[7:]
        assert {half.group for _, half in index.below(1 << 60)} == {"producers"}
    finally:
        await broker.stop()


async def test_a_kill_loses_no_end_that_was_answered(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        ends: dict[int, tuple[str, int]] = {}
        answered: dict[str, set[int]] = {COMMIT: set(), ROLLBACK: set()}
        port = int(cluster.broker.rpartition(":")[2])
        client = BrokerClient(*await asyncio.open_connection("127.0.0.1", port))
        assert (await client.send(b"plain", e="0")).code == 0
        for number in range(256):
            client.post(SEND, b"%d" % number, **prepared_fields(number))
        async with asyncio.timeout(60):
            while sum(map(len, answered.values())) < 100:
                head, _ = await client.frame()
                assert head.code == 0, head.remark
                if head.opaque in ends:
                    kind, number = ends[head.opaque]
                    answered[kind].add(number)
                    continue
                kind, number = ROLLBACK if head.opaque % 3 else COMMIT, head.opaque - 2
                client.post(END, **end_fields(*place_of(head), kind))
                ends[client.opaque] = kind, number
        cluster.kill()
        client.writer.close()
        cluster.start()
        client = BrokerClient(*await asyncio.open_connection("127.0.0.1", port))
        found: list[int] = []
        while True:
            _, records = await client.pull(len(found) + 1, queueId="0")  # behind the plain one
            if not records:
                break
            found += [int(record.body) for record in records]
        client.writer.close()
    assert len(found) == len(set(found))
    assert answered[COMMIT] <= set(found)
    assert all(kind == COMMIT for kind, number in ends.values() if number in found)


async def test_a_broker_that_takes_no_transactions_still_takes_sends(tmp_path: Path) -> None:
    async with running_broker(tmp_path, rejectTransactionMessage="true") as running:
        side = Side(running, await running.connect())
        await side.burst([(SEND, send_fields(e="0"), b"first")])
        side.count_rows()
        heads = await side.burst(
            [(SEND, prepared_fields(1), b""), (SEND, send_fields(e="0"), b"second")]
        )
        assert [head.code for head in heads] == [16, 0]
        assert side.taken["sends"] == 1
