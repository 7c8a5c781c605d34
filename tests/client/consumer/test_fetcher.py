"""Queues read ahead of a consumer: where a fetcher begins, moves and stops.

How it pulls, and what it does when pulls fail, is shown with whole consumers
(test_pushconsumer.py).
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import pytest

from cometmq.client.consumer.fetcher import Fetcher
from cometmq.client.consumer.inflight import InFlight
from cometmq.client.consumer.offsets import RemoteOffsets, StartPositions
from cometmq.client.pull import Puller
from cometmq.client.session import Session
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Request
from cometmq.protocol.headers import PullMessageResponse
from tests.client.consumer.test_options import options
from tests.client.fake_broker import FakeBroker, FakeCluster
from tests.client.scripted import Answer, eventually

QUEUE = MessageQueue("t", "broker-0", 0)
OTHER = MessageQueue("t", "broker-0", 1)


def fetcher_of(session: Session, offered: list[InFlight], **changes: Any) -> Fetcher:
    wanted = options(start="first")
    puller = Puller(session)
    starts = StartPositions(session, wanted, RemoteOffsets(session, "g"), puller)
    return Fetcher(session, wanted, starts, offer=offered.append, **changes)


def fill(broker: FakeBroker, *texts: str, queue_id: int = 0) -> None:
    for text in texts:
        broker.put("t", queue_id, text.encode())


async def test_a_queue_is_read_from_where_the_group_stands_until_it_is_stopped(
    session: Session, broker: FakeBroker
) -> None:
    fill(broker, *"abc")
    broker.offsets["g", "t", 0] = 1
    offered: list[InFlight] = []
    fetcher = fetcher_of(session, offered)
    assert await fetcher.start(QUEUE)
    await eventually(lambda: offered)
    assert (offered[0].ready_count, offered[0].committable) == (2, 1)
    assert fetcher.find(QUEUE) is offered[0]
    assert fetcher.inflights() == offered[:1]
    assert (fetcher.queues(), fetcher.queues("t"), fetcher.queues("u")) == ([QUEUE], [QUEUE], [])
    stopped = fetcher.stop(QUEUE)
    assert stopped.dropped
    assert (fetcher.find(QUEUE), fetcher.queues()) == (None, [])


async def test_a_queue_is_moved_while_its_pull_is_held(
    session: Session, broker: FakeBroker
) -> None:
    fill(broker, *"abc")
    offered: list[InFlight] = []
    fetcher = fetcher_of(session, offered)
    fetcher.start_at(QUEUE, 3)
    await eventually(lambda: broker.peer.received(RequestCode.PULL_MESSAGE))
    assert not offered
    fetcher.start_at(QUEUE, 1)
    await eventually(lambda: offered)
    assert (offered[0].ready_count, offered[0].next_offset) == (2, 3)


async def test_a_broker_that_lost_its_last_messages_takes_none_of_those_before(
    session: Session, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, *"abcd")
    offered: list[InFlight] = []
    fetcher = fetcher_of(session, offered)
    fetcher.start_at(QUEUE, 0)
    await eventually(lambda: offered and offered[0].ready_count == 4)
    inflight = offered[0]
    first = inflight.take(0)
    assert first is not None
    await eventually(lambda: broker._parked["t", 0])
    del broker.queues["t", 0][2:]
    with caplog.at_level(logging.WARNING):
        # The pull that is held is woken by a message in a place that was read before.
        fill(broker, "e")
        await eventually(lambda: "offset_moved" in caplog.text)
    fill(broker, "f")
    await eventually(lambda: inflight.next_offset == 4)
    assert inflight.settle(first)
    assert inflight.committable == 1
    rest = [each.body for each in iter(lambda: inflight.take(0), None)]
    assert rest == [b"b", b"c", b"f"]


async def test_a_slave_that_lacks_messages_is_asked_again_after_a_wait(
    session: Session, broker: FakeBroker
) -> None:
    fill(broker, "a")
    answers = broker.peer.scripts[RequestCode.PULL_MESSAGE]
    asked_ms: list[int] = []

    def behind(request: Request[Any]) -> Answer | None:
        asked_ms.append(session.clock.monotonic_ms())
        if len(asked_ms) > 4:
            return answers(request)
        return Answer(ResponseCode.PULL_RETRY_IMMEDIATELY, PullMessageResponse(0, 0, 0, 0))

    broker.peer.on(RequestCode.PULL_MESSAGE, behind)
    offered: list[InFlight] = []
    fetcher_of(session, offered).start_at(QUEUE, 0)
    await eventually(lambda: len(asked_ms) > 4)
    waits_ms = [after - before for before, after in pairwise(asked_ms[1:5])]
    # The second question comes at once: it may be the master's. Timers end a bit early.
    assert min(waits_ms) >= session.config.pull_error_pause_ms - 5


async def test_who_may_not_pull_waits(
    session: Session, cluster: FakeCluster, broker: FakeBroker
) -> None:
    cluster.create("t", 2)
    fill(broker, "a")
    fill(broker, "b", queue_id=1)
    offered: list[InFlight] = []
    held = {QUEUE}
    fetcher = fetcher_of(session, offered, may_pull=lambda inflight: inflight.queue not in held)
    fetcher.start_at(QUEUE, 0)
    fetcher.start_at(OTHER, 0)
    await eventually(lambda: offered)
    assert [each.queue for each in offered] == [OTHER]
    held.clear()
    await eventually(lambda: len(offered) == 2)


async def test_who_is_no_member_carries_its_subscription_and_tells_no_progress(
    session: Session, broker: FakeBroker
) -> None:
    fill(broker, "a", "b")
    offered: list[InFlight] = []
    fetcher = fetcher_of(session, offered, is_member=False)
    fetcher.start_at(QUEUE, 0)
    await eventually(lambda: offered)
    inflight = offered[0]
    while (message := inflight.take(0)) is not None:
        inflight.settle(message)
    fill(broker, "c")
    await eventually(lambda: len(broker.peer.received(RequestCode.PULL_MESSAGE)) >= 3)
    flags = {each.header.sys_flag for each in broker.peer.received(RequestCode.PULL_MESSAGE)}
    assert flags == {6}


async def test_nothing_starts_after_the_stop(
    session: Session, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    offered: list[InFlight] = []
    fetcher = fetcher_of(session, offered)
    fetcher.stop_pulling()
    assert await fetcher.start(QUEUE)
    assert fetcher.queues() == []
    broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, Answer(1, remark="no"))
    with caplog.at_level(logging.WARNING):
        assert not await fetcher.start(QUEUE)
    assert "unavailable topic=t" in caplog.text
