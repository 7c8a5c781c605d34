"""A log file from end to end, whole, damaged, half full."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cometmq.message.record import BLANK, MAGIC_BLANK, TransactionType, takes_queue_slot
from cometmq.store.dispatch import code_and_keys
from cometmq.store.files import PosixFiles
from cometmq.store.layout import SCHEDULE_TOPIC, index_hash, topic_prefix
from cometmq.store.log.checksums import sums_of
from cometmq.store.tools.logfile import Gap, LogWalk
from tests.store.tools.logs import PLAIN, packed

pytestmark = pytest.mark.core

BASE = 1 << 20
SIZE = 1 << 20
DELAYS_MS = (1_000, 5_000)


def content(fill: int, seed: int = 1, longest: int = 900) -> tuple[bytearray, list[int]]:
    """A file with records up to about ``fill`` bytes, and where they begin."""
    chance = random.Random(seed)
    records, starts, position = [], [], 0
    while True:
        record = replace(PLAIN, body=chance.randbytes(chance.randrange(longest)))
        size = len(packed([record]))
        if position + size + 8 > fill:
            break
        records.append(record)
        starts.append(position)
        position += size
    raw = bytearray(packed(records, BASE).ljust(SIZE, b"\0"))
    if fill == SIZE:
        raw[position : position + 8] = BLANK.pack(SIZE - position, MAGIC_BLANK)
    return raw, [*starts, position]


def walked(
    tmp_path: Path, raw: bytes | bytearray, piece_bytes: int = 1 << 16, *, sums: bool = False
) -> tuple[LogWalk, list[int]]:
    path = tmp_path / "file"
    path.write_bytes(raw)
    walk = LogWalk(
        PosixFiles(), str(path), BASE, len(raw), wants_sums=sums, piece_bytes=piece_bytes
    )
    found: list[int] = []
    for chunk in walk:
        found += (chunk.places - BASE).tolist()
        assert chunk.bad_bodies() == []
    return walk, found


@pytest.mark.parametrize("piece_bytes", [1 << 16, 1 << 18, 1 << 20, 1 << 24])
def test_a_full_file(tmp_path: Path, piece_bytes: int) -> None:
    raw, starts = content(SIZE)
    walk, found = walked(tmp_path, raw, piece_bytes, sums=True)
    assert found == starts[:-1]
    assert (walk.end, walk.closed, walk.gaps) == (BASE + starts[-1], True, [])
    assert walk.sums == sums_of(raw)
    assert walked(tmp_path, raw, piece_bytes)[0].sums == b""


def test_records_longer_than_a_piece(tmp_path: Path) -> None:
    raw, starts = content(SIZE, longest=200_000)
    walk, found = walked(tmp_path, raw)
    assert found == starts[:-1]
    assert (walk.end, walk.closed, walk.gaps) == (BASE + starts[-1], True, [])


@pytest.mark.parametrize("fill", [0, 1_000, 400_000, SIZE - 1, SIZE - 9])
def test_a_file_that_is_not_full(tmp_path: Path, fill: int) -> None:
    raw, starts = content(fill)
    walk, found = walked(tmp_path, raw)
    assert found == starts[:-1]
    assert (walk.end, walk.closed, walk.gaps) == (BASE + starts[-1], False, [])


def test_what_was_never_written_is_not_read(tmp_path: Path) -> None:
    raw, starts = content(100_000)
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(raw[: starts[-1]])
        file.truncate(SIZE)
    read: list[int] = []

    class Watched(PosixFiles):
        def read_into(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
            read.append(offset)
            return super().read_into(handle, buffer, offset)

    walk = LogWalk(Watched(), str(path), BASE, SIZE, piece_bytes=1 << 16)
    assert len([row for chunk in walk for row in chunk.starts]) == len(starts) - 1
    assert walk.end == BASE + starts[-1]
    assert max(read) <= 1 << 17


def test_a_record_that_ends_with_the_file_leaves_no_room_for_a_blank(tmp_path: Path) -> None:
    raw = packed([replace(PLAIN, body=bytes(100))] * 3, BASE)
    walk, found = walked(tmp_path, raw)
    assert len(found) == 3
    assert (walk.end, walk.closed) == (BASE + len(raw), True)


@pytest.mark.parametrize("field", [0, 1, 4, 28, 84, 89])
@pytest.mark.parametrize("row", [0, 5, -1])
@pytest.mark.parametrize("fill", [SIZE, 300_000])
def test_damage_is_a_gap_and_the_records_behind_it_are_found(
    tmp_path: Path, field: int, row: int, fill: int
) -> None:
    raw, starts = content(fill)
    places = starts[:-1]
    start, stop = places[row], [*places[1:], starts[-1]][row]
    if field == 89:
        field = 88 + int.from_bytes(raw[start + 84 : start + 88], "big")
    raw[start + field] ^= 0x40
    walk, found = walked(tmp_path, raw)
    last = row == -1 and fill < SIZE
    assert found == [place for place in places if place != start]
    (gap,) = walk.gaps
    assert (gap.start, gap.open) == (BASE + start, last)
    # Nothing tells where the last one ended.
    assert gap.stop == BASE + stop
    assert walk.closed is (fill == SIZE)
    assert walk.end == BASE + (start if last else starts[-1])
    assert gap.problem


def test_zeros_in_the_middle_are_a_gap(tmp_path: Path) -> None:
    raw, starts = content(SIZE)
    raw[starts[100] + 10 : starts[400] + 10] = bytes(starts[400] - starts[100])
    walk, found = walked(tmp_path, raw)
    assert found == [place for place in starts[:-1] if not starts[100] <= place <= starts[400]]
    assert walk.gaps == [Gap(BASE + starts[100], BASE + starts[401], walk.gaps[0].problem, False)]


def test_a_lost_blank_leaves_the_file_open(tmp_path: Path) -> None:
    raw, starts = content(SIZE)
    raw[starts[-1] + 5] ^= 1
    walk, found = walked(tmp_path, raw)
    assert found == starts[:-1]
    assert (walk.closed, walk.end) == (False, BASE + starts[-1])
    assert walk.gaps == [Gap(walk.end, walk.end + 8, walk.gaps[0].problem, True)]


def test_a_size_that_cannot_be_is_not_waited_for(tmp_path: Path) -> None:
    raw, starts = content(SIZE)
    raw[starts[3] + 1] = 0x07
    walk, found = walked(tmp_path, raw)
    assert found == [place for place in starts[:-1] if place != starts[3]]
    assert len(walk._buffer) < 1 << 18


@settings(max_examples=60)
@given(st.integers(0, 40_000), st.integers(1, 255), st.integers(0, 4))
def test_one_flipped_byte_costs_one_record_at_most(
    tmp_path_factory: pytest.TempPathFactory, at: int, flip: int, seed: int
) -> None:
    raw, starts = content(50_000, seed)
    clean = bytes(raw)
    raw[at] ^= flip
    path = tmp_path_factory.getbasetemp() / "flipped"
    path.write_bytes(raw)
    walk = LogWalk(PosixFiles(), str(path), BASE, len(raw), (), True, 1 << 16)
    found: list[int] = []
    bad: list[int] = []
    for chunk in walk:
        places = (chunk.places - BASE).tolist()
        found += places
        bad += [places[row] for row in chunk.bad_bodies()]
    hit = max(place for place in starts if place <= at)
    assert set(starts[:-1]) - set(found) <= {hit}
    assert set(bad) <= {hit}
    assert walk.sums != sums_of(clean)


def test_a_chunk_says_what_dispatch_makes_of_its_records(tmp_path: Path) -> None:
    delayed = {"topic": SCHEDULE_TOPIC, "properties": b"DELAY\x012\x02TAGS\x01a"}
    changes: list[dict[str, Any]] = [
        {}, delayed, {"sys_flag": TransactionType.ROLLBACK}, {"properties": b""},
        {"sys_flag": TransactionType.PREPARED, "queue_id": 3}, {"topic": "ü"},
        # More queues than one walk takes.
        *({"topic": f"t{number}"} for number in range(1_100)),
    ]  # fmt: skip
    records = [replace(PLAIN, **change) for change in changes]
    path = tmp_path / "file"
    path.write_bytes(packed(records, BASE))
    found: list[tuple[object, ...]] = []
    for chunk in LogWalk(PosixFiles(), str(path), BASE, path.stat().st_size, DELAYS_MS):
        hashes = chunk.key_hashes
        found += [
            (
                chunk.queues[chunk.queue_numbers[row]], int(chunk.queue_offsets[row]),
                int(chunk.tag_codes[row]), hashes[chunk.key_rows == row].tolist(),
                bool(chunk.takes_place[row]), int(chunk.store_ms[row]),
            )
            for row in range(len(chunk))
        ]  # fmt: skip
        named = chunk.of_queues(len(topic) for topic, _ in chunk.queues)
        assert named.tolist() == [len(chunk.queues[number][0]) for number in chunk.queue_numbers]
    expected: list[tuple[object, ...]] = []
    for record in records:
        code, keys = code_and_keys(
            record.topic, record.sys_flag, record.store_ms, record.properties, DELAYS_MS
        )
        own = [index_hash(topic_prefix(record.topic), key) for key in keys]
        expected.append(
            (
                (record.topic, record.queue_id), record.queue_offset, code, own,
                takes_queue_slot(record.sys_flag), record.store_ms,
            )
        )  # fmt: skip
    assert found == expected


def test_the_rows_with_other_bodies_are_told(tmp_path: Path) -> None:
    raw, starts = content(100_000)
    for row in (0, 7, 8, len(starts) - 2):
        raw[starts[row] + 100] ^= 1
    path = tmp_path / "file"
    path.write_bytes(raw)
    walk = LogWalk(PosixFiles(), str(path), BASE, len(raw))
    assert [row for chunk in walk for row in chunk.bad_bodies()] == [0, 7, 8, len(starts) - 2]
