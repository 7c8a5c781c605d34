"""Exactly the rows of a range, or a report of what is missing."""

import logging
from typing import Any

import pytest

from cometmq.client.blocking import Client
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.frame import Request
from cometmq.spark.read import fetcher
from cometmq.spark.read.fetcher import batches
from cometmq.spark.read.losses import DataLoss
from cometmq.spark.read.options import ReadOptions
from cometmq.spark.read.planning import Range
from cometmq.testing.cluster import Cluster
from tests.spark.records import plain_record
from tests.spark.scripted import Answer, Script, ScriptedCluster, holder, pull_answer
from tests.spark.topics import fill, make_topic, options

QUEUE = MessageQueue("T", "broker-a", 0)
NAMES = ("queue_offset", "tags", "body")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "PAUSES_MS", (0, 1))


def offsets(parts: list[Range], read: ReadOptions) -> list[int]:
    found = list(batches(parts, read, NAMES))
    return [offset for batch in found for offset in batch.column("queue_offset").to_pylist()]


def scripted(script: Script, part: Range, **extra: str) -> list[int]:
    with ScriptedCluster("T", script) as cluster:
        return offsets([part], options(cluster.namesrv, "T", **extra))


def test_a_range_ends_where_it_should() -> None:
    assert scripted(holder(0, 99, each=50), Range(QUEUE, 4, 9)) == [4, 5, 6, 7, 8]


def test_records_beyond_the_range_are_left_out() -> None:
    data = b"".join(plain_record(offset) for offset in range(2, 9))
    assert scripted(lambda _: pull_answer(0, 9, data), Range(QUEUE, 4, 6)) == [4, 5]


def test_a_loss_is_an_error_that_names_queue_and_offsets() -> None:
    with pytest.raises(DataLoss, match=r"offsets 2 to 5 of queue 0 of topic 'T'") as caught:
        scripted(holder(6, 99), Range(QUEUE, 2, 9))
    assert (caught.value.queue, caught.value.start, caught.value.stop) == (QUEUE, 2, 6)


def test_a_loss_may_be_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert scripted(holder(6, 99), Range(QUEUE, 2, 9), failOnDataLoss="false") == [6, 7, 8]
    assert "data_loss" in caplog.text


def test_a_hole_in_the_middle_is_a_loss() -> None:
    data = plain_record(0) + plain_record(1) + plain_record(4)
    with pytest.raises(DataLoss, match="offsets 2 to 3"):
        scripted(lambda _: pull_answer(0, 5, data), Range(QUEUE, 0, 5))


def test_a_filter_compares_tags_not_hashes(cometmq_session_cluster: Cluster) -> None:
    # "Aa" and "BB" have the same Java hash, so the broker gives both.
    with Client(cometmq_session_cluster.namesrv) as client:
        (queue,) = make_topic(client, "RowsFilter", 1)
        for at in range(30):
            fill(client, queue, [str(at)], ["Aa", "BB", "other"][at % 3])
    read = options(cometmq_session_cluster.namesrv, "RowsFilter", filter="BB || x")
    assert offsets([Range(queue, 0, 30)], read) == list(range(1, 30, 3))
    assert offsets([Range(queue, 5, 20)], read) == [7, 10, 13, 16, 19]


@pytest.mark.parametrize("every", [1, 2, 7, 50, 400])
def test_a_filtering_broker_is_asked_ahead(every: int) -> None:
    """It looks at 60 messages at a time, or less where 8 match; some stretches hold more."""
    asked: list[int] = []

    def matches(offset: int) -> bool:
        return offset % every == 0 or 500 <= offset < 540

    def filtering(request: Request[Any]) -> Answer:
        at = request.header.queue_offset
        asked.append(at)
        found: list[int] = []
        stop = at
        while stop < min(at + 60, 1000) and len(found) < 8:
            found += [stop] if matches(stop) else []
            stop += 1
        data = b"".join(plain_record(offset, tag="t") for offset in found)
        return pull_answer(0 if found else ResponseCode.PULL_RETRY_IMMEDIATELY, stop, data)

    for start, stop in ((0, 1000), (333, 777)):
        wanted = [offset for offset in range(start, stop) if matches(offset)]
        asked.clear()
        assert scripted(filtering, Range(QUEUE, start, stop), filter="t") == wanted
        # Some pulls overlap, and some are in vain where a dense stretch begins.
        assert len(asked) < 2 * max(len(wanted) / 8, (stop - start) / 60) + 24


def test_several_ranges_of_a_task(cometmq_session_cluster: Cluster) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "RowsSeveral", 2)
        for queue in queues:
            fill(client, queue, map(str, range(100)))
    read = options(cometmq_session_cluster.namesrv, "RowsSeveral")
    parts = [Range(queues[0], 10, 60), Range(queues[1], 95, 100), Range(queues[0], 0, 1)]
    assert offsets(parts, read) == [*range(10, 60), *range(95, 100), 0]
