"""One log file."""

import errno
from pathlib import Path

import pytest

from cometmq.store.files import PosixFiles
from cometmq.store.mapped import LogFile
from cometmq.store.seals import Seal, Seals, sums_of
from tests.store.faults import FailingFiles


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
    seals = Seals(files, str(tmp_path))
    seals.add(Seal(0, 4_096, 0, sums_of(bytes(4_096))))
    seals = Seals(files, str(tmp_path))
    file = LogFile.create(files, str(tmp_path), 0, 4_096)
    seals.attach([file])
    assert Path(seals.path(0)).exists()
    assert not file.is_proven(0, 1)
    file.write(0, b"x")
    assert not Path(seals.path(0)).exists()
    assert file.is_proven(0, 1)
    file.close()


def test_where_data_is(tmp_path: Path) -> None:
    file = LogFile.create(PosixFiles(), str(tmp_path), 1 << 20, 1 << 20)
    file.write((1 << 20) + 500_000, b"data")
    assert (1 << 20) <= file.next_data(1 << 20) <= (1 << 20) + 500_000
    assert file.next_data((1 << 20) + 500_000) == (1 << 20) + 500_000
    assert file.next_data(1 << 21) == 1 << 21
    file.close()
