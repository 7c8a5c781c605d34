"""Places and numbers of records; test_records.py compares them with the plain decoder."""

import numpy as np
import pytest

from cometmq.message.record import BadRecord
from cometmq.spark.decode.fields import read_fields, walk
from tests.spark.records import plain_record

DATA = b"".join(map(plain_record, range(5)))
STARTS = walk(DATA)


def test_rows_keep_their_fields() -> None:
    fields = read_fields(DATA, STARTS)
    assert len(fields) == 5
    few = fields.rows(np.array([False, True, False, True, True]))
    for name in ("queue_offset", "physical_offset", "store_timestamp", "size_bytes", "sys_flag"):
        assert few.number(name).tolist() == fields.number(name)[[1, 3, 4]].tolist()
    assert (few.body_ends - few.body_starts).tolist() == [4] * 3
    assert (few.ends - few.properties_starts > 0).all()


def test_only_some_of_the_records() -> None:
    fields = read_fields(DATA, STARTS[[0, 3]])
    assert fields.number("queue_offset").tolist() == [0, 3]


@pytest.mark.parametrize(
    ("at", "problem"),
    [(0, "its size leaves"), (4, "magic is"), (84, "body length"), (92, "topic length")],
)
def test_what_is_no_record(at: int, problem: str) -> None:
    raw = bytearray(DATA)
    raw[STARTS[2] + at] = 0x7F
    with pytest.raises(BadRecord, match=problem) as found:
        read_fields(bytes(raw), STARTS)
    assert found.value.position == STARTS[2]


@pytest.mark.parametrize("cut", [1, 7, 8, 90])
def test_a_block_ends_with_a_whole_record(cut: int) -> None:
    with pytest.raises(BadRecord):
        walk(DATA + DATA[:cut])
