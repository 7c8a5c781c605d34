"""Offsets reach the broker when they changed, and the file survives what files go through. A member
begins at what is stored, or at what its options say of each queue."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.client.consumer.offsets import (
    LocalOffsets,
    RemoteOffsets,
    StartPositions,
    offsets_path,
)
from cometmq.client.pull import Puller
from cometmq.client.session import Session
from cometmq.core.errors import BrokerRefused
from cometmq.message.model import MessageQueue
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import TopicRoute
from cometmq.protocol.codes import RequestCode
from tests.client.consumer.test_options import options
from tests.client.fake_broker import FakeBroker, FakeCluster
from tests.client.scripted import Answer, eventually, scripted_peer

ONE = MessageQueue("t", "broker-0", 0)
TWO = MessageQueue("t", "broker-0", 1)
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
QUERY = RequestCode.QUERY_CONSUMER_OFFSET
GET_ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@pytest.fixture
def offsets(cluster: FakeCluster, session: Session) -> RemoteOffsets:
    cluster.create("t", 2)
    return RemoteOffsets(session, "g")


def announce(cluster: FakeCluster, route: TopicRoute) -> None:
    """Name servers tell of the topic so from now on."""
    cluster.namesrv.on(GET_ROUTE, Answer(body=msgspec.json.encode(route)))


async def persist_twice(offsets: RemoteOffsets) -> None:
    """What is told the first time need not be the second time."""
    await offsets.persist()
    await offsets.persist()


async def test_only_what_changed_is_stored(broker: FakeBroker, offsets: RemoteOffsets) -> None:
    assert await offsets.load(ONE) is None
    offsets.update(ONE, 5)
    offsets.update(TWO, 7)
    await offsets.persist()
    await offsets.persist()
    assert len(broker.peer.received(UPDATE)) == 2
    assert (broker.offset("g", "t", 0), broker.offset("g", "t", 1)) == (5, 7)
    assert await offsets.load(TWO) == 7
    offsets.update(ONE, 6)
    offsets.update(TWO, 9)
    await offsets.persist([ONE])
    assert (broker.offset("g", "t", 0), broker.offset("g", "t", 1)) == (6, 7)


async def test_what_a_former_member_says_late_is_put_right(
    broker: FakeBroker, offsets: RemoteOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets.update(ONE, 5)
    await offsets.persist()
    broker.offsets["g", "t", 0] = 4
    await offsets.persist()
    assert broker.offset("g", "t") == 4
    monkeypatch.setattr("cometmq.client.consumer.offsets._REPEAT_MS", 0)
    await offsets.persist()
    assert broker.offset("g", "t") == 5


async def test_an_offset_that_was_loaded_need_not_be_stored(
    broker: FakeBroker, offsets: RemoteOffsets
) -> None:
    broker.offsets["g", "t", 0] = 3
    assert await offsets.load(ONE) == 3
    offsets.update(ONE, 3)
    await offsets.persist()
    assert not broker.peer.received(UPDATE)


async def test_an_update_waits_for_the_one_before(
    broker: FakeBroker, offsets: RemoteOffsets
) -> None:
    """A broker with several threads could end with the older one."""
    offsets.update(TWO, 0)
    await offsets.persist()
    broker.peer.on(UPDATE, None)
    offsets.update(ONE, 5)
    offsets.update(TWO, 1)
    period = asyncio.create_task(offsets.persist())
    await eventually(lambda: len(broker.peer.received(UPDATE)) == 3)
    offsets.update(ONE, 6)
    handing_over = asyncio.create_task(offsets.persist([ONE]))
    forgotten = asyncio.create_task(offsets.persist([TWO], unchanged_too=True))
    offsets.update(ONE, 7)
    offsets.forget(TWO)
    # Requests come in order: had an update been sent, it would be here before this one.
    assert await offsets.peek(ONE) is None
    assert len(broker.peer.received(UPDATE)) == 3
    broker.peer.on(UPDATE, Answer())
    for request in broker.peer.received(UPDATE)[1:]:
        broker.peer.connections[0].answer(request)
    await asyncio.gather(period, handing_over, forgotten)
    told = [(r.header.queue_id, r.header.commit_offset) for r in broker.peer.received(UPDATE)]
    assert told == [(1, 0), (1, 1), (0, 5), (0, 7)]


async def test_the_first_offset_of_a_topic_is_sent_alone(
    broker: FakeBroker, offsets: RemoteOffsets
) -> None:
    """Java's broker can lose one of two that arrive together, though it answers both."""
    assert not offsets.has_offsets(ONE)
    broker.peer.on(UPDATE, None)
    offsets.update(ONE, 5)
    offsets.update(TWO, 7)
    period = asyncio.create_task(offsets.persist())
    await eventually(lambda: len(broker.peer.received(UPDATE)) == 1)
    # Requests come in order: had the second update been sent, it would be here before this one.
    assert await offsets.peek(ONE) is None
    assert len(broker.peer.received(UPDATE)) == 1
    broker.peer.on(UPDATE, Answer())
    broker.peer.connections[0].answer(broker.peer.received(UPDATE)[0])
    await period
    assert [r.header.queue_id for r in broker.peer.received(UPDATE)] == [0, 1]
    assert offsets.has_offsets(TWO)


