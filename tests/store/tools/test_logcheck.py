"""One log file checked by its seal, or by its records."""

from pathlib import Path

import pytest

from cometmq.store.config import StoreConfig
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.log.checksums import BlockChecksums
from cometmq.store.tools.directory import find_queues, read_directory
from cometmq.store.tools.findings import Findings
from cometmq.store.tools.indexes import read_index_header, survey_index
from cometmq.store.tools.logcheck import FileCheck, LogOutcome, StoreContents
from cometmq.store.tools.queues import survey_queue
from cometmq.store.tools.sums import Digest, join_digests
from tests.store.sealed import FILE_BYTES
from tests.store.tools.verifying import flip_byte, written

FILES = ReadOnlyFiles()


class Prepared:
    """A store surveyed, and ready to have one of its files checked."""

    def __init__(self, root: Path) -> None:
        config = StoreConfig(store_path_root_dir=str(root))
        self.directory = read_directory(config, FILES)
        queues = find_queues(FILES, self.directory)
        found = [
            read_index_header(FILES, path, config, Findings())
            for path in self.directory.index_files
        ]
        headers = [header for header in found if header is not None]
        bounds = (headers[0].begin_phys, headers[-1].end_phys) if headers else (0, -1)
        seals = BlockChecksums(FILES, str(root))
        self.contents = StoreContents(self.directory, queues, headers, bounds, (), seals)
        self.entries: dict[int, Digest] = {}
        self.keys: dict[int, Digest] = {}
        surveys = [
            survey_queue(FILES, self.directory, number, queue, Findings())
            for number, queue in enumerate(queues)
        ]
        indexes = [
            survey_index(FILES, self.directory, number, header, Findings())
            for number, header in enumerate(headers)
        ]
        for each in surveys:
            join_digests(self.entries, each.digests)
        for index in indexes:
            join_digests(self.keys, index.digests)
        self.runs = [run for each in surveys for run in each.runs]
        self.index_runs = [run for index in indexes for run in index.runs]

    def check(self, number: int) -> FileCheck:
        return FileCheck(
            FILES, self.contents, number,
            [run for run in self.runs if run.file == number],
            [run for run in self.index_runs if run.file == number],
        )  # fmt: skip

    def by_seal(self, number: int, told: list[int] | None = None) -> LogOutcome | None:
        progress = ([] if told is None else told).append
        none = Digest()
        return self.check(number).by_seal(
            self.entries.get(number, none), self.keys.get(number, none), progress
        )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return written(tmp_path / "s", sealed=True)


def test_both_ways_come_to_the_same(root: Path) -> None:
    store = Prepared(root)
    for number in (0, 1):
        told: list[int] = []
        quick = store.by_seal(number, told)
        assert sum(told) == FILE_BYTES
        told.clear()
        slow = store.check(number).by_record(told.append)
        assert sum(told) == FILE_BYTES
        assert quick is not None
        assert quick.sealed
        assert (quick.records, quick.keys, quick.closed, quick.findings, quick.missing) == (
            slow.records, slow.keys, slow.closed, slow.findings, slow.missing,
        )  # fmt: skip
        assert quick.findings == []


def test_a_seal_alone_is_not_believed(root: Path) -> None:
    store = Prepared(root)
    # Not sealed yet; another entry; another key.
    assert store.by_seal(2) is None
    store.entries[0] = store.entries[0].plus(Digest(1, 5))
    assert store.by_seal(0) is None
    store.keys[1] = Digest(store.keys[1].amount, 7)
    assert store.by_seal(1) is None


def test_a_block_that_differs_leads_to_the_records(root: Path) -> None:
    flip_byte(root / "commitlog" / f"{0:020d}", 17)
    store = Prepared(root)
    assert store.by_seal(0) is None
    (found,) = store.check(0).by_record(lambda _: None).findings
    assert (found.kind, found.offset) == ("block", 0)


def test_without_an_index_keys_are_not_compared(root: Path) -> None:
    for path in (root / "index").iterdir():
        path.unlink()
    found = Prepared(root).by_seal(0)
    assert found is not None
    assert found.late_keys == found.keys > 0


def test_a_seal_in_doubt_is_no_short_cut(root: Path) -> None:
    flip_byte(root / "checkpoint", 7, 1)
    store = Prepared(root)
    assert store.by_seal(0) is None
    found = store.check(0).by_record(lambda _: None)
    assert found.sealed
    assert found.findings == []


def test_a_seal_of_another_size(root: Path) -> None:
    path = root / "commitlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes() + bytes(100))
    found = Prepared(root).check(0).by_record(lambda _: None)
    assert "seal" in {each.kind for each in found.findings}
    assert not found.sealed
