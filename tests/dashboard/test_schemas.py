"""Bodies by the schemas that the operator gave: what libraries write is read, hostile bytes end."""

import json
import random
import time
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

from cometmq.core.errors import SettingsError
from cometmq.dashboard import shown
from cometmq.dashboard.avro import DEPTH_MAX, VALUES_MAX, AvroSchema, UnfitBody
from cometmq.dashboard.schemas import Told, load_schemas

SCHEMA: dict[str, Any] = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": "State"},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                   "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "raw", "type": "bytes"},
        {"name": "ratio", "type": "double"},
        {"name": "small", "type": "float"},
        {"name": "is_new", "type": "boolean"},
        {"name": "lines", "type": {"type": "array", "items": "int"}},
        {"name": "notes", "type": {"type": "map", "values": "string"}},
        {"name": "child", "type": ["null", "shop.Order"]},
        {"name": "none", "type": "null"},
    ],
}  # fmt: skip
ORDER: dict[str, Any] = {
    "id": -(2**40), "name": "ä", "state": "PAID", "before": "NEW", "total": Decimal("-17.05"),
    "day": date(2026, 1, 31), "at": datetime(2026, 1, 31, 8, tzinfo=UTC), "hash": b"\x01\xff",
    "raw": b"\x00", "ratio": 0.5, "small": -2.25, "is_new": True, "lines": [1, -300, 70_000],
    "notes": {"a": "b"}, "child": None, "none": None,
}  # fmt: skip
SHOWN: dict[str, Any] = ORDER | {
    "total": "-17.05", "day": "2026-01-31", "at": "2026-01-31T08:00:00+00:00", "hash": "01 ff",
    "raw": "00",
}  # fmt: skip