async def test_queues_do_not_wait_one_after_the_other_for_a_broker_that_is_away(
    broker: FakeBroker, offsets: RemoteOffsets
) -> None:
    broker.peer.on(UPDATE, None)
    offsets.update(ONE, 5)
    offsets.update(TWO, 7)
    await offsets.persist()
    assert len(broker.peer.received(UPDATE)) == 1
    broker.peer.on(UPDATE, Answer())
    await offsets.persist()
    assert sorted(r.header.queue_id for r in broker.peer.received(UPDATE)[1:]) == [0, 1]


async def test_what_failed_is_stored_the_next_time(
    broker: FakeBroker, offsets: RemoteOffsets, caplog: pytest.LogCaptureFixture
) -> None:
    script = broker.peer.scripts[UPDATE]
    broker.peer.on(UPDATE, Answer(1, remark="no"))
    offsets.update(ONE, 5)
    with caplog.at_level(logging.WARNING):
        await offsets.persist()
    assert "unavailable topic=t" in caplog.text
    broker.peer.on(UPDATE, script)
    await offsets.persist()
    assert broker.offset("g", "t") == 5


async def test_a_broker_that_was_away_is_told_again(
    broker: FakeBroker, offsets: RemoteOffsets
) -> None:
    broker.offsets["g", "t", 0] = 5
    assert await offsets.load(ONE) == 5
    broker.offsets["g", "t", 0] = 3  # as it was when the broker wrote its table last
    broker.peer.break_off()
    await eventually(lambda: offsets._session.remoting.losses)
    await persist_twice(offsets)
    assert broker.offset("g", "t") == 5
    assert len(broker.peer.received(UPDATE)) == 1


async def test_what_a_slave_was_told_is_told_again_until_the_master_hears_it(
    cluster: FakeCluster, broker: FakeBroker, offsets: RemoteOffsets
) -> None:
    async with scripted_peer() as slave:
        route = cluster.route("t", 2)
        addresses = route.broker_datas[0].broker_addrs
        master = addresses.copy()
        addresses.clear()
        addresses["1"] = slave.address
        announce(cluster, route)
        slave.on(QUERY, Answer(header=h.QueueOffsetResponse(3)))
        slave.on(UPDATE, Answer())
        await offsets._session.subscribe_queues("t")
        # It may have been told by another member, and have its master's again soon.
        assert await offsets.load(ONE) == 3
        await offsets.persist()
        offsets.update(ONE, 5)
        await persist_twice(offsets)
        assert [r.header.commit_offset for r in slave.received(UPDATE)] == [3, 5, 5]
        addresses.update(master)
        announce(cluster, route)
        await offsets._session.refresh("t")
        await persist_twice(offsets)
    assert broker.offset("g", "t") == 5
    assert len(broker.peer.received(UPDATE)) == 1


async def test_what_the_master_before_was_told_is_told_the_one_that_took_its_place(
    cluster: FakeCluster, broker: FakeBroker, offsets: RemoteOffsets
) -> None:
    async with scripted_peer() as before:
        route = cluster.route("t", 2)
        addresses = route.broker_datas[0].broker_addrs
        promoted = addresses["0"]
        addresses["0"] = before.address
        announce(cluster, route)
        before.on(UPDATE, Answer())
        await offsets._session.subscribe_queues("t")
        offsets.update(ONE, 5)
        await persist_twice(offsets)
        assert len(before.received(UPDATE)) == 1
        # It has come back as a slave, and takes offsets that it will not keep.
        addresses.update({"0": promoted, "1": before.address})
        announce(cluster, route)
        await offsets._session.refresh("t")
        await persist_twice(offsets)
    assert broker.offset("g", "t") == 5
    assert len(broker.peer.received(UPDATE)) == 1


async def test_a_queue_of_somebody_else_is_left_alone(
    broker: FakeBroker, offsets: RemoteOffsets
) -> None:
    offsets.update(ONE, 5)
    offsets.forget(ONE)
    await offsets.persist()
    await offsets.persist([ONE])
    assert not broker.peer.received(UPDATE)


async def test_a_broker_that_refuses_to_say(broker: FakeBroker, offsets: RemoteOffsets) -> None:
    broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, Answer(1, remark="no"))
    with pytest.raises(BrokerRefused):
        await offsets.load(ONE)


async def test_the_file_is_found_again(tmp_path: Path) -> None:
    path = offsets_path(tmp_path, "10.0.0.1", "DEFAULT", "g")
    assert path == tmp_path / "10.0.0.1@DEFAULT" / "g" / "offsets.json"
    offsets = LocalOffsets(path)
    assert await offsets.load(ONE) is None
    await offsets.persist()
    assert not path.exists()
    offsets.update(ONE, 5)
    offsets.update(TWO, 7)
    offsets.forget(TWO)
    await offsets.persist()
    assert path.read_text() == (
        '{"offsetTable":{{"brokerName":"broker-0","queueId":0,"topic":"t"}:5,'
        '{"brokerName":"broker-0","queueId":1,"topic":"t"}:7}}'
    )
    again = LocalOffsets(path)
    assert (await again.load(ONE), await again.load(TWO)) == (5, 7)


