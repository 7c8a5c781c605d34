"""One log file."""

import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.store.files import PosixFiles
from cometmq.store.layout import file_name
from cometmq.store.log.checksums import BlockChecksums
from cometmq.store.log.segments import LogFile, Segments
from tests.simulation.faults.disk import Disk
from tests.simulation.faults.files import Fault, MemoryFiles, Moment, ProcessEnded
from tests.store.faults import FailingFiles
from tests.store.sealed import seal_of


def test_writes_are_seen_through_the_map(tmp_path: Path) -> None:
    file = LogFile.create(PosixFiles(), str(tmp_path), 8192, 4096)
    assert Path(file.path).name == f"{8192:020d}"
    view = file.view
    file.write(8192 + 10, b"abc")
    assert bytes(view[10:13]) == b"abc"
    buffer = bytearray(3)
    assert file.read_into(buffer, 8192 + 10) == 3
    assert buffer == b"abc"
    file.sync()
    file.clear_from(8192 + 11)
    assert bytes(view[10:13]) == b"a\0\0"
    assert len(view) == 4096
    file.close()
    assert bytes(view[10:11]) == b"a"


@pytest.mark.parametrize("operation", ["allocate", "datasync"])
def test_a_failed_creation_leaves_nothing(tmp_path: Path, operation: str) -> None:
    files = FailingFiles()
    files.failing[operation] = errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        LogFile.create(files, str(tmp_path), 0, 4096)
    assert list(tmp_path.iterdir()) == []


def test_a_pinned_file_closes_late(tmp_path: Path) -> None:
    file = LogFile.create(PosixFiles(), str(tmp_path), 0, 4096)
    file.pin()
    file.close()
    assert file.closed
    assert file.read_into(bytearray(4), 0) == 4
    file.unpin()
    with pytest.raises(OSError, match="Bad file"):
        file.read_into(bytearray(4), 0)


def test_a_file_that_a_snapshot_holds_is_copied_before_its_first_change(tmp_path: Path) -> None:
    files = PosixFiles()
    directory = tmp_path / "commitlog"
    directory.mkdir()
    made = LogFile.create(files, str(directory), 0, 3 << 20)
    made.write(5, b"before")
    made.close()
    (tmp_path / "snapshot").hardlink_to(made.path)
    file = LogFile(files, made.path, 0, 3 << 20, files.open(made.path))
    assert file.linked
    view = file.view
    file.write(2 << 20, b"after")
    file.clear_from(1 << 20)
    file.write(8, b"now")
    assert (tmp_path / "snapshot").read_bytes() == bytes(5) + b"before" + bytes((3 << 20) - 11)
    assert Path(made.path).read_bytes() == bytes(5) + b"befnow" + bytes((3 << 20) - 11)
    assert bytes(view[5:11]) == b"before"
    assert bytes(file.view[5:11]) == b"befnow"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["commitlog", "snapshot"]
    assert [path.name for path in directory.iterdir()] == [Path(made.path).name]
    file.close()


def test_no_room_for_the_copy_changes_nothing(tmp_path: Path) -> None:
    files = FailingFiles()
    directory = tmp_path / "commitlog"
    directory.mkdir()
    made = LogFile.create(files, str(directory), 0, 4_096)
    (tmp_path / "snapshot").hardlink_to(made.path)
    file = LogFile(files, made.path, 0, 4_096, files.open(made.path))
    files.failing["allocate"] = errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        file.write(0, b"x")
    assert Path(made.path).read_bytes() == bytes(4_096)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["commitlog", "snapshot"]
    files.failing.clear()
    file.write(0, b"x")
    assert (tmp_path / "snapshot").read_bytes() == bytes(4_096)
    file.close()
    made.close()


