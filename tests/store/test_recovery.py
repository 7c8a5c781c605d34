"""Where recovery starts, and where it ends."""

from pathlib import Path

import pytest

from cometmq.message.record import MAGIC_V2, PREFIX
from cometmq.store.checkpoint import Checkpoint, Positions
from cometmq.store.recovery import Scan, StartingPoint, first_record, starting_point
from tests.store.stores import fill, log_of, opened

NONE = Checkpoint()


def positions(written: int, synced: int, *, clean: bool = False, queues: int = 0) -> Positions:
    return Positions("this boot", clean, written, synced, queues, NONE)


@pytest.mark.parametrize(
    ("found", "boot_id", "crashed", "expected"),
    [
        (positions(900, 100, clean=True), "this boot", False, (900, True, False)),
        (positions(900, 100, clean=True), "another", False, (900, True, False)),
        (positions(900, 100, clean=True), "this boot", True, (900, False, False)),
        (positions(900, 100), "this boot", True, (900, False, False)),
        (positions(900, 100), "another", True, (100, False, True)),
        (positions(900, 100), "", True, (100, False, True)),
        (positions(1 << 40, 100), "this boot", True, (0, False, True)),
        (positions(900, 100, clean=True, queues=3), "this boot", False, (0, False, True)),
        (None, "this boot", False, (700, True, False)),
        (None, "this boot", True, (0, False, True)),
    ],
)
def test_starting_points(
    tmp_path: Path,
    found: Positions | None,
    boot_id: str,
    crashed: bool,
    expected: tuple[int, bool, bool],
) -> None:
    store = opened(tmp_path)
    point = starting_point(store.log.segments, found, boot_id, crashed, NONE, 2, lambda: 700)
    assert (point.offset, point.slots_valid, point.stale_entries) == expected
    store.close()


def test_queues_that_reach_beyond_the_log_are_not_believed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    point = starting_point(store.log.segments, None, "", False, NONE, 0, lambda: 1 << 40)
    assert point == StartingPoint(0, False, True, "checkpoint")
    store.close()


def test_first_record(tmp_path: Path) -> None:
    store = opened(tmp_path)
    (file,) = store.log.segments.files
    assert first_record(file) is None
    fill(store, 1)
    found = first_record(file)
    assert found is not None
    assert found.physical_offset == 0
    store.close()


def test_scan_stops_at_the_first_bytes_that_are_no_record(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 10)
    third = log_of(store)[3]
    file = store.log.segments.files[0]
    good = bytes(file.view[third.physical_offset : third.physical_offset + third.size_bytes])
    cases: list[tuple[bytes, bool]] = [
        (bytes(8), True),
        (bytes(len(good)), False),
        (PREFIX.pack(5, 0xDAA320A7), True),
        (PREFIX.pack(third.size_bytes, MAGIC_V2), True),
        (good[:28] + bytes(8) + good[36:], True),
        (good[:90] + b"!!" + good[92:], True),
    ]
    for raw, torn in cases:
        file.write(third.physical_offset, raw + good[len(raw) :])
        scan = Scan(store.log.segments, 0)
        assert len(list(scan)) == 3
        assert (scan.position, scan.records) == (third.physical_offset, 3)
        assert scan.torn is torn
        file.write(third.physical_offset, good)
    store.close()


def test_scan_at_the_end_of_everything(tmp_path: Path) -> None:
    store = opened(tmp_path)
    scan = Scan(store.log.segments, store.log.segments.end)
    assert list(scan) == []
    assert not scan.torn
    store.close()
