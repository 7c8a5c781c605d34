"""Index files read as columns: slots found, chains and headers checked."""

import random
from array import array
from pathlib import Path

import numpy as np
import pytest

from cometmq.store.config import StoreConfig
from cometmq.store.files import PosixFiles, ReadOnlyFiles
from cometmq.store.index import ENTRY_BYTES, HEADER_BYTES, IndexFile
from cometmq.store.tools import indexes
from cometmq.store.tools.directory import StoreDirectory, read_directory
from cometmq.store.tools.findings import Findings
from cometmq.store.tools.indexes import IndexHeader, read_index, read_index_header, survey_index
from cometmq.store.tools.sums import digest_of, hash_keys
from tests.store.tools.verifying import flip_byte

FILES = ReadOnlyFiles()
SLOTS = 50
ENTRIES_AT = HEADER_BYTES + 4 * SLOTS
LOG = 65_536


def made(
    root: Path, count: int, first_phys: int = 0, seed: int = 3, step: int = 500
) -> tuple[Path, list[tuple[int, int]]]:
    """A log of four empty files and an index file; gives its path, and (hash, offset) of each."""
    (root / "commitlog").mkdir()
    for base in range(0, 4 * LOG, LOG):
        (root / "commitlog" / f"{base:020d}").write_bytes(bytes(LOG))
    (root / "index").mkdir()
    path = root / "index" / "20260101000000000"
    file = IndexFile(PosixFiles(), str(path), SLOTS, 400)
    file.start_empty()
    chance = random.Random(seed)
    rows = [(chance.randrange(1 << 31), first_phys + number * step) for number in range(count)]
    for number, (key_hash, phys) in enumerate(rows):
        row = key_hash, phys, 1_000_000 + number * 700
        file.put(*(array("q", [value]) for value in row))
    file.write_slots()
    file.close()
    return path, rows


def looked(root: Path) -> StoreDirectory:
    return read_directory(StoreConfig(store_path_root_dir=str(root)), FILES)


def header_of(path: Path, findings: Findings | None = None) -> IndexHeader | None:
    return read_index_header(FILES, str(path), StoreConfig(), findings or Findings())


def problems(root: Path, path: Path) -> list[str]:
    findings = Findings()
    header = header_of(path, findings)
    if header is not None:
        survey_index(FILES, looked(root), 0, header, findings)
    return [each.kind for each in findings.all()]


@pytest.mark.parametrize("first_phys", [0, 100, 7 << 32])
def test_the_number_of_slots_is_found(tmp_path: Path, first_phys: int) -> None:
    path, rows = made(tmp_path, 30, first_phys)
    header = header_of(path)
    assert header is not None
    assert (header.slots, header.entries) == (SLOTS, 30)
    assert (header.begin_ms, header.end_ms) == (1_000_000, 1_000_000 + 29 * 700)
    assert (header.begin_phys, header.end_phys) == (rows[0][1], rows[-1][1])
    found = read_index(FILES, header, 1, 30)
    assert list(zip(found.hashes.tolist(), found.phys.tolist(), strict=True)) == rows
    assert found.seconds.tolist() == [number * 700 // 1000 for number in range(30)]
    assert len(found) == 30


@pytest.mark.parametrize("seed", range(40))
def test_slots_are_not_taken_for_the_first_entry(tmp_path: Path, seed: int) -> None:
    """Of several keys of the record at offset 0, each entry is hardly more than its hash, and a
    slot between zeros is no less."""
    path, _ = made(tmp_path, 4, seed=seed, step=0)
    header = header_of(path)
    assert header is not None
    assert header.slots == SLOTS
    assert problems(tmp_path, path) == []


def test_settings_say_it_when_they_fit(tmp_path: Path) -> None:
    path, _ = made(tmp_path, 3)
    config = StoreConfig(max_hash_slot_num=SLOTS, max_index_num=400)
    header = read_index_header(FILES, str(path), config, Findings())
    assert header is not None
    assert header.slots == SLOTS


def test_a_long_file_is_searched_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "_SEARCH_BYTES", 100)
    path, _ = made(tmp_path, 30, 900)
    header = header_of(path)
    assert header is not None
    assert header.slots == SLOTS


