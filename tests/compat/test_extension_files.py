"""Stores with `consumequeue_ext` go from one broker to the other and back: filters choose the same
messages, after clean stops and after `kill -9`, and units are where the other broker expects them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cometmq.filter.tags import tag_code
from cometmq.message import properties
from cometmq.message.record import iter_decode
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import ConsumerData, Heartbeat, SubscriptionData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json
from cometmq.store.config import StoreConfig
from cometmq.store.layout import EXTENSION_UNIT, MAX_UNIT_ADDRESS, QUEUE_ENTRY, file_name
from cometmq.store.tools.verify import verify
from cometmq.testing.cluster import ProcessCluster
from tests.compat import anchor
from tests.compat.conftest import SharedPeers
from tests.operation.raw import RawPeer, create_topic, queue_range, send_header

TOPIC, GROUP, QUEUES = "extended", "extended-sql", 2
EXPRESSION = "number > 50"
UNIT_FILE_BYTES = 4_096
SETTINGS = {
    "mappedFileSizeCommitLog": str(128 * 1024),
    "mappedFileSizeConsumeQueue": str(50 * 20),
    "maxHashSlotNum": "200",
    "maxIndexNum": "600",
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
    "mappedFileSizeConsumeQueueExt": str(UNIT_FILE_BYTES),
    "flushConsumeQueueThoroughInterval": "1000",
    "enablePropertyFilter": "true",
}
OURS_OFF = SETTINGS | {"enableConsumeQueueExt": "false"}
_HEADER_HAS_SUBSCRIPTION = 4


@pytest.fixture(autouse=True)
def _no_other_java(peers: SharedPeers) -> None:
    """One Java broker at a time is enough for a test machine."""
    peers.stop_java()


@dataclass(frozen=True, slots=True)
class Brokers:
    """Both kinds of brokers over one store; ``off`` is CometMQ without the setting."""

    store: Path
    java: anchor.JavaCluster
    on: ProcessCluster
    off: ProcessCluster


@pytest.fixture
def brokers(jars: Path, tmp_path: Path) -> Iterator[Brokers]:
    """None of them runs yet."""
    on = ProcessCluster(tmp_path, **SETTINGS)
    off = ProcessCluster(tmp_path, **OURS_OFF)
    java = anchor.JavaCluster(jars, tmp_path / "java", SETTINGS, store=on.store)
    try:
        yield Brokers(on.store, java, on, off)
    finally:
        on.kill()
        off.kill()
        java.kill()


async def send(broker: str, first: int, count: int) -> None:
    """Send numbered messages with one of three tags, and register a consumer that uses SQL."""
    peer = await RawPeer.connect(broker)
    await create_topic(peer, TOPIC, QUEUES)
    subscription = SubscriptionData(TOPIC, EXPRESSION, 1, expression_type="SQL92")
    beat = Heartbeat("raw-1", (), (ConsumerData(GROUP, subscription_data_set=(subscription,)),))
    answer = await peer.ask(RequestCode.HEART_BEAT, h.NoFields(), encode_json(beat))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    for number in range(first, first + count):
        found = properties.encode({"TAGS": f"g{number % 3}", "number": str(number)}).decode()
        header = send_header(TOPIC, number % QUEUES, found, time.time_ns() // 10**6)
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, header, b"%d" % number)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    await peer.close()


async def chosen(broker: str, expression: str, kind: str) -> list[int]:
    """The numbers of the messages that a broker sends for an expression."""
    peer = await RawPeer.connect(broker)
    found: list[int] = []
    for queue_id in range(QUEUES):
        offset, end = await queue_range(peer, TOPIC, queue_id)
        while offset < end:
            header = h.PullMessage(
                consumer_group="raw", topic=TOPIC, queue_id=queue_id, queue_offset=offset,
                max_msg_nums=32, sys_flag=_HEADER_HAS_SUBSCRIPTION, commit_offset=0,
                suspend_timeout_millis=0, sub_version=0, subscription=expression,
                expression_type=kind,
            )  # fmt: skip
            answer = await peer.ask(RequestCode.PULL_MESSAGE, header)
            if answer.code == ResponseCode.SUCCESS:
                found += [int(record.body) for record in iter_decode(answer.body)]
            assert int(answer.ext["nextBeginOffset"]) > offset, (answer.code, answer.remark)
            offset = int(answer.ext["nextBeginOffset"])
    await peer.close()
    return sorted(found)


async def settled(broker: str, count: int) -> None:
    """Wait until the queues have so many messages."""
    peer = await RawPeer.connect(broker)
    async with asyncio.timeout(60):
        while sum([(await queue_range(peer, TOPIC, each))[1] for each in range(QUEUES)]) < count:
            await asyncio.sleep(0.1)
    await peer.close()


async def check(broker: str, count: int) -> None:
    """Both kinds of filters choose the right messages of all that were sent."""
    await settled(broker, count)
    every = range(count)
    assert await chosen(broker, "g1", "TAG") == [each for each in every if each % 3 == 1]
    assert await chosen(broker, "g0 || g2", "TAG") == [each for each in every if each % 3 != 1]
    assert await chosen(broker, EXPRESSION, "SQL92") == [each for each in every if each > 50]


def units(store: Path) -> list[tuple[int, int, int, int]]:
    """The unit of each queue entry, which all have one; addresses increase."""
    found: list[tuple[int, int, int, int]] = []
    for queue_id in range(QUEUES):
        folder = store / "consumequeue" / TOPIC / str(queue_id)
        raw = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
        codes = [code for _, size, code in QUEUE_ENTRY.iter_unpack(raw) if size]
        assert all(code <= MAX_UNIT_ADDRESS for code in codes)
        assert all(low < high for low, high in itertools.pairwise(codes))
        for code in codes:
            offset = code + (1 << 63)
            base = offset - offset % UNIT_FILE_BYTES
            path = store / "consumequeue_ext" / TOPIC / str(queue_id) / file_name(base)
            assert path.stat().st_size == UNIT_FILE_BYTES
            found.append(EXTENSION_UNIT.unpack_from(path.read_bytes(), offset - base))
    return found


def check_files(store: Path) -> None:
    """The tool that verifies stores takes each queue entry for right."""
    found = verify(StoreConfig(store_path_root_dir=str(store)), full=True).findings
    assert [each for each in found if each.kind.startswith("queue")] == []


def end(broker: anchor.JavaCluster | ProcessCluster, how: str) -> None:
    if how == "kill":
        broker.kill()
    elif isinstance(broker, ProcessCluster):
        assert broker.terminate() == 0
    else:
        broker.stop()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_java_store_with_units_opens_here_and_goes_back(brokers: Brokers, how: str) -> None:
    java = brokers.java
    java.start()
    asyncio.run(send(java.broker, 0, 300))
    asyncio.run(check(java.broker, 300))
    end(java, how)
    if how == "stop":
        sizes = {size for size, _, _, _ in units(brokers.store)}
        assert max(sizes) > 20, "the Java broker calculates no bit maps"
        check_files(brokers.store)
    brokers.off.start()
    asyncio.run(check(brokers.off.broker, 300))
    asyncio.run(send(brokers.off.broker, 300, 100))
    asyncio.run(check(brokers.off.broker, 400))
    end(brokers.off, how)
    brokers.on.start()
    asyncio.run(check(brokers.on.broker, 400))
    asyncio.run(send(brokers.on.broker, 400, 200))
    asyncio.run(check(brokers.on.broker, 600))
    end(brokers.on, how)
    java.start()
    asyncio.run(check(java.broker, 600))
    asyncio.run(send(java.broker, 600, 100))
    asyncio.run(check(java.broker, 700))
    end(java, how)
    brokers.on.start()
    asyncio.run(check(brokers.on.broker, 700))
    end(brokers.on, "stop")
    check_files(brokers.store)


#: Filters of groups: some match some messages, one none, one fails on each message.
FILTERS = {
    "bits-high": "number > 50",
    "bits-tag": "TAGS = 'g1' AND number BETWEEN 10 AND 60",
    "bits-none": "number < 0",
    "bits-failing": "TAGS > 3",
    "bits-missing": "absent IS NULL",
}


async def register(broker: str, group: str, expression: str) -> None:
    """Register a consumer of a group that uses SQL."""
    peer = await RawPeer.connect(broker)
    subscription = SubscriptionData(TOPIC, expression, 1, expression_type="SQL92")
    beat = Heartbeat("raw-2", (), (ConsumerData(group, subscription_data_set=(subscription,)),))
    answer = await peer.ask(RequestCode.HEART_BEAT, h.NoFields(), encode_json(beat))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    await peer.close()


async def send_with_filters(broker: str, store: Path) -> None:
    """Send messages while some groups have filters, then with more of them.

    We calculate bit maps as entries are written to their files, up to a second after the message.
    """
    await send(broker, 0, 30)
    await written(store, 30)
    groups = [*FILTERS.items()]
    for group, expression in groups[:2]:
        await register(broker, group, expression)
    await send(broker, 30, 60)
    await written(store, 90)
    for group, expression in groups[2:]:
        await register(broker, group, expression)
    await send(broker, 90, 60)
    await written(store, 150)


async def written(store: Path, count: int) -> None:
    """Wait until so many entries have a unit in the files."""
    async with asyncio.timeout(60):
        while not (store / "consumequeue" / TOPIC / "1").is_dir():
            await asyncio.sleep(0.1)
        while len(units(store)) < count:
            await asyncio.sleep(0.1)


def unit_bytes(store: Path) -> list[bytes]:
    """The files of units of each queue, without the store times."""
    found: list[bytes] = []
    for queue_id in range(QUEUES):
        folder = store / "consumequeue_ext" / TOPIC / str(queue_id)
        raw = bytearray(b"".join(path.read_bytes() for path in sorted(folder.iterdir())))
        at = 0
        while at + EXTENSION_UNIT.size <= len(raw):
            size = int.from_bytes(raw[at : at + 2], "big", signed=True)
            if size <= 0:
                at += UNIT_FILE_BYTES - at % UNIT_FILE_BYTES
                continue
            raw[at + 10 : at + 18] = bytes(8)
            at += size
        found.append(bytes(raw))
    return found


def test_bit_maps_are_those_of_java(brokers: Brokers, jars: Path, tmp_path: Path) -> None:
    """Both brokers get the same filters and messages: their units are equal, byte for byte."""
    java = anchor.JavaCluster(jars, tmp_path / "alone", SETTINGS, store=tmp_path / "alone-store")
    with java.until_killed():
        asyncio.run(send_with_filters(java.broker, java.store))
        java.stop()
    ours = brokers.on
    ours.start()
    asyncio.run(send_with_filters(ours.broker, brokers.store))
    end(ours, "stop")
    assert {size for size, _, _, _ in units(brokers.store)} == {34}
    mine = unit_bytes(brokers.store)
    assert mine == unit_bytes(java.store)
    assert len(set(mine[0])) > 10
    # A Java broker that takes over the store filters by them.
    brokers.java.start()
    for group, expression in FILTERS.items():
        asyncio.run(register(brokers.java.broker, group, expression))
    asyncio.run(check(brokers.java.broker, 150))
    end(brokers.java, "stop")


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_our_units_are_read_by_java(brokers: Brokers, how: str) -> None:
    ours, java = brokers.on, brokers.java
    ours.start()
    asyncio.run(send(ours.broker, 0, 500))
    asyncio.run(check(ours.broker, 500))
    end(ours, how)
    if how == "stop":
        codes = sorted(code for _, code, _, _ in units(brokers.store))
        assert codes == sorted(tag_code(f"g{number % 3}") for number in range(500))
    java.start()
    asyncio.run(check(java.broker, 500))
    asyncio.run(send(java.broker, 500, 200))
    asyncio.run(check(java.broker, 700))
    end(java, how)
    if how == "stop":
        assert len(units(brokers.store)) == 700
    log = "".join(path.read_text() for path in brokers.java.home.rglob("*.log"))
    assert "can't find consume queue extend file content" not in log
    ours.start()
    asyncio.run(check(ours.broker, 700))
    end(ours, "stop")
