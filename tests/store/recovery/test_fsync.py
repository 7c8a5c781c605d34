"""After a start the log is on the device, and nothing is behind its end."""

from pathlib import Path

import pytest

from cometmq.store.checkpoint import Checkpoint, Positions
from cometmq.store.files import Buffer, PosixFiles
from cometmq.store.recovery.opening import cut_and_sync_log_end, proven_end
from tests.store.stores import assert_consistent, copied, fill, log_of, opened, run_round


class WatchedFiles(PosixFiles):
    """Notes which bytes of the log are written."""

    def __init__(self) -> None:
        self.writes: list[tuple[int, bytes]] = []

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        self.writes.append((offset, bytes(data)))
        super().pwrite(handle, data, offset)


def test_after_a_crash_of_the_process_what_no_sync_proved_is_written_again(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    fill(store, 3)
    store.flusher.sync_now()
    proven = store.durable_offset
    run_round(store)
    fill(store, 4, first=3)
    end = store.written_offset
    files = WatchedFiles()
    again = opened(copied(tmp_path / "s", "killed"), files=files)
    written = b"".join(data for offset, data in files.writes if proven <= offset < end)
    assert len(written) >= end - proven
    assert bytes(again.log.view(proven, end - proven) or b"") == written[: end - proven]
    assert len(assert_consistent(again)) == 7
    again.close()
    store.close()


@pytest.mark.parametrize(("durable", "expected"), [(5_000, 5_000), (0, 700)])
def test_what_is_proven(tmp_path: Path, durable: int, expected: int) -> None:
    store = opened(tmp_path)
    segments = store.log.segments
    noted = Positions("boot", False, 9_000, 700, 0, Checkpoint(), durable)
    assert proven_end(segments, noted) == expected
    assert proven_end(segments, None) == 0
    store.close()


@pytest.mark.parametrize(("crashed", "cut"), [(True, False), (False, True), (False, False)])
def test_records_behind_the_end_are_gone(tmp_path: Path, crashed: bool, cut: bool) -> None:
    store = opened(tmp_path)
    fill(store, 200)
    records = log_of(store)
    assert len(store.log.segments.files) == 3
    end = records[50].physical_offset
    cut_and_sync_log_end(store, None, end, 0, crashed=crashed, cut=cut)
    left = log_of(store)
    assert left == (records[:50] if crashed or cut else records)
    assert len(store.log.segments.files) == (1 if crashed or cut else 3)
    store.log.failure = store.log.fail("over")
    store.close()
