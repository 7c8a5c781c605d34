"""The note of what waits."""

import json
from pathlib import Path

import pytest

from cometmq.broker.scheduled.timers.snapshot import (
    STATE_FILE,
    Snapshot,
    read_snapshot,
    write_snapshot,
)
from cometmq.store.files import PosixFiles

FILES = PosixFiles()
SNAPSHOT = Snapshot(5, 1_000, 77, 3, 900, ((1, 2, 3, 4),), ((2_000_000, 56, 99),))


def test_it_comes_back(tmp_path: Path) -> None:
    assert read_snapshot(FILES, str(tmp_path)) is None
    write_snapshot(FILES, str(tmp_path), SNAPSHOT)
    found = read_snapshot(FILES, str(tmp_path))
    assert found is not None
    assert found.note() == {2_000_000: (56, 99)}
    assert (found.position, found.log_offset, found.held) == (5, 1_000, ((1, 2, 3, 4),))


@pytest.mark.parametrize("damage", ["value", "cut", "field", "nothing"])
def test_one_that_is_not_whole_counts_for_nothing(tmp_path: Path, damage: str) -> None:
    write_snapshot(FILES, str(tmp_path), SNAPSHOT)
    path = tmp_path / STATE_FILE
    text = path.read_text()
    values = json.loads(text)
    if damage == "value":
        path.write_text(json.dumps({**values, "position": 6}))
    elif damage == "cut":
        path.write_text(text[:-5])
    elif damage == "field":
        del values["through"]
        path.write_text(json.dumps(values))
    else:
        path.write_bytes(b"\xff\xfe")
    assert read_snapshot(FILES, str(tmp_path)) is None
