"""Bodies in all forms: what serializers write is read, and hostile bytes cost little."""

import gzip
import json
import random
import time
from io import BytesIO

import fastavro
import msgspec
import pytest
from google.protobuf.struct_pb2 import Struct

from cometmq.dashboard import shown
from cometmq.dashboard.bodies import DEPTH_MAX, forms_of

VALUE = {"order": "ä-17", "parts": [1, -2, 300, 2.5, None, True], "deep": {"of": {"it": "x"}}}


def first(body: bytes) -> tuple[str, str]:
    """Return the form that the page shows, and its text."""
    return next((name, text) for name, text in forms_of(body).items() if text is not None)


def test_message_pack() -> None:
    name, text = first(msgspec.msgpack.encode(VALUE))
    assert name == "messagepack"
    assert json.loads(text) == VALUE
    big = {"b": b"\x00\x01", "t": "y" * 300, "l": list(range(70_000, 70_100)), "n": -(2**40)}
    text = first(msgspec.msgpack.encode(big))[1]
    assert json.loads(text) == big | {"b": "00 01"}
    assert '"3": 4' in first(msgspec.msgpack.encode({3: 4}))[1]


def test_protobuf() -> None:
    value = Struct()
    value.update({"order": "A-17", "price": 2.5})
    name, text = first(value.SerializeToString())
    assert name == "protobuf"
    assert '1: "order"' in text
    assert '3: "A-17"' in text
    assert " or 2.5" in text
    assert first(b"\x08\x96\x01\x12\x02\xff\xff")[1] == "1: 150\n2: ff ff"


def test_gzip() -> None:
    name, text = first(gzip.compress(json.dumps(VALUE).encode()))
    assert name == "gzip"
    assert json.loads(text) == VALUE
    packed = gzip.compress(msgspec.msgpack.encode(VALUE))
    assert json.loads(first(packed)[1]) == VALUE


def test_confluent() -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    payload = BytesIO()
    fastavro.schemaless_writer(payload, fastavro.parse_schema(schema), {"id": "A-17"})
    name, text = first(b"\x00" + (42).to_bytes(4, "big") + payload.getvalue())
    assert name == "confluent"
    assert "schema id 42, payload of 5 bytes" in text
    assert "A-17" in text
    value = Struct()
    value.update({"order": "A-17"})
    text = first(b"\x00\x00\x00\x00\x07\x00" + value.SerializeToString())[1]
    assert '3: "A-17"' in text


def test_text_stays_text() -> None:
    for body in (b"", b"x", "paid ä\n".encode(), ("ä" * shown.TEXT_BYTES_MAX).encode()):
        assert first(body)[0] == "text"
    assert first(b'{"a": 1}')[0] == "json"
    assert first(b"\xff\xfe\xfd")[0] == "hex"


def hostile() -> list[bytes]:
    """Bodies that a careless reader takes long for, or much memory, or a deep stack."""
    size = shown.TEXT_BYTES_MAX
    nested = b"\x01"
    while len(nested) < 60_000:
        length, varint = len(nested), b""
        while length > 127:
            varint, length = varint + bytes([length & 127 | 128]), length >> 7
        nested = b"\x0a" + varint + bytes([length]) + nested
    return [
        b"\x91" * size,
        b"\x81\xa1a" * (size // 3),
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff\x01",
        b"\xdc\xff\xff" + b"\x00" * 65_000,
        b"\xc6\xff\xff\xff\xff",
        b"\x08\x01" * (size // 2),
        b"\x0a\x00" * (size // 2),
        b"\x80" * size,
        nested,
        gzip.compress(b"\x08\x01" * (8 << 20)),
        gzip.compress(b"0" * (64 << 20)),
        b"\x1f\x8b" + bytes(size),
        bytes(4 << 20),
        *(random.Random(seed).randbytes(size) for seed in range(5)),
        *(bytes([0x0A]) + random.Random(seed).randbytes(300) for seed in range(50)),
    ]


@pytest.mark.parametrize("body", hostile(), ids=lambda body: f"{body[:4].hex()}-{len(body)}")
def test_hostile_bodies(body: bytes) -> None:
    begun = time.process_time()
    forms = forms_of(body)
    assert time.process_time() - begun < 1
    assert all(len(text) < 1.2 * shown.JSON_CHARACTERS_MAX for text in forms.values() if text)


def test_depth_has_a_bound() -> None:
    for depth, is_shown in ((DEPTH_MAX, True), (DEPTH_MAX + 1, False)):
        body = b"\x91" * depth + b"\x01"
        assert (forms_of(body)["messagepack"] is not None) is is_shown
