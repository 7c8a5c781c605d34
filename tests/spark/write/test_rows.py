"""Rows become messages, or are named with what is wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from cometmq.message import properties as props
from cometmq.spark.write.options import parse
from cometmq.spark.write.rows import BadRow, Encoder, Ids, Origin, Outgoing

ORIGIN = Origin("query", 1, 0)
MAP = pa.map_(pa.string(), pa.string())


def encoder(topic: str | None = "T", **options: str) -> Encoder:
    given = {"nameservers": "a:1", **options, **({"topic": topic} if topic else {})}
    return Encoder(parse(given), Ids(ORIGIN))


def encoded(
    columns: dict[str, pa.Array], topic: str | None = "T", **options: str
) -> list[Outgoing]:
    batch = pa.RecordBatch.from_pydict(columns)
    return list(encoder(topic, **options).messages(batch))


def one(**values: Any) -> Outgoing:
    types = {"properties": MAP, "keys": None}
    columns = {
        name: pa.array([value], types.get(name)) for name, value in {"body": b"x", **values}.items()
    }
    (found,) = encoded(columns)
    return found


def pairs(message: Outgoing) -> dict[str, str]:
    found = props.decode(message.properties)
    assert found.pop(props.UNIQ_KEY) == message.unique
    return found


def test_a_body_alone_is_enough() -> None:
    message = one(body="ä")
    assert (message.topic, message.body, message.flag) == ("T", "ä".encode(), 0)
    assert (message.order_key, message.alone, pairs(message)) == (None, False, {})


def test_all_that_a_producer_may_say() -> None:
    message = one(
        tags="red",
        keys=["a", None, "b"],
        properties=[("x", "1"), ("empty", ""), (props.TAGS, "other"), (props.UNIQ_KEY, "U")],
        flag=3,
        order_key="k",
    )
    assert pairs(message) == {"x": "1", props.TAGS: "red", props.KEYS: "a b"}
    assert (message.flag, message.order_key) == (3, "k")


def test_tag_and_keys_come_from_the_properties_where_no_column_says_them() -> None:
    given = [(props.TAGS, "red"), (props.KEYS, "a b"), (props.DELAY, "3")]
    assert pairs(one(properties=given)) == {props.TAGS: "red", props.KEYS: "a b"}
    assert pairs(one(properties=given, tags=None, keys="c")) == {props.KEYS: "c"}


@pytest.mark.parametrize(
    ("column", "value", "name", "text"),
    [
        ("delay_level", 3, props.DELAY, "3"),
        ("delay_ms", 1_500, props.TIMER_DELAY_MS, "1500"),
        ("deliver_at", 1_700_000_000_123, props.TIMER_DELIVER_MS, "1700000000123"),
        (
            "deliver_at",
            datetime(2026, 3, 1, 12, 0, 0, 5_000, UTC),
            props.TIMER_DELIVER_MS,
            "1772366400005",
        ),
    ],
)
def test_delays_go_alone(column: str, value: object, name: str, text: str) -> None:
    message = one(**{column: value})
    assert message.alone
    assert pairs(message) == {name: text}
    assert not one(**{column: None}).alone


def test_ids_are_of_the_place_where_a_row_was_read_else_of_the_task() -> None:
    columns = {
        "topic": pa.array(["S", "S", None]),
        "broker_name": pa.array(["a", "a", None]),
        "queue_id": pa.array([0, 0, None], pa.int32()),
        "queue_offset": pa.array([5, 6, None]),
        "body": pa.array([b"x"] * 3),
    }
    found = [message.unique for message in encoded(columns)]
    assert len(set(found)) == 3
    elsewhere = Encoder(parse({"nameservers": "a:1", "topic": "T"}), Ids(Origin("other", 4, 2)))
    again = [each.unique for each in elsewhere.messages(pa.RecordBatch.from_pydict(columns))]
    assert again[:2] == found[:2]
    assert again[2] != found[2]


def test_an_id_of_the_users_own() -> None:
    assert one(message_id="order-7").unique == "order-7"
    assert one(message_id=None).unique.startswith("7F")


def test_each_row_may_name_its_topic() -> None:
    columns = {"body": pa.array(["1", "2"]), "topic": pa.array(["A", "B"])}
    assert [message.topic for message in encoded(columns, None)] == ["A", "B"]
    assert [message.topic for message in encoded(columns, "C")] == ["C", "C"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"body": None}, "body is null"),
        ({"tags": "a\x01b"}, "control character"),
        ({"properties": [("x", "a\x02b")]}, "control character"),
        ({"properties": [("", "b")]}, "no name"),
        ({"keys": ["a b"]}, "contains a blank"),
        ({"message_id": "a b"}, "contains a blank"),
        ({"delay_ms": -1}, "negative"),
        ({"delay_ms": 1, "delay_level": 1}, "one of"),
        ({"properties": [("x", "y" * 33_000)]}, "limit is 32767"),
    ],
)
def test_a_row_that_is_no_message_is_named(values: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRow, match=f"row 0 of the task, for topic 'T': .*{says}"):
        one(**values)


def test_limits_of_size_and_topics_name_the_row() -> None:
    columns = {"body": pa.array([b"x", b"x" * 11]), "topic": pa.array(["fine"] * 2)}
    with pytest.raises(BadRow, match=r"row 1 .*11 bytes; the limit is 10") as caught:
        encoded(columns, None, maxMessageBytes="10")
    assert (caught.value.number, caught.value.topic) == (1, "fine")
    for topic in ("", "no good", "SCHEDULE_TOPIC_XXXX"):
        with pytest.raises(BadRow, match="row 0"):
            encoded({"body": pa.array([b"x"]), "topic": pa.array([topic])}, None)
