"""Dead letters as rows."""

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.jobs import dlq

DDL = (
    "topic string, broker_name string, queue_id int, queue_offset bigint, msg_id string, "
    "keys string, properties map<string,string>"
)


@pytest.mark.spark
def test_where_a_letter_comes_from(spark: SparkSession) -> None:
    def row(at: int, **properties: str) -> tuple[object, ...]:
        return ("%DLQ%g", "broker-a", 0, at, f"id-{at}", "k both", properties)

    rows = spark.createDataFrame(
        [
            row(0, RETRY_TOPIC="orders", ORIGIN_MESSAGE_ID="first"),
            row(1, RETRY_TOPIC="x", DLQ_ORIGIN_TOPIC="pay", DLQ_ORIGIN_MESSAGE_ID="second"),
            row(2),
        ],
        DDL,
    )
    found = dlq.with_origin(rows).orderBy("queue_offset").collect()
    assert [(each.origin, each.origin_id) for each in found] == [
        ("orders", "first"),
        ("pay", "second"),
        (None, None),
    ]
    ids = [each.redrive_id for each in found]
    assert len(set(ids)) == 3
    assert all(len(each) == 32 and each.startswith("7F") for each in ids)
    assert [each.redrive_id for each in dlq.with_origin(rows).collect()] == ids

    def chosen(key: str = "", message_id: str = "", where: str = "") -> int:
        return dlq.chosen(dlq.with_origin(rows), key, message_id, where).count()

    assert chosen(key="both") == 3
    assert chosen(key="bot") == 0
    assert chosen(message_id="second") == chosen(message_id="id-2") == 1
    assert chosen(where="origin = 'pay'") == 1


def test_reasons() -> None:
    assert "producer" in dlq.why(0, 16)
    assert "3 retries" in dlq.why(3, 16)
    assert "limit" in dlq.why(16, 16)


def test_what_to_do_about_a_hidden_topic() -> None:
    told = str(dlq.unreadable("%DLQ%g", "a:1"))
    assert "updateTopicPerm -n 'a:1' -t '%DLQ%g' -p 6" in told
