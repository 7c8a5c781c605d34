"""Sealed files read as bytes."""

from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.store.config import StoreConfig
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.log.checksums import BlockChecksums, Seal
from cometmq.store.tools import indexes, logcheck
from cometmq.store.tools.directory import StoreDirectory, read_directory
from cometmq.store.tools.findings import Findings
from cometmq.store.tools.indexes import (
    IndexHeader,
    IndexRun,
    KeyTimes,
    read_index_header,
    survey_index,
)
from cometmq.store.tools.logcheck import SealedRead
from tests.store.sealed import FILE_BYTES
from tests.store.tools.verifying import flip_byte, written

FILES = ReadOnlyFiles()


class Sealed:
    """A sealed store, and one of its files read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        config = StoreConfig(store_path_root_dir=str(root))
        self.directory: StoreDirectory = read_directory(config, FILES)
        headers = [
            read_index_header(FILES, path, config, Findings())
            for path in self.directory.index_files
        ]
        self.headers = [header for header in headers if header is not None]

    def runs(self, file: int) -> list[IndexRun]:
        found: list[IndexRun] = []
        for number, header in enumerate(self.headers):
            found += survey_index(FILES, self.directory, number, header, Findings()).runs
        return [run for run in found if run.file == file]

    def read(self, file: int, headers: list[IndexHeader] | None = None) -> tuple[bool, int]:
        told: list[int] = []
        seal = BlockChecksums(FILES, str(self.root)).of(file * FILE_BYTES)
        assert isinstance(seal, Seal)
        times = KeyTimes(FILES, headers or self.headers, self.runs(file))
        reading = SealedRead(FILES, self.directory.by_number[file], seal, times)
        return reading.is_right(told.append), sum(told)


@pytest.fixture
def sealed(tmp_path: Path) -> Sealed:
    return Sealed(written(tmp_path / "s", sealed=True))


@pytest.mark.parametrize("piece_blocks", [1, 3, 64])
def test_a_right_file(sealed: Sealed, monkeypatch: pytest.MonkeyPatch, piece_blocks: int) -> None:
    monkeypatch.setattr(logcheck, "_PIECE_BYTES", piece_blocks * 65_536)
    monkeypatch.setattr(indexes, "_PIECE_ENTRIES", 100)
    for file in (0, 1):
        assert sealed.read(file) == (True, FILE_BYTES)


def test_any_flip_is_seen(sealed: Sealed) -> None:
    path = Path(sealed.directory.log_files[1].path)
    for at in (0, 65_535, 65_536, FILE_BYTES - 1):
        flip_byte(path, at, 0x01)
        assert sealed.read(1) == (False, 0)
        flip_byte(path, at, 0x01)
    path.write_bytes(path.read_bytes()[:-1])
    assert sealed.read(1) == (False, 0)


def test_times_of_entries(sealed: Sealed) -> None:
    later = [replace(header, begin_ms=header.begin_ms - 5_000) for header in sealed.headers]
    assert sealed.read(0, later) == (False, 0)


def test_entries_that_go_back_are_left_to_others(sealed: Sealed) -> None:
    path = Path(sealed.headers[0].path)
    raw = bytearray(path.read_bytes())
    first = 40 + 4 * 500 + 20 * 10
    raw[first : first + 20], raw[first + 40 : first + 60] = (
        raw[first + 40 : first + 60],
        raw[first : first + 20],
    )
    path.write_bytes(raw)
    assert sealed.read(0) == (False, 0)
