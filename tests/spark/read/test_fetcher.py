"""A range of a queue, whatever the brokers answer."""

from collections.abc import Callable
from typing import Any

import pytest

from cometmq.core.errors import BrokerRefused, NotConnected
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.frame import Request
from cometmq.spark.read import fetcher
from cometmq.spark.read.fetcher import QueueFetcher
from cometmq.spark.read.planning import Range
from cometmq.spark.read.pullwindow import Span
from tests.spark.records import plain_record
from tests.spark.scripted import Answer, Script, ScriptedCluster, holder, pull_answer
from tests.spark.topics import options

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "PAUSES_MS", (0, 1, 1))


def spans(*scripts: Script, start: int, stop: int) -> list[Span]:
    with ScriptedCluster("T", *scripts) as cluster:
        fetching = QueueFetcher(QUEUE, options(cluster.namesrv, "T"))
        return list(fetching.spans(Range(QUEUE, start, stop)))


def bytes_of(start: int, stop: int) -> bytes:
    return b"".join(plain_record(offset) for offset in range(start, stop))


def test_pulls_are_joined_into_one_span() -> None:
    assert spans(holder(0, 99), start=4, stop=15) == [Span(4, 15, bytes_of(4, 15))]


def test_spans_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "BLOCK_ROWS", 6)
    found = spans(holder(0, 99), start=0, stop=14)
    assert found == [Span(at, min(at + 6, 14), bytes_of(at, min(at + 6, 14))) for at in (0, 6, 12)]
    monkeypatch.setattr(fetcher, "BLOCK_BYTES", 1)
    assert len(spans(holder(0, 99), start=0, stop=14)) == 5


def test_what_is_older_than_the_oldest_is_gone() -> None:
    found = spans(holder(6, 99), start=2, stop=9)
    assert found == [Span(2, 6, gone=True), Span(6, 9, bytes_of(6, 9))]
    assert spans(holder(20, 99), start=2, stop=9) == [Span(2, 9, gone=True)]


def test_what_is_newer_than_the_newest_is_gone() -> None:
    assert spans(holder(0, 5), start=8, stop=12) == [Span(8, 12, gone=True)]
    assert spans(holder(0, 5), start=3, stop=9) == [
        Span(3, 5, bytes_of(3, 5)),
        Span(5, 9, gone=True),
    ]


def test_a_hole_is_passed_over() -> None:
    def holed(request: Request[Any]) -> Answer:
        at = request.header.queue_offset
        return (
            pull_answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 5)
            if at < 5
            else pull_answer(0, at + 1, plain_record(at))
        )

    assert spans(holed, start=3, stop=6) == [Span(3, 6, plain_record(5))]


def test_a_copy_that_is_behind_or_closed_to_readers_gives_way_to_another() -> None:
    behind = holder(0, 4)
    found = spans(behind, holder(0, 99), start=2, stop=8)
    assert b"".join(span.data for span in found) == bytes_of(2, 8)

    def closed(request: Request[Any]) -> Answer:
        return pull_answer(ResponseCode.PULL_RETRY_IMMEDIATELY, request.header.queue_offset)

    assert spans(closed, holder(0, 99), start=2, stop=4) == [Span(2, 4, bytes_of(2, 4))]


def failing(times: int, how: Callable[[], Answer | None]) -> Script:
    left = [times]
    healthy = holder(0, 99)

    def script(request: Request[Any]) -> Answer | None:
        left[0] -= 1
        return how() if left[0] >= 0 else healthy(request)

    return script


def test_a_busy_broker_is_asked_again() -> None:
    script = failing(2, lambda: (ResponseCode.SYSTEM_BUSY, {}, b""))
    assert spans(script, start=0, stop=2) == [Span(0, 2, bytes_of(0, 2))]


def test_a_broker_that_hangs_up_is_asked_again() -> None:
    assert spans(failing(2, lambda: None), start=0, stop=2) == [Span(0, 2, bytes_of(0, 2))]


def test_patience_ends() -> None:
    with pytest.raises(BrokerRefused, match="code 2"):
        spans(failing(99, lambda: (ResponseCode.SYSTEM_BUSY, {}, b"")), start=0, stop=2)
    with pytest.raises(NotConnected):
        spans(failing(99, lambda: None), start=0, stop=2)


def test_a_refusal_is_not_repeated() -> None:
    asked: list[int] = []

    def refuses(request: Request[Any]) -> Answer:
        asked.append(request.code)
        return ResponseCode.NO_PERMISSION, {}, b""

    with pytest.raises(BrokerRefused, match="code 16"):
        spans(refuses, start=0, stop=2)
    assert len(asked) == 1


def test_an_unknown_broker_is_waited_for_and_named() -> None:
    with ScriptedCluster("T", holder(0, 9)) as cluster:
        fetching = QueueFetcher(MessageQueue("T", "broker-z", 0), options(cluster.namesrv, "T"))
        with pytest.raises(NotConnected, match="broker-z"):
            list(fetching.spans(Range(QUEUE, 0, 1)))


def test_pulls_are_in_flight_together_and_none_is_lost() -> None:
    """Answers that end early, as with messages of different sizes, throw away what was ahead."""
    asked: list[int] = []

    def uneven(request: Request[Any]) -> Answer | None:
        at = request.header.queue_offset
        asked.append(at)
        return holder(0, 1000, each=4 if at % 100 < 80 else 1)(request)

    found = spans(uneven, start=0, stop=500)
    assert b"".join(span.data for span in found) == bytes_of(0, 500)
    assert [(span.start, span.stop) for span in found] == [(0, 500)]
    assert len(asked) < 400


def test_a_connection_that_breaks_with_pulls_in_flight() -> None:
    healthy = holder(0, 1000, each=4)
    left = [25]

    def breaks_once(request: Request[Any]) -> Answer | None:
        left[0] -= 1
        return None if left[0] == 0 else healthy(request)

    found = spans(breaks_once, start=0, stop=300)
    assert b"".join(span.data for span in found) == bytes_of(0, 300)
