"""Records by the column are what decode_one makes of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cometmq.message.record import BadRecord, Record, decode_one
from cometmq.message.walk import find_places
from cometmq.store.tools.records import Columns, read_columns, text_code, text_codes
from tests.message.strategies import records
from tests.store.tools.logs import PLAIN, as_v2, packed

BASE = 1 << 20


def columns_of(data: bytes, base: int = BASE) -> Columns:
    raw = np.frombuffer(data, np.uint8)
    return read_columns(raw, find_places(data, base).starts, base)


def assert_equal(data: bytes, columns: Columns, row: int, record: Record) -> None:
    assert columns.sizes[row] == record.size_bytes
    assert columns.crcs[row] == record.body_crc
    assert columns.queue_ids[row] == record.queue_id
    assert columns.queue_offsets[row] == record.queue_offset
    assert columns.sys_flags[row] == record.sys_flag
    assert columns.store_ms[row] == record.store_ms
    body, topic, properties = (
        data[at[row] : at[row] + size[row]]
        for at, size in (
            (columns.body_at, columns.body_bytes),
            (columns.topic_at, columns.topic_bytes),
            (columns.properties_at, columns.properties_bytes),
        )
    )
    assert (body, topic.decode(), properties) == (record.body, record.topic, record.properties)


@given(st.lists(records, min_size=1, max_size=5))
def test_columns_are_the_fields(some: list[Record]) -> None:
    data = packed(some, BASE)
    columns = columns_of(data)
    assert len(columns) == len(some)
    for row, at in enumerate(columns.starts.tolist()):
        assert_equal(data, columns, row, decode_one(data, at))


def test_both_versions_stand_side_by_side() -> None:
    first = as_v2(packed([replace(PLAIN, topic="v2")], BASE))
    data = first + packed([PLAIN], BASE + len(first))
    columns = columns_of(data)
    assert [decode_one(data, at).topic for at in columns.starts.tolist()] == ["v2", "t"]
    for row, at in enumerate(columns.starts.tolist()):
        assert_equal(data, columns, row, decode_one(data, at))


@given(st.integers(0, 400), st.integers(1, 255))
def test_what_decode_one_refuses_ends_the_columns(at: int, flip: int) -> None:
    data = bytearray(packed([PLAIN] * 4, BASE))
    at %= len(data)
    data[at] ^= flip
    size = len(data) // 4
    good = 0
    for number in range(4):
        try:
            record = decode_one(data, number * size, check_crc=False)
        except BadRecord:
            break
        if record.size_bytes != size or record.physical_offset != BASE + number * size:
            break
        good += 1
    assert len(columns_of(bytes(data))) == good


@pytest.mark.parametrize("length", [*range(1, 20), 127])
def test_texts_have_codes(length: int) -> None:
    texts = [bytes([65 + n]) * (length - 1) + bytes([97 + n % 3]) for n in range(20)]
    texts += [texts[0], b"x" * (length + 1)]
    raw = bytes(8) + b"".join(b"??" + text for text in texts) + bytes(8)
    at = [10 + n * (length + 2) for n in range(len(texts))]
    lengths = [len(text) for text in texts]
    found = text_codes(np.frombuffer(raw, np.uint8), np.array(at), np.array(lengths)).tolist()
    assert found == [text_code(text) for text in texts]
    assert len(set(found)) == len(set(texts))
