"""Copies of files: holes, ends, trees."""

import os
from pathlib import Path

import pytest

from cometmq.store.files import SnapshotFiles
from cometmq.store.tools.snapshot import Copies, copy_file, walk_files

FILES = SnapshotFiles()
SIZE = 9 << 20
#: The file system gives space in blocks.
BLOCK_BYTES = 4_096


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Nine MiB with data at the beginning and in the middle."""
    path = tmp_path / "source"
    with path.open("wb") as file:
        file.write(b"a" * 10_000)
        file.seek(5 << 20)
        file.write(b"b" * 100_000)
        file.truncate(SIZE)
    return path


@pytest.mark.parametrize("full", [True, False])
def test_a_copy_is_the_same_and_as_thin(tmp_path: Path, source: Path, full: bool) -> None:
    target = tmp_path / "target"
    told: list[int] = []
    copied = copy_file(FILES, str(source), str(target), full=full, progress=told.append)
    assert target.read_bytes() == source.read_bytes()
    taken = target.stat().st_blocks * 512
    assert taken >= SIZE if full else taken < 1 << 20
    assert 110_000 <= copied <= 110_000 + 4 * BLOCK_BYTES, "holes are not copied"
    assert sum(told) == SIZE


def test_a_copy_may_end_early(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "target"
    copy_file(FILES, str(source), str(target), stop=5_000, full=True)
    assert target.read_bytes() == b"a" * 5_000 + bytes(SIZE - 5_000)


def test_empty_files_and_missing_ones(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert copy_file(FILES, str(tmp_path / "empty"), str(tmp_path / "target"), full=True) == 0
    assert (tmp_path / "target").read_bytes() == b""
    with pytest.raises(FileNotFoundError):
        copy_file(FILES, str(tmp_path / "none"), str(tmp_path / "other"))


def test_where_the_system_cannot_copy_it_is_done_by_hand(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    copy_file(FILES, str(source), str(tmp_path / "target"))
    assert (tmp_path / "target").read_bytes() == source.read_bytes()

    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "copy_file_range", fail)
    with pytest.raises(OSError, match="Input/output"):
        copy_file(FILES, str(source), str(tmp_path / "target"))


def test_copies_into_one_directory(tmp_path: Path, source: Path) -> None:
    told: list[int] = []
    copies = Copies(FILES, str(tmp_path / "made"), told.append)
    copies.copy(str(source), "a/b/file", stop=1_000)
    copies.link(str(source), "a/linked", SIZE)
    assert sorted(walk_files(FILES, str(tmp_path / "made"))) == ["a/b/file", "a/linked"]
    assert (tmp_path / "made" / "a" / "linked").samefile(source)
    assert (copies.copied_bytes, copies.linked_bytes) == (1_000, SIZE)
    assert sum(told) == 1_000 + SIZE