def test_the_seal_goes_before_the_first_change(tmp_path: Path) -> None:
    files = PosixFiles()
    seals = BlockChecksums(files, str(tmp_path))
    seals.add(seal_of(0, bytes(4_096)))
    seals = BlockChecksums(files, str(tmp_path))
    LogFile.create(files, str(tmp_path), 0, 4_096).close()
    segments = Segments(files, str(tmp_path), 4_096)
    segments.load()
    segments.attach(seals)
    file = segments.files[0]
    assert file.seals is seals
    assert Path(seals.path(0)).exists()
    file.damaged.add(0)
    file.write(0, b"x")
    assert not Path(seals.path(0)).exists()
    assert segments.files[0].seals is None
    assert file.damaged == set()
    segments.close()


def test_where_data_is(tmp_path: Path) -> None:
    file = LogFile.create(PosixFiles(), str(tmp_path), 1 << 20, 1 << 20)
    file.write((1 << 20) + 500_000, b"data")
    assert (1 << 20) <= file.next_data(1 << 20) <= (1 << 20) + 500_000
    assert file.next_data((1 << 20) + 500_000) == (1 << 20) + 500_000
    assert file.next_data(1 << 21) == 1 << 21
    file.close()


@pytest.mark.parametrize("end", ["kill", "cut"])
def test_clearing_never_leaves_a_short_file(end: str) -> None:
    """Whenever the process ends, the file has its length, and what was before the place."""
    for step in range(4):
        disk = Disk()
        files = MemoryFiles(disk, VirtualClock(), Random(step))
        file = LogFile.create(files, "/", 4096, 4096)
        file.write(4096, b"x" * 4000)
        file.sync()
        files.end_at(files.steps + step, Moment.BEFORE)
        with suppress(ProcessEnded):
            file.clear_from(5000)
        disk.kill(Random(step)) if end == "kill" else disk.lose_power(Random(step))
        after = MemoryFiles(disk, VirtualClock(), Random(0))
        handle = after.open("/" + file_name(4096))
        assert after.size(handle) == 4096
        assert after.pread(handle, 904, 0) == b"x" * 904


def test_what_is_cleared_is_zeros_and_durable() -> None:
    files = MemoryFiles(Disk(), VirtualClock(), Random(0))
    file = LogFile.create(files, "/", 0, 3 << 20)
    for offset in (10, 600_000, 2_500_000):
        file.write(offset, b"x" * 20_000)
    file.sync()
    files.faults.append(Fault("read", errno.EIO))
    file.clear_from(15_000)
    files.disk.lose_power(Random(1))
    handle = files.open("/" + file_name(0))
    assert files.pread(handle, 3 << 20, 0).rstrip(b"\0") == bytes(10) + b"x" * (15_000 - 10)


def test_a_map_ends_where_its_holders_are_dropped(tmp_path: Path) -> None:
    file = LogFile.create(PosixFiles(), str(tmp_path), 0, 4_096)
    assert bytes(file.view[:1]) == b"\0"
    held = file.take_map()
    file.close()
    maps = Path("/proc/self/maps")
    assert file.path in maps.read_text()
    held.clear()
    assert file.path not in maps.read_text()


def test_a_thread_reads_on_while_its_file_is_replaced(tmp_path: Path) -> None:
    """It has the number of the old handle, which the next file that is opened could get."""
    files = PosixFiles()
    directory = tmp_path / "commitlog"
    directory.mkdir()
    made = LogFile.create(files, str(directory), 0, 4_096)
    made.write(0, b"before")
    made.close()
    (tmp_path / "snapshot").hardlink_to(made.path)
    file = LogFile(files, made.path, 0, 4_096, files.open(made.path))
    file.pin()
    handle = file.handle
    file.write(0, b"after!")
    assert file.handle != handle
    assert files.pread(handle, 6, 0) == b"before"
    assert files.pread(file.handle, 6, 0) == b"after!"
    file.close()
    assert files.pread(handle, 6, 0) == b"before"
    file.unpin()
    for each in (handle, file.handle):
        with pytest.raises(OSError, match="Bad file"):
            files.size(each)
