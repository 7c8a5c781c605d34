"""Bodies of every format as columns; what cannot be decoded stays, with its reason."""

import io
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as t

import cometmq
from cometmq.core.errors import SettingsError
from cometmq.spark.values.avro import Avro, avro_type
from cometmq.spark.values.decoding import dead_letters, from_rocketmq
from cometmq.spark.values.protobuf import Protobuf
from cometmq.spark.values.registry import Registry, RegistryFailed, SchemaUnknown

pytestmark = pytest.mark.spark

ORDER = "id bigint, customer string, total decimal(10,2)"


def messages(spark: SparkSession, bodies: Sequence[bytes | None]) -> DataFrame:
    """A frame as the source has it, with few columns."""
    rows = [("orders", number, body) for number, body in enumerate(bodies)]
    return spark.createDataFrame(rows, "topic string, queue_offset bigint, body binary")


def outcomes(rows: DataFrame) -> list[tuple[Any, str | None]]:
    """The values as dicts and the reasons, in order."""
    found = rows.orderBy("queue_offset").select("value", "undecodable").collect()
    return [(each.value and each.value.asDict(recursive=True), each.undecodable) for each in found]


def test_json_and_what_is_none(spark: SparkSession) -> None:
    bodies = [
        b'{"id": 7, "customer": "Ann", "total": 12.5}',
        b'{"id": 8}',
        b'{"id": "eight"}',
        b"[1, 2]",
        b"no json",
        b'{"id": 9, "customer": "\xff"}',
        b"",
        None,
    ]
    found = outcomes(from_rocketmq(messages(spark, bodies), ORDER))
    assert found[0] == ({"id": 7, "customer": "Ann", "total": Decimal("12.50")}, None)
    assert found[1] == ({"id": 8, "customer": None, "total": None}, None)
    assert [value for value, _ in found[2:]] == [None] * 6
    reasons = [reason or "" for _, reason in found[2:]]
    assert reasons[0] == "not JSON, or a field has another type"
    assert all(reasons)
    assert reasons[3:] == ["not UTF-8", "the body is empty", "the body is empty"]


def test_messagepack_and_a_value_of_another_type(spark: SparkSession) -> None:
    pack = msgspec.msgpack.encode
    bodies = [
        pack({"id": 7, "customer": "Ann", "more": 1}),
        pack({"id": "seven"}),
        pack({"id": 8}) + b"x",
        b"\xc1",
        None,
    ]
    found = outcomes(
        from_rocketmq(messages(spark, bodies), "id bigint, customer string", format="msgpack")
    )
    assert found[0] == ({"id": 7, "customer": "Ann"}, None)
    assert [value for value, _ in found[1:]] == [None] * 4
    assert "another type" in (found[1][1] or "")
    assert all("not MessagePack" in (reason or "") for _, reason in found[2:])


SCHEMA = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Item",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {"name": "state", "type": {"type": "enum", "name": "S", "symbols": ["A"]}},
                    ],
                },
            },
        },
        {"name": "first", "type": ["null", "Item"]},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
    ],
}
AT = datetime(2026, 11, 27, 12, tzinfo=UTC)
VALUE = {
    "id": 7,
    "customer": None,
    "at": AT,
    "items": [{"sku": "a", "state": "A"}],
    "first": None,
    "counts": {"x": 1},
}


def avro(value: Any, schema: Any = SCHEMA) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def test_avro_has_its_own_type(spark: SparkSession) -> None:
    whole = avro(VALUE)
    format = Avro(json.dumps(SCHEMA))
    rows = from_rocketmq(messages(spark, [whole, whole[:-2], whole + b"x", b""]), format=format)
    assert rows.schema["value"].dataType.simpleString() == (
        "struct<id:bigint,customer:string,at:timestamp,items:array<struct<sku:string,state:string>>"
        ",first:struct<sku:string,state:string>,counts:map<string,int>>"
    )
    found = outcomes(rows)
    value = found[0][0]
    assert value.pop("at").timestamp() == AT.timestamp()
    assert value == {name: each for name, each in VALUE.items() if name != "at"}
    assert all(value is None and reason for value, reason in found[1:])
    assert found[2][1] == "1 bytes follow the Avro value"


