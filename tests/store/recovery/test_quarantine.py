"""What is taken out of a store is kept."""

import errno
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreFull
from cometmq.store.files import Buffer, PosixFiles
from cometmq.store.log.segments import Segments
from cometmq.store.recovery.quarantine import Quarantine, written_end

SIZE = 8_192
NAME = "20231114T221320Z"


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    made = Segments(PosixFiles(), str(tmp_path / "commitlog"), SIZE)
    (tmp_path / "commitlog").mkdir()
    for number in range(4):
        made.add(made.create_file(number * SIZE))
        if number < 3:
            made.files[number].write(number * SIZE, bytes([number + 1]) * 5_000)
    return made


def aside(root: Path, files: PosixFiles | None = None) -> Quarantine:
    return Quarantine(files or PosixFiles(), str(root), VirtualClock())


def kept(root: Path) -> dict[str, bytes]:
    folder = root / "cometmq-set-aside"
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_file_is_moved_under_the_time_and_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = aside(tmp_path)
    for text in ("one", "two", "three"):
        (tmp_path / "x").write_text(text)
        place.move(str(tmp_path / "x"), "x", "it is bad")
    assert kept(tmp_path) == {
        f"{NAME}-x": b"one", f"{NAME}-x.2": b"two", f"{NAME}-x.3": b"three"
    }  # fmt: skip
    assert not (tmp_path / "x").exists()
    assert [Path(path).name for path in place.kept] == list(kept(tmp_path))
    assert "reason='it is bad'" in caplog.text


def test_the_end_of_the_log_is_kept(tmp_path: Path, segments: Segments) -> None:
    """Part of one file, whole later ones; a file that was never written goes."""
    aside(tmp_path).keep_log_from(segments, 3_000, "torn")
    assert kept(tmp_path) == {
        f"{NAME}-{3_000:020d}": b"\1" * 2_000,
        f"{NAME}-{SIZE:020d}-whole": b"\2" * 5_000 + bytes(SIZE - 5_000),
        f"{NAME}-{2 * SIZE:020d}-whole": b"\3" * 5_000 + bytes(SIZE - 5_000),
    }
    assert [file.base for file in segments.files] == [0]
    assert [path.name for path in (tmp_path / "commitlog").iterdir()] == [f"{0:020d}"]
    segments.close()


def test_zeros_are_not_kept(tmp_path: Path, segments: Segments) -> None:
    place = aside(tmp_path)
    place.keep_log_from(segments, 2 * SIZE + 5_000, "nothing there")
    assert place.kept == []
    assert len(segments.files) == 3
    place.keep_log_from(segments, segments.end, "behind the end")
    assert place.kept == []
    segments.close()


class BadPage(PosixFiles):
    """The first page of a file cannot be read."""

    def read_into(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        if offset < 4096:
            raise OSError(errno.EIO, "Input/output error")
        return super().read_into(handle, buffer, offset)


def test_pages_that_cannot_be_read_are_zeros_in_the_copy(
    tmp_path: Path, segments: Segments
) -> None:
    bad = Segments(BadPage(), segments.directory, SIZE)
    bad.load()
    aside(tmp_path).copy(bad.files[0], 4_000, 5_000, "damage")
    assert kept(tmp_path) == {f"{NAME}-{4_000:020d}": bytes(96) + b"\1" * 904}
    bad.close()
    segments.close()


class Failing(PosixFiles):
    """Writes fail."""

    def __init__(self, number: int) -> None:
        self.number = number

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        raise OSError(self.number, "no")


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, StoreFull), (errno.EIO, OSError)])
def test_without_room_nothing_is_taken_out(
    tmp_path: Path, segments: Segments, number: int, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        aside(tmp_path, Failing(number)).keep_log_from(segments, 3_000, "torn")
    assert len(segments.files) == 4
    segments.close()


@pytest.mark.parametrize(
    ("start", "end"), [(0, 5_000), (4_999, 5_000), (5_000, 5_000), (6_000, 6_000)]
)
def test_where_a_file_was_written_to(segments: Segments, start: int, end: int) -> None:
    assert written_end(segments.files[0], start) == end
    segments.close()


class LogOnOtherDevice(PosixFiles):
    """The log has a device of its own, whose files cannot be renamed to another one."""

    def __init__(self) -> None:
        self.full = False

    def rename(self, source: str, target: str) -> None:
        if ("commitlog" in source) != ("commitlog" in target):
            raise OSError(errno.EXDEV, "Invalid cross-device link", source)
        super().rename(source, target)

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().pwrite(handle, data, offset)


def test_a_log_on_a_device_of_its_own_is_set_aside_too(tmp_path: Path, segments: Segments) -> None:
    place = aside(tmp_path, LogOnOtherDevice())
    place.keep_log_from(segments, 3_000, "torn")
    assert kept(tmp_path) == {
        f"{NAME}-{3_000:020d}": b"\1" * 2_000,
        f"{NAME}-{SIZE:020d}-whole": b"\2" * 5_000 + bytes(SIZE - 5_000),
        f"{NAME}-{2 * SIZE:020d}-whole": b"\3" * 5_000 + bytes(SIZE - 5_000),
    }
    assert [path.name for path in (tmp_path / "commitlog").iterdir()] == [f"{0:020d}"]
    segments.close()


def test_without_room_on_the_other_device_the_file_stays_and_no_part_of_it_takes_room(
    tmp_path: Path, segments: Segments
) -> None:
    files = LogOnOtherDevice()
    files.full = True
    place = aside(tmp_path, files)
    path = segments.files[1].path
    with pytest.raises(StoreFull):
        place.move(path, "x", "torn")
    with pytest.raises(StoreFull):
        place.copy(segments.files[1], SIZE, SIZE + 5_000, "torn")
    assert Path(path).read_bytes() == b"\2" * 5_000 + bytes(SIZE - 5_000)
    assert kept(tmp_path) == {}
    assert place.kept == []
    segments.close()


def test_holes_stay_holes_on_the_other_device(tmp_path: Path) -> None:
    path = tmp_path / "commitlog"
    with path.open("wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"data")
    target = Path(aside(tmp_path, LogOnOtherDevice()).move(str(path), "x", "torn"))
    assert not path.exists()
    assert target.stat().st_size == 64 << 20
    assert target.stat().st_blocks * 512 < 8 << 20
    with target.open("rb") as file:
        file.seek(32 << 20)
        assert file.read(5) == b"data\0"
