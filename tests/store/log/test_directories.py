"""Where log files are, and where new ones go, if the log has several directories."""

from contextlib import suppress
from pathlib import Path

import pytest

from cometmq.core.errors import SettingsError, StoreCorrupt
from cometmq.store.files import DiskSpace, PosixFiles
from cometmq.store.layout import LOG_DIRECTORIES, file_name
from cometmq.store.log.directories import LogDirectories
from cometmq.store.log.segments import Segments
from tests.store.stores import config

SIZE = 4096


class Used(PosixFiles):
    """Devices as full as they are told to be, in percent, by the names of the directories."""

    def __init__(self, **used: int) -> None:
        self.used = used

    def disk_space(self, path: str) -> DiskSpace:
        used = self.used.get(Path(path).name, 10)
        return DiskSpace(100, used, 100 - used)


def places(root: Path, files: PosixFiles, names: str = "a,b,c", read_only: str = "") -> Segments:
    """The log in directories under ``root``, which exist."""
    paths, aside = (
        ",".join(str(root / name) if name else "" for name in text.split(","))
        for text in (names, read_only)
    )
    settings = config(root, store_path_commit_log=paths, read_only_commit_log_store_paths=aside)
    found = LogDirectories.of(files, settings)
    found.prepare()
    return Segments(files, found, SIZE)


def where(segments: Segments) -> list[tuple[int, str]]:
    return [(file.base // SIZE, Path(file.path).parent.name) for file in segments.files]


def make(segments: Segments, count: int) -> None:
    for _ in range(count):
        segments.add(segments.create_file(segments.end))


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ({}, "abcabc"),
        ({"b": 86}, "acacac"),
        ({"b": 85}, "abcabc"),
        ({"a": 90, "b": 99}, "cccccc"),
        ({"a": 90, "b": 99, "c": 87}, "abcabc"),
    ],
)
def test_new_files_go_round_directories_with_room(
    tmp_path: Path, used: dict[str, int], expected: str
) -> None:
    segments = places(tmp_path, Used(**used))
    make(segments, 6)
    assert where(segments) == list(enumerate(expected))
    segments.close()
    again = places(tmp_path, Used())
    again.load()
    assert where(again) == list(enumerate(expected))
    again.close()


def test_read_only_directories_get_none(tmp_path: Path) -> None:
    segments = places(tmp_path, Used())
    make(segments, 3)
    segments.close()
    segments = places(tmp_path, Used(), read_only="b,old")
    segments.load()
    make(segments, 3)
    assert where(segments) == list(enumerate("abccac"))
    assert not (tmp_path / "old").exists()
    segments.close()