def test_an_empty_file_and_one_that_is_cut_off(tmp_path: Path) -> None:
    path, _ = made(tmp_path, 0)
    header = header_of(path)
    assert header is not None
    assert header.entries == 0
    assert problems(tmp_path, path) == []
    path.write_bytes(bytes(10))
    assert problems(tmp_path, path) == ["index-file-size"]


def test_a_header_that_makes_no_sense(tmp_path: Path) -> None:
    path, _ = made(tmp_path, 30, 900)
    # The first record's offset, and the count.
    for at in (22, 36, 37):
        flip_byte(path, at)
        assert problems(tmp_path, path) == ["index-header"]
        flip_byte(path, at)
    assert problems(tmp_path, path) == []


@pytest.mark.parametrize("piece", [7, 1 << 15])
def test_a_sound_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(indexes, "_PIECE_ENTRIES", piece)
    path, rows = made(tmp_path, 300)
    header = header_of(path)
    assert header is not None
    findings = Findings()
    found = survey_index(FILES, looked(tmp_path), 4, header, findings)
    assert findings.all() == []
    first = sum(phys < LOG for _, phys in rows)
    second = sum(LOG <= phys < 2 * LOG for _, phys in rows)
    assert [tuple(run) for run in found.runs] == [
        (4, 0, 1, first),
        (4, 1, 1 + first, second),
        (4, 2, 1 + first + second, 300 - first - second),
    ]
    hashes, places = (np.array(column) for column in zip(*rows, strict=True))
    assert found.digests[0] == digest_of(hash_keys(places[:first], hashes[:first]))
    assert sum(digest.amount for digest in found.digests.values()) == 300


@pytest.mark.parametrize("piece", [7, 1 << 15])
@pytest.mark.parametrize(
    ("field", "bits", "kind"),
    [
        (3, 0x01, "index-chain"),
        (0, 0x80, "index-chain"),
        (19, 0x01, "index-chain"),
        (16, 0x80, "index-chain"),
        (4, 0x80, "index-entry-outside"),
        (6, 0x80, "index-entry-outside"),
    ],
)
def test_a_damaged_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, field: int, bits: int, kind: str
) -> None:
    monkeypatch.setattr(indexes, "_PIECE_ENTRIES", piece)
    path, _ = made(tmp_path, 300)
    flip_byte(path, ENTRIES_AT + 200 * ENTRY_BYTES + field, bits)
    assert kind in problems(tmp_path, path)


def test_two_entries_that_name_the_same_one(tmp_path: Path) -> None:
    path, _ = made(tmp_path, 300)
    header = header_of(path)
    assert header is not None
    before = read_index(FILES, header, 1, 300)
    places = (before.hashes % SLOTS).tolist()
    own = [number for number, place in enumerate(places, 1) if place == places[299]]
    raw = bytearray(path.read_bytes())
    # The newest entry of a slot names the one before the one before it.
    at = ENTRIES_AT + own[-1] * ENTRY_BYTES + 16
    raw[at : at + 4] = own[-3].to_bytes(4, "big")
    path.write_bytes(raw)
    assert "index-chain" in problems(tmp_path, path)


def test_slots_and_their_count(tmp_path: Path) -> None:
    path, _ = made(tmp_path, 300)
    flip_byte(path, HEADER_BYTES + 4 * 9 + 3, 0x01)
    assert problems(tmp_path, path) == ["index-slot"]
    # After a crash they are made again.
    (tmp_path / "abort").touch()
    findings = Findings()
    header = header_of(path)
    assert header is not None
    survey_index(FILES, looked(tmp_path), 0, header, findings)
    assert [each.severity.value for each in findings.all()] == ["note"]
    (tmp_path / "abort").unlink()
    flip_byte(path, HEADER_BYTES + 4 * 9 + 3, 0x01)
    flip_byte(path, 35, 0x01)
    assert problems(tmp_path, path) == ["index-header"]


def test_entries_of_records_that_the_log_dropped(tmp_path: Path) -> None:
    path, rows = made(tmp_path, 300)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    findings = Findings()
    header = header_of(path)
    assert header is not None
    found = survey_index(FILES, looked(tmp_path), 0, header, findings)
    assert findings.all() == []
    assert found.runs[0].first == 1 + sum(phys < LOG for _, phys in rows)
    assert found.runs[0].file == 0
