"""The log files in a row."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreCorrupt
from cometmq.store.files import PosixFiles
from cometmq.store.log.directories import remove_file
from cometmq.store.log.segments import FileFault, Segments
from tests.simulation.faults.disk import Disk
from tests.simulation.faults.files import MemoryFiles, Moment, ProcessEnded

SIZE = 4096


def made(root: Path, count: int, first: int = 0) -> Segments:
    segments = Segments(PosixFiles(), str(root), SIZE)
    for number in range(count):
        segments.add(segments.create_file(first + number * SIZE))
    return segments


def test_find(tmp_path: Path) -> None:
    segments = made(tmp_path, 3, SIZE)
    found = [segments.find(at) for at in (0, SIZE - 1, SIZE, 2 * SIZE, 4 * SIZE - 1, 4 * SIZE)]
    assert [file.base if file else None for file in found] == [
        None, None, SIZE, 2 * SIZE, 3 * SIZE, None,
    ]  # fmt: skip
    assert (segments.start, segments.end) == (SIZE, 4 * SIZE)
    segments.close()
    assert (Segments(PosixFiles(), str(tmp_path / "none"), SIZE).end) == 0


def test_load_and_drop(tmp_path: Path) -> None:
    made(tmp_path, 4).close()
    (tmp_path / "other.txt").write_text("mine")
    segments = Segments(PosixFiles(), str(tmp_path), SIZE)
    segments.load()
    assert [file.base for file in segments.files] == [0, SIZE, 2 * SIZE, 3 * SIZE]
    first = segments.drop_first()
    assert (first.base, first.closed, segments.start) == (0, True, SIZE)
    Path(first.path).unlink()
    segments.drop_after(2 * SIZE)
    assert [file.base for file in segments.files] == [SIZE, 2 * SIZE]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{SIZE:020d}", f"{2 * SIZE:020d}", "other.txt",
    ]  # fmt: skip
    segments.close()


def test_a_gap_is_reported(tmp_path: Path) -> None:
    made(tmp_path, 3).close()
    (tmp_path / f"{SIZE:020d}").unlink()
    with pytest.raises(
        StoreCorrupt, match="this log file is missing; the next one begins at 8192"
    ) as caught:
        Segments(PosixFiles(), str(tmp_path), SIZE).load()
    assert caught.value.offset == SIZE


@pytest.mark.parametrize("size", [0, 5, SIZE - 1])
def test_a_last_file_that_was_never_finished_is_removed(
    tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    made(tmp_path, 2).close()
    (tmp_path / f"{2 * SIZE:020d}").write_bytes(bytes(size))
    segments = Segments(PosixFiles(), str(tmp_path), SIZE)
    segments.load()
    assert len(segments.files) == 2
    assert "reason=unfinished" in caplog.text
    segments.close()


def test_a_short_file_with_records_is_not_removed(tmp_path: Path) -> None:
    made(tmp_path, 2).close()
    (tmp_path / f"{2 * SIZE:020d}").write_bytes(b"\0\0\0\x64\xda\xa3")
    with pytest.raises(StoreCorrupt, match="6 bytes long"):
        Segments(PosixFiles(), str(tmp_path), SIZE).load()
    assert (tmp_path / f"{2 * SIZE:020d}").exists()


def test_faults_are_mended_until_there_is_none(tmp_path: Path) -> None:
    made(tmp_path, 4).close()
    (tmp_path / f"{SIZE:020d}").unlink()
    last = tmp_path / f"{3 * SIZE:020d}"
    last.write_bytes(b"\1" * 100)
    found: list[FileFault] = []

    def mend(fault: FileFault) -> None:
        found.append(fault)
        Path(fault.path).write_bytes(bytes(SIZE))

    segments = Segments(PosixFiles(), str(tmp_path), SIZE)
    segments.load(mend)
    assert [(f.base, f.size_bytes, f.next_base) for f in found] == [
        (SIZE, -1, 2 * SIZE), (3 * SIZE, 100, -1),
    ]  # fmt: skip
    assert len(segments.files) == 4
    segments.close()


@pytest.mark.parametrize("count", [1, 3])
def test_a_wrong_setting_is_told_from_a_wrong_file(tmp_path: Path, count: int) -> None:
    made(tmp_path, count).close()
    for path in tmp_path.iterdir():
        path.write_bytes(b"\1" * SIZE)
    faults: list[FileFault] = []

    def give_up(fault: FileFault) -> None:
        faults.append(fault)
        raise KeyboardInterrupt

    for sure in (False, True):
        with pytest.raises(KeyboardInterrupt):
            Segments(PosixFiles(), str(tmp_path), 2 * SIZE).load(give_up, size_is_sure=sure)
    assert [fault.settings_differ for fault in faults] == [True, False]
    assert "start with the size" in faults[0].problem


def test_files_can_be_detached(tmp_path: Path) -> None:
    segments = made(tmp_path, 4)
    gone = segments.detach_behind(SIZE + 5)
    assert [file.base for file in gone] == [2 * SIZE, 3 * SIZE]
    assert all(file.closed for file in gone)
    assert (segments.end, len(list(tmp_path.iterdir()))) == (2 * SIZE, 4)
    segments.close()


def in_memory(files: MemoryFiles, count: int) -> Segments:
    segments = Segments(files, "/", SIZE)
    for number in range(count):
        segments.add(segments.create_file(number * SIZE))
    return segments


def test_a_power_cut_leaves_no_gap_among_removed_files() -> None:
    left: set[tuple[int, int]] = set()
    for seed in range(120):
        files = MemoryFiles(Disk(), VirtualClock(), Random(seed))
        segments = in_memory(files, 8)
        files.end_at(files.steps + seed % 12, Moment.AFTER)
        with suppress(ProcessEnded):
            segments.drop_after(5 * SIZE)
            for _ in range(3):
                remove_file(files, segments.drop_first().path)
        files.disk.lose_power(Random(seed))
        again = Segments(MemoryFiles(files.disk, VirtualClock(), Random(0)), "/", SIZE)
        again.load()
        left.add((again.start // SIZE, again.end // SIZE))
    assert left == {(0, 8), (0, 7), (0, 6), (1, 6), (2, 6), (3, 6)}