class NoRoom(Used):
    """A device that has no room although it does not look full."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.handles: set[int] = set()

    def open(self, path: str, *, create: bool = False) -> int:
        handle = super().open(path, create=create)
        self.handles.discard(handle)
        if Path(path).parent.name == self.name:
            self.handles.add(handle)
        return handle

    def allocate(self, handle: int, size_bytes: int) -> None:
        if handle in self.handles:
            raise OSError(28, "No space left on device")
        super().allocate(handle, size_bytes)


def test_a_device_without_room_is_passed_over(tmp_path: Path) -> None:
    segments = places(tmp_path, NoRoom("b"))
    make(segments, 5)
    assert where(segments) == list(enumerate("accac"))
    assert list((tmp_path / "b").iterdir()) == []
    segments.close()


def noted(root: Path) -> str:
    return (root / LOG_DIRECTORIES).read_text()


def test_what_has_files_is_noted(tmp_path: Path) -> None:
    segments = places(tmp_path, Used())
    assert not (tmp_path / LOG_DIRECTORIES).exists()
    make(segments, 2)
    assert noted(tmp_path) == f'["{tmp_path}/a","{tmp_path}/b"]'
    make(segments, 2)
    segments.places.remove(segments.drop_first().path)
    assert f"{tmp_path}/a" in noted(tmp_path)
    segments.places.remove(segments.drop_first().path)
    assert noted(tmp_path) == f'["{tmp_path}/a","{tmp_path}/c"]'
    segments.close()


def test_the_note_comes_before_the_last_file_goes(tmp_path: Path) -> None:
    segments = places(tmp_path, Used())
    make(segments, 2)
    first = segments.drop_first().path

    class Ends(Used):
        def unlink(self, path: str) -> None:
            if path == first:
                raise KeyboardInterrupt
            super().unlink(path)

    with suppress(KeyboardInterrupt):
        places(tmp_path, Ends()).places.remove(first)
    assert noted(tmp_path) == f'["{tmp_path}/b"]'
    segments.close()
    again = places(tmp_path, Used())
    again.load()
    again.places.note(file.path for file in again.files)
    assert noted(tmp_path) == f'["{tmp_path}/a","{tmp_path}/b"]'
    again.close()


def test_one_directory_is_not_noted(tmp_path: Path) -> None:
    segments = places(tmp_path, Used(), "a,")
    assert not segments.places.is_spread
    (tmp_path / "a").mkdir()
    make(segments, 3)
    segments.places.remove(segments.drop_first().path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
    segments.close()


def test_a_missing_directory_stops_the_start(tmp_path: Path) -> None:
    segments = places(tmp_path, Used())
    make(segments, 2)
    segments.close()
    (tmp_path / "b").rename(tmp_path / "gone")
    with pytest.raises(StoreCorrupt, match=r"b: .*none now: is its device mounted"):
        places(tmp_path, Used())
    assert not (tmp_path / "b").exists()
    (tmp_path / "b").mkdir()
    with pytest.raises(StoreCorrupt, match="is its device mounted"):
        places(tmp_path, Used())
    (tmp_path / "b").rmdir()
    (tmp_path / "gone").rename(tmp_path / "b")
    for names in ("a,c", "a,", "a"):
        with pytest.raises(StoreCorrupt, match=r"b: .* name it; .*delete .*directories.json"):
            places(tmp_path, Used(), names)
    segments = places(tmp_path, Used(), "a,c", read_only="b")
    segments.load()
    assert where(segments) == [(0, "a"), (1, "b")]
    segments.close()


@pytest.mark.parametrize("text", ["", "{", '["/a', "[1]", "{}"])
def test_a_note_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    (tmp_path / LOG_DIRECTORIES).write_text(text)
    with pytest.raises(StoreCorrupt, match=r"cannot be read .*then delete it"):
        places(tmp_path, Used())


@pytest.mark.parametrize("size", [0, 100, SIZE])
def test_an_empty_twin_is_removed(tmp_path: Path, size: int) -> None:
    for used, twin in (("a", "b"), ("b", "a")):
        root = tmp_path / used
        root.mkdir()
        segments = places(root, Used())
        make(segments, 2)
        segments.close()
        data = b"\1" + bytes(SIZE - 1)
        for name in "ab":
            (root / name / file_name(SIZE)).unlink(missing_ok=True)
        (root / used / file_name(SIZE)).write_bytes(data)
        (root / twin / file_name(SIZE)).write_bytes(bytes(size))
        segments = places(root, Used())
        segments.load()
        assert where(segments) == [(0, "a"), (1, used)]
        assert not (root / twin / file_name(SIZE)).exists()
        assert (root / used / file_name(SIZE)).read_bytes() == data
        segments.close()


def test_of_empty_twins_the_whole_one_stays(tmp_path: Path) -> None:
    segments = places(tmp_path, Used())
    make(segments, 2)
    segments.close()
    (tmp_path / "a" / file_name(SIZE)).write_bytes(bytes(50))
    (tmp_path / "c" / file_name(SIZE)).write_bytes(bytes(SIZE))
    segments = places(tmp_path, Used(), "a,b", read_only="c")
    segments.load()
    assert where(segments) == [(0, "a"), (1, "b")]
    segments.close()


def test_twins_with_data_stop_the_start(tmp_path: Path) -> None:
    segments = places(tmp_path, Used())
    make(segments, 2)
    segments.close()
    for name in "abc":
        (tmp_path / name / file_name(SIZE)).write_bytes(b"\1" + bytes(SIZE - 1))
    segments = places(tmp_path, Used())
    with pytest.raises(StoreCorrupt, match="both have data: move"):
        segments.load()
    assert all((tmp_path / name / file_name(SIZE)).exists() for name in "abc")


def test_one_directory_under_two_names(tmp_path: Path) -> None:
    segments = places(tmp_path, Used(), "a,")
    (tmp_path / "a").mkdir()
    make(segments, 2)
    segments.close()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(SettingsError, match="the same directory: name each directory"):
        places(tmp_path, Used(), "a,b")
    # As by a mount of it at another place, whose name says nothing.
    (tmp_path / "b").unlink()
    (tmp_path / "b").mkdir()
    for path in (tmp_path / "a").iterdir():
        (tmp_path / "b" / path.name).hardlink_to(path)
    segments = places(tmp_path, Used(), "a,b")
    with pytest.raises(SettingsError, match="the same file: name each directory"):
        segments.load()
    assert len(list((tmp_path / "a").iterdir())) == 2


def test_space(tmp_path: Path) -> None:
    found = places(tmp_path, Used(a=90, b=40, c=60), read_only="b").places
    assert found.space().used_ratio == 0.6
    assert found.free_bytes() == 40
