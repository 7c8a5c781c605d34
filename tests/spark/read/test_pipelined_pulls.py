"""What is asked for ahead, and what of the answers is used."""

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from cometmq.message.model import MessageQueue
from cometmq.message.record import head_part, iter_sizes
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.frame import Request, Response
from cometmq.spark.brokers import wire
from cometmq.spark.read import pullwindow
from cometmq.spark.read.fetcher import QueueFetcher, ReplicaClient, pipelined_spans
from cometmq.spark.read.filters import RowFilter
from cometmq.spark.read.planning import Range
from cometmq.spark.read.pullwindow import (
    FetchStats,
    MatchRate,
    PlannedPull,
    PullWindow,
    Span,
    records_before,
    stride_after,
)
from tests.spark.records import plain_record
from tests.spark.scripted import Answer, ScriptedCluster, holder, pull_answer
from tests.spark.topics import options

records_offset = head_part("queue_offset").unpack_from

QUEUE = MessageQueue("T", "broker-a", 0)


def bytes_of(start: int, stop: int) -> bytes:
    return b"".join(plain_record(offset) for offset in range(start, stop))


def offsets_in(records: bytes) -> list[int]:
    return [records_offset(records, at)[0] for at, _ in iter_sizes(records)]


def answer(onward: int, body: bytes = b"", code: int = 0) -> Response:
    return Response(code, 0, None, {"nextBeginOffset": str(onward)}, body)


def test_one_more_pull_for_each_answer_that_follows() -> None:
    stats = FetchStats(stride=10, window=2)
    window = PullWindow(stats, 0, 1_000, filtered=False)
    assert window.due() == [PlannedPull(0, 10, 10), PlannedPull(10, 10, 10)]
    assert window.due() == []
    assert window.received(answer(10, b"a")) == (Span(0, 10, b"a"), 10, True)
    assert window.due() == [PlannedPull(20, 10, 10), PlannedPull(30, 10, 10)]
    assert (stats.window, window.in_flight) == (3, 3)


def test_an_answer_that_ends_early_ends_the_flight() -> None:
    stats = FetchStats(stride=10, window=64)
    window = PullWindow(stats, 0, 1_000, filtered=False)
    assert len(window.due()) == 64
    assert window.received(answer(4)) == (Span(0, 4), 4, False)
    assert (stats.stride, stats.window) == (4, 2)


def test_what_is_not_understood_is_left_to_the_careful_way() -> None:
    stats = FetchStats(stride=10, window=8)
    window = PullWindow(stats, 0, 1_000, filtered=False)
    window.due()
    moved = answer(500, code=ResponseCode.PULL_OFFSET_MOVED)
    assert window.received(moved) == (None, 0, False)
    assert stats.window == 1


def test_large_answers_are_few_at_a_time_and_not_filled_to_the_brim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pullwindow, "IN_FLIGHT_BYTES", 300)
    stats = FetchStats(stride=10, window=8)
    window = PullWindow(stats, 0, 1_000, filtered=False)
    window.due()
    window.received(answer(10, bytes(100)))
    assert stats.window == 3
    large = answer(0, bytes(pullwindow.LARGE_BYTES + 1))
    assert stride_after(400, large) == 300
    assert stride_after(400, answer(0)) == 400


def test_little_answers_are_probed_and_more_is_cut_off() -> None:
    stats = FetchStats(stride=2, window=8)
    window = PullWindow(stats, 0, 1_000, filtered=False)
    places = window.due()
    assert [place.rows for place in places] == [2] * 7 + [pullwindow.PULL_ROWS]
    for place in places[:-1]:
        assert window.received(answer(place.start + 2, b"")).follows
    found = window.received(answer(20, bytes_of(14, 20)))
    assert found == (Span(14, 16, bytes_of(14, 16)), 16, True)
    assert window.due()[0] == PlannedPull(16, 6, 6)


def test_of_a_broker_that_filters_as_many_are_asked_for_as_probably_match() -> None:
    stats = FetchStats(window=2, matches=MatchRate())
    stats.matches.learn(rows=1_024, matches=100, moves=400)
    window = PullWindow(stats, 0, 1_000, filtered=True)
    # 5 below 100 matches, of which every fourth offset is one, and 10 to spare.
    assert window.due() == [PlannedPull(0, 380, 105), PlannedPull(380, 380, 105)]
    assert window.received(answer(420, bytes_of(0, 105))) == (
        Span(0, 380, bytes_of(0, 105), filtered=True),
        380,
        True,
    )
    assert window.received(answer(700, bytes_of(0, 90))) == (
        Span(380, 700, bytes_of(0, 90), filtered=True),
        760,
        True,
    )
    assert stats.window == 4


def test_a_broker_that_examines_a_limited_number_of_offsets_is_followed_exactly() -> None:
    stats = FetchStats(window=2)
    stats.matches.learn(rows=1_024, matches=0, moves=800)
    window = PullWindow(stats, 0, 2_000, filtered=True)
    assert window.due() == [PlannedPull(0, 800, 1_024), PlannedPull(800, 800, 1_024)]


class FilteringBroker:
    """Answers pulls with at most ``limit`` of the offsets that match; counts what it sends."""

    def __init__(self, matching: list[int], stop: int, limit: int) -> None:
        self._matching = np.array(matching)
        self._stop = stop
        self._limit = limit
        self.sent = 0
        self.pulls = 0

    def __call__(self, request: Request[Any]) -> Answer | None:
        header = request.header
        start, most = header.queue_offset, min(header.max_msg_nums, self._limit)
        first = int(np.searchsorted(self._matching, start))
        found = self._matching[first : first + most].tolist()
        onward = found[-1] + 1 if len(found) == most else self._stop
        self.sent += len(found)
        self.pulls += 1
        body = b"".join(plain_record(offset) for offset in found)
        return pull_answer(0 if found else ResponseCode.PULL_RETRY_IMMEDIATELY, onward, body)


@pytest.mark.parametrize(("share", "limit"), [(0.47, 32), (0.47, 1_024), (0.03, 32), (0.9, 32)])
def test_a_filtering_broker_sends_little_twice(share: float, limit: int) -> None:
    drawn = random.Random(f"{share} {limit}")
    matching = [offset for offset in range(20_000) if drawn.random() < share]
    broker = FilteringBroker(matching, 20_000, limit)
    with ScriptedCluster("T", broker) as cluster:
        given = options(cluster.namesrv, "T", filter="tag")
        spans = list(QueueFetcher(QUEUE, given, FetchStats()).spans(Range(QUEUE, 0, 20_000)))
    assert spans[0].start == 0
    assert spans[-1].stop == 20_000
    assert all(before.stop == after.start for before, after in pairwise(spans))
    found: set[int] = set()
    for span in spans:
        assert span.filtered
        offsets = offsets_in(span.data)
        found |= {offset for offset in offsets if span.start <= offset < span.stop}
    assert sorted(found) == matching
    assert broker.sent <= 1.15 * len(matching) + 2 * min(limit, 100)
    assert broker.pulls <= 2 * len(matching) / limit + 20


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
