"""Index files that contradict the log."""

import errno
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.store.config import StoreConfig
from cometmq.store.files import PosixFiles
from cometmq.store.index import HEADER, HEADER_BYTES
from cometmq.store.messagestore import MessageStore
from cometmq.store.recovery.filechecks import check_index
from tests.store.stores import fill, opened


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    """Two files a queue, several index files; everything written."""
    made = opened(tmp_path / "s")
    fill(made, 200)
    made.dispatcher.write(made.clock.wall_ms())
    return made


class Unreadable(PosixFiles):
    """A device that gives nothing of queue files."""

    def pread(self, handle: int, size_bytes: int, offset: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")


def spoil(path: Path, at: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


class Indexed:
    """A store's index files, and what is found out about them."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        for file in store.index.files:
            file.write_slots()
        self.folder = Path(store.config.store_path_root_dir) / "index"
        self.paths = sorted(self.folder.iterdir())
        self.noted = tuple(path.name for path in self.paths)
        self.headers = [HEADER.unpack(path.read_bytes()[:HEADER_BYTES]) for path in self.paths]
        assert len(self.paths) == 5

    def check(
        self, *, below: int | None = None, config: StoreConfig | None = None,
        files: PosixFiles | None = None,
    ) -> tuple[int, list[str]]:  # fmt: skip
        below = self.store.written_offset if below is None else below
        state = check_index(
            files or PosixFiles(), config or self.store.config, self.store.log.segments, below,
            self.noted,
        )  # fmt: skip
        return state.start, [Path(path).name for path, _ in state.bad]

    def end_phys(self, number: int) -> int:
        """The last record that a file and those before it index."""
        return int(self.headers[number][3])


@pytest.fixture
def indexed(store: MessageStore) -> Indexed:
    return Indexed(store)


def test_a_good_index(indexed: Indexed) -> None:
    end = indexed.store.written_offset
    assert indexed.check() == (end, [])
    assert indexed.check(below=20_000) == (20_000, [])


def test_old_index_files_may_be_taken_away(indexed: Indexed) -> None:
    for path in indexed.paths[:2]:
        path.unlink()
    assert indexed.check() == (indexed.store.written_offset, [])


@pytest.mark.parametrize("lost", [[2], [2, 3], [1, 3]])
def test_from_a_missing_index_file_on_all_is_made_again(indexed: Indexed, lost: list[int]) -> None:
    for number in lost:
        indexed.paths[number].unlink()
    left = [n for n in range(lost[0], 5) if n not in lost]
    assert indexed.check() == (
        indexed.end_phys(lost[0] - 1), [indexed.noted[number] for number in left]
    )  # fmt: skip


def test_what_is_not_believed_anyway_is_not_missed(indexed: Indexed) -> None:
    """A power cut took the newest files, whose names were not synced yet."""
    below = indexed.end_phys(2) - 50
    for path in indexed.paths[3:]:
        path.unlink()
    assert indexed.check(below=below) == (below, [])


def test_files_without_a_believed_entry_just_go(indexed: Indexed) -> None:
    """Also when one of them is missing."""
    below = indexed.end_phys(1) - 50
    indexed.paths[3].unlink()
    store = indexed.store
    state = check_index(PosixFiles(), store.config, store.log.segments, below, indexed.noted)
    assert (state.start, state.bad) == (below, [])
    assert state.unneeded == [str(indexed.paths[number]) for number in (2, 4)]
    state.forget_all(PosixFiles(), store.config, 0)
    assert (state.start, state.unneeded, len(state.bad)) == (0, [], 4)


def test_the_last_index_file_is_missing(indexed: Indexed) -> None:
    indexed.paths[4].unlink()
    assert indexed.check() == (indexed.end_phys(3), [])


def test_the_whole_index_is_missing(indexed: Indexed) -> None:
    shutil.rmtree(indexed.folder)
    assert indexed.check() == (0, [])


def test_no_index_that_anybody_noted(indexed: Indexed) -> None:
    """Of a Java broker's store: it had one, for the setting says so."""
    settings, segments = indexed.store.config, indexed.store.log.segments
    assert check_index(PosixFiles(), settings, segments, 5_000, None).start == 5_000
    shutil.rmtree(indexed.folder)
    assert check_index(PosixFiles(), settings, segments, 5_000, None).start == 0
    assert check_index(PosixFiles(), settings, segments, 5_000, ()).start == 5_000


def test_other_sizes_than_the_settings_say(indexed: Indexed) -> None:
    other = replace(indexed.store.config, max_index_num=50)
    assert indexed.check(config=other) == (0, list(indexed.noted))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (0, 1), (0, 1 << 50), (1, 5), (2, 12), (2, 1 << 50), (3, 5), (3, 7), (4, -1), (4, 101),
        (5, -5), (5, 50), (5, 101), (5, 1 << 30),
    ],
)  # fmt: skip
def test_a_header_that_contradicts_the_file_or_the_log(
    indexed: Indexed, field: int, value: int
) -> None:
    header = list(indexed.headers[2])
    header[field] = value
    spoil(indexed.paths[2], 0, HEADER.pack(*header))
    assert indexed.check() == (indexed.end_phys(1), list(indexed.noted[2:]))


def test_an_empty_index_file_is_fine(indexed: Indexed) -> None:
    name = f"{int(indexed.noted[-1]) + 1}"
    for raw in (b"", bytes(indexed.paths[0].stat().st_size)):
        (indexed.folder / name).write_bytes(raw)
        assert indexed.check() == (indexed.store.written_offset, [])
    spoil(indexed.folder / name, 0, HEADER.pack(0, 0, 0, 0, 0, 1))
    assert indexed.check() == (indexed.store.written_offset, [])


def test_an_index_that_cannot_be_read(indexed: Indexed) -> None:
    assert indexed.check(files=Unreadable()) == (0, list(indexed.noted))
