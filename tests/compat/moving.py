"""What a store can hold, put into it through a running broker and looked for after a move.

All of it goes over bare connections and our client, so that both kinds of brokers are asked the
same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cometmq.client.client import Client
from cometmq.message import properties
from cometmq.message.model import Message, MessageView
from cometmq.message.record import Record
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode, ResponseCode
from tests.operation.raw import RawPeer, create_topic, pull_queue, query_keys, queue_range

OLD, PLAIN, OPEN = "moves-old", "moves-plain", "moves-open"
GROUP: Final = "moves"
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
QUEUES: Final = {OLD: 4, PLAIN: 4, OPEN: 4, RETRY: 1, DEAD: 1}
FILE_BYTES: Final = 128 * 1024
#: Several files of each kind; transactions are asked for soon, and for as long as it takes; what is
#: older than an hour goes, but only when it is told to.
SETTINGS: Final[Mapping[str, str]] = {
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "mappedFileSizeConsumeQueue": str(50 * 20),
    "maxHashSlotNum": "200",
    "maxIndexNum": "600",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionCheckMax": "1000",
    "fileReservedTime": "1",
    "deleteWhen": "99",
    "flushConsumeQueueThoroughInterval": "1000",
}
_OLD_MESSAGES: Final = 1_000
_AHEAD_FILES: Final = 3
_PATIENCE_S: Final = 100
Contents = dict[tuple[str, int], list[Record]]


async def until(holds: Callable[[], bool], what: str, limit_s: float = 30) -> None:
    """Wait until something holds."""
    try:
        async with asyncio.timeout(limit_s):
            while not holds():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {limit_s} s: {what}") from None


def body_of(record: Record) -> str:
    """The beginning of a body, which says what it is."""
    return record.body.partition(b".")[0].decode(errors="replace")


async def contents(broker: str) -> Contents:
    """Every message that can be read; offsets are dense."""
    peer = await RawPeer.connect(broker)
    found: Contents = {}
    for topic, count in QUEUES.items():
        for queue_id in range(count):
            records = await pull_queue(peer, topic, queue_id)
            offsets = [record.queue_offset for record in records]
            first, end = await queue_range(peer, topic, queue_id)
            assert offsets == list(range(first, first + len(offsets)))
            assert end >= first + len(offsets)
            found[topic, queue_id] = records
    await peer.close()
    return found


def check_kept(before: Contents, after: Contents) -> list[Record]:
    """That every message is where it was, as it was; gives those that came since."""
    new: list[Record] = []
    for place, records in before.items():
        assert after[place][: len(records)] == records, place
        new += after[place][len(records) :]
    return new


async def check_keys(broker: str) -> None:
    """That every key and unique key leads to its messages and to nothing else."""
    peer = await RawPeer.connect(broker)
    for topic in (OLD, PLAIN):
        # A Java broker writes its index by and by. After a kill either delivers what was delayed
        # once more, a moment after its start: keys lead there too, so each look is at all there is.
        async with asyncio.timeout(20):
            while True:
                places = places_by_key(await contents(broker), topic)
                assert len(places) > 100
                answers = await query_keys(peer, topic, list(places))
                lost = [
                    key
                    for key, records in answers.items()
                    if {(record.queue_id, record.queue_offset) for record in records} != places[key]
                ]
                if not lost:
                    break
                assert len(lost) < len(places), lost[:5]
                await asyncio.sleep(0.2)
    await peer.close()


def places_by_key(held: Contents, topic: str) -> dict[str, set[tuple[int, int]]]:
    """Queue ids and offsets of the messages with each key and unique key."""
    places: dict[str, set[tuple[int, int]]] = {}
    for queue_id in range(QUEUES[topic]):
        for record in held[topic, queue_id]:
            found = properties.decode(record.properties)
            for key in [found[properties.UNIQ_KEY], *found.get(properties.KEYS, "").split()]:
                places.setdefault(key, set()).add((queue_id, record.queue_offset))
    return places


# --- old files -----------------------------------------------------------------------------------


async def fill_with_old(broker: str, namesrv: str) -> None:
    """Several log files of messages that are to be too old."""
    peer = await RawPeer.connect(broker)
    for topic in (OLD, PLAIN, OPEN):
        await create_topic(peer, topic, QUEUES[topic])
    await peer.close()
    async with Client(namesrv, send_timeout_ms=10_000) as client:
        for number in range(_OLD_MESSAGES):
            body = b"old-%d." % number + bytes(600)
            await client.send(OLD, body, keys=[f"old-{number}"])


async def drop_old(broker: str, store: Path) -> list[str]:
    """Let full files become older than they are kept, and wait until the broker, told to, has
    dropped some; gives keys of messages that are gone."""
    peer = await RawPeer.connect(broker)
    folder = store / "commitlog"
    before = sorted(folder.iterdir())
    aged = before[:-_AHEAD_FILES]
    assert len(aged) >= 2
    async with asyncio.timeout(_PATIENCE_S):
        while aged[1].exists():
            for path in aged:
                if path.exists():
                    moment = path.stat().st_mtime - 7_200
                    os.utime(path, (moment, moment))
            answer = await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG, h.NoFields())
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            await asyncio.sleep(0.5)
        for queue_id in range(QUEUES[OLD]):
            while not (await queue_range(peer, OLD, queue_id))[0]:
                await asyncio.sleep(0.5)
    await peer.close()
    return ["old-0", "old-1", "old-2"]


async def check_gone(broker: str, keys: list[str]) -> None:
    """That what was dropped is not found any more."""
    peer = await RawPeer.connect(broker)
    found = await query_keys(peer, OLD, keys)
    assert {key: len(records) for key, records in found.items()} == dict.fromkeys(keys, 0)
    for queue_id in range(QUEUES[OLD]):
        first, end = await queue_range(peer, OLD, queue_id)
        assert 0 < first < end
    await peer.close()


# --- all kinds of messages -----------------------------------------------------------------------


async def fill(broker: str, namesrv: str) -> None:
    """Plain, tagged, batched, large, delayed, retried and dead messages; open transactions."""
    async with Client(namesrv, send_timeout_ms=10_000) as client:
        for number in range(200):
            await client.send(PLAIN, b"plain-%d." % number, keys=[f"plain-{number}"])
        for number in range(60):
            body = b"tagged-%d." % number + bytes(700)
            await client.send(PLAIN, body, tag="abc"[number % 3], keys=[f"a{number}", f"b{number}"])
        await send_batches(client, "batch")
        for number in range(5):
            await client.send(PLAIN, b"large-%d." % number + bytes(20_000), keys=[f"l{number}"])
        for number in range(2):
            await client.send(PLAIN, b"parked-%d." % number, delay_level=18)
        await send_back(client, broker)
        for name in ("first", "early", "second", "late"):
            async with client.transaction(OPEN, name.encode(), group=GROUP) as tx:
                if name in ("early", "late"):
                    tx.leave_open()
    await settled(broker, {"first", "second"})


async def send_batches(client: Client, prefix: str) -> None:
    """Ten batches of sixteen."""
    for first in range(0, 160, 16):
        numbers = range(first, first + 16)
        await client.send_batch(
            [
                Message(PLAIN, f"{prefix}-{number}.".encode(), keys=(f"{prefix}-{number}",))
                for number in numbers
            ]
        )


async def send_back(client: Client, broker: str) -> None:
    """Three messages that a consumer refused, and two that it gave up."""
    peer = await RawPeer.connect(broker)
    for number, level in enumerate((1, 1, 1, -1, -1)):
        sent = await client.send(PLAIN, b"refused-%d." % number)
        back = h.ConsumerSendMsgBack(int(sent.offset_id[-16:], 16), GROUP, level)
        answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    async with asyncio.timeout(30):
        for topic, count in ((RETRY, 3), (DEAD, 2)):
            while (await queue_range(peer, topic, 0))[1] < count:
                await asyncio.sleep(0.1)
    await peer.close()


async def send_late(namesrv: str) -> None:
    """One that comes when its broker is gone."""
    async with Client(namesrv, send_timeout_ms=10_000) as client:
        await client.send(PLAIN, b"delayed.", delay_level=2)


async def arrived(broker: str, body: str) -> None:
    """Wait until a message is in the plain topic."""
    async with asyncio.timeout(40):
        while True:
            held = await contents(broker)
            if any(body_of(record) == body for q in range(4) for record in held[PLAIN, q]):
                return
            await asyncio.sleep(0.2)


async def go_on(namesrv: str, prefix: str) -> None:
    """More messages to the same queues."""
    async with Client(namesrv, send_timeout_ms=10_000) as client:
        for number in range(60):
            await client.send(PLAIN, f"{prefix}{number}.".encode(), keys=[f"{prefix}{number}"])
        await send_batches(client, f"{prefix}batch")


# --- transactions --------------------------------------------------------------------------------


@dataclass(slots=True)
class Watcher:
    """A client of the producer group that knows how some transactions ended."""

    committed: set[bytes]
    asked: set[bytes] = field(default_factory=set)

    async def check(self, message: MessageView) -> bool | None:
        """Commit what is known to be committed; of the rest nothing is known."""
        self.asked.add(message.body)
        return True if message.body in self.committed else None


async def settled(broker: str, committed: set[str]) -> None:
    """Wait until exactly these transactions are visible."""
    async with asyncio.timeout(40):
        while True:
            held = await contents(broker)
            found = [body_of(record) for q in range(4) for record in held[OPEN, q]]
            assert len(found) == len(set(found))
            if set(found) >= committed:
                assert set(found) == committed
                return
            await asyncio.sleep(0.1)


async def end_transactions(broker: str, namesrv: str, ends: str, expected: set[bytes]) -> None:
    """Answer the broker's questions: one transaction is committed; those in ``expected``, and no
    others, are asked for."""
    watcher = Watcher({ends.encode()})
    async with Client(namesrv, send_timeout_ms=10_000) as client:
        client.transaction_checker(GROUP)(watcher.check)
        await until(lambda: watcher.asked >= expected, f"questions for {expected}")
    assert watcher.asked == expected
