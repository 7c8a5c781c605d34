"""What is asked for ahead, and what of the answers is used."""

from typing import Any

import pytest

from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.frame import Request, Response
from cometmq.spark.brokers import wire
from cometmq.spark.read import fetcher
from cometmq.spark.read.fetcher import (
    FetchStats,
    PlannedPull,
    PullWindow,
    QueueFetcher,
    ReplicaClient,
    Span,
    pipelined_spans,
    records_before,
    stride_after,
)
from cometmq.spark.read.filters import RowFilter
from cometmq.spark.read.planning import Range
from tests.spark.records import plain_record
from tests.spark.scripted import Answer, ScriptedCluster, holder
from tests.spark.topics import options

QUEUE = MessageQueue("T", "broker-a", 0)


def bytes_of(start: int, stop: int) -> bytes:
    return b"".join(plain_record(offset) for offset in range(start, stop))


def answer(onward: int, body: bytes = b"", code: int = 0) -> Response:
    return Response(code, 0, None, {"nextBeginOffset": str(onward)}, body)


def test_one_more_pull_for_each_answer_that_follows() -> None:
    stats = FetchStats(stride=10, window=2)
    window = PullWindow(stats, 0, 1_000, filtered=False)
    assert window.due() == [PlannedPull(0, 10, 10), PlannedPull(10, 10, 10)]
    assert window.due() == []
    assert window.received(answer(10, b"a")) == (Span(0, 10, b"a"), True)
    assert window.due() == [PlannedPull(20, 10, 10), PlannedPull(30, 10, 10)]
    assert (stats.window, window.in_flight) == (3, 3)


def test_an_answer_that_ends_early_ends_the_flight() -> None:
    stats = FetchStats(stride=10, window=64)
    window = PullWindow(stats, 0, 1_000, filtered=False)
    assert len(window.due()) == 64
    assert window.received(answer(4)) == (Span(0, 4), False)
    assert (stats.stride, stats.window) == (4, 2)


def test_what_is_not_understood_is_left_to_the_careful_way() -> None:
    stats = FetchStats(stride=10, window=8)
    window = PullWindow(stats, 0, 1_000, filtered=False)
    window.due()
    moved = answer(500, code=ResponseCode.PULL_OFFSET_MOVED)
    assert window.received(moved) == (None, False)
    assert stats.window == 1


def test_large_answers_are_few_at_a_time_and_not_filled_to_the_brim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetcher, "IN_FLIGHT_BYTES", 300)
    stats = FetchStats(stride=10, window=8)
    window = PullWindow(stats, 0, 1_000, filtered=False)
    window.due()
    window.received(answer(10, bytes(100)))
    assert stats.window == 3
    large = answer(0, bytes(fetcher.LARGE_BYTES + 1))
    assert stride_after(400, large, filtered=False) == 300
    assert stride_after(400, answer(0), filtered=False) == 400


def test_little_answers_are_probed_and_more_is_cut_off() -> None:
    stats = FetchStats(stride=2, window=8)
    window = PullWindow(stats, 0, 1_000, filtered=False)
    places = window.due()
    assert [place.rows for place in places] == [2] * 7 + [fetcher.PULL_ROWS]
    for place in places[:-1]:
        assert window.received(answer(place.start + 2, b""))[1]
    span, follows = window.received(answer(20, bytes_of(14, 20)))
    assert (span, follows) == (Span(14, 16, bytes_of(14, 16)), True)
    assert window.due()[0] == PlannedPull(16, 6, 6)


def test_of_a_broker_that_filters_pulls_overlap() -> None:
    stats = FetchStats(stride=30, window=2)
    window = PullWindow(stats, 0, 100, filtered=True)
    assert [place.expected for place in window.due()] == [30, 30]
    nothing = answer(80, code=ResponseCode.PULL_RETRY_IMMEDIATELY)
    assert window.received(nothing) == (Span(0, 30, b"", filtered=True), True)
    assert window.due() == [PlannedPull(60, 40, fetcher.PULL_ROWS)]
    assert window.received(answer(40)) == (Span(30, 40, b"", filtered=True), False)
    assert (stats.stride, stats.window) == (7, 2)


def test_records_before_an_offset() -> None:
    assert records_before(bytes_of(3, 9), 5) == bytes_of(3, 5)
    assert records_before(bytes_of(3, 9), 3) == b""
    assert records_before(bytes_of(3, 9), 9) == bytes_of(3, 9)


def test_nothing_is_asked_before_anybody_answered() -> None:
    with ScriptedCluster("T", holder(0, 99)) as cluster:
        client = ReplicaClient(QUEUE, options(cluster.namesrv, "T").access, RowFilter())
        assert list(pipelined_spans(client, FetchStats(stride=3, window=2), 0, 9)) == []
        known = FetchStats(stride=3, window=2, answered={cluster.brokers[0].address})
        spans = list(pipelined_spans(client, known, 0, 9))
    assert spans == [Span(at, at + 3, bytes_of(at, at + 3)) for at in (0, 3, 6)]


def test_the_next_queue_begins_at_the_pace_of_the_last() -> None:
    asked: list[int] = []

    def counted(request: Request[Any]) -> Answer | None:
        asked.append(request.header.max_msg_nums)
        return holder(0, 600, each=10)(request)

    with ScriptedCluster("T", counted) as cluster:
        given, stats = options(cluster.namesrv, "T"), FetchStats()
        for queue_id in (0, 1):
            queue = MessageQueue("T", "broker-a", queue_id)
            part = Range(queue, 0, 300)
            spans = list(QueueFetcher(queue, given, stats).spans(part))
            assert b"".join(span.data for span in spans) == bytes_of(0, 300)
    assert asked.count(300) == 1
    # One in eight is asked for more than it should get.
    assert len(asked) == 60


def test_who_reads_no_further_leaves_no_answers_to_others() -> None:
    with ScriptedCluster("T", holder(0, 600, each=10)) as cluster:
        given = options(cluster.namesrv, "T")
        client = ReplicaClient(QUEUE, given.access, RowFilter())
        client.pull(0, 10)
        spans = pipelined_spans(client, FetchStats(stride=10, window=8), 0, 600)
        assert next(spans) == Span(0, 10, bytes_of(0, 10))
        del spans
        assert all(key[0] != cluster.brokers[0].address for key in wire._wires)
        assert client.pull(50, 10).body == bytes_of(50, 60)


def test_a_connection_that_breaks_ends_it() -> None:
    left = [5]

    def dies(request: Request[Any]) -> Answer | None:
        left[0] -= 1
        return holder(0, 600, each=10)(request) if left[0] >= 0 else None

    with ScriptedCluster("T", dies) as cluster:
        client = ReplicaClient(QUEUE, options(cluster.namesrv, "T").access, RowFilter())
        client.pull(0, 10)
        stats = FetchStats(stride=10, window=2)
        assert [span.stop for span in pipelined_spans(client, stats, 0, 600)] == [10, 20, 30, 40]
        assert stats.window == 2
        assert list(pipelined_spans(client, stats, 40, 600)) == []
        assert stats.window == 1