def test_avro_types_that_spark_cannot_have() -> None:
    parse = fastavro.parse_schema
    with pytest.raises(SettingsError, match="a union of"):
        avro_type(["int", "string"])
    node = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    with pytest.raises(SettingsError, match="contains itself"):
        avro_type(parse(node))
    with pytest.raises(SettingsError, match="needs schema"):
        Avro()
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    assert avro_type(parse(decimal)) == t.DecimalType(9, 2)


@contextmanager
def registry(schemas: dict[str, Any], asked: list[str]) -> Iterator[str]:
    """A registry on a free port; paths that it does not know are answered with 404."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers.get('Authorization', '')}".strip())
            found = schemas.get(self.path)
            text = json.dumps(found).encode()
            self.send_response(found if isinstance(found, int) else 200 if found else 404)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_avro_with_a_registry_reads_what_older_schemas_wrote(spark: SparkSession) -> None:
    old = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "int"}]}
    more = {"name": "note", "type": "string", "default": "none"}
    new = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}, more]}
    schemas = {
        "/schemas/ids/1": {"schema": json.dumps(old)},
        "/schemas/ids/2": {"schema": json.dumps(new)},
        "/subjects/orders-value/versions/latest": {"id": 2, "schema": json.dumps(new)},
    }

    def framed(schema_id: int, body: bytes) -> bytes:
        return b"\0" + schema_id.to_bytes(4, "big") + body

    bodies = [
        framed(1, avro({"id": 3}, old)),
        framed(2, avro({"id": 4, "note": "x"}, new)),
        framed(3, b"anything"),
        b"\x01" + bytes(8),
        b"\0",
    ]
    asked: list[str] = []
    with registry(schemas, asked) as url:
        format = Avro(registry=url, subject="orders-value")
        found = outcomes(from_rocketmq(messages(spark, bodies), format=format))
    assert found[:2] == [({"id": 3, "note": "none"}, None), ({"id": 4, "note": "x"}, None)]
    assert "has no schema /schemas/ids/3" in (found[2][1] or "")
    assert all("does not begin with" in (reason or "") for _, reason in found[3:])


def test_a_registry_that_fails_is_no_bad_body() -> None:
    asked: list[str] = []
    with registry({"/subjects/s/versions/latest": 500}, asked) as url:
        named = Registry(url.replace("//", "//me:p%40ss@"))
        with pytest.raises(RegistryFailed, match="status 500"):
            named.newest("s")
        with pytest.raises(SchemaUnknown):
            named.schema(9)
    assert asked == [
        *["/subjects/s/versions/latest Basic bWU6cEBzcw=="] * 3,
        "/schemas/ids/9 Basic bWU6cEBzcw==",
    ]
    with pytest.raises(SettingsError, match="must be a URL"):
        Registry("file:///etc/passwd")


def order_descriptors() -> bytes:
    """A FileDescriptorSet with shop.Order."""
    of = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    item = file.message_type.add(name="Item")
    item.field.add(name="sku", number=1, type=of.TYPE_STRING, label=of.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=of.TYPE_UINT64, label=of.LABEL_OPTIONAL)
    order.field.add(name="raw", number=2, type=of.TYPE_BYTES, label=of.LABEL_OPTIONAL)
    order.field.add(
        name="items", number=3, type=of.TYPE_MESSAGE, label=of.LABEL_REPEATED, type_name="shop.Item"
    )
    order.field.add(
        name="main", number=4, type=of.TYPE_MESSAGE, label=of.LABEL_OPTIONAL, type_name="shop.Item"
    )
    node = file.message_type.add(name="Node")
    node.field.add(
        name="next", number=1, type=of.TYPE_MESSAGE, label=of.LABEL_OPTIONAL, type_name="shop.Node"
    )
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


def test_protobuf_by_its_descriptors(spark: SparkSession) -> None:
    descriptors = order_descriptors()
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorSet.FromString(descriptors).file[0])
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    body = kind(id=1 << 63, raw=b"\0\1", items=[{"sku": "a"}, {"sku": "b"}]).SerializeToString()
    format = Protobuf(descriptors, "shop.Order")
    rows = from_rocketmq(messages(spark, [body, b"\x0a\xff\xff", b""]), format=format)
    assert rows.schema["value"].dataType.simpleString() == (
        "struct<id:decimal(20,0),raw:binary,items:array<struct<sku:string>>,main:struct<sku:string>>"
    )
    found = outcomes(rows)
    items = [{"sku": "a"}, {"sku": "b"}]
    assert found[0] == (
        {"id": Decimal(1 << 63), "raw": bytearray(b"\0\1"), "items": items, "main": None},
        None,
    )
    assert "not Protobuf of shop.Order" in (found[1][1] or "")
    # No bytes are a message with all defaults.
    assert found[2][0]["id"] == 0
    with pytest.raises(SettingsError, match="contains itself"):
        Protobuf(descriptors, "shop.Node").spark_type()
    with pytest.raises(SettingsError, match=r"'shop\.Nothing' is not in the descriptors"):
        Protobuf(descriptors, "shop.Nothing").spark_type()


def test_settings_are_checked_at_once(spark: SparkSession) -> None:
    frame = messages(spark, [b"{}"])
    with pytest.raises(SettingsError, match="neither json"):
        from_rocketmq(frame, ORDER, format="xml")
    with pytest.raises(SettingsError, match="schema"):
        from_rocketmq(frame)
    with pytest.raises(SettingsError, match="need the column body"):
        from_rocketmq(frame.drop("body"), ORDER)
    with pytest.raises(SettingsError, match="have a column 'value' already"):
        from_rocketmq(frame.withColumnRenamed("topic", "value"), ORDER)


def test_a_stream_counts_them_and_sends_them_to_a_topic(
    spark: SparkSession, cometmq_cluster: Any, tmp_path: Path
) -> None:
    namesrv = cometmq_cluster.namesrv
    with cometmq.BlockingClient(namesrv) as client:
        client.wait(cometmq.Admin(client.inner.session).create_topic("typed-dead"))
        for number in range(20):
            body = b'{"id": %d}' % number if number % 5 else b"broken %d" % number
            client.send("typed", body, keys=[f"K{number}"], tag="t", properties={"a": "b"})
    source = (
        spark.readStream.format("rocketmq")
        .option("nameservers", namesrv)
        .option("topic", "typed")
        .option("startingOffsets", "earliest")
        .load()
    )
    rows = from_rocketmq(source, "id bigint", counted_as="decoding")
    good: list[Row] = []

    def both(batch: DataFrame, _: int) -> None:
        batch.persist()
        good.extend(batch.where("undecodable is null").select("value.id").collect())
        letters = dead_letters(batch, "typed-dead")
        letters.write.format("rocketmq").option("nameservers", namesrv).mode("append").save()
        batch.unpersist()

    query = (
        rows.writeStream.foreachBatch(both)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert sorted(row.id for row in good) == [n for n in range(20) if n % 5]
    counted = [
        progress.observedMetrics["decoding"].asDict()
        for progress in query.recentProgress
        if "decoding" in progress.observedMetrics
    ]
    assert sum(each["rows"] for each in counted) == 20
    assert sum(each["undecodable"] for each in counted) == 4
    letters = (
        spark.read.format("rocketmq")
        .option("nameservers", namesrv)
        .option("topic", "typed-dead")
        .load()
        .collect()
    )
    assert sorted(bytes(each.body) for each in letters) == [
        b"broken %d" % number for number in (0, 10, 15, 5)
    ]
    for each in letters:
        found = each.properties
        assert found["a"] == "b"
        assert found["UNDECODABLE"] == "not a JSON object" or "not JSON" in found["UNDECODABLE"]
        assert (found["ORIGIN_TOPIC"], each.tags) == ("typed", "t")
        assert each.keys == f"K{bytes(each.body).split()[1].decode()}"
