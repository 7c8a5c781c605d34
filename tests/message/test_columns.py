"""Records by the column are what decode_one makes of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cometmq.message.columns import Columns, read_columns
from cometmq.message.record import HEAD_COLUMNS, HEAD_FIELDS, BadRecord, Record, decode_one
from cometmq.message.walk import all_places, find_places
from tests.message.strategies import records
from tests.store.tools.logs import PLAIN, as_v2, packed

BASE = 1 << 20
NUMBERS = (
    "size_bytes", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag",
    "born_ms", "store_ms", "reconsume_times", "prepared_offset",
)  # fmt: skip


def columns_of(data: bytes, base: int = BASE) -> Columns:
    return read_columns(np.frombuffer(data, np.uint8), find_places(data, base).starts, base)[0]


def assert_equal(data: bytes, columns: Columns, row: int, record: Record) -> None:
    for name in NUMBERS:
        assert columns.number(name)[row] == getattr(record, name)
    body, topic, properties = (
        data[starts[row] : ends[row]]
        for starts, ends in (
            (columns.body_starts, columns.body_ends),
            (columns.topic_starts, columns.topic_ends),
            (columns.properties_starts, columns.ends),
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


def test_the_layout_is_that_of_the_record() -> None:
    kind = np.dtype(HEAD_COLUMNS)
    fields = kind.fields
    assert fields is not None
    assert kind.itemsize == 88
    assert list(fields) == [name for name, _ in HEAD_FIELDS]


@given(st.integers(0, 400), st.integers(1, 255), st.booleans())
def test_what_decode_one_refuses_ends_the_columns(at: int, flip: int, knows_base: bool) -> None:
    data = bytearray(packed([PLAIN] * 4, BASE))
    at %= len(data)
    data[at] ^= flip
    size = len(data) // 4
    good, expected = 0, ""
    for number in range(4):
        place = number * size
        try:
            record = decode_one(data, place, check_crc=False)
        except BadRecord as error:
            expected = error.problem
            break
        if knows_base and record.physical_offset != BASE + place:
            expected = f"it carries physical offset {record.physical_offset}"
            break
        good += 1
    starts = np.arange(4) * size
    base = BASE if knows_base else None
    columns, problem = read_columns(np.frombuffer(data, np.uint8), starts, base)
    assert (len(columns), problem) == (good, expected)


def test_of_several_that_are_none_the_first_is_told() -> None:
    data = bytearray(packed([PLAIN] * 4, BASE))
    size = len(data) // 4
    data[3 * size + 4] ^= 1  # the magic, which is looked at first
    data[2 * size + 84] ^= 0x7F
    data[size + 88 + len(PLAIN.body)] ^= 0x7F
    columns, problem = read_columns(np.frombuffer(data, np.uint8), np.arange(4) * size)
    assert len(columns) == 1
    assert problem.startswith("topic length is")


def test_rows_keep_their_fields() -> None:
    columns = columns_of(packed([replace(PLAIN, queue_offset=n) for n in range(5)], BASE))
    few = columns.rows(np.array([False, True, False, True, True]))
    for name in NUMBERS:
        assert few.number(name).tolist() == columns.number(name)[[1, 3, 4]].tolist()
    assert few.ends.tolist() == columns.ends[[1, 3, 4]].tolist()


def test_only_some_of_the_records() -> None:
    data = packed([replace(PLAIN, queue_offset=n) for n in range(5)], BASE)
    raw = np.frombuffer(data, np.uint8)
    columns, problem = read_columns(raw, all_places(data)[[0, 3]])
    assert (columns.number("queue_offset").tolist(), problem) == ([0, 3], "")
    columns, problem = read_columns(raw, np.empty(0, np.int64))
    assert (len(columns), problem) == (0, "")


@pytest.mark.parametrize("cut", [1, 7, 8, 90])
def test_a_block_ends_with_a_whole_record(cut: int) -> None:
    data = packed([PLAIN] * 5, BASE)
    with pytest.raises(BadRecord) as found:
        all_places(data + data[:cut])
    assert found.value.position == len(data)
