"""Options of the sink."""

from __future__ import annotations

import pytest

from cometmq.spark.options import BadOption
from cometmq.spark.write.options import KNOWN, WriteOptions, appending, parse
from tests.spark.topics import access


def test_defaults() -> None:
    assert parse({"namesrv": "a:1", "checkpointLocation": "/c"}) == WriteOptions(
        access=access("a:1"),
        topic=None,
        group="COMETMQ_SPARK",
        batch_messages=512,
        batch_bytes=256 << 10,
        message_bytes=4 << 20,
        retry_ms=60_000,
        query=None,
        batch=None,
    )


def test_all_of_them() -> None:
    found = parse(
        {
            "nameservers": "a:1",
            "TOPIC": "T",
            "producerGroup": "G",
            "maxBatchMessages": "10",
            "maxBatchBytes": "1000",
            "maxMessageBytes": "2000",
            "retryFor": "5s",
            "queryId": "q",
            "batchId": "7",
        }
    )
    assert (found.topic, found.group, found.batch_messages, found.batch_bytes) == (
        "T", "G", 10, 1_000,
    )  # fmt: skip
    assert (found.message_bytes, found.retry_ms, found.query, found.batch) == (2_000, 5_000, "q", 7)
    assert len(set(KNOWN)) == len(KNOWN)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("topic", "no good"),
        ("topic", "SCHEDULE_TOPIC_XXXX"),
        ("producerGroup", "no good"),
        ("maxBatchBytes", "0"),
        ("retryFor", "soon"),
        ("batchId", "-1"),
        ("startingOffsets", "earliest"),
    ],
)
def test_bad_ones_are_named(option: str, value: str) -> None:
    with pytest.raises(BadOption, match=option):
        parse({"nameservers": "a:1", option: value})


def test_a_topic_is_not_written_over() -> None:
    with pytest.raises(BadOption, match="append"):
        appending({"nameservers": "a:1", "topic": "T"}, overwrite=True)
