"""The log files in a row."""

from pathlib import Path

import pytest

from cometmq.core.errors import StoreCorrupt
from cometmq.store.files import PosixFiles
from cometmq.store.segments import Segments

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
    with pytest.raises(StoreCorrupt, match="gap before it") as caught:
        Segments(PosixFiles(), str(tmp_path), SIZE).load()
    assert caught.value.offset == 2 * SIZE


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