async def test_a_file_that_did_not_change_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    offsets = LocalOffsets(path)
    offsets.update(ONE, 5)
    await offsets.persist()
    path.unlink()
    offsets.update(ONE, 5)
    await offsets.persist()
    assert not path.exists()


async def test_a_broken_file_gives_way_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "offsets.json"
    offsets = LocalOffsets(path)
    for offset in (5, 6):
        offsets.update(ONE, offset)
        await offsets.persist()
    path.write_text("{broken")
    with caplog.at_level(logging.WARNING):
        assert await LocalOffsets(path).load(ONE) == 5
    assert "offset_file_unreadable" in caplog.text
    path.unlink()
    assert await LocalOffsets(path).load(ONE) == 5
    path.with_suffix(".json.bak").write_text("[]")
    assert await LocalOffsets(path).load(ONE) is None


async def test_a_file_as_java_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(
        '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-0",\n\t\t\t"queueId":1,'
        '\n\t\t\t"topic":"t"\n\t\t}:42\n\t}\n}'
    )
    assert await LocalOffsets(path).load(TWO) == 42


async def test_a_folder_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    offsets = LocalOffsets(tmp_path / "file" / "offsets.json")
    offsets.update(ONE, 5)
    with caplog.at_level(logging.WARNING):
        await offsets.persist()
    assert "offset_file_not_written" in caplog.text
    (tmp_path / "file").unlink()
    await offsets.persist()
    assert (tmp_path / "file" / "offsets.json").exists()


OLD = MessageQueue("t", "broker-0", 0)
NEW = MessageQueue("t", "broker-0", 1)


async def joined(session: Session, **changes: Any) -> StartPositions:
    wanted = options(**changes)
    starts = StartPositions(session, wanted, RemoteOffsets(session, "g"), Puller(session))
    await starts.joining()
    return starts


def fill(broker: FakeBroker, queue_id: int, *times_ms: int) -> None:
    for store_ms in times_ms:
        broker.put("t", queue_id, b"x", store_ms=store_ms)


async def test_what_is_stored_comes_first(session: Session, broker: FakeBroker) -> None:
    fill(broker, 0, 1, 2, 3)
    broker.offsets["g", "t", 0] = 2
    for start in ("first", "last", 3):
        assert await (await joined(session, start=start)).of(OLD) == 2


@pytest.mark.parametrize(("start", "expected"), [("first", 0), ("last", 4), (20, 1), (21, 3)])
async def test_a_new_group_begins_where_it_wants(
    session: Session, broker: FakeBroker, start: Any, expected: int
) -> None:
    fill(broker, 0, 10, 20, 20, 30)
    assert await (await joined(session, start=start)).of(OLD) == expected


async def test_retried_messages_are_all_read(session: Session, broker: FakeBroker) -> None:
    retried = MessageQueue("%RETRY%g", "broker-0", 0)
    broker.put("%RETRY%g", 0, b"x")
    assert await (await joined(session, start="last")).of(retried) == 0


async def test_of_a_queue_that_comes_later_everything_since_the_join_is_read(
    session: Session, cluster: FakeCluster, broker: FakeBroker
) -> None:
    starts = await joined(session, start="last")
    cluster.create("t", 2)
    await session.refresh("t")
    now_ms = session.clock.wall_ms()
    fill(broker, 1, 10, 20, now_ms + 1, now_ms + 2)
    fill(broker, 0, 10, now_ms + 1)
    assert await starts.of(NEW) == 2
    assert await starts.of(OLD) == 2


async def test_of_a_topic_that_is_not_there_yet_everything_is_read(
    session: Session, cluster: FakeCluster, broker: FakeBroker
) -> None:
    starts = await joined(session, topics="later", start="last")
    cluster.create("later", 1)
    await session.refresh("later")
    broker.put("later", 0, b"x", store_ms=session.clock.wall_ms() + 1)
    assert await starts.of(MessageQueue("later", "broker-0", 0)) == 0


async def test_without_name_servers_nobody_knows_what_is_new(
    session: Session, cluster: FakeCluster, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    script = cluster.namesrv.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC]
    cluster.namesrv.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, Answer(1, remark="not now"))
    with caplog.at_level(logging.WARNING):
        starts = await joined(session, start="last")
    assert "unavailable topic=t" in caplog.text
    cluster.namesrv.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, script)
    fill(broker, 0, session.clock.wall_ms() + 1)
    assert await starts.of(OLD) == 1


async def test_a_broker_that_does_not_say_is_an_error(session: Session, broker: FakeBroker) -> None:
    starts = await joined(session)
    broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, Answer(1, remark="no"))
    with pytest.raises(BrokerRefused):
        await starts.of(OLD)


async def test_brokers_are_told_not_to_begin_at_zero(session: Session, broker: FakeBroker) -> None:
    await (await joined(session)).of(OLD)
    (asked,) = broker.peer.received(RequestCode.QUERY_CONSUMER_OFFSET)
    assert asked.header.set_zero_if_not_found == "false"
