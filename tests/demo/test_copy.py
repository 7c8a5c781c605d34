"""A copy ends equal to its base whatever the order and however often changes arrive."""

import sqlite3
from itertools import chain
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.demo.change import Change
from cometmq.demo.copy import Applied, Copy
from cometmq.demo.tables import REGIONS, TABLES, Row, read_table
from tests.demo.test_script import replay
from tests.demo.worlds import small_script, small_world

ROW = small_world()[2]


def change(number: int, row: Row | None = ROW) -> Change:
    return Change("regions", "delete" if row is None else "update", "AD-02", number, 1, row)


def test_a_late_change_does_not_undo_a_newer_one(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy.sqlite")
    assert copy.apply(change(7, ROW | {"population": 7})) is Applied.NEW
    assert copy.apply(change(5, ROW | {"population": 5})) is Applied.STALE
    assert copy.apply(change(7, ROW | {"population": 7})) is Applied.REPEATED
    assert read_table(copy.path, REGIONS) == [ROW | {"population": 7}]
    copy.close()


def test_a_late_change_does_not_bring_a_deleted_row_back(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy.sqlite")
    copy.apply(change(1))
    assert copy.apply(change(3, None)) is Applied.NEW
    assert copy.apply(change(2)) is Applied.STALE
    assert read_table(copy.path, REGIONS) == []
    assert copy.apply(change(4)) is Applied.NEW
    assert read_table(copy.path, REGIONS) == [ROW]
    copy.close()


def test_a_deletion_that_overtakes_the_insert_wins(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy.sqlite")
    assert copy.apply(change(2, None)) is Applied.NEW
    assert copy.apply(change(1)) is Applied.STALE
    assert read_table(copy.path, REGIONS) == []
    copy.close()


def test_tombstones_survive_a_restart(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy.sqlite")
    copy.apply(change(9, None))
    copy.close()
    again = Copy(tmp_path / "copy.sqlite")
    assert again.apply(change(8)) is Applied.STALE
    assert again.last_changes() == {("regions", "AD-02"): 9}
    again.close()


def test_a_change_that_cannot_be_applied_leaves_no_number_behind(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy.sqlite")
    with pytest.raises(sqlite3.IntegrityError):
        copy.apply(change(1, ROW | {"name": None}))
    assert copy.last_changes() == {}
    assert copy.apply(change(1)) is Applied.NEW
    copy.close()


@given(seed=st.integers(0, 1_000), shuffle=st.integers(0, 1_000))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_with_repeats_ends_equal(tmp_path: Path, seed: int, shuffle: int) -> None:
    script = small_script(seed)
    edits = list(chain.from_iterable([*script.initial(), *script.steps(40)]))
    changes = [
        Change(edit.table, edit.op, edit.key, number, 1, edit.row)
        for number, edit in enumerate(edits, 1)
    ]
    random = Random(shuffle)
    arriving = changes + random.choices(changes, k=20)
    random.shuffle(arriving)
    path = tmp_path / f"{seed}-{shuffle}.sqlite"
    path.unlink(missing_ok=True)
    copy = Copy(path)
    for arrived in arriving:
        copy.apply(arrived)
    copy.close()
    expected = replay(edits)
    for name, table in TABLES.items():
        rows = sorted(expected[name].values(), key=lambda row: str(row[table.key]))
        assert read_table(path, table) == rows
