"""The message record: layout, round trip, refusal of anything else; the bits of sysFlag."""

import contextlib
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.message import record as layout
from cometmq.message.record import (
    BadRecord,
    Compression,
    Record,
    TransactionType,
    decode_one,
    iter_decode,
    pack,
)
from tests.message.strategies import records

SMALL = Record(
    0, 0, 3, 7, 11, 4096, 0, 1_700_000_000_001, bytes([127, 0, 0, 1, 0, 0, 0x1F, 0x90]),
    1_700_000_000_002, bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F]), 2, 5, b"body", "topic", b"a\x01b",
)  # fmt: skip


def test_layout_byte_by_byte() -> None:
    raw = pack(SMALL)
    expected = (
        "00000067 daa320a7 5ba80bb2 00000003 00000007 000000000000000b 0000000000001000 00000000"
        "0000018bcfe56801 7f000001 00001f90 0000018bcfe56802 0a000001 00002a9f 00000002"
        "0000000000000005 00000004 626f6479 05 746f706963 0003 610162"
    )
    assert raw.hex() == expected.replace(" ", "")
    assert len(raw) == layout.FIXED_BYTES + 4 + 5 + 3


@given(records)
def test_round_trip(record: Record) -> None:
    raw = pack(record)
    decoded = decode_one(raw)
    assert pack(decoded) == raw
    assert decoded.size_bytes == len(raw)
    same = msgspec.structs.replace(
        record,
        size_bytes=decoded.size_bytes,
        body_crc=decoded.body_crc,
        sys_flag=record.sys_flag & ~0x30 | layout.host_flags(record.born_host, record.store_host),
    )
    assert decoded == same


@given(st.lists(records, max_size=4))
def test_a_buffer_of_records_is_walked_in_order(many: list[Record]) -> None:
    raw = b"".join(map(pack, many))
    assert [found.body for found in iter_decode(raw)] == [record.body for record in many]


def test_records_must_stand_where_they_say() -> None:
    raw = pack(SMALL)
    assert len(list(iter_decode(raw, 4096))) == 1
    with pytest.raises(BadRecord, match="physical offset field is 4096"):
        list(iter_decode(raw, 4097))


def test_v2_record_is_read() -> None:
    raw = bytearray(pack(SMALL))
    topic_at = layout.HEAD.size + 4
    raw[topic_at : topic_at + 1] = b"\x00\x05"
    raw[0:8] = struct.pack(">II", len(raw), layout.MAGIC_V2)
    assert decode_one(raw).topic == "topic"


def test_topic_over_127_bytes_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="limit is 127"):
        layout.topic_tail("t" * 128)


def test_wrong_body_is_found_unless_told_not_to_look() -> None:
    raw = bytearray(pack(SMALL))
    raw[layout.HEAD.size] ^= 1
    with pytest.raises(BadRecord, match="CRC"):
        decode_one(raw)
    assert decode_one(raw, check_crc=False).body == b"cody"


def test_crc_zero_means_none_was_taken() -> None:
    assert layout.verify(b"anything", 0)
    assert not layout.verify(b"anything", 1)


@given(records, st.data())
def test_cut_or_mutated_bytes_are_refused_or_stay_inside(
    record: Record, data: st.DataObject
) -> None:
    raw = bytearray(pack(record))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(BadRecord):
        assert decode_one(raw).size_bytes <= len(raw)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(BadRecord):
        decode_one(pack(record)[:cut])


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        (4, b"\x00", "magic is"),
        (layout.HEAD.size - 4, b"\x7f", "body length is"),
        (layout.HEAD.size - 4, b"\x80", "body length is"),
        (layout.HEAD.size + 4, b"\xff", "topic length is 255"),
        (layout.HEAD.size + 4 + 6, b"\x01", "properties length is"),
        (layout.SYS_FLAG_POSITION + 3, b"\x30", "its hosts alone need more"),
        (0, b"\x01", "size is"),
    ],
)
def test_what_is_wrong_is_said(place: int, value: bytes, problem: str) -> None:
    raw = bytearray(pack(SMALL))
    raw[place : place + 1] = value
    with pytest.raises(BadRecord, match=problem):
        decode_one(raw)


@given(st.binary(max_size=400))
def test_garbage_behind_a_right_head_is_refused(junk: bytes) -> None:
    raw = struct.pack(">II", len(junk) + 8, layout.MAGIC_V1) + junk
    with pytest.raises(BadRecord):
        decode_one(raw, check_crc=True)


@pytest.mark.parametrize("kind", list(TransactionType))
def test_transaction_type_replaces_only_its_bits(kind: TransactionType) -> None:
    others = layout.COMPRESSED | layout.BORN_HOST_V6 | layout.COMPRESSION_MASK
    value = layout.with_transaction_type(others | TransactionType.ROLLBACK, kind)
    assert layout.transaction_type(value) is kind
    assert value & ~layout.TRANSACTION_MASK == others


def test_prepared_and_rollback_take_no_place_in_a_queue() -> None:
    listed = [kind for kind in TransactionType if layout.takes_queue_slot(kind)]
    assert listed == [TransactionType.NONE, TransactionType.COMMIT]


@pytest.mark.parametrize(
    ("bits", "kind"),
    [
        (0, Compression.ZLIB),
        (0x100, Compression.LZ4),
        (0x200, Compression.ZSTD),
        (0x300, Compression.ZLIB),
    ],
)
def test_compression_type(bits: int, kind: Compression) -> None:
    assert layout.compression(bits | layout.COMPRESSED) is kind


def test_unknown_compression_type_is_an_error() -> None:
    with pytest.raises(ValueError, match="4"):
        layout.compression(0x400)