def written(schema: Any, value: Any) -> bytes:
    """A value as fastavro writes it."""
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def descriptors() -> bytes:
    """Descriptors of shop.Order, as protoc writes them."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="order_id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="note", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_REPEATED)
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders.avsc").write_text(json.dumps(SCHEMA))
    (tmp_path / "bills.shop.Order.pb").write_bytes(descriptors())
    (tmp_path / "README.md").write_text("not a schema")
    return tmp_path


def told(
    folder: Path, topic: str, body: bytes, properties: Mapping[str, str] | None = None
) -> Told:
    found = load_schemas(folder).told(topic, properties or {}, body)
    assert found is not None
    return found


@pytest.mark.parametrize("child", [None, ORDER])
def test_what_fastavro_writes_is_read(child: dict[str, Any] | None) -> None:
    value = AvroSchema(json.dumps(SCHEMA)).read(written(SCHEMA, ORDER | {"child": child}))
    assert value == SHOWN | {"child": SHOWN if child else None}


def test_headers_of_serializers_are_left_out(folder: Path) -> None:
    body = written(SCHEMA, ORDER)
    for header in (b"", b"\x00\x00\x00\x00\x2a", b"\xc3\x01" + bytes(8)):
        found = told(folder, "orders", header + body)
        assert found.form == "avro"
        assert found.text is not None, found.problem
        assert json.loads(found.text) == SHOWN
    bill = b"\x08\x11\x12\x01a\x12\x01b"
    for header in (b"", b"\x00\x00\x00\x00\x07\x00", b"\x00\x00\x00\x00\x07\x04\x02\x00"):
        found = told(folder, "bills", header + bill)
        assert found.form == "protobuf"
        assert found.text is not None, found.problem
        assert json.loads(found.text) == {"order_id": "17", "note": ["a", "b"]}


def test_retries_and_dead_letters_have_the_schema_of_their_topic(folder: Path) -> None:
    body = written(SCHEMA, ORDER)
    for name in ("RETRY_TOPIC", "REAL_TOPIC", "DLQ_ORIGIN_TOPIC"):
        assert told(folder, "%DLQ%billing", body, {name: "orders"}).text is not None
    assert load_schemas(folder).told("others", {}, body) is None


def test_a_body_that_does_not_fit_says_why(folder: Path) -> None:
    body = written(SCHEMA, ORDER)
    assert "1 bytes follow the value" in told(folder, "orders", body + b"x").problem
    assert "it ends within a value" in told(folder, "orders", body[:-3]).problem
    assert "not Protobuf of shop.Order" in told(folder, "bills", b"\xff").problem
    assert "larger than" in told(folder, "orders", bytes(shown.TEXT_BYTES_MAX + 1)).problem


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("orders.avsc", b"[", "orders.avsc"),
        ("orders.avsc", b'{"type": "record", "name": "A"}', "not a schema of Avro"),
        ("orders.avsc", b'{"type": "array", "items": "Order"}', "names the type 'Order'"),
        ("orders.avsc", b'{"type": "fixed", "name": "shop.Hash"}', "'shop.Hash' has no size"),
        (
            "orders.avsc",
            b'{"type": "array", "items": {"type": "fixed", "name": "Hash", "size": "2"}}',
            "fixed type 'Hash' has the size '2'",
        ),
        ("orders.avsc", b'{"type": "enum", "name": "State"}', "the enum 'State' has no symbols"),
        ("orders.avsc", b'{"type": "enum", "name": "State", "symbols": [1]}', "is not a string"),
        ("orders.avsc", b'{"type": "record", "name": 1, "fields": []}', "not a schema of Avro"),
        ("orders.pb", b"", "the name has no message"),
        ("orders.shop.Other.pb", descriptors(), "'shop.Other' is not in the descriptors"),
        ("orders.shop.Order.pb", b"\xff", "is not in the descriptors"),
        ("notes.txt", b"", "has no TOPIC.avsc"),
    ],
)
def test_a_schema_that_cannot_be_used_is_an_error(
    name: str, content: bytes, why: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SettingsError, match="--schemas") as error:
        load_schemas(tmp_path)
    assert why in str(error.value)


def test_words_that_avro_ignores_are_ignored() -> None:
    schema = {"type": "bytes", "logicalType": ["decimal"]}
    assert AvroSchema(json.dumps(schema)).read(b"\x02\xff") == "ff"


def test_other_folders_are_errors(folder: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load_schemas(folder / "gone")
    (folder / "orders.shop.Order.pb").write_bytes(descriptors())
    with pytest.raises(SettingsError, match="two schemas"):
        load_schemas(folder)


LIST = {
    "type": "record", "name": "Deep",
    "fields": [{"name": "next", "type": ["null", "Deep"]}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\x0f\x00"),
        ({"type": "array", "items": "null"}, b"\xc0\x84\x3d" * 20_000 + b"\x00"),
        ({"type": "array", "items": "int"}, b"\x02\x02" * 32_000 + b"\x00"),
        ({"type": "map", "values": "null"}, b"\x02\x00" * 32_000 + b"\x00"),
        (LIST, b"\x02" * 60_000 + b"\x00"),
        ("bytes", b"\xfe\xff\xff\xff\x0f"),
        ("string", b"\x01"),
        ("long", b"\xff" * 60_000),
        ({"type": "array", "items": "string"}, b"\x81" + bytes(60_000)),
    ],
    ids=str,
)
def test_hostile_values_end(schema: Any, body: bytes) -> None:
    begun = time.process_time()
    with pytest.raises(UnfitBody):
        AvroSchema(json.dumps(schema)).read(body)
    assert time.process_time() - begun < 1


def test_bounds_are_exact() -> None:
    nulls = AvroSchema('{"type": "array", "items": "null"}')
    deep = AvroSchema(json.dumps(LIST))
    assert nulls.read(written({"type": "array", "items": "null"}, [None] * (VALUES_MAX - 1)))
    with pytest.raises(UnfitBody, match="more than"):
        nulls.read(written({"type": "array", "items": "null"}, [None] * VALUES_MAX))
    # A record in a union is two levels.
    assert deep.read(b"\x02" * (DEPTH_MAX // 2 - 1) + b"\x00") is not None
    with pytest.raises(UnfitBody, match="levels"):
        deep.read(b"\x02" * (DEPTH_MAX // 2 + 1) + b"\x00")


def test_random_bytes_cost_little(folder: Path) -> None:
    schemas = load_schemas(folder)
    begun = time.process_time()
    for seed in range(200):
        body = random.Random(seed).randbytes(2_000)
        for topic in ("orders", "bills"):
            assert schemas.told(topic, {}, body) is not None
    assert time.process_time() - begun < 5


def test_deep_messages_of_protobuf_end(tmp_path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto()
    struct_pb2.DESCRIPTOR.CopyToProto(file)
    whole = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    (tmp_path / "deep.google.protobuf.Value.pb").write_bytes(whole)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("google.protobuf.Value"))
    value = kind()
    inner: Any = value
    for _ in range(40):
        inner = inner.list_value.values.add()
    inner.number_value = 1
    assert told(tmp_path, "deep", value.SerializeToString()).text is not None
    nested = b""
    for _ in range(150):  # more levels than the library reads
        for tag in (b"\x0a", b"\x32"):
            size = len(nested)
            length = bytes([size & 127 | 128, size >> 7]) if size > 127 else bytes([size])
            nested = tag + length + nested
    assert told(tmp_path, "deep", nested).problem != ""
