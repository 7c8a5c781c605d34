"""One log file."""

import errno
from pathlib import Path

import pytest

from cometmq.store.files import PosixFiles
from cometmq.store.mapped import LogFile
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
