"""Records of a part of the log, piece by piece."""

from pathlib import Path

import pytest

from cometmq.message.record import BLANK, MAGIC_BLANK
from cometmq.spark.store import files
from cometmq.spark.store.files import DamagedBytes, LogFileStatus, blocks
from cometmq.spark.store.options import RequestedRanges, StoreRoot
from cometmq.spark.store.planning import LogPart
from tests.spark.store.test_files import SIZE, record

pytestmark = pytest.mark.core

BASE = 1 << 30


def part(tmp_path: Path, raw: bytes, start: int = 0, stop: int | None = None) -> LogPart:
    path = tmp_path / "log"
    path.write_bytes(raw)
    file = LogFileStatus(str(path), BASE, len(raw))
    end = len(raw) if stop is None else stop
    return LogPart(StoreRoot("/s", "b"), file, BASE + start, BASE + end, RequestedRanges(), 0)


def ten() -> bytearray:
    return bytearray(b"".join(record(BASE + at * SIZE) for at in range(10)))


def found(of: LogPart) -> list[int | DamagedBytes]:
    """Numbers of the records, and damage as it is told."""
    rows: list[int | DamagedBytes] = []
    for each in blocks(of.file, of.start, of.stop, of.root.broker_name):
        if isinstance(each, DamagedBytes):
            rows.append(each)
        else:
            physical = each.number("physical_offset") - BASE
            rows += (physical // SIZE).tolist()
    return rows


@pytest.mark.parametrize("piece_bytes", [200, 500, 1 << 20])
@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 10 * SIZE, range(10)),
        (0, 1, range(1)),
        (1, 3 * SIZE, range(1, 3)),
        (SIZE, 3 * SIZE + 1, range(1, 4)),
        (9 * SIZE + 1, 10 * SIZE, range(0)),
        (SIZE + 1, 2 * SIZE, range(0)),
    ],
)
def test_a_record_is_of_the_part_in_which_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, start: int, stop: int,
    expected: range,
) -> None:  # fmt: skip
    monkeypatch.setattr(files, "BLOCK_BYTES", piece_bytes)
    assert found(part(tmp_path, bytes(ten()), start, stop)) == list(expected)


def test_a_blank_ends_a_file(tmp_path: Path) -> None:
    blank = BLANK.pack(300, MAGIC_BLANK).ljust(300, b"\0")
    assert found(part(tmp_path, bytes(ten()) + blank)) == list(range(10))
    assert found(part(tmp_path, bytes(ten()) + bytes(50))) == list(range(10))


@pytest.mark.parametrize(
    ("at", "problem"),
    [(0, "size"), (4, "magic"), (28, "physical offset"), (84, "body length")],
)
def test_damage_and_what_follows_it(tmp_path: Path, at: int, problem: str) -> None:
    raw = ten()
    raw[3 * SIZE + at] ^= 0x7F
    rows = found(part(tmp_path, bytes(raw)))
    (damage,) = [row for row in rows if isinstance(row, DamagedBytes)]
    assert (damage.start, damage.stop) == (BASE + 3 * SIZE, BASE + 4 * SIZE)
    assert problem in damage.problem
    assert rows == [0, 1, 2, damage, *range(4, 10)]


def test_damage_up_to_the_end(tmp_path: Path) -> None:
    raw = bytes(ten()[: 9 * SIZE]) + bytes(2_000)
    *rows, damage = found(part(tmp_path, raw))
    assert rows == list(range(9))
    assert isinstance(damage, DamagedBytes)
    assert damage.stop == BASE + len(raw)
