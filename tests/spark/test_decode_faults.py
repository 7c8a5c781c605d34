"""What is wrong with single records, and reading the others."""

from zlib import compress, crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.message import properties as props
from cometmq.message.record import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6, BadRecord, Record, pack
from cometmq.spark import decode
from cometmq.spark.decode import Block, record_starts
from cometmq.spark.schema import NAMES, arrow_schema
from tests.spark.records import ODD, REGULAR, plain_record, records

pytestmark = pytest.mark.core

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
ALL = (*NAMES, "_corrupt")


def record(
    offset: int,
    *,
    body: bytes = b"body",
    text: bytes = props.encode({"KEYS": "k", "TAGS": "t"}),
    sys_flag: int = 0,
    topic: str = "T",
) -> bytes:
    return pack(
        Record(0, 0, 3, 0, offset, 9, sys_flag, 1, HOST, 2, HOST, 0, 0, body, topic, text)
    )  # fmt: skip


def reasons(data: bytes, **checks: bool) -> dict[int, str]:
    wanted = {"bodies": False, "crcs": False, "texts": False, **checks}
    return dict(decode.find_faults(Block(data), {}, **wanted).reasons)


def test_good_rows_have_no_faults() -> None:
    data = b"".join(plain_record(offset) for offset in range(9))
    assert reasons(data, bodies=True, crcs=True, texts=True) == {}
    assert decode.repaired(data, record_starts(data)) == (data, {})


def test_bodies_that_cannot_be_unpacked() -> None:
    good = compress(b"x" * 100)
    bodies = [b"plain", good, good[:-3], b"no zlib", good + b"tail"]
    data = b"".join(
        record(at, body=body, sys_flag=COMPRESSED if at else 0) for at, body in enumerate(bodies)
    )
    found = decode.find_faults(Block(data), {}, bodies=True, crcs=False, texts=False)
    assert found.bodies is not None
    assert found.bodies.to_pylist() == [b"plain", b"x" * 100, None, None, b"x" * 100]
    assert list(found.reasons) == [2, 3]
    assert "incomplete" in found.reasons[2]
    assert "cannot be decompressed" in found.reasons[3]
    assert reasons(data) == {}


def test_crcs_are_compared_on_request() -> None:
    spoilt = bytearray(record(0) + record(1) + record(2))
    spoilt[spoilt.find(b"body", len(record(0)))] ^= 1
    found = decode.find_faults(Block(bytes(spoilt)), {}, bodies=True, crcs=True, texts=False)
    assert found.bodies is not None
    assert found.bodies.to_pylist() == [b"body", None, b"body"]
    assert found.reasons == {
        1: f"body CRC differs from the stored {crc32(b'body') & 0x7FFFFFFF:#010x}"
    }
    assert reasons(bytes(spoilt), bodies=True, texts=True) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"KEYS\x01\xff\x02", "properties are not UTF-8"),
        (b"KEYS\x01\xe4\xb8", "properties are not UTF-8"),
        (b"KEYS", "properties contain an entry that is not a name with a value"),
        (b"KEYS\x01k\x02TAGS", "properties contain an entry that is not a name with a value"),
        (b"\x01k\x02TAGS\x01t", "properties contain an entry that is not a name with a value"),
        (b"", None),
        (b"KEYS\x01\x02TAGS\x01", None),
        (b"KEYS\x01k\x02\x02TAGS\x01t\x02", None),
        (b"KEYS\x01a\x01b\x02", None),
    ],
)
def test_texts_that_others_read_by_guessing(text: bytes, reason: str | None) -> None:
    data = record(0) + record(1, text=text) + record(2)
    assert reasons(data, texts=True) == ({} if reason is None else {1: reason})


def test_halves_of_a_character_in_neighbours_are_two_faults() -> None:
    data = record(0, text=b"a\x01\xe4\xb8") + record(1, text=b"\xad")
    assert list(reasons(data, texts=True)) == [0, 1]


