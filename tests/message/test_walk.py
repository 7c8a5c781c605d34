"""Places of records in a piece of the log."""

import random

import numpy as np
import pytest
from msgspec.structs import replace

from cometmq.message import walk
from cometmq.message.record import BLANK, MAGIC_BLANK, MAGIC_V1, Record
from cometmq.message.walk import find_places, is_blank, next_record, problem_at, window
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


@pytest.mark.parametrize("count", [1, 2, 50, 2_000])
def test_every_record_is_found(count: int) -> None:
    data, starts = log_of(count)
    found = find_places(data, BASE)
    assert found.starts.tolist() == starts
    assert found.stop == len(data)


def test_a_cut_off_record_is_no_problem() -> None:
    data, starts = log_of(300)
    for cut in (1, 50, 95):
        found = find_places(data, BASE, 0, len(data) - cut)
        assert found.starts.tolist() == starts[:-1]
        assert found.stop == starts[-1]


@pytest.mark.parametrize("count", [0, 7])
def test_what_is_too_short_for_a_record_holds_none(count: int) -> None:
    found = find_places(bytes(count), BASE)
    assert (len(found.starts), found.stop) == (0, 0)


@pytest.mark.parametrize("at", [0, 700, 1_999])
def test_a_damaged_size_ends_the_walk_there(at: int) -> None:
    data, starts = log_of(2_000)
    for size in (0, 90, 1 << 31):
        raw = bytearray(data)
        raw[starts[at] : starts[at] + 4] = size.to_bytes(4, "big")
        found = find_places(raw, BASE)
        assert found.starts.tolist() == starts[:at]
        assert found.stop == starts[at]


def test_a_size_that_leads_astray_ends_the_walk_soon() -> None:
    data, starts = log_of(2_000)
    raw = bytearray(data)
    raw[starts[900] : starts[900] + 4] = (92).to_bytes(4, "big")
    found = find_places(raw, BASE)
    assert found.starts.tolist()[:901] == starts[:901]
    assert found.stop < len(data)


@pytest.mark.parametrize(
    ("field", "problem"), [(0, "size is"), (4, "magic is"), (28, "physical offset")]
)
def test_why_no_record_begins(field: int, problem: str) -> None:
    data, starts = log_of(3)
    raw = bytearray(data)
    assert problem_at(raw, starts[1], BASE) == ""
    raw[starts[1] + field : starts[1] + field + 4] = bytes(4)
    assert problem in problem_at(raw, starts[1], BASE)


def test_a_body_that_looks_like_a_record_misleads_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "_SEED_BYTES_MIN", 512)
    inner = bytes(100)
    records: list[Record] = []
    for number in range(200):
        # The body holds a record that carries the physical offset of where it stands.
        start = len(packed(records))
        inner = packed([PLAIN], BASE + start + 88)
        records.append(replace(PLAIN, body=inner, queue_offset=number))
    data = packed(records, BASE)
    found = find_places(data, BASE)
    assert len(found.starts) == 200
    assert found.stop == len(data)


def test_the_next_record_is_found_behind_damage() -> None:
    data, starts = log_of(20)
    raw = bytearray(data)
    raw[starts[3] : starts[3] + 8] = bytes(8)
    assert next_record(raw, BASE, starts[3], len(raw)) == starts[4]
    assert next_record(raw, BASE, starts[19] + 1, len(raw)) == -1
    assert next_record(raw, BASE + 1, 0, len(raw)) == -1
    assert next_record(MAGIC_V1.to_bytes(4, "big") * 50, BASE, 0, 200, tries=3) == -1


def test_a_blank_says_how_much_room_is_left() -> None:
    data = bytes(8) + BLANK.pack(50, MAGIC_BLANK)
    assert is_blank(data, 8, 50)
    assert not is_blank(data, 8, 51)
    assert not is_blank(data, 0, 50)
    assert not is_blank(data, 9, 50)


def test_a_window_of_too_few_bytes_is_empty() -> None:
    assert len(window(np.zeros(3, np.uint8), ">u4")) == 0
    assert window(np.arange(5, dtype=np.uint8), ">u2").tolist() == [0x1, 0x102, 0x203, 0x304]


def test_records_that_carry_offsets_of_other_places() -> None:
    data, starts = log_of(2_000)
    found = find_places(data, None)
    assert found.starts.tolist() == starts
    assert find_places(data, BASE + 1, 0).starts.tolist() == starts
    assert not problem_at(data, 0, None)


def test_records_inside_of_bodies_are_none() -> None:
    inner, _ = log_of(40)
    outer = [replace(PLAIN, body=inner) for _ in range(40)]
    data = packed(outer, BASE)
    found = find_places(data, None)
    assert len(found.starts) == 40
    assert found.stop == len(data)
