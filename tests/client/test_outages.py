"""What fails again and again is a line when it begins, one a minute, and one when it is over."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from cometmq.client.client import Client
from cometmq.client.outages import FORGET_MS, OUTAGES_MAX, REMIND_MS, SETTLE_MS, Outages
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import (
    BrokerRefused,
    CometError,
    NotConnected,
    RequestTimedOut,
    RouteNotFound,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from tests.client.fake_broker import FakeCluster, fake_cluster, quick_config
from tests.client.scripted import Answer, eventually

GONE = NotConnected("a:1", "gone")
SEND, PULL, BEAT = (
    int(code)
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT)
)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def outages(clock: VirtualClock) -> Outages:
    return Outages(clock)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Warnings of the client so far."""
    with caplog.at_level(logging.WARNING, "cometmq"):
        yield Lines(caplog)


class Lines(list[str]):
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __iter__(self) -> Iterator[str]:
        return iter([each.getMessage() for each in self._caplog.records])

    def __eq__(self, other: object) -> bool:
        return list(iter(self)) == other

    def __len__(self) -> int:
        return len(list(iter(self)))


def test_an_outage_is_a_line_a_minute(
    outages: Outages, clock: VirtualClock, told: list[str]
) -> None:
    for _ in range(2 * REMIND_MS // 100):
        outages.failed(GONE, "t")
        outages.failed(RequestTimedOut("a:1", 11, 5), "u")
        clock.advance(100)
    outages.answered("a:1", SEND, "t")
    outages.answered("a:1", 11, "t")
    outages.answered("a:1", 11, "t")
    assert told == [
        "unavailable address=a:1 error=a:1: gone",
        "still_unavailable address=a:1 seconds=60 failures=1201 error=a:1: gone",
        "available_again address=a:1 seconds=120 failures=2400",
    ]


def test_what_is_about_a_topic_is_told_for_the_topic(outages: Outages, told: list[str]) -> None:
    for error in (
        RouteNotFound("t", "unknown"),
        BrokerRefused("a:1", 11, 1, "no"),
        CometError("x"),
    ):
        outages.failed(error, "u")
        outages.failed(error, "u")
    outages.failed(BrokerRefused("b:1", 34, 1, "no"))
    assert [line.partition(" error=")[0] for line in told] == [
        "unavailable topic=t",
        "unavailable topic=u address=a:1",
        "unavailable topic=u",
        "unavailable address=b:1",
    ]
    outages.has_route("t")
    outages.answered("a:1", 11, "other")
    outages.topic_works("u")
    outages.answered("a:1", 11, "u")
    outages.answered("b:1", 34)
    assert [line.partition(" seconds=")[0] for line in told][4:] == [
        "available_again topic=t",
        "available_again topic=u",
        "available_again topic=u address=a:1",
        "available_again address=b:1",
    ]


def test_an_outage_lasts_while_one_operation_fails(
    outages: Outages, clock: VirtualClock, told: list[str]
) -> None:
    """Sends are refused and pulls are served; heartbeats are answered and pulls are not."""
    for _ in range(10):
        outages.failed(BrokerRefused("a:1", SEND, 16, "no permission"), "t")
        outages.answered("a:1", PULL, "t")
        outages.topic_works("t")
        outages.failed(RequestTimedOut("b:1", PULL, 30_000), "t")
        outages.answered("b:1", BEAT)
        clock.advance(SETTLE_MS)
    assert [line.partition(" error=")[0] for line in told] == [
        "unavailable topic=t address=a:1",
        "unavailable address=b:1",
    ]
    outages.answered("a:1", SEND, "t")
    outages.answered("b:1", PULL, "t")
    assert list(told)[2:] == [
        "available_again topic=t address=a:1 seconds=50 failures=10",
        "available_again address=b:1 seconds=50 failures=10",
    ]


def test_an_operation_that_nobody_tries_again_does_not_prolong_an_outage(
    outages: Outages, clock: VirtualClock, told: list[str]
) -> None:
    outages.failed(RequestTimedOut("a:1", SEND, 3_000), "t")
    clock.advance(FORGET_MS)
    outages.failed(GONE)
    outages.answered("a:1", BEAT)
    assert len(told) == 2  # the second is a reminder
    clock.advance(1)
    outages.answered("a:1", BEAT)
    assert list(told)[2:] == ["available_again address=a:1 seconds=120 failures=2"]


def test_a_broker_without_an_address_is_back_with_a_route_that_has_its_master(
    outages: Outages, told: list[str]
) -> None:
    outages.failed(NotConnected("broker-a", "no route contains a master of this broker"), "t")
    outages.has_route("t", ["broker-b"])
    assert len(told) == 1
    outages.has_route("u", ["broker-a"])
    assert list(told)[1:] == ["available_again address=broker-a seconds=0 failures=1"]


def test_requests_that_were_in_flight_at_the_end_begin_no_outage(
    outages: Outages, clock: VirtualClock, told: list[str]
) -> None:
    outages.failed(GONE)
    outages.answered("a:1", 34)
    clock.advance(SETTLE_MS - 1)
    outages.failed(GONE)
    assert len(told) == 2
    clock.advance(1)
    outages.failed(GONE)
    assert len(told) == 3


def test_an_outage_that_nobody_ended_is_forgotten(
    outages: Outages, clock: VirtualClock, told: list[str]
) -> None:
    outages.failed(GONE)
    clock.advance(FORGET_MS + 1)
    outages.failed(GONE)
    assert told == ["unavailable address=a:1 error=a:1: gone"] * 2


def test_outages_are_limited(outages: Outages) -> None:
    for number in range(OUTAGES_MAX + 5):
        outages.failed(NotConnected(f"a:{number}", "gone"))
    assert len(outages._known) == OUTAGES_MAX


async def test_a_broker_away_with_five_subscriptions(told: list[str]) -> None:
    async with fake_cluster() as cluster:
        (broker,) = cluster.brokers
        for number in range(5):
            cluster.create(f"t{number}", 4)
        async with Client(config=quick_config(cluster, pull_error_pause_ms=10)) as client:
            for number in range(5):
                await client.subscribe(f"t{number}", group=f"g{number}").start()
            await eventually(lambda: len(broker._parked) >= 20)
            address, port = broker.peer.address, broker.peer.port
            await broker.peer.close()
            attempts = len(cluster.namesrv.requests) + 200
            await eventually(lambda: len(cluster.namesrv.requests) > attempts)
            assert [line.partition(" error=")[0] for line in told] == [
                f"unavailable address={address}"
            ]
            await broker.peer.listen(port)
            await eventually(lambda: len(told) > 1)
            assert f"available_again address={address} " in list(told)[1]
        assert len(told) == 2


async def test_an_unknown_topic_and_a_name_server_away(
    cluster: FakeCluster, told: list[str]
) -> None:
    async with Client(config=quick_config(cluster)) as client:
        await client.subscribe("nowhere", group="g").start()
        asked = len(cluster.namesrv.requests) + 20
        await eventually(lambda: len(cluster.namesrv.requests) > asked)
        assert [line.partition(" error=")[0] for line in told] == ["unavailable topic=nowhere"]
        address, port = cluster.namesrv.address, cluster.namesrv.port
        await cluster.namesrv.close()
        await eventually(lambda: len(told) > 1)
        assert f"unavailable address={address} " in list(told)[1]
        known = client.session.outages._known["", address]
        await eventually(lambda: known.failures > 20)
        await cluster.namesrv.listen(port)
        cluster.create("nowhere", 1)
        await eventually(lambda: len(told) > 3)
        assert [line.split()[1] for line in list(told)[2:]] == [
            f"address={address}",
            "topic=nowhere",
        ]


@pytest.mark.parametrize("linger_ms", [0, 5])
async def test_sends_that_are_refused_and_served_again(told: list[str], linger_ms: int) -> None:
    """Sends end the outage of sends, and pulls do not."""
    async with (
        fake_cluster() as cluster,
        Client(config=quick_config(cluster, linger_ms=linger_ms)) as client,
    ):
        (broker,) = cluster.brokers
        cluster.create("t", 1)
        await client.subscribe("t", group="g").start()
        await client.send("t", b"1")
        script = broker.peer.scripts[SEND]
        broker.peer.on(SEND, Answer(ResponseCode.NO_PERMISSION, remark="no"))
        with pytest.raises(BrokerRefused):
            await client.send("t", b"2")
        pulls = len(broker.peer.received(PULL))
        broker.put("t", body=b"3")  # it ends a pull
        await eventually(lambda: len(broker.peer.received(PULL)) > pulls)
        assert len(told) == 1
        broker.peer.on(SEND, script)
        await client.send("t", b"4")
        place = f"topic=t address={broker.peer.address}"
        assert [line.split(" error=")[0].split(" seconds=")[0] for line in told] == [
            f"unavailable {place}",
            f"available_again {place}",
        ]
