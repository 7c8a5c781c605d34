"""The outbox: a change and its message are one transaction, and nothing leaves it too early."""

import json
import sqlite3
from pathlib import Path

import pytest

from cometmq.demo.base import BaseData
from cometmq.demo.script import Edit
from cometmq.demo.tables import REGIONS, read_table
from tests.demo.worlds import small_script, small_world


def test_edits_change_the_tables_and_wait_in_the_outbox(tmp_path: Path) -> None:
    base = BaseData(tmp_path / "base.sqlite")
    row = small_world()[2]
    assert base.apply([Edit("regions", "insert", "AD-02", row)], at_ms=10) == 1
    assert base.apply([Edit("regions", "delete", "AD-02", None)], at_ms=20) == 1
    first, second = base.unsent(10)
    assert (first.change, second.change) == (1, 2)
    assert json.loads(first.body)["row"] == row
    assert json.loads(second.body) == {
        "table": "regions",
        "op": "delete",
        "key": "AD-02",
        "change": 2,
        "at_ms": 20,
        "row": None,
    }
    assert read_table(base.path, REGIONS) == []
    base.close()


def test_a_failed_transaction_leaves_neither_row_nor_message(tmp_path: Path) -> None:
    base = BaseData(tmp_path / "base.sqlite")
    good, bad = small_world()[:2]
    edits = [
        Edit("regions", "insert", "AD", good),
        Edit("regions", "insert", "FR", bad | {"name": None}),
    ]
    with pytest.raises(sqlite3.IntegrityError):
        base.apply(edits, at_ms=1)
    assert base.unsent(10) == []
    assert read_table(base.path, REGIONS) == []
    assert base.apply(edits[:1], at_ms=2) == 1
    base.close()


def test_only_marked_messages_leave_the_outbox_also_after_a_restart(tmp_path: Path) -> None:
    base = BaseData(tmp_path / "base.sqlite")
    for step in small_script().initial():
        base.apply(step, at_ms=1)
    waiting = base.unsent(100)
    assert [message.change for message in waiting] == list(range(1, 10))
    base.mark_sent([message.change for message in waiting[:3]])
    base.close()
    again = BaseData(tmp_path / "base.sqlite")
    assert [message.change for message in again.unsent(100)] == list(range(4, 10))
    assert [message.change for message in again.unsent(2)] == [4, 5]
    again.close()


def test_a_change_number_is_never_given_twice(tmp_path: Path) -> None:
    base = BaseData(tmp_path / "base.sqlite")
    row = small_world()[0]
    for op, value in (("insert", row), ("delete", None), ("insert", row), ("update", row)):
        base.apply([Edit("regions", op, "AD", value)], at_ms=1)  # type: ignore[arg-type]
    assert base.last_changes() == {("regions", "AD"): 4}
    base.close()
