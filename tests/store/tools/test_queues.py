"""Queue files read as columns, and surveyed."""

from pathlib import Path

import numpy as np

from cometmq.store.config import StoreConfig
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.layout import HOLE, QUEUE_ENTRY
from cometmq.store.tools import queues
from cometmq.store.tools.directory import find_queues, read_directory
from cometmq.store.tools.findings import Findings
from cometmq.store.tools.queues import QueueSpan, iter_entries, read_entries, survey_queue
from cometmq.store.tools.sums import digest_of, hash_entries, text_hash

FILES = ReadOnlyFiles()
PER_FILE = 1_000
LOG = 65_536


def made(root: Path, entries: dict[int, bytes], first: int = 0) -> None:
    """A log of four empty files, and one queue with entries by offset, in sparse files."""
    (root / "commitlog").mkdir()
    for base in range(0, 4 * LOG, LOG):
        (root / "commitlog" / f"{base:020d}").write_bytes(bytes(LOG))
    directory = root / "consumequeue" / "t" / "5"
    directory.mkdir(parents=True)
    for base in range(first // PER_FILE, max(entries) // PER_FILE + 1):
        with (directory / f"{base * PER_FILE * 20:020d}").open("wb") as file:
            file.truncate(PER_FILE * 20)
    for offset, entry in entries.items():
        name = f"{offset // PER_FILE * PER_FILE * 20:020d}"
        with (directory / name).open("r+b") as file:
            file.seek(offset % PER_FILE * 20)
            file.write(entry)


def entry(phys: int, size: int = 100, code: int = 7) -> bytes:
    return QUEUE_ENTRY.pack(phys, size, code)


def surveyed(root: Path) -> tuple[queues.QueueSurvey, Findings]:
    directory = read_directory(StoreConfig(store_path_root_dir=str(root)), FILES)
    (queue,) = find_queues(FILES, directory)
    findings = Findings()
    return survey_queue(FILES, directory, 3, queue, findings), findings


def test_entries_are_read_over_the_ends_of_files(tmp_path: Path) -> None:
    made(tmp_path, {number: entry(number * 100) for number in range(900, 1_100)})
    directory = read_directory(StoreConfig(store_path_root_dir=str(tmp_path)), FILES)
    (queue,) = find_queues(FILES, directory)
    found = read_entries(FILES, queue, directory.queue_file_bytes, 990, 20)
    assert found.phys.tolist() == [number * 100 for number in range(990, 1_010)]
    assert set(found.sizes.tolist()) == {100}
    # Beyond all files there are zeros.
    assert read_entries(FILES, queue, directory.queue_file_bytes, 5_000, 2).phys.tolist() == [0, 0]


def test_what_was_never_written_is_left_out(tmp_path: Path) -> None:
    made(tmp_path, {number: entry(number * 10) for number in (*range(50), *range(1_900, 1_950))})
    directory = read_directory(StoreConfig(store_path_root_dir=str(tmp_path)), FILES)
    (queue,) = find_queues(FILES, directory)
    parts = list(iter_entries(FILES, queue, directory.queue_file_bytes))
    assert sum(len(part.phys) for part in parts) < 1_300
    found = {part.first + at for part in parts for at in np.flatnonzero(part.sizes).tolist()}
    assert found == {*range(50), *range(1_900, 1_950)}


def test_runs_and_digests_by_log_file(tmp_path: Path) -> None:
    places = [0, 200, LOG - 100, LOG, LOG + 300, 3 * LOG + 5]
    made(tmp_path, {number: entry(phys) for number, phys in enumerate(places)})
    found, findings = surveyed(tmp_path)
    assert found.span == QueueSpan(0, 6)
    assert [tuple(run) for run in found.runs] == [(3, 0, 0, 3), (3, 1, 3, 2), (3, 3, 5, 1)]
    assert findings.all() == []
    mixed = hash_entries(
        np.array(places), np.full(6, 100), np.full(6, 7), np.arange(6),
        np.full(6, text_hash("t")), np.full(6, 5),
    )  # fmt: skip
    assert found.digests == {
        0: digest_of(mixed[:3]),
        1: digest_of(mixed[3:5]),
        3: digest_of(mixed[5:]),
    }


def test_runs_go_on_from_piece_to_piece(tmp_path: Path) -> None:
    made(tmp_path, {number: entry(number * 10) for number in range(1_500)})
    found, _ = surveyed(tmp_path)
    assert [tuple(run) for run in found.runs] == [(3, 0, 0, 1_500)]
    assert found.digests[0].amount == 1_500


def test_holes_before_the_first_record_are_no_news(tmp_path: Path) -> None:
    made(
        tmp_path,
        {number: HOLE for number in range(10)} | {10: entry(5), 11: HOLE, 12: entry(300)},
    )
    found, findings = surveyed(tmp_path)
    assert found.span == QueueSpan(10, 13)
    assert [each.kind for each in findings.all()] == ["queue-hole"]
    assert [tuple(run) for run in found.runs] == [(3, 0, 10, 1), (3, 0, 12, 1)]


def test_entries_of_records_that_the_log_dropped(tmp_path: Path) -> None:
    made(tmp_path, {0: entry(10), 1: entry(LOG + 10), 2: entry(2 * LOG)})
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    found, findings = surveyed(tmp_path)
    assert found.span == QueueSpan(1, 3)
    assert [run.first for run in found.runs] == [1, 2]
    assert findings.all() == []


def test_entries_that_point_nowhere_or_are_missing(tmp_path: Path) -> None:
    entries = {0: entry(0), 1: entry(9 * LOG), 2: entry(-5), 3: entry(50, 0), 6: entry(500)}
    made(tmp_path, entries)
    found, findings = surveyed(tmp_path)
    kinds = [each.kind for each in findings.all()]
    assert sorted(kinds) == ["queue-entry-missing", *["queue-entry-outside"] * 3]
    assert found.span == QueueSpan(0, 7)
    assert [run.first for run in found.runs] == [0, 6]


def test_an_empty_queue(tmp_path: Path) -> None:
    made(tmp_path, {0: bytes(20)})
    found, findings = surveyed(tmp_path)
    assert (found.span, found.runs, findings.all()) == (QueueSpan(0, 0), [], [])
