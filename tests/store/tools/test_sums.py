"""What a child process tells of one full log file."""

import json
import sys
from pathlib import Path
from subprocess import run

import pytest

from cometmq.store.config import StoreConfig
from cometmq.store.files import PosixFiles
from cometmq.store.log.checksums import sums_of
from cometmq.store.tools.sums import read_sums
from tests.store.sealed import FILE_BYTES, flip
from tests.store.stores import fill, log_of, opened

LEVELS = StoreConfig().message_delay_level


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The first of two full files of a store."""
    store = opened(tmp_path, mapped_file_size_commit_log=FILE_BYTES)
    for number in range(0, 2_000, 100):
        fill(store, 100, first=number)
        store.clock.advance(10)  # type: ignore[attr-defined]
    store.close()
    return str(tmp_path / "commitlog" / f"{0:020d}")


def test_sums_of_a_right_file(path: str) -> None:
    found = read_sums(PosixFiles(), path, 0, FILE_BYTES, 1 << 60, LEVELS)
    assert (found.problem, found.late_from) == ("", -1)
    assert found.sums == sums_of(Path(path).read_bytes())


def test_where_the_late_records_begin(path: str, tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_commit_log=FILE_BYTES)
    records = [record for record in log_of(store) if record.physical_offset < FILE_BYTES]
    store.close()
    for middle in (0, 500, len(records) - 2):
        moment = records[middle].store_ms
        late = [record.physical_offset for record in records if record.store_ms > moment]
        found = read_sums(PosixFiles(), path, 0, FILE_BYTES, moment, LEVELS)
        assert found.late_from == (late[0] if late else -1)


def test_damage_is_a_problem(path: str, tmp_path: Path) -> None:
    flip(tmp_path, 90)
    assert (
        "offset 0 does not match its CRC"
        in read_sums(PosixFiles(), path, 0, FILE_BYTES, 0, LEVELS).problem
    )
    flip(tmp_path, 4)
    assert (
        "no record at offset 0" in read_sums(PosixFiles(), path, 0, FILE_BYTES, 0, LEVELS).problem
    )


def test_a_file_that_is_not_full_is_a_problem(path: str) -> None:
    raw = Path(path).read_bytes()
    last = read_sums(PosixFiles(), path, 0, FILE_BYTES, 0, LEVELS)
    assert last.problem == ""
    blank = raw.rindex(b"\xcb\xd4\x31\x94") - 4
    Path(path).write_bytes(raw[:blank].ljust(FILE_BYTES, b"\0"))
    problem = read_sums(PosixFiles(), path, 0, FILE_BYTES, 0, LEVELS).problem
    assert problem == f"the log ends inside it, at offset {blank}"


def test_the_process_prints_json(path: str) -> None:
    words = [
        sys.executable,
        "-m",
        "cometmq.store.tools.sums",
        path,
        "0",
        str(FILE_BYTES),
        "0",
        LEVELS,
    ]
    done = run(words, capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout)["problem"] == ""
    assert json.loads(done.stdout)["late_from"] == 0