def test_a_topic_that_is_no_text() -> None:
    data = bytearray(record(0, topic="TT"))
    data[data.find(b"TT")] = 0xFF
    assert reasons(bytes(data), texts=True) == {0: "topic is not UTF-8"}
    assert Block(bytes(data)).column("topic").to_pylist() == ["\ufffdT"]


@pytest.mark.parametrize("at", [84, 92, 94], ids=["body", "topic", "properties"])
def test_lengths_that_contradict_each_other_spoil_one_row(at: int) -> None:
    data = bytearray(record(0) + record(1) + record(2))
    data[len(record(0)) + at] = 0x70
    with pytest.raises(BadRecord):
        Block(bytes(data))
    readable, known = decode.repaired(bytes(data), record_starts(bytes(data)))
    assert len(readable) == len(data)
    assert list(known) == [len(record(0))]
    block = Block(readable)
    found = decode.find_faults(block, known, bodies=True, crcs=True, texts=True)
    (batch,) = decode.batches_with_faults(block, found, ALL, 100)
    assert batch.schema == arrow_schema(ALL)
    rows = batch.to_pylist()
    assert [row["queue_offset"] for row in rows] == [0, 1, 2]
    assert [row["body"] for row in rows] == [b"body", None, b"body"]
    assert [row["topic"] for row in rows] == ["T", None, "T"]
    assert [row["tags"] for row in rows] == ["t", None, "t"]
    assert [row["properties"] for row in rows][1] == []
    assert [row["_corrupt"] is None for row in rows] == [True, False, True]
    assert "length" in rows[1]["_corrupt"]


def test_hosts_that_do_not_fit() -> None:
    data = bytearray(record(0, body=b"", topic="", text=b""))
    data[39] = BORN_HOST_V6 | STORE_HOST_V6
    readable, known = decode.repaired(bytes(data), np.array([0]))
    assert list(known) == [0]
    assert len(Block(readable)) == 1


def test_batches_have_a_bound() -> None:
    block = Block(b"".join(record(offset) for offset in range(5)))
    found = decode.find_faults(block, {}, bodies=True, crcs=False, texts=False)
    sizes = [batch.num_rows for batch in decode.batches_with_faults(block, found, ("body",), 2)]
    assert sizes == [2, 2, 1]
    block.choose(np.zeros(5, np.bool_))
    assert list(decode.batches_with_faults(block, found, ("body",), 2)) == []


@given(
    st.lists(records(), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 255)), max_size=6),
)
def test_whatever_is_spoilt_is_read_or_told(
    found: list[bytes], changes: list[tuple[int, int]]
) -> None:
    """Anything behind the sizes and magics may be anything."""
    data = bytearray(b"".join(found))
    starts = record_starts(bytes(data))
    for place, value in changes:
        start = int(starts[place % len(starts)])
        size = int.from_bytes(data[start : start + 4], "big")
        data[start + 8 + place % (size - 8)] = value
    readable, known = decode.repaired(bytes(data), starts)
    block = Block(readable, "b", starts)
    seen = decode.find_faults(block, known, bodies=True, crcs=True, texts=True)
    (batch,) = decode.batches_with_faults(block, seen, ALL, 100)
    batch.validate(full=True)
    assert batch.num_rows == len(found)
    told = batch.column("_corrupt")
    assert [row.as_py() is not None for row in told] == [
        row in seen.reasons for row in range(len(found))
    ]
    assert isinstance(told, pa.StringArray)
    if not changes:
        assert not {reason for reason in seen.reasons.values() if "length" in reason}


@given(st.lists(records(st.one_of(REGULAR, ODD)), max_size=6))
def test_a_row_is_judged_by_itself(found: list[bytes]) -> None:
    alone = {row: reasons(each, texts=True).get(0) for row, each in enumerate(found)}
    wanted = {row: reason for row, reason in alone.items() if reason is not None}
    assert reasons(b"".join(found), texts=True) == wanted
