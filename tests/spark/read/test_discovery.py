"""Asking for the ends of queues, gently and through outages."""

import logging
from typing import Any

import pytest

from cometmq.core.errors import NotConnected, RouteNotFound
from cometmq.message.model import MessageQueue
from cometmq.protocol.frame import Request
from cometmq.spark.brokers import cluster
from cometmq.spark.brokers.cluster import NameServersAway
from cometmq.spark.brokers.offsets import EndOffsets
from cometmq.spark.read import discovery
from cometmq.spark.read.discovery import AWAY_MAX_MS, AWAY_MIN_MS, Backoff, Discovery
from tests.compat.anchor import wait_until
from tests.spark.scripted import Answer, ScriptedCluster
from tests.spark.topics import options

QUEUE = MessageQueue("T", "broker-a", 0)


def seven(_: Request[Any]) -> Answer:
    return 0, {"offset": "7"}, b""


def test_routes_are_asked_for_now_and_then() -> None:
    with ScriptedCluster("T", seven) as peers:
        found = Discovery(options(peers.namesrv, "T"))
        assert [found.ends() for _ in range(5)] == [EndOffsets({QUEUE: 7}, frozenset())] * 5
        assert peers.routes_asked.count("T") < 5


def test_asking_rests_after_a_round_of_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    now_ms = 0

    class Clock:
        def monotonic_ms(self) -> int:
            nonlocal now_ms
            now_ms += 10
            return now_ms

    class Pause:
        def wait(self, seconds: float) -> None:
            rests.append(seconds * 1000)

    with ScriptedCluster("T", seven) as peers:
        found = Discovery(options(peers.namesrv, "T"))
        monkeypatch.setattr(discovery, "_clock", Clock())
        monkeypatch.setattr(discovery, "_pause", Pause())
        found.ends()
        found.ends()
        found.has_news()
        found.ends()
    assert rests[0] == rests[2] == 0
    assert rests[1] > 0
    assert rests[1] <= discovery.REST_MAX_MS


def test_a_topic_that_went_stops_the_query_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedCluster("T", seven) as peers:
        peers.unknown.add("Gone")
        found = Discovery(options(peers.namesrv, "Gone,T"))
        assert found.ends().by_queue == {QUEUE: 7}
        monkeypatch.setattr(discovery, "OUTAGE_MS", 0)
        with pytest.raises(RouteNotFound, match="'Gone'"):
            found.ends()


def test_a_topic_that_went_is_left_out_where_losses_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(discovery, "OUTAGE_MS", 0)
    with ScriptedCluster("T", seven) as peers, caplog.at_level(logging.WARNING):
        peers.unknown.add("Gone")
        found = Discovery(options(peers.namesrv, "Gone,T", failOnDataLoss="false"))
        assert found.ends().by_queue == {QUEUE: 7}
        for _ in range(20):
            found.ends()
    assert caplog.text.count("topics_unknown topics=Gone") == 1


def test_a_broker_may_be_away_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    is_away = True

    def broker(request: Request[Any]) -> Answer | None:
        return None if is_away else seven(request)

    with ScriptedCluster("T", broker) as peers:
        found = Discovery(options(peers.namesrv, "T"))
        assert found.ends().by_queue == {}
        is_away = False
        wait_until(lambda: found.ends().by_queue == {QUEUE: 7}, "the broker is asked again")
        is_away = True
        monkeypatch.setattr(discovery, "OUTAGE_MS", 0)
        with pytest.raises(NotConnected):
            found.ends()


@pytest.mark.usefixtures("finds_at_once")
def test_brokers_are_read_without_name_servers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster, "ROUTE_TTL_MS", 0)
    monkeypatch.setattr(discovery, "OUTAGE_MS", 0)
    is_away = False

    def broker(request: Request[Any]) -> Answer | None:
        return None if is_away else seven(request)

    with ScriptedCluster("T", broker) as peers, caplog.at_level(logging.WARNING):
        found = Discovery(options(peers.namesrv, "T"))
        assert found.ends().by_queue == {QUEUE: 7}
        peers.names_answer = False
        for _ in range(5):
            assert found.ends([QUEUE]).by_queue == {QUEUE: 7}
            assert not found.is_away(QUEUE)
        assert caplog.text.count("reading_without_name_servers") == 1
        # Whoever has not found its queues yet needs them, and a broker that is away is an outage.
        with pytest.raises(NameServersAway):
            Discovery(options(peers.namesrv, "T")).ends()
        is_away = True
        with pytest.raises(NotConnected, match="broker-a"):
            found.ends([QUEUE])
        monkeypatch.setattr(discovery, "OUTAGE_MS", 60_000)
        is_away, peers.names_answer = False, True
        wait_until(lambda: found.ends([QUEUE]).by_queue == {QUEUE: 7}, "the broker is asked")
        wait_until(
            lambda: bool(found.ends()) and "name_servers_recovered" in caplog.text, "it is back"
        )


def test_a_broker_that_is_away_is_asked_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    asked = 0

    def broker(_: Request[Any]) -> Answer | None:
        nonlocal asked
        asked += 1
        return None

    with ScriptedCluster("T", broker) as peers, caplog.at_level(logging.WARNING):
        found = Discovery(options(peers.namesrv, "T"))
        for _ in range(200):
            assert found.ends().by_queue == {}
        before = asked
    assert before < 20
    assert caplog.text.count("queue_discovery_failed") == 1


def test_the_pause_doubles_up_to_a_bound_and_ends_with_an_answer() -> None:
    backoff, error = Backoff(), NotConnected("a", "gone")
    assert backoff.error("a", 0) is None
    pauses, now_ms = [], 0
    for _ in range(8):
        backoff.failed("a", error, now_ms)
        until_ms = now_ms
        while backoff.error("a", until_ms) is error:
            until_ms += 10
        pauses.append(until_ms - now_ms)
        now_ms = until_ms
    doubled = [AWAY_MIN_MS << at for at in range(8)]
    assert pauses == [min(pause_ms, AWAY_MAX_MS) for pause_ms in doubled]
    assert backoff.error("b", now_ms) is None
    backoff.failed("a", error, now_ms)
    backoff.answered("a")
    assert backoff.error("a", now_ms) is None


def test_name_servers_may_be_away_for_a_while() -> None:
    found = Discovery(options("127.0.0.1:1", "T"))
    assert found.ends().by_queue == {}
