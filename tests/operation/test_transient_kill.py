"""`kill -9` of a broker that answers before it writes: the end alone is lost, and little of it.

A second connection sends one message a time and waits until consumers see it: such messages are
written, so none of them may be lost, and nothing before them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

from cometmq.admin.node import NodeProcess
from cometmq.core.clock import SystemClock
from cometmq.message import properties
from cometmq.message.record import Record
from cometmq.testing.cluster import ProcessCluster, Setting
from tests.operation.kills import IN_FLIGHT, QUEUES, TOPIC, Round, Sent, messages, write
from tests.operation.raw import RawPeer, create_topic, pull_queue, queue_range
from tests.store.tools.verifying import damage, verified

KILLS = 4
#: What waits for its pages or for its time; the round comes every 200 ms.
SETTINGS: dict[str, Setting] = {
    "transientStorePoolEnable": "true",
    "commitCommitLogLeastPages": 10_000,
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 60_000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
}


async def load(peer: RawPeer, source: Iterator[Sent], round_: Round, count: int) -> None:
    """Send until so many answers came."""
    now_ms = SystemClock().wall_ms()
    goal = peer.sent - peer.waiting + count
    async with asyncio.timeout(60):
        while peer.sent - peer.waiting < goal:
            write(peer, islice(source, IN_FLIGHT - peer.waiting), round_, now_ms)
            await next(answer for _, answer in round_.answers if not answer.done())


async def seen(peer: RawPeer) -> list[int]:
    """What consumers see of each queue, once that is all that was answered so far."""
    return [(await queue_range(peer, TOPIC, queue_id))[1] for queue_id in range(QUEUES)]


async def load_and_kill(node: NodeProcess, number: int, chance: Random) -> tuple[Round, list[int]]:
    """Send; look how far queues are seen; send more, and kill. Gives what was seen before."""
    round_ = Round()
    source = messages(number, chance)
    peer, reader = await RawPeer.connect(node.broker), await RawPeer.connect(node.broker)
    await load(peer, source, round_, chance.randrange(50, 400))
    begin = await seen(reader)
    async with asyncio.timeout(20):
        while (before := await seen(reader)) == begin:
            await load(peer, source, round_, 10)
    await load(peer, source, round_, chance.randrange(20, 300))
    node.kill()
    async with asyncio.timeout(20):
        await asyncio.gather(peer.closed, reader.closed)
    round_.settle()
    return round_, before


def check(round_: Round, before: list[int], queues: list[list[Record]], begins: list[int]) -> int:
    """Of each queue, the end alone is missing; gives how many acknowledged messages that are."""
    lost = 0
    for queue_id, records in enumerate(queues):
        assert len(records) >= before[queue_id]
        assert [record.queue_offset for record in records] == list(range(len(records)))
        keys = [properties.decode(record.properties)[properties.KEYS] for record in records]
        sent = [message for message in round_.sent if message.queue_id == queue_id]
        new = keys[begins[queue_id] :]
        assert new == [message.key for message in sent[: len(new)]]
        bodies = [record.body for record in records[begins[queue_id] :]]
        assert bodies == [message.body for message in sent[: len(new)]]
        for message in sent:
            offset = round_.acknowledged.get(message.key)
            if message.key in new:
                assert offset in (None, begins[queue_id] + new.index(message.key))
            elif offset is not None:
                assert offset >= len(records)
                lost += 1
    return lost


async def test_a_kill_loses_the_end_alone(tmp_path: Path) -> None:
    chance = Random(4)
    node = ProcessCluster(tmp_path, **SETTINGS)
    await asyncio.to_thread(node.start)
    lost = 0
    try:
        peer = await RawPeer.connect(node.broker)
        await create_topic(peer, TOPIC, QUEUES)
        await peer.close()
        begins = [0] * QUEUES
        for number in range(KILLS):
            round_, before = await load_and_kill(node, number, chance)
            assert damage(verified(tmp_path / "store")) == []
            await asyncio.to_thread(node.start)
            peer = await RawPeer.connect(node.broker)
            queues = [await pull_queue(peer, TOPIC, queue_id) for queue_id in range(QUEUES)]
            await peer.close()
            lost += check(round_, before, queues, begins)
            begins = [len(records) for records in queues]
        # After a stop nothing is lost, and the files agree.
        round_ = Round()
        peer = await RawPeer.connect(node.broker)
        await load(peer, messages(KILLS, chance), round_, 100)
        await asyncio.gather(*(answer for _, answer in round_.answers))
        round_.settle()
        await peer.close()
        assert node.terminate() == 0
        await asyncio.to_thread(node.start)
        peer = await RawPeer.connect(node.broker)
        queues = [await pull_queue(peer, TOPIC, queue_id) for queue_id in range(QUEUES)]
        await peer.close()
        assert check(round_, begins, queues, begins) == 0
        assert sum(map(len, queues)) == sum(begins) + len(round_.sent)
        assert node.terminate() == 0
        assert damage(verified(tmp_path / "store", full=True)) == []
    finally:
        node.kill()
    assert lost, "no kill hit a message that was acknowledged and not written"
    assert (
        "sends are acknowledged before they are written" in (tmp_path / "cluster.log").read_text()
    )
