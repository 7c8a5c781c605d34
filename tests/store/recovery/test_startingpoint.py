"""Where recovery starts."""

from pathlib import Path
from typing import Any

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.store.checkpoint import Checkpoint, Positions
from cometmq.store.files import PosixFiles
from cometmq.store.log.scan import first_record
from cometmq.store.recovery.damage import Proof
from cometmq.store.recovery.rebuild import StartingPoint, by_checkpoint, starting_point
from tests.store.stores import copied, fill, opened, run_round

NONE = Checkpoint()
FILE_BYTES = 16_384


def positions(
    written: int, synced: int, *, clean: bool = False, queues: int = 0, durable: int = 0,
    rebuild: int = -1,
) -> Positions:  # fmt: skip
    return Positions(
        "this boot", clean, written, synced, queues, NONE, durable=durable, rebuild=rebuild
    )


@pytest.mark.parametrize(
    ("found", "boot_id", "crashed", "expected"),
    [
        # (offset, slots valid, stale entries, dispatch from)
        (positions(900, 100, clean=True), "this boot", False, (900, True, False, 900)),
        (positions(900, 100, clean=True), "another", False, (900, True, False, 900)),
        (positions(900, 100, clean=True), "this boot", True, (900, False, False, 900)),
        (positions(900, 100), "this boot", True, (900, False, False, 900)),
        (positions(900, 100), "another", True, (100, False, True, 100)),
        (positions(900, 100), "", True, (100, False, True, 100)),
        # Files at the end are gone.
        (positions(1 << 40, 100), "this boot", True, (0, False, True, 0)),
        (positions(1 << 40, 1 << 40), "another", True, (0, False, True, 0)),
        # Queues are missing.
        (positions(900, 100, clean=True, queues=3), "this boot", False, (900, True, False, 0)),
        (positions(900, 100, queues=3), "another", True, (100, False, True, 0)),
        # It was killed while queues were made again.
        (positions(900, 100, rebuild=40), "this boot", True, (900, False, True, 40)),
        (positions(900, 100, rebuild=40), "another", True, (40, False, True, 40)),
        (None, "this boot", False, (FILE_BYTES, True, False, FILE_BYTES)),
        (None, "this boot", True, (0, False, True, 0)),
    ],
)
def test_starting_points(
    tmp_path: Path,
    found: Positions | None,
    boot_id: str,
    crashed: bool,
    expected: tuple[int, bool, bool, int],
) -> None:
    store = opened(tmp_path)
    point = starting_point(store.log.segments, found, boot_id, crashed, NONE, 2)
    assert (
        point.offset, point.slots_valid, point.stale_entries, point.dispatch_from,
    ) == expected  # fmt: skip
    assert point.by_queues is (found is None and not crashed)
    store.close()


def test_a_position_below_the_log_jumps_to_its_start(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 200)
    store.log.segments.drop_first()
    for crashed in (True, False):
        point = starting_point(
            store.log.segments, positions(100, 50, clean=not crashed), "x", crashed, NONE, 0
        )
        assert (point.offset, point.dispatch_from) == (FILE_BYTES, FILE_BYTES)
    store.close()


def test_what_was_durable_stays_proven_whatever_happened_since(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for boot_id in ("this boot", "another"):
        point = starting_point(
            store.log.segments, positions(900, 100, durable=700), boot_id, True, NONE, 0
        )
        assert point.proof == Proof(700)
        assert point.likely_end == 900
    old = starting_point(store.log.segments, positions(900, 100), "another", True, NONE, 0)
    assert old.proof == Proof(100)
    store.close()


def test_the_checkpoint_of_another_broker(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = opened(tmp_path, clock)
    for number in range(3):
        fill(store, 70, first=number * 70)
        clock.advance(1_000_000)
    segments = store.log.segments
    firsts = [first.store_ms for file in segments.files if (first := first_record(file))]
    middle_ms, end = firsts[1], segments.end
    assert firsts[0] < middle_ms < firsts[2]
    found = by_checkpoint(segments, Checkpoint(middle_ms + 3_000, middle_ms + 600_000, 0))
    assert found == StartingPoint(
        FILE_BYTES, False, True, "checkpoint", Proof(0, middle_ms), FILE_BYTES, end
    )
    # What it says of the queues may be a round of flushing ahead of them.
    assert by_checkpoint(segments, Checkpoint(middle_ms + 3_000, middle_ms, 0)).offset == 0
    assert by_checkpoint(segments, NONE).offset == 0
    store.close()


#: Of each file of a queue and of the index a start looks at both ends; so there are few.
LONG_FILES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 18,
    "mapped_file_size_consume_queue": 20 * 20_000,
    "max_hash_slot_num": 1_000,
    "max_index_num": 100_000,
}


class CountingFiles(PosixFiles):
    """Counts the bytes that are read of log files."""

    def __init__(self, *, same_boot: bool) -> None:
        self.read_bytes = 0
        self._same_boot = same_boot
        self._logs: set[int] = set()

    def boot_id(self) -> str:
        return super().boot_id() if self._same_boot else "another"

    def open(self, path: str, *, create: bool = False) -> int:
        handle = super().open(path, create=create)
        (self._logs.add if "commitlog" in path else self._logs.discard)(handle)
        return handle

    def pread(self, handle: int, size_bytes: int, offset: int) -> bytes:
        found = super().pread(handle, size_bytes, offset)
        self.read_bytes += len(found) * (handle in self._logs)
        return found

    def read_into(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        found = super().read_into(handle, buffer, offset)
        self.read_bytes += found * (handle in self._logs)
        return found


def test_a_start_reads_what_was_not_synced_however_long_the_log_is(tmp_path: Path) -> None:
    store = opened(tmp_path / "s", **LONG_FILES)
    fill(store, 20_000)
    run_round(store, thorough=True)
    synced = store.written_offset
    fill(store, 400, first=20_000)
    for same_boot in (True, False):
        files = CountingFiles(same_boot=same_boot)
        again = opened(copied(tmp_path / "s", "killed"), files=files, **LONG_FILES)
        assert again.report is not None
        assert again.report.records == 400
        # The log file that the rest is in, and the one made ahead, are read whole.
        assert files.read_bytes < 1_000_000 < synced / 4
        again.close()
    store.close()
