"""The vectorised decoder says what the plain one says, column by column."""

import zlib
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.message.compression import decompress
from cometmq.message.properties import decode
from cometmq.message.record import COMPRESSED, BadRecord, Compression, Record, iter_decode
from cometmq.spark.decode import Block, record_starts
from cometmq.spark.schema import NAMES, arrow_schema
from cometmq.speedups.plain.columns import address
from tests.spark.records import ODD, REGULAR, plain_record, records

pytestmark = pytest.mark.core

MS_MAX = (2**63 - 1) // 1000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, object]


def expected(record: Record) -> Row:
    """A row by the plain decoder."""
    found = decode(record.properties)
    body = decompress(record.body, record.sys_flag) if record.body else b""
    physical = record.physical_offset.to_bytes(8, "big", signed=True)
    return {
        "topic": record.topic,
        "broker_name": "broker-a",
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "msg_id": found.get("UNIQ_KEY") or (record.store_host + physical).hex().upper(),
        "keys": found.get("KEYS"),
        "tags": found.get("TAGS"),
        "body": body,
        "properties": found,
        "born_timestamp": min(max(record.born_ms, -MS_MAX), MS_MAX),
        "born_host": address(record.born_host),
        "store_timestamp": min(max(record.store_ms, -MS_MAX), MS_MAX),
        "store_host": address(record.store_host),
        "sys_flag": record.sys_flag,
        "flag": record.flag,
        "reconsume_times": record.reconsume_times,
        "body_crc": (record.body_crc ^ 1 << 31) - (1 << 31),
        "prepared_offset": record.prepared_offset,
        "size_bytes": record.size_bytes,
    }


def rows(data: bytes, names: tuple[str, ...] = NAMES, rows_max: int = 1000) -> list[Row]:
    found: list[Row] = []
    for batch in Block(data, "broker-a").batches(names, rows_max):
        batch.validate(full=True)
        assert batch.schema.equals(arrow_schema(names))
        assert batch.num_rows <= rows_max
        columns = {
            name: column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
            for name, column in zip(names, batch.columns, strict=True)
        }
        for at in range(batch.num_rows):
            row = {name: column[at].as_py() for name, column in columns.items()}
            for name in ("born_timestamp", "store_timestamp"):
                if name in row:
                    row[name] //= 1000
            if "properties" in row:
                assert len(row["properties"]) == len(dict(row["properties"]))
                row["properties"] = dict(row["properties"])
            found.append(row)
    return found


@given(st.lists(records(REGULAR), max_size=12))
def test_regular_records_decode_as_the_plain_decoder_says(packed: list[bytes]) -> None:
    data = b"".join(packed)
    assert rows(data) == [expected(record) for record in iter_decode(data)]


@given(st.lists(records(st.one_of(REGULAR, ODD)), min_size=1, max_size=6))
def test_odd_property_texts_decode_too(packed: list[bytes]) -> None:
    data = b"".join(packed)
    assert rows(data) == [expected(record) for record in iter_decode(data)]


@given(st.lists(records(), min_size=1, max_size=3), st.data())
def test_changed_bytes_give_rows_or_bad_record(packed: list[bytes], data: st.DataObject) -> None:
    block = bytearray(b"".join(packed))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(block) - 1))
        block[at] = data.draw(st.integers(0, 255))
    try:
        plain = [expected(record) for record in iter_decode(bytes(block), check_crc=False)]
    except BadRecord:
        with pytest.raises(BadRecord):
            rows(bytes(block))
    else:
        assert rows(bytes(block)) == plain


@given(st.lists(records(), min_size=1, max_size=5), st.permutations(NAMES), st.integers(1, 20))
def test_any_choice_of_columns(packed: list[bytes], order: list[str], count: int) -> None:
    data = b"".join(packed)
    names = tuple(order[:count])
    whole = [{name: row[name] for name in names} for row in map(expected, iter_decode(data))]
    assert rows(data, names, rows_max=2) == whole


def test_chosen_rows_are_all_that_is_decoded() -> None:
    data = b"".join(plain_record(offset, tag=["even", "odd"][offset % 2]) for offset in range(9))
    block = Block(data)
    block.choose(block.queue_offsets >= 4)
    assert block.queue_offsets.tolist() == [4, 5, 6, 7, 8]
    assert block.column("tags").to_pylist() == ["even", "odd", "even", "odd", "even"]
    block.choose(np.array([False, True, False, True, False]))
    (batch,) = block.batches(("queue_offset", "tags", "body"), 10)
    assert batch.column("queue_offset").to_pylist() == [5, 7]
    assert batch.column("tags").to_pylist() == ["odd", "odd"]


def test_times_are_utc() -> None:
    (batch,) = Block(plain_record(0, store_ms=1_700_000_000_123)).batches(("store_timestamp",), 1)
    assert batch.column(0)[0].as_py() == EPOCH + timedelta(milliseconds=1_700_000_000_123)


def test_no_rows_give_no_batches() -> None:
    assert rows(b"") == []


def test_a_body_that_cannot_be_unpacked_is_told_where_it_is_wanted() -> None:
    data = bytearray(plain_record(7))
    data[39] = 1
    with pytest.raises(BadRecord, match="cannot be decompressed"):
        rows(bytes(data))
    assert rows(bytes(data), ("queue_offset",)) == [{"queue_offset": 7}]


def test_bodies_packed_by_each_kind() -> None:
    import lz4.frame
    import zstandard

    plain = b"a body of some length" * 50
    kinds = {
        Compression.ZLIB: zlib.compress(plain),
        Compression.LZ4: lz4.frame.compress(plain),
        Compression.ZSTD: zstandard.compress(plain),
    }
    data = b"".join(plain_record(at, body=body) for at, body in enumerate(kinds.values()))
    flagged = bytearray(data)
    for start, kind in zip(record_starts(data).tolist(), kinds, strict=True):
        flagged[start + 38 : start + 40] = (COMPRESSED | kind << 8).to_bytes(2, "big")
    assert [row["body"] for row in rows(bytes(flagged), ("body",))] == [plain] * 3


def test_addresses() -> None:
    assert address(b"\x7f\0\0\1\0\0\x2a\x9f") == "127.0.0.1:10911"
    assert address(bytes(15) + b"\1\0\0\0\x09") == "[::1]:9"
