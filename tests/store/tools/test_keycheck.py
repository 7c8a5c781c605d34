"""Index entries against the keys of records."""

from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.store.config import StoreConfig
from cometmq.store.files import PosixFiles, ReadOnlyFiles
from cometmq.store.index import IndexFile
from cometmq.store.layout import index_hash, topic_prefix
from cometmq.store.tools.directory import read_directory
from cometmq.store.tools.findings import Finding, Findings
from cometmq.store.tools.indexes import KeyCheck, read_index_header, survey_index
from cometmq.store.tools.logfile import LogWalk
from tests.store.sealed import FILE_BYTES
from tests.store.stores import log_of, opened, put

FILES = ReadOnlyFiles()
Row = tuple[int, int, int]


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    """Hash, physical offset and store time of every index entry of a store in ``tmp_path``."""
    store = opened(tmp_path, mapped_file_size_commit_log=FILE_BYTES, max_hash_slot_num=64)
    for number in range(40):
        put(store, "t", 0, keys=(f"u{number}", "all"))
        store.commit()
        store.clock.advance(300)  # type: ignore[attr-defined]
    prefix = topic_prefix("t")
    found = [
        (index_hash(prefix, key), record.physical_offset, record.store_ms)
        for number, record in enumerate(log_of(store))
        for key in (f"u{number}", "all")
    ]
    store.close()
    return found


def checked(
    root: Path, rows: list[Row], bounds: tuple[int, int] | None = None, *, is_clean: bool = True
) -> tuple[KeyCheck, list[Finding]]:
    """Compare the log with an index of these rows."""
    for old in (root / "index").iterdir():
        old.unlink()
    path = root / "index" / "20260101000000000"
    file = IndexFile(PosixFiles(), str(path), 64, 100)
    file.start_empty()
    for key_hash, phys, store_ms in rows:
        file.put(*(array("q", [value]) for value in (key_hash, phys, store_ms)))
    file.close()
    config = StoreConfig(store_path_root_dir=str(root), max_hash_slot_num=64, max_index_num=100)
    directory = read_directory(config, FILES)
    findings = Findings()
    header = read_index_header(FILES, str(path), config, findings)
    assert header is not None
    runs = survey_index(FILES, directory, 0, header, Findings()).runs
    log = directory.log_files[0]
    limits = bounds or (header.begin_phys, header.end_phys)
    check = KeyCheck(FILES, [header], runs, limits, log.path, findings)
    for chunk in LogWalk(FILES, log.path, log.base, log.size_bytes):
        check.take(chunk)
    check.finish(is_clean=is_clean)
    return check, findings.all()


def test_all_keys_have_their_entries(tmp_path: Path, rows: list[Row]) -> None:
    check, findings = checked(tmp_path, rows)
    assert findings == []
    assert (check.keys, check.late, check.early) == (80, 0, 0)


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lambda rows: rows[:20] + rows[21:], ["index-entry-missing"]),
        (lambda rows: [*rows[:20], rows[20], *rows[20:]], ["index-entry-twice"]),
        (
            lambda rows: [*rows[:20], (rows[20][0] ^ 1, *rows[20][1:]), *rows[21:]],
            ["index-entry-missing", "index-entry-wrong"],
        ),
        (
            lambda rows: [*rows[:20], (rows[20][0], rows[20][1] + 1, rows[20][2]), *rows[21:]],
            ["index-entry-missing", "index-entry-wrong"],
        ),
        (
            lambda rows: [*rows[:20], (*rows[20][:2], rows[20][2] + 5_000), *rows[21:]],
            ["index-entry-time"],
        ),
        (lambda rows: [*rows, (5, FILE_BYTES - 500, rows[-1][2])], ["index-entry-nowhere"]),
    ],
)
def test_what_differs(
    tmp_path: Path,
    rows: list[Row],
    change: Callable[[list[Row]], list[Row]],
    kinds: list[str],
) -> None:
    _, findings = checked(tmp_path, change(rows))
    assert sorted(each.kind for each in findings) == kinds


def test_entries_that_exchanged_places_are_the_same_entries(
    tmp_path: Path, rows: list[Row]
) -> None:
    check, findings = checked(tmp_path, [*rows[:20], *rows[22:24], *rows[20:22], *rows[24:]])
    assert findings == []
    assert check.keys == 80


def test_records_before_and_behind_all_that_is_indexed(tmp_path: Path, rows: list[Row]) -> None:
    check, findings = checked(tmp_path, rows[10:61])
    assert findings == []
    assert (check.early, check.late) == (10, 19)
    assert check.late_from == rows[61][1]


def test_without_any_index_all_keys_are_late(tmp_path: Path, rows: list[Row]) -> None:
    check, findings = checked(tmp_path, [], (0, -1))
    assert findings == []
    assert (check.late, check.late_from) == (80, rows[0][1])


def test_after_a_crash_entries_may_be_ahead(tmp_path: Path, rows: list[Row]) -> None:
    more = [*rows, (5, FILE_BYTES - 500, rows[-1][2])]
    _, findings = checked(tmp_path, more, is_clean=False)
    assert [each.severity.value for each in findings] == ["note"]
