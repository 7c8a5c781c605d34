"""Bodies decoded by options of the source: batches, streams, SQL and stores."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from cometmq.client.blocking import Client
from cometmq.core.errors import SettingsError
from cometmq.spark.options import BadOption
from cometmq.spark.read.options import parse
from cometmq.spark.schema import BadSchema
from cometmq.spark.values.columns import ddl_of, value_columns
from cometmq.spark.values.formats import BadValue
from cometmq.spark.values.jsonvalues import Json
from cometmq.spark.values.options import of_source
from cometmq.testing.cluster import Cluster
from tests.spark.topics import make_topic
from tests.spark.values.test_decoding import SCHEMA, VALUE, avro, order_descriptors, registry
from tests.store.stores import fill, opened

pytestmark = pytest.mark.spark


def sent(cluster: Cluster, topic: str, bodies: Sequence[bytes]) -> dict[str, str]:
    """Send bodies into one queue; gives the options that read them."""
    with Client(cluster.namesrv) as client:
        (queue,) = make_topic(client, topic, 1)
        for number, body in enumerate(bodies):
            client.send(topic, body, keys=[f"K{number}"], queue=queue)
    return {"nameservers": cluster.namesrv, "topic": topic, "startingOffsets": "earliest"}


def outcomes(rows: DataFrame) -> list[tuple[Any, str | None]]:
    found = rows.orderBy("queue_offset").select("value", "undecodable").collect()
    return [(each.value and each.value.asDict(recursive=True), each.undecodable) for each in found]


ALL = (
    "id bigint, small tinyint, ok boolean, ratio double, total decimal(10,2), name string, "
    "raw binary, day date, at timestamp, tags array<string>, counts map<string,int>, "
    "item struct<sku:string,`odd name`:int>"
)
WHOLE = {
    "id": 7, "small": -128, "ok": True, "ratio": 2, "total": 12.5, "name": "Ann", "raw": "AAE=",
    "day": "2026-11-27", "at": "2026-11-27T12:00:00+01:00", "tags": ["a", None],
    "counts": {"x": 1}, "item": {"sku": "s", "odd name": 3, "more": 1}, "unknown": [1],
}  # fmt: skip


def test_json_by_options(spark: SparkSession, cometmq_session_cluster: Cluster) -> None:
    bodies = [
        json.dumps(WHOLE).encode(),
        b'{"id": 8, "total": "1.25"}',
        b'{"id": "eight"}',
        b'{"small": 128}',
        b'{"total": 1.234}',
        b'{"name": 5}',
        b"[1]",
        b'{"name": "\xff"}',
        b"no json",
    ]
    given = sent(cometmq_session_cluster, "OptionsJson", bodies)
    frame = spark.read.format("rocketmq").options(**given, valueFormat="JSON", valueSchema=ALL)
    rows = frame.load()
    assert rows.columns[-2:] == ["value", "undecodable"]
    assert rows.columns[:2] == ["topic", "broker_name"]
    found = outcomes(rows)
    value = found[0][0]
    at = datetime.datetime(2026, 11, 27, 11, tzinfo=datetime.UTC)
    assert value.pop("at").timestamp() == at.timestamp()
    assert value == {
        "id": 7, "small": -128, "ok": True, "ratio": 2.0, "total": Decimal("12.50"), "name": "Ann",
        "raw": bytearray(b"\0\1"), "day": datetime.date(2026, 11, 27), "tags": ["a", None],
        "counts": {"x": 1}, "item": {"sku": "s", "odd name": 3},
    }  # fmt: skip
    assert found[1][0]["total"] == Decimal("1.25")
    assert [value for value, _ in found[2:]] == [None] * 7
    reasons = [reason or "" for _, reason in found[2:]]
    assert all("another type" in reason for reason in reasons[:5])
    assert "$.id" in reasons[0]
    assert all(reason.startswith("not JSON") for reason in reasons[5:])


def test_only_the_columns_that_are_named(
    spark: SparkSession, cometmq_session_cluster: Cluster
) -> None:
    """The body is read, and not a column; the type of the values is that of the column."""
    given = sent(cometmq_session_cluster, "OptionsNamed", [b'{"id": 1}', b"{"])
    frame = spark.read.format("rocketmq").options(**given, **{"value.format": "json"})
    rows = frame.schema("undecodable string, keys string, value struct<id:bigint>").load()
    assert rows.columns == ["undecodable", "keys", "value"]
    good, bad = rows.orderBy("keys").collect()
    assert (good["keys"], good.undecodable, good.value.id) == ("K0", None, 1)
    assert (bad["keys"], bad.value) == ("K1", None)
    assert bad.undecodable.startswith("not JSON")
    assert frame.schema("keys string").load().count() == 2
    assert rows.where("value.id = 1").select("value.id").collect()[0].id == 1


def test_a_stream_and_a_view_in_sql(
    spark: SparkSession, cometmq_session_cluster: Cluster, tmp_path: Path
) -> None:
    bodies = [b'{"id": %d}' % number for number in range(30)]
    given = sent(cometmq_session_cluster, "OptionsStream", bodies)
    options = {**given, "valueFormat": "json", "valueSchema": "id int"}
    frame = spark.readStream.format("rocketmq").options(**options, maxOffsetsPerTrigger="11").load()
    query = (
        frame.selectExpr("value.*", "undecodable").writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    found = spark.read.parquet(str(tmp_path / "rows")).where("undecodable is null")
    assert sorted(row.id for row in found.collect()) == list(range(30))
    del options["startingOffsets"]
    listed = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW options_view USING rocketmq OPTIONS ({listed})")
    assert spark.sql("SELECT sum(value.id) AS all FROM options_view").collect()[0]["all"] == 435
    spark.sql("DROP VIEW options_view")


def test_messagepack_avro_and_protobuf(
    spark: SparkSession, cometmq_session_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = cometmq_session_cluster
    read = spark.read.format("rocketmq")
    given = sent(cluster, "OptionsPack", [msgspec.msgpack.encode({"id": 1}), b"\xc0"])
    packed = read.options(**given, valueFormat="msgpack", valueSchema="struct<id:int>").load()
    assert outcomes(packed) == [({"id": 1}, None), (None, "the value is null")]

    given = sent(cluster, "OptionsAvro", [avro(VALUE), avro(VALUE)[:-2]])
    frame = spark.read.format("rocketmq").options(**given, valueFormat="avro")
    found = outcomes(frame.option("valueSchema", json.dumps(SCHEMA)).load())
    assert found[0][0]["items"] == VALUE["items"]
    assert found[1][0] is None

    path = tmp_path / "order.pb"
    path.write_bytes(order_descriptors())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file[0])
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    given = sent(cluster, "OptionsProto", [kind(id=1 << 63).SerializeToString(), b"\x0a\xff"])
    frame = spark.read.format("rocketmq").options(**given, valueFormat="protobuf")
    rows = frame.options(valueDescriptors=str(path), valueMessage="shop.Order").load()
    assert rows.schema["value"].dataType.simpleString().startswith("struct<id:decimal(20,0)")
    found = outcomes(rows)
    assert found[0][0]["id"] == Decimal(1 << 63)
    assert found[1][0] is None


def test_a_registry_gives_the_schema_of_a_read_and_those_of_bodies(
    spark: SparkSession, cometmq_session_cluster: Cluster
) -> None:
    schema = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "int"}]}
    known = {
        "/schemas/ids/1": {"schema": json.dumps(schema)},
        "/subjects/orders-value/versions/latest": {"id": 1, "schema": json.dumps(schema)},
    }
    body = b"\0" + (1).to_bytes(4, "big") + avro({"id": 3}, schema)
    given = sent(cometmq_session_cluster, "OptionsRegistry", [body])
    asked: list[str] = []
    with registry(known, asked) as url:
        frame = spark.read.format("rocketmq").options(**given, valueFormat="avro")
        rows = frame.options(valueRegistry=url, valueSubject="orders-value").load()
        planned = len(asked)
        assert outcomes(rows) == [({"id": 3}, None)]
    assert all(path.endswith("latest") for path in asked[:planned])
    # Each process of Python asks once, and Spark may use several.
    assert "/schemas/ids/1" in asked[planned:]


def test_a_store(spark: SparkSession, tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 20)
    store.close()
    frame = spark.read.format("rocketmq").option("store", str(tmp_path))
    rows = frame.options(valueFormat="json", valueSchema="id int").load()
    assert rows.where("undecodable like 'not JSON%' and value is null").count() == 20


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("given", "option", "said"),
    [
        ({"valueFormat": "xml"}, "valueFormat", "not one of json"),
        ({"valueSchema": "id int"}, "valueSchema", "needs valueFormat"),
        ({"valueFormat": "json", "valueMessage": "M"}, "valueMessage", "does not belong to"),
        ({"valueFormat": "avro", "valueSubject": "s"}, "valueSchema", "or valueRegistry and"),
        ({"valueFormat": "protobuf"}, "valueDescriptors", "is required"),
        ({"valueFormat": "protobuf", "valueDescriptors": "/none"}, "valueDescriptors", "No such"),
    ],
)
def test_options_that_do_not_fit(given: dict[str, str], option: str, said: str) -> None:
    with pytest.raises(BadOption, match=f"'{option}'.*{said}"):
        parse({"nameservers": "a:1", "topic": "T", **given})
    with pytest.raises(BadOption, match=f"'{option}'"):
        of_source({"topic": "T", **given})


def test_formats_that_know_nothing_of_values_need_a_schema() -> None:
    options = of_source({"VALUE.FORMAT": "json"})
    assert options is not None
    with pytest.raises(BadOption, match=r"'valueSchema'.*is required"):
        ddl_of(options)
    broken = of_source({"valueFormat": "avro", "valueSchema": '{"type": "array", "items": "int"}'})
    assert broken is not None
    with pytest.raises(SettingsError, match="must be a record"):
        ddl_of(broken)


ID = t.StructType([t.StructField("id", t.LongType())])
TEXT = t.StructField("undecodable", t.StringType())


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([TEXT], "needs the column 'value'"),
        ([t.StructField("value", t.LongType())], "must be a struct, not bigint"),
        ([t.StructField("value", ID), t.StructField("undecodable", t.LongType())], "is string"),
        ([t.StructField("value", ID, nullable=False)], "NOT NULL"),
        ([t.StructField("value", t.StructType([t.StructField("id", t.LongType(), False)]))], "NOT"),
    ],
)
def test_columns_that_do_not_fit(columns: list[t.StructField], said: str) -> None:
    options = of_source({"valueFormat": "json"})
    with pytest.raises(BadSchema, match=said):
        value_columns(options, t.StructType(columns))


def test_other_columns_than_the_formats(spark: SparkSession) -> None:
    schema = '{"type": "record", "name": "O", "fields": [{"name": "id", "type": "int"}]}'
    options = of_source({"valueFormat": "avro", "valueSchema": schema})
    with pytest.raises(BadSchema, match="is struct<id:int>, not struct<id:bigint>"):
        value_columns(options, t.StructType([t.StructField("value", ID)]))
    frame = spark.read.format("rocketmq").options(nameservers="127.0.0.1:1", topic="T")
    with pytest.raises(Exception, match="with option valueFormat value and undecodable"):
        frame.schema("value struct<id:bigint>").load().count()
    interval = t.StructType([t.StructField("i", t.DayTimeIntervalType())])
    with pytest.raises(BadOption, match="cannot be read from JSON"):
        value_columns(
            of_source({"valueFormat": "json"}), t.StructType([t.StructField("value", interval)])
        )


def test_an_empty_body_and_deep_nesting() -> None:
    decode = Json(ID).decoder()
    for body in (b"", b'{"x":' * 100_000):
        with pytest.raises(BadValue):
            decode(body)
