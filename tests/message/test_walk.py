"""Places of records in a piece of the log."""

import random

import numpy as np
import pytest
from msgspec.structs import replace

from cometmq.message.record import BLANK, MAGIC_BLANK, MAGIC_V1
from cometmq.message.walk import is_blank, next_record, problem_at, window
from tests.store.tools.logs import PLAIN, packed

BASE = 1 << 33


def log_of(count: int, seed: int = 1) -> tuple[bytes, list[int]]:
    """Records with bodies of many lengths, and where they begin."""
    chance = random.Random(seed)
    records = [replace(PLAIN, body=chance.randbytes(chance.randrange(900))) for _ in range(count)]
    starts, position = [], 0
    for record in records:
        starts.append(position)
        position += len(packed([record]))
    return packed(records, BASE), starts


@pytest.mark.parametrize(
    ("field", "problem"), [(0, "size is"), (4, "magic is"), (28, "physical offset")]
)
def test_why_no_record_begins(field: int, problem: str) -> None:
    data, starts = log_of(3)
    raw = bytearray(data)
    assert problem_at(raw, starts[1], BASE) == ""
    raw[starts[1] + field : starts[1] + field + 4] = bytes(4)
    assert problem in problem_at(raw, starts[1], BASE)


def test_the_next_record_is_found_behind_damage() -> None:
    data, starts = log_of(20)
    raw = bytearray(data)
    raw[starts[3] : starts[3] + 8] = bytes(8)
    assert next_record(raw, BASE, starts[3], len(raw)) == starts[4]
    assert next_record(raw, BASE, starts[19] + 1, len(raw)) == -1
    assert next_record(raw, BASE + 1, 0, len(raw)) == -1
    assert next_record(MAGIC_V1.to_bytes(4, "big") * 50, BASE, 0, 200) == -1
    assert not problem_at(data, 0, None)


def test_a_blank_says_how_much_room_is_left() -> None:
    data = bytes(8) + BLANK.pack(50, MAGIC_BLANK)
    assert is_blank(data, 8, 50)
    assert not is_blank(data, 8, 51)
    assert not is_blank(data, 0, 50)
    assert not is_blank(data, 9, 50)


def test_a_window_of_too_few_bytes_is_empty() -> None:
    assert len(window(np.zeros(3, np.uint8), ">u4")) == 0
    assert window(np.arange(5, dtype=np.uint8), ">u2").tolist() == [0x1, 0x102, 0x203, 0x304]
